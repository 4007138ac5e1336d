"""The programs behind the Lasso figure of Cyffers, Bellet, Basu 2023, restated in NumPy.

    python examples/papers/lasso_admm_variants.py [--draws N] [--quick]

NOT PRIVATE: nothing here has a guarantee, and nothing is certified. The authors' published programs
differ from the paper's Algorithm 11 and from what noise it asks for. Their steps are restated here
as short loops at the settings that the authors found best, with some deviations taken back, beside
dpkern's sound runs with the settings that lasso_admm.py chooses. The problem is the authors' own:
standardised features, and alpha by cross-validation on the training records.
docs/papers/lasso_admm.md discusses the outcome.

Figures are the objective on the held-out records: the least over all iterations, as the authors
report it, and in brackets that of the last iterate. dpkern's are of the last one.
"""

import argparse
import functools
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np
from lasso_admm import (
    DELTA,
    EPSILONS,
    LABEL_NOISE,
    METHODS,
    N_TRAIN,
    NON_ZEROS,
    PUBLIC,
    THEIRS,
    USERS,
    D,
    N,
    Problem,
    chosen,
    problem,
    solve,
)
from sklearn.linear_model import LassoCV
from tqdm import tqdm

import dpkern as dpk
from dpkern.papers.noise import admm_rho

ROUNDS, CLIP = THEIRS["rounds"], THEIRS["clip"]
LAM, GAMMA = THEIRS["relaxation"], THEIRS["prox_step"]
ETA, SUM_CLIP = 0.31, 13.0  # of the proximal gradient method: what the authors found best

Array = np.ndarray
Iterates = list[Array]


def authors_problem() -> Problem:
    """The problem that the authors draw, with their seeds."""
    rng = np.random.default_rng(18)
    X = rng.standard_normal((N, D))
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    w, sizes = np.zeros(D), rng.uniform(size=NON_ZEROS)
    w[rng.choice(D, NON_ZEROS, replace=False)] = sizes
    y = X @ w + LABEL_NOISE * rng.standard_normal(N)
    order = np.random.RandomState(42).permutation(N)
    test, train = order[: N - N_TRAIN], order[N - N_TRAIN :]
    alpha = float(LassoCV().fit(X[train], y[train]).alpha_)
    return Problem(dpk.SiloData(X[train], y[train], [0, N_TRAIN]), X[test], y[test], alpha)


def shrink(v: Array, threshold: float) -> Array:
    """The prox of threshold |.|_1."""
    return np.sign(v) * np.maximum(np.abs(v) - threshold, 0.0)


def clip(rows: Array, most: float) -> Array:
    norms = np.sqrt((rows**2).sum(axis=-1, keepdims=True))
    return rows * np.minimum(1.0, most / np.maximum(norms, 1e-300))


def take_turns(users: Array) -> Iterator[Array]:
    """Groups of different users: one that was drawn twice has its second turn after its first."""
    while len(users):
        group, first = np.unique(users, return_index=True)
        yield group
        users = np.delete(users, first)


def code_deviation(clip_norm: float, epsilon: float) -> float:
    """2 C^2 T / (rho n^2), a variance, which the programs take for a standard deviation."""
    rho = admm_rho({"epsilon": epsilon, "delta": DELTA})
    return 2.0 * clip_norm**2 * ROUNDS / (rho * N**2)


def root_deviation(clip_norm: float, epsilon: float) -> float:
    """The root of it, in proportion to the clip norm."""
    return float(np.sqrt(code_deviation(clip_norm, epsilon)))


def admm(
    p: Problem,
    sigma: float,
    seed: int,
    *,
    start: float = 10.0,
    threshold: float = 2.0 / N,
    carry: bool = False,
    everybody: bool = False,
    clip_norm: float = CLIP,
    rounds: int = ROUNDS,
) -> Iterates:
    """Federated ADMM as programmed; ADMM itself has start 0, threshold 1 / 2 and carry.

    `start` is in units of alpha, `threshold` of alpha gamma. With `carry` a round goes on from
    zhat, the mean of the u_i, and not from the shrunk z. 100 users are drawn with replacement for
    every round, which `everybody` replaces by all of them.
    """
    rng = np.random.default_rng(seed)
    X, y = p.train.X, p.train.y
    weights = 1.0 / (1.0 / GAMMA + (X**2).sum(axis=1))
    z = zhat = np.full(D, start * p.alpha)
    u = np.zeros((len(y), D))
    iterates = []
    for _ in range(rounds):
        users = np.arange(len(y)) if everybody else rng.integers(len(y), size=USERS)
        moved = np.zeros(D)
        for i in take_turns(users):
            v = 2.0 * z - u[i]
            residuals = y[i] - (X[i] * v).sum(axis=1)
            x = v + X[i] * (residuals * weights[i])[:, np.newaxis]  # prox of gamma f_i
            noise = LAM * sigma * rng.standard_normal((len(i), D))
            change = 2.0 * LAM * clip(x - z, clip_norm) + noise
            u[i] += change
            moved += change.sum(axis=0)
        zhat = (zhat if carry else z) + moved / len(y)
        z = shrink(zhat, threshold * p.alpha * GAMMA)
        iterates.append(z)
    return iterates


