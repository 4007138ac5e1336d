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
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from dpkern.privacy._exact import round_up, sqrt_up
from dpkern.privacy.mechanisms.grids import choose_grid

#: The charged sensitivity may exceed the one of real arithmetic by this factor.
LARGEST_EXCESS = Fraction(5, 4)

#: A draw of unit deviation never exceeds this: `DPK_PHI_LAST` of the sampler and half a grid step.
LARGEST_DRAW = 15

_U = Fraction(2) ** -53
# Covers second-order terms, and underflow within the magnitudes that `LocalRuns` accepts.
_SLACK = 1 + Fraction(2) ** -40
_LARGEST = Fraction(2) ** 100
_LEAST = 1 << 1074  # 1 over the least positive double


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
                f"clip and step_size must be at least 2^-100 {what}, both, row_bound and "
                "curvatures at most 2^100, with steps times coordinates of at most 2^40, got others"
            )

    @cached_property
    def _penalty(self) -> Fraction:
        """B, the largest curvature of the penalties on penalised coordinates."""
        return Fraction(self.l2) + Fraction(self.curvature[1])

    @cached_property
    def smoothness(self) -> Fraction:
        """L of the data part."""
        return clipped_smoothness(self.loss_smoothness, self.row_bound, self.dim)

    @cached_property
    def curvatures(self) -> tuple[Fraction, Fraction]:
        """Bounds (low, high) of the curvature of a silo's smooth objective."""
        low, high = Fraction(self.l2) + Fraction(self.curvature[0]), self._penalty
        if not self.all_penalized:
            low, high = min(low, Fraction(0)), max(high, Fraction(0))
        return (low if self.convex else low - self.smoothness), high + self.smoothness

    @cached_property
    def _propagation(self) -> tuple[Fraction, Fraction, Fraction]:
        return propagate(self.step_sizes, *self.curvatures)

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
        found = {n: choose_grid(n=n, clip=self.clip, dim=self.dim) for n in set(records)}
        return np.array([found[n] for n in records])

    @cached_property
    def _nominal(self) -> dict[int, Fraction]:
        """The sensitivity of theta_K in real arithmetic, by the silo's number of records."""
        found = {}
        for n in set(self.sizes):
            b = n if self.batch_size is None else self.batch_size
            propagation = self._propagation[0]
            if b < n:
                propagation = propagate_batches(self.step_sizes, *self.curvatures, n=n, batch=b)
            found[n] = 2 * Fraction(self.clip) / b * propagation
        return found

    def _require_full_batches(self) -> None:
        if self.batch_size is not None:
            raise ValueError(f"batch_size must be None for this bound, got {self.batch_size}")

    def iterate_bound(self, start: float) -> Fraction:
        """Return W, a bound of the norm of every computed iterate from |theta_0| <= start.

        A step adds at most eta_t C to |theta|, for 0 <= eta_t c <= 2, and rounding a relative
        (2 d + 40) u.
        """
        rounding = 1 + len(self.step_sizes) * (self.dim + 20) * Fraction(2) ** -51
        bound = Fraction(self.clip) * self._total
        if not start <= _LARGEST or (bound := bound + Fraction(start)) > _LARGEST:
            raise ValueError(
                "hidden local steps may reach a model of norm beyond the 2^100 that their "
                "sensitivity covers: a smaller step_size keeps it nearer"
            )
        return bound * rounding

    @cached_property
    def _total(self) -> Fraction:
        """The sum of the step sizes."""
        ratios = (step.as_integer_ratio() for step in self.step_sizes)
        return Fraction(sum(n * (_LEAST // d) for n, d in ratios), _LEAST)

    def _tau(self, grid: float, W: Fraction) -> Fraction:
        d, C = self.dim, Fraction(self.clip)
        of_loss = (16 + Fraction(self.loss_kappa)) * C
        rounding = (d + 16) * (self.smoothness + self._penalty) * W + of_loss
        return Fraction(grid) * Fraction(sqrt_up(Fraction(d))) / 2 + _U * rounding

    def sensitivities(self, start: float, weights: Sequence[float]) -> tuple[float, ...]:
        """Return bounds of |v_j - v'_j| for the computed v_j = p_j (theta_K - theta_0), rounded up.

            p_j [(2 C / n_j + 2 tau_j) E_K + 8 u W F_K + 8 u W]

        For batches the first term is that of the steps that use the record. `start` bounds
        |theta_0|, and p_j >= 0 are the doubles that the run uses.
        """
        E, F, _ = self._propagation
        W = self.iterate_bound(start)
        found: dict[tuple[int, float], tuple[Fraction, Fraction]] = {}
        pairs = [(n, float(p)) for n, p in zip(self.sizes, weights, strict=True)]
        grids = dict(zip(self.sizes, self.grids.tolist(), strict=True))
        for n, p in set(pairs):
            nominal = self._nominal[n]
            computed = nominal + 2 * self._tau(grids[n], W) * E + 8 * _U * W * (F + 1)
            found[n, p] = Fraction(p) * nominal, Fraction(p) * computed * _SLACK
        nominals, computed_ones = zip(*found.values(), strict=True)
        self._check_excess(max(computed_ones), max(nominals))
        return tuple(round_up(found[pair][1]) for pair in pairs)

    def message_bound(self, start: float, weights: Sequence[float]) -> float:
        """Return a bound of the coordinates of all computed p_j (theta_K - theta_0), rounded up."""
        return round_up(2 * self.iterate_bound(start) * Fraction(max(weights)) * _SLACK)

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
        error = self._tau(grid, W) * E + 4 * _U * W * F
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
            self._check_excess(computed, take * nominal / contraction)
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
        product = 1.0
        for step in self.step_sizes:
            product = _stepped(_expansion(step, *self.curvatures), product, 0.0)
        return Fraction(product)

    def noisy_iterate_bound(self, start: float, sigma: float) -> float:
        """Return W of a run with noise of std sigma on every iterate.

        The factor 2 covers the auxiliary run of the last-iterate proof, which ends at the iterate
        of the neighbouring data set.
        """
        noise = LARGEST_DRAW * sqrt_up(Fraction(self.dim)) * sigma
        rounding = max(self.step_sizes) * self.clip  # exceeds the rounding of a step to the grid
        return round_up(2 * self.iterate_bound(start + len(self.step_sizes) * (noise + rounding)))

    def step_sensitivity(self, n: int, W: float, grid: float) -> Fraction:
        """Return the sensitivity of one step on the state grid from a common iterate.

        It is eta (2 C / n + 2 tau) + 8 u W + 2 q sqrt(d), where the last term counts the rounding
        of the step to the grid q and that of the noisy iterate.
        """
        self._require_full_batches()
        eta, W_exact = Fraction(self.step_sizes[0]), Fraction(W)
        nominal = eta * 2 * Fraction(self.clip) / n
        tau = self._tau(choose_grid(n=n, clip=self.clip, dim=self.dim), W_exact)
        rounding = 2 * Fraction(grid) * Fraction(sqrt_up(Fraction(self.dim)))
        computed = (nominal + 2 * eta * tau + 8 * _U * W_exact + rounding) * _SLACK
        self._check_excess(computed, nominal)
        return computed

    def _check_excess(self, computed: Fraction, nominal: Fraction) -> None:
        """Raise when rounding terms add more than a quarter to a sensitivity in real arithmetic."""
        if computed > LARGEST_EXCESS * nominal:
            raise ValueError(
                "floating-point errors of the hidden local steps could move the result by "
                f"{float(computed / nominal):.3g} times the nominal sensitivity, above 1.25: use "
                "fewer records a silo, fewer coordinates, smaller row_bound or larger clip"
            )


@lru_cache(maxsize=1024)
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


def propagate(
    step_sizes: Sequence[float], low: Fraction, high: Fraction
) -> tuple[Fraction, Fraction, Fraction]:
    """Return (E_K, F_K, max_t c_t), each an upper bound.

    E <- c_t E + eta_t accumulates errors that are proportional to the step sizes, F <- c_t F + 1
    errors of constant size. Both are rounded up to a double after each step.
    """
    E = F = 0.0
    largest = (0, 1)
    for step in step_sizes:
        c = _expansion(step, low, high)
        E, F = _finite(_stepped(c, E, step)), _finite(_stepped(c, F, 1.0))
        largest = c if c[0] * largest[1] > largest[0] * c[1] else largest
    return Fraction(E), Fraction(F), Fraction(*largest)


def _stepped(c: tuple[int, int], value: float, added: float) -> float:
    """Return c value + added, rounded up: whole numbers take a tenth of the time of fractions."""
    (p, q), (n, d), (m, e) = c, value.as_integer_ratio(), added.as_integer_ratio()
    numerator, denominator = p * n * e + m * q * d, q * d * e
    try:
        found = numerator / denominator  # the nearest double
    except OverflowError:
        return math.inf
    n, d = found.as_integer_ratio()
    return found if n * denominator >= numerator * d else math.nextafter(found, math.inf)


def _finite(value: float) -> float:
    if value == math.inf:
        raise ValueError(
            "step_size or local_steps must be smaller, got a record's influence on the hidden "
            "local steps that exceeds every double"
        )
    return value


def _expansion(step_size: float, low: Fraction, high: Fraction) -> tuple[int, int]:
    """Return c_t = max(|1 - eta low|, |1 - eta high|) exactly, as numerator and denominator."""
    n, d = step_size.as_integer_ratio()
    ends = []
    for curvature in (low, high):
        p, q = curvature.numerator, curvature.denominator
        ends.append((abs(d * q - n * p), d * q))
    (a, b), (p, q) = ends
    return (a, b) if a * q >= p * b else (p, q)


def propagate_batches(
    step_sizes: Sequence[float], low: Fraction, high: Fraction, *, n: int, batch: int
) -> Fraction:
    """Return an upper bound over records of the sum of eta_t prod_{u > t} c_u over their steps t.

    Step t uses the positions t b .. t b + b - 1 of an order of n records, modulo n; b <= n. The
    bound does not depend on the position of the first step. Products are rounded up to doubles.
    """
    # Differences of the sum between adjacent positions, where a batch begins or ends, in units of
    # the least double.
    changes: dict[int, int] = defaultdict(int)
    product = 1.0
    for t, step in reversed(list(enumerate(step_sizes))):
        used = _finite(_stepped(step.as_integer_ratio(), product, 0.0))
        numerator, denominator = used.as_integer_ratio()
        share = numerator * (_LEAST // denominator)
        product = _finite(_stepped(_expansion(step, low, high), product, 0.0))
        first, end = t * batch % n, t * batch % n + batch
        changes[first] += share
        if end >= n:
            changes[0] += share
        changes[end % n] -= share
    return Fraction(max(accumulate(changes[position] for position in sorted(changes))), _LEAST)
