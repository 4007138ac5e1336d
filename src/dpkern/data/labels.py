"""What records have beside their rows: labels or targets, ids, weights and offsets of margins.

Messages about them name counts, never values.
"""

import math
import numbers
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpkern._numbers import counted, positive, real
from dpkern.data.frames import is_missing, refuse_shuffled
from dpkern.data.validation import (
    WIDTH_READ,
    Float64Array,
    Matrix,
    RowOptions,
    TargetBound,
    Task,
    blocks,
    has_width_read,
    not_finite,
    numeric_matrix,
    refuse_length,
)

MAX_CLASSES = 1 << 24  # far above any use: the list of labels is read in full
# What labels of Python objects are, the narrowest kind first.
_KINDS: tuple[tuple[Any, type], ...] = (
    *((str, str), (bytes, bytes), (bool | np.bool_, bool)),
    *((numbers.Integral, np.int64), (numbers.Real | Decimal, np.float64)),
)

_OF_RECORDS = ("weight", "margin_offset")  #: options with a value for each record
BESIDE_ROWS = ("row_norms", "record_weight", "margin_offset")  #: attributes that have one, or None

LABELS_READ = "the labels were read from y and assumed to be public; classes= declares them"
TASK_READ = (
    "that y has more than two values, so a regression, was read from y and assumed to be public; "
    "task='regression' declares it"
)


def records(X: ArrayLike, y: ArrayLike) -> tuple[Matrix, NDArray[Any]]:
    refuse_shuffled(X, y)
    rows = numeric_matrix(X)
    return rows, labels(y, rows.shape[0])


def labels(y: ArrayLike, n: int, name: str = "y") -> NDArray[Any]:
    """Return y as an array of n finite numbers, booleans or strings."""
    if isinstance(y, np.ma.MaskedArray):
        raise TypeError(f"{name} must be an array without mask, got a masked one: fill or drop")
    refuse_length(name, y, range(n, n + 1))
    y = plain_labels(y, name)
    if y.dtype.kind not in "fiubUS":
        raise TypeError(
            f"{name} must be all real numbers or all strings, without missing values, got dtype "
            f"{y.dtype}"
        )
    if y.shape != (n,):
        raise ValueError(f"{name} must have shape ({n},), one per row of X, got {y.shape}")
    if y.dtype.kind == "f":
        bad = n - int(np.count_nonzero(np.isfinite(y)))
        if bad:
            raise ValueError(f"{name} must be finite, got {not_finite(bad)} in {n} records")
    return y


def plain_labels(y: Any, name: str) -> NDArray[Any]:
    """Return labels as an array: those of Python objects and of nullable types as what they are."""
    given = np.asarray(y)
    mixed = given.dtype.kind in "US" and isinstance(y, list | tuple)  # NumPy makes text of numbers
    if (given.dtype.kind not in "OT" and not mixed) or given.ndim != 1:
        return given
    objects = np.array(y, dtype=object) if mixed else given.astype(object)
    for kind, dtype in _KINDS:
        if all(isinstance(v, kind) for v in objects.flat):
            try:
                return objects.astype(dtype)
            except OverflowError:
                raise ValueError(
                    f"{name} must fit 64 bits where it is whole numbers, got larger ones: pass text"
                ) from None
    missing = sum(map(is_missing, objects.flat))
    found = "both, or other objects"
    if missing:
        found = f"{counted(missing, 'missing value')} in {objects.size} records: drop these records"
    raise TypeError(
        f"{name} must be all real numbers or all strings, without missing values, got {found}"
    )


def targets(
    y: NDArray[Any], task: Task | None, classes: ArrayLike | None = None
) -> tuple[Float64Array, Task, NDArray[Any] | None]:
    """Return y as a new float64 array, the task, and the labels of a classification."""
    if task not in (None, "classification", "regression", "multiclass"):
        raise ValueError(
            f"task must be 'classification', 'regression' or 'multiclass', got {task!r}"
        )
    if classes is not None:
        return _known_targets(y, task, classes)
    if task == "multiclass":
        raise ValueError("classes must be the public labels where task is 'multiclass', got None")
    if task == "regression":
        if y.dtype.kind in "US":
            raise TypeError("y must be real numbers for regression, got strings")
        return y.astype(np.float64), task, None
    two = _at_most_two(y)
    if two is not None and len(two) == 2:
        refuse_spellings(two)
        return np.where(y == two[1], 1.0, -1.0), "classification", two
    if task is None and two is None and y.dtype.kind == "f":
        return y.astype(np.float64), "regression", None
    found, cure = "one distinct value", "name both by classes=(negative, positive)"
    if two is None:
        found = "more than two distinct values (is each spelt in one way?)"
        cure = "more labels need task='multiclass' and classes"
    numbers_too = "" if y.dtype.kind in "US" else "; whole-number targets need task='regression'"
    raise ValueError(
        f"y must hold exactly two labels for classification, got {found}: {cure}{numbers_too}"
    )


