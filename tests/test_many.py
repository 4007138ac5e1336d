"""Runs in lock-step: each has the bits, ledger and certificate of the run by itself."""

import math
import warnings

import numpy as np
import pytest
import scipy.sparse
from cases import for_each
from makers import spy_on_calls

import dpkern as dpk
from dpkern import _core, kernels
from dpkern._numbers import rounded_up
from dpkern.models.penalties import L1, L2
from dpkern.privacy import compose_sequential
from dpkern.solvers import SOLVERS, Results
from dpkern.solvers.base import backends

BUDGETS = [dpk.Budget(epsilon=1.0, delta=1e-5), dpk.Budget(mu=0.5)]
HOW = {"clip": [0.5, 1.0], "rng": 3, "draws": 2}
OWN = {
    "gradient_descent": {"rounds": [5, 8], "step_size": [0.1, (0.5,) * 8], "l2": [0.0, 0.1]},
    "federated_gd": {"rounds": 5, "step_size": 0.5, "local_steps": [1, 2]},
    "minibatch_sgd": {"rounds": 5, "penalty": [L1(0.01), L1(0.1)]},
    "local_newton": {"rounds": [3, 4], "hess_clip": [0.5, 1.0]},
    "double_noise_newton": {"rounds": 3, "hess_clip": 0.5},
    "ridge": {"hess_clip": [0.5, 1.0], "l2": 0.1},
    "fixed_point": {"rounds": 5, "step_size": 0.5},
    "admm": {"rounds": 5, "prox_step": 1.0},
    "spider": {"rounds": 5, "step_size": 0.5, "returns": ["tail", 4]},
}


def records(m=2, n=120, p=6, **options):
    rng = np.random.default_rng(1)
    X = rng.standard_normal((n, p))
    y = np.where(X[:, 0] + rng.standard_normal(n) > 0.0, 1.0, -1.0)
    return dpk.SiloData(X, y, np.linspace(0, n, m + 1).astype(int), row_bound=3.0, **options)


def alone(name, data, row, fixed):
    """The run of a row by itself."""
    budget = next(b for b in BUDGETS if (b.epsilon or None) == row["epsilon"])
    varied = {k: v for k, v in row.items() if k not in ("epsilon", "delta", "mu", "draw")}
    return dpk.solve(name, data, budget=budget, **{**fixed, **varied})


def assert_alone(runs, name, data, fixed):
    """Every run of them is the run of its row by itself."""
    for row, result in zip(runs.settings, runs, strict=True):
        assert result == alone(name, data, row, fixed)


def models(calls):
    """The number of models of each call of a kernel for several."""
    return [len(call.given[1]) for call in calls]


@pytest.mark.filterwarnings("ignore::UserWarning")
@for_each("name", OWN)
@for_each("trust", ["central", "silo"])
def test_every_run_is_the_run_by_itself(name, trust):
    if trust not in SOLVERS[name].declaration.trusts:
        return
    data, fixed = records(), OWN[name] | {"trust": trust}
    if name == "admm" and trust == "silo":
        fixed["users"] = "silos"
    if name == "gradient_descent":  # steps of 8 rounds
        fixed["rounds"] = 8
    runs = dpk.solve_many(name, data, budgets=BUDGETS, **HOW, **fixed)
    lists = [v for v in (HOW | fixed).values() if isinstance(v, list)]
    assert len(runs) == len(BUDGETS) * HOW["draws"] * math.prod(map(len, lists))
    assert len({row["rng"] for row in runs.settings}) == len(runs)
    for row, result in zip(runs.settings, runs, strict=True):
        one = alone(name, data, row, fixed)
        assert result == one
        assert result.history == one.history
        assert result.parameters == one.parameters
        assert result.privacy.releases == one.privacy.releases
        assert result.timing["total"] >= result.timing["kernels"] >= 0.0


