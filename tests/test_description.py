"""Released summary statistics: sums, their sensitivity, estimates, intervals, certificates."""

import itertools
import math
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from cases import for_each

import dpkern as dpk
from dpkern.data import Column
from dpkern.evaluation.columns import Coded, coded, crossed, edges_of, sums_of
from dpkern.evaluation.estimates import Estimator, Total, _seen
from dpkern.privacy import NoiseStream
from dpkern.privacy.certificate.ledger import Ledger
from dpkern.privacy.mechanisms.channel import SEEN_BY, Channel
from dpkern.privacy.mechanisms.gaussian_sum import GaussianSum

# Some wards are not listed, on purpose.
pytestmark = pytest.mark.filterwarnings("ignore::dpkern.data.OutsideWarning")
BUDGET = dpk.Budget(epsilon=1.0, delta=1e-6)
with warnings.catch_warnings(action="ignore"):
    LARGE = dpk.Budget(mu=1e4)
NEIGHBOURS = ("replace_one", "add_remove")
AGE = Column("age", "number", lo=10.0, hi=90.0)
DOSE = Column("dose", "number", lo=0.0, hi=100.0, missing=0.0)
COST = Column("cost", "number", lo=0.0, hi=1e5, scale="log1p")
SEX = Column("sex", "category", categories=["F", "M"], missing="missing")
WARD = Column("ward", "category", categories=["a", "b", "c"], aliases={"A": "a"})
ILL = Column("ill", "target", classes=["no", "yes"])
SCHEMA = dpk.Schema([AGE, DOSE, COST, SEX, WARD, ILL])
CROSS = [("sex", "ill"), ("ward", "ill")]


def records(n=4_000, seed=0):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": rng.normal(50.0, 12.0, n).clip(10.0, 90.0),
            "dose": np.where(rng.random(n) < 0.2, np.nan, rng.gamma(2.0, 10.0, n).clip(0, 100)),
            "cost": np.exp(rng.normal(6.0, 1.5, n)).clip(0.0, 1e5),
            "sex": rng.choice(["F", "M", ""], n, p=[0.5, 0.45, 0.05]),
            "ward": rng.choice(["a", "A", "b", "c", "z"], n, p=[0.3, 0.1, 0.3, 0.29, 0.01]),
            "ill": rng.choice(["no", "yes"], n, p=[0.8, 0.2]),
        }
    )


def how_of(neighbours, n=4_000):
    options = {"neighbours": neighbours}
    return options | ({"public_size": n} if neighbours == "add_remove" else {})


def parts_of(frame):
    parts = {c.name: coded(c, frame[c.name], frozenset(["", "?"])) for c in SCHEMA.columns}
    return [*parts.values(), *(crossed(parts[a], parts[b]) for a, b in CROSS)]


def adversarial(rng, n=40):
    """Records at the ends, the middle and the edges of bins, missing, and of any category."""
    numbers = {c.name: [c.lo, c.hi, *edges_of(c), 0.5 * (c.lo + c.hi), -1e9, 1e9] for c in
               (AGE, DOSE, COST)}  # fmt: skip
    numbers["dose"].append(np.nan)
    return pd.DataFrame(
        {name: rng.choice(values, n) for name, values in numbers.items()}
        | {"sex": rng.choice(["F", "M", "", "x"], n), "ward": rng.choice(["a", "b", "?", "z"], n)}
        | {"ill": rng.choice(["no", "yes"], n)}
    )


# ------------------------------------------------------------------------------ sums


def reference_vector(record):
    """The vector of one record by the text of the proof, in plain Python."""
    v = []
    for column in (AGE, DOSE, COST):
        x, edges = record[column.name], edges_of(column)
        absent = math.isnan(x)
        x = min(max(x, column.lo), column.hi)
        u = (x - 0.5 * (column.lo + column.hi)) / (0.5 * (column.hi - column.lo))
        v += [0.0, 0.0] if absent else [u / 2.0, u * u - 0.5]
        bins = list(itertools.pairwise(edges))
        inside = [a <= x < b or (x == b == column.hi) for a, b in bins]
        v += [0.5 if here and not absent else 0.0 for here in inside]
        v += [float(absent)] if column.missing is not None else []
    sex = {"F": 0, "M": 1, "": 2, "?": 2}.get(record["sex"], 3)
    ward = {"a": 0, "A": 0, "b": 1, "c": 2}.get(record["ward"], 3)
    ill = ["no", "yes"].index(record["ill"])
    for place, K in ((sex, 4), (ward, 4), (ill, 2), (2 * sex + ill, 8), (2 * ward + ill, 8)):
        v += [float(k == place) for k in range(K)]
    return v


