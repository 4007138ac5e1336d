"""Private selection: the best of a random number of private runs, for the price of about two.

    K ~ truncated negative binomial distribution (eta, gamma)
    for k = 1..K:
        s_k ~ candidates                              settings, drawn independently, with repetition
        w_k = the mu-GDP model of s_k on the training part
        q_k = score of w_k on the part held out + N(0, (sensitivity/mu)^2)
    return s_k, w_k, q_k of the largest q_k, ties by an independent uniform number

(Liu and Talwar, "Private selection from private candidates", STOC 2019; Papernot and Steinke,
"Hyperparameter tuning with Renyi differential privacy", ICLR 2022.) The guarantee is that of
`dpkern.privacy.guarantees.selection`; docs/selection.md proves it.
"""

import functools
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dpkern import kernels
from dpkern._numbers import positive, probability
from dpkern.candidates import Candidates, Given, Settings
from dpkern.data import SiloData
from dpkern.data.silo_data import refuse_other_than_silo_data
from dpkern.evaluation.sums import LARGEST_LOG_LOSS
from dpkern.models.losses import Custom, Loss, get_loss
from dpkern.privacy import Budget, Certificate, NoiseStream
from dpkern.privacy.accountant.accountant import CHARGED, Accountant
from dpkern.privacy.certificate.certificate import start_time
from dpkern.privacy.certificate.ledger import Ledger, Release
from dpkern.privacy.certificate.persons import budget_of_a_record, for_a_person
from dpkern.privacy.guarantees.base import DRAW_ERROR
from dpkern.privacy.guarantees.gdp import check_budget
from dpkern.privacy.guarantees.rounding import bisect
from dpkern.privacy.guarantees.selection import UNIFORM_BITS, Selection
from dpkern.privacy.mechanisms.channel import SEEN_BY, Channel
from dpkern.privacy.mechanisms.concordance import release_pairs
from dpkern.privacy.mechanisms.gaussian_sum import GaussianSum
from dpkern.solvers import Objective, SolverResult
from dpkern.solvers.base.outcome import ENDED_AFTER, plain
from dpkern.stream import Purpose

# A run with more draws of noise counts as failed, which bounds the sampler's error of every run.
_MOST_DRAWS = 1 << 40
_OF_LABELS = ("accuracy", "auc", "log_loss")
# With less, noise exceeds any score.
_LEAST_MU = 1e-6

_SECRET = (
    "selection: settings were drawn {:g} times in the mean; the number itself, the losing runs, "
    "their errors and how long they took are secret; the releases are those of the published run"
)
_PARTS = (
    "selection: {} records, drawn without looking at them, scored the runs, which were trained on "
    "the others"
)


class SelectionError(RuntimeError):
    """All runs failed; the attribute `privacy` is the certificate of what this tells."""

    def __init__(self, privacy: Certificate) -> None:
        super().__init__(
            "every run of the selection failed, and the budget is spent; how many there were, and "
            "why they failed, is secret: try the candidates on public records of the same shape"
        )
        self.privacy = privacy


@dataclass(frozen=True, eq=False)
class SelectionResult:
    """The best of a random number of runs.

    Attributes
    ----------
    result : SolverResult
        The best run, without its times; its certificate is that of the selection.
    settings : dict
        The settings of this run, with its solver.
    score : float
        Its noisy score on the records held out: the accuracy, the area under the ROC curve, or the
        mean of the clipped losses.
        As the best of several noisy numbers it is too good.
    """

    result: SolverResult
    settings: Settings
    score: float

    @property
    def privacy(self) -> Certificate:
        """The certificate of the selection."""
        return self.result.privacy

    def __str__(self) -> str:
        chosen = ", ".join(f"{name} {plain(value)}" for name, value in self.settings.items())
        return f"settings   {chosen}\nscore      {self.score:.4g}\n{self.result}"


