"""Local steps in every silo between two aggregations, and their releases."""

import math
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpkern import kernels
from dpkern._typing import FloatArray
from dpkern.models.losses import Huber, Squared
from dpkern.models.scale import largest_target
from dpkern.privacy.mechanisms.channel import largest_norm
from dpkern.privacy.mechanisms.gaussian_sum import GaussianSum
from dpkern.privacy.mechanisms.last_iterate import LastIterate
from dpkern.privacy.mechanisms.messages import GaussianMessages
from dpkern.privacy.sampling.record_sampling import Cyclic
from dpkern.privacy.sensitivity.local_runs import LocalRuns, norm_bound
from dpkern.solvers.base.backends import CALL_ENTRIES, interruptible
from dpkern.solvers.base.objective import Objective
from dpkern.solvers.base.result import SolverResult
from dpkern.solvers.base.run import Run
from dpkern.solvers.releases.gradient import NoisyMeanGradient, Returned
from dpkern.solvers.releases.means import Family, NoisyMeans, Participation, allocate, sampler_of
from dpkern.solvers.releases.record_sums import sums_of

HIDDEN = (
    "hidden: the local iterates and every silo's own model; their bound rests on the declared "
    "row bound, loss and penalties"
)
IN_TURN = (
    "batches in turn of an order of each silo's records that is drawn without looking at them: "
    "what a record costs is how often it comes up; that the order is secret is not used"
)
HIDDEN_ITERATES = (
    "hidden: all local iterates but the last of a round; their bound rests on the declared row "
    "bound, loss and penalties"
)
NOT_HIDDEN = (
    "upper bound: every noisy local step of a silo is charged as if it had been released; that "
    "only the average is seen is not used"
)


Advance = Callable[[FloatArray, FloatArray], Coroutine[Any, Any, FloatArray]]


def local_advance(
    run: Run, eta: FloatArray, accounting: str
) -> tuple[Advance, str] | tuple[Advance]:
    """Return the update of a round of local steps, and the certificate's note, if it needs one.

    Under silo trust every local step is noisy, and charged as `accounting` says; under central
    trust they are hidden.
    """
    mu = run.plan.mu_of_one(run.plan.rounds)
    if accounting == "last_iterate" and run.plan.trust == "silo" and mu is not None:
        return LastIterates(run, mu=mu, eta=eta), HIDDEN_ITERATES
    if run.plan.trust == "silo":
        return (NoisySteps(run, mu=run.plan.mu_of_one(eta.size)),)
    return HiddenSteps(run, mu=mu), HIDDEN


async def average_runs(run: Run, eta: FloatArray, advance: Advance, *notes: str) -> SolverResult:
    """Run all rounds of an algorithm that releases averages of local runs."""
    if run.plan.arguments.get("accounting") == "last_iterate" and run.plan.trust != "silo":
        raise ValueError(f"accounting='last_iterate' needs trust='silo' in {run.plan.solver}")
    returned, done = Returned(run, run.plan.rounds), 0
    run.qualify(*(notes if run.plan.budget is not None else ()), upper=NOT_HIDDEN in notes)
    if isinstance(advance, HiddenSteps | LastIterates):
        advance.require_reach(eta)
    w, origin, objective = run.first_model(), None, run.objective
    if run.plan.declaration.penalizes_intercept and _is_of_residuals(objective) and w.any():
        # Penalties of all of w are of the distance from the first model: targets less its
        # intercept are fitted from 0.
        run.objective = replace(objective, data=objective.data.with_targets_less(w[-1]))
        w, origin = np.zeros_like(w), w
    if isinstance(advance, GradientStep):
        done = await advance.compiled_rounds(w, eta[:, 0], returned.extend)
    for r in run.numbered_rounds(done):
        w_next = await advance(w, eta[r])
        step, point = float(np.sum(eta[r])), w_next if origin is None else origin + w_next
        run.record(r, point, step, (w - w_next) / step)
        w = w_next
        returned.add(point)
    run.objective, added = objective, np.zeros(run.plan.rounds)
    if isinstance(advance, GradientStep | HiddenSteps):
        added = advance.added_noise(eta)
    # Of several messages the noise depends on the models between.
    bounded = isinstance(advance, GradientStep) or run.plan.rounds == 1
    return run.result(returned.model, returned.noise(added, bounded=bounded))


