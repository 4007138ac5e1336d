"""What a run released, and the guarantee that follows: Release, Ledger, Certificate.

A solver writes every release to its ledger before the bits leave; the certificate recomputes
mu^2 = sum charged D^2/s^2 from the ledger in rational arithmetic and rounds up once. Silos hold
disjoint records, so a release that is one message per silo costs the largest of them.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from decimal import ROUND_CEILING, Context, Decimal
from fractions import Fraction
from typing import Any, TypeAlias

import scipy  # whose parts load when they are first used: an import of dpkern is cheap

from dpkern._numbers import count, positive, real
from dpkern.privacy._exact import bisect, round_up, sqrt_up
from dpkern.privacy.accounting import (
    AMPLIFIES,
    Events,
    Sampled,
    sampled_delta,
    sampled_epsilon,
)
from dpkern.privacy.binomial import binomial_rho
from dpkern.privacy.budget import gdp_delta_upper, gdp_epsilon
from dpkern.privacy.zcdp import zcdp_delta, zcdp_epsilon

PerMessage: TypeAlias = float | tuple[float, ...]

#: Total variation between one draw and the rounded real Gaussian it stands for.
DRAW_ERROR = 2.0**-100

ADVERSARIES = {
    "central": "sees the released aggregates of every round; trusts the aggregator or the secure "
    "aggregation",
    "silo": "sees every message of every silo",
    "shuffle": "sees the shuffled multiset of messages",
    "local": "sees every message of every record's owner",
}

NOISES = ("os", "seeded: not private")


@dataclass(frozen=True, kw_only=True)
class Release:
    """One release of noisy sums, possibly repeated.

    Parameters
    ----------
    what : str
        What was released, for the reader ("gradient").
    sensitivity : float or tuple of float
        l2 sensitivity of the sum that left, before noise. A float for a release about all the
        data; a tuple of m floats for one message per silo, each over its own records. 0 stands for
        a silo that sent nothing; infinity is allowed where no noise was added.
    std : float, tuple of float or None
        Standard deviation of the Gaussian noise on that sum, of the same form. None and 0 mean that
        no noise was added.
    grid : float, tuple of float or None
        The grid of the sum and of the noise (a power of two); None for a float sum.
    times : int
        How often it was released, each time with fresh noise.
    dim : int
        Number of coordinates of one message.
    seen_by : str
        Who sees it.
    sampling : mapping or None
        The secret sampling of records that preceded it, as plain parameters; kept as a tuple of
        pairs in the order of their names. "method", "batch_sizes" and "sizes" (one entry per silo)
        are what `dpkern.privacy.accounting` reads; mu is charged as if there had been none.
    draws : int or None
        Noise draws of one release; None means dim for each message with noise.
    per_record : int or None
        The most of the `times` that any one record has a part in, fixed without looking at the
        records; None means all of them.
    coins : int or None
        The noise is not Gaussian but Bin(coins, 1/2) in every coordinate of integer sums about all
        the data, `sensitivity` and `std` counting in ones.

    Raises
    ------
    TypeError, ValueError
        A field is of the wrong kind or out of its range; the message names it.
    """

    what: str
    sensitivity: PerMessage
    std: PerMessage | None
    grid: PerMessage | None
    times: int = 1
    dim: int
    seen_by: str
    sampling: tuple[tuple[str, Any], ...] | Mapping[str, Any] | None = None
    draws: int | None = None
    per_record: int | None = None
    coins: int | None = None

    def __post_init__(self) -> None:
        for name in ("what", "seen_by"):
            _text(name, getattr(self, name))
        if self.sampling is not None:
            sampling = tuple(sorted(_parameters("sampling", dict(self.sampling)).items()))
            object.__setattr__(self, "sampling", sampling)
        sensitivity = _per_message("sensitivity", self.sensitivity)
        m = len(sensitivity) if isinstance(sensitivity, tuple) else None
        std = None if self.std is None else _per_message("std", self.std)
        grid = None if self.grid is None else _per_message("grid", self.grid)
        for name, value in (("std", std), ("grid", grid)):
            if value is not None and (len(value) if isinstance(value, tuple) else None) != m:
                raise ValueError(
                    f"{name} has {_form(value)} and sensitivity {_form(sensitivity)}; "
                    "both must be one number, or both one per silo"
                )
        for value in _entries(grid):
            if not (0.0 < value < math.inf and math.frexp(value)[0] == 0.5):
                raise ValueError(f"grid is {value!r}; it must be a power of two")
        if std is not None and not any(_entries(std)):
            std = None
        for d, s in zip(_entries(sensitivity), _entries(std), strict=False):
            if s == math.inf:
                raise ValueError("std is inf; it must be finite and at least 0")
            if s > 0.0 and d == math.inf:
                raise ValueError("sensitivity is inf although noise was added; it must be finite")
        object.__setattr__(self, "sensitivity", sensitivity)
        object.__setattr__(self, "std", std)
        object.__setattr__(self, "grid", grid)
        object.__setattr__(self, "times", count("times", self.times))
        object.__setattr__(self, "dim", count("dim", self.dim))
        for name in ("draws", "per_record", "coins"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, count(name, getattr(self, name)))
        if self.coins is not None and (m is not None or std is None or grid != 1.0):
            raise ValueError(
                "coins were given for sums per silo, without a std or off the grid 1.0; "
                "binomial noise is on counts about all the data"
            )

    @property
    def n_messages(self) -> int | None:
        """Number of silos, or None for a release about all the data."""
        return len(self.sensitivity) if isinstance(self.sensitivity, tuple) else None

    @property
    def n_draws(self) -> int:
        """Noise draws of all silos, coordinates and repetitions."""
        if self.draws is not None:
            return self.times * self.draws
        with_noise = sum(
            d > 0.0 and s > 0.0
            for d, s in zip(_entries(self.sensitivity), _entries(self.std), strict=False)
        )
        return self.times * self.dim * with_noise

    @property
    def charged(self) -> int:
        """How many of the releases one record pays for."""
        return self.times if self.per_record is None else min(self.times, self.per_record)

    def mu_squared(self) -> tuple[Fraction | None, ...]:
        """Return charged D^2/s^2 per silo (one entry if about all the data); None for infinity.

        For binomial noise it is charged 2 rho, rho-zCDP being what sqrt(2 rho)-GDP implies.
        """
        if self.coins is not None and self.sensitivity:
            rho = binomial_rho(self.coins, _entries(self.sensitivity)[0], self.dim)
            return (None if rho is None else self.charged * 2 * rho,)
        sensitivity = _entries(self.sensitivity)
        std = (0.0,) * len(sensitivity) if self.std is None else _entries(self.std)
        return tuple(
            Fraction(0)
            if d == 0.0
            else None
            if s == 0.0
            else self.charged * (Fraction(d) / Fraction(s)) ** 2
            for d, s in zip(sensitivity, std, strict=True)
        )

    @property
    def method(self) -> str | None:
        """How records were sampled for it; None where all were used."""
        return None if self.sampling is None else dict(self.sampling).get("method")

    def sampled(self, silo: int) -> tuple[Sampled, int] | None:
        """What an accountant sees of it for the records of one silo, and how often; None if nothing

        Raises
        ------
        ValueError
            When it has no noise, or is not Gaussian.
        """
        j = silo if isinstance(self.sensitivity, tuple) else 0
        sensitivity, std = _entries(self.sensitivity)[j], _entries(self.std)
        if sensitivity == 0.0:
            return None
        if not std or std[j] == 0.0 or self.coins is not None:
            raise ValueError("an accountant of samples needs Gaussian noise on every release")
        sampling = None if self.sampling is None else dict(self.sampling)
        return Sampled.of(sampling, silo, std[j] / sensitivity), self.charged

    def to_dict(self) -> dict[str, Any]:
        """Return a dictionary that standard JSON holds without loss."""
        return {f.name: _encode(getattr(self, f.name)) for f in fields(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Release":
        """Return the release that `to_dict` described."""
        _known_fields(cls, values)
        return cls(**{name: _decode(value) for name, value in values.items()})

    def __str__(self) -> str:
        parts = [f"{self.what}: {self.times} x {self.dim} coordinates"]
        if self.n_messages is not None:
            parts[0] += f" from each of {self.n_messages} silos"
        parts.append(f"sensitivity {_span(self.sensitivity)}")
        kind = "noise" if self.coins is None else f"binomial noise of {self.coins} coins,"
        parts.append("no noise" if self.std is None else f"{kind} std {_span(self.std)}")
        parts.append("no grid" if self.grid is None else f"grid {_span(self.grid)}")
        if self.sampling is not None:
            parts.append(f"sampling {_listed(dict(self.sampling))}")
        if self.per_record is not None:
            parts.append(f"each record in at most {self.per_record}")
        parts.append(f"seen by {self.seen_by}")
        return ", ".join(parts)


class Ledger:
    """The releases of one run, in the order of their first appearance.

    Recording an equal release again raises its `times`, so a run of many rounds stays short. Where
    `per_record` is given that takes the same object: it is one series, of which a record does so
    many, and an equal release of another series can have the same record in it.
    """

    def __init__(self) -> None:
        # The number of an object is its own as long as it is kept here.
        self._entries: dict[Release | int, tuple[Release, int]] = {}
        self._n_silos: int | None = None

    def append(self, release: Release) -> None:
        """Record one release, before its bits leave.

        Raises
        ------
        TypeError
            `release` is no Release.
        ValueError
            It has another number of silos than an earlier one. Nothing is recorded then.
        """
        if not isinstance(release, Release):
            raise TypeError(f"release is a {type(release).__name__}; it must be a Release")
        m = release.n_messages
        if m is not None and self._n_silos not in (None, m):
            raise ValueError(
                f"release has {m} messages, earlier ones {self._n_silos}; "
                "a run has one message per silo"
            )
        key = release if release.per_record is None else id(release)
        _, times = self._entries.get(key, (release, 0))
        self._entries[key] = release, times + release.times
        self._n_silos = self._n_silos if m is None else m

    @property
    def releases(self) -> tuple[Release, ...]:
        """What was released so far, repetitions merged."""
        return tuple(
            release if times == release.times else replace(release, times=times)
            for release, times in self._entries.values()
        )

    @property
    def n_draws(self) -> int:
        """Number of noise draws so far, of all silos."""
        return sum(release.n_draws for release in self.releases)

    def mu_squared(self) -> Fraction | None:
        """Return the square of the run's mu exactly; None when it is infinite.

        It is the largest total of a silo; a release about all the data counts for every silo.
        """
        totals = [Fraction(0)] * (self._n_silos or 1)
        for release in self.releases:
            shares = release.mu_squared()
            if release.n_messages is None:
                shares = shares * len(totals)
            for j, share in enumerate(shares):
                if share is None:
                    return None
                totals[j] += share
        return max(totals)

    def __iter__(self) -> Iterator[Release]:
        return iter(self.releases)

    def __len__(self) -> int:
        return len(self._entries)


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """What a run guarantees, for whom, and on which assumptions.

    Made by `Certificate.from_ledger`, `compose_sequential` or `compose_parallel`.

    Attributes
    ----------
    trust : str
        "central", "silo", "shuffle" or "local"; joined by " + " where several were composed.
    noise : str
        "os", or "seeded: not private": then the figures are those that fresh noise would give.
    mu : float
        GDP parameter, rounded up; infinity means none, and no guarantee unless `zcdp` gives one.
    n_draws : int
        Number of noise draws, each within 2^-100 of the real rounded Gaussian in total variation.
    releases : tuple of Release
        What was released.
    unit : str
        Whose privacy it is.
    neighbours : str
        "replace_one" or "add_remove".
    arithmetic : str
        "grid", or "float": then there is no guarantee.
    declared : dict
        Parameters taken as public.
    claimed : dict or None
        Figures a paper claims for the same noise ("epsilon", "delta", "mu", "rho").
    bound : str
        "exact", or "upper" where the true value may be smaller.
    notes : tuple of str
        What else the reader has to know.
    at_delta : float or None
        The delta at which the text states epsilon; by default the claimed one, else 1e-6.
    zcdp : float or None
        Where not all noise is Gaussian: rho of zero-concentrated DP, rounded up, on an event whose
        complement has probability n_draws 2^-100 at most; then mu is infinite.
    amplified : bool
        Whether epsilon and delta use that the samples of the releases are secret; mu and rho never
        do.

    Raises
    ------
    TypeError, ValueError
        A field is of the wrong kind or out of its range; the message names it.
    """

    trust: str
    noise: str
    mu: float
    n_draws: int
    releases: tuple[Release, ...] = ()
    unit: str = "one record"
    neighbours: str = "replace_one"
    arithmetic: str = "grid"
    declared: dict[str, Any] = field(default_factory=dict)
    claimed: dict[str, Any] | None = None
    bound: str = "exact"
    notes: tuple[str, ...] = ()
    at_delta: float | None = None
    zcdp: float | None = None
    amplified: bool = False

    def __post_init__(self) -> None:
        _text("trust", self.trust)
        for trust in self.trust.split(" + "):
            _one_of("trust", trust, tuple(ADVERSARIES))
        _one_of("noise", self.noise, NOISES)
        _one_of("neighbours", self.neighbours, ("replace_one", "add_remove"))
        _one_of("arithmetic", self.arithmetic, ("grid", "float"))
        _one_of("bound", self.bound, ("exact", "upper"))
        _text("unit", self.unit)
        mu = real("mu", self.mu)
        if not mu >= 0.0:
            raise ValueError(f"mu is {mu!r}; it must be at least 0")
        if self.arithmetic == "float" and mu < math.inf:
            raise ValueError(f"mu is {mu!r}; with arithmetic 'float' it must be inf")
        zcdp = None if self.zcdp is None else positive("zcdp", self.zcdp)
        if zcdp is not None and (mu < math.inf or self.arithmetic == "float"):
            raise ValueError(
                "zcdp was given with a finite mu or float arithmetic; it needs neither"
            )
        for release in self.releases:
            if not isinstance(release, Release):
                raise TypeError(f"releases holds a {type(release).__name__}; it must be a Release")
        if isinstance(self.notes, str):
            raise TypeError("notes is a string; it must be a sequence of strings")
        for note in self.notes:
            _text("notes", note)
        at_delta = self.at_delta
        if at_delta is not None and not 0.0 < (at_delta := real("at_delta", at_delta)) < 1.0:
            raise ValueError(f"at_delta is {at_delta!r}; it must lie strictly between 0 and 1")
        claimed = None if self.claimed is None else _parameters("claimed", self.claimed)
        for name, value in (
            ("mu", mu),
            ("n_draws", count("n_draws", self.n_draws, 0)),
            ("releases", tuple(self.releases)),
            ("notes", tuple(dict.fromkeys(self.notes))),
            ("declared", _parameters("declared", self.declared)),
            ("claimed", claimed),
            ("at_delta", at_delta),
            ("zcdp", zcdp),
        ):
            object.__setattr__(self, name, value)

    @classmethod
    def from_ledger(
        cls,
        ledger: Ledger,
        *,
        trust: str,
        noise: str,
        neighbours: str = "replace_one",
        arithmetic: str = "grid",
        declared: Mapping[str, Any] | None = None,
        claimed: Mapping[str, Any] | None = None,
        bound: str = "exact",
        notes: Iterable[str] = (),
        at_delta: float | None = None,
    ) -> "Certificate":
        """Return the certificate of one run: mu from the ledger's releases, rounded up once.

        Parameters
        ----------
        ledger : Ledger
            Everything that the run released.
        trust, noise, neighbours, arithmetic, declared, claimed, bound, notes, at_delta
            The fields of the certificate. A run with a release without noise, or in float
            arithmetic, gets mu = infinity and a note. Noise without a grid is float arithmetic.
            Where the sampling is the one that goes with the neighbours, `epsilon` and `delta` use
            it; mu charges it as full composition, which makes the bound "upper".

        Raises
        ------
        TypeError, ValueError
            A field is of the wrong kind or out of its range.
        """
        notes = [notes] if isinstance(notes, str) else list(notes)
        releases = ledger.releases
        squared = ledger.mu_squared()
        gaussian = all(release.coins is None for release in releases)
        mu = sqrt_up(squared) if squared is not None and gaussian else math.inf
        zcdp = None if squared is None or gaussian else round_up(squared / 2)
        if squared is None:
            notes.append("no guarantee: something about the data was released without noise")
        if not gaussian:
            bound = "upper"
            notes.append(
                "not all noise is Gaussian: releases compose as concentrated DP, not as mu"
            )
        if any(release.std is not None and release.grid is None for release in releases):
            arithmetic = "float"
        if arithmetic == "float":
            mu, zcdp = math.inf, None
            notes.append("no guarantee: noise or sums in float arithmetic are not certified")
        methods = {release.method for release in releases if release.sampling is not None}
        amplified = methods == {AMPLIFIES.get(neighbours)} and mu < math.inf
        if methods:
            bound = "upper"
            notes.append(
                "mu and rho charge sampling as if every record had been used; epsilon and delta "
                "are the better of theirs and dp-accounting's for secret samples"
                if amplified
                else "sampling of records is charged as if every record had been used"
            )
        return cls(
            trust=trust,
            noise=noise,
            mu=mu,
            n_draws=ledger.n_draws,
            releases=releases,
            neighbours=neighbours,
            arithmetic=arithmetic,
            declared=dict(declared or {}),
            claimed=None if claimed is None else dict(claimed),
            bound=bound,
            notes=tuple(notes),
            at_delta=at_delta,
            zcdp=zcdp,
            amplified=amplified,
        )

    @property
    def adversary(self) -> str:
        """What the adversary sees under this trust model."""
        return "; ".join(ADVERSARIES[trust] for trust in self.trust.split(" + "))

    @property
    def rho(self) -> float:
        """Zero-concentrated DP parameter, rounded up: `zcdp`, or mu^2/2."""
        if self.zcdp is not None:
            return self.zcdp
        return self.mu if self.mu == math.inf else round_up(Fraction(self.mu) ** 2 / 2)

    def _turning_point(self) -> tuple[float, float]:
        """Return (n_draws 2^-100, the epsilon beyond which the corrected delta would grow).

        The derivative of delta(epsilon; mu) in exp(epsilon) is -Phi(-epsilon/mu - mu/2), that of
        the correction is n_draws 2^-100. Any value is valid here; this one is the best. Without
        a mu it is where the correction reaches delta itself: twice the best sum at most.
        """
        error = min(1.0, self.n_draws * DRAW_ERROR)
        if error == 0.0:
            return 0.0, math.inf
        if self.zcdp is not None:
            rho = self.zcdp
            return error, bisect(
                lambda e: zcdp_delta(rho, e) <= error * math.exp(e), 0.0, 1.0 - math.log(error)
            )[1]
        return error, max(0.0, self.mu * (-float(scipy.special.ndtri(error)) - 0.5 * self.mu))

    def _real_delta(self, epsilon: float) -> float:
        """The delta of the noise as the mathematics has it, rounded up."""
        if self.zcdp is None:
            return gdp_delta_upper(self.mu, epsilon)
        return zcdp_delta(self.zcdp, epsilon)

    def delta(self, epsilon: float) -> float:
        """Return a delta for which (epsilon, delta)-DP holds, rounded up and at most 1.

        Parameters
        ----------
        epsilon : float
            Finite and >= 0.

        Notes
        -----
        delta(e; mu) + (1 + exp(e)) n_draws 2^-100 at e = epsilon: the second term is what the
        sampler may differ from the real Gaussian, on both sides of the definition. Where that
        sum grows with e, the value of the best smaller e holds too and is returned. Without a mu
        the first term is that of concentrated DP.

        Raises
        ------
        TypeError, ValueError
            `epsilon` is no real number or out of its range.
        """
        real_noise = self._real_delta(epsilon)
        if self.amplified:
            return min(self._full_delta(epsilon, real_noise), self._sampled_delta(epsilon))
        return self._full_delta(epsilon, real_noise)

    def _full_delta(self, epsilon: float, real_noise: float) -> float:
        """`delta` without secret samples."""
        if self.rho in (0.0, math.inf):
            return real_noise
        error, turn = self._turning_point()
        if error == 0.0:
            return real_noise
        return self._corrected(min(float(epsilon), turn), error)

    def _corrected(self, epsilon: float, error: float) -> float:
        total = self._real_delta(epsilon) + (1.0 + math.exp(epsilon)) * error
        return min(1.0, total * (1.0 + 2.0**-48))

    def epsilon(self, delta: float) -> float:
        """Return an epsilon for which (epsilon, delta)-DP holds, rounded up.

        Parameters
        ----------
        delta : float
            In (0, 1).

        Returns
        -------
        float
            The smallest epsilon with `self.delta(epsilon)` <= delta. Infinity means that none is
            certified: mu is infinite, or delta is below what n_draws draws that are each within
            2^-100 of the real Gaussian can certify at this mu.

        Raises
        ------
        TypeError, ValueError
            `delta` is no real number or out of its range.
        """
        if self.amplified:
            return min(self._full_epsilon(delta), self._sampled_epsilon(delta))
        return self._full_epsilon(delta)

    def _full_epsilon(self, delta: float) -> float:
        """`epsilon` without secret samples."""
        if self.zcdp is None:
            real_noise = gdp_epsilon(self.mu, delta)
        else:
            real_noise = zcdp_epsilon(self.zcdp, delta)
        if self.rho in (0.0, math.inf):
            return real_noise
        error, turn = self._turning_point()
        if error == 0.0:
            return real_noise
        if self._corrected(0.0, error) <= delta:
            return 0.0
        if self._corrected(turn, error) > delta:
            return math.inf
        return bisect(lambda epsilon: self._corrected(epsilon, error) <= delta, 0.0, turn)[1]

    def _sampled_silos(self) -> set[Events]:
        """What was released about a silo's records, once for silos that have the same."""
        silos = max(len(dict(r.sampling)["sizes"]) for r in self.releases if r.sampling is not None)
        found = set()
        for j in range(silos):
            events: Counter[Sampled] = Counter()
            for release in self.releases:
                one = release.sampled(j)
                if one is not None:
                    events[one[0]] += one[1]
            found.add(frozenset(events.items()))
        return found - {frozenset()}

    def _sampled_delta(self, epsilon: float) -> float:
        sampled = max(sampled_delta(e, epsilon, self.neighbours) for e in self._sampled_silos())
        error = (1.0 + math.exp(min(epsilon, 700.0))) * self.n_draws * DRAW_ERROR
        return min(1.0, (sampled + error) * (1.0 + 2.0**-48))

    def _sampled_epsilon(self, delta: float) -> float:
        """As `_full_epsilon` by the accountant; infinity where the draws' own error is too much."""
        room = delta * (1.0 - 2.0**-30)
        epsilon = max(sampled_epsilon(e, room, self.neighbours) for e in self._sampled_silos())
        error = (1.0 + math.exp(min(epsilon, 700.0))) * self.n_draws * DRAW_ERROR
        return epsilon if error <= delta - room else math.inf

    def group(self, r: int) -> "Certificate":
        """Return the certificate for a person with r records, wherever they are: mu times r.

        Raises
        ------
        TypeError, ValueError
            `r` is no integer >= 1, or this certificate is not about one record.
        """
        r = count("r", r)
        if self.unit != "one record":
            raise ValueError(f"unit is {self.unit!r}; a group is made of 'one record'")
        if r > 1 and self.zcdp is not None:
            raise ValueError(
                "zcdp certificates, as of shuffle trust, are about one record: group and "
                "user_level need a mu"
            )
        return replace(
            self,
            unit="one record" if r == 1 else f"one person with {r} records",
            amplified=self.amplified and r == 1,
            mu=self.mu if self.mu == math.inf else round_up(r * Fraction(self.mu)),
            # A paper's figures are about one record; beside those of a group they would mislead.
            claimed=self.claimed if r == 1 else None,
            bound=self.bound if r == 1 else "upper",
            at_delta=self._stated_delta(),
        )

    def central(self) -> "Certificate":
        """Return what the run guarantees against an adversary who sees its aggregates alone.

        They are functions of the messages that this certificate is about, so all its figures hold
        (Lowy, Ghafelebashi, Razaviyayn 2023, Appendix B: inter-silo record-level DP is stronger
        than central DP); the noise of the other silos, which would make them smaller, is not used.

        Raises
        ------
        ValueError
            Under central trust already.
        """
        if "central" in self.trust.split(" + "):
            raise ValueError(
                f"trust is {self.trust!r}: this certificate is for central adversaries already"
            )
        note = f"as seen by central adversaries; it holds under {self.trust} trust too"
        return replace(
            self,
            trust="central",
            bound="upper",
            notes=(*self.notes, note),
            at_delta=self._stated_delta(),
        )

    def user_level(self) -> "Certificate":
        """Return what the run guarantees for a silo as a whole: all its records replaced.

        mu times the largest number of records of a silo: a group's mu, where the paper's Appendix B
        has (n epsilon, n exp((n - 1) epsilon) delta).

        Raises
        ------
        ValueError
            Where no sizes are declared, or public numbers that the records may exceed, or as
            `group`.
        """
        if self.neighbours == "add_remove":
            raise ValueError("declared sizes do not bound the silos': give `group` what does")
        sizes = self.declared.get("sizes")
        if not sizes or not all(isinstance(n, int) for n in sizes):
            raise ValueError("no sizes of silos are declared: give `group` their largest")
        found = self.group(max(sizes))
        return replace(found, unit=f"one silo, of {max(sizes)} records at most")

    def to_dict(self) -> dict[str, Any]:
        """Return a dictionary that standard JSON holds without loss."""
        values = {f.name: _encode(getattr(self, f.name)) for f in fields(self)}
        values["releases"] = [release.to_dict() for release in self.releases]
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Certificate":
        """Return the certificate that `to_dict` described.

        Raises
        ------
        TypeError, ValueError
            A field is missing, unknown, of the wrong kind or out of its range.
        """
        _known_fields(cls, values)
        decoded = {name: _decode(v) for name, v in values.items() if name != "releases"}
        releases = tuple(Release.from_dict(release) for release in values["releases"])
        return cls(releases=releases, **decoded)

    def _stated_delta(self) -> float | None:
        if self.at_delta is not None:
            return self.at_delta
        claimed = None if self.claimed is None else self.claimed.get("delta")
        return claimed if isinstance(claimed, float) and 0.0 < claimed < 1.0 else None

    def __str__(self) -> str:
        rows: list[tuple[str, str]] = []
        most = "at most " if self.bound == "upper" else ""
        if self.rho == math.inf:
            rows.append(("guarantee", "none"))
        delta = self._stated_delta() or 1e-6
        rows += [
            ("epsilon", f"{most}{self._shown_epsilon(delta)}"),
            ("unit", self.unit),
            ("neighbours", self.neighbours),
            ("trust", self.trust),
            ("adversary", self.adversary),
            ("mu", f"{most}{_shown(self.mu)}" if self.zcdp is None else "none"),
            ("rho", f"{most}{_shown(self.rho)}"),
            ("noise", f"{self.noise}, {self.n_draws} draws" if self.n_draws else "none"),
            ("arithmetic", self.arithmetic),
        ]
        rows += _rows("releases", _release_lines(self.releases))
        rows += _rows("declared", _lines(self.declared))
        if self.claimed is not None:
            rows.append(
                ("claimed", f"{_listed(self.claimed)}; true: {self._true_beside_claimed()}")
            )
        rows += _rows("notes", self.notes)
        lines = [f"  {name:<10}  {text}" for name, text in rows]
        if self.noise != "os":
            lines.insert(0, f"  {self.noise} (the figures are those that fresh noise would give)")
        return "\n".join(["Privacy certificate", *lines])

    def _shown_epsilon(self, delta: float) -> str:
        epsilon = self.epsilon(delta)
        text = f"{_shown(epsilon)} at delta {delta!r}"
        if epsilon == math.inf and self.rho < math.inf:
            text += " (too small a delta for this rho and 2^-100 of sampling error per draw)"
        return text

    def _true_beside_claimed(self) -> str:
        claimed = self.claimed or {}
        true = [
            f"{name} {_shown(value)}"
            for name, value in (("mu", self.mu), ("rho", self.rho))
            if name in claimed
        ]
        delta = self._stated_delta()
        if delta is not None and not true:
            true = [f"epsilon {self._shown_epsilon(delta)}"]
        return ", ".join(true) or f"mu {_shown(self.mu)}"


