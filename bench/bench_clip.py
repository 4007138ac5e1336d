"""clip_and_sum beside its reference, NumPy and PyTorch of a skilled user, a fused numba kernel."""

from functools import partial

import numpy as np

from bench.bench_glm import FLOAT32
from bench.cases import Case, Contenders, numba
from bench.speed import speed_test
from dpkern import kernels, reference

try:
    import torch
except ImportError:
    torch = None

CLIP = 1.0


def skilled(G: np.ndarray, clip: float) -> np.ndarray:
    """Norms without an (n, P) temporary, then one BLAS pass."""
    norms = np.sqrt(np.einsum("ij,ij->i", G, G))
    return np.minimum(1.0, clip / norms).astype(G.dtype) @ G


def with_torch(G: "torch.Tensor", clip: float) -> "torch.Tensor":
    """What a loop over batches of per-record gradients does, in the precision of G."""
    return (clip / torch.linalg.vector_norm(G, dim=1)).clamp_(max=1.0) @ G


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
    grid = 2.0**-24 if dtype is np.float32 else None  # one that allows single precision
    contenders: Contenders = {
        "dpkern": partial(kernels.clip_and_sum, G, clip=CLIP, grid=grid),
        "numpy": partial(skilled, G, CLIP),
    }
    if G.nbytes <= 2**26:  # its (n, P) temporaries would take minutes and gigabytes
        contenders["twin"] = partial(reference.clip_and_sum, G, clip=CLIP, grid=2.0**-30)
    if torch is not None:
        contenders["torch"] = partial(with_torch, torch.from_numpy(G), CLIP)
    if numba is not None:
        contenders["numba"] = lambda: fused(G, CLIP, 4 * numba.get_num_threads())
    if dtype is np.float32 and d <= 128:
        contenders["float64"] = partial(kernels.clip_and_sum, G.astype(np.float64), clip=CLIP)
    return contenders, G


def cases(quick: bool) -> list[Case]:
    large = [(200_000, 1_000), (20_000, 10_000), (2_000, 100_000)]
    sizes = [(2_000, 1_000)] if quick else [*large, (2_000, 1_000), (256, 10_000), *FLOAT32]
    return [
        Case(
            "clip_and_sum",
            f"{n} x {d} {dtype.__name__}",
            partial(setup, n, d, dtype),
            n * d * np.dtype(dtype).itemsize,
            goals={"read": 0.85}
            if (n, d) in large
            else {"float64": FLOAT32[n, d]}
            if (n, d) in FLOAT32
            else {},
        )
        for n, d in sizes
        for dtype in (np.float64, np.float32)
    ]


test_speed = speed_test(cases, ["dpkern", "numpy", "torch", "twin", "numba", "float64"])
