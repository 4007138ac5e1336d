"""Records held by silos: `SiloData`.

Everything here but X and y is public: the offsets (hence the sizes of the silos), the label set,
the feature range and the row bound. In particular, the two labels are read from y and taken to be
public.
"""

from __future__ import annotations  # help() shows the names of types, not what they stand for

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpkern import kernels
from dpkern._numbers import count, positive
from dpkern.data.csr import Csr, is_sparse
from dpkern.data.frames import checked_names, column_names
from dpkern.data.gathering import gathered, joined
from dpkern.data.partition import NOTES, How, Seed, partition
from dpkern.data.transform import Transform
from dpkern.data.validation import (
    FeatureRange,
    Float64Array,
    Matrix,
    RowOptions,
    Task,
    affine,
    checked_matrix,
    checked_offsets,
    checked_options,
    frozen,
    frozen_matrix,
    labels,
    no_buffer,
    pair,
    records,
    refuse_non_finite,
    targets,
)


@dataclass(frozen=True, slots=True, init=False, repr=False, eq=False)
class SiloData:
    """Records sorted by silo, with the public facts about them.

    Parameters
    ----------
    X : ndarray or CSR matrix of shape (N, n_features), float32 or float64
        Features; row ``i`` belongs to silo ``j`` when ``offsets[j] <= i < offsets[j + 1]``. An
        ndarray must be C-contiguous and is never copied, memory maps included, so it must not
        change while this object is in use. The same holds for the values and indices of a CSR
        matrix (scipy.sparse, matrix or array, at most 2^31 - 1 columns), except that unsorted
        rows or entries stored twice, which are added up, cost a copy, and so do int64 indices.
    y : array_like of shape (N,)
        Two distinct labels of any kind (numbers, strings, booleans) for classification, those of
        `classes` for multiclass, real numbers for regression. Copied.
    offsets : array_like of shape (m + 1,), integer
        From 0 to N, strictly increasing: no silo is empty.
    intercept : bool, default=False
        Whether rows are followed by a virtual constant 1, the last coordinate of w. It counts in
        the row norm.
    row_bound : float, optional
        Public R > 0; rows longer than R are scaled to R.
    feature_range : pair (lo, hi), optional
        Public bounds, each a number or of shape (n_features,), mapped to [-1, 1]. Values outside
        are mapped by the same line, not clipped. Where X is sparse only the scale 2 / (hi - lo) is
        applied: 0 stays 0, and [lo, hi] goes to an interval of length 2 around or beside it. With
        an intercept this is the same set of models, written with another intercept.
    task : {"classification", "regression", "multiclass"}, optional
        Needed only where y leaves it open: by default two distinct labels are classification, a
        floating-point y with more is regression, and the rest raises. "multiclass" is for models
        with one output per class.
    classes : array_like of shape (K,), optional
        The K >= 2 labels that a record can have, public, in the order of the outputs: needed for
        "multiclass", since taken from the data, a label that one record alone has would number the
        labels of the others. Two of them, negative first, may be given for classification, and must
        be where y holds one label only. A label that is not among them is refused.
    feature_names : sequence of str, optional
        Public names of the columns of X, by default those of a data frame; models keep them.

    Attributes
    ----------
    X : ndarray or csr_array of shape (N, n_features)
        The same memory as was given, read-only. A csr_array has sorted rows and int32 ``indices``.
    y : ndarray of shape (N,), float64
        -1 and +1 for classification, places in `classes`, from 0, for multiclass, the targets for
        regression.
    offsets : ndarray of shape (m + 1,), int64
    sizes : ndarray of shape (m,), int64
    m, n, n_features, d : int
        Silos, records, columns of X, and entries of w (the features, then the intercept).
    intercept : bool
    row_bound : float
        ``inf`` when there is none.
    feature_range : pair of ndarrays of shape (n_features,), or None
    scale, shift : ndarray of shape (n_features,), float64, or None
        ``scale * x + shift`` maps [lo, hi] to [-1, 1]; shift is None for sparse X.
    task : str
    classes : ndarray of shape (2,) or (K,), or None
        The labels that -1 and +1 stand for, sorted, or `classes`; None for regression.
    feature_names : tuple of str, or None
    partition : str
        How records were given to silos: "given", or the ``how`` of `split`.
    partition_note : str or None
        What a certificate must say about a partition that depends on the labels.
    silo_names : tuple or None
        The groups of `from_groups`.
    transform : Transform
        What a model needs of this to predict.
    row_norms : ndarray of shape (N,), float64, or None
        Upper bounds of |[scale x + shift, 1]|, before the row bound. Kept when the arrays of X
        belong to this object, which has then copied them; None when they are the caller's, who
        could still write to them, and when the thread that made this object took denormals for
        zeros. Kernels that run in such a thread do not use them.

    Raises
    ------
    TypeError, ValueError
        When an argument is not as described. Messages about X and y name counts, never values.
    """

    X: Matrix
    y: Float64Array
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    m: int
    n: int
    n_features: int
    d: int
    intercept: bool
    row_bound: float
    feature_range: tuple[Float64Array, Float64Array] | None
    scale: Float64Array | None
    shift: Float64Array | None
    task: Task
    classes: NDArray[Any] | None
    feature_names: tuple[str, ...] | None
    partition: str
    partition_note: str | None
    silo_names: tuple[Any, ...] | None
    transform: Transform
    row_norms: Float64Array | None

    def __init__(
        self,
        X: Matrix,
        y: ArrayLike,
        offsets: ArrayLike,
        *,
        intercept: bool = False,
        row_bound: float | None = None,
        feature_range: FeatureRange = None,
        task: Task | None = None,
        classes: ArrayLike | None = None,
        feature_names: Sequence[str] | None = None,
    ) -> None:
        rows, copied = checked_matrix(X)
        n, n_features = rows.shape
        names = None if feature_names is None else checked_names(feature_names, n_features)
        y, task, known = targets(labels(y, n), task, classes)
        offsets = checked_offsets(offsets, n)
        if not isinstance(intercept, bool | np.bool_):
            raise TypeError(f"intercept must be True or False, got {intercept!r}")
        bounds, scale, shift = affine(feature_range, n_features, scale_only=isinstance(rows, Csr))
        refuse_non_finite(rows, scale, shift)
        transform = Transform(
            n_features,
            bool(intercept),
            math.inf if row_bound is None else positive("row_bound", row_bound),
            None if scale is None else tuple(scale.tolist()),
            None if shift is None else tuple(shift.tolist()),
        )
        self._set(
            X=frozen_matrix(rows),
            y=frozen(y),
            offsets=frozen(offsets),
            sizes=frozen(np.diff(offsets)),
            m=len(offsets) - 1,
            n=n,
            n_features=n_features,
            d=transform.d,
            intercept=transform.intercept,
            row_bound=transform.row_bound,
            feature_range=bounds,
            scale=scale,
            shift=shift,
            task=task,
            classes=known,
            feature_names=names,
            partition="given",
            partition_note=None,
            silo_names=None,
            transform=transform,
            row_norms=None,
        )
        if copied:
            self._keep_norms()

    def _keep_norms(self) -> None:
        """Compute the row norms once; for an object whose X nobody else can write to.

        A thread that takes denormals for zeros sees other rows than those that use the norms.
        """
        flushed = kernels.flushes_denormals()
        self._set(row_norms=None if flushed else frozen(kernels.glm_norms(self)))

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        # Not by __setstate__: early releases of Python 3.11 put that of dataclasses over it.
        return _restored, (type(self), [getattr(self, name) for name in self.__slots__])

    def _restore(self, state: list[Any]) -> None:
        self._set(**dict(zip(self.__slots__, state, strict=True)))
        # Pickling forgets that arrays are read-only, and the row norms must stay true of X.
        arrays = {k: v for k in self.__slots__ if isinstance(v := getattr(self, k), np.ndarray)}
        rows = Csr.checked(self.X) if is_sparse(self.X) else self.X
        self._set(**{k: frozen(v) for k, v in arrays.items()} | {"X": frozen_matrix(rows)})
        # Out-of-band pickles (protocol 5) and memory maps leave X in memory of somebody else's.
        parts = (rows.data, rows.indices, rows.indptr) if isinstance(rows, Csr) else (rows,)
        if self.row_norms is not None and not all(map(no_buffer, (*parts, self.row_norms))):
            self._set(row_norms=None)
        if self.row_norms is not None and self.scale is not None:
            # Another machine may round scale x + shift otherwise (without a fused operation), far
            # otherwise where the two cancel: those would be the norms of other rows.
            self._keep_norms()

    def __len__(self) -> int:
        return self.n

    def __repr__(self) -> str:
        parts = [f"m={self.m}", f"n={self.n}", f"d={self.d}", self.task]
        if self.intercept:
            parts.append("intercept")
        if math.isfinite(self.row_bound):
            parts.append(f"row_bound={self.row_bound:g}")
        if self.feature_range is not None:
            parts.append("feature_range")
        return f"SiloData({', '.join(parts)}, partition={self.partition!r})"

    def weights(self, weights: Literal["size", "uniform"] = "size") -> Float64Array:
        """Silo weights p_j of the objective, which sum to one.

        Parameters
        ----------
        weights : {"size", "uniform"}, default="size"
            n_j / N, or 1 / m.

        Returns
        -------
        ndarray of shape (m,), float64
        """
        if weights == "size":
            return self.sizes / self.n
        if weights == "uniform":
            return np.full(self.m, 1.0 / self.m)
        raise ValueError(f"weights must be 'size' or 'uniform', got {weights!r}")

    def each_alone(self, records: NDArray[np.int64]) -> Self:
        """The chosen records, copied, each in a silo of its own.

        Parameters
        ----------
        records : ndarray of shape (k,), int64
            Numbers of records, at least one.

        Returns
        -------
        SiloData
            With m = n = k; sums over its silos are those of single records.
        """
        rows = self.X[records]
        k = len(records)
        chosen = object.__new__(type(self))
        chosen._set(**{name: getattr(self, name) for name in self.__slots__})
        chosen._set(
            X=frozen_matrix(Csr.checked(rows) if is_sparse(rows) else rows),
            y=frozen(self.y[records]),
            offsets=frozen(np.arange(k + 1)),
            sizes=frozen(np.ones(k, dtype=np.int64)),
            m=k,
            n=k,
            silo_names=None,
            row_norms=None if self.row_norms is None else frozen(self.row_norms[records]),
        )
        return chosen

    @classmethod
    def from_silos(
        cls,
        silos: Sequence[tuple[ArrayLike, ArrayLike]],
        **options: Unpack[RowOptions],
    ) -> Self:
        """Join one (X, y) pair per silo; copies X once.

        X is float32 when every silo's is, and float64 otherwise. It is sparse, in CSR form, in
        every silo or in none. The options are those of the class.
        """
        given = [pair(j, silo) for j, silo in enumerate(silos)]
        if not given:
            raise ValueError("silos must hold one (X, y) pair per silo, got none")
        names = {column_names(X) for X, _ in given}
        if len(names) > 1:
            raise ValueError("X must have the same column names in every silo, got others")
        pairs = [records(X, y) for X, y in given]
        widths = {X.shape[1] for X, _ in pairs}
        if len(widths) > 1:
            raise ValueError(f"X must have as many features in every silo, got {sorted(widths)}")
        if len({y.dtype.kind in "US" for _, y in pairs}) > 1:
            raise TypeError("y must be strings in every silo or numbers in every silo, got both")
        if len({isinstance(X, Csr) for X, _ in pairs}) > 1:
            raise TypeError("X must be sparse in every silo or in none, got both")
        options = checked_options(options, names.pop(), widths.pop())
        data = cls(
            joined([X for X, _ in pairs]),
            np.concatenate([y for _, y in pairs]),
            np.cumsum([0, *(len(X) for X, _ in pairs)]),
            **options,
        )
        data._keep_norms()
        return data

    @classmethod
    def from_groups(
        cls,
        X: ArrayLike,
        y: ArrayLike,
        groups: ArrayLike,
        **options: Unpack[RowOptions],
    ) -> Self:
        """One silo for each distinct group, in sorted order; copies X once unless it is in that
        order.

        Parameters
        ----------
        X : array_like of shape (N, n_features)
        y : array_like of shape (N,)
        groups : array_like of shape (N,)
            The silo of each record, numbers or strings. Groups and their sizes are public.
        **options
            As for the class: intercept, row_bound, feature_range, task, classes, feature_names.
        """
        names, (given, y) = column_names(X), records(X, y)
        options = checked_options(options, names, given.shape[1])
        group = labels(groups, len(given), name="groups")
        if len(group) and np.all(group[1:] >= group[:-1]):
            first = np.append(0, 1 + np.flatnonzero(group[1:] != group[:-1]))
            silo_names, offsets, order = group[first], np.append(first, len(given)), None
        else:
            silo_names, silo = np.unique(group, return_inverse=True)
            offsets = np.cumsum([0, *np.bincount(silo)])
            order = np.argsort(silo, kind="stable")
        rows, copied = gathered(given, order)
        data = cls(rows, y if order is None else y[order], offsets, **options)
        if copied:
            data._keep_norms()
        data._set(silo_names=tuple(silo_names.tolist()))
        return data

    @classmethod
    def split(
        cls,
        X: ArrayLike,
        y: ArrayLike,
        m: int,
        *,
        how: How = "even",
        seed: Seed = None,
        min_size: int = 1,
        ratio: float | None = None,
        concentration: float | None = None,
        **options: Unpack[RowOptions],
    ) -> Self:
        """Give every record to exactly one of m silos, at random; copies X once.

        Parameters
        ----------
        X : array_like of shape (N, n_features)
        y : array_like of shape (N,)
        m : int
            Number of silos, at most N / min_size.
        how : {"even", "random", "two_groups", "by_label", "dirichlet"}, default="even"
            "even": sizes differ by at most one. "random": sizes uniformly random above min_size.
            "two_groups": m // 2 silos are `ratio` times as large as the others. "by_label": every
            silo holds a single label, silos being shared out in proportion to the labels.
            "dirichlet": the shares of each label over silos are drawn from a symmetric Dirichlet
            distribution, after every silo has received min_size records. The last two make sizes
            depend on the labels; `partition_note` says so.
        seed : int, numpy.random.Generator or None
            Randomness of the split, which is not part of any privacy guarantee. None is fresh
            entropy.
        min_size : int, default=1
            Smallest size that a silo may have.
        ratio : float
            For "two_groups" only, and needed there: at least 1.
        concentration : float
            For "dirichlet" only, and needed there: positive; small values give each silo few
            labels.
        **options
            As for the class: intercept, row_bound, feature_range, task, classes, feature_names.

        Raises
        ------
        ValueError
            When the records do not suffice for m silos of min_size, beside what the class raises.
        """
        names, (given, y) = column_names(X), records(X, y)
        options = checked_options(options, names, given.shape[1])
        m, min_size = count("m", m), count("min_size", min_size)
        if m * min_size > len(given):
            raise ValueError(
                f"m must be at most records / min_size, got {m} with {len(given)} records and "
                f"min_size {min_size}"
            )
        generator = np.random.default_rng(seed)
        known = (options.get("task"), options.get("classes"))
        how_many = (min_size, ratio, concentration)
        order, sizes = partition(y, m, how, generator, *how_many, *known)
        if sizes.min() < min_size:
            raise ValueError(
                f"min_size must be at most the smallest silo of how={how!r}, {sizes.min()} "
                f"records, got {min_size}"
            )
        rows, copied = gathered(given, order)
        data = cls(rows, y[order], np.cumsum([0, *sizes]), **options)
        if copied:
            data._keep_norms()
        data._set(partition=how, partition_note=NOTES.get(how))
        return data


def _restored(kind: type[SiloData], state: list[Any]) -> SiloData:
    data = object.__new__(kind)
    data._restore(state)
    return data
