"""`dpkern verify` accepts every certificate that dpkern makes and rejects edited ones.

Each edit is tried twice: as it is, which the digest notices, and with the digest computed anew by
the editor, which figures or structure must notice. What only the digest can tell is listed in
`ONLY_THE_DIGEST`: no arithmetic shows where noise was drawn from, or what else was declared.

`FORGED` are edits after which all figures were computed anew too: they contradict what the
certificate declares. Those of `TAKEN_AS_STATED` are told as that.
"""

import copy
import functools
import json
import math
import re
import sys
import xml.etree.ElementTree
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from cases import for_each
from released_data import data
from released_runs import runs
from scipy import stats

import dpkern as dpk
from dpkern._json import decode
from dpkern.cli import main
from dpkern.privacy import Certificate, compose_parallel, compose_sequential
from dpkern.privacy.certificate.ledger import Ledger, Release, draws_of_group
from dpkern.privacy.certificate.serialization import digest
from dpkern.privacy.guarantees.curves import epsilon_curve, trade_off
from dpkern.privacy.guarantees.gdp import GaussianDP
from dpkern.privacy.guarantees.objective_perturbation import ObjectivePerturbation
from dpkern.privacy.guarantees.rounding import round_up, sqrt_up
from dpkern.privacy.guarantees.selection import Selection
from dpkern.privacy.guarantees.zcdp import ConcentratedDP
from dpkern.verification import verify_certificate
from dpkern.verification.checks import TAKEN
from dpkern.verification.recomputation import Guarantee

# Quadrature takes a second each, dp-accounting's Poisson batches half of one.
BUDGET = dpk.Budget(epsilon=2.0, delta=1e-6)
SLOW = ("objective_perturbation/", "poisson")
FEW = {
    "objective_perturbation/central",
    "objective_perturbation/layout/csr",
    "minibatch_sgd/central/poisson",
}


def quick(id):
    return id in FEW or not any(name in id for name in SLOW)


def made(id):
    return runs()[id].run(1).privacy


def form(certificate):
    """The certificate as its file has it."""
    return json.loads(json.dumps(certificate.to_dict(), allow_nan=False))


def assert_verified(certificate):
    found = dpk.verify(form(certificate))
    assert found.ok, str(found)
    return found


def test_recorded_runs_are_verified():
    """One of every solver and of every kind that is quick."""
    kinds = {id.split("/")[0] for id in runs()}
    kinds |= {"shuffle", "without_replacement", "paper", "add_remove", "admm/users"}
    chosen = {next((id for id in runs() if kind in id and quick(id)), None) for kind in kinds}
    for id in sorted(chosen - {None} | FEW):
        assert_verified(made(id))


@pytest.mark.proof
def test_all_recorded_runs_are_verified():
    for id in runs():
        assert_verified(made(id))


def in_two(names, slow):
    """Names of cases as one item, and the slow ones as one of the tier "proof"."""
    quick = [name for name in names if name not in slow]
    parts = [quick, pytest.param(slow, marks=pytest.mark.proof)]
    assert len(quick) + len(slow) == len(names)
    return pytest.mark.parametrize("names", parts, ids=["quick", "slow"])


@functools.cache
def certificate(name):
    """Certificates of every law, composition and restatement."""
    if name == "selection":
        candidates = {"clip": stats.uniform(0.5, 0.5), "step_size": [0.5, 1.0]}
        budget = dpk.Budget(epsilon=2.0, delta=1e-5)
        how = {"solver": "gradient_descent", "rounds": 3, "budget": budget, "rng": 1}
        return dpk.select(candidates, data("dense"), **how).privacy
    if name == "ranges":
        X = np.linspace(-1.0, 1.0, 60)[:, np.newaxis] * np.ones((1, 3))
        return dpk.private_range(
            X, bounds=(-4.0, 4.0), budget=dpk.Budget(epsilon=1.0, delta=1e-6)
        ).privacy
    gd, silo = made("gradient_descent/loss/logistic"), made("spider/layout/csr")
    shuffle = made("prox_svrg/shuffle")
    perturbed = made("objective_perturbation/layout/csr")
    return {
        "run": lambda: gd,
        "silo": lambda: silo,
        "differences": lambda: made("prox_svrg/loss/smoothed_hinge"),
        "shuffle": lambda: shuffle,
        "perturbed": lambda: perturbed,
        "cyclic": lambda: made("minibatch_sgd/silo/cyclic"),
        "changes": lambda: made("admm/records/federated"),
        "batches": lambda: made("minibatch_sgd/central/without_replacement"),
        "poisson": lambda: made("minibatch_sgd/central/poisson"),
        "sequential": lambda: compose_sequential(gd, silo, gd),
        "parallel": lambda: compose_parallel(gd, silo),
        "nested": lambda: compose_parallel(compose_sequential(gd, silo), gd).group(2),
        "shuffles": lambda: compose_sequential(shuffle, gd, shuffle),
        "shuffles apart": lambda: compose_parallel(shuffle, gd),
        "perturbed twice": lambda: compose_sequential(perturbed, gd, perturbed),
        "perturbed apart": lambda: compose_parallel(perturbed, gd),
        "person": lambda: gd.group(3),
        "people": lambda: compose_sequential(gd.group(3), silo.group(3)),
        "person of a selection": lambda: certificate("selection").group(2),
        "person, perturbed": lambda: perturbed.group(2),
        "whole silo": lambda: silo.user_level(),
        "aggregates": lambda: silo.central(),
        "both": lambda: compose_sequential(silo.central(), gd),
        "nothing": lambda: made("gradient_descent/budget/none"),
        "nothing twice": lambda: compose_sequential(made("gradient_descent/budget/none"), gd),
    }[name]()


NAMES = (
    *("selection", "ranges", "run", "silo", "differences", "shuffle", "perturbed", "cyclic"),
    *("batches", "changes"),
    *("poisson", "sequential", "parallel", "nested", "shuffles", "shuffles apart"),
    *("perturbed twice", "perturbed apart", "person", "people", "person of a selection"),
    *("person, perturbed", "whole silo", "aggregates", "both", "nothing", "nothing twice"),
)


@in_two(NAMES, ("perturbed twice", "perturbed apart", "person, perturbed", "person of a selection"))
def test_every_law_composition_and_restatement_is_verified(names):
    for name in names:
        made = certificate(name)
        assert_verified(made)
        assert dpk.Certificate.from_dict(form(made)) == made, name


