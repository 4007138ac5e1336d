"""Plans: public numbers alone, the settings that "auto" means, a table and a picture."""

import math
import warnings

import numpy as np
import pytest
from cases import for_each

import dpkern as dpk
from dpkern.solvers import SOLVERS

BUDGET = dpk.Budget(epsilon=1.0, delta=1e-6)


def make_data(n=600, m=3):
    rng = np.random.default_rng(0)
    y = np.where(rng.random(n) > 0.5, 1, -1)
    X = rng.standard_normal((n, 6)) * 0.1
    return dpk.SiloData.split(X, y, m, seed=0, row_bound=1.0, intercept=True)


# What is asked for by its standard errors is not compared by its error.
COMPARED = {name: solver for name, solver in SOLVERS.items() if name != "newton_inference"}
# What nobody has measured yet is in no plan.
UNMEASURED = set()


@pytest.mark.filterwarnings("ignore::UserWarning")
@for_each("trust", ["central", "silo"])
@for_each("neighbours", ["replace_one", "add_remove"])
def test_the_plan_has_the_settings_of_the_run(trust, neighbours):
    data = make_data()
    hidden = {"public_size": [200] * 3} if neighbours == "add_remove" else {}
    plan = dpk.plan(600, 7, budget=BUDGET, row_bound=1.0, m=3, trust=trust, neighbours=neighbours)
    offered = {
        name
        for name, solver in COMPARED.items()
        if name not in UNMEASURED
        and trust in solver.declaration.trusts
        and neighbours in solver.declaration.neighbours
    }
    if (trust, neighbours) == ("central", "add_remove"):
        offered.remove("local_sgd")  # whose hidden steps have no bound there
    assert {row.solver for row in plan.rows} == offered
    for row in plan.rows:
        users = {"users": "silos"} if (row.solver, trust) == ("admm", "silo") else {}
        result = dpk.solve(
            row.solver, data, budget=BUDGET, trust=trust, neighbours=neighbours, rng=0,
            loss="logistic", **hidden, **users,
        )  # fmt: skip
        for name, value in row.settings.items():
            if isinstance(value, float):
                assert result.parameters[name] == pytest.approx(value), (row.solver, name)
            else:
                assert result.parameters[name] == value, (row.solver, name)
    best = dpk.solve("auto", data, budget=BUDGET, trust=trust, rng=0)
    assert plan.best.solver == best.solver


@for_each(("trust", "m"), [("central", 1), ("silo", 3)])
def test_the_plan_leaves_a_recalibration_its_share(trust, m):
    rng = np.random.default_rng(0)
    X = rng.uniform(-0.3, 0.3, (6000, 6))
    data = dpk.SiloData.split(X, X[:, 0] > 0.0, m, seed=0, row_bound=1.0, intercept=True)
    plan = dpk.plan(6000, 7, budget=BUDGET, row_bound=1.0, m=m, trust=trust)
    result = dpk.solve("gradient_descent", data, budget=BUDGET, trust=trust, rng=0)
    (row,) = [row for row in plan.rows if row.solver == "gradient_descent"]
    assert result.calibration is not None
    assert {k: result.parameters[k] for k in row.settings} == pytest.approx(row.settings)
    labels = rng.integers(0, 3, 6000)
    data = dpk.SiloData.split(
        X, labels, m, seed=0, row_bound=1.0, task="multiclass", classes=[0, 1, 2]
    )
    bound = float(np.hypot(1.0, 1.0))
    plan = dpk.plan(6000, 7, budget=BUDGET, row_bound=bound, m=m, trust=trust, n_classes=3)
    result = dpk.solve("auto", data, budget=BUDGET, trust=trust, rng=0)
    assert result.calibration is not None
    settings = plan.best.settings
    assert {k: result.parameters[k] for k in settings} == pytest.approx(settings)


