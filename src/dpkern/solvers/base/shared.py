"""The arguments that all solvers share, and those that methods on batches share."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from dpkern._numbers import not_negative, positive
from dpkern.data import SiloData
from dpkern.models.losses import Loss, get_loss
from dpkern.models.oracles import Oracle
from dpkern.models.penalties import Penalty
from dpkern.privacy import NoiseStream, Release
from dpkern.solvers.base.options import Option, one_of, options_of

Callback = Callable[[int, Release], object]
Monitor = SiloData | Literal["train"] | None
PublicSize = int | Sequence[int] | NDArray[np.integer] | None


def _clip(name: str, value: object) -> float | None:
    return None if value is None else positive(name, value, or_infinite=True)


def _loss(name: str, value: Any) -> Loss:
    if isinstance(value, Oracle):
        raise TypeError(f"{name} must be a loss, got the model {value.name!r}: give it as model=")
    return get_loss(value)


def _model(name: str, value: object) -> Oracle | None:
    if value is not None and not isinstance(value, Oracle):
        raise TypeError(f"{name} must be None or an Oracle, got {type(value).__name__}")
    return value


def _penalty(name: str, value: object) -> Penalty | None:
    if value is not None and not isinstance(value, Penalty):
        raise TypeError(f"{name} must be None or a Penalty, such as dpkern.L1(0.1), got {value!r}")
    return value


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return bool(value)


def _callback(name: str, value: object) -> object:
    if value is not None and not callable(value):
        raise TypeError(f"{name} must be None or callable, got {type(value).__name__}")
    return value


def _shared(
    *,
    clip: Annotated[
        float | None,
        Option(
            "Bound C of one record's gradient in l2 norm: longer ones are scaled down to it. "
            "Needed with a budget; without one gradients are not clipped by default.",
            _clip,
            "float",
        ),
    ] = None,
    loss: Annotated[
        str | Loss,
        Option(
            "Of a linear model: a name or an object of `dpkern.models.losses`.",
            _loss,
            "str or Loss",
        ),
    ] = "logistic",
    model: Annotated[
        Oracle | None,
        Option(
            "A model that is not linear, such as dpkern.MLP(hidden=(64,)) or a subclass of "
            "`dpkern.Oracle`; it has its own loss.",
            _model,
            "Oracle or None",
        ),
    ] = None,
    penalty: Annotated[
        Penalty | None,
        Option(
            "A penalty with its strength, a sum of penalties, or a constraint: dpkern.L1(0.1), "
            "dpkern.L2(1e-3) + dpkern.L1(1e-4), dpkern.Simplex(). L2 and PL act by their gradient, "
            "the others by their prox; with a budget those are for steps that are released or "
            "noisy, not for hidden ones.",
            _penalty,
            "Penalty or None",
        ),
    ] = None,
    l2: Annotated[float, Option("Short for the penalty L2(l2): (l2/2) |w|^2.", not_negative)] = 0.0,
    l1: Annotated[float, Option("Short for the penalty L1(l1): l1 |w|_1.", not_negative)] = 0.0,
    trust: Annotated[
        str,
        Option(
            'Who is believed. "central": the aggregator, which adds the noise to sums over silos; '
            '"silo": every silo by itself alone, which adds noise to each of its messages; '
            '"shuffle": a shuffler of the records\' messages; "local": every record\'s owner.',
            kind='{"central", "silo", "shuffle", "local"}',
            declared=False,
        ),
    ] = "central",
    neighbours: Annotated[
        str,
        Option(
            "What neighbouring data sets differ in: the values of one record, the numbers of "
            "records being public, or whether one record is there, which halves sensitivities and "
            "hides those numbers.",
            kind='{"replace_one", "add_remove"}',
            declared=False,
        ),
    ] = "replace_one",
    public_size: Annotated[
        PublicSize,
        Option(
            'With "add_remove", a public number of records of every silo, or of all together, '
            'which will do under central trust with weights "size", but not for methods on '
            "batches. It stands for the data's own in weights, means, noise, grids and everything "
            "that the result says. It need not be exact: sums of up to twice as many records are "
            "taken whole, and larger ones cut off where they do not fit.",
            kind="int, sequence of m ints or None",
            declared=False,
        ),
    ] = None,
    weights: Annotated[
        Literal["size", "uniform"], Option("Silo weights p_j = n_j / N or 1 / m.")
    ] = "size",
    calibration: Annotated[
        str,
        Option(
            "Noise by this package's proofs, or the formula that the solver's paper prints, with "
            "a certificate of what that really gives.",
            kind='{"sound", "paper"}',
        ),
    ] = "sound",
    penalize_intercept: Annotated[
        bool, Option("Whether penalties act on the intercept too.", _flag)
    ] = True,
    rng: Annotated[
        int | NoiseStream | None,
        Option(
            "Where noise comes from: None is the operating system's entropy; an int is "
            "reproducible, and not private.",
            declared=False,
        ),
    ] = None,
    n_threads: Annotated[
        int | None,
        Option(
            "None means the cores that the process may use. Results do not depend on it.",
            declared=False,
        ),
    ] = None,
    progress: Annotated[bool, Option("Show a progress bar.", declared=False)] = False,
    callback: Annotated[
        Callback | None,
        Option(
            "callback(round, release) after every round.",
            _callback,
            "callable or None",
            declared=False,
        ),
    ] = None,
    monitor: Annotated[
        Monitor,
        Option(
            "Public records on which the objective and the accuracy of every round are kept in the "
            'history, or "train" as a non-private diagnostic.',
            kind='SiloData, "train" or None',
            declared=False,
        ),
    ] = None,
) -> None:
    """The declared arguments; this function is never called."""


SHARED = options_of(_shared)

_SAMPLING = Option(
    "Batches of every silo: all records; secret ones of fixed size, or Poisson ones with "
    "neighbours \"add_remove\", accounted for by dp-accounting (pip install 'dpkern[accounting]') "
    "for a budget of epsilon and delta; or those in turn of a random order of its records, "
    'disjoint ones, or starting over where the order ends ("cyclic"): a record pays as often as '
    "it comes up.",
)


def _batches(
    *,
    batch_size: Annotated[
        int | None,
        Option(
            "Records of a batch in every silo, for Poisson batches on average; None is the "
            "sampler's default.",
        ),
    ] = None,
    participation: Annotated[
        int | None,
        Option(
            "How many silos M of the m take part in a round, drawn in advance and public; None "
            "means all.",
        ),
    ] = None,
    returns: Annotated[
        Literal["last", "random", "average"], Option("The iterate that the result holds.")
    ] = "last",
) -> None:
    """The declared arguments; this function is never called."""


_BATCHES = options_of(_batches)


def batch_options(samplers: tuple[str, ...]) -> dict[str, Option]:
    """The options of a method on batches that are drawn by these samplers."""
    if not samplers:
        return {}
    if len(samplers) == 1:
        return _BATCHES
    kind = "{" + ", ".join(f'"{sampler}"' for sampler in samplers) + "}"
    return {
        "sampling": replace(_SAMPLING, kind=kind, check=one_of(*samplers), default=samplers[0]),
        **_BATCHES,
    }
