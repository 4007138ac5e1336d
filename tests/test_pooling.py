"""Meta-analysis of silos: its formulas, coverage, heterogeneity, and what is refused."""

import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
import scipy

import dpkern as dpk

TRUTH = (-0.3, 0.7, -0.5, 0.0)  # the intercept first


def silo(n, seed, *, shift=0.0, epsilon=1.0, loss="logistic", **options):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1.0, 1.0, (n, 3))
    z = X @ TRUTH[1:] + TRUTH[0] + shift
    kind = {"task": "regression", "target_bound": 3.0}
    y = z + 0.4 * rng.standard_normal(n)
    if loss == "logistic":
        kind = {"task": "classification", "classes": (-1.0, 1.0)}
        y = np.where(rng.random(n) < scipy.special.expit(z), 1.0, -1.0)
    options = {"intercept": True, "feature_range": (-1.0, 1.0)} | kind | options
    data = dpk.SiloData(X, y, [0, n], **options)
    budget = None if epsilon is None else dpk.Budget(epsilon=epsilon, delta=1e-6)
    return dpk.solve("auto", data, budget=budget, loss=loss, inference=True, rng=seed)


@pytest.fixture(scope="module")
def silos():
    return [silo(n, seed) for seed, n in enumerate((20_000, 8000, 6000))]


def test_rows_are_those_of_the_textbook(silos):
    rows = dpk.meta_analysis(silos)
    for i, row in enumerate(rows):
        each = [result.summary()[i] for result in silos]
        b, s = np.array([(one.estimate, one.std_error) for one in each]).T
        w = s**-2.0
        mean, Q = np.average(b, weights=w), 0.0
        Q = float(w @ (b - mean) ** 2)
        assert row.name == each[0].name
        assert row.estimate == pytest.approx(mean)
        assert row.std_error == pytest.approx(w.sum() ** -0.5)
        noise = math.hypot(*(w * [one.noise_std for one in each])) / w.sum()
        assert row.noise_std == pytest.approx(noise)
        assert (row.silos, row.q) == (3, pytest.approx(Q))
        assert row.q_p_value == pytest.approx(scipy.stats.chi2.sf(Q, 2))
        assert row.i_squared == pytest.approx(max(0.0, 1.0 - 2.0 / Q))
        tau2 = max(Q - 2.0, 0.0) / (w.sum() - (w @ w) / w.sum())
        assert row.tau == pytest.approx(math.sqrt(tau2), abs=1e-12)


def test_a_silo_alone_keeps_its_estimate_and_has_no_heterogeneity(silos):
    few = silo(300, 9)
    assert all(math.isnan(row.std_error) for row in few.summary())
    rows = dpk.meta_analysis([silos[0], few])
    for row, alone in zip(rows, silos[0].summary(), strict=True):
        assert row[:8] == pytest.approx(alone[:8])
        assert row.silos == 1
        assert math.isnan(row.q)
    assert any("left out" in note for note in rows.notes)
    none = dpk.meta_analysis([few, few])
    assert all(row.silos == 0 and math.isnan(row.estimate) for row in none)
    assert "nan" not in str(none)


def test_silos_that_differ_are_told_from_those_that_do_not(silos):
    rows = dpk.meta_analysis([*silos, silo(10_000, 5, shift=0.8)])
    assert rows[0].q_p_value < 1e-6
    assert rows[0].i_squared > 0.8
    assert 0.2 < rows[0].tau < 0.8
    assert min(row.q_p_value for row in rows[1:]) > 1e-3


def test_contrasts_level_text_and_copies(silos):
    rows = dpk.meta_analysis(silos, level=0.9, contrasts={"x0 less x1": {"x0": 1.0, "x1": -1.0}})
    (row,) = rows
    assert abs(row.estimate - 1.2) < 5.0 * row.std_error
    assert row.high - row.estimate == pytest.approx(1.6448536 * row.std_error)
    assert "p of Q" in str(rows)
    assert "I^2" in rows._repr_html_()
    assert pickle.loads(pickle.dumps(rows)) == rows
    pytest.importorskip("matplotlib")
    assert rows.plot().axes


def test_what_cannot_be_combined_is_named(silos):
    first = silos[0]
    bare = replace(first, inference=None)
    named = replace(first, feature_names=("a", "b", "c"))
    other = silo(500, 1, loss="squared")
    for results, message in (
        (first, "results must be a sequence of two or more, got SolverResult"),
        ([first], "results must be a sequence of two or more, got 1 of them"),
        ([first, 3], r"results\[1\] must be a SolverResult, got int"),
        ([first, bare], r"results\[1\] must be fitted with inference=True"),
        ([first, named], r"results\[1\] must have the coefficients of results\[0\], .* got"),
        ([first, other], r"results\[1\] must have the loss of results\[0\], 'logistic'"),
        ([first, replace(first, classes=np.array([0, 1]))], r"results\[1\] must have the classes"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            dpk.meta_analysis(results)
    with pytest.raises(ValueError, match="level must lie strictly between 0 and 1"):
        dpk.meta_analysis(silos, level=1.0)


@pytest.mark.statistical
@pytest.mark.parametrize("loss", ["logistic", "squared"])
def test_pooled_intervals_cover_and_q_is_chi_squared(loss):
    """Of 200 draws of four silos, of which the smallest has few records."""
    z, p = [], []
    for draw in range(200):
        sizes = (20_000, 8000, 5000, 4000)
        results = [silo(n, 10 * draw + j, loss=loss) for j, n in enumerate(sizes)]
        rows = dpk.meta_analysis(results)
        z.append([(row.estimate - v) / row.std_error for row, v in zip(rows, TRUTH, strict=True)])
        p.append(rows[2].q_p_value)
    covered = np.abs(z) <= 1.96
    assert 0.93 <= covered.mean() <= 0.98
    assert covered.mean(axis=0).min() >= 0.90
    assert scipy.stats.kstest(p, "uniform").pvalue > 1e-3
