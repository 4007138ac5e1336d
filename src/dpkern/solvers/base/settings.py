"""Settings "auto" of solvers, from public numbers alone: no rule reads a record.

The rules are about noise in margins. T steps eta_t along the mean gradient with noise of std s on
it move a record's margin by noise of std at most R s (sum of eta_t^2)^(1/2). With the budget
divided over the steps, s = u C sqrt(T) / mu, this is

    R u C h / mu,    h = sum of eta_t the horizon, u the std at C = mu = 1 of one release:

whatever the number of rounds, it depends on the product of clip norm and horizon. A gradient that
is clipped to a fraction of R |phi'(0)| still has its direction, and a longer horizon serves
directions in which the records vary little. So the clip norm is a small one, and the horizon such
that the noise in margins, before curvature and averages reduce it, has std `spread`. Where the
rounds do not permit so long a horizon, the clip norm is larger. The constants were fitted on public
sets, which docs/settings.md names.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from dpkern._warn import warn
from dpkern.data.validation import ScaleWarning
from dpkern.models.losses import get_loss
from dpkern.models.scale import largest_target
from dpkern.privacy import Budget
from dpkern.solvers.base.objective import (
    Objective,
    PublicNumbers,
    margin_noise,
    public_numbers,
    smallest_silo,
)
from dpkern.solvers.base.options import AUTO

# Least clip norm, as a share of row_bound |phi'(0)|, largest noise in margins, and the noise up to
# which larger clip norms go, the last two in units of `margin_noise`: with noise in every round, of
# which most is lost again; with noise that is added once to the result, for labels and for targets;
# with budgets for gradients and for differences of them, along the path or from an anchor; with
# every record in one round.
_EVERY_ROUND, _ONCE, _ONCE_TARGETS = (0.14, 1.0, 0.5), (0.5, 0.13, 0.13), (0.5, 0.14, 0.1)
_DIFFERENCES, _ANCHORED = (0.28, 0.35, 0.5), (0.5, 0.25, 0.25)
_IN_TURN = (0.5, 0.25, 0.25)
# Noise of ordered classes, whose probabilities no line mends: by n mu, within these bounds.
_ORDERED_NOISE = (1e-4, 0.01, 0.1)
# The part of the noise in margins that runs with a log link, of counts or hazards, take: n mu over
# the first, within these bounds, of rare events times the root of their mean. No line mends their
# means, logs of means differ by less than one between most records, and an exponential of noise is
# far from the constant.
_FEW_COUNTS, _LEAST_OF_COUNTS, _MOST_OF_COUNTS = 2000.0, 0.05, 0.2
# The largest clip norm in row_bound |phi'(0)|, and that of labels where the horizon is that of
# penalties, which must not outweigh clipped gradients: nothing is longer. It is smaller, in
# proportion, below this n mu, or n mu over row_bound^2: noise costs more than what is clipped.
_LARGEST_CLIP, _PENALIZED_CLIP, _FEW_PENALIZED, _FEW_OF_BOUND = 1.0, 2.0, 600.0, 134.0
# Clip norms of gradients in Newton's methods, where Hessians are clipped too or not, and of the
# moments of labels; and that of labels in Newton's methods and objective perturbation, which grows
# with (n mu)^(1/2) from this n mu on, up to the largest.
_NEWTON_CLIP, _PAPER_CLIP, _LABELS_CLIP = 0.5, 0.7, 0.25
_FIRST_GROWTH, _GROWN_CLIP = 3000.0, 1.25
# The part of `margin_noise` that one step of Newton's method may have along any direction, by the
# gradient's noise, of targets half of it from sqrt(d) = 7 on; by the noise of a released direction;
# and how much shorter steps are where the norm of the gradient's noise exceeds C.
_NEWTON_SHARE, _HALF_SHARE = 1.0 / 3.0, 7.0
_DIRECTION_SHARE, _NOISY_STEPS = 0.05, 4.0
# The power n mu over d from which moments of labels are not clipped, and over d^(3/2) from which
# those of targets are as exact as gradients.
_UNCLIPPED_LABELS, _EXACT_MOMENTS = 200.0, 6000.0
# The n mu over d^(3/2) from which Newton steps of ordered classes are ahead of clipped gradients.
_EXACT_NEWTON = 100.0
# Of objective perturbation: clip norm as a share of row_bound |phi'(0)|, share of epsilon that pays
# for the curvature of a record, the largest condition number that the penalty leaves, and the part
# of `margin_noise` that it leaves of labels.
_PERTURBED_CLIP, _CURVATURE_SHARE, _MOST_CONDITIONED = 0.5, 0.25, 2.0**13
_PERTURBED_SHARE = 0.25
# Steps in 1 / smoothness. Those of labels rely on curvatures far below their bound, and on averages
# of what oscillates: gradients of labels are bounded. Explicit ones of targets are at most 1, with
# which no data diverge.
_BOLD_STEP, _IMPLICIT_STEP, _RELAXED_STEP, _ORDERED_STEP = 16.0, 16.0, 4.0, 4.0
# That of scores of several classes, times R |phi'(0)| over C: curvatures are nearer to their bound
# the less is clipped, and there is no momentum.
_SEVERAL_STEP = 8.0
# Momentum, and of linear models of labels, how often its memory of 1 / (1 - momentum) steps is in
# the run where it is larger, and n mu from which they take more rounds, more noise in margins, and
# a larger least clip norm, in proportion, up to so many times.
_MOMENTUM, _MEMORIES = 0.95, 6.0
_MORE_ROUNDS, _MORE_NOISE, _MORE_CLIP, _MOST_MORE = 4000.0, 8000.0, 2000.0, 2.0
# The n mu, or the number of coefficients, below which labels take less noise, and the least part.
_FEW_LABELS, _FEW_COLUMNS, _LEAST_NOISE = 150.0, 30.0, 2.0 / 3.0
# The n mu over d from which real targets take more noise, by its root, up to so many times; and
# how much smaller the least clip norm is where their level is released after the run: what clipping
# takes from targets that are not symmetric is their level.
_FEW_TARGETS, _MORE_OF_TARGETS = 10.0, 3.0
_LEVELLED_CLIP = 0.5
# Of estimates from counts: the square of the bound of whitened rows over their dimension, by
# mu^2 n / d, and the least.
_LONG_COUNTS, _LEAST_LONG_COUNTS = 2e-4, 2.5
# The horizon, in inverses of the penalties' strength, after which they have settled. A free
# intercept, whose slowest direction is slower than they are, takes n mu over this times it, up to
# so many times.
_SETTLED, _FEW_FREE, _MOST_FREE = 3.0, 600.0, 3.0
_MULTIPLIER = 3.0
REPEATS = ("rounds", "local_steps")

UNBOUNDED_TARGETS = (
    "no target_bound was stated, and gradients are clipped as if targets were of the size of 1: "
    "state the public bound of |y|, or (lo, hi), from a handbook or by dpkern.private_range"
)


_UNKNOWN = PublicNumbers(
    mu=math.inf,
    noise=1.0,
    row_bound=1.0,
    curvature=1.0,
    smoothness=1.0,
    slope=1.0,
    dim=1,
    smallest=1,
    trust="silo",
    convex=True,
    hidden_layers=False,
)

Noise = tuple[float, float, float]
Rule = Callable[[PublicNumbers, Mapping[str, Any]], dict[str, Any]]


def is_auto(value: object) -> bool:
    """Whether a setting is left to the rules."""
    return isinstance(value, str) and value == AUTO


def resolve_settings(
    rule: Rule, objective: Objective, budget: Budget | None, given: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a run, those that are "auto" replaced by what the rule says.

    For a user's own model, or without a row bound or a bounded second derivative, only numbers of
    rounds follow from the rule: a step size stays "auto", and a clip norm is none.
    """
    numbers = public_numbers(objective, budget, given["trust"], given["neighbours"])
    if numbers is not None and math.isfinite(numbers.smoothness):
        found = rule(numbers, given)
    else:
        unknown = {"clip": None, "hess_clip": None, "momentum": 0.0, "returns": "last"}
        nothing = replace(_UNKNOWN, smallest=smallest_silo(objective))
        found = unknown | {k: v for k, v in rule(nothing, given).items() if k in REPEATS}
    unbounded = numbers is not None and not math.isfinite(numbers.target_bound)
    if unbounded and budget is not None and is_auto(given.get("clip")):
        warn(UNBOUNDED_TARGETS, ScaleWarning)
    if is_auto(given.get("batch_size")):
        rounds, steps = (found.get(k) if is_auto(given.get(k)) else given.get(k) for k in REPEATS)
        mu = math.inf if budget is None else budget.mu
        smallest, releases = smallest_silo(objective), (rounds or 1) * (steps or 1)
        found["batch_size"] = _batch_size(given.get("sampling", "full"), smallest, releases, mu)
    return {k: found.get(k, v) if is_auto(v) else v for k, v in given.items()}


