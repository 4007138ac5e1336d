"""What a budget buys, before any record is read: settings, noise, error and time of solvers."""

import math
import os
import time
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dpkern import kernels
from dpkern._html import table
from dpkern._numbers import aligned, count, figure, not_negative, positive, probability
from dpkern.data import SiloData
from dpkern.data.labels import target_bounds
from dpkern.models.losses import ESTIMATED, LogLink, Loss, NegativeBinomial, get_loss
from dpkern.models.scale import margin_scale, softmax_scale
from dpkern.plotting import plot_plan
from dpkern.privacy import Budget, BudgetWarning
from dpkern.privacy.guarantees.gdp import check_budget
from dpkern.privacy.sampling.amplification import AMPLIFIES
from dpkern.solvers import SOLVERS
from dpkern.solvers.base.automatic import chosen
from dpkern.solvers.base.declaration import Declaration
from dpkern.solvers.base.objective import PublicNumbers
from dpkern.solvers.base.options import SHARED, check_choice
from dpkern.solvers.base.recalibration import Share, power_of_run
from dpkern.solvers.base.settings import is_auto, moments_suffice
from dpkern.solvers.releases.forecast import Forecast, assumed, forecast, usual_rate

# Excess risk, test error above that without privacy: least + A (d^q / x)^p, where x = 2 mu / u is
# n mu under central trust and replacement. q and least of all solvers are here, A and p of every
# one in its declaration, with the passes over the records of a step, in those of a gradient, and
# its microseconds of Python: `python -m bench.utility --fit` prints them; docs/utility.md says on
# which sets they were fitted, and how well they predict on others.
FORM = (0.75, 0.004)
# A pass of a solver that needs a Hessian also takes so many times d.
_PRODUCT = 0.13
# The noise of a perturbed objective is that of a Gaussian release of this share of mu: 0.66 to 0.71
# at epsilon 0.1 to 8 and delta 1e-6, with the default share for the curvature of a record.
_PERTURBED_SHARE = 0.68
# Seconds of an exchange between silos on their own machines for each silo, and for each of its
# numbers, as `python -m bench.federation` measures them on one machine.
_TRANSPORTS = {"processes": (3e-4, 1e-8), "flower": (0.07, 3e-7), "mpyc": (1.7e-3, 2.1e-6)}
_FACTORS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)  # of epsilon and of n in the picture


@dataclass(frozen=True)
class Planned:
    """A solver with the settings that it would take, and what to expect of it.

    Attributes
    ----------
    solver : str
    settings : dict
        Clip norm, rounds, local steps, step size and momentum, as far as the solver has them.
    noise : float
        Std of the noise in every coordinate of the mean gradient of one round.
    signal : float
        Largest size of a coordinate of the mean gradient if all have the same: clip / sqrt(d).
    error : float
        Predicted excess risk: test error, a share of the records, above that of the model without
        privacy.
    seconds : float
        Predicted time of a run on this machine.
    passes : int or None
        Predicted passes over records in blocks (docs/blocks.md), after the first one, which checks
        them; None where the solver needs them in memory.
    """

    solver: str
    settings: dict[str, Any]
    noise: float
    signal: float
    error: float
    seconds: float
    passes: int | None = None


_HEAD = [
    *("solver", "rounds", "steps", "clip", "step", "noise", "signal", "error", "seconds"),
    "passes",
]


