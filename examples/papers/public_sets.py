"""The public data sets of the examples, as numbers, with maps that read nothing from the records.

Features are mapped to [0, 1] or [-1, 1] by documented bounds and one-hot codes by documented
values; incomplete records are left out.
"""

import csv
import functools
import gzip
import lzma
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpkern import datasets
from dpkern.data import train_test_split
from dpkern.io import read_table

Array = NDArray[Any]
SEED = 0  # of the division into training and test records, where a set comes without one

FILES = {
    "a9a": ("a9a/a9a.xz", "a9a/a9a.t.xz"),
    "adult": ("adult/adult.data.xz", "adult/adult.test.xz"),
    "wisconsin": ("breast-cancer-wisconsin/breast-cancer-wisconsin.data.xz",),
    "wdbc": (),  # scikit-learn carries it
    "ijcnn1": ("ijcnn1/ijcnn1.xz", "ijcnn1/ijcnn1.t.xz"),
}

# adult.names: the columns used, with the documented values of those that are words. The sampling
# weight is left out, and education, which education-num repeats; of the country only whether it is
# the United States is kept.
_WORDS = {
    1: "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay "
    "Never-worked",
    5: "Married-civ-spouse Divorced Never-married Separated Widowed Married-spouse-absent "
    "Married-AF-spouse",
    6: "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty "
    "Handlers-cleaners Machine-op-inspct Adm-clerical Farming-fishing Transport-moving "
    "Priv-house-serv Protective-serv Armed-Forces",
    7: "Wife Own-child Husband Not-in-family Other-relative Unmarried",
    8: "White Asian-Pac-Islander Amer-Indian-Eskimo Other Black",
    9: "Female Male",
    13: "United-States",
}
_HOURS = 12
_NUMBERS: dict[int, Callable[[float], float]] = {
    0: lambda age: (age - 17.0) / 73.0,
    4: lambda education: (education - 1.0) / 15.0,
    10: lambda gain: math.log1p(gain) / math.log1p(99999.0),
    11: lambda loss: math.log1p(loss) / math.log1p(5000.0),
    _HOURS: lambda hours: (hours - 1.0) / 98.0,
}
_CELL_SIZE = 1  # of the nine columns of the original Wisconsin set, all 1 .. 10
_WORST_RADIUS = 20  # of the thirty columns of the diagnostic set; the last ten are all "worst"


class Task(NamedTuple):
    """Training and test records, and what is to be predicted."""

    target: str
    X: Any
    y: Array
    X_test: Any
    y_test: Array


def load(name: str, regression: bool = False) -> Task:
    """Read a data set.

    Parameters
    ----------
    name : str
        A key of `FILES`.
    regression : bool
        Whether to predict a numeric column in place of the label; a9a and ijcnn1 have none.

    Raises
    ------
    FileNotFoundError
        When the files are not there; the message says which and where from.
    """
    return _LOADERS[name](regression)


def _file(name: str, number: int) -> Path:
    folder = os.environ.get("DPKERN_DATA")
    path = Path(folder or "", FILES[name][number])
    if folder and path.is_file():
        return path
    state = f"{path} is not there" if folder else "the environment variable DPKERN_DATA is not set"
    files = ", ".join(file for files in FILES.values() for file in files)
    raise FileNotFoundError(
        f"{state}. It names a folder with the public files {files}: a9a and ijcnn1 of the "
        "LIBSVM data page, Adult and Breast Cancer Wisconsin (Original) of the UCI repository "
        "(doi 10.24432/C5XW20 and 10.24432/C5HP4Z), each compressed with xz. "
        "The set wdbc needs no file."
    )


def _a9a(regression: bool) -> Task:
    return _libsvm("a9a", regression, 123, "income above 50 000")


def _ijcnn1(regression: bool) -> Task:
    return _libsvm("ijcnn1", regression, 22, "misfiring of an engine", sparse=False)


def _libsvm(name: str, regression: bool, n_features: int, target: str, sparse: bool = True) -> Task:
    if regression:
        raise ValueError(f"{name} has no numeric column to predict")
    train, test = (read_table(_file(name, k), n_features=n_features, sparse=sparse) for k in (0, 1))
    return Task(target, train.X, train.y, test.X, test.y)


