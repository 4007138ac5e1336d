"""Coefficients in the units of the records, and the noise in them."""

import pickle
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from cases import for_each, mark_slow

import dpkern as dpk
from dpkern.cli import main
from dpkern.data import Column
from dpkern.solvers.base.coefficients import NOMINAL, PROVED, UNKNOWN, CoefficientNoise

BUDGET = dpk.Budget(epsilon=1.0, delta=1e-6)
SCHEMA = dpk.Schema(
    [
        Column("age", "number", lo=20, hi=90),
        Column("pay", "number", lo=-5, hi=995, scale="log1p", missing=40),
        Column("ward", "category", categories=["a", "b", "c"]),
        Column("sex", "category", categories=["f", "m"], missing="missing"),
        Column("ill", "target", classes=["no", "yes"]),
    ]
)


def records(n, seed):
    rng = np.random.default_rng(seed)
    frame = {
        "age": rng.uniform(20, 90, n),
        "pay": np.where(rng.random(n) < 0.1, np.nan, rng.uniform(-5, 995, n)),
        "ward": rng.choice(["a", "b", "c"], n),
        "sex": rng.choice(["f", "m", ""], n),
    }
    score = (frame["age"] - 55) / 15 + (frame["ward"] == "a") + rng.logistic(size=n)
    return frame | {"ill": np.where(score > 0, "yes", "no")}


