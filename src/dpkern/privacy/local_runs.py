"""How far hidden local runs carry one record, for the doubles that the kernels compute.

From a public theta_0 silo j makes K steps on all its n_j records, and only theta_K leaves:

    theta <- prox_{eta_t}( theta - eta_t (S_j(theta) / n_j + c(|theta|) theta) ),

S_j the sum of the clipped gradients, c = l2 + strength f'(r) / r of the smooth regulariser. A
clipped gradient is the gradient of a loss as smooth as the original (and convex where that is), so
in real arithmetic replacing one record moves theta_K by at most (2 C / n_j) E_K with

    E_0 = 0,   E <- c_t E + eta_t,   c_t = max(|1 - eta_t low|, |1 - eta_t high|),

low <= curvature <= high for the silo's smooth objective: the convex data part lies in [0, L], one
that is not convex in [-L, L], L = phi''max R^2. A convex prox with prox(0) = 0 changes nothing.

Steps on batches of b records, S_j and n_j those of the batch, have the same c_t. A record moves the
steps whose batch holds it, and they carry it on: (2 C / b) sum of eta_t prod_{u > t} c_u over these
t. Batches are taken in turn from an order of the silo's n_j records, which starts over where it
ends, so that a record is in at most ceil(K b / n_j) of them, and never twice in one; the largest
such sum over the places in that order stands for E_K.

Computed iterates differ from such a run by at most eta_t tau_j + 4 u W in each step, u = 2^-53,

    tau_j = q_j sqrt(d) / 2 + u [(d + 16) (L + B) W + (16 + kappa) C],   W >= |theta_t|,

q_j the grid of the gradient sums, B the largest curvature of the regularisers, kappa u the relative
error of the loss's computed derivative (`dpkern.losses.Loss`). docs/design.md counts the roundings.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dpkern.privacy._exact import power_of_two, round_up, sqrt_up
from dpkern.privacy.mechanisms.grids import choose_grid
from dpkern.privacy.recursions import carry, carry_batches, expansion

#: The charged sensitivity may exceed the one of real arithmetic by this factor.
LARGEST_EXCESS = Fraction(5, 4)

#: A draw of unit deviation never exceeds this: `DPK_PHI_LAST` of the sampler and half a grid step.
LARGEST_DRAW = 15

_U = power_of_two(-53)
# Second-order terms, and what under- and overflow take within the magnitudes of `LocalRuns`.
_SLACK = 1 + power_of_two(-40)
_LARGEST = power_of_two(100)


@dataclass(frozen=True, kw_only=True)
class LocalRuns:
    """The public description of hidden runs of K local steps, and what one record does to them.

    Parameters
    ----------
    clip : float
        Bound C of one record's gradient.
    dim : int
        Coordinates d of the model.
    sizes : tuple of int
        Records n_j of the silos.
    step_sizes : tuple of float
        eta_1 .. eta_K.
    loss_smoothness, loss_kappa, row_bound : float
        phi''max, kappa, and R bounding the norm of every effective row, intercept included.
    convex : bool
        Whether the loss is convex.
    l2 : float
        Penalty (l2/2) |theta|^2, or (l2/2) |theta - theta_0|^2 on the distance to the start.
    curvature : (float, float)
        Smallest and largest curvature of the smooth regulariser, its strength included.
    all_penalized : bool
        False when some coordinate has neither.
    batch_size : int, optional
        Records b of a step, at most the smallest n_j, taken in turn as above; None is all n_j. Of
        the bounds only `sensitivities` is for batches.

    Attributes
    ----------
    grids : ndarray, shape (m,)
        The grid of each silo's gradient sums, to be passed to the kernel.
    """

    clip: float
    dim: int
    sizes: tuple[int, ...]
    step_sizes: tuple[float, ...]
    loss_smoothness: float
    loss_kappa: float
    row_bound: float
    convex: bool = True
    l2: float = 0.0
    curvature: tuple[float, float] = (0.0, 0.0)
    all_penalized: bool = True
    batch_size: int | None = None

    def __post_init__(self) -> None:
        what = "the sensitivity of hidden local steps needs"
        if self.batch_size is not None and not 1 <= self.batch_size <= min(self.sizes):
            raise ValueError(
                f"batch_size must be 1 to {min(self.sizes)}, the records of the smallest silo, got "
                f"{self.batch_size}"
            )
        if not math.isfinite(self.row_bound):
            raise ValueError(f"{what} rows of bounded norm: give the data a row_bound")
        if not math.isfinite(self.loss_smoothness):
            raise ValueError(
                f"{what} a loss with a bounded second derivative; take another loss, or one local "
                "step"
            )
        if not math.isfinite(self.clip):
            raise ValueError(f"{what} a finite clip")
        eta = max(self.step_sizes)
        if Fraction(eta) * self._penalty > 2:
            raise ValueError(
                f"step_size must be at most 2 / {float(self._penalty)!r}, twice the inverse of the "
                f"largest curvature of the penalties, got {eta!r}"
            )
        least = Fraction(min(self.clip, *self.step_sizes))
        large = (self.clip, eta, self.row_bound, self.loss_smoothness)
        if (
            least < 1 / _LARGEST
            or max(self.smoothness, self._penalty, *map(Fraction, large)) > _LARGEST
            or len(self.step_sizes) * (self.dim + 20) > 2**40
        ):
            raise ValueError(
                f"{what} clip and steps of at least 2^-100, clip, steps, row bound and curvatures "
                "of at most 2^100, and steps times coordinates of at most 2^40"
            )

    @property
    def _penalty(self) -> Fraction:
        """B: the largest curvature of the penalties, on the coordinates that have them."""
        return Fraction(self.l2) + Fraction(self.curvature[1])

    @property
    def smoothness(self) -> Fraction:
        """L of the data part, with room for the rounding of the rows' norms and factors."""
        room = 1 + power_of_two(-40) + self.dim * power_of_two(-52)
        return Fraction(self.loss_smoothness) * Fraction(self.row_bound) ** 2 * room

    @property
    def curvatures(self) -> tuple[Fraction, Fraction]:
        """(low, high): bounds of the curvature of a silo's smooth objective."""
        low, high = Fraction(self.l2) + Fraction(self.curvature[0]), self._penalty
        if not self.all_penalized:
            low, high = min(low, Fraction(0)), max(high, Fraction(0))
        return (low if self.convex else low - self.smoothness), high + self.smoothness

    @cached_property
    def _carried(self) -> tuple[Fraction, Fraction, Fraction]:
        return carry(self.step_sizes, *self.curvatures)

    @property
    def carried(self) -> float:
        """E_K, rounded up."""
        return float(self._carried[0])

    @property
    def contraction(self) -> Fraction:
        """The largest c_t."""
        return self._carried[2]

    @cached_property
    def grids(self) -> NDArray[np.float64]:
        """The finest grid on which a silo's own sum is exact."""
        records = self.sizes if self.batch_size is None else (self.batch_size,) * len(self.sizes)
        found = {n: choose_grid(n=n, clip=self.clip, dim=self.dim) for n in set(records)}
        return np.array([found[n] for n in records])

    @cached_property
    def _nominal(self) -> dict[int, Fraction]:
        """How far one of a silo's n records moves theta_K in real arithmetic, for its n."""
        found = {}
        for n in set(self.sizes):
            b = n if self.batch_size is None else self.batch_size
            carried = self._carried[0]
            if b < n:
                carried = carry_batches(self.step_sizes, *self.curvatures, n=n, batch=b)
            found[n] = 2 * Fraction(self.clip) / b * carried
        return found

    def _refuse_batches(self) -> None:
        if self.batch_size is not None:
            raise ValueError(f"batch_size must be None for this bound, got {self.batch_size}")

    def reach(self, start: float) -> Fraction:
        """W: a bound of every computed iterate's norm from |theta_0| <= start.

        |theta| grows by eta_t C at most, for 0 <= eta_t c <= 2, and by (2 d + 40) u of itself
        through rounding.
        """
        growth = 1 + len(self.step_sizes) * (self.dim + 20) * power_of_two(-51)
        reach = Fraction(self.clip) * sum(map(Fraction, self.step_sizes))
        if not start <= _LARGEST or (reach := reach + Fraction(start)) > _LARGEST:
            raise ValueError(
                "hidden local steps may reach a model of norm beyond the 2^100 that their "
                "sensitivity covers: a smaller step_size keeps it nearer"
            )
        return reach * growth

    def _tau(self, grid: float, W: Fraction) -> Fraction:
        d, C = self.dim, Fraction(self.clip)
        of_loss = (16 + Fraction(self.loss_kappa)) * C
        rounding = (d + 16) * (self.smoothness + self._penalty) * W + of_loss
        return Fraction(grid) * Fraction(sqrt_up(Fraction(d))) / 2 + _U * rounding

    def sensitivities(self, start: float, weights: Sequence[float]) -> tuple[float, ...]:
        """Bounds of |v_j - v'_j| for the computed v_j = p_j (theta_K - theta_0), rounded up.

            p_j [(2 C / n_j + 2 tau_j) E_K + 8 u W F_K + 8 u W]

        On batches the first term is that of the steps that use the record, the others count all.

        Parameters
        ----------
        start : float
            A bound of |theta_0|.
        weights : sequence of m floats
            p_j >= 0, as the run multiplies with them.

        Raises
        ------
        ValueError
            When floating-point terms add more than a quarter to the largest p_j (2 C / n_j) E_K.
        """
        E, F, _ = self._carried
        W = self.reach(start)
        found: dict[tuple[int, float], tuple[Fraction, Fraction]] = {}
        pairs = [(n, float(p)) for n, p in zip(self.sizes, weights, strict=True)]
        grids = dict(zip(self.sizes, self.grids.tolist(), strict=True))
        for n, p in set(pairs):
            nominal = self._nominal[n]
            moved = nominal + 2 * self._tau(grids[n], W) * E + 8 * _U * W * (F + 1)
            found[n, p] = Fraction(p) * nominal, Fraction(p) * moved * _SLACK
        self._refuse_excess(
            max(moved for _, moved in found.values()),
            max(nominal for nominal, _ in found.values()),
        )
        return tuple(round_up(found[pair][1]) for pair in pairs)

    def message_bound(self, start: float, weights: Sequence[float]) -> float:
        """A bound of the coordinates of every computed p_j (theta_K - theta_0), rounded up."""
        return round_up(2 * self.reach(start) * Fraction(max(weights)) * _SLACK)

    @property
    def state_bound(self) -> float:
        """2 C E_K, which no state of `hidden_states` outgrows, rounded up."""
        return round_up(2 * Fraction(self.clip) * self._carried[0])

    def hidden_states(
        self,
        public: float,
        *,
        keep: float,
        take: float,
        weights: Sequence[float],
        changes: bool = False,
    ) -> tuple[float, ...]:
        """Bounds of |p_j s_j - p_j s'_j| for states that are never seen, whatever came before.

        A state starts at 0 and moves by runs that are pulled to where they start (`l2`), in the
        rounds of any public schedule:

            v = c - s,   s <- keep s + take (theta_K - v),   theta_0 = v,   c public.

        So states part by e -> keep e + take x + roundings, x bounding how theta_K - v does. Two
        bounds of x hold; each has a distance e that is never left, and the smaller one counts.

            of steps:  x = L E_K e + (2 C / n_j) E_K + 2 r
            of proxes: x = sqrt(rho^2 + phi e^2) + 2 c^K gamma C + 2 r,
                       rho = gamma 2 C / n_j,   phi = gamma L / (2 + gamma L),   gamma = 1 / l2

        with r = tau_j E_K + 4 u W F_K. The first needs L E_K < 1. The second is that of exact
        proxes, of which a run of K steps ends within c^K gamma C; without that and roundings it
        is rho sqrt(1 + gamma L / 2).

        Parameters
        ----------
        public : float
            A bound of |c| in this round and all before.
        keep, take : float
            At least 0, and 1 in sum but for rounding.
        weights : sequence of m floats
            p_j >= 0, as the run multiplies with them.
        changes : bool
            Bounds of what p_j (s_j - the state before) parts by instead: as e bounds either state,
            take x + roundings is (1 - keep) e at most, and so is the share of s that goes.

        Raises
        ------
        ValueError
            When for a silo neither serves: floating-point terms add more than a quarter to both, or
            steps are too few for long ones.
        """
        self._refuse_batches()
        W = self.reach(public + self.state_bound) * _SLACK
        grids = set(zip(self.sizes, self.grids.tolist(), strict=True))
        part = {n: self._parted(n, grid, W, Fraction(keep), Fraction(take)) for n, grid in grids}
        times, roundings = (2 * (1 - Fraction(keep)), 4) if changes else (1, 2)
        return tuple(
            round_up(Fraction(p) * (times * part[n] + roundings * _U * W) * _SLACK)
            for n, p in zip(self.sizes, weights, strict=True)
        )

    def _parted(self, n: int, grid: float, W: Fraction, keep: Fraction, take: Fraction) -> Fraction:
        """How far the states of a silo of n records part at most."""
        E, F, _ = self._carried
        L, gamma, C = self.smoothness, 1 / Fraction(self.l2), Fraction(self.clip)
        computed = self._tau(grid, W) * E + 4 * _U * W * F
        rounding, fall, found = 8 * _U * W, 1 - keep, []

        room, nominal = fall - take * L * E, 2 * C / n * E
        if room > 0:
            moved = (take * (nominal + 2 * computed) + rounding) * _SLACK / room
            if moved <= LARGEST_EXCESS * take * nominal / room:
                found.append(moved)

        if self.convex and fall > 0:
            rho = take / fall * gamma * 2 * C / n
            phi = (take / fall) ** 2 * gamma * L / (2 + gamma * L)
            off = (2 * take * (self._left * gamma * C + computed) + rounding) * _SLACK / fall
            if phi < 1 and off <= (LARGEST_EXCESS - 1) * rho:
                root = Fraction(sqrt_up(phi * off**2 + (1 - phi) * rho**2))
                found.append((off + root) / (1 - phi))

        if not found and room > 0:
            self._refuse_excess(moved, take * nominal / room)
        if not found:
            raise ValueError(
                "the states of hidden local runs need more local_steps, or a prox_step below 1 / L "
                f"= {float(1 / L)!r}: beyond, runs must end near their prox"
            )
        return min(found)

    @cached_property
    def _left(self) -> Fraction:
        """The product of all c_t: what K steps leave of the way to where they would end."""
        left = Fraction(1)
        for step in self.step_sizes:
            left = Fraction(round_up(expansion(step, *self.curvatures) * left))
        return left

    def noisy_reach(self, start: float, sigma: float) -> float:
        """W of a run with noise of deviation sigma on every iterate, and of its virtual twin.

        The proof of the last-iterate bound compares with a run that ends where the neighbour's
        does; it never leaves twice the reach.
        """
        noise = LARGEST_DRAW * sqrt_up(Fraction(self.dim)) * sigma
        rounding = max(self.step_sizes) * self.clip  # more than the grid's share of a step
        return round_up(2 * self.reach(start + len(self.step_sizes) * (noise + rounding)))

    def step_sensitivity(self, n: int, W: float, grid: float) -> Fraction:
        """How far one step on the state grid takes neighbours apart that start together.

        eta (2 C / n + 2 tau) + 8 u W + 2 q sqrt(d): the rounding of the step to the grid q counts
        once, that of the noisy iterate once more.

        Raises
        ------
        ValueError
            When that is more than a quarter above eta 2 C / n.
        """
        self._refuse_batches()
        eta, reach = Fraction(self.step_sizes[0]), Fraction(W)
        nominal = eta * 2 * Fraction(self.clip) / n
        tau = self._tau(choose_grid(n=n, clip=self.clip, dim=self.dim), reach)
        on_grid = 2 * Fraction(grid) * Fraction(sqrt_up(Fraction(self.dim)))
        moved = (nominal + 2 * eta * tau + 8 * _U * reach + on_grid) * _SLACK
        self._refuse_excess(moved, nominal)
        return moved

    def _refuse_excess(self, moved: Fraction, nominal: Fraction) -> None:
        if moved > LARGEST_EXCESS * nominal:
            raise ValueError(
                "floating-point errors of the hidden local steps could move the result by "
                f"{float(moved / nominal):.3g} times the nominal sensitivity, above 1.25: use "
                "fewer records a silo, fewer coordinates, smaller row_bound or larger clip"
            )


def norm_bound(w: NDArray[np.float64], least: float) -> float:
    """A power of two that is at least |w| and at least `least`.

    So that runs from starts of similar norms have one sensitivity, and one line in the ledger.
    """
    norm = max(float(np.linalg.norm(w)) * (1.0 + 2.0**-20), least)
    return math.ldexp(1.0, math.frexp(norm)[1]) if norm < math.inf else math.inf
