"""The only door to C: allocate, release the GIL, call, check. Callers have validated."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

F = NDArray[np.float64]
N = NDArray[np.int64]

openmp: bool
task_rows: int

def isa_names() -> list[str]: ...
def isa() -> str: ...
def _use_isa(name: str | None) -> None: ...
def loss_names() -> list[str]: ...
def prox_names() -> list[str]: ...
def clip_and_sum(
    G: NDArray[Any], offsets: N, clip: float, grid: F | None, out: F, n_threads: int
) -> None: ...
def glm_margins(data: Any, w: F, out: F, n_threads: int) -> None: ...
def glm_losses(data: Any, w: F, loss: int, params: F, out: F, n_threads: int) -> None: ...
def glm_gradient(
    data: Any,
    w: F,
    loss: int,
    params: F,
    clip: float,
    grid: F | None,
    silo_weight: F | None,
    rows: tuple[N, N] | None,
    out: F,
    n_threads: int,
) -> None: ...
def loss_block(loss: int, params: F, y: F, z: F, value: F, d1: F, d2: F) -> None: ...
def prox_block(prox: int, params: F, v: F, gamma: float, out: F) -> None: ...
