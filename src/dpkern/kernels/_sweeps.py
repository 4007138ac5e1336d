"""The auxiliary variables of ADMM over records, and repeated sweeps that update them."""

import math
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

import dpkern.kernels._arguments as checked
from dpkern import _core
from dpkern._numbers import count, not_negative, positive
from dpkern._threads import resolve_threads
from dpkern.kernels._arguments import Data, FloatArray, IntArray, Random, Rows
from dpkern.kernels.grids import added_noise, sum_grids
from dpkern.models.losses import Loss, get_loss
from dpkern.models.penalties import L1
from dpkern.models.terms import Term
from dpkern.stream import Purpose


@dataclass(frozen=True, eq=False)
class ProxState:
    """Auxiliary variables u_i of ADMM, one vector per record: u_i = common_i + scale_i a_i.

    a_i is the record's effective row. `prox_sweep` updates the arrays in place. Every u_i begins at
    `start`, of shape (d,), which must not depend on the data. Only a public state is private, as a
    function of its start and of released messages.

    Attributes
    ----------
    common : ndarray, shape (d,) or (N, d)
        Float64, C order. One vector for all records (collapsed), or one per record.
    scale : ndarray, shape (N,), or None
        Float64. None for a public state, in which `common` is u itself.
    """

    common: FloatArray
    scale: FloatArray | None

    @classmethod
    def collapsed(cls, data: Data, start: ArrayLike) -> Self:
        """Return a state with one `common`, for sweeps over all records; O(N + d) memory."""
        return cls(checked.finite_array("start", start, (data.d,)).copy(), np.zeros(data.n))

    @classmethod
    def per_user(cls, data: Data, start: ArrayLike) -> Self:
        """Return a state with one `common` per record, for sweeps over some of the records."""
        return cls(cls.public(data, start).common, np.zeros(data.n))

    @classmethod
    def public(cls, data: Data, start: ArrayLike) -> Self:
        """Return a state in which every u_i is a function of its record's messages."""
        return cls(np.tile(checked.finite_array("start", start, (data.d,)), (data.n, 1)), None)


