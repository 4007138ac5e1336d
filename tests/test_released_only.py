"""Properties of the solvers as channels: what leaves a run is a function of its releases alone."""

import ctypes
import math
import platform
import subprocess
import sys
import warnings
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse
from cases import for_each
from makers import BUDGET, fail_at_call, square, transcript

import dpkern as dpk
from dpkern import kernels
from dpkern.kernels import installation
from dpkern.models.penalties import PL
from dpkern.privacy.mechanisms.gaussian_sum import GaussianSum
from dpkern.solvers import SOLVERS
from dpkern.solvers.base import AUTO
from dpkern.solvers.base.outcome import RunEndedWarning
from dpkern.solvers.base.run import Run

CASES = [
    ("gradient_descent", {}),
    ("gradient_descent", {"weights": "uniform"}),
    ("gradient_descent", {"trust": "silo"}),
    ("gradient_descent", {"trust": "silo", "weights": "uniform"}),
    ("gradient_descent", {"calibration": "paper"}),
    ("federated_gd", {}),
    ("federated_gd", {"weights": "uniform"}),
    ("federated_gd", {"calibration": "paper"}),
    ("federated_gd", {"calibration": "paper", "weights": "uniform"}),
    ("fixed_point", {}),
    ("fixed_point", {"weights": "uniform"}),
    ("fixed_point", {"operator": "gradient"}),
    ("fixed_point", {"operator": "coordinate", "relaxation": 0.5}),
    ("fixed_point", {"operator": "admm", "prox_step": 0.05}),
    ("minibatch_sgd", {"trust": "silo"}),
    ("minibatch_sgd", {"trust": "central", "weights": "uniform"}),
    ("prox_svrg", {"refresh_every": 2, "trust": "silo"}),
    ("spider", {"refresh_every": 3, "trust": "silo"}),
    ("spider", {"refresh_every": 2, "trust": "central"}),
    ("local_sgd", {"local_steps": 1, "trust": "silo"}),
    ("localized_sgd", {"trust": "silo"}),
    ("localized_sgd", {"weights": "uniform"}),
]
TWO_MESSAGES = ("spider", {"variant": "alternate", "trust": "central"})  # in a round
# Solvers whose rounds release something else, or more; their tests have files of their own.
OTHERS = {
    *("wd_dp", "output_perturbation", "local_newton", "double_noise_newton", "admm"),
    *("prox_sgd", "prox_pl_svrg", "ridge", "objective_perturbation"),
    "newton_inference",
}
SIZES = (7, 40, 41)


def silos(seed=0, **options):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((sum(SIZES), 3)) * 10.0 ** rng.uniform(-3, 3, (sum(SIZES), 1))
    y = np.where(rng.random(len(X)) < 0.5, "a", "b")
    options = {"row_bound": 2.0, "intercept": True} | options
    return dpk.SiloData(X, y, np.cumsum([0, *SIZES]), **options)


def run(name, data, **options):
    options = {"budget": BUDGET, "clip": 0.7, "rounds": 3} | options
    return dpk.solve(name, data, **options)


def test_every_solver_is_tried_or_named_as_one_of_another_kind():
    assert {name for name, _ in CASES} | OTHERS == set(SOLVERS)


# ------------------------------------------------------------------ nothing beside the releases


@pytest.mark.usefixtures("round_by_round")
@for_each(("name", "options"), [*CASES, TWO_MESSAGES])
def test_equal_releases_of_different_records_give_equal_results(monkeypatch, name, options):
    """The mechanism is made to release the same bits whatever the records are."""
    release = GaussianSum.release

    def deaf(mechanism, total, **active):
        released = release(mechanism, total, **active)
        return np.linspace(-1.0, 1.0, released.size).reshape(released.shape)

    monkeypatch.setattr(GaussianSum, "release", deaf)
    for monitor in (None, silos(9)):
        how = options | {"step_size": 1000.0, "monitor": monitor}
        first = run(name, silos(0), **how)
        X = silos(1).X
        best = np.where(first.decision_function(X) > 0.0, "b", "a")
        worst = np.where(best == "a", "b", "a")
        for y in (best, worst):
            other = dpk.SiloData(X, y, silos(1).offsets, row_bound=2.0, intercept=True)
            assert transcript(run(name, other, **how)) == transcript(first)


