"""Local steps in every silo between two aggregations, and what leaves them."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpkern import kernels
from dpkern.papers.mechanisms import UncertifiedLaplace
from dpkern.privacy.local_runs import LARGEST_DRAW, LocalRuns, norm_bound
from dpkern.privacy.mechanisms.gaussian_sum import GaussianSum
from dpkern.privacy.mechanisms.last_iterate import LastIterate
from dpkern.privacy.mechanisms.messages import GaussianMessages
from dpkern.privacy.record_sampling import OnePass
from dpkern.solvers._run import Run

FloatArray = NDArray[np.float64]

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


class LocalSteps:
    """K steps of every silo from a public model w, without noise of their own.

        theta_j = w;  K times:  theta_j = prox_{eta_t l1}( theta_j - eta_t grad J_j(theta_j) )

    J_j is the mean over silo j, or over the step's batch of it, of the clipped losses, with the
    penalties.

    Parameters
    ----------
    run : Run
        Gives objective and clip norm.
    batch_size : int, optional
        Records of a step; None is all.
    """

    def __init__(self, run: Run, batch_size: int | None = None) -> None:
        self._run, self._batch_size = run, batch_size
        self._known: dict[bytes, LocalRuns] = {}
        self.weights = run.objective.data.weights(run.objective.weights)

    def __call__(
        self, w: FloatArray, eta: FloatArray, *, grid: FloatArray | None, **more: Any
    ) -> FloatArray:
        """theta_j of every silo, shape (m, d), from w, shape (d,) or (m, d).

        more: noise and batches, as the kernel takes them.
        """
        objective = self._run.objective
        smooth = objective.smooth
        with self._run.clock("kernels"):
            theta: FloatArray = kernels.glm_local_descent(
                objective.data,
                w,
                loss=objective.phi,
                clip=self._run.clip,
                steps=len(eta),
                step_size=eta,
                l2=objective.l2,
                regularizer=None if smooth is None or smooth[1] == 0.0 else smooth,
                prox=objective.proximal,
                penalize_intercept=objective.penalize_intercept,
                grid=grid,
                n_threads=objective.n_threads,
                **more,
            )
        return theta

    def described(self, eta: FloatArray) -> LocalRuns:
        """What is public about K steps of these sizes; raises where no sensitivity is known."""
        key = eta.tobytes()
        if key not in self._known:
            objective = self._run.objective
            if objective.proximal is not None and objective.l1 == 0.0:
                raise ValueError(
                    f"regularizer is {objective.proximal[0].name!r}, which acts by its prox; the "
                    "bound of hidden local steps is for smooth ones and l1: release every step "
                    "(gradient_descent, or local_steps=1)"
                )
            data, smooth = objective.data, objective.smooth
            g, strength = smooth if smooth is not None else (None, 0.0)
            curvature = (0.0, 0.0)
            if g is not None:
                curvature = (strength * g.strong_convexity, strength * g.smoothness)
            self._known[key] = LocalRuns(
                clip=self._run.clip,
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
        return self._known[key]

    def reach(self, w: FloatArray, eta: FloatArray) -> float:
        """A bound of |w|, the same for starts of similar norms."""
        return norm_bound(w, self._run.clip * float(np.sum(eta)))


class HiddenSteps:
    """Noise once on what K hidden noiseless steps have made of the model.

    Central trust: V = sum_j round_q( p_j (theta_j - w) ) + Z, of sensitivity
    max_j p_j (2 C / n_j) E_K and float terms (`dpkern.privacy.LocalRuns`); the model becomes w + V.
    Silo trust: the same of every silo alone with p_j = 1, averaged with the weights.
    On batches the steps that use a record take the place of E_K.

    Parameters
    ----------
    run : Run
        Gives objective, clip norm, ledger and stream.
    trust : {"central", "silo"}
        Who is believed.
    mu : float or None
        Budget of one release.
    sampler : OnePass, optional
        Of the batches of all steps of the run; None is all records.
    per_record : int, optional
        The most releases that any one record has a part in; None means all.
    """

    def __init__(
        self,
        run: Run,
        *,
        trust: str,
        mu: float | None,
        sampler: OnePass | None = None,
        per_record: int | None = None,
    ) -> None:
        b = None if sampler is None else sampler.batch_sizes[0]
        self._run, self._steps, self._per_silo = run, LocalSteps(run, b), trust == "silo"
        self._noisy, self._sampler, self._round = mu is not None, sampler, 0
        m = run.objective.data.m
        self._factors = np.ones(m) if self._per_silo else self._steps.weights
        self._mechanism = GaussianMessages(
            run.channel(trust),
            what=f"{'model' if self._per_silo else 'average model'} after {run.local_steps} "
            f"hidden local steps{'' if b is None else f' on batches of {b}'}",
            dim=run.objective.data.d,
            mu=mu,
            per_silo=self._per_silo,
            per_record=per_record,
        )

    def __call__(self, w: FloatArray, eta: FloatArray) -> FloatArray:
        """Release the next model, shape (d,), after steps eta (K,) from the public w."""
        steps, grid, proved = self._steps, None, {}
        if self._noisy:
            # Refused before anything reads a record, where a condition does not hold.
            grid, proved = steps.described(eta).grids, self._proved(w, eta)
        theta = steps(w, eta, grid=grid, batches=self._batches(len(eta)))
        moved = self._factors[:, np.newaxis] * (theta - w)
        with self._run.clock("noise"):
            released = self._mechanism.release(moved, **proved)
        return w + (steps.weights @ released if self._per_silo else released)

    def _proved(self, w: FloatArray, eta: FloatArray) -> dict[str, Any]:
        """Sensitivities of the messages of a round, and a bound of what they hold."""
        return self._bounds(self._steps.reach(w, eta), eta[np.newaxis])

    def _bounds(self, start: float, etas: FloatArray) -> dict[str, Any]:
        """Those of rounds with any of these steps, from |w| <= start."""
        factors, rounds = self._factors.tolist(), [self._steps.described(eta) for eta in etas]
        each = [runs.sensitivities(start, factors) for runs in rounds]
        return {
            "sensitivity": tuple(map(max, zip(*each, strict=True))),
            "bound": max(runs.message_bound(start, factors) for runs in rounds),
        }

    def _batches(self, K: int) -> NDArray[np.int64] | None:
        """The records of every step of every silo in the next round; None is all."""
        if self._sampler is None:
            return None
        data, first = self._run.objective.data, self._round * K
        self._round += 1
        return self._sampler.consecutive(self._run.stream, data.offsets, first, K)


class HiddenBatches(HiddenSteps):
    """The same on so few records a round that no record is in all of them.

    Rounds in which no batch holds a record do not depend on it: releases are one series, of which
    a record has a part in so many. All of them have the sensitivity of the largest steps, and of
    the longest model that noise and clip norm allow.

    Parameters
    ----------
    run, trust, sampler, per_record
        As for `HiddenSteps`; the budget is shared out among `per_record` releases.
    eta : ndarray, shape (rounds, K)
        The steps of the run.
    """

    def __init__(
        self, run: Run, *, trust: str, sampler: OnePass, per_record: int, eta: FloatArray
    ) -> None:
        mu, self._eta = run.mu_of_one(per_record), np.unique(eta, axis=0)
        super().__init__(run, trust=trust, mu=mu, sampler=sampler, per_record=per_record)
        if mu is not None:
            reach = run.clip * float(np.sum(eta))
            # More than the deviation: float terms and the series add less than a half.
            sigma = 2.0 * max(self._bounds(reach, self._eta)["sensitivity"]) / mu
            noise = LARGEST_DRAW * math.sqrt(run.objective.data.d) * sigma
            self._start = norm_bound(run.objective.start(), reach + len(eta) * noise)
            self._all = self._bounds(self._start, self._eta)

    def _proved(self, w: FloatArray, eta: FloatArray) -> dict[str, Any]:
        start = self._steps.reach(w, eta)
        return self._all if start <= self._start else self._bounds(start, self._eta)


class NoisySteps:
    """Noise on the gradient sum of every local step; the silos' models are averaged.

    Every silo adds N(0, sigma_j^2) to its exact sum, of sensitivity 2 C, at each of its K steps:
    its model is a function of K noisy sums and public numbers.

    Parameters
    ----------
    run : Run
        Gives objective, clip norm, ledger and stream.
    trust : {"central", "silo"}
        Who sees the models: for the ledger.
    mu : float or None
        Budget of one local step.
    sigma : sequence of m floats, optional
        In its place, the noise on each silo's sum.
    """

    def __init__(
        self, run: Run, *, trust: str, mu: float | None = None, sigma: FloatArray | None = None
    ) -> None:
        data = run.objective.data
        self._run, self._steps = run, LocalSteps(run)
        self._mechanism = GaussianSum(
            run.channel(trust),
            what="sum of clipped gradients of a local step",
            clip=run.clip,
            dim=data.d,
            sizes=tuple(data.sizes.tolist()),
            mu=mu,
            sigma=sigma,
        )

    def models(self, w: FloatArray, eta: FloatArray) -> FloatArray:
        """The silos' models, shape (m, d), after steps eta (K,) from the public w."""
        return self._mechanism.release_steps(len(eta), lambda **noise: self._steps(w, eta, **noise))

    def __call__(self, w: FloatArray, eta: FloatArray) -> FloatArray:
        """Their average, shape (d,)."""
        return self._steps.weights @ self.models(w, eta)


