"""Audits: what thousands of runs of a solver on neighbouring data show of its guarantee."""

import functools
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from scipy import special

from dpkern._numbers import count
from dpkern._typing import FloatArray
from dpkern._warn import warn
from dpkern.auditing.bounds import (
    ScoreAudit,
    audit_scores,
    error_curves,
    error_rates,
    require_confidence,
)
from dpkern.auditing.pairs import of_own_data, worst_pair
from dpkern.auditing.runs import Pair, many_runs, scores
from dpkern.data import SiloData
from dpkern.plotting import Path, plot_trade_off
from dpkern.privacy import Budget, Certificate
from dpkern.privacy.guarantees.curves import least_misses, trade_off
from dpkern.solvers import SOLVERS

_SCHEDULES = 8


class CertificateViolatedWarning(UserWarning):
    """An audit's lower bound exceeds what the certificate states."""


def separation(inside: FloatArray, outside: FloatArray) -> float:
    """Return the difference of the means in units of the std, infinite without any spread."""
    distance = float(inside.mean() - outside.mean())
    spread = math.sqrt(0.5 * (inside.var() + outside.var()))
    return distance / spread if spread else math.copysign(math.inf, distance) if distance else 0.0


def separation_error(inside: FloatArray, outside: FloatArray) -> float:
    """Return the standard error of `separation` of normal scores (Hedges 1981)."""
    a, b, found = len(inside), len(outside), separation(inside, outside)
    return math.sqrt((a + b) / (a * b) + found**2 / (2 * (a + b)))


class AuditFinding:
    """What results of audits have in common: scores of an attack beside a certificate.

    `_judged` are the scores in and out that bounds are from.
    """

    certificate: Any
    violated: Any
    _judged: Any

    @property
    def mu_estimate(self) -> float:
        """Difference of the mean scores in units of their std: mu, where scores are normal."""
        return separation(*self._judged)

    @property
    def mu_error(self) -> float:
        """Standard error of `mu_estimate`, where scores are normal."""
        return separation_error(*self._judged)

    def _plot(self, path: Path, confidence: float, *, limits: bool, attack: str) -> Any:
        allowed = trade_off(self.certificate) if self.certificate.states_something else []
        inside, outside = self._judged
        errors, most = error_curves(inside, outside, confidence)
        shown: dict[str, Any] = {"title": str(self), "confidence": confidence, "attack": attack}
        return plot_trade_off(allowed, errors, most if limits else [], path, **shown)

    def _verdict(self, violation: str) -> list[str]:
        if self.violated:
            return [f"  VIOLATED: {violation}"]
        refutable = self.certificate.states_something
        return ["  the certificate is not refuted, which does not prove it"] * refutable


@dataclass(frozen=True, eq=False)
class AuditResult(AuditFinding):
    """What an audit found.

    Attributes
    ----------
    solver : str
    certificate : Certificate
        Of one run on the data with the record.
    in_scores, out_scores : ndarray of shape (runs // 2,)
        Scores of the runs with and without the record, higher ones meaning "with". The even ones
        choose the weights of numbers without a likelihood and every threshold, the odd ones are
        what the bounds are from.
    confidence : float
        Of one bound. Of many audits, 1 - confidence of them exceed a tight certificate by chance.
    """

    solver: str
    certificate: Certificate
    in_scores: FloatArray = field(repr=False)
    out_scores: FloatArray = field(repr=False)
    confidence: float

    @property
    def runs(self) -> int:
        """Number of runs."""
        return len(self.in_scores) + len(self.out_scores)

    @property
    def _judged(self) -> tuple[FloatArray, FloatArray]:
        return self.in_scores[1::2], self.out_scores[1::2]

    @cached_property
    def _bound(self) -> ScoreAudit:
        scores = self.in_scores, self.out_scores
        return audit_scores(*scores, method="gdp", confidence=self.confidence)

    @property
    def mu_lower(self) -> float:
        """With the confidence, the runs are not mu-GDP for any smaller mu."""
        assert self._bound.mu is not None
        return self._bound.mu

    def epsilon_lower(self, delta: float) -> float:
        """With the confidence, the runs are not (e, delta)-DP for any e below this one."""
        return audit_scores(
            *(self.in_scores, self.out_scores),
            method="clopper_pearson",
            confidence=self.confidence,
            delta=delta,
        ).epsilon

    @cached_property
    def mu_certified(self) -> float:
        """The certificate's mu, infinite where nothing is certified.

        Where it has none, or secret samples make epsilon smaller, it is that of the Gaussian
        trade-off through the misses that the certificate allows at the attack's false alarms.
        """
        c = self.certificate
        if not c.states_something or (c.mu < math.inf and not c.amplified):
            return c.mu
        false = error_rates(self._bound.counts, self.confidence)[1]
        return min(float(-special.ndtri(false) - special.ndtri(least_misses(c, false))), c.mu)

    @property
    def tightness(self) -> float:
        """The share of `mu_certified` that the lower bound reaches."""
        return self.mu_lower / self.mu_certified

    @property
    def violated(self) -> bool:
        """Whether the lower bound exceeds what is certified; False where nothing is."""
        return self.mu_lower > self.mu_certified

    @property
    def claim_refuted(self) -> bool:
        """Whether the lower bound exceeds what a paper claims for the same noise."""
        claimed = self.certificate.claimed or {}
        if "epsilon" in claimed and "delta" in claimed and claimed["delta"] > 0.0:
            return self.epsilon_lower(claimed["delta"]) > claimed["epsilon"]
        return "mu" in claimed and self.mu_lower > claimed["mu"]

    def plot(self, path: Path = None) -> Any:
        """Draw the error rates of the attack beside those that the certificate allows.

        Returns a matplotlib figure, written to `path` as PNG if one is given.
        """
        attack = "the attack, half of the runs"
        return self._plot(path, self.confidence, limits=True, attack=attack)

    def __str__(self) -> str:
        c, certified = self.certificate, self.mu_certified
        stated = f"mu {certified:.4g}" if certified < math.inf else "nothing"
        if certified < math.inf and (c.amplified or c.mu == math.inf):
            stated += ", at the attack's rate of false alarms"
        lines = [
            f"{self.solver} under {c.trust} trust, {c.neighbours}: {self.runs} runs",
            f"  certified  {stated}",
            f"  audited    mu {self.mu_lower:.4g} at least, with confidence {self.confidence:g}",
            f"  estimated  mu {self.mu_estimate:.4g} +- {self.mu_error:.2g} for this pair of data "
            "sets",
        ]
        if c.claimed:
            said = ", ".join(f"{name} {value:g}" for name, value in c.claimed.items())
            refuted = "refuted" if self.claim_refuted else "not refuted"
            found = self.epsilon_lower(c.claimed["delta"]) if c.claimed.get("delta") else None
            shown = "" if found is None else f", epsilon {found:.4g} at least"
            lines.append(f"  claimed    {said}: {refuted}{shown}")
        return "\n".join([*lines, *self._verdict("the audit's bound exceeds the certificate")])


