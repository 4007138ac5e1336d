"""Recalibration: a line from a released model's margins to log odds, or a temperature.

A small clip norm makes a robust loss, whose scores rank well and have the wrong scale. With the
released model w and its intercept c, a margin z_i = x_i . w is a function of one record and of
released numbers, and so is every vector below, of norm at most C by itself: nothing is clipped. A
share of mu^2 that public numbers fix releases, by the Gaussian mechanism on exact sums with
sensitivity 2 C, or C where a record is added or removed,

    sum_i ( min(|z_i - c| / (|w| R), 1)^(1/2) - 1/2 )                                     C = 0.5
    sum_i ( t_i, t_i u_i, 0.7 u_i^2, 0.7 u_i )    t_i = y_i / 2 in {-1/2, 1/2},           C = 1.22
    sum_i (p_i - (y_i + 1) / 2) (u_i, 1) / sqrt(2)    p_i = sigmoid(a u_i + b), 3 times,  C = 1
    sum_i (p_i - (y_i + 1) / 2)                       at the last line,                   C = 1

The first says the scale of margins: s = 3 m^2 |w| R, m the mean of the square roots, and then
u_i = clamp((z_i - c) / s, -1, 1). The second gives a line by a linear discriminant, which three
steps of Fisher's scoring improve, with the information of u as a normal variable; the last makes
the mean risk that of the records. All else is post-processing (docs/proofs/recalibration.md).
Targets have no such line: steps for them are not cut short, and a line only adds noise.

Scores z of several classes are divided by a temperature (Guo et al., "On calibration of modern
neural networks", ICML 2017), which changes no label. With p = softmax(z / temperature), and the
half-range (max z - min z) / 2 in place of |z_i - c|, of which 1.4 m^2 times its bound is s,

    sum_i ( clamp((E_p z - z_y) / s, -1, 1), 2 min(Var_p(z) / s^2, 1/4) - 1/4 )    twice, C = 1.04

is the derivative of the log loss by 1 / temperature, clipped, and the information of it. Two
classes, whose scores are -z / 2 and z / 2, have a temperature where records are too few for a line.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from dpkern import kernels
from dpkern._typing import FloatArray
from dpkern.kernels.glm import loss_derivatives
from dpkern.models.losses import Loss
from dpkern.models.networks import MLP
from dpkern.models.penalties import Constraint
from dpkern.privacy import Budget, split_budget
from dpkern.privacy.mechanisms.gaussian_sum import GaussianSum
from dpkern.privacy.sampling.amplification import AMPLIFIES
from dpkern.privacy.sensitivity.grids import total_on_grid
from dpkern.solvers.base.backends import interruptible
from dpkern.solvers.base.objective import Objective
from dpkern.solvers.base.persons import PersonBound

if TYPE_CHECKING:  # which import this module
    from dpkern.solvers.base.declaration import Declaration
    from dpkern.solvers.base.run import Run

Vectors = Callable[[slice], FloatArray]

# Share of mu^2 for a line: so many over n mu, within these bounds; none below the last, where
# labels would suffer. There a temperature, which changes none, has so many over n mu, down to the
# last of its own.
_SHARE, _LEAST_SHARE, _MOST_SHARE, _SMALL = 180.0, 0.03, 0.2, 400.0
_SHARE_2, _SMALL_2 = 24.0, 150.0
# Shares of the recalibration's mu^2: sizes, moments, each of so many scores, and the last sum.
_SHARES, _STEPS = (0.4, 2.0, 0.7, 3.0), 3
# The factor of u^2 and u among the moments, and their clip norm, at least the norm of a record's.
_GAMMA, _MOMENTS_CLIP = 0.7, 1.22
# Margins are cut to so many times their typical size, at least to this part of |w| R.
_SPREAD, _LEAST_SCALE = 3.0, 0.01
# What is likely before anything is seen: that margins are too large by this factor, with which
# relative error, and offsets.
_TOO_STEEP, _PRIOR_ERROR, _PRIOR_OFFSET = 2.0, 0.5, 0.7
# The least slope: the order of scores never flips; and the largest std of log odds.
_LEAST_SLOPE, _LARGEST_SPREAD = 0.1, 3.0
# A slope of fewer standard errors is told.
_FEW_ERRORS = 1.25
# Beyond these, slopes and rates say no more, and their squares and quotients are no numbers.
_STEEPEST, _LEAST_RATE, _LARGEST_OFFSET = 1e6, 1e-7, 40.0
# Of a temperature: so many over n mu is its share of mu^2, and at least the next; none below the
# last. Shares of that for sizes and each of so many scores; their clip norm, and where they are
# cut, over the typical half-range; the error that is likely beforehand of log(1 / temperature),
# and its largest step.
_SHARE_T, _LEAST_SHARE_T, _SMALL_T = 45.0, 0.01, 300.0
_SHARES_T, _STEPS_T = (0.2, 1.0), 2
_SCORES_CLIP, _RANGE_T = 1.04, 1.4
_PRIOR_ERROR_T, _LARGEST_STEP = 0.5, 1.0
# Numbers that are in memory together for each of a few arrays.
_NUMBERS = 1 << 20
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(21)
_WEIGHTS /= _WEIGHTS.sum()

SIZES = "recalibration: sum of sizes of margins"
MOMENTS = "recalibration: sum of moments of margins and labels"
SCORES = "recalibration: sum of scores of the line"
RESIDUALS = "recalibration: sum of risks less labels"
TEMPERATURE = "recalibration: sum of scores and information of the temperature"

NO_SLOPE = (
    "little learnt, as far as the releases tell: labels depend on the model's scores by a slope of "
    "{:.2g} with a standard error of {:.2g}; take more records, fewer columns or a larger budget"
)


@dataclass(frozen=True)
class Calibration:
    """The line slope u + offset of log odds, u = clamp((margin - centre) / unit, -1, 1).

    Attributes
    ----------
    slope, offset : float
    centre : float
        c, the model's intercept.
    unit : float
        s, by which margins less the centre are divided.
    slope_error : float
        Standard error of the slope, by the noise, to first order, and by the labels of n records
        that d numbers were fitted to; infinite where no slope is seen.
    """

    slope: float
    offset: float
    centre: float
    unit: float
    slope_error: float

    name: ClassVar[str] = "log odds"

    @property
    def factor(self) -> float:
        """By how much log odds grow with a margin that is not cut."""
        return self.slope / self.unit

    def uncut(self, margins: FloatArray) -> FloatArray:
        """Return log odds for margins as if none were cut."""
        return self.factor * (margins - self.centre) + self.offset

    def apply(self, margins: FloatArray) -> FloatArray:
        """Return log odds for margins of any shape."""
        u = np.clip((margins - self.centre) / self.unit, -1.0, 1.0)
        return self.slope * u + self.offset

    def __str__(self) -> str:
        return (
            f"{self.slope:.4g} u {self.offset:+.4g}, u = (margin {-self.centre:+.4g}) / "
            f"{self.unit:.4g} within 1 "
            f"(standard error of the slope {self.slope_error:.2g})"
        )

    @property
    def finding(self) -> str:
        """What the slope says against the model, or nothing."""
        return _finding(self.slope, self.slope_error)


@dataclass(frozen=True)
class Temperature:
    """The temperature by which scores are divided: they are logits then.

    Attributes
    ----------
    temperature : float
    slope_error : float
        Standard error of 1 / temperature, as of the slope of a `Calibration`.
    """

    temperature: float
    slope_error: float

    name: ClassVar[str] = "logits"

    @property
    def factor(self) -> float:
        """By how much logits grow with a score."""
        return 1.0 / self.temperature

    def apply(self, scores: FloatArray) -> FloatArray:
        """Return logits for scores of any shape."""
        return self.factor * scores

    uncut = apply

    def __str__(self) -> str:
        return (
            f"score / {self.temperature:.4g} "
            f"(standard error of 1 / temperature {self.slope_error:.2g})"
        )

    @property
    def finding(self) -> str:
        """What the temperature says against the model, or nothing."""
        return _finding(self.factor, self.slope_error)


def stored_calibration(values: Mapping[str, float]) -> Calibration | Temperature:
    """Return a calibration from its fields in a file."""
    return Temperature(**values) if "temperature" in values else Calibration(**values)


def _finding(slope: float, error: float) -> str:
    return "" if slope >= _FEW_ERRORS * error else NO_SLOPE.format(slope, error)


class Share(NamedTuple):
    """The share of mu^2 for a recalibration, 0 where there is none, and whether it is a line."""

    value: float
    line: bool = False

    @classmethod
    def of_labels(cls, power: float, dim: int, *, several: bool) -> "Share":
        """Return it by n mu and the number of coefficients, of all of several classes."""
        if several:
            enough = power >= max(_SMALL_T, dim)
            return cls(max(_SHARE_T / power, _LEAST_SHARE_T) if enough else 0.0)
        if power >= _SMALL:
            return cls(min(max(_SHARE / power, _LEAST_SHARE), _MOST_SHARE), line=True)
        return cls(_SHARE_2 / power if power >= _SMALL_2 else 0.0)


def recalibration_share(
    declaration: "Declaration",
    objective: Objective,
    budget: Budget | None,
    persons: PersonBound | None,
    given: Mapping[str, Any],
) -> Share:
    """Return the share of mu^2 for a recalibration.

    There is one where predictions are probabilities, settings follow from the budget, and the
    guarantee of all releases is Gaussian DP, for a record or for groups of them.
    """
    data, loss = objective.data, objective.loss
    binary = data.task == "classification" and isinstance(loss, Loss) and loss.name == "logistic"
    several = isinstance(loss, MLP) and loss.loss == "softmax" and not loss.hidden
    labels = binary or several
    if (
        not (given["recalibrate"] and given["clip"] == "auto" and labels and declaration.gaussian)
        or declaration.estimates
        or budget is None
        or not math.isfinite(data.row_bound)
        or given["calibration"] == "paper"
        or given["trust"] not in ("central", "silo")
        or (persons is not None and persons.clip is not None)
        or given.get("sampling") == AMPLIFIES[given["neighbours"]]
        or given["monitor"] is not None
        or isinstance(objective.other, Constraint)
    ):
        return Share(0.0)
    power = power_of_run(objective.n, data.m, given["trust"], budget.mu)
    return Share.of_labels(power, objective.dim, several=several)


def power_of_run(n: int, m: int, trust: str, mu: float) -> float:
    """Return n mu, or what it is under silo trust, where every silo adds noise."""
    return n * mu / math.sqrt(m if trust == "silo" else 1)


def recalibrate(run: "Run", w: FloatArray) -> Calibration | Temperature | None:
    """Release the line of a model's margins, or the temperature of its scores.

    None where the run has neither, or the model is none.
    """
    plan, objective, mu = run.plan, run.objective, run.plan.recalibration_mu
    if mu is None or plan.budget is None or not np.isfinite(w).all():
        return None
    data, loss = objective.data, objective.loss
    here = slice(0, data.offsets[-1])  # the records that are here

    def margins(v: FloatArray) -> FloatArray:
        return interruptible(kernels.glm_margins, data, v, n_threads=objective.n_threads)[here]

    if isinstance(loss, MLP):
        (W,) = loss.matrices(w, data.n_features)
        with run.clock("kernels"):
            z = np.array([margins(row[:-1].copy()) for row in W])
        z += W[:, -1:]
        largest = float(np.linalg.norm(W - W.mean(axis=0), axis=1).max())
        largest *= math.hypot(data.row_bound, 1.0)
    else:
        largest = float(np.linalg.norm(w)) * data.row_bound
        with run.clock("kernels"):
            z = margins(w)
        if not plan.recalibration_line:
            z, largest = np.array([-0.5 * z, 0.5 * z]), 0.5 * largest
    if not 0.0 < largest < math.inf:
        largest = 1.0
    with np.errstate(all="ignore"):  # an error or a warning would depend on the records
        if not plan.recalibration_line:
            several = isinstance(loss, MLP)
            scale = _Scores(run, z, largest, mu).scale(1.0 if several else 1.0 / _TOO_STEEP)
            # Of so few records of two classes the noise hides what labels agree with by chance.
            chance = math.sqrt(len(w)) if several else 1.0
            error = math.hypot(scale.slope_error, chance * scale.sampling_error)
            return Temperature(1.0 / scale.slope, error)
        centre = float(w[-1]) if data.intercept else 0.0
        line = _Line(run, z, centre, largest, mu)
        fitted = line.log_odds()
    # A model of d numbers agrees by chance with the labels that it was fitted to.
    error = math.hypot(fitted.slope_error, math.sqrt(len(w)) * fitted.sampling_error)
    return Calibration(fitted.slope, fitted.offset, centre, line.unit, error)


class _Releases:
    """What the releases of a recalibration share."""

    def __init__(self, run: "Run", mu: float) -> None:
        self._run, self._mu = run, mu
        self._n, self._y = float(run.objective.n), run.objective.data.y

    def _root(self, mu: float, sizes: FloatArray) -> float:
        """Return the noisy mean square root of sizes, each cut to 1."""

        def vectors(rows: slice) -> FloatArray:
            return (np.sqrt(np.minimum(sizes[rows], 1.0)) - 0.5)[:, np.newaxis]

        (total,), _ = self._release(SIZES, 0.5, mu, vectors, 1)
        return 0.5 + _within(float(total) / self._n, 0.5)

    def _release(
        self, what: str, clip: float, mu: float, vectors: Vectors, dim: int
    ) -> tuple[FloatArray, float]:
        """Return the noisy sum of a vector of each record, and the std of its noise."""
        run, objective = self._run, self._run.objective
        per_silo = run.plan.trust == "silo"
        mechanism = GaussianSum(
            run.channel(),
            what=what,
            clip=clip,
            dim=dim,
            sizes=tuple(objective.sizes.tolist()) if per_silo else (objective.n,),
            mu=mu,
        )
        assert mechanism.grid is not None
        with run.clock("kernels"):
            sums = mechanism.sums(vectors, objective.data.offsets.tolist(), objective.n_threads)
        if not per_silo and run.plan.shares is None:
            sums = total_on_grid(sums, float(mechanism.grid[0]))
        with run.clock("noise"):
            released = mechanism.release(sums)
        total = released.sum(axis=0) if per_silo else released
        return total.ravel(), float(np.linalg.norm(mechanism.sigma))


class _Line(_Releases):
    """The releases of one line."""

    def __init__(
        self, run: "Run", margins: FloatArray, centre: float, largest: float, mu: float
    ) -> None:
        super().__init__(run, mu)
        self._u, self._centre, self.unit = margins - centre, centre, largest

    def log_odds(self) -> "_Discriminant":
        """Return the line of the log odds of labels; only once."""
        mu_u, mu_m, mu_s, mu_r = split_budget(self._mu, _SHARES, (1, 1, _STEPS, 1))
        root = self._root(mu_u, np.abs(self._u) / self.unit)
        self.unit *= min(max(_SPREAD * root**2, _LEAST_SCALE), 1.0)
        self._u = np.clip(self._u / self.unit, -1.0, 1.0)
        moments, std = self._moments(mu_m)
        prior = self.unit / _TOO_STEEP, self._centre / _TOO_STEEP
        guess = _Discriminant(self._n, moments, std, *prior)
        for _ in range(_STEPS):
            gradient, std = self._scores(guess, mu_s)
            guess.improve(gradient, std)
        (residual,), std = self._residuals(guess, mu_r)
        guess.move(residual, std)
        return guess

    def _moments(self, mu: float) -> tuple[FloatArray, float]:
        """Return noisy sums of t, t u, u^2 and u, and the std of the first two."""

        def vectors(rows: slice) -> FloatArray:
            u, t = self._u[rows], 0.5 * self._y[rows]
            return np.column_stack([t, t * u, _GAMMA * (u * u), _GAMMA * u])

        moments, std = self._release(MOMENTS, _MOMENTS_CLIP, mu, vectors, 4)
        return moments / (1.0, 1.0, _GAMMA, _GAMMA), std

    def _scores(self, line: "_Discriminant", mu: float) -> tuple[FloatArray, float]:
        def vectors(rows: slice) -> FloatArray:
            s = self._derivatives(line, rows) * math.sqrt(0.5)
            return np.column_stack([s * self._u[rows], s])

        return self._release(SCORES, 1.0, mu, vectors, 2)

    def _residuals(self, line: "_Discriminant", mu: float) -> tuple[FloatArray, float]:
        def vectors(rows: slice) -> FloatArray:
            return self._derivatives(line, rows)[:, np.newaxis]

        return self._release(RESIDUALS, 1.0, mu, vectors, 1)

    def _derivatives(self, line: "_Discriminant", rows: slice) -> FloatArray:
        z = line.slope * self._u[rows] + line.offset
        return loss_derivatives(self._y[rows], z, loss="logistic")


class _Scores(_Releases):
    """The releases of one temperature, of scores z, shape (K, n)."""

    def __init__(self, run: "Run", z: FloatArray, largest: float, mu: float) -> None:
        super().__init__(run, mu)
        self._z, self.unit = z, largest
        self._label = np.maximum(self._y[: z.shape[1]], 0.0).astype(np.intp)

    def scale(self, slope: float) -> "_Scale":
        """Return the factor of the scores, which is likely to be `slope` beforehand; only once."""
        mu_u, mu_s = split_budget(self._mu, _SHARES_T, (1, _STEPS_T))
        half_ranges = 0.5 * (self._z.max(axis=0) - self._z.min(axis=0))
        root = self._root(mu_u, half_ranges / self.unit)
        self.unit *= _RANGE_T * max(root**2, _LEAST_SCALE)
        scale = _Scale(self._n, self.unit, slope)
        for _ in range(_STEPS_T):
            (score, information), std = self._scores(scale.slope, mu_s)
            scale.improve(score, information, std)
        return scale

    def _scores(self, slope: float, mu: float) -> tuple[FloatArray, float]:
        def vectors(rows: slice) -> FloatArray:
            step = max(1, _NUMBERS // len(self._z))
            parts = range(rows.start, rows.stop, step)
            return np.vstack([self._vectors(slope, i, min(i + step, rows.stop)) for i in parts])

        return self._release(TEMPERATURE, _SCORES_CLIP, mu, vectors, 2)

    def _vectors(self, slope: float, first: int, end: int) -> FloatArray:
        """Return the vectors of records, each by operations on its own numbers alone.

        Sums over classes are taken one after another, and exponentials are by the kernel: how NumPy
        computes either may depend on the number of records.
        """
        z = self._z[:, first:end]
        z = z - z.max(axis=0)
        odds = [_exponential(slope * row) for row in z]
        total = sum(odds)
        p = [row / total for row in odds]
        mean = sum(p_k * z_k for p_k, z_k in zip(p, z, strict=True))
        square = sum(p_k * (z_k - mean) ** 2 for p_k, z_k in zip(p, z, strict=True))
        of_label = np.take_along_axis(z, self._label[np.newaxis, first:end], axis=0)[0]
        score = np.clip((mean - of_label) / self.unit, -1.0, 1.0)
        information = np.minimum(square / self.unit / self.unit, 0.25)
        return np.column_stack([score, 2.0 * information - 0.25])


def _exponential(t: FloatArray) -> FloatArray:
    """Return exp(t) for t <= 0, as the odds of the logistic function."""
    labels = np.ones(len(t))
    p = loss_derivatives(-labels, t, loss="logistic")
    return p / -loss_derivatives(labels, t, loss="logistic")


class _Scale:
    """The factor of scores by released sums alone, its logarithm by a Kalman filter."""

    def __init__(self, n: float, unit: float, slope: float) -> None:
        self.slope = slope
        self._n, self._unit = n, min(max(unit, 1e-100), 1e100)
        self._variance, self._information = _PRIOR_ERROR_T**2, 0.0
        # What is seen without a prior: the precision of slope times unit, and its product with it.
        self._precision, self._seen = 0.0, 0.0

    @property
    def slope_error(self) -> float:
        """Return the slope over how many errors it is from 0, by all sums and no prior."""
        seen = self._seen
        return self.slope * math.sqrt(self._precision) / seen if seen > 0.0 else math.inf

    @property
    def sampling_error(self) -> float:
        """Return the standard error of the slope by the labels of n records.

        By the most information that was seen: confident risks have little on a slope that is clear.
        """
        return 1.0 / (self._unit * math.sqrt(self._information))

    def improve(self, score: float, information: float, std: float) -> None:
        """Take sums of scores and of 2 v - 1/4, v the information in units, into account."""
        n, a = self._n, self.slope * self._unit
        std = max(std, _LEAST_RATE * n)
        score = _within(score, n)
        seen = 0.5 * (_within(information, n) + 0.25 * n)
        # No less than noise may hide.
        h = min(math.hypot(max(seen, 0.0), 0.5 * std), 0.25 * n)
        self._information = max(self._information, h)
        self._precision += (h / std) ** 2
        self._seen += h / std * ((a * h - score) / std)
        # The score is a h^2 times the error of the logarithm, with the noise and that of n labels.
        known, unknown = a * h * h * self._variance, (std**2 + h) / a
        change = _within(self._variance * h * score / (known + unknown), _LARGEST_STEP)
        self._variance *= unknown / (known + unknown)
        # A step shows how far the factor was, and by that how good a linear measurement was.
        self._variance += 0.25 * change**2
        self.slope *= math.exp(-change)


class _Discriminant:
    """A line of log odds by released sums alone: a first guess, and its improvements.

    u is taken as normal of its released mean and variance, for the information of the line.
    """

    def __init__(
        self, n: float, moments: FloatArray, std: float, prior: float, offset: float = 0.0
    ) -> None:
        offset = _within(offset, _LARGEST_OFFSET)
        prior = min(max(prior, _LEAST_SLOPE), _STEEPEST)
        st, stu, suu, su = np.clip(moments, -n, n).tolist()  # at most those of n records
        noise = std / (_GAMMA * n)
        # The rate of positives, no nearer to 0 and 1 than the noise.
        rate = 0.5 + _within(st / n, 0.5 - min(max(std / n, _LEAST_RATE), 0.25))
        mean = _within(su / n, 1.0)
        seen = max(suu / n - mean * mean, 0.0)
        # No less than noise may hide.
        variance = min(max(math.sqrt(seen**2 + 4.0 * noise**2), 4e-3), 0.6)
        spread = rate * (1.0 - rate)
        product = stu / n - (rate - 0.5) * mean  # of labels and u, less that of their means
        between = _within(product / spread, 2.0)
        of_product = std / n * math.sqrt(1.0 + mean**2 + ((rate - 0.5) / _GAMMA) ** 2)
        within = max(variance - spread * between**2, 0.4 * variance)
        self._n, self._nodes = n, np.clip(mean + math.sqrt(variance) * _NODES, -1.0, 1.0)
        self._most = max(_LARGEST_SPREAD / math.sqrt(variance), prior)
        slope = min(max(between / within, _LEAST_SLOPE), self._most)
        error = (std / (n * max(abs(product), std / n))) ** 2 + (noise / variance) ** 2 + 0.3
        self.slope, P_a = _together(slope, slope**2 * error, prior, (_PRIOR_ERROR * prior) ** 2)
        self.offset = math.log(rate / (1.0 - rate)) - self.slope * mean
        for _ in range(50):  # until the mean risk is the rate
            p, weight = self._risks()
            change = float(_WEIGHTS @ p - rate) / max(float(weight.sum()), 1e-4)
            self.offset -= _within(change, 1.0)
        of_rate = (std / (n * spread)) ** 2 + P_a * mean**2 + 1.0
        prior_error = _PRIOR_OFFSET**2 + (_PRIOR_ERROR * offset) ** 2
        self.offset, P_b = _together(self.offset, of_rate, offset, prior_error)
        self._covariance = np.diag([P_a, P_b])
        # What is seen without a prior: the precision of the line, and its product with the line.
        known = (spread * within / of_product) ** 2
        self._precision = np.diag([known, 1e-6])
        self._seen = np.array([known * between / within, 0.0])

    def _risks(self) -> tuple[FloatArray, FloatArray]:
        """Return p at the nodes, and the weights of their information on log odds."""
        z = self.slope * self._nodes + self.offset
        p = np.exp(-np.logaddexp(0.0, -z))
        return p, _WEIGHTS * p * (1.0 - p)

    def _information(self) -> FloatArray:
        """Return n times the expected (u, 1) (u, 1)^T p (1 - p)."""
        rows = np.column_stack([self._nodes, np.ones_like(self._nodes)])
        return self._n * (rows.T * self._risks()[1]) @ rows + 1e-4 * self._n * np.eye(2)

    @property
    def slope_error(self) -> float:
        """Return the slope over how many errors it is from 0, by all sums and no prior."""
        (a, b), (_, c) = self._precision.tolist()
        left = max(a - b * b / c, 0.0)  # the precision of the slope, the offset unknown
        evidence = float(self._seen[0]) - b / c * float(self._seen[1])
        return self.slope * math.sqrt(left) / evidence if evidence > 0.0 < left else math.inf

    @property
    def sampling_error(self) -> float:
        """Return the standard error of the slope by the labels of n records."""
        (a, b), (_, c) = self._information().tolist()
        return 1.0 / math.sqrt(a - b * b / c)

    def improve(self, gradient: FloatArray, std: float) -> None:
        """Take the scores (u, 1) (p - y) / sqrt(2), with noise, into account."""
        self._update(math.sqrt(0.5) * self._information(), gradient, std)

    def move(self, residual: float, std: float) -> None:
        """Take the sum of p - y into account."""
        self._update(self._information()[1:], np.array([residual]), std)

    def _update(self, H: FloatArray, seen: FloatArray, std: float) -> None:
        """Update the line by a linear measurement H (line - true line) + noise (Kalman, 1960)."""
        P, change = self._covariance, np.zeros(2)
        square = max(std, _LEAST_RATE * self._n) ** 2
        seen = np.clip(seen, -self._n, self._n)
        self._precision += H.T @ H / square
        self._seen += H.T @ (H @ [self.slope, self.offset] - seen) / square
        # One number after another, as their noise is independent, and in Joseph's form: no inverse,
        # and a covariance whatever the sums are.
        for h, value in zip(H, seen.tolist(), strict=True):
            gain = P @ h / (h @ P @ h + square)
            change += gain * (value - h @ change)
            rest = np.eye(2) - np.outer(gain, h)
            P = rest @ P @ rest.T + square * np.outer(gain, gain)
        farthest = np.array([1.5 * self._most, 2.0 * _LARGEST_OFFSET])
        change = np.clip(change, -farthest, farthest)
        # A step shows how far the line was, and by that how good a linear measurement was.
        self._covariance = 0.5 * (P + P.T) + 0.25 * np.outer(change, change)
        self.slope = min(max(self.slope - float(change[0]), _LEAST_SLOPE), 1.5 * self._most)
        self.offset = _within(self.offset - float(change[1]), _LARGEST_OFFSET)


def _together(x: float, x_error: float, y: float, y_error: float) -> tuple[float, float]:
    """Return the mean of two numbers, weighted by their precisions, and its variance."""
    total = 1.0 / x_error + 1.0 / y_error
    return (x / x_error + y / y_error) / total, 1.0 / total


def _within(value: float, bound: float) -> float:
    return min(max(value, -bound), bound)
