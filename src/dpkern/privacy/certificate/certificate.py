"""Certificates: the guarantee of a run, the adversary and the assumptions.

mu comes from the ledger in rational arithmetic and is rounded up once; epsilon and delta follow
from the exact conversion of Gaussian DP, from concentrated DP where not all noise is Gaussian, or
from the pairs of secret samples where these make them smaller.

What names a certificate is a function of what is released, of public numbers and of what people
say: nothing of it is computed from the records, or from the file that they are in.
"""

import functools
import importlib.metadata
import math
import os
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from dpkern._json import plain_mapping
from dpkern._numbers import count, probability, refuse_unknown
from dpkern.privacy.certificate.ledger import (
    Ledger,
    Release,
    draws_of_group,
    mu_squared_of_silos,
    text,
)
from dpkern.privacy.certificate.report import ADVERSARIES, SELECTED, adversaries, html, report
from dpkern.privacy.certificate.secret_samples import SecretSamples
from dpkern.privacy.certificate.serialization import (
    from_mapping,
    read_json,
    to_mapping,
    write_json,
)
from dpkern.privacy.guarantees.base import DRAW_ERROR, Guarantee
from dpkern.privacy.guarantees.curves import epsilon_curve, trade_off
from dpkern.privacy.guarantees.gdp import NO_GUARANTEE, GaussianDP
from dpkern.privacy.guarantees.objective_perturbation import ObjectivePerturbation
from dpkern.privacy.guarantees.rounding import bisect, sqrt_up
from dpkern.privacy.guarantees.selection import Selection
from dpkern.privacy.guarantees.zcdp import ConcentratedDP
from dpkern.privacy.sampling.amplification import AMPLIFIES

#: What people may call a run, as they are printed.
NAMES = ("data", "study", "purpose", "controller")
#: Where a declared bound is from, as long as nobody says it.
NOT_STATED = "not stated"
READ = "read from the records: not covered"

# The forms of a model's digest, and of a time in whole seconds, UTC.
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


@functools.cache
def package() -> str:
    """Return the name and the version of this package."""
    return f"dpkern {importlib.metadata.version('dpkern')}"


