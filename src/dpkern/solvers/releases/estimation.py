"""Releases of estimates with standard errors, and what follows from them.

`dpkern.solvers.newton_inference` has the algorithm.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from dpkern import kernels
from dpkern._typing import FloatArray
from dpkern.data.transform import one_silo
from dpkern.kernels import Data
from dpkern.kernels._blocks import hessian_steps, rounded_once, totals
from dpkern.kernels.glm import loss_derivatives
from dpkern.kernels.grids import hessian_row_grid
from dpkern.models.losses import Loss, get_loss
from dpkern.models.scale import largest_target
from dpkern.privacy import split_budget
from dpkern.privacy.mechanisms.gaussian_sum import GaussianSum
from dpkern.privacy.mechanisms.hessian import GaussianHessian
from dpkern.solvers.base import Run
from dpkern.solvers.base.backends import awaited, interruptible
from dpkern.solvers.base.inference import Inference, public_combinations
from dpkern.solvers.base.objective import Objective
from dpkern.solvers.base.plan import RunPlan

#: A function of a block that returns a row of each of its records and a factor of it, from this
#: record alone.
RecordRows = Callable[[Data], tuple[FloatArray, FloatArray]]
# Entries of rows that are multiplied together, a cache full.
_ENTRIES = 1 << 17

# Shares of mu^2: means, outer products of rows twice, residuals, squared scores; all curvatures,
# and all scores.
_SHARES = (0.03, 0.05, 0.06, 0.02, 0.04, 0.2, 0.6)
_MEANS, _ROWS, _WHITENED, _RESIDUALS, _SQUARES = range(5)  # their places
# Of curvatures, of which the first step has none, and of scores the parts of the last two steps;
# those before them have equal parts of the rest.
_CURVATURES, _SCORES = (0.2, 0.5), (0.15, 0.7)
# Rows of the second geometry are cut to so many times the square root of the dimension, at least.
GEOMETRY = 1.25
# Residuals of least squares are cut to so many standard deviations, and before that to so many.
_DEVIATIONS, _EARLY_DEVIATIONS = 4.0, 3.0
# Spectral norms of the noise below which an eigenvalue of the geometry counts as that, and the
# share of an eigenvalue of J above which the noise leaves a direction unknown.
FLOOR, _UNKNOWN = 2.0, 1.0 / 3.0
# The least part of an eigenvalue's floor that the first steps take, and the deviations beyond which
# a score at the last step says that the steps before have not come near.
_LEAST_SEEN, _FAR = 0.25, 5.0
# The largest standard deviation of margins at the start of a logistic model.
_SPREAD = 1.5
# And the share of their trace by which curvatures may change at the last step.
_MOVING = 0.1

MEANS = "inference: sum of rows"
ROWS = "inference: sum of outer products of rows"
WHITENED = "inference: sum of outer products of whitened rows"
# How often squared residuals are summed.
RESIDUAL_SUMS = {"logistic": 0, "huber": 1, "squared": 2}
RESIDUALS = "inference: sum of squared residuals"
CURVATURES = "inference: sum of curvatures"
SQUARES = "inference: sum of squared scores"
SCORES = "inference: sum of scores"


def resolve_estimation(plan: RunPlan, objective: Objective) -> RunPlan:
    """Refuse what has no standard errors, by public facts."""
    data, loss = objective.data, objective.loss

    def refuse(name: str, must: str, why: str) -> ValueError:
        return ValueError(f"{name} must be {must} in {plan.solver}: {why}")

    if not isinstance(loss, Loss) or loss.name not in ("logistic", "squared", "huber"):
        name = getattr(loss, "name", loss)
        why = f"standard errors are derived for these, got {name!r}"
        raise refuse("loss", "'logistic', 'squared' or Huber(delta)", why)
    if data.persons is not None:
        why = "records of one person are not independent, which the standard errors take them for"
        raise refuse("data", "without persons", why)
    if data.device is not None:
        raise refuse("data", "in the memory of the CPU", "it has no kernels of a card")
    if plan.arguments["weights"] != "size" and data.m > 1:
        raise refuse("weights", "'size'", "every record counts once")
    if plan.rounds < 4:
        why = "residuals are bounded at the second step, and again before the last two"
        raise refuse("rounds", "at least 4", why)
    if plan.budget is None:
        return plan
    if math.isinf(plan.clip):
        raise refuse("clip", "finite", "it bounds what a record changes")
    if not math.isfinite(data.row_bound):
        raise refuse("data", "with a row_bound", "the noise is for rows of that length")
    if loss.name != "logistic" and not math.isfinite(data.target_bound):
        raise refuse("data", "with a target_bound", "the noise is for targets of that size")
    return plan


class Estimation:
    """The releases of one run, and what follows from them.

    Attributes
    ----------
    W : ndarray, shape (d, r)
        The model w = W theta; W^T x is a whitened row.
    """

    def __init__(self, run: Run, steps: int) -> None:
        self._run, objective = run, run.objective
        self._data, self._n, self._steps = objective.data, float(objective.n), steps
        self._threads, self._loss = objective.n_threads, objective.phi
        self._top, self._target = self._loss.smoothness, largest_target(self._data)
        # k, what residuals are cut to and scores are divided by: at first those of all targets.
        self._k = self._limit = 1.0 if self._loss.name == "logistic" else self._target
        if run.plan.budget is None:
            self._limit = math.inf
        mu = None if run.plan.budget is None else run.plan.budget.mu
        mus = divided(mu, self._loss.name, intercept=self._data.intercept, steps=steps)
        self._mus, self._mu_of_curvatures, self._mu_of_scores = mus
        self._run.draw_no_conclusion()
        self.W, J, self._stretch = self._geometry()
        self._rows = _Rows(self.W, run.plan.clip, self._threads)
        penalty = objective.l2 * self._n * objective.penalized
        self._penalty = (self.W.T * penalty) @ self.W
        self._J, self._std = self._top * self._n * J + self._penalty, 0.0
        self._matrices: list[tuple[FloatArray, float]] = []
        self._seen: list[tuple[FloatArray, FloatArray, float]] = []

    def start(self) -> FloatArray:
        """Return theta of the model 0."""
        return np.zeros(self.W.shape[1])

    def step(self, t: int, theta: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Release scores and curvatures at theta; return the sum of gradients and the direction."""
        run, left = self._run, self._steps - t
        if t == 1 or left == 2:
            self._limit_residuals(self.W @ theta, last=left == 2)
        scores = self._scores(self.W @ theta)
        if t:
            rows = partial(_curvature_rows, self._rows, scores, self._top)
            which = self._mu_of_curvatures[t]
            matrix, std = self._outer(CURVATURES, rows, len(theta), run.plan.clip**2, which)
            self._matrices = [*self._matrices[-1:], (self._top * matrix, self._top * std)]
            J, self._std = _mean(self._matrices)
            self._J = J + self._penalty
        vectors = partial(_score_vectors, self._rows, scores, self._k)
        g, std = self._sum(SCORES, vectors, len(theta), run.plan.clip, self._mu_of_scores[t])
        g = self._k * g + self._penalty @ theta
        self._seen = [*self._seen[-1:], (theta, g, self._k * std)]
        direction = self._inverse() @ g
        if t == 0 and self._loss.name == "logistic" and self._data.intercept:
            direction = -self._of_normal_rows(g, direction, std)
        return g, direction

    def _of_normal_rows(self, g: FloatArray, direction: FloatArray, std: float) -> FloatArray:
        """Return the logistic model that normal rows would have with the score g at 0.

        Newton's steps from 0 would reach the log odds of a rare outcome by 1 or so each.
        """
        r, last = len(g), np.eye(self._data.d)[-1]
        same = np.column_stack([self.W, public_combinations(self._data)])
        constant = np.linalg.lstsq(same, last)[0][:r]  # theta of the margin 1 in every row
        moments = (self._J - self._penalty) / self._top
        weights = max(float(constant @ moments @ constant), 0.5)
        noise = std * float(np.linalg.norm(constant)) / weights
        least = min(max(2.0 * noise, 0.5 / self._n), 0.5)
        rate = min(max(0.5 - float(constant @ g) / weights, least), 1.0 - least)
        slopes = -self._top * direction
        slopes -= float(constant @ moments @ slopes) / weights * constant
        variance = float(slopes @ moments @ slopes) / weights
        seen = math.sqrt(max(variance - (r - 1) * std**2 / (self._n * weights), 0.0))
        level, spread = logistic_of_normal(rate, seen)
        return level * constant + spread / max(math.sqrt(max(variance, 0.0)), 1e-300) * slopes

    def _inverse(self) -> FloatArray:
        """Return the inverse of J, of no eigenvalue that may be noise."""
        least = 0.5 * self._std * math.sqrt(2.0 * len(self._J)) / _UNKNOWN
        return _inverse(self._J, max(least, 1e-12 * self._top * self._n))

    def estimate(self) -> tuple[FloatArray, Inference]:
        """Release squared scores, and return the estimate w with its covariance."""
        run, W, final, s_J = self._run, self.W, self._inverse(), self._std
        theta, share, s2 = _combined(self._seen, final)
        likely = self._loss.name == "logistic"
        top = self._top if likely else self._k**2
        rows = partial(_square_rows, self._rows, self._scores(W @ theta), top, likely)
        Q, s_Q = self._outer(SQUARES, rows, len(theta), run.plan.clip**2, self._mus[_SQUARES])
        known, unknown = self._directions()
        final = known @ (known.T @ final @ known) @ known.T
        # The mean of the inverse of J + E is larger than that of J by J^-1 E J^-1 E J^-1.
        inverse = final - final @ _squared_noise(final, s_J) @ final
        sandwich = inverse @ (top * _shrunk(Q, s_Q, self._J - self._penalty)) @ inverse
        # The noise of J leaves a part of the error before the last step.
        before = sandwich + self._seen[0][2] ** 2 * inverse @ inverse
        noise = s2 * inverse @ inverse
        noise += share**2 * inverse @ _squared_noise(before, s_J) @ inverse
        lost = (self._k / self._stretch) ** 2 * unknown @ unknown.T  # margins may be wrong by k
        total = sandwich + noise + lost
        weighted = run.plan.budget is not None and self._stretch == 1.0  # then rows may exceed C
        return W @ theta, Inference(
            W @ total @ W.T, W @ noise @ W.T, W @ lost @ W.T, weighted=weighted
        )

    def _is_moving(self) -> bool:
        """Whether curvatures changed at the last step, beyond what their noise explains."""
        (before, s), (last, std) = self._matrices
        change, noise = float(np.trace(before - last)), math.hypot(s, std) * math.sqrt(len(last))
        return abs(change) > _MOVING * max(float(np.trace(last)), 0.0) + 2.0 * noise

    def _directions(self) -> tuple[FloatArray, FloatArray]:
        """Return the directions that are known, and those whose curvature may be noise or that have
        not converged, as columns."""
        values, vectors = np.linalg.eigh(self._J)
        hidden = values < self._std * math.sqrt(2.0 * len(values)) / _UNKNOWN
        if self._run.plan.budget is not None:
            (_, _, before), (_, g, std) = self._seen
            far = np.abs(vectors.T @ g) > _FAR * math.hypot(before, std)
            if far.any() or self._is_moving():  # then nothing is near what is estimated
                hidden[:] = True
        return vectors[:, ~hidden], vectors[:, hidden]

    # --- What is released -------------------------------------------------------------------

    def _geometry(self) -> tuple[FloatArray, FloatArray, float]:
        """Return W (d, r), the mean of u u^T as far as it is seen, and the stretch in W."""
        data, run = self._data, self._run
        R = data.row_bound
        centred = self._centred()
        of_public = np.linalg.solve(centred, public_combinations(data))
        W = centred @ scipy.linalg.null_space(of_public.T)
        r = W.shape[1]
        for what, bound, mu in (
            (ROWS, R, self._mus[_ROWS]),
            (WHITENED, max(run.plan.clip, GEOMETRY * math.sqrt(r)), self._mus[_WHITENED]),
        ):
            rows = partial(_cut_rows, _Rows(W, bound, self._threads))
            G, std = self._outer(what, rows, r, bound**2, mu)
            values, vectors = np.linalg.eigh(G / self._n)
            of_noise = FLOOR * std * math.sqrt(2.0 * r) / self._n
            least = max(of_noise, 1e-12 * float(values[-1]), 1e-300)
            seen = np.maximum(values, least)
            W = W @ (vectors / np.sqrt(seen)) @ vectors.T
            J = (vectors * np.maximum(values / seen, _LEAST_SEEN)) @ vectors.T
        if run.plan.budget is None:
            return W, J, 1.0
        # Where no row is as long as C, the noise is less beside rows that are.
        stretch = max(run.plan.clip / (R * float(np.linalg.norm(W, 2))), 1.0)
        return stretch * W, stretch**2 * J, stretch

    def _centred(self) -> FloatArray:
        """Return C, with which C^T x has features less their released means, shape (d, d)."""
        C = np.eye(self._data.d)
        if not self._data.intercept:
            return C
        rows = partial(_cut_rows, _Rows(C, math.inf, self._threads))
        total, _ = self._sum(MEANS, rows, len(C), self._data.row_bound, self._mus[_MEANS])
        C[-1, :-1] = -total[:-1] / max(float(total[-1]), 0.5 * self._n)
        return C

    def _limit_residuals(self, w: FloatArray, *, last: bool) -> None:
        """Cut residuals to a few of their released standard deviations, or to Huber's delta."""
        mu, delta = self._mus[_RESIDUALS], getattr(self._loss, "delta", math.inf)
        if last and delta < math.inf:
            self._k = self._limit = delta
        elif mu is not None:
            r = partial(_residual_vectors, w, self._target, self._threads)
            total, std = self._sum(RESIDUALS, r, 1, 0.5, mu)
            mean = min(max(0.5 + (float(total[0]) + std) / self._n, 1e-6), 1.0)
            times = _DEVIATIONS if last else _EARLY_DEVIATIONS
            k = min(times * math.sqrt(mean), 1.0) * self._target
            self._k = self._limit = max(k, delta) if delta < math.inf else k

    def _outer(
        self, what: str, rows: RecordRows, d: int, bound: float, mu: float | None
    ) -> tuple[FloatArray, float]:
        """Return the noisy sum of outer products of rows, and the std of its diagonal."""
        run = self._run
        B = math.inf if mu is None else bound
        mechanism = GaussianHessian(
            run.channel(), what=what, hess_clip=B, dim=d, sizes=(run.objective.n,), mu=mu
        )
        records = mechanism.records or self._data.n
        q = 0.0 if math.isinf(B) else hessian_row_grid(records, B, d)
        with run.clock("kernels"):
            request = partial(_outer_steps, rows, B, q, records, self._threads)
            (sums,) = totals(self._data, request)
            if q:
                sums = rounded_once(sums, q, np.array([mechanism.grid]))
        with run.clock("noise"):
            return mechanism.release(sums)[0], mechanism.sigma

    def _sum(
        self, what: str, vectors: RecordRows, dim: int, clip: float, mu: float | None
    ) -> tuple[FloatArray, float]:
        """Return the noisy sum of vectors, and the std of its noise."""
        run = self._run
        mechanism = GaussianSum(
            run.channel(),
            what=what,
            clip=math.inf if mu is None else clip,
            dim=dim,
            sizes=(run.objective.n,),
            mu=mu,
        )
        with run.clock("kernels"):
            if mu is None:
                (sums,) = totals(self._data, partial(_plain_sum, vectors))
            else:
                slices = partial(_slices, vectors)
                sums = mechanism.sums_of(self._data, slices, self._threads, together=True)[0]
        with run.clock("noise"):
            return mechanism.release(sums), float(mechanism.sigma[0])

    def _scores(self, w: FloatArray) -> "_Scores":
        return _Scores(w, self._loss, self._limit, self._threads)