def select(
    candidates: Given,
    data: SiloData,
    *,
    budget: Budget,
    solver: str | None = None,
    mean_runs: float = 30.0,
    eta: float = 5.0,
    holdout: float = 0.2,
    score: str | Loss = "accuracy",
    score_bound: float | None = None,
    accountant: Accountant | None = None,
    rng: int | NoiseStream | None = None,
    **shared: Any,
) -> SelectionResult:
    """Return the best of a random number of private runs with settings drawn at random.

    Parameters
    ----------
    candidates : list of dict, or dict of lists and distributions
        Settings to choose from, public: a list of arguments of `dpkern.solve`; or, for every
        argument, a list of values or a distribution with the method ``rvs`` of ``scipy.stats``,
        from which its value is drawn independently of the others. The key "solver" names the
        solver.
    data : SiloData
        N records in m silos.
    budget : Budget
        The total budget, as epsilon and delta: the selection is not Gaussian DP.
    solver : str, optional
        The solver of all candidates, where they do not name it.
    mean_runs : float, default=30
        Mean of the number K of runs, which is random.
    eta : float, default=5
        Shape of the distribution of K, above -1: 0 is logarithmic, 1 geometric. A smaller eta costs
        less privacy at the same mean, but K varies more, and one run alone is likelier.
    holdout : float, default=0.2
        Share of every silo's records that score the runs and train none.
    score : {"accuracy", "auc", "log_loss"} or Loss, default="accuracy"
        What is best on these records: the number of labels that are right, the area under the ROC
        curve of two classes, the log loss of predicted probabilities, cut to 6 for a record, or, of
        linear models, the sum of a loss.
    score_bound : float, optional
        Public bound to which the loss of a record is clipped; required for a loss, and only there.
    accountant : Accountant, optional
        What is charged for the whole selection before its first run.
    rng : int or NoiseStream or None
        As in `dpkern.solve`.
    **shared
        Further arguments of all candidates.

    Returns
    -------
    chosen : SelectionResult

    Raises
    ------
    TypeError, ValueError
        When an argument is not as described, or a candidate is not exactly Gaussian DP (secret
        samples of the records, calibration "paper", trust "shuffle") or would be seen before it is
        chosen (trust "silo" or "local"). All of a list, and some settings drawn from distributions,
        are checked before any record is read; settings that turn out wrong later make a run fail.
    SelectionError
        When every run failed. A run that fails has the worst score.

    Notes
    -----
    Released to whoever sees the result: the published run's aggregates, its settings and its score.
    A score is the exact sum over the records held out of 1/2 or -1/2 for a right or wrong label, or
    of score_bound/2 - loss, with Gaussian noise on its grid; or the number of concordant less
    discordant pairs of them, beside that of positives. Replacing a record changes it by 1, by
    score_bound, or by 2 (n - 1) for n records held out; or it changes the training part, so that
    settings, model and score together are mu-GDP if both the model and the score are. Then the best
    of K runs satisfies

        delta(epsilon) <= E K delta(epsilon - epsilon_2; mu)

    with epsilon_2 and a sharper form in `guarantees.selection`, and mu is the largest that
    keeps the budget. A person's records may train and score: with mu / k for a record of a person
    with at most k, (r_1 mu / k)^2 + (r_2 mu / k)^2 <= mu^2. This holds of the distribution of K as
    a whole: K, and all of the losing runs, must stay secret. Nothing of them is in the result; who
    can see how long the selection took learns about K.

    References
    ----------
    Liu, Talwar, "Private selection from private candidates", STOC 2019. Papernot, Steinke,
    "Hyperparameter tuning with Renyi differential privacy", ICLR 2022, whose bound is larger.

    Examples
    --------
    >>> from scipy import stats
    >>> chosen = dpkern.select(
    ...     {"clip": stats.loguniform(0.1, 4.0), "rounds": [30, 100, 300]}, data,
    ...     solver="gradient_descent", budget=dpkern.Budget(epsilon=1.0, delta=1e-6),
    ... )
    >>> print(chosen)
    """
    refuse_other_than_silo_data(data)
    check_budget(budget)
    if not isinstance(accountant, Accountant | None):
        raise TypeError(f"accountant must be an Accountant, got {type(accountant).__name__}")
    guarantee = _within(budget, Selection.of_mean(mean_runs, eta=eta, mu=1.0))
    measure = _Measure.of(score, score_bound, data)
    drawn = Candidates.of(candidates, solver, shared, measure.loss is None)
    counts = _held_out(data, holdout)
    declared = {
        "candidates": drawn.declared,
        "mean_runs": mean_runs,
        "eta": eta,
        "holdout": holdout,
        "score": measure.name or plain(measure.loss),
        "score_bound": score_bound,
        "sizes": plain(data.sizes),
        **({} if data.persons is None else {"max_records": data.persons.max_records}),
    }
    given = rng if isinstance(rng, NoiseStream) else NoiseStream(rng)
    try:
        with given.child() as stream:  # the caller's does not show how many releases there were
            train, test = _parts(data, counts, stream)
            for settings in drawn.checked:
                drawn.values(settings, train, guarantee.mu)
            charged = () if accountant is None else (CHARGED,)
            certificate = Certificate(
                trust="central",
                noise=given.kind,
                guarantee=guarantee,
                n_draws=_draws(guarantee),
                bound="upper",
                at_delta=budget.delta,
                started=start_time(),
                declared=declared,
                notes=(_SECRET.format(mean_runs), _PARTS.format(test.n), *charged),
            )
            if data.persons is not None:
                certificate = for_a_person(certificate, data.persons.max_records, divided=False)
            if accountant is not None:
                accountant.charge("select", certificate)
            best = _uninterrupted(lambda: _best(guarantee, drawn, train, test, measure, stream))
    finally:
        if given is not rng:
            given.wipe()
    if best is None:
        raise SelectionError(certificate)
    return best.published(certificate)


