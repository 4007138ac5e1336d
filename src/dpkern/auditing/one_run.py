"""Audits by one run of a solver, with many canaries among the records."""

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpkern._numbers import count, probability
from dpkern._typing import FloatArray
from dpkern._warn import warn
from dpkern.auditing.audits import AuditFinding, CertificateViolatedWarning
from dpkern.auditing.bounds import (
    Counts,
    ScoreAudit,
    audit_scores,
    best_threshold,
    require_confidence,
)
from dpkern.auditing.canaries import Canaries, Projections, WithCanaries, scores
from dpkern.data import SiloData
from dpkern.models.networks import MLP
from dpkern.models.oracles import Oracle, effective_rows
from dpkern.plotting import Path
from dpkern.privacy import Budget, Certificate
from dpkern.privacy.guarantees.gdp import check_budget
from dpkern.solvers import SolverResult, solve
from dpkern.stream import NoiseStream

_BLOCK = 1 << 12  # rows that are looked at together
_LINES = 49


@dataclass(frozen=True, eq=False)
class OneRunAudit(AuditFinding):
    """What the canaries of one run showed.

    Attributes
    ----------
    result : SolverResult
        Of the run. Its model was trained on the canaries too.
    in_scores, out_scores : ndarray
        Scores of the canaries whose coin was heads or tails: of every second canary, which the
        bounds are from. The others chose the weights of releases and the thresholds.
    one_run, one_run_fdp : ScoreAudit
        The bounds of `audit_scores` by these methods. An attack guesses the coin of a canary from
        the side on which its score is, and abstains near the middle: `counts.positives` guesses
        were right and `counts.false` wrong, of n_in + n_out canaries.
    """

    result: SolverResult
    in_scores: FloatArray = field(repr=False)
    out_scores: FloatArray = field(repr=False)
    one_run: ScoreAudit
    one_run_fdp: ScoreAudit

    @property
    def certificate(self) -> Certificate:
        """Of the run."""
        return self.result.privacy

    @property
    def epsilon_lower(self) -> float:
        """With the confidence, the run is not (e, delta)-DP for any e below this one."""
        return self.one_run.epsilon

    @property
    def epsilon_certified(self) -> float:
        """The certificate's epsilon at delta, infinite where nothing is certified."""
        c = self.certificate
        return c.epsilon(self.one_run.delta) if c.states_something else math.inf

    @property
    def _judged(self) -> tuple[FloatArray, FloatArray]:
        return self.in_scores, self.out_scores

    @property
    def violated(self) -> bool:
        """Whether the guesses refute the certificate; False where nothing is certified.

        That is so where `one_run` exceeds its epsilon, or its trade-off of errors, which need not
        be Gaussian, does not allow the guesses of `one_run_fdp`. Either happens by chance to a true
        certificate with a probability of 1 - confidence at most.
        """
        if not self.certificate.states_something:
            return False
        found = self.one_run_fdp
        return self.one_run.epsilon > self.epsilon_certified or _refuted(
            self.certificate, found.counts, found.confidence
        )

    def plot(self, path: Path = None) -> Any:
        """Draw the error rates of the scores beside those that the certificate allows.

        Returns a matplotlib figure, written to `path` as PNG if one is given.
        """
        # Of canaries of one run, which are not independent, the rates have no such limits.
        return self._plot(path, self.one_run.confidence, limits=False, attack="the scores")

    def __str__(self) -> str:
        c, certified = self.certificate, self.epsilon_certified
        a, b, guesses = self.one_run, self.one_run_fdp, len(self.in_scores) + len(self.out_scores)
        stated = f"epsilon {certified:.4g}" if certified < math.inf else "nothing"
        lines = [
            f"{self.result.solver} under {c.trust} trust, {c.neighbours}: "
            f"{guesses} guesses at most",
            f"  certified  {stated} at delta {a.delta:g}",
            f"  audited    epsilon {a.epsilon:.4g} at least, with confidence {a.confidence:g}",
            f"             {b.epsilon:.4g} at least if its trade-off is Gaussian",
            f"  guessed    {a.counts.positives} right, {a.counts.false} wrong, and for the second "
            f"bound {b.counts.positives} right, {b.counts.false} wrong",
            f"  estimated  mu {self.mu_estimate:.4g} +- {self.mu_error:.2g} of these canaries",
        ]
        violation = "the certificate does not allow so many right guesses"
        return "\n".join([*lines, *self._verdict(violation)])