# --- Functions of a record and of what was released, for the records of a block -------------------


class _OfBlock:
    """A function of a block, whose result for the last one is kept."""

    def __init__(self, *given: Any) -> None:
        self._given = given
        self._last: tuple[Data, Any] | None = None

    def __call__(self, part: Data) -> tuple[FloatArray, FloatArray]:
        if self._last is None or self._last[0] is not part:
            with np.errstate(all="ignore"):
                self._last = part, self._of(part, *self._given)
        found: tuple[FloatArray, FloatArray] = self._last[1]
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._given

    @staticmethod
    def _of(part: Data, *given: Any) -> tuple[FloatArray, FloatArray]:
        raise NotImplementedError


class _Rows(_OfBlock):
    """The rows W^T x (n, r), each from its record alone, and their weights.

    A product with a matrix would give a row other bits in another place.
    """

    @staticmethod
    def _of(
        part: Data, W: FloatArray, bound: float, n_threads: int | None
    ) -> tuple[FloatArray, FloatArray]:
        columns = np.empty((W.shape[1], part.n))
        square = np.zeros(part.n)
        for k, w in enumerate(W.T):
            columns[k] = _margins(part, np.ascontiguousarray(w), n_threads)
            square += columns[k] * columns[k]
        U = np.ascontiguousarray(columns.T)
        if math.isinf(bound):
            return U, np.ones(len(U))
        return U, np.minimum(1.0, bound**2 / square)


