"""Composition of guarantees of different kinds that were fixed beforehand, by their profiles.

Where a guarantee is chosen by earlier results, `filter` applies. A guarantee is a profile, delta
as a function of epsilon. Guarantees of one kind compose by the rule of this kind: squares of mu,
with minimisers of perturbed objectives by theirs; rho of concentrated DP; secret samples by their
pairs, all of them at once. What is then left, one total of each kind beside selections and pairs
(epsilon, delta), is composed as privacy loss distributions.

A profile g bounds H(P, Q) = sup_S P(S) - e^epsilon Q(S) for the distributions P, Q of the outcome
on neighbours, in either order. H of the order (P, Q) at -epsilon is 1 - e^-epsilon + e^-epsilon
times H of the other order at epsilon, so that the same with g bounds it. As a function of e^epsilon
H is convex, and thus at most the largest convex function below g at finitely many points, with
straight lines between them and with the last of the values beyond: it decreases. That function is H
of a pair of discrete distributions, which dominates (P, Q) and (Q, P). Dominating pairs compose
(Zhu, Dong, Wang, "Optimal accounting of differential privacy via characteristic function", AISTATS
2022, Theorem 10), by the FFT of dp-accounting, which rounds losses up (Doroshenko, Ghazi, Kamath,
Kumar, Manurangsi, "Connect the dots", PoPETs 2022).
"""

import functools
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from fractions import Fraction
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from dpkern._numbers import count, not_negative, positive, probability
from dpkern.privacy.certificate.certificate import Certificate
from dpkern.privacy.certificate.secret_samples import SecretSamples
from dpkern.privacy.guarantees.base import DRAW_ERROR
from dpkern.privacy.guarantees.gdp import Budget, GaussianDP, gdp_epsilon
from dpkern.privacy.guarantees.objective_perturbation import ObjectivePerturbation
from dpkern.privacy.guarantees.rounding import round_up, sqrt_up
from dpkern.privacy.guarantees.selection import Selection
from dpkern.privacy.guarantees.zcdp import ConcentratedDP
from dpkern.privacy.sampling.amplification import Events, Sampled, sampled_delta

# Points of a profile at epsilon >= 0, of one of secret samples, which takes longer, the delta after
# the last, and the largest epsilon.
_POINTS, _SAMPLE_POINTS, _TAIL, _FAR = 1024, 192, 2.0**-48, 128.0
# A delta at that epsilon with which no budget has room for a guarantee.
_USELESS = 2.0**-10
# Losses are multiples of an interval: this one, or more where distributions are so wide, or less
# where all are narrow.
_INTERVAL, _MOST_LOSSES = 1e-4, 1 << 21
# Error bounds of dp-accounting's floating-point results, the absolute one for its FFT.
_RELATIVE, _ABSOLUTE = 1e-6, 2.0**-44
# Sets of releases about different silos of several runs that one accountant composes.
_MOST_SETS = 16


