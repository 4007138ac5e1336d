"""The runs of solvers whose released bits are recorded: every option of every solver, once.

Calls may be rewritten when arguments are renamed; ids and what is released stay.
"""

import ctypes
import functools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse
from released_data import Matrix, data

import dpkern as dpk
from dpkern.models.losses import Custom, Huber, Poisson, SmoothedHinge
from dpkern.models.penalties import PL, Box, ElasticNet, GroupLasso, L2Ball, NonNegative, Simplex
from dpkern.solvers import Declared

SEED = 7
EPSILON, DELTA = 2.0, 1e-5


class Softsign(dpk.Oracle):
    """A linear model of the user's own, with a derivative that is no transcendental function."""

    name = "softsign"

    def dim(self, data: dpk.SiloData) -> int:
        return data.n_features

    def gradients(self, w: Matrix, X: Matrix, y: Matrix) -> Matrix:
        z = (X * w).sum(axis=1)
        return (-y / (1.0 + (1.0 + y * z) ** 2))[:, np.newaxis] * X


@ctypes.CFUNCTYPE(None, ctypes.c_ssize_t, *[ctypes.POINTER(ctypes.c_double)] * 5, ctypes.c_void_p)
def _quartic_root(n, y, z, value, d1, d2, params):
    for i in range(n):
        r = y[i] * z[i] - 1.0
        root = math.sqrt(1.0 + r * r)
        if value:
            value[i] = root
        if d1:
            d1[i] = y[i] * r / root
        if d2:
            d2[i] = 1.0 / (root * root * root)


@dataclass(frozen=True)
class Case:
    """One run: the solver, its records by key, and its keyword arguments."""

    id: str
    solver: str
    data: str
    options: dict[str, Any] = field(repr=False)

    def run(self, n_threads: int) -> dpk.SolverResult:
        return dpk.solve(self.solver, data(self.data), **self.options, n_threads=n_threads)


@functools.cache
def budget() -> dpk.Budget:
    return dpk.Budget(epsilon=EPSILON, delta=DELTA)


def case(solver: str, label: str, on: str = "dense", **options: Any) -> Case:
    """A run of few rounds under a small budget, where the options say nothing else."""
    length = "local_steps" if solver in ("wd_dp", "output_perturbation") else "rounds"
    few = {} if solver in ("ridge", "objective_perturbation") else {length: 4}
    shared = {"budget": budget(), "clip": 1.0, "l2": 0.125, "rng": SEED}
    if solver in ("local_newton", "local_sgd", *STOCHASTIC):
        shared["trust"] = "silo"
    if solver == "output_perturbation":
        shared["weights"] = "uniform"
    return Case(f"{solver}/{label}", solver, on, {**shared, **few, **options})


FIRST_ORDER = ("gradient_descent", "federated_gd", "wd_dp", "output_perturbation")
NEWTON = ("local_newton", "double_noise_newton")
STOCHASTIC = ("prox_sgd", "prox_svrg", "prox_pl_svrg", "spider", "minibatch_sgd")
PROXIMAL = ("gradient_descent", "federated_gd", "admm", "fixed_point", "local_sgd", *STOCHASTIC)
EVERY = (*FIRST_ORDER, *NEWTON, "admm", "fixed_point", *STOCHASTIC, "local_sgd")

SIZES = [12, 18, 33]
HIDDEN: dict[str, Any] = {"neighbours": "add_remove", "public_size": SIZES}
BATCHES: dict[str, dict[str, Any]] = {
    "one_pass": {"sampling": "one_pass", "batch_size": 2},
    "cyclic": {"sampling": "cyclic", "batch_size": 4},
    "without_replacement": {"sampling": "without_replacement", "batch_size": 5},
}
PERCEPTRONS = {
    "mlp_softmax": (dpk.MLP((3,), activation="tanh"), "dense-multiclass"),
    "mlp_linear_softmax": (dpk.MLP((), smoothness=0.5), "plain-multiclass"),
    "mlp_logistic": (dpk.MLP((3, 2), loss="logistic", seed=1), "float32-model"),
    "mlp_squared": (dpk.MLP((3,), loss="squared"), "range-regression-model"),
    "ordered": (dpk.AllThreshold(), "plain-multiclass"),
    "oracle": (Softsign(), "dense-model"),
    "oracle_csr": (Softsign(), "plain-model"),
}