def test_auto_takes_the_model_that_suits_the_task():
    rng = np.random.default_rng(0)
    X = 0.3 * rng.standard_normal((400, 4))
    targets = dpk.SiloData.split(X, X @ np.ones(4), 2, seed=0, row_bound=1.0, target_bound=1.0)
    found = dpk.solve("auto", targets, budget=BUDGET, rng=0)
    assert (found.solver, found.loss) == ("gradient_descent", "squared")
    plan = dpk.plan(400, 4, budget=BUDGET, row_bound=1.0, loss="squared")
    assert plan.best.solver == "gradient_descent"
    assert dpk.solve("auto", targets, budget=BUDGET, loss="huber", rng=0).loss == "huber"
    labels = {"task": "multiclass", "classes": [0, 1, 2], "row_bound": 1.0}
    several = dpk.SiloData.split(X, rng.integers(0, 3, 400), 2, seed=0, **labels)
    found = dpk.solve("auto", several, budget=BUDGET, rng=0)
    assert found.solver == "minibatch_sgd"
    assert found.oracle == dpk.MLP(hidden=())
    with pytest.raises(ValueError, match="MLP"):
        dpk.solve("auto", several, budget=BUDGET, loss="logistic")


def test_rounds_that_are_fixed_by_default_count():
    plan = dpk.plan(600, 7, budget=BUDGET, row_bound=1.0, trust="silo", transport="flower", m=3)
    (row,) = [row for row in plan.rows if row.solver == "prox_pl_svrg"]
    assert row.settings["rounds"] == 60
    assert row.seconds > 60 * 3 * 0.07
    units = [
        one.noise / (one.settings["clip"] * math.sqrt(one.settings["rounds"]))
        for one in (row, plan.best)
    ]
    assert units[0] == pytest.approx(units[1])


def test_noise_is_that_of_a_coordinate_of_the_mean_gradient():
    plan = dpk.plan(400, 7, budget=BUDGET, row_bound=1.0)
    row = plan.best
    std = 2.0 * row.settings["clip"] / 400 * math.sqrt(row.settings["rounds"]) / BUDGET.mu
    assert row.noise == pytest.approx(std)
    run = dpk.solve("gradient_descent", make_data(n=400, m=1), budget=BUDGET, rng=0)
    (release,) = run.privacy.releases
    assert release.std / 400 == pytest.approx(row.noise, rel=0.01)


def test_more_records_or_budget_mean_less_error():
    def error(n, epsilon):
        budget = dpk.Budget(epsilon=epsilon, delta=1e-6)
        return [row.error for row in dpk.plan(n, 50, budget=budget, row_bound=2.0).rows]

    assert max(error(50, 0.01)) <= 0.5
    for small, large in zip(sorted(error(10_000, 1.0)), sorted(error(100_000, 1.0)), strict=True):
        assert large < small
    for small, large in zip(sorted(error(10_000, 0.5)), sorted(error(10_000, 1.0)), strict=True):
        assert large < small


def test_every_solver_has_a_measured_error_and_time():
    for name, solver in COMPARED.items():
        figures = solver.declaration.error, solver.declaration.seconds
        assert (None in figures) == (name in UNMEASURED), name


def test_no_budget_removes_the_least_error_and_none_makes_it_more_than_a_half():
    from dpkern import planning

    assert planning.excess_risk(50, 1e30, (1.0, 0.5)) == pytest.approx(planning.FORM[1])
    assert planning.excess_risk(50, 1e-30, (1.0, 0.5)) == 0.5
    assert planning.excess_risk(16, 100.0, (0.5, 1.0), (0.5, 0.01)) == pytest.approx(0.03)


@pytest.mark.filterwarnings("error")
def test_the_table_and_the_picture(tmp_path):
    plan = dpk.plan(569, 31, budget=BUDGET, row_bound=5.6)
    first, _, head, best, *_ = str(plan).splitlines()
    assert first.startswith("569 records, 31 coefficients; epsilon 1, delta 1e-06, mu 0.2367")
    assert head.split()[:4] == ["solver", "rounds", "steps", "clip"]
    assert best.startswith("gradient_descent ")
    assert "error: predicted excess risk, test error of a classifier" in str(plan)
    pytest.importorskip("matplotlib")
    plan.plot(tmp_path / "plan.png")
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")
    dpk.plan(569, 31, budget=dpk.Budget(mu=5.0), row_bound=5.6).plot(tmp_path / "mu.png")


