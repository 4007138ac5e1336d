"""Ranges of features and of targets, from noisy counts in public bins.

For whoever cannot declare the bounds that `SiloData` takes, but can say bounds that are much too
wide. The bins of a feature are those of a two-sided logarithmic grid within its wide bounds: with L
the largest magnitude, the edges are +- L 2^-k, k = 0..30, and the bounds themselves. One release of
all counts has the whole budget; the ranges are post-processing.
"""

from __future__ import annotations  # help() then shows type aliases by name

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpkern._numbers import aligned, figure, probability, rounded_up
from dpkern._typing import FloatArray
from dpkern.data import SiloData, is_sparse
from dpkern.data.frames import column_names
from dpkern.data.validation import (
    WIDTH_READ,
    FeatureRange,
    affine,
    has_width_read,
    not_finite,
    numeric_matrix,
    refuse_non_finite,
)
from dpkern.privacy import Budget, Certificate, NoiseStream
from dpkern.privacy.accountant.accountant import Accountant
from dpkern.privacy.certificate.certificate import NOT_STATED, READ
from dpkern.privacy.charged import ChargedReleases
from dpkern.privacy.mechanisms.counts import GaussianCounts

_OCTAVES = 30
# A count stands out if noise alone would reach it, in any bin of all, with this probability at
# most; beside one that does, a count of two stds of the noise does too.
_FALSE, _BESIDE = 0.01, 2.0


@dataclass(frozen=True, eq=False)
class PrivateRange:
    """Private ranges, the bounds that follow from them, and the certificate of their release.

    Attributes
    ----------
    feature_range : pair (lo, hi) of ndarrays of shape (n_features,)
        For `SiloData`. Each is an edge of a bin: of values around a quantile it is at most twice
        as far from 0.
    row_bound : float
        The norm of the longest row inside the feature range, with an intercept.
    target_bound : pair (lo, hi) of floats, or None
        Bounds of y, for targets that were counted too.
    privacy : Certificate
        Composes with that of the fit by `dpkern.privacy.compose_sequential`.
    feature_names : tuple of str or None
    """

    feature_range: tuple[FloatArray, FloatArray]
    row_bound: float
    target_bound: tuple[float, float] | None
    privacy: Certificate = field(repr=False)
    feature_names: tuple[str, ...] | None = None

    def __repr__(self) -> str:
        lo, hi = self.feature_range
        names = self.feature_names or tuple(map(str, range(len(lo))))
        rows = [("feature", "lo", "hi"), *zip(names, lo.tolist(), hi.tolist(), strict=True)]
        if self.target_bound is not None:
            rows.append(("target", *self.target_bound))
        lines = aligned([[figure(cell) for cell in row] for row in rows], right=(1, 2))
        at = self.privacy.stated_delta or 1e-6
        spent = f"epsilon {rounded_up(self.privacy.epsilon(at))} at delta {at:g}"
        return "\n".join([*lines, f"row_bound {self.row_bound:.6g}, {spent}"])