def audit(
    solver: str,
    data: SiloData | None = None,
    *,
    budget: Budget | None,
    trust: str = "central",
    neighbours: str = "replace_one",
    how: dict[str, Any] | None = None,
    runs: int = 20_000,
    confidence: float = 0.95,
    records: int | None = None,
    silos: int = 1,
    n_jobs: int | None = -1,
    rng: int | None = None,
) -> AuditResult:
    """Try to refute a solver's certificate by thousands of runs on two neighbouring data sets.

    Half of the runs are on data with a certain record, half without it. From exactly what the
    adversary of the trust model sees, every run gets the log-likelihood ratio of the two data sets,
    and where that is unknown the best linear score. Error rates of a threshold, both chosen by
    half of the runs, give lower bounds on the others.

    Parameters
    ----------
    solver : str
        The name of a solver.
    data : SiloData, optional
        The audited record is put in the place of the first one of these, or added before them, for
        linear classifiers. By default all other records are zeros, which is as bad as it gets for
        the record (docs/audits.md).
    budget : Budget or None
        Of one run.
    trust, neighbours : str
        As in `solve`.
    how : dict, optional
        Further arguments of `solve`, such as its clip norm, rounds or sampling. By default, without
        data, those for which the certificate is likely to be tight.
    runs : int
        Number of runs, at least 100.
    confidence : float
        Of one bound, in (0.5, 1).
    records, silos : int
        Records of every silo, by default 4, or 400 where they are shuffled and 20 where 5 of them
        are sampled in secret, and silos, of the data that are made.
    n_jobs : int, optional
        Number of processes, by joblib: -1 is all cores.
    rng : int, optional
        Seed of the runs' noise; None is the operating system's entropy.

    Returns
    -------
    AuditResult

    Warns
    -----
    CertificateViolatedWarning
        When the lower bound exceeds the certificate: a fault of dpkern, or one in 1 / (1 -
        confidence) audits of a tight certificate.

    Raises
    ------
    TypeError, ValueError
        When an argument is out of range, or `solve` raises.

    Notes
    -----
    An audit can refute a certificate and cannot prove one: it tries one pair of data sets and one
    attack. Its noise is seeded, so that its data must not be private.
    """
    if solver not in SOLVERS:
        raise ValueError(f"solver must be one of {', '.join(SOLVERS)}, got {solver!r}")
    require_confidence(confidence)
    half = count("runs", runs, least=100) // 2
    if n_jobs == 0:
        raise ValueError("n_jobs must be a number of processes, or -1 for one per core, got 0")
    if not isinstance(how, Mapping | None):
        raise TypeError(f"how must be a dict or None, got {type(how).__name__}")
    if not isinstance(data, SiloData | None):
        raise TypeError(f"data must be SiloData or None, got {type(data).__name__}")
    how = dict(how or {})
    for name in ("budget", "trust", "neighbours"):
        if name in how:
            raise TypeError(f"how must not have {name!r}, which is an argument of its own")
    for name in ("rng", "accountant", "callback", "monitor", "progress"):
        if name in how:
            raise TypeError(f"how must not have {name!r}: an audit sets it")
    if data is None:
        n = None if records is None else count("records", records, least=2)
        made = functools.partial(worst_pair, solver, n=n, m=count("silos", silos))
    else:
        made = functools.partial(of_own_data, data)
    inside, outside, arguments = made(trust=trust, neighbours=neighbours, how=how)
    first = secrets.randbits(128) if rng is None else count("rng", rng, least=0) << 64
    arguments = {"n_threads": 1, **arguments, "budget": budget}
    # All runs have one public schedule, which the certificate may depend on: of some that are drawn
    # the one in which the record is seen best.
    drawn = (first + (i << 32) for i in range(_SCHEDULES))
    pairs = [Pair(inside, outside, solver, arguments, public=seed) for seed in drawn]
    pair = max(pairs, key=Pair.separation)
    certificate, last = pair.certificate()
    with_it, without = (
        many_runs(pair, world, range(start, start + half), last, n_jobs)
        for world, start in ((True, first + 1), (False, first + 1 + half))
    )
    in_scores, out_scores = scores(with_it, without)
    result = AuditResult(solver, certificate, in_scores, out_scores, confidence)
    if result.violated:
        warn(f"the audit of {result}", CertificateViolatedWarning)
    return result
