"""The page docs/utility.md and its picture, from the cells of bench.utility."""

import io
import statistics
from pathlib import Path
from typing import Any

from bench import utility_fit, utility_perceptron, utility_regression
from bench.utility_sets import SETS
from bench.utility_text import Cells, Row, latest, percent, table, wrapped
from dpkern._files import replacing
from dpkern.solvers import SOLVERS, chosen

Regrets = dict[tuple[str, float], float]

KINDS = (
    "set",
    "auto",
    "tuned",
    "add_remove",
    "half_bound",
    "rival",
    "seconds",
    "regression",
    "perceptron",
)
SHOWN = "gradient_descent"  # of the picture
_LABELS = {"diffprivlib": "diffprivlib, best C", "opacus": "Opacus, best learning rate"}
_STYLES = {
    "auto": {"color": "#0072B2", "marker": "o", "linestyle": "-"},
    "tuned on the test set": {"color": "#D55E00", "marker": "s", "linestyle": "--"},
    "auto, add or remove": {"color": "#56B4E9", "marker": "v", "linestyle": ":"},
    "best rival": {"color": "#009E73", "marker": "^", "linestyle": "-."},
}

_HOW = """\
`python -m bench.utility`, from the source tree and with the public sets in the folder of
the environment variable `DPKERN_DATA`, computes what is on this page and writes it.
Every run is private at (epsilon, 1e-6) for the replacement of one record, under central
trust, with an intercept, the logistic loss and no penalty. Row bounds are declared, not
read off the records. The constant feature counts in the row norm, and longer rows are
scaled down. Every solver has its defaults, which is to say the settings "auto" that
follow from the budget, the number of records, the row bound and other public numbers,
never from a record.

*Tuned* is the same solver with the best settings of a grid of {grid} settings: clip norm,
number of rounds, step size, and what else the solver has (`bench/utility_grids.py`). They
are chosen by accuracy on the test set, which nobody may do who has only private records.
All settings have two draws, the best quarter six, and the best five as many as the solver
has with its defaults. The accuracy of the best is then measured with fresh draws, so that
the largest of many noisy means does not count; the mean from which it was chosen was
{flattery:.2f} points higher on average. What remains is that settings were chosen for
this very test set, which matters where it is small ({small}).
"""
_RIVALS = """\
The rivals are given the test set too: the best of five values of C for diffprivlib's
`LogisticRegression` with `data_norm` = the row bound, and of three learning rates for
Opacus' DP-SGD (the same linear model, clip norm 1, ten epochs of Poisson batches of n / 50
records and at least 64). Figures are means of {draws} draws. diffprivlib guarantees pure
epsilon, which is more than the (epsilon, delta) of the other rows; Opacus guarantees its
epsilon where a record is added or removed, which is less than where one is replaced, so
that the tables have a row of the defaults under that relation.
"""
_FITTED = """\
The constants of the rules were fitted on the sets marked *yes*; those marked *looked at*
were measured while the rules were made, and decided the longest step and how the noise
depends on the number of coefficients. Only sets marked *no* were first measured with the
rules as they are. `synthetic` has features that are uniform in [-1, 1] and labels of a
logistic model with Gaussian coefficients.
"""


def write(path: Path, rows: dict[str, list[Row]], delta: float) -> None:
    """Write the page, and beside it the picture as PNG."""
    facts = {row["set"]: row for row in rows["set"]}
    cells = {kind: latest(rows[kind]) for kind in KINDS[1:]}
    names = [it for it in SETS if it in facts and any(key[0] == it for key in cells["auto"])]
    picture = path.with_suffix(".png")
    parts = [
        "# What accuracy to expect of the defaults\n",
        _expectations(cells, facts, names),
        f"![accuracy over epsilon]({picture.name})\n",
        wrapped(
            f"The curves are those of `{SHOWN}` and of the best rival. Where that is Opacus, it "
            "has the weaker guarantee of a record added or removed, and is to be compared with the "
            "dotted curve."
        ),
        "## How it was obtained\n",
        _method(cells),
        _sets_table(facts, names),
        wrapped(_FITTED + _missing(names)),
        "## Tuned minus auto\n",
        _summary(cells, names),
        *utility_fit.page_section(cells["auto"], cells["seconds"], facts, delta),
        *utility_regression.section(cells["regression"]),
        *utility_perceptron.section(cells["perceptron"]),
        *(part for name in names for part in _one_set(name, cells, facts[name])),
    ]
    with replacing(path) as file:
        file.write("\n".join(parts).encode())
    with replacing(picture) as file:
        file.write(_draw(cells, facts, names))