def _draws(guarantee: Selection) -> int:
    """Return a bound of the mean number of draws of noise in all runs.

    One more is for the distribution of K and for ties, which have an error below 2^-100 too.
    """
    return math.ceil(Fraction(guarantee.mean_runs) * _MOST_DRAWS) + 1


@functools.lru_cache(maxsize=64)
def _within(budget: Budget, guarantee: Selection) -> Selection:
    """Return the selection with the largest mu of one run that keeps the budget."""
    epsilon, delta = budget.epsilon, budget.delta
    if epsilon is None or delta is None:
        raise ValueError(
            "budget must be given as epsilon and delta: the best of a random number of runs is not "
            f"Gaussian DP; got mu {budget.mu!r}"
        )

    error = (1.0 + math.exp(epsilon)) * _draws(guarantee) * DRAW_ERROR
    most = delta * (1.0 - 2.0**-40) - error  # what the certificate adds is rounded up

    def exceeded(mu: float) -> bool:
        return replace(guarantee, mu=mu).delta(epsilon) > most

    if exceeded(_LEAST_MU):
        raise ValueError(
            f"budget must be larger for {guarantee.mean_runs:.6g} runs in the mean, got epsilon "
            f"{epsilon!r} and delta {delta!r}: nothing is left for a run"
        )
    return replace(guarantee, mu=bisect(exceeded, _LEAST_MU, 2.0 * budget.mu)[0])


def _held_out(data: SiloData, holdout: float) -> NDArray[np.int64]:
    """Return how many records of every silo are held out; one at least trains."""
    share = probability("holdout", holdout)
    counts = np.minimum(np.maximum(np.rint(share * data.sizes), 1), data.sizes - 1)
    if not counts.any():
        raise ValueError("data must have a silo of at least two records, to hold one out")
    return counts.astype(np.int64)


def _parts(
    data: SiloData, counts: NDArray[np.int64], stream: NoiseStream
) -> tuple[SiloData, SiloData]:
    """Return the training part, and the records held out, each in a silo of its own."""
    with stream.release() as key:
        held, _ = key.subsets(data.offsets, counts, Purpose.SPLIT)
    trains = np.ones(data.n, dtype=np.bool_)
    trains[held] = False
    offsets = np.concatenate([[0], np.cumsum(data.sizes - counts)])
    return data.part(np.flatnonzero(trains), offsets), data.each_alone(held)


def _uninterrupted(work: Callable[[], "_Outcome | None"]) -> "_Outcome | None":
    """Return the result; an interruption shows nothing of the run that it ends."""
    try:
        return work()
    except (KeyboardInterrupt, SystemExit) as error:
        stopped: BaseException = type(error)(*error.args)
    except Exception:
        raise
    except BaseException:  # of a signal handler
        stopped = KeyboardInterrupt()
    raise stopped


class _Outcome(NamedTuple):
    """A run that did not fail; the best has the largest order, score before tie."""

    order: tuple[float, list[int]]
    score: float
    settings: Settings
    result: SolverResult
    release: Release

    def published(self, selection: Certificate) -> SelectionResult:
        """Return the run with the certificate of the selection, without its times."""
        own = self.result.privacy
        certificate = replace(
            selection,
            releases=(*own.releases, self.release),
            declared=own.declared | selection.declared,
            notes=(*selection.notes, *own.notes),
            model=own.model,
            sources=own.sources,
        )
        result = replace(self.result, privacy=certificate, timing={})
        return SelectionResult(result, self.settings, self.score)


