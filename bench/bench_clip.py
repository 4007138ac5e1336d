"""clip_and_sum beside its twin, the NumPy of a skilled user and a fused numba kernel."""

from functools import partial

import numpy as np
import pytest

from bench.cases import Case, Contenders, numba
from dpkern import kernels, reference

CLIP = 1.0


def skilled(G: np.ndarray, clip: float) -> np.ndarray:
    """Norms without an (n, P) temporary, then one BLAS pass."""
    norms = np.sqrt(np.einsum("ij,ij->i", G, G))
    return np.minimum(1.0, clip / norms).astype(G.dtype) @ G


if numba is not None:

    @numba.njit(parallel=True, fastmath=True, cache=True)
    def fused(G: np.ndarray, clip: float, n_parts: int) -> np.ndarray:
        n, d = G.shape
        parts = np.zeros((n_parts, d))
        for part in numba.prange(n_parts):
            total = np.zeros(d)
            for i in range(part * n // n_parts, (part + 1) * n // n_parts):
                square = 0.0
                for k in range(d):
                    square += np.float64(G[i, k]) * G[i, k]
                weight = min(1.0, clip / np.sqrt(square))
                for k in range(d):
                    total[k] += weight * G[i, k]
            parts[part] = total
        return parts.sum(axis=0)


def setup(n: int, d: int, dtype: type) -> tuple[Contenders, np.ndarray]:
    rng = np.random.default_rng(0)
    G = rng.standard_normal((n, d), dtype=dtype)
    G /= np.sqrt(dtype(d))
    G += dtype(0.1)  # a mean, so that sums are not all cancellation
    contenders: Contenders = {
        "dpkern": partial(kernels.clip_and_sum, G, clip=CLIP),
        "numpy": partial(skilled, G, CLIP),
    }
    if G.nbytes <= 2**26:  # its (n, P) temporaries would take minutes and gigabytes
        contenders["twin"] = partial(reference.clip_and_sum, G, clip=CLIP, grid=2.0**-30)
    if numba is not None:
        contenders["numba"] = lambda: fused(G, CLIP, 4 * numba.get_num_threads())
    return contenders, G


def cases(quick: bool) -> list[Case]:
    sizes = [(2_000, 1_000)] if quick else [(200_000, 1_000), (2_000, 1_000), (256, 10_000)]
    return [
        Case(
            "clip_and_sum",
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