def _adult(regression: bool) -> Task:
    parts: list[Array] = []
    for k in (0, 1):
        with lzma.open(_file("adult", k), "rt", encoding="ascii") as stream:
            rows = [row for row in csv.reader(stream, skipinitialspace=True) if len(row) == 15]
        complete = [row for row in rows if "?" not in row]
        parts += _adult_records(complete, regression)
    return Task("hours per week / 49" if regression else "income above 50 000", *parts)


def _adult_records(rows: list[list[str]], regression: bool) -> tuple[Array, Array]:
    columns = list(zip(*rows, strict=True))
    X = [
        [scale(float(entry)) for entry in columns[k]]
        for k, scale in _NUMBERS.items()
        if not (regression and k == _HOURS)
    ]
    X += [
        [float(entry == word) for entry in columns[k]]
        for k, words in _WORDS.items()
        for word in words.split()
    ]
    if regression:
        y = 2.0 * np.array([_NUMBERS[_HOURS](float(entry)) for entry in columns[_HOURS]]) - 1.0
    else:
        y = np.where([entry.startswith(">") for entry in columns[-1]], 1, -1)
    return np.ascontiguousarray(np.array(X).T), y


def _wisconsin(regression: bool) -> Task:
    with lzma.open(_file("wisconsin", 0), "rt", encoding="ascii") as stream:
        rows = [row for row in csv.reader(stream) if row and "?" not in row]
    table = np.array(rows, dtype=np.float64)
    X, y = (table[:, 1:10] - 5.5) / 4.5, np.where(table[:, 10] == 4, 1, -1)
    target = "malignant"
    if regression:
        target, y = "uniformity of cell size / 4.5", X[:, _CELL_SIZE]
        X = np.delete(X, _CELL_SIZE, axis=1)
    return Task(target, *train_test_split(X, y, seed=SEED))


def _wdbc(regression: bool) -> Task:
    table = datasets.wisconsin_table()
    lo, hi = datasets.wisconsin_feature_range()
    X, y, target = (2.0 * table.X - (hi + lo)) / (hi - lo), table.y, "benign"
    if regression:
        target, y = "worst radius / 17.5", X[:, _WORST_RADIUS]
        X = np.ascontiguousarray(X[:, :_WORST_RADIUS])
    return Task(target, *train_test_split(X, y, seed=SEED))


_LOADERS = {"a9a": _a9a, "ijcnn1": _ijcnn1, "adult": _adult, "wisconsin": _wisconsin, "wdbc": _wdbc}


def mnist(part: str) -> tuple[Array, Array]:
    """Pixels in [0, 1] and digits of the file "train" or "t10k".

    Raises
    ------
    FileNotFoundError
        When the files are not there; the message says which and where from.
    """
    folder = Path(os.environ.get("DPKERN_DATA", ""), "mnist")
    try:
        with gzip.open(folder / f"{part}-images-idx3-ubyte.gz") as images:
            pixels = np.frombuffer(images.read(), np.uint8, offset=16).reshape(-1, 784)
        with gzip.open(folder / f"{part}-labels-idx1-ubyte.gz") as labels:
            y = np.frombuffer(labels.read(), np.uint8, offset=8)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{error.filename} is not there. The environment variable DPKERN_DATA names a folder "
            "with the public files of MNIST, as they are distributed, in mnist/."
        ) from None
    return pixels / 255.0, y


@functools.cache
def _mnist_components(dim: int) -> tuple[Array, Array]:
    """Mean and leading principal components of the test file."""
    X, _ = mnist("t10k")
    mean = X.mean(axis=0)
    _, vectors = np.linalg.eigh((X - mean).T @ (X - mean))
    return mean, vectors[:, : -dim - 1 : -1]


def mnist_features(part: str, dim: int) -> tuple[Array, Array]:
    """Coordinates along the leading principal components of the test file, and digits."""
    (X, y), (mean, vectors) = mnist(part), _mnist_components(dim)
    return np.ascontiguousarray((X - mean) @ vectors), y
