"""ADMM over records: proxes of clipped losses, and sweeps that update the auxiliary variables."""

import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

import dpkern.kernels._arguments as checked
from dpkern import _core
from dpkern._numbers import positive
from dpkern._threads import resolve_threads
from dpkern.kernels._arguments import Data, FloatArray, IntArray, Random
from dpkern.kernels._grids import noise_scale, sum_grids
from dpkern.models.losses import Loss, get_loss
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


def loss_prox(
    data: Data,
    V: ArrayLike,
    gamma: float,
    *,
    loss: str | Loss,
    clip: float,
    out: FloatArray | None = None,
    n_threads: int | None = None,
) -> tuple[FloatArray, FloatArray]:
    r"""Return the prox of every record's clipped loss, argmin_x gamma f_i(x) + |x - v_i|^2 / 2.

    f_i(x) = phi(y_i, a_i . x) with a_i the effective row, and x_i = v_i + t_i a_i with t_i the
    solution of t = -gamma phi'(y_i, a_i . v_i + t |a_i|^2), clamped to +-gamma C' / |a_i|.

    Parameters
    ----------
    data, loss, clip, n_threads
        As in `dpkern.kernels`, C being the clip norm of a record's gradient; the loss must be
        convex, and derivatives that are not finite count as 0.
    V : array_like, shape (N, d)
        One point per record.
    gamma : float
        Step, positive and finite.
    out : ndarray, shape (N, d), optional
        As in `dpkern.kernels`, for X; `V` itself, or without overlap with it.

    Returns
    -------
    X : ndarray, shape (N, d)
        Float64, in record order; not private.
    t : ndarray, shape (N,)
        Float64 displacements along the effective rows; not private.

    Notes
    -----
    A clamped increasing function is increasing, so that this is the prox of a convex, C-Lipschitz
    loss, as for `glm_gradient`, whose displacement is at most gamma C: C' = C (1 - (d + 16) 2^-52),
    and the clamp is the last operation on t. Before it, the relative error of t is at most 1e-12,
    plus the effect of the rounding of a_i . v_i.
    """
    points = checked.finite_array("V", V, (data.n, data.d))
    gamma = positive("gamma", gamma)
    compiled = checked.compiled_loss(_convex(loss))
    bound = _prox_bound(gamma, positive("clip", clip, or_infinite=True), "gamma")
    out = checked.output(out, (data.n, data.d))
    checked.require_no_overlap("out", out, "V", points)
    t = np.empty(data.n)
    threads = resolve_threads(n_threads, data.n * data.d)
    _core.loss_prox(data, points, gamma, compiled, bound, out, t, threads)
    return out, t


def prox_sweep(
    data: Data,
    state: ProxState,
    z: ArrayLike,
    *,
    loss: str | Loss,
    clip: float,
    prox_step: float,
    relaxation: float,
    grid: float | None = None,
    sigma: float | None = None,
    rows: IntArray | None = None,
    rng: Random = None,
    n_threads: int | None = None,
) -> FloatArray | tuple[FloatArray, FloatArray]:
    r"""Run one ADMM sweep over records: v_i = 2 z - u_i, u_i += 2 lam (prox_i(v_i) - z).

    With gamma = `prox_step`, lam = `relaxation` and t_i as in `loss_prox`, the new state is
    (1 - 2 lam) u_i + 2 lam z + 2 lam t_i a_i. `state` is updated in place.

    Parameters
    ----------
    data, loss, clip, rng, n_threads
        As in `loss_prox` and `dpkern.kernels`. Every record is a user, whatever its silo. Only a
        call with `sigma` uses a release of a stream.
    state : ProxState
        Collapsed, per user or public. It is undefined after an interrupted sweep.
    z : array_like, shape (d,)
        The consensus point, finite.
    prox_step : float
        gamma, positive and finite.
    relaxation : float
        lam in (0, 1].
    grid : float, optional
        Power of two q with max(n, 2) b <= 2^52 q, b the bound of one vector (see Returns) and n the
        number of vectors that are summed, 1 for a public state. None means the finest one. With
        noise, the mechanism passes the grid of the noise.
    sigma : float, optional
        For a public state, the std of the Gaussian noise on every message, finite and >= 0. None
        means no noise.
    rows : ndarray, shape (k,), optional
        Int64 indices of the records to sweep, distinct and increasing; all by default. Not for a
        collapsed state.

    Returns
    -------
    S : ndarray, shape (d,)
        For a collapsed state: sum_i round_q(s_i a_i) with the new scales
        s_i = clamp((1 - 2 lam) s_i + 2 lam t_i, +-b' / |a_i|), b = gamma C. The mean of u is
        ``state.common + S / N``.
    S, P : ndarrays, shape (d,)
        For a per-user state: S = sum_i round_q(f_i a_i) with
        f_i = clamp(2 lam (t_i - s_i), +-b' / |a_i|), b = 4 lam gamma C, and the public
        P = sum_i 2 lam (z - common_i), in plain floating point. The change of sum_i u_i is P + S.
    M : ndarray, shape (d,)
        For a public state: the change of sum_i u_i, in plain floating point. Every record sends
        round_q(f_i a_i) + Z_i, f_i = clamp(2 lam t_i, +-b' / |a_i|) with b = 2 lam gamma C, and u_i
        becomes (1 - 2 lam) u_i + 2 lam z plus this message.

    Notes
    -----
    - Sensitivity: replacing one record, with equal states of all others and equal z, changes S, or
      a message, by at most 2 b in l2 norm, exactly, for the doubles returned: each vector has norm
      at most b and depends on its own record and state only, for any rounding error of t_i; b' is b
      less a margin for rounding (see `glm_gradient`).
    - P is a function of the z and of the participants of earlier sweeps.
    - Z_i are draws as in `gaussian`, with record i as the silo and their own purpose.
    - This is the iteration of [1]_ with a different place of the noise. For lam <= 1/2 every u_i
      stays within gamma C of a point that does not depend on its record.

    References
    ----------
    .. [1] Cyffers, Bellet, Basu, "From noisy fixed-point iterations to private ADMM for centralized
       and federated learning", ICML 2023, algorithms 1 to 3.
    """
    sweep = PreparedSweep(
        data,
        state,
        loss=loss,
        clip=clip,
        prox_step=prox_step,
        grid=grid,
        sigma=sigma,
        n_threads=n_threads,
    )
    return sweep(z, relaxation=relaxation, rows=rows, rng=rng)