def models_and_layouts() -> Iterator[Case]:
    """What every solver offers: losses, layouts of the records, weights, no budget."""
    for solver in EVERY:
        for name, loss, on in (
            ("logistic", "logistic", "dense"),
            ("squared", "squared", "dense-regression"),
            ("huber", Huber(0.75), "dense-regression"),
            ("smoothed_hinge", SmoothedHinge(0.5), "dense"),
            ("squared_hinge", "squared_hinge", "dense"),
        ):
            yield case(solver, f"loss/{name}", on, loss=loss)
        for layout in ("float32", "csr", "range"):
            yield case(solver, f"layout/{layout}", layout)
        if solver in ("gradient_descent", "local_newton", "minibatch_sgd", "local_sgd"):
            yield case(solver, "weights/records", "dense-counts", loss=Poisson(-2.0, 1.5, 6.0))
        plain: dict[str, Any] = {}
        if solver in NEWTON:
            plain = {"hess_clip": 0.75}
        elif solver == "admm":
            plain = {"prox_step": 0.5}
        else:
            plain = {"step_size": 0.25}
        if solver not in ("wd_dp", "output_perturbation"):  # central trust needs a row bound
            yield case(solver, "layout/plain", "plain", **plain)
        if solver != "admm":
            yield case(solver, "weights/uniform", weights="uniform")
            yield case(solver, "weights/size", weights="size")
        yield case(solver, "budget/none", budget=None, clip=None)
        yield case(solver, "budget/mu", budget=dpk.Budget(mu=0.75), penalize_intercept=False)
        if solver not in NEWTON:
            yield case(solver, "penalty/l1", l1=0.0625, penalize_intercept=False)
    for solver in ("gradient_descent", "spider", "minibatch_sgd"):  # in single precision
        yield case(solver, "layout/float32/wide", "float32-wide")
    yield case("gradient_descent", "monitor/train", monitor="train")
    yield case("minibatch_sgd", "monitor/public", monitor=data("dense-even"))
    quartic = Custom(
        scipy.LowLevelCallable(_quartic_root), smoothness=1.0, lipschitz=1.0, name="quartic root"
    )
    yield case("gradient_descent", "loss/custom", loss=quartic, rounds=2)
    yield case("local_newton", "loss/custom", loss=quartic, rounds=2)


def penalties() -> Iterator[Case]:
    everywhere = {
        "pl": PL(0.25),
        "elastic_net": ElasticNet(0.0625, l1_ratio=0.4),
    }
    some = {
        "group_lasso": GroupLasso(0.0625, groups=[1, 3, 1]),
        "l2_ball": L2Ball(0.5),
        "box": Box(-0.125, [0.25, 0.125, 0.25, 0.5, 1.0]),
        "simplex": Simplex(0.75),
        "non_negative": NonNegative(),
    }
    for i, solver in enumerate(PROXIMAL):
        chosen = dict(everywhere)
        names = [*some, None]
        for name in (names[k % len(names)] for k in (i, i + 1)):
            if name is not None:
                chosen[name] = some[name]
        for name, penalty in chosen.items():
            if name == "pl" and solver == "admm":
                continue
            yield case(solver, f"penalty/{name}", penalty=penalty)
    for solver in ("wd_dp", "output_perturbation"):
        yield case(solver, "penalty/pl", penalty=PL(0.25))
    yield case("wd_dp", "silo/penalty/box", trust="silo", penalty=some["box"])


def gradient_descent() -> Iterator[Case]:
    run = functools.partial(case, "gradient_descent")
    for trust in ("central", "silo"):
        for weights in ("size", "uniform"):
            yield run(f"{trust}/replace_one/{weights}", trust=trust, weights=weights)
            yield run(f"{trust}/add_remove/{weights}", trust=trust, weights=weights, **HIDDEN)
        yield run(f"{trust}/paper", trust=trust, calibration="paper")
        yield run(f"{trust}/add_remove/csr", "csr", trust=trust, l1=0.0625, **HIDDEN)
        yield run(f"{trust}/theorem", trust=trust, step_size="theorem")
    yield run("central/add_remove/one_size", neighbours="add_remove", public_size=64)
    yield run("central/steps", step_size=[0.5, 0.25, 0.125, 1.0])


