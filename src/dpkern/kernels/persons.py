"""Exact sums of clipped gradients in which the records of a person are clipped together, too."""

import math
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

import dpkern.kernels._arguments as checked
from dpkern import _core
from dpkern._numbers import positive
from dpkern._threads import resolve_threads
from dpkern.kernels._arguments import Data, FloatArray, IntArray
from dpkern.kernels.grids import finest_grid, sum_grids
from dpkern.models.losses import Loss

# Steps of the grid in a person's sum, whose coordinates are read as doubles by their bits.
_MOST_STEPS = 1 << 51


def glm_person_gradient(
    data: Data,
    w: ArrayLike,
    *,
    loss: str | Loss = "logistic",
    clip: float,
    persons: ArrayLike,
    person_clip: float,
    grid: ArrayLike | None = None,
    silo_weight: ArrayLike | None = None,
    out: FloatArray | None = None,
    n_threads: int | None = None,
) -> FloatArray:
    r"""Return the sum over each silo of every person's clipped sum of clipped gradients, on a grid.

    For every record the clipped gradient of `glm_gradient` is rounded to the grid q. These vectors
    are added up for every person, exactly; a sum longer than C_p is scaled down to it, by a factor
    that is rounded down, and rounded to the grid towards zero. Then persons are added up, exactly.

    Parameters
    ----------
    data, w, loss, silo_weight, out, n_threads
        As in `dpkern.kernels`. The clip norm of a person of silo j is C_p times its weight.
    clip : float
        Clip norm C of a record, finite.
    persons : array_like of int, shape (P + 1,)
        Person i has the records persons[i] to persons[i + 1], all of them in one silo.
    person_clip : float
        Clip norm C_p > 0 of a person's sum, finite.
    grid
        As in `glm_gradient`; and r C <= 2^51 q for the largest number r of records of a person.

    Returns
    -------
    sums : ndarray, shape (m, d)
        Float64, every entry a multiple of the silo's grid.

    Notes
    -----
    Sensitivity: replacing all values of one person's records changes its silo's sum by at most
    2 C_p in l2 norm and no other silo's, exactly, for the doubles returned, whatever the values.

    Where no person's sum is longer than C_p the result is that of `glm_gradient` in double
    precision, which is computed as fast; scaling down takes a pass over d numbers per person.
    """
    w = checked.models(data, w)
    compiled = checked.compiled_loss(loss)
    clip, bound = positive("clip", clip), positive("person_clip", person_clip)
    offsets, silos = _segments(persons, data)
    largest = int(np.max(offsets[1:] - offsets[:-1]))
    if grid is None:
        grid = finest_grid(2 * data.n, clip)
    grids = sum_grids(grid, offsets=data.offsets, dim=data.d, clip=clip)
    assert grids is not None
    if Fraction(clip) * largest > _MOST_STEPS * Fraction(float(grids.min())):
        raise ValueError(
            f"grid must be at least r clip / 2^51 for the r = {largest} records of a person, got "
            f"{float(grids.min())!r}"
        )
    weights = checked.silo_weights(silo_weight, data.m)
    out = checked.output(out, (data.m, data.d))
    few = min(math.floor(Fraction(bound) / Fraction(clip)), data.n)
    threads = resolve_threads(n_threads, data.n * data.d)
    # fmt: off
    _core.glm_person_gradient(
        data, w, compiled, clip, grids, weights, offsets, silos, bound, few, out, threads
    )
    # fmt: on
    return out


def _segments(persons: ArrayLike, data: Data) -> tuple[IntArray, IntArray]:
    """Return the offsets of persons in records, and of silos in persons."""
    offsets = checked.offsets_of("persons", persons, data.n)
    silos = np.searchsorted(offsets, data.offsets)
    if np.any(offsets[1:] == offsets[:-1]) or np.any(offsets[silos] != data.offsets):
        raise ValueError("persons must be of one record or more, in one silo each, got others")
    return offsets, silos.astype(np.int64)