def test_vectors_are_those_of_the_proof():
    frame = pd.concat([records(200), adversarial(np.random.default_rng(0))], ignore_index=True)
    expected = [reference_vector(record) for record in frame.to_dict("records")]
    sums = sums_of(parts_of(frame), with_size=True)
    V = sums.vectors(slice(None))
    assert sums.dim == V.shape[1]
    assert np.all(V[:, -1] == 1.0)
    np.testing.assert_allclose(V[:, :-1], expected, atol=1e-15)


def test_no_two_records_differ_by_more_than_is_stated():
    rng, farthest, longest = np.random.default_rng(0), 0.0, 0.0
    for _ in range(100):
        parts = parts_of(adversarial(rng))
        for part in parts:
            sums = sums_of([part], with_size=False)
            V = sums.vectors(slice(None))
            gaps = np.linalg.norm(V[:, np.newaxis] - V, axis=2).max()
            assert gaps <= sums.distance
            assert np.linalg.norm(V, axis=1).max() <= sums.clip
            farthest = max(farthest, gaps / sums.distance) if part.block.column else farthest
        sums = sums_of(parts, with_size=True)
        longest = max(longest, np.linalg.norm(sums.vectors(slice(None)), axis=1).max() / sums.clip)
    assert farthest > 0.9  # of u and u' near 0.9 and -0.2, hardly among these
    assert longest > 0.99


def test_the_distance_of_numbers_is_nearly_reached():
    u = np.linspace(-1.0, 1.0, 2001)
    x = 50.0 + 40.0 * u
    sums = sums_of([coded(AGE, x, frozenset())], with_size=False)
    V = sums.vectors(slice(None))
    gaps = np.linalg.norm(V[:, np.newaxis] - V[::50], axis=2)
    assert 0.995 < gaps.max() / sums.distance <= 1.0


@for_each("neighbours", NEIGHBOURS)
def test_released_sums_move_by_the_certified_sensitivity(neighbours, monkeypatch):
    seen = []
    monkeypatch.setattr(
        GaussianSum, "release", lambda m, sums: (seen.append((m.sensitivity, sums)), sums)[1]
    )
    rng, adding = np.random.default_rng(1), neighbours == "add_remove"
    for _ in range(30):
        seen.clear()
        frame = adversarial(rng)
        other = frame.drop(index=0) if adding else pd.concat([frame[-1:], frame[1:]])
        for rows in (frame, other):
            sums = sums_of(parts_of(rows), with_size=adding)
            channel = Channel(Ledger(), NoiseStream(0), SEEN_BY["central"], neighbours)
            sums.release(channel, (0, len(rows)), (40,), 1.0)
        (D, one), (_, two) = seen
        assert np.linalg.norm(one - two) <= D


@for_each(
    ("lo", "hi", "scale"),
    [
        (17, 90, "linear"),
        (0.0, 99_999.0, "log1p"),
        (-3.2e-5, 4.1e-5, "linear"),
        (1e15, 1e15 + 4.0, "linear"),
        (0.0, 5e-324, "linear"),
        (-1e300, 1e300, "log1p"),
        (0.0, 3.0, "log1p"),
        (1e17, 1.1e17, "linear"),
    ],
)
def test_bins_divide_any_range_by_round_numbers(lo, hi, scale):
    edges = edges_of(Column("x", "number", lo=lo, hi=hi, scale=scale))
    assert (edges[0], edges[-1]) == (lo, hi)
    assert np.all(np.diff(edges) > 0.0)
    assert len(edges) <= 45
    if (lo, hi) == (17, 90):
        assert edges[:3].tolist() == [17.0, 20.0, 25.0]


# ------------------------------------------------------------------------------ statistics


