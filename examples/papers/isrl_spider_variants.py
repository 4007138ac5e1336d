"""The programs behind the MNIST figures of Lowy, Ghafelebashi, Razaviyayn 2023, in NumPy.

    python examples/papers/isrl_spider_variants.py [--splits N] [--quick]

NOT PRIVATE: nothing here has a guarantee, and nothing is certified but dpkern's own runs. First
Algorithm 11 and minibatch SGD as printed, on full batches and with the printed noise, beside
dpkern's runs with the same settings: a check of both. Then what the authors' published programs do
otherwise, one deviation after the other, beside dpkern's sound runs. MNIST, odd or even, in 25
silos, 25 rounds, as in isrl_spider.py; docs/papers/isrl_spider.md discusses the outcome. Figures
are test errors of the last iterate in percent, means and deviations over splits.

MNIST comes from the folder in the environment variable DPKERN_DATA.
"""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from isrl_spider import (
    OF_MNIST,
    PAIRS,
    PER_DIGIT,
    TRAIN,
    Problem,
    chosen,
    digits,
    pairs,
    public_pairs,
    solve,
)

import dpkern as dpk

EPSILONS = (0.75, 3.0, 12.0)
# Of the authors' grid: the largest step, the least clip norm, and the next, for the check.
ROUNDS, STEP, CLIP, CHECKED_CLIP = 25, 1.0, 1.0, 5.0

Array = np.ndarray
Silos = list[tuple[Array, Array]]  # features and labels, 0 or 1
Method = Callable[..., Array]


@dataclass(frozen=True)
class Program:
    """How a silo's mean gradient is computed: as printed, or with deviations of the programs."""

    clip: float = CLIP
    step: float = STEP
    per_tensor: bool = False  # every weight matrix and every bias is clipped by itself
    batch: int | None = None  # records of a batch, drawn with replacement; None: all of them
    clip_after_division: bool = False  # by the batch's size: the clip norm is that much larger
    dropout: bool = False  # of half of the hidden units, for every record
    overlapping: bool = False  # silos draw their records with replacement before they are split


def hidden_units(w: Array, inputs: int) -> int:
    return (len(w) - 2) // (inputs + 3)


def clipped_mean(how: Program, w: Array, X: Array, y: Array, keep: Array | None = None) -> Array:
    """The mean of clipped gradients of a perceptron with relu units and cross-entropy.

    w holds the matrices [W, bias] of both layers. keep, shape (n, hidden), is 2 or 0: dropout.
    """
    n, inputs = X.shape
    hidden = hidden_units(w, inputs)
    W1 = w[: hidden * (inputs + 1)].reshape(hidden, inputs + 1)
    W2 = w[W1.size :].reshape(2, hidden + 1)
    a = np.maximum(X @ W1[:, :-1].T + W1[:, -1], 0.0)
    if keep is not None:
        a *= keep
    z = a @ W2[:, :-1].T + W2[:, -1]
    d2 = np.exp(z - z.max(axis=1, keepdims=True))
    d2 /= d2.sum(axis=1, keepdims=True)
    d2[np.arange(n), y] -= 1.0
    d1 = (d2 @ W2[:, :-1]) * (a > 0.0)
    if keep is not None:
        d1 *= keep
    # Squared norms of a record's four tensors: a matrix is an outer product.
    s1, s2 = (d1**2).sum(axis=1), (d2**2).sum(axis=1)
    squares = [s1 * (X**2).sum(axis=1), s1, s2 * (a**2).sum(axis=1), s2]
    if not how.per_tensor:
        squares = [sum(squares)] * 4
    most = how.clip * (n if how.clip_after_division else 1)
    c = [np.minimum(1.0, most / np.sqrt(np.maximum(square, 1e-300))) for square in squares]
    tensors = [(d1.T * c[0]) @ X, (d1.T @ c[1]), (d2.T * c[2]) @ a, (d2.T @ c[3])]
    parts = [np.column_stack(tensors[:2]), np.column_stack(tensors[2:])]
    return np.concatenate([part.ravel() for part in parts]) / n