class _Scores(_OfBlock):
    """phi' and phi'' of every record at w, cut to a limit."""

    @staticmethod
    def _of(
        part: Data, w: FloatArray, loss: Loss, limit: float, n_threads: int | None
    ) -> tuple[FloatArray, FloatArray]:
        z, y = _margins(part, w, n_threads), part.y
        if loss.name == "logistic":
            s = loss_derivatives(y, z, loss="logistic")
            return s, np.abs(s) * (1.0 - np.abs(s))
        r = z - y
        within: FloatArray = (np.abs(r) <= limit).astype(np.float64)
        return np.clip(r, -limit, limit), within


def _margins(part: Data, w: FloatArray, n_threads: int | None) -> FloatArray:
    found: FloatArray = interruptible(kernels.glm_margins, part, w, n_threads=n_threads)
    return found


def _cut_rows(rows: _Rows, part: Data) -> tuple[FloatArray, FloatArray]:
    U, f = rows(part)
    return U, np.sqrt(f)


def _curvature_rows(
    rows: _Rows, scores: _Scores, top: float, part: Data
) -> tuple[FloatArray, FloatArray]:
    """Return rows, and the root of curvatures over the largest, which makes none longer."""
    (U, f), (_, q) = rows(part), scores(part)
    return U, np.sqrt(f * q / top)


