"""glm_local_descent: many steps while a silo's rows stay in cache, beside as many passes.

The read bandwidth is that of memory, out of cache: the share printed is how many times faster the
run is than reading X from memory at every step. Norms are known to all contenders.
"""

from functools import partial

import numpy as np

from bench.bench_glm import CLIP
from bench.cases import Case, Contenders, numba, out_of_cache
from bench.glm_rivals import local_runs, row_norms, skilled_local_runs
from bench.speed import speed_test
from dpkern import NoiseStream, SiloData, kernels, reference
from dpkern.kernels import installation

M, STEP_SIZE, L2 = 32, 0.5, 1e-3


def setup(n: int, d: int, steps: int, dtype: type, quick: bool) -> tuple[Contenders, np.ndarray]:
    rng = np.random.default_rng(0)
    X = (rng.standard_normal((M * n, d)) / np.sqrt(d)).astype(dtype)
    y = np.where(X @ rng.standard_normal(d).astype(dtype) > 0.0, 1.0, -1.0)
    data = SiloData.from_silos([(X[i : i + n], y[i : i + n]) for i in range(0, M * n, n)])
    norms = row_norms(X)
    run = {"steps": steps, "step_size": STEP_SIZE, "l2": L2}
    ours = partial(kernels.glm_local_descent, data, np.zeros(d), loss="logistic", clip=CLIP, **run)
    mine = (X, y.astype(dtype), norms, data.offsets, dtype(CLIP), steps, dtype(STEP_SIZE))
    contenders: Contenders = {
        "dpkern": ours,
        "numpy": partial(skilled_local_runs, *mine, dtype(L2)),
        "twin": partial(
            reference.glm_local_descent,
            data,
            np.zeros(d),
            loss="logistic",
            clip=CLIP,
            grid=2.0**-30,
            **run,
        ),
    }
    if numba is not None:
        contenders["numba"] = partial(
            local_runs, X, y, norms, data.offsets, CLIP, steps, STEP_SIZE, L2
        )
    if installation.info()["n_threads"] > 1:
        contenders["1 thread"] = partial(ours, n_threads=1)
    return contenders, out_of_cache(2**22) if quick else out_of_cache()


def setup_noise(n: int, d: int, steps: int) -> tuple[Contenders, None]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((M * n, d)) / np.sqrt(d)
    y = np.where(rng.random(M * n) < 0.5, 1.0, -1.0)
    data = SiloData.from_silos([(X[i : i + n], y[i : i + n]) for i in range(0, M * n, n)])
    run = partial(
        kernels.glm_local_descent,
        data,
        np.zeros(d),
        loss="logistic",
        clip=CLIP,
        steps=steps,
        step_size=STEP_SIZE,
        l2=L2,
        grid=2.0**-20,
    )
    return {"dpkern": partial(run, sigma=5.0, rng=NoiseStream()), "no noise": run}, None


def cases(quick: bool) -> list[Case]:
    n, d, steps = (200, 64, 10) if quick else (1_000, 64, 50)
    size = f"{M} x {n} x {d}, K = {steps}"
    found = []
    for dtype, goals in (
        (np.float64, {"read": 2.5, "twin": 5.0}),
        (np.float32, {}),
    ):
        made = partial(setup, n, d, steps, dtype, quick)
        amount = steps * M * n * d * np.dtype(dtype).itemsize
        name = f"{size} {np.dtype(dtype)}"
        # References of float32 rows compute in doubles, a skilled user's NumPy does not.
        tolerance = 1e-4 if dtype is np.float64 else 1e-3
        found.append(Case("local_descent", name, made, amount, tolerance=tolerance, goals=goals))
    noisy = partial(setup_noise, n, d, steps)
    amount = M * n * d * 8 * steps
    goals = {"no noise": 1 / 1.1}
    found.append(Case("noisy steps", size, noisy, amount, tolerance=None, goals=goals))
    return found


test_speed = speed_test(cases, ["dpkern", "numpy", "twin", "numba", "no noise"])
