"""Every solver: noiseless limit, calibration, certificate, determinism, clear errors."""

import dataclasses
import functools
import json
import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.sparse
from adversarial import CHOSEN, EVERY_LOSS
from cases import for_each, for_each_in
from makers import BUDGET, make_table
from pairwise import covering

import dpkern as dpk
from dpkern.models.losses import LOSSES
from dpkern.models.penalties import (
    L1,
    L2,
    PL,
    Box,
    ElasticNet,
    GroupLasso,
    L2Ball,
    NonNegative,
    Simplex,
)
from dpkern.solvers import SOLVERS, Objective


def make_data(task="classification", n=240, p=5, m=4, seed=0, **options):
    X, y = make_table(n, p, task, seed=seed, labels=("no", "yes"))
    options = {"row_bound": 2.0, "intercept": True} | options
    return dpk.SiloData.split(X, y, m, how="random", seed=seed, min_size=20, **options)


@pytest.fixture(scope="module")
def data():
    return make_data()


DECLARED = {name: solver.declaration for name, solver in SOLVERS.items()}
OFFERED = [(name, trust) for name, declared in DECLARED.items() for trust in declared.trusts]
every_offer = for_each(("solver", "trust"), OFFERED)
# In one pass a record is in one round: as many rounds as records, and no optimum.
UNBOUNDED = [name for name, declared in DECLARED.items() if declared.samplers != ("one_pass",)]
UNBOUNDED.remove("newton_inference")  # with losses and weights of its own (test_inference)
UNBOUNDED.remove("ridge")  # one step, which is the optimum of the squared loss alone (test_ridge)
UNBOUNDED.remove("localized_sgd")  # whose phases have a part of the records (test_localized_sgd)


def length(solver, k):
    """The argument that makes a run of k steps, if the solver does not take a fixed number."""
    k = max(k, 4) if solver == "newton_inference" else k
    own = [name for name in ("rounds", "local_steps") if name in DECLARED[solver].own]
    return dict.fromkeys(own[:1], k)


def users(solver, trust="central", weights="size"):
    """Silos have to be named as the users of ADMM where they add noise or have weights."""
    named = solver == "admm" and (trust == "silo" or weights == "uniform")
    return {"users": "silos"} if named else {}


def second_order(solver):
    return "hess_clip" in DECLARED[solver].own


def one_shot(solver):
    return "rounds" not in DECLARED[solver].own


def stays_apart(solver):
    """Whether silos go several steps alone, so that only equal ones share an optimum."""
    steps = DECLARED[solver].own.get("local_steps")
    return steps is not None and steps.default is not None and solver != "federated_gd"


def alike(data, m):
    """m silos with the records of `data` each: every silo's optimum is the common one."""
    options = {"row_bound": data.row_bound, "intercept": data.intercept, "task": data.task}
    return dpk.SiloData.from_silos([(data.X, data.y)] * m, **options)


def noiseless_cases():
    """Every solver with every loss, and with all of weights and l1; so every loss; all trusts."""
    losses = [make() for name, make in LOSSES.items() if name not in CHOSEN]
    losses += [loss for loss in EVERY_LOSS if loss.name in CHOSEN]  # of a moderate curvature
    weighted = ("size", "uniform")
    sizes = len(UNBOUNDED), len(losses), 2, 2
    for i, k, l1, w in covering(sizes, ((0, 1), (0, 2, 3), (1, 2, 3))):
        solver, loss = UNBOUNDED[i], losses[k]
        if (solver, loss.name) != ("double_noise_newton", "smoothed_hinge"):
            # where the curvature jumps whole Newton steps can go round in circles
            strength = 0.02 * l1 if DECLARED[solver].penalties == "any" else 0.0
            yield solver, "central", loss, strength, weighted[w]
    for solver in UNBOUNDED:
        strength = 0.02 if DECLARED[solver].penalties == "any" else 0.0
        for trust in sorted(set(DECLARED[solver].trusts) - {"central", "shuffle"}):
            yield solver, trust, dpk.losses.Logistic(), strength, "size"


@functools.cache
def common_optimum(data, **options):
    """The minimum of an objective that several solvers are to find."""
    return Objective(data, **options).minimum()


@functools.cache
def alike_or_not(task, equal):
    """Data of several tests: of silos that differ, or of three equal ones."""
    return alike(make_data(task), 3) if equal else make_data(task)


