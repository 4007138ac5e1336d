"""Partitions of records among silos, or into a training and a test part.

A partition among silos is the order of the records, sorted by silo, and the sizes of the silos.
"""

from __future__ import annotations  # help() then shows type aliases by name

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpkern._numbers import positive, real
from dpkern.data.frames import column_names, is_frame
from dpkern.data.labels import records, targets
from dpkern.data.validation import (
    Float64Array,
    Matrix,
    Task,
    aligned,
    blocks,
    canonical,
    csr_of,
    float_dtype,
    has_width_read,
    is_sparse,
)

Seed = np.random.Generator | int | None
How = Literal["even", "random", "two_groups", "by_label", "mixed", "dirichlet"]

NUMBERS = {"two_groups": "ratio", "mixed": "share", "dirichlet": "concentration"}
NOTES = {
    "by_label": ("silos hold one label each: sizes and the silo of a record depend on the labels",),
    "mixed": (
        "silos hold one label each, but for a share of their records that was exchanged: sizes and "
        "the silo of a record depend on the labels",
    ),
    "dirichlet": (
        "label shares differ by silo: sizes and the silo of a record depend on the labels",
    ),
}

GROUPS_READ = (
    "taken as public: which records are in which silo, as groups says of each of them; neighbours "
    "differ in all other values of a record"
)


