"""What all estimators share: parameters, the way from (X, y) to a solver, and its result."""

from __future__ import annotations  # help() then shows type aliases by name

import inspect
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Self, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from dpkern._numbers import LARGEST, count, did_you_mean, is_number, not_negative
from dpkern._typing import FloatArray
from dpkern.data import SiloData, is_sparse
from dpkern.data.blocks import Batch, data_in_blocks, placed
from dpkern.data.dask_parts import computed, empty_like, in_parts, is_dask, parts_of
from dpkern.data.frames import frame_matrix, is_frame, is_numeric, refuse_shuffled
from dpkern.data.labels import (
    LABELS_READ,
    declared_labels,
    labels,
    log_exposures,
    plain_labels,
    refuse_spellings,
    values_of_records,
)
from dpkern.data.validation import FeatureRange, RowOptions, TargetBound, refuse_misread
from dpkern.privacy import Budget, Certificate
from dpkern.privacy.accountant.accountant import Accountant
from dpkern.privacy.certificate.certificate import READ
from dpkern.solvers import SOLVERS, SolverResult, solve
from dpkern.solvers.base.options import SHARED, entries, entry, sections

# What users of scikit-learn would look for, and why it is not there.
_REFUSED = {
    "class_weight": "DPLogisticRegression and DPLinearSVC take public weights of two classes",
    "warm_start": "a fit from the last one's model releases more about records that both have seen "
    "than its certificate says",
}
_ROW_BOUND = 1.0

MODEL_IN_MEMORY = (
    "X must be in memory for more than two classes, ordered ones, hazards and networks, got one of "
    "Dask: pass X.compute() and y.compute(), of a part that fits"
)

_Estimator = TypeVar("_Estimator", bound=type)


def documented(cls: _Estimator) -> _Estimator:
    """Complete the documentation of a class by what its bases and solvers say of parameters.

    Its signature is that of __init__, not of __new__.
    """
    made = cast(Any, cls)  # whose attributes are set
    bases = [base for base in made.__mro__ if issubclass(base, PrivateEstimator)]
    described = {name: (option.kind, option.doc) for name, option in SHARED.items()}
    for base in reversed(bases):
        described |= entries(sections(base)["Parameters"])
    signature = inspect.signature(made.__init__)
    parameters = [p for name, p in signature.parameters.items() if name != "self"]
    own = [name for base in bases[:-1] for name in entries(sections(base)["Parameters"])]
    names = dict.fromkeys(["epsilon", "delta", *own, *(p.name for p in parameters)])
    defaults = {p.name: p.empty if p.default is None else p.default for p in parameters}
    _, title, notes = inspect.cleandoc(cls.__doc__ or "").partition("\n\nNotes\n")
    attributes = [sections(base).get("Attributes", "") for base in bases]
    made.__doc__ = "\n".join(
        [
            *(sections(cls)[""], "", "Parameters", "----------"),
            *(entry(name, *described.get(name, ("", "")), defaults[name]) for name in names),
            *("", "Attributes", "----------", *filter(None, attributes)),
        ]
    )
    made.__doc__ += f"{title}{notes}"
    made.__signature__ = signature.replace(parameters=parameters)
    return cls


def with_errors(inference: object) -> dict[str, object]:
    """Return the argument of `dpkern.solve`, which no solver by itself has."""
    return {} if inference is False else {"inference": inference}