# What a solver needs, or has in place of so many rounds.
ROUNDS, STEP = {"rounds": 60}, {"step_size": 0.1}
with warnings.catch_warnings():
    warnings.simplefilter("ignore", dpk.privacy.BudgetWarning)
    LARGE = dpk.Budget(epsilon=300.0, delta=1e-5)
LONG_RUNS = dict.fromkeys(SOLVERS, ROUNDS | STEP) | {
    "admm": ROUNDS | {"prox_step": 0.1},
    "local_newton": ROUNDS,
    "double_noise_newton": ROUNDS,
    "ridge": {},
    "newton_inference": ROUNDS,
    "prox_sgd": {"rounds": 5} | STEP,
    "wd_dp": {"local_steps": 60} | STEP,
    "output_perturbation": {"local_steps": 60} | STEP,
    "objective_perturbation": {"budget": LARGE},
}


@pytest.mark.filterwarnings("ignore::dpkern.privacy.guarantees.gdp.BudgetWarning")
@for_each("name", SOLVERS)
def test_how_much_is_released_does_not_depend_on_the_records(name):
    """Records that are solved from the start, whose gradients are all 0, and others that never
    are: the same releases in the same order, and as many entries of the history. The noise is next
    to none, so that a run could see which of them it has."""
    seen = []
    for scale in (0.0, 1.0):
        rng = np.random.default_rng(5)
        X, y = rng.standard_normal((88, 3)), scale * rng.standard_normal(88)
        how = {"row_bound": 2.0, "task": "regression"}
        how |= {"target_bound": 4.0} if name == "newton_inference" else {}
        data = dpk.SiloData(X, y, np.cumsum([0, *SIZES]), **how)
        calls = []
        result = dpk.solve(
            name, data, clip=0.7, loss="squared", rng=1,
            callback=lambda t, release, calls=calls: calls.append((t, release.what)),
            **{"budget": dpk.Budget(mu=300.0)} | LONG_RUNS[name],
        )  # fmt: skip
        times = {}
        for release in result.privacy.releases:
            key = release.what, release.dim, release.n_messages, release.seen_by
            times[key] = times.get(key, 0) + release.times
        seen.append((times, calls, {k: len(v) for k, v in result.history.items()}, result.n_rounds))
    assert seen[0] == seen[1]


@pytest.mark.usefixtures("round_by_round")
@for_each("name", ["gradient_descent", "local_newton"])
def test_a_run_that_diverges_fails_alike_on_all_records(monkeypatch, name):
    steps = "dpkern.solvers.releases.newton_steps.within_doubles"  # refuses such steps beforehand
    monkeypatch.setattr(steps, lambda eta, *_, **__: eta)
    monkeypatch.setattr(
        GaussianSum, "release", lambda mechanism, total: np.full(total.shape, 1e300)
    )
    messages = set()
    for seed in (0, 1):
        with np.errstate(all="ignore"), pytest.raises(ValueError, match="finite") as caught:
            run(name, silos(seed), step_size=1e49)
        messages.add(str(caught.value))
    assert len(messages) == 1


# ---------------------------------------------------------------------- sums and their noise