def audit_one_run(
    solver: str,
    data: SiloData,
    model: Oracle,
    *,
    budget: Budget,
    canaries: int | None = None,
    confidence: float = 0.95,
    delta: float | None = None,
    rng: int | None = None,
    **arguments: Any,
) -> OneRunAudit:
    """Try to refute the certificate of one training run of a user's model, by canaries.

    So many records are added at random places, whose gradients are clipped and orthogonal to one
    another. Every canary has a fair coin: the gradient is +C u or -C u where neighbours replace a
    record, and the canary is in the data or not where they add or remove one. From release to
    release all of them change their sign, as public coins say, so that the slow changes of the
    other records' sum do not hide them. From what the adversary of the trust model sees of the run,
    and nothing else, the coins of the canaries are guessed.

    Parameters
    ----------
    solver : str
        The name of a solver that takes models.
    data : SiloData
        The records; they are copied.
    model : Oracle
        The user's own model. It never sees the canaries.
    budget : Budget
        Of the run.
    canaries : int, optional
        Number of canaries, at least 50, and at most the number of the model's parameters; by
        default 1000, or that number if it is smaller. Every second one chooses how to guess, and
        the others are guessed.
    confidence : float
        Of one bound, in (0.5, 1).
    delta : float, optional
        At which epsilon is bounded: by default the budget's, or 1e-5.
    rng : int, optional
        Seed of the noise, of canaries and coins; None is the operating system's entropy.
    **arguments
        Of `solve`. Numbers of records that are not given include those of the canaries.

    Returns
    -------
    OneRunAudit

    Warns
    -----
    CertificateViolatedWarning
        When the guesses refute the certificate.

    Raises
    ------
    TypeError, ValueError
        When an argument is out of range, or `solve` raises.

    Notes
    -----
    The bounds are those of Steinke, Nasr, Jagielski (2023), Theorem 5.2, and of Mahloujifar, Melis,
    Chaudhuri (2024), Algorithm 3. Their conditions: (1) coins are independent and fair, from a
    stream that noise and samples are not drawn from; (2) with all other coins fixed, a coin changes
    one record, so that the two runs are on neighbours in the sense of the certificate: a record's
    gradient, a function of the record and of the number of the release, is replaced by its
    opposite, or the record is added; (3) a guess is a function of the
    releases, of public numbers and of the other half's coins, which one may condition on as all
    coins are independent, the halves being fixed before they are tossed. Samples are secret to the
    guesses; batches that the certificate does not take for secret, of replaced records, are known
    to them. What true records add is removed by its covariance between releases alone.

    The run's model is trained on the canaries too, and is worse by what they add: train again for
    the model to use. It spends its budget on the records of `data` like any run.

    An audit can refute a certificate and cannot prove one. Gradients of canaries do not depend on
    the parameters: of them the differences of gradients show nothing, and full ones alone do
    (prox_svrg, spider).
    """
    if not isinstance(model, Oracle) or isinstance(model, MLP):
        raise TypeError(f"model must be an Oracle of your own, got {type(model).__name__}")
    if not isinstance(data, SiloData):
        raise TypeError(f"data must be SiloData, got {type(data).__name__}")
    if data.persons is not None:
        raise ValueError("data must be without persons, for an audit by canaries")
    check_budget(budget)
    require_confidence(confidence)
    delta = probability("delta", delta if delta is not None else budget.delta or 1e-5)
    dim = count("dim", model.dim(data))
    k = count("canaries", min(dim, 1000) if canaries is None else canaries, least=50)
    if k > dim:
        raise ValueError(f"canaries must be at most the {dim} parameters of the model, got {k}")
    seed = None if rng is None else count("rng", rng, least=0)
    generator = np.random.default_rng(None if seed is None else [seed, 1])
    drawn = Canaries.drawn(data, k, dim, generator)

    coins, add_remove = drawn.coins, arguments.get("neighbours") == "add_remove"
    chosen = np.flatnonzero(coins) if add_remove else np.arange(k)
    joined, silos = drawn.joined(data, chosen), drawn.silos(data)
    stream, seen = NoiseStream(seed), Projections(drawn, silos, dim, generator)
    places = drawn.places[chosen] + np.arange(len(chosen))
    shown = WithCanaries(model, drawn, effective_rows(joined, places), chosen, seen)
    _refuse_equal_rows(shown, joined, len(chosen))
    stream.audit(seen)
    result = solve(solver, joined, model=shown, budget=budget, rng=stream, **arguments)
    if not seen.products:
        raise ValueError(f"solver must release sums of gradients, got {solver!r}")

    known = np.arange(k) % 2 == 0
    score = scores(seen, coins, known, hidden=add_remove)
    middle = 0.5 * (score[known & coins].mean() + score[known & ~coins].mean())
    surest, right = np.abs(score - middle), (score > middle) == coins
    bounds = (
        _bound(surest, right, known, method, confidence, delta)
        for method in ("one_run", "one_run_fdp")
    )
    found = OneRunAudit(
        replace(result, oracle=model), score[~known & coins], score[~known & ~coins], *bounds
    )
    if found.violated:
        warn(f"the audit of {found}", CertificateViolatedWarning)
    return found


