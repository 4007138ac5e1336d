"""Private regressions of counts on public data: how much of the deviance they explain.

    python -m bench.counts [--draws N] [--only NAME ...]

For each set and epsilon: the mean over draws of the deviance that "auto" explains over the
constant, as a share of what the fit without privacy explains, on the same records, and its
standard error; and the share that one release of all gradients is expected to leave, to second
order, by whoever knows the exact curvature and the best ridge. docs/counts.md has what it printed.
The data are those of DPKERN_DATA.
"""

import argparse
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

import dpkern as dpk
from dpkern.models.losses import Poisson
from dpkern.solvers import Objective


class Counts(NamedTuple):
    """Rows, counts, exposures, and public bounds of means and counts."""

    X: np.ndarray
    y: np.ndarray
    exposure: np.ndarray
    means: tuple[float, float]
    most: float


def scaled(column, lo, hi):
    return 2.0 * (np.clip(column.to_numpy(float), lo, hi) - lo) / (hi - lo) - 1.0


def read_motor(folder):
    """French motor liability: claims of 413 169 policies."""
    table = pd.read_csv(folder / "fremtpl/freMTPLfreq.csv.xz")
    X = pd.get_dummies(table[["Power", "Brand", "Gas", "Region"]]).astype(float)
    X["car"], X["driver"] = scaled(table["CarAge"], 0, 30), scaled(table["DriverAge"], 18, 90)
    X["driver squared"] = X["driver"] ** 2
    X["density"] = scaled(np.log(table["Density"]), 0.0, np.log(30_000))
    exposure = np.clip(table["Exposure"].to_numpy(float), 1 / 365, 1.0)
    return Counts(X.to_numpy(), table["ClaimNb"].to_numpy(float), exposure, (0.01, 1.0), 4.0)


def read_vehicles(folder):
    """Australian vehicle insurance: claims of 67 856 policies."""
    table = pd.read_csv(folder / "ausprivauto0405/ausprivauto0405.csv.xz")
    X = pd.get_dummies(table[["VehAge", "VehBody", "Gender", "DrivAge"]]).astype(float)
    X["value"] = scaled(table["VehValue"], 0, 8)
    exposure = np.clip(table["Exposure"].to_numpy(float), 1 / 365, 1.0)
    return Counts(X.to_numpy(), table["ClaimNb"].to_numpy(float), exposure, (0.01, 1.0), 4.0)


def read_bikes(folder):
    """Hourly rentals of bicycles: 17 379 hours."""
    table = pd.read_csv(folder / "bike-sharing/hour.csv.xz")
    names = ["season", "yr", "mnth", "hr", "weekday", "workingday", "weathersit"]
    X = pd.get_dummies(table[names].astype(str)).astype(float)
    for name in ("temp", "hum", "windspeed"):
        X[name] = scaled(table[name], 0, 1)
    y = table["cnt"].to_numpy(float)
    return Counts(X.to_numpy(), y, np.ones(len(y)), (5.0, 1000.0), 1000.0)


def read_visits(folder):
    """Visits to a doctor in two weeks: 5 190 persons."""
    table = pd.read_csv(folder / "counts-small/DoctorVisits.csv.xz")
    X = pd.DataFrame({"female": scaled(table["gender"] == "female", 0, 1)})
    ranges = {"age": (0, 0.72), "income": (0, 1.5), "illness": (0, 5), "reduced": (0, 14)}
    for name, bounds in (ranges | {"health": (0, 12)}).items():
        X[name] = scaled(table[name], *bounds)
    for name in ("private", "freepoor", "freerepat", "nchronic", "lchronic"):
        X[name] = scaled(table[name] == "yes", 0, 1)
    y = table["visits"].to_numpy(float)
    return Counts(X.to_numpy(), y, np.ones(len(y)), (0.02, 5.0), 9.0)


READERS: dict[str, Callable[[Path], Counts]] = {
    "motor claims": read_motor,
    "vehicle claims": read_vehicles,
    "bicycles": read_bikes,
    "doctor visits": read_visits,
}


def deviance(y, mean):
    with np.errstate(divide="ignore", invalid="ignore"):
        return 2.0 * np.mean(np.where(y > 0.0, y * np.log(y / mean), 0.0) - (y - mean))


def left_by_one_release(H, change, sensitivity, mu):
    """Return the share of change.H.change that the best ridge leaves of a noisy Newton step.

    `change` is the way from the constant to the minimiser, along which a step with the ridge k goes
    by (H + k)^-1 H, with noise of the std sensitivity / mu in every coordinate of its gradient.
    """
    values, vectors = np.linalg.eigh(H)
    values, along = np.maximum(values, 0.0), vectors.T @ change
    k = values[-1] * np.logspace(-9.0, 1.0, 101)[:, np.newaxis]
    noise = (sensitivity / mu) ** 2
    lost = values * ((k * along) ** 2 + noise) / (values + k) ** 2
    return 1.0 - lost.sum(axis=1).min() / (values * along**2).sum()


def explained(counts, epsilons, draws):
    """Yield epsilon, mean share of the explained deviance, its standard error, and the share that
    one release leaves."""
    X, y, exposure, means, most = counts
    R = float(np.sqrt(np.max(np.sum(X**2, axis=1)) + 1.0))
    data = dpk.SiloData(
        np.ascontiguousarray(X), y, [0, len(y)], task="regression", intercept=True, row_bound=R,
        margin_offset=np.log(exposure),
    )  # fmt: skip
    loss = Poisson(*np.log(means), most)
    constant = deviance(y, exposure * y.sum() / exposure.sum())
    w, _ = Objective(data, loss, l2=1e-6).minimum()
    best = constant - deviance(y, exposure * np.exp(np.clip(X @ w[:-1] + w[-1], *np.log(means))))
    print(f"  {len(y)} x {X.shape[1]}: {best / constant:.4f} explained without privacy", flush=True)
    rows, change = np.column_stack([X, np.ones(len(X))]), w.copy()
    H = (rows.T * (exposure * np.exp(rows @ w))) @ rows
    change[-1] -= np.log(y.sum() / exposure.sum())
    for epsilon in epsilons:
        budget = dpk.Budget(epsilon=epsilon, delta=1e-6)
        left = left_by_one_release(H, change, 2.0 * R * loss.typical_slope, budget.mu)
        shares = []
        for seed in range(draws):
            result = dpk.solve("auto", data, budget=budget, loss=loss, rng=seed)
            shares.append((constant - deviance(y, exposure * result.predict(X))) / best)
        yield epsilon, np.mean(shares), np.std(shares) / np.sqrt(max(1, draws - 1)), left


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--only", nargs="*", choices=list(READERS), default=list(READERS))
    given = parser.parse_args()
    folder = os.environ.get("DPKERN_DATA")
    if not folder:
        parser.error("DPKERN_DATA must be the folder of the public data sets")
    warnings.simplefilter("ignore")
    for name in given.only:
        print(name)
        for epsilon, mean, error, left in explained(
            READERS[name](Path(folder)), (0.3, 1, 3), given.draws
        ):
            print(
                f"  epsilon {epsilon:<4g} {mean:8.3f} +- {error:.3f}, one release {left:.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
