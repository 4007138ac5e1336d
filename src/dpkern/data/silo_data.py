"""Records held by silos: `SiloData`.

Everything here but X and y is taken as public; what was read from records, `notes` say.
"""

from __future__ import annotations  # help() then shows type aliases by name

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpkern import kernels
from dpkern._numbers import count
from dpkern._typing import IntArray
from dpkern._warn import warn
from dpkern.data.blocks import AbsentRows, GivenTargets, batches_of, data_in_blocks
from dpkern.data.frames import checked_names, column_names
from dpkern.data.labels import (
    BESIDE_ROWS,
    clip_targets,
    ids,
    in_order,
    joined_weights,
    labels,
    margin_offsets,
    notes_on_records,
    record_weights,
    records,
    targets,
)
from dpkern.data.partition import (
    GROUPS_READ,
    NOTES,
    How,
    Seed,
    gathered,
    generator,
    grouped,
    joined,
    partition,
    silo_pairs,
)
from dpkern.data.persons import Persons, arranged, joined_ids, kept_rows, whole_in_silos
from dpkern.data.transform import Transform
from dpkern.data.validation import (
    SCALES,
    FeatureRange,
    Float64Array,
    Matrix,
    RowOptions,
    ScaleWarning,
    TargetBound,
    Task,
    affine,
    checked_csr,
    checked_matrix,
    checked_offsets,
    checked_options,
    far_apart,
    frozen,
    frozen_matrix,
    is_sparse,
    no_buffer,
    public_row_bound,
    refuse_non_finite,
)
from dpkern.kernels import _card
from dpkern.kernels._blocks import BlockSource
from dpkern.kernels._gpu import DeviceRows
from dpkern.kernels.installation import flushes_denormals

if TYPE_CHECKING:
    from dpkern.data.schema import Schema
    from dpkern.party import Party