def by_solver(cases):
    """What follows the solver, by solver."""
    found = {}
    for solver, *case in dict.fromkeys(cases):
        found.setdefault(solver, []).append(case)
    return found


@for_each_in("solver", "trust, loss, l1, weights", by_solver(noiseless_cases()))
def test_noiseless_run_reaches_the_optimum_that_scipy_finds(solver, trust, loss, l1, weights):
    equal = stays_apart(solver) or (second_order(solver) and trust == "silo")
    data = alike_or_not(loss.task, equal)
    options = {"l2": 0.1, "weights": weights, "trust": trust}
    # Steps of steeper losses are smaller; a round of local SGD is 20 of them.
    steep = loss.smoothness > 1.0 and solver != "local_sgd"
    options |= length(solver, 4000 if steep else 1000)
    options |= users(solver, trust, weights)
    if l1 > 0.0:
        options["l1"] = l1
    if second_order(solver):
        options["rounds"] = 40
    elif math.isinf(loss.smoothness) and not one_shot(solver):
        options["prox_step" if solver == "admm" else "step_size"] = 0.1
    try:
        result = dpk.solve(solver, data, budget=None, loss=loss, **options)
    except ValueError as error:
        refusals = [] if loss.convex else [f"loss must be convex in {solver}"]
        refusals += [] if math.isfinite(loss.kappa) else ["loss.kappa must be finite"]
        if math.isinf(loss.smoothness):
            refusals += ["bounded second derivative", "loss.smoothness must be finite"]
        if not any(words in str(error) for words in refusals):
            raise
        return
    assert result.converged or one_shot(solver)
    if not loss.convex:
        return  # a stationary point is all that is promised
    of_all = {"penalize_intercept": result.parameters["penalize_intercept"]}
    objective = Objective(data, loss, l2=0.1, l1=l1, weights=weights, **of_all)
    w, value = common_optimum(data, loss=loss, l2=0.1, l1=l1, weights=weights, **of_all)
    assert objective.value(result.w) - value <= 1e-8 * max(1.0, abs(value))
    np.testing.assert_allclose(result.w, w, atol=1e-4)


PENALIZED = [name for name, declared in DECLARED.items() if declared.penalties == "any"]
PENALTIES = [
    L2(0.2),
    ElasticNet(0.05, l1_ratio=0.4),
    GroupLasso(0.05, groups=[1, 3, 1]),
    L2Ball(0.4),
    Box(-0.1, [0.3, 0.1, 0.2, 0.05, 1.0]),
    NonNegative(),
    Simplex(0.7),
    PL(0.05),
    L2(0.1) + L1(0.01) + PL(0.05),
]


@pytest.mark.parametrize("solver", sorted(set(PENALIZED) & set(UNBOUNDED)))
def test_noiseless_run_reaches_the_optimum_with_every_penalty(solver):
    data = alike_or_not("classification", True)
    for penalty in PENALTIES:
        options = {"l2": 0.02, "penalty": penalty, "penalize_intercept": False}
        result = dpk.solve(solver, data, budget=None, **options, **length(solver, 1000))
        objective = Objective(data, dpk.losses.Logistic(), **options)
        w, value = common_optimum(data, loss=dpk.losses.Logistic(), **options)
        assert objective.value(result.w) - value <= 1e-9
        np.testing.assert_allclose(result.w, w, atol=1e-5)


@for_each("penalty", PENALTIES, ids=str)
def test_a_minimum_is_no_worse_than_its_neighbours(penalty):
    """Which makes it the minimiser of a convex J."""
    data = alike_or_not("classification", True)
    options = {"l2": 0.02, "penalty": penalty, "penalize_intercept": False}
    objective = Objective(data, dpk.losses.Logistic(), **options)
    w, value = common_optimum(data, loss=dpk.losses.Logistic(), **options)
    rng = np.random.default_rng(0)
    for size in (1e-3, 1e-1):
        for _ in range(50):
            assert objective.value(objective.prox(w + size * rng.normal(size=6), 1.0)) >= value


