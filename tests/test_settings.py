"""Settings "auto": from public numbers alone, as documented, and respected where they are given."""

import dataclasses
import math
import warnings

import numpy as np
import pytest
from cases import for_each

import dpkern as dpk
from dpkern.data import SiloData
from dpkern.models.losses import get_loss
from dpkern.models.penalties import PL
from dpkern.models.scale import margin_scale
from dpkern.solvers import SOLVERS, Objective
from dpkern.solvers.base.objective import margin_noise, public_numbers
from dpkern.solvers.base.outcome import plain
from dpkern.solvers.base.plan import LongRunWarning, announce_length
from dpkern.solvers.base.run import begin

BUDGET = dpk.Budget(epsilon=1.0, delta=1e-6)
TRUSTS = [
    (name, trust)
    for name, solver in SOLVERS.items()
    for trust in solver.declaration.trusts
    if trust in ("central", "silo")
]
SETTINGS = (
    "clip", "rounds", "local_steps", "step_size", "prox_step", "momentum", "returns", "batch_size",
    "hess_clip", "floor",
)  # fmt: skip


def make_data(seed=0, scale=0.2, n=600, columns=6, **options):
    rng = np.random.default_rng(seed)
    X = scale * rng.standard_normal((n, columns))
    y = np.where(X @ rng.standard_normal(columns) + 0.1 * rng.standard_normal(n) > 0.0, 1, -1)
    return dpk.SiloData.split(X, y, 3, seed=0, **{"row_bound": 1.0, "intercept": True} | options)


def run(name, data, trust="central", **options):
    users = {"users": "silos"} if (name, trust) == ("admm", "silo") else {}
    arguments = {"budget": BUDGET, "trust": trust, "rng": 0} | users | options
    return dpk.solve(name, data, **arguments)


def settings(result):
    return {name: result.parameters[name] for name in SETTINGS if name in result.parameters}


def make_plan(name, data, trust="central", **options):
    users = {"users": "silos"} if (name, trust) == ("admm", "silo") else {}
    declaration = SOLVERS[name].declaration
    arguments = declaration.complete({"trust": trust, "rng": 0} | users | options)
    with begin(declaration, data, BUDGET, arguments) as run:
        return run.plan


@pytest.mark.filterwarnings("ignore::UserWarning")
@for_each(("name", "trust"), TRUSTS)
def test_a_plan_has_all_arguments_of_the_result(name, trust):
    """What a result shows was decided before the first record was read, and is the same for others.

    Data of equal public numbers have equal plans.
    """
    plan, other = (make_plan(name, make_data(seed=seed), trust) for seed in (0, 1))
    shown = run(name, make_data(), trust).parameters
    assert plain(dict(plan.arguments)) == plain(dict(other.arguments)) == shown
    np.testing.assert_array_equal(plan.step_sizes, other.step_sizes)
    assert plan.updates == other.updates


def test_a_plan_cannot_be_changed():
    plan = make_plan("gradient_descent", make_data())
    with pytest.raises(TypeError):
        plan.arguments["clip"] = 2.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.updates = 3
    with pytest.raises(ValueError, match="read-only"):
        plan.step_sizes[0] = 1.0
    changed = plan.replace_arguments(clip=2.0)
    assert (changed.clip, plan.clip) == (2.0, plan.arguments["clip"])


@pytest.mark.filterwarnings("ignore::UserWarning")
@for_each(("name", "trust"), TRUSTS)
def test_no_rule_reads_a_record(name, trust):
    """Data of equal public numbers, of other laws, have equal settings and equal noise."""
    others = make_data(seed=1, scale=40.0)
    results = [run(name, data, trust) for data in (make_data(), others)]
    first, second = map(settings, results)
    assert first == second
    if name == "fixed_point":  # the step of another operator
        del first["prox_step"]
    assert "auto" not in map(str, first.values())
    assert results[0].privacy.declared["clip"] == first["clip"]
    follow = ("spider", "prox_svrg", "prox_pl_svrg", "double_noise_newton")
    if name not in follow and (name, trust) != ("admm", "silo"):
        # The noise of differences, of directions and of inner solves follows released models.
        stds = [sorted(release.std for release in r.privacy.releases) for r in results]
        np.testing.assert_allclose(stds[0], stds[1], rtol=0.2)


