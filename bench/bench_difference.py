"""glm_difference beside glm_gradient, its reference, NumPy of a skilled user and a numba kernel.

Margins of the earlier point are ready for all, as from the call before; those of the later point
are kept for the next. About half of the gradients and half of the differences are clipped. NumPy
and numba always have their norms ready; dpkern has where the data own their rows ("norms kept").
"""

from functools import partial

import numpy as np

from bench.bench_glm import CLIP, FLOAT32, records
from bench.cases import Case, Contenders, numba
from bench.glm_rivals import fused_difference, row_norms, skilled_difference
from bench.speed import speed_test
from dpkern import SiloData, kernels, reference
from dpkern.kernels import installation

DIFFERENCE_CLIP = 0.01


def setup(n: int, d: int, dtype: type, keep_norms: bool) -> tuple[Contenders, np.ndarray]:
    X, y, old = records(n, d)
    X = X.astype(dtype, copy=False)
    data = SiloData.from_silos([(X, y)]) if keep_norms else SiloData(X, y, [0, n])
    new = old + 0.1 * np.random.default_rng(1).standard_normal(d)
    margins, space, norms = kernels.glm_margins(data, old), np.empty(n), row_norms(X)
    clips = {"clip": DIFFERENCE_CLIP, "gradient_clip": CLIP}
    # float32 rows on a grid that allows single precision.
    grid = 2.0**-30 if dtype is np.float32 else None
    ours = partial(kernels.glm_difference, data, new, old, loss="logistic", grid=grid, **clips)
    kept = partial(ours, margins=margins, new_margins=space)
    mine = (y.astype(dtype), norms, new.astype(dtype), margins.astype(dtype))
    contenders: Contenders = {
        "dpkern": kept,
        "gradient": partial(kernels.glm_gradient, data, new, clip=CLIP, grid=grid and 2.0**-26),
        "no margins": partial(ours, new_margins=space),
        "numpy": partial(skilled_difference, X, *mine, dtype(DIFFERENCE_CLIP), dtype(CLIP)),
    }
    if X.nbytes <= 2**25:  # its (n, d) temporaries would take minutes and gigabytes
        by_numpy = partial(reference.glm_difference, data, new, old, loss="logistic", **clips)
        contenders["twin"] = partial(by_numpy, grid=2.0**-30, margins=margins)
    if numba is not None:
        parts = 4 * numba.get_num_threads()
        contenders["numba"] = partial(
            fused_difference, X, y, norms, new, margins, space, DIFFERENCE_CLIP, CLIP, parts
        )
    if dtype is np.float32:
        doubles = SiloData(records(n, d)[0], y, [0, n])
        theirs = partial(kernels.glm_difference, doubles, new, old, loss="logistic", **clips)
        kept_doubles = {"margins": kernels.glm_margins(doubles, old), "new_margins": np.empty(n)}
        contenders["float64"] = partial(theirs, **kept_doubles)
    if installation.info()["n_threads"] > 1:
        contenders["1 thread"] = partial(kept, n_threads=1)
    return contenders, X


def cases(quick: bool) -> list[Case]:
    sizes = [(1_000_000, 128), (20_000, 128), (2_000, 1_000), (50_000, 10)]
    if quick:
        sizes = [(100_000, 128), (4_000, 128), (500, 1_000), (5_000, 10)]
    found = []
    for n, d in sizes:
        for dtype, keep_norms in ((np.float64, False), (np.float64, True), (np.float32, False)):
            goals = {"gradient": 1 / 1.2}
            if dtype is np.float32 and (n, d) in FLOAT32:
                goals["float64"] = FLOAT32[n, d]
            found.append(
                Case(
                    "glm_difference",
                    f"{n} x {d} {np.dtype(dtype)}" + ", norms kept" * keep_norms,
                    partial(setup, n, d, dtype, keep_norms),
                    n * d * np.dtype(dtype).itemsize,
                    tolerance=1e-3 if dtype is np.float32 else 1e-4,
                    goals=goals,
                    other_work=("gradient",),
                )
            )
    return found


test_speed = speed_test(
    cases, ["dpkern", "gradient", "no margins", "numpy", "twin", "numba", "float64"]
)
