"""Private selection: law of the number of runs, guarantee, secrets, parts, scores."""

import itertools
import json
import math
import warnings
from collections import Counter
from dataclasses import replace

import dp_accounting as dp
import mpmath as mp
import numpy as np
import pytest
import scipy.stats
from cases import for_each
from dp_accounting import dp_event, rdp
from sklearn.metrics import roc_auc_score

import dpkern as dpk
from dpkern import candidates, selection
from dpkern.candidates import Candidates
from dpkern.privacy import Certificate, NoiseStream, compose_parallel, compose_sequential
from dpkern.privacy.guarantees.rounding import bisect
from dpkern.privacy.guarantees.selection import UNIFORM_BITS, Selection
from dpkern.selection import SelectionError

BUDGET = dpk.Budget(epsilon=1.0, delta=1e-5)
GD = {"solver": "gradient_descent", "clip": 1.0, "rounds": 5, "step_size": 0.5}
# It fails when it runs: the sensitivity of hidden steps needs a row bound.
FAILS = {"solver": "wd_dp", "clip": 1.0, "local_steps": 5, "step_size": 0.5}


def records(n=200, m=2, seed=0, **options):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 3))
    y = np.where(X[:, 0] + 0.5 * rng.standard_normal(n) > 0.0, 1.0, -1.0)
    if options.get("task") == "regression":
        y = X[:, 0]
    else:
        options["classes"] = [-1.0, 1.0]
    return dpk.SiloData(X, y, np.linspace(0, n, m + 1).astype(int), **options)


@pytest.fixture
def number_of_runs(monkeypatch):
    """Set K, which is random otherwise."""

    def fixed(k):
        monkeypatch.setattr(Selection, "number_of_runs", lambda self, uniform: k)

    return fixed


# ------------------------------------------------------------------------------ the law of K


def pgf(eta, gamma, q):
    """E q^K of the truncated negative binomial law (Papernot and Steinke 2022, Definition 1)."""
    if eta == 0.0:
        return mp.log(1 - (1 - mp.mpf(gamma)) * q) / mp.log(gamma)
    power = -mp.mpf(eta)
    return ((1 - (1 - mp.mpf(gamma)) * q) ** power - 1) / (mp.mpf(gamma) ** power - 1)


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("eta", "mean"),
    [(0.0, 10.0), (1.0, 10.0), (-0.5, 3.0), (3.0, 25.0), (1e-9, 5.0), (40.0, 8.0), (0.3, 1.02)],
)
def test_number_of_runs_has_the_truncated_negative_binomial_law(eta, mean):
    chosen = Selection.of_mean(mean, eta=eta, mu=0.1)
    weights = list(chosen.weights())
    total = sum(weights)
    with mp.workdps(60):
        for q in (0.2, 0.9, 0.999, 1.0):
            found, z = mp.mpf(0), mp.mpf(q)
            for weight in reversed(weights):
                found = (found + mp.mpf(weight) / total) * z
            assert abs(found - pgf(eta, chosen.gamma, z)) < mp.mpf(10) ** -35
        exact_mean = mp.diff(lambda t: pgf(eta, chosen.gamma, t), 1)
        assert exact_mean <= chosen.mean_runs <= exact_mean * (1 + mp.mpf(10) ** -11)
    assert chosen.mean_runs == pytest.approx(mean, rel=1e-9)