def apply(values, edits):
    """Edits of the entries at paths of keys, each by a function or to a value."""
    for path, change in edits.items():
        *keys, last = path.split("/")
        within = values
        for key in keys:
            within = within[int(key) if isinstance(within, list) else key]
        last = int(last) if isinstance(within, list) else last
        within[last] = change(within[last]) if callable(change) else change


def both(*changes):
    def change_all(values):
        for change in changes:
            change(values)

    return change_all


def edit(path, change):
    return lambda values: apply(values, {path: change})


def times(factor):
    return lambda v: [factor * x for x in v] if isinstance(v, list) else factor * v


def shorter(values):
    return values[:-1]


LAW = "guarantee/law"
FIRST = "releases/0"
NO_FIGURES = {"guarantee/epsilon": [], "guarantee/delta": [], "guarantee/at_delta": None}
MU = (f"{LAW}/mu", "guarantee/mu")


def of_first(**changes):
    return {f"{FIRST}/{name}": change for name, change in changes.items()}


def of_law(**changes):
    """In the guarantee, and in the release that it is of."""
    paths = (LAW, "releases/1/minimiser")
    return {f"{path}/{name}": change for path in paths for name, change in changes.items()}


EDITS = {
    "sensitivity": ("run", {f"{FIRST}/sensitivity": times(0.5)}),
    "sensitivity and std alike": ("run", of_first(sensitivity=times(0.5), std=times(0.5))),
    "sensitivity 0": ("silo", {f"{FIRST}/sensitivity": [0.0, 0.0, 0.0]}),
    "sensitivity of a silo": ("silo", {f"{FIRST}/sensitivity": [2.0, 4.0, 2.0]}),
    "sensitivity and std of differences alike": (
        "differences",
        {"releases/1/sensitivity": times(1.0 - 1e-6), "releases/1/std": times(1.0 - 1e-6)},
    ),
    "distance of two models gone": ("differences", {"releases/1/between": None}),
    "distance of two models": ("differences", {"releases/1/between/0": times(1.0 + 1e-6)}),
    "row bound of differences": ("differences", {"declared/row_bound": times(1.01)}),
    "less std": ("run", {f"{FIRST}/std": times(0.99)}),
    "more std": ("run", {f"{FIRST}/std": times(1.01)}),
    "std of a silo": ("silo", {f"{FIRST}/std/1": times(0.5)}),
    "no std": ("run", {f"{FIRST}/std": None}),
    "times": ("run", {f"{FIRST}/times": lambda v: v + 1}),
    "times 0": ("run", {f"{FIRST}/times": 0}),
    "a release dropped": ("silo", {"releases": shorter}),
    "all releases dropped": ("run", {"releases": []}),
    "delta of an epsilon": ("run", {"guarantee/epsilon/0/delta": 1e-7}),
    "stated delta": ("run", {"guarantee/at_delta": 1e-7}),
    "epsilon lowered": ("run", {"guarantee/epsilon/1/epsilon": times(0.999999)}),
    "epsilon raised": ("run", {"guarantee/epsilon/1/epsilon": times(1.000001)}),
    "delta lowered": ("run", {"guarantee/delta/0/delta": times(0.9999)}),
    "delta raised": ("run", {"guarantee/delta/0/delta": times(1.0001)}),
    "mu lowered": ("run", dict.fromkeys(MU, times(0.9))),
    "mu of the law alone": ("run", {f"{LAW}/mu": times(0.9)}),
    "mu by a unit in the last place": ("run", dict.fromkeys(MU, lambda v: math.nextafter(v, 0.0))),
    "rho lowered": ("run", {"guarantee/rho": times(0.9)}),
    "mu of a shuffler": (
        "shuffle",
        dict.fromkeys(MU, times(0.99)) | {"guarantee/rho": times(0.99**2)},
    ),
    "per_record": ("cyclic", {f"{FIRST}/per_record": 1}),
    "per_record gone": ("cyclic", {f"{FIRST}/per_record": None}),
    "sensitivity and std of changes": ("changes", of_first(sensitivity=times(0.9), std=times(0.9))),
    "clip norm of changes": ("changes", {"declared/clip": times(2.0)}),
    "relaxation of changes": ("changes", {"declared/relaxation": 1.0}),
    "coins": ("shuffle", {f"{FIRST}/coins": lambda v: 2 * v}),
    "coins and std": ("shuffle", of_first(coins=lambda v: 4 * v, std=times(2.0))),
    "coins taken for Gaussian noise": ("shuffle", {f"{FIRST}/coins": None}),
    "dim": ("run", {f"{FIRST}/dim": 2}),
    "dim of a shuffler": ("shuffle", {f"{FIRST}/dim": 2}),
    "grid": ("run", {f"{FIRST}/grid": times(3.0)}),
    "coarse grid": ("run", {f"{FIRST}/grid": times(2.0**30)}),
    "no grid": ("run", {f"{FIRST}/grid": None}),
    "arithmetic": ("run", {"arithmetic": "float"}),
    "batch sizes": ("batches", {f"{FIRST}/sampling/batch_sizes": lambda v: [1] * len(v)}),
    "sizes of samples": ("batches", {f"{FIRST}/sampling/sizes": times(10)}),
    "sizes of samples that are not those declared": (
        "batches",
        {f"{FIRST}/sampling/sizes": times(10), **NO_FIGURES},
    ),
    "releases of a selection dropped, mu lowered": (
        "selection",
        {"releases": [], f"{LAW}/mu": times(0.5)},
    ),
    "sizes of batches that are not those declared": (
        "batches",
        {f"{FIRST}/sampling/batch_sizes": lambda v: [1] * len(v), **NO_FIGURES},
    ),
    "an empty grid": ("run", {f"{FIRST}/grid": []}),
    "what is no text": ("run", {f"{FIRST}/what": ["sum of clipped gradients"]}),
    "releases beside parts": ("sequential", {"releases": []}),
    "batch sizes, Poisson": ("poisson", {f"{FIRST}/sampling/batch_sizes": lambda v: [1] * len(v)}),
    "sampling method": ("batches", {f"{FIRST}/sampling/method": "poisson"}),
    "sampling gone": ("batches", {f"{FIRST}/sampling": None}),
    "not amplified": ("batches", {"guarantee/amplified": False}),
    "amplified": ("run", {"guarantee/amplified": True}),
    "declared sizes": ("silo", {"declared/sizes": [30, 30]}),
    "gamma": ("selection", {f"{LAW}/gamma": times(2.0)}),
    "eta": ("selection", {f"{LAW}/eta": 0.0}),
    "mean_runs": ("selection", {"declared/mean_runs": 3.0}),
    "mu of a selection": ("selection", {f"{LAW}/mu": times(0.5)}),
    "draws of a selection": ("selection", {"n_draws": 1000}),
    "score of a selection dropped": ("selection", {"releases": shorter}),
    "volume": ("perturbed", {f"{LAW}/volume": times(0.5)}),
    "volume in the release too": ("perturbed", of_law(volume=times(0.5))),
    "shift": ("perturbed", of_law(shift=times(0.9))),
    "directions": ("perturbed", of_law(directions=1)),
    "mu given the minimiser": ("perturbed", of_law(mu=times(0.5))),
    "noise on the minimiser": ("perturbed", {"releases/0/std": times(0.5)}),
    "law": ("shuffle", {LAW: {"name": "gaussian", "mu": 0.1}}),
    "group size": ("person", {"group_size": 2}),
    "group size and unit": ("person", {"group_size": 2, "unit": "one person with 2 records"}),
    "group called a record": ("person", {"group_size": 1, "unit": "one record"}),
    "record called a silo": ("run", {"unit": "one silo, of 30 records at most"}),
    "size of the silo": ("whole silo", {"declared/sizes": [20, 20, 20]}),
    "a part dropped": ("sequential", {"parts": shorter}),
    "a part twice": ("sequential", {"parts": lambda v: v + v[:1]}),
    "sequential called parallel": ("sequential", {"composition": "parallel"}),
    "parallel called sequential": ("parallel", {"composition": "sequential"}),
    "release of a part": ("nested", {"parts/0/parts/1/releases/0/std": times(2.0)}),
    "mu of a part": ("sequential", {"parts/1/guarantee/mu": times(0.5)}),
    "epsilon of a part": ("sequential", {"parts/1/guarantee/epsilon/0/epsilon": times(0.5)}),
    "seeded parts called os": ("sequential", {"noise": "os"}),
    "neighbours": ("run", {"neighbours": "add_remove"}),
    "neighbours of a sum of samples": ("poisson", {"neighbours": "replace_one"}),
    "neighbours of a part": ("sequential", {"parts/0/neighbours": "add_remove"}),
    "trust": ("silo", {"trust": "central"}),
    "stronger trust": ("run", {"trust": "local"}),
    "trust of what was restated": ("aggregates", {"trust_of_runs": None}),
    "trust of parts": ("sequential", {"trust": "silo"}),
    "draws": ("run", {"n_draws": 1}),
    "bound": ("shuffle", {"guarantee/bound": "exact"}),
    "a guarantee from nothing": ("nothing", {"guarantee/mu": 1.0, f"{LAW}/mu": 1.0}),
    "an epsilon from nothing": ("nothing", {"guarantee/epsilon/0/epsilon": 1.0}),
    "what was released": ("run", {f"{FIRST}/what": "sum of something else"}),
    "adversary": ("run", {"adversary": "sees nothing"}),
}
ONLY_THE_DIGEST = {
    "seeded called os": ("run", {"noise": "os"}),
    "notes": ("batches", {"notes": []}),
    "declared penalty": ("run", {"declared/l2": 1.0}),
    "package": ("run", {"package": "dpkern 99"}),
}


