"""The only door to C: allocate, release the GIL, call, check. Callers have validated."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

F = NDArray[np.float64]
N = NDArray[np.int64]
U = NDArray[np.uint64]
Bytes = bytes | bytearray

openmp: bool

def flushes_denormals() -> bool: ...
def isa_names() -> list[str]: ...
def isa() -> str: ...
def _use_isa(name: str | None) -> None: ...
def loss_names() -> list[str]: ...
def prox_names() -> list[str]: ...
def smooth_names() -> list[str]: ...
def vmath_names() -> list[str]: ...

class Loss:
    def __init__(self, number: int, params: F) -> None: ...
    @staticmethod
    def custom(callable: Any) -> Loss: ...

def clip_and_sum(
    G: NDArray[Any], offsets: N, clip: float, grid: F | None, out: F, n_threads: int
) -> None: ...
def glm_norms(data: Any, out: F, n_threads: int) -> None: ...
def glm_margins(data: Any, w: F, out: F, n_threads: int) -> None: ...
def glm_losses(data: Any, w: F, loss: Loss, out: F, n_threads: int) -> None: ...
def glm_gradient(
    data: Any,
    w: F,
    loss: Loss,
    clip: float,
    grid: F | None,
    silo_weight: F | None,
    rows: tuple[N, N] | None,
    out: F,
    n_threads: int,
) -> None: ...
def glm_difference(
    data: Any,
    w_new: F,
    w_old: F,
    loss: Loss,
    clip: float,
    gradient_clip: float,
    grid: F | None,
    silo_weight: F | None,
    rows: tuple[N, N] | None,
    margins: F | None,
    new_margins: F | None,
    out: F,
    n_threads: int,
) -> None: ...
def glm_hessian(
    data: Any,
    w: F,
    loss: Loss,
    hess_clip: float,
    row_grid: float,
    grid: F | None,
    silo_weight: F | None,
    records: int,
    out: F,
    n_threads: int,
) -> None: ...
def local_descent(
    data: Any,
    w: F,
    loss: Loss,
    clip: float,
    grid: F | None,
    step_size: F,
    penalized: int,
    l2: float,
    anchor: float,
    smooth: int,
    smooth_strength: float,
    prox: int,
    prox_strength: float,
    prox_params: F,
    key: Bytes | None,
    purpose: int,
    sigma: F | None,
    rows: tuple[N, N] | None,
    batch: int,
    silos: NDArray[np.int64],
    out: F,
    n_threads: int,
) -> None: ...
def loss_block(loss: Loss, y: F, z: F, value: F, d1: F, d2: F) -> None: ...
def smooth_factor(smooth: int, norm: float) -> float: ...
def vmath(number: int, x: F, out: F) -> None: ...
def on_grid(sums: F, grid: F) -> bool: ...
def prox_rows(
    prox: int, separable: bool, params: F, v: F, gamma: float, out: F, n_threads: int
) -> None: ...
def chacha20_block(key: Bytes, counter: int, nonce: int, out: bytearray) -> None: ...
def chacha20_chunks(key: Bytes, nonce: int, chunk: int, out: U) -> None: ...
def gaussian(
    key: Bytes, purpose: int, sigma: F, grid: F, out: F, n_threads: int, path: int = 0
) -> None: ...
def gaussian_words(
    key: Bytes,
    nonce: int,
    words: U,
    extra: U | None,
    ratio: float,
    path: int,
    out: F,
    decided_by: NDArray[np.uint8],
) -> None: ...
def goe(diagonal: F, above: F, out: F, n_threads: int) -> None: ...
def shuffle_sum(
    key: Bytes,
    rounding: int,
    noise: int,
    V: F,
    bound: float,
    g: int,
    b: int,
    many: tuple[U, U, N] | None,
    few: tuple[U, U, N] | None,
    count: NDArray[np.int64],
    n_threads: int,
) -> None: ...
def line_search(
    data: Any,
    w: F,
    p: F,
    loss: Loss,
    step: F,
    bound: F | None,
    grid: F | None,
    out: F,
    n_threads: int,
) -> None: ...
def loss_prox(
    data: Any, V: F, gamma: float, loss: Loss, bound: float, out: F, t: F, n_threads: int
) -> None: ...

class Sweeps:
    def __init__(
        self,
        data: Any,
        common: F,
        scale: F | None,
        loss: Loss,
        prox_step: float,
        prox_bound: float,
    ) -> None: ...
    def lay_out(
        self, rows: N | None, relaxation: float, bound: float, grid: float, n_threads: int
    ) -> None: ...
    def sweep(self, z: F, key: Bytes | None, purpose: int, sigma: float) -> F | tuple[F, F]: ...

def mlp_gradient(
    data: Any,
    params: F,
    sizes: NDArray[np.intp],
    activation: int,
    loss: Loss | None,
    clip: float,
    gradient_clip: float,
    unit: float,
    grid: F | None,
    silo_weight: F | None,
    rows: tuple[N, N] | None,
    out: F,
    n_threads: int,
) -> None: ...

class Lapack: ...

NEWTON_MAX: int

def newton_direction(H: F, g: F, floor: float, lapack: Lapack, out: F, n_threads: int) -> None: ...
