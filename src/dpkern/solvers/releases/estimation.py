"""Releases of estimates with standard errors, and what follows from them.

`dpkern.solvers.newton_inference` has the algorithm.
"""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import scipy
from numpy.typing import NDArray

from dpkern._typing import FloatArray
from dpkern.kernels.glm import loss_derivatives
from dpkern.models.losses import (
    ESTIMATED,
    BinaryLikelihood,
    ComplementaryLogLog,
    Gamma,
    Likelihood,
    Logistic,
    LogLink,
    Loss,
    NegativeBinomial,
    Squared,
)
from dpkern.models.oracles import Oracle
from dpkern.models.ordinal import AllThreshold
from dpkern.models.scale import largest_target
from dpkern.privacy import split_budget
from dpkern.solvers.base import Run
from dpkern.solvers.base.inference import Inference, public_combinations
from dpkern.solvers.base.objective import Objective
from dpkern.solvers.base.plan import RunPlan
from dpkern.solvers.base.settings import estimation_clip, is_auto
from dpkern.solvers.releases.estimation_sums import (
    Margins,
    OfBlock,
    RecordRows,
    Rows,
    Scores,
    Slack,
    Sum,
    Waiting,
    curvature_rows,
    cut_rows,
    own_rows,
    residual_vectors,
    score_vectors,
    square_rows,
    target_vectors,
)

# Shares of mu^2: means, outer products of rows twice, residuals, squared scores; all curvatures,
# and all scores.
_SHARES = (0.03, 0.05, 0.06, 0.02, 0.04, 0.2, 0.6)
_MEANS, _ROWS, _WHITENED, OF_RESIDUALS, _SQUARES = range(5)  # their places
# Of curvatures, of which the first step has none, and of scores the parts of the last two steps;
# those before them have equal parts of the rest.
_CURVATURES, _SCORES = (0.25, 0.5), (0.2, 0.5)
# Rows of the second geometry are cut to so many times the square root of the dimension, at least.
GEOMETRY = 1.25
# Scores of least squares are cut to that of a residual of so many standard deviations and a row as
# long as the bound, and of so many and a row as long as rows are in the mean.
DEVIATIONS, DEVIATIONS_OF_USUAL = 3.0, 8.0
# Spectral norms of the noise below which an eigenvalue counts as that, of the geometry and of J,
# whose direction is then unknown; stds of it below which one of J does, however few there are; and
# the least part of that floor that an eigenvalue above is taken for.
FLOOR, _FLOOR_OF_J, _LEAST_FLOOR, _LEAST_LEFT = 2.0, 1.5, 3.0, 0.2
# How many of these floors known eigenvalues are, at least, where many directions are not known.
_OF_FEW = 2.0
# The least part of an eigenvalue's floor that the first steps take, and the deviations beyond which
# a score at the last step says that the steps before have not come near; and those up to which a
# step goes to the mean of two ends.
_LEAST_SEEN, _FAR, _NEAR = 0.25, 5.0, 3.0
# By how much a Newton step may move margins, in the mean of squares, as curvatures differ farther
# on: of labels by the link, and of logs of means; and by how many standard errors the last one may
# along a direction that is known without noise: a small part of what sampling moves.
_LARGEST_STEPS, _LARGEST_STEP_OF_LOGS = {"logistic": 1.5, "probit": 0.8, "cloglog": 1.0}, 0.5
_CONVERGED = 0.1
# The deviations of its noise by which a score says that a long step, of so much in margins, went
# too far, and the part of that step by which the next one goes back too far.
_SURELY, _LONG, _TOO_FAR_BACK = 3.0, 0.4, 0.5
# The part of n phi''max below which an eigenvalue of J is rounding, and its direction unknown.
_ROUNDING = 1e-9
# By how much margins along such a direction may be wrong where it is not noise that hides it.
_UNTOLD = 1e4
# The part of squared changes of curvatures at the last step that counts as its error.
_OF_MOVES = 0.5
_LogLink = LogLink | NegativeBinomial
# The largest standard deviation of margins at the start of a logistic or Poisson model, and by how
# much the first step moves the log of all means, at most.
_SPREAD, _LARGEST_LEVEL = 1.5, 5.0
# The part of slopes of normal rows that the first step takes: it is too long where few rows are far
# from all others, and from a point that is too far Newton's method would go farther.
_OF_NORMAL = 0.7
# The largest mean and target of a Poisson loss, whose noise is squared, over R too.
_LARGEST_MEAN = 1e30
# And the share of their trace by which curvatures may change at the last step: those of counts
# change by as much as the means, of which noise in the step before moves all.
_MOVING, _MOVING_COUNTS = 0.2, 0.4

