"""Newton directions by eigendecomposition."""

import numpy as np


def newton_direction(H, g, *, floor, n_threads=None):
    p = np.empty(np.shape(g))
    for j, (matrix, gradient) in enumerate(zip(H, g, strict=True)):
        lam, V = np.linalg.eigh(matrix, UPLO="L")
        p[j] = V @ ((V.T @ gradient) / np.maximum(lam, floor))
    return p
