"""Scores of a model on held-out records, released by one or two sums."""

from __future__ import annotations  # help() then shows type aliases by name

import math
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dpkern._html import table
from dpkern._numbers import aligned, inner, rounded_up
from dpkern._numbers import count as whole_number
from dpkern._typing import FloatArray
from dpkern._warn import warn
from dpkern.data import SiloData
from dpkern.data.persons import kept_rows
from dpkern.evaluation.figures import Binned, Residuals, Score, with_intervals
from dpkern.evaluation.records import Records, bound_of
from dpkern.evaluation.sums import edges_of
from dpkern.models.hazards import DiscreteHazards
from dpkern.party import Remote
from dpkern.privacy import Budget, Certificate, NoiseStream
from dpkern.privacy.accountant.accountant import Accountant
from dpkern.privacy.certificate.certificate import NOT_STATED
from dpkern.privacy.charged import ChargedReleases, size_notes, stated_size
from dpkern.privacy.guarantees.gdp import split_budget
from dpkern.privacy.mechanisms.channel import Shares
from dpkern.privacy.mechanisms.concordance import MOST_RECORDS, release_pairs
from dpkern.solvers import SolverResult

_PAIRS = 0.45  # share of mu^2 of the pairs
_MOST_BINS = 1000  # whose scores are simulated in memory
# Bins by n_1 mu, and n mu where the rate is not known and taken as 1/4, within these.
_PER_BIN, _FEWEST, _MOST = 70.0, 8, 64
# Where the area is from bins they are half as wide.
_PER_BIN_WITHOUT_PAIRS = 35.0

# From so many records times mu on, the noise of accuracy has a std of 0.06, that of the area 0.07
# to 0.12; both fall with the number.
_ENOUGH, _STD_THERE = 80.0, 0.06

EVALUATE = "evaluate"
_BY_SILOS = "silos add noise to sums over records"

