"""Figures of comparisons, plans, runs and certificates; matplotlib is imported to draw one."""

import functools
import io
import math
import os
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from dpkern._files import refuse_unwritable, replacing

# Okabe and Ito's colour-blind safe palette.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
# Solvers of a plan that have a colour.
_NAMED = 4

#: Where a figure is written, as PNG and atomically; None writes none.
Path: TypeAlias = str | os.PathLike[str] | None


@functools.cache
def _figure_class() -> Any:
    from matplotlib.figure import Figure

    class Picture(Figure):
        """A figure that notebooks show, also where pyplot was never imported."""

        def _repr_png_(self) -> bytes:
            file = io.BytesIO()
            self.savefig(file, format="png")
            return file.getvalue()

    return Picture


def _figure(size: tuple[float, float]) -> Any:
    """Return a figure with its own canvas: the backend that the user chose is left alone."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = _figure_class()(figsize=size, dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def require_png(path: str | os.PathLike[str], name: str = "path") -> None:
    """Raise ValueError if `path` promises another kind of file than a figure is written as."""
    if not os.fspath(path).lower().endswith(".png"):
        raise ValueError(f"{name} must end in .png, as figures are PNG, got {os.fspath(path)!r}")


def _finished(figure: Any, path: Path, title: str, *, size: int = 10, grid: str = "both") -> Any:
    for axes in figure.axes:
        axes.grid(axis=grid, color="#DDDDDD", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, x=0.01, ha="left", fontsize=size)
    if path is not None:
        require_png(path)
        refuse_unwritable(path)
        with replacing(path) as file:
            figure.savefig(file, format="png")
    return figure


@dataclass(frozen=True)
class CompareRow:
    """The draws of one solver at one budget; epsilon is infinite for the run without noise.

    `score` is the mean accuracy or mean squared error over the draws, `score_se` its standard
    error (NaN for one draw), `gap` the mean optimality gap on the training records, and
    `seconds` the mean time of a run. `area` is the mean area under the ROC curve, with its standard
    error, and `log_loss` that of predicted probabilities, None where there are none.
    """

    solver: str
    trust: str
    epsilon: float
    score: float
    score_se: float
    gap: float
    seconds: float
    area: float | None = None
    log_loss: float | None = None
    area_se: float = math.nan


def plot_compare(
    rows: Sequence[CompareRow],
    path: Path,
    *,
    metric: str = "accuracy",
    title: str = "",
    level: tuple[str, float] | None = None,
    defaults: Sequence[tuple[str, str]] = (),
) -> Any:
    """Draw a panel for every budget and trust model, with solvers in the order of their first rows.

    The solvers and trust models of `defaults` are bold, and bars are standard errors. A row with
    infinite epsilon becomes a line, and so does `level`, the name and the score of what reads no
    feature; without it smaller scores are better, on a logarithmic axis. `metric` names the score.
    Raises ImportError where matplotlib is not installed.
    """
    if not rows:
        raise ValueError("rows must hold at least one, got none")
    from matplotlib.ticker import NullFormatter

    noisy = [row for row in rows if math.isfinite(row.epsilon)]
    trusts = list(dict.fromkeys(row.trust for row in noisy)) or [""]
    epsilons = sorted({row.epsilon for row in noisy}) or [math.inf]
    names = {t: list(dict.fromkeys(row.solver for row in noisy if row.trust == t)) for t in trusts}
    heights = [0.6 + 0.21 * max(len(names[trust]), 2) for trust in trusts]
    longest = max((len(row.solver) for row in noisy), default=0)
    width = 0.6 + 0.07 * longest + 2.3 * len(epsilons)
    figure = _figure((width, 1.3 + sum(heights)))
    panels = figure.subplots(
        len(trusts), len(epsilons), sharex=True, sharey="row", squeeze=False, height_ratios=heights
    )
    lines = [(row.score, (6, 3)) for row in rows if math.isinf(row.epsilon)]
    note = "".join(f"; dashed line: no privacy, {score:.3g}" for score, _ in lines)
    if level is not None:
        lines.append((level[1], (1, 2)))
        note += f"; dotted line: {level[0]}, {level[1]:.3g}"
    for line, trust in zip(panels, trusts, strict=True):
        for axes, epsilon in zip(line, epsilons, strict=True):
            here = {
                row.solver: row for row in noisy if (row.trust, row.epsilon) == (trust, epsilon)
            }
            bold = [(solver, trust) in defaults for solver in names[trust]]
            _draw_scores(axes, [here.get(solver) for solver in names[trust]], lines, bold)
            if here:
                under = f", {trust} trust" if len(trusts) > 1 else ""
                axes.set_title(f"ε = {epsilon:g}{under}", fontsize=10)
        line[0].set_yticks(range(len(bold)), names[trust], fontsize=8)
        line[0].set_ylim(max(len(bold), 2) - 0.4, -0.6)
        for tick, own in zip(line[0].get_yticklabels(), bold, strict=True):
            tick.set(fontweight="bold" if own else "normal", color=_COLOURS[0] if own else "black")
    scores = [score for score, _ in lines] + [row.score for row in noisy]
    if level is None and min(scores) > 0.0 and max(scores) < math.inf:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
    note = f"{metric}; bars are standard errors of the mean over the draws{note}"
    if {(row.solver, row.trust) for row in noisy} & set(defaults):
        note += "; the default solver is bold"
    figure.supxlabel(_wrapped(note, width, 9), fontsize=9)
    return _finished(figure, path, _wrapped(title, width, 11), size=11, grid="x")


def _wrapped(text: str, width: float, size: int) -> str:
    """Return the text on lines that a figure has room for, of a width in inches."""
    return textwrap.fill(text, int(width * 125 / size))  # letters are about 0.58 of the size wide


def _draw_scores(
    axes: Any,
    rows: Sequence[CompareRow | None],
    lines: Sequence[tuple[float, tuple[int, int]]],
    bold: Sequence[bool],
) -> None:
    """Draw the scores of solvers at one budget, the first at the top, whose names are the ticks."""
    for score, dashes in lines:
        axes.axvline(score, color="#444444", linewidth=1.0, linestyle=(0, dashes), zorder=1)
    for y, (row, own) in enumerate(zip(rows, bold, strict=True)):
        if row is not None:
            error = 0.0 if math.isnan(row.score_se) else row.score_se
            style = {"color": _COLOURS[0] if own else "#777777", "zorder": 3}
            style |= {"elinewidth": 2.0, "markersize": 6} if own else {"markersize": 4.5}
            axes.errorbar(row.score, y, xerr=error, fmt="o", **style)


def plot_certificate(
    epsilons: Sequence[tuple[float, float]],
    errors: Sequence[tuple[float, float]],
    path: Path,
    *,
    title: str = "",
) -> Any:
    """Draw epsilon over delta, and the trade-off curve beside that of no information.

    Raises ImportError where matplotlib is not installed.
    """

    figure = _figure((9.0, 4.2))
    profile, tradeoff = figure.subplots(1, 2)
    if epsilons:
        profile.plot(*zip(*epsilons, strict=True), color=_COLOURS[0], linewidth=2.0)
        profile.set_xscale("log")
    profile.set_xlabel("δ (log scale)")
    profile.set_ylabel("ε")
    profile.set_ylim(bottom=0.0)
    tradeoff.plot([0, 1], [1, 0], color="#444444", linewidth=1.0, linestyle=(0, (6, 3)))
    tradeoff.annotate("nothing learnt", (0.5, 0.5), (3, 3), textcoords="offset points", fontsize=8)
    tradeoff.plot(*zip(*errors, strict=True), color=_COLOURS[0], linewidth=2.0)
    tradeoff.set_xlabel("false alarms of who tells neighbours apart")
    tradeoff.set_ylabel("misses, at least")
    tradeoff.set_aspect("equal")
    return _finished(figure, path, title)


def plot_trade_off(
    allowed: Sequence[tuple[float, float]],
    errors: Sequence[tuple[float, float]],
    limits: Sequence[tuple[float, float]],
    path: Path,
    *,
    title: str,
    confidence: float,
    attack: str,
) -> Any:
    """Draw the error rates of an attack beside the least that a certificate allows, if it does.

    The limits are those of either rate at a threshold, with the confidence. The title may have
    several lines, such as what an audit found.

    Raises ImportError where matplotlib is not installed.
    """

    figure = _figure((4.8, 4.7 + 0.17 * len(title.splitlines())))
    axes = figure.subplots()
    axes.plot([0, 1], [1, 0], color="#444444", linewidth=1.0, linestyle=(0, (6, 3)))
    axes.annotate("nothing learnt", (0.5, 0.5), (3, 3), textcoords="offset points", fontsize=8)
    if allowed:
        axes.plot(*zip(*allowed, strict=True), color=_COLOURS[0], linewidth=2.0, label="certified")
        region = {"color": _COLOURS[0], "alpha": 0.12, "linewidth": 0, "label": "not allowed"}
        axes.fill_between(*zip(*allowed, strict=True), **region)
    style = {"color": _COLOURS[1], "linewidth": 1.6, "linestyle": "-"}
    axes.plot(*zip(*errors, strict=True), label=attack, **style)
    style |= {"linewidth": 1.2, "linestyle": ":", "label": f"at most, confidence {confidence:g}"}
    if limits:
        axes.plot(*zip(*limits, strict=True), **style)
    axes.set_xlabel("false alarms: “with the record” said without it")
    axes.set_ylabel("misses: “without the record” said with it")
    axes.set_aspect("equal")
    axes.legend(frameon=False, fontsize=8)
    return _finished(figure, path, title, size=9)


def plot_history(
    quantities: Mapping[str, Sequence[float]],
    bands: Mapping[str, tuple[float, float]],
    path: Path,
    *,
    title: str = "",
) -> Any:
    """Draw one panel per quantity over the rounds, with the band of what noise alone gives, as PNG.

    Raises ImportError where matplotlib is not installed.
    """
    from matplotlib.ticker import MaxNLocator

    figure = _figure((0.6 + 4.2 * len(quantities), 3.6))
    panels = figure.subplots(1, len(quantities), squeeze=False)[0]
    for axes, (name, values) in zip(panels, quantities.items(), strict=True):
        rounds = range(1, len(values) + 1)
        marker = "o" if len(values) <= 30 else ""
        axes.plot(rounds, values, color=_COLOURS[0], marker=marker, markersize=4, linewidth=1.6)
        if name in bands:
            label = "noise alone, 95 %"
            axes.axhspan(*bands[name], color=_COLOURS[4], alpha=0.3, linewidth=0.0, label=label)
            axes.legend(frameon=False, fontsize=8)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("round")
        axes.set_ylabel(name.replace("_", " "))
        axes.set_ylim(bottom=min(0.0, *axes.get_ylim()))
    return _finished(figure, path, title, grid="y")


def plot_survival(curves: Mapping[str, Sequence[Any]], path: Path, *, title: str = "") -> Any:
    """Draw survival with its bands, from (time, survival, low, high) of each group.

    It is known at the edges of intervals, which are joined by straight lines.

    Raises ImportError where matplotlib is not installed.
    """
    figure = _figure((6.4, 4.2))
    axes = figure.subplots()
    for i, (group, (time, survival, low, high)) in enumerate(curves.items()):
        colour = _COLOURS[i % len(_COLOURS)]
        axes.plot(time, survival, marker="o", markersize=4, color=colour, label=group)
        axes.fill_between(time, low, high, color=colour, alpha=0.2, linewidth=0.0)
    axes.set_ylim(0.0, 1.02)
    axes.set_xlabel("time")
    axes.set_ylabel("share without event")
    if len(curves) > 1:
        axes.legend(frameon=False, fontsize=9)
    return _finished(figure, path, title)


def plot_calibration(
    curve: Sequence[Any],
    intervals: Sequence[Any],
    path: Path,
    *,
    confidence: float,
) -> Any:
    """Draw rates over mean risks with their intervals, above the numbers of records.

    `curve` has risks, rates and numbers of records of bins; a NaN among the rates is no point.
    Raises ImportError where matplotlib is not installed.
    """
    figure = _figure((4.6, 5.4))
    axes, below = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    axes.plot([0, 1], [0, 1], color="#444444", linewidth=1.0, linestyle=(0, (6, 3)))
    bins = zip(*curve, *intervals, strict=True)
    for risk, rate, _, low, high in (bin for bin in bins if not math.isnan(bin[1])):
        axes.plot([risk, risk], [low, high], color=_COLOURS[0], linewidth=1.6)
        axes.plot(risk, rate, "o", color=_COLOURS[0], markersize=4.5)
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(-0.02, 1.02)
    axes.set_ylabel("rate")
    below.bar(curve[0], [max(n, 0.0) for n in curve[2]], width=0.012, color="#777777")
    below.set_ylabel("records")
    below.set_xlabel("mean risk in the bin", fontsize=9)
    note = f"{100 * confidence:g} % intervals of noise and sampling; no point where noise hides it"
    figure.supxlabel(_wrapped(note, 4.6, 8), fontsize=8)
    return _finished(figure, path, "")


def plot_plan(
    panels: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]],
    path: Path,
    *,
    title: str = "",
    quantity: str = "predicted test error above no privacy",
) -> Any:
    """Draw what is predicted, a panel per thing that varies and a curve of points per solver.

    The first solver and the next three of a panel have colours, and the others are grey.

    `quantity` is what curves are of. Axes are logarithmic. Raises ImportError where matplotlib is
    not installed.
    """

    figure = _figure((10.0, 5.2))
    drawn = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (varied, curves) in zip(drawn, panels.items(), strict=True):
        for i, (solver, points) in enumerate(curves.items()):
            named = i < _NAMED
            axes.plot(
                *zip(*points, strict=True),
                label=solver if named else "others" if i == _NAMED else None,
                color=_COLOURS[i] if named else "#BBBBBB",
                linewidth=2.6 if i == 0 else 1.3 if named else 0.8,
                zorder=3 if i == 0 else 2 if named else 1,
            )
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel(varied, fontsize=10)
    drawn[0].set_ylabel(quantity)
    drawn[-1].legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return _finished(figure, path, title, size=11)


@dataclass(frozen=True)
class ForestRow:
    """An estimate with its whole interval, and the one that it would have without noise.

    They are NaN where there are none; `text` says the estimate with the whole one.
    """

    name: str
    estimate: float
    whole: tuple[float, float]
    without: tuple[float, float]
    text: str


def plot_forest(
    rows: Sequence[ForestRow], path: Path, *, axis: str, level: float, ratios: bool
) -> Any:
    """Draw estimates below one another, with a line at no effect.

    Ratios have a logarithmic axis. Raises ValueError without a row, and ImportError where
    matplotlib is not installed.
    """
    if not rows:
        raise ValueError("a forest plot needs a coefficient beside the intercept, got none")
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    figure = _figure((7.0, 1.3 + 0.3 * len(rows)))
    axes = figure.subplots()
    for y, row in enumerate(rows):
        if math.isfinite(row.whole[0]):
            style = {"solid_capstyle": "butt", "zorder": 2}
            axes.plot(row.whole, [y, y], color=_COLOURS[1], linewidth=2.0, **style)
            axes.plot(row.without, [y, y], color=_COLOURS[0], linewidth=5.0, **style)
            axes.plot(row.estimate, y, "D", color="black", markersize=4, zorder=3)
        place = {"xycoords": ("axes fraction", "data"), "va": "center", "fontsize": 8}
        axes.annotate(row.text, (1.02, y), **place)
    head = f"{axis} ({100 * level:g} % interval)"
    place = {"xycoords": "axes fraction", "va": "bottom", "fontsize": 8, "fontweight": "bold"}
    axes.annotate(head, (1.02, 1.01), **place)
    axes.plot(
        [], [], color=_COLOURS[0], linewidth=5.0, label=f"{100 * level:g} % interval without noise"
    )
    axes.plot([], [], color=_COLOURS[1], linewidth=2.0, label="wider by the noise")
    axes.axvline(float(ratios), color="#444444", linewidth=1.0, linestyle=(0, (6, 3)), zorder=1)
    if ratios:
        axes.set_xscale("log")
        low, high = axes.get_xlim()
        # The steps of both have a tick at 1, no effect.
        near = MaxNLocator(6, steps=[1, 2, 5, 10])
        far = high > 5.0 * low
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)) if far else near)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter("{x:g}")
    axes.set_yticks(range(len(rows)), [row.name for row in rows], fontsize=8)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel(axis, fontsize=9)
    figure.legend(loc="outside lower center", frameon=False, fontsize=8, ncols=2)
    return _finished(figure, path, "", grid="x")


def plot_spending(
    labels: Sequence[str],
    figures: Sequence[tuple[float, float]],
    path: Path,
    *,
    budget: float,
    title: str = "",
) -> Any:
    """Draw what is spent and what is left before and after every charge.

    `figures` has the two epsilons before the first charge and after each, which has a label. The
    file is written atomically. Raises ImportError where matplotlib is not installed.
    """

    figure = _figure((7.6, 1.9 + 0.26 * len(figures)))
    axes = figure.subplots()
    rows = list(range(len(figures)))
    spent, left = zip(*figures, strict=True)
    axes.barh(rows, spent, height=0.6, color=_COLOURS[0], label="spent")
    axes.plot(left, rows, "D", color=_COLOURS[1], label="left for one more Gaussian run")
    axes.axvline(budget, color="#444444", linewidth=1.2, linestyle=(0, (6, 3)), label="budget")
    axes.set_yticks(rows, ["before", *labels], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(left=0.0)
    axes.set_xlabel("epsilon after each charge", fontsize=10)
    figure.legend(loc="outside lower center", frameon=False, fontsize=8, ncols=3)
    return _finished(figure, path, title, grid="x")
