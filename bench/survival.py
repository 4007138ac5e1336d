"""Private hazards on public data: concordance, and how far survival is from that of no privacy.

    python -m bench.survival [--draws N] [--only NAME ...]

For each set and epsilon, at delta 1e-6: the mean over draws of Harrell's concordance of
`DPDiscreteHazards` with default settings and of the mean distance of predicted survival functions
at the edges from those of the minimiser without privacy, on the same records, with standard
errors. docs/survival.md has what it printed. The data are those of DPKERN_DATA.
"""

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import minimize

from dpkern.data import Column, Schema
from dpkern.estimators import DPDiscreteHazards
from dpkern.models.hazards import DiscreteHazards, cells_of, concordance

DAYS = (0, 7, 14, 30, 60, 90, 180, 365, 730, 1095, 1460, 2030)


class People(NamedTuple):
    """Rows in [-1, 1], the bound of their norm, times, events, and public edges."""

    X: np.ndarray
    bound: float
    time: np.ndarray
    event: np.ndarray
    edges: tuple[float, ...]


def mapped(columns, lo, hi):
    X = 2.0 * (np.clip(columns.to_numpy(float), lo, hi) - lo) / (np.array(hi) - lo) - 1.0
    return np.ascontiguousarray(X), np.sqrt(X.shape[1])


def read_support(folder):
    """The 14 columns of DeepSurv's copy of SUPPORT: 8 873 people."""
    table = pd.read_csv(folder / "support/support_deepsurv.csv.xz")
    lo = np.array([18, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32, 110, 0, 0])
    hi = [100, 1, 9, 5, 1, 1, 2, 180, 300, 60, 42, 180, 60, 12]
    rows = mapped(table[[f"x{j}" for j in range(14)]], lo, hi)
    return People(*rows, table["duration"].to_numpy(), table["event"].to_numpy() > 0, DAYS)


def read_support2(folder):
    """SUPPORT as released: 9 105 people, by a schema."""
    table = pd.read_csv(folder / "support/support2.csv.xz", dtype=str, keep_default_na=False)
    numbers = {
        "age": (18, 105), "num.co": (0, 9), "scoma": (0, 100, 0), "meanbp": (0, 200, 80),
        "hrt": (0, 250, 75), "resp": (0, 80, 18), "temp": (30, 43, 37), "sod": (110, 180, 140),
        "ph": (6.8, 7.8, 7.4), "pafi": (0, 800, 333), "alb": (0, 7, 3.5), "adlsc": (0, 7, 0),
        "wblc": (0, 200, 9), "bili": (0, 60, 1), "crea": (0, 20, 1), "bun": (0, 250, 7),
    }  # fmt: skip
    log = ("wblc", "bili", "crea", "bun")
    categories = {
        "sex": ("male", "female"), "ca": ("no", "yes", "metastatic"), "diabetes": ("0", "1"),
        "dementia": ("0", "1"), "race": ("white", "black", "hispanic", "asian", "other"),
        "dzgroup": (
            "ARF/MOSF w/Sepsis", "CHF", "COPD", "Lung Cancer", "MOSF w/Malig", "Coma",
            "Colon Cancer", "Cirrhosis",
        ),
    }  # fmt: skip
    columns = [
        Column(
            name, "number", lo=bounds[0], hi=bounds[1], missing=bounds[2] if bounds[2:] else None,
            scale="log1p" if name in log else "linear",
        )
        for name, bounds in numbers.items()
    ]  # fmt: skip
    columns += [Column(name, "category", categories=known) for name, known in categories.items()]
    schema = Schema(columns, intercept=False)
    X = schema.encode(table[[column.name for column in columns]])
    time, event = table["d.time"].astype(float).to_numpy(), table["death"].to_numpy() == "1"
    return People(X, schema.proven_bound, time, event, DAYS)


def read_metabric(folder):
    """DeepSurv's copy of METABRIC: 1 904 people."""
    table = pd.read_csv(folder / "metabric/metabric_deepsurv.csv.xz")
    lo, hi = np.array([4, 4, 4, 4, 0, 0, 0, 0, 20]), [13, 13, 15, 16, 1, 1, 1, 1, 100]
    rows = mapped(table[[f"x{j}" for j in range(9)]], lo, hi)
    edges = (0.0, 30.0, 60.0, 90.0, 120.0, 180.0, 240.0, 300.0)
    return People(*rows, table["duration"].to_numpy(), table["event"].to_numpy() > 0, edges)


READERS: dict[str, Callable[[Path], People]] = {
    "support": read_support,
    "support2": read_support2,
    "metabric": read_metabric,
}


def without_privacy(people):
    """Return risks and survival functions of the minimiser."""
    model = DiscreteHazards(people.edges)
    y = cells_of(people.time, people.event, people.edges).astype(float)
    d = people.X.shape[1]

    def mean_loss(w):
        losses, G = model.losses(w, people.X, y), model.gradients(w, people.X, y)
        return losses.mean() + 5e-7 * w @ w, G.mean(axis=0) + 1e-6 * w

    start = np.zeros(d + model.intervals)
    w = minimize(mean_loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 5000}).x
    events = np.exp(model.outputs(w, people.X)[:, : model.intervals])
    return model.risks(w, people.X), 1.0 - np.cumsum(events, axis=1)


def figures(people, epsilons, draws):
    """Yield epsilon, and means and standard errors of concordance and distance."""
    risks, survival = without_privacy(people)
    exact = concordance(people.time, people.event, risks)
    print(f"  {people.X.shape[0]} x {people.X.shape[1]}: {exact:.4f} without privacy", flush=True)
    y = np.column_stack([people.time, people.event])
    for epsilon in epsilons:
        found = []
        for seed in range(draws):
            model = DPDiscreteHazards(
                epsilon, intervals=people.edges, row_bound=people.bound, random_state=seed
            ).fit(people.X, y)
            off = np.abs(model.predict_survival_function(people.X)[:, 1:] - survival)
            found.append((model.score(people.X, y), off.mean()))
        errors = np.std(found, axis=0) / np.sqrt(max(1, draws - 1))
        yield epsilon, np.mean(found, axis=0), errors


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--only", nargs="*", default=list(READERS), choices=list(READERS))
    arguments = parser.parse_args()
    for name in arguments.only:
        print(name, flush=True)
        people = READERS[name](Path(os.environ["DPKERN_DATA"]))
        for epsilon, means, errors in figures(people, (0.5, 1.0, 3.0, 10.0), arguments.draws):
            shown = ", ".join(f"{m:.4f} +- {s:.4f}" for m, s in zip(means, errors, strict=True))
            print(f"  epsilon {epsilon:g}: concordance, distance {shown}", flush=True)


if __name__ == "__main__":
    main()