def edited(name, edits, *, with_digest):
    values = copy.deepcopy(form(certificate(name)))
    apply(values, edits)
    if with_digest:
        values["digest"] = digest(values)
    return values


SLOW_EDITS = (
    *("volume", "volume in the release too", "shift", "directions", "mu given the minimiser"),
    *("mean_runs", "eta", "releases of a selection dropped, mu lowered", "batch sizes, Poisson"),
)


@in_two(EDITS, SLOW_EDITS)
def test_an_edit_is_rejected_with_the_digest_computed_anew(names):
    for what in names:
        name, change = EDITS[what]
        found = dpk.verify(edited(name, change, with_digest=True))
        assert not found.ok, f"{what}: {found}"
        assert found.checks[0].ok, what
        assert "MISMATCH" in str(found), what


@for_each("what", EDITS | ONLY_THE_DIGEST)
def test_an_edit_is_rejected_by_the_digest(what):
    name, change = (EDITS | ONLY_THE_DIGEST)[what]
    values = edited(name, change, with_digest=False)
    if name == "run":
        assert not dpk.verify(values).checks[0].ok
    with pytest.raises(ValueError, match="it has been edited"):
        dpk.Certificate.from_dict(values)


@for_each("what", ONLY_THE_DIGEST)
def test_what_no_arithmetic_can_tell(what):
    name, change = ONLY_THE_DIGEST[what]
    assert dpk.verify(edited(name, change, with_digest=True)).ok


def forged(made, change):
    """The certificate after an edit of its content, with figures as dpkern would state them."""
    values = form(made)
    change(values)
    releases = tuple(map(Release.from_dict, values.get("releases", ())))
    ledger = Ledger()
    for release in releases:
        ledger.append(release)
    if made.parts:
        kinds = {"sequential": compose_sequential, "parallel": compose_parallel}
        parts = zip(made.parts, values["parts"], strict=True)
        found = [forged(part, lambda v, new=new: v.update(new)) for part, new in parts]
        found = kinds[values["composition"]](*found).group(values["group_size"])
        return replace(found, notes=tuple(values["notes"]))
    size = values["group_size"]
    fields = {name: values[name] for name in ("trust", "noise", "neighbours", "unit")}
    fields |= {"declared": decode(values["declared"]), "notes": tuple(values["notes"])}
    if made.selection is not None:
        *of_run, score = (sqrt_up(of_one(r)) for r in releases)
        mu = round_up(size * max(Fraction(math.hypot(*of_run)), Fraction(score)))
        return replace(made, guarantee=replace(made.guarantee, mu=mu), releases=releases, **fields)
    bound = values["guarantee"]["bound"]
    fields |= {"trust_of_runs": values["trust_of_runs"], "group_size": size}
    found = Certificate.from_ledger(
        ledger, at_delta=1e-6, bound="upper" if size > 1 else bound, **fields
    )
    n_draws = draws_of_group(releases, found.n_draws, size)
    return replace(found, guarantee=found.guarantee.group(size), n_draws=n_draws)


def of_one(release):
    ledger = Ledger()
    ledger.append(release)
    return ledger.mu_squared()


def each(of="", **fields):
    """An edit of these fields of every release whose description begins so."""

    def apply(values):
        for release in values["releases"]:
            if release["what"].startswith(of):
                for name, change in fields.items():
                    old = release.get(name)
                    release[name] = change(old) if callable(change) else change

    return apply


def declare(**fields):
    """An edit of what is declared; None takes it away."""

    def apply(values):
        for name, value in fields.items():
            if value is None:
                del values["declared"][name]
            else:
                values["declared"][name] = value

    return apply