def test_minimum_of_a_sum_of_known_penalties_is_that_of_its_parts():
    data = make_data()

    def objective(penalty):
        return Objective(data, dpk.losses.Logistic(), penalty=penalty)

    for ours, known in [
        (L2(0.1) + L2(0.3), L2(0.4)),
        (L2(0.1) + ElasticNet(0.1, l1_ratio=0.25), L2(0.175) + L1(0.025)),
        (L2(0.1) + L1(0.02) + L1(0.01), L1(0.03) + L2(0.1)),
        (L2(0.1) + L2Ball(100.0), L2(0.1)),
    ]:
        ours, known = objective(ours), objective(known)
        np.testing.assert_allclose(ours.minimum()[0], known.minimum()[0], atol=1e-6)
        assert ours.minimum()[1] == pytest.approx(known.minimum()[1], abs=1e-12)


def test_short_strengths_add_to_those_of_the_penalty(data):
    objective = Objective(
        data, dpk.losses.Logistic(), penalty=L2(0.1) + L1(0.2) + PL(0.3), l2=1.0, l1=2.0
    )
    assert (objective.l2, objective.l1, objective.other) == (1.1, 2.2, PL(0.3))
    short = dpk.solve("gradient_descent", data, budget=None, rounds=5, l2=0.1, l1=0.02)
    long = dpk.solve("gradient_descent", data, budget=None, rounds=5, penalty=L1(0.02) + L2(0.1))
    np.testing.assert_array_equal(short.w, long.w)
    names = ("l2", "l1", "penalty")
    assert [long.privacy.declared[name] for name in names] == [0.1, 0.02, None]
    assert long.privacy.declared == short.privacy.declared


def test_objective_is_infinite_where_a_constraint_does_not_hold():
    data = make_data()
    objective = Objective(data, dpk.losses.Logistic(), l2=0.1, penalty=NonNegative())
    w = np.full(data.d, 0.1)
    assert objective.value(w) == objective.data_value(w) + objective.penalty_value(w)
    w[2] = -1e-6
    assert objective.value(w) == math.inf
    assert objective.value(objective.prox(w, 1.0)) < math.inf


@for_each(("solver", "trust"), [o for o in OFFERED if o[0] in PENALIZED])
def test_a_noisy_run_ends_inside_a_constraint_and_costs_what_it_costs_without(solver, trust):
    """Or, where steps are hidden, is refused: their bound knows no prox."""
    options = {"budget": BUDGET, "clip": 1.0, "rng": 3, "trust": trust, **length(solver, 4)}
    options |= users(solver, trust)
    data = make_data()
    free = dpk.solve(solver, data, **options)
    if any(note.startswith("hidden: the local iterates") for note in free.privacy.notes):
        with pytest.raises(ValueError, match="for hidden local steps, got 'simplex', which acts"):
            dpk.solve(solver, data, penalty=Simplex(), **options)
        return
    inside = dpk.solve(solver, data, penalty=Simplex(), **options)
    assert inside.privacy.rho == free.privacy.rho
    assert np.all(inside.w >= 0.0)
    assert np.sum(inside.w) == pytest.approx(1.0, rel=1e-14)
    assert inside.privacy.declared["penalty"] == {"name": "simplex", "strength": 1.0, "total": 1.0}


@for_each("trust", ["central", "silo"])
def test_hidden_federated_steps_refuse_a_penalty_without_a_bound_and_noisy_ones_take_it(trust):
    options = {"budget": BUDGET, "clip": 1.0, "rng": 3, "rounds": 2, "local_steps": 3}
    options |= {"penalty": Box([-0.1] * 6, 0.1), "trust": trust}
    if trust == "central":
        with pytest.raises(ValueError, match="for hidden local steps, got 'box', which acts"):
            dpk.solve("federated_gd", make_data(), **options)
        return
    result = dpk.solve("federated_gd", make_data(), **options)
    assert np.all(np.abs(result.w) <= 0.1 * (1 + 1e-14))
    box = result.privacy.declared["penalty"]
    assert box == {"name": "box", "strength": 1.0, "lower": (-0.1,) * 6, "upper": (0.1,) * 6}


