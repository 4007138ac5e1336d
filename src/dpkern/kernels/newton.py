"""Directions of Newton methods by truncated eigenvalues, and line searches."""

import functools

import numpy as np
from numpy.typing import ArrayLike

import dpkern.kernels._arguments as checked
from dpkern import _core
from dpkern._numbers import positive
from dpkern._threads import one_blas_thread, resolve_threads
from dpkern.kernels._arguments import Data, FloatArray, in_blocks
from dpkern.kernels._blocks import decrease_steps, on_grid
from dpkern.kernels.grids import candidate_grids, saturated
from dpkern.models.losses import Loss, get_loss


def newton_direction(
    H: ArrayLike, g: ArrayLike, *, floor: float, n_threads: int | None = None
) -> FloatArray:
    """Return Newton directions with the Hessian's eigenvalues truncated from below.

    Parameters
    ----------
    H : array_like, shape (m, d, d)
        One symmetric matrix per silo, finite. Only its lower triangle is read.
    g : array_like, shape (m, d)
        One vector per silo, finite.
    floor : float
        Lower bound of the eigenvalues, positive and finite.
    n_threads
        As in `dpkern.kernels`. Silos run in parallel, each in one thread of LAPACK.

    Returns
    -------
    p : ndarray, shape (m, d)
        p_j = (V max(lam, floor) V^T)^-1 g_j with H_j = V diag(lam) V^T. Float64.

    Raises
    ------
    RuntimeError
        When LAPACK's eigensolver does not converge.

    Notes
    -----
    If a Cholesky factorisation of H - floor I succeeds, no eigenvalue is below the floor, and that
    of H solves the system; otherwise the eigenvalues are computed. An eigenvalue within d u |H| of
    the floor, u = 2^-53, may be treated as on either side of it, a change of H of the size of any
    algorithm's backward error. So |p| <= |g| / floor up to a relative error of d u |H| / floor.

    Every BLAS that threadpoolctl controls is limited to one thread during the call.
    """
    H = checked.real_array("H", H)
    if H.ndim != 3 or H.shape[1] != H.shape[2] or not H.size:
        raise ValueError(f"H must have shape (m, d, d), m, d >= 1, got {H.shape}")
    m, d = H.shape[:2]
    if d > _core.NEWTON_MAX:
        raise ValueError(f"H must have at most {_core.NEWTON_MAX} columns, got {d}")
    g = checked.finite_array("g", g, (m, d))
    floor = positive("floor", floor)
    out = np.empty((m, d))
    threads = resolve_threads(n_threads, H.size * d // 8)
    with one_blas_thread():
        _core.newton_direction(H, g, floor, _lapack(), out, threads)
    return out


@functools.cache
def _lapack() -> _core.Lapack:
    """Return LAPACK, loaded on first use, since the import of scipy.linalg is slow."""
    return _core.Lapack()


def line_search(
    data: Data,
    w: ArrayLike,
    p: ArrayLike,
    *,
    loss: str | Loss,
    steps: ArrayLike,
    bound: ArrayLike | None = None,
    grid: ArrayLike | None = None,
    saturate: bool = False,
    out: FloatArray | None = None,
    n_threads: int | None = None,
) -> FloatArray:
    """Return the losses of every silo along the line w - a p, for every candidate step a.

    Parameters
    ----------
    data, loss, out, n_threads
        As in `dpkern.kernels`.
    w, p : array_like, shape (d,) or (m, d)
        Model and direction, each one for all silos or one per silo.
    steps : array_like, shape (k,)
        Candidate steps a, finite.
    bound : array_like, shape (k,) or (m, k), optional
        For a private search: clipping bounds b_a > 0 of one record's decrease of the loss, one per
        candidate, or per silo and candidate.
    grid : float or array_like, shape (k,) or (m, k), optional
        With `bound` only: power of two q, one for all candidates, one per candidate, or one per
        silo and candidate, with max(n_j, 2) b_a <= 2^52 q for the n_j records of every silo and
        q <= b_a / 32. None means the finest on which the sum of all N records is exact, too.
    saturate : bool
        With `bound`, as in `glm_gradient`.

    Returns
    -------
    sums : ndarray, shape (m, k)
        Float64. Without `bound` sum_i phi(y_i, z_i - a dz_i), z = x . w and dz = x . p of the
        effective rows: `glm_losses` at w - a p up to rounding. These are not private.
        With `bound` the decreases sum_i round_q(clamp(phi(y_i, z_i) - phi(y_i, z_i - a dz_i),
        -b_a, b_a)), every entry a multiple of its grid; a NaN (infinity less infinity) counts as 0.

    Notes
    -----
    Sensitivity of the private sums: one record's term is at most b_a in absolute value, exactly,
    for the doubles returned. Replacing a record changes candidate a of its silo by at most 2 b_a,
    and all candidates by at most 2 |b| in l2 norm; adding or removing one by half of that. For a
    loss whose derivative is clipped to C / |x|, b_a = |a| C |p| clips nothing but rounding errors.
    """
    w, p = checked.models(data, w), checked.models(data, p, "p")
    compiled = checked.compiled_loss(loss)
    candidates = checked.finite_array("steps", steps)
    if candidates.ndim != 1 or not candidates.size:
        raise ValueError(f"steps must have shape (k,), k >= 1, got {candidates.shape}")
    bounds = grids = None
    if bound is not None:
        k = candidates.size
        bounds = checked.positive_array("bound", bound, (data.m, k), (k,))
        grids = candidate_grids(grid, offsets=data.offsets, bounds=bounds, saturate=saturate)
    elif grid is not None:
        raise ValueError(
            "grid must be None without bound, got one: sums of unbounded losses are not exact"
        )
    out = checked.output(out, (data.m, candidates.size))
    if (blocks := in_blocks(data)) is not None:
        how = get_loss(loss), candidates, bounds, grids, n_threads
        (sums,) = blocks.totals([functools.partial(decrease_steps, (w, p), *how)])
        out[:] = sums if grids is None else on_grid(sums, grids)
    else:
        threads = resolve_threads(n_threads, data.X.size + 8 * data.n * candidates.size)
        _core.line_search(data, w, p, compiled, candidates, bounds, grids, out, threads)
    return saturated(out, grids) if saturate and grids is not None else out
