"""Compiled rounds of descent: the kernel, its reference, and the loop of rounds."""

import math

import numpy as np
import pytest
import scipy.sparse
from cases import for_each
from pairwise import pairwise

import dpkern as dpk
from dpkern import _core, kernels
from dpkern import reference as ref
from dpkern.kernels.grids import finest_grid
from dpkern.models.penalties import L1, PL, ElasticNet, L2Ball, Simplex
from dpkern.privacy import NoiseStream
from dpkern.solvers.base import Run

GRID = 2.0**-30
OPTIONS = [
    {},
    {"l2": 0.3},
    {"prox": L1(0.02), "penalize_intercept": False, "l2": 0.1},
    {"prox": ElasticNet(0.1, l1_ratio=0.3)},
    {"prox": L2Ball(0.3), "sigma": 0.5},
    {"prox": Simplex(), "silo_weight": np.array([0.5, 1.0, 0.25, 1.0])},
    {"sigma": 0.7, "saturate": True},
    {"sigma": 0.0, "prox_step": np.array([0.1, 0.2, 0.3])},
    {"sigma": 0.7, "momentum": 0.9, "l2": 0.2, "prox": L1(0.05)},
    {"sigma": 0.7, "step_size": np.linspace(0.5, 0.1, 9)},  # so many that mapped rows are kept
]


def how(**options):
    some = {"loss": "logistic", "clip": 0.7, "step_size": np.array([0.5, 0.25, 0.1]), "grid": GRID}
    return some | {"scale": 0.01} | ({"rng": 5} if "sigma" in options else {}) | options


def start(data, k=None):
    return np.random.default_rng(0).normal(0, 0.3, data.d if k is None else (k, data.d))


def by_rounds(
    data, w, *, rng=None, sigma=None, prox=None, l2=0.0, scale, step_size, momentum=0.0, **options
):
    """The rounds one by one, by the kernels of which they consist."""
    stream, models = None if sigma is None else NoiseStream(rng), []
    penalized = np.ones(data.d)
    penalized[-1] = options.pop("penalize_intercept", True) or not data.intercept
    gamma = options.pop("prox_step", step_size)
    p, first = int(penalized.sum()), w
    for t, eta in enumerate(step_size):
        v = w + momentum * (w - (models[-2] if t > 1 else first if t else w))
        V = kernels.glm_gradient(data, v, **options).sum(axis=0)
        if sigma is not None:
            V = V + kernels.gaussian(data.d, sigma, grid=options["grid"], rng=stream)
        w = v - eta * (scale * V + l2 * penalized * v)
        if prox is not None:
            w[:p] = kernels.prox(prox, w[:p], gamma[t])
        models.append(w)
    return np.array(models)


@pairwise("isa", "layout")
def test_bits_are_those_of_rounds_one_by_one_and_numbers_those_of_numpy(make, layout):
    """For any number of threads, and beside other models."""
    data = make(n=60, p=9, **layout)
    w, clips, grids = start(data, 3), [0.7, 0.1, 3.0], [GRID, GRID / 4.0, 2.0 * GRID]
    for options in OPTIONS:
        own = [how(**options, clip=clips[i], grid=grids[i], rng=i) for i in range(3)]
        alone = [by_rounds(data, w[i], **own[i]) for i in range(3)]
        several = how(**options, clip=clips, grid=grids, rng=range(3))
        for n_threads in (1, 3):
            for i in range(3):
                found = kernels.glm_descent(data, w[i], **own[i], n_threads=n_threads)
                np.testing.assert_array_equal(found, alone[i])
            found = kernels.glm_descent(data, w, **several, n_threads=n_threads)
            np.testing.assert_array_equal(found, alone)
        # A margin that rounds the other way may move a record by one step of the grid.
        off = {"atol": 60 * GRID, "rtol": 1e-9}
        np.testing.assert_allclose(found, ref.glm_descent(data, w, **several), **off)


