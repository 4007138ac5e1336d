"""What follows from a solver's declaration: signature, documentation, certificate, errors."""

import doctest
import inspect
import itertools
import math
import re
from typing import Annotated, Literal

import numpy as np
import pytest
from cases import for_each
from makers import assert_refused, make_table

import dpkern as dpk
from dpkern._numbers import count
from dpkern.auditing.pairs import worst_pair
from dpkern.models.penalties import L1, L2, PL, ElasticNet, GroupLasso, L2Ball
from dpkern.solvers import SOLVERS
from dpkern.solvers.base.automatic import chosen
from dpkern.solvers.base.declaration import renamed
from dpkern.solvers.base.declaration import solver as declare
from dpkern.solvers.base.options import COMMON, SHARED, UNDECLARED, Option, options_of
from dpkern.solvers.base.run import Run

DECLARED = {name: solver.declaration for name, solver in SOLVERS.items()}
OFFERED = [(name, trust) for name, declared in DECLARED.items() for trust in declared.trusts]
every_solver = for_each("name", SOLVERS)
OFFERS = {
    "trust": ("central", "silo", "shuffle", "local", "nobody"),
    "neighbours": ("replace_one", "add_remove", "edit"),
    "calibration": ("sound", "paper", "exact"),
}


def make_data(task="classification", **options):
    X, y = make_table(240, 5, task, labels=("no", "yes"))
    options = {"row_bound": 2.0, "intercept": True} | options
    return dpk.SiloData.split(X, y, 4, how="random", seed=0, min_size=20, **options)


@pytest.fixture(scope="module")
def data():
    return make_data()


def short(name, trust="central"):
    """Arguments of a run of two steps, or of the least number that a solver takes.

    A silo that is a user of ADMM needs to be named as one.
    """
    own = [option for option in ("rounds", "local_steps") if option in DECLARED[name].own]
    length = dict.fromkeys(own[:1], 4 if name == "newton_inference" else 2)
    users = {"users": "silos"} if (name, trust) == ("admm", "silo") else {}
    budget = dpk.Budget(epsilon=5.0, delta=1e-5)
    return {"budget": budget, "clip": 1.0, "trust": trust, **length, **users}


# ------------------------------------------------------------------ signature and documentation


@every_solver
def test_the_signature_holds_the_declared_options_and_the_shared_ones_apart(name):
    parameters = inspect.signature(SOLVERS[name]).parameters
    own = DECLARED[name].own
    assert list(parameters) == ["data", "budget", "clip", *own, "shared"]
    assert {k: parameters[k].default for k in own} == {k: o.default for k, o in own.items()}
    assert not set(own) & set(SHARED)
    assert len(parameters) <= 16  # short enough to be read
    assert len(set(own) - set(COMMON)) <= 8


def test_every_solver_is_exported():
    assert set(SOLVERS) <= set(dpk.solvers.__all__)


def test_solve_shows_the_shared_arguments_with_one_default_for_all():
    parameters = inspect.signature(dpk.solve).parameters
    assert list(parameters) == ["name", "data", "budget", *SHARED, "inference", "options"]
    assert {k: parameters[k].default for k in SHARED} == {k: o.default for k, o in SHARED.items()}


@every_solver
def test_every_trust_is_offered_by_the_default_of_all_solvers(name):
    assert SHARED["trust"].default in DECLARED[name].trusts
    assert SHARED["neighbours"].default in DECLARED[name].neighbours


@for_each("name", [*SOLVERS, "solve"])
def test_the_docstring_describes_every_argument_once_in_the_order_of_the_signature(name):
    function = dpk.solve if name == "solve" else SOLVERS[name]
    doc = inspect.getdoc(function)
    section = doc.split("Parameters\n----------\n")[1].split("\n\nReturns\n")[0]
    heads = [line for line in section.splitlines() if not line.startswith(" ")]
    names = [head.split(" : ")[0].lstrip("*") for head in heads]
    assert names == list(inspect.signature(function).parameters)
    described = SHARED if name == "solve" else DECLARED[name].own
    for option, what in described.items():
        assert what.doc
        assert what.kind
        words = " ".join(section.split())
        assert f"{option} : {what.kind}, default={what.default!r} {what.doc}" in words