def _square_rows(
    rows: _Rows, scores: _Scores, top: float, likely: bool, part: Data
) -> tuple[FloatArray, FloatArray]:
    (U, f), (s, q) = rows(part), scores(part)
    return U, f * np.sqrt((q if likely else s**2) / top)


def _score_vectors(
    rows: _Rows, scores: _Scores, k: float, part: Data
) -> tuple[FloatArray, FloatArray]:
    (U, f), (s, _) = rows(part), scores(part)
    return U, f * s / k


def _residual_vectors(
    w: FloatArray, target: float, n_threads: int | None, part: Data
) -> tuple[FloatArray, FloatArray]:
    with np.errstate(all="ignore"):
        z = _margins(part, w, n_threads) - part.y
        r: FloatArray = np.minimum(z * z / target**2, 1.0) - 0.5
    return r[:, np.newaxis], np.ones(len(r))


def _slices(vectors: RecordRows, part: Data) -> Callable[[slice], FloatArray]:
    U, v = vectors(part)
    return lambda s: U[s] * v[s, np.newaxis]


def _plain_sum(vectors: RecordRows, part: Data) -> FloatArray:
    U, v = vectors(part)
    total: FloatArray = (U * v[:, np.newaxis]).sum(axis=0)
    return total


def _outer_steps(
    rows: RecordRows, bound: float, q: float, records: int, n_threads: int | None, part: Data
) -> NDArray[Any]:
    """Return the sum of outer products of the rows of a block, in steps of q^2."""
    (U, v), total = rows(part), np.zeros(())
    if q:  # sums are exact, and in any parts the same
        records = min(records, max(_ENTRIES // U.shape[1], 1))
    how = np.zeros((1, U.shape[1])), get_loss("squared"), False, bound, q, None, records, n_threads
    for i in range(0, len(U), records):
        few = U[i : i + records] * v[i : i + records, np.newaxis]
        total = total + awaited(partial(hessian_steps, *how, one_silo(few)), few.size * len(U[0]))
    return total


def logistic_of_normal(rate: float, slope: float) -> tuple[float, float]:
    """Return a and s with E sigma(a + s Z) = rate and E Z sigma(a + s Z) = slope, Z normal.

    s is at most `_SPREAD`: from a model that is too steep Newton's method would diverge.
    """
    Z, spreads = np.linspace(-8.0, 8.0, 65), np.linspace(0.0, _SPREAD, 13)
    density = np.exp(-0.5 * Z * Z)
    density /= density.sum()
    low, high = np.full(len(spreads), -100.0), np.full(len(spreads), 100.0)
    for _ in range(60):
        levels = 0.5 * (low + high)
        risks = scipy.special.expit(levels[:, np.newaxis] + spreads[:, np.newaxis] * Z)
        above = risks @ density > rate
        low, high = np.where(above, low, levels), np.where(above, levels, high)
    s = float(np.interp(slope, risks @ (density * Z), spreads))
    return float(np.interp(s, spreads, levels)), s


def divided(
    mu: float | None, loss: str, *, intercept: bool, steps: int
) -> tuple[list[float | None], list[float | None], list[float | None]]:
    """Divide mu over what is released once, and over curvatures and scores of the steps."""
    shares = [*_SHARES[:-2], *_parts(_CURVATURES, steps - 1, _SHARES[-2])]
    shares += _parts(_SCORES, steps, _SHARES[-1])
    counts = [1] * len(shares)
    counts[_MEANS], counts[_RESIDUALS] = int(intercept), RESIDUAL_SUMS[loss]
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


def _shrunk(Q: FloatArray, std: float, J: FloatArray) -> FloatArray:
    """Return the positive part of Q, and the more of a multiple of J the more of Q is noise.

    Q is a multiple of J where squared scores do not depend on the rows.
    """
    r, values = len(Q), np.linalg.eigvalsh(Q)
    mean = max(float(values.mean()), std / math.sqrt(r), 1e-300)
    share = min((std * math.sqrt(2.0 * r) / mean) ** 2, 1.0)
    trace = max(float(np.trace(J)), 1e-300)
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
) -> tuple[FloatArray, float, float]:
    """Return the mean of the last Newton steps' ends, the weight of the last, and s^2."""
    ends = [theta - inverse @ g for theta, g, _ in seen]
    stds = [std for _, _, std in seen]
    if stds[-1] == 0.0 or len(stds) == 1:
        return ends[-1], 1.0, stds[-1] ** 2
    weights = np.array([1.0 / std**2 for std in stds])
    weights /= weights.sum()
    variance = float(np.sum((weights * stds) ** 2))
    return weights[0] * ends[0] + weights[1] * ends[1], float(weights[1]), variance
