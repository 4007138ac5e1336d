"""What the examples measure, as tables, JSON and figures."""

import functools
import io
import json
import math
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Point:
    """What was measured there: means and standard deviations over draws of the noise.

    `epsilon` is the budget and `certified` what the run certifies, both in the unit of the figure:
    epsilon at `delta`, or mu. `gap` is None where the objective has no known optimum.
    """

    panel: str
    metric: str
    optimum: float
    method: str
    x: float
    draws: int
    score: float
    score_sd: float
    gap: float | None
    gap_sd: float | None
    epsilon: float
    delta: float
    certified: float
    bound: str


def grouped(points: Iterable[Point], field: str) -> dict[str, list[Point]]:
    groups: dict[str, list[Point]] = {}
    for point in points:
        groups.setdefault(getattr(point, field), []).append(point)
    return groups


# The name of x, one for all panels or each panel's own.
Label = str | Mapping[str, str]


def label_of(panel: str, x_label: Label) -> str:
    return x_label if isinstance(x_label, str) else x_label[panel]


def print_tables(title: str, x_label: Label, points: list[Point], unit: str = "epsilon") -> None:
    """Score, gap and certified budget, a row for each method."""
    for panel, rows in grouped(points, "panel").items():
        xs = sorted({point.x for point in rows})
        head = ["no noise" if math.isinf(x) else f"{x:g}" for x in xs]
        print(f"\n{title}: {panel}, {rows[0].draws} draws, delta {rows[0].delta:g}")
        if not math.isnan(rows[0].optimum):
            print(f"{best(rows[0])}: {rows[0].metric} {rows[0].optimum:.4f}")
        gap = [] if rows[0].gap is None else ["gap"]
        for what in (rows[0].metric, *gap, f"certified {unit}"):
            print(
                f"{what + ' over ' + label_of(panel, x_label):36}"
                + "".join(f"{x:>18}" for x in head)
            )
            for method, curve in grouped(rows, "method").items():
                cells = {point.x: cell(point, what) for point in curve}
                if what.startswith("certified") and len(set(cells.values())) == 1:
                    print(f"  {method:34}{cells[curve[0].x]:>18}")  # of the run, not of a point
                    continue
                print(f"  {method:34}" + "".join(f"{cells.get(x, ''):>18}" for x in xs))


def best(point: Point) -> str:
    """What `optimum` is."""
    known = point.metric in ("accuracy", "training loss", "gap") or point.gap is not None
    return "noiseless optimum" if known else "no noise"


def cell(point: Point, what: str) -> str:
    if what.startswith("certified"):
        most = "<= " if point.bound == "upper" else ""
        return "none" if math.isinf(point.certified) else f"{most}{point.certified:.3g}"
    mean, sd = point.score, point.score_sd
    if what == "gap" and point.gap is not None and point.gap_sd is not None:
        mean, sd = point.gap, point.gap_sd
    if abs(mean) >= 100.0:
        return f"{mean:.1e}"
    if 0.0 < abs(mean) < 0.01:
        return f"{mean:.1e} +- {sd:.0e}"
    digits = 4 if abs(mean) < 10.0 else 1
    return f"{mean:.{digits}f} +- {sd:.{digits}f}"