@every_solver
def test_the_docstring_says_what_is_offered_and_why_it_is_private(name):
    doc = " ".join(inspect.getdoc(SOLVERS[name]).split())
    offers = doc.split("Offered here: ")[1]
    for kind, values in (
        ("trust", DECLARED[name].trusts),
        ("neighbours", DECLARED[name].neighbours),
        ("calibration", DECLARED[name].calibrations),
    ):
        assert f"{kind} " + " or ".join(f'"{value}"' for value in values) in offers
    assert len(DECLARED[name].notes) > 100


async def unheard(run: Run, *, rounds: int = 1, unheard: float = 0.5) -> None:
    """Nothing.

    Parameters
    ----------
    rounds : int
        Described.
    """


async def vanished(run: Run, *, rounds: int = 1) -> None:
    """Nothing.

    Parameters
    ----------
    rounds : int
        Described.
    other : int
        It is not there.
    """


def test_an_option_of_several_solvers_is_described_once():
    def page(run: Run, *, rounds: int = 7) -> None:
        """Nothing."""

    (rounds,) = options_of(page, COMMON).values()
    assert (rounds.kind, rounds.doc, rounds.default) == ("int", COMMON["rounds"].doc, 7)
    for name, option in COMMON.items():
        assert f"{name} : {option.kind}" in dpk.solve.__doc__


def test_an_option_that_nothing_describes_cannot_be_declared_nor_one_that_is_not_there():
    with pytest.raises(TypeError, match="unheard does not describe its argument unheard"):
        declare(trusts=("central",))(unheard)
    with pytest.raises(TypeError, match="vanished has no argument other"):
        declare(trusts=("central",))(vanished)


def test_a_solver_is_a_coroutine():
    def hasty(run: Run, *, rounds: int = 2) -> None:
        """Nothing."""

    with pytest.raises(TypeError, match="hasty must be an async def"):
        declare(trusts=("central",))(hasty)


async def quiet(
    run: Run,
    *,
    rounds: Annotated[int, Option(count)] = 2,
    shown: Literal["a", "b"] = "a",
    silent: Annotated[int, UNDECLARED] = 3,
    free: float | None = None,
) -> None:
    """Nothing.

    Parameters
    ----------
    rounds : int
        One.
    shown : {"a", "b"}
        Two.
    silent : int
        Three.
    free : float or None
        Four.
    """
    run.stream.release()
    return run.result(run.objective.start())


def test_options_are_declared_to_be_public_unless_they_are_marked_and_checked_by_annotations(data):
    options = options_of(quiet)
    assert [name for name, option in options.items() if option.declared] == [
        "rounds", "shown", "free"
    ]  # fmt: skip
    public = declare(trusts=("central",))(quiet)
    result = public(data, budget=None)
    declared = result.privacy.declared
    assert (declared["rounds"], declared["shown"], declared["free"]) == (2, "a", None)
    assert "silent" not in declared
    assert result.parameters["silent"] == 3
    for bad, error in (({"rounds": 0}, ValueError), ({"shown": "c"}, ValueError)):
        with pytest.raises(error, match=next(iter(bad))):
            public(data, budget=None, **bad)


def test_plans_and_audits_read_the_declaration(monkeypatch):
    how = {
        "summary": "Another.",
        "notes": "",
        "defaults": {},
        "seconds": (1.0, 0.0),
        "audit": {"rounds": 2},
    }
    for name, error in (("other", (0.1, 0.96)), ("unmeasured", None)):
        added = renamed(SOLVERS["gradient_descent"], name, error=error, **how)
        monkeypatch.setitem(SOLVERS, name, added)
    plan = dpk.plan(10_000, 20, budget=dpk.Budget(epsilon=1.0, delta=1e-6), row_bound=2.0)
    rows = {row.solver: row for row in plan.rows}
    assert rows["other"].error < rows["gradient_descent"].error
    assert "unmeasured" not in rows
    *_, arguments = worst_pair(
        "other", trust="central", neighbours="replace_one", n=None, m=1, how={}
    )
    assert arguments["rounds"] == 2


