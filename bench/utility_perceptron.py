"""The perceptron of examples/papers/isrl_spider.py under central trust: odd or even digits."""

from collections.abc import Iterator

import numpy as np

from bench.utility_text import Cells, Row, percent, wrapped
from dpkern import MLP, Budget, SiloData, solve
from examples.papers.public_sets import mnist_features

FEATURES, HIDDEN, DRAWS = 50, 64, 5
CLIP, ROUNDS = 1.0, 100
STEPS = {0.1: 1.0, 0.5: 4.0, 1.0: 4.0, 3.0: 8.0, np.inf: 2.0}  # by epsilon
_SOLVER = "minibatch_sgd"

_HOW = """\
`{solver}` on the perceptron of [SPIDER's paper](papers/isrl_spider.md), {features}-{hidden}-2,
which tells odd from even digits of MNIST by principal components of public records, has the test
accuracy {shown} with `clip={clip:g}`, `rounds={rounds}` and steps that were chosen on the public
records alone (`bench/utility_perceptron.py`).
"""


def records(part: str) -> tuple[SiloData, np.ndarray, np.ndarray]:
    """Four fifths of a file in one silo, and the features and labels of the rest."""
    X, y = mnist_features(part, FEATURES)
    order = np.random.default_rng(0).permutation(len(y))
    features, odd = X[order], y[order] % 2
    cut = len(y) * 4 // 5
    how = {"task": "multiclass", "classes": [0, 1]}
    data = SiloData.from_silos([(features[:cut], odd[:cut])], **how)
    return data, features[cut:], odd[cut:]


def cells(delta: float) -> Iterator[Row]:
    """Every budget, and infinity for none."""
    data, X, y = records("train")
    for epsilon, step in STEPS.items():
        private = epsilon < np.inf
        budget = Budget(epsilon=epsilon, delta=delta) if private else None
        clip = CLIP if private else None
        settings = {"clip": clip, "step_size": step, "rounds": ROUNDS}
        scores = []
        for seed in range(DRAWS):
            model = MLP(hidden=(HIDDEN,), seed=seed)
            run = solve(_SOLVER, data, model=model, budget=budget, rng=seed, **settings)
            scores.append(run.score(X, y))
        error = float(np.std(scores, ddof=1) / np.sqrt(DRAWS))
        key = {"set": "mnist", "solver": _SOLVER, "epsilon": epsilon, "draws": DRAWS}
        yield key | {"accuracy": float(np.mean(scores)), "error": error, "settings": settings}


def section(perceptron: Cells) -> list[str]:
    """The accuracies by budget, in a sentence."""
    if not perceptron:
        return []
    shown = [
        f"{percent(row['accuracy'])} at epsilon {row['epsilon']:g}"
        if row["epsilon"] < np.inf
        else f"{percent(row['accuracy'])} without privacy"
        for row in sorted(perceptron.values(), key=lambda row: row["epsilon"])
    ]
    sizes = {"solver": _SOLVER, "features": FEATURES, "hidden": HIDDEN}
    return [wrapped(_HOW.format(shown=", ".join(shown), clip=CLIP, rounds=ROUNDS, **sizes))]
