"""Local steps in every silo between two aggregations, and what leaves them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpkern import kernels
from dpkern.privacy import GaussianMessages, GaussianSum, LastIterate, LocalRuns, UncertifiedLaplace
from dpkern.privacy.local_runs import norm_bound
from dpkern.solvers._gradient import SEEN_BY
from dpkern.solvers._run import Run

FloatArray = NDArray[np.float64]

HIDDEN = (
    "hidden: the local iterates and every silo's own model; their bound rests on the declared "
    "row bound, loss and penalties"
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
    """K full-batch steps of every silo from a public model w, without noise of their own.

        theta_j = w;  K times:  theta_j = prox_{eta_t l1}( theta_j - eta_t grad J_j(theta_j) )

    J_j is the mean over silo j of the clipped losses, with the penalties.

    Parameters
    ----------
    run : Run
        Gives objective and clip norm.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._known: dict[bytes, LocalRuns] = {}
        self.weights = run.objective.data.weights(run.objective.weights)

    def __call__(
        self, w: FloatArray, eta: FloatArray, *, grid: FloatArray | None, **noise: Any
    ) -> FloatArray:
        """theta_j of every silo, shape (m, d), from w, shape (d,) or (m, d)."""
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
                **noise,
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

    Parameters
    ----------
    run : Run
        Gives objective, clip norm, ledger and stream.
    trust : {"central", "silo"}
        Who is believed.
    mu : float or None
        Budget of one release.
    """

    def __init__(self, run: Run, *, trust: str, mu: float | None) -> None:
        self._run, self._steps, self._per_silo = run, LocalSteps(run), trust == "silo"
        self._noisy = mu is not None
        m = run.objective.data.m
        self._factors = np.ones(m) if self._per_silo else self._steps.weights
        self._mechanism = GaussianMessages(
            what=f"{'model' if self._per_silo else 'average model'} after {run.local_steps} "
            "hidden local steps",
            ledger=run.ledger,
            rng=run.stream,
            dim=run.objective.data.d,
            mu=mu,
            seen_by=SEEN_BY[trust],
            per_silo=self._per_silo,
        )

    def __call__(self, w: FloatArray, eta: FloatArray) -> FloatArray:
        """Release the next model, shape (d,), after steps eta (K,) from the public w."""
        steps, factors = self._steps, self._factors
        if not self._noisy:
            moved = factors[:, np.newaxis] * (steps(w, eta, grid=None) - w)
            released = self._mechanism.release(moved)
        else:
            runs, start = steps.described(eta), steps.reach(w, eta)
            # Refused before anything reads a record, where a condition does not hold.
            sensitivity = runs.sensitivities(start, factors.tolist())
            bound = runs.message_bound(start, factors.tolist())
            moved = factors[:, np.newaxis] * (steps(w, eta, grid=runs.grids) - w)
            with self._run.clock("noise"):
                released = self._mechanism.release(moved, sensitivity=sensitivity, bound=bound)
        return w + (steps.weights @ released if self._per_silo else released)


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
            what="sum of clipped gradients of a local step",
            ledger=run.ledger,
            rng=run.stream,
            clip=run.clip,
            dim=data.d,
            sizes=tuple(data.sizes.tolist()),
            mu=mu,
            sigma=sigma,
            seen_by=SEEN_BY[trust],
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
                ledger=run.ledger,
                rng=run.stream,
                mu=mu,
                seen_by=SEEN_BY["silo"],
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
            what="average model",
            ledger=run.ledger,
            rng=run.stream,
            sensitivity=sensitivity,
            scale=sensitivity / epsilon,
            seen_by=SEEN_BY["central"],
        )

    def __call__(self, w: FloatArray, eta: FloatArray) -> FloatArray:
        """Release the next model, shape (d,), after steps eta (K,) from the public w."""
        average = self._steps.weights @ self._steps(w, eta, grid=None)
        with self._run.clock("noise"):
            return self._mechanism.release(average)
