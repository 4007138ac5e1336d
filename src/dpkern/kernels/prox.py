"""Proximal operators of penalties and constraints."""

import functools
from typing import Any

from numpy.typing import ArrayLike

import dpkern.kernels._arguments as checked
from dpkern import _core
from dpkern._numbers import not_negative
from dpkern._threads import resolve_threads
from dpkern.kernels._arguments import FloatArray
from dpkern.models.penalties import PENALTIES, make_penalty
from dpkern.models.terms import Term


def prox(
    name: str | Term,
    v: ArrayLike,
    gamma: float,
    *,
    out: FloatArray | None = None,
    n_threads: int | None = None,
    **parameters: Any,
) -> FloatArray:
    """Return the prox argmin_x gamma r(x) + |x - v|^2 / 2 of a vector, or of every row.

    Parameters
    ----------
    name : str or Term
        A name below, or an object of `dpkern.models.penalties`.
    v : array_like, shape (d,) or (m, d)
        The finite argument.
    gamma : float
        Step >= 0, finite; without effect on a projection. At most 1/4 for "pl", beyond which some v
        have two minimisers.
    out : ndarray, shape of `v`, optional
        As in `dpkern.kernels`; `v` itself, or without overlap with it. Its contents are undefined
        if `v` is not finite. For vectors larger than the caches a call with `out` is several times
        faster, since it saves page faults.
    n_threads
        As in `dpkern.kernels`.
    **parameters
        Parameters of the penalty, if it is given by name.

    Returns
    -------
    x : ndarray, shape of `v`
        Float64.

    Notes
    -----
    ================  =======================================  ================================
    name              r(x)                                     parameters
    ================  =======================================  ================================
    "l1"              |x|_1
    "l2_squared"      |x|^2 / 2
    "elastic_net"     a |x|_1 + (1 - a) |x|^2 / 2              `l1_ratio` = a in [0, 1]
    "group_lasso"     sum_g weight_g |x_g|                     `groups` (sizes), `weights` or None
    "pl"              |x|^2 + 3 sin^2 |x|
    "l2_ball"         0 where |x| <= radius                    `radius`
    "box"             0 where lower <= x <= upper              `lower`, `upper`: numbers or (d,)
    "non_negative"    0 where x >= 0
    "simplex"         0 where x >= 0 and sum x = total         `total`
    ================  =======================================  ================================

    Threads share the coordinates if r is separable, and else the rows of a matrix. The accuracy of
    projections is stated in `dpkern.models.penalties`. Norms do not overflow.
    """
    penalty = _penalty(name, parameters)
    gamma = not_negative("gamma", gamma) * penalty.strength
    checked.require_step("gamma", gamma, penalty)
    points = checked.real_array("v", v)
    if points.ndim not in (1, 2):
        raise ValueError(f"v must have shape (d,) or (m, d), got {points.shape}")
    checked.require_size("v", points.shape[-1], penalty)
    given, out = out is not None, checked.output(out, points.shape)
    if given:
        checked.require_no_overlap("out", out, "v", points)
    threads = resolve_threads(n_threads, points.size)
    if points.size:
        # A separable r without parameters per coordinate treats all rows as one long vector.
        flat = points.ndim == 1 or (penalty.separable and penalty.size is None)
        shape = (1, points.size) if flat else points.shape
        rows, x, number = points.reshape(shape), out.reshape(shape), _number(penalty.name)
        _core.prox_rows(number, penalty.separable, penalty.params, rows, gamma, x, threads)
    return out


def _penalty(name: str | Term, parameters: dict[str, Any]) -> Term:
    """Return the penalty of the arguments of `prox`."""
    which = name.name if isinstance(name, Term) else name
    if not isinstance(which, str) or which not in PENALTIES:
        raise ValueError(f"name must be one of {', '.join(PENALTIES)}, got {which!r}")
    if isinstance(name, str):
        return make_penalty(name, parameters)
    if parameters:
        raise TypeError(f"parameters must be none beside a Term, got {', '.join(parameters)}")
    return name


@functools.cache
def _number(name: str) -> int:
    """Return the index of a penalty in the compiled table."""
    return _core.prox_names().index(name)
