"""Whether the intervals of `newton_inference` hold, how wide they are, and where there are none.

    python -m bench.coverage [--losses A,B] [--designs A,B] [--records N,N] [--columns D,D]
        [--epsilons E,E] [--repetitions R] [--out DIR] [--page FILE.md]

Every cell draws the responses of one design R times from a stated model, or, of "cps" (the data of
DPKERN_DATA), as many samples with replacement, and fits each with fresh noise. A cell is one line
of JSON in --out, and one that is there is not computed again.

    python -m bench.coverage --check oracle|null|silos|time|forecast [--losses ...]
        [--repetitions R]

prints, of every cell, standard errors over those of an oracle with exact curvatures, whether
p-values of a coefficient that is 0 are uniform, what `SILOS` of 37 000 records cost (--records
37000), the processor time of a fit over that of local_newton, or what is expected before the fit.
"""

import argparse
import itertools
import json
import lzma
import math
import os
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import scipy
from numpy.typing import NDArray

import dpkern as dpk
from bench.utility_text import table, wrapped
from dpkern.models.losses import get_loss
from dpkern.models.ordinal import CumulativeLogit
from dpkern.solvers.base.objective import Objective, public_numbers
from dpkern.solvers.releases.estimation import Estimation
from dpkern.solvers.releases.forecast import forecast

FloatArray = NDArray[np.float64]

_HUBER, _NOISE = 1.0, 0.75  # delta, and the deviation of residuals, of targets within +-8
_TARGETS = 8.0
# Of counts: the mean, the deviation of its log, variance = mean + _DISPERSION mean^2, and bounds.
_MEAN, _SPREAD, _DISPERSION = 0.2, 0.4, 0.25
# Of times: the mean, the deviation of its log, and the shape.
_TIME, _SPREAD_OF_TIMES, _SHAPE = 2.0, 0.25, 2.0
SILOS = (20_000, 8_000, 5_000, 4_000)
LOSSES: dict[str, Any] = {
    "logistic": "logistic",
    "huber": dpk.losses.Huber(_HUBER),
    "squared": "squared",
    "poisson": dpk.losses.Poisson(math.log(0.01), 0.0, max_target=4.0),
    "gamma": dpk.losses.Gamma(0.0, math.log(4.0), max_target=12.0),
    "negative_binomial": dpk.losses.NegativeBinomial(1.0, max_target=4.0),
    "probit": "probit",
    "cloglog": dpk.losses.ComplementaryLogLog(0.0),
    "ordered": dpk.AllThreshold(),
    "cumulative_logit": CumulativeLogit(),
}
_ORDERED = ("ordered", "cumulative_logit")
# Log odds of classes up to a threshold, in the mean.
_CUTS = (-1.0, 0.0, 1.5)
_LABELS = ("logistic", "probit", "cloglog")
# These have one cell for each budget.
_ONE = ("gamma", "negative_binomial", "probit", "cloglog", *_ORDERED)


def _one_hot(rng: np.random.Generator, n: int, d: int) -> FloatArray:
    """Indicators of four of five levels, of shares 1/2 to 1/16, for every four columns."""
    X, shares = np.zeros((n, d)), np.array([8.0, 4.0, 2.0, 1.0, 1.0]) / 16.0
    for first in range(0, d, 4):
        level = rng.choice(5, n, p=shares)
        for k in range(min(4, d - first)):
            X[:, first + k] = level == k
    return X


def _skewed(rng: np.random.Generator, n: int, d: int) -> FloatArray:
    return np.minimum(rng.gamma(3.0, 1.0, (n, d)), 30.0) / 15.0 - 1.0


def _correlated(rng: np.random.Generator, n: int, d: int) -> FloatArray:
    shared = rng.standard_normal((n, 1))
    return np.clip((0.7 * shared + math.sqrt(0.51) * rng.standard_normal((n, d))) / 3.0, -1.0, 1.0)


DESIGNS: dict[str, Callable[[np.random.Generator, int, int], FloatArray]] = {
    "one_hot": _one_hot,
    "skewed": _skewed,
    "correlated": _correlated,
    "exposures": _correlated,  # from 0.1 to 1, of counts
}