@for_each(("name", "options"), CASES)
def test_neighbours_with_equal_noise_release_bits_within_the_ledgers_sensitivity(
    spied, name, options
):
    """In rational arithmetic, and nearly reached by the silo of the largest weight."""
    data = silos(intercept=False)
    sums, largest = [], Fraction(0)
    for j, i in enumerate((0, 10, 80)):
        bits = []
        for sign in (1.0, -1.0):
            X, y = data.X.copy(), data.y.copy()
            X[i], y[i] = (50.0, 0.0, 0.0), sign
            spied.clear()
            neighbour = dpk.SiloData(X, y, data.offsets, row_bound=2.0)
            result = run(name, neighbour, rounds=1, rng=j, **options)
            ((_, _, released),) = spied
            bits.append(np.atleast_2d(released))
        (release,) = result.privacy.releases
        bound = release.sensitivity
        bounds = bound if isinstance(bound, tuple) else (bound,)
        for row, most in enumerate(bounds):
            moved = square(bits[0][row], bits[1][row])
            assert moved <= Fraction(most) ** 2
            assert moved == 0 or len(bounds) == 1 or row == j
            largest = max(largest, moved / Fraction(most) ** 2)
        sums.append(bits)
    assert largest > Fraction(99, 100)


@for_each("name", ["gradient_descent", "federated_gd"])
@for_each("weights", ["size", "uniform"])
def test_the_sum_before_noise_has_silo_weights_on_records_and_one_common_grid(spied, name, weights):
    """om_j after rounding would be another sum, of larger sensitivity, off the grid or rounded."""
    data = silos()
    run(name, data, rounds=1, weights=weights)
    ((mechanism, total, _),) = spied
    ratio = np.min(SIZES) / np.array(SIZES) if weights == "uniform" else None
    (q,) = mechanism.grid
    expected = kernels.glm_gradient(
        data, np.zeros(data.d), clip=0.7, grid=q, silo_weight=ratio
    ).sum(axis=0)
    np.testing.assert_array_equal(total.ravel(), expected)


@for_each(("name", "options"), [*CASES, TWO_MESSAGES])
def test_no_two_rounds_silos_or_coordinates_share_their_noise(spied, name, options):
    run(name, silos(), rounds=4, rng=0, **options)
    mechanisms = [mechanism for mechanism, _, _ in spied]
    assert len(mechanisms) == (6 if "variant" in options else 4)
    noise = []
    for mechanism, total, released in spied:
        whole = total.sum(axis=0) if mechanism._shares else total
        noise.append(np.atleast_2d(released - whole) / mechanism.sigma.max())
    noise = np.concatenate(noise).ravel()
    assert len(set(noise.tolist())) == noise.size
    assert np.all(np.abs(noise) < 20.0)


@for_each("weights", ["size", "uniform"])
@for_each("seed", range(5))
def test_paper_mode_certifies_what_the_papers_noise_gives_on_uneven_silos(weights, seed):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, 300, size=rng.integers(2, 9))
    n, m, T = sizes.sum(), len(sizes), int(rng.integers(1, 6))
    epsilon, delta, clip = 10.0 ** rng.uniform((-1, -8, -2), (1, -2, 2))
    data = dpk.SiloData(rng.standard_normal((n, 2)), rng.standard_normal(n), [0, *sizes.cumsum()])
    p = sizes / n if weights == "size" else np.full(m, 1.0 / m)
    moved = np.max(2.0 * clip * p / sizes)
    top = math.sqrt(8.0 * T * math.log(1.0 / delta)) * clip / epsilon
    noise = {
        "federated_gd": top / (m * sizes.min()) * np.sqrt(np.sum(p**2)),
        "gradient_descent": top / n,
    }
    for name, std in noise.items():
        certificate = run(
            name, data, budget=dpk.Budget(epsilon=epsilon, delta=delta), clip=clip, rounds=T,
            loss="squared", step_size=1e-3, weights=weights, calibration="paper",
        ).privacy  # fmt: skip
        assert certificate.mu == pytest.approx(moved / std * math.sqrt(T), rel=1e-12)
        assert certificate.claimed == {"epsilon": epsilon, "delta": delta}


# ------------------------------------------------------------------------- what is declared


