"""`dpkern.Accountant`: what is charged, when, and what is refused."""

import copy
import json
import math
import pickle
import re
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from makers import assert_refused
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score

import dpkern as dpk
from dpkern import Accountant, Budget, BudgetSpentError, cli
from dpkern.estimators import DPLogisticRegression
from dpkern.privacy import Certificate, compose_sequential, gdp_epsilon, gdp_mu
from dpkern.privacy.accountant.accountant import CHARGED
from dpkern.privacy.accountant.charges import Charge
from dpkern.privacy.accountant.profiles import Bound, Spending
from dpkern.privacy.guarantees.gdp import GaussianDP

DELTA = 1e-6
TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
ONE = Budget(epsilon=1.0, delta=DELTA)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "study.json"


@pytest.fixture
def accountant(path):
    return Accountant(path, epsilon=3.0, delta=DELTA)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.0, 1.0, (400, 5))
    y = np.where(X @ [1.0, -1.0, 0.5, 0.0, 0.0] > 0.0, 1.0, -1.0)
    feature_range = (-np.ones(5), np.ones(5))
    return dpk.SiloData.split(X, y, m=2, feature_range=feature_range, row_bound=2.0, intercept=True)


def fit(data, accountant, budget=ONE, solver="gradient_descent", **arguments):
    how = {"clip": 1.0, "rounds": 5, **arguments}
    return dpk.solve(solver, data, budget=budget, accountant=accountant, **how)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


# ----------------------------------------------------------------------------- the budget


def test_a_new_file_states_the_budget(accountant, path):
    (head,) = lines(path)
    assert head["format"] == "dpkern accountant"
    assert (head["epsilon"], head["delta"]) == (3.0, DELTA)
    assert (accountant.spent, accountant.entries, accountant.certificates) == (0.0, (), ())
    assert accountant.remaining == pytest.approx(3.0, rel=1e-9)
    assert accountant.remaining_mu == pytest.approx(gdp_mu(3.0, DELTA), rel=1e-9)


def test_a_file_is_opened_with_its_own_figures_or_with_none(accountant, path, data):
    fit(data, accountant)
    for again in (Accountant(path), Accountant(str(path), epsilon=3, delta=DELTA)):
        assert again.spent == accountant.spent > 0.0
        assert (again.epsilon, again.delta) == (3.0, DELTA)
    for figures, name in (
        ({"epsilon": 30.0, "delta": DELTA}, "epsilon"),
        ({"epsilon": 3.0, "delta": 1e-5}, "delta"),
        ({"neighbours": "add_remove"}, "neighbours"),
        ({"unit": "one person with 2 records"}, "unit"),
    ):
        assert_refused(f"{name} must be that of .*study.json", Accountant, path, **figures)


def test_wrong_figures_create_no_file(path):
    for figures, error, message in (
        ({}, FileNotFoundError, "give epsilon and delta to create it"),
        ({"epsilon": 1.0}, ValueError, "given together"),
        ({"epsilon": 0.0, "delta": DELTA}, ValueError, "epsilon must be positive"),
        ({"epsilon": 1.0, "delta": 1.0}, ValueError, "delta must lie"),
        ({"epsilon": 1.0, "delta": DELTA, "neighbours": "x"}, ValueError, "neighbours must be"),
        ({"epsilon": 1.0, "delta": DELTA, "unit": ""}, ValueError, "unit must be"),
    ):
        with pytest.raises(error, match=message):
            Accountant(path, **figures)
        assert not path.exists()


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0, 8.0])
def test_a_run_of_the_whole_budget_has_room_and_a_second_one_has_not(path, data, epsilon):
    budget = {"epsilon": epsilon, "delta": DELTA}
    accountant, whole = Accountant(path, **budget), Budget(**budget)
    fit(data, accountant, whole)
    assert epsilon * (1.0 - 1e-6) < accountant.spent <= epsilon
    with pytest.raises(BudgetSpentError):
        fit(data, accountant, whole)
    assert len(accountant.entries) == 1


