"""Properties of the figure of `dpkern compare`."""

import math

import numpy as np
import pytest
from cases import for_each

import dpkern as dpk
from dpkern.plotting import CompareRow, plot_compare

matplotlib = pytest.importorskip("matplotlib")
image = pytest.importorskip("matplotlib.image")


def row(solver="gradient_descent", trust="central", epsilon=1.0, score=0.9, se=0.01):
    return CompareRow(solver, trust, epsilon, score, se, gap=0.1, seconds=0.1)


ROWS = [
    row(epsilon=math.inf, trust="-", score=0.95, se=math.nan),
    *(row(epsilon=e, score=0.8 + 0.03 * e) for e in (4.0, 1.0, 2.0)),
    *(row(solver="spider", epsilon=e, score=0.7 + 0.03 * e) for e in (1.0, 2.0, 4.0)),
    *(row(solver="spider", trust="silo", epsilon=e, score=0.6 + 0.03 * e) for e in (1.0, 2.0)),
]


def drawn(path):
    return image.imread(path)[..., :3]


def has_colour(pixels, colour):
    rgb = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return bool((np.abs(pixels - rgb).max(axis=-1) < 0.02).any())


def names_of(figure):
    """The solvers of every panel that has a title, the highest first."""
    names, ticks = {}, []
    for axes in figure.axes:
        low, high = axes.get_ylim()
        assert low > high  # the first at the top
        ticks = [tick.get_text() for tick in axes.get_yticklabels()] or ticks  # the left one's
        if axes.get_title():
            names[axes.get_title()] = ticks
    return names


@for_each("level", [None, ("larger class", 0.1)])
def test_every_budget_and_trust_has_a_panel_in_one_order(level):
    figure = plot_compare(ROWS, None, level=level)
    expected = {f"ε = {e}, central trust": ["gradient_descent", "spider"] for e in (1, 2, 4)}
    expected |= {f"ε = {e}, silo trust": ["spider"] for e in (1, 2)}
    assert names_of(figure) == expected
    turned = plot_compare(ROWS[::-1], None, level=level)
    assert names_of(turned)["ε = 1, central trust"] == ["spider", "gradient_descent"]


def test_the_default_solver_alone_is_bold_and_has_a_colour(tmp_path):
    figure = plot_compare(ROWS, tmp_path / "grey.png")
    assert not has_colour(drawn(tmp_path / "grey.png"), "#0072B2")
    assert "bold" not in figure.get_supxlabel()
    figure = plot_compare(ROWS, tmp_path / "bold.png", defaults=[("gradient_descent", "central")])
    assert has_colour(drawn(tmp_path / "bold.png"), "#0072B2")
    ticks = [tick for axes in figure.axes for tick in axes.get_yticklabels()]
    bold = {tick.get_text() for tick in ticks if tick.get_fontweight() == "bold"}
    assert bold == {"gradient_descent"}
    assert "the default solver is bold" in figure.get_supxlabel().replace("\n", " ")


@for_each("epsilons", [1, 4])
def test_texts_of_a_comparison_are_within_the_picture_and_beside_the_panels(epsilons):
    rows = [row("objective_perturbation", epsilon=2.0**k) for k in range(epsilons)]
    rows += [row(epsilon=math.inf, trust="-")]
    title = "patients.csv, 2400 of 12000 records held out at random (seed 0)"
    defaults = [("objective_perturbation", "central")]
    figure = plot_compare(rows, None, title=title, level=("chance", 0.5), defaults=defaults)
    figure.canvas.draw()
    assert "dotted line: chance, 0.5" in figure.get_supxlabel().replace("\n", " ")
    whole, (axes, *_) = figure.bbox, figure.axes
    texts = [*figure.texts, figure._supxlabel, figure._suptitle, *axes.get_yticklabels()]
    for text in texts:
        box = text.get_window_extent()
        assert whole.x0 <= box.x0 <= box.x1 <= whole.x1, text.get_text()
    assert axes.get_yticklabels()[0].get_window_extent().x1 < axes.get_window_extent().x0
    assert not axes.texts  # nothing is written where points are


@for_each("rows", [ROWS[:1], ROWS[1:2], [row(se=math.nan)]])
def test_few_rows_and_single_draws_are_drawn(tmp_path, rows):
    plot_compare(rows, tmp_path / "few.png")
    assert drawn(tmp_path / "few.png").size


def test_the_largest_class_is_a_line_of_its_own(tmp_path):
    plot_compare(ROWS, tmp_path / "without.png")
    plot_compare(ROWS, tmp_path / "with.png", level=("larger class", 0.5))
    dark = [
        np.sum(drawn(tmp_path / f"{name}.png").max(axis=-1) < 0.3) for name in ("without", "with")
    ]
    assert dark[1] > dark[0]


def test_no_rows_are_refused_and_nothing_is_written(tmp_path):
    with pytest.raises(ValueError, match="rows must hold at least one"):
        plot_compare([], tmp_path / "none.png")
    assert not list(tmp_path.iterdir())


def test_a_failed_figure_leaves_the_old_one_alone(tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    def fail(self, file, **options):
        file.write(b"half")
        raise RuntimeError("disk")

    (tmp_path / "old.png").write_bytes(b"old")
    monkeypatch.setattr(Figure, "savefig", fail)
    with pytest.raises(RuntimeError, match="disk"):
        plot_compare(ROWS, tmp_path / "old.png")
    assert [p.name for p in tmp_path.iterdir()] == ["old.png"]
    assert (tmp_path / "old.png").read_bytes() == b"old"


def test_users_backend_and_open_figures_are_left_alone(tmp_path):
    backend = matplotlib.rcParams._get("backend")
    plot_compare(ROWS, tmp_path / "x.png")
    assert matplotlib.rcParams._get("backend") == backend
    import sys

    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or not pyplot.get_fignums()


def test_figures_show_themselves_and_are_written_where_a_path_is_given(tmp_path):
    data = dpk.datasets.load_wisconsin(m=2, row_bound=4.0, intercept=True)
    result = dpk.solve("gradient_descent", data, budget=dpk.Budget(mu=0.5), rng=0, rounds=5)
    for what in (
        result,
        result.privacy,
        dpk.plan(500, 5, budget=dpk.Budget(mu=0.5), row_bound=1.0),
    ):
        figure = what.plot()
        assert figure._repr_png_().startswith(b"\x89PNG")
        assert not list(tmp_path.iterdir())
    result.plot(tmp_path / "run.png")
    one_round = dpk.solve("gradient_descent", data, budget=dpk.Budget(mu=0.5), rng=0, rounds=1)
    assert one_round.plot()._repr_png_().startswith(b"\x89PNG")
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