def local_runs() -> Iterator[Case]:
    run = functools.partial(case, "federated_gd")
    for K in (1, 3):
        for trust in ("central", "silo"):
            yield run(f"{trust}/K{K}", trust=trust, local_steps=K)
            yield run(f"{trust}/K{K}/uniform", trust=trust, local_steps=K, weights="uniform")
        yield run(f"central/K{K}/paper", local_steps=K, calibration="paper")
        yield run(f"silo/K{K}/last_iterate", trust="silo", local_steps=K, accounting="last_iterate")
    for trust in ("central", "silo"):
        yield run(f"{trust}/K1/add_remove", trust=trust, **HIDDEN)
    yield run("silo/K3/elastic_net", trust="silo", local_steps=3, penalty=ElasticNet(0.125))
    yield run("central/K3/l1", local_steps=3, l1=0.0625)
    yield run("central/K3/pl", local_steps=3, penalty=PL(0.125))
    yield run("central/K3/theorem", local_steps=3, step_size="theorem")
    yield run("central/K3/csr", "csr", local_steps=3)
    yield run("silo/K3/last_iterate/csr", "csr", trust="silo", local_steps=3, rounds=2, l1=0.0625,
              accounting="last_iterate")  # fmt: skip
    for solver in ("wd_dp", "output_perturbation"):
        one = functools.partial(case, solver)
        yield one("central")
        yield one("silo", trust="silo")
        yield one("paper", calibration="paper")
        yield one("silo/float32", "float32", trust="silo")
    yield case("wd_dp", "silo/last_iterate", trust="silo", accounting="last_iterate")
    yield case("output_perturbation", "central/theorem", step_size="theorem")
    yield case("wd_dp", "silo/plain", "plain", trust="silo", step_size=0.25)
    yield case("wd_dp", "paper/range", "range", calibration="paper", local_steps=2)


def minimisers() -> Iterator[Case]:
    run = functools.partial(case, "objective_perturbation")
    yield run("central")
    yield run("central/none", budget=None, clip=None)
    yield run("central/added", added_l2=0.5, l2=0.0, penalize_intercept=False)
    yield run("central/uniform", weights="uniform")
    yield run("central/add_remove", **HIDDEN)
    for layout in ("float32", "csr", "range"):
        yield run(f"layout/{layout}", layout)
    for name, loss, on in (("huber", Huber(0.75), "dense-regression"),
                           ("smoothed_hinge", SmoothedHinge(0.5), "dense")):  # fmt: skip
        yield run(f"loss/{name}", on, loss=loss)


def newton() -> Iterator[Case]:
    run = functools.partial(case, "local_newton")
    for trust in ("central", "silo"):
        for step in ("damped", "private_search", 0.5):
            yield run(f"{trust}/{step}", trust=trust, step_size=step)
            yield run(f"{trust}/add_remove/{step}", trust=trust, step_size=step, **HIDDEN)
        yield run(f"{trust}/l2_0", trust=trust, l2=0.0)
    yield run("silo/L2", local_steps=2, rounds=2)
    yield run("silo/L2/private_search", local_steps=2, rounds=2, step_size="private_search")
    yield run("silo/paper", calibration="paper")
    yield run("silo/paper/L2", calibration="paper", local_steps=2, rounds=2)
    yield run("silo/paper_search", calibration="paper", step_size="paper_search")
    yield run("silo/floor", floor=2.0, max_step=0.5)
    yield run("central/hess_clip", trust="central", hess_clip=0.25)
    yield run("central/uniform/private_search", "dense-even", trust="central", weights="uniform",
              step_size="private_search")  # fmt: skip
    run = functools.partial(case, "ridge")
    for trust in ("central", "silo"):
        yield run(f"{trust}/logistic", trust=trust, loss="logistic")
        yield run(f"{trust}/add_remove", trust=trust, **HIDDEN)
    run = functools.partial(case, "newton_inference")
    yield run("logistic")
    yield run("add_remove", "csr", **HIDDEN)
    yield run("range", "range")
    yield run("no_budget", budget=None, clip=None)
    yield run("silo", trust="silo", clip="auto")
    yield run("silo/clip", trust="silo")
    yield run("silo/add_remove", "csr", trust="silo", **HIDDEN)
    yield run("colluding", colluding=1)
    yield run("counts", "dense-counts", loss=Poisson(-2.0, 1.5, 6.0))
    run = functools.partial(case, "double_noise_newton")
    for variant in ("add", "clip"):
        yield run(variant, variant=variant)
        yield run(f"{variant}/l2_0", variant=variant, l2=0.0)
        yield run(f"{variant}/add_remove", variant=variant, **HIDDEN)
        yield run(f"{variant}/hess_clip", "csr", variant=variant, hess_clip=0.25)
    yield run("clip/uniform", variant="clip", weights="uniform", penalize_intercept=False)