def test_rounds_of_runs_are_one_pass_as_long_as_they_have_as_many(monkeypatch):
    calls = spy_on_calls(monkeypatch, _core, "glm_descent")
    fixed = {"clip": 1.0, "step_size": 0.5}
    how = fixed | {"rng": 0, "draws": 3, "rounds": [36, 37], "l1": [0.0, 0.1]}
    runs = dpk.solve_many("gradient_descent", records(), budgets=BUDGETS, **how)
    noise = [next(a for a in call.given if np.ndim(a) == 3) for call in calls]
    passes = [(k, a.shape[1]) for k, a in zip(models(calls), noise, strict=True)]
    together = {rounds: sum(k for k, t in passes if t == rounds) for rounds in (32, 4, 5)}
    assert together == {32: len(runs), 4: len(runs) // 2, 5: len(runs) // 2}
    assert len(passes) == 6  # runs with l1 have a prox, the others have none
    assert_alone(runs, "gradient_descent", records(), fixed)


@pytest.mark.usefixtures("round_by_round")
def test_gradients_of_a_round_are_one_pass(monkeypatch):
    calls = spy_on_calls(monkeypatch, kernels, "glm_gradients")
    monkeypatch.setattr(backends, "_MODELS", 4)
    how = {"clip": 1.0, "step_size": 0.5, "rng": 0, "draws": 3}
    dpk.solve_many("gradient_descent", records(), budgets=BUDGETS, rounds=[5, 7], **how)
    # Twelve runs, of which six end after five rounds.
    assert models(calls) == [4, 4, 4] * 5 + [4, 2] * 2


def test_hessians_of_sparse_records_are_one_pass(monkeypatch):
    calls = spy_on_calls(monkeypatch, kernels, "glm_hessians")
    dense = records()
    data = dpk.SiloData(
        scipy.sparse.csr_array(np.asarray(dense.X)), dense.y, dense.offsets, row_bound=3.0
    )
    how = {"clip": 1.0, "rounds": 3, "hess_clip": [0.5, 1.0], "rng": 0}
    runs = dpk.solve_many("local_newton", data, budgets=BUDGETS, **how)
    assert models(calls) == [4] * 3
    assert_alone(runs, "local_newton", data, how)


def test_directions_of_a_round_are_one_call(monkeypatch):
    """Those of runs with as many silos, by the kernel to which they are more silos."""
    for trust, silos in (("central", 1), ("silo", 2)):
        fixed = {"clip": 1.0, "hess_clip": 0.5, "trust": trust}
        with monkeypatch.context() as patch:
            calls = spy_on_calls(patch, _core, "newton_direction")
            more = {"rounds": [2, 3], "rng": 0, "draws": 2}
            runs = dpk.solve_many("local_newton", records(), budgets=BUDGETS, **fixed, **more)
        # Half of the runs end after two rounds.
        assert [len(call.given[0]) for call in calls] == [8 * silos] * 2 + [4 * silos]
        assert_alone(runs, "local_newton", records(), fixed)


def test_directions_follow_the_pass_of_their_hessians(monkeypatch):
    """So that the Hessians of other passes are not in memory at the same time."""
    order, several, direction = [], kernels.glm_hessians, _core.newton_direction

    def hessians(data, w, **how):
        order.append(f"{len(w)} Hessians")
        return several(data, w, **how)

    def directions(H, *arguments):
        order.append(f"{len(H)} directions")
        direction(H, *arguments)

    monkeypatch.setattr(kernels, "glm_hessians", hessians)
    monkeypatch.setattr(_core, "newton_direction", directions)
    monkeypatch.setattr(backends, "_SUMS", 100)  # two Hessians of 2 silos and 6 coordinates
    how = {"clip": 1.0, "rounds": 1, "hess_clip": 0.5, "rng": 0}
    runs = dpk.solve_many("local_newton", records(), budgets=BUDGETS, draws=2, **how)
    assert order == ["2 Hessians", "2 directions"] * 2
    assert_alone(runs, "local_newton", records(), how)


@pytest.mark.usefixtures("round_by_round")
def test_a_pass_has_fewer_models_where_their_sums_are_long(monkeypatch):
    calls = spy_on_calls(monkeypatch, kernels, "glm_gradients")
    monkeypatch.setattr(backends, "_SUMS", 30)  # 2 silos, 6 coordinates
    how = {"clip": 1.0, "rounds": 2, "step_size": 0.5, "rng": 0}
    runs = dpk.solve_many("gradient_descent", records(), budgets=BUDGETS, draws=3, **how)
    assert models(calls) == [3, 3] * 2
    assert_alone(runs, "gradient_descent", records(), how)


@pytest.mark.usefixtures("round_by_round")
def test_runs_that_differ_in_more_than_models_are_passes_of_their_own(monkeypatch):
    monkeypatch.setattr(kernels, "glm_gradients", None)
    for varied in ({"loss": ["logistic", "squared"]}, {"weights": ["size", "uniform"]}):
        data = records(m=1) if "loss" in varied else records(n=121)
        runs = dpk.solve_many(
            "gradient_descent", data, budgets=BUDGETS[0], clip=1.0, rounds=2, rng=0, **varied
        )
        assert len(runs) == 2
    without = dpk.solve_many("gradient_descent", records(), budgets=None, draws=2, rounds=2, rng=0)
    assert without[0] == without[1]


def test_all_runs_together_cost_their_composition():
    runs = dpk.solve_many("gradient_descent", records(), budgets=BUDGETS, clip=1.0, draws=3, rng=0)
    together = compose_sequential(*(result.privacy for result in runs))
    assert runs.privacy == together
    assert runs.privacy.mu > max(result.privacy.mu for result in runs)
    assert f"releasing all of them costs epsilon {rounded_up(together.epsilon(1e-6), 6)}" in str(
        runs
    )
    assert "6 runs" in repr(runs)
    assert str(runs).endswith("(seeded: not private)")
    assert str(runs[:0]).endswith("0 runs")
    only = dpk.solve_many("gradient_descent", records(), budgets=None, rounds=2)
    assert "together they certify nothing" in str(only)


def test_the_cost_of_runs_is_that_of_their_certificates():
    """Not of the budgets, which a paper's calibration may exceed."""
    how = {"clip": 1.0, "rounds": 30, "local_steps": 2, "calibration": "paper", "draws": 2}
    runs = dpk.solve_many("federated_gd", records(), budgets=BUDGETS[0], **how)
    assert runs[0].privacy.epsilon(1e-5) > BUDGETS[0].epsilon
    together = compose_sequential(*(result.privacy for result in runs)).epsilon(1e-5)
    assert (
        f"certificate; releasing all of them costs at most epsilon {rounded_up(together, 6)}"
        in str(runs)
    )


def test_results_are_a_table():
    data = records()
    how = {"clip": 1.0, "rounds": 4, "penalty": [L1(0.1), L2(0.2)]}
    runs = dpk.solve_many("gradient_descent", data, budgets=BUDGETS, rng=[5, 6, 7, 8], **how)
    assert isinstance(runs, Results)
    rows = runs.to_dicts()
    assert [row["rng"] for row in rows] == [5, 6, 7, 8]
    assert [row["epsilon"] for row in rows] == [1.0, 1.0, None, None]
    assert [row["mu"] for row in rows] == [None, None, 0.5, 0.5]
    assert rows[0]["penalty"] == {"name": "l1", "strength": 0.1}
    assert rows[3]["result"] is runs[3]
    assert runs[2:][0] is runs[2]
    np.testing.assert_array_equal(
        runs.scores(data.X, data.y), [r.score(data.X, data.y) for r in runs]
    )
    assert [row["rng"] for row in rows] == [5, 6, 7, 8]


def test_wrong_arguments_are_refused_before_any_release(monkeypatch):
    monkeypatch.setattr(kernels, "glm_gradient", None)
    data = records()
    for wrong, kind, message in (
        ({"clip": [1.0, -1.0]}, ValueError, "clip must be positive"),
        ({"clip": []}, ValueError, "clip must hold at least one value"),
        ({"budgets": []}, ValueError, "budgets must hold at least one value"),
        ({"budgets": 1.0}, TypeError, r"budgets must be dpkern.Budget\(.*\) or None, got float"),
        ({"budgets": [1.0]}, TypeError, r"budgets must be dpkern.Budget\(.*\) or None, got float"),
        ({"draws": 0}, ValueError, "draws must be at least 1"),
        ({"rng": [1, 2]}, ValueError, "rng must hold one seed per run, 1"),
        ({"rng": -1}, ValueError, "rng must be at least 0"),
        ({"rng": dpk.NoiseStream(0)}, TypeError, "rng must be an integer"),
        ({"callback": print}, TypeError, "callback must be left out in solve_many"),
        ({"progress": True}, TypeError, "progress must be left out in solve_many"),
        ({"step_sise": 1.0}, TypeError, "did you mean 'step_size'"),
        ({"budget": BUDGETS[0]}, TypeError, "has no argument 'budget'"),
    ):
        how = {"budgets": BUDGETS[0], "clip": 1.0, "step_size": 0.5} | wrong
        with pytest.raises(kind, match=message):
            dpk.solve_many("gradient_descent", data, **how)
    with pytest.raises(ValueError, match="name must be one of"):
        dpk.solve_many("gradient_decent", data, budgets=None)


@pytest.mark.usefixtures("round_by_round")
def test_a_failure_says_what_every_run_has_released(monkeypatch):
    """Those that have ended too, as their results are lost."""
    calls = []
    several = kernels.glm_gradients

    def fails(data, w, **how):
        calls.append(len(w))
        if len(calls) == 4:
            raise RuntimeError("power cut")
        return several(data, w, **how)

    monkeypatch.setattr(kernels, "glm_gradients", fails)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # coroutines that nobody awaited
        with pytest.raises(RuntimeError, match="power cut") as failure:
            dpk.solve_many(
                "gradient_descent", records(), budgets=BUDGETS, draws=3, clip=1.0, rounds=[2, 5]
            )
    assert calls == [12, 12, 6, 6]
    notes = failure.value.__notes__
    assert len(notes) == 4
    for note, rounds in zip(notes, [2, 3, 2, 3], strict=True):
        released = f"sum of clipped gradients: {rounds} x 6 coordinates"
        assert note.startswith(f"released before the failure: {released}")
        assert note.endswith("in each of 3 of 12 runs")