@dataclass(frozen=True, kw_only=True)
class Bound:
    """What a run may spend at most: as mu, rho, epsilon and delta, or the guarantee of a minimiser.

    Parameters
    ----------
    mu, rho : float, optional
        Of Gaussian or of concentrated DP.
    epsilon, delta : float, optional
        Given together.
    minimiser : ObjectivePerturbation, optional
        The guarantee of the minimiser of a perturbed objective.
    samples : frozenset of Events
        Beside mu, which charges them in full: releases about secret samples, for every silo.
    n_draws : int
        Number of noise draws that come to it, each within 2^-100 of the real rounded Gaussian; 0
        where the bound holds with them.
    stated : pair of float, optional
        Epsilon and delta that mu was computed from, for messages alone.
    """

    mu: float | None = None
    rho: float | None = None
    epsilon: float | None = None
    delta: float | None = None
    minimiser: ObjectivePerturbation | None = None
    samples: frozenset[Events] = frozenset()
    n_draws: int = 0
    stated: tuple[float, float] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if (self.epsilon is None) != (self.delta is None):
            raise ValueError("epsilon and delta must be given together, got one of them")
        if [self.mu, self.rho, self.epsilon, self.minimiser].count(None) != 3:
            raise ValueError("a charge must be exactly one of mu, rho, and epsilon with delta")
        found: dict[str, float] = {}
        for name in ("mu", "rho"):
            if getattr(self, name) is not None:
                found[name] = positive(name, getattr(self, name))
        if self.epsilon is not None and self.delta is not None:
            found["epsilon"] = not_negative("epsilon", self.epsilon)
            found["delta"] = 0.0 if self.delta == 0.0 else probability("delta", self.delta)
        for name, value in found.items():  # floats, whatever numbers they were
            object.__setattr__(self, name, value)
        count("n_draws", self.n_draws, 0)

    @classmethod
    def of_budget(cls, budget: Budget, n_draws: int) -> Self:
        """Return the bound of a run of Gaussian releases within a budget."""
        epsilon, delta = budget.epsilon, budget.delta
        stated = None if epsilon is None or delta is None else (epsilon, delta)
        return cls(mu=budget.mu, n_draws=n_draws, stated=stated)

    def group(self, r: int) -> Self:
        """Return the bound for r records.

        For epsilon and delta that is r epsilon and delta times 1 + e^epsilon + ... + e^((r-1)
        epsilon), summed over neighbours on the way.
        """
        if r == 1:
            return self
        if self.mu is not None:
            times_r = round_up(r * Fraction(self.mu))
            return type(self)(mu=times_r, n_draws=r * self.n_draws)  # as binomial noise needs
        if self.minimiser is not None:
            return replace(self, minimiser=self.minimiser.group(r))
        if self.epsilon is None or self.delta is None:
            raise ValueError(f"r must be 1 for a bound in concentrated DP, got {r}")
        terms = sum(math.exp(min(i * self.epsilon, 700.0)) for i in range(r))
        delta = self.delta * terms * (1.0 + 2.0**-40)
        if delta >= 1.0:
            raise ValueError(f"delta must stay below 1 for a group of {r} records, got {delta:.3g}")
        return type(self)(epsilon=round_up(r * Fraction(self.epsilon)), delta=delta)

    def to_dict(self) -> dict[str, Any]:
        """Return the bounds that are given as a dictionary of JSON types."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.compare}
        if self.minimiser is not None:
            values["minimiser"] = asdict(self.minimiser)
        values["samples"] = [
            [{**asdict(event), "times": times} for event, times in sorted(events, key=repr)]
            for events in sorted(self.samples, key=repr)
        ]
        return {name: value for name, value in values.items() if value not in (None, [])}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the bound of a dictionary from `to_dict`."""
        found = dict(values)
        if "minimiser" in found:
            found["minimiser"] = ObjectivePerturbation(**found["minimiser"])
        samples = frozenset(map(_events, found.pop("samples", ())))
        return cls(**found, samples=samples)


def _events(rows: Iterable[dict[str, Any]]) -> Events:
    names = [f.name for f in fields(Sampled)]
    return frozenset((Sampled(**{k: row[k] for k in names}), row["times"]) for row in rows)


class Profile(Hashable, Protocol):
    """A guarantee between neighbours in both directions, as a function of epsilon."""

    def delta(self, epsilon: float) -> float:
        """Return a delta for which (epsilon, delta)-DP holds."""


@dataclass(frozen=True)
class _SecretSamples:
    """Releases about secret samples; a record is in one of several silos."""

    silos: frozenset[Events]
    neighbours: str

    def delta(self, epsilon: float) -> float:
        return max(sampled_delta(events, epsilon, self.neighbours) for events in self.silos)

    def beside(self, mu: float) -> Self:
        """Return these events with a mu-GDP release about all records."""
        gaussian = Sampled.of(None, 0, 1.0 / mu * (1.0 - 2.0**-50))
        with_it = (_added(events, frozenset({(gaussian, 1)})) for events in self.silos)
        return type(self)(frozenset(with_it), self.neighbours)


@dataclass(frozen=True)
class Pair:
    """(epsilon, delta)-DP, whose profile is that of randomised response which shows delta."""

    epsilon: float
    delta_: float

    def delta(self, epsilon: float) -> float:
        if epsilon >= self.epsilon:
            return self.delta_
        rest = -math.expm1(epsilon - self.epsilon) / (1.0 + math.exp(-self.epsilon))
        return min(1.0, (self.delta_ + (1.0 - self.delta_) * rest) * (1.0 + 2.0**-48))