@for_each("neighbours", NEIGHBOURS)
def test_statistics_without_noise_are_those_of_pandas(neighbours):
    frame = records()
    found = dpk.describe(frame, SCHEMA, budget=LARGE, cross_tables=CROSS, **how_of(neighbours))
    for name in ("age", "dose", "cost"):
        column = frame[name]
        lo, hi = SCHEMA.columns[list(frame).index(name)].lo, 1e-3 * column.max()
        assert found[name, "mean"].value == pytest.approx(column.mean(), abs=hi)
        assert found[name, "standard deviation"].value == pytest.approx(column.std(), rel=0.02)
        edges, counts, _ = found.histograms[name]
        assert np.allclose(counts, np.histogram(column.dropna(), edges)[0], atol=1.0)
        for p in (25, 50, 75):
            row = found[name, f"{p} % quantile"]
            assert lo <= row.low <= np.percentile(column.dropna(), p) <= row.high
            assert row.low <= row.value <= row.high
    assert found["dose", "share", "missing"].value == pytest.approx(frame.dose.isna().mean(), 1e-3)
    assert found["sex", "share", "F"].records == pytest.approx((frame.sex == "F").sum(), abs=0.5)
    assert found["sex", "share", "missing"].value == pytest.approx((frame.sex == "").mean(), 0.01)
    ward = frame.ward.str.lower()
    assert found["ward", "share", "a"].value == pytest.approx((ward == "a").mean(), abs=1e-3)
    assert found["ward", "share", "not listed"].value == pytest.approx((ward == "z").mean(), 0.02)
    share = (frame.ill[ward == "b"] == "yes").mean()
    assert found["ill by ward", "share", "b: yes"].value == pytest.approx(share, abs=1e-3)
    assert found.size == pytest.approx(4_000, abs=0.5)


def test_small_cells_have_an_interval_and_no_ratio():
    frame = records()
    found = dpk.describe(frame, SCHEMA, budget=BUDGET, cross_tables=CROSS, rng=0)
    row = found["ward", "share", "not listed"]
    assert row.records < 5.0 * found.noise_std
    assert math.isnan(row.value)
    assert 0.0 <= row.low < row.high < 0.1
    assert "not listed" not in str(found)
    assert found["ward", "share", "a"].value > 0.3
    for row in found.rows:
        if row.statistic == "share" and row.records < 4.5 * found.noise_std:
            assert math.isnan(row.value)


@for_each("classes", [[0, 1], [0.0, 1.0], [-1.5, 2.0], ["0", "1"]])
def test_labels_of_any_kind_are_counted_as_their_classes(classes):
    schema = dpk.Schema([SEX, Column("ill", "target", classes=classes)])
    frame = pd.DataFrame({"sex": ["F", "M"] * 500, "ill": classes[:1] * 900 + classes[1:] * 100})
    found = dpk.describe(frame, schema, budget=LARGE, rng=0)
    counts = [row.records for row in found.rows if row.column == "ill"]
    assert counts == pytest.approx([900.0, 100.0], abs=0.5)


def test_missing_values_of_which_nothing_is_stated_are_not_listed():
    frame = pd.DataFrame({"ward": ["a", "b", None, "?"] * 250})
    schema = dpk.Schema([WARD])
    found = dpk.describe(frame, schema, budget=LARGE, rng=0)
    assert found["ward", "share", "not listed"].value == pytest.approx(0.5, abs=1e-3)


def test_what_may_be_anywhere_in_its_range_has_no_value():
    found = dpk.describe(pd.DataFrame({"age": [50.0]}), dpk.Schema([AGE]), budget=BUDGET, rng=0)
    assert all(math.isnan(row.value) for row in found.rows)
    assert [(row.low, row.high) for row in found.rows][:1] == [(10.0, 90.0)]


def test_noise_that_hides_a_deviation_is_said():
    frame = pd.DataFrame({"age": np.full(100, 50.0)})
    schema = dpk.Schema([AGE])
    row = dpk.describe(frame, schema, budget=BUDGET, rng=0)["age", "standard deviation"]
    assert math.isnan(row.value)
    assert row.low == 0.0
    assert row.high > 5.0


@for_each("n", [1, 3])
@for_each("neighbours", NEIGHBOURS)
def test_few_records_have_statistics_within_their_ranges(n, neighbours):
    for seed in range(20):
        found = dpk.describe(
            records(n), SCHEMA, budget=BUDGET, cross_tables=CROSS, rng=seed, **how_of(neighbours, n)
        )
        for row in found.rows:
            assert row.low <= row.high
            assert math.isnan(row.value) or row.low <= row.value <= row.high
            if row.statistic == "share":
                assert 0.0 <= row.low <= row.high <= 1.0
        assert str(found)