def test_a_uniform_number_gives_each_number_of_runs_its_share():
    chosen = Selection.of_mean(3.0, eta=0.0, mu=0.1)
    weights = list(chosen.weights())
    total, below = sum(weights), 0
    for k, weight in enumerate(weights[:20], 1):
        first = -(-(below << UNIFORM_BITS) // total)
        assert chosen.number_of_runs(first) == k
        if k > 1:
            assert chosen.number_of_runs(first - 1) == k - 1
        below += weight
    assert chosen.number_of_runs((1 << UNIFORM_BITS) - 1) > 20


def test_as_many_runs_are_made_as_the_law_says(monkeypatch):
    made = []
    monkeypatch.setattr(Candidates, "solve", lambda *args: made.append(1))
    counts = Counter()
    data = records(20, 1)
    for seed in range(400):
        made.clear()
        with pytest.raises(SelectionError):
            dpk.select([GD], data, budget=BUDGET, mean_runs=3.0, eta=1.0, rng=seed)
        counts[min(len(made), 6)] += 1
    expected = [400 * (1 / 3) * (2 / 3) ** (k - 1) for k in range(1, 6)]
    expected.append(400 - sum(expected))
    observed = [counts[k] for k in range(1, 7)]
    assert scipy.stats.chisquare(observed, expected).pvalue > 1e-4


# ------------------------------------------------------------------------------ the guarantee


def profile(chosen, eta, epsilon, one_term=False):
    """The bound of the theorem by quadrature over the margin, nothing about hulls in it.

    With `one_term` E K and the largest ratio are taken apart: E K delta(epsilon - epsilon_2; mu).
    """
    mu, gamma = chosen.mu, chosen.gamma
    t = np.linspace(-10.0 - mu, 6.0, 6001)
    mean = float(mp.diff(lambda q: pgf(eta, gamma, q), 1))
    top, right = (
        mean * (gamma / (gamma + (1.0 - gamma) * scipy.stats.norm.cdf(s))) ** (eta + 1.0)
        for s in (t, t + mu)
    )
    if one_term:
        rest = epsilon - np.log(top / right).max()
        return mean * dpk.privacy.gdp_delta(mu, rest)
    x = np.linspace(-1.0, max(9.0, epsilon / mu + 6.0), 1501)
    gain = np.array([np.max(top - right * math.exp(epsilon - mu * s + mu * mu / 2)) for s in x])
    return np.trapezoid(scipy.stats.norm.pdf(x - mu) * np.maximum(gain, 0.0), x)


@for_each("mu", [1e-2, 0.1, 0.27, 1.0, 4.0])
@for_each(("eta", "mean"), [(0.0, 10.0), (1.0, 5.0), (-0.5, 50.0), (3.0, 1.2)])
def test_the_bound_is_the_theorem_recomputed(mu, eta, mean):
    chosen = Selection.of_mean(mean, eta=eta, mu=mu)
    shifts = chosen._edges[1]
    loss = float(shifts.max())
    for epsilon in (loss + mu, loss + 4 * mu):
        exact = min(1.0, profile(chosen, eta, epsilon))
        assert exact * (1 - 1e-6) <= chosen.delta(epsilon) <= exact * 1.02
        assert chosen.delta(epsilon) <= profile(chosen, eta, epsilon, one_term=True) * 1.01
    assert chosen.delta(0.0) == 1.0
    assert np.all(np.diff([chosen.delta(e) for e in np.linspace(0.0, 2.0 * loss, 50)]) <= 0.0)


def test_no_term_of_the_bound_cancels():
    """Small and large mu, far in the tails: the largest ratio alone in 60 digits is no more."""
    for mu, epsilon in ((1e-5, 2e-4), (0.05, 1.0), (8.0, 120.0)):
        chosen = Selection.of_mean(10.0, eta=0.0, mu=mu)
        heights, shifts = chosen._edges
        with mp.workdps(60):
            exact = mp.mpf(0)
            for height, shift in zip(heights.tolist(), shifts.tolist(), strict=True):
                x = mp.mpf(epsilon) - mp.mpf(shift)
                if x < 0:
                    exact += mp.mpf(height)
                    continue
                z = x / mu - mp.mpf(mu) / 2
                exact += mp.mpf(height) * (mp.ncdf(-z) - mp.exp(x) * mp.ncdf(-z - mu))
        assert exact <= chosen.delta(epsilon) <= exact * (1 + mp.mpf(10) ** -4)


@for_each("mean", [5.0, 10.0, 50.0])
def test_the_bound_is_below_that_of_renyi_dp(mean):
    orders = [*np.linspace(1.05, 20.0, 100), *range(21, 2000, 11)]
    for mu, eta in itertools.product((0.1, 0.27, 0.5, 1.0), (0.0, 1.0)):
        accountant = rdp.RdpAccountant(orders)
        accountant.compose(dp_event.RepeatAndSelectDpEvent(dp.GaussianDpEvent(1.0 / mu), mean, eta))
        chosen = Selection.of_mean(mean, eta=eta, mu=mu)
        for delta in (1e-5, 1e-6):
            ours = bisect(lambda e, c=chosen, d=delta: c.delta(e) <= d, 0.0, 100.0)[1]
            assert ours < 0.87 * accountant.get_epsilon(delta)


@for_each("mu", [0.1, 0.27, 0.5, 1.0])
@for_each(("eta", "mean"), [(0.0, 5.0), (0.0, 50.0), (1.0, 10.0), (-0.5, 10.0)])
def test_the_bound_is_above_the_profile_of_the_best_gaussian_score(mu, eta, mean):
    """The run's score is its only output: N(0, 1), or N(mu, 1) under the other data set."""
    chosen = Selection.of_mean(mean, eta=eta, mu=mu)
    x, loss = np.linspace(-12.0, 12.0 + mu, 40_001), float(chosen._edges[1].max())

    def best(shift):
        above = scipy.stats.norm.sf(x - shift)
        derivative = (chosen.gamma + (1.0 - chosen.gamma) * above) ** -(eta + 1.0)
        density = scipy.stats.norm.pdf(x - shift) * derivative
        return density / np.trapezoid(density, x)

    p, q = best(0.0), best(mu)
    for epsilon in np.linspace(0.5 * loss, loss + 4.0 * mu, 12):
        for one, other in ((p, q), (q, p)):
            true = np.trapezoid(np.maximum(one - math.exp(epsilon) * other, 0.0), x)
            assert true <= chosen.delta(epsilon) * (1.0 + 1e-6)


@for_each("options", [{}, {"mean_runs": 50.0, "eta": -0.5}, {"mean_runs": 1.5}])
@for_each(("epsilon", "delta"), [(1.0, 1e-6), (0.1, 1e-5), (5.0, 1e-9)])
def test_the_certificate_spends_the_budget_and_no_more(epsilon, delta, options):
    budget = dpk.Budget(epsilon=epsilon, delta=delta)
    chosen = dpk.select([GD], records(60), budget=budget, rng=1, **options)
    privacy = chosen.privacy
    assert privacy.delta(epsilon) <= delta
    assert 0.999 * epsilon < privacy.epsilon(delta) <= epsilon
    assert (privacy.bound, privacy.mu, privacy.rho) == ("upper", math.inf, math.inf)
    assert privacy.selection.mu < budget.mu
    # Each run spends the mu of one: the model in the training part, the score in the other.
    *of_model, of_score = (r.mu_squared()[0] for r in privacy.releases)
    for spent in (sum(of_model), of_score):
        assert float(spent) == pytest.approx(privacy.selection.mu**2, rel=1e-12)
        assert spent <= privacy.selection.mu**2 * (1 + 1e-15)


def test_the_error_of_the_sampler_counts_for_every_run():
    chosen = Selection.of_mean(10.0, eta=0.0, mu=1e-3)
    privacy = Certificate(
        trust="central", noise="os", n_draws=1 << 60, bound="upper", guarantee=chosen
    )
    assert 2.0**-39 <= privacy.delta(0.5) <= 2.0**-38  # at most twice what it must be
    assert privacy.epsilon(2.0**-41) == math.inf
    assert privacy.delta(900.0) <= 2.0**-30


def test_a_person_with_several_records_has_several_times_the_mu_of_a_run():
    privacy = dpk.select([GD], records(60), budget=BUDGET, rng=1).privacy
    person = privacy.group(3)
    assert person.selection.mu >= 3 * privacy.selection.mu
    assert person.selection.gamma == privacy.selection.gamma
    assert privacy.epsilon(1e-5) < person.epsilon(1e-5) < math.inf
    assert "30 records" in privacy.user_level().unit


def test_selections_do_not_compose_as_if_they_had_a_mu():
    chosen = dpk.select([GD], records(60), budget=BUDGET, rng=1).privacy
    run = dpk.solve("gradient_descent", records(60), budget=BUDGET, clip=1.0, step_size=0.5)
    for compose in (compose_sequential, compose_parallel):
        with pytest.raises(ValueError, match="certificates must have a mu or a rho"):
            compose(run.privacy, chosen)


def test_a_file_keeps_the_certificate_of_the_selection(tmp_path):
    chosen = dpk.select([GD], records(60), budget=BUDGET, rng=1)
    chosen.result.save(tmp_path / "model.npz")
    again = dpk.load(tmp_path / "model.npz")
    assert again.privacy == chosen.privacy
    assert again.privacy.epsilon(1e-5) == chosen.privacy.epsilon(1e-5) <= 1.0
    encoded = json.loads(json.dumps(chosen.privacy.to_dict(), allow_nan=False))
    assert Certificate.from_dict(encoded) == chosen.privacy
    text = " ".join(str(again.privacy).split())
    assert "epsilon at most 1 at delta 1e-05" in text
    assert "mu none rho none noise seeded: not private, at most" in text


def test_a_selection_states_one_kind_of_guarantee():
    law = Selection.of_mean(5.0, eta=0.0, mu=0.1)
    fields = {"trust": "central", "noise": "os", "n_draws": 1, "guarantee": law}
    with pytest.raises(ValueError, match="bound must be 'upper' without a mu"):
        Certificate(**fields)
    with pytest.raises(TypeError, match="guarantee must be a Guarantee"):
        Certificate(**fields | {"guarantee": 1.0})


def audited(runs, epsilon_of=None):
    """Lower bound of epsilon, 95 %, from the worst neighbours of a selection of tiny models.

    The record that differs is alone in its silo, hence in the training part, and moves the only
    gradient from -C to C; the others only score the sign of the model.
    """
    budget = dpk.Budget(epsilon=3.0, delta=1e-3)
    X = np.full((41, 1), 1e-6)
    X[0] = 1.0
    how = {"solver": "gradient_descent", "clip": 0.5, "rounds": 1, "step_size": 1.0}
    low = []
    for label in (1.0, -1.0):
        y = np.ones(41)
        y[0] = label
        data = dpk.SiloData(X, y, [0, 1, 41], classes=[-1.0, 1.0])
        seeds = range(runs) if label > 0.0 else range(runs, 2 * runs)
        chosen = [dpk.select([how], data, budget=budget, mean_runs=5.0, eta=1.0, holdout=0.5,
                             rng=seed) for seed in seeds]  # fmt: skip
        low.append(sum(float(c.result.coef[0]) < -1.0 / 21 for c in chosen))
    privacy = chosen[0].privacy
    upper = scipy.stats.beta.ppf(0.975, low[0] + 1, runs - low[0])
    lower = scipy.stats.beta.ppf(0.025, low[1], runs - low[1] + 1)
    return math.log((lower - 1e-3) / upper), privacy


def check_audit(runs, least):
    found, privacy = audited(runs)
    assert least < found <= privacy.epsilon(1e-3) <= 3.0


@pytest.mark.statistical
def test_an_audit_finds_less_than_the_certificate():
    check_audit(300, 0.1)


@pytest.mark.statistical
def test_a_long_audit_finds_less_too():
    check_audit(6000, 0.7)


# ------------------------------------------------------------------------------ secrets


def shape(chosen):
    """What a result shows besides the published run's numbers."""
    privacy, result = chosen.privacy, chosen.result
    return (
        privacy.n_draws, privacy.selection, privacy.notes, sorted(privacy.declared),
        [(r.what, r.times, r.dim, r.std) for r in privacy.releases],
        {name: len(values) for name, values in result.history.items()},
        result.timing, result.message, result.n_rounds, result.parameters,
    )  # fmt: skip


def test_results_show_neither_the_number_of_runs_nor_those_that_failed(
    number_of_runs, monkeypatch, capfd
):
    solve, data = Candidates.solve, records()
    shapes = []
    for k, failing in ((1, ()), (7, ()), (7, (0, 1, 2, 3, 4, 5)), (30, range(1, 30, 2))):
        number_of_runs(k)
        calls = itertools.count()

        def solved(self, *args, calls=calls, failing=failing):
            if next(calls) in failing:
                warnings.warn("of a losing run", RuntimeWarning, stacklevel=1)
                print(1 / 0)
            return solve(self, *args)

        monkeypatch.setattr(Candidates, "solve", solved)
        stream = NoiseStream(3)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            chosen = dpk.select([GD, {**GD, "l2": 0.0}], data, budget=BUDGET, rng=stream)
        assert not seen
        assert next(calls) == k
        shapes.append((*shape(chosen), repr(stream)))
    assert all(found == shapes[0] for found in shapes)
    assert shapes[0][6] == {}
    assert capfd.readouterr() == ("", "")


def test_when_all_runs_fail_the_error_says_this_alone(number_of_runs):
    found = []
    for k in (1, 9):
        number_of_runs(k)
        with pytest.raises(SelectionError) as caught:
            dpk.select([FAILS], records(), budget=BUDGET, rng=3)
        error = caught.value
        assert error.__context__ is None
        assert not hasattr(error, "__notes__")
        assert error.privacy.releases == ()
        assert error.privacy.epsilon(1e-5) <= 1.0
        found.append((str(error), error.privacy))
    assert found[0] == found[1]


def test_a_failing_run_has_the_worst_score(number_of_runs):
    number_of_runs(12)
    for seed in range(10):
        chosen = dpk.select([FAILS, FAILS, GD], records(), budget=BUDGET, rng=seed)
        assert chosen.settings == GD


def test_a_model_that_is_not_finite_fails(number_of_runs, monkeypatch):
    number_of_runs(2)
    solve = Candidates.solve

    def infinite(self, *args):
        result = solve(self, *args)
        result.coef[0] = math.nan
        return result

    monkeypatch.setattr(Candidates, "solve", infinite)
    with pytest.raises(SelectionError):
        dpk.select([GD], records(), budget=BUDGET, rng=3)


class Stop(BaseException):
    """What the handler of a signal may raise."""


@for_each("kind", [KeyboardInterrupt, SystemExit, Stop])
def test_an_interruption_shows_nothing_of_the_run(kind, monkeypatch):
    def interrupted(*args):
        error = kind()
        error.add_note("released before the failure: 3 sums")
        raise error

    monkeypatch.setattr(Candidates, "solve", interrupted)
    with pytest.raises(KeyboardInterrupt if kind is Stop else kind) as caught:
        dpk.select([GD], records(), budget=BUDGET)
    assert caught.value.__context__ is None
    assert not hasattr(caught.value, "__notes__")


def test_an_operator_with_records_of_its_own_is_refused():
    """It would read those that score as well: a run would cost sqrt(2) times what is charged."""
    operator = dpk.solvers.Declared(lambda u: 0.5 * u, sensitivity=0.01)
    with pytest.raises(TypeError, match="operator must be a name in a selection"):
        dpk.select(
            [{"rounds": 3}], records(), solver="fixed_point", operator=operator, clip=1.0,
            budget=BUDGET,
        )  # fmt: skip


def test_a_run_that_spends_more_than_its_share_is_not_chosen(number_of_runs, monkeypatch):
    number_of_runs(3)
    monkeypatch.setattr(
        Candidates, "solve",
        lambda self, settings, data, mu, rng: dpk.solve(
            **{"name": "gradient_descent", "data": data, "budget": dpk.Budget(mu=1.001 * mu),
               "rng": rng, "clip": 1.0, "rounds": 5, "step_size": 0.5}),
    )  # fmt: skip
    with pytest.raises(SelectionError):
        dpk.select([GD], records(), budget=BUDGET)


@pytest.mark.statistical
def test_ties_fall_to_every_run_alike(number_of_runs, monkeypatch):
    number_of_runs(3)
    release = selection._Measure.release
    monkeypatch.setattr(
        selection._Measure, "release", lambda self, *args: (1.0, *release(self, *args)[1:])
    )
    of = Candidates.of
    monkeypatch.setattr(
        Candidates, "of",
        lambda *given: replace(of(*given), draw=lambda _: {**GD, "l2": next(numbers) / 8}),
    )  # fmt: skip
    wins, data = Counter(), records(20, 1)
    for seed in range(300):
        numbers = itertools.count()
        wins[dpk.select([GD], data, budget=BUDGET, rng=seed).settings["l2"]] += 1
    assert scipy.stats.chisquare([wins[i / 8] for i in range(3)]).pvalue > 1e-4


@pytest.mark.statistical
def test_settings_of_runs_are_independent_draws_with_their_laws(number_of_runs, monkeypatch):
    number_of_runs(400)
    seen = []
    monkeypatch.setattr(Candidates, "solve", lambda self, settings, *_: seen.append(settings))
    space = {"clip": scipy.stats.loguniform(0.1, 4.0), "rounds": [3, 5], "step_size": [0.5]}
    with pytest.raises(SelectionError):
        dpk.select(space, records(), budget=BUDGET, solver="gradient_descent", rng=5)
    clips = [row["clip"] for row in seen]
    assert scipy.stats.kstest(clips, scipy.stats.loguniform(0.1, 4.0).cdf).pvalue > 1e-4
    assert abs(scipy.stats.spearmanr(clips[1:], clips[:-1])[0]) < 0.2
    assert 150 < sum(row["rounds"] == 3 for row in seen) < 250
    assert {type(row["clip"]) for row in seen} == {float}
    assert {row["solver"] for row in seen} == {"gradient_descent"}


# ------------------------------------------------------------------------------ the two parts


@for_each("sizes", [[50], [1, 2, 30, 7], [3, 3]])
def test_parts_are_disjoint_within_silos_and_independent_of_the_records(sizes):
    n, offsets = sum(sizes), np.cumsum([0, *sizes])
    chosen = []
    for values in (np.zeros(n), np.random.default_rng(0).standard_normal(n)):
        X = np.column_stack([np.arange(n), values])
        y = np.where(values > 0.0, 1, -1)
        data = dpk.SiloData(X, y, offsets, classes=[-1, 1], row_bound=1e9)
        counts = selection._held_out(data, 0.2)
        train, test = selection._parts(data, counts, NoiseStream(7))
        rows = [part.X[:, 0].astype(int) for part in (train, test)]
        assert sorted(np.concatenate(rows)) == list(range(n))
        assert train.sizes.tolist() == (np.array(sizes) - counts).tolist()
        silo = np.repeat(np.arange(len(sizes)), sizes)
        assert np.array_equal(silo[rows[0]], np.repeat(np.arange(len(sizes)), train.sizes))
        assert np.bincount(silo[rows[1]], minlength=len(sizes)).tolist() == counts.tolist()
        for part, kept in zip((train, test), rows, strict=True):
            assert np.array_equal(part.X[:, 1], values[kept])
            assert np.array_equal(part.y, np.asarray(data.y)[kept])
            assert part.transform == data.transform
        chosen.append(rows)
    assert all(map(np.array_equal, *chosen))
    assert counts.tolist() == [min(max(round(0.2 * k), 1), k - 1) for k in sizes]


def test_runs_train_on_one_part_and_are_scored_on_the_other(number_of_runs, monkeypatch):
    number_of_runs(2)
    seen = []
    solve, release = Candidates.solve, selection._Measure.release
    monkeypatch.setattr(
        Candidates, "solve", lambda self, *args: seen.append(args[1]) or solve(self, *args)
    )
    monkeypatch.setattr(
        selection._Measure, "release",
        lambda self, *args: seen.append(args[2]) or release(self, *args),
    )  # fmt: skip
    data = records(100, 2)
    dpk.select([GD], data, budget=BUDGET, holdout=0.3, rng=2)
    train, test = seen[:2]
    assert seen[2:] == [train, test]
    rows = {tuple(row) for row in train.X}, {tuple(row) for row in test.X}
    assert (len(rows[0]), len(rows[1]), len(rows[0] & rows[1])) == (70, 30, 0)


def test_sparse_records_are_divided_too():
    X = scipy.sparse.csr_array(np.where(np.arange(300).reshape(100, 3) % 4, 0.0, 1.0))
    data = dpk.SiloData(X, np.arange(100) % 2, [0, 100], row_bound=2.0)
    chosen = dpk.select([GD], data, budget=BUDGET, rng=1)
    assert chosen.privacy.declared["sizes"] == (100,)


# ------------------------------------------------------------------------------ scores


def a_model(**how):
    data = records(task="regression" if how.get("loss") == "squared" else None)
    return data, dpk.solve("gradient_descent", data, budget=None, rounds=3, step_size=0.5, **how)


def scored(measure, result, data, mu, rng=0, **values):
    values = {"n_threads": 1, "loss": dpk.losses.get_loss(result.loss), "model": None} | values
    return measure.release(result, values, data, mu, NoiseStream(rng))


def test_accuracy_is_the_number_of_right_labels_with_noise_of_sensitivity_one():
    data, result = a_model()
    measure = selection._Measure.of("accuracy", None, data)
    exact = result.score(data.X, data.y) * data.n - data.n / 2
    total, mean, release = scored(measure, result, data, mu=1e6)
    assert total == pytest.approx(exact, abs=1e-5)
    assert (release.sensitivity, release.mu_squared()[0]) == (1.0, pytest.approx(1e12))
    noise = [scored(measure, result, data, 0.5, rng=i)[0] - exact for i in range(300)]
    assert scipy.stats.kstest(noise, scipy.stats.norm(scale=2.0).cdf).pvalue > 1e-4
    assert mean == pytest.approx(result.score(data.X, data.y), abs=1e-6)


def test_a_loss_is_clipped_to_its_bound_and_negated():
    data, result = a_model(loss="squared")
    measure = selection._Measure.of("squared", 0.25, data)
    alone = data.each_alone(np.arange(data.n))
    losses = (result.predict(data.X) - data.y) ** 2 / 2
    exact = np.sum(0.125 - np.minimum(losses, 0.25))
    total, mean, release = scored(measure, result, alone, mu=1e6)
    assert total == pytest.approx(exact, rel=1e-3, abs=1e-2)
    assert release.sensitivity == 0.25
    assert mean == pytest.approx(np.minimum(losses, 0.25).mean(), rel=1e-3, abs=1e-4)


def test_the_area_under_the_curve_is_that_of_the_pairs():
    data, result = a_model()
    measure = selection._Measure.of("auc", None, data)
    order, area, release = scored(measure, result, data, mu=1e6)
    exact = roc_auc_score(data.y, result.decision_function(data.X))
    assert area == pytest.approx(exact, abs=1e-5)
    assert order == pytest.approx((2.0 * exact - 1.0) * (data.y > 0).sum() * (data.y < 0).sum())
    assert release.sensitivity == pytest.approx(2.0 * (data.n - 1), rel=1e-3)


def test_log_loss_is_that_of_predicted_probabilities_cut_to_six():
    data, result = a_model()
    measure = selection._Measure.of("log_loss", None, data)
    far = replace(result, coef=30.0 * result.coef)
    for model in (result, far):
        _, mean, release = scored(measure, model, data, mu=1e6)
        p = model.predict_proba(data.X)[np.arange(data.n), (data.y > 0).astype(int)]
        losses = -np.log(np.maximum(p, np.exp(-6.0)))
        assert mean == pytest.approx(losses.mean(), abs=1e-4)
        assert release.sensitivity == 6.0
    assert losses.max() == pytest.approx(6.0)


@for_each(("score", "best"), [("auc", 1.0), ("log_loss", 0.0), ("accuracy", 1.0)])
def test_scores_of_labels_choose_and_their_certificates_verify(score, best):
    data = records(4_000)
    chosen = dpk.select([GD], data, budget=BUDGET, score=score, mean_runs=3.0, rng=1)
    assert abs(chosen.score - best) < 0.6
    assert chosen.privacy.declared["score"] == score
    assert dpk.verify(chosen.privacy.to_dict()).ok


@for_each("value", [0.0, 1e-3, 1e150, 1e300, -1e308])
def test_one_record_changes_a_sum_of_losses_by_the_bound_at_most(value):
    """An infinite loss is the bound, and not nothing, as `clip_and_sum` has it."""
    data, result = a_model(loss="squared")
    measure = selection._Measure.of("squared", 0.25, data)
    totals = []
    for x in (value, 0.0):
        X, y = np.array(data.X), np.array(data.y)
        X[7], y[7] = x, 0.0
        with np.errstate(all="ignore"):
            whole = dpk.SiloData(
                X, y, data.offsets, task="regression", feature_range=(-1e9, 1e9), row_bound=math.inf
            )
            changed = whole.each_alone(np.arange(data.n))
            totals.append(scored(measure, result, changed, mu=1e6)[0])
    assert abs(totals[0] - totals[1]) <= 0.25 + 1e-5
    if abs(value) > 1.0:
        assert totals[0] - totals[1] == pytest.approx(-0.25, abs=1e-3)


def test_a_multiclass_perceptron_is_scored_by_its_labels():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 3))
    data = dpk.SiloData(X, X.argmax(axis=1), [0, 300], task="multiclass", classes=[0, 1, 2])
    how = {"solver": "minibatch_sgd", "clip": 1.0, "rounds": 30, "step_size": 1.0}
    chosen = dpk.select(
        [{**how, "model": dpk.MLP(hidden=())}], data, mean_runs=1.1, rng=0,
        budget=dpk.Budget(epsilon=15.0, delta=1e-3),
    )  # fmt: skip
    assert chosen.score == pytest.approx(chosen.result.score(data.X, data.y), abs=0.15)
    assert chosen.score > 0.6


