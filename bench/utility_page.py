"""The numbers docs/figures/utility.json, and the page docs/utility.md and its picture from them.

python -m bench.utility_page        write page and picture again, from the numbers alone
"""

import io
import json
import math
import statistics
from pathlib import Path
from typing import Any

from bench import utility_fit, utility_perceptron, utility_regression
from bench.utility_sets import SETS
from bench.utility_text import Cells, Row, latest, percent, table, wrapped
from dpkern._files import replacing
from dpkern.solvers.base.automatic import chosen

PAGE = Path(__file__).parents[1] / "docs" / "utility.md"
SHOWN = "gradient_descent"  # of the table and the picture
# What the file of numbers holds of a cell, beside its set, solver and budget.
_CELL = ("draws", "accuracy", "error", "gap")
_FIELDS = {
    "set": ("n", "test", "d", "row_bound", "majority", "no_privacy", "minimum"),
    "auto": _CELL,
    "tuned": ("draws", "accuracy"),
    "add_remove": _CELL,
    "probabilities": (
        *("draws", "log_loss", "area", "calibration_error", "log_loss_of_rate"),
        *("no_privacy_log_loss", "no_privacy_area", "no_privacy_calibration_error"),
    ),
    "rival": ("draws", "accuracy", "error"),
    "seconds": ("draws", "seconds", "steps", "pace", "sparse"),
    "regression": ("draws", "auto", "ridge", "adassp", "no_privacy", "mean"),
    "perceptron": ("draws", "accuracy", "error"),
}
KINDS = tuple(_FIELDS)
_LABELS = {"diffprivlib": "diffprivlib, best C", "opacus": "Opacus, best learning rate"}
_STYLES = {
    "auto": {"color": "#0072B2", "marker": "o", "linestyle": "-"},
    "tuned on the test set": {"color": "#D55E00", "marker": "s", "linestyle": "--"},
    "auto, add or remove": {"color": "#56B4E9", "marker": "v", "linestyle": ":"},
    "diffprivlib or Opacus": {"color": "#009E73", "marker": "^", "linestyle": "-."},
}

_PICTURE = """\
Bars are standard errors. A curve may lie above the exact minimiser, which has neither privacy nor a
penalty, and is not what generalises best.
"""
_TABLE = f"""\
Test accuracy of `{SHOWN}` in percent, auto / tuned on the test set, by epsilon. The row bound is
declared, not read off the records: {{bounds}}. The constants of the rules were fitted on the sets
marked *yes*; those marked *looked at* were measured while the rules were made.
"""
_RISKS = f"""\
Probabilities that `{SHOWN}` predicts: log loss / area under the ROC curve / calibration error in
ten bins, on the test set, by epsilon; and the log loss of predicting the rate of the test set.
"""
_USE = """\
- Declare the smallest row bound that you can justify without looking at the records: the noise is
  in proportion to it, and inversely to epsilon and to the number of records. Longer rows are
  scaled down.{tight}
- Ask `dpkern.plan` before a record is read: {plan}
- Leave the settings "auto", unless you can choose others on public records of the same kind.{other}
- Release scores of the model on records of your own by [`dpkern.evaluate`](evaluation.md).
"""
_HOW = """\
Every run is private at (epsilon, {delta:g}) for the replacement of one record, under central trust,
with an intercept, the logistic loss and no penalty. *Auto* is the solver with its defaults, which
follow from public numbers and never from a record. *Tuned* is the same solver with the best of a
grid of more than a hundred settings, by accuracy on the test set, which nobody may do who has only
private records; its accuracy is measured again with fresh draws. `synthetic` has features that are
uniform in [-1, 1] and labels of a logistic model with Gaussian coefficients.
"""
_RIVALS = """\
The rivals are given the test set too: the best of five values of C for diffprivlib's
`LogisticRegression` with `data_norm` = the row bound, and of three learning rates for
Opacus' DP-SGD (the same linear model, clip norm 1, ten epochs of Poisson batches of n / 50
records and at least 64), in the mean over {draws} draws. diffprivlib guarantees pure epsilon, which
is more; Opacus its epsilon where a record is added or removed, which is less than where one is
replaced, and is to be compared with the dotted curve.
"""


def numbers(rows: dict[str, list[Row]], delta: float) -> dict[str, Any]:
    """What the page is made of: of every cell the one of most draws, in four digits."""
    values: dict[str, Any] = {"delta": delta}
    for kind, fields in _FIELDS.items():
        cells = rows[kind] if kind == "set" else latest(rows[kind]).values()
        key = ("set",) if kind == "set" else ("set", "solver", "epsilon")
        values[kind] = [{name: _short(row[name]) for name in (*key, *fields)} for row in cells]
    return values