def _batch_size(sampling: str, smallest: int, releases: int, mu: float) -> int | None:
    """Return the records per batch: of secret samples, so many that more reduce hardly any noise.

    With samples of a share q of the records and noise of `multiplier` times the sensitivity, mu is
    about q sqrt(releases) / multiplier for multipliers above 1 (Bu, Dong, Long, Su 2020): then the
    noise on the mean does not depend on q.
    """
    if sampling == "full":
        return None
    if sampling in ("one_pass", "cyclic"):
        return max(1, smallest // releases)
    return math.ceil(smallest * min(1.0, _MULTIPLIER * mu / math.sqrt(releases)))


def _mean(value: Any, default: float) -> float:
    """Return the mean of numbers, or the default where the solver will refuse them."""
    try:
        mean = float(np.mean(np.asarray(value, dtype=np.float64)))
    except (TypeError, ValueError):
        return default
    return mean if 0.0 < mean < math.inf else default


def clip_and_horizon(
    numbers: PublicNumbers,
    given: Mapping[str, Any],
    longest: float,
    noise: tuple[float, float, float],
) -> tuple[float | None, float]:
    """Return the clip norm, None without a budget, and the horizon, at most `longest`.

    Penalties of strength l settle within a few 1 / l, and a longer horizon serves nothing.
    """
    clip = given["clip"]
    if numbers.mu == math.inf:
        return None if is_auto(clip) else clip, longest
    least, spread, growth = noise
    if numbers.ordered:
        slope, fewest, most = _ORDERED_NOISE
        spread = growth = min(max(slope * numbers.power, fewest), most)
    elif numbers.log_link:
        most = _MOST_OF_COUNTS * math.sqrt(numbers.information)
        spread *= min(max(numbers.power / _FEW_COUNTS, _LEAST_OF_COUNTS), most)
    largest = _LARGEST_CLIP
    settled = _SETTLED
    if numbers.penalty == 0.0 and not numbers.labels:
        settled *= min(max(numbers.power / _FEW_FREE, 1.0), _MOST_FREE)
    if numbers.pull * longest > settled:
        longest = settled / numbers.pull
        if numbers.labels:
            few = max(_FEW_PENALIZED, _FEW_OF_BOUND * numbers.row_bound**2)
            penalized = _PENALIZED_CLIP * numbers.power / few
            largest = min(max(penalized, _LARGEST_CLIP), _PENALIZED_CLIP)
    if is_auto(clip):
        start = numbers.row_bound * numbers.slope  # no gradient is longer at the start
        clip = min(max(growth * numbers.reach / longest, least * start), largest * start)
        # Of counts a smaller clip makes all means too small, and a larger one gains little; of
        # ordered classes it makes rare ones too frequent, and of weights the largest ones less.
        clip = start if numbers.has_sizes or numbers.ordered else clip
    bounded = clip is not None and clip < math.inf
    return clip, min(longest, spread * numbers.reach / clip) if bounded else longest


def descent(
    numbers: PublicNumbers,
    given: Mapping[str, Any],
    *,
    rounds: int = 300,
    local_steps: int = 1,
    bold: float = _BOLD_STEP,
    noise: Noise = _EVERY_ROUND,
    step: str = "step_size",
    relaxation: float = 1.0,
) -> dict[str, Any]:
    """Settings of a method with noisy steps, on all records or equivalent samples of them.

    `step` is the name of the option of step sizes, of which a round takes `relaxation` times one.
    """
    momentum = most = given.get("momentum", 0.0)
    if is_auto(given.get(step)) and is_auto(momentum):
        rounds = round(rounds * _more(numbers, _MORE_ROUNDS))
    R, K = (
        default if given.get(name, AUTO) in (AUTO, None) else given[name]
        for name, default in zip(REPEATS, (rounds, local_steps), strict=True)
    )
    found = {"rounds": R, "local_steps": K, "momentum": 0.0, "returns": "last"}
    steps, L = R * K * relaxation, numbers.smoothness
    if not is_auto(given.get(step)):
        longest = steps * _mean(given.get(step), 1.0 / L)
        return found | {"clip": clip_and_horizon(numbers, given, longest, noise)[0]}
    explicit = step == "step_size"
    if numbers.mu == math.inf or (explicit and not numbers.labels):
        bold = min(bold, 1.0)
    bold = min(bold, _ORDERED_STEP) if numbers.ordered else bold
    if is_auto(momentum):
        most, noise = _with_momentum(numbers, given, steps, bold / L, noise)
    clip, horizon = clip_and_horizon(numbers, given, steps * bold / L / (1.0 - most), noise)
    eta = horizon / steps  # the step that momentum makes of the option
    if explicit and numbers.several and clip is not None and clip < math.inf:
        eta = min(eta, _SEVERAL_STEP * numbers.row_bound * numbers.slope / (clip * L))
    if explicit and numbers.pull > 0.0:
        eta = min(eta, 1.0 / numbers.pull)
    if is_auto(momentum):
        found["momentum"] = momentum = min(most, max(0.0, 1.0 - 1.0 / (L * eta)))
    size = eta * (1.0 - momentum)
    found |= {"clip": clip, step: size}
    return found | {"returns": "tail" if numbers.mu < math.inf else "last"}


def _with_momentum(
    numbers: PublicNumbers, given: Mapping[str, Any], steps: float, size: float, noise: Noise
) -> tuple[float, Noise]:
    """Return the largest momentum, and the noise, of so many steps of this size without momentum.

    Curvature takes most of the noise from directions in which records vary, and a longer horizon
    learns the rest. So linear models take more noise where n mu is large, of real targets for the
    number of coefficients, and less of few labels; those of labels take a larger least clip norm,
    because clipping takes more from them than noise; that of real targets is smaller where their
    level is released after the run. Where noise permits a longer horizon at that norm, there is
    more momentum.
    """
    least, spread, growth = noise
    if not _is_private_linear(numbers):
        return _MOMENTUM, noise
    if not numbers.labels:
        more = math.sqrt(numbers.power / (_FEW_TARGETS * numbers.dim))
        more = min(max(more, 1.0), _MORE_OF_TARGETS)
        horizon = more * spread * numbers.reach / (least * numbers.row_bound * numbers.slope)
        counts = numbers.pull * horizon > _LEVELLED_CLIP  # penalties would outweigh what is clipped
        if given.get("line_of_targets") and not counts:
            least *= _LEVELLED_CLIP
    else:
        more = _more(numbers, _MORE_NOISE) * _less(numbers)
        most = _MOST_MORE * _EVERY_ROUND[0]
        least = max(least, min(least * _more(numbers, _MORE_CLIP), most))
        growth *= more
    horizon = more * spread * numbers.reach / (least * numbers.row_bound * numbers.slope)
    momentum = max(min(1.0 - steps * size / horizon, 1.0 - _MEMORIES / steps), _MOMENTUM)
    if not numbers.labels:  # more momentum makes no clip norm smaller
        growth *= (1.0 - _MOMENTUM) / (1.0 - momentum)
    return momentum, (least, more * spread, growth)


def _is_private_linear(numbers: PublicNumbers) -> bool:
    """Whether a linear model without a log link is learnt with noise."""
    others = numbers.hidden_layers or numbers.ordered or numbers.log_link
    return numbers.mu < math.inf and not others


def _less(numbers: PublicNumbers) -> float:
    """Return the part of the noise in margins that a linear model of few labels takes.

    A long horizon is for directions in which records vary little. Where n mu is small the noise
    hides them, but of many columns they are most of what is to be learnt.
    """
    share = max(numbers.power / _FEW_LABELS, numbers.dim / _FEW_COLUMNS, _LEAST_NOISE)
    return min(share, 1.0)


def _more(numbers: PublicNumbers, least: float) -> float:
    """Return how many times more a linear model of labels takes, in proportion to n mu."""
    most = _MOST_MORE if numbers.labels and _is_private_linear(numbers) else 1.0
    return min(max(numbers.power / least, 1.0), most)


def implicit(numbers: PublicNumbers, given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of ADMM, whose steps are proximal ones: long ones do not diverge."""
    relaxation = 2.0 * given["relaxation"]
    # What silos send is near their prox after few inner steps if its step is short.
    bold = 0.5 if given["users"] == "silos" else _IMPLICIT_STEP
    return descent(numbers, given, step="prox_step", bold=bold, relaxation=relaxation)


def relaxed(numbers: PublicNumbers, given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of fixed-point iterations, which average the steps of an operator."""
    own = given["relaxation"]
    if given["operator"] == "admm":
        share = 2.0 * _mean(own, 0.5)
        return descent(numbers, given, step="prox_step", bold=_IMPLICIT_STEP, relaxation=share)
    found = descent(numbers, given, bold=_RELAXED_STEP, relaxation=_mean(own, 1.0))
    return found if isinstance(given["operator"], str) else found | {"clip": None}


def hidden_descent(
    numbers: PublicNumbers, given: Mapping[str, Any], *, rounds: int = 1, local_steps: int = 600
) -> dict[str, Any]:
    """Settings of local steps of which only the result is seen.

    What one record changes does not grow with eta <= 2 / smoothness where the loss is convex, and
    by (1 + eta smoothness) a step otherwise.
    """
    R, K = (
        default if is_auto(given.get(name, AUTO)) else given[name]
        for name, default in zip(REPEATS, (rounds, local_steps), strict=True)
    )
    once = _ONCE if numbers.labels else _ONCE_TARGETS
    noise, bold = once if R == 1 else _EVERY_ROUND, 1.0 if numbers.convex else 1.0 / K
    return descent(numbers, {**given, "local_steps": K}, rounds=rounds, bold=bold, noise=noise)


def federated_descent(numbers: PublicNumbers, given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of an aggregation after every step, or every few of them, which must not diverge."""
    hidden = given["local_steps"] not in (AUTO, 1) or given["accounting"] == "last_iterate"
    return descent(numbers, given, bold=1.0 if hidden else _BOLD_STEP)


def local_descent(numbers: PublicNumbers, given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of local steps on batches."""
    if given["noise"] == "step" or (given["noise"] is None and numbers.trust == "silo"):
        return descent(numbers, given, rounds=60, local_steps=5)
    return hidden_descent(numbers, given, rounds=60, local_steps=20)


def hessian_clip(numbers: PublicNumbers, releases: int, share: float) -> float:
    """Return the clip norm of Hessians that are released so often with this share of mu^2.

    It is the one at which the spectral norm of the noise is the mean eigenvalue of the largest
    Hessian, `curvature` / d, or `curvature`, which clips nothing, where that is less.
    """
    norm = numbers.noise * math.sqrt(numbers.dim * releases / share) / numbers.mu  # at clip norm 1
    return numbers.curvature / max(numbers.dim * norm, 1.0)


def newton(
    numbers: PublicNumbers, given: Mapping[str, Any], *, rounds: int = 10, share: float = 0.4
) -> dict[str, Any]:
    """Settings of Newton methods, whose steps are those of the noisy curvature.

    The share of mu^2 is a fifth, and counts twice beside gradients where a record is replaced.
    """
    R = rounds if is_auto(given["rounds"]) else given["rounds"]
    found = {"rounds": R, "local_steps": 1, "clip": None, "hess_clip": None, "returns": "last"}
    if numbers.mu == math.inf:
        return found
    start, found["returns"] = numbers.row_bound * numbers.slope, "tail"
    if given["calibration"] == "paper":
        return found | {"clip": _PAPER_CLIP * start}
    releases = R * given.get("local_steps", 1)
    share = share if given["neighbours"] == "replace_one" else 0.2
    share_of_start = 1.0 if numbers.has_sizes else _grown(_NEWTON_CLIP, numbers)
    # Steps along clipped curvatures are too long, and diverge where residuals are not bounded.
    hess_clip = hessian_clip(numbers, releases, share) if numbers.labels else numbers.curvature
    return found | {"clip": share_of_start * start, "hess_clip": hess_clip}


def _grown(share: float, numbers: PublicNumbers) -> float:
    """Return the share of row_bound |phi'(0)| that is the clip norm, larger for many labels.

    Noise in scores is small then beside what clipping takes from them.
    """
    if not numbers.labels:
        return share
    return min(max(share * math.sqrt(numbers.power / _FIRST_GROWTH), share), _GROWN_CLIP)


def newton_directions(numbers: PublicNumbers, given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of Newton methods that release directions and no Hessians."""
    return newton(numbers, given, rounds=20, share=0.2)


def newton_floor(objective: Objective, noise_std: float) -> float:
    """Return the least curvature by which a gradient with this noise is divided."""
    if not 0.0 < noise_std < math.inf:
        return 0.0
    share = _NEWTON_SHARE * (_share_of_targets(objective.dim) if objective.has_units else 1.0)
    return _per_margin_noise(objective) * noise_std / share


def _share_of_targets(dim: int) -> float:
    """Return the part of `margin_noise` that methods take whose noise nothing reduces."""
    return min(max(0.5 * _HALF_SHARE / math.sqrt(dim), 0.5), 1.0)


def _per_margin_noise(objective: Objective) -> float:
    """Return the row bound in units of the noise in margins that a run takes; 0 without one."""
    data = objective.data
    unit = largest_target(data) if objective.has_units else 1.0
    most = margin_noise(objective.dim, labels=not objective.has_units) * unit
    return data.row_bound / most if data.row_bound < math.inf else 0.0


def direction_floor(objective: Objective, noise_std: float, clip: float) -> float:
    """Return the least l0 of a released direction: more than `newton_floor` where all is noise."""
    if not clip < math.inf:
        return newton_floor(objective, noise_std)
    square = objective.dim * (noise_std / clip) ** 2  # of the noise's norm in units of C
    return newton_floor(objective, noise_std) * (1.0 + _NOISY_STEPS * square)


def direction_noise_floor(objective: Objective, noise: float) -> float:
    """Return the least l0 of a direction with noise of std noise / l0^2 on every coordinate."""
    return math.sqrt(_per_margin_noise(objective) * noise / _DIRECTION_SHARE)


def moments(numbers: PublicNumbers, given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of one release at w = 0, which clip labels to their direction and no targets."""
    if numbers.mu == math.inf:
        return {"clip": None, "hess_clip": None}
    start = numbers.row_bound * numbers.slope
    if numbers.labels:
        share = min(max(_LABELS_CLIP, numbers.power / numbers.dim / _UNCLIPPED_LABELS), 1.0)
        return {"clip": share * start, "hess_clip": hessian_clip(numbers, 1, 1.0 / 3.0)}
    if is_auto(given["clip"]) and not math.isfinite(numbers.target_bound):
        raise ValueError(
            "target_bound must be given with a budget, the public bound of |y|, or clip, the l2 "
            "bound of one record's gradient at 0; dpkern.private_range finds one privately"
        )
    return {"clip": start, "hess_clip": numbers.curvature}


def moments_suffice(numbers: PublicNumbers) -> bool:
    """Whether one release of the moments is as exact as many gradients, in a fraction of the time.

    The noise of the Hessian is then small beside the curvature of every direction that matters.
    """
    stated = not numbers.labels and math.isfinite(numbers.target_bound)
    return stated and numbers.power >= _EXACT_MOMENTS * numbers.dim**1.5


def newton_suffices(numbers: PublicNumbers) -> bool:
    """Whether Newton steps of ordered classes, of which nothing is clipped, are exact enough.

    Steps on clipped gradients learn from columns that vary little by far more noise than is there.
    """
    return numbers.ordered and numbers.power >= _EXACT_NEWTON * numbers.dim**1.5


def anchored(numbers: PublicNumbers, given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of methods with differences of gradients from those at an anchor."""
    return descent(numbers, given, noise=_ANCHORED)


def perturbed(numbers: PublicNumbers, given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a minimiser with a random linear term, and how often it reads the records.

    A share of epsilon pays for the curvature of a record, which decides the least penalty; it is
    larger where steps would be too many. What the penalty lacks of it is added.
    """
    budget, L, clip = given["budget"], numbers.smoothness, None
    least = L / _MOST_CONDITIONED
    if budget is not None and budget.epsilon is None:
        raise ValueError(
            "budget must be given as epsilon and delta: a perturbed objective is not Gaussian DP; "
            f"got mu {budget.mu!r}"
        )
    if budget is not None:
        weight = numbers.noise / (2.0 if given["neighbours"] == "replace_one" else 1.0)
        paid = math.expm1(_CURVATURE_SHARE * min(budget.epsilon, 100.0))
        least = max(least, weight * L / paid)
        clip = _grown(_PERTURBED_CLIP, numbers) * numbers.row_bound * numbers.slope
        share = _PERTURBED_SHARE if numbers.labels else 0.6 * _share_of_targets(numbers.dim)
        per_unit = numbers.row_bound * numbers.noise * clip / budget.mu
        least = max(least, per_unit / (share * numbers.margin_noise))
    added, least = max(0.0, least - numbers.penalty), max(least, numbers.penalty)
    return {"clip": clip, "added_l2": added, "passes": math.ceil(40.0 * math.sqrt(1.0 + L / least))}


def variance_reduced(numbers: PublicNumbers, given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of methods with differences of gradients along the path.

    A round of Algorithm 11 has two updates, but for the first, which has none.
    """
    if given["variant"] != "alternate":
        return descent(numbers, given, noise=_DIFFERENCES)
    R = given["rounds"]
    updates = R if is_auto(R) else 2 * max(R - 1, 1)
    found = descent(numbers, {**given, "rounds": updates}, noise=_DIFFERENCES)
    return found | {"rounds": 1 + math.ceil(found["rounds"] / 2)}


def batches(numbers: PublicNumbers, given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of steps on batches; those in turn have their number of rounds."""
    in_turn = given["sampling"] in ("one_pass", "cyclic") and given["batch_size"] == AUTO
    return one_pass(numbers, given) if in_turn else descent(numbers, given)


def one_pass(numbers: PublicNumbers, given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of one pass over disjoint batches, whose noise grows with their number.

    A batch of n / R records has sqrt(R) times as much noise in margins as all records in every
    round, so that R^(3/2) is chosen such that half the largest clip norm suits the horizon.
    """
    R, unit = given["rounds"], 0.5 * _LARGEST_CLIP * numbers.row_bound * numbers.slope
    if is_auto(R):
        R = max(1, min(300, numbers.smallest // 5))
        if numbers.mu < math.inf:
            bold = _BOLD_STEP if numbers.labels else 1.0
            power = _IN_TURN[1] * numbers.reach * numbers.smoothness / (unit * bold)
            R = min(R, math.ceil(power ** (2.0 / 3.0)))
    least, spread, growth = _IN_TURN
    noise = least, spread / math.sqrt(R), growth / math.sqrt(R)
    return descent(numbers, {**given, "rounds": R}, noise=noise)


def localized(numbers: PublicNumbers, given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of phases of accelerated steps, each of so many that its minimiser is approached."""
    R = 30 if is_auto(given["rounds"]) else given["rounds"]
    bold = _RELAXED_STEP if numbers.labels and numbers.mu < math.inf else 1.0
    found = {"rounds": R, "step_size": bold / numbers.smoothness}
    eta = _mean(given["step_size"], found["step_size"])
    phases = 2 if is_auto(given["phases"]) else given["phases"]
    longest = eta * (R / phases) ** 2
    clip, horizon = clip_and_horizon(numbers, given, longest, _EVERY_ROUND)
    return found | {"clip": clip, "prox_step": horizon}


def estimation(numbers: PublicNumbers, given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of estimates with standard errors: the bound of whitened rows.

    The larger it is, the fewer rows have a weight below 1. The noise of scores, and that of
    curvatures, are small parts of the variance of the data for the bounds that are taken.
    """
    if numbers.mu == math.inf:
        return {"clip": None, "rounds": 25}
    if numbers.trust == "silo":  # each has its own
        return {"rounds": 5}
    n = 2.0 / numbers.noise  # of records whose neighbours are replaced
    loss = given["loss"]  # None of ordered classes
    how = {"labels": numbers.labels, "log_link": loss is not None and get_loss(loss).log_link}
    return {"clip": estimation_clip(n, numbers.mu, numbers.dim, **how), "rounds": 5}


def estimation_clip(n: float, mu: float, dim: int, *, labels: bool, log_link: bool) -> float:
    """Return the bound of whitened rows for estimates from n records."""
    d = float(dim)
    if log_link:  # counts, whose scores have a bound far above their size
        return math.sqrt(d * min(max(_LONG_COUNTS * mu**2 * n / d, _LEAST_LONG_COUNTS), 16.0))
    by_scores = 0.02 * mu**2 * n / d
    # Squared norms of rows are less spread about d, the more columns there are. The curvatures of
    # labels, over the largest one, are smaller.
    by_curvatures = 0.025 * mu * n / d**1.75
    short, long = (0.8, 0.33) if labels else (1.0, 0.65)
    # Below 4, weights change what a model that is wrong estimates, more than noise moves it.
    by_curvatures = max(min(short * by_curvatures, 4.0), long * by_curvatures)
    c = min(max(min(max(by_scores, 4.0), by_curvatures), 1.5), 16.0)
    return math.sqrt(c * d)