def proximal_gradient(p: Problem, sigma: float, seed: int) -> Iterates:
    """The proximal gradient method as programmed: the sum over 100 records is clipped."""
    rng = np.random.default_rng(seed)
    X, y = p.train.X, p.train.y
    z = np.full(D, 10.0 * p.alpha)
    iterates = []
    for _ in range(ROUNDS):
        i = rng.integers(len(y), size=USERS)
        g = clip(X[i].T @ (X[i] @ z - y[i]), SUM_CLIP) + sigma * rng.standard_normal(D)
        z = shrink(z - ETA * g / N, p.alpha * ETA / N)
        iterates.append(z)
    return iterates


Method = Callable[..., Iterates]
REPAIRED = {"start": 0.0, "threshold": 0.5, "carry": True}
# Name, program, its clip norm and its noise.
VARIANTS: list[tuple[str, Method, float, Callable[[float, float], float]]] = [
    ("ADMM, code", admm, CLIP, code_deviation),
    ("proximal gradient, code", proximal_gradient, SUM_CLIP, code_deviation),
    ("ADMM, root of it", admm, CLIP, root_deviation),
    ("proximal gradient, root of it", proximal_gradient, SUM_CLIP, root_deviation),
    ("ADMM from z = 0, code", functools.partial(admm, start=0.0), CLIP, code_deviation),
    ("ADMM itself, code's noise", functools.partial(admm, **REPAIRED), CLIP, code_deviation),
]
SOUND = ("ADMM, federated", "DP-prox-SGD")  # of lasso_admm.py


def show(name: str, cells: list[str]) -> None:
    print(f"{name:34}" + "".join(f"{cell:>21}" for cell in cells))


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Cyffers, Bellet, Basu 2023: their Lasso programs restated. NOT PRIVATE."
    )
    parser.add_argument("--draws", type=int, metavar="N", help="10, 1 with --quick")
    parser.add_argument("--quick", action="store_true", help="few points, less than a minute")
    arguments = parser.parse_args()
    if arguments.draws is not None and arguments.draws < 1:
        parser.error(f"--draws is {arguments.draws}; it must be at least 1")
    draws = arguments.draws or (1 if arguments.quick else 10)
    epsilons = [*(EPSILONS[3::3] if arguments.quick else EPSILONS), None]
    began, p = time.perf_counter(), authors_problem()
    print(f"Lasso, held-out objective, {draws} draws. NOT PRIVATE, but for dpkern's sound rows.")
    print(f"noiseless optimum {p.held_out(p.best):.3f}, w = 0 {p.held_out(np.zeros(D)):.3f}")
    show("epsilon", ["no noise" if epsilon is None else f"{epsilon:.2g}" for epsilon in epsilons])
    bar = tqdm(
        total=len(VARIANTS) * len(epsilons) + len(SOUND) * (len(epsilons) - 1),
        unit="point",
        leave=False,
    )
    for name, run, clip_norm, deviation in VARIANTS:
        cells = []
        for epsilon in epsilons:
            sigma = 0.0 if epsilon is None else deviation(clip_norm, epsilon)
            found = [[p.held_out(z) for z in run(p, sigma, seed)] for seed in range(draws)]
            least, last = np.mean([min(f) for f in found]), np.mean([f[-1] for f in found])
            cells.append(f"{least:.3g} ({last:.3g})")
            bar.update()
        with bar.external_write_mode():
            show(name, cells)
    public = [problem(seed) for seed in PUBLIC]
    for name in SOUND:
        method, cells = METHODS[name], []
        for epsilon in epsilons[:-1]:
            setting = chosen(method, epsilon, public, arguments.quick) | {"l1": 0.5 * p.alpha}
            runs = [solve(p.train, method.solver, setting, epsilon, seed) for seed in range(draws)]
            cells.append(f"{np.mean([p.held_out(run.coef) for run in runs]):.3g}")
            bar.update()
        with bar.external_write_mode():
            show(f"{name}, dpkern, sound", cells)
    bar.close()
    print(f"\n{time.perf_counter() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