def _short(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return float(f"{value:.4g}") if math.isfinite(value) else None


def numbers_file(page: Path) -> Path:
    """The file of numbers that a page is made of."""
    return page.parent / "figures" / f"{page.stem}.json"


def write_numbers(page: Path, values: dict[str, Any]) -> None:
    """Write the file of numbers, a cell a line."""
    path = numbers_file(page)
    path.parent.mkdir(exist_ok=True)
    parts = [f'"delta": {values["delta"]}']
    for kind in KINDS:
        lines = ",\n".join(json.dumps(row) for row in values[kind])
        parts.append(f'"{kind}": [\n{lines}\n]' if lines else f'"{kind}": []')
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n")


def text(page: Path) -> str:
    """The page that its file of numbers says."""
    facts, cells, names, delta = _read(page)
    parts = [
        "# What accuracy to expect of the defaults\n",
        _expectations(cells, facts, names),
        f"![accuracy over epsilon](figures/{page.stem}.png)\n",
        wrapped(_PICTURE),
        _main_table(cells, facts, names),
        _probabilities(cells["probabilities"], names),
        "## What to do with it\n",
        _use(cells, facts, delta),
        "## How it was obtained\n",
        wrapped(_HOW.format(delta=delta)),
        _rivals_method(cells["rival"], names),
        *utility_regression.section(cells["regression"]),
        *utility_perceptron.section(cells["perceptron"]),
        wrapped(
            "`python -m bench.utility`, from the source tree and with the [public sets]"
            "(real_data.md), computes all numbers and writes this page. Those of every solver, "
            f"with standard errors, are in [one file](figures/{page.stem}.json): {_draws(cells)}."
        ),
    ]
    return "\n".join(part for part in parts if part)


def write(page: Path) -> None:
    """Write the page and its picture from the file of numbers."""
    facts, cells, names, _ = _read(page)
    with replacing(page) as file:
        file.write(text(page).encode())
    with replacing(numbers_file(page).with_suffix(".png")) as file:
        file.write(_draw(cells, facts, names))


def _read(page: Path) -> tuple[dict[str, Row], dict[str, Cells], list[str], float]:
    """Facts by set, cells by kind, and the names of the sets that were measured."""
    values = json.loads(numbers_file(page).read_text())
    for row in values["perceptron"]:
        row["epsilon"] = math.inf if row["epsilon"] is None else row["epsilon"]
    facts = {row["set"]: row for row in values["set"]}
    cells = {kind: latest(values[kind]) for kind in KINDS[1:]}
    names = [it for it in SETS if it in facts and any(key[0] == it for key in cells["auto"])]
    return facts, cells, names, values["delta"]


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
    first, text = text, ""
    for fitting, which in (("looked at", "were only looked at"), ("no", "were not seen")):
        others = {k: v for k, v in found.items() if SETS[k[0]].fitting == fitting}
        if others:
            shown = {name for name, _ in others}
            listed = ", ".join(f"`{name}`" for name in SETS if name in shown)
            mean = round(statistics.fmean(others.values()), 1) + 0.0  # no -0.0
            text += (
                f" On the sets that {which} while the constants of the rules were fitted "
                f"({listed}), the mean is {mean:.1f} points."
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
    paragraphs = [wrapped(first), wrapped(text)]
    paragraphs += [_rivals(cells, rival) for rival in _LABELS]
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
    behind = sum(difference < 0.0 for difference in differences)
    least, (name, _, epsilon) = min(found)
    return wrapped(
        f"Beside {_LABELS[rival]} on the test set, the defaults of `{SHOWN}`{relation} are less "
        f"accurate in {behind} of {len(found)} cells; the difference is "
        f"{statistics.fmean(differences):.1f} points in the mean, {least:.1f} at least (`{name}` "
        f"at epsilon {epsilon:g}) and {max(differences):.1f} at most."
    )


def _main_table(cells: dict[str, Cells], facts: dict[str, Row], names: list[str]) -> str:
    """A row for each set, and what its row bound follows from."""
    epsilons = sorted({key[2] for key in cells["auto"] if key[1] == SHOWN})
    head = ["set", "records", "d", "row bound", "fitted", *(f"{e:g}" for e in epsilons)]
    body = []
    for name in names:
        row, shown = facts[name], []
        for epsilon in epsilons:
            pair = [cells[kind].get((name, SHOWN, epsilon)) for kind in ("auto", "tuned")]
            shown.append(" / ".join(percent(cell["accuracy"]) for cell in pair if cell is not None))
        levels = [percent(row[key]) for key in ("no_privacy", "majority")]
        sizes = [str(row["n"]), str(row["d"]), f"{row['row_bound']:.3g}"]
        body.append([f"`{name}`", *sizes, SETS[name].fitting, *shown, *levels])
    reasons = "; ".join(f"{SETS[name].bound} (`{name}`)" for name in names)
    return (
        wrapped(_TABLE.format(bounds=reasons))
        + "\n"
        + table([*head, "no privacy", "majority"], body)
    )


def _use(cells: dict[str, Cells], facts: dict[str, Row], delta: float) -> str:
    """What follows for a user, an item each."""
    auto = cells["auto"]
    plan = utility_fit.how_good(auto, cells["seconds"], facts, delta)
    sentences = {
        "tight": _tight_bound(auto),
        "plan": plan,
        "other": _other_solvers(auto),
    }
    items = _USE.format(**sentences).split("\n- ")
    return "".join(wrapped(item.removeprefix("- "), "- ") for item in items)


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
    said = (
        f' `solve("auto", ...)` takes `{chosen()}` under central trust. The defaults of another '
        f"solver were more than half a point better in {better} of {len(pairs)} cells"
    )
    if better:
        said += f", and {ahead:.1f} points at most (`{solver}` on `{name}` at epsilon {epsilon:g})"
    return said + "."


def _probabilities(cells: Cells, names: list[str]) -> str:
    """A row for each set: log loss, area and calibration error of predicted probabilities."""
    epsilons = sorted({key[2] for key in cells})
    head = ["set", *(f"{e:g}" for e in epsilons), "no privacy", "rate"]
    body = []
    for name in names:
        rows = [cells.get((name, SHOWN, epsilon)) for epsilon in epsilons]
        if any(row is None for row in rows):
            continue
        shown = [_three(row, "") for row in rows if row is not None]
        last = rows[-1] or {}
        rate = f"{last['log_loss_of_rate']:.3f}"
        body.append([f"`{name}`", *shown, _three(last, "no_privacy_"), rate])
    return wrapped(_RISKS) + "\n" + table(head, body) if body else ""


def _three(row: Row, prefix: str) -> str:
    """Log loss, area and calibration error of a cell."""
    names = ("log_loss", "area", "calibration_error")
    return " / ".join(f"{row[prefix + name]:.3f}" for name in names)


def _tight_bound(auto: Cells) -> str:
    """What a tight row bound is worth, on the set that is here with two."""
    gains = {
        key[2]: 100.0 * (row["accuracy"] - auto["ijcnn1", SHOWN, key[2]]["accuracy"])
        for key, row in auto.items()
        if key[:2] == ("ijcnn1_tight", SHOWN) and ("ijcnn1", SHOWN, key[2]) in auto
    }
    if not gains:
        return ""
    listed = ", ".join(f"{gains[epsilon]:.1f} at {epsilon:g}" for epsilon in sorted(gains))
    tight, loose = (SETS[name].row_bound for name in ("ijcnn1_tight", "ijcnn1"))
    return (
        f" A row bound of {tight:g} in place of {loose:.3g} is worth these points on `ijcnn1`, by "
        f"epsilon: {listed}."
    )


def _draws(cells: dict[str, Cells]) -> str:
    """The number of draws of a cell."""
    draws = sorted({row["draws"] for row in cells["auto"].values()})
    return f"means of {' to '.join(str(n) for n in dict.fromkeys((draws[0], draws[-1])))} draws"


def _rivals_method(rival: Cells, names: list[str]) -> str:
    if not rival:
        return wrapped("The rivals diffprivlib and Opacus were not measured here.")
    said = _RIVALS.format(draws=max(row["draws"] for row in rival.values()))
    left = [f"`{name}`" for name in names if not any(key[0] == name for key in rival)]
    return wrapped(said + (f" They were not measured on {', '.join(left)}." if left else ""))


def _draw(cells: dict[str, Cells], facts: dict[str, Row], names: list[str]) -> bytes:
    """A panel for each set: `gradient_descent`, tuned, the better rival, and a level."""
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
        level = {"color": "#444444", "linewidth": 1.1, "linestyle": (0, (6, 3)), "zorder": 1}
        legend["exact minimiser"] = axes.axhline(100.0 * facts[name]["no_privacy"], **level)
        said = f"larger class: {percent(facts[name]['majority'])}"
        axes.text(0.97, 0.05, said, transform=axes.transAxes, fontsize=8, ha="right")
        curves = {
            "auto": _curve(cells["auto"], name, (SHOWN,)),
            "tuned on the test set": _curve(cells["tuned"], name, (SHOWN,)),
            "auto, add or remove": _curve(cells["add_remove"], name, (SHOWN,)),
            "diffprivlib or Opacus": _curve(cells["rival"], name, tuple(_LABELS)),
        }
        for z, (label, curve) in enumerate(curves.items()):
            if curve:
                legend[label] = axes.errorbar(
                    [row["epsilon"] for row in curve],
                    [100.0 * row["accuracy"] for row in curve],
                    yerr=[100.0 * row.get("error", 0.0) for row in curve],
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


if __name__ == "__main__":
    write(PAGE)