def take_turns(values):
    """Half of the rounds by the first silo, and half by the others."""
    (first,) = values["releases"]
    by_silo = {k: v if isinstance(v := first[k], list) else [v] * 3 for k in ("std", "grid")}
    values["releases"] = [
        first | {"times": 2, "sensitivity": D} | by_silo for D in ([2.0, 0.0, 0.0], [0.0, 2.0, 2.0])
    ]


def part(number, change):
    return lambda values: change(values["parts"][number])


HALF = {"sensitivity": times(0.5)}
ONCE = {"per_record": 1}
FEWER = {"times": 1}
IN_SERIES = {"per_record": 1, "series": 1}
STATES = "sum of the users' states"
GD, GD_SILO = (f"gradient_descent/{trust}/replace_one/size" for trust in ("central", "silo"))
NEWTON, BATCHES = "local_newton/central/damped", "minibatch_sgd/silo/without_replacement"
# Which certificate, and what an editor changes: it contradicts itself then.
FORGED = {
    "gd, a use of five": (GD, each(**ONCE)),
    "gd, a series": (GD, each(**IN_SERIES)),
    "gd, one round": (GD, each(**FEWER)),
    "gd, rounds": (GD, declare(rounds=1)),
    "gd, clip": (GD, both(each(**HALF), declare(clip=None))),
    "gd, clip 0": (GD, both(each(**HALF), declare(clip=0))),
    "gd, kind": (GD, each(what="sum of clipped Hessians")),
    "gd, dim": (GD, each(dim=1)),
    "gd, draws": (GD, each(draws=1)),
    "gd, no solver, clip": (GD, both(declare(momentum=None), each(**HALF))),
    "gd silo, one silo": (GD_SILO, each(sensitivity=[2.0, 0.0, 0.0])),
    "gd silo, silos in turn": (GD_SILO, take_turns),
    "gd central, by silos": (GD, take_turns),
    "add or remove, called so": (GD, edit("neighbours", "add_remove")),
    "add or remove, as if made so": (GD, both(edit("neighbours", "add_remove"), each(**HALF))),
    "add or remove, halved": ("gradient_descent/central/add_remove/size", each(**HALF)),
    "federated gd, hidden": ("federated_gd/central/K3", each(**HALF)),
    "federated gd, one round": ("federated_gd/central/K3", each(**FEWER)),
    "federated gd, steps": ("federated_gd/central/K3", declare(local_steps=9)),
    "federated gd, theorem": ("federated_gd/central/K3/theorem", each(**HALF)),
    "federated gd, uneven": ("federated_gd/central/K3/uniform", each(**HALF)),
    "federated gd, last": ("federated_gd/silo/K3/last_iterate", each(**HALF)),
    "federated gd, last, draws": ("federated_gd/silo/K3/last_iterate", each(draws=1)),
    "federated gd, local steps": ("federated_gd/silo/K3", each(times=4)),
    "wd_dp": ("wd_dp/central", each(**HALF)),
    "wd_dp silo": ("wd_dp/silo", each(**FEWER)),
    "output perturbation": ("output_perturbation/central", each(**HALF)),
    "output perturbation silo": ("output_perturbation/silo", each(**HALF)),
    "newton, not beside": (NEWTON, each("sum of clipped Hessians", what="sum of clipped Hessians")),
    "newton, fewer Hessians": (NEWTON, each("sum of clipped H", times=1)),
    "newton, search": ("local_newton/central/private_search", each("decreases", **HALF)),
    "newton, add or remove": (
        "local_newton/silo/add_remove/damped",
        each("sum of clipped H", **HALF),
    ),
    "ridge": ("ridge/central/logistic", each("sum of clipped Hessians", **HALF)),
    "ridge, in one series": ("ridge/central/logistic", each(**IN_SERIES)),
    "newton, in one series": (NEWTON, each(per_record=4, series=1)),
    "double noise, trace": ("double_noise_newton/add", each("trace", **HALF)),
    "double noise, directions": ("double_noise_newton/add", each("Newton", **HALF)),
    "double noise, a direction": ("double_noise_newton/clip", edit("releases", shorter)),
    "objective perturbation, linear term": (
        "objective_perturbation/layout/csr",
        each("random", **HALF),
    ),
    "admm": ("admm/records/central", each(**HALF)),
    "admm, one round": ("admm/records/central", each(**FEWER)),
    "admm, messages": ("admm/records/central/local", each(**HALF)),
    "admm, messages, draws": ("admm/records/central/local", each(draws=5)),
    "admm, relaxation": ("admm/records/central/local", declare(relaxation=1.0)),
    "admm, token": ("admm/records/token", each(**HALF)),
    "admm, federated": ("admm/records/federated", each(**HALF)),
    "admm, silos": ("admm/silos/central/central/size", each(**HALF)),
    "admm, silos' messages": ("admm/silos/central/silo/size", each(**HALF)),
    "admm, silos' changes": ("admm/silos/federated/central", each(**HALF)),
    "admm, rounds of one silo": ("admm/silos/federated/silo", each(**ONCE)),
    "fixed point, operator": ("fixed_point/declared", each(**HALF)),
    "fixed point, states": ("fixed_point/admm", each(STATES, **HALF)),
    "fixed point, blocks, a use": ("fixed_point/blocks", each(**ONCE)),
    "hidden, row bound": ("federated_gd/central/K3", declare(row_bound=None)),
    "one pass": ("prox_sgd/silo", each(**FEWER)),
    "spider, refresh": ("spider/silo", declare(refresh_every=1)),
    "spider, gradients": ("spider/silo", each("sum of clipped gradients", **FEWER)),
    "spider, differences": (
        "spider/silo",
        each("sum of clipped differences", sensitivity=times(0.9)),
    ),
    "svrg, a difference": ("prox_svrg/silo", edit("releases", shorter)),
    "localized, a round": ("localized_sgd/phases", each(**ONCE)),
    "localized, more phases": ("localized_sgd/phases", declare(phases=1)),
    "localized, halved": ("localized_sgd/central", each(**HALF)),
    "alternate": ("spider/alternate", each("sum of clipped gradients", **FEWER)),
    "cyclic batches": ("minibatch_sgd/silo/cyclic", each(**ONCE)),
    "cyclic, batch size": ("minibatch_sgd/silo/cyclic", declare(batch_size=12)),
    "local, cyclic": ("local_sgd/silo/round/cyclic", each(**ONCE)),
    "local, cyclic, halved": ("local_sgd/silo/round/cyclic", each(**HALF)),
    "local, steps": ("local_sgd/silo/step", each(times=2)),
    "secret batches, used once": (BATCHES, each(**ONCE)),
    "secret batches of all": (BATCHES, declare(sampling="full")),
    "participants": ("minibatch_sgd/silo/participation", declare(participation=1)),
    "perceptron": ("minibatch_sgd/model/mlp_logistic", each(**HALF)),
    "shuffle, grid": (
        "minibatch_sgd/shuffle",
        each(sensitivity=times(0.5), what=lambda w: w.replace("18 steps", "9 steps")),
    ),
    "shuffle, sensitivity": ("minibatch_sgd/shuffle", each(**HALF)),
    "shuffle, coins": ("minibatch_sgd/shuffle", each(coins=times(4), std=times(2.0))),
    "shuffle, more vectors": (
        "minibatch_sgd/shuffle",
        each(coins=times(4), std=times(2.0), what=lambda w: w.replace("60", "240")),
    ),
    "shuffle, one round": ("minibatch_sgd/shuffle", each(**FEWER)),
    "ranges": ("ranges", each(**HALF)),
    "ranges, bins": ("ranges", each(dim=1)),
    "selection, run": ("selection", each("sum", times=1)),
    "selection, run and score": ("selection", each(**HALF)),
    "selection, score": ("selection", each("score", std=times(0.5), **HALF)),
    "aggregates": ("aggregates", each("sum of clipped gradients", **HALF)),
    "person": ("person", each(**HALF)),
    "parallel, called so": ("sequential", edit("composition", "parallel")),
    "a part": ("sequential", part(0, each(**HALF))),
    "a part, rounds": ("parallel", part(1, each("sum of clipped gradients", times=1))),
    "a part of a part": ("nested", part(0, part(0, each(**ONCE)))),
    "shuffled part": ("shuffles", part(0, each(**HALF))),
    "people": ("people of sums", each(**HALF)),
    "people, clip": ("people of sums", declare(person_clip=4.0)),
    "people, no clip": ("people of sums", both(each(**HALF), declare(person_clip=None))),
    "people, unit": ("people of sums", edit("unit", "one person with at most 9 records")),
    "shares": ("shares", each(**HALF)),
    "shares, draws": ("shares", each(draws=None)),
}
# And what is "taken as stated" after these changes.
TAKEN_AS_STATED = {
    "gd, std": (GD, each(std=times(2.0)), "stds"),
    "gd, l2": (GD, declare(l2=1.0), "declared"),
    "gd, notes": (GD, edit("notes", ["no"]), "notes"),
    "gd, no solver": (
        GD,
        both(declare(momentum=None), each(**FEWER)),
        "kinds, numbers, sensitivities",
    ),
    "a new solver that has a floor": (
        GD,
        declare(momentum=None, floor=0.1),
        "kinds, numbers, sensitivities",
    ),
    "federated gd, smooth penalty": ("federated_gd/central/K3/pl", each(**HALF), "sensitivity"),
    "admm, busiest silo": ("admm/silos/federated/silo", each(per_record=3), "rounds of one user"),
    "fixed point, blocks": ("fixed_point/blocks", each(times=5), "repetitions"),
    "perceptron, coordinates": ("minibatch_sgd/model/mlp_logistic", each(dim=2), "coordinates"),
}