def admm() -> Iterator[Case]:
    run = functools.partial(case, "admm")
    ring = scipy.sparse.diags_array(
        [np.ones(59), np.ones(59), np.ones(1), np.ones(1)], offsets=[-1, 1, 59, -59], shape=(60, 60)
    ).tocsr()
    five: dict[str, Any] = {"mode": "federated", "participation": 5}
    token: dict[str, Any] = {"mode": "token", "rounds": 12}
    yield run("records/central")
    yield run("records/central/local", trust="local")
    yield run("records/central/local/fast", trust="local", relaxation=1.0)
    yield run("records/central/paper", calibration="paper")
    yield run("records/central/paper/alone", calibration="paper", rounds=1)
    yield run("records/central/steps", prox_step=0.7, relaxation=0.25, l1=0.0625)
    yield run("records/federated", **five)
    yield run("records/federated/local", trust="local", **five)
    yield run("records/federated/paper", calibration="paper", **five)
    yield run("records/federated/most", max_participations=1, **five)
    yield run("records/federated/csr", "csr", **five)
    yield run("records/token", trust="local", **token)
    yield run("records/token/paper", trust="local", calibration="paper", **token)
    yield run("records/token/ring", trust="local", graph=ring, **token)
    yield run("records/token/most", trust="local", max_participations=1, **token)
    two: dict[str, Any] = {"mode": "federated", "participation": 2}
    for trust in ("central", "silo"):
        silos = functools.partial(run, users="silos", trust=trust, local_steps=5)
        for weights in ("size", "uniform"):
            yield silos(f"silos/central/{trust}/{weights}", weights=weights)
        yield silos(f"silos/federated/{trust}", **two)
        yield silos(f"silos/federated/{trust}/csr", "csr", max_participations=2, **two)
    yield run("silos/token", users="silos", trust="silo", **token)
    yield run("silos/l1", users="silos", l1=0.0625, prox_step=0.7)


def fixed_point() -> Iterator[Case]:
    run = functools.partial(case, "fixed_point")
    for operator in ("proximal_gradient", "gradient", "coordinate", "admm"):
        yield run(operator, operator=operator)
        yield run(f"{operator}/float32", "float32", operator=operator, relaxation=0.375)
    yield run("admm/prox_step", operator="admm", prox_step=0.5, l1=0.0625)
    half = Declared(lambda u: 0.5 * u + 0.125, sensitivity=0.25, name="half")
    yield run("declared", operator=half, clip=None)
    yield run("declared/none", operator=half, budget=None, clip=None)
    yield run("blocks", blocks=2, activation=0.5, rounds=6)
    yield run("blocks/sizes", blocks=[1, 4], activation=0.75, rounds=6, l1=0.0625)
    yield run("coordinate/activation", operator="coordinate", activation=0.25, rounds=6)
    yield run("relaxations", relaxation=[1.0, 0.5, 0.25, 0.125], step_size=0.5)