@every_offer
def test_sparse_and_dense_records_give_the_same_model(solver, trust, data):
    X = np.where(np.abs(data.X) > 0.8, data.X, 0.0)
    for feature_range in (None, (-2.0, 2.0)):
        options = {"row_bound": 2.0, "intercept": True, "feature_range": feature_range}
        how = {"budget": BUDGET, "clip": 0.5, "rng": 1, "trust": trust, **length(solver, 5)}
        how |= users(solver, trust)
        dense, sparse = (
            dpk.solve(solver, dpk.SiloData(rows, data.y, data.offsets, **options), **how)
            for rows in (X, scipy.sparse.csr_array(X))
        )
        # Margins are summed in another order, so a sum may differ by a step of its grid.
        np.testing.assert_allclose(sparse.w, dense.w, rtol=1e-6)
        assert sparse.privacy.mu == dense.privacy.mu
        assert [r.privacy.declared["sparse"] for r in (dense, sparse)] == [False, True]


def test_a_monitor_may_not_share_the_values_of_sparse_training_records():
    X = scipy.sparse.csr_array(np.eye(4))
    train, same, other = (
        dpk.SiloData(rows, [-1, 1, -1, 1], [0, 4], row_bound=1.0) for rows in (X, X, X.copy())
    )
    with pytest.raises(ValueError, match="in the memory of"):
        dpk.solve("gradient_descent", train, budget=None, rounds=1, monitor=same)
    result = dpk.solve("gradient_descent", train, budget=None, rounds=1, monitor=other)
    assert len(result.history["objective"]) == 1


def test_a_smooth_penalty_is_minimised_with_the_rest(data):
    options = {"l2": 0.01, "penalty": PL(0.05), "penalize_intercept": False}
    result = dpk.solve("gradient_descent", data, budget=None, rounds=4000, **options)
    objective = Objective(data, dpk.losses.Logistic(), **options)
    w, value = objective.minimum()
    assert result.converged
    assert objective.value(result.w) - value <= 1e-9
    plain = dpk.solve("gradient_descent", data, budget=None, rounds=4000, l2=0.01)
    assert np.linalg.norm(plain.w - result.w) > 0.1
    slopes = [
        (objective.penalty_value(w + 1e-6 * e) - objective.penalty_value(w - 1e-6 * e)) / 2e-6
        for e in np.eye(data.d)
    ]
    np.testing.assert_allclose(objective.penalty_gradient(w), slopes, atol=1e-7)
    assert slopes[-1] == 0.0


@for_each("penalty", [L1(0.3), PL(0.5), L2Ball(0.5), Simplex()], ids=lambda p: p.name)
def test_penalties_act_on_every_row_as_on_a_model(data, penalty):
    how = {"l2": 0.1, "penalty": penalty, "penalize_intercept": False}
    objective = Objective(data, dpk.losses.Logistic(), **how)
    rows = np.random.default_rng(0).standard_normal((3, data.d))
    for act in (objective.penalty_gradient, lambda w: objective.prox(w, 0.2)):
        np.testing.assert_array_equal(act(rows), [act(row) for row in rows])


def test_uniform_weights_move_the_optimum(data):
    a, b = (
        dpk.solve("federated_gd", data, budget=None, l2=0.1, weights=weights, rounds=2000).w
        for weights in ("size", "uniform")
    )
    assert np.max(np.abs(a - b)) > 1e-3


@for_each(("name", "rounds"), [("gradient_descent", 4000), ("local_newton", 40)], ids=str)
def test_intercept_without_penalty_is_free_of_it(data, name, rounds):
    how = {"l2": 0.5, "rounds": rounds, "penalize_intercept": False}
    result = dpk.solve(name, data, budget=None, **how)
    objective = Objective(data, dpk.losses.Logistic(), l2=0.5, penalize_intercept=False)
    np.testing.assert_allclose(result.w, objective.minimum()[0], atol=1e-6)


def test_noiseless_clipped_run_minimises_the_huberised_loss(data):
    """privacy.md 1: the clipped gradient is the gradient of a convex loss, so descent converges."""
    result = dpk.solve("gradient_descent", data, budget=None, clip=0.1, l2=0.1, rounds=4000)
    assert result.converged


def test_paper_mode_of_32_equal_silos_certifies_5_30_where_1_is_claimed():
    data = make_data(n=640, m=32, row_bound=1.0)
    data = dpk.SiloData(data.X.copy(), data.y, np.arange(33) * 20, row_bound=1.0)
    result = dpk.solve(
        "federated_gd", data, budget=BUDGET, clip=1.0, rounds=1, weights="uniform",
        calibration="paper",
    )  # fmt: skip
    assert result.privacy.claimed == {"epsilon": 1.0, "delta": 1e-5}
    assert round(result.privacy.epsilon(1e-5), 2) == 5.30