@dataclass(frozen=True)
class Spending:
    """The composition of guarantees about the same records; hashable.

    Attributes
    ----------
    squares, rho : Fraction
        Sums of mu^2 and of rho of concentrated DP.
    minimisers, samples, others : tuple
        Guarantees that have neither; secret samples with the square of their mu in full.
    n_draws : int
        Number of all noise draws.
    states_something : bool
        False where one of the guarantees states nothing: delta is 1 then.
    """

    neighbours: str
    squares: Fraction = Fraction(0)
    rho: Fraction = Fraction(0)
    minimisers: tuple[ObjectivePerturbation, ...] = ()
    samples: tuple[tuple[frozenset[Events], Fraction], ...] = ()
    others: tuple[Selection | Pair, ...] = ()
    n_draws: int = 0
    states_something: bool = True

    @classmethod
    def of(cls, guarantees: Iterable[Certificate | Bound], neighbours: str) -> Self:
        """Return the sequential composition of certificates and bounds."""
        squares, rho, states, n_draws = Fraction(0), Fraction(0), True, 0
        minimisers: list[ObjectivePerturbation] = []
        samples: list[tuple[frozenset[Events], Fraction]] = []
        others: list[Selection | Pair] = []
        for one in guarantees:
            n_draws += one.n_draws
            if one.minimiser is not None:
                minimisers.append(one.minimiser)
            elif isinstance(one, Bound):
                rho += Fraction(one.rho or 0)
                if one.epsilon is not None and one.delta is not None:
                    others.append(Pair(one.epsilon, one.delta))
                elif one.samples:
                    samples.append((one.samples, Fraction(one.mu or 0) ** 2))
                else:
                    squares += Fraction(one.mu or 0) ** 2
            elif not one.states_something:
                states = False
            elif one.selection is not None:
                others.append(one.selection)
            elif one.zcdp is not None:
                rho += Fraction(one.zcdp)
            elif not isinstance(one.guarantee, GaussianDP):
                raise ValueError(f"certificates must have a mu or a rho, got {one.guarantee!r}")
            elif one.amplified:
                secret = SecretSamples.of(one.releases, one.neighbours, one.n_draws)
                samples.append((secret.silos, Fraction(one.mu) ** 2))
            else:
                squares += Fraction(one.mu) ** 2
        of_minimisers, rest = tuple(minimisers), tuple(others)
        return cls(neighbours, squares, rho, of_minimisers, tuple(samples), rest, n_draws, states)

    @property
    def is_gaussian(self) -> bool:
        """Whether everything is Gaussian DP."""
        return not (self.rho or self.minimisers or self.samples or self.others)

    def delta(self, epsilon: float) -> float:
        """Return a delta for which (epsilon, delta)-DP holds, rounded up and at most 1."""
        if not self.states_something:
            return 1.0
        epsilon = not_negative("epsilon", epsilon)
        return min(self._with_draws(_delta(parts, epsilon), epsilon) for parts in self.ways())

    def fits(self, epsilon: float, delta: float) -> bool:
        """Return whether (epsilon, delta)-DP holds."""
        return self.states_something and any(
            self._with_draws(_delta(parts, epsilon), epsilon) <= delta for parts in self.ways()
        )

    def _with_draws(self, delta: float, epsilon: float) -> float:
        """Return the delta of noise draws that are not exact."""
        error = (1.0 + math.exp(min(epsilon, 700.0))) * self.n_draws * DRAW_ERROR
        return min(1.0, (delta + error) * (1.0 + 2.0**-48) if error else delta)

    def epsilon(self, delta: float) -> float:
        """Return an epsilon for which (epsilon, delta)-DP holds, or infinity."""
        delta = probability("delta", delta)
        if not self.states_something:
            return math.inf
        if self.is_gaussian and not self.n_draws:
            return gdp_epsilon(sqrt_up(self.squares), delta)
        if self.delta(0.0) <= delta:
            return 0.0
        high = 1.0
        while self.delta(high) > delta:
            high *= 2.0
            if high > 512.0:
                return math.inf
        low = 0.0
        while high - low > 2.0**-40 * high:
            middle = 0.5 * (low + high)
            low, high = (low, middle) if self.delta(middle) <= delta else (middle, high)
        return high

    def ways(self) -> Iterator[tuple[Profile, ...]]:
        """Iterate over totals of each kind: samples charged in full, then as samples."""
        full = self.squares + sum((square for _, square in self.samples), Fraction(0))
        yield self._totals(full, ())
        if self.samples:
            samples = _grouped([silos for silos, _ in self.samples])
            found = tuple(_SecretSamples(silos, self.neighbours) for silos in samples)
            if self.squares and len(found) == 1 and not self.minimisers:
                beside = (found[0].beside(sqrt_up(self.squares)),)
                yield self._totals(Fraction(0), beside)
            yield self._totals(self.squares, found)

    def _totals(
        self, squares: Fraction, samples: tuple[_SecretSamples, ...]
    ) -> tuple[Profile, ...]:
        parts: list[Profile] = []
        if self.minimisers:
            parts.append(ObjectivePerturbation.sequential(self.minimisers, sqrt_up(squares)))
        elif squares:
            parts.append(GaussianDP(mu=sqrt_up(squares)))
        if self.rho:
            parts.append(ConcentratedDP(rho=round_up(self.rho)))
        return (*parts, *samples, *self.others)


def _added(first: Events, second: Events) -> Events:
    total: Counter[Sampled] = Counter(dict(first))
    total.update(dict(second))
    return frozenset(total.items())


