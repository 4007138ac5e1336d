"""What a model predicts for held-out records, and their labels."""

from __future__ import annotations  # help() then shows type aliases by name

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpkern._numbers import counted
from dpkern._typing import FloatArray, IntArray
from dpkern.data import SiloData
from dpkern.data.blocks import BlockRows
from dpkern.data.labels import declared_labels, target_bounds, targets
from dpkern.data.labels import labels as checked_labels
from dpkern.evaluation.sums import Sums, of_several_classes, of_targets, of_two_classes
from dpkern.solvers import SolverResult

_MOST_CLASSES = 100  # whose pairs are counted
_LARGEST_BOUND = 1e100  # of targets
_OFF = 1e-3  # sums of probabilities, in single precision too


@dataclass(frozen=True)
class Records:
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
    ) -> Records:
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
    ) -> Records:
        known = getattr(model, "classes", None) if isinstance(model, SolverResult) else None
        known = getattr(model, "classes_", None) if known is None else known
        if isinstance(model, SolverResult) and known is None:
            if classes is not None:
                raise ValueError("classes must be None for a model of real targets")
            if target_bound is None:
                target_bound = bound_of(model)
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
    def _of_targets(cls, model: Any, X: ArrayLike, y: ArrayLike, target_bound: Any) -> Records:
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

    def taken(self, rows: IntArray) -> Records:
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


def bound_of(model: SolverResult) -> tuple[float, float]:
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