@for_each(
    ("bad", "error", "says"),
    [
        ({"n": 0}, ValueError, "n must be at least 1"),
        ({"d": 2.5}, TypeError, "d must be an integer"),
        ({"budget": 1.0}, TypeError, "budget must be dpkern.Budget"),
        ({"row_bound": 0.0}, ValueError, "row_bound must be positive"),
        ({"loss": "hinge"}, ValueError, "loss must be one of"),
        ({"m": 601}, ValueError, "m must be at most the 600 records"),
        ({"trust": "local"}, ValueError, "trust must be 'central' or 'silo'"),
        ({"neighbours": "edit"}, ValueError, "neighbours must be"),
        ({"l2": -1.0}, ValueError, "l2 must be"),
    ],
)
def test_bad_arguments_are_refused_by_name(bad, error, says):
    how = {"n": 600, "d": 7, "budget": BUDGET, "row_bound": 1.0} | bad
    with pytest.raises(error, match=says):
        dpk.plan(how.pop("n"), how.pop("d"), **how)


def test_the_command_prints_the_plan(capsys, tmp_path):
    from dpkern.cli import main

    numbers = ["--records", "569", "--features", "30", "--epsilon", "1", "--delta", "1e-5"]
    assert main(["plan", *numbers]) == 0
    out = capsys.readouterr().out
    assert out.startswith("569 records, 31 coefficients; epsilon 1, delta 1e-05")
    budget = dpk.Budget(epsilon=1.0, delta=1e-5)
    shown = str(dpk.plan(569, 31, budget=budget, row_bound=math.sqrt(31.0)))
    for ours, theirs in zip(out.splitlines(), shown.splitlines(), strict=True):
        assert ours.split()[:7] == theirs.split()[:7]  # seconds, which follow, are measured
    pytest.importorskip("matplotlib")
    assert main(["plan", *numbers, "--plot", str(tmp_path / "p.png")]) == 0
    assert (tmp_path / "p.png").exists()
    assert main(["plan", "--records", "5"]) == 2


def test_several_classes_are_those_of_softmax_regression():
    rng = np.random.default_rng(0)
    X, y = rng.uniform(size=(600, 6)), np.arange(600) % 5
    data = dpk.SiloData.split(X, y, 3, row_bound=2.0, task="multiclass", classes=range(5))
    bound = math.sqrt(5.0)
    plan = dpk.plan(600, 7, budget=BUDGET, row_bound=bound, m=3, n_classes=5)
    assert plan.best.solver == "minibatch_sgd"
    for row in plan.rows:
        result = dpk.solve(
            row.solver, data, budget=BUDGET, trust="central", model=dpk.MLP(hidden=()), rng=0
        )
        for name, value in row.settings.items():
            assert result.parameters[name] == pytest.approx(value), (row.solver, name)
    two = dpk.plan(600, 7, budget=BUDGET, row_bound=bound, m=3)
    errors = {row.solver: row.error for row in two.rows}
    assert all(errors[row.solver] < row.error <= 0.8 for row in plan.rows)
    with pytest.raises(ValueError, match="loss must be 'logistic' for 5 classes, got 'huber'"):
        dpk.plan(600, 7, budget=BUDGET, row_bound=bound, loss="huber", n_classes=5)