@dataclass(frozen=True)
class Plan:
    """The result of `dpkern.plan`: a table of solvers, the one to take first.

    With ``inference=True`` it has a `forecast` of standard errors in place of `rows`.
    """

    n: int
    d: int
    budget: Budget
    rows: tuple[Planned, ...]
    arguments: Mapping[str, Any]
    forecast: Forecast | None = None

    @property
    def best(self) -> Planned:
        """The solver that ``solve("auto", ...)`` takes."""
        if self.forecast is not None:
            raise ValueError("inference must be False for a table of solvers, see `forecast`")
        return self.rows[0]

    def __str__(self) -> str:
        spent = f"mu {self.budget.mu:.4g}"
        if self.budget.epsilon is not None:
            spent = f"epsilon {self.budget.epsilon:g}, delta {self.budget.delta:g}, {spent}"
        head = f"{self.n} records, {self.d} coefficients; {spent}"
        if self.forecast is not None:
            return f"{head}\n\n{self.forecast}{self._assumed}\n\nnothing here was read from records"
        return "\n".join(
            [
                head,
                "",
                *aligned([_HEAD, *map(_cells, self.rows)]),
                "",
                'first: what solve("auto") takes; noise and signal: of a coordinate of the mean',
                "gradient in one round; error: predicted excess risk, test error of a classifier",
                "above that without privacy; passes: over records in blocks, - where they must be",
                "in memory; nothing here was read from records",
            ]
        )

    __repr__ = __str__

    @property
    def _assumed(self) -> str:
        """What is taken for a rate that was not given, on a line of its own."""
        text = assumed(self.arguments["loss"]) if self.arguments["rate"] is None else ""
        return text and f"\n{text}; give the rate (rate=, --rate) if it is known"

    def _repr_html_(self) -> str:
        first, *rest, last = str(self).split("\n\n")
        if self.forecast is not None:
            return table(first, [[line] for line in rest[0].split("\n")], note=last)
        return table(first, map(_cells, self.rows), head=_HEAD, note=last)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Return a figure of the predicted error over epsilon and over the number of records.

        With ``inference=True`` it is of the growth of standard errors, where there are any. It is
        written as a PNG where a path is given.

        Raises ImportError where matplotlib is not installed.
        """
        mu, how = self.budget.mu, dict(self.arguments)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BudgetWarning)  # nobody spends these
            budgets = [Budget(mu=f * mu) for f in _FACTORS]
            if self.budget.delta is not None:  # the same budgets, as people state them
                delta = self.budget.delta
                budgets = [Budget(epsilon=b.epsilon_at(delta), delta=delta) for b in budgets]
        over_budget = [(b.epsilon or b.mu, plan(self.n, self.d, budget=b, **how)) for b in budgets]
        sizes = [max(math.ceil(f * self.n), how["m"]) for f in _FACTORS]
        over_n = [(float(n), plan(n, self.d, budget=self.budget, **how)) for n in sizes]
        unit = "mu" if self.budget.delta is None else f"epsilon at delta {self.budget.delta:g}"
        return plot_plan(
            {unit: _curves(over_budget), "number of records": _curves(over_n)},
            path,
            title=f"predicted for {self.n} records of {self.d} coefficients",
            **({} if self.forecast is None else {"quantity": "standard errors over no privacy"}),
        )


def _curves(plans: Iterable[tuple[float, Plan]]) -> dict[str, list[tuple[float, float]]]:
    """Return the points (x, predicted error) of every solver."""
    curves: dict[str, list[tuple[float, float]]] = {}
    for x, found in plans:
        if found.forecast is not None and found.forecast.is_answered:
            curves.setdefault("newton_inference", []).append((x, found.forecast.growth))
        for row in found.rows:
            curves.setdefault(row.solver, []).append((x, row.error))
    return curves


def _cells(row: Planned) -> list[str]:
    s = row.settings
    step = s.get("step_size", s.get("prox_step", "-"))
    cells = [
        row.solver,
        s.get("rounds", 1),
        s.get("local_steps", 1),
        s["clip"],
        step if isinstance(step, float) else "-",
        row.noise,
        row.signal,
        row.error,
        row.seconds,
        "-" if row.passes is None else row.passes,
    ]
    return [figure(cell, 3) for cell in cells]


def plan(
    n: int,
    d: int,
    *,
    budget: Budget,
    row_bound: float,
    loss: str | Loss = "logistic",
    m: int = 1,
    trust: str = "central",
    neighbours: str = "replace_one",
    l2: float = 0.0,
    n_classes: int = 2,
    target_bound: float | tuple[float, float] = 1.0,
    transport: str | None = None,
    inference: bool = False,
    rate: float | None = None,
) -> Plan:
    """Say what a budget buys for a linear model, from public numbers alone.

    Parameters
    ----------
    n, d : int
        Number of records, and of coefficients of one output, the intercept's included, which
        regressions are taken to have.
    budget : Budget
        Total budget of a run.
    row_bound : float
        R, the bound of a record's norm, the constant 1 of the intercept included.
    loss : str or Loss
        A loss with a bounded second derivative.
    m : int
        Number of silos, of equal size.
    trust, neighbours : str
        As in `dpkern.solve`.
    l2 : float
        Strength of the penalty (l2/2) |w|^2.
    n_classes : int
        Number of classes; more than two are those of softmax regression, `dpkern.MLP(hidden=())`.
    target_bound : float or pair (lo, hi)
        Bound of |y|, or bounds of y, in a regression, as of the data.
    transport : {"processes", "flower", "mpyc"}, optional
        How silos in processes of their own reach each other (docs/federation.md): the rows are
        those of solvers that can be run so, and seconds have what their messages take.
    inference : bool
        Whether to forecast standard errors, in place of comparing solvers: `Plan.forecast`, of
        targets whose residuals have a deviation near delta / 1.3 for Huber's loss, and of counts
        by their likelihood.
    rate : float, optional
        Share of the records with one of two labels, 0.5 by default, or the mean count, by default
        that in the middle of the loss's range; as far as it is known without them, for
        ``inference=True``: rare outcomes need more records.

    Returns
    -------
    plan : Plan
        A row for every solver that applies, that of ``solve("auto", ...)`` first, then by the
        predicted error. Settings are those that "auto" means on data of these numbers.

    Raises
    ------
    TypeError, ValueError
        When an argument is not as described.

    Notes
    -----
    No record is read and nothing is released, so that a plan costs nothing. The predicted error is
    the excess risk of classification (0-1 loss), fitted to measurements on public sets: expect a
    factor of three. There is no such figure for the area under the ROC curve: fitted to the same
    sets (docs/utility.md), one was off by more than that on nearly half of what was left out.
    Seconds are those of dense records, from the time that a gradient of synthetic ones takes on
    this machine; sparse records with few entries take less.

    Examples
    --------
    >>> plan = dpkern.plan(32_561, 124, budget=dpkern.Budget(epsilon=1, delta=1e-6), row_bound=3.9)
    >>> plan.best.solver
    'gradient_descent'
    """
    n, d = count("n", n), count("d", d)
    check_budget(budget)
    asked = _Asked(
        positive("row_bound", row_bound),
        get_loss(loss),
        count("m", m),
        trust,
        neighbours,
        not_negative("l2", l2),
        count("n_classes", n_classes, 2),
        target_bounds(target_bound)[0],
        transport,
        inference,
        rate,
    )
    asked.check(n)
    numbers, phi = asked.numbers(n, d, budget), asked.loss
    if inference:
        found = forecast(numbers, phi, n, _rate(phi, rate), budget.delta)
        return Plan(n, d, budget, (), vars(asked), found)
    planner = _Planner(asked, numbers, n, budget, pace=seconds_of_an_entry(n, d))
    rows = [planner.row(name) for name in SOLVERS if planner.takes(SOLVERS[name].declaration)]
    exact = asked.n_classes == 2 and phi.name == "squared" and moments_suffice(numbers)
    first = chosen(trust, "softmax" if asked.n_classes > 2 else None, moments=exact)
    order = sorted(rows, key=lambda row: (row.solver != first, row.error))
    return Plan(n, d, budget, tuple(order), vars(asked))


@dataclass(frozen=True)
class _Asked:
    """The arguments of `plan` beside the numbers and the budget."""

    row_bound: float
    loss: Loss
    m: int
    trust: str
    neighbours: str
    l2: float
    n_classes: int
    target_bound: float
    transport: str | None
    inference: bool
    rate: float | None

    def check(self, n: int) -> None:
        """Raise TypeError or ValueError for arguments that do not go together."""
        phi, K, is_labels = self.loss, self.n_classes, self.loss.task == "classification"
        if is_labels and self.target_bound != 1.0:
            raise ValueError(f"target_bound must be 1 for labels, got {self.target_bound!r}")
        check_choice("trust", self.trust, ("central", "silo"))
        check_choice("neighbours", self.neighbours, ("replace_one", "add_remove"))
        if self.transport is not None:
            check_choice("transport", self.transport, tuple(_TRANSPORTS))
        if self.m > n:
            raise ValueError(f"m must be at most the {n} records, got {self.m}")
        if not isinstance(self.inference, bool | np.bool_):
            raise TypeError(f"inference must be True or False, got {self.inference!r}")
        if self.inference:
            self._check_inference()
        if not math.isfinite(phi.smoothness):
            raise ValueError(f"loss must have a bounded second derivative, got {phi.name!r}")
        if self.rate is not None and not (self.inference and (is_labels or phi.log_link)):
            why = "two classes or counts" if self.inference else "inference=True"
            raise ValueError(f"rate must be left out without {why}, got {self.rate!r}")
        if K > 2 and phi.name != "logistic":
            raise ValueError(f"loss must be 'logistic' for {K} classes, got {phi.name!r}")

    def _check_inference(self) -> None:
        """Refuse arguments with which there are no standard errors, or no forecast of them."""
        phi = self.loss
        for name, value, must in (
            ("loss", phi.name, ESTIMATED),
            ("trust", self.trust, ("central",)),
            ("n_classes", self.n_classes, (2,)),
            ("l2", self.l2, (0.0,)),
            ("transport", self.transport, (None,)),
        ):
            if value not in must:
                allowed = " or ".join(map(repr, must))
                raise ValueError(f"{name} must be {allowed} with inference=True, got {value!r}")
        if phi.log_link and math.isinf(phi.lipschitz):
            raise ValueError("loss must have a max_target with inference=True, got one without it")

    def numbers(self, n: int, d: int, budget: Budget) -> PublicNumbers:
        phi, K, bound = self.loss, self.n_classes, self.row_bound
        return PublicNumbers.of(
            margin_scale(phi, bound, dim=d, target=self.target_bound)
            if K == 2
            else softmax_scale(K, bound, dim=d),
            budget,
            neighbours=self.neighbours,
            weight=(math.sqrt(self.m) if self.trust == "silo" else 1.0) / n,
            penalty_smoothness=self.l2,
            smallest=n // self.m,
            trust=self.trust,
            labels=phi.task == "classification" or phi.log_link,
            target_bound=self.target_bound,
            penalty=self.l2,
            pull=self.l2,
        )


def _rate(phi: Loss, rate: float | None) -> float:
    """Return the share of one of two labels, or the mean count, or what is usual."""
    if rate is None:
        return usual_rate(phi)
    if not isinstance(phi, LogLink | NegativeBinomial):
        return probability("rate", rate)
    low, high = math.exp(phi.low), math.exp(phi.high)
    if not low <= (rate := positive("rate", rate)) <= high:
        raise ValueError(f"rate must be within the means {low:.3g} to {high:.3g}, got {rate!r}")
    return rate


@dataclass(frozen=True)
class _Planner:
    """Predicts runs of solvers on data with the same public numbers.

    Attributes
    ----------
    asked : _Asked
    numbers : PublicNumbers
    n : int
        Number of records.
    budget : Budget
    pace : float
        Seconds that a gradient takes for an entry of the records.
    """

    asked: _Asked
    numbers: PublicNumbers
    n: int
    budget: Budget
    pace: float

    def takes(self, solver: Declaration) -> bool:
        """Return whether a solver applies, and has constants to be predicted by."""
        trust, neighbours, K = self.asked.trust, self.asked.neighbours, self.asked.n_classes
        # Hidden local steps have no bound for added records, nor for other than linear models.
        unbounded = trust in solver.hidden and (neighbours == "add_remove" or K > 2)
        return bool(
            trust in solver.trusts
            and (K == 2 or solver.models == "any")
            and neighbours in solver.neighbours
            and not unbounded
            and (solver.gaussian or self.budget.epsilon is not None)
            and (solver.federated or self.asked.transport is None)
            and solver.error
            and solver.seconds
        )

    def row(self, name: str) -> Planned:
        """Return the settings of a solver and what they lead to."""
        declaration, d, K = SOLVERS[name].declaration, self.numbers.dim, self.asked.n_classes
        assert declaration.error
        assert declaration.seconds
        asked = {name: getattr(self.asked, name) for name in ("trust", "neighbours")}
        stated = asked | {"budget": self.budget, "calibration": "sound"}
        given = {k: o.default for k, o in (SHARED | declaration.own).items()} | stated
        if self.numbers.trust == "silo" or self.asked.transport is not None:
            given |= declaration.of_silos
        share = self._share(declaration, given)
        given["line_of_targets"] = share.line > 0.0
        numbers = replace(self.numbers, mu=math.sqrt(1.0 - share.total) * self.numbers.mu)
        found = declaration.settings(numbers, given)
        # Rounds that are fixed by default take their time and their noise too.
        settings = {
            k: v
            for k, v in found.items()
            if is_auto(given.get(k)) or (k == "rounds" and k in declaration.own)
        }
        rounds, steps = settings.get("rounds", 1), settings.get("local_steps", 1)
        clip = float(found["clip"])
        hidden = steps > 1 and numbers.trust == "central"
        releases = rounds if hidden else rounds * steps
        noise = numbers.noise * clip * math.sqrt(releases) / numbers.mu
        if not declaration.gaussian:
            noise /= _PERTURBED_SHARE
        outputs = K if K > 2 else 1
        messages = self._seconds_of_messages(
            rounds if declaration.sends_models else releases,
            outputs * d,
            hessians=declaration.hessians,
        )
        steps = found.get("passes", rounds * steps)
        passes = declaration.in_blocks * steps + share.passes(self.n)
        seconds = expected_seconds(name, self.n, d, steps, self.pace, declaration.seconds)
        x = 2.0 * numbers.mu / numbers.noise
        return Planned(
            solver=name,
            settings=settings,
            noise=noise,
            signal=clip / math.sqrt(d * outputs),
            error=excess_risk(d, x, declaration.error, n_classes=K),
            seconds=outputs * seconds + messages,
            passes=passes if declaration.in_blocks and K == 2 else None,
        )

    def _share(self, declaration: Declaration, given: Mapping[str, Any]) -> Share:
        """Return the share of mu^2 for a recalibration."""
        secret = given.get("sampling") == AMPLIFIES[given["neighbours"]]
        if secret or not (
            self.asked.loss.name == "logistic" or self.asked.loss.task == "regression"
        ):
            return Share(0.0)
        numbers, K = self.numbers, self.asked.n_classes
        power = power_of_run(self.n, self.asked.m, numbers.trust, numbers.mu)
        if numbers.log_link or not numbers.labels:
            squared = self.asked.loss.name == "squared"
            return Share.of_targets(power, numbers.dim, declaration, squared=squared)
        d = numbers.dim if K == 2 else K * numbers.dim
        return Share.of_labels(power, d, several=K > 2)

    def _seconds_of_messages(self, exchanges: int, size: int, *, hessians: bool) -> float:
        """Return the seconds for so many messages of every silo, of gradients and of Hessians."""
        if self.asked.transport is None:
            return 0.0
        of_silo, of_number = _TRANSPORTS[self.asked.transport]
        sizes = [size, size * (size + 1) // 2][: 1 + hessians]
        return exchanges * self.asked.m * sum(of_silo + of_number * size for size in sizes)


def excess_risk(
    d: int,
    x: float,
    constants: tuple[float, float],
    form: tuple[float, float] = FORM,
    *,
    n_classes: int = 2,
) -> float:
    """Return the predicted excess risk of d coefficients, x being n mu or 2 mu / noise.

    With K classes x is (2 / K)^(3/2) times as large: what the ten digits of scikit-learn and of
    MNIST show at epsilon 0.5, 1 and 3, within a factor of 2.
    """
    (scale, power), (of_d, least) = constants, form
    seen = x * (2.0 / n_classes) ** 1.5
    return min(1.0 - 1.0 / n_classes, least + scale * (d**of_d / seen) ** power)


def expected_seconds(
    solver: str, n: int, d: int, steps: int, pace: float, constants: tuple[float, float]
) -> float:
    """Return the predicted seconds of so many steps; a gradient takes `pace` for an entry."""
    passes, python = constants
    return passes * entries_of_a_run(solver, n, d, steps) * pace + python * steps * 1e-6


def entries_of_a_run(solver: str, n: int, d: int, steps: int) -> float:
    """Return the entries that so many steps read, those of a Hessian counted as often as they take.

    One pass over disjoint batches reads every record once.
    """
    reads = 1 if SOLVERS[solver].declaration.samplers == ("one_pass",) else steps
    return n * d * reads * (1.0 + _PRODUCT * d if SOLVERS[solver].declaration.hessians else 1.0)


def seconds_of_an_entry(n: int, d: int) -> float:
    """Return the time that a gradient takes for an entry of the records, by measuring it.

    It is that of n records, or as many as have 2^20 entries: threads and caches count.
    """
    rows = max(2, min(n, (1 << 20) // d))
    data = SiloData.split(np.full((rows, d), 0.5), np.tile([-1.0, 1.0], rows)[:rows], m=1)
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        kernels.glm_gradient(data, np.zeros(d), clip=1.0)
        times.append(time.perf_counter() - begin)
    return min(times) / (rows * d)