def test_every_round_has_a_release_of_its_own_and_streams_go_on_after_it(make):
    data, stream = make(n=40, p=3), NoiseStream(3)
    rest = {"scale": 1.0, "step_size": np.ones(2), "sigma": 2.0, "grid": GRID, "clip": 1.0}
    first = kernels.glm_descent(data, np.zeros(3), **rest, rng=stream)
    again = kernels.glm_descent(data, first[-1], **rest, rng=stream)
    rest["step_size"] = np.ones(4)
    whole = kernels.glm_descent(data, np.zeros(3), **rest, rng=3)
    np.testing.assert_array_equal(np.concatenate([first, again]), whole)
    drawn = kernels.gaussian(3, 2.0, grid=GRID, rng=stream)
    expected = NoiseStream(3)
    expected.releases(4)
    np.testing.assert_array_equal(drawn, kernels.gaussian(3, 2.0, grid=GRID, rng=expected))
    # What a failed call has taken is not used again.
    with pytest.raises(ValueError, match="w must be finite"):
        kernels.glm_descent(data, np.zeros(3), **rest | {"step_size": [1e308, 1.0]}, rng=stream)
    expected.releases(2)
    one, other = (kernels.gaussian(3, 2.0, grid=GRID, rng=s) for s in (stream, expected))
    np.testing.assert_array_equal(one, other)


def test_sums_over_silos_saturate_where_sizes_are_private(bare_records):
    """Without the clamp the sum over silos would be 3 2^51 steps."""
    X = np.ones((3, 1))
    data = bare_records(X, np.full(3, -1.0), [0, 1, 2, 3])
    rest = {"scale": 1.0, "step_size": [1.0], "clip": 0.5, "grid": 2.0**-52}
    found = kernels.glm_descent(data, np.zeros(1), saturate=True, **rest)
    assert found[0, 0] == pytest.approx(-1.0, rel=1e-9)


def test_models_that_overflow_are_refused_but_for_the_last(make):
    data = make(n=40, p=3)
    rest = {"clip": math.inf, "scale": 1e200}
    last = kernels.glm_descent(data, np.zeros(3), step_size=[1e200], **rest)
    assert not np.isfinite(last).all()
    for more in ({"step_size": [1e200, 1.0]}, {"step_size": [1e200], "prox": "l1"}):
        with pytest.raises(ValueError, match="w must be finite"):
            kernels.glm_descent(data, np.zeros(3), **rest | more)


def test_bad_arguments_are_refused_by_name(make):
    data = make(n=40, p=3)
    for bad, message in (
        ({"w": np.zeros((2, 2, 3))}, r"w must have shape \(3,\) or \(k, 3\)"),
        ({"step_size": [[0.1], [0.2]]}, r"step_size must have shape \(T,\) or \(1, T\)"),
        ({"step_size": []}, "T >= 1"),
        ({"step_size": [-1.0]}, "step_size must be positive"),
        ({"prox_step": [0.1]}, "prox_step must have one number for each round, got 1"),
        ({"prox": L1(0.1), "prox_step": [-1.0] * 3}, "prox_step must be at least 0"),
        ({"prox": PL(0.1), "step_size": [3.0] * 3}, "prox_step times the strength of prox"),
        ({"l2": -1.0}, "l2 must be"),
        ({"scale": 0.0}, "scale must be"),
        ({"clip": math.inf, "sigma": 1.0, "grid": None}, "sigma must be None"),
        ({"sigma": -1.0}, "sigma must be"),
        ({"grid": 0.3}, "grid must be"),
        ({"grid": 2.0**-60}, "grid must be at least"),
        ({"grid": finest_grid(data.n, how()["clip"]) / 2}, "grid must be at least"),
        ({"penalize_intercept": 1}, "penalize_intercept must be"),
        ({"w": np.zeros((2, 3)), "sigma": 1.0, "rng": None}, "rng must hold a stream for each"),
        ({"w": np.zeros((2, 3)), "clip": math.inf, "grid": None}, "w must be one model"),
        ({"w": [np.nan, 0.0, 0.0]}, "w must be finite"),
        ({"subset_sizes": np.ones(4)}, r"subset_sizes must be int64 of shape \(4,\), got float64"),
        ({"subset_sizes": np.full(4, 41)}, "subset_sizes must be numbers of a silo's records"),
        ({"subset_sizes": np.full(4, -1)}, "subset_sizes must be numbers of a silo's records"),
        ({"poisson_last": np.ones(3, np.uint64)}, "poisson_last must be uint64 of shape"),
        ({"w": np.zeros((2, 3)), "subset_sizes": np.ones(4, int)}, "subset_sizes must be None"),
    ):
        options = how(**bad)
        with pytest.raises((TypeError, ValueError), match=message):
            kernels.glm_descent(data, options.pop("w", np.zeros(3)), **options)