def test_what_remains_is_what_has_room(accountant, data):
    fit(data, accountant)
    left = accountant.remaining
    with pytest.raises(BudgetSpentError):
        fit(data, accountant, Budget(epsilon=left * (1.0 + 1e-6), delta=DELTA))
    fit(data, accountant, Budget(epsilon=left, delta=DELTA))
    with pytest.raises(BudgetSpentError):
        fit(data, accountant, Budget(mu=1e-3))


def test_remaining_mu_has_room_exactly(accountant, data):
    fit(data, accountant)
    mu = accountant.remaining_mu
    with pytest.raises(BudgetSpentError):
        accountant.charge("a mean", mu=mu * (1.0 + 1e-9))
    fit(data, accountant, Budget(mu=mu))
    assert 2.98 < accountant.spent <= 3.0  # a little of delta is for other guarantees


def test_room_for_three_runs_three_and_refuses_the_fourth(path, data):
    accountant = Accountant(path, epsilon=1.9, delta=DELTA)
    for _ in range(3):
        fit(data, accountant)
    before = path.read_bytes()
    with pytest.raises(BudgetSpentError) as caught:
        fit(data, accountant)
    assert path.read_bytes() == before
    message = str(caught.value)
    for words in (
        "study.json has no room for gradient_descent, which asked for epsilon 1:",
        "1.814 of epsilon 1.9 at delta 1e-06 is spent",
        "is left for one more Gaussian run; nothing was charged or released",
    ):
        assert words in message
    assert accountant.spent == pytest.approx(gdp_epsilon(math.sqrt(3) * ONE.mu, DELTA), rel=1e-6)


def test_a_refusal_names_the_budget_as_it_was_stated(path, data):
    accountant = Accountant(path, epsilon=1.0, delta=1e-5)
    budget = Budget(epsilon=5.0, delta=DELTA)
    there = gdp_epsilon(budget.mu, 1e-5)
    said = f"which asked for epsilon 5 at delta {DELTA:g}, which is {there:.2f}"[:-1]

    def evaluated():
        dpk.evaluate(lambda X: X[:, 0], np.full((9, 1), 0.5), [0, 1, 1] * 3, classes=[0, 1],
                     budget=budget, accountant=accountant)  # fmt: skip

    for call in (lambda: fit(data, accountant, budget), evaluated):
        with pytest.raises(BudgetSpentError) as caught:
            call()
        assert said in str(caught.value)
        assert "at the ledger's delta 1e-05: 0 of epsilon 1 at delta 1e-05 is" in str(caught.value)


# ----------------------------------------------------------------------------- what is charged


def test_a_run_is_charged_its_bound_before_and_its_certificate_after(accountant, path, data):
    seen = []
    result = fit(data, accountant, callback=lambda t, release: seen.append(lines(path)[1:]))
    assert [row["event"] for row in seen[0]] == ["charge"]
    assert seen[0][0]["bound"]["mu"] == ONE.mu
    assert [row["event"] for row in lines(path)[1:]] == ["charge", "settle"]
    (entry,) = accountant.entries
    assert entry.guarantee == result.privacy
    assert entry.ended
    assert (entry.number, entry.what, entry.part) == (1, "gradient_descent", None)
    assert accountant.certificates == (result.privacy,)
    assert CHARGED in result.privacy.notes
    assert "study" not in str(result.privacy)
    assert accountant.spent == pytest.approx(result.privacy.epsilon(DELTA), rel=1e-9)


def test_the_model_is_that_of_a_run_without_an_accountant(accountant, data):
    with_it, without = fit(data, accountant, rng=3), fit(data, None, rng=3)
    assert np.array_equal(with_it.w, without.w)
    assert accountant.entries[0].seeded
    assert "seeded" in str(accountant)
    assert accountant.spent > 0.99


def test_gaussian_runs_compose_by_their_squares(accountant, data):
    results = [fit(data, accountant, Budget(mu=mu)) for mu in (0.1, 0.2, 0.3)]
    together = compose_sequential(*(result.privacy for result in results))
    assert accountant.spent == pytest.approx(together.epsilon(DELTA), rel=1e-9)


