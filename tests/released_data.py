"""Small fixed records for the runs of `released_bits`."""

import functools
import hashlib
import math
from typing import Any

import numpy as np
import scipy.sparse

import dpkern as dpk

Matrix = np.ndarray


def numbers(name: str, *shape: int) -> Matrix:
    """Multiples of 2^-9 in [-2, 2) that are the same on every machine."""
    size = math.prod(shape)
    words = np.frombuffer(hashlib.shake_256(name.encode()).digest(2 * size), dtype="<u2")
    return ((words % 2048).astype(np.float64) / 512.0 - 2.0).reshape(shape)


@functools.cache
def data(key: str) -> dpk.SiloData:
    """Records by name: a layout, then what differs from 60 records in silos of 10, 20 and 30."""
    layout, *others = key.split("-")
    n, p, cuts = (600, 11, [0, 90, 91, 300, 600]) if "large" in others else (60, 4, [0, 10, 30, 60])
    if "wide" in others:
        p = 70
    if "even" in others:
        cuts = [0, 20, 40, 60]
    name = "other X" if "other" in others else "X"
    X, noise = numbers(name, n, p), numbers("noise", n)
    z = X @ np.linspace(-1.0, 1.5, p).round(1) + 0.5 * noise
    options: dict[str, Any] = {"intercept": True, "row_bound": 2.0}
    y: Matrix = np.where(z > 0.0, 1.0, -1.0)
    if "regression" in others:
        y, options["task"] = z, "regression"
    if "counts" in others:
        y, options["task"] = np.maximum(np.rint(z + 1.0), 0.0), "regression"
        options |= {"weight": numbers("weight", n) + 2.0, "max_weight": 3.0}
        options["margin_offset"] = 0.25 * numbers("offset", n)
    if "multiclass" in others:
        y = X[:, :3].argmax(axis=1)
        options |= {"task": "multiclass", "classes": [0, 1, 2], "intercept": False}
    if "model" in others:
        options["intercept"] = False
    rows: Any = X
    if layout == "float32":
        rows = X.astype(np.float32)
    elif layout == "csr":
        rows = scipy.sparse.csr_array(np.where(numbers("zeros", n, p) < 0.5, 0.0, X))
    elif layout == "range":
        options |= {"feature_range": (-1.5, 2.5), "row_bound": 1.25}
    elif layout == "plain":
        options = {k: v for k, v in options.items() if k in ("task", "classes")}
    return dpk.SiloData(rows, y, cuts, **options)
