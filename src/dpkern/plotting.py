"""The figure of ``dpkern compare``. matplotlib is imported when it is drawn, not before."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

from dpkern._files import replacing

# Okabe and Ito's colours, which the usual kinds of colour blindness tell apart; markers and line
# styles say the same once more.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKERS = ("o", "s", "^", "D", "v", "P")
_LINES = ("-", "--", "-.", ":")
_DODGE = 1.03  # curves that coincide stay visible when each is moved by this factor in epsilon


@dataclass(frozen=True)
class CompareRow:
    """One row of the comparison: the draws of one solver at one budget.

    Attributes
    ----------
    solver, trust : str
    epsilon : float
        Infinity for the run without noise.
    score : float
        Mean over the draws of the accuracy, or of the mean squared error.
    score_sd : float
        Its standard deviation over the draws; NaN with a single draw.
    gap : float
        Mean optimality gap on the training records.
    seconds : float
        Mean time of a run.
    """

    solver: str
    trust: str
    epsilon: float
    score: float
    score_sd: float
    gap: float
    seconds: float


def plot_compare(
    rows: Sequence[CompareRow],
    path: str | os.PathLike[str],
    *,
    metric: str = "accuracy",
    title: str = "",
) -> None:
    """Draw the score against epsilon, a curve per solver and trust, as a PNG.

    Parameters
    ----------
    rows : sequence of CompareRow
        Rows with infinite epsilon become horizontal lines.
    path : str or path
        Where the figure goes; it appears whole or not at all.
    metric : str
        What the score is, for the axis.
    title : str
        One line above the axes.

    Raises
    ------
    ImportError
        When matplotlib is not installed.
    OSError
        When `path` cannot be written.
    ValueError
        When there are no rows.
    """
    if not rows:
        raise ValueError("rows is empty; there must be at least one")
    # A figure with its own canvas: pyplot and the backend that the user chose are left alone.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter, NullLocator

    figure = Figure(figsize=(7.2, 4.4), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()

    for row in rows:
        if math.isinf(row.epsilon):
            axes.axhline(row.score, color="#444444", linewidth=1.2, linestyle=(0, (6, 3)), zorder=1)
            axes.annotate(
                f"no noise\n{row.score:.3f}",
                (1.01, row.score),
                xycoords=("axes fraction", "data"),
                va="center",
                fontsize=9,
                color="#444444",
            )

    noisy = [row for row in rows if math.isfinite(row.epsilon)]
    curves = list(dict.fromkeys((row.solver, row.trust) for row in noisy))
    for i, (solver, trust) in enumerate(curves):
        points = sorted(
            (row for row in noisy if (row.solver, row.trust) == (solver, trust)),
            key=lambda row: row.epsilon,
        )
        shift = _DODGE ** (i - (len(curves) - 1) / 2)
        axes.errorbar(
            [row.epsilon * shift for row in points],
            [row.score for row in points],
            yerr=[0.0 if math.isnan(row.score_sd) else row.score_sd for row in points],
            label=f"{solver}, {trust} trust",
            color=_COLOURS[i % len(_COLOURS)],
            marker=_MARKERS[i % len(_MARKERS)],
            linestyle=_LINES[i % len(_LINES)],
            linewidth=1.8,
            markersize=6.5,
            markeredgecolor="white",
            markeredgewidth=0.8,
            capsize=3,
            elinewidth=1.1,
            zorder=2 + i,
        )

    if noisy:
        epsilons = sorted({row.epsilon for row in noisy})
        axes.set_xscale("log")
        axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.legend(frameon=False, loc="best", fontsize=9)
    axes.set_xlabel("privacy budget ε of one run (log scale)")
    axes.set_ylabel(f"{metric}, mean and deviation of the draws")
    axes.set_title(title, loc="left", fontsize=11)
    axes.grid(axis="y", color="#DDDDDD", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    with replacing(path) as file:
        figure.savefig(file, format="png")