def silo_mean(
    how: Program,
    silos: list[tuple[Array, Array]],
    sigma: float,
    rng: np.random.Generator,
    *at: Array,
) -> Array:
    """The mean over silos of noisy mean gradients at a model, or of g(w_1) - g(w_0) at two."""
    found = []
    for X, y in silos:
        if how.batch is not None:
            drawn = rng.integers(len(y), size=how.batch)
            X, y = X[drawn], y[drawn]
        g = []
        for w in at:
            units = (len(y), hidden_units(w, X.shape[1]))
            keep = 2.0 * rng.integers(2, size=units) if how.dropout else None
            g.append(clipped_mean(how, w, X, y, keep))
        noise = sigma * rng.standard_normal(len(at[0]))
        found.append((g[0] if len(at) == 1 else g[0] - g[1]) + noise)
    return np.mean(found, axis=0)


def unit(p: Problem, epsilon: float | None, clip: float) -> float:
    """sqrt(8 R ln(2/delta)) L / (n epsilon), the noise on gradients; on differences twice that."""
    if epsilon is None:
        return 0.0
    n = int(p.train.sizes.min())
    return float(np.sqrt(8.0 * ROUNDS * np.log(2.0 / p.delta))) * clip / (n * epsilon)


def algorithm_11(
    how: Program, silos: Silos, w: Array, sigma: float, rounds: int, seed: int
) -> Array:
    """2 (R - 1) updates, in pairs: by a gradient, and by that plus a difference."""
    rng = np.random.default_rng(seed)
    w2 = w
    v2 = silo_mean(how, silos, sigma, rng, w2)
    for r in range(rounds - 1):
        w0, w1 = w2, w2 - how.step * v2
        v1 = v2 + silo_mean(how, silos, 2.0 * sigma, rng, w1, w0)
        w2 = w1 - how.step * v1
        if r < rounds - 2:  # the last message is used by no model
            v2 = silo_mean(how, silos, sigma, rng, w2)
    return w2


def minibatch_sgd(
    how: Program, silos: Silos, w: Array, sigma: float, rounds: int, seed: int
) -> Array:
    """R updates."""
    rng = np.random.default_rng(seed)
    for _ in range(rounds):
        w = w - how.step * silo_mean(how, silos, sigma, rng, w)
    return w


def overlapping_pairs(seed: int) -> tuple[Problem, float]:
    """25 silos of two digits as the programs make them, and the share of test rows trained on.

    The five silos of a digit draw from the same 774 records, with replacement, and each is split
    into training and test records afterwards.
    """
    rng = np.random.default_rng(seed)
    pools = [F[:PER_DIGIT] for F in digits("train")]
    train, test, trained, tested = [], [], [], []
    for i, j in PAIRS:
        X = np.concatenate([pools[2 * i], pools[2 * j + 1]])
        y = np.repeat([0, 1], PER_DIGIT)
        ids = PER_DIGIT * np.repeat([2 * i, 2 * j + 1], PER_DIGIT) + np.tile(
            np.arange(PER_DIGIT), 2
        )
        drawn = rng.integers(len(y), size=len(y))
        cut = round(TRAIN * len(y))
        for part, found, seen in ((drawn[:cut], train, trained), (drawn[cut:], test, tested)):
            found.append((X[part], y[part]))
            seen.append(ids[part])
    share = float(np.mean(np.isin(np.concatenate(tested), np.concatenate(trained))))
    data = dpk.SiloData.from_silos(train, task="multiclass", classes=[0, 1])
    X_test, y_test = np.concatenate([X for X, _ in test]), np.hstack([y for _, y in test])
    return Problem(data, X_test, y_test, 64), share


def silos_of(p: Problem) -> Silos:
    y = np.searchsorted(p.train.classes, p.train.y).astype(np.intp)
    edges = list(zip(p.train.offsets[:-1], p.train.offsets[1:], strict=True))
    return [(p.train.X[low:high], y[low:high]) for low, high in edges]


def error(p: Problem, w: Array) -> float:
    model = dpk.MLP(hidden=(p.hidden,))
    return 100.0 * float(np.mean(model.outputs(w, p.X_test).argmax(axis=1) != p.y_test))