def _regrets(
    cells: dict[str, Cells], solver: str, names: list[str]
) -> dict[tuple[str, float], float]:
    """Tuned minus auto, in points, by set and epsilon, where both were measured."""
    return {
        (key[0], key[2]): 100.0 * (cells["tuned"][key]["accuracy"] - row["accuracy"])
        for key, row in cells["auto"].items()
        if key[1] == solver and key[0] in names and key in cells["tuned"]
    }


def _expectations(cells: dict[str, Cells], facts: dict[str, Row], names: list[str]) -> str:
    """What the cells of `gradient_descent` say, in sentences."""
    found = _regrets(cells, SHOWN, names)
    if not found:
        return wrapped(f"`{SHOWN}` has not been measured.")
    worst = max(found, key=lambda key: found[key])
    text = (
        f"`{SHOWN}` with its defaults is {statistics.fmean(found.values()):.1f} points of test "
        f"accuracy behind the same solver with settings that were chosen on the test set, in the "
        f"mean over {len({name for name, _ in found})} sets and "
        f"{len({epsilon for _, epsilon in found})} budgets, and {found[worst]:.1f} at worst "
        f"(`{worst[0]}` at epsilon {worst[1]:g})."
    )
    for fitting, which in (("looked at", "were only looked at"), ("no", "were not seen")):
        others = {k: v for k, v in found.items() if SETS[k[0]].fitting == fitting}
        if others:
            listed = ", ".join(f"`{name}`" for name in dict.fromkeys(name for name, _ in others))
            text += (
                f" On the sets that {which} while the constants of the rules were fitted "
                f"({listed}), the mean is {statistics.fmean(others.values()):.1f} points."
            )
    below = {
        key: 100.0 * (facts[key[0]]["majority"] - cells["auto"][key[0], SHOWN, key[1]]["accuracy"])
        for key in found
    }
    low = max(below, key=lambda key: below[key])
    if below[low] > 0.0:
        text += (
            f" It is never more than {below[low]:.1f} points below the accuracy of predicting the "
            f"majority class (`{low[0]}` at epsilon {low[1]:g})."
        )
    else:
        text += " It is nowhere below the accuracy of predicting the majority class."
    paragraphs = [wrapped(text)]
    paragraphs += [_rivals(cells, rival) for rival in _LABELS]
    paragraphs += [_other_solvers(cells["auto"]), _objective(cells)]
    paragraphs.append(_row_bounds(cells["auto"]))
    return "\n".join(filter(None, paragraphs))


def _rivals(cells: dict[str, Cells], rival: str) -> str:
    """The defaults beside a rival, under the relation of the rival's guarantee."""
    kind = "add_remove" if rival == "opacus" else "auto"
    found = [
        (100.0 * (cells[kind][key[0], SHOWN, key[2]]["accuracy"] - row["accuracy"]), key)
        for key, row in cells["rival"].items()
        if key[1] == rival and (key[0], SHOWN, key[2]) in cells[kind]
    ]
    if not found:
        return ""
    relation = ' with `neighbours="add_remove"`, as there,' if kind == "add_remove" else ""
    differences = [difference for difference, _ in found]
    ahead = sum(difference > 0.0 for difference in differences)
    least, (name, _, epsilon) = min(found)
    return wrapped(
        f"Beside {_LABELS[rival]} on the test set, the defaults of `{SHOWN}`{relation} are more "
        f"accurate in {ahead} of {len(found)} cells; the difference is "
        f"{statistics.fmean(differences):.1f} points in the mean, {least:.1f} at least (`{name}` "
        f"at epsilon {epsilon:g}) and {max(differences):.1f} at most."
    )