@dataclass(frozen=True)
class Cell:
    """One cell of the grid; d counts the constant, and ordered classes have thresholds for it."""

    loss: str
    design: str
    n: int
    d: int
    epsilon: float

    def __str__(self) -> str:
        return f"{self.loss}, {self.design}, n {self.n}, d {self.d}, epsilon {self.epsilon:g}"

    @property
    def _seed(self) -> int:
        return zlib.crc32(f"{self.design} {self.n} {self.d}".encode())

    def _data(self, X: FloatArray, y: FloatArray, offset: FloatArray | None = None) -> dpk.SiloData:
        options: dict[str, Any] = {"intercept": True, "feature_range": (-1.0, 1.0)}
        if self.design == "one_hot":
            options["row_bound"] = math.sqrt(1.0 + math.ceil((self.d - 1) / 4))
            options["feature_range"] = None
        if self.loss in _ORDERED:
            options |= {"task": "multiclass", "classes": range(len(_CUTS) + 1), "intercept": False}
        elif self.loss in _LABELS:
            options |= {"task": "classification", "classes": (-1.0, 1.0)}
        elif get_loss(LOSSES[self.loss]).log_link:
            options |= {"task": "regression", "margin_offset": offset}
        else:
            options |= {"task": "regression", "target_bound": _TARGETS}
        return dpk.SiloData(X, y, [0, len(y)], **options)

    def draws(
        self, repetitions: int, *, null: bool = False
    ) -> Iterator[tuple[dpk.SiloData, FloatArray]]:
        """Yield records and true coefficients, the intercept last; the second is 0 if `null`."""
        rng = np.random.default_rng(self._seed)
        if self.design == "cps":
            X, wage = cps()
            y = np.where(wage > math.log(52_000.0) - 10.0, 1.0, -1.0)
            y = y if self.loss == "logistic" else wage
            truth = self._fit(self._data(X, y), None).w
            for _ in range(repetitions):
                chosen = rng.integers(0, len(y), len(y))
                yield self._data(X[chosen], y[chosen]), truth
            return
        X = DESIGNS[self.design](rng, self.n, self.d - 1)
        w = rng.standard_normal(self.d - 1)
        w /= max(float((X @ w).std()), 1e-9)
        w[1] *= not null
        if self.loss in ("poisson", "gamma", "negative_binomial", "cloglog"):
            times = self.loss == "gamma"
            w *= _SPREAD_OF_TIMES if times else _SPREAD
            level = math.log(_TIME if times else _MEAN) - float((X @ w).mean())
            offset = np.log(rng.uniform(0.1, 1.0, self.n)) if self.design == "exposures" else None
            means = np.exp(X @ w + level + (0.0 if offset is None else offset))
            for _ in range(repetitions):
                yield self._data(X, self._responses(means, rng), offset), np.append(w, level)
            return
        if self.loss in _ORDERED:
            for _ in range(repetitions):
                z = X @ w - float((X @ w).mean()) + rng.logistic(size=self.n)
                data = self._data(X, np.digitize(z, _CUTS))
                cuts = np.array(_CUTS) + float((X @ w).mean())
                yield data, np.append(w, cuts / data.row_bound)
            return
        middle = float((X @ w).mean()) + (0.5 if self.loss in _LABELS else 0.0)
        z = X @ w - middle
        p = scipy.special.ndtr(z) if self.loss == "probit" else scipy.special.expit(z)
        for _ in range(repetitions):
            if self.loss in _LABELS:
                y = np.where(rng.random(self.n) < p, 1.0, -1.0)
            else:
                y = z + _NOISE * rng.standard_normal(self.n)
            yield self._data(X, y), np.append(w, -middle)

    def _responses(self, means: FloatArray, rng: np.random.Generator) -> FloatArray:
        """Return counts or times of these means, or events of these hazards."""
        if self.loss == "gamma":
            return rng.gamma(_SHAPE, means / _SHAPE)
        if self.loss == "cloglog":
            return np.where(rng.random(self.n) < -np.expm1(-means), 1.0, -1.0)
        a = LOSSES[self.loss].dispersion if self.loss == "negative_binomial" else _DISPERSION
        return rng.poisson(means * rng.gamma(1.0 / a, a, self.n)).astype(float)

    def _fit(
        self, data: dpk.SiloData, seed: int | None, solver: str = "newton_inference", **how: Any
    ) -> dpk.SolverResult:
        budget = None if seed is None else dpk.Budget(epsilon=self.epsilon, delta=self._delta)
        how["model" if self.loss in _ORDERED else "loss"] = LOSSES[self.loss]
        return dpk.solve(solver, data, budget=budget, rng=seed, **how)

    def _seed_of(self, i: int) -> int:
        return zlib.crc32(f"{self} {i}".encode())

    @property
    def _delta(self) -> float:
        return 1.0 / self.n**2 if self.design == "cps" else 1e-6

    def figures(self, repetitions: int) -> dict[str, Any]:
        """Return errors over standard errors, these over those without privacy, and what is
        refused."""
        errors, widths, ratios = [], [], []
        plain: FloatArray | None = None
        for i, (data, truth) in enumerate(self.draws(repetitions)):
            if plain is None:
                plain = self._errors(self._fit(data, None))
            result = self._fit(data, self._seed_of(i))
            std = self._errors(result)
            errors.append((result.w - truth) / std)
            widths.append(std / plain)
            ratios.append((result.w - truth) / plain)
        t, width = np.array(errors), np.array(widths)
        answered = np.isfinite(t)
        covered = np.abs(t) <= scipy.special.ndtri(0.975)
        of_each = [
            float(c[a].mean()) if a.any() else math.nan
            for c, a in zip(covered.T, answered.T, strict=True)
        ]
        p = 2.0 * scipy.special.ndtr(-np.abs(t[answered]))
        return {
            "coverage": float(covered[answered].mean()) if answered.any() else math.nan,
            "of each": of_each,
            "answered": float(answered.mean()),
            "width": np.nanmedian(width, axis=0).tolist() if answered.any() else [],
            "deviation": np.std(ratios, axis=0).tolist(),
            "repetitions": repetitions,
            "p below .05": float(np.mean(p < 0.05)) if len(p) else math.nan,
        }

    # --- Of --check: what the table of coverage does not say ----------------------------------

    def oracle(self, repetitions: int) -> dict[str, Any]:
        """Compare standard errors with those of the same noise of scores and exact curvatures."""
        estimate, ratios, found = Estimation.estimate, [], {}

        def compared(one: Estimation) -> Any:
            w, inference = yield from estimate(one)
            U, f = one._rows(one._data)
            s, q = one._scores(found["w"])(one._data)
            half = one.W @ np.linalg.inv((U.T * (f * q)) @ U)
            noise = 1.0 / sum(1.0 / std**2 for *_, std in one._seen)
            exact = half @ ((U.T * (f * s) ** 2) @ U + noise * np.eye(U.shape[1])) @ half.T
            ratios.append(self._stds(inference) / np.sqrt(np.diag(exact)))
            return w, inference

        for i, (data, _) in enumerate(self.draws(repetitions)):
            found = {"w": self._fit(data, None).w}
            with mock.patch.object(Estimation, "estimate", compared):
                self._fit(data, self._seed_of(i))
        each = np.nanmean(ratios, axis=0)
        return {"mean": float(np.nanmean(each)), "largest of a coefficient": float(each.max())}

    def null(self, repetitions: int) -> dict[str, Any]:
        """Test whether the p-values of a coefficient that is 0 are uniform."""
        p_values = []
        for i, (data, _) in enumerate(self.draws(repetitions, null=True)):
            p_values.append(self._fit(data, self._seed_of(i)).summary()[2].p_value)
        p = np.array(p_values)
        known = p[np.isfinite(p)]
        test = float(scipy.stats.kstest(known, "uniform").pvalue)
        below = {
            "p below .05": float(np.mean(known < 0.05)),
            "p below .01": float(np.mean(known < 0.01)),
        }
        return {"Kolmogorov-Smirnov p": test, **below, "answered": len(known) / len(p)}

    def silos(self, repetitions: int) -> dict[str, Any]:
        """Compare standard errors of `SILOS` with those of the same records in one place."""
        ways: dict[str, dict[str, Any]] = {
            "one place": {},
            "shares": {"colluding": 1},
            "each silo": {"trust": "silo"},
        }
        widths: dict[str, list[FloatArray]] = {name: [] for name in ways}
        z, q = [], []
        for i, (data, truth) in enumerate(self.draws(repetitions)):
            plain = self._errors(self._fit(data, None))
            silos = data.part(slice(0, self.n), np.cumsum([0, *SILOS]))
            for name, how in ways.items():
                result = self._fit(silos if how else data, self._seed_of(i), **how)
                rows = result.summary()
                std = np.array([row.std_error for row in [*rows[1:], rows[0]]])
                widths[name].append(std / plain)
            z.append(([row.estimate for row in [*rows[1:], rows[0]]] - truth) / std)
            q.append(rows[1].q_p_value)
        found = {name: float(np.nanmedian(width)) for name, width in widths.items()}
        covered = float(np.mean(np.abs(z) <= scipy.special.ndtri(0.975)))
        test = float(scipy.stats.kstest(q, "uniform").pvalue)
        return found | {"each silo: coverage": covered, "Kolmogorov-Smirnov p of Q": test}

    def time(self, repetitions: int) -> dict[str, Any]:
        """Compare the processor time of a fit with that of local_newton; repetitions alternate."""
        (data, _), seconds = next(self.draws(1)), []
        for i in range(repetitions + 1):
            start = time.process_time()
            self._fit(data, i)
            middle = time.process_time()
            self._fit(data, i, "local_newton")
            seconds.append((middle - start, time.process_time() - middle))
        own, other = np.median(seconds[1:], axis=0).tolist()
        return {"seconds": own, "of local_newton": other, "ratio": own / other}

    def forecast(self, _: int) -> dict[str, Any]:
        """Return what `dpkern.plan` expects of the cell; ordered classes have no forecast."""
        if self.loss in _ORDERED:
            return {}
        (data, _), loss = next(self.draws(1)), get_loss(LOSSES[self.loss])
        budget = dpk.Budget(epsilon=self.epsilon, delta=self._delta)
        numbers = public_numbers(Objective(data, loss), budget, "central", "replace_one")
        rate = _MEAN if self.loss in ("poisson", "negative_binomial", "cloglog") else 0.5
        found = forecast(numbers, loss, data.n, rate, None)
        return {"answered": found.is_answered, "width": found.growth, "noise": found.noise_ratio}

    @classmethod
    def _errors(cls, result: dpk.SolverResult) -> FloatArray:
        assert result.inference is not None
        return cls._stds(result.inference)

    @staticmethod
    def _stds(inference: Any) -> FloatArray:
        variances, _ = inference.variances(np.eye(len(inference.covariance)))
        return np.sqrt(variances)


