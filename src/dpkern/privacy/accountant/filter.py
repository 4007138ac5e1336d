"""A filter: a budget that holds whatever guarantees earlier results have chosen.

Guarantees whose kind depends on earlier outcomes do not compose as a list that was fixed
beforehand: of two lists that both fit, a choice between them by what was released may exceed the
budget. A filter fixes limits beforehand and admits a charge if sums of its costs stay within them.

A split of a budget (epsilon, delta) has limits (E, M, D). A charge costs (e, m, d) if, for the
outcome's distributions P and Q on neighbours, in either order, and all real x,

    H(x) = sup_S P(S) - e^x Q(S) <= d + (1 - d) delta(x - e; sqrt m),

delta(x; mu) the profile of Gaussian DP and (1 - e^x)+ for mu = 0. The right side is that of a pair
of distributions whose log ratio is infinite with probability d, and else e plus that of N(sqrt m,
1) to N(0, 1); so this pair dominates (P, Q) (Blackwell; Zhu, Dong, Wang, AISTATS 2022). If the sums
of e, m and d stay within E, M and D, each cost being known before its outcome, then

    H(epsilon) <= D + delta(epsilon - E; sqrt M).

Proof. A log ratio is infinite with probability at most D. Else let V(x, e, m) be the largest H at x
that any continuation reaches with so much left; V(x, e, m) <= delta(x - e; sqrt m) by induction
backwards: a step (e', m') with log ratio L is followed by at most delta(x - L - (e - e');
sqrt(m - m')), whose mean over P is H of this step beside Gaussian noise that nobody chooses, and
that is at most delta(x - e; sqrt m), as squares of mu add up. For e = 0 this is the filter of Smith
and Thakurta ("Fully adaptive composition for Gaussian differential privacy", arXiv 2210.17520) and
of Koskela, Tobaben and Honkela (ICLR 2023). In the split "concentrated" m is twice a rho of
zero-concentrated DP, and the filter that of Feldman and Zrnic ("Individual privacy accounting via a
Renyi filter", NeurIPS 2021).

Several splits stand beside each other, of shares of delta that add up to delta, and a charge is
admitted if one of them has room. Outcomes are thus divided into sets, by the first split within
whose limits they end, and on the set of a split the run is that of its own filter:
P(S) = sum P(S & A_i) <= sum (e^epsilon Q(S & A_i) + delta_i) = e^epsilon Q(S) + delta.

Of a guarantee that is a profile g, for x >= 0 and in both orders, it follows for x < 0 that H(x)
is at most 1 - e^x + e^x g(-x); with e = 0 the condition there is that at -x. Pure epsilon costs
e = epsilon; or mu = 2 Phi^-1(e^epsilon / (1 + e^epsilon)), where trade-off functions touch; or
2 rho = epsilon^2 (Bun and Steinke 2016, Proposition 3.3).
"""

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Self, TypeAlias

import numpy as np
import scipy

from dpkern._typing import FloatArray
from dpkern.privacy.accountant.profiles import Pair, Profile, Spending, convex_hull
from dpkern.privacy.guarantees.base import DRAW_ERROR
from dpkern.privacy.guarantees.gdp import GaussianDP, gdp_epsilon, gdp_mu
from dpkern.privacy.guarantees.rounding import bisect, round_down, round_up, sqrt_down, sqrt_up
from dpkern.privacy.guarantees.zcdp import ConcentratedDP, zcdp_epsilon, zcdp_rho

# Share of what is left of a limit of delta that one further charge takes where it needs some.
_SHARE = 1.0 / 16.0
# Points at which a profile is compared with that of Gaussian DP, the largest epsilon at which it
# may be above the delta that it costs, and how many pure epsilons are tried beside.
_POINTS, _FAR, _SHIFTS = 192, 128.0, 8
# Covers rounding errors of the vectorized Gaussian profile, relative to mu.
_MARGIN = 1.0 + 2.0**-20