def _other_solvers(auto: Cells) -> str:
    """Where the defaults of another solver are better than those of `gradient_descent`."""
    pairs = [
        (100.0 * (row["accuracy"] - auto[key[0], SHOWN, key[2]]["accuracy"]), key)
        for key, row in auto.items()
        if key[1] != SHOWN and (key[0], SHOWN, key[2]) in auto
    ]
    if not pairs:
        return ""
    ahead, (name, solver, epsilon) = max(pairs)
    better = sum(difference > 0.5 for difference, _ in pairs)
    text = (
        f'Under central trust `solve("auto", ...)` takes `{chosen()}`. The defaults of another '
        f"solver were more than half a point better in {better} of {len(pairs)} cells"
    )
    if better:
        text += f", and {ahead:.1f} points at most (`{solver}` on `{name}` at epsilon {epsilon:g})"
    return wrapped(text + ".")


def _objective(cells: dict[str, Cells]) -> str:
    """What the defaults are not made for: the value of the objective."""
    pairs = [
        (cells["auto"][key], row)
        for key, row in cells["half_bound"].items()
        if key in cells["auto"]
    ]
    if not pairs:
        return ""
    share = statistics.median(half["gap"] / own["gap"] for own, half in pairs)
    lost = statistics.fmean(100.0 * (own["accuracy"] - half["accuracy"]) for own, half in pairs)
    return wrapped(
        f"The defaults are made for predicted labels, not for probabilities: small clip norms lead "
        f"to a minimum of another, robust loss, and the logistic objective stays well above its "
        f"minimum. With `clip=row_bound / 2`, the largest norm of a record's gradient at the "
        f"start, and defaults for the rest, the gap is {share:.2f} times as large in the median "
        f"cell, and accuracy {lost:.1f} points lower in the mean."
    )


def _row_bounds(auto: Cells) -> str:
    """What a tight row bound is worth, on the set that is here with two."""
    gains = {
        key[2]: 100.0 * (row["accuracy"] - auto["ijcnn1", SHOWN, key[2]]["accuracy"])
        for key, row in auto.items()
        if key[:2] == ("ijcnn1_tight", SHOWN) and ("ijcnn1", SHOWN, key[2]) in auto
    }
    text = (
        "The noise is in proportion to the row bound, and inversely to epsilon and to the number "
        "of records. Declare the smallest row bound that you can justify without looking at the "
        "records; longer rows are scaled down to it."
    )
    if gains:
        listed = ", ".join(f"{gains[epsilon]:.1f} at {epsilon:g}" for epsilon in sorted(gains))
        tight, loose = (SETS[name].row_bound for name in ("ijcnn1_tight", "ijcnn1"))
        text += (
            f" A row bound of {tight:g} in place of {loose:.3g} is worth these points on "
            f"`ijcnn1`, by epsilon: {listed}."
        )
    return wrapped(text)


def _draws(auto: Cells) -> str:
    """The number of draws of a cell, and which cells have others."""
    numbers = [row["draws"] for row in auto.values()]
    usual = statistics.mode(numbers)
    text = f"Every cell is the mean of {usual} draws of the noise, with its standard error"
    for other in sorted(set(numbers) - {usual}):
        here = [key for key, row in auto.items() if row["draws"] == other]
        solvers = ", ".join(f"`{solver}`" for solver in dict.fromkeys(key[1] for key in here))
        names = ", ".join(f"`{name}`" for name in dict.fromkeys(key[0] for key in here))
        text += f"; of {other} draws for {solvers} on {names}"
    return wrapped(text + ".")