class LastIterates:
    """Noise on every local iterate, of which only the last leaves the silo (`LastIterate`).

    Parameters
    ----------
    run : Run
        Gives objective, clip norm, ledger and stream.
    mu : float
        Budget of one round.
    eta : ndarray, shape (rounds, K)
        The steps of all rounds: within a round equal ones, and every round is charged for its own.
    """

    def __init__(self, run: Run, *, mu: float, eta: FloatArray) -> None:
        self._steps = LocalSteps(run)
        # All at once, so that a schedule is refused before anything reads a record.
        self._mechanisms = {
            row.tobytes(): LastIterate(
                run.channel("silo"),
                mu=mu,
                runs=self._steps.described(row),
            )
            for row in eta
        }

    def __call__(self, w: FloatArray, eta: FloatArray) -> FloatArray:
        """Release the average of the last iterates, shape (d,), from the public w."""
        grid = self._steps.described(eta).grids

        def step(theta: FloatArray, t: int) -> FloatArray:
            return self._steps(theta, eta[t : t + 1], grid=grid)

        start = self._steps.reach(w, eta)
        return self._steps.weights @ self._mechanisms[eta.tobytes()].release(w, start, step)


class LaplaceAverage:
    """The average model with the coordinate-wise Laplace noise that papers print: no guarantee.

    Parameters
    ----------
    run : Run
        Gives objective, ledger and stream.
    sensitivity, epsilon : float
        The printed l2 sensitivity and the claim: the scale is their quotient.
    """

    def __init__(self, run: Run, *, sensitivity: float, epsilon: float) -> None:
        self._run, self._steps = run, LocalSteps(run)
        self._mechanism = UncertifiedLaplace(
            run.channel("central"),
            what="average model",
            sensitivity=sensitivity,
            scale=sensitivity / epsilon,
        )

    def __call__(self, w: FloatArray, eta: FloatArray) -> FloatArray:
        """Release the next model, shape (d,), after steps eta (K,) from the public w."""
        average = self._steps.weights @ self._steps(w, eta, grid=None)
        with self._run.clock("noise"):
            return self._mechanism.release(average)
