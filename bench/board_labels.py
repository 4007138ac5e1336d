"""Logistic regression on public sets: the default beside objective perturbation and AdaSSP.

Called by `python -m bench.boards --labels`, from the folder DPKERN_DATA. Numbers are scaled to
[0, 1] and categories are indicators, by the training records, and rows are divided by the largest
norm of a training row: bounds that are read from records are charged to nobody, as in the papers. A
fifth of the records is for tests, or the file that a set has for it. A record is added or removed,
n is public, and delta = 1 / n^2.

The rivals are written from their papers, have a constant column, and more than they ask for: exact
minimisers, without the noise that those cost. `objective` is Redberg, Koskela, Wang (NeurIPS 2023),
with the hockey-stick form of its law and its rule for the penalty; `kifer` the same algorithm with
the printed noise of Kifer, Smith, Thakurta (COLT 2012), as Ferrando and Sheldon (TMLR 2025) run it;
`adassp` least squares on labels, whose order is that of their method for logistic regression.
"""

import csv
import functools
import io
import lzma
import math
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from bench.utility_text import table, wrapped
from dpkern import Budget, SiloData, solve_many
from dpkern.privacy.guarantees.gdp import gdp_delta, gdp_mu

Array = NDArray[np.float64]

METHODS = ("dpkern", "objective", "kifer", "adassp")
_VISITS = (
    "race", "gender", "age", "admission_type_id", "time_in_hospital", "num_lab_procedures",
    "num_procedures", "num_medications", "number_outpatient", "number_emergency",
    "number_inpatient", "number_diagnoses", "max_glu_serum", "A1Cresult", "insulin", "change",
    "diabetesMed",
)  # fmt: skip
_CODES = ("admission_type_id",)
# The norm of a row with its constant, and the largest curvature of its loss.
_LENGTH, _CURVATURE = math.sqrt(2.0), 0.5


def _table(name: str, delimiter: str = ",") -> list[list[str]]:
    text = lzma.decompress((Path(os.environ["DPKERN_DATA"]) / name).read_bytes()).decode()
    return [row for row in csv.reader(io.StringIO(text), delimiter=delimiter) if row]


def _employment() -> tuple[list[list[str]], list[bool], NDArray[np.bool_]]:
    head, *train = _table("acs-ddssp/ACSemployment_train.csv.xz")
    _, *test = _table("acs-ddssp/ACSemployment_test.csv.xz")
    at, rows = head.index("ESR"), train + test
    # Codes of few values are categories, which a number of a column is not.
    cells = [["c" + cell for i, cell in enumerate(row) if i != at] for row in rows]
    held = np.arange(len(rows)) >= len(train)
    return cells, [float(row[at]) > 0.0 for row in rows], held


def _german() -> tuple[list[list[str]], list[bool], None]:
    rows = _table("logistic-small/german.data.xz", " ")
    return [row[:-1] for row in rows], [row[-1] == "2" for row in rows], None


def _pima() -> tuple[list[list[str]], list[bool], None]:
    rows = _table("logistic-small/pima-indians-diabetes.data.csv.xz")
    return [row[:-1] for row in rows], [row[-1] == "1" for row in rows], None


def _visits() -> tuple[list[list[str]], list[bool], None]:
    head, *rows = _table("diabetes-130/diabetic_data.csv.xz")
    places = [head.index(name) for name in _VISITS]
    marks = ["c" if name in _CODES else "" for name in _VISITS]
    cells = [[mark + row[i] for mark, i in zip(marks, places, strict=True)] for row in rows]
    return cells, [row[head.index("readmitted")] != "NO" for row in rows], None


_SETS = {
    "ACS employment": _employment,
    "German credit": _german,
    "Pima diabetes": _pima,
    "readmissions": _visits,
}


def names() -> list[str]:
    """Return the sets, without reading them."""
    return list(_SETS)