def test_the_plan_of_a_regression_has_the_bound_of_its_targets():
    rng = np.random.default_rng(0)
    X, y = rng.uniform(size=(600, 5)), rng.uniform(-40.0, 40.0, 600)
    how = {"row_bound": 2.0, "intercept": True, "task": "regression", "target_bound": 40.0}
    data = dpk.SiloData.split(X, y, 3, **how)
    plan = dpk.plan(600, 6, budget=BUDGET, row_bound=2.0, loss="squared", m=3, target_bound=40.0)
    for row in plan.rows:
        result = dpk.solve(row.solver, data, budget=BUDGET, loss="squared", rng=0)
        for name, value in row.settings.items():
            if value is not None:
                assert result.parameters[name] == pytest.approx(value), (row.solver, name)
    with pytest.raises(ValueError, match=r"target_bound must be 1 for labels, got 2\.0"):
        dpk.plan(600, 6, budget=BUDGET, row_bound=2.0, target_bound=2.0)


def test_messages_between_machines_take_their_time():
    """Solvers with few rounds are worth most where a round has to wait for others."""
    how = {"budget": dpk.Budget(epsilon=1.0, delta=1e-6), "row_bound": 3.0, "m": 4}
    here = {row.solver: row for row in dpk.plan(30_000, 124, **how).rows}
    slow = {row.solver: row for row in dpk.plan(30_000, 124, transport="flower", **how).rows}
    assert here.keys() - slow.keys() == {
        "double_noise_newton",
        "fixed_point",
        "objective_perturbation",
    }
    rounds = slow["gradient_descent"].settings["rounds"]
    assert slow["gradient_descent"].seconds > 0.2 * rounds
    assert slow["wd_dp"].seconds < slow["local_newton"].seconds
    assert slow["local_newton"].seconds < 0.2 * slow["gradient_descent"].seconds
    assert [row.error for row in slow.values()] == [here[name].error for name in slow]
    with pytest.raises(ValueError, match="transport must be"):
        dpk.plan(30_000, 124, transport="post", **how)


# ------------------------------------------------------------------------- standard errors


def forecast(n, d=5, *, epsilon=1.0, **how):
    budget = dpk.Budget(epsilon=epsilon, delta=1e-6)
    return dpk.plan(n, d, budget=budget, row_bound=math.sqrt(d), inference=True, **how).forecast


@for_each("loss", ["logistic", "probit", "huber", "squared", "poisson", "negative_binomial"])
@for_each("epsilon", [1.0, 3.0])
def test_forecast_growth_is_that_of_fits(loss, epsilon):
    """Within 20 %, of columns with a third of their range as standard deviation."""
    rng, n = np.random.default_rng(0), 24_000 if loss == "negative_binomial" else 20_000
    X = np.clip(rng.standard_normal((n, 4)) / 3.0, -1.0, 1.0)
    z, kind, rate = X @ [1.0, -0.5, 0.3, 0.0], loss, {}
    options = {"task": "regression", "target_bound": 5.0}
    y = z + 0.5 * rng.standard_normal(n)
    if loss in ("logistic", "probit"):
        options = {"task": "classification", "classes": (-1.0, 1.0)}
        y = np.where(rng.random(n) < dpk.models.losses.get_loss(loss).probability(z), 1.0, -1.0)
    elif loss == "huber":
        kind = dpk.losses.Huber(0.65)
    elif loss == "poisson":
        kind = dpk.losses.Poisson(math.log(0.01), math.log(1.0), max_target=3.0)
        y = rng.poisson(0.25 * np.exp(z - 0.1)).astype(float)
        options, rate = {"task": "regression"}, {"rate": float(y.mean())}
    elif loss == "negative_binomial":
        kind = dpk.losses.NegativeBinomial(1.0, max_target=3.0)
        y = rng.poisson(0.25 * np.exp(z - 0.1) * rng.gamma(1.0, 1.0, n)).astype(float)
        options, rate = {"task": "regression"}, {"rate": float(y.mean())}
    data = dpk.SiloData(X, y, [0, n], intercept=True, feature_range=(-1.0, 1.0), **options)

    def errors(budget, seed=None):
        found = dpk.solve("auto", data, budget=budget, loss=kind, inference=True, rng=seed)
        return np.sqrt(np.diag(found.inference.covariance))

    budget = dpk.Budget(epsilon=epsilon, delta=1e-6)
    growth = np.median([errors(budget, seed) for seed in range(5)], axis=0) / errors(None)
    found = forecast(n, epsilon=epsilon, loss=kind, **rate)
    assert found.is_answered
    assert found.growth == pytest.approx(np.median(growth), rel=0.2)


