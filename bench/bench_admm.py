"""prox_sweep beside a loop over users in Python, the NumPy of a skilled user and its reference.

Sweeps of logistic regression at a point z that wanders by a twentieth of its length from sweep to
sweep, as a noisy run's does: a state that has settled would flatter Newton's method. NumPy takes as
many steps of it as reach ten digits here; the loop over users keeps u_i and solves for each by the
same steps in Python's floats. About half of the records are clipped.
"""

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from bench.bench_glm import records
from bench.cases import Case, Contenders
from bench.speed import speed_test
from dpkern import Budget, SiloData, kernels, reference, solve
from dpkern.kernels import ProxState, installation

GAMMA, LAM, CLIP = 1.0, 0.5, 0.5
NEWTON = 4
GRID, SIGMA = 2.0**-20, 1.0
LASSO_L1, LASSO_MU = 0.01, 1.0
HOW = {"loss": "logistic", "clip": CLIP, "prox_step": GAMMA, "relaxation": LAM}


def wandering(d: int) -> Callable[[], np.ndarray]:
    """z of the next sweep."""
    rng = np.random.default_rng(2)
    center = rng.standard_normal(d)
    around = itertools.cycle(center + 0.05 * rng.standard_normal((8, d)))
    return partial(next, around)


def newton(y: np.ndarray, m: np.ndarray, A: np.ndarray, t: np.ndarray) -> np.ndarray:
    """t = -gamma phi'(m + t A) of the logistic loss, in place."""
    for _ in range(NEWTON):
        p = y / (1.0 + np.exp(y * (m + t * A)))
        t -= (t - GAMMA * p) / (1.0 + GAMMA * A * p * (y - p))
    return t


class Skilled:
    """NumPy, collapsed state: two BLAS passes and Newton's method on whole arrays."""

    def __init__(self, X: np.ndarray, y: np.ndarray) -> None:
        n, d = X.shape
        self.X, self.y, self.square = X, y, np.einsum("ij,ij->i", X, X)
        self.lim = GAMMA * CLIP / np.sqrt(self.square)
        self.common, self.scale, self.z = np.zeros(d), np.zeros(n), wandering(d)

    def sweep(self) -> np.ndarray:
        z = self.z()
        m = self.X @ (2.0 * z - self.common)
        m -= self.scale * self.square
        t = newton(self.y, m, self.square, self.scale.copy())
        np.clip(t, -self.lim, self.lim, out=t)
        self.scale = (1.0 - 2.0 * LAM) * self.scale + 2.0 * LAM * t
        self.common = (1.0 - 2.0 * LAM) * self.common + 2.0 * LAM * z
        return self.scale @ self.X


class SkilledLocal(Skilled):
    """NumPy, every user's u_i: with standard_normal for noise."""

    def __init__(self, X: np.ndarray, y: np.ndarray, sigma: float) -> None:
        super().__init__(X, y)
        self.U, self.sigma, self.rng = np.zeros(X.shape), sigma, np.random.default_rng(0)

    def sweep(self) -> np.ndarray:
        z = self.z()
        m = 2.0 * (self.X @ z) - np.einsum("ij,ij->i", self.X, self.U)
        t = newton(self.y, m, self.square, np.zeros(len(m)))
        np.clip(t, -self.lim, self.lim, out=t)
        before = self.U.sum(axis=0)
        self.U *= 1.0 - 2.0 * LAM
        self.U += 2.0 * LAM * z
        message = (2.0 * LAM * t)[:, np.newaxis] * self.X
        if self.sigma:
            noise = self.rng.standard_normal(self.X.shape)
            noise *= self.sigma
            message += noise
        self.U += message
        return self.U.sum(axis=0) - before


class Loop:
    """One user after the other, as the algorithm is written down."""

    def __init__(self, X: np.ndarray, y: np.ndarray) -> None:
        self.X, self.y, self.U, self.z = X, y, np.zeros(X.shape), wandering(X.shape[1])

    def sweep(self) -> np.ndarray:
        z = self.z()
        for a, y, u in zip(self.X, self.y, self.U, strict=True):
            v = 2.0 * z - u
            m, A, t = float(a @ v), float(a @ a), 0.0
            for _ in range(NEWTON):
                p = y / (1.0 + math.exp(y * (m + t * A)))
                t -= (t - GAMMA * p) / (1.0 + GAMMA * A * p * (y - p))
            lim = GAMMA * CLIP / math.sqrt(A)
            u += 2.0 * LAM * (v + min(max(t, -lim), lim) * a - z)
        return self.U.sum(axis=0)


def ours(
    data: SiloData,
    kind: str,
    *,
    sweep: Callable[..., Any] = kernels.prox_sweep,
    mean: bool = False,
    **how: Any,
) -> Callable[[], Any]:
    """Sweeps of a state of that kind; `mean` returns the sum of u instead of what is summed."""
    state: ProxState = getattr(ProxState, kind)(data, np.zeros(data.d))
    z = wandering(data.d)

    def call() -> Any:
        result = sweep(data, state, z(), **HOW, **how)
        return data.n * state.common + result if mean else result

    return call


