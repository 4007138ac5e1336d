"""Proximal operators of regularisers and constraints."""

import functools
from typing import Any

from numpy.typing import ArrayLike

import dpkern.kernels._arguments as checked
from dpkern import _core
from dpkern._numbers import not_negative
from dpkern._threads import resolve_threads
from dpkern.kernels._arguments import FloatArray
from dpkern.regularizers import REGULARIZERS, Regularizer, make_regularizer


def prox(
    name: str | Regularizer,
    v: ArrayLike,
    gamma: float,
    *,
    out: FloatArray | None = None,
    n_threads: int | None = None,
    **parameters: Any,
) -> FloatArray:
    """Proximal operator argmin_x gamma r(x) + |x - v|^2 / 2 of a vector, or of every row.

    Parameters
    ----------
    name : str or Regularizer
        A name below, or an object of `dpkern.regularizers`, which holds its parameters.
    v : array_like, shape (d,) or (m, d)
        Finite.
    gamma : float
        Step >= 0, finite; of no effect on a projection. At most 1/4 for "pl": beyond, some v have
        two minimisers.
    out : ndarray, shape of `v`, optional
        As in `dpkern.kernels`. It is `v` itself or shares no memory with it. A call with `out` is
        several times faster on vectors beyond the caches: new memory is mapped page by page.
    n_threads
        As in `dpkern.kernels`.
    **parameters
        The regulariser's own.

    Returns
    -------
    x : ndarray, shape of `v`
        Float64.

    Raises
    ------
    ValueError
        When an argument does not fit. After a `v` that is not finite `out` is of no use.

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

    A vector is cut among threads where r is a sum over coordinates; else the rows of a matrix are.
    Ball, simplex and box are kept up to what `dpkern.regularizers` states. Norms do not overflow.
    """
    regularizer = _regularizer(name, parameters)
    gamma = not_negative("gamma", gamma)
    checked.require_step("gamma", gamma, regularizer)
    points = checked.real_array("v", v)
    if points.ndim not in (1, 2):
        raise ValueError(f"v must have shape (d,) or (m, d), got {points.shape}")
    checked.require_size("v", points.shape[-1], regularizer)
    given, out = out is not None, checked.output(out, points.shape)
    if given:
        checked.require_apart("out", out, "v", points)
    threads = resolve_threads(n_threads, points.size)
    if points.size:
        # Without parameters per coordinate rows are one long vector where coordinates are apart.
        flat = points.ndim == 1 or (regularizer.separable and regularizer.size is None)
        shape = (1, points.size) if flat else points.shape
        _core.prox_rows(
            _number(regularizer.name),
            regularizer.separable,
            regularizer.params,
            points.reshape(shape),
            gamma,
            out.reshape(shape),
            threads,
        )
    return out


def _regularizer(name: str | Regularizer, parameters: dict[str, Any]) -> Regularizer:
    """Return the regulariser that `prox` is asked for."""
    which = name.name if isinstance(name, Regularizer) else name
    if which not in REGULARIZERS:
        raise ValueError(f"name must be one of {', '.join(REGULARIZERS)}, got {which!r}")
    if isinstance(name, str):
        return make_regularizer(name, parameters)
    if parameters:
        raise TypeError(
            f"parameters must be none beside a Regularizer, got {', '.join(parameters)}"
        )
    return name


@functools.cache
def _number(name: str) -> int:
    """Return the number of a regulariser in the compiled table."""
    return _core.prox_names().index(name)