MEANS = "inference: sum of rows"
ROWS = "inference: sum of outer products of rows"
WHITENED = "inference: sum of outer products of whitened rows"
RESIDUALS = "inference: sum of squared residuals"
TARGETS = "inference: sum of targets"
CURVATURES = "inference: sum of curvatures"
SQUARES = "inference: sum of squared scores"
SCORES = "inference: sum of scores"


def resolve_estimation(plan: RunPlan, objective: Objective) -> RunPlan:
    """Refuse what has no standard errors, by public facts."""
    data, loss = objective.data, objective.loss
    ordered = isinstance(loss, AllThreshold)

    def refuse(name: str, must: str, why: str) -> ValueError:
        return ValueError(f"{name} must be {must} in {plan.solver}: {why}")

    if ordered:
        loss = Logistic()  # at every threshold
        if plan.trust != "central":
            why = "silos' own estimates of ordered classes are not combined"
            raise refuse("trust", "'central'", why)
    if not isinstance(loss, Loss) or loss.name not in ESTIMATED:
        name = getattr(loss, "name", loss)
        why = f"standard errors are derived for these, got {name!r}"
        raise refuse("loss", " or ".join(map(repr, ESTIMATED)), why)
    if data.persons is not None:
        why = "records of one person are not independent, which the standard errors take them for"
        raise refuse("data", "without persons", why)
    if data.device is not None:
        raise refuse("data", "in the memory of the CPU", "it has no kernels of a card")
    if (loss.log_link or isinstance(loss, ComplementaryLogLog)) and not data.intercept:
        raise refuse("data", "with an intercept", "the fit begins at the level of the targets")
    if plan.trust == "silo" and is_auto(plan.arguments["clip"]):
        assert plan.budget is not None
        clip_of = partial(estimation_clip, mu=plan.budget.mu, dim=data.d)
        how = {"labels": not objective.has_units, "log_link": loss.log_link}
        of_replaced = 2.0 if plan.sizes_are_hidden else 1.0
        clips = [clip_of(of_replaced * n, **how) for n in objective.sizes.tolist()]
        plan = plan.replace_arguments(clip=clips[0] if len(set(clips)) == 1 else tuple(clips))
    if plan.arguments["weights"] != "size" and data.m > 1:
        raise refuse("weights", "'size'", "every record counts once")
    if plan.rounds < 4:
        why = "residuals are bounded at the second step, and again before the last two"
        raise refuse("rounds", "at least 4", why)
    if plan.budget is None:
        return plan
    if loss.log_link and not math.isfinite(loss.lipschitz):
        raise refuse("loss", "with a max_target", "the noise is for targets of that size")
    if np.isinf(plan.clip).any():
        raise refuse("clip", "finite", "it bounds what a record changes")
    if not math.isfinite(data.row_bound):
        raise refuse("data", "with a row_bound", "the noise is for rows of that length")
    if loss.log_link and loss.lipschitz > _LARGEST_MEAN:
        why = "the noise is for these, and its square must be a double"
        raise refuse("loss", f"with means and targets of {_LARGEST_MEAN:g} at most", why)
    if objective.has_units and not math.isfinite(data.target_bound):
        raise refuse("data", "with a target_bound", "the noise is for targets of that size")
    return plan


