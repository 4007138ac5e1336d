"""Fixed-effect meta-analysis of silos that release their own estimates with standard errors.

Of silo j with the estimate b_j of variance v_j, noise in it included, and w_j = 1 / v_j:

    b = sum_j w_j b_j / sum_j w_j,  of variance 1 / sum_j w_j
    Q = sum_j w_j (b_j - b)^2,  chi^2 of k - 1 degrees of freedom where all silos estimate the same
    I^2 = max(0, 1 - (k - 1) / Q),  tau^2 = max(0, Q - (k - 1)) / (sum w - sum w^2 / sum w)

(Cochran 1954; DerSimonian, Laird 1986; Higgins, Thompson 2002.)
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import scipy
from numpy.typing import NDArray

from dpkern._numbers import probability
from dpkern._typing import FloatArray
from dpkern.solvers import SolverResult
from dpkern.solvers.base.inference import (
    Estimate,
    Summary,
    in_rows,
    notes_on,
    with_intervals,
)

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
    """Estimates of all silos together; ``pandas.DataFrame`` has the columns of `Pooled`."""

    def _head(self) -> tuple[str, ...]:
        return *super()._head(), "silos", "p of Q", "I^2"

    def _cells(self, row: Estimate) -> tuple[str, ...]:
        assert isinstance(row, Pooled)
        if not row.silos:
            return row.name, *["-"] * (len(self._head()) - 4), "0", "-", "-"
        alone = math.isnan(row.q)
        shown = ["-", "-"] if alone else [f"{row.q_p_value:.4f}", f"{100.0 * row.i_squared:.0f} %"]
        return *super()._cells(row), str(row.silos), *shown


def meta_analysis(
    results: Sequence[SolverResult],
    *,
    level: float = 0.95,
    contrasts: Mapping[str, Mapping[str, float]] | None = None,
) -> MetaAnalysis:
    """Combine the estimates of silos, each fitted by itself with ``inference=True``.

    Parameters
    ----------
    results : sequence of SolverResult
        One of every silo, of different people, with the same columns and loss.
    level : float
        Probability of the intervals, in (0, 1).
    contrasts : mapping of str to mappings of str to float, optional
        As in `SolverResult.summary`.

    Returns
    -------
    pooled : MetaAnalysis
        A tuple of `Pooled`, a row of each coefficient or contrast.

    Raises
    ------
    TypeError, ValueError
        When an argument is not as described.

    Notes
    -----
    What follows from releases costs nothing: every silo's people have the guarantee of their own
    silo's certificate, whoever sees the results. A silo without a standard error of a coefficient
    is left out of that row and counts in the others, whatever the estimates are. Intervals are for
    one value that all silos have in common. Where `q_p_value` is small there is none, and what is
    estimated is a mean with more weight on silos with more records and less noise.
    """
    if isinstance(results, SolverResult) or not isinstance(results, Sequence) or len(results) < 2:
        raise TypeError(f"results must be a sequence of two or more, got {_kind(results)}")
    for j, result in enumerate(results):
        if not isinstance(result, SolverResult):
            raise TypeError(f"results[{j}] must be a SolverResult, got {_kind(result)}")
        if result.inference is None:
            raise ValueError(f"results[{j}] must be fitted with inference=True")
    level = probability("level", level)
    found = [in_rows(result, contrasts) for result in results]
    first, names = results[0], found[0][0]
    for j, (result, (others, *_)) in enumerate(zip(results, found, strict=True)):
        if others != names:
            raise ValueError(
                f"results[{j}] must have the coefficients of results[0], "
                f"{', '.join(names)}, got {', '.join(others)}"
            )
        if result.loss != first.loss or result.parameters["loss"] != first.parameters["loss"]:
            raise ValueError(
                f"results[{j}] must have the loss of results[0], {first.parameters['loss']!r}, "
                f"got {result.parameters['loss']!r}"
            )
        if _labels(result) != _labels(first):
            raise ValueError(
                f"results[{j}] must have the classes of results[0], {_labels(first)}, "
                f"got {_labels(result)}"
            )
    b, variances, noises = (np.array([one[i] for one in found]) for i in (1, 2, 3))
    answers = ~np.isnan(variances)
    b, weights = np.where(answers, b, 0.0), np.where(answers, 1.0 / variances, 0.0)
    noises = np.where(answers, noises, 0.0)
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
    return MetaAnalysis(cast(Any, both), level, first.loss == "logistic", notes)


def _heterogeneity(
    b: FloatArray, weights: FloatArray, mean: FloatArray, counts: NDArray[np.int64]
) -> list[tuple[int, float, float, float, float]]:
    """Return the number of silos, Q with its p-value, I^2 and tau of every row."""
    Q = np.where(counts > 1, (weights * (b - mean) ** 2).sum(axis=0), math.nan)
    excess, total = np.maximum(Q - (counts - 1.0), 0.0), weights.sum(axis=0)
    tau2 = excess / (total - (weights**2).sum(axis=0) / total)
    columns = Q, scipy.special.chdtrc(counts - 1.0, Q), excess / Q, np.sqrt(tau2)
    return list(zip(counts.tolist(), *(column.tolist() for column in columns), strict=True))


def _labels(result: SolverResult) -> list[Any]:
    return [] if result.classes is None else result.classes.tolist()


def _kind(value: object) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"{len(value)} of them"
    return type(value).__name__