def compose_sequential(*certificates: Certificate) -> Certificate:
    """Return the certificate of several runs on the same data: mu^2 adds, and so do the draws.

    Secret samples are charged in full here, and by `compose_parallel`.

    Raises
    ------
    TypeError, ValueError
        There is no certificate, or they differ in unit or neighbours.
    """
    _refuse_others(certificates)
    mu, zcdp = math.inf, None
    if not any(c.rho == math.inf for c in certificates):
        if all(c.zcdp is None for c in certificates):
            mu = sqrt_up(sum((Fraction(c.mu) ** 2 for c in certificates), Fraction(0)))
        else:
            zcdp = round_up(sum((Fraction(c.rho) for c in certificates), Fraction(0)))
    # The sum of the runs' largest silo totals; the largest silo of the sum may be smaller.
    per_silo = any(r.n_messages is not None for c in certificates for r in c.releases)
    return _merged(
        certificates,
        mu=mu,
        zcdp=zcdp,
        n_draws=sum(c.n_draws for c in certificates),
        may_be_smaller=per_silo and len(certificates) > 1,
        note=f"sequential composition of {len(certificates)} runs on the same data",
    )


def compose_parallel(*certificates: Certificate) -> Certificate:
    """Return the certificate of several runs on disjoint data: the largest mu, the most draws.

    The partition of the data must not depend on them.

    Raises
    ------
    TypeError, ValueError
        There is no certificate, or they differ in unit or neighbours.
    """
    _refuse_others(certificates)
    mu, rho = max(c.mu for c in certificates), max(c.rho for c in certificates)
    return _merged(
        certificates,
        mu=mu,
        zcdp=rho if mu == math.inf and rho < math.inf else None,
        n_draws=max((c.n_draws for c in certificates), default=0),
        may_be_smaller=False,
        note=f"parallel composition of {len(certificates)} runs on disjoint data, "
        "split without looking at them",
    )


