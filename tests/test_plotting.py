"""Properties of the figure of `dpkern compare`."""

import math

import numpy as np
import pytest

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


def texts_of(figure):
    """The labels of every panel, the lowest first, by its title."""
    panels = {axes.get_title(): axes for axes in figure.axes}
    return {title: [t.get_text() for t in axes.texts] for title, axes in panels.items()}


@pytest.mark.parametrize("majority", [None, 0.1])
def test_every_budget_and_trust_has_a_panel_of_sorted_solvers(majority):
    """Accuracies rise towards the top, and errors fall."""
    figure = plot_compare(ROWS, None, majority=majority)
    solvers = ["spider", "gradient_descent"][:: -1 if majority is None else 1]
    expected = {f"ε = {e}, central trust": solvers for e in (1, 2, 4)}
    expected |= {f"ε = {e}, silo trust": ["spider"] for e in (1, 2)} | {"": []}
    levels = 1 if majority is None else 2  # "no privacy" and "larger class" before them
    assert {title: texts[levels:] for title, texts in texts_of(figure).items()} == expected


def test_the_default_solver_alone_is_bold_and_has_a_colour(tmp_path):
    plot_compare(ROWS, tmp_path / "grey.png")
    assert not has_colour(drawn(tmp_path / "grey.png"), "#0072B2")
    figure = plot_compare(ROWS, tmp_path / "bold.png", defaults=[("gradient_descent", "central")])
    assert has_colour(drawn(tmp_path / "bold.png"), "#0072B2")
    bold = {t.get_text() for a in figure.axes for t in a.texts if t.get_fontweight() == "bold"}
    assert bold == {"gradient_descent"}


def test_solvers_below_the_larger_class_have_no_panel_and_are_named():
    figure = plot_compare(ROWS, None, majority=0.7)
    assert not [title for title in texts_of(figure) if "silo" in title]
    note = figure.get_supxlabel()
    assert "standard errors" in note
    assert note.endswith("not drawn, below the larger class: spider under silo trust")


def test_order_of_rows_does_not_change_a_panel(tmp_path):
    plot_compare(ROWS[1:7], tmp_path / "a.png")
    plot_compare(sorted(ROWS[1:7], key=lambda r: r.epsilon), tmp_path / "b.png")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


@pytest.mark.parametrize("rows", [ROWS[:1], ROWS[1:2], [row(se=math.nan)]])
def test_few_rows_and_single_draws_are_drawn(tmp_path, rows):
    plot_compare(rows, tmp_path / "few.png")
    assert drawn(tmp_path / "few.png").size


def test_the_largest_class_is_a_line_of_its_own(tmp_path):
    plot_compare(ROWS, tmp_path / "without.png")
    plot_compare(ROWS, tmp_path / "with.png", majority=0.5)
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
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
