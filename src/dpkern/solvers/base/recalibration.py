"""Recalibration: a line from a released model's margins to log odds, or a temperature.

A small clip norm makes a robust loss, whose scores rank well and have the wrong scale. With the
released model w, a margin z_i = x_i . w is a function of one record and of released numbers, and so
is every vector below, of norm at most C by itself: nothing is clipped. A share of mu^2 that public
numbers fix releases, by the Gaussian mechanism on exact sums with sensitivity 2 C, or C where a
record is added or removed,

    sum_i ( q_i - 1/2, y_i / 2 )    q_i = sigmoid(z_i / 2)                              C = 0.7072
    sum_i ( min(|z_i - c| / B, 1)^(1/2) - 1/2 )                                         C = 0.5
    sum_i ( clamp(2 (p_i - t_i) u_i, -1, 1), 2 min(4 p_i (1 - p_i) u_i^2, 1/4) - 1/4 )  C = 1.04
    sum_i ( p_i - t_i, p_i (1 - p_i) - 1/8 )                                            C = 1.008

with t_i = (y_i + 1) / 2, u_i = clamp((z_i - c) / s, -1, 1) and p_i = sigmoid(a u_i + b). The first
says the mean risk at half of the margins, whose log odds are c / 2, and the rate, whose log odds
are b: about the middle c, slope and offset hardly depend on each other. The second says the scale
of margins, s = 2.4 m^2 B, m the mean of the square roots with its error, B = |w| R + |c|. The
third, twice, is the derivative of the log loss by the slope a, clipped, and the information of it;
the last makes the mean risk that of the records. All else is post-processing
(docs/proofs/recalibration.md). Targets have no such line: steps for them are not cut short, and a
line only adds noise.

Scores z of several classes are divided by a temperature (Guo et al., "On calibration of modern
neural networks", ICML 2017), which changes no label. With p = softmax(z / temperature), and the
half-range (max z - min z) / 2 in place of |z_i - c|, of which 1.4 m^2 times its bound is s,

    sum_i ( clamp((E_p z - z_y) / s, -1, 1), 2 min(Var_p(z) / s^2, 1/4) - 1/4 )    twice, C = 1.04

is the derivative of the log loss by 1 / temperature, clipped, and the information of it.

Where n mu is small, these sums would cost more than they tell: labels have a temperature that
follows from n mu alone, by which noise makes scores too large in most runs.

Means m = exp(z + offset) of a log link, within its bounds, have a level only: with y at most its
bound Y, H the largest mean, at most Y, and w <= 1 the weight of a record,

    sum_i ( w_i y_i / Y - 1/2, w_i m_i / H - 1/2 )                                        C = 0.7072

are the sums of targets and of means, by whose quotient all means are multiplied.

Two kinds of models have a release before the first step in place of one after the last. Targets
within a bound T have the sum of y / T, C = 1, whose mean is the first model's intercept: from 0 the
steps that noise permits may be too few to come to an offset of targets, and with clipped gradients
the other coefficients wait for it; `target_line` has what follows the run. Of ordered classes,
whose thresholds decide their probabilities, the counts of the K classes are released, at whose
rates the thresholds start,

    sum_i ( 1[y_i = k] - 1 / K )_k                                                        C = 1
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpkern import kernels
from dpkern._typing import FloatArray, IntArray
from dpkern.kernels.glm import loss_derivatives
from dpkern.models.losses import LogLink, Loss, NegativeBinomial, Poisson
from dpkern.models.networks import MLP
from dpkern.models.ordinal import AllThreshold
from dpkern.models.penalties import Constraint
from dpkern.privacy import Budget, split_budget
from dpkern.privacy.mechanisms.gaussian_sum import GaussianSum, RecordVectors, Vectors
from dpkern.privacy.sampling.amplification import AMPLIFIES
from dpkern.privacy.sensitivity.grids import total_on_grid
from dpkern.solvers.base.backends import interruptible
from dpkern.solvers.base.calibration import (
    Calibration,
    LogMeans,
    LogOdds,
    Scale,
    Temperature,
    bounded,
)
from dpkern.solvers.base.objective import Objective
from dpkern.solvers.base.persons import PersonBound
from dpkern.solvers.base.settings import moments

if TYPE_CHECKING:  # which import this module
    from dpkern.solvers.base.declaration import Declaration
    from dpkern.solvers.base.run import Run

# Share of mu^2 for a line: so much over sqrt(n mu), within these bounds; no release below the last.
_SHARE, _LEAST_SHARE, _MOST_SHARE, _SMALL = 2.3, 0.03, 0.15, 100.0
# Shares of that for rates, sizes, each of so many scores, and the last sums.
_SHARES, _STEPS = (1.0, 0.5, 2.25, 4.0), 2
_TIMES = (1, 1, _STEPS, 1)
# The clip norms of rates, of scores and of the last sums, at least the norm of a record's vector.
_RATES_CLIP, _SCORES_CLIP, _LAST_CLIP = 0.7072, 1.04, 1.008
# Margins are cut to so many times their typical size, at least to this part of their bound.
_RANGE, _LEAST_SCALE = 2.4, 0.01
# Scores and information are of margins in a unit that is so many times smaller, and cut.
_CUT = 2.0
# What is likely before anything is seen: that margins are too large by this factor, and by so many
# over 4 n mu r (1 - r) times it where that is more, r the released rate.
_TOO_STEEP, _FEW_LABELS = 2.0, 90.0
# What d numbers agree by chance with the labels that they were fitted to: so much of sqrt(d), and
# no more than noise of so large a part lets them.
_BY_CHANCE, _HIDES = 0.6, 5.0
# Of a temperature: so many over n mu is its share of mu^2, and at least the next; no release below
# the last. Shares of that for sizes and each of so many scores; where these are cut, over the
# typical half-range.
_SHARE_T, _LEAST_SHARE_T, _SMALL_T = 45.0, 0.01, 300.0
_SHARES_T, _STEPS_T = (0.2, 1.0), 2
_TIMES_T = (1, _STEPS_T)
_RANGE_T = 1.4
# Of the level of means: so many over n mu is its share of mu^2, within these bounds; the clip norm,
# at least the norm of half of a square's diagonal; and the largest step of the log of means.
_SHARE_L, _LEAST_SHARE_L, _MOST_SHARE_L = 130.0, 0.02, 0.2
_LEVEL_CLIP, _LARGEST_LEVEL = 0.7072, 3.0
# Of the mean of targets: so many over n mu is its share of mu^2, within these bounds. There is none
# beside moments from the last, times d^(3/2), on, which are exact, and clip targets around 0.
_SHARE_M, _LEAST_SHARE_M, _MOST_SHARE_M, _EXACT_M = 45.0, 0.005, 0.2, 6000.0
# Of the line of targets (target_line.py): the n mu from which it is released; the part that is left
# to the share of the mean, and the line's share over that of a mean alone.
_LEAST_FOR_LINE, _BESIDE_LINE, _LINE_SHARE = 150.0, 0.5, 0.8
# Of the rates of ordered classes: so many over n mu is their share of mu^2, within these bounds.
_SHARE_C, _LEAST_SHARE_C, _MOST_SHARE_C = 90.0, 0.02, 0.6
# Risks are of margins in a unit that none reaches.
_FAR = 300.0
# Numbers that are in memory together for each of a few arrays.
_NUMBERS = 1 << 20
# Most records of blocks whose margins are kept between releases: in 600 MB.
_MOST_KEPT = 1 << 26

Counted = LogLink | NegativeBinomial

RATES = "recalibration: sums of risks and labels"
SIZES = "recalibration: sum of sizes of margins"
SCORES = "recalibration: sum of scores and information of the slope"
RESIDUALS = "recalibration: sums of risks less labels, and of information"
TEMPERATURE = "recalibration: sum of scores and information of the temperature"
LEVEL = "recalibration: sums of targets and of means"


def _error(scale: Scale, dim: int, information: float) -> float:
    """Return the standard error of a slope, by the noise and by what labels agree with by chance.

    The d numbers of a model agree by chance with the labels that they were fitted to, by sqrt(d)
    times the error of a line, or less where the run's noise is most of what moves them: relative to
    the deviations of labels of rate r it is 1 / sqrt(`information`), n mu^2 4 r (1 - r).
    """
    by_chance = _BY_CHANCE / math.sqrt(1.0 / dim + _HIDES**2 / information)
    return math.hypot(scale.slope_error, by_chance * scale.sampling_error)


class Share(NamedTuple):
    """The share of mu^2 for a recalibration, 0 where there is none, and its number of releases."""

    value: float
    releases: int = sum(_TIMES_T)
    line: float = 0.0  #: the share for the line of targets after the run

    @property
    def total(self) -> float:
        """Of both."""
        return self.value + self.line

    def split(self, mu: float) -> tuple[float, ...]:
        """Return the budgets of the run, of the recalibration, and of the line, 0 without one."""
        of_run = 1.0 - self.total
        if not self.line:
            return *split_budget(mu, (of_run, self.value), (1, 1)), 0.0
        return split_budget(mu, (of_run, self.value, self.line), (1, 1, 1))

    @classmethod
    def of_labels(cls, power: float, dim: int, *, several: bool) -> "Share":
        """Return it by n mu and the number of coefficients, of all of several classes."""
        if several:
            enough = power >= max(_SMALL_T, dim)
            return cls(max(_SHARE_T / power, _LEAST_SHARE_T) if enough else 0.0)
        if power < _SMALL:
            return cls(0.0)
        value = min(max(_SHARE / math.sqrt(power), _LEAST_SHARE), _MOST_SHARE)
        return cls(value, sum(_TIMES))

    @classmethod
    def of_targets(cls, power: float, dim: int, solver: "Declaration", *, squared: bool) -> "Share":
        """Return that of the mean of targets, and of their line, by n mu and the coefficients."""
        if solver.settings is moments and power >= _EXACT_M * dim**1.5:
            return cls(0.0)
        value = min(max(_SHARE_M / power, _LEAST_SHARE_M), _MOST_SHARE_M)
        if not (squared and power >= _LEAST_FOR_LINE):  # others have no mean
            return cls(value, 1)
        return cls(_BESIDE_LINE * value, 3, _LINE_SHARE * value)

    def passes(self, n: int) -> int:
        """Return the passes over n records in blocks, of two classes or of targets."""
        fewest = self.releases if self.line else 1  # where margins are kept
        return 0 if not self.value else fewest if n <= _MOST_KEPT else self.releases


def recalibration_share(
    declaration: "Declaration",
    objective: Objective,
    budget: Budget | None,
    persons: PersonBound | None,
    given: Mapping[str, Any],
) -> Share | None:
    """Return the share of mu^2 for a recalibration, 0 where it follows from public numbers alone.

    There is one where predictions are probabilities or means, and the guarantee of all releases is
    Gaussian DP, for a record or for groups of them, or that of a perturbed objective.
    """
    data, loss = objective.data, objective.loss
    binary = data.task == "classification" and isinstance(loss, Loss) and loss.name == "logistic"
    several = isinstance(loss, MLP) and loss.loss == "softmax" and not loss.hidden
    labels = binary or several
    ordered = isinstance(loss, AllThreshold) and declaration.starts_at_rates
    counts = isinstance(loss, Counted) and math.isfinite(loss.max_target)
    targets = isinstance(loss, Loss) and objective.has_units and data.intercept
    targets = targets and math.isfinite(data.target_bound) and not _adds_up_changes(given)
    if (
        not (declaration.gaussian or persons is None)
        or not (labels or counts or targets or ordered)
        or declaration.estimates
        or budget is None
        or (data.is_weighted and not counts)
        or not math.isfinite(data.row_bound)
        or given["calibration"] == "paper"
        or given["trust"] not in ("central", "silo")
        or (persons is not None and persons.clip is not None)
        or given.get("sampling") == AMPLIFIES[given["neighbours"]]
        or given["monitor"] is not None
        or isinstance(objective.other, Constraint)
    ):
        return None
    power = power_of_run(objective.n, data.m, given["trust"], budget.mu)
    if counts:
        return Share(min(max(_SHARE_L / power, _LEAST_SHARE_L), _MOST_SHARE_L))
    if targets:
        squared = isinstance(loss, Loss) and loss.name == "squared"
        share = Share.of_targets(power, objective.dim, declaration, squared=squared)
        return share if share.value else None
    if ordered:
        return Share(min(max(_SHARE_C / power, _LEAST_SHARE_C), _MOST_SHARE_C))
    return Share.of_labels(power, objective.dim, several=several)


def _adds_up_changes(given: Mapping[str, Any]) -> bool:
    """Whether a consensus is the sum of changes of users, whose states begin at 0."""
    return given.get("mode", "central") != "central" or given.get("users") == "silos"


def power_of_run(n: int, m: int, trust: str, mu: float) -> float:
    """Return n mu, or what it is under silo trust, where every silo adds noise."""
    return n * mu / math.sqrt(m if trust == "silo" else 1)


def recalibrate(run: "Run", w: FloatArray) -> Calibration | Temperature | None:
    """Release the line of a model's margins, the temperature of its scores, or the level of means.

    Without a release where that of `first_model` stood for it, public numbers do, or the model is
    not finite.
    """
    plan, objective, mu = run.plan, run.objective, run.plan.recalibration_mu
    data, loss = objective.data, objective.loss
    before = objective.has_units or isinstance(loss, AllThreshold)
    if mu is None or plan.budget is None or before or not np.isfinite(w).all():
        return run.log_means
    if (usual := usual_temperature(run)) is not None:
        return Temperature(usual, 0.0)
    margins = Margins(w, objective.n_threads)
    if isinstance(loss, Counted):
        return LogMeans.of(loss, _Level(run, mu, None).find(loss, margins))
    power = power_of_run(objective.n, data.m, plan.trust, plan.budget.mu)
    with np.errstate(all="ignore"):  # an error or a warning would depend on the records
        if isinstance(loss, MLP):
            return _Scores(run, loss, w, mu, power).temperature()
        line = _Line(run, margins, float(np.linalg.norm(w)) * data.row_bound, mu)
        found = line.calibration(len(w), power)
        line.forget()
        return found


def usual_temperature(run: "Run") -> float | None:
    """Return by how much scores are too large in most runs with so small an n mu.

    None for a run whose recalibration is released, or that has none.
    """
    plan, objective = run.plan, run.objective
    if plan.recalibration_mu != 0.0 or plan.budget is None:
        return None
    power = power_of_run(objective.n, objective.data.m, plan.trust, plan.budget.mu)
    if isinstance(objective.loss, MLP):
        return max(math.sqrt(_SMALL_T / power), 1.0)
    return _TOO_STEEP * (_SMALL / power) ** 0.25


def usable(largest: float) -> float:
    """Return the bound of margins or scores if it is one."""
    return largest if 0.0 < largest < math.inf else 1.0


@dataclass(frozen=True)
class _MarginBlock:
    """The margins and labels, -1 and 1, of a block's records, in nine bytes of each."""

    offsets: IntArray
    margins: FloatArray
    labels: NDArray[np.int8]

    @property
    def m(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> IntArray:
        return np.diff(self.offsets)

    @property
    def y(self) -> FloatArray:
        return self.labels.astype(np.float64)


class Margins:
    """The margins of the records of a block at a model; those of the last block are kept."""

    def __init__(self, w: FloatArray, n_threads: int | None) -> None:
        self._w, self._n_threads, self.key = w, n_threads, w.tobytes()
        self._last: tuple[kernels.Data, FloatArray] | None = None

    def reduced(self, block: kernels.Data) -> _MarginBlock:
        """Return a block of two classes as recalibrations of these margins read it."""
        return _MarginBlock(block.offsets, self(block), block.y.astype(np.int8))

    def __call__(self, part: kernels.Data) -> FloatArray:
        if isinstance(part, _MarginBlock):
            return part.margins
        if self._last is None or self._last[0] is not part:
            z = interruptible(kernels.glm_margins, part, self._w, n_threads=self._n_threads)
            self._last = part, z[: part.offsets[-1]]  # the records that are here
        return self._last[1]

    def __reduce__(self) -> tuple[Any, ...]:
        return Margins, (self._w, self._n_threads)


class Releases:
    """What the releases of a recalibration share: margins of two classes, which may be kept."""

    def __init__(self, run: "Run", mu: float, margins: Margins | None) -> None:
        self._run, self._mu, self._n = run, mu, float(run.objective.n)
        self._kept = margins if run.objective.data.n <= _MOST_KEPT else None

    def forget(self) -> None:
        """Keep margins no longer."""
        if self._kept is not None and (blocks := self._run.objective.data.blocks) is not None:
            blocks.totals([])

    def _root(self, mu: float, vectors: RecordVectors) -> tuple[float, float]:
        """Return the noisy mean square root of sizes, of which `vectors` are `_root_vectors`, and
        the standard deviation of its noise."""
        (total,), std = self._release(SIZES, 0.5, mu, vectors, 1)
        return 0.5 + bounded(float(total) / self._n, 0.5), std / self._n

    def _release(
        self, what: str, clip: float, mu: float, vectors: RecordVectors, dim: int
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
            sums = mechanism.sums_of(objective.data, vectors, objective.n_threads, by=self._kept)
        if not per_silo and run.plan.shares is None:
            sums = total_on_grid(sums, float(mechanism.grid[0]))
        with run.clock("noise"):
            released = mechanism.release(sums)
        total = released.sum(axis=0) if per_silo else released
        return total.ravel(), float(np.linalg.norm(mechanism.sigma))


def _root_vectors(sizes: FloatArray) -> FloatArray:
    """Return the vectors of square roots of sizes, each cut to 1."""
    return (np.sqrt(np.minimum(sizes, 1.0)) - 0.5)[:, np.newaxis]


def unit_of_margins(root: float, error: float) -> float:
    """Return where margins are cut, by the mean root of their sizes in units of their bound.

    With the error of the noise in it, as margins beyond the unit all count for the same.
    """
    return min(max(_RANGE * (root + error) ** 2, _LEAST_SCALE), 1.0)


@dataclass(frozen=True)
class Scaled:
    """Vectors of the records of a block by their margins less a centre, in a unit.

    Each is by operations on a record's own numbers alone, exponentials by the kernel.
    """

    margins: Margins
    centre: float
    unit: float

    def u(self, part: kernels.Data, rows: slice) -> FloatArray:
        u = np.clip((self.margins(part)[rows] - self.centre) / self.unit, -1.0, 1.0)
        return np.nan_to_num(u, nan=0.0)  # where a unit is less than the least number

    def sizes(self, part: kernels.Data) -> Vectors:
        """Return the vectors of the sizes of margins."""
        return lambda rows: _root_vectors(np.abs(self.u(part, rows)))

    def rates(self, slope: float, part: kernels.Data) -> Vectors:
        """Return the vectors (p - 1/2, y / 2)."""

        def vectors(rows: slice) -> FloatArray:
            u = self.u(part, rows)
            p = _less_labels(np.full(len(u), -1.0), slope * u)
            return np.column_stack([p - 0.5, 0.5 * part.y[rows]])

        return vectors

    def scores(self, slope: float, offset: float, part: kernels.Data) -> Vectors:
        """Return the vectors of the score and the information, both cut, of the slope of 2 u."""

        def vectors(rows: slice) -> FloatArray:
            u = self.u(part, rows)
            residuals, information = self._risks(slope, offset, u, part.y[rows])
            score = np.clip(_CUT * residuals * u, -1.0, 1.0)
            information = np.minimum(information * (_CUT * u) ** 2, 0.25)
            return np.column_stack([score, 2.0 * information - 0.25])

        return vectors

    def residuals(self, slope: float, offset: float, part: kernels.Data) -> Vectors:
        """Return the vectors (p - (y + 1) / 2, p (1 - p) - 1/8)."""

        def vectors(rows: slice) -> FloatArray:
            residuals, information = self._risks(slope, offset, self.u(part, rows), part.y[rows])
            return np.column_stack([residuals, information - 0.125])

        return vectors

    @staticmethod
    def _risks(
        slope: float, offset: float, u: FloatArray, y: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return p - (y + 1) / 2 and p (1 - p)."""
        odds, labels = slope * u + offset, np.ones(len(u))
        return _less_labels(y, odds), -_less_labels(-labels, odds) * _less_labels(labels, odds)


def _less_labels(y: FloatArray, log_odds: FloatArray) -> FloatArray:
    """Return the risk of each record less 0 or 1, its label y of -1 or 1."""
    return loss_derivatives(y, log_odds, loss="logistic")


class _Line(Releases):
    """The releases of one line, of margins of at most `largest`."""

    def __init__(self, run: "Run", margins: Margins, largest: float, mu: float) -> None:
        super().__init__(run, mu, margins)
        self._margins, self._largest = margins, usable(largest)

    def calibration(self, dim: int, power: float) -> Calibration:
        """Return the line of log odds for the margins of a model of so many numbers, by n mu."""
        n, slope = self._n, 1.0 / _TOO_STEEP
        mu_p, mu_u, mu_s, mu_r = split_budget(self._mu, _SHARES, _TIMES)
        rates = partial(Scaled(self._margins, 0.0, _FAR).rates, slope * _FAR)
        (risks, labels), std = self._release(RATES, _RATES_CLIP, mu_p, rates, 2)
        odds = LogOdds(n, risks, labels, std, slope)
        bound = usable(self._largest + abs(odds.centre))
        root, error = self._root(mu_u, Scaled(self._margins, odds.centre, bound).sizes)
        unit = unit_of_margins(root, error) * bound
        slope *= min(odds.balance * power / _FEW_LABELS, 1.0)
        scale, scaled = Scale(n, unit / _CUT, slope), Scaled(self._margins, odds.centre, unit)
        for _ in range(_STEPS):
            scores = partial(scaled.scores, scale.slope * unit, odds.offset)
            (score, information), std = self._release(SCORES, _SCORES_CLIP, mu_s, scores, 2)
            scale.improve(score, information, std)
        residuals = partial(scaled.residuals, scale.slope * unit, odds.offset)
        (residual, information), std = self._release(RESIDUALS, _LAST_CLIP, mu_r, residuals, 2)
        odds.improve(residual, information, std)
        error = _error(scale, dim, odds.balance * power**2 / n)
        return Calibration(scale.slope * unit, odds.offset, odds.centre, unit, error * unit)


@dataclass(frozen=True)
class _Shares:
    """The targets and predicted means of the records of a block, in units of the largest ones."""

    margins: Margins
    loss: Counted

    @property
    def high(self) -> float:
        """The log of the largest mean H, that of a target where bounds of means are larger."""
        return min(self.loss.high, math.log(self.loss.max_target))

    def vectors(self, part: kernels.Data) -> Vectors:
        """Return the vectors (w y / Y - 1/2, w m / H - 1/2)."""
        low, high, most = self.loss.low, self.high, self.loss.max_target
        z, largest = self.margins(part), math.exp(high)

        def vectors(rows: slice) -> FloatArray:
            at = np.clip(np.nan_to_num(z[rows], nan=low), low, high)
            # The kernel's exponential of a record, as the derivative of the loss with target 0.
            means = loss_derivatives(np.zeros(len(at)), at, loss=Poisson(-_FAR, _FAR))
            shares = np.column_stack([np.clip(part.y[rows], 0.0, most) / most, means / largest])
            if part.record_weight is not None:
                shares *= part.record_weight[rows, np.newaxis]
            return np.clip(shares, 0.0, 1.0) - 0.5

        return vectors


class _Level(Releases):
    """The release of the level of means."""

    def find(self, loss: Counted, margins: Margins) -> float:
        """Return by how much the log of means is to be moved, as far as the noise lets it be told.

        Margins are those with their offsets.
        """
        shares_of = _Shares(margins, loss)
        n, largest = self._n, np.array([math.log(loss.max_target), shares_of.high])
        with np.errstate(all="ignore"):  # an error or a warning would depend on the records
            sums, std = self._release(LEVEL, _LEVEL_CLIP, self._mu, shares_of.vectors, 2)
        shares = sums + 0.5 * n
        logs = np.log(np.maximum(np.minimum(shares, n), std)) + largest
        level = bounded(float(logs[0] - logs[1]), _LARGEST_LEVEL)
        # A level that the noise explains is not taken: sums differ by less than its size.
        units = np.exp(largest - largest.max())
        seen = float(shares @ (units * (1.0, -1.0))) / (std * float(np.linalg.norm(units)))
        return level * seen**2 / (seen**2 + 1.0) if seen * level > 0.0 else 0.0


@dataclass(frozen=True)
class _ClassScores:
    """The scores z (K, n) of the records of a block."""

    margins: tuple[Margins, ...]
    biases: tuple[float, ...]

    def __call__(self, part: kernels.Data) -> FloatArray:
        pairs = zip(self.margins, self.biases, strict=True)
        return np.array([margins(part) + bias for margins, bias in pairs])

    def sizes(self, unit: float, part: kernels.Data) -> Vectors:
        """Return the vectors of the half-ranges of scores."""
        z = self(part)
        sizes = 0.5 * (z.max(axis=0) - z.min(axis=0)) / unit
        return lambda rows: _root_vectors(sizes[rows])

    def vectors(self, slope: float, unit: float, part: kernels.Data) -> Vectors:
        """Return the vectors of scores and information of the temperature.

        Each by operations on a record's own numbers alone: sums over classes are taken one after
        another, and exponentials are by the kernel, as how NumPy computes either may depend on the
        number of records.
        """
        scores = self(part)
        label = np.maximum(part.y[: scores.shape[1]], 0.0).astype(np.intp)

        def of_some(first: int, end: int) -> FloatArray:
            z = scores[:, first:end]
            z = z - z.max(axis=0)
            odds = [_exponential(slope * row) for row in z]
            total = sum(odds)
            p = [row / total for row in odds]
            mean = sum(p_k * z_k for p_k, z_k in zip(p, z, strict=True))
            square = sum(p_k * (z_k - mean) ** 2 for p_k, z_k in zip(p, z, strict=True))
            of_label = np.take_along_axis(z, label[np.newaxis, first:end], axis=0)[0]
            score = np.clip((mean - of_label) / unit, -1.0, 1.0)
            information = np.minimum(square / unit / unit, 0.25)
            return np.column_stack([score, 2.0 * information - 0.25])

        def vectors(rows: slice) -> FloatArray:
            step = max(1, _NUMBERS // len(scores))
            parts = range(rows.start, rows.stop, step)
            return np.vstack([of_some(i, min(i + step, rows.stop)) for i in parts])

        return vectors


class _Scores(Releases):
    """The releases of the temperature of a model of several classes."""

    def __init__(self, run: "Run", model: MLP, w: FloatArray, mu: float, power: float) -> None:
        super().__init__(run, mu, None)
        objective, self._dim, self._power = run.objective, len(w), power
        (W,) = model.matrices(w, objective.data.n_features)
        of_classes = tuple(Margins(row[:-1].copy(), objective.n_threads) for row in W)
        self._scores = _ClassScores(of_classes, tuple(W[:, -1].tolist()))
        longest = float(np.linalg.norm(W - W.mean(axis=0), axis=1).max())
        self._largest = usable(longest * math.hypot(objective.data.row_bound, 1.0))

    def temperature(self) -> Temperature:
        """Return the temperature."""
        mu_u, mu_s = split_budget(self._mu, _SHARES_T, _TIMES_T)
        root, _ = self._root(mu_u, partial(self._scores.sizes, self._largest))
        unit = self._largest * _RANGE_T * max(root**2, _LEAST_SCALE)
        scale = Scale(self._n, unit, 1.0)
        for _ in range(_STEPS_T):
            vectors = partial(self._scores.vectors, scale.slope, unit)
            (score, information), std = self._release(TEMPERATURE, _SCORES_CLIP, mu_s, vectors, 2)
            scale.improve(score, information, std)
        return Temperature(1.0 / scale.slope, _error(scale, self._dim, self._power**2 / self._n))


def _exponential(t: FloatArray) -> FloatArray:
    """Return exp(t) for t <= 0, as the odds of the logistic function."""
    labels = np.ones(len(t))
    return _less_labels(-labels, t) / -_less_labels(labels, t)