def _is_of_residuals(objective: Objective) -> bool:
    """Whether the loss of a record is a function of its target less its margin."""
    return objective.has_units and isinstance(objective.loss, Squared | Huber)


class GradientStep:
    """A single step along one noisy mean gradient at the public model.

    `sigma`, shape (m,), is a paper's noise std on each silo's mean, in place of the budget.
    """

    def __init__(self, run: Run, sigma: FloatArray | None) -> None:
        self._objective = objective = run.objective
        mu, shares = None, None
        if sigma is None:
            mu = run.plan.mu_of_one(run.plan.rounds)
        else:
            shares = sigma * objective.data.weights(objective.weights) / objective.record_weight()
        self._gradient = NoisyMeanGradient(run, mu=mu, sigma=shares, shares=shares is not None)
        self.compiled_rounds = self._gradient.compiled_rounds

    def added_noise(self, eta: FloatArray) -> FloatArray:
        """Return the std of the noise that every round adds to the model, shape (rounds,)."""
        return eta[:, 0] * self._gradient.noise_std

    async def __call__(self, w: FloatArray, eta: FloatArray) -> FloatArray:
        """Release the gradient at w and return the next model."""
        step, objective = float(eta[0]), self._objective
        g = await self._gradient(w) + objective.penalty_gradient(w)
        return objective.prox(w - step * g, step)


def silos_here(run: Run) -> NDArray[np.int64] | None:
    """Return the silos whose records are in this process; None means all."""
    data = run.objective.data
    return None if data.party is None else np.flatnonzero(data.held)


