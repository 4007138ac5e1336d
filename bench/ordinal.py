"""Private models of ordered classes on public data, beside the rates and the fit without privacy.

    python -m bench.ordinal [--draws N]

For each set, form and epsilon: accuracy, mean absolute error of the class and log loss on a fifth
of the records that was held out, means over draws, each with a split of its own, with default
settings.
docs/ordinal.md has what it printed. The data are those of DPKERN_DATA.
"""

import argparse
import itertools
import os
import warnings
from pathlib import Path

import numpy as np
import pandas as pd

import dpkern as dpk
from dpkern.estimators import DPOrdinalClassifier
from dpkern.models.ordinal import CumulativeLogit

# Bounds of columns from what they are, not from the records.
WINE = {
    **{"fixed acidity": (3, 16), "volatile acidity": (0, 1.6), "citric acid": (0, 1.7)},
    **{"residual sugar": (0, 70), "chlorides": (0, 0.65), "free sulfur dioxide": (0, 300)},
    **{"total sulfur dioxide": (0, 450), "density": (0.985, 1.04), "pH": (2.5, 4.1)},
    **{"sulphates": (0.2, 2), "alcohol": (8, 15)},
}
FAIR = {
    **{"age": (17, 42), "yrs_married": (0, 23), "children": (0, 6), "religious": (1, 4)},
    **{"educ": (9, 20), "occupation": (1, 6), "occupation_husb": (1, 6), "affairs": (0, 10)},
}
# File, separator, the column of classes, the classes, and the bounds of the others.
SETS = {
    "white wine": ("wine-quality/winequality-white.csv.xz", ";", "quality", range(3, 10), WINE),
    "red wine": ("wine-quality/winequality-red.csv.xz", ";", "quality", range(3, 9), WINE),
    "marriages": ("ordinal-small/fair.csv.xz", ",", "rate_marriage", range(1, 6), FAIR),
}


def scores(p, classes, y):
    """Return accuracy, mean absolute error and log loss of probabilities (n, K)."""
    predicted = classes[p.argmax(axis=1)]
    of_label = p[np.arange(len(y)), np.searchsorted(classes, y)]
    return np.mean(predicted == y), np.mean(abs(predicted - y)), -np.mean(np.log(of_label))


def probabilities(budget, form, X, y, classes, bounds, held, seed):
    """Return what a model of these records predicts for the held ones; None is no privacy."""
    if budget is not None:
        how = {"feature_range": tuple(np.array(bounds, float).T), "classes": classes, "form": form}
        model = DPOrdinalClassifier(budget, 1e-6, random_state=seed, **how).fit(X, y)
        return model.predict_proba(held)
    how = {"feature_range": tuple(np.array(bounds, float).T), "row_bound": np.sqrt(X.shape[1])}
    data = dpk.SiloData(X, y, [0, len(y)], task="multiclass", classes=classes, **how)
    fit = {"model": dpk.AllThreshold(), "l2": 1.0 / len(y), "rounds": 5000}
    if form == "likelihood":
        fit |= {"model": CumulativeLogit(), "rounds": 50}
    return dpk.solve("auto", data, budget=None, **fit).predict_proba(held)


def measured(X, y, classes, bounds, draws):
    """Return the scores of every draw by name."""
    k, found = len(y) * 4 // 5, {}
    for seed in range(draws):
        order = np.random.default_rng(seed).permutation(len(y))
        train, held = order[:k], order[k:]
        rates = np.array([max(np.mean(y[train] == c), 1e-4) for c in classes])
        p = {"rates": np.tile(rates / rates.sum(), (len(held), 1))}
        budgets = ("epsilon 1", 1.0), ("epsilon 3", 3.0), ("no privacy", None)
        for form, (name, budget) in itertools.product(("thresholds", "likelihood"), budgets):
            given = X[train], y[train], classes, bounds, X[held], seed
            p[f"{form}, {name}"] = probabilities(budget, form, *given)
        for name, predicted in p.items():
            found.setdefault(name, []).append(scores(predicted, classes, y[held]))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=20)
    given = parser.parse_args()
    folder = os.environ.get("DPKERN_DATA")
    if not folder:
        parser.error("DPKERN_DATA must be the folder of the public data sets")
    warnings.simplefilter("ignore")
    for name, (file, separator, label, classes, columns) in SETS.items():
        table = pd.read_csv(Path(folder) / file, sep=separator)
        X, y = table[list(columns)].to_numpy(float), table[label].to_numpy(int)
        print(f"{name}: {len(y)} x {X.shape[1]}, {len(classes)} classes", flush=True)
        found = measured(X, y, np.array(classes), list(columns.values()), given.draws)
        for kind, each in found.items():
            mean, error = np.mean(each, axis=0), np.std(each, axis=0) / np.sqrt(len(each) - 1)
            cells = (f"{m:.3f} +- {e:.3f}" for m, e in zip(mean, error, strict=True))
            print(f"  {kind:22}", *cells, flush=True)


if __name__ == "__main__":
    main()