def test_the_best_settings_win(number_of_runs):
    number_of_runs(40)
    space = {"step_size": [1e-9, 1.0], "l2": [0.0, 100.0]}
    budget = dpk.Budget(epsilon=10.0, delta=1e-3)
    data = records(2000, 1, row_bound=4.0)
    chosen = dpk.select(
        space, data, solver="gradient_descent", clip=1.0, rounds=10, budget=budget, rng=0,
        score="logistic", score_bound=2.0,
    )  # fmt: skip
    assert chosen.settings == {"solver": "gradient_descent", "step_size": 1.0, "l2": 0.0}
    assert chosen.score < 0.6
    assert "step_size 1.0" in str(chosen)


@for_each(
    ("how", "message"),
    [
        ({"trust": "silo"}, "trust must be 'central' in gradient_descent as a candidate"),
        ({"trust": "shuffle", "solver": "prox_sgd", "rounds": None}, "trust must be 'central'"),
        ({"calibration": "paper"}, "calibration must be 'sound'"),
        ({"neighbours": "add_remove"}, "neighbours must be 'replace_one'"),
        (
            {"solver": "minibatch_sgd", "sampling": "without_replacement"},
            "sampling must be 'full' or 'one_pass' or 'cyclic' in minibatch_sgd",
        ),
        ({"clip": math.inf}, "clip must be finite"),
        ({"clip": None}, "clip must be given"),
        ({"solver": "gradient_decent"}, "solver must be"),
        ({"monitor": "train"}, "monitor must be left out"),
        ({"rng": 3}, "rng must be left out"),
        ({"callback": print}, "callback must be left out"),
        ({"progress": True}, "progress must be left out"),
        ({"budget": BUDGET}, "budget must be left out"),
        ({"stepsize": 1.0}, "gradient_descent has no argument 'stepsize'"),
        ({"loss": "squared"}, None),
    ],
)
def test_candidates_that_cannot_be_selected_are_refused_by_name(how, message):
    settings = {k: v for k, v in {**GD, **how}.items() if v is not None or k != "rounds"}
    if message is None:
        assert dpk.select([GD, settings], records(), budget=BUDGET).settings in (GD, settings)
        return
    with pytest.raises((TypeError, ValueError), match=message):
        dpk.select([GD, settings], records(), budget=BUDGET)
    with pytest.raises((TypeError, ValueError), match=message):
        dpk.select({k: [v] for k, v in settings.items()}, records(), budget=BUDGET)