@pytest.mark.parametrize("name", dpk.solvers.SOLVERS)
def test_the_bound_of_every_solver_is_at_least_its_certificate(accountant, data, name):
    result = dpk.solve(name, data, budget=ONE, accountant=accountant, rng=0)
    bound = Bound.from_dict(lines(Path(accountant.path))[1]["bound"])
    for epsilon in (0.3, 1.0):
        assert result.privacy.delta(epsilon) <= Spending.of([bound], "replace_one").delta(epsilon)


SAMPLED = {
    "replaced": {"sampling": "without_replacement", "batch_size": 40},
    "silo": {"sampling": "without_replacement", "batch_size": 40, "trust": "silo"},
    "poisson": {
        **{"sampling": "poisson", "batch_size": 40, "neighbours": "add_remove"},
        "public_size": [200, 200],
    },
    "shuffle": {"trust": "shuffle"},
}


@pytest.mark.parametrize("how", SAMPLED)
def test_two_runs_that_are_not_gaussian_cost_less_than_the_sum(path, data, how):
    """The bound of the second is composed too, at the delta of the whole budget."""
    pytest.importorskip("dp_accounting")
    relation = SAMPLED[how].get("neighbours", "replace_one")
    accountant = Accountant(path, epsilon=3.0, delta=DELTA, neighbours=relation)
    run = {"budget": ONE, "accountant": accountant, "clip": 1.0, "rounds": 10, **SAMPLED[how]}
    own = [dpk.solve("minibatch_sgd", data, **run).privacy.epsilon(DELTA) for _ in range(2)]
    assert max(own) < accountant.spent < 0.85 * sum(own)
    bound = Bound.from_dict(lines(path)[1]["bound"])
    certificate = accountant.certificates[0]
    for epsilon in (0.1, 0.3):
        most = Spending.of([bound], relation).delta(epsilon)
        assert Spending.of([certificate], relation).delta(epsilon) <= most * (1.0 + 1e-9)


def test_many_runs_are_charged_together_or_not_at_all(accountant, path, data):
    how = {"clip": 1.0, "rounds": 5, "accountant": accountant, "budgets": ONE}
    seen, make = [], Charge.make

    def recorded(self):
        make(self)
        seen.append([row["event"] for row in lines(path)[1:]])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Charge, "make", recorded)
        results = dpk.solve_many("gradient_descent", data, draws=4, **how)
    assert seen[0] == ["charge"] * 4  # before the first release of any
    assert [entry.guarantee for entry in accountant.entries] == [r.privacy for r in results]
    before = path.read_bytes()
    parts = [accountant.part("a"), accountant.part("b")]
    with pytest.raises(TypeError, match="accountant must be one Accountant for all runs"):
        dpk.solve_many("gradient_descent", data, **{**how, "accountant": parts})
    with pytest.raises(BudgetSpentError, match="gradient_descent and 39 more"):
        dpk.solve_many("gradient_descent", data, draws=40, **how)
    assert path.read_bytes() == before


def test_a_selection_is_charged_as_a_whole(accountant, data):
    pytest.importorskip("dp_accounting")
    fit(data, accountant, Budget(mu=0.1))
    how = {"solver": "gradient_descent", "clip": 1.0, "mean_runs": 2.0, "rng": 0}
    how |= {"budget": Budget(epsilon=1.0, delta=1e-7), "accountant": accountant}
    chosen = dpk.select([{"rounds": 3}, {"rounds": 5}], data, **how)
    entry = accountant.entries[1]
    assert (entry.what, entry.guarantee.selection) == ("select", chosen.privacy.selection)
    assert CHARGED in chosen.privacy.notes
    assert chosen.privacy.epsilon(DELTA) < accountant.spent < 2.0
    with pytest.raises(TypeError, match="accountant must be left out of the candidates"):
        dpk.select([{"accountant": accountant}], data, **how | {"accountant": None})
    with pytest.raises(BudgetSpentError):
        dpk.select([{"rounds": 3}], data, **how | {"budget": Budget(epsilon=2.9, delta=1e-7)})
    assert len(accountant.entries) == 2