class Estimation:
    """The estimate from all records of a run, or from those of one silo, and its covariance.

    It waits for the sums that it needs (`Sums`).

    Attributes
    ----------
    W : ndarray, shape (d, r)
        The model w = W theta; W^T x is a whitened row, over C under silo trust.
    """

    W: FloatArray

    def __init__(self, run: Run, steps: int, *, n: int, clip: float) -> None:
        self._run, objective = run, run.objective
        self._data, self._n, self._steps = objective.data, float(n), steps
        self._threads, self._loss = objective.n_threads, self._loss_of(objective)
        self._target = largest_target(self._data)
        top = self._loss.smoothness
        self._top = top if top < math.inf else 1.0
        # k, what residuals are cut to and scores are divided by: at first those of all targets.
        k = self._loss.lipschitz if isinstance(self._loss, Likelihood) else self._target
        self._k = self._limit = k if k < math.inf else 1.0
        if run.plan.budget is None:
            self._limit = math.inf
        mu = None if run.plan.budget is None else run.plan.budget.mu
        mus = divided(mu, objective.loss, intercept=self._is_centred, steps=steps)
        self._mus, self._mu_of_curvatures, self._mu_of_scores = mus
        # Silos with different C release sums of the same sensitivity: of rows in units of C.
        self._C, self._in_units = clip, run.plan.trust == "silo" and clip < math.inf
        self._matrices: list[tuple[FloatArray, float]] = []
        self._seen: list[tuple[FloatArray, FloatArray, float]] = []
        self._margins = Margins(np.zeros(0), self._threads)
        self._ends: list[float] = []  # variances of the noise of what steps end at, times J^2

    @staticmethod
    def _loss_of(objective: Objective) -> Loss:
        return objective.phi

    @property
    def _is_centred(self) -> bool:
        """Whether rows are taken less their released means."""
        return self._data.intercept

    def _unit(self, bound: float) -> float:
        """Return the length that is 1 in rows of this bound."""
        return bound if self._in_units else 1.0

    def start(self) -> Waiting[FloatArray]:
        """Release the geometry, and return theta of the model 0, or of the mean count."""
        objective, unit = self._run.objective, self._unit(self._C)
        W, J, self._stretch = yield from self._geometry()
        self.W, self._bound = W / unit, self._C / unit
        self._rows = self._rows_of(self.W, self._bound)
        self._slack = Slack(self._rows, self._bound, self._threads)
        penalty = objective.l2 * self._n * objective.penalized
        self._penalty = (self.W.T * penalty) @ self.W
        self._of_rows = J / unit**2  # their second moments, as far as these are seen
        self._J, self._std = self._top * self._n * self._of_rows + self._penalty, 0.0
        if not isinstance(self._loss, _LogLink):
            return np.zeros(self.W.shape[1])
        yield from self._sum_targets(self._loss.max_target)
        low, high = self._loss.low, self._loss.high
        return min(max(math.log(self._targets / self._n), low), high) * self._constant()

    def _sum_targets(self, most: float) -> Waiting[None]:
        targets = partial(target_vectors, most)
        total, std = yield Sum(TARGETS, targets, 1, 0.5, self._mus[OF_RESIDUALS])
        if most < math.inf:
            total, std = most * (total + 0.5 * self._n), most * std
        self._targets = max(float(total[0]), std, 1e-9 * self._n)

    def _constant(self) -> FloatArray:
        """Return theta of the margin 1 in every row, of data with an intercept."""
        same = np.column_stack([self.W, public_combinations(self._data)])
        last = np.eye(self._data.d)[-1]
        found: FloatArray = np.linalg.lstsq(same, last)[0][: self.W.shape[1]]
        return found

    def step(self, t: int, theta: FloatArray) -> Waiting[tuple[FloatArray, FloatArray]]:
        """Release scores and curvatures at theta; return the sum of gradients and the direction."""
        left = self._steps - t
        if not isinstance(self._loss, Likelihood) and (t == 1 or left == 2):
            yield from self._limit_residuals(self.W @ theta, last=left == 2)
        scores = self._scores(self.W @ theta)
        if t:
            matrix, std = yield self._curvatures(scores, self._mu_of_curvatures[t])
            self._matrices = [*self._matrices[-1:], (self._top * matrix, self._top * std)]
            J, self._std = _mean(self._matrices)
            self._J = J + self._known(theta)[1]
        vectors = self._vectors(scores)
        g, std = yield Sum(SCORES, vectors, len(theta), self._bound, self._mu_of_scores[t])
        g = self._k * g + self._known(theta)[0]
        self._seen = [*self._seen[-1:], (theta, g, self._k * std)]
        inverse = _inverse(self._J + self._seen_on_the_way(), self._floor())
        # Where the noise of the two last steps explains the score, the ends differ by noise alone.
        near = t > 1 and bool(np.all(g * g <= _NEAR**2 * (self._ends[-1] + (self._k * std) ** 2)))
        end, s2 = _combined(self._seen if near else self._seen[-1:], inverse)
        self._ends, direction = [*self._ends[-1:], s2], theta - end
        if t == 0 and self._data.intercept:
            if isinstance(self._loss, BinaryLikelihood):
                direction = -self._of_normal_rows(self._loss, g, direction)
            elif isinstance(self._loss, _LogLink):
                direction = -self._of_normal_means(self._loss, g, direction)
        return g, self._within(theta, direction)

    def _seen_on_the_way(self) -> FloatArray:
        """Return what curvature along the last step lacks where that went far beyond the least sum.

        Then the model may be where curvatures are small: a Newton step goes back by more than half
        of the last one. That between the two is what gradients changed by.
        """
        lacking = np.zeros_like(self._J)
        if len(self._seen) < 2:
            return lacking
        (start, before, _), (end, g, std) = self._seen
        d = end - start
        square, after = float(d @ d), float(g @ d)
        if self._moved(d) <= _LONG or after <= _SURELY * std * math.sqrt(square):
            return lacking
        newton = _inverse(self._J, self._floor()) @ g
        if float(newton @ d) > _TOO_FAR_BACK * square:
            on_the_way = (after - float(before @ d)) / square
            here = float(d @ self._J @ d) / square
            lacking += max(on_the_way - here, 0.0) / square * np.outer(d, d)
        return lacking

    def _known(self, theta: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return gradient and Hessian of all that follows from public and released numbers."""
        return self._penalty @ theta, self._penalty

    def _within(self, theta: FloatArray, direction: FloatArray) -> FloatArray:
        """Return the direction, shortened to what curvatures of a likelihood may say."""
        if not isinstance(self._loss, Likelihood) or len(self._seen) < 2:
            return direction
        moved = self._moved(direction)
        most = _LARGEST_STEPS.get(self._loss.name, _LARGEST_STEP_OF_LOGS)
        return direction if moved <= most else direction * (most / moved)

    def _moved(self, direction: FloatArray) -> float:
        """Return by how much a step moves margins, the root of the mean of squares."""
        return math.sqrt(max(float(direction @ self._of_rows @ direction), 0.0))

    def _moments(self) -> tuple[FloatArray, FloatArray, float]:
        """Return theta of the margin 1, second moments of rows, and how many rows they are of."""
        constant, moments = self._constant(), (self._J - self._penalty) / self._top
        return constant, moments, max(float(constant @ moments @ constant), 0.5)

    def _of_normal_rows(
        self, loss: BinaryLikelihood, g: FloatArray, direction: FloatArray
    ) -> FloatArray:
        """Return the step to the model that normal rows would have with the score g at the start.

        Newton's steps from 0 would reach the log odds of a rare outcome by 1 or so each. There a
        score is one of two numbers, by the label.
        """
        r, (constant, moments, weights) = len(g), self._moments()
        negative, positive = loss_derivatives([-1.0, 1.0], [0.0, 0.0], loss=loss).tolist()
        unit = negative - positive
        std = self._seen[-1][2] / unit
        noise = std * float(np.linalg.norm(constant)) / weights
        least = min(max(2.0 * noise, 0.5 / self._n), 0.5)
        rate = (negative - float(constant @ g) / weights) / unit
        rate = min(max(rate, least), 1.0 - least)
        slopes = -self._top * direction / unit
        slopes -= float(constant @ moments @ slopes) / weights * constant
        variance = float(slopes @ moments @ slopes) / weights
        std *= self._unit(self._C)  # of rows whose second moments are 1
        seen = math.sqrt(max(variance - (r - 1) * std**2 / (self._n * weights), 0.0))
        level, spread = labels_of_normal(loss.probability, rate, seen, part=_OF_NORMAL)
        return level * constant + spread / max(math.sqrt(max(variance, 0.0)), 1e-300) * slopes

    def _of_normal_means(
        self, loss: LogLink | NegativeBinomial, g: FloatArray, direction: FloatArray
    ) -> FloatArray:
        """Return the same of means: of counts the start's sum to g above the targets.

        Where they are those of the targets, a Newton step has the slopes of normal rows, of which
        the mean of exp(z) is exp(var(z) / 2).
        """
        constant, moments, weights = self._moments()
        mean, std = self._targets / self._n, self._seen[-1][2]
        of_score = mean / loss.information(mean)
        noise = of_score * std * float(np.linalg.norm(constant))
        sign = -1.0 if isinstance(loss, Gamma) else 1.0  # its scores have means as divisors
        means = self._targets + sign * of_score * float(constant @ g)
        means = max(means, noise, 0.1 * self._targets)
        scale = self._top * weights / self._targets * of_score
        slopes = -scale * direction
        slopes -= float(constant @ moments @ slopes) / weights * constant
        variance = float(slopes @ moments @ slopes) / weights
        std *= scale
        inverse = _inverse(self._J, self._floor())
        of_noise = std * std * float(np.trace(inverse)) / (self._top * weights)
        seen = min(math.sqrt(max(variance - of_noise, 0.0)), _SPREAD)
        level = sign * math.log(self._targets / means)
        seen *= _OF_NORMAL
        level = min(max(level, -_LARGEST_LEVEL), _LARGEST_LEVEL) - 0.5 * seen**2
        return level * constant + seen / max(math.sqrt(max(variance, 0.0)), 1e-300) * slopes

    def _floor(self) -> float:
        """Return the least eigenvalue of J that no noise has."""
        return self._above_rounding(norm_of_noise(self._std, len(self._J)))

    def _least_known(self) -> float:
        """Return the least eigenvalue of J that is known."""
        values, _ = np.linalg.eigh(self._J)
        return self._above_rounding(least_known(values, self._std))

    def _above_rounding(self, least: float) -> float:
        return max(least, _ROUNDING * self._top * self._n)

    def estimate(self) -> Waiting[tuple[FloatArray, Inference]]:
        """Release squared scores, and return the estimate w with its covariance."""
        run, W, s_J = self._run, self.W, self._std
        theta, s2 = _combined(self._seen, _inverse(self._J, self._least_known()))
        last = self._seen[-1][0]
        step = last - theta
        if (shortened := self._within(last, step)) is not step:
            theta = last - shortened
        rows, k = self._squares(theta)
        Q, s_Q = yield self._outer(SQUARES, rows, self._mus[_SQUARES])
        values, known, unknown = self._directions(step)
        values = likeliest(values, self._least_known(), s_J)
        final = known / values @ known.T
        # The mean of the inverse of J + E is larger than that of J by J^-1 E J^-1 E J^-1.
        inverse = final - final @ _squared_noise(final, s_J) @ final
        of_model = self._squares_of_model(self._J - self._penalty)
        sandwich = inverse @ (k**2 * _shrunk(Q, s_Q, of_model)) @ inverse
        # The noise of J leaves a part of the error before the last step.
        before = sandwich + self._ends[0] * inverse @ inverse
        # That of the last scores does not depend on E, and goes through the inverse of J + E.
        noise = s2 * final @ final + inverse @ self._known_noise(theta) @ inverse
        noise += inverse @ _squared_noise(before, s_J) @ inverse
        if is_noisy := run.plan.budget is not None:
            noise += known * self._of_moves(known, values, before) @ known.T
        size = self._stretch / self._unit(self._C)  # of a row, in the mean
        far = self._k if run.objective.has_units else 1.0
        if not is_noisy:  # records do not tell at all what is unknown
            far *= _UNTOLD
        lost = (far / size) ** 2 * unknown @ unknown.T  # margins may be wrong by that
        total = sandwich + noise + (lost if is_noisy else 0.0)
        weighted = is_noisy and self._stretch == 1.0  # then rows may exceed C
        return W @ theta, Inference(
            W @ total @ W.T, W @ noise @ W.T, W @ lost @ W.T, weighted=weighted
        )

    def _of_moves(self, known: FloatArray, values: FloatArray, before: FloatArray) -> FloatArray:
        """Return what curvatures that move with theta add to the variances in these directions.

        It follows from how they changed at the last step, beyond what their noise explains, and
        from the covariance before it.
        """
        (J, s), (last, std) = self._matrices
        D, noise = last - J, _squared_noise(before, math.hypot(s, std))
        moved, own = (np.sum(known * (A @ known), axis=0) for A in (D @ before @ D - noise, before))
        found: FloatArray = _OF_MOVES * np.clip(moved / values**2, 0.0, own)
        return found

    def _is_moving(self) -> bool:
        """Whether curvatures changed at the last step, beyond what their noise explains."""
        (before, s), (last, std) = self._matrices
        change, noise = float(np.trace(before - last)), math.hypot(s, std) * math.sqrt(len(last))
        share = _MOVING_COUNTS if self._loss.log_link else _MOVING
        return abs(change) > share * max(float(np.trace(last)), 0.0) + 2.0 * noise

    def _directions(self, step: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the directions that are known, with their eigenvalues of J, and those whose
        curvature may be noise or that have not converged, as columns."""
        values, vectors = np.linalg.eigh(self._J)
        hidden = are_hidden(values, self._least_known())
        if self._run.plan.budget is None:
            unit = self._k if self._run.objective.has_units else 1.0
            moved = np.abs(vectors.T @ step) * np.sqrt(np.maximum(values, 0.0) / self._top)
            hidden |= moved > _CONVERGED * unit
        else:
            (_, _, before), (_, g, std) = self._seen
            far = np.abs(vectors.T @ g) > _FAR * math.hypot(before, std)
            if far.any() or self._is_moving():  # then nothing is near what is estimated
                hidden[:] = True
        return values[~hidden], vectors[:, ~hidden], vectors[:, hidden]

    # --- What is released -------------------------------------------------------------------

    def _geometry(self) -> Waiting[tuple[FloatArray, FloatArray, float]]:
        """Return W (d, r), the mean of u u^T as far as it is seen, and the stretch in W."""
        R = self._data.row_bound
        W = yield from self._centred()
        r = W.shape[1]
        B = max(self._C, GEOMETRY * math.sqrt(r))
        for what, bound, unit, mu in (
            (ROWS, R, 1.0, self._mus[_ROWS]),
            (WHITENED, B, self._unit(B), self._mus[_WHITENED]),
        ):
            rows = partial(cut_rows, self._rows_of(W / unit, bound / unit))
            G, std = yield Sum(what, rows, r, bound / unit, mu, outer=True)
            G, std = unit**2 * G, unit**2 * std
            values, vectors = np.linalg.eigh(G / self._n)
            of_noise = FLOOR * std * math.sqrt(2.0 * r) / self._n
            least = max(of_noise, 1e-12 * float(values[-1]), 1e-300)
            # Without noise a direction in which rows do not differ is left as long as it is.
            seen = np.maximum(values, least if std else np.where(values < least, values[-1], 0.0))
            W = W @ (vectors / np.sqrt(seen)) @ vectors.T
            J = (vectors * np.maximum(values / seen, _LEAST_SEEN)) @ vectors.T
        if self._run.plan.budget is None:
            return W, J, 1.0
        # Where no row is as long as C, the noise is less beside rows that are.
        stretch = max(self._C / (R * float(np.linalg.norm(W, 2))), 1.0)
        return stretch * W, stretch**2 * J, stretch

    def _centred(self) -> Waiting[FloatArray]:
        """Return W, with which W^T x are features less their released means, that may differ."""
        C = np.eye(self._data.d)
        if self._data.intercept:
            total = yield from self._sum_rows()
            C[-1, :-1] = -total[:-1] / max(float(total[-1]), 0.5 * self._n)
        of_public = np.linalg.solve(C, public_combinations(self._data))
        found: FloatArray = C @ scipy.linalg.null_space(of_public.T)
        return found

    def _sum_rows(self) -> Waiting[FloatArray]:
        bound, mu = self._data.row_bound, self._mus[_MEANS]
        total, _ = yield Sum(MEANS, own_rows, self._data.d, bound, mu)
        return total

    def _limit_residuals(self, w: FloatArray, *, last: bool) -> Waiting[None]:
        """Bound scores by a few released standard deviations of residuals, or by Huber's delta."""
        mu, delta = self._mus[OF_RESIDUALS], getattr(self._loss, "delta", math.inf)
        if last and delta < math.inf:
            self._k = self._limit = delta
        elif mu is not None:
            r = partial(residual_vectors, self._margins_at(w), self._target)
            total, std = yield Sum(RESIDUALS, r, 1, 0.5, mu)
            mean = min(max(0.5 + (float(total[0]) + std) / self._n, 1e-6), 1.0)
            times = DEVIATIONS
            if delta == math.inf:
                usual = self._stretch * math.sqrt(self.W.shape[1])
                times = min(times, DEVIATIONS_OF_USUAL * usual / self._C)
            k = min(times * math.sqrt(mean), 1.0) * self._target
            self._k = self._limit = max(k, delta) if delta < math.inf else k

    def _rows_of(self, W: FloatArray, bound: float) -> Rows:
        return Rows(W, bound, self._threads)

    def _curvatures(self, scores: OfBlock, mu: float | None) -> Sum:
        rows = partial(curvature_rows, self._rows, scores, self._top)
        return self._outer(CURVATURES, rows, mu)

    def _vectors(self, scores: OfBlock) -> RecordRows:
        return partial(score_vectors, self._rows, scores, self._k)

    def _squares(self, theta: FloatArray) -> tuple[RecordRows, float]:
        """Return rows whose outer products are squared scores, and what these are over."""
        return partial(square_rows, self._rows, self._scores(self.W @ theta), self._k), self._k

    def _known_noise(self, theta: FloatArray) -> FloatArray:
        """Return the variance of the noise in `_known`."""
        return np.zeros((len(theta), len(theta)))

    def _squares_of_model(self, J: FloatArray) -> FloatArray:
        """Return what squared scores are a multiple of where they do not depend on rows."""
        return J

    def _outer(self, what: str, rows: RecordRows, mu: float | None) -> Sum:
        return Sum(what, rows, self.W.shape[1], self._bound, mu, outer=True)

    def _scores(self, w: FloatArray) -> OfBlock:
        of_score = isinstance(self._loss, Squared) and self._limit < math.inf
        slack = self._slack if of_score else None
        return Scores(self._margins_at(w), self._loss, self._limit, slack)

    def _margins_at(self, w: FloatArray) -> Margins:
        """Return the margins at w, which residuals and scores at one model share."""
        if not np.array_equal(w, self._margins.w):
            self._margins = Margins(w, self._threads)
        return self._margins


def labels_of_normal(
    probability: Callable[[FloatArray], FloatArray], rate: float, slope: float, part: float = 1.0
) -> tuple[float, float]:
    """Return a and part s with E p(a + part s Z) = rate, Z normal, of s with the slope E Z p.

    s is at most `_SPREAD`: from a model that is too steep Newton's method would diverge.
    """
    Z, spreads = np.linspace(-8.0, 8.0, 65), np.linspace(0.0, _SPREAD, 13)
    density = np.exp(-0.5 * Z * Z)
    density /= density.sum()
    low, high = np.full(len(spreads), -100.0), np.full(len(spreads), 100.0)
    for _ in range(60):
        levels = 0.5 * (low + high)
        risks = probability(levels[:, np.newaxis] + spreads[:, np.newaxis] * Z)
        above = risks @ density > rate
        low, high = np.where(above, low, levels), np.where(above, levels, high)
    s = part * float(np.interp(slope, risks @ (density * Z), spreads))
    return float(np.interp(s, spreads, levels)), s


def divided(
    mu: float | None, loss: Loss | Oracle, *, intercept: bool, steps: int
) -> tuple[list[float | None], list[float | None], list[float | None]]:
    """Divide mu over what is released once, and over curvatures and scores of the steps."""
    shares = [*_SHARES[:-2], *_parts(_CURVATURES, steps - 1, _SHARES[-2])]
    shares += _parts(_SCORES, steps, _SHARES[-1])
    counts = [1] * len(shares)
    counts[_MEANS], counts[OF_RESIDUALS] = int(intercept), 2 if isinstance(loss, Squared) else 1
    if isinstance(loss, BinaryLikelihood):
        counts[OF_RESIDUALS] = 0
    mus: list[float | None] = [None] * len(shares)
    if mu is not None:
        used = [i for i, count in enumerate(counts) if count]
        each = split_budget(mu, [shares[i] for i in used], [counts[i] for i in used])
        for i, part in zip(used, each, strict=True):
            mus[i] = part
    return mus[: 1 - 2 * steps], [None, *mus[1 - 2 * steps : -steps]], mus[-steps:]


def _parts(last: tuple[float, float], steps: int, share: float) -> list[float]:
    """Return the shares of so many steps, of which the last two are stated."""
    rest = (1.0 - sum(last)) / max(steps - 2, 1)
    parts = [*[rest] * (steps - 2), *last][-steps:]
    return [share * part / sum(parts) for part in parts]


def _mean(matrices: list[tuple[FloatArray, float]]) -> tuple[FloatArray, float]:
    """Return the mean by precision of noisy matrices, and the std of its noise."""
    if any(std == 0.0 for _, std in matrices):
        return matrices[-1]
    total = sum(1.0 / std**2 for _, std in matrices)
    mean = sum((matrix / std**2 for matrix, std in matrices), np.zeros(matrices[0][0].shape))
    return mean / total, 1.0 / math.sqrt(total)


def _inverse(J: FloatArray, least: float) -> FloatArray:
    values, vectors = np.linalg.eigh(J)
    inverse: FloatArray = (vectors / np.maximum(values, least)) @ vectors.T
    return inverse


def norm_of_noise(std: float, directions: int) -> float:
    """Return what eigenvalues of symmetric noise in so many directions hardly exceed."""
    return std * max(_FLOOR_OF_J * math.sqrt(2.0 * directions), _LEAST_FLOOR)


def least_known(values: FloatArray, std: float) -> float:
    """Return what noise in the directions of the eigenvalues below it hardly exceeds.

    Larger eigenvalues only draw those down.
    """
    k = len(values)
    while (below := int(np.sum(values < norm_of_noise(std, k)))) < k:
        k = below
    return norm_of_noise(std, k)


def are_hidden(values: FloatArray, least: float) -> NDArray[np.bool_]:
    """Return which directions of these eigenvalues are unknown: below `least`, or twice that.

    Where more than a third are, theta is far from what is estimated in many directions, and what is
    seen of the others is seen elsewhere.
    """
    hidden = values < least
    return values < _OF_FEW * least if 3 * np.sum(hidden) > len(values) else hidden


def likeliest(values: FloatArray, least: float, std: float) -> FloatArray:
    """Return the eigenvalues under which these are likeliest, of those above `least`.

    Of a normal variable with this std that is seen only above `least`: those that noise has lifted
    over it are found too large. With c stds above it, m + phi(m) / Phi(m) = c for the mean's m.
    """
    if std == 0.0:
        return values
    m = np.linspace(-6.0, 6.0, 2401)
    above = m + np.exp(-0.5 * m * m) / (math.sqrt(2.0 * math.pi) * scipy.special.ndtr(m))
    c = (values - least) / std
    found = np.where(c > above[-1], values, least + std * np.interp(c, above, m))
    return np.maximum(found, _LEAST_LEFT * least)


def _shrunk(Q: FloatArray, std: float, J: FloatArray) -> FloatArray:
    """Return the positive part of Q, and the more of a multiple of J the more of Q is noise.

    Q is a multiple of J where squared scores do not depend on the rows.
    """
    r, values = len(Q), np.linalg.eigvalsh(Q)
    mean = max(float(values.mean()), std / math.sqrt(r), 1e-300)
    share = min((std * math.sqrt(2.0 * r) / mean) ** 2, 1.0)
    # Noise may take all of the trace, and leave one direction that is known.
    trace = max(float(np.trace(J)), float(np.linalg.eigvalsh(J)[-1]), 1e-300)
    return (1.0 - share) * _positive_part(Q) + share * mean * r / trace * _positive_part(J)


def _positive_part(Q: FloatArray) -> FloatArray:
    values, vectors = np.linalg.eigh(Q)
    part: FloatArray = (vectors * np.maximum(values, 0.0)) @ vectors.T
    return part


def _squared_noise(A: FloatArray, std: float) -> FloatArray:
    """Return the mean of E A E for symmetric noise E of this std on its diagonal (GOE)."""
    mean: FloatArray = 0.5 * std**2 * (np.trace(A) * np.eye(len(A)) + A)
    return mean


def _combined(
    seen: list[tuple[FloatArray, FloatArray, float]], inverse: FloatArray
) -> tuple[FloatArray, float]:
    """Return the mean of the last Newton steps' ends, and s^2."""
    ends = [theta - inverse @ g for theta, g, _ in seen]
    stds = [std for _, _, std in seen]
    if stds[-1] == 0.0 or len(stds) == 1:
        return ends[-1], stds[-1] ** 2
    weights = np.array([1.0 / std**2 for std in stds])
    weights /= weights.sum()
    variance = float(np.sum((weights * stds) ** 2))
    return weights[0] * ends[0] + weights[1] * ends[1], variance