def _columns(cells: Sequence[Sequence[str]], held: NDArray[np.bool_]) -> Array:
    """Return numbers in [0, 1] and indicators of categories, by the training records."""
    found = []
    for column in np.array(cells).T:
        try:
            values = column.astype(np.float64)
        except ValueError:
            levels = np.unique(column[~held])
            found.append((column[:, np.newaxis] == levels).astype(np.float64))
            continue
        low, high = values[~held].min(), values[~held].max()
        scaled = np.clip((values - low) / max(high - low, 1e-12), 0.0, 1.0)
        found.append(scaled[:, np.newaxis])
    return np.hstack(found)


@functools.lru_cache(maxsize=1)
def split(name: str) -> tuple[Array, Array, Array, Array]:
    """Return rows and labels -1 and 1 for training, and for tests."""
    cells, positive, held = _SETS[name]()
    if held is None:
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        held = np.zeros(len(cells), dtype=bool)
        held[rng.permutation(len(cells))[: len(cells) // 5]] = True
    X, y = _columns(cells, held), np.where(positive, 1.0, -1.0)
    X /= np.linalg.norm(X[~held], axis=1).max()
    return X[~held], y[~held], X[held], y[held]


def _minimiser(X: Array, y: Array, ridge: float, b: Array) -> Array:
    """Return the minimiser of sum log(1 + exp(-y x.w)) + ridge |w|^2 / 2 + b.w, by Newton."""
    w = np.zeros(X.shape[1])

    def value(w: Array) -> float:
        return float(np.logaddexp(0.0, -y * (X @ w)).sum() + 0.5 * ridge * w @ w + b @ w)

    for _ in range(50):
        p = scipy.special.expit(-y * (X @ w))
        g = -X.T @ (y * p) + ridge * w + b
        H = (X.T * (p * (1.0 - p))) @ X + ridge * np.eye(len(w))
        step, size, before = np.linalg.solve(H, g), 1.0, value(w)
        while value(w - size * step) > before and size > 1e-6:
            size *= 0.5
        w = w - size * step
        if float(g @ step) < 1e-10:
            break
    return w


def _delta_of(epsilon: float, std: float, ridge: float) -> float:
    """Return delta of objective perturbation, Theorem 3.1 of Redberg, Koskela, Wang (2023)."""
    e = epsilon + math.log(1.0 - _CURVATURE / ridge)
    m, mu = 0.5 * (_LENGTH / std) ** 2, _LENGTH / std
    if e >= m:
        return 2.0 * gdp_delta(mu, e)
    return 1.0 - math.exp(e - m) + 2.0 * math.exp(e - m) * gdp_delta(mu, m)


@functools.cache
def _redberg(epsilon: float, delta: float) -> tuple[float, float]:
    """Return the std of b and the penalty, by the paper's rule: the least one with little noise."""
    ridge, least = 2.0 * _CURVATURE / epsilon, 1.3 * _LENGTH / gdp_mu(epsilon, delta)
    while True:
        ridge = max(ridge, 1.0001 * _CURVATURE)
        if ridge > _CURVATURE and epsilon + math.log(1.0 - _CURVATURE / ridge) > 0.0:
            low, high = 1e-3 * least, 1e3 * least
            for _ in range(60):
                middle = math.sqrt(low * high)
                enough = _delta_of(epsilon, middle, ridge) <= delta
                low, high = (low, middle) if enough else (middle, high)
            if high <= least:
                return high, ridge
        ridge *= 1.05


def _kifer(epsilon: float, delta: float) -> tuple[float, float]:
    """Return the std of b and the penalty that Kifer, Smith, Thakurta (2012) print."""
    std = _LENGTH * math.sqrt(8.0 * math.log(2.0 / delta) + 4.0 * epsilon) / epsilon
    return std, 2.0 * _CURVATURE / epsilon


def _area(scores: Array, y: Array) -> float:
    ranks, positive = scipy.stats.rankdata(scores), y > 0.0
    n1, n0 = int(positive.sum()), int((~positive).sum())
    return float((ranks[positive].sum() - n1 * (n1 + 1) / 2) / (n1 * n0))


def cell(name: str, epsilon: float, draws: int, adassp: Any) -> dict[str, Any]:
    """Return the median test areas and accuracies of every method."""
    X, y, X_test, y_test = split(name)
    n, d = X.shape
    budget = Budget(epsilon=epsilon, delta=1.0 / n**2)
    seed = zlib.crc32(f"{name} {epsilon}".encode())
    rng = np.random.default_rng(seed)
    data = SiloData(
        X, y, [0, n], task="classification", classes=(-1.0, 1.0), row_bound=_LENGTH, intercept=True
    )
    how: dict[str, Any] = {"neighbours": "add_remove", "public_size": n}
    runs = solve_many("auto", data, budgets=budget, draws=draws, rng=seed, **how)
    rows, test = (np.column_stack([A, np.ones(len(A))]) for A in (X, X_test))
    models: dict[str, list[Array]] = {"objective": [], "kifer": [], "adassp": []}
    for _ in range(draws):
        for rival, of in (("objective", _redberg), ("kifer", _kifer)):
            std, ridge = of(epsilon, budget.delta or 0.0)
            b = std * rng.standard_normal(d + 1)
            models[rival].append(_minimiser(rows, y, ridge, b))
        models["adassp"].append(adassp(rows / _LENGTH, y, budget, rng))
    models["no privacy"] = [_minimiser(rows, y, 1e-6, np.zeros(d + 1))]
    scores = {k: [test @ w for w in found] for k, found in models.items()}
    scores["dpkern"] = [run.decision_function(X_test) for run in runs]
    return {
        "set": name,
        "n": n,
        "d": d,
        "epsilon": epsilon,
        "draws": draws,
        "area": {k: float(np.median([_area(z, y_test) for z in zs])) for k, zs in scores.items()},
        "accuracy": {
            k: float(np.median([np.mean((z > 0.0) == (y_test > 0.0)) for z in zs]))
            for k, zs in scores.items()
        },
        "larger class": float(max(np.mean(y_test > 0.0), np.mean(y_test <= 0.0))),
    }


_HOW = """\
`python -m bench.boards --labels`, from the source tree and with the public sets in the folder
`DPKERN_DATA`: the default of `DPLogisticRegression` beside objective perturbation as Redberg,
Koskela and Wang (2023) run it, the same with the noise that Kifer, Smith and Thakurta (2012) print,
and AdaSSP on labels, by which Ferrando and Sheldon (2025) order. The rivals find exact minimisers,
whose noise they are spared. Numbers are scaled and rows divided by bounds that are read from the
records, uncharged. A record is added or removed, n is public, delta = 1/n^2; medians of {draws}
draws or more. Every cell has the area under the ROC curve of test records, of dpkern / Redberg /
Kifer / AdaSSP.

A rival is ahead on a few hundred records, where it is better to predict the larger class.
"""


def page(rows: list[dict[str, Any]]) -> str:
    """Return the page: median areas of test records, and where a rival's is larger."""
    epsilons = sorted({row["epsilon"] for row in rows})
    head = ["set", "n", "d", *(f"epsilon {e:g}" for e in epsilons), "no privacy"]
    body = []
    for name in dict.fromkeys(row["set"] for row in rows):
        cells = {row["epsilon"]: row["area"] for row in rows if row["set"] == name}
        some = next(row for row in rows if row["set"] == name)
        shown = [" / ".join(f"{cells[e][m]:.3f}" for m in METHODS) for e in epsilons if e in cells]
        last = f"{some['area']['no privacy']:.3f}"
        body.append([name, str(some["n"]), str(some["d"]), *shown, last])
    said = []
    for score in ("area", "accuracy"):
        lost = [row for row in rows if row[score]["dpkern"] < max(row[score][m] for m in METHODS)]
        listed = [
            f"{row['set']} at epsilon {row['epsilon']:g} ({row[score]['dpkern']:.3f}, the best "
            f"{max(row[score][m] for m in METHODS):.3f})"
            for row in lost
        ]
        share = 100.0 * (1.0 - len(lost) / len(rows))
        text = f"By {score} dpkern has the best median in {share:.0f} % of {len(rows)} cells"
        said.append(f"{text}, and not on {'; '.join(listed)}." if lost else f"{text}.")
    how = _HOW.format(draws=min(row["draws"] for row in rows))
    title = "# Logistic regression beside other private solvers\n"
    parts = [title, *map(wrapped, how.split("\n\n")), table(head, body), *map(wrapped, said)]
    return "\n".join(parts)