@lru_cache(maxsize=1)
def cps() -> tuple[FloatArray, FloatArray]:
    """Return education, experience, its square and sex within [-1, 1], and log wage less 10."""
    path = Path(os.environ["DPKERN_DATA"]) / "cps-asec-2024" / "cps_asec_2024_wages.csv.xz"
    with lzma.open(path, "rt") as file:
        wage, education, experience, square, female = np.loadtxt(
            file, delimiter=",", skiprows=1, usecols=range(5)
        ).T
    columns = education / 22.0, experience / 50.0, square / 2500.0, female
    return np.clip(2.0 * np.column_stack(columns) - 1.0, -1.0, 1.0), wage - 10.0


def cells(options: argparse.Namespace) -> list[Cell]:
    """Return the cells of the grid."""
    grid = itertools.product(
        options.losses, options.designs, options.records, options.columns, options.epsilons
    )
    found = [Cell(*values) for values in grid if values[1] != "cps"]
    found = [cell for cell in found if cell.loss == "poisson" or cell.design != "exposures"]
    one = ("correlated", 50_000, 5)
    found = [
        cell
        for cell in found
        if cell.loss not in _ONE or ((cell.design, cell.n, cell.d) == one and cell.epsilon >= 1.0)
    ]
    if "cps" in options.designs:
        n = len(cps()[1])
        losses = [loss for loss in options.losses if loss in ("logistic", "huber", "squared")]
        of_cps = itertools.product(losses, options.epsilons)
        found += [Cell(loss, "cps", n, 5, epsilon) for loss, epsilon in of_cps]
    return found