def _method(cells: dict[str, Cells]) -> str:
    tuned = list(cells["tuned"].values())
    if not tuned:
        return wrapped(_HOW.split("\n\n")[0])
    grids = sorted({row["grid"] for row in tuned})
    sizes = " to ".join(str(size) for size in dict.fromkeys((grids[0], grids[-1])))
    flattery = statistics.fmean(100.0 * (row["selected"] - row["accuracy"]) for row in tuned)
    small = "`wdbc` has 114 test records, `wisconsin` 137, `digits` 359"
    how = _HOW.format(grid=sizes, flattery=flattery, small=small)
    parts = [wrapped(part) for part in how.split("\n\n")]
    parts.append(_draws(cells["auto"]))
    rival = list(cells["rival"].values())
    if rival:
        parts.append(wrapped(_RIVALS.format(draws=max(row["draws"] for row in rival))))
    else:
        parts.append(wrapped("The rivals diffprivlib and Opacus were not installed here."))
    return "\n".join(parts)


def _sets_table(facts: dict[str, Row], names: list[str]) -> str:
    head = ["set", "records", "test", "coefficients", "row bound", "because", "constants fitted"]
    body = []
    for name in names:
        it, row = SETS[name], facts[name]
        numbers = [f"{row['n']}", f"{row['test']}", f"{row['d']}", f"{row['row_bound']:.3g}"]
        body.append([f"`{name}`", *numbers, it.bound, it.fitting])
    return table(head, body)


def _missing(names: list[str]) -> str:
    left = ", ".join(f"`{name}`" for name in SETS if name not in names)
    return f"Not measured here: {left}." if left else ""


def _summary(cells: dict[str, Cells], names: list[str]) -> str:
    epsilons = sorted({key[2] for key in cells["auto"]})
    head = ["solver", *(f"epsilon {epsilon:g}" for epsilon in epsilons), "worst cell", "sets"]
    body = []
    for solver in SOLVERS:
        found = _regrets(cells, solver, names)
        if found:
            means = []
            for epsilon in epsilons:
                here = [value for (_, e), value in found.items() if e == epsilon]
                means.append(f"{statistics.fmean(here):.1f}" if here else "")
            worst = max(found, key=lambda key: found[key])
            said = f"{found[worst]:.1f} ({worst[0]}, {worst[1]:g})"
            body.append([f"`{solver}`", *means, said, str(len({name for name, _ in found}))])
    text = (
        "Points of test accuracy that settings chosen on the test set gain over the defaults: "
        "means over the sets on which the solver was tuned, whose number is in the last column. "
        "Where it is negative, the grid holds no settings as good as the defaults, or the noise of "
        "few draws, which on small sets at small budgets is several points, misled the search."
    )
    return wrapped(text) + "\n" + table(head, body)


def _one_set(name: str, cells: dict[str, Cells], facts: Row) -> list[str]:
    """Two tables of a set: accuracy, and the gap of the training objective."""
    epsilons = sorted({key[2] for key in cells["auto"] if key[0] == name})
    head = ["percent", *(f"epsilon {epsilon:g}" for epsilon in epsilons)]
    accuracy, gaps = [], []
    for solver in SOLVERS:
        here = [(name, solver, epsilon) for epsilon in epsilons]
        if any(key in cells["auto"] for key in here):
            auto = [cells["auto"].get(key) for key in here]
            tuned = [cells["tuned"].get(key) for key in here]
            accuracy.append(
                [f"`{solver}`", *(_both(a, t) for a, t in zip(auto, tuned, strict=True))]
            )
            gaps.append([f"`{solver}`", *("" if a is None else f"{a['gap']:.3g}" for a in auto)])
    for kind, label in (("half_bound", "clip=row_bound / 2"), ("add_remove", "add or remove")):
        varied = [cells[kind].get((name, SHOWN, epsilon)) for epsilon in epsilons]
        accuracy.append([f"`{SHOWN}`, {label}", *(_both(row, None) for row in varied)])
        gaps.append(
            [f"`{SHOWN}`, {label}", *("" if a is None else f"{a['gap']:.3g}" for a in varied)]
        )
    for rival, label in _LABELS.items():
        found = [cells["rival"].get((name, rival, epsilon)) for epsilon in epsilons]
        texts = [_both(row, None) or "not measured" for row in found]
        accuracy.append([label, *texts])
    for label, key in (("majority class", "majority"), ("no privacy", "no_privacy")):
        accuracy.append([label, *[percent(facts[key])] * len(epsilons)])
    gaps.append(["minimum of the objective", *[f"{facts['minimum']:.3g}"] * len(epsilons)])
    return [
        f"## {name}\n",
        wrapped("Test accuracy: auto ± standard error / tuned, where it was tuned."),
        table(head, accuracy),
        wrapped("Logistic training objective above its minimum, auto."),
        table(["gap", *head[1:]], gaps),
    ]