def refuse_spellings(found: NDArray[Any]) -> None:
    """Raise if distinct labels, read from records, are the same apart from case and spaces."""
    texts = [label for label in found.tolist() if isinstance(label, str)]
    plain = {text.strip().casefold() for text in texts}
    if len(plain) < len(texts):
        raise ValueError(
            f"y must spell every label in one way, got {len(texts)} labels of which {len(plain)} "
            "differ by more than case and spaces: clean y, as by y.str.strip().str.lower() in "
            "pandas, or name the labels by classes"
        )


def clip_targets(y: Float64Array, task: Task, target_bound: TargetBound) -> tuple[float, float]:
    """Clip the targets in place and subtract the middle of the bounds.

    Returns
    -------
    bound, middle : float
        Half of the distance of the bounds, which are -target_bound and target_bound for a number,
        and their middle; infinity and 0 without bounds.
    """
    if target_bound is None:
        return math.inf, 0.0
    if task != "regression":
        raise ValueError(f"target_bound must be None where task is {task!r}, got {target_bound!r}")
    bound, middle = target_bounds(target_bound)
    with np.errstate(over="ignore"):  # what is far beyond the bounds is clipped to them
        y -= middle
    np.clip(y, -bound, bound, out=y)
    return bound, middle


def target_bounds(target_bound: float | Sequence[float]) -> tuple[float, float]:
    """Return half of the distance of public bounds, a number or a pair (lo, hi), and the middle."""
    if not isinstance(target_bound, Sequence | np.ndarray) or isinstance(target_bound, str):
        return positive("target_bound", target_bound), 0.0
    if len(target_bound) != 2:
        raise ValueError(f"target_bound must be a number or (lo, hi), got {target_bound!r}")
    lo, hi = (real("target_bound", value) for value in target_bound)
    bound = 0.5 * hi - 0.5 * lo
    if not 0.0 < bound < math.inf:
        raise ValueError(
            f"target_bound must be (lo, hi) with lo < hi, both finite, got {target_bound!r}"
        )
    return bound, 0.5 * lo + 0.5 * hi


def _known_targets(
    y: NDArray[Any], task: Task | None, classes: ArrayLike
) -> tuple[Float64Array, Task, NDArray[Any]]:
    """Return the targets for labels that are declared public."""
    if task == "regression":
        raise ValueError("classes must be None where task is 'regression', got labels")
    known = declared_labels(classes)
    if task != "multiclass" and len(known) != 2:
        raise ValueError(
            f"classes must be two labels unless task is 'multiclass', got {len(known)}"
        )
    if (known.dtype.kind in "US") != (y.dtype.kind in "US"):
        own, others = ("strings", "numbers")[:: 1 if known.dtype.kind in "US" else -1]
        raise TypeError(f"classes must be {others} as in y, got {own}")
    places = _number(y, known).astype(np.float64)
    if task == "multiclass":
        return places, task, known
    return 2.0 * places - 1.0, "classification", known


def declared_labels(classes: Any) -> NDArray[Any]:
    """Return public labels in the given order, and those of a set sorted."""
    if isinstance(classes, set | frozenset):
        kinds = {isinstance(label, str) for label in classes}
        classes = sorted(classes) if len(kinds) == 1 else list(classes)
    listed = isinstance(classes, Sequence) or hasattr(classes, "__array__")
    listed = listed and not isinstance(classes, str | bytes) and getattr(classes, "ndim", 1) == 1
    if listed:
        refuse_length("classes", classes, range(2, MAX_CLASSES + 1))
    if not listed or any(isinstance(label, list | tuple | np.ndarray) for label in classes):
        raise ValueError(
            "classes must be the list of labels, such as ['no', 'yes'] or range(10), got "
            f"{classes!r}"
        )
    known = labels(classes, len(classes), name="classes")
    if len(np.unique(known)) < len(known):
        raise ValueError(f"classes must hold every label once, got {known.tolist()}")
    return known


def _number(y: NDArray[Any], known: NDArray[Any]) -> NDArray[np.intp]:
    """Return the index in `known` of each label; one among those in y depends on other records."""
    if len(known) == 2:
        number = (y == known[1]).astype(np.intp)
        other = int(np.count_nonzero((y != known[0]) & (y != known[1])))
    else:
        order = np.argsort(known)
        position = np.searchsorted(known, y, sorter=order)
        number = order[np.minimum(position, len(known) - 1)]
        other = int(np.count_nonzero(known[number] != y))
    if other:
        raise ValueError(f"y must hold labels of classes only, got {counted(other, 'other')}")
    return number