def private_range(
    data_or_X: SiloData | ArrayLike,
    *,
    bounds: FeatureRange,
    budget: Budget,
    y: ArrayLike | None = None,
    target_bounds: tuple[float, float] | None = None,
    coverage: float = 0.98,
    neighbours: str = "replace_one",
    accountant: Accountant | None = None,
    rng: int | NoiseStream | None = None,
) -> PrivateRange:
    """Find ranges that hold most values of every feature, and of the targets, privately.

    Parameters
    ----------
    data_or_X : SiloData, or array_like, data frame or CSR matrix of shape (N, n_features)
        The values as they are stored, before any feature range; also records in blocks.
    bounds : pair (lo, hi), or mapping of names of columns to pairs
        Public and wide: numbers, or one for each feature. Values beyond them count as the bounds.
    budget : Budget
        Of the one release, for a person where the data have them.
    y : array_like of shape (N,), optional
        Real targets of an X; those of a SiloData of a regression are its own.
    target_bounds : pair (lo, hi), optional
        Public and wide bounds of the targets, which are counted if this is given.
    coverage : float, default=0.98
        Share of the values that a range is to hold; as much may be cut at either end.
    neighbours : {"replace_one", "add_remove"}, default="replace_one"
        As for `dpkern.solve`, whose certificate composes with this one for the same relation.
    accountant : Accountant, optional
        What is charged for the release before it is made.
    rng : int, NoiseStream or None
        As for `dpkern.solve`.

    Returns
    -------
    PrivateRange

    Raises
    ------
    TypeError, ValueError
        When an argument is not as described.

    Notes
    -----
    The release is, to whoever sees the aggregate, the number of values of every feature in every
    bin, exact integers, with Gaussian noise rounded to integers. A record has at most one value in
    the bins of a feature, so that the sensitivity is sqrt(2 f) for f features and targets together,
    and sqrt(f) with "add_remove". Values that are missing, NaN or infinite are refused, as they are
    by `SiloData`, with an error for the holder of the records.

    A range reaches from the first to the last count that stands out of the noise of all bins, and
    over the counts beside them that are above two of its stds. Counts at its ends are then left
    out as long as (1 - coverage) / 2 of the total is not exceeded by them and two stds of their
    noise. A feature in which no count stands out keeps its wide bounds. Features that hardly vary
    get a narrow range around their common value: leave them out.
    """
    given = data_or_X.X if isinstance(data_or_X, SiloData) else data_or_X
    persons = data_or_X.persons if isinstance(data_or_X, SiloData) else None
    most = None if persons is None else persons.max_records
    run = ChargedReleases(budget, accountant, neighbours=neighbours, max_records=most)
    blocks = data_or_X.blocks if isinstance(data_or_X, SiloData) else None
    X, y, names = _values(data_or_X, y, target_bounds)
    coverage = probability("coverage", coverage)
    edges = [_edges(lo, hi) for lo, hi in _wide("bounds", bounds, X.shape[1], names)]
    if target_bounds is not None:
        edges += [_edges(lo, hi) for lo, hi in _wide("target_bounds", target_bounds, 1)]
    if blocks is None:
        counts = _all_counts(X, y, edges)
    else:
        (counts,) = blocks.totals([partial(_block_counts, target_bounds, edges)])
    bins, mu = len(counts), run.record_mu
    with run.charged("private_range", bins, rng) as channel:
        mechanism = GaussianCounts(
            channel,
            what="counts of values in public bins",
            features=len(edges),
            bins=bins,
            mu=mu,
        )
        released = mechanism.release(counts)
    privacy = run.certificate(
        {
            "bounds": [[float(e[0]), float(e[-1])] for e in edges],
            "coverage": coverage,
            "n_features": X.shape[1],
            "targets": target_bounds is not None,
        },
        sources={"bounds": NOT_STATED} | ({"n_features": READ} if has_width_read(given) else {}),
        notes=(WIDTH_READ,) if has_width_read(given) else (),
    )
    threshold = math.sqrt(2.0 * math.log(bins / _FALSE)) * mechanism.sigma
    parts = np.split(released, np.cumsum([len(e) - 1 for e in edges])[:-1])
    found = [
        _range(part, e, mechanism.sigma, threshold, coverage)
        for part, e in zip(parts, edges, strict=True)
    ]
    lo, hi = (np.array(ends) for ends in zip(*found[: X.shape[1]], strict=True))
    return PrivateRange(
        feature_range=(lo, hi),
        row_bound=_row_bound(lo, hi, sparse=is_sparse(X) if blocks is None else X.sparse),
        target_bound=None if target_bounds is None else found[-1],
        privacy=privacy,
        feature_names=names,
    )


def _values(
    given: Any, y: ArrayLike | None, target_bounds: Any
) -> tuple[Any, FloatArray | None, tuple[str, ...] | None]:
    """Return the values of features and, if they are to be counted, of targets; and the names."""
    X: Any
    if isinstance(given, SiloData):
        if y is not None:
            raise ValueError("y must be None beside a SiloData, which has targets of its own")
        X, names = given.X, given.feature_names
        targets = None
        if target_bounds is not None and given.task != "regression":
            raise ValueError(f"target_bounds must be None where task is {given.task!r}")
        if given.blocks is not None:  # whose values are read later
            return X, None, names
        if target_bounds is not None:
            targets = given.y + given.transform.target_middle
    else:
        X, names = numeric_matrix(given), column_names(given)
        if (y is None) != (target_bounds is None):
            raise ValueError("y and target_bounds must be given together, or neither")
        targets = None if y is None else _real("y", y)
        if targets is not None and targets.shape != (X.shape[0],):
            raise ValueError(f"y must have shape ({X.shape[0]},), got {targets.shape}")
    if 0 in X.shape:
        raise ValueError(f"X must have shape (N, n_features), neither of them 0, got {X.shape}")
    refuse_non_finite(X, None, None, names)
    bad = 0 if targets is None else int(np.count_nonzero(~np.isfinite(targets)))
    if bad:
        raise ValueError(f"y must be finite, got {not_finite(bad)} in {X.shape[0]} records")
    if is_sparse(X):
        X = X.tocsc()
        X.sum_duplicates()  # a record has one value of a feature
    return X, targets, names


