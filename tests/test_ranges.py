"""Private ranges: exact counts, their sensitivity and noise, and what is made of them."""

import csv
import lzma
import math

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from cases import for_each
from makers import assert_refused, spy_on

import dpkern as dpk
from dpkern.privacy import compose_sequential
from dpkern.privacy.mechanisms.counts import GaussianCounts
from dpkern.ranges import _column, _counts, _edges, _range

BUDGET = dpk.Budget(epsilon=1.0, delta=1e-6)
WIDE = (-1e6, 1e6)


def features(n=20_000, seed=0):
    rng = np.random.default_rng(seed)
    return np.column_stack([
        rng.standard_normal(n), rng.normal(1950.0, 20.0, n), rng.lognormal(5.0, 1.0, n),
        -rng.exponential(1e-3, n), np.where(rng.random(n) < 0.9, 0.0, rng.uniform(1e3, 1e4, n)),
    ])  # fmt: skip


@pytest.fixture
def spied(monkeypatch):
    """(mechanism, exact counts, released counts) of every release."""
    return spy_on(monkeypatch, GaussianCounts)


def naive(values, edges):
    counts = [0] * (len(edges) - 1)
    for value in values:
        if math.isfinite(value):
            inside = min(max(value, edges[0]), np.nextafter(edges[-1], -math.inf))
            counts[max(j for j in range(len(counts)) if edges[j] <= inside)] += 1
    return counts


@for_each("wide", [(-8.0, 8.0), (-1e6, 3.0), (0.0, 10.0), (2.0, 9.0), (-9.0, -2.0)])
def test_counts_are_those_of_public_bins(wide):
    rng = np.random.default_rng(0)
    edges = _edges(*wide)
    assert (edges[0], edges[-1]) == wide
    assert np.all(np.diff(edges) > 0.0)
    assert np.all(np.isin(np.abs(edges[1:-1]), np.ldexp(max(map(abs, wide)), -np.arange(31))))
    values = np.concatenate([
        rng.standard_cauchy(300), edges, np.nextafter(edges, -math.inf), [0.0, -0.0, 5e-324, 1e300],
        [math.nan, math.inf, -math.inf],
    ])  # fmt: skip
    counts = _counts(values, edges)
    assert counts.tolist() == naive(values, edges)
    assert counts.sum() == len(values) - 3  # what is not finite is in no bin


def test_sparse_features_have_the_counts_of_dense_ones(spied):
    X = np.where(np.random.default_rng(0).random((50, 4)) < 0.3, features(50)[:, :4], 0.0)
    edges = _edges(*WIDE)
    stored = scipy.sparse.csr_array(X)
    row = np.array([[1.0, 0.0, 0.0, 0.0]])
    # An entry that is stored twice is the sum of both, and one value.
    double = scipy.sparse.csr_array(([0.25, 0.75], [0, 0], [0, 2]), shape=(1, 4))
    for rows in (double, row):
        dpk.private_range(rows, bounds=WIDE, budget=BUDGET)
    np.testing.assert_array_equal(spied[0][1], spied[1][1])
    for k in range(4):
        found = _counts(_column(stored.tocsc(), k), edges)
        np.testing.assert_array_equal(found, _counts(_column(X, k), edges))
        assert found.sum() == 50


@for_each("neighbours", ["replace_one", "add_remove"])
def test_the_worst_record_moves_the_counts_by_the_sensitivity(spied, neighbours):
    X, y = features(500), np.zeros(500)
    X[0], other = -1e6, X.copy()
    other[0], other_y = 1e6, y.copy()
    other_y[0] = 1.0
    if neighbours == "add_remove":
        other, other_y = other[1:], other_y[1:]
    for rows, targets in ((X, y), (other, other_y)):
        how = {"budget": BUDGET, "neighbours": neighbours, "rng": 1}
        dpk.private_range(rows, bounds=WIDE, y=targets, target_bounds=(-1, 1), **how)
    (mechanism, one, _), (_, two, _) = spied
    moved = int(((one - two) ** 2).sum())
    assert moved == (12 if neighbours == "replace_one" else 6)
    assert mechanism.sensitivity**2 == pytest.approx(moved, rel=1e-15)
    assert mechanism.sensitivity >= math.sqrt(moved)


@for_each("budget", [BUDGET, dpk.Budget(mu=0.05), dpk.Budget(rho=0.5)])
def test_the_certificate_is_the_budget_and_one_release(budget):
    privacy = dpk.private_range(features(), bounds=WIDE, budget=budget).privacy
    (release,) = privacy.releases
    assert (release.times, release.grid, release.dim) == (1, 1.0, 5 * len(_edges(*WIDE)) - 5)
    assert release.sensitivity == pytest.approx(math.sqrt(10.0), rel=1e-15)
    assert privacy.mu <= budget.mu
    assert privacy.mu == pytest.approx(budget.mu, rel=1e-12)
    assert (privacy.noise, privacy.trust, privacy.bound) == ("os", "central", "exact")
    assert privacy.declared["bounds"] == (WIDE,) * 5


