"""glm_gradient on sparse rows: a9a, or records of its shape where DPKERN_DATA is not set."""

import os
from functools import partial
from pathlib import Path

import numpy as np
from scipy import sparse

from bench.bench_glm import CLIP
from bench.cases import Case, Contenders, numba
from bench.glm_rivals import fused_sparse, skilled
from bench.speed import speed_test
from dpkern import SiloData, kernels, reference
from dpkern.io import read_table
from dpkern.kernels import installation

N, D, PER_ROW = 32_561, 123, 13.9


def a9a() -> tuple[sparse.csr_array, np.ndarray]:
    folder = os.environ.get("DPKERN_DATA")
    if folder:
        table = read_table(Path(folder) / "a9a" / "a9a.xz", n_features=D)
        return sparse.csr_array(table.X), np.where(table.y > 0, 1.0, -1.0)
    rng = np.random.default_rng(0)
    stored = rng.random((N, D)) < PER_ROW / D
    return sparse.csr_array(stored.astype(np.float64)), np.where(rng.random(N) < 0.24, 1.0, -1.0)


def setup() -> tuple[Contenders, np.ndarray]:
    X, y = a9a()
    X.indices = X.indices.astype(np.int32)
    w = np.random.default_rng(1).standard_normal(D) / 4.0
    norms = np.sqrt(X.multiply(X).sum(axis=1))
    clip = CLIP * float(np.mean(norms))
    data, dense = (SiloData.from_silos([(rows, y)]) for rows in (X, X.toarray()))
    ours = partial(kernels.glm_gradient, w=w, clip=clip)
    contenders: Contenders = {
        "dpkern": partial(ours, data),
        "scipy": partial(skilled, X, y, norms, w, clip),
        "twin": partial(reference.glm_gradient, data, w, clip=clip, grid=2.0**-30),
        "dense": partial(ours, dense),
    }
    if numba is not None:
        parts = 4 * numba.get_num_threads()
        contenders["numba"] = partial(
            fused_sparse, X.data, X.indices, X.indptr, y, norms, w, clip, parts
        )
    if installation.info()["n_threads"] > 1:
        contenders["1 thread"] = partial(ours, data, n_threads=1)
    return contenders, X.data


def cases(quick: bool) -> list[Case]:
    name = "a9a" if os.environ.get("DPKERN_DATA") else f"{N} x {D} like a9a"
    # An entry is a double and its column's number.
    return [Case("csr gradient", name, setup, N * PER_ROW * 12, goals={"scipy": 2.0})]


test_speed = speed_test(cases, ["dpkern", "scipy", "twin", "dense", "numba"])