@functools.cache
def original(name):
    """A certificate that the forger can make as it is."""
    found = unforged(name)
    assert_verified(forged(found, lambda values: None))
    return found


def unforged(name):
    if name == "people of sums":
        return of_people("gradient_descent", person_clip=2.0)
    if name == "shares":
        how = {"clip": 1.0, "rounds": 5, "step_size": 1.0, "colluding": 1, "rng": 1}
        return dpk.solve("gradient_descent", data("dense"), budget=BUDGET, **how).privacy
    return made(name) if "/" in name else certificate(name)


@in_two(FORGED, ("objective perturbation, linear term", "selection, run and score"))
def test_a_forged_certificate_contradicts_itself(names):
    for what in names:
        name, change = FORGED[what]
        found = dpk.verify(form(forged(original(name), change)))
        structures = [c for c in found.checks if c.what.endswith("structure")]
        assert not all(c.ok for c in structures), what


@for_each("what", TAKEN_AS_STATED)
def test_what_no_rule_tells_is_taken_as_stated(what):
    name, change, taken = TAKEN_AS_STATED[what]
    found = dpk.verify(form(forged(original(name), change)))
    assert found.ok, str(found)
    assert taken in " ".join(c.stated for c in found.checks if c.recomputed == TAKEN)


@for_each(
    ("law", "epsilon"),
    [
        (GaussianDP(mu=0.3), 0.5),
        (GaussianDP(mu=4.0), 0.0),
        (GaussianDP(mu=1e-3), 0.02),
        (ConcentratedDP(rho=0.05), 1.0),
        (ConcentratedDP(rho=3.0), 20.0),
        (Selection.of_mean(10.0, eta=0.0, mu=0.2), 1.5),
        (Selection.of_mean(30.0, eta=5.0, mu=0.1), 1.0),
        (ObjectivePerturbation(volume=0.1, shift=0.3, directions=2, mu=0.02), 1.0),
        (ObjectivePerturbation(volume=0.5, shift=0.2, directions=20, mu=0.1), 2.0),
    ],
)
def test_laws_recomputed_agree_from_below(law, epsilon):
    """The figures of dpkern are upper bounds of those by quadrature, and close."""
    parameters = tuple(sorted(vars(law).items()))
    parameters = tuple((k, v) for k, v in parameters if k in law.__dataclass_fields__)
    again = Guarantee(law.name, parameters, 0)
    assert again.delta(epsilon) <= law.delta(epsilon)
    reduced, slack, rounding = again.reduced(epsilon)
    assert law.delta(epsilon) <= again.delta(max(reduced, 0.0)) * (1 + slack) + rounding


@for_each(("epsilon", "batch"), [(0.2, 15), (0.2, 50), (0.44, 120)])
def test_deltas_of_samples_that_are_but_roundings_agree(epsilon, batch):
    data = dpk.SiloData(np.eye(240, 3), np.resize([-1.0, 1.0], 240), [0, 240], row_bound=1.0)
    how = {"neighbours": "add_remove", "public_size": 240, "sampling": "poisson", "rng": 1}
    budget = dpk.Budget(epsilon=epsilon, delta=1e-5)
    found = dpk.solve(
        "minibatch_sgd", data, budget=budget, clip=1.0, rounds=1, batch_size=batch, **how
    )
    assert found.privacy.delta(1.0) < 1e-13
    assert dpk.verify(found.privacy.to_dict()).ok