_LEAST = 0.01  # a share that counts as an answer
_HEAD = ["cell", "answered", "coverage", "least and most", "width", "std. error over deviation"]
_HEAD += ["repetitions"]
_ABOUT = """\
`python -m bench.coverage`: coverage of 95 % intervals in the stated repetitions, in the
mean of coefficients and of the ones with the least and the most; the median width over that without
privacy, of the coefficient in the middle; and the median standard error over the standard deviation
of the estimates. Not answered is where the noise hides what is to be known: coverage is then of the
rest. Counts ("poisson") have the mean 0.2, of means from 0.01 to 1, times exposures from 0.1 to 1
in one design, a variance above their mean, and count as 4 where they are more. Times ("gamma") have
the mean 2, from 1 to 4 by the declared bounds, the shape 2, and count as 12 where they are more;
counts of the negative binomial the dispersion 1, and count as 4 where they are more; and hazards
("cloglog") the mean 0.2, up to 1. Ordered classes are four, with three thresholds in the place of
the constant, by the losses at all thresholds ("ordered") and by the likelihood.
"""

_WEAK = """\
A level of one_hot (n 10000, d 5) in which 29 people have the event has no standard error in some
runs of the logistic model at epsilon 1: where the noise leaves hardly an event in it, its curvature
vanishes. Where the noise finds too many, the curvature is too large, and intervals of this level
are too short at epsilon 0.3.
"""