ROW_WISE = (
    "taken as true of the evaluated model: what it predicts for a record depends on this record "
    "and on what is public or released alone, not on the others that are evaluated"
)
HELD_OUT = "the evaluated records are taken as others than those of the model's fit"
_TEXTS = {
    "accuracy": "share of right labels",
    "sensitivity": "share of positives that are found",
    "specificity": "share of negatives that are left",
    "auc": "area under the ROC curve",
    "rate": "share of positives",
    "mean_risk": "mean predicted risk",
    "calibration_error": "mean distance of risk and rate in the bins",
    "brier": "Brier score",
    "log_loss": "log loss, cut to 6 for a record",
    "r2": "R2",
    "rmse": "root of the mean squared error",
    "bias": "mean of predicted less true values",
    "mean_confidence": "mean probability of the likeliest class",
    "concordance": "share of pairs of whom the earlier event has the higher risk",
}
_WITHOUT_RISKS = ("accuracy", "sensitivity", "specificity", "auc", "rate")
_OF_CLASSES = {
    "accuracy": "rate",
    "mean_confidence": "mean_risk",
    "calibration_error": "calibration_error",
    "brier": "brier",
    "log_loss": "log_loss",
}


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Released scores of a model.

    Attributes
    ----------
    scores : dict of str to Score
        Of two classes "accuracy", "sensitivity", "specificity" (at the threshold), "auc", "rate",
        and of predicted risks "mean_risk", "calibration_error", "brier", "log_loss"; of several
        "accuracy", "mean_confidence", "calibration_error", "brier", "log_loss"; of targets "r2",
        "rmse", "bias". They are attributes too: ``evaluation.auc`` is its value.
    confidence : float
        Of the intervals.
    calibration_curve : tuple of three ndarrays of shape (B,), or None
        Mean risk, rate of positives and noisy number of records in bins of the risk; of several
        classes those of the likeliest one, and whether it is right. The rate is not a number where
        the number of records is below five standard deviations of its noise.
    roc_curve : tuple of two ndarrays of shape (B + 1,), or None
        Rates of false and of true positives at the edges of the bins, from 1 down to 0.
    confusion : ndarray of shape (K, K), or None
        Noisy counts by label and predicted label; of two classes at the threshold.
    calibration_intervals : tuple of two ndarrays of shape (B,), or None
        Ends of intervals of the rates of the curve, of `confidence` each, for the noise and the
        sampling of the records; 0 and 1 where there is no rate.
    privacy : Certificate
        Composes with that of the fit by `dpkern.privacy.compose_sequential` where a person may
        have a record in both; of disjoint records by `compose_parallel`.
    """

    scores: dict[str, Score]
    confidence: float
    privacy: Certificate = field(repr=False)
    calibration_curve: tuple[FloatArray, FloatArray, FloatArray] | None = None
    roc_curve: tuple[FloatArray, FloatArray] | None = None
    confusion: FloatArray | None = None
    calibration_intervals: tuple[FloatArray, FloatArray] | None = None

    def plot(self, path: str | PathLike[str] | None = None) -> Any:
        """Draw the calibration curve with its intervals, and how many records have which risk.

        Parameters
        ----------
        path : str or path-like, optional
            PNG file to write.

        Returns
        -------
        matplotlib.figure.Figure

        Raises
        ------
        ValueError
            When the model has no risks, and so no calibration curve.
        ImportError
            When matplotlib is not installed.
        """
        if self.calibration_curve is None or self.calibration_intervals is None:
            raise ValueError("plot needs predicted risks, which the evaluated model has none of")
        from dpkern.plotting import plot_calibration

        curve, intervals = self.calibration_curve, self.calibration_intervals
        return plot_calibration(curve, intervals, path, confidence=self.confidence)

    def __getattr__(self, name: str) -> float:
        scores = self.__dict__.get("scores", {})
        if name in scores:
            return float(scores[name].value)
        raise AttributeError(f"this evaluation has no {name!r}, but {', '.join(scores)}")

    def _rows(self) -> list[list[str]]:
        rows = [["score", "value", f"{100.0 * self.confidence:g} % interval", "noise std", ""]]
        for name, score in self.scores.items():
            figures = [score.value, score.low, score.high, score.noise_std]
            value, low, high, noise = (f"{figure:.4f}" for figure in figures)
            rows.append([name, value, f"{low} to {high}", noise, _TEXTS[name]])
        return rows

    def __str__(self) -> str:
        at = self.privacy.stated_delta or 1e-6
        spent = f"epsilon {rounded_up(self.privacy.epsilon(at))} at delta {at:g}"
        return "\n".join([*aligned(self._rows(), right=(1, 3)), f"spent {spent}"])

    def _repr_html_(self) -> str:
        rows = [(name, f"{value} ({interval})") for name, value, interval, *_ in self._rows()[1:]]
        return table("Evaluation", rows) + self.privacy._repr_html_()


def evaluate(
    model: Any,
    X: ArrayLike | SiloData | Remote,
    y: ArrayLike | None = None,
    *,
    budget: Budget,
    classes: ArrayLike | None = None,
    target_bound: float | tuple[float, float] | None = None,
    threshold: float = 0.5,
    bins: int | None = None,
    neighbours: str = "replace_one",
    public_size: int | None = None,
    person: ArrayLike | None = None,
    max_records: int | None = None,
    trust: str | None = None,
    colluding: int | None = None,
    confidence: float = 0.95,
    accountant: Accountant | None = None,
    rng: int | NoiseStream | None = None,
) -> Evaluation:
    """Release scores of a model on labelled records that it was not fitted on.

    Parameters
    ----------
    model : SolverResult, estimator or callable
        A model of this package; or one of another with `predict_proba`, or `predict` with
        `target_bound`; or a function that returns probabilities of the positive class (n,) or of
        all classes (n, K), or predicted targets, for rows of X. It must be public or released.
    X : array_like, data frame or CSR matrix of n rows, SiloData or Federation
        As the model predicts them. Records in blocks are read once, and their predictions kept; a
        model of others must predict the same of a row whatever the block is. Of a `Federation`,
        whose study states the model, the silos have the records, and send noisy sums.
    y : array_like of shape (n,)
        Labels, or real targets; None beside a SiloData, which has them.
    budget : Budget
        Of all that is released, for a person where `person` is given.
    classes : array_like of two or more labels, optional
        Of a model that does not say them by `classes` or `classes_`, the negative one first.
    target_bound : float, or pair (lo, hi), optional
        Public bound of real targets; the model's own is the default. Targets and predictions are
        cut to it, and residuals to half of the distance of the bounds.
    threshold : float, default=0.5
        The public risk from which a record counts as positive.
    bins : int, optional
        Number of bins of the predicted risk, one more where the threshold is no edge. The default
        follows from the released number of positives.
    neighbours : {"replace_one", "add_remove"}, default="replace_one"
        As for `dpkern.solve`.
    public_size : int, optional
        With "add_remove", a public number that stands for that of the records.
    person : array_like of shape (n,), optional
        The id of each record's person, with `max_records`, of whom so many records at most are
        used, the first ones.
    max_records : int, optional
    trust : {"central", "silo"}, optional
        "silo": every silo of a SiloData adds the noise to its own sums. That of the study by
        default, else "central".
    colluding : int, optional
        As for `dpkern.solve`: every silo of a SiloData adds a share of the noise.
    confidence : float, default=0.95
        Of the intervals, which hold the noise and the sampling of the records.
    accountant : Accountant, optional
        What is charged before the first release.
    rng : int, NoiseStream or None
        As for `dpkern.solve`.

    Returns
    -------
    Evaluation

    Raises
    ------
    TypeError, ValueError
        When an argument is not as described, for the holder of the records; nothing is released.

    Warns
    -----
    UserWarning
        Before the charge, where the number of records and the budget leave the scores mostly noise.

    Notes
    -----
    Released to whoever sees the scores: a noisy vector of sums (`dpkern.evaluation.sums`), counts
    of records by class and bin of the predicted risk among them; and, of two classes where the
    number of records is public, the number of positives with the number of concordant less
    discordant pairs, with 45 % of mu^2, which gives the area under the ROC curve without
    bins. With "add_remove", and where silos add the noise, the area is that of the bins.
    Sensitivities: sqrt(3.5), or sqrt(1.375) where a record is added or removed, of two classes;
    sqrt(5.5), or sqrt(2.375), of several; sqrt(2.58), or 1, of targets; 2 (n - 1) of pairs. All
    scores are post-processing.

    A threshold that was chosen by these records, or by this evaluation, has no valid interval.

    Examples
    --------
    >>> budget = dpkern.Budget(epsilon=1.0, delta=1e-6)
    >>> evaluation = dpkern.evaluate(result, X_test, y_test, budget=budget)
    >>> evaluation.auc, evaluation.scores["auc"].low
    """
    _check_model(model, neighbours)
    noise = _Noise.of(X, trust, colluding)
    run = ChargedReleases(
        budget,
        accountant,
        neighbours=neighbours,
        max_records=max_records,
        trust=noise.trust,
        shares=noise.shares,
        party=None if noise.silos is None else noise.silos.party,
    )
    threshold, confidence = inner("threshold", threshold), inner("confidence", confidence)
    if bins is not None and (bins := whole_number("bins", bins)) > _MOST_BINS:
        raise ValueError(f"bins must be at most {_MOST_BINS}, got {bins}")
    stated = stated_size(public_size, neighbours)
    if noise.silos is not None or isinstance(X, Remote):
        for name, value in {"person": person, "max_records": max_records}.items():
            if value is not None:
                raise ValueError(f"{name} must be None for silos, whose {_BY_SILOS}")
    if isinstance(X, Remote):
        _check_study(X, model, y, classes)
        agreed = agreed_arguments(
            model,
            threshold=threshold,
            bins=bins,
            target_bound=target_bound,
            neighbours=neighbours,
            public_size=public_size,
            trust=trust,
            colluding=colluding,
            accountant=accountant,
        )
        with X.opened(EVALUATE, budget, agreed) as (here, own):
            return evaluate(model, here, budget=budget, confidence=confidence, **own)
    with np.errstate(all="ignore"):  # what is raised of predictions tells of a record
        records = Records.of(model, X, y, classes, target_bound)
    if (kept := kept_rows(person, max_records, len(records.y))) is not None:
        records = records.taken(kept[0])
    n = len(records.y) if noise.silos is None else noise.silos.n
    if not n:
        raise ValueError("X must hold at least one record, got none")
    scoring = _Scoring(records, threshold, bins, confidence, stated or n, stated is not None)
    released = scoring.released(run, noise, rng)
    return scoring.evaluation(released, scoring.certificate(run, noise, released, model))


@dataclass(frozen=True)
class _Noise:
    """Who adds the noise: the `silos`, or, where that is None, who has all records."""

    silos: SiloData | None
    trust: str
    shares: Shares | None

    @classmethod
    def of(cls, X: Any, trust: str | None, colluding: int | None) -> _Noise:
        party = X.party if isinstance(X, SiloData) else None
        by_silos = party is not None or trust == "silo" or colluding is not None
        silos = None
        if by_silos and not isinstance(X, Remote):
            if not isinstance(X, SiloData) or X.blocks is not None:
                raise TypeError(f"X must be a SiloData in memory, whose {_BY_SILOS}")
            silos = X
        trust_model = trust or "central"
        if trust_model not in ("central", "silo"):
            raise ValueError(f"trust must be 'central' or 'silo', got {trust!r}")
        colluding = None if colluding is None else whole_number("colluding", colluding, 0)
        shares = None if silos is None else Shares.of(silos.m, trust_model, colluding, party)
        return cls(silos, trust_model, shares)

    @property
    def m(self) -> int:
        """The number of those who add noise."""
        return 1 if self.silos is None else self.silos.m

    @property
    def factor(self) -> float:
        """The std of the noise of all over that of the noise that counts."""
        return math.sqrt(self.m / (1 if self.shares is None else self.m - self.shares.colluding))

    @property
    def declared(self) -> dict[str, int]:
        """What the certificate says of them."""
        declared = {} if self.silos is None else {"silos": self.m}
        return declared | ({} if self.shares is None else {"colluding": self.shares.colluding})

    def sizes(self, size: int, *, add_remove: bool) -> list[int]:
        """Return the public numbers of records, of each silo where it sends a message."""
        if self.silos is None or self.trust != "silo":
            return [size]
        return [size] * self.m if add_remove else self.silos.sizes.tolist()


@dataclass(frozen=True)
class _Released:
    """Noisy sums over the bins with these edges, their std, and what `release_pairs` returns."""

    edges: FloatArray
    sums: FloatArray
    std: float
    pairs: tuple[float, float, float, float] | None


@dataclass(frozen=True)
class _Scoring:
    """What is scored and how; `size` is that of all silos, or, to add or remove, public."""

    records: Records
    threshold: float
    bins: int | None
    confidence: float
    size: int
    add_remove: bool

    def released(
        self, run: ChargedReleases, noise: _Noise, rng: int | NoiseStream | None
    ) -> _Released:
        """Release the pairs where they can be counted, and the sums."""
        records, one = self.records, noise.silos is None and not self.add_remove
        with_pairs = records.two and one and 2 <= self.size <= MOST_RECORDS
        mu_pairs, mu_sums = 0.0, run.record_mu
        if with_pairs:
            mu_pairs, mu_sums = split_budget(run.record_mu, (_PAIRS, 1.0 - _PAIRS), (1, 1))
        _warn_of_noise(self.size, run.record_mu / noise.factor)
        bins, pairs = self.bins, None
        most = records.dim(_MOST + 1 if bins is None else bins + 1) + 2
        with run.charged(EVALUATE, noise.m * most, rng) as channel:
            if with_pairs:
                pairs = release_pairs(channel, records.predicted, records.y == 1, mu_pairs)
            if bins is None:
                positives = 0.25 * self.size if pairs is None else pairs[1]
                per_bin = (_PER_BIN if with_pairs else _PER_BIN_WITHOUT_PAIRS) * noise.factor
                bins = 2 * (int(min(max(positives * mu_sums / per_bin, _FEWEST), _MOST)) // 2)
            edges = edges_of(bins, self.threshold)
            silos = noise.silos
            offsets = [0, len(records.y)] if silos is None else silos.offsets.tolist()
            sizes = noise.sizes(self.size, add_remove=self.add_remove)
            sums, std = records.sums(edges).release(channel, offsets, sizes, mu_sums)
        return _Released(edges, sums, std, pairs)

    def certificate(
        self, run: ChargedReleases, noise: _Noise, released: _Released, model: Any
    ) -> Certificate:
        """Return the certificate of what was released of the scores of a model."""
        records, own_model = self.records, isinstance(model, SolverResult)
        return run.certificate(
            {
                "evaluated": records.task,
                "size": self.size,
                **records.declared(self.threshold, len(released.edges) - 1),
                **noise.declared,
            },
            model=model.digest if own_model else None,
            sources={"target_bound": NOT_STATED} if records.task == "regression" else {},
            notes=(
                *(HELD_OUT, *size_notes(self.size if self.add_remove else None)),
                *(() if own_model else (ROW_WISE,)),
            ),
        )

    def evaluation(self, released: _Released, privacy: Certificate) -> Evaluation:
        """Return the scores that follow from what was released."""
        if self.records.task == "regression":
            figures = Residuals(self.records.bound, released.std)
            scores = figures.with_intervals(released.sums, self.size, self.confidence)
            return Evaluation(scores, self.confidence, privacy)
        return self._of_risks(released, privacy)

    def _of_risks(self, released: _Released, privacy: Certificate) -> Evaluation:
        edges, pairs, confidence = released.edges, released.pairs, self.confidence
        n = None if self.add_remove else self.size
        stds = None if pairs is None else pairs[2:]
        figures = Binned(edges, released.std, self.threshold, n, stds)
        B, K, risks = len(edges) - 1, len(self.records.classes), self.records.risks
        binned, counts = released.sums[: 3 * B + 2], released.sums[3 * B + 2 :]
        table = figures.table_of(binned, None if pairs is None else pairs[:2])
        total = n or max(round(float(table.cells.sum())), 1)
        simulate = partial(figures.simulated, table, total)
        error = {"calibration_error": figures.calibration_error(table)}
        found = figures.scores(table)
        scores = with_intervals(found, simulate, confidence, error)
        # The spread at an error of 0, where no distance is negative, is another one.
        if found["calibration_error"] <= figures.error_of_right_risks(table, total, confidence):
            scores["calibration_error"] = replace(scores["calibration_error"], low=0.0)
        curve, rates = figures.shown_curve(table, confidence) if risks else (None, None)
        if K > 2:
            scores = {name: scores[binary] for name, binary in _OF_CLASSES.items()}
            # Of several classes the Brier score is up to 2.
            scores["brier"] = Score(*(2.0 * part for part in astuple(scores["brier"])))
            return Evaluation(scores, confidence, privacy, curve, None, counts.reshape(K, K), rates)
        if not risks:
            scores = {name: scores[name] for name in _WITHOUT_RISKS}
        first = int(np.searchsorted(edges, self.threshold))
        sides = table.cells[:, :first], table.cells[:, first:]
        confusion = np.column_stack([side.sum(axis=1) for side in sides])
        return Evaluation(scores, confidence, privacy, curve, figures.roc(table), confusion, rates)


def _warn_of_noise(n: int, mu: float) -> None:
    """Warn where the noise hides the scores of so many records, by public numbers alone."""
    if n * mu < _ENOUGH:
        std = min(_STD_THERE * _ENOUGH / (n * mu), 0.5)
        warn(
            f"scores of {n} records will be mostly noise: at this budget that of the accuracy has "
            f"a standard deviation of about {std:.2g}, and {_STD_THERE:g} with "
            f"{math.ceil(_ENOUGH / mu)} records; take more records or a larger budget",
            UserWarning,
        )


def _check_model(model: Any, neighbours: str) -> None:
    """Raise ValueError for a model that has no scores here, or none with these neighbours."""
    oracle = getattr(getattr(model, "result_", model), "oracle", None)
    if isinstance(oracle, DiscreteHazards):
        raise ValueError(
            "model must be of classes or of real targets, got hazards of intervals: with all "
            "records in one place dpkern.evaluation.concordance_index releases the concordance of "
            "model.predict(X) and the times"
        )
    if oracle is not None and neighbours == "add_remove":
        raise ValueError(
            f"neighbours must be 'replace_one' for the model {oracle.name!r}, whose predictions of "
            "a record are rounded by how many others there are, got 'add_remove'"
        )


def _check_study(study: Remote, model: Any, y: object, classes: object) -> None:
    """Raise ValueError unless the study of a federation states this model."""
    if y is not None or classes is not None:
        raise ValueError("y and classes must be None beside a Federation: its study has them")
    if study.model is None or getattr(model, "digest", None) != study.model.digest:
        stated = "no" if study.model is None else "another"
        raise ValueError(
            f"model must be that of the study, which states {stated} model: write it as "
            '[data] model = "model.npz" in the study of all parties'
        )


def agreed_arguments(model: SolverResult, **given: Any) -> dict[str, Any]:
    """Return the arguments that the parties of a study agree on, of those of `evaluate`."""
    if given["target_bound"] is None and model.classes is None:
        given["target_bound"] = bound_of(model)
    return {name: value for name, value in given.items() if value is not None}
