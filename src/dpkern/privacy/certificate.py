"""Certificates: the guarantee of a run, the adversary and the assumptions.

mu comes from the ledger in rational arithmetic and is rounded up once; epsilon and delta follow
from the exact conversion of Gaussian DP, from concentrated DP where not all noise is Gaussian, or
from dp-accounting where secret samples make them smaller.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from fractions import Fraction
from typing import Any, Self

import scipy  # submodules load lazily, which keeps the import of dpkern cheap

from dpkern._numbers import count, not_negative, positive, probability
from dpkern._serialize import encode, plain_mapping
from dpkern.privacy._exact import bisect, round_up, sqrt_up
from dpkern.privacy.accounting import AMPLIFIES, Events, Sampled, sampled_delta, sampled_epsilon
from dpkern.privacy.gdp import gdp_delta_upper, gdp_epsilon
from dpkern.privacy.ledger import Ledger, Release, decoded_fields, text
from dpkern.privacy.objective_perturbation import ObjectivePerturbation
from dpkern.privacy.report import report
from dpkern.privacy.selection import Selection
from dpkern.privacy.shuffle.zcdp import zcdp_delta, zcdp_epsilon

#: Total variation distance of one draw from the rounded real Gaussian.
DRAW_ERROR = 2.0**-100

ADVERSARIES = {
    "central": "sees the released aggregates of every round; trusts the aggregator or the secure "
    "aggregation",
    "silo": "sees every message of every silo",
    "shuffle": "sees the shuffled multiset of messages",
    "local": "sees every message of every record's owner",
}

SELECTED = (
    "sees the published run's aggregates of every round, its settings and its score; trusts who "
    "makes the runs, holds all records and shows nothing else, not even how long it takes"
)


# What may state a guarantee that has neither mu nor rho, by the name of its field.
_LAWS: dict[str, type[Any]] = {"selection": Selection, "minimiser": ObjectivePerturbation}


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """The privacy guarantee of a run, with its adversary and its assumptions.

    Certificates are made by `Certificate.from_ledger`, `compose_sequential` or `compose_parallel`.

    Attributes
    ----------
    trust : str
        Trust model "central", "silo", "shuffle" or "local", joined by " + " after composition.
    noise : str
        "os", or "seeded: not private", where the figures are those that fresh noise would give.
    mu : float
        GDP parameter, rounded up; infinity means no guarantee unless `zcdp`, `selection` or
        `minimiser` states one.
    n_draws : int
        Number of noise draws, each within 2^-100 of the real rounded Gaussian in total variation;
        of a selection, a bound of its mean.
    releases : tuple of Release
        All releases of the run.
    unit : str
        The unit of privacy.
    neighbours : str
        The neighbour relation, "replace_one" or "add_remove".
    arithmetic : str
        "grid", or "float", which gives no guarantee.
    declared : dict
        Parameters assumed to be public.
    claimed : dict or None
        Figures that a paper claims for the same noise ("epsilon", "delta", "mu", "rho").
    bound : str
        "exact", or "upper" where the true value may be smaller.
    notes : tuple of str
        Further assumptions and remarks.
    at_delta : float or None
        The delta at which the text states epsilon; by default the claimed one, else 1e-6.
    zcdp : float or None
        Where not all noise is Gaussian, rho of zero-concentrated DP, rounded up, on an event whose
        complement has probability at most n_draws 2^-100; mu is infinite then.
    amplified : bool
        Whether epsilon and delta use the secrecy of samples; mu and rho never do.
    selection : Selection or None
        What states the guarantee of the best of a random number of runs (`dpkern.select`), which
        has neither mu nor rho; the releases are then those of the published run.
    minimiser : ObjectivePerturbation or None
        What states the guarantee of the minimiser of a perturbed objective, in the same way.
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
    selection: Selection | None = None
    minimiser: ObjectivePerturbation | None = None

    def __post_init__(self) -> None:
        text("trust", self.trust)
        text("unit", self.unit)
        for name, value, allowed in (
            *(("trust", trust, tuple(ADVERSARIES)) for trust in self.trust.split(" + ")),
            ("noise", self.noise, ("os", "seeded: not private")),
            ("neighbours", self.neighbours, ("replace_one", "add_remove")),
            ("arithmetic", self.arithmetic, ("grid", "float")),
            ("bound", self.bound, ("exact", "upper")),
        ):
            if value not in allowed:
                raise ValueError(f"{name} must be {' or '.join(map(repr, allowed))}, got {value!r}")
        mu = not_negative("mu", self.mu, or_infinite=True)
        if self.arithmetic == "float" and mu < math.inf:
            raise ValueError(f"mu must be inf with arithmetic 'float', got {mu!r}")
        zcdp = None if self.zcdp is None else positive("zcdp", self.zcdp)
        if zcdp is not None and (mu < math.inf or self.arithmetic == "float"):
            raise ValueError(f"zcdp must be None with a mu or float arithmetic, got {zcdp!r}")
        for name, kind in _LAWS.items():
            law, rest = getattr(self, name), (mu, zcdp, self.bound, self.arithmetic)
            alone = law is self._law and rest == (math.inf, None, "upper", "grid")
            if law is not None and not (alone and isinstance(law, kind)):
                raise ValueError(
                    f"{name} must be None, or a {kind.__name__} alone, with mu inf, zcdp None, "
                    f"bound 'upper' and arithmetic 'grid', got {law!r}"
                )
        for release in self.releases:
            if not isinstance(release, Release):
                raise TypeError(f"releases must hold a Release each, got {type(release).__name__}")
        if isinstance(self.notes, str):
            raise TypeError("notes must be a sequence of strings, got one string")
        for note in self.notes:
            text("notes", note)
        at_delta = self.at_delta
        for name, kept in (
            ("mu", mu),
            ("n_draws", count("n_draws", self.n_draws, 0)),
            ("releases", tuple(self.releases)),
            ("notes", tuple(dict.fromkeys(self.notes))),
            ("declared", plain_mapping("declared", self.declared)),
            ("claimed", None if self.claimed is None else plain_mapping("claimed", self.claimed)),
            ("at_delta", None if at_delta is None else probability("at_delta", at_delta)),
            ("zcdp", zcdp),
        ):
            object.__setattr__(self, name, kept)

    @classmethod
    def from_ledger(
        cls,
        ledger: Ledger,
        *,
        neighbours: str = "replace_one",
        arithmetic: str = "grid",
        bound: str = "exact",
        notes: Iterable[str] = (),
        **fields: Any,
    ) -> Self:
        """Return the certificate of one run: mu from the ledger's releases, rounded up once.

        Parameters
        ----------
        ledger : Ledger
            All releases of the run.
        neighbours, arithmetic, bound, notes
            As the fields of the certificate. A release without noise, or in float arithmetic, gives
            mu = infinity and a note; noise without a grid is float arithmetic. If the sampling is
            the one that `accounting.AMPLIFIES` supports for the neighbour relation, `epsilon` and
            `delta` use it; mu charges full batches, which makes the bound "upper".
        **fields
            The fields `trust` and `noise`, and optionally `declared`, `claimed` and `at_delta`.
        """
        notes = [notes] if isinstance(notes, str) else list(notes)
        releases, minimiser = ledger.releases, ledger.minimiser
        squared = ledger.mu_squared()
        gaussian = all(release.coins is None for release in releases)
        mu = sqrt_up(squared) if squared is not None and gaussian else math.inf
        zcdp = None if squared is None or gaussian else round_up(squared / 2)
        if minimiser is not None:
            bound = "upper"
            notes.append("a perturbed objective has a law of its own, which is not Gaussian DP")
        elif squared is None:
            notes.append("no guarantee: something about the data was released without noise")
        if not gaussian:
            bound = "upper"
            notes.append(
                "not all noise is Gaussian: releases compose as concentrated DP, not as mu"
            )
        if any(release.std is not None and release.grid is None for release in releases):
            arithmetic = "float"
        if arithmetic == "float":
            mu, zcdp, minimiser = math.inf, None, None
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
            mu=mu,
            n_draws=ledger.n_draws,
            releases=releases,
            neighbours=neighbours,
            arithmetic=arithmetic,
            bound=bound,
            notes=tuple(notes),
            zcdp=zcdp,
            amplified=amplified,
            minimiser=minimiser,
            **fields,
        )

    @property
    def adversary(self) -> str:
        """The view of the adversary under this trust model."""
        if self.selection is not None:
            return SELECTED
        return "; ".join(ADVERSARIES[trust] for trust in self.trust.split(" + "))

    @property
    def states_something(self) -> bool:
        """Whether there is any guarantee."""
        return self.rho < math.inf or self._law is not None

    @property
    def _law(self) -> Selection | ObjectivePerturbation | None:
        """What states the guarantee in place of mu and rho."""
        return self.selection if self.minimiser is None else self.minimiser

    @property
    def rho(self) -> float:
        """Zero-concentrated DP parameter, rounded up: `zcdp`, or mu^2/2."""
        if self.zcdp is not None:
            return self.zcdp
        return self.mu if self.mu == math.inf else round_up(Fraction(self.mu) ** 2 / 2)

    def _turning_point(self) -> tuple[float, float]:
        """Return (n_draws 2^-100, the epsilon beyond which the corrected delta would grow).

        As functions of exp(epsilon), delta(epsilon; mu) has the derivative
        -Phi(-epsilon/mu - mu/2) and the correction n_draws 2^-100. Any value is valid; this one is
        optimal. Without a mu it is where the correction equals delta, at most twice the optimum.
        """
        error = min(1.0, self.n_draws * DRAW_ERROR)
        if error == 0.0 or self.rho == 0.0 or not self.states_something:
            return 0.0, math.inf
        if self.mu == math.inf:
            exact, high = self._delta_of_exact_noise, 1.0 - math.log(error)
            return error, bisect(lambda e: exact(e) <= error * math.exp(e), 0.0, high)[1]
        return error, max(0.0, self.mu * (-float(scipy.special.ndtri(error)) - 0.5 * self.mu))

    def _delta_of_exact_noise(self, epsilon: float) -> float:
        """Return the delta for exact draws, rounded up."""
        if self._law is not None:
            return self._law.delta(epsilon)
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
        delta(e; mu) + (1 + exp(e)) n_draws 2^-100 at e = epsilon: the second term bounds the
        sampler's distance from the real Gaussian, on both sides of the definition. Where the sum
        increases with e, its minimum over smaller e is valid too and is returned. Without a mu the
        first term is that of concentrated DP, or of the law in its place.
        """
        exact = self._delta_of_exact_noise(epsilon)
        error, turn = self._turning_point()
        full = self._corrected(min(float(epsilon), turn), error) if error else exact
        return min(full, self._sampled_delta(epsilon)) if self.amplified else full

    def _corrected(self, epsilon: float, error: float) -> float:
        total = self._delta_of_exact_noise(epsilon) + (1.0 + math.exp(epsilon)) * error
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
            certified: mu is infinite, or delta is too small for the error of n_draws draws.
        """
        full = self._full_epsilon(delta)
        return min(full, self._sampled_epsilon(delta)) if self.amplified else full

    def _full_epsilon(self, delta: float) -> float:
        """Return `epsilon` without secret samples."""
        error, turn = self._turning_point()
        if error == 0.0:
            if self.zcdp is None:
                return gdp_epsilon(self.mu, delta)
            return zcdp_epsilon(self.zcdp, delta)
        delta = probability("delta", delta)
        if self._corrected(0.0, error) <= delta:
            return 0.0
        if self._corrected(turn, error) > delta:
            return math.inf
        return bisect(lambda epsilon: self._corrected(epsilon, error) <= delta, 0.0, turn)[1]

    def sampled_silos(self) -> set[Events]:
        """Return the distinct sets of releases about a silo's records."""
        silos = max(len(dict(r.sampling)["sizes"]) for r in self.releases if r.sampling is not None)
        found = set()
        for j in range(silos):
            events: Counter[Sampled] = Counter()
            for event, times in filter(None, (r.sampled(j) for r in self.releases)):
                events[event] += times
            found.add(frozenset(events.items()))
        return found - {frozenset()}

    def _sampled_delta(self, epsilon: float) -> float:
        sampled = max(sampled_delta(e, epsilon, self.neighbours) for e in self.sampled_silos())
        error = (1.0 + math.exp(min(epsilon, 700.0))) * self.n_draws * DRAW_ERROR
        return min(1.0, (sampled + error) * (1.0 + 2.0**-48))

    def _sampled_epsilon(self, delta: float) -> float:
        """Return dp-accounting's epsilon; infinity where the error of the draws is too large."""
        most = delta * (1.0 - 2.0**-30)
        epsilon = max(sampled_epsilon(e, most, self.neighbours) for e in self.sampled_silos())
        error = (1.0 + math.exp(min(epsilon, 700.0))) * self.n_draws * DRAW_ERROR
        return epsilon if error <= delta - most else math.inf

    def group(self, r: int) -> Self:
        """Return the certificate for a person with r records in any silos: mu times r."""
        r = count("r", r)
        if self.unit != "one record":
            raise ValueError(f"unit must be 'one record' for a group, got {self.unit!r}")
        if r > 1 and self.zcdp is not None:
            raise ValueError(
                f"r must be 1 without a mu, as under shuffle trust, got {r}: concentrated DP is "
                "certified for one record"
            )
        return replace(
            self,
            unit="one record" if r == 1 else f"one person with {r} records",
            amplified=self.amplified and r == 1,
            mu=_times(r, self.mu),
            selection=None if self.selection is None else self.selection.group(r),
            minimiser=None if self.minimiser is None else self.minimiser.group(r),
            # A paper's figures are for one record, not for a group.
            claimed=self.claimed if r == 1 else None,
            bound=self.bound if r == 1 else "upper",
            at_delta=self.stated_delta,
        )

    def central(self) -> Self:
        """Return the certificate against an adversary who sees the aggregates only.

        They are functions of the messages, so that all figures hold (Lowy, Ghafelebashi,
        Razaviyayn 2023, Appendix B: inter-silo record-level DP is stronger than central DP). The
        noise of the other silos, which would make them smaller, is not used.
        """
        if "central" in self.trust.split(" + "):
            raise ValueError(f"trust must be other than central already, got {self.trust!r}")
        note = f"as seen by central adversaries; it holds under {self.trust} trust too"
        notes, at = (*self.notes, note), self.stated_delta
        return replace(self, trust="central", bound="upper", notes=notes, at_delta=at)

    def user_level(self) -> Self:
        """Return the certificate for a silo as a whole, with all its records replaced.

        It is that of a group of the largest silo's size, with mu multiplied by this number; the
        paper's Appendix B has (n epsilon, n exp((n - 1) epsilon) delta).

        Raises
        ------
        ValueError
            When no sizes are declared, or the declared ones may be smaller than the true ones, or
            as in `group`.
        """
        if self.neighbours == "add_remove":
            raise ValueError(
                "neighbours must be 'replace_one', got 'add_remove': the declared sizes bound no "
                "silo's; give `group` a number that does"
            )
        sizes = self.declared.get("sizes")
        if not sizes or not all(isinstance(n, int) for n in sizes):
            raise ValueError("declared must hold the silos' sizes: give `group` the largest")
        found = self.group(max(sizes))
        return replace(found, unit=f"one silo, of {max(sizes)} records at most")

    def to_dict(self) -> dict[str, Any]:
        """Return a dictionary that standard JSON can represent without loss."""
        values = {f.name: encode(getattr(self, f.name)) for f in fields(self)}
        values["releases"] = [release.to_dict() for release in self.releases]
        for name in _LAWS:
            law = values.pop(name)
            values |= {} if law is None else {name: asdict(law)}
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the certificate of a dictionary from `to_dict`."""
        decoded = decoded_fields(cls, {**dict.fromkeys(_LAWS), **values})
        for name, kind in _LAWS.items():
            decoded[name] = None if decoded[name] is None else kind(**decoded[name])
        decoded["releases"] = tuple(map(Release.from_dict, values["releases"]))
        return cls(**decoded)

    @property
    def stated_delta(self) -> float | None:
        """The delta at which a text states epsilon; None if the run has none."""
        if self.at_delta is not None:
            return self.at_delta
        claimed = None if self.claimed is None else self.claimed.get("delta")
        return claimed if isinstance(claimed, float) and 0.0 < claimed < 1.0 else None

    def __hash__(self) -> int:  # without the mappings, which are not hashable
        return hash((self.trust, self.noise, self.mu, self.n_draws, self.releases, self.notes))

    def __str__(self) -> str:
        return report(self)


def _times(r: int, mu: float) -> float:
    """Return r mu, rounded up."""
    return mu if mu == math.inf else round_up(r * Fraction(mu))
