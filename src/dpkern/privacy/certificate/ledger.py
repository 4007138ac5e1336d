"""The releases of a run and their composition: Release and Ledger.

A solver records every release in its ledger before it publishes the bits. The ledger composes them
in rational arithmetic: mu^2 = sum of charged D^2/s^2. Silos hold disjoint records and compose in
parallel, so that the largest total of a silo counts.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from fractions import Fraction
from typing import Any, Self, TypeAlias

from dpkern._json import decode, encode, plain_mapping
from dpkern._numbers import count, not_negative
from dpkern.privacy.certificate.report import describe
from dpkern.privacy.guarantees.binomial import binomial_mu
from dpkern.privacy.guarantees.objective_perturbation import ObjectivePerturbation
from dpkern.privacy.guarantees.rounding import sqrt_up, total
from dpkern.privacy.sampling.amplification import Sampled

PerMessage: TypeAlias = float | tuple[float, ...]
#: What the release of the minimiser of a perturbed objective is called.
MINIMISER = "minimiser within a distance of tau"
#: Fields of a release that a file leaves out where they are None.
_OPTIONAL = ("minimiser", "series", "between")


@dataclass(frozen=True, kw_only=True)
class Release:
    """One release of noisy sums, possibly repeated.

    Parameters
    ----------
    what : str
        Description of the released sum ("gradient").
    sensitivity : float or tuple of float
        l2 sensitivity of the sum without noise. A float for a release about all the data; a tuple
        of m floats for one message per silo, each over its own records. 0 means that a silo sent
        nothing; infinity is allowed where no noise was added.
    std : float, tuple of float or None
        Standard deviation of the Gaussian noise on that sum, of the same form. None and 0 mean that
        no noise was added.
    grid : float, tuple of float or None
        The grid of the sum and of the noise (a power of two); None for a float sum.
    times : int
        Number of repetitions, each with fresh noise.
    dim : int
        Number of coordinates of one message.
    seen_by : str
        Who sees the release.
    sampling : mapping or None
        The secret sampling of records that preceded it, as plain parameters; stored as a tuple of
        pairs sorted by name. `sampling.amplification` reads "method", "batch_sizes" and "sizes"
        (one entry per silo); mu is charged as for full batches.
    draws : int or None
        Number of noise draws of one release; None means dim for each message with noise.
    per_record : int or None
        Largest number of the `times` repetitions that depend on one record, fixed independently of
        the records; None means all of them.
    series : int or None
        If given, number of the series that it is part of: `per_record` is then about the
        repetitions of all of the ledger's releases of this number together.
    coins : int or None
        If given, the noise is Bin(coins, 1/2) in every coordinate of integer sums about all the
        data instead of Gaussian, and `sensitivity` and `std` are in units of 1.
    between : tuple of float or None
        Of a sum of differences of gradients at two public models, on which its sensitivity depends:
        their distance, and the sum of their norms.
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
    minimiser: ObjectivePerturbation | None = None
    series: int | None = None
    between: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        for name in ("what", "seen_by"):
            text(name, getattr(self, name))
        if not isinstance(self.minimiser, ObjectivePerturbation | None):
            kind = type(self.minimiser).__name__
            raise TypeError(f"minimiser must be an ObjectivePerturbation or None, got {kind}")
        kept: dict[str, Any] = {"sensitivity": _per_message("sensitivity", self.sensitivity)}
        n_messages = _n_messages(self.sensitivity)
        for name in ("std", "grid"):
            given = getattr(self, name)
            kept[name] = None if given is None else _per_message(name, given)
            if given is not None and _n_messages(given) != n_messages:
                form = _form(self.sensitivity)
                raise ValueError(f"{name} must be {form}, as sensitivity is, got {_form(given)}")
        for value in entries(kept["grid"]):
            if not (0.0 < value < math.inf and math.frexp(value)[0] == 0.5):
                raise ValueError(f"grid must be a power of two, got {value!r}")
        if not any(entries(kept["std"])):
            kept["std"] = None
        for d, s in zip(entries(kept["sensitivity"]), entries(kept["std"]), strict=False):
            if s == math.inf:
                raise ValueError("std must be finite and at least 0, got inf")
            if s > 0.0 and d == math.inf:
                raise ValueError("sensitivity must be finite where noise was added, got inf")
        kept |= {name: count(name, getattr(self, name)) for name in ("times", "dim")}
        for name in ("draws", "per_record", "coins", "series"):
            if getattr(self, name) is not None:
                kept[name] = count(name, getattr(self, name))
        if self.series is not None and self.per_record is None:
            raise ValueError(f"series must be None without per_record, got {self.series}")
        if self.between is not None:
            distance, norms = self.between
            kept["between"] = not_negative("between", distance), not_negative("between", norms)
        if self.sampling is not None:
            sampling = plain_mapping("sampling", dict(self.sampling))
            kept["sampling"] = tuple(sorted(sampling.items()))
        if self.coins is not None and (
            isinstance(kept["sensitivity"], tuple) or kept["std"] is None or kept["grid"] != 1.0
        ):
            raise ValueError(
                "coins must be None but for one noisy sum on the grid 1.0 about all the data: "
                f"binomial noise is on counts, got {self.coins}"
            )
        for name, value in kept.items():
            object.__setattr__(self, name, value)

    @property
    def sensitivities(self) -> tuple[float, ...]:
        """The sensitivity of every message."""
        return entries(self.sensitivity)

    @property
    def stds(self) -> tuple[float, ...]:
        """The standard deviation of every message's noise; empty without noise."""
        return entries(self.std)

    @property
    def grids(self) -> tuple[float, ...]:
        """The grid of every message; empty for float sums."""
        return entries(self.grid)

    @property
    def n_messages(self) -> int | None:
        """Number of silos, or None for a release about all the data."""
        return _n_messages(self.sensitivity)

    @property
    def n_draws(self) -> int:
        """Number of noise draws over all silos, coordinates and repetitions."""
        if self.draws is not None:
            return self.times * self.draws
        with_noise = sum(
            d > 0.0 and s > 0.0 for d, s in zip(self.sensitivities, self.stds, strict=False)
        )
        return self.times * self.dim * with_noise

    @property
    def charged(self) -> int:
        """Number of repetitions that one record is charged for, those of others aside."""
        return self.times if self.per_record is None else min(self.times, self.per_record)

    def mu_squared(self) -> tuple[Fraction | None, ...]:
        """Return charged D^2/s^2 per silo (one entry if about all the data); None for infinity."""
        once = self.mu_squared_once()
        if self.charged == 1:
            return once
        every = {one: None if one is None else self.charged * one for one in set(once)}
        return tuple(every[one] for one in once)

    def mu_squared_once(self) -> tuple[Fraction | None, ...]:
        """Return D^2/s^2 of one repetition per silo; None for infinity.

        Binomial noise has the mu of `guarantees.binomial`.
        """
        if self.minimiser is not None:
            return (None,)
        if self.coins is not None and self.sensitivity:
            mu = binomial_mu(self.coins, self.sensitivities[0])
            return (None if mu is None else mu**2,)
        std = self.stds or (0.0,) * len(self.sensitivities)
        pairs = list(zip(self.sensitivities, std, strict=True))
        found = {  # many silos may have the same
            (d, s): Fraction(0)
            if d == 0.0
            else None
            if s == 0.0
            else (Fraction(d) / Fraction(s)) ** 2
            for d, s in set(pairs)
        }
        return tuple(found[pair] for pair in pairs)

    @property
    def method(self) -> str | None:
        """The method by which records were sampled; None where all were used."""
        return None if self.sampling is None else dict(self.sampling).get("method")

    def sampled(self, silo: int) -> tuple[Sampled, int] | None:
        """Return the event of a silo's records and its count; None without release."""
        j = silo if isinstance(self.sensitivity, tuple) else 0
        sensitivity, std = self.sensitivities[j], self.stds
        if sensitivity == 0.0:
            return None
        if not std or std[j] == 0.0 or self.coins is not None:
            raise ValueError("an accountant of samples needs Gaussian noise on every release")
        sampling = None if self.sampling is None else dict(self.sampling)
        return Sampled.of(sampling, silo, std[j] / sensitivity), self.charged

    def to_dict(self) -> dict[str, Any]:
        """Return a dictionary that standard JSON can represent without loss."""
        values = {f.name: encode(getattr(self, f.name)) for f in fields(self)}
        values["sampling"] = None if self.sampling is None else encode(dict(self.sampling))
        for name in _OPTIONAL:
            if values[name] is None:
                del values[name]
        if self.minimiser is not None:
            values["minimiser"] = asdict(self.minimiser)
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the release of a dictionary from `to_dict`."""
        decoded = decoded_fields(cls, {**dict.fromkeys(_OPTIONAL), **values})
        for name, value in decoded.items():
            decoded[name] = tuple(value) if isinstance(value, list) else value
        if decoded["minimiser"] is not None:
            decoded["minimiser"] = ObjectivePerturbation(**decoded["minimiser"])
        return cls(**decoded)

    def __str__(self) -> str:
        return describe(self)


class Ledger:
    """The releases of one run, in the order of their first appearance.

    Recording an equal release again increases its `times`, which keeps the ledger of many rounds
    short. A release with `per_record` is one series of repetitions, which only the same object
    continues, or others of the same number `series`: the same record may also be part of an equal
    release of another series.

    `before_first` is called before the first release is recorded, and prevents it by raising.
    """

    def __init__(self, before_first: Callable[[], object] | None = None) -> None:
        self._before_first = before_first
        # By id, which is unique as long as the object is stored here: hashing all fields of a
        # release would take longer than its noise on little data.
        self._entries: dict[int, tuple[Release, int]] = {}
        self._merged: tuple[Release, ...] | None = None  # `releases`, until the next one
        self._n_silos: int | None = None
        self._n_series = 0

    def new_series(self) -> int:
        """Return the number of a series of releases that no other of this ledger has."""
        self._n_series += 1
        return self._n_series

    def append(self, release: Release, repetitions: int = 1) -> None:
        """Record a release, or so many equal ones, before their bits are published.

        If this raises, nothing is recorded.
        """
        if not isinstance(release, Release):
            raise TypeError(f"release must be a Release, got {type(release).__name__}")
        m = release.n_messages
        if m is not None and self._n_silos not in (None, m):
            raise ValueError(
                f"release must have one message per silo, {self._n_silos} as earlier ones, got {m}"
            )
        if self._before_first is not None and not self._entries:
            self._before_first()
        _, times = self._entries.get(id(release), (release, 0))
        self._merged = None  # before the entry: Ctrl-C between the two must not hide it
        self._entries[id(release)] = release, times + repetitions * release.times
        self._n_silos = self._n_silos if m is None else m

    @property
    def releases(self) -> tuple[Release, ...]:
        """All releases so far, equal ones merged."""
        if self._merged is not None:
            return self._merged
        merged: dict[Release | int, tuple[Release, int]] = {}
        for number, (release, times) in self._entries.items():
            alone = release.per_record is not None and release.series is None
            key = number if alone else release
            merged[key] = release, times + merged.get(key, (release, 0))[1]
        self._merged = tuple(
            release if times == release.times else replace(release, times=times)
            for release, times in merged.values()
        )
        return self._merged

    @property
    def n_draws(self) -> int:
        """Number of noise draws so far, over all silos."""
        return sum(release.n_draws for release in self.releases)

    @property
    def minimiser(self) -> ObjectivePerturbation | None:
        """The guarantee of a run that releases one minimiser of a perturbed objective.

        That is a release and the linear term that it hides; given the minimiser, the release is
        mu-GDP for the mu of the guarantee, and so are all others, for theirs.
        """
        hidden = [release for release in self if release.minimiser is not None]
        messages = [release for release in self if release.what == MINIMISER]
        if not (len(hidden) == len(messages) == 1 == hidden[0].times == messages[0].times):
            return None
        guarantee, beside = hidden[0].minimiser, Fraction(0)
        assert guarantee is not None
        for release in self:
            squares = (Fraction(0),) if release is hidden[0] else release.mu_squared()
            if release.coins is not None or len(squares) > 1 or squares[0] is None:
                return None
            if release is not messages[0]:
                beside += squares[0]
            elif squares[0] > Fraction(guarantee.mu) ** 2:
                return None
        return guarantee.sequential([guarantee], sqrt_up(beside)) if beside else guarantee

    def mu_squared(self) -> Fraction | None:
        """Return the square of the run's mu exactly; None when it is infinite.

        It is the largest total over silos; a release about all the data counts for every silo.
        """
        silos = mu_squared_of_silos(self.releases)
        if any(square is None for square in silos):
            return None
        return max((square for square in silos if square is not None), default=Fraction(0))

    def __iter__(self) -> Iterator[Release]:
        return iter(self.releases)

    def __len__(self) -> int:
        return len(self.releases)


def mu_squared_of_silos(releases: Sequence[Release]) -> tuple[Fraction | None, ...]:
    """Return the exact square of what the releases cost the records of every silo, None if all.

    It is one number where all releases are about all the data.
    """
    series: dict[int, list[Release]] = defaultdict(list)
    for release in releases:
        if release.series is not None:
            series[release.series].append(release)
    found = [_mu_squared_of_series(of_one) for of_one in series.values()]
    found += [release.mu_squared() for release in releases if release.series is None]
    m = max((len(shares) for shares in found), default=0)
    of_all = [shares * m if len(shares) == 1 else shares for shares in found]
    totals: dict[tuple[int, ...], Fraction | None] = {}  # silos of the same objects share theirs
    squares = []
    for shares in zip(*of_all, strict=True):
        key = tuple(map(id, shares))
        if key not in totals:
            known = [share for share in shares if share is not None]
            totals[key] = total(known) if len(known) == len(shares) else None
        squares.append(totals[key])
    return tuple(squares)


def _mu_squared_of_series(releases: Sequence[Release]) -> tuple[Fraction | None, ...]:
    """Return D^2/s^2 of the costliest repetitions per silo, of as many as depend on one record.

    One about all the data depends on a record of every silo.
    """
    once = [(release.mu_squared_once(), release.times) for release in releases]
    left = max(release.per_record or 0 for release in releases)
    m = max(len(squares) for squares, _ in once)
    return tuple(
        _largest([(squares[j % len(squares)], times) for squares, times in once], left)
        for j in range(m)
    )


def _largest(squares: Sequence[tuple[Fraction | None, int]], count: int) -> Fraction | None:
    """Return the sum of the `count` largest of numbers that occur so many times."""
    if any(square is None for square, _ in squares):
        return None
    total = Fraction(0)
    for square, times in sorted(squares, key=lambda pair: pair[0] or 0, reverse=True):
        total += min(times, count) * (square or 0)
        count -= min(times, count)
    return total


def draws_of_group(releases: Sequence[Release], n_draws: int, r: int) -> int:
    """Return the draws that a group of r records is charged for: r times them with binomial noise.

    What a binomial count is near depends on both neighbours (docs/proofs/shuffle.md), what a
    rounded Gaussian is near on neither.
    """
    if r == 1 or all(release.coins is None for release in releases):
        return n_draws
    if any(release.minimiser is not None for release in releases):
        raise ValueError(
            f"r must be 1 for a perturbed objective beside binomial noise, got {r}: together they "
            "are certified for one record"
        )
    return r * n_draws


def text(name: str, value: object) -> None:
    """Raise unless `value` is a string that is not empty."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, got {type(value).__name__}")
    if not value:
        raise ValueError(f"{name} must be a string that says something, got an empty one")


def decoded_fields(cls: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the decoded fields of a dataclass; raise unless `values` has these and no others."""
    names = {f.name for f in fields(cls)}
    if set(values) != names:
        raise ValueError(
            f"values must hold the fields of a {cls.__name__}, got missing fields "
            f"{sorted(names - set(values))} and unknown fields {sorted(set(values) - names)}"
        )
    return {name: decode(value) for name, value in values.items()}


def entries(value: PerMessage | None) -> tuple[float, ...]:
    """Return the numbers of all messages, or an empty tuple for None."""
    if value is None:
        return ()
    return value if isinstance(value, tuple) else (value,)


def _per_message(name: str, value: object) -> PerMessage:
    if isinstance(value, tuple):
        if not value:
            raise ValueError(f"{name} must have one entry per silo, got none")
        return tuple(not_negative(name, entry, or_infinite=True) for entry in value)
    return not_negative(name, value, or_infinite=True)


def _n_messages(value: PerMessage) -> int | None:
    return len(value) if isinstance(value, tuple) else None


def _form(value: PerMessage) -> str:
    return f"a tuple of {len(value)} numbers" if isinstance(value, tuple) else "one number"