def test_private_ranges_are_charged(accountant, path):
    X = np.random.default_rng(0).uniform(-1.0, 1.0, (300, 2))
    how = {"bounds": (-10.0, 10.0), "budget": Budget(mu=0.2), "accountant": accountant}
    found = dpk.private_range(X, **how)
    assert accountant.certificates == (found.privacy,)
    assert [row["event"] for row in lines(path)[1:]] == ["charge", "settle"]
    with pytest.raises(BudgetSpentError):
        dpk.private_range(X, **(how | {"budget": Budget(mu=2.0)}))


def test_other_releases_are_charged_by_hand(accountant):
    assert accountant.charge("mean age", mu=0.2) == 1
    assert accountant.charge("a histogram", epsilon=0.5, delta=0.0) == 2
    certificate = Certificate(trust="central", noise="os", guarantee=GaussianDP(mu=0.1), n_draws=1)
    assert accountant.charge("a median", certificate) == 3
    assert accountant.charge("counts", rho=0.01) == 4
    assert 0.5 < accountant.spent < 2.0
    accountant.settle(1, certificate)
    with pytest.raises(ValueError, match="number must be of a charge without a certificate"):
        accountant.settle(1, certificate)
    twice = {"mu": 1.0, "rho": 1.0}, {"certificate": certificate, "mu": 1.0}
    for wrong in ({}, *twice, {"epsilon": 1.0}, {"mu": -1.0}):
        assert_refused("must", accountant.charge, "x", **wrong)
    assert_refused("what must be", accountant.charge, "", mu=0.1)
    assert len(accountant.entries) == 4


def test_a_certificate_that_states_nothing_has_no_room(accountant):
    nothing = Certificate(trust="central", noise="os", guarantee=GaussianDP(mu=math.inf), n_draws=0)
    with pytest.raises(BudgetSpentError, match="asked for epsilon infinite"):
        accountant.charge("records", nothing)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"budget": None}, "budget must be given with an accountant"),
        ({"solver": "federated_gd", "calibration": "paper"}, "calibration must be 'sound' with an"),
        ({"monitor": "train"}, "monitor must be None or public records"),
        ({"neighbours": "add_remove", "public_size": 400}, "neighbours must be those of the acc"),
        ({"clip": -1.0}, "clip must be positive"),
        ({"rounds": 0}, "rounds must be"),
    ],
)
def test_what_cannot_be_charged_is_refused_and_nothing_is_charged(
    accountant, path, data, change, message
):
    before = path.read_bytes()
    assert_refused(message, fit, data, accountant, **{"budget": ONE} | change)
    assert path.read_bytes() == before


def test_an_accountant_must_be_one(path, data):
    with pytest.raises(TypeError, match=r"accountant must be None or an Accountant, got str: dpk"):
        fit(data, "study.json")
    with pytest.raises(TypeError, match="accountant must be an Accountant"):
        dpk.select([{}], data, solver="gradient_descent", budget=ONE, accountant="x")
    with pytest.raises(TypeError, match="accountant must be an Accountant"):
        dpk.private_range(np.ones((3, 1)), bounds=(0.0, 2.0), budget=ONE, accountant="x")


def test_a_run_that_fails_after_a_release_keeps_its_charge(accountant, data):
    def stop(t, release):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(data, accountant, callback=stop)
    (entry,) = accountant.entries
    assert not entry.ended
    assert accountant.spent > 0.99
    assert "gradient_descent (bound)" in str(accountant)


def test_a_run_that_fails_before_its_first_release_is_charged_nothing(accountant, data):
    """The charge is made, and the release it is for cannot be recorded."""
    with pytest.MonkeyPatch.context() as patch:
        make = Charge.make

        def fails(self):
            make(self)
            raise MemoryError

        patch.setattr(Charge, "make", fails)
        with pytest.raises(MemoryError):
            fit(data, accountant)
    (entry,) = accountant.entries
    assert (entry.guarantee.mu, entry.guarantee.releases, accountant.spent) == (0.0, (), 0.0)
    assert "before its first release" in entry.guarantee.notes[0]


