"""Scores of a model on held-out records, released by one or two sums."""

from __future__ import annotations  # help() then shows type aliases by name

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpkern._html import table
from dpkern._numbers import count as whole_number
from dpkern._numbers import counted, probability
from dpkern._text import aligned, rounded_up
from dpkern._typing import FloatArray, IntArray
from dpkern._warn import warn
from dpkern.data import SiloData
from dpkern.data.blocks import BlockRows
from dpkern.data.labels import declared_labels, target_bounds, targets
from dpkern.data.labels import labels as checked_labels
from dpkern.data.persons import kept_rows
from dpkern.evaluation.figures import Binned, Residuals, Score, with_intervals
from dpkern.evaluation.sums import Sums, edges_of, of_several_classes, of_targets, of_two_classes
from dpkern.models.hazards import DiscreteHazards
from dpkern.party import Remote
from dpkern.privacy import Budget, Certificate, NoiseStream
from dpkern.privacy.accountant.accountant import Accountant
from dpkern.privacy.certificate.identity import NOT_STATED
from dpkern.privacy.charged import ChargedReleases
from dpkern.privacy.guarantees.budget import split_budget
from dpkern.privacy.mechanisms.channel import Shares
from dpkern.privacy.mechanisms.concordance import MOST_RECORDS, release_pairs
from dpkern.solvers import SolverResult