def test_files_are_verified_and_read_again(tmp_path):
    path = tmp_path / "c.json"
    for name in ("run", "nested", "shuffle", "selection", "nothing"):
        certificate(name).save(path)
        assert dpk.Certificate.load(path) == certificate(name)
        found = dpk.verify(path)
        assert found
        assert "c.json, made by dpkern " in str(found)
        assert max(map(len, str(found).splitlines())) <= 88
    assert str(dpk.Certificate.load(path)) == str(certificate("nothing"))
    text = path.read_text()
    assert '"sizes": [10, 20, 30]' in text  # readable: short lists on one line
    assert list(tmp_path.iterdir()) == [path]


def test_a_model_file_and_lines_of_json_are_verified(tmp_path, capsys):
    result = runs()["gradient_descent/loss/logistic"].run(1)
    result.save(tmp_path / "model.npz")
    assert dpk.verify(tmp_path / "model.npz").ok
    lines = [{"budget": 1.0}, *({"certificate": form(certificate(n))} for n in ("run", "silo"))]
    ledger = tmp_path / "study.json"
    ledger.write_text("\n".join(map(json.dumps, lines)))
    found = dpk.verify(ledger)
    assert found.ok
    assert "study.json: 2 certificates" in str(found)
    assert main(["verify", str(ledger)]) == 0
    lines[2]["certificate"]["guarantee"]["mu"] *= 0.5
    ledger.write_text("\n".join(map(json.dumps, lines)))
    assert main(["verify", str(ledger)]) == 1
    out = capsys.readouterr().out
    assert re.search(r"2: mu +0\.25\d+ +0\.50\d+ +MISMATCH", out)
    assert "do not rely on it" in out


@for_each(
    ("text", "message"),
    [
        ("", "holds no certificate"),
        ("1 2", "not JSON"),
        ("[1]", "holds no certificate"),
        ("{}", "is no certificate"),
        ('{"format": "dpkern certificate", "version": 2}', "is no certificate"),
        ("PK", "is no dpkern model"),
        ('{"budget": 1}\n{"budget": 2}', "holds no certificate"),
        ("\xff\xfe", "neither JSON nor a dpkern model"),
    ],
)
def test_other_files_are_refused_with_status_2(tmp_path, capsys, text, message):
    path = tmp_path / "file"
    path.write_bytes(text.encode("latin-1"))
    assert main(["verify", str(path)]) == 2
    assert message in capsys.readouterr().err
    with pytest.raises(ValueError, match="not a dpkern certificate"):
        dpk.Certificate.load(path)


def test_another_version_and_damage_are_refused():
    values = form(certificate("run"))
    with pytest.raises(ValueError, match="has version 1 of the format, and this release"):
        dpk.verify(values | {"version": 1})
    with pytest.raises(ValueError, match="is damaged: KeyError 'releases'"):
        verify_certificate({k: v for k, v in values.items() if k != "releases"})
    with pytest.raises(ValueError, match="is damaged"):
        verify_certificate(values | {"group_size": "two"})


@for_each(
    ("name", "path", "value"),
    [
        ("run", "releases/0/sensitivity", 1e308),
        ("run", "guarantee/epsilon/0/epsilon", 1e308),
        ("run", "guarantee/mu", {"__float__": []}),
        ("run", "guarantee/mu", {"__float__": "x"}),
        ("batches", "releases/0/dim", {"__float__": "inf"}),
        ("batches", "releases/0/sampling/sizes", lambda v: [-n for n in v]),
        ("perturbed", "declared/row_bound", 1e308),
        ("selection", "guarantee/law/gamma", 0.0),
    ],
)
def test_numbers_of_any_size_are_a_mismatch_or_damage(name, path, value):
    values = edited(name, {path: value}, with_digest=True)
    try:
        found = dpk.verify(values)
    except ValueError:
        with pytest.raises(ValueError, match="is damaged"):
            dpk.verify(values)
    else:
        assert not found.ok


def test_a_key_that_is_there_twice_is_refused(tmp_path):
    text = json.dumps(form(certificate("run")))
    path = tmp_path / "twice.json"
    path.write_text('{"guarantee": {"epsilon": 0.1}, ' + text[1:])
    with pytest.raises(ValueError, match="a key is there twice"):
        dpk.verify(path)


@pytest.mark.proof
def test_sizes_are_public_numbers_where_records_are_added(tmp_path):
    how = {"clip": 1.0, "l2": 0.01, "neighbours": "add_remove", "public_size": 60}
    budget = dpk.Budget(epsilon=1.0, delta=1e-6)
    accountant = dpk.Accountant(tmp_path / "a", epsilon=3, delta=1e-6, neighbours="add_remove")
    for sizes in ({}, {"weights": "uniform", "public_size": [19, 20, 21]}):
        result = dpk.solve(
            "objective_perturbation",
            data("dense"),
            budget=budget,
            accountant=accountant,
            **(how | sizes),
        )
        assert_verified(result.privacy)
    assert dpk.verify(tmp_path / "a").ok


@pytest.mark.proof
def test_the_charge_of_a_selection_is_verified(tmp_path):
    budget = dpk.Budget(epsilon=2.0, delta=1e-6)
    accountant = dpk.Accountant(tmp_path / "a", epsilon=3.0, delta=1e-6)
    how = {"solver": "gradient_descent", "clip": 1.0, "mean_runs": 2.0, "rng": 1}
    dpk.select([{"rounds": 3}], data("dense"), budget=budget, accountant=accountant, **how)
    found = dpk.verify(tmp_path / "a")
    assert found.ok
    assert re.search(r"taken as stated: .*; mu of one run: 0\.\d+", " ".join(str(found).split()))


def test_a_certificate_itself_is_refused_with_the_cure():
    with pytest.raises(TypeError, match=r"such as result\.privacy\.to_dict\(\), got Certificate"):
        dpk.verify(certificate("run"))


def test_a_recomputed_delta_counts_the_draws_on_both_data_sets():
    exact, drawn = (Guarantee("gaussian", (("mu", 1.0),), n).delta(2.0) for n in (0, 2**60))
    assert float(drawn - exact) == pytest.approx((1.0 + math.exp(2.0)) * 2.0**-40, rel=1e-9)