@dataclass(frozen=True)
class Cost:
    """What charges take of the limits of a split.

    Attributes
    ----------
    square : float
        Sum of mu^2, or of 2 rho.
    epsilon, delta : float
        Sums of pure epsilons and of deltas.
    """

    square: float = 0.0
    epsilon: float = 0.0
    delta: float = 0.0

    @classmethod
    def total(cls, costs: Iterable[Self]) -> Self:
        """Return the sum, rounded up."""
        columns = zip(*((c.square, c.epsilon, c.delta) for c in costs), strict=True)
        return cls(*map(_sum_up, columns))

    @classmethod
    def infinite(cls) -> Self:
        """Return the cost that exceeds every limit."""
        return cls(math.inf, math.inf, math.inf)

    @classmethod
    def largest(cls, costs: Iterable[Self]) -> Self:
        """Return the largest of each sum."""
        columns = zip(*((c.square, c.epsilon, c.delta) for c in costs), strict=True)
        return cls(*map(max, columns))

    @property
    def is_something(self) -> bool:
        """Whether anything is taken."""
        return bool(self.square or self.epsilon or self.delta)

    def within(self, limit: Self) -> bool:
        """Return whether this stays within a limit."""
        return (
            self.square <= limit.square
            and self.epsilon <= limit.epsilon
            and self.delta <= limit.delta
        )


#: Costs by the names of splits; those that are missing are infinite.
Costs: TypeAlias = Mapping[str, Cost]


@dataclass(frozen=True)
class Split:
    """One way to divide a budget.

    Attributes
    ----------
    name : str
        "gaussian", "mixed 1/8" to "mixed 7/8", "pairs" or "concentrated".
    limit : Cost
        Limits of the sums of costs.
    """

    name: str
    limit: Cost

    def cost(self, guarantee: Spending, spent: Cost, delta: float | None = None) -> Cost:
        """Return the cost of a guarantee beside the sums so far.

        Parameters
        ----------
        guarantee : Spending
            What is charged.
        spent : Cost
            The sums so far.
        delta : float, optional
            What it may take of delta where it needs some; by default a share of what is left.

        Returns
        -------
        Cost
            Infinite where it cannot be expressed.
        """
        if not guarantee.states_something:
            return Cost.infinite()
        if delta is None:
            delta = max(0.0, self.limit.delta - spent.delta) * _SHARE
        room = self.limit.epsilon - spent.epsilon
        ways = [self._cost_of_parts(parts, room, delta) for parts in guarantee.ways()]
        return min(ways, key=self._share)

    def _share(self, cost: Cost) -> float:
        """Return the sum of the shares that a cost takes of the limits."""
        pairs = ((cost.square, self.limit.square), (cost.epsilon, self.limit.epsilon))
        return sum(part / limit if limit else math.inf for part, limit in pairs if part)

    def is_exact(self, guarantee: Spending) -> bool:
        """Return whether a guarantee costs no delta but its own, however it is expressed.

        Only then do the costs of its steps add up to its own, so that a run that was stopped by
        its outcomes costs what it has done.
        """
        return guarantee.states_something and all(
            self._is_exact(part) for parts in guarantee.ways() for part in parts
        )

    def _cost_of_parts(self, parts: tuple[Profile, ...], room: float, delta: float) -> Cost:
        needing = sum(not self._is_exact(part) for part in parts)
        own, costs = delta / max(needing, 1), []
        for part in parts:
            if isinstance(part, Pair):
                costs.append(self._cost_of_pair(part.epsilon, part.delta_, room))
                room -= costs[-1].epsilon
            elif isinstance(part, GaussianDP) and self.name != "pairs":
                costs.append(Cost(round_up(Fraction(part.mu) ** 2)))
            elif isinstance(part, ConcentratedDP) and self.name == "concentrated":
                costs.append(Cost(2.0 * part.rho))
            elif own <= 0.0:
                return Cost.infinite()
            elif self.name == "pairs":
                costs.append(Cost(0.0, pair_epsilon(part, own), own))
            else:
                costs.append(self._cost_of_profile(part, own))
        return Cost.total(costs)

    def _cost_of_profile(self, part: Profile, delta: float) -> Cost:
        """Return the cost by Gaussian DP, beside a pure epsilon where that takes less."""
        shifts = [0.0]
        if self.limit.epsilon:
            most = pair_epsilon(part, delta)
            shifts += [most * i / _SHIFTS for i in range(1, _SHIFTS) if math.isfinite(most)]
        costs = [
            Cost(gaussian_mu(part, delta, shift) ** 2 * (1.0 + 2.0**-50), shift, delta)
            for shift in shifts
        ]
        return min(costs, key=self._share)

    def _is_exact(self, part: Profile) -> bool:
        """Return whether a part costs no more delta than it states."""
        if isinstance(part, Pair):
            return True
        if self.name == "pairs":
            return False
        return isinstance(part, GaussianDP) or (
            self.name == "concentrated" and isinstance(part, ConcentratedDP)
        )

    def _cost_of_pair(self, epsilon: float, delta: float, room: float) -> Cost:
        if epsilon <= room or self.name == "pairs":
            return Cost(0.0, epsilon, delta)
        figure = epsilon if self.name == "concentrated" else pure_mu(epsilon)
        return Cost(figure**2 * (1.0 + 2.0**-50), 0.0, delta)

    def epsilon(self, spent: Cost, delta: float) -> float:
        """Return an epsilon at delta of charges with these sums, fixed beforehand."""
        rest = delta - spent.delta
        if rest <= 0.0 or math.isinf(spent.square + spent.epsilon):
            return spent.epsilon if rest == spent.square == 0.0 else math.inf
        if self.name == "concentrated":
            beside = zcdp_epsilon(0.5 * spent.square, rest) if spent.square else 0.0
        else:
            beside = gdp_epsilon(sqrt_up(Fraction(spent.square)), rest)
        return (spent.epsilon + beside) * (1.0 + 2.0**-50)

    def room(self, spent: Cost, draws: float) -> float:
        """Return the largest mu of one more Gaussian charge whose draws cost this delta."""
        rest = self.limit.delta - spent.delta - draws
        if rest <= 0.0 or spent.epsilon > self.limit.epsilon:
            return 0.0
        if self.name == "pairs":
            left = self.limit.epsilon - spent.epsilon
            own = (self.limit.delta - spent.delta) * _SHARE
            return gdp_mu(left, own) * (1.0 - 2.0**-40) if left > 0.0 and own < 1.0 else 0.0
        square = Fraction(self.limit.square) - Fraction(spent.square)
        return sqrt_down(square) * (1.0 - 2.0**-50) if square > 0 else 0.0