def strength(name: str, value: object, *, most: float = LARGEST) -> float:
    """Return a penalty's strength; raise ValueError for one beyond what solvers take."""
    number = not_negative(name, value)
    if number > most:
        raise ValueError(f"{name} must be between 0 and {most:.3g}, got {number!r}")
    return number


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateEstimator(BaseEstimator, ABC):
    """Parameters that all estimators have, and their fit.

    A class states the public options of its data by `_options`, the arguments of its solver by
    `_model`, and its attributes by `_set_fitted`.

    Parameters
    ----------
    epsilon : float
        Budget of one fit.
    delta : float
        It should be well below 1 / (number of records).
    row_bound : float, optional
        Public bound of the l2 norm of a row, the constant of the intercept included; longer rows
        are scaled down to it. By default that of rows within `feature_range`, and 1 without one.
    feature_range : pair (lo, hi), or mapping of names of columns to pairs, optional
        Public bounds of the features, each a number or one per feature, which are mapped to
        [-1, 1]: (0, 1), ([0, 18], [1, 95]), or of a frame {"smoker": (0, 1), "age": (18, 95)}.
        They must not be taken from the records.
    fit_intercept : bool
        Whether the model has a constant term.
    solver : str
        A solver of `dpkern.solvers`; "auto" takes the one that `dpkern.plan` puts first.
    solver_params : dict, optional
        Further arguments of the solver, such as {"rounds": 100}: see `dpkern.solve`.
    max_records : int, optional
        With `person` in fit, the largest number of records of one person: the first ones are used.
        Without them the certificate is about one row of X: a record that a bootstrap
        (BaggingClassifier) or oversampling repeats is in several rows, and less protected.
    max_weight : float, optional
        Public bound of the sample weights: larger ones count as this, and the loss of a record is
        multiplied by sample_weight / max_weight, which no neighbour can make larger than 1.
    accountant : Accountant, optional
        A budget over several fits: it is charged before a fit releases anything, or refuses it.
        Clones share it, so that every fit of a search or of a cross-validation is charged.
    random_state : int, RandomState or None
        None draws the noise from the operating system. Everything else makes fits reproducible,
        for tests; the certificate then says that they are not private.
    n_jobs : int, optional
        Number of threads; None and -1 mean the cores available to the process. Models do not
        depend on it.
    verbose : bool
        Show a progress bar.

    Attributes
    ----------
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        Of a frame whose columns all have names.
    n_iter_ : int
        Number of released aggregations.
    privacy_ : Certificate
        The guarantee of the fit.
    result_ : SolverResult
        What the solver returned: parameters, public history, `save`.
    """

    epsilon: float = field(default=1.0, kw_only=False)
    delta: float = field(default=1e-6, kw_only=False)
    row_bound: float | None = None
    feature_range: FeatureRange = None
    clip: float | str = "auto"
    fit_intercept: bool = True
    solver: str = "auto"
    solver_params: dict[str, Any] | None = None
    trust: str = "central"
    neighbours: str = "replace_one"
    public_size: Any = None
    max_records: int | None = None
    max_weight: float | None = None
    accountant: Accountant | None = None
    random_state: Any = None
    n_jobs: int | None = None
    verbose: bool = False

    # What fit takes for each record beside X and y; no named arguments of it, as scikit-learn's
    # checks compare fits with and without weights, which noise makes different.
    _metadata: ClassVar[tuple[str, ...]] = ("sample_weight",)
    __metadata_request__fit: ClassVar[dict[str, None]] = {"sample_weight": None}

    def __new__(cls, *args: Any, **parameters: Any) -> Self:
        for name in (parameters.keys() & _REFUSED.keys()) - cls.__dataclass_fields__.keys():
            raise TypeError(f"{cls.__name__} has no parameter {name!r}: {_REFUSED[name]}")
        return super().__new__(cls)

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        silos: ArrayLike | None = None,
        person: ArrayLike | None = None,
        **metadata: Any,
    ) -> Self:
        """Fit a private model.

        Parameters
        ----------
        X : array_like, CSR matrix or data frame of shape (n, n_features)
        y : array_like of shape (n,)
            Labels, or the real targets of a regression.
        silos : array_like of shape (n,), optional
            The silo of every record, numbers or strings; by default there is one silo.
        person : array_like of shape (n,), optional
            The id of every record's person: with `max_records`, persons are protected.
        **metadata
            sample_weight, array_like of shape (n,): the weights of the records, at least 0, with
            `max_weight`. exposure, of regressions with a log link: positive numbers, with which a
            record's mean is in proportion. Both are private.

        Returns
        -------
        self

        Raises
        ------
        TypeError, ValueError
            When an argument or a parameter is not as described; the message names it.

        Notes
        -----
        Of a Dask array or frame X, y and what has a value for each record must be of Dask too. One
        part at a time is computed, in every pass (docs/blocks.md), and predictions are Dask arrays.
        """
        data = self._data(X, y, silos, person, metadata)
        arguments = self._arguments(data)
        result = solve(self.solver, data, budget=self._budget(), rng=self._seed(), **arguments)
        return self._finish(result)

    def _data(
        self, X: Any, y: Any, silos: Any, person: Any, metadata: Mapping[str, Any]
    ) -> SiloData:
        """Return the checked records with what is public of them."""
        for name in metadata:
            if name in self._metadata:
                continue
            others = ", ".join(("X, y, silos, person", *self._metadata))
            reason = _REFUSED.get(name, f"it takes {others}")
            raise TypeError(f"{type(self).__name__}.fit has no argument {name!r}: {reason}")
        if not isinstance(self.fit_intercept, bool | np.bool_):
            raise TypeError(f"fit_intercept must be True or False, got {self.fit_intercept!r}")
        if metadata.get("sample_weight") is not None and self.max_weight is None:
            raise ValueError("max_weight must be given with sample_weight: its public bound")
        if is_dask(X):
            return self._data_in_parts(X, y, {"silos": silos, "person": person, **metadata})
        X, y = self._checked(X, y)
        self._check_targets(y)
        options = self._row_options(self._labels([y]), X, person, metadata)
        options["weight"] = self._weights(y, metadata.get("sample_weight"))
        if metadata.get("exposure") is not None:
            options["margin_offset"] = log_exposures(metadata["exposure"], len(y))
        if silos is None:
            return SiloData.split(X, y, 1, seed=0, **options)
        return SiloData.from_groups(X, y, labels(silos, len(y), name="silos"), **options)

    def _data_in_parts(self, X: Any, y: Any, beside: Mapping[str, Any]) -> SiloData:
        """Return the records of Dask, which computes one part at a time, in every pass."""
        validate_data(self, like := empty_like(X), skip_check_array=True)
        parts = parts_of(X, {"y": y}, beside)
        options = self._row_options(self._labels(self._targets_of(parts)), like, None, beside)
        if options["task"] == "multiclass":
            raise TypeError(MODEL_IN_MEMORY)
        source = partial(_batches, self, parts, itertools.count())
        return data_in_blocks(SiloData, source, cast(RowOptions, options))

    def _targets_of(self, parts: Sequence[Mapping[str, Any]]) -> Iterator[NDArray[Any]]:
        """Yield the targets of all parts once, without the rows."""
        for i, part in enumerate(computed({"y": part["y"]} for part in parts)):
            with placed(f"partition {i}"):
                if len(y := plain_labels(part["y"], "y")):
                    self._check_targets(y)
                    yield y

    def _checked(self, X: Any, y: Any, **how: Any) -> tuple[Any, NDArray[Any]]:
        """Return rows and targets as solvers take them, as scikit-learn converts them."""
        refuse_shuffled(X, y)
        if isinstance(y, np.ma.MaskedArray):
            raise TypeError("y must be an array without mask, got a masked one: fill or drop")
        if y is not None and getattr(y, "ndim", 1) == 1:
            y = plain_labels(y, "y")
        rows, y = _validated(self, X, y, y_numeric=isinstance(self, RegressorMixin), **how)
        return rows, y

    def _row_options(
        self, known: NDArray[Any] | None, X: Any, person: Any, metadata: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the options of `SiloData` that are public."""
        ranged = self.feature_range is not None and not is_sparse(X)
        names = getattr(self, "feature_names_in_", None)
        weighted = metadata.get("sample_weight") is not None  # as a search is with and without them
        return {
            **self._options(known),
            "row_bound": _ROW_BOUND if self.row_bound is None and not ranged else self.row_bound,
            "feature_range": self.feature_range,
            "feature_names": None if names is None else names.tolist(),
            "person": person,
            "max_records": self.max_records,
            "max_weight": self._largest_weight(weighted),
        }

    def _largest_weight(self, weighted: bool) -> float | None:
        """Return the public bound of weights, of records that have weights of their own or not."""
        return self.max_weight if weighted else None

    def _weights(self, y: NDArray[Any], sample_weight: Any) -> Any:
        """Return the weights of records with these targets, or None."""
        return sample_weight

    def _arguments(self, data: SiloData) -> dict[str, Any]:
        """Return the solver's arguments but its name, budget and noise."""
        if self.solver not in ("auto", *SOLVERS):
            close = did_you_mean(str(self.solver), SOLVERS)
            names = ", ".join(("auto", *SOLVERS))
            raise ValueError(f"solver must be one of {names}, got {self.solver!r}{close}")
        if self.n_jobs not in (None, -1):
            count("n_jobs", self.n_jobs)
        if not isinstance(self.solver_params, Mapping | None):
            kind = type(self.solver_params).__name__
            raise TypeError(f"solver_params must be a mapping of arguments, got {kind}")
        arguments = {
            "clip": self.clip,
            "trust": self.trust,
            "neighbours": self.neighbours,
            "public_size": self.public_size,
            "accountant": self.accountant,
            "n_threads": None if self.n_jobs == -1 else self.n_jobs,
            "progress": bool(self.verbose),
            **self._model(self._public_number(data)),
        }
        own = dict(self.solver_params or {})
        taken = [name for name in own if name in (*arguments, "budget", "rng")]
        if taken:
            raise ValueError(
                "solver_params must hold what the estimator has no parameter for, got "
                f"{', '.join(map(repr, taken))}"
            )
        return arguments | own

    def _public_number(self, data: SiloData) -> int:
        """Return the number of records on which a penalty may depend."""
        hidden = self.neighbours == "add_remove" and self.public_size is not None
        return int(np.sum(self.public_size)) if hidden else data.n

    def _budget(self) -> Budget:
        return Budget(epsilon=self.epsilon, delta=self.delta)

    def _seed(self) -> int | None:
        if self.random_state is None:
            return None
        try:
            state = check_random_state(self.random_state)
        except ValueError as error:
            raise ValueError(
                "random_state must be None, a RandomState or an integer from 0 to 2^32 - 1, got "
                f"{self.random_state!r}"
            ) from error
        return int(state.randint(2**31 - 1))

    def _check_targets(self, y: NDArray[Any]) -> None:
        """Raise for targets that no record can have."""

    def _labels(self, targets: Iterable[NDArray[Any]]) -> NDArray[Any] | None:
        """Return the labels, which are read from targets if they are not declared."""
        return None

    @abstractmethod
    def _options(self, known: NDArray[Any] | None) -> dict[str, Any]:
        """Return the public options of the data that depend on the task and its labels."""

    @abstractmethod
    def _model(self, n: int) -> dict[str, Any]:
        """Return the solver's arguments that say what is fitted to n records."""

    def _finish(self, result: SolverResult) -> Self:
        """Store the result of a fit."""
        self.result_ = result
        self.privacy_: Certificate = result.privacy
        self.n_iter_ = result.n_rounds
        self._set_fitted(result)
        return self

    @abstractmethod
    def _set_fitted(self, result: SolverResult) -> None:
        """Store attributes of the model."""

    def _rows(self, X: Any) -> Any:
        """Return rows to predict for, checked."""
        check_is_fitted(self)
        return _validated(self, X, reset=False)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateClassifier(ClassifierMixin, PrivateEstimator):
    """An estimator of labels.

    Parameters
    ----------
    classes : list, set or array of shape (K,), optional
        The labels that there may be, public, in any order: `classes_` has them sorted, as
        scikit-learn expects it, and of two the second of these is the positive one (`SiloData`
        takes the order as given). Otherwise they are read from y, which the certificate names as
        an assumption. VotingClassifier and StackingClassifier number the labels before they fit,
        so that classes must be range(K) in them.

    Attributes
    ----------
    classes_ : ndarray of shape (K,), sorted
    """

    classes: ArrayLike | None = None

    _two_as_several: ClassVar[bool] = False  # whether two classes are a case of several

    def _check_targets(self, y: NDArray[Any]) -> None:
        check_classification_targets(y)
        if self.classes is None:
            return
        are_strings = self._declared_classes().dtype.kind in "US"
        if are_strings != (y.dtype.kind in "OUS"):
            own, others = ("strings", "numbers")[:: 1 if are_strings else -1]
            raise TypeError(
                f"classes must be {others} as in y, got {own} (VotingClassifier and "
                "StackingClassifier number the labels before they fit: there it must be range(K))"
            )

    def _labels(self, targets: Iterable[NDArray[Any]]) -> NDArray[Any]:
        if self.classes is not None:
            return self._declared_classes()
        found = [np.unique(y) for y in targets]
        read = np.unique(np.concatenate(found)) if found else np.empty(0)
        refuse_spellings(read)
        return read

    def _options(self, known: NDArray[Any] | None) -> dict[str, Any]:
        found = cast(NDArray[Any], known)
        if len(found) < 2:
            raise ValueError(
                f"y must hold two classes at least, got {len(found)} class: classes= names all "
                "that there may be"
            )
        self.classes_: NDArray[Any] = found
        if not self._is_several():
            return {"task": "classification", "classes": found, "intercept": self.fit_intercept}
        if not self.__sklearn_tags__().classifier_tags.multi_class:
            raise ValueError(
                f"Only binary classification is supported by {type(self).__name__}, got "
                f"{len(found)} classes"
            )
        if not self.fit_intercept:
            raise ValueError("fit_intercept must be True for several classes, got False")
        # Models of several classes have constants of their own.
        return {"task": "multiclass", "classes": found, "intercept": False}

    def _declared_classes(self) -> NDArray[Any]:
        """Return the declared labels in the order of `classes_`."""
        return np.sort(declared_labels(self.classes))

    def _is_several(self) -> bool:
        return len(self.classes_) > 2 or self._two_as_several

    def _finish(self, result: SolverResult) -> Self:
        if self.classes is None:
            notes = (*result.privacy.notes, LABELS_READ)
            sources = result.privacy.sources | {"labels": READ}
            result = replace(result, privacy=replace(result.privacy, notes=notes, sources=sources))
        return super()._finish(result)

    @in_parts
    def decision_function(self, X: ArrayLike) -> FloatArray:
        """Return decision values, shape (n,) for two classes and (n, K) for K.

        They are log odds, or logits, where `result_.calibration` has a line from the scores
        ``X @ coef_.T + intercept_`` to them; `result_.coefficients()` are coefficients of these.
        """
        rows = self._rows(X)
        z = self.result_.decision_function(rows)
        return z[:, 1] - z[:, 0] if z.ndim == 2 and len(self.classes_) == 2 else z

    @in_parts
    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the predicted labels, shape (n,)."""
        z = self.decision_function(X)
        return self.classes_[z.argmax(axis=1) if z.ndim == 2 else (z > 0.0).astype(np.intp)]

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Return the accuracy, for which all predictions are in memory; not private."""
        found = np.asarray(self.predict(X))
        return float(accuracy_score(np.asarray(y), found, sample_weight=sample_weight))


class WithProbabilities(PrivateClassifier):
    """A classifier with probabilities of its classes."""

    @in_parts
    def predict_proba(self, X: ArrayLike) -> FloatArray:
        """Return the probabilities of the classes, shape (n, K)."""
        rows = self._rows(X)
        return self.result_.predict_proba(rows)

    @in_parts
    def predict_log_proba(self, X: ArrayLike) -> FloatArray:
        """Return the logarithms of `predict_proba`."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateRegressor(RegressorMixin, PrivateEstimator):
    """An estimator of real targets.

    Parameters
    ----------
    target_bound : float or pair (lo, hi), optional
        Public bound of |y|, or bounds of y, to which other targets are clipped; targets are taken
        to be of the size of 1 where it is not given, and a warning says so.
    """

    target_bound: TargetBound = None

    def _options(self, known: NDArray[Any] | None) -> dict[str, Any]:
        bound = self.target_bound
        return {"task": "regression", "target_bound": bound, "intercept": self.fit_intercept}

    @in_parts
    def predict(self, X: ArrayLike) -> FloatArray:
        """Return the predicted targets, shape (n,)."""
        rows = self._rows(X)
        return self.result_.predict(rows)

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Return R^2, for which all predictions are in memory; not private."""
        found = np.asarray(self.predict(X))
        return float(r2_score(np.asarray(y), found, sample_weight=sample_weight))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # of some hundred records little is learnt
        return tags


def _batches(
    estimator: PrivateEstimator, parts: Sequence[Mapping[str, Any]], passes: Iterator[int]
) -> Iterator[Batch]:
    """Yield the records of a pass as they are checked in memory, targets in the first one only."""
    first = next(passes) == 0
    for i, part in enumerate(computed(parts)):
        X, y, place = part["X"], part["y"], f"partition {i}"
        with placed(place):
            if len(y) != X.shape[0]:
                raise ValueError(
                    f"y must have an entry for each row of X, got {len(y)} for {X.shape[0]} rows"
                )
            if not len(y):
                continue
            X, y = estimator._checked(X, y, reset=False)
            if first:
                estimator._check_targets(y)
            groups = None if "silos" not in part else labels(part["silos"], len(y), name="silos")
            beside = {}
            weight = estimator._weights(y, part.get("sample_weight"))
            if weight is not None:
                beside["weight"] = values_of_records("weight", weight, len(y))
            if "exposure" in part:
                beside["margin_offset"] = log_exposures(part["exposure"], len(y))
            if "person" in part:
                beside["person"] = np.asarray(part["person"])
        yield Batch(X, y, groups, place, beside=beside)


def _refuse_text(X: Any) -> None:
    """Raise ValueError for text that is no number, or a number to Python alone, such as "1_0"."""
    columns: Any = ()
    if is_frame(X):
        columns = ((name, X[name]) for name in X.columns)
    elif not is_sparse(X) and (array := np.asarray(X)).dtype == object and array.ndim == 2:
        columns = enumerate(array.T)
    for name, column in columns:
        if is_numeric(column.dtype):
            continue
        for row, value in enumerate(np.asarray(column, dtype=object)):
            if isinstance(value, str | bytes) and not is_number(value):
                raise TypeError(
                    f"column {name!r} of X must be numbers, got text in row {row}: encode it "
                    "(one-hot, say) or drop it"
                )


def _validated(estimator: PrivateEstimator, *records: Any, **how: Any) -> Any:
    """Return records checked by scikit-learn, whose messages may quote values of them."""
    X, *rest = records
    refuse_misread(X)
    _refuse_text(X)
    if hasattr(X, "sparse") and any(dtype.fill_value != 0 for dtype in X.dtypes):
        X = X.sparse.to_dense()  # of pandas, whose other sparse frames become CSR
    try:
        return validate_data(
            estimator,
            X,
            *rest,
            accept_sparse="csr",
            dtype=[np.float64, np.float32],
            order="C",
            **how,
        )
    except (TypeError, ValueError) as error:
        said, kind = str(error), type(error)
    if is_frame(X):
        frame_matrix(X)  # names the column, if it is one
    if issubclass(kind, TypeError):
        raise TypeError(said if said.startswith("Sparse") else f"X must hold numbers: {said}")
    quoting = {
        "could not convert": "X must be a 2D array of numbers, got text",
        "Complex data not supported": "Complex data not supported: X and y must be real",
        "Expected 2D array": "X must be a 2D array, got one of another shape. Reshape your data by "
        "X.reshape(-1, 1) for one feature, X.reshape(1, -1) for one record",
    }
    for begin, message in quoting.items():
        if said.startswith(begin):
            raise ValueError(message)
    if said.startswith("Input X contains NaN"):
        raise ValueError(
            f"Input X contains NaN{_first_missing(X)}: fill gaps by public numbers, leave such "
            "columns out, or take a dpkern.Schema, whose columns may have missing values"
        )
    raise ValueError(said)


def _first_missing(X: Any) -> str:
    """Return where the first column of an array with a gap is, for an error."""
    if is_sparse(X):
        return ""
    return f" in column {int(np.isnan(np.asarray(X, np.float64)).any(axis=0).argmax())}"