@dataclass(frozen=True, slots=True, init=False, repr=False, eq=False)
class SiloData:
    """Records sorted by silo, with their public parameters.

    Made by `split` (at random), `from_groups` (the silo of each record) or `from_silos`, and of
    more records than fit into memory by `from_blocks` or `dpkern.read_parquet`:

    >>> X, y = [[0.1], [0.4], [0.7], [0.9]], ["no", "no", "yes", "yes"]
    >>> SiloData.split(X, y, m=2, intercept=True, row_bound=1.0, seed=0)
    SiloData(m=2, n=4, d=2, classification, intercept, row_bound=1, partition='even')

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
        `classes` for multiclass, real numbers for regression. It is copied.
    offsets : array_like of shape (m + 1,), integer
        From 0 to N, strictly increasing: no silo is empty.
    intercept : bool, default=False
        Whether a constant feature 1 follows the columns of X. It is not stored, counts in the row
        norm, and its coefficient is the last entry of w.
    row_bound : float, optional
        Public R > 0; rows of larger norm are scaled down to norm R. By default that of rows within
        the feature_range of dense X, and infinite without one.
    target_bound : float or pair of floats, optional
        Public bound > 0 of |y| in a regression, or a pair (lo, hi) of bounds of y, to which other
        targets are clipped. The middle of a pair is subtracted from the targets and added to
        predictions, which tells a model where targets are at no cost.
    feature_range : pair (lo, hi), or mapping of names of columns to pairs, optional
        Public bounds, each a number or of shape (n_features,), mapped to [-1, 1]. Values outside
        are mapped affinely too, not clipped. For sparse X only the scale 2 / (hi - lo) is applied,
        so that 0 stays 0 and [lo, hi] is mapped to an interval of length 2. With an intercept this
        is the same set of models, with a different intercept.
    task : {"classification", "regression", "multiclass"}, optional
        By default, two distinct labels mean classification, a floating-point y with more means
        regression, and every other y is an error. "multiclass" is for models with one output per
        class.
    classes : array_like of shape (K,), optional
        The K >= 2 possible labels, public, in the order of the outputs. They are required for
        "multiclass", where numbering the labels that occur would let one record change the numbers
        of others. For classification the two labels, negative first, may be given, and must be if
        y has only one distinct label. A label in y that is not in `classes` is an error.
    feature_names : sequence of str, optional
        Public names of the columns of X, by default those of a data frame; stored with models.
    schema : Schema, optional
        What X was encoded by; see `Schema.silo_data`. Stored with models.
    person : array_like of shape (N,), optional
        The id of the person whose record a row is, numbers or strings. Guarantees are then for a
        person with all of its rows (docs/people.md). Ids are not kept; whose rows are whose is
        taken as public. `split` keeps the rows of a person in one silo.
    max_records : int, optional
        With `person`, the largest number of rows of a person: the first ones in the given order
        are used. Rows are then copied, unless they are in order already.
    weight : array_like of shape (N,), optional
        The weight of each record's loss, at least 0. It is private, as the record is.
    max_weight : float, optional
        With `weight`, its public bound; larger weights count as this one. Losses are multiplied by
        weight / max_weight, so that no weight makes a record's share of a sum larger, and the
        objective is (1 / N) sum_i (weight_i / max_weight) phi_i + penalty.
    margin_offset : array_like of shape (N,), optional
        Added to the margin x.w of each record, such as the log of an exposure. Private too.

    Attributes
    ----------
    X : ndarray or csr_array of shape (N, n_features)
        A read-only view of the given memory. A csr_array has sorted rows and int32 ``indices``.
    y : ndarray of shape (N,), float64
        -1 and +1, indices into `classes` for multiclass, or the targets less `target_middle`.
    offsets, sizes : ndarray of shape (m + 1,) and (m,), int64
    m, n, n_features, d : int
        Numbers of silos, records, columns of X, and entries of w.
    intercept : bool
    row_bound, target_bound : float, ``inf`` where not given; of a pair half of its distance
    feature_range : pair of ndarrays of shape (n_features,), or None
    scale, shift : ndarray of shape (n_features,), float64, or None
        ``scale * x + shift`` maps [lo, hi] to [-1, 1]; shift is None for sparse X.
    task : str
    classes : ndarray of shape (2,) or (K,), sorted, or as given; None for regression
    feature_names, schema : as given, or None
    partition, notes : "given" or ``how`` it was split; tuple of str, what certificates say of data
    silo_names : tuple or None, the groups of `from_groups`
    persons : Persons or None
    transform : Transform, the map of rows that a model needs to predict
    party : Party or None, who holds these rows of a federation, of which the sizes are
    max_weight : float, or None without weights
    record_weight : ndarray of shape (N,), float64, or None, weight / max_weight
    margin_offset : ndarray of shape (N,), float64, or None
    device : DeviceRows or None, the same rows on a card, where sums are then taken (`to_device`)
    blocks : BlockSource or None, the rows, where these are not in memory (`from_blocks`); X and y
        then have a shape and a dtype, and refuse everything else
    row_norms : ndarray of shape (N,), float64, or None
        Upper bounds of |[scale x + shift, 1]|, before the row bound. They are stored if this object
        has copied X; None if the arrays are the caller's, who could still write to them, or if this
        object was made in denormals-are-zero mode. Kernels in a thread in that mode ignore them.

    Raises
    ------
    TypeError, ValueError
        When an argument is not as described. Messages about X and y name counts, never values.

    Warns
    -----
    ScaleWarning
        When, without feature range and schema, the largest values of columns differ by more than
        100 x in the first 1000 rows: one bit about them, without noise, for their holder.
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
    target_bound: float
    feature_range: tuple[Float64Array, Float64Array] | None
    scale: Float64Array | None
    shift: Float64Array | None
    task: Task
    classes: NDArray[Any] | None
    feature_names: tuple[str, ...] | None
    schema: Schema | None
    partition: str
    notes: tuple[str, ...]
    silo_names: tuple[Any, ...] | None
    persons: Persons | None
    transform: Transform
    row_norms: Float64Array | None
    max_weight: float | None
    record_weight: Float64Array | None
    margin_offset: Float64Array | None
    party: Party | None
    device: DeviceRows | None
    blocks: BlockSource | None
    _records: Any  # addresses for the kernels

    def __init__(
        self,
        X: Matrix,
        y: ArrayLike,
        offsets: ArrayLike,
        *,
        intercept: bool = False,
        row_bound: float | None = None,
        target_bound: TargetBound = None,
        feature_range: FeatureRange = None,
        task: Task | None = None,
        classes: ArrayLike | None = None,
        feature_names: Sequence[str] | None = None,
        schema: Schema | None = None,
        person: ArrayLike | None = None,
        max_records: int | None = None,
        weight: ArrayLike | None = None,
        max_weight: float | None = None,
        margin_offset: ArrayLike | None = None,
    ) -> None:
        rows, copied = checked_matrix(X)
        n, n_features = rows.shape
        names = None if feature_names is None else checked_names(feature_names, n_features)
        y, offsets = labels(y, n), checked_offsets(offsets, n)
        record_weight, persons = record_weights(weight, max_weight, n), None
        margin_offset = margin_offsets(margin_offset, n)
        if person is not None or max_records is not None:
            persons, order, offsets = arranged(person, max_records, offsets)
            offsets, y, n = checked_offsets(offsets, len(order)), y[order], len(order)
            record_weight = None if record_weight is None else record_weight[order]
            margin_offset = None if margin_offset is None else margin_offset[order]
            rows, copied = gathered(rows, order)
        if schema is not None and getattr(schema, "feature_names", ()) != names:
            raise ValueError("schema must have the features of X: use Schema.silo_data")
        y, found, known = targets(y, task, classes)
        bound_y, middle = clip_targets(y, found, target_bound)
        if not isinstance(intercept, bool | np.bool_):
            raise TypeError(f"intercept must be True or False, got {intercept!r}")
        sparse = is_sparse(rows)
        bounds, scale, shift = affine(feature_range, n_features, scale_only=sparse, names=names)
        refuse_non_finite(rows, scale, shift, names)
        if feature_range is None and schema is None and far_apart(rows):
            warn(SCALES, ScaleWarning)
        R = public_row_bound(row_bound, n_features + intercept, sparse or bounds is None)
        transform = Transform(n_features, bool(intercept), R, scale, shift, middle)
        self._set(
            X=frozen_matrix(rows),
            y=frozen(y),
            offsets=frozen(offsets),
            sizes=frozen(np.diff(offsets)),
            m=len(offsets) - 1,
            n=n,
            n_features=n_features,
            d=n_features + transform.intercept,
            intercept=transform.intercept,
            row_bound=transform.row_bound,
            target_bound=bound_y,
            feature_range=bounds,
            scale=None if scale is None else frozen(np.array(scale)),
            shift=None if shift is None else frozen(np.array(shift)),
            task=found,
            classes=known,
            feature_names=names,
            schema=schema,
            partition="given",
            notes=notes_on_records(task, found, classes, rows),
            persons=persons,
            transform=transform,
            max_weight=None if max_weight is None else float(max_weight),
            record_weight=None if record_weight is None else frozen(record_weight),
            margin_offset=None if margin_offset is None else frozen(margin_offset),
            **dict.fromkeys(("silo_names", "row_norms", "party", "device", "blocks")),
        )
        if copied:
            self._keep_norms()

    def _keep_norms(self) -> None:
        # In denormals-are-zero mode they would be those of different rows.
        flushed = flushes_denormals()
        self._set(row_norms=None if flushed else frozen(kernels.glm_norms(self)))

    def _set(self, **values: Any) -> None:
        for name, value in (values | {"_records": None}).items():
            object.__setattr__(self, name, value)

    def _state(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__ if name != "_records"}

    def _replaced(self, **values: Any) -> Self:
        """Return a copy with other attributes, which this package's callers have validated."""
        copied = object.__new__(type(self))
        copied._set(**self._state() | values)
        return copied

    def __reduce__(self) -> tuple[Any, ...]:
        # Not __setstate__, which dataclasses overwrite in early releases of Python 3.11.
        return type(self)._restored, (self._state(),)

    @classmethod
    def _restored(cls, state: dict[str, Any]) -> Self:
        self = object.__new__(cls)
        self._set(**state)
        if isinstance(self.X, AbsentRows):
            return self
        # Pickling loses the read-only flags, without which the row norms could become invalid.
        arrays = {k: v for k, v in state.items() if isinstance(v, np.ndarray)}
        sparse = self.is_sparse
        rows: Any = checked_csr(self.X) if sparse else self.X
        self._set(**{k: frozen(v) for k, v in arrays.items()} | {"X": frozen_matrix(rows)})
        # Out-of-band pickles (protocol 5) and memory maps leave X in a buffer of the caller.
        parts = (rows.data, rows.indices, rows.indptr) if sparse else (rows,)
        if self.row_norms is not None and not all(map(no_buffer, (*parts, self.row_norms))):
            self._set(row_norms=None)
        elif self.row_norms is not None and self.scale is not None:
            # Another machine may round scale x + shift differently (without FMA), with a large
            # relative difference under cancellation.
            self._keep_norms()
        return self

    @property
    def held(self) -> NDArray[np.bool_]:
        """Mask of the silos whose records are here: of all without a party."""
        return np.diff(self.offsets) > 0

    @property
    def is_sparse(self) -> bool:
        """Whether rows are CSR, in memory or in blocks."""
        X = self.X
        return X.sparse if isinstance(X, AbsentRows) else not isinstance(X, np.ndarray)

    @property
    def is_weighted(self) -> bool:
        """Whether records have weights or margin offsets, which not all solvers read."""
        return self.record_weight is not None or self.margin_offset is not None

    def __len__(self) -> int:
        return self.n

    def __repr__(self) -> str:
        parts = [f"m={self.m}", f"n={self.n}", f"d={self.d}", self.task]
        parts += ["intercept"] if self.intercept else []
        bounds = {"row_bound": self.row_bound, "target_bound": self.target_bound}
        parts += [f"{name}={bound:g}" for name, bound in bounds.items() if math.isfinite(bound)]
        parts += [] if self.feature_range is None else ["feature_range"]
        parts += [] if self.record_weight is None else ["weight"]
        parts += [] if self.margin_offset is None else ["margin_offset"]
        parts += [] if self.persons is None else [f"max_records={self.persons.max_records}"]
        return f"SiloData({', '.join(parts)}, partition={self.partition!r})"

    def weights(self, weights: Literal["size", "uniform"] = "size") -> Float64Array:
        """Return the silo weights p_j of the objective, (m,): n_j / N for "size", or 1 / m."""
        if weights == "size":
            return self.sizes / self.n
        if weights == "uniform":
            return np.full(self.m, 1.0 / self.m)
        raise ValueError(f"weights must be 'size' or 'uniform', got {weights!r}")

    def to_device(self, card: int | None = None) -> Self:
        """Return these records with a copy of their rows on an NVIDIA card, which takes the sums.

        Sums of clipped gradients and losses have the bits of the CPU, so that a run with a seed
        releases what it releases there. What needs more than these sums refuses (docs/gpu.md).

        Parameters
        ----------
        card : int, optional
            Number of the card; by default CuPy's current one.

        Raises
        ------
        ImportError, RuntimeError
            Without CuPy (the extra ``dpkern[gpu]``), or a card that it finds.
        TypeError, MemoryError
            When X is sparse, or the rows do not fit into the card's free memory.
        """
        if self.blocks is not None:
            raise TypeError("data must be in memory to be copied to a card, got records in blocks")
        return self._replaced(device=DeviceRows(self, _card.card_of(card)))

    def with_given_targets(self) -> Self:
        """Return a copy whose targets are as given: no middle of their bounds is subtracted."""
        middle = self.transform.target_middle
        if middle == 0.0:
            return self
        transform = replace(self.transform, target_middle=0.0)
        if self.blocks is not None:
            return self._replaced(transform=transform, blocks=GivenTargets(self.blocks))
        return self._replaced(transform=transform, y=frozen(self.y + middle))

    def with_targets_less(self, middle: float) -> Self:
        """Return a copy of data in memory whose targets are less by a public number."""
        return self._replaced(y=frozen(self.y - middle))

    def each_alone(self, records: NDArray[np.int64]) -> Self:
        """Return a copy of k >= 1 records, by their indices, each a silo by itself."""
        return self.part(records, np.arange(len(records) + 1))

    def part(self, records: NDArray[np.int64] | slice, offsets: NDArray[np.int64]) -> Self:
        """Return records in silos that may divide a person, a copy where they are indices."""
        part = object.__new__(type(self))
        part._set(**self._state())
        part._set(
            X=frozen_matrix(self.X[records]),
            y=frozen(self.y[records]),
            offsets=frozen(offsets),
            sizes=frozen(np.diff(offsets)),
            m=len(offsets) - 1,
            n=int(offsets[-1]),
            silo_names=None,
            persons=None if self.persons is None else Persons(self.persons.max_records),
            device=None,
            **{
                name: None if (beside := getattr(self, name)) is None else frozen(beside[records])
                for name in BESIDE_ROWS
            },
        )
        return part

    @classmethod
    def from_silos(
        cls,
        silos: Sequence[tuple[ArrayLike, ArrayLike]],
        **options: Unpack[RowOptions],
    ) -> Self:
        """Join one (X, y) pair per silo; copies X once.

        X is float32 if that of every silo is, else float64, and CSR in every silo or in none. The
        options are those of the class, `person` holding one sequence per silo.
        """
        pairs, names = silo_pairs(silos)
        options = checked_options(options, names, pairs[0][0].shape[1])
        if options.get("person") is not None:
            options["person"] = joined_ids(options["person"], [len(y) for _, y in pairs])
        options = joined_weights(options, [len(y) for _, y in pairs])
        data = cls(
            joined([X for X, _ in pairs]),
            np.concatenate([y for _, y in pairs]),
            np.cumsum([0, *(len(y) for _, y in pairs)]),
            **options,
        )
        data._keep_norms()
        return data

    @classmethod
    def from_blocks(cls, blocks: Any, **options: Unpack[RowOptions]) -> Self:
        """Return records that are read in blocks, anew in every pass (docs/blocks.md).

        Sums have the bits of the same records in memory, whatever the blocks are. Blocks are read
        ahead by a thread, and a few of them are in memory at a time.

        Parameters
        ----------
        blocks : sequence, or function that begins a new iteration
            Of pairs (X, y) or triples (X, y, groups), as for `split` and `from_groups`, or mappings
            of these names, and of "weight", "margin_offset" and "person" of the records; memory
            maps are read in parts. Every pass must yield the same records, and in the same order
            where they have persons.
        **options
            As for the class, from `intercept` on, without `person`, `weight` and `margin_offset`,
            which blocks have. `classes`, or task "regression", must be stated.

        Raises
        ------
        TypeError, ValueError
            When a block is not as described; the message names the block.
        """
        data: Any = data_in_blocks(cls, batches_of(blocks), options)
        return data

    @classmethod
    def from_groups(
        cls,
        X: ArrayLike,
        y: ArrayLike,
        groups: ArrayLike,
        **options: Unpack[RowOptions],
    ) -> Self:
        """Make one silo per distinct group, in sorted order; copies X unless it is sorted.

        Parameters
        ----------
        X, y
            As for the class, of any real dtype.
        groups : array_like of shape (N,)
            The silo of each record, numbers or strings. Groups and their sizes are public.
        **options
            As for the class, from `intercept` on.
        """
        names, (given, y) = column_names(X), records(X, y)
        options = checked_options(options, names, given.shape[1])
        group, n = ids(groups, len(y), "groups"), len(y)
        found = _rows_of_persons(options, len(y))
        if found is not None:  # before any other order
            (given, _), y, group = gathered(given, found[0]), y[found[0]], group[found[0]]
            options = in_order(options, found[0], n)
        silo_names, offsets, order = grouped(group)
        rows, copied = gathered(given, order)
        options = options if order is None else in_order(options, order, len(y))
        if found is not None:
            options["person"] = found[1] if order is None else found[1][order]
        data = cls(rows, y if order is None else y[order], offsets, **options)
        if copied:
            data._keep_norms()
        data._set(silo_names=tuple(silo_names.tolist()), notes=(*data.notes, GROUPS_READ))
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
        share: float | None = None,
        concentration: float | None = None,
        **options: Unpack[RowOptions],
    ) -> Self:
        """Assign every record to one of m silos at random; copies X once.

        Parameters
        ----------
        X, y
            As for the class, of any real dtype.
        m : int
            Number of silos, at most N / min_size.
        how : {"even", "random", "two_groups", "by_label", "mixed", "dirichlet"}, default="even"
            "even": sizes differ by at most one. "random": sizes uniformly random above min_size.
            "two_groups": m // 2 silos are `ratio` times as large as the others. "by_label": every
            silo has a single label, with numbers of silos in proportion to the labels. "mixed": the
            same, and a `share` of every silo's records is exchanged at random among all silos.
            "dirichlet": after every silo has received min_size records, the shares of each label
            over silos are drawn from a symmetric Dirichlet distribution. With the last three, sizes
            depend on the labels, which `notes` states.
        seed : int, numpy.random.Generator or None
            Source of the split, no part of any privacy guarantee; None: fresh entropy.
        min_size : int, default=1
            Smallest allowed size of a silo, in records, or in persons where these are given.
        ratio, share, concentration : float
            Required for "two_groups", "mixed" and "dirichlet", and only there: at least 1; from 0,
            one label in a silo, to 1; positive, where small values give each silo few labels.
        **options
            As for the class, from `intercept` on.

        Raises
        ------
        ValueError
            When there are too few records for m silos, and as for the class.
        """
        names, (given, y) = column_names(X), records(X, y)
        if not len(y):
            raise ValueError(f"X must hold records, got shape {given.shape}")
        options = checked_options(options, names, given.shape[1])
        m, min_size = count("m", m), count("min_size", min_size)
        shapes = {"two_groups": ratio, "mixed": share, "dirichlet": concentration}
        rng, task = generator(seed), options.get("task")
        found = _rows_of_persons(options, len(y))
        if found is None:
            order, sizes = partition(y, m, how, rng, min_size, shapes, task, options.get("classes"))
        else:  # persons are assigned, and not their rows
            people = np.zeros(1 + int(found[1].max()))
            persons = partition(people, m, how, rng, min_size, shapes, "persons", None)
            by_silo, sizes = whole_in_silos(found[1], *persons)
            order, options["person"] = found[0][by_silo], found[1][by_silo]
        options = in_order(options, order, len(y))
        rows, copied = gathered(given, order)
        data = cls(rows, y[order], np.cumsum([0, *sizes]), **options)
        if copied:
            data._keep_norms()
        data._set(partition=how, notes=(*data.notes, *NOTES.get(how, ())))
        return data


def _rows_of_persons(options: Any, n: int) -> tuple[IntArray, IntArray] | None:
    """Return the rows that persons keep and their numbers (`kept_rows`), None without persons."""
    person, most = options.get("person"), options.get("max_records")
    return None if person is None and most is None else kept_rows(person, most, n)


def refuse_other_than_silo_data(data: object) -> None:
    """Raise TypeError, with what makes a SiloData, for anything else."""
    if not isinstance(data, SiloData):
        raise TypeError(
            f"data must be a SiloData, got {type(data).__name__}: schema.silo_data(frame) makes "
            "one of a raw table, SiloData.split(X, y, m) of arrays"
        )
