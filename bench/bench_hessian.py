"""glm_hessian(s) beside tabmat's sandwich, the NumPy of a skilled user, its reference and dgemm.

Half of n d^2 multiplications and additions would do, as sums are symmetric: n d^2 operations are
counted. The rivals have the weights of the records ready; dpkern finds margins, second
derivatives, norms and clips on the way, and rounds the rows. No record is clipped, so that all
compute the same.
"""

import math
from functools import partial

import numpy as np

from bench.bench_glm import records
from bench.bench_sparse import PER_ROW, N, a9a
from bench.cases import DGEMM, Case, Contenders, dgemm
from bench.speed import speed_test
from dpkern import SiloData, kernels, reference
from dpkern.kernels import installation

try:
    import tabmat
except ImportError:
    tabmat = None


def curvature(X: np.ndarray, y: np.ndarray, w: np.ndarray) -> np.ndarray:
    e = np.exp(-np.abs(X @ w))
    return e / (1.0 + e) ** 2


def setup(n: int, d: int, dtype: type, keep_norms: bool) -> tuple[Contenders, None]:
    X, y, w = records(n, d)
    X = X.astype(dtype, copy=False)
    data = SiloData.from_silos([(X, y)]) if keep_norms else SiloData(X, y, [0, n])
    h = curvature(X, y, w).astype(dtype)
    how = {"loss": "logistic", "hess_clip": 4.0}
    ours = partial(kernels.glm_hessian, data, w, **how)
    contenders: Contenders = {
        "dpkern": ours,
        "numpy": lambda: (X * h[:, np.newaxis]).T @ X,
        "float": partial(kernels.glm_hessian, data, w, loss="logistic", hess_clip=math.inf),
    }
    if tabmat is not None:
        contenders["tabmat"] = partial(tabmat.DenseMatrix(X).sandwich, h)
    if X.nbytes <= 2**25:
        contenders["twin"] = partial(reference.glm_hessian, data, w, **how)
    if installation.info()["n_threads"] > 1:
        contenders["1 thread"] = partial(ours, n_threads=1)
    contenders["dgemm"] = dgemm()
    return contenders, None


def setup_sparse() -> tuple[Contenders, None]:
    X, y = a9a()
    w = np.random.default_rng(1).standard_normal(X.shape[1]) / 4.0
    data, dense = (SiloData.from_silos([(rows, y)]) for rows in (X, X.toarray()))
    h = curvature(X, y, w)
    ours = partial(kernels.glm_hessian, w=w, loss="logistic", hess_clip=16.0)
    contenders: Contenders = {
        "dpkern": partial(ours, data),
        "scipy": lambda: (X.T @ X.multiply(h[:, np.newaxis])).toarray(),
        "dense": partial(ours, dense),
        "dgemm": dgemm(),
    }
    if tabmat is not None:
        contenders["tabmat"] = partial(tabmat.SparseMatrix(X).sandwich, h)
    return contenders, None


def setup_several(models: int) -> tuple[Contenders, None]:
    X, y = a9a()
    w = np.random.default_rng(1).standard_normal((models, X.shape[1])) / 4.0
    data = SiloData.from_silos([(X, y)])
    how = {"loss": "logistic", "hess_clip": 16.0}
    return {
        "dpkern": partial(kernels.glm_hessians, data, w, **how),
        "one by one": lambda: [kernels.glm_hessian(data, own, **how) for own in w],
        "dgemm": dgemm(),
    }, None


def cases(quick: bool) -> list[Case]:
    big, *small = [(200_000, 128), (20_000, 128), (20_000, 512), (200_000, 16)]
    if quick:
        big, *small = [(5_000, 128), (1_000, 128), (500, 512), (5_000, 16)]
    found = []
    for n, d in (big, *small):
        for dtype, keep_norms in ((np.float64, False), (np.float64, True), (np.float32, False)):
            if (n, d) != big and (keep_norms or dtype is np.float32):
                continue
            work = float(n) * d * d
            goals = {"tabmat": 1.5, "numpy": 2.0, "dgemm": 0.85}
            found.append(
                Case(
                    "glm_hessian",
                    f"{n} x {d} {np.dtype(dtype)}" + ", norms kept" * keep_norms,
                    partial(setup, n, d, dtype, keep_norms),
                    work,
                    unit="F",
                    goals=goals if (n, d) == big and dtype is np.float64 else {},
                    limits=DGEMM,
                )
            )
    entries, k = N * PER_ROW**2, 8
    sparse = {"unit": "F", "limits": DGEMM}
    found.append(Case("csr hessian", "a9a or like it", setup_sparse, entries, **sparse))
    made = partial(setup_several, k)
    return [*found, Case("glm_hessians", f"a9a, csr, {k} models", made, k * entries, **sparse)]


test_speed = speed_test(
    cases, ["dpkern", "numpy", "float", "tabmat", "twin", "dgemm", "scipy", "dense", "one by one"]
)
