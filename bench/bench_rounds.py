"""Whole runs on little data, where the overhead of a round is most of the time.

The loops in NumPy draw floating-point noise of the run's size, and certify nothing. "numpy" of the
proximal gradient clips the gradient of the batch, not those of its records, which is no private
method; that of the token does for every hop what the published code of the method does: a matrix of
d x d for the prox of one record, a threshold in Python for every coordinate, and the objective.
"""

import math
from functools import partial
from typing import Any

import numpy as np

from bench.cases import Case, Contenders
from bench.speed import speed_test
from dpkern import Budget, SiloData, solve
from dpkern.data import train_test_split
from dpkern.datasets import wisconsin_feature_range, wisconsin_table

BUDGET = Budget(epsilon=1.0, delta=1e-6)
CLIP, L1, STEP, PROX_STEP, RELAXATION = 1.0, 0.01, 0.1, 1.0, 0.5
SILO, BATCH = 1238, 443


def lasso(n: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d))
    return X, X[:, :8].sum(axis=1) + 0.1 * rng.standard_normal(n)


def against_no_noise(solver: str, data: SiloData, **how: Any) -> Contenders:
    run = partial(solve, solver, data, clip=CLIP, rng=0, **how)
    return {
        "dpkern": lambda: run(budget=BUDGET).coef,
        "no noise": lambda: run(budget=None).coef,
    }


def setup_wisconsin(rounds: int) -> tuple[Contenders, None]:
    table = wisconsin_table()
    X, y, _, _ = train_test_split(table.X, table.y, test_fraction=0.2, seed=0)
    bounds = wisconsin_feature_range()
    data = SiloData(X, y, [0, len(y)], feature_range=bounds, row_bound=4.0, intercept=True)
    return against_no_noise("gradient_descent", data, rounds=rounds, step_size=STEP), None


def batch_clipped(X: np.ndarray, y: np.ndarray, rounds: int) -> np.ndarray:
    """Proximal gradient steps along noisy gradients of the batch, each clipped as one vector."""
    (n, d), rng = X.shape, np.random.default_rng(0)
    w, sigma = np.zeros(d), 2.0 * CLIP / n * math.sqrt(rounds) / BUDGET.mu
    for _ in range(rounds):
        g = X.T @ (X @ w - y) / n
        g *= min(1.0, CLIP / math.sqrt(g @ g))
        g += sigma * rng.standard_normal(d)
        w -= STEP * g
        w = np.sign(w) * np.maximum(np.abs(w) - STEP * L1, 0.0)
    return w


def setup_proximal(n: int, d: int, rounds: int) -> tuple[Contenders, None]:
    X, y = lasso(n, d)
    how = {"loss": "squared", "l1": L1, "rounds": rounds, "step_size": STEP}
    contenders = against_no_noise("gradient_descent", SiloData(X, y, [0, n]), **how)
    return contenders | {"numpy": partial(batch_clipped, X, y, rounds)}, None


def record_prox(a: np.ndarray, label: float, v: np.ndarray) -> np.ndarray:
    """The prox of one record's squared loss, by the inverse of 1 / gamma + a a^T."""
    rho = 1.0 / PROX_STEP
    inverse = np.eye(len(a)) / rho - np.outer(a, a) / (rho * rho + rho * a @ a)
    return inverse @ (label * a + rho * v)


def clipped(v: np.ndarray) -> np.ndarray:
    length = np.linalg.norm(v)
    return CLIP * v / length if length > CLIP else v


def threshold(x: float, t: float) -> float:
    if x > t:
        return x - t
    return x + t if x < -t else 0.0


def token_loop(X: np.ndarray, y: np.ndarray, rounds: int, sigma: float) -> np.ndarray:
    """A token that goes to a random user every round, who updates its state and z."""
    (n, d), rng = X.shape, np.random.default_rng(0)
    z, U, values, lengths = np.zeros(d), np.zeros((n, d)), [], []
    for _ in range(rounds):
        i = rng.integers(n)
        change = record_prox(X[i], y[i], 2.0 * z - U[i]) - z
        lengths.append(np.linalg.norm(change))
        sent = 2.0 * RELAXATION * clipped(change) + RELAXATION * sigma * rng.normal(size=d)
        U[i] += sent
        z = np.array([threshold(k, PROX_STEP * L1 / n) for k in z + sent / n])
        values.append(np.linalg.norm(X @ z - y) ** 2 / n + L1 * np.linalg.norm(z, ord=1))
    return z


def setup_token(n: int, d: int, rounds: int) -> tuple[Contenders, None]:
    X, y = lasso(n, d)
    how = {"loss": "squared", "l1": L1, "rounds": rounds, "mode": "token", "trust": "local"}
    how |= {"prox_step": PROX_STEP, "relaxation": RELAXATION}
    contenders = against_no_noise("admm", SiloData(X, y, [0, n]), **how)
    return contenders | {"numpy": partial(token_loop, X, y, rounds, sigma=4.0 * CLIP)}, None


def setup_batches(silos: int, d: int, rounds: int) -> tuple[Contenders, None]:
    rng = np.random.default_rng(0)
    X = 0.3 * rng.standard_normal((silos * SILO, d))
    y = np.where(X @ rng.standard_normal(d) > 0.0, 1.0, -1.0)
    data = SiloData(X, y, SILO * np.arange(silos + 1))
    shared = {"rounds": rounds, "step_size": 0.5}
    batches = {"sampling": "without_replacement", "batch_size": BATCH}
    contenders = against_no_noise("minibatch_sgd", data, **shared, **batches)
    full = against_no_noise("minibatch_sgd", data, **shared)
    return contenders | {"full batch": full["dpkern"]}, None


def cases(quick: bool) -> list[Case]:
    rounds, few = (20, 10) if quick else (1_000, 2_000)
    small = [
        ("gradient_descent", "Wisconsin, 455 x 31", partial(setup_wisconsin, rounds)),
        ("proximal gradient", "800 x 64", partial(setup_proximal, 800, 64, rounds)),
        ("admm", "token, 800 x 64", partial(setup_token, 800, 64, rounds)),
    ]
    goals = ({"seconds": 0.008}, {"numpy": 1.0}, {"numpy": 5.0})
    made = [(*case, rounds, goal) for case, goal in zip(small, goals, strict=True)]
    for silos in (1, 25):
        made.append(
            (
                "minibatch_sgd",
                f"{BATCH} of {SILO} x 50, {silos} silo" + "s" * (silos > 1),
                partial(setup_batches, silos, 50, few),
                few,
                {"full batch": 1.0 / 0.6},
            )
        )
    return [
        Case(
            kernel,
            f"{size}, {n} rounds",
            setup,
            n,
            unit="round",
            tolerance=None,
            goals=goal,
        )
        for kernel, size, setup, n, goal in made
    ]


test_speed = speed_test(cases, ["dpkern", "no noise", "numpy", "full batch"])