def test_noise_in_margins_is_what_the_rule_says():
    """R u C h / mu, h = T eta / (1 - momentum): 9 where C is the least, less where it is larger."""
    data = make_data(n=700)
    found = settings(run("gradient_descent", data, recalibrate=False))
    R, u = data.row_bound, 2.0 / data.n
    horizon = found["rounds"] * found["step_size"] / (1.0 - found["momentum"])
    noise = R * u * found["clip"] * horizon / BUDGET.mu
    assert found["clip"] == pytest.approx(0.14 * 0.5 * R)
    assert noise == pytest.approx(9.0)
    many = make_data(n=600_000)
    found = settings(run("gradient_descent", many, rounds=3))
    assert found["clip"] == pytest.approx(0.5 * R)
    assert found["momentum"] == 0.95
    found = settings(run("gradient_descent", many, recalibrate=False))
    horizon = found["rounds"] * found["step_size"] / (1.0 - found["momentum"])
    noise = R * (2.0 / many.n) * found["clip"] * horizon / BUDGET.mu
    assert found["rounds"] == 600
    assert found["momentum"] == pytest.approx(0.99)
    assert 0.28 * 0.5 * R < found["clip"] < 0.5 * R
    assert noise == pytest.approx(2.0 * 0.5 * 9.0)
    few = settings(run("gradient_descent", make_data(n=25_000), recalibrate=False))
    assert few["rounds"] == round(300 * 25_000 * BUDGET.mu / 4000.0)
    assert few["clip"] == pytest.approx(0.28 * 0.5 * R)
    few = settings(run("gradient_descent", make_data(n=12_000), recalibrate=False))
    assert few["clip"] == pytest.approx(0.14 * 0.5 * R * 12_000 * BUDGET.mu / 2000.0)


@for_each(
    ("n", "columns", "share"),
    [(200, 6, 2 / 3), (600, 6, 600 * BUDGET.mu / 150), (200, 24, 25 / 30), (200, 40, 1)],
)
def test_few_labels_in_few_columns_take_less_noise(n, columns, share):
    """In proportion to n mu below 150 or to the coefficients below 30, at least two thirds."""
    data = make_data(n=n, columns=columns)
    found = settings(run("gradient_descent", data, recalibrate=False))
    horizon = found["rounds"] * found["step_size"] / (1.0 - found["momentum"])
    noise = 2.0 / n * found["clip"] * horizon / BUDGET.mu
    assert noise == pytest.approx(share * min(9.0, 50.0 / math.sqrt(columns + 1.0)))


def test_counts_take_no_more_rounds_and_no_more_noise():
    """No line of log odds mends what noise does to an exponential."""
    y = np.random.default_rng(0).poisson(0.5, 300_000)
    data = make_data(n=300_000)
    data = dpk.SiloData(data.X, y, data.offsets, row_bound=1.0, intercept=True, task="regression")
    found = settings(run("gradient_descent", data, loss=dpk.losses.Poisson(-3.0, 2.0, 6.0)))
    horizon = found["rounds"] * found["step_size"] / (1.0 - found["momentum"])
    assert found["rounds"] == 300
    assert found["momentum"] <= 0.95
    assert (2.0 / data.n) * found["clip"] * horizon / BUDGET.mu <= 9.0


def test_clips_of_newton_and_perturbed_objectives_grow_with_the_records():
    for name in ("local_newton", "objective_perturbation"):
        shares = []
        for n in (300, 40_000, 100_000):
            data = make_data(n=n)
            found = settings(run(name, data, recalibrate=False))
            shares.append(found["clip"] / (0.5 * data.row_bound))
        assert shares[0] == pytest.approx(0.5)
        assert shares[1] == pytest.approx(0.5 * math.sqrt(40_000 * BUDGET.mu / 3000.0))
        assert shares[2] == pytest.approx(1.25)


def test_newton_hessians_are_clipped_until_their_noise_is_a_mean_eigenvalue():
    """The spectral norm of the noise is L / d at most, or nothing is clipped."""
    data = make_data(n=120)
    for name in ("local_newton", "ridge"):
        result = run(name, data, **({"loss": "logistic"} if name == "ridge" else {}))
        hessian = next(r for r in result.privacy.releases if "Hessian" in r.what)
        largest = 0.25 * data.row_bound**2
        norm = hessian.std * math.sqrt(2 * data.d) / data.n
        assert result.parameters["hess_clip"] < largest
        assert norm == pytest.approx(largest / data.d, rel=0.02)
    many = make_data(n=600_000)
    assert run("local_newton", many).parameters["hess_clip"] >= 0.25 * data.row_bound**2
    found = settings(run("local_newton", data, hess_clip=None, clip=0.3))
    assert found["hess_clip"] >= 0.25 * data.row_bound**2
    assert found["clip"] == 0.3