@for_each(("name", "trust"), OFFERED)
def test_the_certificate_declares_every_option_but_those_of_no_concern_to_privacy(
    data, name, trust
):
    result = dpk.solve(name, data, rng=0, **short(name, trust))
    options = DECLARED[name].own | SHARED
    public = {option for option, what in options.items() if what.declared}
    assert public <= set(result.privacy.declared)
    assert set(options) | {"budget"} <= set(result.parameters)
    silent = {"trust", "neighbours", "public_size", "rng", "n_threads", "progress", "callback"}
    silent |= {"monitor", "accountant", "person_clip", "colluding"}  # the last where it is given
    assert set(options) - public == silent
    assert (result.privacy.trust, result.privacy.neighbours) == (trust, "replace_one")
    for release in result.privacy.releases:
        # What the releases are, and not only what they are called: of every silo, or in coins.
        assert isinstance(release.std, tuple) == (trust == "silo")
        assert (release.coins is not None) == (trust == "shuffle")


def test_what_a_certificate_once_forgot_is_declared(data):
    spider = dpk.solve("spider", data, refresh_share=0.3, **short("spider")).privacy
    assert spider.declared["refresh_share"] == 0.3
    last = dpk.solve(
        "wd_dp", data, l2=0.1, step_size=0.1, accounting="last_iterate", **short("wd_dp", "silo")
    )
    assert last.privacy.declared["accounting"] == "last_iterate"


@every_solver
def test_what_is_not_offered_is_refused_with_what_is(name, data):
    """Every trust, neighbour relation and calibration, offered or not."""
    declared = DECLARED[name]
    offered = {
        "trust": declared.trusts,
        "neighbours": declared.neighbours,
        "calibration": declared.calibrations,
    }
    for kind, value in ((k, v) for k, values in OFFERS.items() for v in values):
        if value in offered[kind]:
            continue
        listed = " or ".join(map(repr, offered[kind]))
        message = f"^{kind} must be {listed} in {name}, got {value!r}$"
        assert_refused(message, dpk.solve, name, data, **short(name) | {kind: value})


UNPRINTED = [(n, t) for n, t in OFFERED if DECLARED[n].paper and t not in DECLARED[n].paper]


@for_each(("name", "trust"), UNPRINTED)
def test_a_papers_noise_needs_a_trust_of_the_paper(name, trust, data):
    how = short(name, trust) | {"calibration": "paper"}
    alternatives = " or ".join(f"trust={offered!r}" for offered in DECLARED[name].paper)
    message = f"^calibration='paper' needs {alternatives} in {name}$"
    assert_refused(message, dpk.solve, name, data, **how)


@every_solver
def test_unknown_arguments_are_refused_with_the_most_similar_one(name, data):
    typical = next(iter(DECLARED[name].options))
    with pytest.raises(TypeError) as caught:
        dpk.solve(name, data, budget=None, **{f"{typical}x": 1})
    message = f"{name} has no argument '{typical}x'; did you mean {typical!r}?"
    assert str(caught.value) == message
    options = DECLARED[name].own
    with pytest.raises(TypeError, match=f"{name} has no argument 'qqqqq'; there are ") as caught:
        dpk.solve(name, data, budget=None, qqqqq=1)
    assert {*options, "clip", "trust"} <= set(re.findall(r"\w+", str(caught.value)))


def test_budgets_in_other_forms_are_refused_with_the_right_one(data):
    given = r"budget=dpkern\.Budget\(epsilon=\.\.\., delta=\.\.\.\)"
    for name in SOLVERS:
        with pytest.raises(TypeError, match=rf"no argument 'epsilon'; give {given}$"):
            dpk.solve(name, data, epsilon=1.0)
        with pytest.raises(TypeError, match=f"budget must be given: {given}, or None for a run"):
            dpk.solve(name, data)


def test_unknown_solvers_are_refused_with_the_most_similar_one(data):
    for name in (None, ["admm"]):
        with pytest.raises(ValueError, match="name must be one of"):
            dpk.solve(name, data, budget=None)
    with pytest.raises(ValueError, match=r"name must be one of .* got 'spyder'; did you mean"):
        dpk.solve("spyder", data, budget=None)
    with pytest.raises(ValueError, match="got 'sgd'"):
        dpk.solve("sgd", data, budget=None)