@for_each("name", ["gradient_descent", "federated_gd"])
def test_the_certificate_declares_every_public_number_of_the_run(name):
    data = silos()
    parameters = {
        "l2": 0.25, "l1": 0.125, "rounds": 2, "step_size": (0.5, 0.25), "weights": "uniform",
        "penalize_intercept": False, "loss": "squared_hinge", "model": None,
        "penalty": PL(0.5), "calibration": "sound", "recalibrate": False,
    }  # fmt: skip
    if name == "federated_gd":
        parameters |= {"local_steps": 1, "accounting": "composition"}
    else:
        parameters |= {"momentum": 0.5}
    parameters["returns"] = "average"
    declared = run(name, data, monitor=silos(5), **parameters).privacy.declared
    assert declared == parameters | {
        "penalty": {"name": "pl", "strength": 0.5}, "clip": 0.7,
        "sizes": SIZES, "n_features": 3, "partition": "given",
        "task": "classification",
        "intercept": True, "row_bound": 2.0, "feature_range": False, "sparse": False,
        "labels": ("a", "b"),
        "monitor": f"{sum(SIZES)} public records",
    }  # fmt: skip


def test_a_monitor_on_the_training_records_does_not_pass_as_public():
    data = silos()
    part = dpk.SiloData(data.X[:40], data.y[:40], [0, 40], row_bound=2.0, intercept=True)
    for monitor in (data, part):
        with pytest.raises(ValueError, match=r"monitor must hold public .* in the memory of"):
            run("gradient_descent", data, monitor=monitor)
    empty = dpk.SiloData(scipy.sparse.csr_array((40, 3)), data.y[:40], [0, 40], intercept=True)
    with pytest.raises(ValueError, match=r"monitor must hold public .* in the memory of"):
        run("gradient_descent", empty, monitor=empty, step_size=0.1)
    result = run("gradient_descent", data, monitor="train")
    assert result.privacy.declared["monitor"] == "train"
    assert "non-private diagnostic" in " ".join(result.privacy.notes)


def test_a_monitor_that_does_not_fit_is_refused_before_anything_is_released(spied):
    X = np.random.default_rng(0).standard_normal((30, 3))
    labels, fits = np.where(X[:, 0] > 0, "a", "b"), {"intercept": True, "row_bound": 2.0}
    for y, options, message in (
        (X[:, 0], fits, r"monitor must have the classes \['a' 'b'\], got None"),
        (np.where(X[:, 0] > 0, "a", "c"), fits, "monitor must have the classes"),
        (labels, {"intercept": True}, "monitor must have the data's .*row_bound"),
        (labels, fits | {"feature_range": (-1.0, 1.0)}, "monitor must have the data's"),
        (labels, fits | {"intercept": False}, "monitor must have the data's"),
    ):
        monitor = dpk.SiloData(X, y, [0, 30], **options)
        with pytest.raises(ValueError, match=message):
            run("gradient_descent", silos(), monitor=monitor)
    assert not spied


def test_a_monitor_has_the_columns_of_the_training_data_in_their_order(spied):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(silos().X[:30], columns=["x", "y", "z"])
    data = dpk.SiloData.split(frame, silos().y[:30], 2, how="even", min_size=1)
    monitor = dpk.SiloData.split(frame[["z", "y", "x"]], silos().y[:30], 1, min_size=1)
    with pytest.raises(ValueError, match="monitor must have the columns of the model in their"):
        run("gradient_descent", data, monitor=monitor, step_size=0.5)
    assert not spied


@for_each("kind", [RuntimeError, KeyboardInterrupt])
def test_a_run_that_fails_says_what_it_had_released(kind):
    def callback(t, release):
        if t == 1:
            raise kind

    with pytest.raises(kind) as caught:
        run("gradient_descent", silos(), callback=callback)
    (note,) = caught.value.__notes__
    assert "released before the failure: sum of clipped gradients: 2 x 4 coordinates" in note
    assert "noise std" in note


def fail_after(monkeypatch, updates):
    """Let the source of noise fail after some updates, and return the models after each."""
    models, record, release = [], Run.record, dpk.NoiseStream.release

    def look(run, t, w, *rest):
        models.append(w.copy())
        record(run, t, w, *rest)

    def fails(stream, *given, **how):
        if len(models) == updates:
            raise MemoryError("no room")
        return release(stream, *given, **how)

    monkeypatch.setattr(Run, "record", look)
    monkeypatch.setattr(dpk.NoiseStream, "release", fails)
    return models