def start_time() -> str:
    """Return the time in whole seconds, UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def checked_texts(name: str, texts: object, known: Iterable[str] | None = None) -> dict[str, str]:
    """Return a mapping of texts that a line can hold; of `known` names alone if these are given."""
    found = plain_mapping(name, texts)
    if known is not None:
        refuse_unknown(name, found, tuple(known))
    for key, entry in found.items():
        if not isinstance(entry, str) or not entry.strip() or not entry.isprintable():
            raise ValueError(f"{key} must be a text of one line, not empty, got {entry!r}")
    return found


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """The privacy guarantee of a run, with its adversary and its assumptions.

    Certificates are made by `Certificate.from_ledger`, `compose_sequential` or `compose_parallel`.
    `save` writes one as JSON, and `dpkern.verify` recomputes its figures from the releases.

    Attributes
    ----------
    trust : str
        Trust model "central", "silo", "shuffle" or "local", joined by " + " after composition.
    noise : str
        "os", or "seeded: not private", where the figures are those that fresh noise would give.
    guarantee : Guarantee
        What states the guarantee for exact noise: `GaussianDP`, with mu infinite where there is
        none; `ConcentratedDP`, where not all noise is Gaussian, on an event whose complement has
        probability at most n_draws 2^-100; the `Selection` of the best of a random number of runs
        (`dpkern.select`), with the releases of the published run; or `ObjectivePerturbation`.
    n_draws : int
        Number of noise draws, each within 2^-100 of its exact distribution in total variation,
        times the size of a group with binomial noise; of a selection, a bound of its mean.
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
    amplified : bool
        Whether epsilon and delta use the secrecy of samples; mu and rho never do.
    parts : tuple of Certificate
        What it is composed of; empty for a single run. The releases are then those of all parts.
    composition : str or None
        How the parts compose, "sequential" or "parallel"; None for a single run.
    group_size : int
        Number of records of the unit, by which the guarantee of one record was multiplied.
    trust_of_runs : str or None
        The trust model that the releases were made for, where `central` states it anew.
    package : str
        The package that made the certificate, with its version.
    model : str or None
        SHA-256 of all that predicts in the released model (`dpkern.verify` computes it from a model
        file); None where there is no model, and for several runs, whose `parts` name theirs.
    started : str or None
        When the run began, in whole seconds, UTC. Certificates that differ in it alone are equal.
    names : dict of str
        What people call it (`with_names`): "data", "study", "purpose" and "controller".
    sources : dict of str
        For each bound that is taken as public, where it is from.
    """

    trust: str
    noise: str
    guarantee: Guarantee
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
    amplified: bool = False
    parts: tuple["Certificate", ...] = ()
    composition: str | None = None
    group_size: int = 1
    trust_of_runs: str | None = None
    package: str = field(default_factory=package)
    model: str | None = None
    started: str | None = field(default=None, compare=False)
    names: dict[str, str] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)

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
        if not isinstance(self.guarantee, Guarantee):
            raise TypeError(f"guarantee must be a Guarantee, got {type(self.guarantee).__name__}")
        if self.arithmetic == "float" and self.guarantee != NO_GUARANTEE:
            raise ValueError(f"mu must be inf with arithmetic 'float', got {self.guarantee!r}")
        if self.bound == "exact" and not isinstance(self.guarantee, GaussianDP):
            raise ValueError(
                f"bound must be 'upper' without a mu, got 'exact' for {self.guarantee!r}"
            )
        for name, kind in (("releases", Release), ("parts", Certificate)):
            for held in getattr(self, name):
                if not isinstance(held, kind):
                    raise TypeError(
                        f"{name} must hold a {kind.__name__} each, got {type(held).__name__}"
                    )
        of_parts = tuple(release for part in self.parts for release in part.releases)
        if self.parts and self.releases not in ((), of_parts):
            raise ValueError("releases must be those of the parts, got others")
        if self.composition not in (("sequential", "parallel") if self.parts else (None,)):
            raise ValueError(
                "composition must be 'sequential' or 'parallel' with parts and None without, got "
                f"{self.composition!r}"
            )
        if isinstance(self.notes, str):
            raise TypeError("notes must be a sequence of strings, got one string")
        for note in self.notes:
            text("notes", note)
        for name, form, what in (
            ("model", _DIGEST, "'sha256:' and 64 hexadecimal digits"),
            ("started", _TIME, "a time such as '2026-11-27T09:30:00Z'"),
        ):
            given = getattr(self, name)
            if given is not None and not (isinstance(given, str) and form.fullmatch(given)):
                raise ValueError(f"{name} must be {what}, got {given!r}")
        at_delta = self.at_delta
        for name, kept in (
            ("n_draws", count("n_draws", self.n_draws, 0)),
            ("releases", of_parts if self.parts else tuple(self.releases)),
            ("parts", tuple(self.parts)),
            ("group_size", count("group_size", self.group_size)),
            ("notes", tuple(dict.fromkeys(self.notes))),
            ("declared", plain_mapping("declared", self.declared)),
            ("claimed", None if self.claimed is None else plain_mapping("claimed", self.claimed)),
            ("at_delta", None if at_delta is None else probability("at_delta", at_delta)),
            ("names", checked_texts("names", self.names, NAMES)),
            ("sources", checked_texts("sources", self.sources)),
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
            the one that amplifies for the neighbour relation (`sampling.amplification`), `epsilon`
            and `delta` use it; mu charges full batches, which makes the bound "upper".
        **fields
            The fields `trust` and `noise`, and optionally `declared`, `claimed`, `at_delta`,
            `model`, `started` and `sources`.
        """
        notes = [notes] if isinstance(notes, str) else list(notes)
        releases, minimiser, squared = ledger.releases, ledger.minimiser, ledger.mu_squared()
        guarantee: Guarantee = NO_GUARANTEE
        if minimiser is not None:
            guarantee, bound = minimiser, "upper"
            notes.append("a perturbed objective has a law of its own, which is not Gaussian DP")
        elif squared is None:
            notes.append("no guarantee: something about the data was released without noise")
        else:
            guarantee = GaussianDP(mu=sqrt_up(squared))
        coins = any(release.coins is not None for release in releases)
        if coins:
            bound = "upper"
            notes.append(
                "binomial noise is Gaussian DP but for the error of draws (docs/proofs/shuffle.md)"
            )
        if any(release.std is not None and release.grid is None for release in releases):
            arithmetic = "float"
        if arithmetic == "float":
            guarantee = NO_GUARANTEE
            notes.append("no guarantee: noise or sums in float arithmetic are not certified")
        methods = {release.method for release in releases if release.sampling is not None}
        has_mu = isinstance(guarantee, GaussianDP) and guarantee != NO_GUARANTEE
        amplified = has_mu and not coins and methods == {AMPLIFIES.get(neighbours)}
        if methods:
            bound = "upper"
            notes.append(
                "mu and rho charge sampling as if every record had been used; epsilon and delta "
                "are the better of theirs and of the dominating pairs of secret samples"
                if amplified
                else "sampling of records is charged as if every record had been used"
            )
        return cls(
            guarantee=guarantee,
            n_draws=ledger.n_draws,
            releases=releases,
            neighbours=neighbours,
            arithmetic=arithmetic,
            bound=bound,
            notes=tuple(notes),
            amplified=amplified,
            **fields,
        )

    @property
    def adversary(self) -> str:
        """The view of the adversary under this trust model."""
        if self.selection is not None:
            return SELECTED
        return adversaries(self.trust, self.declared)

    @property
    def states_something(self) -> bool:
        """Whether there is any guarantee."""
        return self.guarantee != NO_GUARANTEE

    @property
    def mu(self) -> float:
        """GDP parameter, rounded up; infinite if there is none, whatever else is stated."""
        return self.guarantee.mu if isinstance(self.guarantee, GaussianDP) else math.inf

    @property
    def mu_of_silos(self) -> tuple[float, ...]:
        """mu for the records of every silo, rounded up; `mu` is the largest of them.

        One number where all releases are about all the data. Silos differ under trust "silo" by
        the rounds in which they participate, and where a paper's noise is the same in all.

        Raises
        ------
        ValueError
            Of several runs, of another unit than one record, and where the certificate has no mu.
        """
        if self.parts or self.unit != "one record" or not isinstance(self.guarantee, GaussianDP):
            raise ValueError("mu_of_silos is for one record and one run, with a mu")
        if self.guarantee == NO_GUARANTEE:
            return (math.inf,)
        squares = mu_squared_of_silos(self.releases)
        return tuple(math.inf if square is None else sqrt_up(square) for square in squares)

    @property
    def rho(self) -> float:
        """Zero-concentrated DP parameter, rounded up: `zcdp`, or mu^2/2; infinite if none."""
        g = self.guarantee
        return g.rho if isinstance(g, GaussianDP | ConcentratedDP) else math.inf

    @property
    def zcdp(self) -> float | None:
        """The rho of releases whose noise is not all Gaussian, which have no mu."""
        return self.guarantee.rho if isinstance(self.guarantee, ConcentratedDP) else None

    @property
    def selection(self) -> Selection | None:
        """The guarantee of the best of a random number of runs."""
        return self.guarantee if isinstance(self.guarantee, Selection) else None

    @property
    def minimiser(self) -> ObjectivePerturbation | None:
        """The guarantee of the minimiser of a perturbed objective."""
        return self.guarantee if isinstance(self.guarantee, ObjectivePerturbation) else None

    def _turning_point(self) -> tuple[float, float]:
        """Return (n_draws 2^-100, the epsilon beyond which the corrected delta would grow)."""
        error = min(1.0, self.n_draws * DRAW_ERROR)
        if error == 0.0 or self.rho == 0.0 or not self.states_something:
            return 0.0, math.inf
        return error, self.guarantee.turning_point(error)

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
        first term is that of concentrated DP, or of the guarantee in its place.
        """
        exact = self.guarantee.delta(epsilon)
        error, turn = self._turning_point()
        full = self._corrected(min(float(epsilon), turn), error) if error else exact
        return min(full, self._secret().delta(epsilon)) if self.amplified else full

    def _corrected(self, epsilon: float, error: float) -> float:
        total = self.guarantee.delta(epsilon) + (1.0 + math.exp(epsilon)) * error
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
        return min(full, self._secret().epsilon(delta)) if self.amplified else full

    def _secret(self) -> SecretSamples:
        return SecretSamples.of(self.releases, self.neighbours, self.n_draws)

    def _full_epsilon(self, delta: float) -> float:
        """Return `epsilon` without secret samples."""
        error, turn = self._turning_point()
        if error == 0.0:
            return self.guarantee.epsilon(delta)
        delta = probability("delta", delta)
        if self._corrected(0.0, error) <= delta:
            return 0.0
        if self._corrected(turn, error) > delta:
            return math.inf
        return bisect(lambda epsilon: self._corrected(epsilon, error) <= delta, 0.0, turn)[1]

    def group(self, r: int) -> Self:
        """Return the certificate for a person with r records in any silos: mu times r.

        Raises
        ------
        ValueError
            When the unit is another than one record, or no group of r > 1 is certified.
        """
        r = count("r", r)
        if self.unit != "one record":
            raise ValueError(f"unit must be 'one record' for a group, got {self.unit!r}")
        return replace(
            self,
            n_draws=draws_of_group(self.releases, self.n_draws, r),
            unit="one record" if r == 1 else f"one person with {r} records",
            amplified=self.amplified and r == 1,
            guarantee=self.guarantee.group(r),
            group_size=r,
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
        return replace(
            self,
            trust="central",
            trust_of_runs=self.trust,
            bound="upper",
            notes=notes,
            at_delta=at,
        )

    def user_level(self) -> Self:
        """Return the certificate for a silo as a whole, with all its records replaced.

        It is that of a group of the largest silo's size, with mu multiplied by this number; the
        paper's Appendix B has (n epsilon, n exp((n - 1) epsilon) delta).

        Raises
        ------
        ValueError
            When no sizes are declared, or ones that may be too small, or as in `group`.
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

    def with_names(
        self,
        *,
        data: str | None = None,
        study: str | None = None,
        purpose: str | None = None,
        controller: str | None = None,
        bounds: str | None = None,
    ) -> Self:
        """Return the certificate with what people call its run, and who answers for it.

        Parameters
        ----------
        data, study, purpose, controller : str, optional
            Public names, each of one line: of the data, not of their file; of the study; what the
            model is for; and who answers for it.
        bounds : str, optional
            Where declared bounds are from that have no source yet ("handbook", "private_range").
        """
        given = {"data": data, "study": study, "purpose": purpose, "controller": controller}
        stated = {name: text for name, text in given.items() if text is not None}
        sources = self.sources
        if bounds is not None:
            source = checked_texts("bounds", {"bounds": bounds})["bounds"]
            sources = {k: source if v == NOT_STATED else v for k, v in sources.items()}
        return replace(self, names=self.names | stated, sources=sources)

    @property
    def runs(self) -> tuple["Certificate", ...]:
        """The certificates of single runs that it is composed of, or itself."""
        return tuple(run for part in self.parts for run in part.runs) or (self,)

    def to_dict(self) -> dict[str, Any]:
        """Return the content of the file that `save` writes, for standard JSON without loss."""
        return to_mapping(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Certificate":
        """Return the certificate of a dictionary from `to_dict`.

        Raises
        ------
        ValueError
            When it has another format or version, or its digest is that of other contents.
        """
        return from_mapping(cls, values)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the certificate atomically as JSON (`dpkern.privacy.certificate.serialization`).

        Raises
        ------
        OSError
            When the file cannot be written.
        """
        write_json(self.to_dict(), path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Certificate":
        """Return the certificate of a file that `save` has written, with this digest.

        Raises
        ------
        ValueError
            When the file is no certificate, or has been edited.
        OSError
            When it cannot be read.
        """
        return read_json(cls, path)

    @property
    def stated_delta(self) -> float | None:
        """The delta at which a text states epsilon; None if the run has none."""
        if self.at_delta is not None:
            return self.at_delta
        claimed = None if self.claimed is None else self.claimed.get("delta")
        return claimed if isinstance(claimed, float) and 0.0 < claimed < 1.0 else None

    def __hash__(self) -> int:  # without the mappings, which are not hashable
        return hash(
            (self.trust, self.noise, self.guarantee, self.n_draws, self.releases, self.notes)
        )

    def __str__(self) -> str:
        return report(self)

    def _repr_html_(self) -> str:
        return html(self)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Return a figure of epsilon over delta and of the trade-off curve, a PNG at `path`.

        Raises
        ------
        ValueError
            When there is no guarantee to draw.
        ImportError
            Where matplotlib is not installed.
        """
        from dpkern.plotting import plot_certificate

        if not self.states_something:
            raise ValueError("the certificate must state a guarantee to be drawn, got none")
        title = f"Privacy of {self.unit}, {self.neighbours}, trust {self.trust}, noise {self.noise}"
        return plot_certificate(epsilon_curve(self), trade_off(self), path, title=title)