def test_units_must_fit(path, tmp_path, data):
    people = Accountant(path, epsilon=3.0, delta=DELTA, unit="one person with 3 records")
    result = fit(data, people, Budget(mu=0.1))
    (certificate,) = people.certificates
    assert certificate == result.privacy.group(3)
    assert lines(path)[1]["bound"]["mu"] == pytest.approx(0.3)
    with pytest.raises(ValueError, match="'one person with 3 records', got 'one person with 2"):
        people.charge("x", result.privacy.group(2))
    records = Accountant(tmp_path / "records.json", epsilon=3.0, delta=DELTA)
    records.charge("x", result.privacy.group(3))  # who protects all three protects each
    assert records.spent == pytest.approx(gdp_epsilon(0.3, DELTA), rel=1e-6)
    silo = replace(result.privacy, unit="one silo, of 3 records at most")
    assert_refused("unit must be that of the accountant, 'one record'", records.charge, "x", silo)
    nobody = Accountant(
        tmp_path / "nobody.json", epsilon=3.0, delta=DELTA, unit="one person with 0 records"
    )
    assert_refused("unit must be that of the accountant", fit, data, nobody)


def test_parts_compose_in_parallel_and_what_is_of_no_part_counts_for_all(accountant, data):
    first, second = accountant.part("hospital A"), accountant.part("hospital B")
    fit(data, first)
    fit(data, second, Budget(epsilon=2.0, delta=DELTA))
    assert accountant.spent == second.spent == pytest.approx(2.0, rel=1e-6)
    assert first.spent == pytest.approx(1.0, rel=1e-6)
    fit(data, accountant)  # all hospitals
    assert accountant.spent == second.spent > 2.0
    assert first.spent == pytest.approx(gdp_epsilon(math.sqrt(2) * ONE.mu, DELTA), rel=1e-6)
    assert [entry.part for entry in first.entries] == ["hospital A", None]
    assert first.remaining > second.remaining == accountant.remaining
    with pytest.raises(BudgetSpentError, match="part 'hospital B'"):
        fit(data, second, Budget(epsilon=2.0, delta=DELTA))
    fit(data, first, Budget(epsilon=2.0, delta=DELTA))
    with pytest.raises(BudgetSpentError):
        fit(data, accountant, Budget(epsilon=2.0, delta=DELTA))
    assert "hospital A" in str(accountant)
    assert accountant.spent <= 3.0
    assert_refused("name must be that of a part of all data", first.part, "ward 1")


# ----------------------------------------------------------------------------- copies


def test_copies_clones_and_pickles_are_the_same_accountant(accountant, data):
    part = accountant.part("A")
    for one in (accountant, part):
        again = pickle.loads(pickle.dumps(one))
        assert again == one
        assert hash(again) == hash(one)
        assert copy.copy(one) is one
        assert copy.deepcopy(one) is one
        assert clone(DPLogisticRegression(accountant=one)).accountant is one
    assert part != accountant
    assert accountant != "x"
    fit(data, pickle.loads(pickle.dumps(part)))
    assert [entry.part for entry in accountant.entries] == ["A"]


def test_a_pickle_finds_its_file_from_another_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pickled = pickle.dumps(Accountant("study.json", epsilon=1.0, delta=DELTA))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert pickle.loads(pickled).epsilon == 1.0


# ----------------------------------------------------------------------------- output