def _refuse_equal_rows(shown: WithCanaries, data: SiloData, k: int) -> None:
    """Raise where rows of records and of canaries cannot be told apart."""
    blocks = (np.arange(i, min(i + _BLOCK, data.n)) for i in range(0, data.n, _BLOCK))
    found = [shown.found(effective_rows(data, block)) for block in blocks]
    taken = np.concatenate(found)
    taken = taken[taken >= 0]
    if len(taken) != k or len(np.unique(taken)) != k:
        raise ValueError("data must have enough features for canaries with rows of their own")


def _bound(
    surest: FloatArray,
    right: NDArray[np.bool_],
    known: NDArray[np.bool_],
    method: Any,
    confidence: float,
    delta: float,
) -> ScoreAudit:
    """Bound privacy by the guesses of the unknown coins, from a threshold by those of the known."""
    # A canary that is never guessed, for what has no entry otherwise.
    never = np.array([-math.inf])
    known_right, known_wrong, is_right, is_wrong = (
        part if part.size else never
        for part in (surest[one & two] for one in (known, ~known) for two in (right, ~right))
    )
    how = {"method": method, "confidence": confidence, "delta": delta}
    threshold = best_threshold(known_right, known_wrong, **how)
    found = audit_scores(is_right, is_wrong, threshold=threshold, **how)
    return replace(found, kinds=("right guesses", "wrong guesses"))


def _refuted(certificate: Certificate, counts: Counts, confidence: float) -> bool:
    """Mahloujifar, Melis, Chaudhuri 2024, Algorithm 3, for the certificate's own trade-off.

    That is the largest of the trade-offs of its (epsilon, delta), as in `Certificate.plot`.
    """
    m, guesses = counts.n_in + counts.n_out, counts.positives + counts.false
    if not guesses:
        return False
    epsilons = np.linspace(0.0, min(certificate.epsilon(1e-6), 700.0), _LINES)
    left = 1.0 - np.array([certificate.delta(epsilon) for epsilon in epsilons.tolist()])
    odds = np.exp(epsilons)
    r, h = (1.0 - confidence) * counts.positives / m, (1.0 - confidence) * counts.false / m
    for i in range(counts.positives - 1, -1, -1):
        a = 1.0 - r
        least = max(h, float(np.max(left - odds * a)), float(np.max((left - a) / odds)))
        if least == h:
            break  # nothing changes any more
        h, r = least, min(r + i / (guesses - i) * (least - h), 1.0)
    return r + h > guesses / m
