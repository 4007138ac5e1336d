"""glm_gradient beside its twin, the NumPy of a skilled user and a fused numba kernel."""

from functools import partial

import numpy as np
import pytest
from scipy.special import expit

from bench.cases import Case, Contenders, numba
from dpkern import SiloData, kernels, reference

CLIP = 1.0


def skilled(
    X: np.ndarray, y: np.ndarray, norms: np.ndarray, w: np.ndarray, clip: float
) -> np.ndarray:
    """Norms cached, two BLAS passes over X, no (n, d) temporary; sums in the data's own type."""
    weight = -y * expit(-y * (X @ w))
    limit = clip / norms
    return np.clip(weight, -limit, limit) @ X


if numba is not None:

    @numba.njit(parallel=True, fastmath=True)
    def fused(X: np.ndarray, y: np.ndarray, w: np.ndarray, clip: float, n_parts: int) -> np.ndarray:
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
                weight = -y[i] / (1.0 + np.exp(y[i] * z))
                limit = clip / np.sqrt(square)
                weight = min(max(weight, -limit), limit)
                for k in range(d):
                    total[k] += weight * X[i, k]
            parts[part] = total
        return parts.sum(axis=0)


def setup(n: int, d: int, dtype: type) -> tuple[Contenders, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d), dtype=dtype)
    X /= np.sqrt(dtype(d))
    y = np.where(rng.random(n) < 0.5, -1.0, 1.0)
    w = rng.standard_normal(d)
    data = SiloData(X, y, [0, n])
    norms = np.sqrt(np.einsum("ij,ij->i", X, X))
    mine = (y.astype(dtype), norms, w.astype(dtype), dtype(CLIP))
    contenders: Contenders = {
        "dpkern": partial(kernels.glm_gradient, data, w, clip=CLIP),
        "numpy": partial(skilled, X, *mine),
    }
    if X.nbytes <= 2**26:  # its (n, d) temporaries would take minutes and gigabytes
        contenders["twin"] = partial(reference.glm_gradient, data, w, clip=CLIP, grid=2.0**-30)
    if numba is not None:
        contenders["numba"] = lambda: fused(X, y, w, CLIP, 4 * numba.get_num_threads())
    return contenders, X


def cases(quick: bool) -> list[Case]:
    sizes = [(1_000_000, 128), (20_000, 128), (2_000, 1_000), (50_000, 10)]
    if quick:
        sizes = [(4_000, 128), (500, 1_000), (5_000, 10)]
    return [
        Case(
            "glm_gradient",
            f"{n} x {d} {dtype.__name__}",
            partial(setup, n, d, dtype),
            n * d * np.dtype(dtype).itemsize,
        )
        for n, d in sizes
        for dtype in (np.float64, np.float32)
    ]


@pytest.mark.parametrize("contender", ["dpkern", "numpy", "twin", "numba"])
@pytest.mark.parametrize("case", cases(quick=False), ids=lambda case: case.name)
def test_speed(case, contender, contenders, benchmark):
    benchmark.group = case.name
    benchmark(contenders(case, contender))