def test_the_noise_is_that_of_the_certificate_and_in_whole_numbers(spied):
    found = dpk.private_range(features(), bounds=WIDE, budget=dpk.Budget(mu=0.05))
    ((mechanism, counts, released),) = spied
    noise = released - counts
    np.testing.assert_array_equal(noise, np.rint(noise))
    std = found.privacy.releases[0].std
    assert std == mechanism.sigma
    # 305 draws: the std of their root mean square is 4 %.
    assert np.sqrt(np.mean(noise**2)) == pytest.approx(std, rel=0.2)


def test_ranges_are_functions_of_the_release_alone(monkeypatch):
    counts = np.random.default_rng(0).integers(0, 400, 5 * len(_edges(*WIDE)) - 5).astype(float)
    release = GaussianCounts.release
    monkeypatch.setattr(GaussianCounts, "release", lambda m, c: (release(m, c), counts)[1])
    one, two = (
        dpk.private_range(X, bounds=WIDE, budget=BUDGET, rng=0)
        for X in (features(), np.full((7, 5), 0.3))
    )
    assert repr(one) == repr(two)
    assert one.privacy == two.privacy


def test_missing_values_are_refused_by_column(tmp_path):
    X = features()
    X[3, 1], X[4, 1], X[5, 2] = math.nan, math.inf, math.nan
    accountant = dpk.Accountant(tmp_path / "a.json", epsilon=1.0, delta=1e-5)
    for rows, column in ((X, "1"), (pd.DataFrame(X, columns=list("abcde")), "'b'")):
        with pytest.raises(ValueError, match=f"(X must be finite, .*2 in )?column {column}"):
            dpk.private_range(rows, bounds=WIDE, budget=BUDGET, accountant=accountant)
    y = [math.nan] + [0.0] * 6
    with pytest.raises(ValueError, match="y must be finite, got 1 NaN or infinite value in 7"):
        dpk.private_range(features(7), bounds=WIDE, y=y, target_bounds=(-1, 1), budget=BUDGET)
    assert not accountant.certificates


def test_bounds_may_be_by_name():
    X = pd.DataFrame(features(), columns=list("abcde"))
    by_name = {name: (-1.0 - k, 8.0) for k, name in enumerate("edcba")}
    found = dpk.private_range(X, bounds=by_name, budget=BUDGET, rng=0)
    lo = [by_name[name][0] for name in "abcde"]
    assert repr(found) == repr(dpk.private_range(X, bounds=(lo, 8.0), budget=BUDGET, rng=0))
    with pytest.raises(ValueError, match="bounds must have every column, got none for 'e'"):
        dpk.private_range(X, bounds=dict.fromkeys("abcd", WIDE), budget=BUDGET)


def test_its_certificate_composes_with_that_of_the_fit():
    X = features()
    y = np.sign(X[:, 0])
    found = dpk.private_range(X, bounds=WIDE, budget=dpk.Budget(mu=0.1))
    options = {"feature_range": found.feature_range, "row_bound": found.row_bound}
    data = dpk.SiloData(X, y, [0, len(X)], intercept=True, **options)
    fit = dpk.solve("gradient_descent", data, budget=dpk.Budget(mu=0.2), rounds=20)
    both = compose_sequential(found.privacy, fit.privacy)
    assert both.mu == pytest.approx(math.hypot(0.1, 0.2), rel=1e-9)
    other = dpk.private_range(X, bounds=WIDE, budget=BUDGET, neighbours="add_remove")
    with pytest.raises(ValueError, match="neighbours must be one for all"):
        compose_sequential(other.privacy, fit.privacy)


@for_each("epsilon", [0.1, 1.0])
def test_ranges_hold_most_values_and_are_not_much_wider_than_need_be(epsilon):
    X = features(30_000)
    inner, outer = np.quantile(X, [0.02, 0.98], axis=0), np.quantile(X, [0.0005, 0.9995], axis=0)
    for seed in range(10):
        budget = dpk.Budget(epsilon=epsilon, delta=1e-6)
        lo, hi = dpk.private_range(X, bounds=WIDE, budget=budget, rng=seed).feature_range
        assert np.all(((lo <= X) & (hi >= X)).mean(axis=0) >= 0.95)
        assert np.all(hi - lo >= 0.8 * (inner[1] - inner[0]))
        # An edge is at most two times, and at a count that hardly stands out four times, too far.
        reach = np.maximum(np.abs(lo), np.abs(hi)) / np.abs(outer).max(axis=0)
        assert np.all(reach <= 4.0)