class LocalSteps:
    """K local steps of every silo from a public model w, noiseless unless noise is passed.

        theta_j = w;  K times:  theta_j = prox_{eta_t l1}( theta_j - eta_t grad J_j(theta_j) )

    J_j is the mean over silo j, or over the step's batch of it, of the clipped losses, with the
    penalties.
    """

    def __init__(self, run: Run, batch_size: int | None = None) -> None:
        self._run, self._batch_size = run, batch_size
        self._local_runs: dict[bytes, LocalRuns] = {}
        self._silos = silos_here(run)
        self.weights = run.objective.data.weights(run.objective.weights)

    def __call__(
        self,
        w: FloatArray,
        eta: FloatArray,
        *,
        grid: FloatArray | None,
        batches: NDArray[np.int64] | None = None,
        **noise: Any,
    ) -> FloatArray:
        """Return theta_j of every silo, shape (m, d), from w, shape (d,) or (m, d).

        `noise` is the kernel's. Steps without it are made in calls between which Ctrl-C is served.
        """
        objective, silos = self._run.objective, self._silos
        if silos is not None and not len(silos):
            return np.array(np.broadcast_to(w, (objective.data.m, w.shape[-1])))
        smooth, theta, data, together = objective.smooth, w, objective.data, len(eta)
        entries = data.d * (data.n if self._batch_size is None else data.m * self._batch_size)
        if noise.get("sigma") is None:
            together = max(1, CALL_ENTRIES // entries)
        for first in range(0, len(eta), together):
            steps = slice(first, first + together)
            with self._run.clock("kernels"):
                theta = interruptible(
                    kernels.glm_local_descent,
                    data,
                    theta,
                    loss=objective.phi,
                    clip=self._run.plan.clip,
                    steps=len(eta[steps]),
                    step_size=eta[steps],
                    l2=objective.l2,
                    smooth=None if smooth is None or smooth.strength == 0.0 else smooth,
                    prox=objective.proximal,
                    penalize_intercept=objective.penalize_intercept,
                    grid=grid,
                    silos=silos,
                    batches=None if batches is None else batches[:, steps],
                    n_threads=objective.n_threads,
                    **noise,
                )
        return theta

    def local_runs(self, eta: FloatArray) -> LocalRuns:
        """Return the description of K steps of these sizes; raise if no sensitivity is known."""
        key = eta.tobytes()
        if key not in self._local_runs:
            objective = self._run.objective
            if objective.data.is_weighted:
                raise ValueError(
                    "data must have neither weight nor margin_offset for hidden local steps, whose "
                    "sensitivity is that of margins without them: release every step "
                    "(gradient_descent, or local_steps=1)"
                )
            if objective.proximal is not None and objective.l1 == 0.0:
                raise ValueError(
                    "penalty must be smooth or L1 for hidden local steps, got "
                    f"{objective.proximal.name!r}, which acts by its prox: release every step "
                    "(gradient_descent, or local_steps=1)"
                )
            data, g, curvature = objective.data, objective.smooth, (0.0, 0.0)
            if g is not None:
                curvature = (g.strength * g.strong_convexity, g.strength * g.smoothness)
            self._local_runs[key] = LocalRuns(
                clip=self._run.plan.clip,
                dim=data.d,
                sizes=tuple(data.sizes.tolist()),
                step_sizes=tuple(eta.tolist()),
                loss_smoothness=objective.phi.smoothness,
                loss_kappa=objective.phi.kappa,
                row_bound=data.row_bound,
                convex=objective.phi.convex,
                l2=objective.l2,
                curvature=curvature,
                all_penalized=bool(objective.penalized.all()),
                batch_size=self._batch_size,
            )
        return self._local_runs[key]

    def start_bound(self, w: FloatArray, eta: FloatArray) -> float:
        """Return a bound of |w|, the same one for starts of similar norms."""
        return norm_bound(w, self._run.plan.clip * float(np.sum(eta)))


class HiddenSteps:
    """Noise on the result of K hidden noiseless local steps.

    Central trust: V = sum_j round_q( p_j (theta_j - w) ) + Z, of sensitivity
    max_j p_j (2 C / n_j) E_K plus rounding terms (`LocalRuns`); the next model is w + V.
    Silo trust: the same for every silo alone with p_j = 1, then averaged with the weights.
    For batches, E_K is replaced by the sum over the steps that use a record. `mu` is the budget of
    one release, whatever its steps, and at most `per_record` of them depend on one record.
    """

    def __init__(
        self,
        run: Run,
        *,
        mu: float | None,
        sampler: Cyclic | None = None,
        per_record: int | None = None,
    ) -> None:
        b = None if sampler is None else sampler.batch_sizes[0]
        self._run, self._steps, self._per_silo = run, LocalSteps(run, b), run.plan.trust == "silo"
        self._mu, self._sampler, self._round = mu, sampler, 0
        self._added: list[float] = []
        m = run.objective.data.m
        self._factors = np.ones(m) if self._per_silo else self._steps.weights
        self._mechanism = GaussianMessages(
            run.channel(),
            what=f"{'model' if self._per_silo else 'average model'} after {run.plan.local_steps} "
            f"hidden local steps{'' if b is None else f' on batches of {b}'}",
            dim=run.objective.data.d,
            mu=mu,
            per_silo=self._per_silo,
            per_record=per_record,
        )

    def require_reach(self, eta: FloatArray) -> None:
        """Raise ValueError if a later round could start where no sensitivity is known."""
        if self._mu is None:
            return
        factors, mu = tuple(self._factors.tolist()), self._mu

        def std(row: FloatArray, start: float) -> float:
            return max(_bounds_of(self._steps.local_runs(row), start, factors)[0]) / mu

        _require_reach(self._run, eta, std)

    async def __call__(self, w: FloatArray, eta: FloatArray) -> FloatArray:
        """Release the next model, shape (d,), after steps eta (K,) from the public w."""
        steps, grid, bounds = self._steps, None, {}
        if self._mu is not None:
            # Conditions are checked before any record is read.
            grid, bounds = steps.local_runs(eta).grids, self._bounds(w, eta)
        theta = steps(w, eta, grid=grid, batches=self._batches(len(eta)))
        changes = self._factors[:, np.newaxis] * (theta - w)
        with self._run.clock("noise"):
            released = self._mechanism.release(changes, **bounds)
        self._added.append(self._noise_std())
        return w + (steps.weights @ released if self._per_silo else released)

    def added_noise(self, eta: FloatArray) -> FloatArray:
        """Return the std of the noise that every round has added to the model, shape (rounds,)."""
        return np.array(self._added)

    def _noise_std(self) -> float:
        """Return the std of the noise that the last release adds to every coordinate."""
        std, shares = self._run.ledger.releases[-1].std, self._run.plan.shares
        if std is None or self._per_silo:
            return 0.0 if std is None else float(np.linalg.norm(self._steps.weights * std))
        honest = 1.0 if shares is None else 1.0 - shares.colluding / shares.silos
        return float(np.max(std)) / math.sqrt(honest)  # the colluding silos add theirs too

    def _bounds(self, w: FloatArray, eta: FloatArray) -> dict[str, Any]:
        """Bound sensitivities and coordinates of the messages of a round that starts at w."""
        start, factors = self._steps.start_bound(w, eta), tuple(self._factors.tolist())
        sensitivity, bound = _bounds_of(self._steps.local_runs(eta), start, factors)
        return {"sensitivity": sensitivity, "bound": bound}

    def _batches(self, K: int) -> NDArray[np.int64] | None:
        """Return the records of every step of every silo in the next round; None means all."""
        if self._sampler is None:
            return None
        data, first = self._run.objective.data, self._round * K
        self._round += 1
        return self._sampler.consecutive(self._run.stream, data.offsets, first, K)


def _require_reach(run: Run, eta: FloatArray, std: Callable[[FloatArray, float], float]) -> None:
    """Raise ValueError, before a release, where `std` knows no noise of a round by its start.

    The first model has the mean of targets as its intercept, or is 0.
    """
    data, d = run.objective.data, run.objective.data.d
    reach = largest_target(data) if run.plan.recalibration_mu else 0.0
    for row in eta:
        longest = run.plan.clip * float(np.sum(row))
        start = norm_bound(np.zeros(d), max(reach, longest))
        reach += longest + (math.sqrt(d) + 10.0) * std(row, start)


# Rounds and runs of a study have few different ones, and rational arithmetic takes its time.
@lru_cache(maxsize=1024)
def _bounds_of(
    runs: LocalRuns, start: float, factors: tuple[float, ...]
) -> tuple[tuple[float, ...], float]:
    """Return the sensitivities and the coordinate bound of messages of a round."""
    return runs.sensitivities(start, factors), runs.message_bound(start, factors)


class NoisySteps:
    """Noise on the gradient sum of every local step; the silos' models are averaged.

    Every silo adds N(0, sigma_j^2) to its exact sum, of sensitivity 2 C, at each of its K steps, so
    that its model is a function of K noisy sums and public numbers. `mu` is the budget of one step.
    """

    def __init__(
        self, run: Run, *, mu: float | None = None, sigma: FloatArray | None = None
    ) -> None:
        data = run.objective.data
        self._run, self._steps = run, LocalSteps(run)
        self._mechanism = GaussianSum(
            run.channel(),
            what="sum of clipped gradients of a local step",
            clip=run.plan.clip,
            dim=data.d,
            sizes=tuple(data.sizes.tolist()),
            mu=mu,
            sigma=sigma,
        )

    def models(self, w: FloatArray, eta: FloatArray) -> FloatArray:
        """Return the silos' models, shape (m, d), after steps eta (K,) from the public w."""
        mechanism = self._mechanism
        return mechanism.release_results(
            len(eta), lambda **noise: self._steps(w, eta, **noise), self._largest_norms(w, eta)
        )

    def _largest_norms(self, w: FloatArray, eta: FloatArray) -> list[float]:
        """Return the largest plausible norm of each silo's model: twice what its steps can add."""
        objective, sigma = self._run.objective, self._mechanism.sigma
        if objective.smooth is not None:  # whose gradients have no common bound
            return [math.inf] * len(sigma)
        rest, n = np.linalg.norm(objective.prox(np.zeros(w.shape[-1]), 1.0)), objective.data.sizes
        reach = np.full(len(sigma), np.linalg.norm(w))
        for step in eta.tolist():
            mean = [
                largest_norm(self._run.plan.clip, std / size, objective.data.d)
                for std, size in zip(sigma.tolist(), n.tolist(), strict=True)
            ]
            reach = max(1.0, step * objective.l2 - 1.0) * reach + step * np.array(mean) + rest
        return list((2.0 * reach).tolist())

    async def __call__(self, w: FloatArray, eta: FloatArray) -> FloatArray:
        """Return the average of the silos' models, shape (d,)."""
        return self._steps.weights @ self.models(w, eta)


class LastIterates:
    """Noise on every local iterate, of which only the last is released (`LastIterate`).

    `mu` is the budget of one round, whose step sizes eta[r] are equal.
    """

    def __init__(self, run: Run, *, mu: float, eta: FloatArray) -> None:
        self._run, self._steps = run, LocalSteps(run)
        # All rounds at once, so that step sizes are checked before any record is read.
        self._mechanisms = {
            row.tobytes(): LastIterate(run.channel("silo"), mu=mu, runs=self._steps.local_runs(row))
            for row in eta
        }

    def require_reach(self, eta: FloatArray) -> None:
        """Raise ValueError if a later round could start where no sensitivity is known."""
        K = self._run.plan.local_steps

        def std(row: FloatArray, start: float) -> float:
            return math.sqrt(K) * self._mechanisms[row.tobytes()].largest_std(start)

        _require_reach(self._run, eta, std)

    async def __call__(self, w: FloatArray, eta: FloatArray) -> FloatArray:
        """Release the average of the last iterates, shape (d,), from the public w."""
        grid = self._steps.local_runs(eta).grids

        def step(theta: FloatArray, t: int) -> FloatArray:
            return self._steps(theta, eta[t : t + 1], grid=grid)

        start = self._steps.start_bound(w, eta)
        return self._steps.weights @ self._mechanisms[eta.tobytes()].release(w, start, step)


def hidden_batch_steps(run: Run, eta: FloatArray) -> HiddenSteps:
    """Return K hidden local steps on batches, with noise once per round on their result."""
    allowed = {"participation": None, "calibration": "sound", "neighbours": "replace_one"}
    for name, value in allowed.items():
        if run.plan.arguments[name] != value:
            raise ValueError(f"noise='round' needs {name}={value!r}")
    sampler = sampler_of(run.plan, run.objective, eta.size)
    if not isinstance(sampler, Cyclic):
        if sampler.method != "full":
            raise ValueError(
                "noise='round' needs sampling='full', 'one_pass' or 'cyclic', got "
                f"{sampler.method!r}: take trust='silo' and noise='step'"
            )
        return HiddenSteps(run, mu=run.plan.mu_of_one(run.plan.rounds))
    charged = min(sampler.per_record, run.plan.rounds)
    return HiddenSteps(
        run,
        mu=run.plan.mu_of_one(charged),
        sampler=sampler,
        per_record=charged if charged < run.plan.rounds else None,
    )


class NoisyBatchSteps:
    """K local steps along noisy mean gradients of batches, under silo trust, then averaged.

    `sigma`, shape (m,), is a paper's noise std on the silos' means, in place of the budget.
    """

    def __init__(self, run: Run, sigma: FloatArray | None = None) -> None:
        self._objective, self._K, self._round = run.objective, run.plan.local_steps, 0
        T = run.plan.rounds * run.plan.local_steps
        sampler = sampler_of(run.plan, run.objective, T)
        silos = Participation(run, np.full(run.plan.rounds, run.plan.local_steps))
        family = Family("sum of clipped gradients of a local step", range(T), sampler, sigma=sigma)
        (mu,) = allocate(run, [family], silos)
        self._means = NoisyMeans(run, sums_of(run), family, silos, mu)
        self._weights = silos.active[:: run.plan.local_steps] * run.objective.shares()
        self._weights /= self._weights.sum(axis=1, keepdims=True)

    async def __call__(self, w: FloatArray, eta: FloatArray) -> FloatArray:
        objective, t = self._objective, self._round * self._K
        theta = np.tile(w, (objective.data.m, 1))
        for k, step in enumerate(eta.tolist()):
            g = await self._means.of_silos(t + k, theta)
            theta = objective.prox(theta - step * (g + objective.penalty_gradient(theta)), step)
        weights = self._weights[self._round]
        self._round += 1
        return weights @ theta