# What a run may be given whose rounds run compiled.
RUNS = [
    {},
    {"l1": 0.01},
    {"l2": 0.1, "l1": 0.003, "penalize_intercept": False},
    {"penalty": L2Ball(0.5), "weights": "uniform"},
    {"penalty": ElasticNet(0.02, l1_ratio=0.5)},
    {"penalty": ElasticNet(0.0)},
    {"penalty": PL(0.01)},
    {"loss": "smoothed_hinge"},
    {"budget": None, "clip": None},
    {"budget": None, "clip": 0.2},
    {"neighbours": "add_remove", "public_size": 90},
    {"step_size": np.linspace(1.0, 0.1, 40)},
    {"trust": "silo"},
]


OWN_RUNS = {
    "gradient_descent": [
        {"calibration": "paper"},
        {"momentum": 0.9},
        {"momentum": 0.7, "l1": 0.01, "l2": 0.1, "returns": "tail"},
        {"momentum": 0.7, "penalty": PL(0.01), "returns": "average"},
    ],
    "federated_gd": [{"calibration": "paper"}],
    "minibatch_sgd": [
        {"sampling": "without_replacement", "batch_size": 7},
        {"sampling": "without_replacement", "batch_size": 7, "budget": None, "clip": None},
        {"sampling": "without_replacement", "batch_size": 11, "weights": "uniform", "l1": 0.01},
        {"sampling": "poisson", "batch_size": 5, "neighbours": "add_remove"},
        {"sampling": "cyclic", "batch_size": 5},
        {"returns": "average"},
        {"returns": "random"},
        {"returns": 8},
        {"participation": 2},
        {"model": dpk.MLP(hidden=())},
    ],
}
# Where the loop is that of the page.
LOOPS = {
    ("federated_gd", "calibration"),
    ("minibatch_sgd", "participation"),
    ("minibatch_sgd", "model"),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@for_each("name", OWN_RUNS)
def test_compiled_rounds_have_the_bits_of_the_loop_in_the_solvers_page(monkeypatch, name):
    rng, calls, descent = np.random.default_rng(0), [], _core.glm_descent
    X = rng.standard_normal((90, 4))
    y = np.where(X[:, 0] + 0.3 * rng.standard_normal(90) > 0.0, "a", "b")
    data = dpk.SiloData(X, y, [0, 11, 50, 90], row_bound=2.0, intercept=True)
    monkeypatch.setattr(_core, "glm_descent", lambda *given: calls.append(1) or descent(*given))
    monkeypatch.setattr("dpkern.solvers.base.run._CHUNK_NUMBERS", 80)  # 16 rounds
    monkeypatch.setattr("dpkern.solvers.releases.gradient._RECORDED_NUMBERS", 15)  # 3 rounds
    some = {"clip": 0.7, "rounds": 40, "rng": 0, "trust": "central", "step_size": 0.5}
    for options in RUNS + OWN_RUNS[name]:
        epsilon = 0.1 if "calibration" in options else 1.0
        given = some | {"budget": dpk.Budget(epsilon=epsilon, delta=1e-5)} | options
        if given.get("neighbours") == "add_remove":
            given["public_size"] = (20, 40, 30)
        if "model" in given:
            data = dpk.SiloData(X, y, data.offsets, row_bound=2.0)
        calls.clear()
        compiled = dpk.solve(name, data, **given)
        looped = isinstance(options.get("penalty"), PL) or options.get("trust") == "silo"
        looped = (
            looped
            or options.get("sampling") == "cyclic"
            or any((name, k) in LOOPS for k in options)
        )
        expected = 0 if looped else 3
        assert len(calls) == expected, options
        with monkeypatch.context() as patch:
            patch.setattr(Run, "is_watched", True)
            loop = dpk.solve(name, data, **given)
        assert len(calls) == expected, options
        assert compiled == loop
        assert compiled.history == loop.history
        assert compiled.privacy.releases == loop.privacy.releases
        assert compiled.message == loop.message


@for_each("neighbours", ["replace_one", "add_remove"])
def test_samples_are_the_same_whatever_number_of_threads_draws_them(monkeypatch, neighbours):
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((6_000, 8)), rng.choice(["a", "b"], 6_000)
    data = dpk.SiloData(X, y, [0, 1_000, 3_500, 6_000], row_bound=2.0)
    # More rounds than three threads draw samples of at once.
    how = {"trust": "central", "neighbours": neighbours, "batch_size": 400, "rounds": 79}
    if neighbours == "replace_one":
        how |= {"sampling": "without_replacement"}
    else:
        how |= {"sampling": "poisson", "public_size": [1_000, 2_500, 2_500]}
    calls, descent = [], _core.glm_descent
    monkeypatch.setattr(_core, "glm_descent", lambda *given: calls.append(1) or descent(*given))
    # By default sums of so few records take one thread, and samples are drawn beside the rounds.
    monkeypatch.setattr("dpkern._threads.usable_cores", lambda: 3)
    how |= {"budget": dpk.Budget(epsilon=1.0, delta=1e-5), "rng": 3}
    one, *more = (
        dpk.solve("minibatch_sgd", data, n_threads=threads, **how) for threads in (1, 2, 3, None)
    )
    assert calls
    assert all(one == other for other in more)
    # A run that fails within a call; one with such steps is refused before it otherwise.
    monkeypatch.setattr("dpkern.solvers.base.plan.within_doubles", lambda eta, *_: eta)
    how |= {"l2": 1.0, "step_size": np.full(79, 1e150)}
    for threads in (1, 2, None):
        with np.errstate(all="ignore"), pytest.raises(ValueError, match="finite"):
            dpk.solve("minibatch_sgd", data, n_threads=threads, **how)


def test_what_a_failure_charges_depends_on_public_numbers_alone(monkeypatch):
    """Not on how many entries are stored, and not on a private number of records."""
    monkeypatch.setattr("dpkern.solvers.base.run.CALL_ENTRIES", 4000)
    # Which refuses steps that diverge, so that no run fails in this way.
    monkeypatch.setattr("dpkern.solvers.base.plan.within_doubles", lambda eta, *_: eta)
    rng, notes = np.random.default_rng(0), set()
    for n, stored in ((60, 1.0), (60, 0.1), (90, 1.0)):
        X = scipy.sparse.csr_array(rng.standard_normal((n, 4)) * (rng.random((n, 4)) < stored))
        data = dpk.SiloData(X, rng.choice([-1, 1], n), [0, n], row_bound=2.0)
        hidden = {"neighbours": "add_remove", "public_size": 60}
        how = {
            "budget": dpk.Budget(mu=1.0),
            "clip": 0.7,
            "rounds": 40,
            "l2": 1.0,
            "rng": 0,
        } | hidden
        steps = np.where(np.arange(40) < 20, 0.1, 1e308)
        with np.errstate(all="ignore"), pytest.raises(ValueError, match="finite") as caught:
            dpk.solve("gradient_descent", data, step_size=steps, **how)
        notes.add(tuple(caught.value.__notes__))
    assert len(notes) == 1
    assert "32 x 4 coordinates" in notes.pop()[0]


def test_somebody_who_looks_at_every_round_sees_every_round(monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((90, 4))
    data = dpk.SiloData.from_silos([(X, np.sign(X[:, 0]))], row_bound=2.0)
    how = {"budget": dpk.Budget(mu=1.0), "clip": 0.7, "rounds": 5, "step_size": 0.1, "rng": 0}
    seen = []
    plain = dpk.solve("gradient_descent", data, **how)
    for more in ({"callback": lambda t, _: seen.append(t)}, {"monitor": "train"}):
        watched = dpk.solve("gradient_descent", data, **how, **more)
        np.testing.assert_array_equal(watched.coef, plain.coef)
    assert seen == [0, 1, 2, 3, 4]
    assert len(watched.history["objective"]) == 5
