"""Fixed-effect meta-analysis of silos that release their own estimates with standard errors."""

from collections.abc import Mapping, Sequence
from typing import Any

from dpkern._numbers import probability
from dpkern.solvers import SolverResult
from dpkern.solvers.base.inference import in_rows
from dpkern.solvers.base.pooling import MetaAnalysis, combined


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
    first, names = results[0], in_rows(results[0], contrasts)[0]
    for j, result in enumerate(results):
        others = in_rows(result, contrasts)[0]
        if others != names:
            raise ValueError(
                f"results[{j}] must have the coefficients of results[0], "
                f"{', '.join(names)}, got {', '.join(others)}"
            )
        if result.loss != first.loss or result.parameters["loss"] != first.parameters["loss"]:
            raise ValueError(
                f"results[{j}] must have the loss of results[0], {_loss(first)!r}, "
                f"got {_loss(result)!r}"
            )
        if _labels(result) != _labels(first):
            raise ValueError(
                f"results[{j}] must have the classes of results[0], {_labels(first)}, "
                f"got {_labels(result)}"
            )
    return combined(results, level, contrasts)


def _loss(result: SolverResult) -> Any:
    return result.parameters["loss"] or result.loss  # that of a model


def _labels(result: SolverResult) -> list[Any]:
    return [] if result.classes is None else result.classes.tolist()


def _kind(value: object) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"{len(value)} of them"
    return type(value).__name__