def _refuse_others(certificates: tuple[object, ...]) -> None:
    if not certificates:
        raise ValueError("certificates is empty; there must be at least one")
    for c in certificates:
        if not isinstance(c, Certificate):
            raise TypeError(
                f"certificates holds a {type(c).__name__}; each argument must be a Certificate, "
                "such as the privacy of a result"
            )


def _merged(
    certificates: tuple[Certificate, ...],
    *,
    mu: float,
    zcdp: float | None,
    n_draws: int,
    may_be_smaller: bool,
    note: str,
) -> Certificate:
    first = certificates[0]
    for name in ("unit", "neighbours"):
        values = sorted({str(getattr(c, name)) for c in certificates})
        if len(values) > 1:
            raise ValueError(f"{name} differs among the certificates ({', '.join(values)})")
    trusts = dict.fromkeys(trust for c in certificates for trust in c.trust.split(" + "))
    deltas = {c._stated_delta() for c in certificates}
    exact = all(c.bound == "exact" for c in certificates) and not may_be_smaller
    return Certificate(
        trust=" + ".join(trusts),
        noise=next((c.noise for c in certificates if c.noise != "os"), "os"),
        mu=mu,
        zcdp=zcdp,
        n_draws=n_draws,
        releases=tuple(release for c in certificates for release in c.releases),
        unit=first.unit,
        neighbours=first.neighbours,
        arithmetic="grid" if all(c.arithmetic == "grid" for c in certificates) else "float",
        declared=_by_run([c.declared for c in certificates]) or {},
        claimed=_by_run([c.claimed for c in certificates]),
        bound="exact" if exact else "upper",
        notes=(note, *(text for c in certificates for text in c.notes)),
        at_delta=deltas.pop() if len(deltas) == 1 else None,
    )


