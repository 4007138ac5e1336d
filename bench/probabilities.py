"""Probabilities of settings "auto" on a9a, with a recalibration and without, and their scores.

`python -m bench.probabilities` prints the table of docs/settings.md in Markdown: means over draws
of log loss, calibration error (ten bins), accuracy and AUC on the test records; and that of
docs/evaluation.md, the noise of released scores. The set comes from
the folder in the environment variable DPKERN_DATA.
"""

import warnings

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score

import dpkern as dpk
from bench.utility_sets import SETS, Problem

EPSILONS, DELTA, DRAWS, BINS = (0.1, 0.3, 1.0, 3.0), 1e-6, 40, 10


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


def print_noise(model: dpk.SolverResult, task: Problem) -> None:
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