def draw(title: str, x_label: Label, points: list[Point]) -> bytes:
    """The figure as PNG: a column for each panel, score above and gap below, where there is one."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = grouped((p for p in points if math.isfinite(p.x)), "panel")
    gaps = points[0].gap is not None
    # At most three columns, so that the figure can be read at the width of a page.
    columns = 2 if len(panels) == 4 else min(3, len(panels))
    rows_of = -(-len(panels) // columns)
    size = 1.0 + 3.4 * columns, 0.8 + rows_of * (5.4 if gaps else 3.4)
    figure = Figure(figsize=size, dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots((1 + gaps) * rows_of, columns, squeeze=False)
    looks = {method: i for i, method in enumerate(grouped(points, "method"))}
    legend = {}
    for place, (panel, rows) in enumerate(panels.items()):
        across, down = place % columns, (1 + gaps) * (place // columns)
        column = axes[down : down + 1 + gaps, across]
        above, below = column[0], column[-1]
        for method, curve in grouped(rows, "method").items():
            x, i = [point.x for point in curve], looks[method]
            style = {"color": f"C{i}", "marker": "osD^vPX*<>"[i], "capsize": 2, "markersize": 4}
            if "printed" in method or "code" in method:
                style["linestyle"] = "--" if "printed" in method else "-."
            legend[method] = above.errorbar(
                x, [p.score for p in curve], [p.score_sd for p in curve], **style
            )
            if gaps:
                below.errorbar(x, [p.gap for p in curve], [p.gap_sd for p in curve], **style)
        label = best(rows[0]).removeprefix("noiseless ")
        if not math.isnan(rows[0].optimum):
            line = above.axhline(rows[0].optimum, color="0.4", linewidth=1, linestyle=":")
            legend.setdefault(label, line)
        above.set_title(panel, fontsize=9)
        above.set_ylabel(rows[0].metric)
        losses = [p.score for p in rows if math.isfinite(p.score)]
        if rows[0].metric not in ("accuracy", "test error") and max(losses) > 5.0 * min(losses):
            above.set_yscale("log")
            above.set_ylim(bottom=0.8 * min(x for x in (*losses, rows[0].optimum) if x > 0.0))
        if gaps:
            below.set_yscale("log", nonpositive="clip")
            below.set_ylabel("optimality gap")
        below.set_xlabel(label_of(panel, x_label))
        xs = [p.x for p in rows]
        if max(xs) >= 16.0 * min(xs) > 0.0:
            for shown in column:
                shown.set_xscale("log")
                ticks = sorted(set(xs))
                few = ticks[:: -(-len(ticks) // 5)]
                shown.set_xticks(few, labels=[f"{x:.4g}" if x >= 1.0 else f"{x:.2g}" for x in few])
                shown.minorticks_off()
    for shown in (axes[:: 1 + gaps], axes[1::2] if gaps else ()):
        share_limits([one for row in shown for one in row][: len(panels)])
    for place in range(len(panels), columns * rows_of):
        for unused in axes[(1 + gaps) * (place // columns) :, place % columns]:
            unused.set_axis_off()
    ncols = min(4, 1 + columns)
    figure.legend(
        *(legend.values(), legend.keys()),
        loc="outside lower center",
        ncols=ncols,
        frameon=False,
        fontsize=9,
    )
    drawn = [point for rows in panels.values() for point in rows]
    draws = " or ".join(str(n) for n in dict.fromkeys(point.draws for point in drawn))
    figure.suptitle(f"{title}: mean and deviation of {draws} draws")
    png = io.BytesIO()
    figure.savefig(png, format="png")
    return png.getvalue()


def share_limits(axes: Sequence[Any]) -> None:
    """One y range, and one scale, for panels of the same quantity."""
    for label in {axis.get_ylabel() for axis in axes}:
        same = [axis for axis in axes if axis.get_ylabel() == label]
        limits = [axis.get_ylim() for axis in same]
        scale = "log" if any(axis.get_yscale() == "log" for axis in same) else "linear"
        low, high = min(low for low, _ in limits), max(high for _, high in limits)
        if scale == "log" and low <= 0.0:
            continue
        for axis in same:
            axis.set_yscale(scale)
            axis.set_ylim(low, high)


def write_whole(path: Path, content: bytes) -> None:
    """A file that appears whole or not at all."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@functools.cache
def say_once(line: str) -> None:
    print(line)


def save(
    path: Path, title: str, x_label: Label, points: list[Point], unit: str = "epsilon"
) -> None:
    """Points as JSON, infinity and what is not a number as null, and the figure by matplotlib."""
    rows = [
        {k: None if v in (math.inf, None) or v != v else v for k, v in asdict(point).items()}
        for point in points
    ]
    content = {"title": title, "x": x_label, "unit": unit, "points": rows}
    write_whole(path.with_suffix(".json"), json.dumps(content, indent=1, allow_nan=False).encode())
    try:
        write_whole(path.with_suffix(".png"), draw(title, x_label, points))
    except ImportError:
        say_once("no figures: matplotlib is missing; pip install 'dpkern[plot]'")