def _by_run(parameters: list[dict[str, Any] | None]) -> dict[str, Any] | None:
    """Merge the parameters of several runs: as they are where all agree, else one entry a run."""
    if all(p == parameters[0] for p in parameters):
        return parameters[0]
    return {f"run {i}": p for i, p in enumerate(parameters, 1) if p}


def _text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{name} is a {type(value).__name__}; it must be a string")
    if not value:
        raise ValueError(f"{name} is empty; it must say something")


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(map(repr, allowed))}")


def _known_fields(cls: type, values: Mapping[str, Any]) -> None:
    names = {f.name for f in fields(cls)}
    if set(values) != names:
        raise ValueError(
            f"{cls.__name__} has missing fields {sorted(names - set(values))} "
            f"and unknown fields {sorted(set(values) - names)}"
        )


def _per_message(name: str, value: object) -> PerMessage:
    """Return a float >= 0, or a tuple of them; infinity is the caller's to judge."""
    if isinstance(value, tuple):
        if not value:
            raise ValueError(f"{name} is empty; it must have one entry per silo")
        return tuple(_not_negative(name, entry) for entry in value)
    return _not_negative(name, value)


def _not_negative(name: str, value: object) -> float:
    number = real(name, value)
    if not number >= 0.0:
        raise ValueError(f"{name} is {number!r}; it must be at least 0")
    return number


