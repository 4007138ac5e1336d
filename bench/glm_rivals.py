"""The clipped logistic gradient as a skilled user of NumPy or numba would write it."""

from collections.abc import Callable

import numpy as np
from scipy.special import expit

from bench.cases import numba


def skilled(
    X: np.ndarray, y: np.ndarray, norms: np.ndarray, w: np.ndarray, clip: float
) -> np.ndarray:
    """Norms cached, two BLAS passes over X, no (n, d) temporary; sums in the data's own type.

    X may be a scipy.sparse matrix.
    """
    weight = -y * expit(-y * (X @ w))
    limit = clip / norms
    return X.T @ np.clip(weight, -limit, limit)


def skilled_difference(
    X: np.ndarray,
    y: np.ndarray,
    norms: np.ndarray,
    w: np.ndarray,
    margins: np.ndarray,
    clip: float,
    gradient_clip: float,
) -> np.ndarray:
    """The same of differences between w and a point where the margins are known."""
    limit = gradient_clip / norms
    new, old = (np.clip(-y * expit(-y * z), -limit, limit) for z in (X @ w, margins))
    limit = clip / norms
    return X.T @ np.clip(new - old, -limit, limit)


def row_norms(X: np.ndarray) -> np.ndarray:
    return np.sqrt(np.einsum("ij,ij->i", X, X))


fused: Callable | None = None
fused_norms: Callable | None = None
fused_sparse: Callable | None = None
fused_difference: Callable | None = None
local_runs: Callable | None = None

if numba is not None:

    @numba.njit(fastmath=True, cache=True)
    def _factor(y: float, z: float, norm: float, clip: float) -> float:
        weight = -y / (1.0 + np.exp(y * z))
        limit = clip / norm
        return min(max(weight, -limit), limit)

    @numba.njit(fastmath=True, cache=True)
    def _add_with_norms(X, y, norms, w, clip, begin, end, total):
        for i in range(begin, end):
            z = 0.0
            for k in range(X.shape[1]):
                z += X[i, k] * w[k]
            s = _factor(y[i], z, norms[i], clip)
            for k in range(X.shape[1]):
                total[k] += s * X[i, k]

    @numba.njit(parallel=True, fastmath=True, cache=True)
    def fused(X, y, w, clip, n_parts):
        """One pass, norms on the way, double accumulators, no grid."""
        n, d = X.shape
        parts = np.zeros((n_parts, d))
        for part in numba.prange(n_parts):
            total = np.zeros(d)
            for i in range(part * n // n_parts, (part + 1) * n // n_parts):
                z = 0.0
                square = 0.0
                for k in range(d):
                    z += X[i, k] * w[k]
                    square += np.float64(X[i, k]) * X[i, k]
                s = _factor(y[i], z, np.sqrt(square), clip)
                for k in range(d):
                    total[k] += s * X[i, k]
            parts[part] = total
        return parts.sum(axis=0)

    @numba.njit(parallel=True, fastmath=True, cache=True)
    def fused_norms(X, y, norms, w, clip, n_parts):
        """The same with norms that are known."""
        n, d = X.shape
        parts = np.zeros((n_parts, d))
        for part in numba.prange(n_parts):
            total = np.zeros(d)
            begin, end = part * n // n_parts, (part + 1) * n // n_parts
            _add_with_norms(X, y, norms, w, clip, begin, end, total)
            parts[part] = total
        return parts.sum(axis=0)

    @numba.njit(parallel=True, fastmath=True, cache=True)
    def fused_difference(X, y, norms, w, margins, new_margins, clip, gradient_clip, n_parts):
        """Differences to a point where the margins are known, norms known too; margins kept."""
        n, d = X.shape
        parts = np.zeros((n_parts, d))
        for part in numba.prange(n_parts):
            total = np.zeros(d)
            for i in range(part * n // n_parts, (part + 1) * n // n_parts):
                z = 0.0
                for k in range(d):
                    z += X[i, k] * w[k]
                new_margins[i] = z
                s = _factor(y[i], z, norms[i], gradient_clip)
                s -= _factor(y[i], margins[i], norms[i], gradient_clip)
                limit = clip / norms[i]
                s = min(max(s, -limit), limit)
                for k in range(d):
                    total[k] += s * X[i, k]
            parts[part] = total
        return parts.sum(axis=0)

    @numba.njit(parallel=True, fastmath=True, cache=True)
    def fused_sparse(values, columns, bounds, y, norms, w, clip, n_parts):
        n, d = len(y), len(w)
        parts = np.zeros((n_parts, d))
        for part in numba.prange(n_parts):
            total = np.zeros(d)
            for i in range(part * n // n_parts, (part + 1) * n // n_parts):
                z = 0.0
                for t in range(bounds[i], bounds[i + 1]):
                    z += values[t] * w[columns[t]]
                s = _factor(y[i], z, norms[i], clip)
                for t in range(bounds[i], bounds[i + 1]):
                    total[columns[t]] += s * values[t]
            parts[part] = total
        return parts.sum(axis=0)

    @numba.njit(parallel=True, fastmath=True, cache=True)
    def local_runs(X, y, norms, offsets, clip, steps, step_size, l2):
        """Every silo's run from 0, silos in parallel."""
        m, d = len(offsets) - 1, X.shape[1]
        out = np.zeros((m, d))
        for j in numba.prange(m):
            theta, total = np.zeros(d), np.zeros(d)
            begin, end = offsets[j], offsets[j + 1]
            for _ in range(steps):
                total[:] = 0.0
                _add_with_norms(X, y, norms, theta, clip, begin, end, total)
                for k in range(d):
                    theta[k] -= step_size * (total[k] / (end - begin) + l2 * theta[k])
            out[j] = theta
        return out


def skilled_local_runs(X, y, norms, offsets, clip, steps, step_size, l2):
    """Silo after silo, so that its rows stay in cache for NumPy too."""
    out = np.zeros((len(offsets) - 1, X.shape[1]), dtype=X.dtype)
    for theta, begin, end in zip(out, offsets[:-1], offsets[1:], strict=True):
        own = slice(begin, end)
        for _ in range(steps):
            g = skilled(X[own], y[own], norms[own], theta, clip) / (end - begin) + l2 * theta
            theta -= step_size * g
    return out
