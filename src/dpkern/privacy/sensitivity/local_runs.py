"""The sensitivity of hidden local runs, for the doubles that the kernels compute.

From a public theta_0 silo j makes K steps on all its n_j records, and releases only theta_K:

    theta <- prox_{eta_t}( theta - eta_t (S_j(theta) / n_j + c(|theta|) theta) ),

S_j the sum of the clipped gradients, c = l2 + strength f'(r) / r of the smooth penalty. A clipped
gradient is the gradient of a loss as smooth as the original (and convex if that is), so that in
real arithmetic replacing one record changes theta_K by at most (2 C / n_j) E_K with

    E_0 = 0,   E <- c_t E + eta_t,   c_t = max(|1 - eta_t low|, |1 - eta_t high|),

low <= curvature <= high for the silo's smooth objective: the curvature of the data part is in
[0, L] for a convex loss, else in [-L, L], L = phi''max R^2. A convex prox with prox(0) = 0 is
nonexpansive and leaves this bound valid.

Steps on batches of b records, with S_j and n_j of the batch, have the same c_t. A record enters in
the steps t whose batch contains it, and later steps propagate it: the distance is at most
(2 C / b) sum of eta_t prod_{u > t} c_u over these t. Batches are consecutive in a cyclic order of
the silo's n_j records, so that a record is in at most ceil(K b / n_j) of them, and never twice in
one; the largest such sum over the positions in that order replaces E_K.

Computed iterates differ from such a run by at most eta_t tau_j + 4 u W in each step, u = 2^-53,

    tau_j = q_j sqrt(d) / 2 + u [(d + 16) (L + B) W + (16 + kappa) C],   W >= |theta_t|,

q_j the grid of the gradient sums, B the largest curvature of the penalties, kappa u the relative
error of the loss's computed derivative (`dpkern.models.losses.Loss`). docs/design.md derives tau_j.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dpkern.privacy.guarantees.rounding import Ratio, plus, ratio_up, round_up, sqrt_up, times
from dpkern.privacy.sensitivity.grids import choose_grid
from dpkern.privacy.sensitivity.propagation import (
    Ratios,
    expansions,
    product_of,
    propagate,
    propagate_batches,
)

#: The charged sensitivity may exceed the one of real arithmetic by this factor.
LARGEST_EXCESS = Fraction(5, 4)

#: A draw of unit deviation never exceeds this: `DPK_PHI_LAST` of the sampler and half a grid step.
LARGEST_DRAW = 15

_U = Fraction(2) ** -53
_8_U = (8 * _U).as_integer_ratio()
# Covers second-order terms, and underflow within the magnitudes that `LocalRuns` accepts.
_SLACK = 1 + Fraction(2) ** -40
_LARGEST = 1 << 100


@dataclass(frozen=True, kw_only=True)
class LocalRuns:
    """The public description of hidden runs of K local steps, and their sensitivity.

    `curvature` holds the smallest and largest curvature of the smooth penalty, its strength
    included, and `l2` is the strength of (l2/2) |theta|^2, or of (l2/2) |theta - theta_0|^2 on the
    distance to the start. Only `sensitivities` supports batches.
    """

    clip: float
    dim: int
    sizes: tuple[int, ...]
    step_sizes: tuple[float, ...]
    loss_smoothness: float  # phi''max
    loss_kappa: float
    row_bound: float  # of effective rows, intercept included
    convex: bool = True
    l2: float = 0.0
    curvature: tuple[float, float] = (0.0, 0.0)
    all_penalized: bool = True
    batch_size: int | None = None

    def __post_init__(self) -> None:
        what = "for the sensitivity of hidden local steps"
        if self.batch_size is not None and not 1 <= self.batch_size <= min(self.sizes):
            raise ValueError(
                f"batch_size must be 1 to {min(self.sizes)}, the records of the smallest silo, got "
                f"{self.batch_size}"
            )
        if not math.isfinite(self.row_bound):
            raise ValueError(
                f"row_bound must be finite {what}, got {self.row_bound!r}: give the data a "
                "row_bound"
            )
        if not math.isfinite(self.loss_smoothness):
            raise ValueError(
                f"loss must have a bounded second derivative {what}, got one that has none: take "
                "another loss, or one local step"
            )
        if not math.isfinite(self.loss_kappa):
            raise ValueError(
                f"loss must have a finite kappa {what}, got one whose computed derivative has no "
                "bound of its relative error: take another loss, or one local step"
            )
        if not math.isfinite(self.clip):
            raise ValueError(f"clip must be finite {what}, got {self.clip!r}")
        eta, penalty = max(self.step_sizes), self._constants.penalty
        n, d = eta.as_integer_ratio()
        if n * penalty.numerator > 2 * d * penalty.denominator:
            raise ValueError(
                f"step_size must be at most 2 / {float(penalty)!r}, twice the inverse of the "
                f"largest curvature of the penalties, got {eta!r}"
            )
        if (
            min(self.clip, *self.step_sizes) < 2.0**-100
            or max(self.clip, eta, self.row_bound, self.loss_smoothness) > 2.0**100
            or max(self.smoothness, penalty) > _LARGEST
            or len(self.step_sizes) * (self.dim + 20) > 2**40
        ):
            raise ValueError(
                f"clip and step_size must be at least 2^-100 {what}, both, row_bound and "
                "curvatures at most 2^100, with steps times coordinates of at most 2^40, got others"
            )

    @cached_property
    def _constants(self) -> "_Constants":
        """What does not depend on the steps."""
        return _Constants.of(
            *(self.clip, self.dim, self.loss_smoothness, self.loss_kappa, self.row_bound),
            *(self.convex, self.l2, *self.curvature, self.all_penalized),
        )

    @property
    def smoothness(self) -> Fraction:
        """L of the data part."""
        return self._constants.smoothness

    @property
    def curvatures(self) -> tuple[Fraction, Fraction]:
        """Bounds (low, high) of the curvature of a silo's smooth objective."""
        return self._constants.low, self._constants.high

    @cached_property
    def _expansions(self) -> tuple[Ratios, Ratios]:
        return expansions(self.step_sizes, *self.curvatures)

    @cached_property
    def _propagation(self) -> tuple[Fraction, Fraction, Fraction]:
        return propagate(*self._expansions)

    @property
    def propagation(self) -> float:
        """E_K, rounded up."""
        return float(self._propagation[0])

    @property
    def contraction(self) -> Fraction:
        """The largest c_t."""
        return self._propagation[2]

    @cached_property
    def grids(self) -> NDArray[np.float64]:
        """The finest grid on which a silo's own sum is exact."""
        records = self.sizes if self.batch_size is None else (self.batch_size,) * len(self.sizes)
        return np.array([_finest(n, self.clip, self.dim) for n in records])

    @cached_property
    def _nominal(self) -> dict[int, tuple[int, Ratio]]:
        """Numbers of which the ratio is the sensitivity of theta_K in real arithmetic, by n_j.

        They are the records of a step, and 2 C E_K, or what takes the place of E_K for batches.
        """
        twice, b = (2 * self._constants.clip).as_integer_ratio(), self.batch_size
        everywhere = times(twice, self._propagation[0].as_integer_ratio())
        found = {n: (n if b is None else b, everywhere) for n in self.sizes}
        if b is not None:
            larger = [n for n in found if b < n]
            carried = propagate_batches(*self._expansions, sizes=larger, batch=b)
            found |= {n: (b, times(twice, ratio)) for n, ratio in carried.items()}
        return found

    def _require_full_batches(self) -> None:
        if self.batch_size is not None:
            raise ValueError(f"batch_size must be None for this bound, got {self.batch_size}")

    def iterate_bound(self, start: float) -> Fraction:
        """Return W, a bound of the norm of every computed iterate from |theta_0| <= start.

        A step adds at most eta_t C to |theta|, for 0 <= eta_t c <= 2, and rounding a relative
        (2 d + 40) u.
        """
        if start in self._iterate_bounds:  # of a round's sensitivities, and of its messages
            return self._iterate_bounds[start]
        n, d = 0, 1
        if start <= _LARGEST:
            (a, b), (p, q) = self._constants.clip.as_integer_ratio(), self._total
            (e, f) = start.as_integer_ratio()
            n, d = a * p * f + e * b * q, b * q * f
        if not start <= _LARGEST or n > _LARGEST * d:
            raise ValueError(
                "hidden local steps may reach a model of norm beyond the 2^100 that their "
                "sensitivity covers: a smaller step_size keeps it nearer"
            )
        rounded = (1 << 51) + len(self.step_sizes) * (self.dim + 20)
        return self._iterate_bounds.setdefault(start, Fraction(n * rounded, d << 51))

    @cached_property
    def _iterate_bounds(self) -> dict[float, Fraction]:
        return {}

    @cached_property
    def _total(self) -> tuple[int, int]:
        """The sum of the step sizes, as a ratio."""
        ratios = [step.as_integer_ratio() for step in self.step_sizes]
        common = max(d for _, d in ratios)  # powers of two
        return sum(n * (common // d) for n, d in ratios), common

    def _tau(self, grid: float, W: Ratio) -> Ratio:
        half = (0.5 * self._constants.root).as_integer_ratio()
        return plus(times(grid.as_integer_ratio(), half), self._rounding(W))

    def _rounding(self, W: Ratio) -> Ratio:
        """Return tau_j less what the grid adds to it."""
        return plus(times(self._constants.error_of_margins, W), self._constants.error_of_loss)

    def sensitivities(self, start: float, weights: Sequence[float]) -> tuple[float, ...]:
        """Return bounds of |v_j - v'_j| for the computed v_j = p_j (theta_K - theta_0), rounded up.

            p_j [(2 C / n_j + 2 tau_j) E_K + 8 u W F_K + 8 u W]

        For batches the first term is that of the steps that use the record. `start` bounds
        |theta_0|, and p_j >= 0 are the doubles that the run uses.
        """
        E, F, _ = self._propagation
        twice, W = (2 * E).as_integer_ratio(), self.iterate_bound(start).as_integer_ratio()
        constant = times(times(_8_U, W), (F + 1).as_integer_ratio())
        rest = plus(times(twice, self._rounding(W)), constant)
        of_grid = times(E.as_integer_ratio(), self._constants.root.as_integer_ratio())
        pairs = [(n, float(p)) for n, p in zip(self.sizes, weights, strict=True)]
        grids = dict(zip(self.sizes, self.grids.tolist(), strict=True))
        largest, found, scaled = 0.0, dict[tuple[int, float], float](), {}
        for n, p in set(pairs):
            # p (nominal / records + rounding), in whole numbers, for every silo and round.
            records, nominal = self._nominal[n]
            key = id(nominal), grids[n]  # silos of full batches share the nominal one
            if key not in scaled:
                rounding = plus(times(grids[n].as_integer_ratio(), of_grid), rest)
                exact, more = nominal[0] * rounding[1], rounding[0] * nominal[1]
                scaled[key] = exact, more, nominal[1] * rounding[1], ratio_up(*nominal)
            exact, more, unit, in_doubles = scaled[key]
            a, b = times(p.as_integer_ratio(), _SLACK.as_integer_ratio())
            found[n, p] = ratio_up(a * (exact + records * more), b * unit * records)
            largest = max(largest, p * in_doubles / records)
        if (most := max(found.values())) < math.inf:
            _require_small_excess(most.as_integer_ratio(), largest.as_integer_ratio())
        return tuple(found[pair] for pair in pairs)

    def message_bound(self, start: float, weights: Sequence[float]) -> float:
        """Return a bound of the coordinates of all computed p_j (theta_K - theta_0), rounded up."""
        W, (n, d) = self.iterate_bound(start), max(weights).as_integer_ratio()
        numerator, denominator = 2 * W.numerator * n, W.denominator * d
        return ratio_up(numerator * _SLACK.numerator, denominator * _SLACK.denominator)

    @property
    def state_bound(self) -> float:
        """The bound 2 C E_K of every state of `hidden_states`, rounded up."""
        return round_up(2 * Fraction(self.clip) * self._propagation[0])

    def hidden_states(
        self,
        public: float,
        *,
        keep: float,
        take: float,
        weights: Sequence[float],
        changes: bool = False,
    ) -> tuple[float, ...]:
        """Return bounds of |p_j s_j - p_j s'_j| for states that are never released.

        A state starts at 0 and is updated by runs with the penalty l2 on the distance to their
        start, in the rounds of any public schedule:

            v = c - s,   s <- keep s + take (theta_K - v),   theta_0 = v,   c public.

        The distance e of states on neighbouring data sets satisfies e <- keep e + take x + rounding
        terms, x bounding the distance of theta_K - v. Two bounds of x hold; each gives an upper
        bound of e for any number of rounds, and the smaller one is used.

            of steps:  x = L E_K e + (2 C / n_j) E_K + 2 r
            of proxes: x = sqrt(rho^2 + phi e^2) + 2 c^K gamma C + 2 r,
                       rho = gamma 2 C / n_j,   phi = gamma L / (2 + gamma L),   gamma = 1 / l2

        with r = tau_j E_K + 4 u W F_K. The first needs L E_K < 1. The second is that of exact
        proxes, from which a run of K steps differs by at most c^K gamma C; without that and
        rounding terms it is rho sqrt(1 + gamma L / 2).

        `public` bounds |c| in this round and all earlier ones; `keep` and `take` are at least 0,
        and 1 in sum but for rounding. With `changes`, p_j (s_j - previous s_j) are bounded instead:
        as e bounds both states, take x plus rounding terms is at most (1 - keep) e, and so is that
        of (1 - keep) s.
        """
        self._require_full_batches()
        W = self.iterate_bound(public + self.state_bound) * _SLACK
        grids = set(zip(self.sizes, self.grids.tolist(), strict=True))
        e = {n: self._state_distance(n, q, W, Fraction(keep), Fraction(take)) for n, q in grids}
        times, roundings = (2 * (1 - Fraction(keep)), 4) if changes else (1, 2)
        return tuple(
            round_up(Fraction(p) * (times * e[n] + roundings * _U * W) * _SLACK)
            for n, p in zip(self.sizes, weights, strict=True)
        )

    def _state_distance(
        self, n: int, grid: float, W: Fraction, keep: Fraction, take: Fraction
    ) -> Fraction:
        """Bound the distance of the states of a silo of n records on neighbouring data sets."""
        E, F, _ = self._propagation
        L, gamma, C = self.smoothness, 1 / Fraction(self.l2), Fraction(self.clip)
        error = Fraction(*self._tau(grid, W.as_integer_ratio())) * E + 4 * _U * W * F
        rounding, decay, found = 8 * _U * W, 1 - keep, []

        contraction, nominal = decay - take * L * E, 2 * C / n * E
        if contraction > 0:
            computed = (take * (nominal + 2 * error) + rounding) * _SLACK / contraction
            if computed <= LARGEST_EXCESS * take * nominal / contraction:
                found.append(computed)

        if self.convex and decay > 0:
            rho = take / decay * gamma * 2 * C / n
            phi = (take / decay) ** 2 * gamma * L / (2 + gamma * L)
            off = (2 * take * (self._contraction * gamma * C + error) + rounding) * _SLACK / decay
            if phi < 1 and off <= (LARGEST_EXCESS - 1) * rho:
                root = Fraction(sqrt_up(phi * off**2 + (1 - phi) * rho**2))
                found.append((off + root) / (1 - phi))

        if not found and contraction > 0:
            nominal = take * nominal / contraction
            _require_small_excess(computed.as_integer_ratio(), nominal.as_integer_ratio())
        if not found:
            raise ValueError(
                f"prox_step must be below 1 / L = {float(1 / L)!r}, or local_steps larger, got "
                f"{float(gamma):.6g} and {len(self.step_sizes)}: beyond, runs must end near their "
                "prox"
            )
        return min(found)

    @cached_property
    def _contraction(self) -> Fraction:
        """The product of all c_t, by which K steps reduce the distance to their limit."""
        return product_of(self._expansions[1])

    def noisy_iterate_bound(self, start: float, sigma: float) -> float:
        """Return W of a run with noise of std sigma on every iterate.

        The factor 2 covers the auxiliary run of the last-iterate proof, which ends at the iterate
        of the neighbouring data set.
        """
        noise = LARGEST_DRAW * self._constants.root * sigma
        rounding = max(self.step_sizes) * self.clip  # exceeds the rounding of a step to the grid
        W = self.iterate_bound(start + len(self.step_sizes) * (noise + rounding))
        return ratio_up(2 * W.numerator, W.denominator)

    def step_sensitivity(self, n: int, W: float, grid: float) -> Ratio:
        """Return the sensitivity of one step on the state grid from a common iterate.

        It is eta (2 C / n + 2 tau) + 8 u W + 2 q sqrt(d), where the last term counts the rounding
        of the step to the grid q and that of the noisy iterate.
        """
        self._require_full_batches()
        reach, root = W.as_integer_ratio(), self._constants.root.as_integer_ratio()
        step, clip = (2.0 * self.step_sizes[0]).as_integer_ratio(), self.clip.as_integer_ratio()
        nominal = times(times(step, clip), (1, n))
        tau = self._tau(_finest(n, self.clip, self.dim), reach)
        state = plus(times(_8_U, reach), times((2.0 * grid).as_integer_ratio(), root))
        computed = times(plus(nominal, plus(times(step, tau), state)), _SLACK.as_integer_ratio())
        _require_small_excess(computed, nominal)
        return computed


def _require_small_excess(computed: Ratio, nominal: Ratio) -> None:
    """Raise when rounding terms add more than a quarter to a sensitivity in real arithmetic."""
    excess = computed[0] * nominal[1], computed[1] * nominal[0]
    if excess[0] * LARGEST_EXCESS.denominator > LARGEST_EXCESS.numerator * excess[1]:
        raise ValueError(
            "floating-point errors of the hidden local steps could move the result by "
            f"{excess[0] / excess[1]:.3g} times the nominal sensitivity, above 1.25: use fewer "
            "records a silo, fewer coordinates, smaller row_bound or larger clip"
        )


@dataclass(frozen=True)
class _Constants:
    """The public numbers of all runs on some data that differ in their steps alone."""

    clip: Fraction
    root: float  # sqrt(d), rounded up
    smoothness: Fraction
    penalty: Fraction  # B, the largest curvature of the penalties on penalised coordinates
    low: Fraction
    high: Fraction
    error_of_margins: Ratio  # u (d + 16) (L + B)
    error_of_loss: Ratio

    @classmethod
    @lru_cache(maxsize=64)
    def of(
        cls,
        clip: float,
        dim: int,
        loss_smoothness: float,
        loss_kappa: float,
        row_bound: float,
        convex: bool,
        l2: float,
        least: float,
        most: float,
        all_penalized: bool,
    ) -> Self:
        """Return the constants that follow from the fields of `LocalRuns` of these names."""
        L = clipped_smoothness(loss_smoothness, row_bound, dim)
        low, penalty = Fraction(l2) + Fraction(least), Fraction(l2) + Fraction(most)
        first, last = low, penalty
        if not all_penalized:
            first, last = min(low, Fraction(0)), max(penalty, Fraction(0))
        return cls(
            Fraction(clip),
            sqrt_up(Fraction(dim)),
            L,
            penalty,
            first if convex else first - L,
            last + L,
            (_U * (dim + 16) * (L + penalty)).as_integer_ratio(),
            (_U * (16 + Fraction(loss_kappa)) * Fraction(clip)).as_integer_ratio(),
        )


@lru_cache(maxsize=4096)
def _finest(n: int, clip: float, dim: int) -> float:
    return choose_grid(n=n, clip=clip, dim=dim)


def clipped_smoothness(loss_smoothness: float, row_bound: float, dim: int) -> Fraction:
    """Return L = phi''max R^2, enlarged by the rounding errors of the rows' norms and factors."""
    rounding = 1 + Fraction(2) ** -40 + dim * Fraction(2) ** -52
    return Fraction(loss_smoothness) * Fraction(row_bound) ** 2 * rounding


def norm_bound(w: NDArray[np.float64], least: float) -> float:
    """Return a power of two that is at least |w| and at least `least`.

    Runs from starts of similar norms then have one sensitivity, and one entry in the ledger.
    """
    norm = max(float(np.linalg.norm(w)) * (1.0 + 2.0**-20), least)
    return math.ldexp(1.0, math.frexp(norm)[1]) if norm < math.inf else math.inf
