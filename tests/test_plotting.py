"""Properties of the figure of `dpkern compare`."""

import math

import numpy as np
import pytest

import dpkern as dpk
from dpkern.plotting import CompareRow, plot_compare

matplotlib = pytest.importorskip("matplotlib")
image = pytest.importorskip("matplotlib.image")


def row(solver="gradient_descent", trust="central", epsilon=1.0, score=0.9, sd=0.01):
    return CompareRow(solver, trust, epsilon, score, sd, gap=0.1, seconds=0.1)


ROWS = [
    row(epsilon=math.inf, trust="-", score=0.95, sd=math.nan),
    *(row(epsilon=e, score=0.8 + 0.03 * e) for e in (4.0, 1.0, 2.0)),
    *(row(solver="spider", epsilon=e, score=0.7 + 0.03 * e) for e in (1.0, 2.0, 4.0)),
    *(row(solver="spider", trust="silo", epsilon=e, score=0.6 + 0.03 * e) for e in (1.0, 2.0)),
]


def drawn(path):
    return image.imread(path)[..., :3]


def has_colour(pixels, colour):
    rgb = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return bool((np.abs(pixels - rgb).max(axis=-1) < 0.02).any())


def test_every_curve_has_a_colour_of_its_own(tmp_path):
    plot_compare(ROWS, tmp_path / "both.png")
    plot_compare(ROWS[:4], tmp_path / "one.png")
    both, one = drawn(tmp_path / "both.png"), drawn(tmp_path / "one.png")
    assert has_colour(both, "#0072B2")
    assert has_colour(both, "#D55E00")
    assert has_colour(one, "#0072B2")
    assert not has_colour(one, "#D55E00")


def test_a_solver_has_one_colour_in_all_panels_and_every_trust_a_panel(tmp_path):
    plot_compare(ROWS, tmp_path / "both.png")
    plot_compare(ROWS[:7], tmp_path / "central.png")
    both, central = drawn(tmp_path / "both.png"), drawn(tmp_path / "central.png")
    assert both.shape[1] > 1.3 * central.shape[1]
    assert not any(has_colour(both, colour) for colour in ("#009E73", "#CC79A7"))


def test_order_of_rows_does_not_change_a_curve(tmp_path):
    plot_compare(ROWS[1:4], tmp_path / "a.png")
    plot_compare(sorted(ROWS[1:4], key=lambda r: r.epsilon), tmp_path / "b.png")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


@pytest.mark.parametrize("rows", [ROWS[:1], ROWS[1:2], [row(sd=math.nan)]])
def test_few_rows_and_single_draws_are_drawn(tmp_path, rows):
    plot_compare(rows, tmp_path / "few.png")
    assert drawn(tmp_path / "few.png").size


def test_the_largest_class_is_a_line_of_its_own(tmp_path):
    plot_compare(ROWS, tmp_path / "without.png")
    plot_compare(ROWS, tmp_path / "with.png", majority=ROWS[0].score - 0.2)
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