def test_a_missing_package_is_named_with_the_cure(monkeypatch):
    from dpkern.verification.recomputation import multiprecision

    multiprecision.cache_clear()
    monkeypatch.setitem(sys.modules, "mpmath", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'dpkern\[verify\]'"):
        dpk.verify(form(certificate("run")))


def test_verification_shares_nothing_with_what_it_verifies(source_tree):
    """It would repeat its errors."""
    for path in (source_tree / "src" / "dpkern" / "verification").glob("*.py"):
        imported = re.findall(r"^\s*(?:from|import) (dpkern\S*)", path.read_text(), re.MULTILINE)
        assert all(f"{name}.".startswith("dpkern.verification.") for name in imported), path.name


def test_curves_of_a_certificate_are_those_of_its_law(tmp_path):
    found = certificate("run")
    for delta, epsilon in epsilon_curve(found):
        assert found.delta(epsilon) <= delta
    normal = stats.norm
    for a, b in trade_off(found):  # Dong, Roth, Su 2022, Definition 2.6
        exact = normal.cdf(normal.isf(a) - found.mu)
        assert exact - 0.01 <= b <= exact + 1e-9
    pytest.importorskip("matplotlib")
    found.plot(tmp_path / "run.png")
    assert (tmp_path / "run.png").stat().st_size > 10_000
    with pytest.raises(ValueError, match="must state a guarantee to be drawn"):
        certificate("nothing").plot(tmp_path / "none.png")


def test_notebooks_show_tables_with_all_text_escaped():
    result = runs()["gradient_descent/loss/logistic"].run(1)
    for shown in (result._repr_html_(), result.privacy._repr_html_()):
        assert "seeded: not private" in shown
        assert "<th" in shown
        xml.etree.ElementTree.fromstring(f"<div>{shown}</div>")
    titles = [replace(result.privacy, noise=noise)._repr_html_().split("<td")[0]
              for noise in ("os", "seeded: not private")]  # fmt: skip
    assert ["seeded: not private" in title for title in titles] == [False, True]
    noted = replace(result.privacy, notes=("<b>&",))._repr_html_()
    assert "&lt;b&gt;&amp;" in noted
    plan = dpk.plan(3000, 5, budget=dpk.Budget(epsilon=1.0, delta=1e-6), row_bound=1.0)
    assert plan._repr_html_().count("<tr>") == 1 + len(plan.rows)


def test_the_band_of_a_run_is_that_of_its_noise(tmp_path):
    """Of 200 gradients that are next to nothing beside the noise 95 % lie in it, give or take."""
    quiet = {"clip": 1e-3, "rounds": 200, "step_size": 1e-9, "weights": "size", "rng": 3}
    budget = dpk.Budget(mu=1e-4)
    for trust in ("central", "silo"):
        result = dpk.solve("gradient_descent", data("dense"), budget=budget, trust=trust, **quiet)
        low, high = result._noise_band()
        norms = np.array(result.history["gradient_norm"])
        assert 0.9 <= np.mean((low < norms) & (norms < high)) <= 0.99
    recalibrated = dpk.solve(
        "gradient_descent", data("dense"), budget=dpk.Budget(mu=5.0), loss="logistic", rng=3
    )
    assert recalibrated.calibration is not None
    assert recalibrated._noise_band() is not None
    pytest.importorskip("matplotlib")
    for id in ("minibatch_sgd/monitor/public", "gradient_descent/monitor/train"):
        other = runs()[id].run(1)
        other.plot(tmp_path / "run.png")
        assert (tmp_path / "run.png").stat().st_size > 5_000
    assert runs()["local_newton/layout/csr"].run(1)._noise_band() is None


@for_each(
    ("solver", "options"),
    [
        ("gradient_descent", {}),
        ("local_newton", {}),
        ("federated_gd", {"local_steps": 2}),
        ("federated_gd", {"local_steps": 2, "accounting": "last_iterate", "l2": 0.1}),
        ("spider", {}),
        ("prox_svrg", {"participation": 1}),
        ("minibatch_sgd", {"sampling": "cyclic", "batch_size": 7}),
        ("localized_sgd", {"phases": 2}),
    ],
)
def test_a_single_silo_is_verified(solver, options):
    one = data("dense").part(np.arange(30), np.array([0, 30]))
    how = {"trust": "silo", "clip": 1.0, "rounds": 3, "step_size": 0.1, "rng": 1}
    how |= {"step_size": "damped"} if solver == "local_newton" else {}
    assert_verified(dpk.solve(solver, one, budget=BUDGET, **how, **options).privacy)


@for_each(
    ("solver", "options"),
    [
        ("minibatch_sgd", {"rounds": 4}),
        ("minibatch_sgd", {"rounds": 4, "trust": "central"}),
        ("local_sgd", {"rounds": 4, "local_steps": 2}),
        ("prox_svrg", {"rounds": 7, "refresh_every": 2}),
        ("spider", {"rounds": 4, "refresh_every": 3}),
        ("spider", {"rounds": 4, "variant": "alternate"}),
    ],
)
def test_other_numbers_of_silos_than_took_part_are_rejected(solver, options):
    """Releases of silos show how many took part; elsewhere only impossible numbers show."""
    how = {"trust": "silo", "clip": 1.0, "step_size": 0.1, "rng": 1, **options}
    found = dpk.solve(solver, data("dense"), budget=BUDGET, participation=(1, 3, 2, 3), **how)
    values = form(found.privacy)
    assert dpk.verify(values).ok
    others = [[1, 3, 2], [1, 3, 2, 3, 3], [1, 3, 2, 4], [1, 3, 2, -3], [1.0, 3, 2, 3], []]
    if how["trust"] == "silo":
        others += [[3, 3, 3, 3], [1, 2, 2, 3], 3, None]
    for given in others:
        other = values | {"declared": values["declared"] | {"participation": given}}
        assert not dpk.verify(other | {"digest": digest(other)}).ok, given


def test_a_round_without_active_blocks_has_no_release():
    how = {"rounds": 3, "activation": 1e-9, "blocks": 1, "clip": 1.0, "rng": 1}
    found = dpk.solve("fixed_point", data("dense"), budget=BUDGET, **how).privacy
    assert not found.releases
    assert_verified(found)


@pytest.mark.proof
def test_an_unpenalised_intercept_has_the_added_penalty_alone():
    how = {"clip": 1.0, "l2": 0.1, "added_l2": 0.01, "penalize_intercept": False, "rng": 1}
    found = dpk.solve("objective_perturbation", data("dense"), budget=BUDGET, **how).privacy
    assert_verified(found)
    assert found.minimiser.volume == pytest.approx(math.log1p(0.25 * 2.0**2 / 60 / 0.01))


def test_deltas_below_the_rounding_of_doubles_are_verified():
    how = {"sampling": "without_replacement", "batch_size": 8, "rounds": 3, "clip": 1.0, "rng": 1}
    budget = dpk.Budget(epsilon=0.3, delta=1e-6)
    found = dpk.solve("minibatch_sgd", data("dense-even"), budget=budget, **how).privacy
    assert found.delta(1.0) < 1e-15
    assert_verified(found)


@for_each("name", ["gradient_descent", "local_newton", "spider"])
def test_runs_in_lock_step_and_shares_of_noise_are_verified(name):
    how = {"clip": 1.0, "rounds": 3, "step_size": 0.1, "rng": 1, "trust": "central"}
    for result in dpk.solve_many(name, data("dense"), budgets=[BUDGET, BUDGET], **how):
        assert_verified(result.privacy)
    assert_verified(dpk.solve(name, data("dense"), budget=BUDGET, colluding=1, **how).privacy)


def test_groups_with_binomial_noise_by_hand():
    """mu and the draws times r; delta by the formula of docs/proofs/shuffle.md."""
    one = made("minibatch_sgd/shuffle")
    (release,) = one.releases
    n, d = sum(one.declared["sizes"]), release.dim
    assert one.n_draws == release.times * d
    for r in (2, 3):
        group = one.group(r)
        assert group.n_draws == r * one.n_draws
        assert group.mu == pytest.approx(r * one.mu, rel=1e-15)
        assert group.mu >= r * one.mu
        # What Gaussian noise of the same variance would cost is a little less.
        least = r * math.sqrt(release.times) * release.sensitivity / release.std
        assert least < group.mu < 1.01 * least
        for epsilon in (0.0, 1.0, 50.0, 60.0):
            z, mu = epsilon / group.mu, group.mu
            exact = stats.norm.cdf(mu / 2 - z)
            exact -= math.exp(epsilon + stats.norm.logcdf(-mu / 2 - z))
            error = (1.0 + math.exp(epsilon)) * r * one.n_draws * 2.0**-100
            assert group.delta(epsilon) <= (max(exact, 0.0) + error) * (1.0 + 1e-9) + 1e-15
        # Where delta is that of the draws, it is r times as large.
        once = replace(group, n_draws=one.n_draws)
        assert group.delta(70.0) > (1.0 + 0.5 * (r - 1)) * once.delta(70.0)
        assert_verified(group)
        values = form(group) | {"n_draws": one.n_draws}
        assert not dpk.verify(values | {"digest": digest(values)}).ok
    assert n == 60
    user = one.user_level()
    assert user.n_draws == 30 * one.n_draws
    both = compose_sequential(one, certificate("run"))
    assert both.group(2).n_draws == 2 * both.n_draws
    assert_verified(both.group(2))
    assert_verified(compose_sequential(one.group(2), certificate("run").group(2)))
    assert certificate("run").group(2).n_draws == certificate("run").n_draws
    with pytest.raises(ValueError, match="beside binomial noise, got 2"):
        compose_sequential(one, certificate("perturbed")).group(2)


@pytest.mark.proof
def test_groups_of_a_selection_by_hand():
    """The law with r mu, and the same draws, as no run of it has binomial noise."""
    one = certificate("selection")
    *of_run, score = one.releases
    (trained,) = of_run
    mu = math.sqrt(trained.times) * trained.sensitivity / trained.std
    scored = score.sensitivity / score.std
    assert one.selection.mu == pytest.approx(max(mu, scored), rel=1e-7)
    for r in (2, 3):
        group = one.group(r)
        law = group.selection
        assert law.mu == pytest.approx(r * one.selection.mu, rel=1e-15)
        assert (law.eta, law.gamma, group.n_draws) == (one.selection.eta, one.selection.gamma,
                                                       one.n_draws)  # fmt: skip
        # No better than the group's bound for a run that is always published.
        assert group.delta(1.0) >= GaussianDP(mu=r * mu).delta(1.0)
        # r_1 records train and r - r_1 score.
        worst = max(math.hypot(k * mu, (r - k) * scored) for k in range(r + 1))
        assert worst <= law.mu * (1.0 + 1e-7)
        assert_verified(group)


@functools.cache
def of_people(name, **options):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.0, 1.0, (300, 3))
    person = rng.integers(0, 150, 300)
    how = {"intercept": True, "feature_range": (-1.0, 1.0), "person": person, "max_records": 4}
    people = dpk.SiloData.split(X, X[:, 0] > 0.0, 2, seed=0, **how)
    budget = dpk.Budget(epsilon=2.0, delta=1e-6)
    if name == "select":
        how = {"solver": "gradient_descent", "mean_runs": 2, "eta": 0.0}
        return dpk.select([{"rounds": 5}], people, budget=budget, **how, **options).privacy
    if name == "private_range":
        return dpk.private_range(people, bounds=(-9.0, 9.0), budget=budget).privacy
    return dpk.solve(name, people, budget=budget, **options).privacy


