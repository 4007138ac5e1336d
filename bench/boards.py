"""Least squares on small public sets: the default of DPRidge beside AdaSSP and Hessian mixing.

    python -m bench.boards [--labels] [--sets A,B] [--epsilons 0.1,1] [--draws N] [--out DIR]
        [--page FILE.md]

With --labels it is logistic regression, of `bench.board_labels`. The sets, in the folder
DPKERN_DATA/ihm-board, are those of Lev et al., "Iterative Hessian mixing"
(arXiv 2601.07545), as is what is done to them: a fifth of the records is for tests, targets are
divided by the largest |y| and rows by the largest norm of a training row, sets that come
standardised are standardised again, there is no intercept, and delta = 1 / n^2. A record is added
or removed and n is public. Bounds that are read from records are charged to nobody, here as there.

Every cell is one line of JSON in --out, and one that is there is not computed again. The rivals are
written from their papers: AdaSSP (Wang 2018) with three releases of mu^2 / 3, which is less noise
than the paper's for the same guarantee, and Iterative Hessian Mixing with its calibration. The
sketch S X is drawn as a Gaussian matrix times a root of X^T X, which has the same law.
"""

import argparse
import functools
import json
import lzma
import math
import os
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench import board_labels
from bench.utility_text import table, wrapped
from dpkern import Budget, SiloData, solve_many
from dpkern.privacy.guarantees.gdp import gdp_mu

Array = NDArray[np.float64]

_EPSILONS = [0.1, 0.25, 0.63, 1.58, 3.98]
_ROUNDS = 3  # of Hessian mixing
METHODS = ("dpkern", "adassp", "ihm")


def names() -> list[str]:
    """Return the sets, by the files that are there."""
    folder = _folder()
    files = {path.name.split(".")[0] for path in folder.glob("*.xz")}
    return sorted({name.removesuffix("_train") for name in files if not name.endswith("_mask")})


def _folder() -> Path:
    return Path(os.environ["DPKERN_DATA"]) / "ihm-board"


def _numbers(path: Path) -> Array:
    text = lzma.decompress(path.read_bytes()).decode()
    lines = [line for line in text.splitlines() if line.strip()]
    if path.name.startswith("bike"):  # the hour in place of the date
        lines = [line.replace(line.split(",")[0], line[11:13], 1) for line in lines[1:]]
    if path.name.startswith("wine") and not lines[0][0].isdigit():
        lines = lines[1:]
    separator = next((mark for mark in (",", ";") if mark in lines[0]), None)
    rows = [[_number(cell) for cell in line.split(separator)] for line in lines]
    width = max(map(len, rows))
    return np.array([row for row in rows if len(row) == width])


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan


@functools.lru_cache(maxsize=1)
def split(name: str) -> tuple[Array, Array, Array, Array]:
    """Return rows and targets for training, and for tests."""
    folder, stems = _folder(), (name, f"{name}_train")
    paths = [path for path in folder.glob("*.xz") if path.name.split(".")[0] in stems]
    values = _numbers(next(p for p in paths if not p.name.endswith(".names.xz")))
    if name == "communities":
        values = values[:, 5:]
    if name == "breastcancer":
        y, X = values[:, 2], np.delete(values, [2, values.shape[1] - 1], axis=1)
    else:
        y, X = values[:, -1], values[:, :-1]
    kept = ~np.isnan(X).any(axis=0) & (X.std(axis=0) > 0.0)
    X = X[:, kept]
    mask = folder / f"{name}_mask.txt.xz"
    if mask.exists():
        test = _numbers(mask)[:, 0] == 1.0
        mean, std = X[~test].mean(axis=0), X[~test].std(axis=0)
        X = (X - mean) / np.where(std > 0.0, std, 1.0)
    else:
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        test = np.zeros(len(X), dtype=bool)
        test[rng.permutation(len(X))[: len(X) // 5]] = True
    y = y / np.abs(y[~test]).max()
    X = X / np.linalg.norm(X[~test], axis=1).max()
    return X[~test], y[~test], X[test], y[test]


def adassp(X: Array, y: Array, budget: Budget, rng: np.random.Generator) -> Array:
    """Return the model of AdaSSP, rho = 0.05, for rows and targets of size 1."""
    d, s = X.shape[1], math.sqrt(3.0) / budget.mu
    G, g = X.T @ X, X.T @ y
    least = max(0.0, np.linalg.eigvalsh(G)[0] + s * rng.standard_normal() - 3.0 * s)
    ridge = max(0.0, s * math.sqrt(d * math.log(2.0 * d * d / 0.05)) - least)
    noise = np.triu(rng.standard_normal((d, d))) * s
    noise = noise + np.triu(noise, 1).T
    return np.linalg.solve(G + noise + ridge * np.eye(d), g + s * rng.standard_normal(d))


@functools.cache
def _padding(epsilon: float, delta: float, k: int) -> float:
    """Return the least variance of the padding for which the sketches have half of the budget."""
    third = (0.75 * delta) / _ROUNDS

    def spent(g: float) -> float:
        a = np.exp(np.linspace(math.log(1.0 + 1e-6), math.log(g * (1.0 - 1e-9)), 4000))
        a = a[(a > 1.0) & (a < g)]
        renyi = k * a / (2.0 * (a - 1.0)) * math.log1p(-1.0 / g) - k / (2.0 * (a - 1.0)) * np.log1p(
            -a / g
        )
        conversion = (math.log(1.0 / third) - np.log(a)) / (a - 1.0) + np.log1p(-1.0 / a)
        lowest = math.sqrt(2.0 * math.log(1.25 / third)) * math.sqrt(k) / g
        return float(np.min(_ROUNDS * renyi + conversion)) + lowest

    low, high = 2.0, 2.0
    while spent(high) > 0.5 * epsilon:
        high *= 2.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if spent(middle) <= 0.5 * epsilon else (middle, high)
    return high


def mixing(X: Array, y: Array, budget: Budget, rng: np.random.Generator) -> Array:
    """Return the model of Iterative Hessian Mixing, for rows and targets of size 1."""
    assert budget.epsilon is not None
    assert budget.delta is not None
    epsilon, delta, d = budget.epsilon, budget.delta, X.shape[1]
    rho = delta / 10.0
    k = math.ceil(max(6.0 * d, 6.0 * math.log(4.0 * _ROUNDS / rho)))
    g = _padding(epsilon, delta, k)
    s = math.sqrt(_ROUNDS) / gdp_mu(0.5 * epsilon, 0.25 * delta)
    G = X.T @ X
    values, vectors = np.linalg.eigh(G)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    error = g / math.sqrt(k)
    far = math.sqrt(2.0 * math.log(max(4.0 / delta, 4.0 / rho)))
    least = max(0.0, values[0] - error * (far - rng.standard_normal()))
    pad = math.sqrt(max(0.0, g - least))
    w = np.zeros(d)
    for _ in range(_ROUNDS):
        K = rng.standard_normal((k, d)) @ root.T + pad * rng.standard_normal((k, d))
        residual = np.clip(y - X @ w, -1.0, 1.0)
        w = w + np.linalg.solve(K.T @ K / k, X.T @ residual + s * rng.standard_normal(d))
    return w


def cell(name: str, epsilon: float, draws: int) -> dict[str, Any]:
    """Return the median mean squared errors of every method, on training and test records."""
    X, y, X_test, y_test = split(name)
    n, d = X.shape
    budget = Budget(epsilon=epsilon, delta=1.0 / n**2)
    seed = zlib.crc32(f"{name} {epsilon}".encode())
    rng = np.random.default_rng(seed)
    data = SiloData(X, y, [0, n], task="regression", row_bound=1.0, target_bound=1.0)
    runs = solve_many(
        "auto",
        data,
        budgets=budget,
        draws=draws,
        rng=seed,
        neighbours="add_remove",
        public_size=n,
        l2=1.0 / n,
    )
    models = {
        "dpkern": np.array([run.w for run in runs]),
        "adassp": np.array([adassp(X, y, budget, rng) for _ in range(draws)]),
        "ihm": np.array([mixing(X, y, budget, rng) for _ in range(draws)]),
        "no privacy": np.linalg.lstsq(X, y)[0][np.newaxis],
        "zero": np.zeros((1, d)),
    }
    row: dict[str, Any] = {"set": name, "n": n, "d": d, "epsilon": epsilon, "draws": draws}
    for part, rows, targets in (("train", X, y), ("test", X_test, y_test)):
        row[part] = {
            method: float(np.median(np.mean((rows @ W.T - targets[:, None]) ** 2, axis=0)))
            for method, W in models.items()
        }
    return row


_HOW = """\
`python -m bench.boards`, from the source tree and with the public sets in the folder `DPKERN_DATA`:
the default of `DPRidge` beside AdaSSP (Wang 2018, with less noise than the paper's for the same
guarantee) and Iterative Hessian Mixing (Lev et al. 2026), on the sets and after the preparation of
the latter's authors. A record is added or removed, n is public, delta = 1/n^2; medians of {draws}
draws. Every cell has the mean squared error on test records of dpkern / AdaSSP / Hessian mixing;
"zero" predicts 0.

A rival is ahead where targets hardly depend on the features, so that predicting 0 is best, or with
fewer than 200 records.
"""


def page(rows: list[dict[str, Any]]) -> str:
    """Return the page: median errors on test records, and where a rival's is lower."""
    epsilons = sorted({row["epsilon"] for row in rows})
    head = ["set", "n", "d", *(f"epsilon {e:g}" for e in epsilons), "no privacy", "zero"]
    body, behind = [], []
    for name in sorted({row["set"] for row in rows}):
        cells = {row["epsilon"]: row for row in rows if row["set"] == name}
        some = next(iter(cells.values()))
        shown = []
        for e in epsilons:
            errors = [cells[e]["test"][method] for method in METHODS] if e in cells else []
            shown.append(" / ".join(f"{error:.3g}" for error in errors))
        body.append(
            [name, str(some["n"]), str(some["d"]), *shown]
            + [f"{some['test'][k]:.3g}" for k in ("no privacy", "zero")]
        )
    parts = []
    for part in ("test", "train"):
        lost = [row for row in rows if row[part]["dpkern"] > min(row[part][m] for m in METHODS[1:])]
        share = 100.0 * (1.0 - len(lost) / len(rows))
        parts.append(f"lowest in {share:.0f} % of {len(rows)} cells by {part} records")
        if part == "test":
            behind = lost
    names: dict[str, list[str]] = {}
    for row in behind:
        names.setdefault(row["set"], []).append(f"{row['epsilon']:g}")
    listed = "; ".join(f"{name} at epsilon {', '.join(at)}" for name, at in names.items())
    said = f"The median error of dpkern is {', '.join(parts)}."
    if listed:
        said += f" By test records a rival has the lower one on {listed}."
    how = _HOW.format(draws=rows[0]["draws"])
    title = "# Least squares beside other private solvers\n"
    return "\n".join([title, *map(wrapped, how.split("\n\n")), table(head, body), wrapped(said)])


def list_of_numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--labels", action="store_true")
    parser.add_argument("--sets", type=lambda text: text.split(","))
    parser.add_argument("--epsilons", type=list_of_numbers, default=_EPSILONS)
    parser.add_argument("--draws", type=int, default=50)
    parser.add_argument("--out", type=Path, default=Path("build/boards"))
    parser.add_argument("--page", type=Path)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / ("labels.jsonl" if options.labels else "cells.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = {(row["set"], row["epsilon"]) for row in rows}
    for name in options.sets or (board_labels.names() if options.labels else names()):
        for epsilon in options.epsilons:
            if (name, epsilon) not in done:
                of_labels = functools.partial(board_labels.cell, adassp=adassp)
                row = (of_labels if options.labels else cell)(name, epsilon, options.draws)
                rows.append(row)
                with path.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    text = (board_labels.page if options.labels else page)(rows)
    if options.page is not None:
        options.page.write_text(text)
    print(text)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