_PAIRS = 0.45  # share of mu^2 of the pairs
_MOST_CLASSES = 100  # whose pairs are counted
_MOST_BINS = 1000  # whose scores are simulated in memory
# Thresholds and confidences are as far from 0 and 1; bounds of targets are as large at most.
_NEAREST, _LARGEST_BOUND = 1e-9, 1e100
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
PUBLIC_SIZE = (
    "add or remove: a declared number of records stands for that of the data, which is private; "
    "taken as public that there are fewer than 2^31"
)
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
_OFF = 1e-3  # sums of probabilities, in single precision too
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
    silos = _noisy_silos(X, trust, colluding)
    trust_model, party = trust or "central", None if silos is None else silos.party
    if trust_model not in ("central", "silo"):
        raise ValueError(f"trust must be 'central' or 'silo', got {trust!r}")
    colluding = None if colluding is None else whole_number("colluding", colluding, 0)
    shares = None if silos is None else Shares.of(silos.m, trust_model, colluding, party)
    run = ChargedReleases(
        budget,
        accountant,
        neighbours=neighbours,
        max_records=max_records,
        trust=trust_model,
        shares=shares,
        party=party,
    )
    threshold = _inner("threshold", threshold)
    confidence = _inner("confidence", confidence)
    if bins is not None and (bins := whole_number("bins", bins)) > _MOST_BINS:
        raise ValueError(f"bins must be at most {_MOST_BINS}, got {bins}")
    add_remove = neighbours == "add_remove"
    if add_remove != (public_size is not None):
        need = "given" if add_remove else "None"
        raise ValueError(f"public_size must be {need} with neighbours {neighbours!r}")
    if silos is not None or isinstance(X, Remote):
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
        records = _Records.of(model, X, y, classes, target_bound)
    if (kept := kept_rows(person, max_records, len(records.y))) is not None:
        records = records.taken(kept[0])
    n, m, honest = len(records.y), 1, 1
    if silos is not None:
        n, m, honest = silos.n, silos.m, 1 if shares is None else silos.m - shares.colluding
    if not n:
        raise ValueError("X must hold at least one record, got none")
    size = n if public_size is None else whole_number("public_size", public_size)
    offsets, sizes = [0, n] if silos is None else silos.offsets.tolist(), [size]
    if silos is not None and trust_model == "silo":
        sizes = [size] * m if add_remove else silos.sizes.tolist()
    with_pairs = records.two and not add_remove and silos is None and 2 <= n <= MOST_RECORDS
    mu_pairs, mu_sums = 0.0, run.record_mu
    if with_pairs:
        mu_pairs, mu_sums = split_budget(run.record_mu, (_PAIRS, 1.0 - _PAIRS), (1, 1))
    _warn_of_noise(size, run.record_mu / math.sqrt(m / honest))
    most = records.dim(_MOST + 1 if bins is None else bins + 1) + 2
    with run.charged(EVALUATE, m * most, rng) as channel:
        pairs = None
        if with_pairs:
            pairs = release_pairs(channel, records.predicted, records.y == 1, mu_pairs)
        if bins is None:
            positives = 0.25 * size if pairs is None else pairs[1]
            per_bin = _PER_BIN if with_pairs else _PER_BIN_WITHOUT_PAIRS
            per_bin *= math.sqrt(m / honest)  # all add noise, of which that of so many counts
            bins = 2 * (int(min(max(positives * mu_sums / per_bin, _FEWEST), _MOST)) // 2)
        edges = edges_of(bins, threshold)
        sums, std = records.sums(edges).release(channel, offsets, sizes, mu_sums)
    privacy = run.certificate(
        {
            "evaluated": records.task,
            "size": size,
            **records.declared(threshold, len(edges) - 1),
            **({} if silos is None else {"silos": m}),
            **({} if shares is None else {"colluding": shares.colluding}),
        },
        model=model.digest if isinstance(model, SolverResult) else None,
        sources={"target_bound": NOT_STATED} if records.task == "regression" else {},
        notes=(
            HELD_OUT,
            *((PUBLIC_SIZE,) if add_remove else ()),
            *(() if isinstance(model, SolverResult) else (ROW_WISE,)),
        ),
    )
    if records.task == "regression":
        figures = Residuals(records.bound, std)
        scores = figures.with_intervals(sums, size, confidence)
        return Evaluation(scores, confidence, privacy)
    public = None if add_remove else n
    return _of_risks(records, edges, threshold, sums, std, pairs, public, confidence, privacy)


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


def _noisy_silos(X: Any, trust: str | None, colluding: int | None) -> SiloData | None:
    """Return the data whose silos add the noise, or None where who has all records does."""
    party = X.party if isinstance(X, SiloData) else None
    if isinstance(X, Remote) or (party is None and trust != "silo" and colluding is None):
        return None
    if not isinstance(X, SiloData) or X.blocks is not None:
        raise TypeError(f"X must be a SiloData in memory, whose {_BY_SILOS}")
    return X


def agreed_arguments(model: SolverResult, **given: Any) -> dict[str, Any]:
    """Return the arguments that the parties of a study agree on, of those of `evaluate`."""
    if given["target_bound"] is None and model.classes is None:
        given["target_bound"] = _bound_of(model)
    return {name: value for name, value in given.items() if value is not None}


def _of_risks(
    records: _Records,
    edges: FloatArray,
    threshold: float,
    sums: FloatArray,
    std: float,
    pairs: tuple[float, float, float, float] | None,
    n: int | None,
    confidence: float,
    privacy: Certificate,
) -> Evaluation:
    stds = None if pairs is None else pairs[2:]
    figures = Binned(edges, std, threshold, n, stds)
    B, K = len(edges) - 1, len(records.classes)
    binned, counts = sums[: 3 * B + 2], sums[3 * B + 2 :]
    released = figures.table_of(binned, None if pairs is None else pairs[:2])
    total = n or max(round(float(released.cells.sum())), 1)
    simulate = partial(figures.simulated, released, total)
    error = {"calibration_error": figures.calibration_error(released)}
    found = figures.scores(released)
    scores = with_intervals(found, simulate, confidence, error)
    # The spread at an error of 0, where no distance is negative, is not that at the released one.
    if found["calibration_error"] <= figures.error_of_right_risks(released, total, confidence):
        scores["calibration_error"] = replace(scores["calibration_error"], low=0.0)
    curve, rates = figures.shown_curve(released, confidence) if records.risks else (None, None)
    if K > 2:
        scores = {name: scores[binary] for name, binary in _OF_CLASSES.items()}
        half = scores["brier"]  # of several classes the Brier score is up to 2
        doubled = (2.0 * half.value, 2.0 * half.low, 2.0 * half.high, 2.0 * half.noise_std)
        scores["brier"] = Score(*doubled)
        return Evaluation(scores, confidence, privacy, curve, None, counts.reshape(K, K), rates)
    if not records.risks:
        scores = {name: scores[name] for name in _WITHOUT_RISKS}
    first = int(np.searchsorted(edges, threshold))
    sides = released.cells[:, :first].sum(axis=1), released.cells[:, first:].sum(axis=1)
    confusion = np.column_stack(sides)
    return Evaluation(scores, confidence, privacy, curve, figures.roc(released), confusion, rates)


@dataclass(frozen=True)
class _Records:
    """What a model predicts for records, and their labels from 0, or targets.

    Of two classes `predicted` are risks of the positive one, of models without `risks` a function
    of the margin; of several they are probabilities (n, K).
    """

    task: str
    predicted: FloatArray
    y: NDArray[Any]
    classes: NDArray[Any]
    risks: bool = True
    middle: float = 0.0
    bound: float = 1.0

    @classmethod
    def of(
        cls,
        model: Any,
        X: ArrayLike | SiloData,
        y: ArrayLike | None,
        classes: ArrayLike | None,
        target_bound: float | tuple[float, float] | None,
    ) -> _Records:
        """Return predictions and labels of arrays, or of data, whose blocks are read once."""
        if not isinstance(X, SiloData):
            if y is None:
                cure = "pass the labels of the records, or a SiloData, which has them"
                if getattr(model, "schema", None) is not None:
                    cure = "pass model.schema.labels(X), the labels of a raw table"
                raise ValueError(f"y must be given, got None: {cure}")
            return cls._of_arrays(model, X, y, classes, target_bound)
        parts = [
            cls._of_arrays(model, part.X, _labels_of(part), classes, target_bound)
            for part in _parts_of(X, y)
        ]
        if (n := sum(len(part.y) for part in parts)) != X.n and X.party is None:
            raise ValueError(f"blocks must hold the same {X.n} records in every pass, got {n}")
        predicted, numbers = (
            np.concatenate(arrays)
            for arrays in zip(*((part.predicted, part.y) for part in parts), strict=True)
        )
        return replace(parts[0], predicted=predicted, y=numbers)

    @classmethod
    def _of_arrays(
        cls,
        model: Any,
        X: ArrayLike,
        y: ArrayLike,
        classes: ArrayLike | None,
        target_bound: float | tuple[float, float] | None,
    ) -> _Records:
        known = getattr(model, "classes", None) if isinstance(model, SolverResult) else None
        known = getattr(model, "classes_", None) if known is None else known
        if isinstance(model, SolverResult) and known is None:
            if classes is not None:
                raise ValueError("classes must be None for a model of real targets")
            if target_bound is None:
                target_bound = _bound_of(model)
            return cls._of_targets(model, X, y, target_bound)
        if known is not None and classes is not None:
            raise ValueError("classes must be None where the model says them")
        if target_bound is not None:
            if known is not None or classes is not None:
                raise ValueError("target_bound must be None for a model of classes")
            return cls._of_targets(model, X, y, target_bound)
        known = classes if known is None else known
        if known is None:
            raise ValueError(
                "classes must be given for a model without classes_, or target_bound for a "
                "model of real targets"
            )
        predicted, risks = _predicted(model, X)
        n = predicted.shape[0] if predicted.ndim else 0
        known = declared_labels(known)
        task: Any = "classification" if len(known) == 2 else "multiclass"
        numbers, _, found = targets(checked_labels(y, n), task, known)
        assert found is not None
        if task == "classification":
            if predicted.shape in {(n, 1), (n, 2)}:
                predicted = predicted[:, -1]
            numbers = 0.5 * (numbers + 1.0)
        elif len(found) > _MOST_CLASSES:
            raise ValueError(f"classes must be at most {_MOST_CLASSES} labels, got {len(found)}")
        _check("probabilities", predicted, (n,) if task == "classification" else (n, len(found)))
        return cls(task, np.clip(predicted, 0.0, 1.0), numbers.astype(np.int64), found, risks)

    @classmethod
    def _of_targets(cls, model: Any, X: ArrayLike, y: ArrayLike, target_bound: Any) -> _Records:
        half, middle = target_bounds(target_bound)
        if not 1.0 / _LARGEST_BOUND <= half <= _LARGEST_BOUND:
            raise ValueError(
                f"target_bound must be from {1.0 / _LARGEST_BOUND:g} to {_LARGEST_BOUND:g}, or "
                f"half of the distance of a pair, got {target_bound}"
            )
        predicted = _numbers(_function(model, "predict")(X))
        n = predicted.shape[0] if predicted.ndim else 0
        numbers = targets(checked_labels(y, n), "regression")[0]
        _check("predictions", predicted, (len(numbers),))
        return cls("regression", predicted, numbers, np.empty(0), True, middle, half)

    @property
    def two(self) -> bool:
        return self.task == "classification"

    def taken(self, rows: IntArray) -> _Records:
        """Return some of the records."""
        return replace(self, predicted=self.predicted[rows], y=self.y[rows])

    def dim(self, bins: int) -> int:
        """Return the number of sums with so many bins."""
        if self.task == "regression":
            return 4
        return 3 * bins + 2 + (0 if self.two else len(self.classes) ** 2)

    def sums(self, edges: FloatArray) -> Sums:
        if self.task == "regression":
            return of_targets(self.predicted, self.y, self.middle, self.bound)
        of = of_two_classes if self.two else of_several_classes
        return of(self.predicted, self.y, edges)

    def declared(self, threshold: float, bins: int) -> dict[str, Any]:
        """Return what the certificate says beside the task and the size."""
        if self.task == "regression":
            return {"target_bound": self.bound, "target_middle": self.middle}
        labels = [str(label) for label in self.classes]
        return {"labels": labels, "bins": bins, "threshold": threshold}


def _parts_of(data: SiloData, y: ArrayLike | None) -> Iterable[SiloData]:
    """Return the blocks of data, which are one where they are in memory."""
    if y is not None:
        raise ValueError("y must be None beside a SiloData, which has labels")
    if data.is_weighted or data.persons is not None:
        raise ValueError(
            "X must have neither weight, margin_offset nor person, got a SiloData with them: give "
            "arrays, and person= and max_records="
        )
    if data.blocks is None:
        return [data]
    if not isinstance(data.blocks, BlockRows):
        raise TypeError(
            "X must be read in this process for this, got records on a cluster: give those of "
            "dpkern.read_parquet or SiloData.from_blocks"
        )
    return data.blocks.blocks()


def _labels_of(data: SiloData) -> NDArray[Any]:
    """Return labels as they were given, or targets."""
    if data.classes is None:
        return np.asarray(data.y + data.transform.target_middle)
    y = data.y if data.task == "multiclass" else 0.5 * (data.y + 1.0)
    return np.asarray(data.classes[y.astype(np.intp)])


def _predicted(model: Any, X: ArrayLike) -> tuple[FloatArray, bool]:
    """Return probabilities, and whether they are: else a function of a model's margins."""
    if isinstance(model, SolverResult):
        if model.predicts_probabilities:
            return model.predict_proba(X), True
        z = model.decision_function(X)
        if z.ndim == 2:
            raise ValueError("model must predict probabilities where there are several classes")
        return 0.5 + 0.5 * z / (1.0 + np.abs(z)), False
    return _numbers(_function(model, "predict_proba")(X)), True


def _function(model: Any, method: str) -> Callable[[Any], Any]:
    function: Callable[[Any], Any] = getattr(model, method, model)
    if not callable(function) or isinstance(function, type):
        cure = ""
        if method == "predict_proba" and hasattr(model, "predict"):
            cure = (
                ", which predicts labels: for their accuracy, give a function that returns whether "
                "a row's label is the positive one (of several classes a row of 0 and one 1), and "
                "classes"
            )
        raise TypeError(
            f"model must be a SolverResult, have {method}, or be a function, got "
            f"{getattr(model, '__name__', type(model).__name__)}{cure}"
        )
    return function


def _numbers(predicted: Any) -> FloatArray:
    """Return predictions as real numbers; raise TypeError for any others."""
    try:
        values = np.asarray(predicted)
        if values.dtype.kind not in "biuf":
            raise TypeError
        return values.astype(np.float64)
    except (TypeError, ValueError) as error:  # values are private, and not shown
        raise TypeError("model must predict an array of real numbers, got others") from error


def _inner(name: str, value: float) -> float:
    """Return a probability that is not so near to 0 or 1 that a difference is no number."""
    number = probability(name, value)
    if not _NEAREST <= number <= 1.0 - _NEAREST:
        raise ValueError(f"{name} must be from {_NEAREST:g} to 1 - {_NEAREST:g}, got {number!r}")
    return number


def _bound_of(model: SolverResult) -> tuple[float, float]:
    bound = model.privacy.declared.get("target_bound")
    if not isinstance(bound, int | float):
        raise ValueError("target_bound must be given for a model that was fitted without one")
    middle = model.transform.target_middle
    return middle - bound, middle + bound


def _check(what: str, values: FloatArray, shape: tuple[int, ...]) -> None:
    if values.shape != shape:
        raise ValueError(f"model must predict {what} of shape {shape}, got {values.shape}")
    if not values.size:
        return
    bad = int(np.count_nonzero(~np.isfinite(values)))
    if bad:
        raise ValueError(f"model must predict finite {what}, got {counted(bad, 'other')}")
    if what == "probabilities" and (values.min() < -1e-6 or values.max() > 1.0 + 1e-6):
        raise ValueError("model must predict probabilities, from 0 to 1, got others")
    if values.ndim == 2 and np.abs(values.sum(axis=1) - 1.0).max() > _OFF:
        raise ValueError("model must predict probabilities that add up to 1, got others")