def setup_central(n: int, d: int) -> tuple[Contenders, np.ndarray]:
    X, y, _ = records(n, d)
    data = SiloData.from_silos([(X, y)])
    contenders: Contenders = {
        "dpkern": ours(data, "collapsed"),
        "numpy": Skilled(X, y).sweep,
        "twin": ours(data, "collapsed", sweep=reference.prox_sweep, grid=2.0**-30),
        "federated": ours(data, "per_user"),
    }
    if installation.info()["n_threads"] > 1:
        contenders["1 thread"] = ours(data, "collapsed", n_threads=1)
    return contenders, X


def setup_loop(n: int, d: int) -> tuple[Contenders, None]:
    X, y, _ = records(n, d)
    data = SiloData.from_silos([(X, y)])
    return {"dpkern": ours(data, "collapsed", mean=True), "loop": Loop(X, y).sweep}, None


def setup_local(n: int, d: int) -> tuple[Contenders, np.ndarray]:
    X, y, _ = records(n, d)
    data = SiloData.from_silos([(X, y)])
    return {
        "dpkern": ours(data, "public", grid=GRID),
        "numpy": SkilledLocal(X, y, 0.0).sweep,
    }, X


def setup_noise(n: int, d: int) -> tuple[Contenders, None]:
    X, y, _ = records(n, d)
    data = SiloData.from_silos([(X, y)])
    return {
        "dpkern": ours(data, "public", grid=GRID, sigma=SIGMA, rng=0),
        "silent": ours(data, "public", grid=GRID),
        "numpy": SkilledLocal(X, y, SIGMA).sweep,
    }, None


def lasso_loop(X: np.ndarray, y: np.ndarray, rounds: int) -> np.ndarray:
    """The whole run of the Lasso, one user after the other, with as much noise as a sound run."""
    (n, d), rng, (gamma, lam) = X.shape, np.random.default_rng(0), (GAMMA, LAM)
    U, z, sigma = np.zeros((n, d)), np.zeros(d), 2.0 * gamma * CLIP * math.sqrt(rounds) / LASSO_MU
    for _ in range(rounds):
        for a, label, u in zip(X, y, U, strict=True):
            v = 2.0 * z - u
            A = float(a @ a)
            t = -gamma * (float(a @ v) - label) / (1.0 + gamma * A)
            lim = gamma * CLIP / math.sqrt(A)
            u += 2.0 * lam * (v + min(max(t, -lim), lim) * a - z)
        mean = U.mean(axis=0) + sigma / n * rng.standard_normal(d)
        z = np.sign(mean) * np.maximum(np.abs(mean) - gamma * LASSO_L1, 0.0)
    return z


def setup_lasso(n: int, d: int, rounds: int) -> tuple[Contenders, None]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d))
    y = X[:, :8].sum(axis=1) + 0.1 * rng.standard_normal(n)
    data = SiloData.from_silos([(X, y)])
    run = partial(solve, "admm", data, loss="squared", l1=LASSO_L1, clip=CLIP, rounds=rounds, rng=0)
    how = {"prox_step": GAMMA, "relaxation": LAM}
    return {
        "dpkern": lambda: run(budget=Budget(mu=LASSO_MU), **how).coef,
        "no noise": lambda: run(budget=None, **how).coef,
        "loop": partial(lasso_loop, X, y, rounds),
    }, None


def cases(quick: bool) -> list[Case]:
    n, d, users, rounds = (5_000, 64, 200, 20) if quick else (200_000, 64, 2_000, 1_000)
    return [
        Case(
            "prox_sweep",
            f"central, {n} x {d}",
            partial(setup_central, n, d),
            8.0 * n * d,
            goals={"read": 0.8, "numpy": 4.0},
            other_work=("federated",),
        ),
        Case(
            "prox_sweep",
            f"central, {users} x {d}",
            partial(setup_loop, users, d),
            8.0 * users * d,
            goals={"loop": 20.0},
        ),
        Case(
            "prox_sweep",
            f"local, {n} x {d}",
            partial(setup_local, n, d),
            24.0 * n * d,  # u is read and written
            goals={"numpy": 4.0},
        ),
        Case(
            "noisy sweep",
            f"local, {n} x {d}",
            partial(setup_noise, n, d),
            float(n) * d,
            unit="draws",
            tolerance=None,
            goals={"silent": 1.0 / 1.3, "numpy": 4.0},
        ),
        Case(
            "admm",
            f"Lasso, 800 x 64, {rounds} rounds",
            partial(setup_lasso, 800, 64, rounds),
            rounds,
            unit="round",
            goals={"loop": 220.0, "seconds": 0.016},
            other_work=("no noise", "loop"),  # other noise
        ),
    ]


test_speed = speed_test(
    cases, ["dpkern", "numpy", "twin", "federated", "loop", "silent", "no noise"]
)
