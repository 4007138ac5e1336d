"""Neighbouring data sets that a solver's releases tell apart nearly as well as is certified.

All records but one are zeros, which move nothing. Of one feature, the record in question is a long
row, whose gradient has the norm C and whose Hessian has the largest norm there is; in its place is
a short row, with the opposite gradient of norm C and hardly a Hessian. For differences of gradients
both have about 2C, so that one's gradient is just below C, and moves with the model, and the
other's is just above, and is clipped to the same wherever the model is. Steps are so short that
models stay where all this holds. Of secret samples of a fixed size all other records are like the
short row: a sample without the record is then as far from one with it as any.
"""

from typing import Any

import numpy as np
import scipy.sparse

from dpkern._numbers import positive
from dpkern.data import SiloData
from dpkern.solvers import SOLVERS

Arguments = dict[str, Any]

# The two rows in units of C; the row bound is the larger one.
_ROWS, _ROWS_OF_DIFFERENCES = (50.0, 4.0), (1.98, 2.02)


def worst_pair(
    solver: str, *, trust: str, neighbours: str, n: int | None, m: int, how: Arguments
) -> tuple[SiloData, SiloData, Arguments]:
    """Return data with the record and without it, m silos of n, and the arguments of the runs."""
    declaration = SOLVERS[solver].declaration
    of_silos = declaration.of_silos if trust == "silo" else {}
    arguments = {"clip": 1.0, **of_silos, **declaration.audit, **how}
    if trust == "local":
        n = 1  # everybody's own messages are seen: those of others say nothing
    if n is None:
        n = 400 if trust == "shuffle" else 4  # counts of many are in finer steps
        if arguments.get("sampling") in ("without_replacement", "poisson"):
            n = 20
            arguments.setdefault("batch_size", 5)
    if declaration.samplers == ("one_pass",):
        arguments.setdefault("batch_size", n // arguments["rounds"])
    clip = positive("clip", arguments["clip"])
    first, second = _ROWS_OF_DIFFERENCES if declaration.differences else _ROWS
    labels = np.where(np.arange(n) % 2, -1.0, 1.0)
    rows = np.zeros((n, 1))
    if arguments.get("sampling") == "without_replacement":
        rows, labels = np.full((n, 1), second * clip), np.full(n, -1.0)
    silos = [(rows, labels) for _ in range(m)]

    def silos_with(row: float, label: float) -> list[tuple[Any, Any]]:
        X, y = rows.copy(), labels.copy()
        X[0], y[0] = row * clip, label
        return [(X, y), *silos[1:]]

    inside, outside = silos_with(first, 1.0), silos_with(second, -1.0)
    arguments |= {"trust": trust, "neighbours": neighbours}
    if neighbours == "add_remove":
        outside = [(X[j == 0 :], y[j == 0 :]) for j, (X, y) in enumerate(inside)]
        arguments.setdefault("public_size", [n] * m)
    options: Arguments = {"row_bound": max(first, second) * clip, "classes": [-1.0, 1.0]}
    with_it, without = (SiloData.from_silos(found, **options) for found in (inside, outside))
    return with_it, without, arguments


def of_own_data(
    data: SiloData, *, trust: str, neighbours: str, how: Arguments
) -> tuple[SiloData, SiloData, Arguments]:
    """Return two neighbours made of the user's data, and the arguments of runs on them.

    The first record has the label +1 in one of them, and -1, or none, in the other.

    Its row is as long as the row bound allows, along the first feature.
    """
    if data.task != "classification" or data.persons is not None or data.feature_range is not None:
        raise ValueError(
            "data must be for classification, without persons and feature_range, for an audit; "
            f"got {data!r}"
        )
    if data.is_weighted:
        raise ValueError("data must have neither weight nor margin_offset, for an audit, got them")
    if scipy.sparse.issparse(data.X):
        raise ValueError("data must have a dense X, for an audit, got a sparse one")
    if not np.isfinite(data.row_bound) or data.row_bound <= 1.0:
        raise ValueError(f"data must have a row_bound above 1, for an audit, got {data.row_bound}")
    classes = data.classes
    assert classes is not None
    row = np.zeros(data.n_features, dtype=data.X.dtype)
    row[0] = np.sqrt(data.row_bound**2 - data.intercept)
    options: Arguments = {
        "intercept": data.intercept,
        "row_bound": data.row_bound,
        "classes": classes,
    }

    def with_label(label: float) -> SiloData:
        X, y = data.X.copy(), data.y.copy()
        X[0], y[0] = row, label
        names = classes[(y > 0.0).astype(int)]
        return SiloData(X, names, data.offsets, **options)._replaced(notes=data.notes)

    arguments = {**how, "trust": trust, "neighbours": neighbours}
    inside, outside = with_label(1.0), with_label(-1.0)
    if neighbours == "add_remove":
        offsets = np.maximum(data.offsets - 1, 0)
        names = classes[(data.y[1:] > 0.0).astype(int)]
        made = SiloData(data.X[1:].copy(), names, offsets, **options)
        outside = made._replaced(notes=data.notes)
        arguments.setdefault("public_size", data.sizes.tolist())
    return inside, outside, arguments