def zeros(m=1, n=3000):
    """Records with columns 3 to 9 that are 0 in all of them."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (n, 10))
    X[:, 3:] = 0.0
    y = np.where(X[:, 0] + 0.3 * rng.normal(size=n) > 0, 1, -1)
    return dpk.SiloData.split(X, y, m, intercept=True, row_bound=2.0, seed=0)


def raw_margins(table, frame):
    """The decision function by hand, from raw values and the printed names."""
    at = {row.name: row.coefficient for row in table}
    pay = np.where(np.isnan(frame["pay"]), 40, frame["pay"])
    z = at["intercept"] + at["age"] * frame["age"] + at["log1p(pay + 5)"] * np.log1p(pay + 5)
    z = z + at["pay_missing"] * np.isnan(frame["pay"])
    z = z + np.array([at.get(f"ward_{v}", 0.0) for v in frame["ward"]])
    return z + np.array([at[f"sex_{v or 'missing'}"] for v in frame["sex"]])


@for_each("epsilon", [1.0, 30.0])
@pytest.mark.filterwarnings("ignore:a budget:UserWarning", "ignore::dpkern.privacy.BudgetWarning")
def test_the_table_is_the_decision_function_of_raw_records(epsilon):
    train, test = records(4000, 0), records(50, 1)
    budget = dpk.Budget(epsilon=epsilon, delta=1e-6)
    result = dpk.solve("auto", SCHEMA.silo_data(train), budget=budget, rng=1)
    table = result.coefficients()
    assert result.calibration is not None
    inside = np.abs(result.transform.margins(SCHEMA.encode(test), result.w))
    inside = inside <= result.calibration.unit
    z = result.decision_function(test)
    np.testing.assert_allclose(raw_margins(table, test)[inside], z[inside], rtol=1e-9, atol=1e-9)
    assert table[0].name == "intercept"
    wards = [row.coefficient for row in table if row.name.startswith("ward_")]
    assert sum(wards) == pytest.approx(0.0, abs=1e-9)  # each against their average


def test_the_largest_coefficients_in_their_noise_are_first():
    result = dpk.solve("auto", SCHEMA.silo_data(records(4000, 0)), budget=BUDGET, rng=1)
    ratios = [abs(row.coefficient) / row.noise_std for row in result.coefficients()[1:]]
    assert ratios == sorted(ratios, reverse=True)
    assert result.coefficients()[1].name == "age"


def test_a_feature_range_and_a_target_bound_are_undone():
    rng = np.random.default_rng(0)
    X = rng.uniform([0, 100], [1, 300], (500, 2))
    y = 10 + 3 * X[:, 0] - 0.01 * X[:, 1]
    data = dpk.SiloData.split(
        X, y, 1, intercept=True, feature_range=([0, 100], [1, 300]), target_bound=(0, 20)
    )
    result = dpk.solve("gradient_descent", data, budget=BUDGET, loss="squared", rng=0)
    (constant, *rest) = result.coefficients()
    w = {row.name: row.coefficient for row in rest}
    z = constant.coefficient + X @ [w["x0"], w["x1"]]
    np.testing.assert_allclose(z, result.predict(X), rtol=1e-9)
    std = {row.name: row.noise_std for row in rest}
    assert std["x0"] == pytest.approx(2.0 * result.noise.std)
    assert std["x1"] == pytest.approx(0.01 * result.noise.std)


def test_a_single_category_beside_missing_ones_has_no_noise():
    schema = dpk.Schema(
        [Column("smoker", "category", categories=["yes"], missing="missing"), SCHEMA.columns[-1]]
    )
    frame = {"smoker": ["yes", ""] * 50, "ill": ["yes", "no"] * 50}
    result = dpk.solve(
        "gradient_descent", schema.silo_data(frame), budget=BUDGET, rng=0, recalibrate=False
    )
    table = {row.name: row for row in result.coefficients()}
    assert table["smoker_yes"][1:] == (0.0, 0.0)
    w = result.coef
    assert table["smoker_missing"].coefficient == pytest.approx(w[1] - w[0])


@for_each("loss", ["logistic", "squared"])
def test_a_network_without_hidden_layers_is_linear(loss):
    X = np.random.default_rng(0).uniform(-0.5, 0.5, (200, 2))
    y = X[:, 0] if loss == "squared" else np.where(X[:, 0] > 0, 1, -1)
    data = dpk.SiloData.split(X, y, 1, row_bound=1.5)
    how = {"clip": 1.0, "step_size": 0.1, "rounds": 5}
    model = dpk.MLP(hidden=(), loss=loss)
    result = dpk.solve("minibatch_sgd", data, model=model, budget=BUDGET, rng=0, **how)
    table = {row.name: row.coefficient for row in result.coefficients()}
    z = table["intercept"] + X @ [table["x0"], table["x1"]]
    np.testing.assert_allclose(z, result.decision_function(X), rtol=1e-9)


def test_softmax_regression_has_a_row_for_every_class():
    X = np.random.default_rng(0).uniform(-1, 1, (300, 2))
    y = np.array(["a", "b", "c"])[np.digitize(X[:, 0], [-0.3, 0.3])]
    data = dpk.SiloData.split(X, y, 1, row_bound=1.5, task="multiclass", classes=["a", "b", "c"])
    result = dpk.solve("auto", data, budget=BUDGET, rng=0)
    table = {row.name: row.coefficient for row in result.coefficients()}
    assert len(table) == 9
    short = X[np.hypot(*X.T) < 1.0]
    z = np.stack([table[f"{k}: intercept"] + short @ [table[f"{k}: x0"], table[f"{k}: x1"]]
                  for k in "abc"], axis=1)  # fmt: skip
    np.testing.assert_allclose(z, result.decision_function(short), rtol=1e-9, atol=1e-12)
    deep = dpk.solve("auto", data, model=dpk.MLP(hidden=(3,)), budget=BUDGET, rng=0)
    with pytest.raises(ValueError, match="model must be linear to have coefficients, got"):
        deep.coefficients()
    assert deep.noise is None
    assert "noise_std" not in str(deep) + deep._repr_html_()


# the noise

RUNS = {
    "automatic": ("gradient_descent", {}, False),
    "automatic silos": ("gradient_descent", {"trust": "silo"}, False),
    "shares": ("gradient_descent", {"colluding": 1}, False),
    "momentum and l2": ("gradient_descent", {"momentum": 0.9, "l2": 0.05}, False),
    "short steps": (
        "gradient_descent",
        {"rounds": 60, "step_size": 0.5, "momentum": 0.0, "clip": 1.0},
        True,
    ),
    "l2": ("gradient_descent", {"l2": 0.05}, True),
    "uneven steps": (
        "gradient_descent",
        {"rounds": 20, "step_size": np.linspace(1.0, 0.1, 20), "momentum": 0.0, "clip": 1.0},
        True,
    ),
    "long steps": (
        "gradient_descent",
        {"rounds": 20, "step_size": 3.0, "momentum": 0.0, "clip": 0.1},
        False,
    ),
    "federated": ("federated_gd", {}, False),
    "hidden steps": ("federated_gd", {"local_steps": 3}, False),
    "one message": ("output_perturbation", {}, True),
    "messages of silos": ("output_perturbation", {"trust": "silo"}, True),
    "one message of shares": ("output_perturbation", {"colluding": 1}, True),
    "batches": ("minibatch_sgd", {}, False),
    "some silos": ("minibatch_sgd", {"trust": "silo", "participation": 2}, False),
}


SLOW = ("automatic silos", "shares", "hidden steps", "some silos")


@pytest.mark.parametrize("name", mark_slow(RUNS, SLOW, pytest.mark.statistical))
def test_a_column_of_zeros_has_the_stated_noise(name):
    """Of 7 such columns in 60 runs; bounds are tight there, where l2 acts on every coordinate."""
    solver, arguments, proved = RUNS[name]
    data = zeros(3 if name not in ("automatic", "l2") else 1)
    results = [dpk.solve(solver, data, budget=BUDGET, **arguments) for _ in range(60)]
    noise = results[0].noise
    assert noise.proved is proved
    assert results[0].coefficients().note.endswith(PROVED if proved else NOMINAL)
    w = np.array([result.coef[3:] for result in results])
    assert np.sqrt(np.mean(w**2)) == pytest.approx(noise.std, rel=0.15 if not proved else 0.25)
    if proved:
        spread = np.array([result.coef for result in results]).std(axis=0, ddof=1)
        assert np.all(spread <= 1.3 * noise.std)


@for_each(
    ("arguments", "proved"),
    [
        ({"step_size": 2.0 / 1.0001}, True),
        ({"step_size": 2.0001}, False),
        ({"step_size": 1.0, "momentum": 0.1}, False),
        ({"step_size": 1.0, "penalty": dpk.penalties.PL(0.1)}, False),
        ({"step_size": 1.0, "penalty": dpk.penalties.L1(0.1)}, True),
        ({"step_size": 1.0, "neighbours": "add_remove", "public_size": 3000}, False),
    ],
)
def test_noise_is_proved_for_nonexpansive_maps_alone(arguments, proved):
    how = {"momentum": 0.0, "rounds": 5, "clip": 1.0} | arguments
    result = dpk.solve("gradient_descent", zeros(), budget=BUDGET, **how)
    assert result.noise.proved is proved


@for_each("returns", ["last", "average", "tail", 3])
@for_each("penalize_intercept", [True, False])
def test_proved_noise_is_that_of_the_iterates_returned(returns, penalize_intercept):
    eta, T, l2 = np.linspace(0.5, 0.1, 9), 9, 0.2
    how = {"rounds": T, "step_size": eta, "clip": 1.0, "momentum": 0.0, "l2": l2}
    how |= {"penalize_intercept": penalize_intercept, "returns": returns}
    result = dpk.solve("gradient_descent", zeros(), budget=BUDGET, **how)
    share = np.zeros(T)
    averaged = {"last": 1, "average": 9, "tail": 3, 3: 3}[returns]
    share[T - averaged :] = 1.0 / averaged
    pull = l2 if penalize_intercept else 0.0  # without it some direction is not pulled
    gains = [
        sum(share[u] * np.prod(1.0 - pull * eta[t + 1 : u + 1]) for u in range(t, T))
        for t in range(T)
    ]
    s = result.privacy.releases[0].std / 3000
    assert result.noise.proved
    assert result.noise.std == pytest.approx(s * np.linalg.norm(gains * eta), rel=1e-12)
    assert result.noise.std == result.noise.intercept_std


def test_clipped_sums_of_persons_have_nominal_noise():
    whole = zeros()
    data = dpk.SiloData(
        np.array(whole.X), whole.y, [0, 3000], intercept=True, row_bound=2.0, classes=[-1, 1],
        person=np.arange(3000) // 2, max_records=2,
    )  # fmt: skip
    how = {"momentum": 0.0, "rounds": 5, "clip": 1.0, "step_size": 0.5, "person_clip": 1.5}
    assert not dpk.solve("gradient_descent", data, budget=BUDGET, **how).noise.proved


def test_noise_in_the_units_of_records_is_that_of_functions_of_the_weights():
    """By the matrix that takes weights to the table, found from tables of unit weights."""
    result = dpk.solve("auto", SCHEMA.silo_data(records(4000, 0)), budget=BUDGET, rng=1)
    odds = result.calibration.slope / result.calibration.unit
    bare = replace(result, noise=CoefficientNoise(0.5, 2.0, True), calibration=None)
    units = [
        replace(bare, coef=w[:-1], intercept=w[-1]).coefficients() for w in np.eye(len(bare.w))
    ]
    columns = [{row.name: row.coefficient for row in table} for table in units]
    std = np.append(np.full(len(bare.coef), 0.5), 2.0)
    for row in bare.coefficients():
        A = np.array([column[row.name] for column in columns])
        assert row.noise_std == pytest.approx(np.linalg.norm(A * std), rel=1e-12)
    shown = {row.name: row.noise_std for row in result.coefficients()}
    assert shown["age"] == pytest.approx(odds * result.noise.std * 2.0 / 70.0)


def test_noise_follows_from_public_numbers_alone():
    rng = np.random.default_rng(3)
    found = set()
    for data in (zeros(), dpk.SiloData.split(
        rng.uniform(-9, 9, (3000, 10)), rng.choice([-1, 1], 3000), 1, intercept=True, row_bound=2.0
    )):  # fmt: skip
        for seed in (1, 2):
            found.add(dpk.solve("gradient_descent", data, budget=BUDGET, rng=seed).noise)
    assert len(found) == 1


@for_each(
    ("solver", "arguments"),
    [
        ("local_newton", {}),
        ("minibatch_sgd", {"trust": "shuffle"}),
        ("federated_gd", {"trust": "silo", "local_steps": 2}),
    ],
)
def test_unknown_noise_is_said_to_be_unknown(solver, arguments):
    budget = dpk.Budget(epsilon=8.0, delta=1e-6)
    result = dpk.solve(solver, zeros(3), budget=budget, **arguments)
    assert result.noise is None is result.noise_std
    assert {row.noise_std for row in result.coefficients()} == {None}
    assert result.coefficients().note.endswith(UNKNOWN)
    assert "unknown" in str(result)


def test_a_run_without_noise_states_none():
    assert dpk.solve("gradient_descent", zeros(), budget=None, rounds=3).noise is None


# where coefficients are shown


def test_coefficients_are_printed_alike_everywhere(tmp_path, capsys):
    frame = records(1000, 0)
    result = dpk.solve("auto", SCHEMA.silo_data(frame), budget=BUDGET, rng=0)
    table = result.coefficients()
    assert str(table).splitlines()[0].split() == ["name", "coefficient", "noise_std"]
    row = f"{table[1].coefficient:.4g}"
    for text in (str(table), table._repr_html_(), str(result), result._repr_html_()):
        assert table[1].name in text
        assert row in text
    SCHEMA.save(tmp_path / "s.json")
    pd.DataFrame(frame).to_csv(tmp_path / "d.csv", index=False)
    fit = ["fit", "--schema", tmp_path / "s.json", tmp_path / "d.csv", "--noise-seed", "0"]
    assert main([*map(str, fit), "--epsilon", "1", "--delta", "1e-6"]) == 0
    shown = capsys.readouterr().out.split()
    assert {"noise_std", row, table[1].name} <= set(shown)


def test_a_table_of_many_columns_is_cut():
    data = dpk.SiloData.split(np.eye(40), [1, -1] * 20, 1, row_bound=1.0)
    result = dpk.solve("gradient_descent", data, budget=None, rounds=2)
    assert "... and 28 more" in str(result)
    assert "... and 28 more" in result._repr_html_()
    assert len(str(result.coefficients()).splitlines()) == 40 + 2


def test_frames_files_and_pickles_keep_the_table(tmp_path):
    result = dpk.solve("auto", SCHEMA.silo_data(records(1000, 0)), budget=BUDGET, rng=0)
    table = result.coefficients()
    frame = pd.DataFrame(table)
    assert list(frame.columns) == ["name", "coefficient", "noise_std"]
    assert frame["coefficient"].tolist() == [row.coefficient for row in table]
    result.save(tmp_path / "m.npz")
    loaded = dpk.load(tmp_path / "m.npz")
    assert (loaded.noise, loaded.coefficients()) == (result.noise, table)
    copy = pickle.loads(pickle.dumps(table))
    assert (copy, copy.note) == (table, table.note)
    np.testing.assert_array_equal(result.noise_std, np.full(result.coef.shape, result.noise.std))


def test_ordered_classes_have_thresholds_and_coefficients(tmp_path):
    """Those of a fit with standard errors, in the units of the columns, on request in a file."""
    rng = np.random.default_rng(0)
    X = rng.uniform(0.0, 10.0, (5000, 2))
    y = np.digitize(X @ [0.5, -0.2] + rng.logistic(size=5000), [0.0, 1.5, 3.0])
    how = {"feature_range": (0.0, 10.0), "task": "multiclass", "classes": range(4)}
    data = dpk.SiloData(X, y, [0, 5000], **how)
    model = dpk.AllThreshold()
    result = dpk.solve("auto", data, budget=BUDGET, model=model, rng=0, inference=True)
    table = result.coefficients()
    assert [row.name for row in table[:3]] == ["0 | 1", "1 | 2", "2 | 3"]
    estimates = {row.name: row.estimate for row in result.summary()}
    assert {row.name: row.coefficient for row in table} == pytest.approx(estimates)
    table.save(tmp_path / "table.csv")
    assert "2 | 3" in (tmp_path / "table.csv").read_text()
    plain = dpk.solve("minibatch_sgd", data, budget=BUDGET, model=model, rng=0)
    assert "2 | 3" in str(plain)