class PreparedSweep:
    """Repeated calls of `prox_sweep` for one state, with its shared arguments validated once.

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
        n_threads: int | None = None,
    ) -> None:
        common, self._scale = _state(data, state)
        self._data, self._collapsed = data, common.ndim == 1  # else one `common` per record
        compiled = checked.compiled_loss(_convex(loss))
        self._clip = positive("clip", clip, or_infinite=True)
        self._gamma = positive("prox_step", prox_step)
        if sigma is not None and self._scale is not None:
            raise ValueError(
                "sigma must be None unless the state is public, got one: what others release is "
                "noised as a sum"
            )
        self._grid, self._sigma, self._n_threads = grid, sigma, n_threads
        limit = _prox_bound(self._gamma, self._clip, "prox_step")
        self._sweeps = _core.Sweeps(data, common, self._scale, compiled, self._gamma, limit)
        self._layout: tuple[float, int] | None = None
        self._std = 0.0

    def __call__(
        self, z: ArrayLike, *, relaxation: float, rows: IntArray | None = None, rng: Random = None
    ) -> Any:
        """Run the next sweep, as described in `prox_sweep`."""
        data = self._data
        point = checked.real_array("z", z, (data.d,))
        lam = positive("relaxation", relaxation)
        if lam > 1.0:
            raise ValueError(f"relaxation must be in (0, 1], got {lam!r}")
        if rows is not None and self._collapsed:
            raise ValueError(
                "rows must be None for a collapsed state, got some: its records move together"
            )
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

    def _lay_out(self, rows: IntArray | None, n: int, lam: float, n_threads: int) -> None:
        factor = 1.0 if self._collapsed else 4.0 * lam if self._scale is not None else 2.0 * lam
        bound = _prox_bound(factor * self._gamma, self._clip, "prox_step")
        offsets = np.array([0, 1 if self._scale is None else n])
        grids = sum_grids(self._grid, offsets=offsets, dim=self._data.d, clip=bound)
        if self._sigma is not None:
            if grids is None:
                raise ValueError("sigma must be None where clip is infinite, got one")
            self._std = float(noise_scale(self._sigma, grids, 1)[0][0])
        grid = 0.0 if grids is None else float(grids[0])
        self._sweeps.lay_out(rows, lam, bound, grid, n_threads)


def _convex(loss: str | Loss) -> Loss:
    checked = get_loss(loss)
    if not checked.convex:
        raise ValueError(f"loss must be convex, got {checked.name!r}: its prox is not a function")
    return checked


def _prox_bound(step: float, clip: float, name: str) -> float:
    """Return step * clip, the bound of a vector; raise unless it is normal, or clip infinite."""
    bound = step * clip
    if not bound >= 2.0**-1000 or (math.isinf(bound) and not math.isinf(clip)):
        raise ValueError(f"{name} times clip must be neither 0 nor infinite, got {bound!r}")
    return bound


def _state(data: Data, state: ProxState) -> tuple[FloatArray, FloatArray | None]:
    """Return the validated arrays of a state, to which kernels write."""
    if not isinstance(state, ProxState):
        raise TypeError(f"state must be a ProxState, got {checked.described(state)}")
    own = (data.n, data.d)
    if state.scale is None:
        return checked.writeable("state.common", state.common, own), None
    common = checked.writeable("state.common", state.common, (data.d,), own)
    return common, checked.writeable("state.scale", state.scale, (data.n,))