def test_the_table_says_what_is_spent_and_left(accountant, data):
    assert "spent: epsilon 0; left for one more Gaussian run: epsilon 3" in str(accountant)
    fit(data, accountant)
    fit(data, accountant.part("<A>"))
    text = str(accountant).splitlines()
    assert text[0] == (
        "Accountant study.json: epsilon 3 at delta 1e-06 for one record, neighbours replace_one"
    )
    assert text[1].split() == ["when", "(UTC)", "what", "part", "epsilon", "spent", "left"]
    assert text[2].split()[2:] == ["gradient_descent", "all", "1", "1", "2.75"]
    assert text[3].split()[2:6] == ["gradient_descent", "<A>", "1", "1.455"]
    spent, left = text[3].split()[-2:]
    assert text[4] == f"spent: epsilon {spent}; left for one more Gaussian run: epsilon {left}"
    assert max(map(len, text)) <= 100
    html = accountant._repr_html_()
    assert html.count("<tr>") == 3
    assert "&lt;A&gt;" in html
    assert repr(accountant.part("B")) == f"Accountant({accountant.path!r}).part('B')"


def test_the_picture_is_drawn(accountant, data, tmp_path):
    pytest.importorskip("matplotlib")
    fit(data, accountant)
    accountant.plot(tmp_path / "spent.png")
    assert (tmp_path / "spent.png").read_bytes().startswith(b"\x89PNG")


def test_the_command_line_creates_charges_and_shows(tmp_path, capsys, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    rows = [f"{a:.3f},{b:.3f},{int(a > b)}" for a, b in rng.uniform(-1.0, 1.0, (200, 2))]
    (tmp_path / "d.csv").write_text("a,b,y\n" + "\n".join(rows) + "\n")
    fit = "fit d.csv --epsilon 1 --delta 1e-6 --row-bound 2 --ledger s.json"

    def run(words):
        return cli.main(words.split())

    assert run(fit) == 2
    assert "s.json: no such file; give epsilon and delta" in capsys.readouterr().err
    assert run("ledger s.json --epsilon 1.5 --delta 1e-6") == 0
    assert run(fit) == 0
    assert "s.json: 1 of epsilon 1.5 at delta 1e-06 is spent" in capsys.readouterr().out
    assert run(fit) == 0
    assert run(fit) == 2
    assert "s.json has no room for gradient_descent" in capsys.readouterr().err
    assert run("ledger s.json --plot s.png") == 0
    assert capsys.readouterr().out.count("gradient_descent") == 2
    assert (tmp_path / "s.png").exists()
    assert run("ledger s.json --epsilon 5 --delta 1e-6") == 2
    assert "a budget is not changed" in capsys.readouterr().err
    assert run("fit d.csv --ledger s.json --no-privacy") == 2
    assert "budget must be given with" in capsys.readouterr().err


# ----------------------------------------------------------------------------- cross-validation


@pytest.mark.parametrize("n_jobs", [None, pytest.param(2, marks=pytest.mark.processes)])
@pytest.mark.parametrize("error_score", ["raise", np.nan])
def test_a_grid_search_of_seven_fits_with_room_for_three_runs_three(path, n_jobs, error_score):
    accountant = Accountant(path, epsilon=1.9, delta=DELTA)
    X = np.random.default_rng(0).uniform(-1.0, 1.0, (300, 3))
    y = np.where(X[:, 0] > 0.0, 1.0, -1.0)
    model = DPLogisticRegression(1.0, DELTA, accountant=accountant, solver="gradient_descent")
    search = GridSearchCV(
        model,
        {"clip": [0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 3.0]},
        cv=[(np.arange(200), np.arange(200, 300))],
        n_jobs=n_jobs,
        error_score=error_score,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the fits that failed
        with pytest.raises(BudgetSpentError, match="no room for gradient_descent"):
            search.fit(X, y)
    assert len(accountant.entries) == 3
    assert 1.8 < accountant.spent <= 1.9
    with pytest.raises(BudgetSpentError):
        cross_val_score(model, X, y, cv=2, error_score="raise")


@pytest.mark.docs
def test_the_page_about_it_runs(source_tree, tmp_path, monkeypatch, capsys):
    pytest.importorskip("dp_accounting")
    monkeypatch.chdir(tmp_path)
    text = (source_tree / "docs" / "accountant.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```)?", text, re.DOTALL)
    names = {}
    for code, printed in blocks[:2]:
        exec(code, names)
        found, expected = (re.sub(TIME, "", text) for text in (capsys.readouterr().out, printed))
        assert found == expected