def test_other_columns_have_the_names_that_are_asked_for():
    frame = records(500)
    found = dpk.describe(frame, SCHEMA, budget=BUDGET, columns=["sex"], rng=0)
    assert {row.column for row in found.rows} == {"sex"}
    without = dpk.describe(frame.drop(columns="ill"), SCHEMA, budget=BUDGET, rng=0)
    assert "ill" not in {row.column for row in without.rows}
    assert found.noise_std < without.noise_std


@pytest.mark.statistical
@pytest.mark.parametrize("epsilon", [0.5, 8.0])
@pytest.mark.parametrize("neighbours", NEIGHBOURS)
def test_intervals_cover_means_and_shares_as_often_as_they_say(neighbours, epsilon):
    """Of 1 000 samples of a population of 20 000 records, each with noise of its own."""
    population, adding = records(20_000), neighbours == "add_remove"
    parts, mu = parts_of(population), dpk.Budget(epsilon=epsilon, delta=1e-6).mu
    truth = dpk.describe(population, SCHEMA, budget=LARGE, cross_tables=CROSS, rng=0).rows
    kept = [k for k, row in enumerate(truth) if "quantile" not in row.statistic]
    hits, rng, n = np.zeros(len(truth)), np.random.default_rng(0), 5_000
    for seed in range(1_000):
        size = rng.poisson(n) if adding else n
        rows = rng.integers(0, len(population), size)
        sums = sums_of([Coded(p.block, p.values[rows]) for p in parts], with_size=adding)
        channel = Channel(Ledger(), NoiseStream(seed), SEEN_BY["central"], neighbours)
        released, std = sums.release(channel, (0, size), (n,), mu)
        total = Total(float(released[-1]), std**2) if adding else Total(float(size), 0.0)
        estimator = Estimator(std**2, 1.959964, total)
        ends = np.cumsum([part.block.dim for part in parts])
        found = [
            row
            for part, end in zip(parts, ends.tolist(), strict=True)
            for row in estimator.of_block(part.block, released[end - part.block.dim : end])
        ]
        centre = [0.5 * (t.low + t.high) if math.isnan(t.value) else t.value for t in truth]
        pairs = zip(found, centre, strict=True)
        hits += [row.low <= value <= row.high for row, value in pairs]
    known = [k for k in kept if "not listed" not in truth[k].level]
    assert np.all(hits[known] > 925)
    assert 0.93 < hits[known].mean() / 1_000 < 0.97
    assert hits[[k for k in range(len(truth)) if k not in kept]].min() > 940


# ------------------------------------------------------------------------------ certificates


@for_each("neighbours", NEIGHBOURS)
def test_certificates_have_the_budget_and_verify(neighbours):
    how = how_of(neighbours)
    privacy = dpk.describe(
        records(), SCHEMA, budget=BUDGET, cross_tables=CROSS, columns=["age", "dose", "sex"], **how
    ).privacy
    assert privacy.mu == pytest.approx(BUDGET.mu, rel=1e-9)
    assert privacy.epsilon(1e-6) <= 1.0 + 1e-9
    assert dpk.verify(privacy.to_dict()).ok
    changes = [
        {"cross_tables": {}},
        {"described": {"age": ["number", 16]}},
        {"described": {"age": ["category", 16]}},
        {"described": "age"},
        {"described": {"age": ["text", 16]}},
    ]
    for change in changes:
        other = replace(privacy, declared=privacy.declared | change)
        assert not dpk.verify(other.to_dict()).ok


def test_an_accountant_is_charged_once_and_for_errors_never(tmp_path):
    accountant = dpk.Accountant(tmp_path / "ledger", epsilon=1.1, delta=1e-5)
    dpk.describe(records(), SCHEMA, budget=BUDGET, accountant=accountant)
    spent = accountant.spent
    assert 0.5 < spent < 1.1
    with pytest.raises(dpk.BudgetSpentError):
        dpk.describe(records(), SCHEMA, budget=BUDGET, accountant=accountant)
    wrong = records().assign(ill="perhaps")
    with pytest.raises(ValueError, match="column 'ill', the target, must hold"):
        dpk.describe(wrong, SCHEMA, budget=BUDGET, accountant=accountant)
    assert accountant.spent == spent


