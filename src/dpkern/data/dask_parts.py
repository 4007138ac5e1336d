"""Dask arrays and frames, of which one part at a time is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from functools import partial, wraps
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from dpkern._numbers import counted
from dpkern.data.frames import frame_matrix
from dpkern.data.validation import is_sparse, refuse_misread

Method = TypeVar("Method", bound=Callable[..., Any])


def is_dask(X: Any) -> bool:
    """Return whether X is computed by Dask."""
    return hasattr(X, "__dask_graph__") and not isinstance(X, type)


def empty_like(X: Any) -> Any:
    """Return an array or frame without rows, of the columns of X, which must be numbers."""
    if is_dask_frame(X):
        refuse_misread(X._meta)
        frame_matrix(X._meta)
        return X._meta
    if not hasattr(X, "_meta") or not hasattr(X, "chunks"):
        raise TypeError(f"X must be a Dask array or frame, got a {type(X).__name__}")
    if X.ndim != 2:
        raise ValueError(f"X must have shape (n, n_features), got {counted(X.ndim, 'dimension')}")
    if X.numblocks[1] != 1 or np.isnan(X.shape[1]):
        raise ValueError(
            f"X must have chunks of whole rows, got {X.numblocks[1]} chunks of columns: pass "
            "X.rechunk({1: -1})"
        )
    if X.dtype.kind not in "fiub":
        raise TypeError(f"X must be real numbers, got dtype {X.dtype}: encode them (one-hot, say)")
    make: Any = type(X._meta) if is_sparse(X._meta) else np.empty
    return make((0, X.shape[1]), dtype=X.dtype)


def is_dask_frame(X: Any) -> bool:
    return hasattr(X, "_meta") and hasattr(X, "columns")  # delayed objects have any public name


def parts_of(X: Any, required: Mapping[str, Any], more: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the parts of X, each with those of what is beside it, by names, to be computed."""
    columns = {**required, **{name: values for name, values in more.items() if values is not None}}
    for name, values in columns.items():
        _require_parts_of(X, name, values)
    columns = {"X": X, **columns}
    # Optimised by itself, a column would have other partitions than a frame of more columns.
    delayed = [np.ravel(c.to_delayed(optimize_graph=False)).tolist() for c in columns.values()]
    return [dict(zip(columns, part, strict=True)) for part in zip(*delayed, strict=True)]


def _require_parts_of(X: Any, name: str, values: Any) -> None:
    """Raise unless values are those of records that are in parts as the rows of X are."""
    if not is_dask(values) or not hasattr(values, "_meta"):
        raise TypeError(
            f"{name} must be a Dask array or series, as X is of Dask, got a "
            f"{type(values).__name__}: pass dask.array.from_array({name}, chunks=X.chunks[0]), "
            "or a column of one frame with X"
        )
    if values.ndim != 1:
        raise ValueError(f"{name} must have one dimension, as a column, got {values.ndim}")
    cure = "take both from one frame, or repartition them"
    if hasattr(X, "chunks") and hasattr(values, "chunks"):
        known = not np.isnan([*X.chunks[0], *values.chunks[0]]).any()
        same = X.chunks[0] == values.chunks[0]
        cure = f"pass {name}.rechunk(X.chunks[0])"
        if known and sum(X.chunks[0]) != sum(values.chunks[0]):
            raise ValueError(
                f"{name} must have an entry for each row of X, got {len(values)} for {len(X)} rows"
            )
    else:
        divisions = [getattr(a, "divisions", (None,)) for a in (X, values)]
        known, same = None not in (*divisions[0], *divisions[1]), divisions[0] == divisions[1]
    if X.npartitions != values.npartitions or (known and not same):
        raise ValueError(
            f"{name} must have the chunks or partitions of X, got others, {values.npartitions} "
            f"for {X.npartitions}: {cure}"
        )


def computed(parts: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield parts, which the scheduler of Dask that the user has computes one after another."""
    from dask import compute

    for part in parts:
        yield compute(part)[0]


def in_parts(method: Method) -> Method:
    """Let a method that predicts for rows return a Dask array of what it predicts for those of X.

    It is computed later, part by part, as X is.
    """

    @wraps(method)
    def predict(self: Any, X: Any) -> Any:
        if not is_dask(X):
            return method(self, X)
        like, model = empty_like(X), copy(self)
        model.accountant = None  # which stays in this process
        row: Any = np.zeros((1, like.shape[1]))
        if framed := is_dask_frame(X):
            row = type(like)(row, columns=like.columns)
        empty = method(model, row)[:0]  # columns have been checked
        of_part = partial(_of_part, method.__name__, model, empty)
        if framed:
            return X.map_partitions(of_part, meta=empty)
        how = {"drop_axis": 1} if empty.ndim == 1 else {"chunks": (X.chunks[0], empty.shape[1:])}
        return X.map_blocks(of_part, meta=empty, dtype=empty.dtype, **how)

    return cast(Method, predict)


def _of_part(name: str, model: Any, empty: NDArray[Any], X: Any) -> Any:
    return getattr(model, name)(X) if X.shape[0] else empty