def _entries(value: PerMessage | None) -> tuple[float, ...]:
    if value is None:
        return ()
    return value if isinstance(value, tuple) else (value,)


def _form(value: PerMessage) -> str:
    return f"{len(value)} entries" if isinstance(value, tuple) else "one number"


def _parameters(name: str, value: object) -> dict[str, Any]:
    """Return a copy of a mapping with its values as plain Python, lists as tuples."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} is a {type(value).__name__}; it must be a mapping")
    for key in value:
        if not isinstance(key, str) or key == _INFINITE:
            raise ValueError(f"{name} has the key {key!r}; keys must be strings, not {_INFINITE!r}")
    return {key: _plain(f"{name}[{key!r}]", entry) for key, entry in value.items()}


def _plain(name: str, value: object) -> Any:
    if hasattr(value, "tolist"):  # a NumPy scalar or array
        value = value.tolist()
    if isinstance(value, Mapping):
        return _parameters(name, value)
    if isinstance(value, list | tuple):
        return tuple(_plain(name, entry) for entry in value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if math.isnan(value):
            raise ValueError(f"{name} is nan; it must be a number")
        return value
    raise TypeError(
        f"{name} is a {type(value).__name__}; it must be a number, a string, None, "
        "or a list or mapping of these"
    )


# Standard JSON has no infinity.
_INFINITE = "__float__"


def _encode(value: Any) -> Any:
    if isinstance(value, float) and math.isinf(value):
        return {_INFINITE: repr(value)}
    if isinstance(value, tuple):
        return [_encode(entry) for entry in value]
    if isinstance(value, dict):
        return {key: _encode(entry) for key, entry in value.items()}
    return value


def _decode(value: Any) -> Any:
    if isinstance(value, Mapping):
        if set(value) == {_INFINITE}:
            return float(value[_INFINITE])
        return {key: _decode(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return tuple(_decode(entry) for entry in value)
    return value


_SIX_DIGITS_UP = Context(prec=6, rounding=ROUND_CEILING)


def _shown(value: float) -> str:
    """Return six digits, rounded up: what is printed must be true as well."""
    if value == math.inf:
        return "infinite"
    return f"{float(_SIX_DIGITS_UP.create_decimal(Decimal(value))):.6g}"


def _span(value: PerMessage) -> str:
    entries = _entries(value)
    low, high = min(entries), max(entries)
    return f"{low:.6g}" if low == high else f"{low:.6g} to {high:.6g}"


def _rows(name: str, lines: Iterable[str]) -> list[tuple[str, str]]:
    return [("" if i else name, line) for i, line in enumerate(lines)]


def _release_lines(releases: Iterable[Release]) -> list[str]:
    """A line for each release; one for all of a kind that differ in their scale only."""
    kinds: dict[tuple[object, ...], list[Release]] = {}
    for r in releases:
        key = (r.what, r.dim, r.n_messages, r.coins, r.sampling, r.per_record, r.seen_by)
        kinds.setdefault(key, []).append(r)
    lines: list[str] = []
    for kind in kinds.values():
        texts = _counted(map(str, kind))
        lines += texts if len(texts) <= 3 else [_all_of_a_kind(kind)]
    return lines


def _all_of_a_kind(releases: Sequence[Release]) -> str:
    def span(values: Iterable[PerMessage | None]) -> PerMessage | None:
        """Those of silos that sent something."""
        sent = tuple(v for value in values for v in _entries(value) if v > 0.0)
        return sent or None

    first = releases[0]
    together = {name: span(getattr(r, name) for r in releases) for name in ("std", "grid")}
    sensitivity = span(r.sensitivity for r in releases) or 0.0
    parts = [f"{first.what}: {sum(r.times for r in releases)} x {first.dim} coordinates"]
    if first.n_messages is not None:
        parts[0] += f" from silos, {first.n_messages} at most"
    parts.append(f"sensitivity {_span(sensitivity)}")
    for name, text in (("std", "noise std"), ("grid", "grid")):
        value = together[name]
        parts.append(f"no {text}" if value is None else f"{text} {_span(value)}")
    if first.sampling is not None:
        parts.append(f"sampling {_listed(dict(first.sampling))}")
    parts.append(f"{len(releases)} kinds of them, seen by {first.seen_by}")
    return ", ".join(parts)


def _counted(lines: Iterable[str]) -> list[str]:
    """Equal lines once, with their number: the same release in several runs."""
    return [line if n == 1 else f"{line} ({n} runs)" for line, n in Counter(lines).items()]


def _lines(values: Mapping[str, Any]) -> list[str]:
    """One line, or one for each run where several declared different parameters."""
    if values and all(isinstance(value, Mapping) for value in values.values()):
        return [f"{name}: {_listed(value)}" for name, value in values.items()]
    return [_listed(values)] if values else []


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {_short(value)}" for name, value in values.items())


def _short(value: object) -> str:
    """A long list of numbers as its length and range; the certificate itself keeps all of it."""
    if (
        isinstance(value, tuple)
        and len(value) > 4
        and all(isinstance(v, int | float) for v in value)
    ):
        low, high = min(value), max(value)
        return (
            f"{len(value)} x {low:g}"
            if low == high
            else (f"{len(value)} numbers from {low:g} to {high:g}")
        )
    return str(value)