@for_each("solver", SOLVERS)
def test_no_budget_means_no_guarantee(solver, data):
    certificate = dpk.solve(solver, data, budget=None, **length(solver, 2)).privacy
    assert certificate.mu == math.inf
    assert certificate.epsilon(0.5) == math.inf
    assert any("no guarantee" in note for note in certificate.notes)


def test_certificate_names_label_dependent_partitions_and_training_monitors():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((200, 3)), rng.integers(0, 2, 200)
    data = dpk.SiloData.split(X, y, 2, how="by_label", seed=0, row_bound=1.0)
    result = dpk.solve("gradient_descent", data, budget=BUDGET, clip=1.0, rounds=2, monitor="train")
    notes = " ".join(result.privacy.notes)
    assert "label" in notes
    assert "non-private diagnostic" in notes
    assert len(result.history["objective"]) == 2
    assert result.history["accuracy"][-1] == result.score(X, y)


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        # on the mean gradient: D sqrt(T) / mu for central, per silo p_j (2C/n_j) for silo trust
        ("gradient_descent", {}, lambda d: 2 / d.n),
        ("federated_gd", {"weights": "uniform"}, lambda d: 2 / (d.m * d.sizes.min())),
        ("gradient_descent", {"trust": "silo"}, lambda d: 2 * math.sqrt(d.m) / d.n),
        (
            "gradient_descent",
            {"trust": "silo", "weights": "uniform"},
            lambda d: 2 * np.sqrt(np.sum(1.0 / d.sizes**2)) / d.m,
        ),
        ("fixed_point", {"operator": "gradient", "step_size": 0.3}, lambda d: 0.6 / d.n),
        (
            "fixed_point",
            {"operator": "coordinate", "step_size": 0.3, "relaxation": 0.5},
            lambda d: 0.3 / d.n,
        ),
        ("fixed_point", {"operator": "admm", "prox_step": 0.3}, lambda d: 0.6 / d.n),
    ],
)
def test_noise_of_the_released_step_has_the_calibrated_deviation(data, name, options, expected):
    how = {"clip": 1.0, "rounds": 1, "step_size": 1.0} | options
    clean = dpk.solve(name, data, budget=None, **how).w
    total = dpk.Budget(mu=0.5)
    draws = np.array(
        [dpk.solve(name, data, budget=total, rng=seed, **how).w - clean for seed in range(400)]
    )
    std = expected(data) / total.mu
    assert np.mean(draws**2) == pytest.approx(std**2, rel=5 * math.sqrt(2 / draws.size))
    assert np.all(np.abs(np.mean(draws, axis=0)) < 5 * std / math.sqrt(len(draws)))


# -------------------------------------------------------------------------- determinism


@every_offer
def test_same_seed_gives_the_same_bits_for_any_number_of_threads(solver, trust):
    data = make_data(n=4000, p=30)
    how = {"clip": 1.0, "rng": 7, "trust": trust, **length(solver, 5), **users(solver, trust)}
    runs = [dpk.solve(solver, data, budget=BUDGET, n_threads=k, **how).w for k in (1, 2, 3, 7)]
    for w in runs[1:]:
        np.testing.assert_array_equal(w, runs[0])


@pytest.mark.parametrize("solver", SOLVERS)
def test_runs_in_several_threads_at_once_are_those_of_one_thread(solver):
    data = make_data(n=4000, p=30)

    def run(seed):
        return dpk.solve(
            solver, data, budget=BUDGET, clip=1.0, rng=seed, n_threads=2, **length(solver, 5)
        ).w

    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(run, range(4)))
    for seed, w in enumerate(together):
        np.testing.assert_array_equal(w, run(seed))


@every_offer
def test_without_a_seed_every_run_is_fresh(solver, trust, data):
    options = {"budget": BUDGET, "clip": 1.0, "trust": trust, **length(solver, 1)}
    options |= users(solver, trust)
    a, b = (dpk.solve(solver, data, **options) for _ in range(2))
    assert a.privacy.noise == "os"
    assert np.any(a.w != b.w)  # counts with binomial noise may coincide