def partition(
    y: NDArray[Any],
    m: int,
    how: How,
    rng: np.random.Generator,
    min_size: int,
    numbers: dict[str, float | None],
    task: Task | Literal["persons"] | None,
    classes: ArrayLike | None,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the order of the records and the sizes of the silos; `numbers` are those of `how`.

    Of persons, which have no labels, `task` is "persons".
    """
    what = "persons" if task == "persons" else "records"
    if m * min_size > len(y):
        raise ValueError(
            f"m must be at most {what} / min_size, got {m} with {len(y)} {what} and min_size "
            f"{min_size}"
        )
    order, sizes = _partition(y, m, how, rng, min_size, numbers, task, classes)
    if sizes.min() < min_size:
        raise ValueError(
            f"min_size must be at most the smallest silo of how={how!r}, {sizes.min()} {what}, "
            f"got {min_size}"
        )
    return order, sizes


def _partition(
    y: NDArray[Any],
    m: int,
    how: How,
    rng: np.random.Generator,
    min_size: int,
    numbers: dict[str, float | None],
    task: Task | Literal["persons"] | None,
    classes: ArrayLike | None,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    for owner, value in numbers.items():
        if (value is not None) != (how == owner):
            raise ValueError(
                f"{NUMBERS[owner]} must be given with how={owner!r} and only there, got {value!r} "
                f"with how={how!r}"
            )
    order = rng.permutation(len(y))
    if how == "even":
        return order, _shares(len(y), np.ones(m))
    if how == "random":
        spare = len(y) - m * min_size
        cuts = np.sort(rng.integers(0, spare, size=m - 1, endpoint=True))
        return order, min_size + np.diff(cuts, prepend=0, append=spare)
    if how == "two_groups":
        ratio = positive("ratio", numbers[how])
        if ratio < 1.0:
            raise ValueError(f"ratio must be at least 1, got {ratio!r}")
        return order, _shares(len(y), np.where(np.arange(m) < m // 2, ratio, 1.0))
    if how not in NOTES:
        raise ValueError(
            "how must be one of 'even', 'random', 'two_groups', 'by_label', 'mixed', 'dirichlet', "
            f"got {how!r}"
        )
    if task == "persons":
        raise ValueError(f"how must not read labels, as {how!r} does, with person")
    signs, task, _ = (None, task, None) if task == "multiclass" else targets(y, task, classes)
    if signs is None or task != "classification":
        raise ValueError(f"task must be classification for how={how!r}, got {task}")
    plus = signs[order] > 0
    if how in ("by_label", "mixed"):
        order, sizes = _one_label_each(order[~plus], order[plus], m, how)
        if how == "mixed":
            _exchange(order, sizes, real("share", numbers[how]), rng)
        return order, sizes
    silo = np.empty(len(y), dtype=np.int64)
    reserved = m * min_size
    silo[:reserved] = np.repeat(np.arange(m), min_size)
    for chosen in (~plus, plus):
        records = reserved + np.flatnonzero(chosen[reserved:])
        shares = rng.dirichlet(np.full(m, positive("concentration", numbers[how])))
        silo[records] = np.repeat(np.arange(m), rng.multinomial(len(records), shares))
    return order[np.argsort(silo, kind="stable")], np.bincount(silo, minlength=m)


def grouped(
    group: NDArray[Any],
) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64] | None]:
    """Return the distinct groups, sorted, their offsets, and the order of the records, or None."""
    if len(group) and np.all(group[1:] >= group[:-1]):
        first = np.append(0, 1 + np.flatnonzero(group[1:] != group[:-1]))
        return group[first], np.append(first, len(group)), None
    names, silo = np.unique(group, return_inverse=True)
    return names, np.cumsum([0, *np.bincount(silo)]), np.argsort(silo, kind="stable")


def _shares(n: int, weights: Float64Array) -> NDArray[np.int64]:
    """Divide n records in proportion to the weights, by largest remainders (Hamilton's method)."""
    shares = n * weights / weights.sum()
    sizes = np.floor(shares).astype(np.int64)
    largest_remainders = np.argsort(sizes - shares, kind="stable")[: n - sizes.sum()]
    sizes[largest_remainders] += 1
    return sizes


def _one_label_each(
    minus: NDArray[np.int64], plus: NDArray[np.int64], m: int, how: How
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    if m < 2 or not len(minus) or not len(plus):
        raise ValueError(
            f"how must be another than {how!r} unless both labels occur and m >= 2, got m {m}"
        )
    n = len(minus) + len(plus)
    fewest, most = max(1, m - len(plus)), min(m - 1, len(minus))
    silos = min(max(round(m * len(minus) / n), fewest), most)
    sizes = (_shares(len(minus), np.ones(silos)), _shares(len(plus), np.ones(m - silos)))
    return np.concatenate((minus, plus)), np.concatenate(sizes)


def _exchange(
    order: NDArray[np.int64], sizes: NDArray[np.int64], share: float, rng: np.random.Generator
) -> None:
    """Permute this share of every silo's records, drawn at random, among all silos, in place."""
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"share must lie in [0, 1], got {share!r}")
    firsts = np.cumsum(sizes) - sizes
    places = [
        first + rng.permutation(n)[: round(share * n)]
        for first, n in zip(firsts.tolist(), sizes.tolist(), strict=True)
    ]
    exchanged = np.concatenate(places)
    order[exchanged] = order[rng.permutation(exchanged)]


def gathered(X: Matrix, order: NDArray[np.int64] | None) -> tuple[Matrix, bool]:
    """Return the rows of X in the given order, float32 or float64, and whether they are a copy."""
    dtype = float_dtype(X)
    if order is not None and np.array_equal(order, np.arange(X.shape[0])):
        order = None
    if is_sparse(X):
        return canonical(X if order is None else X[order], dtype, owned=order is not None)
    if order is None:
        out = np.ascontiguousarray(X, dtype)
        return out, not np.may_share_memory(out, X)
    out = aligned((len(order), X.shape[1]), dtype)
    for block in blocks(len(order), dtype.itemsize * X.shape[1]):
        out[block] = X[order[block]]
    return out, True


def silo_pairs(
    silos: Sequence[tuple[ArrayLike, ArrayLike]],
) -> tuple[list[tuple[Matrix, NDArray[Any]]], tuple[str, ...] | None]:
    """Return the validated records (X, y) of every silo, and the column names of all."""
    given = list(silos)
    if not given:
        raise ValueError("silos must hold one (X, y) pair per silo, got none")
    for j, silo in enumerate(given):
        if not isinstance(silo, tuple | list) or len(silo) != 2:
            raise TypeError(f"silos[{j}] must be a pair (X, y), got a {type(silo).__name__}")
    names = {column_names(X) for X, _ in given}
    if len(names) > 1:
        raise ValueError("X must have the same column names in every silo, got others")
    pairs = [records(X, y) for X, y in given]
    widths = {X.shape[1] for X, _ in pairs}
    if len(widths) > 1:
        raise ValueError(f"X must have as many features in every silo, got {sorted(widths)}")
    if len({y.dtype.kind in "US" for _, y in pairs}) > 1:
        raise TypeError("y must be strings in every silo or numbers in every silo, got both")
    if len({is_sparse(X) for X, _ in pairs}) > 1:
        raise TypeError("X must be sparse in every silo or in none, got both")
    return pairs, names.pop()


def joined(parts: list[Any]) -> Matrix:
    """Return the concatenated rows of sparse or dense parts, float32 if all parts are."""
    dtype = np.dtype(np.float32 if all(X.dtype == np.float32 for X in parts) else np.float64)
    if is_sparse(parts[0]):
        from scipy.sparse import vstack

        X = canonical(vstack(parts, format="csr", dtype=dtype), dtype, owned=True)[0]
        width_is_read = any(map(has_width_read, parts))
        return csr_of(X.data, X.indices, X.indptr, X.shape, width_is_read=width_is_read)
    out = aligned((sum(len(X) for X in parts), parts[0].shape[1]), dtype)
    return np.concatenate(parts, out=out, casting="same_kind")


def generator(seed: Seed) -> np.random.Generator:
    """Return the source of public divisions."""
    try:
        return np.random.default_rng(seed)
    except (TypeError, ValueError):
        raise TypeError(
            f"seed must be None, an integer of at least 0 or a Generator, got {seed!r}"
        ) from None


def train_test_split(
    X: ArrayLike, y: ArrayLike, *, test_fraction: float = 0.2, seed: Seed = 0
) -> tuple[Matrix, NDArray[Any], Matrix, NDArray[Any]]:
    """Divide records at random into a training and a test part.

    Parameters
    ----------
    X : array_like, CSR matrix or data frame of shape (N, n_features)
    y : array_like of shape (N,)
    test_fraction : float, default=0.2
        Between 0 and 1; round(test_fraction * N) records are for testing, at least 1 and at most
        N - 1.
    seed : int, numpy.random.Generator or None, default=0
        Source of the division, which is not stratified.

    Returns
    -------
    X_train, y_train, X_test, y_test : ndarray
        The two parts; those of X are sparse or data frames if X is.
    """
    rows: Any = X if is_sparse(X) or is_frame(X) else np.asarray(X)
    y = np.asarray(y)
    if not (rows.shape and y.shape):
        raise TypeError("X and y must be arrays of records, got others")
    n = rows.shape[0]
    if n != len(y) or n < 2:
        raise ValueError(
            f"X and y must have as many rows as entries, at least 2, got {n} and {len(y)}"
        )
    if not 0.0 < (test_fraction := real("test_fraction", test_fraction)) < 1.0:
        raise ValueError(f"test_fraction must be between 0 and 1, got {test_fraction!r}")
    order = generator(seed).permutation(n)
    n_test = min(max(round(test_fraction * n), 1), n - 1)
    test, train = np.sort(order[:n_test]), np.sort(order[n_test:])
    part = rows.iloc if hasattr(rows, "iloc") else rows
    return part[train], y[train], part[test], y[test]