@for_each("what", ["solve", "SiloData", "Budget"])
def test_examples_in_help_are_as_printed(what):
    names = {"SiloData": dpk.SiloData, "Budget": dpk.Budget}
    finder = doctest.DocTestFinder(recurse=False)
    (found,) = finder.find(getattr(dpk, what), what, module=False, globs=names)
    assert len(found.examples) >= 2
    assert doctest.DocTestRunner().run(found).failed == 0


SHARED_BAD = [
    (
        {"budget": 1.0},
        TypeError,
        r"budget must be dpkern.Budget\(epsilon=\.\.\., delta=\.\.\.\) or None, got float",
    ),
    ({"clip": None}, ValueError, "clip must be given with a budget"),
    ({"clip": 0.0}, ValueError, "clip"),
    ({"clip": math.nan}, ValueError, "clip"),
    ({"clip": math.inf}, ValueError, "clip must be finite with a budget"),
    ({"clip": "1.0"}, TypeError, "clip"),
    ({"clip": True}, TypeError, "clip"),
    ({"l2": -1.0}, ValueError, "l2"),
    ({"l1": math.inf}, ValueError, "l1"),
    ({"loss": "hinge"}, ValueError, "loss"),
    ({"loss": dpk.MLP()}, TypeError, "loss must be a loss, got the model 'mlp': give it as model="),
    ({"model": "mlp"}, TypeError, "model must be None or an Oracle, got str"),
    ({"penalty": "pl"}, TypeError, "penalty must be None or a Penalty, such as"),
    ({"penalty": ("l1", 0.1)}, TypeError, "penalty must be None or a Penalty, such as"),
    ({"weights": "equal"}, ValueError, "weights must be 'size' or 'uniform', got 'equal'"),
    ({"penalize_intercept": "no"}, TypeError, "penalize_intercept must be True or False"),
    ({"callback": 3}, TypeError, "callback must be None or callable, got int"),
    ({"public_size": 240}, ValueError, "public_size must be given with neighbours='add_remove'"),
    ({"n_threads": 0}, ValueError, "n_threads"),
    ({"monitor": "test"}, TypeError, "monitor must be None, 'train' or a SiloData"),
    ({"rng": -1}, (TypeError, ValueError), "."),
    ({"rng": 1.5}, (TypeError, ValueError), "."),
]
PENALTIES_BAD = [
    (
        {"penalty": ElasticNet(0.1), "l1": 0.1},
        "penalty must not have L1 beside 'elastic_net': both act by their prox",
    ),
    (
        {"penalty": PL(0.1) + L2Ball()},
        "penalty must have at most one term beside L2 and L1, got pl, l2_ball",
    ),
    (
        {"penalty": GroupLasso(0.1, groups=[2, 3])},
        "penalty must be for the 6 penalised coordinates, got 'group_lasso' for 5",
    ),
]
STEPS_BAD = ["fast", 0.0, math.nan, [0.1] * 7, ["a", "b"], None]


def bad_values(name):
    """(arguments, error, message) of everything that a solver has to refuse."""
    declared = DECLARED[name]
    taken = declared.penalties == "any"
    for bad, error, message in SHARED_BAD:
        if next(iter(bad)) not in ("l1", "penalty") or taken:
            yield bad, error, message
    for option, what in declared.own.items():
        if what.kind.startswith("int"):
            for value in (0, -1, 2.5, True, "2"):
                yield {option: value}, (TypeError, ValueError), option
        elif what.kind == "float":
            for value in (math.nan, math.inf, -1.0, "1", True):
                yield {option: value}, (TypeError, ValueError), option
        elif what.kind.startswith("{"):
            for value in ("nonsense", 1.5 if what.kind.endswith("float") else 0.5):
                yield {option: value}, ValueError, option
    if taken:
        for bad, message in PENALTIES_BAD:
            yield bad, ValueError, message
    else:
        for bad in ({"l1": 0.1}, {"penalty": L1(0.1)}, {"penalty": PL(0.1)}):
            yield bad, ValueError, f"{next(iter(bad))} must be absent in {name}, which takes l2"
    if "step_size" in declared.own:
        for bad in STEPS_BAD:
            yield {"step_size": bad}, (TypeError, ValueError), "step_size"
    if "add_remove" in declared.neighbours:
        message = "public_size must be given with neighbours='add_remove'"
        yield {"neighbours": "add_remove"}, ValueError, message


