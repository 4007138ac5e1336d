"""Probabilities of settings "auto", with a recalibration and without, and their scores.

`python -m bench.probabilities` prints the tables of docs/settings.md in Markdown: means over draws
of log loss, calibration error (ten bins), accuracy and AUC on the test records of a9a, and of sets
with several classes; and that of docs/evaluation.md, the noise of released scores. The sets come
from the folder in the environment variable DPKERN_DATA.
"""

import math
import os
import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score

import dpkern as dpk
from bench import board_labels
from bench.utility_sets import SETS
from examples.papers import public_sets
from examples.papers.public_sets import Task

EPSILONS, DELTA, DRAWS, BINS = (0.1, 0.3, 1.0, 3.0), 1e-6, 40, 10
SMALL = {
    "wdbc": (0.1, 0.3, 1.0, 2.0, 3.0),
    "wisconsin": (0.1, 0.3, 1.5, 3.0),
    "digits": (0.1, 0.2, 0.5, 1.0),
    "Pima diabetes": (0.1, 0.3),
    "German credit": (0.1, 0.3),
}


def measure(p: NDArray[np.float64], positive: NDArray[np.bool_]) -> list[float]:
    """Return log loss, calibration error, accuracy and AUC of probabilities."""
    bins = np.minimum((p * BINS).astype(int), BINS - 1)
    differences = np.bincount(bins, p, BINS) - np.bincount(bins, positive, BINS)
    error = np.abs(differences).sum() / len(p)
    accuracy = np.mean((p > 0.5) == positive)
    return [log_loss(positive, p), error, accuracy, roc_auc_score(positive, p)]


def main() -> None:
    warnings.simplefilter("ignore")
    task = SETS["a9a"].load()
    data = dpk.SiloData.split(
        task.X, task.y, m=1, row_bound=SETS["a9a"].row_bound, intercept=False, seed=0
    )
    positive = np.asarray(task.y_test) == data.classes[1]
    plain = LogisticRegression(C=1e3, fit_intercept=False, max_iter=2000).fit(task.X, task.y)
    print("without privacy", np.round(measure(plain.predict_proba(task.X_test)[:, 1], positive), 4))
    print("| epsilon | line | log loss | calibration error | accuracy | AUC |")
    print("|---|---|---|---|---|---|")
    for epsilon in EPSILONS:
        budget = dpk.Budget(epsilon=epsilon, delta=DELTA)
        for recalibrate in (False, True):
            runs = dpk.solve_many(
                "auto", data, budgets=budget, draws=DRAWS, rng=3, recalibrate=recalibrate
            )
            rows = [measure(run.predict_proba(task.X_test)[:, 1], positive) for run in runs]
            figures = " | ".join(f"{mean:.4f}" for mean in np.mean(rows, axis=0))
            print(f"| {epsilon:g} | {'with' if recalibrate else 'without'} | {figures} |")
    print_noise(runs[0], task)
    print_small()
    print_several()


def print_small() -> None:
    """Print the scores without and with a line on sets of few records."""
    print("\n| set, epsilon (n mu) | log loss | calibration error | accuracy | AUC |")
    print("|---|---|---|---|---|")
    for name, epsilons in SMALL.items():
        if name in SETS:
            task, bound = SETS[name].load(), SETS[name].row_bound
        else:
            X, y, X_test, y_test = board_labels.split(name)
            task, bound = public_sets.Task("label", X, y, X_test, y_test), math.sqrt(2.0)
        data = dpk.SiloData.split(task.X, task.y, m=1, row_bound=bound, intercept=True, seed=0)
        positive = np.asarray(task.y_test) == data.classes[1]
        for epsilon in epsilons:
            budget, means = dpk.Budget(epsilon=epsilon, delta=DELTA), []
            for recalibrate in (False, True):
                runs = dpk.solve_many(
                    "auto", data, budgets=budget, draws=100, rng=3, recalibrate=recalibrate
                )
                rows = [measure(run.predict_proba(task.X_test)[:, 1], positive) for run in runs]
                means.append(np.mean(rows, axis=0))
            cells = " | ".join(f"{x:.3f}, {y:.3f}" for x, y in zip(*means, strict=True))
            print(f"| {name}, {epsilon:g} ({data.n * budget.mu:.0f}) | {cells} |")