# Shares of delta of the splits, and the parts of them that are for other guarantees expressed in
# their own terms: of budgets whose first charge is a run, and of those whose first is a pair. There
# are seven mixed ones, for eighths of epsilon. A change raises the version of accountants' files.
_RUNS_FIRST = {
    "gaussian": (0.888, 0.02),
    "mixed": (0.006, 0.002),
    "pairs": (0.05, 0.05),
    "concentrated": (0.02, 0.004),
}
_PAIRS_FIRST = {
    "gaussian": (0.1, 0.02),
    "mixed": (0.01, 0.004),
    "pairs": (0.8, 0.8),
    "concentrated": (0.03, 0.006),
}


@functools.lru_cache(maxsize=64)
def splits_of(epsilon: float, delta: float, *, pairs_first: bool = False) -> tuple[Split, ...]:
    """Return the splits of a budget.

    Parameters
    ----------
    epsilon, delta : float
        The budget.
    pairs_first : bool
        Whether the first charge is a pair (epsilon, delta), which was chosen before any outcome:
        most of delta is then for such pairs, and else for Gaussian DP.
    """
    delta *= 1.0 - 2.0**-40  # shares of a double may add up to more than it
    shares = _PAIRS_FIRST if pairs_first else _RUNS_FIRST
    own = {name: (share - other) * delta for name, (share, other) in shares.items()}
    other = {name: part * delta for name, (_, part) in shares.items()}
    rho = zcdp_rho(epsilon, own["concentrated"])

    def square(pure: float, delta: float) -> float:
        return round_down(Fraction(gdp_mu(epsilon - pure, delta)) ** 2)

    splits = [Split("gaussian", Cost(square(0.0, own["gaussian"]), 0.0, other["gaussian"]))]
    for eighths in range(1, 8):
        pure = eighths / 8 * epsilon
        limit = Cost(square(pure, own["mixed"]), pure, other["mixed"])
        splits.append(Split(f"mixed {eighths}/8", limit))
    splits.append(Split("pairs", Cost(0.0, epsilon, other["pairs"])))
    splits.append(Split("concentrated", Cost(2.0 * rho, 0.0, other["concentrated"])))
    return tuple(splits)