def show(name: str, cells: list[list[float]]) -> None:
    shown = [
        f"{np.mean(cell):.1f} +- {np.std(cell, ddof=min(1, len(cell) - 1)):.1f}" for cell in cells
    ]
    print(f"{name:50}" + "".join(f"{cell:>15}" for cell in shown))


METHODS: dict[str, tuple[str, Method]] = {
    "SPIDER": ("SPIDER, alternate", algorithm_11),
    "minibatch SGD": ("minibatch SGD", minibatch_sgd),
}
BATCH = 606  # of 1238 records: n sqrt(24) / (2 sqrt(R))
CHECK = (f"as printed, L = {CHECKED_CLIP:g}", {"clip": CHECKED_CLIP})
# Each has the deviations of those before it.
DEVIATIONS: list[tuple[str, dict[str, object]]] = [
    ("as printed, L = 1", {"clip": CLIP}),
    ("every tensor clipped by itself", {"per_tensor": True}),
    (f"batches of {BATCH}, with replacement", {"batch": BATCH}),
    ("clipped after division", {"clip_after_division": True}),
    ("dropout", {"dropout": True}),
    ("silos' records with replacement", {"overlapping": True}),
    ("step 2, which is not in the grid", {"step": 2.0}),
]


def run(method: Method, how: Program, p: Problem, epsilon: float | None, seed: int) -> float:
    w = dpk.MLP(hidden=(p.hidden,), seed=seed).start(p.train)
    sigma = unit(p, epsilon, how.clip)
    return error(p, method(how, silos_of(p), w, sigma, ROUNDS, seed))


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Lowy, Ghafelebashi, Razaviyayn 2023: their programs restated. NOT PRIVATE."
    )
    parser.add_argument("--splits", type=int, metavar="N", help="4, 1 with --quick")
    parser.add_argument("--quick", action="store_true", help="few points, less than a minute")
    arguments = parser.parse_args()
    if arguments.splits is not None and arguments.splits < 1:
        parser.error(f"--splits is {arguments.splits}; it must be at least 1")
    splits = arguments.splits or (1 if arguments.quick else 4)
    epsilons = EPSILONS[1:2] if arguments.quick else EPSILONS
    began = time.perf_counter()
    try:
        problems = [replace(pairs(seed), options={"rounds": ROUNDS}) for seed in range(splits)]
        theirs = [overlapping_pairs(seed) for seed in range(splits)]
        public = [replace(public_pairs(0), options={"rounds": ROUNDS})]
    except OSError as error:
        print(f"isrl_spider_variants.py: {error}", file=sys.stderr)
        return 2
    print(
        f"MNIST, test error in percent, {splits} splits. NOT PRIVATE, but for dpkern's sound rows."
    )
    print(f"{'epsilon':50}" + "".join(f"{epsilon:15g}" for epsilon in epsilons))
    for name, (known, method) in METHODS.items():
        solver = OF_MNIST[known].solver
        variant = {"variant": "alternate"} if solver == "spider" else {}
        same = variant | {"clip": CHECKED_CLIP, "step_size": STEP, "calibration": "paper"}
        cells = [
            [100.0 * p.error(solve(p, solver, same, epsilon, s)) for s, p in enumerate(problems)]
            for epsilon in epsilons
        ]
        show(f"{name}: dpkern, printed noise, L = {CHECKED_CLIP:g}", cells)
        how = Program()
        for label, deviation in (CHECK, *DEVIATIONS):
            how = replace(how, **deviation)
            held = [p for p, _ in theirs] if how.overlapping else problems
            cells = [
                [run(method, how, p, epsilon, s) for s, p in enumerate(held)]
                for epsilon in epsilons
            ]
            show(f"{name}: {label}", cells)
        cells = []
        for epsilon in epsilons:
            setting = chosen(OF_MNIST[known], epsilon, public, arguments.quick)
            runs = [solve(p, solver, setting, epsilon, seed) for seed, p in enumerate(problems)]
            cells.append([100.0 * p.error(r) for p, r in zip(problems, runs, strict=True)])
        show(f"{name}: dpkern, sound", cells)
    share = 100.0 * np.mean([share for _, share in theirs])
    print(f"with replacement {share:.1f} % of the test rows are training rows")
    print(f"\n{time.perf_counter() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
