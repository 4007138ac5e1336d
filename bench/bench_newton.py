"""newton_direction beside its reference, line_search beside one glm_losses on the same data.

The Hessians are those of logistic regression on Gaussian rows, with the noise of a release where
something is to be truncated. The reference ("twin") calls numpy.linalg.eigh, which reads
the same triangle, with the threads that BLAS has: "twin, 1 BLAS thread" limits it, which is faster
at these sizes on many machines.
"""

from functools import partial

import numpy as np
from threadpoolctl import ThreadpoolController

from bench.bench_glm import records
from bench.cases import DGEMM, Case, Contenders, dgemm
from bench.speed import speed_test
from dpkern import SiloData, kernels, reference
from dpkern.kernels import installation

STEPS = 2.0 ** -np.arange(20)
FLOOR = 0.05


def setup_newton(m: int, d: int, truncated: bool) -> tuple[Contenders, None]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((m, d, 4 * d))
    H = X @ X.transpose(0, 2, 1) / (4 * d)
    if truncated:
        noise = rng.standard_normal((m, d, d))
        H += (noise + noise.transpose(0, 2, 1)) / (2 * np.sqrt(d))
    g = rng.standard_normal((m, d))
    by_numpy = partial(reference.newton_direction, H, g, floor=FLOOR)
    limit = ThreadpoolController().limit

    def one_thread() -> np.ndarray:
        with limit(limits=1, user_api="blas"):
            return by_numpy()

    contenders: Contenders = {
        "dpkern": partial(kernels.newton_direction, H, g, floor=FLOOR),
        "twin": by_numpy,
        "twin, 1 BLAS thread": one_thread,
        "dgemm": dgemm(),
    }
    if installation.info()["n_threads"] > 1:
        contenders["1 thread"] = partial(contenders["dpkern"], n_threads=1)
    return contenders, None


def setup_line(n: int, d: int, private: bool) -> tuple[Contenders, np.ndarray]:
    X, y, w = records(n, d)
    data = SiloData(X, y, [0, n])
    p = 0.5 * w[::-1].copy()
    bound = STEPS * np.linalg.norm(p) if private else None
    line = partial(kernels.line_search, data, w, p, loss="logistic", steps=STEPS, bound=bound)
    contenders: Contenders = {
        "dpkern": line,
        "one glm_losses": partial(kernels.glm_losses, data, w, loss="logistic"),
    }
    if not private:
        contenders["20 glm_losses"] = lambda: np.transpose(
            [kernels.glm_losses(data, w - a * p, loss="logistic") for a in STEPS]
        )
    return contenders, X


def cases(quick: bool) -> list[Case]:
    found = []
    for m, d in [(4, 50)] if quick else [(32, 200), (50, 54), (1, 124)]:
        for truncated in (False, True):
            wanted = {"twin": 1 / 1.15 if truncated else 5.0} if (m, d) == (32, 200) else {}
            size = f"{m} x {d} x {d}" + ", truncated" * truncated
            made = partial(setup_newton, m, d, truncated)
            # Cholesky's factors, or the way to tridiagonal form, without the eigenvectors.
            work = m * d**3 * (4.0 if truncated else 1.0) / 3.0
            how = {"unit": "F", "tolerance": 1e-6, "goals": wanted, "limits": DGEMM}
            found.append(Case("newton_direction", size, made, work, **how))
    for n, d in [(20_000, 128)] if quick else [(500_000, 128), (20_000, 128), (500_000, 10)]:
        for private in (False, True):
            big = (n, d) == (500_000, 128) and not private
            found.append(
                Case(
                    "line_search",
                    f"{n} x {d}, 20 steps" + ", private" * private,
                    partial(setup_line, n, d, private),
                    8 * n * d,
                    goals={"one glm_losses": 1 / 1.3} if big else {},
                    other_work=("one glm_losses",),
                )
            )
    return found


test_speed = speed_test(
    cases, ["dpkern", "twin", "twin, 1 BLAS thread", "one glm_losses", "20 glm_losses"]
)