@dataclass(frozen=True)
class Filter:
    """The filter of a budget: what charges cost in each split, and whether one has room.

    Attributes
    ----------
    epsilon, delta : float
        The budget.
    pairs_first : bool
        Whether the first charge of all is a pair (epsilon, delta).
    """

    epsilon: float
    delta: float
    pairs_first: bool

    @property
    def splits(self) -> tuple[Split, ...]:
        """The ways to divide the budget."""
        return splits_of(self.epsilon, self.delta, pairs_first=self.pairs_first)

    def costs(
        self, guarantee: Spending, spent: Mapping[str, Cost], bound: Costs | None = None
    ) -> Costs:
        """Return the cost of a guarantee in each split beside the sums so far.

        With `bound`, the costs of the bound in whose place the guarantee comes, a split in which
        it is not exact costs no less.
        """
        draws = Cost(delta=draws_delta(guarantee.n_draws, self.epsilon))
        costs = {}
        for split in self.splits:
            before = None if bound is None else bound.get(split.name, Cost.infinite())
            delta = None if before is None else before.delta
            if delta is not None and not math.isfinite(delta):
                costs[split.name] = Cost.infinite()
                continue
            cost = Cost.total([split.cost(guarantee, spent[split.name], delta), draws])
            if before is not None and not split.is_exact(guarantee):
                cost = Cost.largest([cost, before])
            costs[split.name] = cost
        return costs

    def sums(self, charges: Iterable[Costs | None]) -> Costs:
        """Return the sums of costs about the same records; None takes all."""
        known = list(charges)
        never = Cost.infinite()
        return {
            split.name: Cost.total(never if c is None else c.get(split.name, never) for c in known)
            for split in self.splits
        }

    def admits(self, sums: Costs) -> bool:
        """Return whether the sums stay within the limits of a split."""
        return any(sums[split.name].within(split.limit) for split in self.splits)

    def room(self, sums: Costs, n_draws: int) -> float:
        """Return the largest mu of one more Gaussian charge, rounded down."""
        draws = draws_delta(n_draws, self.epsilon)
        if not any(cost.is_something for cost in sums.values()):  # a first charge may take all
            return gdp_mu(self.epsilon, self.delta - draws) * (1.0 - 2.0**-50)
        return max(split.room(sums[split.name], draws) for split in self.splits)

    def spent(self, sums: Costs) -> float:
        """Return the epsilon of charges with these sums, had they been fixed beforehand."""
        splits = list(self.splits)
        if sums["gaussian"].square <= sums["concentrated"].square:
            splits.pop()  # zero-concentrated DP says no more than Gaussian DP, and takes long
        return min(split.epsilon(sums[split.name], self.delta) for split in splits)


def pure_mu(epsilon: float) -> float:
    """Return the mu of Gaussian DP that pure epsilon implies, rounded up."""
    if epsilon < 1.0:
        mu = 2.0 * math.sqrt(2.0) * scipy.special.erfinv(math.tanh(0.5 * epsilon))
    else:
        mu = -2.0 * scipy.special.ndtri(scipy.special.expit(-epsilon))
    return float(mu) * (1.0 + 2.0**-40)


@functools.lru_cache(maxsize=64)
def pair_epsilon(profile: Profile, delta: float) -> float:
    """Return the least epsilon at which a profile is at most delta, rounded up, or infinity."""
    if isinstance(profile, GaussianDP):
        return gdp_epsilon(profile.mu, delta)
    return _least(lambda x: profile.delta(x) <= delta, 2.0**-30)


