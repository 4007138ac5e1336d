"""The monitor of a run: public records on which its models are evaluated."""

import dataclasses
from typing import Any

import numpy as np

from dpkern.data import SiloData, is_sparse
from dpkern.data.frames import refuse_other_names
from dpkern.solvers.base.objective import Objective
from dpkern.solvers.base.outcome import plain


def _values(data: SiloData) -> Any:
    return data.X.data if is_sparse(data.X) else data.X


def monitored(monitor: Any, objective: Objective) -> Objective | None:
    """Return the objective on the monitor's records, which is the run's own for "train"."""
    data = objective.data
    if monitor is None:
        return None
    if isinstance(monitor, str) and monitor == "train":
        return objective
    if not isinstance(monitor, SiloData):
        raise TypeError(
            "monitor must be None, 'train' or a SiloData of public records, got "
            f"{type(monitor).__name__}"
        )
    refuse_other_names(monitor.feature_names, data.feature_names, "monitor")
    if monitor.transform != data.transform:
        raise ValueError(
            "monitor must have the data's number of features, intercept, feature_range and "
            f"row_bound, got {monitor.transform} for {data.transform}"
        )
    # Empty arrays, of sparse rows without entries, share no memory.
    if monitor is data or np.may_share_memory(_values(monitor), _values(data)):
        raise ValueError(
            "monitor must hold public records, or be 'train', which the certificate names, got "
            "records in the memory of the training data"
        )
    if plain(monitor.classes) != plain(data.classes):
        raise ValueError(f"monitor must have the classes {data.classes}, got {monitor.classes}")
    return dataclasses.replace(objective, data=monitor, public_size=None)