def _at_most_two(y: NDArray[Any]) -> NDArray[Any] | None:
    """Return the distinct values of y, sorted, or None if there are more than two."""
    second = y[:0]
    for rows in blocks(len(y), y.itemsize):
        others = y[rows][y[rows] != y[0]]
        second = others[:1] if not len(second) else second
        if np.any(others != second):
            return None
    return np.sort(np.concatenate((y[:1], second)))


def most_exact(dtype: np.dtype[Any]) -> float:
    """Return the number from which on floats of the dtype do not tell whole numbers apart."""
    return float(2.0 ** (np.finfo(dtype).nmant + 1))


def ids(values: ArrayLike, n: int, name: str) -> NDArray[Any]:
    """Return names of silos or persons; refuse floats that may stand for several of them."""
    found = labels(values, n, name)
    if found.dtype.kind == "f":
        joined = int(np.count_nonzero(np.abs(found) >= most_exact(found.dtype)))
        if joined:
            raise ValueError(
                f"{name} must be text or integers where floats do not tell them apart, got "
                f"{counted(joined, 'float')} of {most_exact(found.dtype):.0f} or more in {n} "
                "records: read the column as text"
            )
    return found


def record_weights(
    weight: ArrayLike | None, max_weight: float | None, n: int
) -> Float64Array | None:
    """Return weights in units of the largest one, or None without any."""
    if weight is None and max_weight is not None:
        raise ValueError(f"max_weight must be left out without weight, got {max_weight!r}")
    if weight is None:
        return None
    if max_weight is None:
        raise ValueError("max_weight must be given with weight: the public bound of a weight")
    values, most = values_of_records("weight", weight, n), positive("max_weight", max_weight)
    if negative := int(np.count_nonzero(values < 0.0)):
        raise ValueError(f"weight must be at least 0, got {negative} negative of {n}")
    return np.minimum(values, most) / most


def margin_offsets(margin_offset: ArrayLike | None, n: int) -> Float64Array | None:
    """Return offsets of margins as an array of their own."""
    return None if margin_offset is None else values_of_records("margin_offset", margin_offset, n)


def values_of_records(name: str, values: ArrayLike, n: int) -> Float64Array:
    """Return a finite number for each of n records, as a copy; errors show no entry."""
    given = np.asarray(values)
    if given.dtype.kind not in "fiub":
        raise TypeError(f"{name} must be real numbers, got dtype {given.dtype}")
    if given.shape != (n,):
        raise ValueError(f"{name} must have shape ({n},), a number a record, got {given.shape}")
    copied = np.array(given, dtype=np.float64)
    if bad := int(np.count_nonzero(~np.isfinite(copied))):
        raise ValueError(
            f"{name} must be finite, got {bad} of {n} that are not: drop these records"
        )
    return copied


def log_exposures(exposure: ArrayLike, n: int) -> Float64Array:
    """Return the logs of exposures, as offsets of margins."""
    values = values_of_records("exposure", exposure, n)
    if bad := int(np.count_nonzero(values <= 0.0)):
        raise ValueError(f"exposure must be positive, got {bad} of {n} that are not: drop these")
    return np.log(values)


def in_order(options: RowOptions, order: NDArray[np.int64], n: int) -> RowOptions:
    """Return options with what belongs to records, of n, in the order of the rows."""
    given = cast(dict[str, Any], options)
    moved = {
        name: values_of_records(name, given[name], n)[order]
        for name in _OF_RECORDS
        if given.get(name) is not None
    }
    return cast(RowOptions, given | moved)


def joined_weights(options: RowOptions, sizes: Sequence[int]) -> RowOptions:
    """Return options with what belongs to records joined from one sequence per silo."""
    given = cast(dict[str, Any], options)
    found = {
        name: _joined(name, given[name], sizes)
        for name in _OF_RECORDS
        if given.get(name) is not None
    }
    return cast(RowOptions, given | found)


def _joined(name: str, silos: Any, sizes: Sequence[int]) -> Float64Array:
    given = list(silos)
    if len(given) != len(sizes):
        raise ValueError(
            f"{name} must hold the values of the rows of each of {len(sizes)} silos, got "
            f"{len(given)}"
        )
    pairs = zip(given, sizes, strict=True)
    return np.concatenate([values_of_records(name, own, n) for own, n in pairs])


def notes_on_records(stated: str | None, task: str, classes: object, X: object) -> tuple[str, ...]:
    """Return the notes on the task, stated and as it is, on `classes` if None, and on X."""
    width = (WIDTH_READ,) if has_width_read(X) else ()
    if classes is not None or stated == "regression":
        return width
    return (TASK_READ if task == "regression" else LABELS_READ, *width)
