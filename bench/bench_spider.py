"""One run of SPIDER on a perceptron, beside a loop over records as users write it.

MNIST's shape in the paper's experiments: 25 silos of 1238 records of 50 features, 50-64-2, full
batches. The loop takes one record at a time through NumPy's forward and backward pass, clips its
gradient, or the difference of its two gradients, and adds it up; it draws no noise and does not
round, and is called once.
"""

from functools import partial

import numpy as np

from bench.cases import Case, Contenders
from bench.speed import speed_test
from dpkern import MLP, Budget, SiloData, solve

SILOS, FEATURES, HIDDEN, OUTPUTS = 25, 50, 64, 2
BUDGET = Budget(epsilon=3.0, delta=1238.0**-2)
CLIP, STEP, EVERY, SMOOTHNESS = 1.0, 0.5, 2, 1.0
MODEL = MLP(hidden=(HIDDEN,), smoothness=SMOOTHNESS)


def records(per_silo: int) -> SiloData:
    rng = np.random.default_rng(0)
    n = SILOS * per_silo
    X = 0.3 * rng.standard_normal((n, FEATURES))
    y = (X @ rng.standard_normal(FEATURES) > 0.0).astype(int)
    offsets = per_silo * np.arange(SILOS + 1)
    return SiloData(X, y, offsets, task="multiclass", classes=range(OUTPUTS))


def run(data: SiloData, budget: Budget | None, rounds: int) -> np.ndarray:
    result = solve(
        "spider",
        data,
        model=MODEL,
        budget=budget,
        clip=CLIP,
        rounds=rounds,
        refresh_every=EVERY,
        step_size=STEP,
        trust="silo",
        rng=0,
    )
    return result.w


def clipped(v: np.ndarray, clip: float) -> np.ndarray:
    return v * min(1.0, clip / max(np.sqrt(v @ v), 1e-300))


def of_record(x: np.ndarray, target: np.ndarray, w: np.ndarray) -> np.ndarray:
    """One record's clipped gradient."""
    cut = HIDDEN * (FEATURES + 1)
    W1, W2 = w[:cut].reshape(HIDDEN, -1), w[cut:].reshape(OUTPUTS, -1)
    a = np.maximum(W1[:, :-1] @ x + W1[:, -1], 0.0)
    z = W2[:, :-1] @ a + W2[:, -1]
    e = np.exp(z - z.max())
    delta = e / e.sum() - target
    back = (delta @ W2[:, :-1]) * (a > 0.0)
    g = np.empty_like(w)
    G1, G2 = g[:cut].reshape(HIDDEN, -1), g[cut:].reshape(OUTPUTS, -1)
    np.multiply.outer(back, x, out=G1[:, :-1])
    np.multiply.outer(delta, a, out=G2[:, :-1])
    G1[:, -1], G2[:, -1] = back, delta
    return clipped(g, CLIP)


def loop(data: SiloData, rounds: int) -> np.ndarray:
    w = before = MODEL.start(data)
    targets = np.eye(OUTPUTS)[data.y.astype(int)]
    h = np.zeros_like(w)
    for r in range(rounds):
        total = np.zeros_like(w)
        if r % EVERY == 0:
            for x, target in zip(data.X, targets, strict=True):
                total += of_record(x, target, w)
            h = total / data.n
        else:
            most = min(2.0 * CLIP, SMOOTHNESS * float(np.linalg.norm(w - before)))
            for x, target in zip(data.X, targets, strict=True):
                total += clipped(of_record(x, target, w) - of_record(x, target, before), most)
            h = h + total / data.n
        before, w = w, w - STEP * h
    return w


def setup(per_silo: int, rounds: int) -> tuple[Contenders, None]:
    few = records(4)
    ours, theirs = run(few, None, 4), loop(few, 4)
    if not np.linalg.norm(ours - theirs) <= 1e-6 * np.linalg.norm(ours):
        raise RuntimeError("the loop does not compute what spider computes without noise")
    data = records(per_silo)
    contenders: Contenders = {
        "dpkern": partial(run, data, BUDGET, rounds),
        "no noise": partial(run, data, None, rounds),
        "loop": partial(loop, data, rounds),
    }
    return contenders, None


def cases(quick: bool) -> list[Case]:
    per_silo, rounds = (20, 4) if quick else (1238, 50)
    sizes = f"{FEATURES}-{HIDDEN}-{OUTPUTS}"
    return [
        Case(
            "spider",
            f"{SILOS} x {per_silo}, {sizes}, {rounds} rounds",
            partial(setup, per_silo, rounds),
            rounds,
            unit="round",
            goals={"loop": 20.0, "no noise": 1 / 1.15},
            other_work=("no noise", "loop"),
        )
    ]


test_speed = speed_test(cases, ["dpkern", "no noise", "loop"])