SEVERAL_ROUNDS = {
    "gradient_descent": {},
    "federated_gd": {"local_steps": 2},
    "local_newton": {"trust": "silo", "local_steps": 2},
    "double_noise_newton": {},
    "admm": {"trust": "local"},
    "fixed_point": {},
    "prox_sgd": {},
    "prox_svrg": {},
    "prox_pl_svrg": {},
    "spider": {"trust": "shuffle"},
    "minibatch_sgd": {"sampling": "without_replacement", "batch_size": 2},
    "local_sgd": {"noise": "step", "trust": "silo"},
}


@pytest.mark.usefixtures("round_by_round")
@for_each("name", SEVERAL_ROUNDS)
def test_a_run_that_fails_returns_its_last_model(name, monkeypatch, tmp_path):
    how = {"rounds": 6, "clip": AUTO, "rng": 5, **SEVERAL_ROUNDS[name]}
    models, ended = fail_after(monkeypatch, 3), "ended after update 3 by MemoryError"
    said = f"{name} {ended}: no room; this model is returned, released"
    with pytest.warns(RunEndedWarning, match=said):
        result = run(name, silos(feature_range=(-9.0, 9.0)), **how)
    assert result.n_rounds == len(result.history["gradient_norm"]) == 3
    np.testing.assert_array_equal(result.w, models[-1])
    assert result.message == ended  # without what the error says, which may quote records
    assert not result.converged
    assert any(note.startswith("the run ended after update 3") for note in result.privacy.notes)
    assert result.privacy.epsilon(1e-5) < 1.0
    assert dpk.verify(result.privacy.to_dict()).ok
    result.save(tmp_path / "model.json")
    assert dpk.load(tmp_path / "model.json") == result
    assert dpk.verify(tmp_path / "model.json").ok  # it names this model


def test_verify_refuses_another_end_than_the_releases_tell(monkeypatch):
    fail_after(monkeypatch, 3)
    with pytest.warns(RunEndedWarning):
        values = run("gradient_descent", silos(), rounds=6, callback=lambda *_: None)
    values = values.privacy.to_dict()
    (note,) = (note for note in values["notes"] if note.startswith("the run ended"))
    assert "all rounds of the run, its budget of epsilon 1 and delta 1e-05; where" in note
    assert note.endswith("where it may have on the records, there is none")
    edits = [(3, []), *((n, [note.replace(" 3,", f" {n},")]) for n in (0, -1, 1.5, True, "x", 4))]
    edits += [(None, [note])]
    for after, notes in edits:
        declared = {**values["declared"], "ended_after": after}
        if after is None:
            del declared["ended_after"]
        edited = {**values, "declared": declared, "notes": notes}
        assert "an early end that notes do not tell" in str(dpk.verify(edited)), after


def test_compiled_rounds_that_fail_return_their_last_model(monkeypatch):
    monkeypatch.setattr("dpkern.solvers.base.run._CHUNK_NUMBERS", 8)  # two rounds
    expected = run("gradient_descent", silos(), rounds=6, rng=1, callback=lambda *_: None)
    descend, calls = kernels.glm_descent, iter(range(9))

    def fails(*given, **how):
        if next(calls) == 2:
            raise FloatingPointError("overflow")
        return descend(*given, **how)

    monkeypatch.setattr(kernels, "glm_descent", fails)
    with pytest.warns(RunEndedWarning, match="after update 4 by FloatingPointError: overflow"):
        result = run("gradient_descent", silos(), rounds=6, rng=1)
    assert result.history["gradient_norm"] == expected.history["gradient_norm"][:4]
    assert sum(release.times for release in result.privacy.releases) == 6  # as charged
    assert result.parameters["rounds"] == 6


