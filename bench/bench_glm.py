"""glm_gradient, glm_losses beside the reference, the NumPy of a skilled user, a fused numba kernel.

About half of the records are clipped: rows have norm 1 or so, derivatives lie between -1 and 1, the
bound is 1/2. NumPy always has its norms ready; dpkern and numba find them in the pass, or have them
ready too where the data own their rows ("norms kept"). float32 rows are summed on the grid of a
run of 100 rounds with mu = 1, which allows single precision, and their norms are always found in
the pass.
"""

from functools import lru_cache, partial

import numpy as np

from bench.cases import Case, Contenders, numba
from bench.glm_rivals import fused, fused_norms, row_norms, skilled
from bench.speed import speed_test
from dpkern import SiloData, kernels, reference
from dpkern.kernels import installation
from dpkern.privacy.sensitivity.grids import choose_grid

CLIP = 0.5
# Least ratios of the times of float64 and float32 rows, out of cache and in it.
FLOAT32 = {(1_000_000, 128): 1 / 0.55, (20_000, 128): 1 / 0.6}
NEVER = 8.0  # longer than any gradient here: clipping is on, and clips nothing


@lru_cache(maxsize=1)
def records(n: int, d: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """X, y and w; kept for the next case, which often asks for the same."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d))
    X /= np.sqrt(d)
    return X, np.where(rng.random(n) < 0.5, -1.0, 1.0), rng.standard_normal(d)


def setup(n: int, d: int, dtype: type, keep_norms: bool) -> tuple[Contenders, np.ndarray]:
    X, y, w = records(n, d)
    X = X.astype(dtype, copy=False)
    data = SiloData.from_silos([(X, y)]) if keep_norms else SiloData(X, y, [0, n])
    norms = row_norms(X)
    mine = (y.astype(dtype), norms, w.astype(dtype), dtype(CLIP))
    grid = choose_grid(n=n, clip=CLIP, dim=d, sigma=20.0 * CLIP) if dtype is np.float32 else None
    gradient = partial(kernels.glm_gradient, w=w, clip=CLIP, grid=grid)
    contenders: Contenders = {
        "dpkern": partial(gradient, data),
        "numpy": partial(skilled, X, *mine),
    }
    if X.nbytes <= 2**25:  # its (n, d) temporaries would take minutes and gigabytes
        contenders["twin"] = partial(reference.glm_gradient, data, w, clip=CLIP, grid=2.0**-30)
    if numba is not None:
        parts = 4 * numba.get_num_threads()
        contenders["numba"] = (
            partial(fused_norms, X, y, norms, w, CLIP, parts)
            if keep_norms
            else partial(fused, X, y, w, CLIP, parts)
        )
    if installation.info()["n_threads"] > 1:
        contenders["1 thread"] = partial(gradient, data, n_threads=1)
    if dtype is np.float32:
        contenders["float64"] = partial(gradient, SiloData(records(n, d)[0], y, [0, n]))
    return contenders, X


def setup_losses(n: int, d: int) -> tuple[Contenders, np.ndarray]:
    X, y, w = records(n, d)
    data = SiloData(X, y, [0, n])
    ours = partial(kernels.glm_losses, data, w, loss="logistic")
    return {
        "dpkern": ours,
        "numpy": lambda: np.logaddexp(0.0, -y * (X @ w)).sum(),
        "1 thread": partial(ours, n_threads=1),
    }, X


def setup_grid(n: int, d: int) -> tuple[Contenders, np.ndarray]:
    """Rounding to the grid beside plain floating-point sums, in the same kernel.

    A clip of infinity turns the grid off, and the clip with it; so the clip on the other side is
    one that never binds. What is compared is then the rounding, and in rows so wide that they are
    taken one by one a division for each.
    """
    X, y, w = records(n, d)
    data = SiloData(X, y, [0, n])
    return {
        "dpkern": partial(kernels.glm_gradient, data, w, clip=NEVER),
        "float": partial(kernels.glm_gradient, data, w, clip=np.inf),
    }, X


def setup_weighted(n: int, d: int) -> tuple[Contenders, np.ndarray]:
    """Weights of 1 and margin offsets of 0 beside none, which have the same sums."""
    X, y, w = records(n, d)
    beside = {"weight": np.ones(n), "max_weight": 1.0, "margin_offset": np.zeros(n)}
    return {
        "dpkern": partial(kernels.glm_gradient, SiloData(X, y, [0, n], **beside), w, clip=CLIP),
        "unweighted": partial(kernels.glm_gradient, SiloData(X, y, [0, n]), w, clip=CLIP),
    }, X


def setup_uneven(n: int, d: int, m: int, ratio: float) -> tuple[Contenders, np.ndarray]:
    X, y, w = records(n, d)

    def total(weights: np.ndarray) -> Contenders:
        offsets = np.rint(np.cumsum([0.0, *weights / weights.sum()]) * n).astype(int)
        data = SiloData(X, y, offsets)
        return lambda: kernels.glm_gradient(data, w, clip=CLIP).sum(axis=0)

    return {
        "dpkern": total(np.where(np.arange(m) < m // 2, ratio, 1.0)),
        "even": total(np.ones(m)),
    }, X


def cases(quick: bool) -> list[Case]:
    big, *small = [(1_000_000, 128), (20_000, 128), (2_000, 1_000), (50_000, 10)]
    if quick:
        big, *small = [(100_000, 128), (4_000, 128), (500, 1_000), (5_000, 10)]
    found = []
    for n, d in (big, *small):
        size = f"{n} x {d}"
        in_cache = (n, d) != big
        goals = {"numpy": 1.5, "numba": 1.2} if in_cache else {"numpy": 2.3, "numba": 1.0}
        if not in_cache:
            goals["read"] = 0.85
        for dtype, keep_norms, wanted in (
            (np.float64, False, goals),
            (np.float64, True, goals),
            (np.float32, False, {"float64": FLOAT32[n, d]} if (n, d) in FLOAT32 else {}),
        ):
            made = partial(setup, n, d, dtype, keep_norms)
            name = f"{size} {np.dtype(dtype)}" + ", norms kept" * keep_norms
            amount = n * d * np.dtype(dtype).itemsize
            near = 1e-3 if dtype is np.float32 else 1e-4  # sums that get noise are on coarse grids
            found.append(Case("glm_gradient", name, made, amount, tolerance=near, goals=wanted))
        wanted = {"float": 1 / 1.25 if in_cache else 1 / 1.1}
        found.append(Case("grid", size, partial(setup_grid, n, d), 8 * n * d, goals=wanted))
    n, d = big
    made, wanted = partial(setup_weighted, n, d), {"unweighted": 1 / 1.1}
    found.append(Case("weights", f"{n} x {d}", made, 8 * n * d, goals=wanted))
    for n, d in (big, small[0]):
        made = partial(setup_losses, n, d)
        found.append(Case("glm_losses", f"{n} x {d} float64", made, 8 * n * d))
    n, d = (20_000, 54) if quick else (500_000, 54)
    made = partial(setup_uneven, n, d, 32, 9.0)
    found.append(Case("uneven", f"{n} x {d}, u = 9", made, 8 * n * d, goals={"even": 1 / 1.1}))
    return found


test_speed = speed_test(
    cases, ["dpkern", "numpy", "twin", "numba", "float64", "float", "even", "unweighted"]
)