def several_sets() -> dict[str, tuple[NDArray[np.float64], NDArray[np.intp], float]]:
    """Return rows with entries of at most 1, classes and row bounds of sets, by name."""
    digits = load_digits()
    folder = Path(os.environ["DPKERN_DATA"]) / "wine-quality"
    parts = [
        np.loadtxt(folder / f"winequality-{name}.csv.xz", delimiter=";", skiprows=1)
        for name in ("red", "white")
    ]
    wine = np.vstack(parts)
    lo = np.array([3.8, 0.08, 0.0, 0.6, 0.009, 1.0, 6.0, 0.987, 2.7, 0.2, 8.0])
    hi = np.array([16.0, 1.6, 1.7, 66.0, 0.65, 290.0, 440.0, 1.04, 4.1, 2.0, 15.0])
    X, quality = 2.0 * (wine[:, :-1] - lo) / (hi - lo) - 1.0, wine[:, -1]
    return {
        "digits": (digits.data / 16.0, digits.target, 8.0),
        "wine, three grades": (X, (quality > 5.0).astype(int) + (quality > 6.0), 3.5),
        "wine, seven grades": (X, (quality - 3.0).astype(int), 3.5),
    }


def print_several() -> None:
    """Print log loss, calibration error of the likeliest class and accuracy, without and with."""
    print("\n| set | epsilon | log loss | calibration error | accuracy |\n|---|---|---|---|---|")
    for name, (X, y, row_bound) in several_sets().items():
        K, order = int(y.max()) + 1, np.random.default_rng(0).permutation(len(y))
        test, train = np.split(order, [len(y) // 4])
        data = dpk.SiloData.split(
            X[train],
            y[train],
            m=1,
            row_bound=row_bound,
            task="multiclass",
            classes=range(K),
            seed=0,
        )
        for epsilon in EPSILONS[1:]:
            budget = dpk.Budget(epsilon=epsilon, delta=DELTA)
            means = []
            for recalibrate in (False, True):
                runs = dpk.solve_many(
                    "auto", data, budgets=budget, draws=DRAWS, rng=3, recalibrate=recalibrate
                )
                rows = []
                for run in runs:
                    p = run.predict_proba(X[test])
                    right = p.argmax(axis=1) == y[test]
                    error = measure(p.max(axis=1), right)[1]
                    rows.append([log_loss(y[test], p, labels=range(K)), error, right.mean()])
                means.append(np.mean(rows, axis=0))
            if runs[0].calibration is not None:
                pairs = " | ".join(f"{a:.3f}, {b:.3f}" for a, b in zip(*means, strict=True))
                print(f"| {name} | {epsilon:g} | {pairs} |")


def print_noise(model: dpk.SolverResult, task: Task) -> None:
    """Print how far noise moves released scores, the table of docs/evaluation.md."""
    names = ("auc", "accuracy", "calibration_error", "log_loss")
    print(f"\n| epsilon | {' | '.join(names)} |\n|---|---|---|---|---|")
    for epsilon in EPSILONS:
        budget = dpk.Budget(epsilon=epsilon, delta=DELTA)
        evaluations = [
            dpk.evaluate(model, task.X_test, task.y_test, budget=budget, rng=seed)
            for seed in range(5 * DRAWS)
        ]
        stds = [np.std([getattr(found, name) for found in evaluations]) for name in names]
        print(f"| {epsilon:g} | {' | '.join(f'{std:.4f}' for std in stds)} |")


if __name__ == "__main__":
    main()