def test_moments_of_targets_are_not_clipped_and_those_of_labels_are():
    data = make_data()
    assert settings(run("ridge", data))["clip"] == pytest.approx(0.25 * data.row_bound)
    X, y = np.vstack(data.X), np.clip(data.y, -1, 1) * 0.5
    targets = dpk.SiloData.split(
        X, y, 1, seed=0, row_bound=1.0, target_bound=1.0, intercept=True, task="regression"
    )
    found = settings(run("ridge", targets))
    assert found["clip"] == targets.row_bound
    assert found["hess_clip"] >= targets.row_bound**2


def test_what_is_given_is_kept():
    data = make_data()
    given = {"clip": 0.3, "rounds": 7, "step_size": 0.5}
    found = settings(run("gradient_descent", data, **given))
    assert {name: found[name] for name in given} == given
    assert (found["momentum"], found["returns"]) == (0.0, "last")
    found = settings(run("gradient_descent", data, clip=0.3))
    assert found["clip"] == 0.3
    assert found["returns"] == "tail"
    assert found["step_size"] > 0.0


def test_without_a_budget_nothing_is_clipped():
    result = run("gradient_descent", make_data(), budget=None)
    assert result.parameters["clip"] is None
    assert result.parameters["returns"] == "last"


def test_hidden_steps_do_not_exceed_the_smoothness():
    data = make_data()
    for name in ("wd_dp", "output_perturbation", "local_sgd"):
        found = settings(run(name, data))
        assert found["step_size"] * data.row_bound**2 * 0.25 <= 1.0 + 1e-9


@for_each(
    ("options", "given", "says"),
    [
        ({"row_bound": None}, {}, "row_bound"),
        (
            {"row_bound": None},
            {"model": dpk.MLP(hidden=(3,))},
            "step_size='auto' needs a bound of the rows",
        ),
        ({"row_bound": None}, {"model": dpk.MLP(), "step_size": 0.1}, "clip must be given"),
    ],
)
def test_where_no_rule_holds_the_error_says_what_to_give(options, given, says):
    solver = "minibatch_sgd" if "model" in given else "gradient_descent"
    data = make_data(**options | ({"intercept": False} if "model" in given else {}))
    with pytest.raises(ValueError, match=says):
        run(solver, data, **given)


def test_public_numbers_under_add_or_remove_are_the_declared_ones():
    data = make_data()
    objective = Objective(data, get_loss("logistic"), public_size=(500, 400, 300))
    numbers = public_numbers(objective, BUDGET, "central", "add_remove")
    assert numbers.noise == pytest.approx(1.0 / 1200)
    assert numbers.smallest == 300
    assert public_numbers(objective, None, "silo", "add_remove").mu == math.inf


def test_tail_is_the_mean_of_the_last_third_of_the_models():
    data, models = make_data(), []
    for rounds in range(1, 12):
        models.append(
            run("gradient_descent", data, budget=None, rounds=rounds, clip=1.0, step_size=1.0).w
        )
    for rounds in (3, 7, 11):
        how = {"budget": None, "rounds": rounds, "clip": 1.0, "returns": "tail", "step_size": 1.0}
        expected = np.mean(models[rounds - math.ceil(rounds / 3) : rounds], axis=0)
        found = run("gradient_descent", data, **how).w
        np.testing.assert_allclose(found, expected, rtol=1e-12)


