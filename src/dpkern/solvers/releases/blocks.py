"""Validation of the relaxations and blocks of the fixed-point iteration."""

import numpy as np
from numpy.typing import NDArray

from dpkern._numbers import count, positive
from dpkern.solvers.base.run import Run
from dpkern.solvers.releases.admm_records import at_most_half

FloatArray = NDArray[np.float64]


def relaxations(run: Run) -> FloatArray:
    """Return lam_k of all rounds."""
    lions_mercier, value = run.parameters["operator"] == "admm", run.parameters["relaxation"]
    if value is None:
        value = 0.5 if lions_mercier else 1.0
    lam = np.asarray(value)
    if lam.dtype.kind not in "fiu":
        raise TypeError(f"relaxation is {value!r}; it must be a number or a sequence of numbers")
    if lam.shape not in ((), (run.rounds,)):
        raise ValueError(
            f"relaxation must be one number or {run.rounds}, one a round; got shape {lam.shape}"
        )
    if not (np.all(lam > 0.0) and np.all(lam <= 1.0)):
        raise ValueError("relaxation must lie in (0, 1]")
    if lions_mercier:
        at_most_half(run, float(lam.max()))
    run.resolve(relaxation=lam)
    return np.broadcast_to(lam, (run.rounds,)).astype(np.float64)


def block_sizes(run: Run) -> NDArray[np.int64]:
    """Return the sizes of the consecutive blocks of u."""
    operator, blocks, d = run.parameters["operator"], run.parameters["blocks"], run.objective.data.d
    if operator == "admm":
        if blocks not in (None, 1) or run.parameters["activation"] != 1.0:
            raise ValueError(
                "operator='admm' has one block, always active: for users that take part in turn "
                "there are the modes of solver admm"
            )
        blocks = 1
    if blocks is None:
        blocks = d if operator == "coordinate" else 1
    if np.ndim(blocks):
        sizes = np.array([count("a block's size", size) for size in blocks], dtype=np.int64)
        if sizes.sum() != d:
            raise ValueError(f"blocks add up to {sizes.sum()}; they must to d = {d}")
        return sizes
    number = count("blocks", blocks)
    if number > d:
        raise ValueError(f"blocks is {number}; there are d = {d} coordinates")
    run.parameters["blocks"] = number
    return np.diff(np.arange(number + 1) * d // number)


def activation_of(run: Run) -> float:
    """Return the activation probability."""
    q = positive("activation", run.parameters["activation"])
    if q > 1.0:
        raise ValueError(f"activation is {q!r}; it must be a probability")
    return q