def _block_counts(
    target_bounds: Any, edges: Sequence[FloatArray], block: SiloData
) -> NDArray[np.int64]:
    """Return the counts of a block."""
    X, targets, _ = _values(block, None, target_bounds)
    return _all_counts(X, targets, edges)


def _all_counts(
    X: Any, targets: FloatArray | None, edges: Sequence[FloatArray]
) -> NDArray[np.int64]:
    """Return the numbers of values in the bins of all features and, if there are any, targets."""
    counts = [_counts(_column(X, k), edges[k]) for k in range(X.shape[1])]
    if targets is not None:
        counts.append(_counts(targets, edges[-1]))
    return np.concatenate(counts)


def _real(name: str, values: ArrayLike) -> FloatArray:
    """Return real numbers as float64; an error says no value."""
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{name} must be real numbers, got dtype {array.dtype}")
    with np.errstate(all="ignore"):
        return array.astype(np.float64)


def _wide(
    name: str, bounds: Any, n_features: int, names: Sequence[str] | None = None
) -> list[tuple[float, float]]:
    """Return finite wide bounds lo < hi of every feature."""
    if bounds is None:
        raise ValueError(f"{name} must be a pair (lo, hi), got None")
    found, _, _ = affine(bounds, n_features, scale_only=True, names=names, argument=name)
    lo, hi = (a.tolist() for a in found or ())
    return list(zip(lo, hi, strict=True))


def _edges(lo: float, hi: float) -> FloatArray:
    """Return the increasing edges of the bins between two wide bounds."""
    sizes = np.ldexp(max(abs(lo), abs(hi)), -np.arange(_OCTAVES + 1))
    inner = np.concatenate([-sizes, sizes])
    return np.unique(np.concatenate([[lo, hi], inner[(lo < inner) & (inner < hi)]]))


def _column(X: Any, k: int) -> tuple[FloatArray, int]:
    """Return the stored values of a feature, and the number of zeros that are not stored."""
    if not is_sparse(X):
        return _real("X", X[:, k]), 0
    values = _real("X", X.data[X.indptr[k] : X.indptr[k + 1]])
    return values, X.shape[0] - len(values)


def _counts(values: FloatArray | tuple[FloatArray, int], edges: FloatArray) -> NDArray[np.int64]:
    """Return the numbers of values in the bins, the first and last of which have no outer edge.

    Each value is in one bin, or in none where it is not finite, whatever the others are.
    """
    stored, zeros = values if isinstance(values, tuple) else (values, 0)
    inner = edges[1:-1]
    places = np.searchsorted(inner, stored[np.isfinite(stored)], side="right")
    counts = np.bincount(places, minlength=len(edges) - 1)
    counts[np.searchsorted(inner, 0.0, side="right")] += zeros
    return counts


def _range(
    counts: FloatArray, edges: FloatArray, sigma: float, threshold: float, coverage: float
) -> tuple[float, float]:
    """Return the range of a feature from its noisy counts, by post-processing."""
    out = np.flatnonzero(counts > threshold)
    if not len(out):
        return float(edges[0]), float(edges[-1])
    first, last = int(out[0]), int(out[-1])
    while first > 0 and counts[first - 1] > _BESIDE * sigma:
        first -= 1
    while last < len(counts) - 1 and counts[last + 1] > _BESIDE * sigma:
        last += 1
    most = 0.5 * (1.0 - coverage) * counts[first : last + 1].sum()
    peak = first + int(np.argmax(counts[first : last + 1]))
    first += _cut(counts[first:peak], sigma, most)
    last -= _cut(counts[last:peak:-1], sigma, most)
    return float(edges[first]), float(edges[last + 1])


def _cut(counts: FloatArray, sigma: float, most: float) -> int:
    """Return how many of the counts, from the outer end, are together below `most`, with noise."""
    above = np.cumsum(counts) + _BESIDE * sigma * np.sqrt(np.arange(1, len(counts) + 1)) > most
    return int(np.argmax(above)) if above.any() else len(counts)


def _row_bound(lo: FloatArray, hi: FloatArray, *, sparse: bool) -> float:
    """Return the norm of the longest row inside the ranges, with an intercept."""
    # Dense features are mapped to [-1, 1]; those of sparse rows are only scaled.
    largest = 2.0 * np.maximum(np.abs(lo), np.abs(hi)) / (hi - lo) if sparse else np.ones(len(lo))
    return math.sqrt(1.0 + float(np.sum(largest**2)))