def test_the_forecast_allows_for_columns_of_a_small_part_of_their_range():
    """Gamma columns of the grid of coverage have a fifth of the usual variance."""
    assert forecast(10_000, epsilon=0.3, loss="squared").noise_ratio > 0.3
    assert forecast(10_000, 20, epsilon=3.0, loss="huber").noise_ratio > 0.3


def test_forecast_says_how_many_records_are_needed():
    few = forecast(1000)
    assert not few.is_answered
    least = few.least_records
    assert forecast(int(1.01 * least)).is_answered
    assert not forecast(int(0.98 * least)).is_answered
    assert forecast(1000, epsilon=0.3).least_records > least
    assert forecast(1000, neighbours="add_remove").least_records < least
    # Here the noise of the geometry hides more than that of the curvatures.
    assert not forecast(1000, epsilon=3.0, loss="huber").is_answered
    rare = forecast(50_000, rate=0.01)
    assert not rare.is_answered
    assert forecast(50_000, rate=0.99).growth == pytest.approx(rare.growth)
    assert rare.least_records > 10 * least


def test_the_forecast_has_the_settings_of_the_fit():
    data = make_data(n=3000, m=1)
    result = dpk.solve("auto", data, budget=BUDGET, inference=True, rng=0)
    settings = dpk.plan(3000, 7, budget=BUDGET, row_bound=1.0, inference=True).forecast.settings
    assert {name: result.parameters[name] for name in settings} == settings


def test_a_plan_of_standard_errors_says_what_is_to_be_expected(tmp_path):
    pytest.importorskip("matplotlib")
    plan = dpk.plan(20_000, 5, budget=BUDGET, row_bound=2.0, inference=True)
    assert "standard errors grow by about 1." in str(plan)
    assert "standard errors grow" in plan._repr_html_()
    plan.plot(tmp_path / "growth.png")
    assert (tmp_path / "growth.png").stat().st_size > 1000
    none = dpk.plan(500, 5, budget=BUDGET, row_bound=2.0, inference=True)
    assert "no standard errors are to be expected" in str(none)
    with pytest.raises(ValueError, match="inference must be False for a table"):
        plan.best  # noqa: B018


@for_each(
    ("how", "message"),
    [
        ({"trust": "silo"}, "trust must be 'central' with inference=True"),
        (
            {"loss": "smoothed_hinge"},
            "loss must be 'logistic' or 'squared' or 'huber' or 'poisson' or 'gamma'",
        ),
        ({"loss": "poisson"}, "loss must have a max_target with inference=True"),
        ({"loss": "gamma"}, "loss must have a max_target with inference=True"),
        ({"loss": "smoothed_hinge"}, "or 'cloglog' or 'probit' with inference=True"),
        ({"loss": dpk.losses.NegativeBinomial(max_target=3.0), "rate": -1.0}, "rate must be"),
        ({"loss": dpk.losses.Poisson(max_target=3.0), "rate": 60.0}, "rate must be within the"),
        ({"n_classes": 3}, "n_classes must be 2 with inference=True"),
        ({"l2": 0.1}, "l2 must be 0.0 with inference=True"),
        ({"transport": "flower"}, "transport must be None with inference=True"),
        ({"rate": 1.0}, "rate must lie strictly between 0 and 1"),
        ({"rate": 0.1, "inference": False}, "rate must be left out without inference=True"),
        ({"rate": 0.1, "loss": "squared"}, "rate must be left out without two classes or counts"),
        ({"inference": "yes"}, "inference must be True or False"),
    ],
)
def test_what_has_no_forecast_is_refused_by_name(how, message):
    with pytest.raises((TypeError, ValueError), match=message):
        dpk.plan(5000, 5, budget=BUDGET, row_bound=2.0, **{"inference": True} | how)