def _both(auto: Row | None, tuned: Row | None) -> str:
    if auto is None:
        return ""
    text = f"{percent(auto['accuracy'])} ± {percent(auto['error'])}"
    return text if tuned is None else f"{text} / {percent(tuned['accuracy'])}"


def _draw(cells: dict[str, Cells], facts: dict[str, Row], names: list[str]) -> bytes:
    """A panel for each set: `gradient_descent`, tuned, the best rival, and two levels."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter, NullLocator

    columns = min(3, len(names))
    lines = -(-len(names) // columns)
    figure = Figure(figsize=(0.6 + 3.0 * columns, 0.9 + 2.4 * lines), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(lines, columns, squeeze=False)
    legend: dict[str, Any] = {}
    for axes in panels.flat[len(names) :]:
        axes.set_visible(False)
    for name, axes in zip(names, panels.flat, strict=False):
        epsilons = sorted({key[2] for key in cells["auto"] if key[0] == name})
        for label, key, dashes in (
            ("no privacy", "no_privacy", (6, 3)),
            ("majority class", "majority", (1, 2)),
        ):
            level = {"color": "#444444", "linewidth": 1.1, "linestyle": (0, dashes), "zorder": 1}
            legend[label] = axes.axhline(100.0 * facts[name][key], **level)
        curves = {
            "auto": _curve(cells["auto"], name, (SHOWN,)),
            "tuned on the test set": _curve(cells["tuned"], name, (SHOWN,)),
            "auto, add or remove": _curve(cells["add_remove"], name, (SHOWN,)),
            "best rival": _curve(cells["rival"], name, tuple(_LABELS)),
        }
        for z, (label, curve) in enumerate(curves.items()):
            if curve:
                legend[label] = axes.errorbar(
                    [row["epsilon"] for row in curve],
                    [100.0 * row["accuracy"] for row in curve],
                    yerr=[100.0 * row["error"] for row in curve],
                    linewidth=1.5,
                    markersize=4.5,
                    capsize=2.0,
                    zorder=5 - z,
                    **_STYLES[label],
                )
        axes.set_xscale("log")
        axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_title(name, fontsize=10)
        axes.tick_params(labelsize=9)
        axes.grid(axis="y", color="#DDDDDD", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("privacy budget ε of one run (log scale), delta 1e-6", fontsize=10)
    figure.supylabel("test accuracy in percent", fontsize=10)
    place = {"loc": "outside upper center", "ncols": len(legend), "frameon": False, "fontsize": 9}
    figure.legend(legend.values(), legend.keys(), **place)
    png = io.BytesIO()
    figure.savefig(png, format="png")
    return png.getvalue()


def _curve(cells: Cells, name: str, solvers: tuple[str, ...]) -> list[Row]:
    """The best of the solvers at every budget."""
    best: dict[float, Row] = {}
    for (where, solver, epsilon), row in cells.items():
        better = epsilon not in best or row["accuracy"] > best[epsilon]["accuracy"]
        if where == name and solver in solvers and better:
            best[epsilon] = row
    return [best[epsilon] for epsilon in sorted(best)]