@for_each(
    ("name", "options"),
    [
        ("gradient_descent", {}),
        ("gradient_descent", {"trust": "silo"}),
        ("gradient_descent", {"person_clip": None}),
        ("local_newton", {}),
        ("select", {"person_clip": None}),
        ("private_range", {}),
    ],
)
def test_guarantees_for_people_are_verified(name, options):
    assert_verified(of_people(name, **options))


@pytest.mark.proof
def test_selections_for_people_are_verified():
    assert_verified(of_people("select"))


@for_each(
    ("options", "change"),
    [
        ({}, {"unit": "one person with at most 40 records"}),
        ({}, {"group_size": 2}),
        ({}, {"declared": {"person_clip": 4.0}}),
        ({"person_clip": None}, {"unit": "one person with at most 40 records"}),
        ({"person_clip": None}, {"group_size": 1}),
        ({"person_clip": None}, {"unit": "one person with at most 4 records", "group_size": 1}),
    ],
)
def test_other_guarantees_for_people_are_rejected(options, change):
    values = form(of_people("gradient_descent", **options))
    for name, value in change.items():
        values[name] = {**values[name], **value} if isinstance(value, dict) else value
    values["digest"] = digest(values)
    assert not verify_certificate(values, "edited").ok


@for_each("id", ["admm/silos/federated/silo", "local_sgd/silo/round/one_pass"])
def test_a_series_is_recomputed_from_its_costliest_releases(id):
    certificate = made(id)
    assert all(release.series == 1 for release in certificate.releases)
    assert_verified(certificate)
    forged = form(certificate)
    for release in forged["releases"]:
        release["per_record"] += 1  # which costs more than the certificate states
    assert not dpk.verify(forged).ok
    apart = form(certificate)
    for number, release in enumerate(apart["releases"], 1):
        release["series"] = number  # of which a record is in all
    assert dpk.verify(apart).ok == (len(apart["releases"]) == 1)