@for_each(
    ("solver", "options"),
    [
        ("gradient_descent", {}),
        ("federated_gd", {"local_steps": 3}),
        ("federated_gd", {"local_steps": 2, "trust": "silo", "accounting": "last_iterate"}),
        ("local_sgd", {"local_steps": 2, "noise": "round"}),
        ("minibatch_sgd", {"participation": 2}),
        ("spider", {"refresh_every": 3}),
        ("prox_svrg", {}),
        ("double_noise_newton", {}),
    ],
)
def test_a_number_of_last_iterates_is_averaged_and_they_are_what_rounds_release(solver, options):
    """Those of shorter runs; hidden local steps are in no average, and nothing else changes."""
    data, R = make_data(), 6
    step = {} if solver == "double_noise_newton" else {"step_size": 0.5}
    step |= {"l2": 0.5} if "accounting" in options else {}
    how = {"budget": None, "clip": 1.0, **step, **options}
    shorter = [run(solver, data, rounds=r, returns="last", **how) for r in range(1, R + 1)]
    for returned, last in ((1, 1), (4, 4), (0.5, 3), (99, 6), ("tail", 2)):
        found = run(solver, data, rounds=R, returns=returned, **how)
        expected = np.mean([one.w for one in shorter[R - last :]], axis=0)
        np.testing.assert_allclose(found.w, expected, rtol=1e-10)
        assert found.history == shorter[-1].history
        assert found.privacy.releases == shorter[-1].privacy.releases


def test_what_is_averaged_costs_nothing():
    """It is post-processing: noise and guarantee are those of the last iterate."""
    how = {"clip": 1.0, "rounds": 12, "step_size": 0.5}
    last, tail = (run("gradient_descent", make_data(), returns=r, **how) for r in ("last", 8))
    assert last.privacy.mu == tail.privacy.mu
    assert last.privacy.releases == tail.privacy.releases
    assert not np.array_equal(last.w, tail.w)
    assert tail.privacy.declared["returns"] == 8


@for_each("value", [0, -1, 1.0, 0.0, math.nan, True, None, "best", [3]])
def test_what_is_no_number_of_iterates_is_refused(value):
    for solver in ("gradient_descent", "minibatch_sgd", "double_noise_newton"):
        with pytest.raises((TypeError, ValueError), match=r"^returns must"):
            run(solver, make_data(), returns=value)


@for_each("solver", ["minibatch_sgd", "prox_sgd", "prox_svrg", "spider"])
def test_models_have_the_settings_of_their_scale(solver):
    """Softmax regression has those of a linear model, a perceptron less noise in margins."""
    rng = np.random.default_rng(0)
    X, y = rng.uniform(size=(900, 4)), np.arange(900) % 3
    data = dpk.SiloData.split(X, y, 3, row_bound=2.0, task="multiclass", classes=[0, 1, 2])
    linear, deep = (
        run(
            solver,
            data,
            model=dpk.MLP(hidden=hidden),
            **({"rounds": 9} if solver == "prox_sgd" else {}),
        )
        for hidden in ((), (5,))
    )
    found = settings(linear)
    assert "auto" not in map(str, [*found.values(), *settings(deep).values()])
    bound = math.sqrt(5.0)
    assert found["clip"] <= bound * math.sqrt(2.0 / 3.0)
    assert settings(deep)["step_size"] <= found["step_size"] + 1e-12
    if solver == "minibatch_sgd":
        horizon = found["rounds"] * found["step_size"]
        noise = bound * (2.0 / data.n) * found["clip"] * horizon / BUDGET.mu
        assert noise == pytest.approx(9.0)
        other = settings(deep)
        assert other["rounds"] * other["step_size"] * other["clip"] == pytest.approx(
            0.4 * horizon * found["clip"]
        )


def test_a_round_with_two_updates_counts_twice_in_the_horizon():
    """Algorithm 11 in R rounds has the steps and the clip norm of SPIDER in 2 R - 2."""
    data, same = make_data(), ("clip", "step_size")
    for rounds in (2, 40):
        found = settings(run("spider", data, variant="alternate", rounds=rounds))
        expected = settings(run("spider", data, rounds=2 * rounds - 2))
        assert [found[name] for name in same] == [expected[name] for name in same]
        assert found["rounds"] == rounds
    found = run("spider", data, variant="alternate")
    expected = run("spider", data, rounds=found.n_rounds)
    assert settings(found)["rounds"] == 1 + found.n_rounds // 2
    assert settings(found)["step_size"] == settings(expected)["step_size"]