def test_the_forecast_says_which_budget_would_do():
    few = dpk.plan(1000, 5, budget=BUDGET, row_bound=2.0, inference=True)
    least = few.forecast.least_mu
    for factor, answered in ((1.01, True), (0.98, False)):
        budget = dpk.Budget(mu=factor * least)
        found = dpk.plan(1000, 5, budget=budget, row_bound=2.0, inference=True).forecast
        assert found.is_answered == answered
    epsilon = dpk.Budget(mu=least).epsilon_at(BUDGET.delta)
    assert f"or epsilon {epsilon:.2g}, would do" in str(few)
    by_mu = dpk.plan(1000, 5, budget=dpk.Budget(mu=0.1), row_bound=2.0, inference=True)
    assert f"or mu {least:.2g}, would do" in str(by_mu)


def test_what_a_forecast_assumes_is_said():
    how = {"budget": BUDGET, "row_bound": 2.0, "inference": True}
    assert "half of the records were assumed to have either" in str(dpk.plan(9000, 5, **how))
    assert "assumed" not in str(dpk.plan(9000, 5, rate=0.5, **how))
    assert "assumed" not in str(dpk.plan(9000, 5, loss="squared", **how))
    counts = dpk.losses.Poisson(math.log(0.01), 0.0, max_target=4.0)
    assert "a mean count of 0.1 was assumed" in str(dpk.plan(9000, 5, loss=counts, **how))


def warnings_of(data, **how):
    """Return what a run is warned of before it begins: that no standard errors are expected."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        dpk.solve("auto", data, **{"budget": BUDGET, "inference": True, "rng": 0} | how)
    return [str(w.message) for w in seen if "no standard errors are to be" in str(w.message)]


def test_a_run_without_standard_errors_to_expect_is_warned_of_before_its_charge(tmp_path):
    data, spent = make_data(n=3000, m=1), []
    accountant = dpk.Accountant(tmp_path / "ledger", epsilon=9.0, delta=1e-6)

    def show(message, *_):
        spent.append((str(message), accountant.spent))

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show
        dpk.solve("auto", data, budget=BUDGET, inference=True, rng=0, accountant=accountant)
    expected = dpk.plan(3000, 7, budget=BUDGET, row_bound=1.0, inference=True)
    ((text, before),) = [one for one in spent if "no standard errors" in one[0]]
    assert before == 0.0 < accountant.spent
    assert expected.forecast.least_records > 3000
    needed = float(f"{expected.forecast.least_records:.2g}")
    epsilon = dpk.Budget(mu=expected.forecast.least_mu).epsilon_at(BUDGET.delta)
    assert f"about {needed:.0f} records, or epsilon {epsilon:.2g}, would do" in text
    assert text.endswith("assumed to have either label: rare outcomes need more")


def test_only_runs_without_standard_errors_to_expect_are_warned_of():
    data, large = make_data(n=3000, m=1), dpk.Budget(epsilon=9.0, delta=1e-6)
    assert warnings_of(data)
    assert not warnings_of(data, budget=large)
    assert not warnings_of(data, budget=None)
    assert not warnings_of(data, inference=False)
    assert not warnings_of(data, l2=0.1)  # of which there is no forecast


def test_a_warning_is_of_the_silos_that_add_the_noise():
    """A silo of its own has its own records, and shared noise is that of the others."""
    least = dpk.plan(9000, 7, budget=BUDGET, row_bound=1.0, inference=True).forecast.least_records
    enough = make_data(n=int(1.05 * least), m=4)
    assert not warnings_of(enough)
    assert not warnings_of(enough, colluding=0)
    (text,) = warnings_of(enough, colluding=2)
    assert f"with {enough.n} records, no" in text
    (text,) = warnings_of(enough, trust="silo")
    assert f"with {enough.sizes.max()} records of a silo, no" in text
    (text,) = warnings_of(enough, neighbours="add_remove", public_size=500)
    assert "with 500 records, no" in text