def page(rows: dict[Cell, dict[str, Any]]) -> str:
    """Return the table of all cells that are answered, and how many are not."""
    body, refused = [], [cell for cell, row in rows.items() if row["answered"] < _LEAST]
    for cell, row in rows.items():
        if cell in refused:
            continue
        width, each = np.array(row["width"]), np.array(row["of each"])
        ratio = np.nanmedian(width / np.array(row["deviation"])) if len(width) else math.nan
        between = f"{np.nanmin(each):.3f} to {np.nanmax(each):.3f}" if len(width) else "-"
        shown = [f"{row['answered']:.3f}", f"{row['coverage']:.3f}", between]
        median = f"{np.nanmedian(width):.2f}" if len(width) else "-"
        body.append([str(cell), *shown, median, f"{ratio:.2f}", str(row["repetitions"])])
    about = wrapped(_ABOUT)
    few = _listed(refused, rows)
    said = wrapped(f"Less than 1 % is answered in {len(refused)} cells: {few}.")
    weak = wrapped(_WEAK)
    return "\n".join(["# Coverage of intervals\n", about, "", table(_HEAD, body), said, weak, ""])


def _listed(few: list[Cell], cells: Iterable[Cell]) -> str:
    """Return the sizes of a few cells, and how many of all that have them."""
    of_all, found = (Counter((c.n, c.d, c.epsilon) for c in each) for each in (cells, few))
    return "; ".join(
        f"n {n}, d {d}, epsilon {epsilon:g} ({count} of {of_all[n, d, epsilon]})"
        for (n, d, epsilon), count in found.items()
    )


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)

    def split(kind: type) -> Callable[[str], list[Any]]:
        return lambda text: [kind(part) for part in text.split(",")]

    designs = [*DESIGNS, *(["cps"] if "DPKERN_DATA" in os.environ else [])]
    parser.add_argument("--losses", type=split(str), default=list(LOSSES))
    parser.add_argument("--designs", type=split(str), default=designs)
    parser.add_argument("--records", type=split(int), default=[1_000, 10_000, 50_000])
    parser.add_argument("--columns", type=split(int), default=[5, 20])
    parser.add_argument("--epsilons", type=split(float), default=[0.3, 1.0, 3.0])
    parser.add_argument("--repetitions", type=int, default=1_000)
    parser.add_argument("--out", type=Path, default=Path("build/coverage"))
    parser.add_argument("--page", type=Path)
    parser.add_argument("--check", choices=("oracle", "null", "silos", "time", "forecast"))
    options = parser.parse_args()
    if options.check is not None:
        for cell in cells(options):
            found = getattr(cell, options.check)(options.repetitions)
            print(f"{cell}: {json.dumps(found)}", flush=True)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "cells.jsonl"
    rows: dict[Cell, dict[str, Any]] = {}
    if path.exists():
        for line in path.read_text().splitlines():
            row = json.loads(line)
            rows[Cell(**row.pop("cell"))] = row
    for cell in (wanted := cells(options)):
        if cell not in rows:
            rows[cell] = cell.figures(options.repetitions)
            with path.open("a") as file:
                file.write(json.dumps({"cell": vars(cell), **rows[cell]}) + "\n")
            print(f"{cell}: {json.dumps(rows[cell])}", flush=True)
    text = page({cell: rows[cell] for cell in wanted})
    if options.page is not None:
        options.page.write_text(text)
    print(text)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    main()