def test_a_person_has_the_budget_for_all_of_its_records():
    schema = dpk.Schema([AGE, Column("id", "person")])
    frame = pd.DataFrame({"age": records(400).age, "id": np.arange(400) // 4})
    found = dpk.describe(frame, schema, budget=BUDGET, max_records=2)
    assert found.privacy.unit == "one person with at most 2 records"
    assert found.size == 200
    assert found.privacy.epsilon(1e-6) <= 1.0 + 1e-9
    (release,) = found.privacy.releases
    assert release.sensitivity / release.std <= BUDGET.mu / 2
    with pytest.raises(ValueError, match="max_records must be given"):
        dpk.describe(frame, schema, budget=BUDGET)


@for_each(
    ("change", "text"),
    [
        ({"budget": 1.0}, "budget must be"),
        ({"schema": "schema.json"}, "schema must be a dpkern.Schema"),
        ({"columns": "age"}, "columns must be a list"),
        ({"columns": ["aeg"]}, "columns must be .*, got 'aeg'"),
        ({"columns": []}, "columns must be distinct names, at least one"),
        ({"columns": ["age", "age"]}, "columns must be distinct"),
        ({"cross_tables": [("sex", "age")]}, "cross_tables must hold columns of categories"),
        ({"cross_tables": ["sex", "ill"]}, "cross_tables must be pairs"),
        ({"cross_tables": [("sex", "sex")]}, "cross_tables must be pairs"),
        ({"cross_tables": [("sex", "il")]}, "cross_tables must be .*, got 'il'"),
        ({"neighbours": "add_remove"}, "public_size must be given"),
        ({"public_size": 5}, "public_size must be None"),
        ({"neighbours": "both"}, "neighbours must"),
        ({"max_records": 2}, "max_records must"),
        ({"confidence": 1.0}, "confidence must"),
        ({"accountant": "x"}, "accountant must"),
        ({"data": [[1.0]]}, "X must be a data frame"),
        ({"data": records(10).assign(age=np.nan)}, "column 'age' must have no missing values"),
        ({"data": records(0)}, "at least one record"),
    ],
    ids=str,
)
def test_wrong_calls_name_the_argument(change, text):
    given = {"data": records(100), "schema": SCHEMA, "budget": BUDGET} | change
    with pytest.raises((TypeError, ValueError), match=text):
        dpk.describe(given.pop("data"), given.pop("schema"), **given)


def test_it_prints_a_table_and_converts_to_a_frame():
    found = dpk.describe(records(), SCHEMA, budget=BUDGET, rng=0)
    assert "4000 records; 95 % intervals of noise and sampling" in str(found)
    assert "<td" in found._repr_html_()
    frame = found.to_frame()
    assert list(frame) == ["column", "statistic", "level", *found.rows[0]._fields[3:]]
    assert len(frame) == len(found.rows)
    with pytest.raises(KeyError):
        _ = found["age", "median"]


def test_no_record_raises_before_the_release():
    frame = pd.DataFrame({"x": [5e-324, 0.0, 1e-310]})
    schema = dpk.Schema([Column("x", "number", lo=-1e308, hi=1.5e307)])
    with np.errstate(all="raise"):
        assert dpk.describe(frame, schema, budget=BUDGET, rng=0).rows


@pytest.mark.statistical
def test_adult_is_described_within_half_a_percent(real_data, source_tree):
    """All 14 columns at epsilon 0.5: means over the range, and shares, against the records'."""
    schema = dpk.Schema.load(source_tree / "examples" / "adult" / "schema.json")
    frame = dpk.io.read_frame(real_data / "adult" / "adult.data.xz", schema)
    budget = dpk.Budget(epsilon=0.5, delta=1e-6)
    exact = dpk.describe(frame, schema, budget=LARGE, rng=0)
    column = {c.name: c for c in schema.columns}
    assert len({row.column for row in exact.rows}) == 14
    for seed in range(20):
        found = dpk.describe(frame, schema, budget=budget, rng=seed)
        for row, true in zip(found.rows, exact.rows, strict=True):
            if row.statistic == "mean":
                width = column[row.column].hi - column[row.column].lo
                assert abs(row.value - true.value) <= 0.005 * width
            elif row.statistic == "share":
                assert abs(row.records - true.records) <= 0.005 * exact.size


def test_a_quantile_is_left_out_where_its_interval_is_the_whole_range():
    edges = np.array([0.0, 1.0, 2.0])
    assert _seen(1.5, 0.0, 1.9, edges) == _seen(1.5, 0.1, 2.0, edges) == 1.5
    assert math.isnan(_seen(1.5, 0.0, 2.0, edges))
