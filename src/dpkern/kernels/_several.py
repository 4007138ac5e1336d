"""Kernels at several models: their arguments, and the models one by one."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dpkern._numbers import positive
from dpkern.kernels._arguments import Data, FloatArray, finite_array, real_array, require_data


def several_models(
    data: Data, w: ArrayLike, name: str, clip: ArrayLike, grid: ArrayLike | None
) -> tuple[FloatArray, FloatArray, Sequence[FloatArray | None]]:
    """Return k models (k, d) or (k, m, d), the clip norms (k,), and the argument grid of each."""
    require_data(data)
    points = finite_array("w", w)
    if points.ndim not in (2, 3) or points.shape[1:] not in ((data.d,), (data.m, data.d)):
        raise ValueError(
            f"w must have shape (k, {data.d}) or (k, {data.m}, {data.d}), got {points.shape}"
        )
    k = len(points)
    clips = real_array(name, clip, (), (k,))
    clips = clips if clips.shape else np.full(k, clips)
    for value in clips.tolist():
        positive(name, value, or_infinite=True)
    if len(set(np.isfinite(clips).tolist())) > 1:
        raise ValueError(f"{name} must be finite for all models or for none, got both")
    if grid is None:
        return points, clips, [None] * k
    grids = real_array("grid", grid, (), (k,), (k, data.m))
    grids = grids if grids.ndim == 2 else grids.reshape(-1, 1)
    return points, clips, list(np.broadcast_to(grids, (k, data.m)).copy())


def one_by_one(
    kernel: Callable[..., FloatArray],
    data: Data,
    points: FloatArray,
    own: dict[str, Sequence[Any]],
    out: FloatArray,
    **common: Any,
) -> FloatArray:
    """Write the sums of a kernel for one model at each of k models to out[0], ..., out[k - 1].

    `own` holds k values, one of each model, of an argument.
    """
    for point, sums, *values in zip(points, out, *own.values(), strict=True):
        kernel(data, point, out=sums, **dict(zip(own, values, strict=True)), **common)
    return out