def stochastic() -> Iterator[Case]:
    for solver in STOCHASTIC:
        run = functools.partial(case, solver)
        for trust in ("silo", "central", "shuffle"):
            yield run(trust, trust=trust)
            yield run(f"{trust}/participation", trust=trust, participation=2)
        yield run("paper", calibration="paper")
        yield run("paper/participation", calibration="paper", participation=2, weights="uniform")
        yield run("returns/random", returns="random")
        yield run("returns/random/participation", returns="random", participation=2)
        yield run("returns/average", returns="average")
        yield run("auto", step_size="auto")
        for name, (model, on) in PERCEPTRONS.items():
            yield run(f"model/{name}", on, model=model, step_size=0.25)
        if solver in ("prox_svrg", "prox_pl_svrg", "spider"):
            yield run("central/refresh_1", trust="central", refresh_every=1)
            yield run("silo/refresh_3", refresh_every=3, rounds=5)
            yield run("central/without_replacement", "dense-even", trust="central",
                      refresh_every=2, **BATCHES["without_replacement"])  # fmt: skip
    yield case("prox_sgd", "batch_size", batch_size=1)
    yield case("prox_svrg", "central/mlp/refresh_2", "dense-multiclass", trust="central",
               model=dpk.MLP((3,)), refresh_every=2, step_size=0.25)  # fmt: skip
    yield case("prox_svrg", "paper/refresh_2", calibration="paper", refresh_every=2)
    yield case("prox_pl_svrg", "restarts", rounds=7, restarts=3, refresh_every=2, returns="random")
    yield case("spider", "alternate", variant="alternate", rounds=5)
    yield case("spider", "alternate/paper", variant="alternate", calibration="paper")
    yield case("spider", "alternate/central", variant="alternate", trust="central")
    yield case("spider", "share", refresh_share=0.25)
    yield case("minibatch_sgd", "returns/number", returns=2)
    yield case("spider", "alternate/returns/share", variant="alternate", returns=0.5)
    run = functools.partial(case, "minibatch_sgd")
    for trust in ("silo", "central", "shuffle"):
        yield run(f"{trust}/one_pass", trust=trust, **BATCHES["one_pass"])
        yield run(f"{trust}/cyclic", trust=trust, **BATCHES["cyclic"])
    for trust in ("silo", "central"):
        yield run(f"{trust}/without_replacement", "dense-even", trust=trust,
                  **BATCHES["without_replacement"])  # fmt: skip
        yield run(f"{trust}/add_remove", trust=trust, **HIDDEN)
        yield run(f"{trust}/poisson", trust=trust, neighbours="add_remove",
                  public_size=[20, 20, 20], sampling="poisson", batch_size=5)  # fmt: skip
    yield run("silo/cyclic/paper", calibration="paper", **BATCHES["cyclic"])
    yield run("silo/cyclic/csr", "csr", participation=2, **BATCHES["cyclic"])
    yield run("central/add_remove/oracle", "dense-model", model=Softsign(), step_size=0.25,
              trust="central", **HIDDEN)  # fmt: skip
    yield run("central/add_remove/mlp", "dense-multiclass", model=dpk.MLP((3,)), step_size=0.25,
              trust="central", **HIDDEN)  # fmt: skip


def local_sgd() -> Iterator[Case]:
    run = functools.partial(case, "local_sgd", rounds=2, local_steps=2)
    for trust in ("silo", "central"):
        yield run(f"{trust}/round", trust=trust, noise="round")
        for name in ("one_pass", "cyclic"):
            yield run(f"{trust}/round/{name}", trust=trust, noise="round", **BATCHES[name])
    for name in ("one_pass", "cyclic", "without_replacement"):
        on = "dense-even" if name == "without_replacement" else "dense"
        yield run(f"silo/step/{name}", on, noise="step", **BATCHES[name])
    yield run("silo/step", noise="step")
    yield run("silo/step/participation", noise="step", participation=2)
    yield run("silo/step/paper", noise="step", calibration="paper")
    yield run("silo/step/add_remove", noise="step", **HIDDEN)
    yield run("silo/step/poisson", noise="step", neighbours="add_remove",
              public_size=[20, 20, 20], sampling="poisson", batch_size=5)  # fmt: skip
    drawn: dict[str, Any] = {"returns": "random", "participation": 2, "noise": "step"}
    yield run("returns/random/participation", **drawn)
    yield run("returns/random/cyclic", **drawn, **BATCHES["cyclic"])
    yield case("minibatch_sgd", "returns/random/cyclic", returns="random", participation=2,
               **BATCHES["cyclic"])  # fmt: skip
    for kind in ("random", "average"):
        yield run(f"returns/{kind}", returns=kind)
    for name, (model, on) in PERCEPTRONS.items():
        yield run(f"model/{name}", on, model=model, step_size=0.25, noise="step")


def localized_sgd() -> Iterator[Case]:
    run = functools.partial(case, "localized_sgd")
    for trust in ("silo", "central"):
        yield run(trust, trust=trust)
        yield run(f"{trust}/participation", trust=trust, participation=2, weights="uniform")
    yield run("phases", "csr", trust="silo", rounds=7, phases=3, prox_step=2.0)
    yield run("weights/records", "dense-counts", loss=Poisson(-2.0, 1.5, 6.0))
    yield run("layout/float32", "float32", phases=1, penalize_intercept=False)
    yield run("budget/none", budget=None, clip=None)


SOURCES: tuple[Callable[[], Iterable[Case]], ...] = (
    models_and_layouts,
    penalties,
    gradient_descent,
    local_runs,
    minimisers,
    newton,
    admm,
    fixed_point,
    stochastic,
    local_sgd,
    localized_sgd,
)


@functools.cache
def runs() -> dict[str, Case]:
    """All runs of solvers by id."""
    found = [one for source in SOURCES for one in source()]
    by_id = {one.id: one for one in found}
    assert len(by_id) == len(found), "two runs have one id"
    return by_id