def _grouped(runs: list[frozenset[Events]]) -> list[frozenset[Events]]:
    """Return the releases of several runs, of which any silos may hold the same record."""
    groups: list[frozenset[Events]] = []
    for silos in runs:
        joined = frozenset(_added(a, b) for a in groups[-1] for b in silos) if groups else silos
        if groups and len(joined) <= _MOST_SETS:
            groups[-1] = joined
        else:
            groups.append(silos)
    return groups


def _delta(parts: tuple[Profile, ...], epsilon: float) -> float:
    """Return the delta of totals of different kinds."""
    if not parts:
        return 0.0
    if len(parts) == 1:
        return parts[0].delta(epsilon)
    found = 1.0
    if all(isinstance(part, GaussianDP | ConcentratedDP) for part in parts):
        rho = sum((_rho(part) for part in parts), Fraction(0))
        found = ConcentratedDP(rho=round_up(rho)).delta(epsilon)
    if any(part.delta(_FAR) > _USELESS for part in parts):
        return found
    counts = frozenset(Counter(parts).items())
    composed = float(_composed(counts).get_delta_for_epsilon(epsilon))
    return min(found, composed * (1.0 + _RELATIVE) + _ABSOLUTE)


def _rho(part: Any) -> Fraction:
    return Fraction(part.rho) if isinstance(part, ConcentratedDP) else Fraction(part.mu) ** 2 / 2


@functools.lru_cache(maxsize=64)
def _composed(parts: frozenset[tuple[Profile, int]]) -> Any:
    """Return dp-accounting's privacy loss distribution of profiles, each so many times."""
    far = {part: _far(part) for part, _ in parts}
    width = sum(times * 2.0 * far[part] for part, times in parts)
    interval = _INTERVAL
    while width > _MOST_LOSSES * interval:
        interval *= 2.0
    while interval > 2.0 * min(far.values()) / _POINTS and width < 0.25 * _MOST_LOSSES * interval:
        interval /= 2.0
    total = None
    for part, times in sorted(parts, key=repr):
        one = _distribution(part, interval, far[part])
        one = one if times == 1 else one.self_compose(times)
        total = one if total is None else total.compose(one)
    return total


def _far(part: Profile) -> float:
    """Return an epsilon at which a profile ends: where it is tiny, or falls no further."""
    if isinstance(part, Pair):
        return max(part.epsilon, _INTERVAL)
    least = max(_TAIL, 1.01 * part.delta(_FAR))
    low, high = 0.0, _FAR
    while high - low > max(1e-3 * high, 1e-6):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if part.delta(middle) <= least else (middle, high)
    return high


@functools.lru_cache(maxsize=64)
def _distribution(part: Profile, interval: float, far: float) -> Any:
    try:
        from dp_accounting.pld import common, pld_pmf, privacy_loss_distribution
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "guarantees of different kinds are composed by dp-accounting, which is not installed: "
            "pip install 'dpkern[accounting]'; Gaussian ones alone need none"
        ) from error
    if isinstance(part, Pair):
        pair = common.DifferentialPrivacyParameters(part.epsilon, part.delta_)
        return privacy_loss_distribution.from_privacy_parameters(pair, interval)
    if isinstance(part, GaussianDP):
        return privacy_loss_distribution.from_gaussian_mechanism(
            1.0 / part.mu * (1.0 - 2.0**-50), value_discretization_interval=interval
        )
    points = _SAMPLE_POINTS if isinstance(part, _SecretSamples) else _POINTS
    steps = np.unique(np.rint(np.linspace(0.0, far / interval, points)).astype(np.int64))
    deltas = np.minimum.accumulate([part.delta(float(step) * interval) for step in steps])
    below = -steps[:0:-1]
    decay = np.exp(below * interval)
    reflected = -np.expm1(below * interval) + decay * deltas[:0:-1]
    steps, deltas = np.append(below, steps), np.append(np.minimum(reflected, 1.0), deltas)
    kept = convex_hull(np.exp(steps * interval), deltas)
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots(interval, steps[kept], deltas[kept])
    return privacy_loss_distribution.PrivacyLossDistribution(pmf)


def convex_hull(x: NDArray[np.float64], y: NDArray[np.float64]) -> list[int]:
    """Return the points of the largest convex function below all of them."""
    kept: list[int] = []
    for i in range(len(x)):
        while len(kept) > 1:
            a, b = kept[-2:]
            if (y[b] - y[a]) * (x[i] - x[b]) < (y[i] - y[b]) * (x[b] - x[a]):
                break
            kept.pop()
        kept.append(i)
    return kept