def test_a_stream_serves_several_runs_without_repeating_a_draw(data):
    with dpk.NoiseStream(3) as stream:
        runs = [
            dpk.solve("gradient_descent", data, budget=BUDGET, clip=1.0, rounds=1, rng=stream).w
            for _ in range(2)
        ]
    assert np.all(runs[0] != runs[1])


def test_step_sequence_is_used_as_given(data):
    steps = [0.5, 0.25, 0.125]
    result = dpk.solve("gradient_descent", data, budget=None, rounds=3, step_size=steps)
    assert result.history["step_size"] == steps


# ----------------------------------------------------------------------------- results


def test_result_predicts_what_the_model_says(data):
    result = dpk.solve("gradient_descent", data, budget=None, l2=0.01, rounds=50)
    z = result.decision_function(data.X)
    np.testing.assert_allclose(z, dpk.kernels.glm_margins(data, result.w), rtol=1e-12, atol=1e-12)
    labels = result.predict(data.X)
    np.testing.assert_array_equal(labels, np.where(z > 0, "yes", "no"))
    probabilities = result.predict_proba(data.X)
    np.testing.assert_allclose(probabilities[:, 1], 1 / (1 + np.exp(-z)), rtol=1e-12)
    assert result.score(data.X, labels) == 1.0
    assert result.score(data.X, np.where(data.y > 0, "yes", "no")) > 0.85
    with pytest.raises(ValueError, match=r"labels that are none of the model's.* 'no' and 'yes'"):
        result.score(data.X, data.y)
    assert result.score(data.X, labels.astype(object)) == 1.0


@for_each("task", ["classification", "regression"])
def test_saved_model_comes_back_whole(tmp_path, task):
    data = make_data(task, feature_range=(-4.0, 4.0))
    loss = "logistic" if task == "classification" else dpk.losses.Huber(delta=0.5)
    result = dpk.solve(
        "federated_gd", data, budget=BUDGET, clip=1.0, rounds=3, loss=loss, monitor="train"
    )
    path = tmp_path / "model.npz"
    result.save(path)
    for name in ("objective", "accuracy") if task == "classification" else ("objective",):
        assert len(result.history.pop(name)) == 3  # of training data: no file holds it
    loaded = dpk.load(path)
    for field in dataclasses.fields(result):
        ours, theirs = getattr(result, field.name), getattr(loaded, field.name)
        if isinstance(ours, np.ndarray):
            np.testing.assert_array_equal(ours, theirs)
        elif field.name == "timing":  # grows with the number of records, and files are shared
            assert ours["total"] > 0.0
            assert theirs == {}
        else:
            assert ours == theirs, field.name
    assert "not kept in files" in str(loaded)
    np.testing.assert_array_equal(loaded.predict(data.X), result.predict(data.X))
    assert list(tmp_path.iterdir()) == [path]
    with np.load(path, allow_pickle=False) as arrays:
        assert "timing" not in json.loads(str(arrays["header"]))


def test_failed_save_leaves_the_old_file_alone(tmp_path, data, monkeypatch):
    result = dpk.solve("gradient_descent", data, budget=None, rounds=1)
    path = tmp_path / "model.npz"
    result.save(path)
    before = path.read_bytes()
    broken = dataclasses.replace(result, coef=np.array([object()]))
    with pytest.raises(ValueError, match="coef holds Python objects"):
        broken.save(path)
    monkeypatch.setattr(np, "savez", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        result.save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_foreign_file_is_no_model(tmp_path):
    path = tmp_path / "other.npz"
    np.savez(path, x=np.zeros(3))
    with pytest.raises(ValueError, match="not a dpkern model"):
        dpk.load(path)
    with pytest.raises(FileNotFoundError):
        dpk.load(tmp_path / "missing.npz")


@for_each("options", [{"l2": 0.0}, {"l2": 0.1, "penalize_intercept": False}], ids=str)
def test_theorem_steps_need_l2_on_every_coordinate(data, options):
    with pytest.raises(ValueError, match="l2 > 0"):
        dpk.solve("gradient_descent", data, budget=None, step_size="theorem", **options)


def test_grid_that_would_swallow_the_clip_bound_is_refused():
    data = make_data(n=80, m=2)
    with pytest.raises(ValueError, match="clip"):
        dpk.solve("gradient_descent", data, budget=dpk.Budget(mu=1e-12), clip=1.0, rounds=1)
