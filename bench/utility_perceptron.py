"""The perceptron of examples/papers/isrl_spider.py under central trust: odd or even digits."""

from collections.abc import Iterator

import numpy as np

from bench.utility_text import Cells, Row, percent, table, wrapped
from dpkern import MLP, Budget, SiloData, solve
from examples.papers.public_sets import mnist_features

FEATURES, HIDDEN, DRAWS = 50, 64, 5
CLIP, ROUNDS = 1.0, 100
STEPS = {0.1: 1.0, 0.5: 4.0, 1.0: 4.0, 3.0: 8.0, np.inf: 2.0}  # by epsilon
_SOLVER = "minibatch_sgd"

_HOW = """\
`{solver}` on the perceptron of `docs/papers/isrl_spider.md`, {features}-{hidden}-2, which tells odd
from even digits by the leading principal components of MNIST's test file. That file is declared
public; private are the records of the other one, of which a fifth, drawn at random, tests. What is
"auto" with a row bound is given here, as the paper has it: `clip={clip:g}`, `rounds={rounds}`, and
`step_size` {steps}, chosen by runs on the records of the public file alone, with budgets for
which mu times their number is as large. Central trust, replacement of one record, delta 1e-6,
{draws} draws of the noise and the start.
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
    if not perceptron:
        return []
    rows = [perceptron[key] for key in sorted(perceptron, key=lambda key: key[2])]
    head = ["percent", *(f"epsilon {row['epsilon']:g}" for row in rows[:-1]), "no privacy"]
    shown = [f"{percent(row['accuracy'])} ± {percent(row['error'])}" for row in rows]
    steps = [f"{row['settings']['step_size']:g}" for row in rows]
    text = _HOW.format(
        solver=_SOLVER,
        features=FEATURES,
        hidden=HIDDEN,
        clip=rows[0]["settings"]["clip"],
        rounds=rows[0]["settings"]["rounds"],
        steps=", ".join(steps[:-1]) + " and " + steps[-1],
        draws=rows[0]["draws"],
    )
    return ["## A perceptron\n", wrapped(text), table(head, [["test accuracy", *shown]])]