@functools.lru_cache(maxsize=64)
def _points(profile: Profile, delta: float) -> tuple[FloatArray, FloatArray]:
    """Return epsilons up to where a profile has fallen to delta, none if it never does, and it.

    As a divergence is convex in e^epsilon and 1 at 0, it lies below straight lines between the
    profile's points, those at negative epsilons and (0, 1): the values are those of such lines.
    """
    far = _least(lambda x: profile.delta(x) <= delta, 1e-3)
    if not math.isfinite(far):
        return np.empty(0), np.empty(0)
    x = np.linspace(0.0, far, _POINTS + 1)
    values = np.minimum.accumulate([profile.delta(float(value)) for value in x])
    below = -x[:0:-1]
    reflected = -np.expm1(below) + np.exp(below) * values[:0:-1]
    u = np.concatenate([[0.0], np.exp(below), np.exp(x)])
    points = np.concatenate([[1.0], np.minimum(reflected, 1.0), values])
    kept = convex_hull(u, points)
    return x, np.interp(np.exp(x), u[kept], points[kept]) * (1.0 + 2.0**-40)


@functools.lru_cache(maxsize=256)
def gaussian_mu(profile: Profile, delta: float, shift: float = 0.0) -> float:
    """Return the mu, rounded up, for which a guarantee costs shift, mu^2 and delta.

    Parameters
    ----------
    profile : Profile
        The guarantee.
    delta, shift : float
        The parts d and e of the cost.

    Returns
    -------
    float
        Infinity where the profile is above delta at all epsilons that are tried.
    """
    x, values = _points(profile, delta)
    if not x.size or values[0] <= delta:
        return 0.0 if x.size else math.inf
    u, scale = np.exp(x), math.exp(-shift)
    wanted = (values - delta) / (1.0 - delta) * (1.0 + 2.0**-40)

    def at(y: FloatArray, mu: float) -> tuple[FloatArray, FloatArray]:
        # delta(y; mu) is the first less e^y times the second.
        return scipy.special.ndtr(-y / mu + 0.5 * mu), scipy.special.ndtr(-y / mu - 0.5 * mu)

    def suffices(mu: float) -> bool:
        # As functions of u = e^x both sides are convex: between two points that of the profile lies
        # below the chord, that of Gaussian DP above both tangents, which meet at v; their least
        # distance is there or at an end.
        above, below = at(x - shift, mu)
        below *= scale
        with np.errstate(invalid="ignore", divide="ignore"):
            v = np.clip(np.diff(above) / np.diff(below), u[:-1], u[1:])
            least = above[:-1] - v * below[:-1]
            chord = wanted[:-1] + np.diff(wanted) * (v - u[:-1]) / np.diff(u)
        if not (np.all(above - u * below >= wanted) and np.all(least >= chord)):
            return False  # also where both vanish
        # The same for x < 0: 1 - g(-x) falls no further than to its value at the point before.
        first, second = at(x[1:] + shift, mu)
        beyond = first - u[1:] / scale * second
        return not shift or bool(
            np.all(1.0 - values[:-1] >= (1.0 - delta) * scale * (1.0 - beyond))
        )

    low = high = 2.0**-20
    while not suffices(high):
        low, high = high, 2.0 * high
        if high > 256.0:
            return math.inf
    return (bisect(suffices, low, high)[1] if high > low else high) * _MARGIN


def _sum_up(values: Sequence[float]) -> float:
    """Return a sum, rounded up; infinity where a term is."""
    total = math.fsum(values)
    return total if len(values) == 1 else math.nextafter(total, math.inf) if total else 0.0


def draws_delta(n_draws: int, epsilon: float) -> float:
    """Return the part of delta at epsilon for draws of noise, each within 2^-100 of exact ones."""
    return (1.0 + math.exp(min(epsilon, 700.0))) * n_draws * DRAW_ERROR * (1.0 + 2.0**-40)


def _least(holds: Callable[[float], bool], tolerance: float) -> float:
    """Return the least epsilon at which a condition holds that holds from there on, rounded up."""
    if holds(0.0):
        return 0.0
    if not holds(_FAR):
        return math.inf
    low, high = 0.0, _FAR
    while high - low > tolerance * high:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
