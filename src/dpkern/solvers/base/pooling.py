"""Fixed-effect meta-analysis of silos that release their own estimates with standard errors.

Of silo j with the estimate b_j of variance v_j, noise in it included, and w_j = 1 / v_j:

    b = sum_j w_j b_j / sum_j w_j,  of variance 1 / sum_j w_j
    Q = sum_j w_j (b_j - b)^2,  chi^2 of k - 1 degrees of freedom where all silos estimate the same
    I^2 = max(0, 1 - (k - 1) / Q),  tau^2 = max(0, Q - (k - 1)) / (sum w - sum w^2 / sum w)

(Cochran 1954; DerSimonian, Laird 1986; Higgins, Thompson 2002.)
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import scipy
from numpy.typing import NDArray

from dpkern._typing import FloatArray
from dpkern.data import SiloData
from dpkern.solvers.base.inference import (
    RATIOS,
    Estimate,
    Inference,
    Summary,
    constants_of,
    in_rows,
    in_units,
    notes_on,
    plot_steps,
    with_intervals,
)

if TYPE_CHECKING:  # which imports this module
    from dpkern.solvers.base.result import SolverResult

_LEFT_OUT = "a silo without a standard error of a coefficient is left out of its row"


class Pooled(NamedTuple):
    """A coefficient, or a contrast of several, of all silos together."""

    name: str
    estimate: float
    std_error: float  #: NaN, as what follows, where no silo has one
    noise_std: float
    z: float
    p_value: float
    low: float
    high: float
    silos: int  #: whose estimates count
    q: float  #: NaN, as what follows, with fewer than two silos
    q_p_value: float  #: of the hypothesis that they all estimate the same
    i_squared: (
        float  #: share of the variation of estimates, noise in it included, that is between silos
    )
    tau: float  #: standard deviation between silos, without sampling and noise


class MetaAnalysis(Summary):
    """Estimates of all silos together, with the columns of `Pooled`."""

    _fields = Pooled._fields

    def _head(self) -> tuple[str, ...]:
        return *super()._head(), "silos", "p of Q", "I^2"

    def _cells(self, row: Estimate) -> tuple[str, ...]:
        assert isinstance(row, Pooled)
        if not row.silos:
            return row.name, *["-"] * (len(self._head()) - 4), "0", "-", "-"
        alone = math.isnan(row.q)
        shown = ["-", "-"] if alone else [f"{row.q_p_value:.4f}", f"{100.0 * row.i_squared:.0f} %"]
        return *super()._cells(row), str(row.silos), *shown


def combined(
    results: Sequence["SolverResult"],
    level: float,
    contrasts: Mapping[str, Mapping[str, float]] | None,
) -> MetaAnalysis:
    """Return the estimates of silos together, of the same coefficients and loss."""
    found = [in_rows(result, contrasts) for result in results]
    first, names = results[0], found[0][0]
    b, variances, noises = (np.array([one[i] for one in found]) for i in (1, 2, 3))
    weights = precisions(variances)
    answers = weights > 0.0
    b, noises = np.where(answers, b, 0.0), np.where(answers, noises, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        total = weights.sum(axis=0)
        mean = (weights * b).sum(axis=0) / total
        heterogeneity = _heterogeneity(b, weights, mean, answers.sum(axis=0))
        known = np.where(total > 0.0, 1.0 / total, math.nan)
        of_noise = (weights**2 * noises).sum(axis=0) * known**2
    rows = with_intervals(names, mean, known, of_noise, level)
    both = [Pooled(*row, *more) for row, more in zip(rows, heterogeneity, strict=True)]
    notes = notes_on(results, rows)
    if np.isnan(variances).any():
        notes = *notes, _LEFT_OUT
    steps = plot_steps(first) if contrasts is None else {}
    ratios, constants = RATIOS.get(first.loss, ""), constants_of(first)
    return MetaAnalysis(cast(Any, both), level, ratios, notes, steps, constants)


def _heterogeneity(
    b: FloatArray, weights: FloatArray, mean: FloatArray, counts: NDArray[np.int64]
) -> list[tuple[int, float, float, float, float]]:
    """Return the number of silos, Q with its p-value, I^2 and tau of every row."""
    Q = np.where(counts > 1, (weights * (b - mean) ** 2).sum(axis=0), math.nan)
    excess, total = np.maximum(Q - (counts - 1.0), 0.0), weights.sum(axis=0)
    tau2 = excess / (total - (weights**2).sum(axis=0) / total)
    columns = Q, scipy.special.chdtrc(counts - 1.0, Q), excess / Q, np.sqrt(tau2)
    return list(zip(counts.tolist(), *(column.tolist() for column in columns), strict=True))


def precisions(variances: FloatArray) -> FloatArray:
    """Return the weights of estimates in a mean: 0 for those without a standard error."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(variances > 0.0, 1.0 / variances, 0.0)


def pooled(
    data: SiloData, silos: Sequence[tuple[FloatArray, Inference]], sizes: Sequence[int]
) -> tuple[FloatArray, Inference]:
    """Return the model whose coefficients are the means of those of silos, and its covariance.

    They are means by precision, as in `dpkern.meta_analysis`; where no silo has a standard error,
    by numbers of records.
    """
    if len(silos) == 1:
        return silos[0]
    M = in_units(data)[1]
    M = M if data.intercept else M[1:]
    weights = precisions(np.array([found.variances(M)[0] for _, found in silos]))
    total = weights.sum(axis=0)
    shares = np.broadcast_to(np.array(sizes)[:, np.newaxis] / np.sum(sizes), weights.shape)
    shares = np.where(total > 0.0, weights / np.where(total > 0.0, total, 1.0), shares)
    inverse = np.linalg.pinv(M)
    parts = [inverse @ (share[:, np.newaxis] * M) for share in shares]
    w = sum((A @ one for A, (one, _) in zip(parts, silos, strict=True)), np.zeros(data.d))
    covariance, noise, lost = (
        np.sum([A @ V @ A.T for A, V in zip(parts, one, strict=True)], axis=0)
        for one in zip(*(found.parts for _, found in silos), strict=True)
    )
    weighted = any(found.weighted for _, found in silos)
    each = tuple((one, replace(found, weighted=weighted)) for one, found in silos)
    return w, Inference(covariance, noise, lost, weighted, each)


def of_silos(result: "SolverResult") -> list["SolverResult"]:
    """Return the results of the silos that are pooled in one."""
    assert result.inference is not None
    n = len(result.coef)
    return [
        replace(result, coef=w[:n], intercept=float(w[n]) if len(w) > n else 0.0, inference=found)
        for w, found in result.inference.silos
    ]