@for_each(
    ("how", "message"),
    [
        ({"budget": dpk.Budget(mu=0.5)}, "budget must be given as epsilon and delta.* got mu 0.5"),
        ({"budget": dpk.Budget(rho=0.5)}, "budget must be given as epsilon and delta"),
        ({"budget": None}, "budget must be dpkern.Budget"),
        ({"budget": dpk.Budget(epsilon=1.0, delta=1e-18)}, "budget must be larger"),
        ({"mean_runs": 1.0}, "mean_runs must be finite and above 1"),
        ({"mean_runs": 1e9}, "mean_runs must be at most"),
        ({"eta": -1.0}, "eta must be finite and above -1"),
        ({"holdout": 1.0}, "holdout must lie strictly between 0 and 1"),
        ({"score": "squared", "score_bound": 1.0}, "score must be for classification"),
        ({"score": "logistic"}, "score_bound must be the public bound"),
        ({"score_bound": 1.0}, "score_bound must be None"),
        ({"candidates": []}, "candidates must be a list"),
        ({"candidates": [3]}, "candidates must hold a dict each, got int"),
        (
            {"candidates": {"solver": ["wd_dp"], "clip": 1.0}},
            r"candidates\['clip'\] must be a list",
        ),
        ({"candidates": {"solver": ["wd_dp"], "clip": []}}, r"candidates\['clip'\] must be a list"),
        ({"candidates": [{"clip": 1.0}]}, "solver must be given"),
        ({"solver": "wd_dp"}, "solver must be given once"),
        ({"clip": 1.0}, "clip must be given once"),
        ({"data": None}, "data must be a SiloData"),
    ],
)
def test_wrong_arguments_are_refused_by_name(how, message):
    arguments = {"candidates": [GD], "data": records(), "budget": BUDGET, **how}
    with pytest.raises((TypeError, ValueError), match=message):
        dpk.select(**arguments)