def test_ranges_of_adult_hold_95_percent_at_epsilon_a_tenth(real_data):
    with lzma.open(real_data / "adult" / "adult.data.xz", "rt") as stream:
        rows = [row for row in csv.reader(stream, skipinitialspace=True) if len(row) == 15]
    X = np.array([[float(row[k]) for k in (0, 2, 4, 10, 11, 12)] for row in rows])
    budget = dpk.Budget(epsilon=0.1, delta=1e-6)
    for seed in range(10):
        lo, hi = dpk.private_range(X, bounds=(-1e7, 1e7), budget=budget, rng=seed).feature_range
        assert ((lo <= X) & (hi >= X)).mean(axis=0).min() >= 0.95
        assert np.all(hi <= 4.0 * X.max(axis=0))
        assert np.all(hi - lo <= 4.0 * (X.max(axis=0) - X.min(axis=0)))


def test_a_feature_of_which_nothing_stands_out_keeps_its_bounds():
    found = dpk.private_range(features(30), bounds=WIDE, budget=dpk.Budget(mu=1e-3), rng=0)
    for bound, wide in zip(found.feature_range, WIDE, strict=True):
        np.testing.assert_array_equal(bound, wide)
    assert found.row_bound == math.sqrt(6.0)


def test_ends_are_cut_only_where_the_noise_cannot_hide_too_much():
    edges = np.arange(8.0)
    counts = np.array([0.0, 4.0, 50.0, 900.0, 30.0, 6.0, 0.0])
    assert _range(counts, edges, 0.1, 1.0, 0.98) == (2.0, 6.0 - 1.0)
    assert _range(counts, edges, 0.1, 1.0, 0.999) == (1.0, 6.0)
    assert _range(counts, edges, 3.0, 45.0, 0.98) == (2.0, 5.0)  # 30 is beside what stands out
    assert _range(counts, edges, 20.0, 300.0, 0.98) == (2.0, 4.0)


def test_targets_names_and_silos():
    frame = pd.DataFrame(features()[:, :2], columns=["height", "year"])
    y = 3.0 * frame["height"].to_numpy()
    how = {"bounds": WIDE, "budget": BUDGET, "rng": 3, "target_bounds": (-1e3, 1e3)}
    found = dpk.private_range(frame, y=y, **how)
    assert found.feature_names == ("height", "year")
    lowest, highest = found.target_bound
    assert lowest < 0.0 < highest
    assert 6.0 <= max(-lowest, highest) <= 16.0
    table = repr(found).splitlines()
    assert [line.split()[0] for line in table[:4]] == ["feature", "height", "year", "target"]
    assert table[4].startswith("row_bound 1.73205, epsilon 1 at delta 1e-06")
    data = dpk.SiloData.split(frame, y, 3, seed=0, row_bound=found.row_bound,
                              feature_range=found.feature_range)  # fmt: skip
    again = dpk.private_range(data, **how)
    assert repr(again) == repr(found)
    sparse = dpk.private_range(scipy.sparse.csr_array(frame.to_numpy()), y=y, **how)
    np.testing.assert_array_equal(sparse.feature_range, found.feature_range)
    assert sparse.row_bound > found.row_bound


@for_each(("bad", "message"), [
({"bounds": (1.0, 1.0)}, "bounds must be finite with lo < hi"),
({"bounds": (-math.inf, 1.0)}, "bounds must be finite"),
({"bounds": 3.0}, r"TypeError: bounds must be a pair \(lo, hi\)"),
({"bounds": ([0.0, 0.0], 1.0)}, "bounds lo must have 5 entries"),
({"budget": 1.0}, r"TypeError: budget must be dpkern.Budget\(.*\), got float"),
({"budget": dpk.Budget(mu=1e-12)}, "mu must be so large"),
({"coverage": 1.0}, "coverage must lie strictly between 0 and 1"),
({"neighbours": "edit"}, "neighbours must be 'replace_one' or 'add_remove'"),
({"y": np.zeros(20_000)}, "y and target_bounds must be given together"),
({"target_bounds": (0, 1)}, "y and target_bounds must be given together"),
({"y": np.zeros(3), "target_bounds": (0, 1)}, "y must have shape"),
])  # fmt: skip
def test_bad_arguments_are_refused_by_name(bad, message):
    assert_refused(
        message, dpk.private_range, features(), **{"bounds": WIDE, "budget": BUDGET} | bad
    )


@pytest.mark.filterwarnings("error")
def test_no_value_of_a_record_is_in_an_error_or_a_warning():
    how = {"bounds": WIDE, "budget": BUDGET, "target_bounds": (0, 1)}
    y = np.array(["1.0"] * len(features()))
    y[7] = "secret"
    with pytest.raises(TypeError, match=r"y must be real numbers, got dtype <U3$"):
        dpk.private_range(features(), y=y, **how)
    huge = features().astype(np.longdouble)
    huge[3, 0] *= np.longdouble(10) ** 400 if np.finfo(np.longdouble).max > 1e308 else 1
    dpk.private_range(huge, bounds=WIDE, budget=BUDGET)