def test_a_run_that_fails_keeps_its_charge(monkeypatch, tmp_path):
    accountant = dpk.Accountant(tmp_path / "ledger", epsilon=1.0, delta=1e-5)
    fail_after(monkeypatch, 2)
    with pytest.warns(RunEndedWarning):
        run("gradient_descent", silos(), trust="silo", accountant=accountant)
    (entry,) = accountant.entries
    assert not entry.ended
    assert accountant.spent > 0.99


def test_runs_in_lockstep_that_fail_return_their_last_models(monkeypatch):
    fail_at_call(monkeypatch, kernels, "glm_gradients", 3)
    budget = dpk.Budget(epsilon=1.0, delta=1e-5)
    how = {"budgets": budget, "clip": 0.7, "rounds": [2, 5], "trust": "silo", "draws": 2}
    with pytest.warns(RunEndedWarning, match="after update 2 by MemoryError; this"):
        runs = dpk.solve_many("gradient_descent", silos(), **how)
    ended = "ended after update 2 by MemoryError"
    assert [one.message for one in runs] == ["ran its 2 rounds"] * 2 + [ended] * 2


@pytest.mark.usefixtures("round_by_round")
def test_a_run_that_fails_before_its_first_release_says_nothing(monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("no entropy")

    monkeypatch.setattr(kernels, "gaussian", fails)
    with pytest.raises(RuntimeError, match="no entropy") as caught:
        run("gradient_descent", silos())
    assert not hasattr(caught.value, "__notes__")


@for_each("seed", [None, 0])
def test_the_runs_own_key_is_wiped_also_when_it_fails(monkeypatch, seed):
    streams = []
    make = dpk.NoiseStream.__init__

    def remember(stream, *arguments):
        streams.append(stream)
        make(stream, *arguments)

    monkeypatch.setattr(dpk.NoiseStream, "__init__", remember)
    run("gradient_descent", silos(), rng=seed)
    with pytest.raises(ZeroDivisionError):
        run("gradient_descent", silos(), rng=seed, callback=lambda t, release: 1 // 0)
    assert len(streams) == 2
    for stream in streams:
        with pytest.raises(RuntimeError, match="wiped"):
            stream.release()


# ----------------------------------------------------------------------- rounding of threads

_WORKER_CHECK = """
import ctypes, sys
import numpy as np
import dpkern
from dpkern import _core
gomp, libm = ctypes.CDLL("libgomp.so.1"), ctypes.CDLL("libm.so.6")
# The team of threads comes to life while another library has directed rounding switched on.
libm.fesetround(0x800)
gomp.GOMP_parallel(ctypes.cast(libm.fegetround, ctypes.c_void_p), None, 2, 0)
libm.fesetround(0)
G = np.ones((1 << 16, 64))
for call in (
    lambda n: dpkern.kernels.clip_and_sum(G, clip=1.0, grid=2.0**-14, n_threads=n),
    lambda n: dpkern.kernels.gaussian((1, 200_000), 1.0, grid=2.0**-8, rng=0, n_threads=n),
):
    if any(not np.array_equal(call(1), call(2)) for _ in range(3)):
        sys.exit("a worker rounded up")
"""


def test_a_worker_thread_that_rounds_up_is_made_to_round_as_the_caller_does():
    """A thread keeps the mode of its creator: the caller's mode says nothing about its team. It is
    not refused, as whether there is a team may depend on the number of records."""
    try:
        ctypes.CDLL("libgomp.so.1")
    except OSError:
        pytest.skip("no libgomp here")
    if platform.machine() != "x86_64" or not installation.info()["openmp"]:
        pytest.skip("the rounding modes of x86-64 and OpenMP are needed")
    done = subprocess.run([sys.executable, "-c", _WORKER_CHECK], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_many_releases_before_a_failure_are_a_summary():
    def callback(t, release):
        if t == 40:
            raise RuntimeError

    with pytest.raises(RuntimeError) as caught:
        run("prox_svrg", silos(), callback=callback, rounds=50)
    (note,) = caught.value.__notes__
    assert "kinds of them" in note
    assert len(note) < 600