def test_accuracy_is_no_score_of_a_regression():
    data = records(task="regression")
    with pytest.raises(ValueError, match="score must be a loss for regression"):
        dpk.select([GD], data, budget=BUDGET)
    chosen = dpk.select(
        [{**GD, "loss": "squared"}], data, budget=BUDGET, score="squared", score_bound=2.0, rng=0
    )
    assert chosen.result.loss == "squared"


def test_data_must_leave_a_record_to_train_every_silo():
    with pytest.raises(ValueError, match="data must have a silo of at least two records"):
        dpk.select([GD], records(2, 2), budget=BUDGET)


def test_a_seed_repeats_the_selection_and_says_so():
    data, other = records(), records(seed=1)
    first, again = (dpk.select([GD], data, budget=BUDGET, rng=4) for _ in range(2))
    assert first.result == again.result
    assert first.score == again.score
    assert first.privacy.noise == "seeded: not private"
    assert dpk.select([GD], other, budget=BUDGET).privacy.noise == "os"


def test_a_child_of_a_stream_shows_nothing_of_its_releases_to_it():
    with NoiseStream(5) as stream, stream.child() as child, stream.child() as second:
        for _ in range(9):
            child.release().wipe()
        assert "releases=2" in repr(stream)
        assert child.kind == "seeded: not private"
        assert bytes(second.release().key) != bytes(child.release().key)
    with NoiseStream() as stream, stream.child() as child:
        assert child.kind == "os"


def test_distributions_are_declared_as_they_were_given():
    chosen = dpk.select(
        {"clip": scipy.stats.loguniform(0.1, 4.0), "l2": [0.0, 0.1]}, records(), budget=BUDGET,
        solver="gradient_descent", step_size=0.5, rounds=3, rng=0,
    )  # fmt: skip
    declared = chosen.privacy.declared
    assert declared["candidates"] == {"clip": "loguniform(0.1, 4.0)", "l2": (0.0, 0.1)}
    assert (declared["mean_runs"], declared["eta"], declared["holdout"]) == (30.0, 5.0, 0.2)
    assert candidates._text(object()) == "object()"