@every_solver
def test_bad_argument_is_refused_by_name_before_any_release(name, data):
    for bad, error, message in bad_values(name):
        with pytest.raises(error, match=message) as caught:
            dpk.solve(name, data, **short(name) | bad)
        assert not getattr(caught.value, "__notes__", [])


def test_a_strength_below_0_is_refused_when_the_penalty_is_made():
    for make in (L1, L2, PL, ElasticNet):
        with pytest.raises(ValueError, match="strength"):
            make(-0.1)
    with pytest.raises(TypeError, match="groups"):
        GroupLasso(0.1)


LINEAR = [name for name, declared in DECLARED.items() if declared.models != "any"]


@for_each("name", LINEAR)
def test_a_solver_of_linear_models_refuses_others(name):
    data = make_data(intercept=False)
    with pytest.raises(
        TypeError, match=f"model must be None.* in {name}, which fits linear models"
    ):
        dpk.solve(name, data, model=dpk.MLP(), **short(name))


@for_each("name", sorted(set(SOLVERS) - set(LINEAR)))
def test_a_solver_of_every_model_takes_them_without_a_loss_of_its_own(name):
    data = make_data(intercept=False)
    how = short(name, "silo") | {"rng": 0, "step_size": 0.1}
    result = dpk.solve(name, data, model=dpk.MLP(hidden=(3,)), **how)
    assert result.privacy.declared["loss"] is None
    assert result.privacy.declared["model"]["name"] == "mlp"
    with pytest.raises(TypeError, match="loss must be left out beside model"):
        dpk.solve(name, data, model=dpk.MLP(), loss="logistic", **how)


AUTOMATIC = [
    (name, option)
    for name, declared in DECLARED.items()
    for option in ("step_size", "prox_step")
    if option in declared.own and declared.own[option].default in ("auto", "theorem")
]


@for_each("name", sorted({name for name, _ in AUTOMATIC}))
def test_auto_step_needs_a_row_bound(name):
    with pytest.raises(ValueError, match="row_bound"):
        dpk.solve(name, make_data(row_bound=None), budget=None)


@every_solver
def test_classification_loss_needs_labels(name):
    with pytest.raises(ValueError, match="classification"):
        dpk.solve(name, make_data("regression"), budget=None, loss="logistic")


def test_arguments_are_checked_before_the_data_are_looked_at():
    for name, bad in itertools.product(SOLVERS, ({"weights": "equal"}, {"penalty": 1})):
        with pytest.raises((TypeError, ValueError), match=next(iter(bad))):
            dpk.solve(name, None, budget=None, **bad)
    with pytest.raises(TypeError, match="data must be a SiloData, got NoneType"):
        dpk.solve("gradient_descent", None, budget=None)


@every_solver
def test_l2_is_the_same_as_a_keyword_and_as_a_penalty(name, data):
    how = {k: v for k, v in short(name).items() if k not in ("l2", "rng")}
    results = [
        dpk.solve(name, data, rng=1, **how, **p) for p in ({"l2": 0.1}, {"penalty": L2(0.1)})
    ]
    assert results[0].w.tobytes() == results[1].w.tobytes()
    assert [r.privacy.declared["l2"] for r in results] == [0.1, 0.1]


def test_what_a_callback_writes_to_an_argument_is_not_declared(data):
    steps = np.full(3, 0.125)

    def callback(t, release):
        steps[:] = 99.0

    result = dpk.solve(
        "gradient_descent", data, budget=dpk.Budget(mu=1.0), clip=1.0, rounds=3,
        step_size=steps, callback=callback,
    )  # fmt: skip
    assert result.privacy.declared["step_size"] == (0.125,) * 3
    assert result.history["step_size"] == [0.125] * 3


@for_each("trust", ["central", "silo", "shuffle", "local"])
def test_the_automatic_solver_offers_what_it_is_chosen_for(trust):
    for model in (None, dpk.MLP(hidden=(2,))) if trust != "local" else (None,):
        declared = DECLARED[chosen(trust, model)]
        assert trust in declared.trusts
        assert model is None or declared.models == "any"


def test_a_momentum_of_one_whose_steps_never_end_is_refused(data):
    for momentum in (1.0, -0.1):
        how = {"budget": None, "momentum": momentum}
        assert_refused("momentum must lie in", SOLVERS["gradient_descent"], data, **how)