def test_rare_counts_take_less_noise_in_margins_by_the_root_of_their_mean():
    """In the middle of the bounds of means, and as those of means of 1 beyond."""
    X = np.zeros((100_000, 6))
    data = dpk.SiloData(
        X, np.ones(len(X)), [0, len(X)], task="regression", row_bound=1.0, intercept=True
    )

    def noise(middle):
        low, high = math.log(middle) - 2.0, math.log(middle) + 2.0
        found = settings(run("gradient_descent", data, loss=dpk.losses.Poisson(low, high, 50.0)))
        horizon = found["rounds"] * found["step_size"] / (1.0 - found["momentum"])
        return horizon * found["clip"]

    assert noise(0.05) == pytest.approx(0.5 * noise(0.2), rel=1e-6)
    assert noise(0.01) == pytest.approx(math.sqrt(0.05) * noise(0.2), rel=1e-6)
    assert noise(5.0) == pytest.approx(noise(1.0), rel=1e-6)
    unbounded = margin_scale(dpk.losses.NegativeBinomial(4.0, max_target=50.0), 1.0, dim=7)
    assert unbounded.information == 1.0  # no bounds say of its means that they are small


def test_batches_are_so_large_that_larger_ones_have_hardly_less_noise():
    data, options = make_data(n=6000), {"sampling": "without_replacement", "rounds": 100}
    chosen = settings(run("minibatch_sgd", data, **options))["batch_size"]
    assert chosen == math.ceil(3.0 * 2000 * BUDGET.mu / 10.0)
    noise = {}
    for size in (chosen // 8, chosen, 4 * chosen):
        drawn = run("minibatch_sgd", data, clip=0.1, batch_size=size, **options)
        noise[size] = drawn.privacy.releases[0].std / size
    assert noise[chosen] < 1.15 * noise[4 * chosen]
    assert noise[chosen] < 0.7 * noise[chosen // 8]
    one_pass = settings(run("prox_sgd", data))
    assert one_pass["batch_size"] == 2000 // one_pass["rounds"]
    assert settings(run("minibatch_sgd", data, budget=None, **options))["batch_size"] == 2000


@pytest.mark.filterwarnings("ignore::UserWarning")
@for_each(("name", "trust"), TRUSTS)
def test_the_unit_of_targets_does_not_matter(name, trust):
    """Targets, their bound and clip norms times 2^k: the same steps and noise, in that unit.

    The clip norm of `newton_inference` is one of rows alone.
    """
    rng = np.random.default_rng(0)
    X = rng.uniform(-0.5, 0.5, (600, 3))
    y = np.clip(X @ np.array([0.5, -0.3, 0.2]), -1.0, 1.0)
    results = []
    for unit in (1.0, 2.0**9):
        data = dpk.SiloData.split(
            unit * X / unit, unit * y, 3, seed=0, row_bound=1.0, target_bound=unit,
            task="regression",
        )  # fmt: skip
        results.append(run(name, data, trust, loss="squared"))
    one, other = results
    unit = 1.0 if name == "newton_inference" else 2.0**9
    assert other.parameters["clip"] == pytest.approx(unit * one.parameters["clip"])
    for option in {"rounds", "step_size", "prox_step", "momentum", "batch_size"} & set(SETTINGS):
        if option in one.parameters and one.parameters[option] is not None:
            assert other.parameters[option] == pytest.approx(one.parameters[option]), option
    np.testing.assert_allclose(other.w / 2.0**9, one.w, rtol=1e-3, atol=2e-2)


def test_batches_in_turn_have_their_number_of_rounds():
    data = make_data(n=3000)
    found = settings(run("minibatch_sgd", data, sampling="one_pass"))
    assert found == settings(run("prox_sgd", data)) | {"returns": found["returns"]}
    assert found["batch_size"] * found["rounds"] <= 1000
    assert settings(run("minibatch_sgd", data))["rounds"] == 300


# ---- what public numbers say of a run beforehand

SIZES = (1e-320, 1e-160, 1e-30, 1e-12, 1e6, 1e12, 1e30, 1e160, 1e300)
EXTREMES = ("row_bound", "feature_range", "target_bound", "clip", "l2", "l1", "step_size")


@for_each("extreme", EXTREMES)
@pytest.mark.parametrize("name", SOLVERS)
def test_no_extreme_number_costs_a_budget_without_a_model(name, extreme):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.0, 1.0, (60, 2))
    real = extreme == "target_bound" or name == "ridge"
    y = X[:, 0] if real else X[:, 0] > 0.0
    steps = {"local_sgd": {"local_steps": 2}, "wd_dp": {"local_steps": 40}}.get(name, {})
    loss, spent = {"loss": "squared"} if real else {}, []
    for size in SIZES:
        of_data, given = {"row_bound": 1.5, "target_bound": 1.0 if real else None}, dict(steps)
        if extreme in ("row_bound", "target_bound"):
            of_data[extreme] = size
        elif extreme == "feature_range":
            of_data[extreme] = (-size, size)
        else:
            given[extreme] = size
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                data = SiloData.split(X, y, 2, seed=0, intercept=True, **of_data)
                found = dpk.solve(name, data, budget=BUDGET, rng=0, **loss, **given)
        except (TypeError, ValueError) as error:
            spent += [(size, str(error))] if getattr(error, "__notes__", []) else []
        else:
            spent += [] if np.isfinite(found.coef).all() else [(size, "not finite")]
    assert not spent


@for_each(
    ("options", "message"),
    [
        ({"l2": 1e60}, r"l2 must be between 0 and 1e\+50"),
        ({"step_size": 10.0, "l2": 10.0}, "step_size must be at most 2 / 10"),
        ({"step_size": 10.0, "penalty": PL(10.0)}, "step_size must be at most 2 / 20"),
        ({"clip": 1e-60}, "clip must be between 1e-50"),
        ({"rounds": 10**9}, r"rounds must be at most 67108864, got rounds=1000000000: .* GiB"),
        ({"local_steps": 10**9}, r"local_steps must be at most .* GiB and .* hours"),
    ],
)
def test_what_cannot_run_is_refused_before_it(options, message):
    data = SiloData.split([[0.1], [0.2]] * 30, [0, 1] * 30, 2, seed=0, row_bound=1.0)
    solver = "wd_dp" if "local_steps" in options else "gradient_descent"
    with pytest.raises(ValueError, match=message) as caught:
        dpk.solve(solver, data, budget=dpk.Budget(epsilon=1.0, delta=1e-5), **options)
    assert not getattr(caught.value, "__notes__", [])


def test_a_run_of_hours_is_announced():
    X = np.zeros((20_000, 2))
    data = SiloData.split(X, [0, 1] * 10_000, 1, seed=0, row_bound=1.0)
    objective = Objective(data, get_loss("logistic"))
    with pytest.warns(LongRunWarning, match=r"rounds=50000000 may take about .* hours of one core"):
        announce_length(objective, {"rounds": 50_000_000})


def test_a_free_intercept_takes_a_longer_horizon_beside_a_penalty():
    """3 / l, and up to three times it, with n mu, where the intercept of targets is free."""

    def horizon(n, **options):
        rows = {"row_bound": 1.0, "intercept": True, "task": "regression", "target_bound": 1.0}
        data = dpk.SiloData(np.zeros((n, 1)), np.zeros(n), [0, n], **rows)
        options |= {"budget": dpk.Budget(mu=1.0), "l2": 0.1, "loss": "squared"}
        found = settings(run("federated_gd", data, recalibrate=False, **options))
        return found["rounds"] * found["step_size"]

    assert horizon(600) == pytest.approx(30.0)
    assert horizon(1200) == pytest.approx(60.0)
    assert horizon(100_000) == pytest.approx(90.0)
    assert horizon(100_000, penalize_intercept=True) == pytest.approx(30.0)


def test_targets_whose_level_is_released_have_half_the_least_clip_norm():
    """Where n mu is 150, and penalties do not outweigh what is clipped."""

    def clip(n=1000, **options):
        rows = {"row_bound": 2.0, "intercept": True, "task": "regression", "target_bound": 3.0}
        data = dpk.SiloData(np.zeros((n, 3)), np.zeros(n), [0, n], **rows)
        options = {"budget": dpk.Budget(mu=1.0), "loss": "squared"} | options
        return settings(run("gradient_descent", data, **options))["clip"] / (2.0 * 3.0)

    assert clip() == clip(l2=1e-6) == pytest.approx(0.07)
    assert clip(recalibrate=False) == clip(l2=0.01) == pytest.approx(0.14)
    assert clip(loss=dpk.losses.Huber(10.0)) == pytest.approx(0.14)
    assert clip(n=140) > 0.139


def test_targets_take_more_noise_by_the_root_of_the_records():
    """(n mu / (10 d))^(1/2) times 0.04 of 9, from one to three times."""

    def noise(power):
        rows = {"row_bound": 2.0, "intercept": True, "task": "regression", "target_bound": 3.0}
        data = dpk.SiloData(np.zeros((1000, 3)), np.zeros(1000), [0, 1000], **rows)
        options = {"budget": dpk.Budget(mu=power / 1000.0), "loss": "squared", "rounds": 10_000}
        found = settings(run("gradient_descent", data, recalibrate=False, **options))
        horizon = 10_000 * found["step_size"] / (1.0 - found["momentum"])
        return 2.0 * (2.0 / power) * found["clip"] * horizon / (0.04 * 3.0 * 9.0)

    expected = [1.0, 1.0, 2.0, 3.0, 3.0]
    assert [noise(4.0 * x) for x in (5.0, 10.0, 40.0, 90.0, 200.0)] == pytest.approx(expected)


def test_steps_too_long_for_the_penalties_are_shortened():
    data = SiloData.split([[0.1], [0.2]] * 30, [0, 1] * 30, 1, seed=0, row_bound=1e-12)
    budget = dpk.Budget(epsilon=1.0, delta=1e-5)
    found = dpk.solve("auto", data, budget=budget, l2=0.01, rng=0)
    assert found.parameters["step_size"] == pytest.approx(1.0)
    found = dpk.solve("auto", data, budget=budget, l2=0.01, rng=0, rounds=2)
    assert found.parameters["step_size"] == pytest.approx(100.0)


@pytest.mark.parametrize("epsilon", [1.0, 10.0])
def test_larger_clip_norms_of_targets_take_less_of_the_noise_once(epsilon):
    """Of what a larger budget buys, a part is less noise, beside which residuals are small."""
    X = np.random.default_rng(0).uniform(-1.0, 1.0, (10_000, 1))
    data = dpk.SiloData(
        X, 0.1 * X[:, 0], [0, 10_000], task="regression", target_bound=1.0, intercept=True,
        row_bound=math.sqrt(2.0),
    )  # fmt: skip
    budget = dpk.Budget(epsilon=epsilon, delta=1e-6)
    result = dpk.solve("wd_dp", data, budget=budget, rng=0, loss="squared")
    most = margin_noise(2, labels=False)
    larger = result.parameters["clip"] > 0.5001 * data.row_bound
    assert larger == (epsilon > 1.0)
    (model,) = [r for r in result.privacy.releases if r.what.startswith("average model")]
    found = data.row_bound * model.std
    assert found <= 1.001 * most * (0.1 if larger else 0.14)


def test_several_classes_do_not_get_worse_with_the_budget():
    """Of columns off centre: without a shorter step iterates oscillate where nothing is clipped."""
    rng = np.random.default_rng(0)
    X, W = rng.uniform(0.4, 1.0, (30_000, 8)), 4.0 * rng.standard_normal((8, 4))
    Z = X @ W - (X @ W).mean(axis=0)
    p = np.exp(Z) / np.exp(Z).sum(axis=1, keepdims=True)
    y = (rng.random((len(X), 1)) > np.cumsum(p, axis=1)).sum(axis=1).clip(0, 3)
    how = {"row_bound": math.sqrt(8.0), "task": "multiclass", "classes": range(4)}
    data = dpk.SiloData(X[:20_000], y[:20_000], [0, 20_000], **how)
    losses = []
    for epsilon in (1.0, 20.0):
        found = []
        for seed in range(3):
            budget = dpk.Budget(epsilon=epsilon, delta=1e-6)
            result = dpk.solve("auto", data, budget=budget, rng=seed)
            given = result.parameters
            C, L = given["clip"], 0.5 * 9.0
            assert given["step_size"] * C * L <= 8.0 * 3.0 * math.sqrt(0.75) * (1.0 + 1e-9)
            of_labels = result.predict_proba(X[20_000:])[np.arange(10_000), y[20_000:]]
            found.append(-np.log(of_labels).mean())
        losses.append(np.mean(found))
    of_truth = -np.log(p[np.arange(20_000, 30_000), y[20_000:]]).mean()
    assert losses[1] < losses[0] + 0.003
    assert losses[1] < of_truth + 0.05


def test_several_classes_without_clipping_or_noise_have_a_step():
    rng = np.random.default_rng(0)
    X, y = rng.uniform(-1.0, 1.0, (300, 3)), rng.integers(0, 3, 300)
    how = {"row_bound": math.sqrt(3.0), "task": "multiclass", "classes": range(3)}
    data = dpk.SiloData(X, y, [0, 300], **how)
    for clip in (math.inf, "auto"):
        assert dpk.solve("auto", data, budget=None, clip=clip).parameters["step_size"] > 0.0