class PreparedSweep:
    """Repeated calls of `prox_sweep` and `admm_rounds` for one state, whose arguments are kept.

    A sweep over some hundred records takes less time than the validation of its arguments. `grid`
    and `sigma` are validated in the first call.
    """

    def __init__(
        self,
        data: Data,
        state: ProxState,
        *,
        loss: str | Loss,
        clip: float,
        prox_step: float,
        grid: float | None = None,
        sigma: float | None = None,
        change_clip: float | None = None,
        n_threads: int | None = None,
    ) -> None:
        common, self._scale = _arrays(data, state)
        self._data, self._collapsed = data, common.ndim == 1  # else one `common` per record
        compiled = checked.compiled_loss(convex(loss))
        self._clip = positive("clip", clip, or_infinite=True)
        self._gamma = positive("prox_step", prox_step)
        if sigma is not None and self._scale is not None:
            raise ValueError(
                "sigma must be None unless the state is public, got one: what others release is "
                "noised as a sum"
            )
        if change_clip is not None:
            if self._collapsed or self._scale is None:
                raise ValueError("change_clip must be None unless the state is per user, got one")
            change_clip = positive("change_clip", change_clip)
            if change_clip < 2.0**-1000:
                raise ValueError(f"change_clip must be at least 2^-1000, got {change_clip!r}")
        self._change_clip = change_clip
        self._grid, self._sigma, self._n_threads = grid, sigma, n_threads
        limit = prox_bound(self._gamma, self._clip, "prox_step")
        self._sweeps = _core.Sweeps(data, common, self._scale, compiled, self._gamma, limit)
        self._layout: tuple[float, int] | None = None
        self._std = 0.0

    def __call__(
        self, z: ArrayLike, *, relaxation: float, rows: IntArray | None = None, rng: Random = None
    ) -> Any:
        """Run the next sweep, as described in `prox_sweep`."""
        data = self._data
        point = checked.real_array("z", z, (data.d,))
        lam = relaxation_of(relaxation)
        self._require_own_states(rows)
        rows = None if rows is None else checked.increasing("rows", rows, data.n)
        n = data.n if rows is None else len(rows)
        layout = lam, resolve_threads(self._n_threads, n * data.d)
        if rows is not None or layout != self._layout:
            self._layout = None
            self._lay_out(rows, n, *layout)
            self._layout = None if rows is not None else layout
        if self._sigma is None:
            return self._sweeps.sweep(point, None, Purpose.USER, 0.0)
        with checked.release_of(rng) as release:
            return self._sweeps.sweep(point, release.key, Purpose.USER, self._std)

    def rounds(
        self,
        zhat: ArrayLike,
        *,
        rounds: int,
        relaxation: float,
        l2: float = 0.0,
        l1: float = 0.0,
        penalty: str | Term | None = None,
        penalize_intercept: bool = True,
        sigma: float | None = None,
        rows: Rows | None = None,
        rng: Random = None,
    ) -> FloatArray:
        """Run the next rounds, as described in `admm_rounds`.

        `sigma` is for hidden states; the messages of a public one have that of the sweep.
        """
        data, public = self._data, self._scale is None
        start = checked.finite_array("zhat", zhat, (data.d,))
        out, lam = np.empty((count("rounds", rounds), data.d)), relaxation_of(relaxation)
        shrink = 1.0 + self._gamma * not_negative("l2", l2)
        gamma, penalized = self._gamma / shrink, checked.penalized(data, penalize_intercept)
        proxes = []
        for name, term in (
            ("l1", L1(l1) if not_negative("l1", l1) else None),
            ("penalty", penalty),
        ):
            number, strength, params = checked.penalty(name, term, _core.prox_names())
            if term is not None:
                checked.require_prox(term, penalized, "prox_step", gamma * strength)
            proxes.append((number, gamma * strength, params))
        if public and sigma is not None:
            raise ValueError("sigma must be None for a public state, which has that of the sweep")
        self._require_own_states(rows)
        indices, bounds, n = None, None, data.n
        if rows is not None:
            indices, bounds = checked.increasing_parts("rows", rows, data.n, rounds)
            n = int(np.diff(bounds).max())
        self._layout = None
        grids = self._lay_out(indices, n, lam, resolve_threads(self._n_threads, n * data.d), bounds)
        std = self._std if self._sigma is not None else None
        if sigma is not None:
            std = float(added_noise(sigma, grids, 1)[0])
        with ExitStack() as stack:
            keys = None
            if std is not None:
                keys = stack.enter_context(checked.releases_of(rng, rounds)).keys
            # fmt: off
            self._sweeps.rounds(
                start, data.n, shrink, penalized, proxes, keys,
                Purpose.USER if public else Purpose.GAUSSIAN, std or 0.0, out,
            )
            # fmt: on
        return out

    def _require_own_states(self, rows: object) -> None:
        if rows is not None and self._collapsed:
            raise ValueError(
                "rows must be None for a collapsed state, got some: its records move together"
            )

    def _lay_out(
        self,
        rows: IntArray | None,
        n: int,
        lam: float,
        n_threads: int,
        bounds: IntArray | None = None,
    ) -> FloatArray | None:
        """Prepare the next sweep, or rounds with these bounds of their rows; return the grid."""
        factor = 1.0 if self._collapsed else 4.0 * lam if self._scale is not None else 2.0 * lam
        bound = self._change_clip or prox_bound(factor * self._gamma, self._clip, "prox_step")
        offsets = np.array([0, 1 if self._scale is None else n])
        grids = sum_grids(self._grid, offsets=offsets, dim=self._data.d, clip=bound)
        if self._sigma is not None:
            self._std = float(added_noise(self._sigma, grids, 1)[0])
        grid = 0.0 if grids is None else float(grids[0])
        self._sweeps.lay_out(rows, lam, bound, grid, n_threads, bounds)
        return grids


def relaxation_of(value: float) -> float:
    """Return a validated lam."""
    lam = positive("relaxation", value)
    if lam > 1.0:
        raise ValueError(f"relaxation must be in (0, 1], got {lam!r}")
    return lam


def convex(loss: str | Loss) -> Loss:
    """Return a loss whose prox is a function."""
    checked = get_loss(loss)
    if not checked.convex:
        raise ValueError(f"loss must be convex, got {checked.name!r}: its prox is not a function")
    return checked


def prox_bound(step: float, clip: float, name: str) -> float:
    """Return step * clip, the bound of a vector; raise unless it is normal, or clip infinite."""
    bound = step * clip
    if not bound >= 2.0**-1000 or (math.isinf(bound) and not math.isinf(clip)):
        raise ValueError(f"{name} times clip must be neither 0 nor infinite, got {bound!r}")
    return bound


def _arrays(data: Data, state: ProxState) -> tuple[FloatArray, FloatArray | None]:
    """Return the validated arrays of a state, to which kernels write."""
    if not isinstance(state, ProxState):
        raise TypeError(f"state must be a ProxState, got {checked.described(state)}")
    own = (data.n, data.d)
    if state.scale is None:
        return checked.writeable("state.common", state.common, own), None
    common = checked.writeable("state.common", state.common, (data.d,), own)
    return common, checked.writeable("state.scale", state.scale, (data.n,))