def _best(
    guarantee: Selection,
    candidates: Candidates,
    train: SiloData,
    test: SiloData,
    measure: "_Measure",
    stream: NoiseStream,
) -> _Outcome | None:
    """Return the best of K runs, or None if all failed."""
    with stream.release() as key:
        words = key.words(Purpose.SELECTION, UNIFORM_BITS // 64)
    best: _Outcome | None = None
    of_record = guarantee.mu  # of the score, where one record may be one of a person's
    if train.persons is not None:
        of_record = budget_of_a_record(Budget.part(guarantee.mu), train.persons.max_records).mu
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for _ in range(guarantee.number_of_runs(int.from_bytes(words.tobytes(), "little"))):
            with stream.release() as key:
                seed, tie = key.words(Purpose.SELECTION, 8).reshape(2, 4).tolist()
            try:
                # A generator for every run: what one draws tells nothing of the others.
                settings = candidates.draw(np.random.Generator(np.random.PCG64(seed)))
                values = candidates.values(settings, train, guarantee.mu)
                result = candidates.solve(settings, train, guarantee.mu, stream)
                order, score, release = measure.release(result, values, test, of_record, stream)
            except Exception:  # whatever the reason, this is the worst score
                continue
            spent = result.privacy
            within = spent.mu <= guarantee.mu and spent.n_draws < _MOST_DRAWS
            within = within and ENDED_AFTER not in spent.declared
            if within and (best is None or (order, tie) > best.order):
                best = _Outcome((order, tie), score, settings, result, release)
    return best


@dataclass(frozen=True)
class _Measure:
    """What makes a model the best: accuracy, area under the ROC curve, or a loss cut to a bound.

    `name` is that of a score of labels, None for a loss of the table.
    """

    name: str | None
    loss: Loss | None
    bound: float  #: the sensitivity of the sum, but for pairs

    @classmethod
    def of(cls, score: str | Loss, bound: float | None, data: SiloData) -> Self:
        if isinstance(score, str) and score in _OF_LABELS:
            tasks = ("classification",) if score == "auc" else ("classification", "multiclass")
            if data.task not in tasks:
                raise ValueError(f"score must be a loss for {data.task}, got {score!r}")
            if bound is not None:
                raise ValueError(f"score_bound must be None for {score!r}, got {bound!r}")
            return cls(score, None, LARGEST_LOG_LOSS if score == "log_loss" else 1.0)
        loss = get_loss(score)
        if isinstance(loss, Custom):
            raise TypeError(
                "score must be 'accuracy', 'auc', 'log_loss' or a loss of the table: what a custom "
                "one returns for a record may depend on those before it"
            )
        if data.task != loss.task:
            raise ValueError(f"score must be for {data.task}, got {loss.name!r}")
        if bound is None:
            raise ValueError("score_bound must be the public bound of a record's loss, got None")
        return cls(None, loss, positive("score_bound", bound))

    def release(
        self,
        result: SolverResult,
        values: Settings,
        test: SiloData,
        mu: float,
        stream: NoiseStream,
    ) -> tuple[float, float, Release]:
        """Return the noisy number by which models are ordered, the score, and the release."""
        if not np.isfinite(result.w).all():
            raise ValueError("the model must be finite")
        channel = Channel(Ledger(), stream, SEEN_BY["central"])
        what = f"score on {test.n} records"
        if self.name == "auc":
            scores = result.decision_function(test.X)
            pairs, positives, *_ = release_pairs(channel, scores, test.y > 0.0, mu, what)
            positives = min(max(positives, 1.0), test.n - 1.0)
            area = 0.5 + 0.5 * pairs / (positives * (test.n - positives))
            return pairs, min(max(area, 0.0), 1.0), channel.ledger.releases[0]
        total = self._release_sum(result, values, test, mu, channel, what)
        mean = (
            total / test.n + 0.5 if self.name == "accuracy" else 0.5 * self.bound - total / test.n
        )
        return total, mean, channel.ledger.releases[0]

    def _release_sum(
        self,
        result: SolverResult,
        values: Settings,
        test: SiloData,
        mu: float,
        channel: Channel,
        what: str,
    ) -> float:
        """Release the sum of the scores of all records, each within bound/2 of 0."""
        half, threads = 0.5 * self.bound, values["n_threads"]
        noisy = GaussianSum(channel, what=what, clip=half, dim=1, sizes=(test.n,), mu=mu)
        if self.name == "accuracy":
            model = values["loss"] if values["model"] is None else values["model"]
            share = Objective(test, model, n_threads=threads).accuracy(result.w)
            return float(noisy.release(np.array([round(share * test.n) - 0.5 * test.n]))[0])
        if self.loss is None:
            P = result.predict_proba(test.X)
            number = test.y if test.task == "multiclass" else 0.5 * (test.y + 1.0)
            of_label = P[np.arange(test.n), number.astype(np.intp)]
            losses = -np.log(np.maximum(of_label, math.exp(-self.bound)))
        else:
            losses = kernels.glm_losses(test, result.w, loss=self.loss, n_threads=threads)
        scores = half - np.clip(np.nan_to_num(losses, nan=math.inf), 0.0, self.bound)
        total = kernels.clip_and_sum(scores[:, np.newaxis], clip=half, grid=noisy.grid)[0]
        return float(noisy.release(total)[0])
