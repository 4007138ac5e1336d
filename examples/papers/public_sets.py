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
    "kdd99": ("kddcup99-10pct/kddcup.data_10_percent.gz",),
    "bank": ("bank-marketing/bank-additional-full.csv.xz",),
    "creditcard": ("creditcard-balanced984/balanced_creditcard.csv.xz",),
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
# Bank Marketing: numbers, and the documented values of words; a call that never was is a day 999.
_BANK_NUMBERS: dict[str, Callable[[float], float]] = {
    "age": lambda age: (age - 17.0) / 81.0,
    "duration": lambda seconds: math.log1p(seconds) / math.log1p(5000.0),
    "campaign": lambda calls: math.log1p(calls) / math.log1p(60.0),
    "pdays": lambda days: 0.0 if days == 999.0 else 1.0 - days / 30.0,
    "previous": lambda calls: calls / 7.0,
    "emp.var.rate": lambda rate: (rate + 3.4) / 4.8,
    "cons.price.idx": lambda price: (price - 92.0) / 3.0,
    "cons.conf.idx": lambda index: (index + 51.0) / 25.0,
    "euribor3m": lambda rate: rate / 5.1,
    "nr.employed": lambda number: (number - 4950.0) / 280.0,
}
_BANK_WORDS = {
    "job": "admin. blue-collar entrepreneur housemaid management retired self-employed services "
    "student technician unemployed unknown",
    "marital": "divorced married single unknown",
    "education": "basic.4y basic.6y basic.9y high.school illiterate professional.course "
    "university.degree unknown",
    **dict.fromkeys(("default", "housing", "loan"), "no yes unknown"),
    "contact": "cellular telephone",
    "month": "jan feb mar apr may jun jul aug sep oct nov dec",
    "day_of_week": "mon tue wed thu fri",
    "poutcome": "failure nonexistent success",
}
# kddcup.names: words by column, and round bounds of the numbers that are no rates in [0, 1].
_KDD_WORDS = {
    1: "tcp udp icmp",
    2: "aol auth bgp courier csnet_ns ctf daytime discard domain domain_u echo eco_i ecr_i efs "
    "exec finger ftp ftp_data gopher harvest hostnames http http_2784 http_443 http_8001 imap4 IRC "
    "iso_tsap klogin kshell ldap link login mtp name netbios_dgm netbios_ns netbios_ssn netstat "
    "nnsp nntp ntp_u other pm_dump pop_2 pop_3 printer private red_i remote_job rje shell smtp "
    "sql_net ssh sunrpc supdup systat telnet tftp_u tim_i time urh_i urp_i uucp uucp_path vmnet "
    "whois X11 Z39_50",
    3: "OTH REJ RSTO RSTOS0 RSTR S0 S1 S2 S3 SF SH",
}
_KDD_BOUNDS = {0: 1e5, 4: 2e9, 5: 2e9, 7: 3.0, 8: 20.0, 9: 128.0, 10: 5.0, 12: 1e4, 15: 1e4}
_KDD_BOUNDS |= {16: 128.0, 17: 5.0, 18: 10.0, 22: 511.0, 23: 511.0, 31: 255.0, 32: 255.0}
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
        Whether to predict a numeric column in place of the label; only Adult, Bank and the
        two Wisconsin sets have one.

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
        "LIBSVM data page, Adult, Breast Cancer Wisconsin (Original), KDD Cup 1999 and Bank "
        "Marketing of the UCI repository (doi 10.24432/C5XW20, 10.24432/C5HP4Z, 10.24432/C51C7N, "
        "10.24432/C5K306), 492 frauds and as many other records of the credit card set of ULB, "
        "compressed as their names say. "
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


def _one_hot(column: Any, words: str) -> Array:
    return np.array([np.asarray(column) == word for word in words.split()], dtype=np.float64).T


def _kdd99(regression: bool) -> Task:
    """70 000 connections, drawn at random, as many as in the paper: 122 features."""
    if regression:
        raise ValueError("kdd99 has no numeric column to predict")
    with gzip.open(_file("kdd99", 0), "rt", encoding="ascii") as stream:
        rows = list(csv.reader(stream))
    chosen = np.random.default_rng(SEED).permutation(len(rows))[:70_000]
    table = np.array([rows[k] for k in chosen])
    parts = [_one_hot(table[:, k], words) for k, words in _KDD_WORDS.items()]
    numbers = table[:, [k for k in range(41) if k not in _KDD_WORDS]].astype(np.float64)
    for place, k in enumerate(k for k in range(41) if k not in _KDD_WORDS):
        if k in _KDD_BOUNDS:
            numbers[:, place] = np.log1p(numbers[:, place]) / math.log1p(_KDD_BOUNDS[k])
    X, y = np.hstack([numbers, *parts]), np.where(table[:, 41] == "normal.", -1, 1)
    return Task("attack", X[:50_000], y[:50_000], X[50_000:], y[50_000:])


def _bank(regression: bool) -> Task:
    with lzma.open(_file("bank", 0), "rt", encoding="ascii") as stream:
        rows = list(csv.DictReader(stream, delimiter=";"))
    numbers = {k: [f(float(row[k])) for row in rows] for k, f in _BANK_NUMBERS.items()}
    y = np.where([row["y"] == "yes" for row in rows], 1, -1)
    target = "term deposit"
    if regression:
        target, y = "age in units of 40.5 years", 2.0 * np.array(numbers.pop("age")) - 1.0
    words = [_one_hot([row[k] for row in rows], listed) for k, listed in _BANK_WORDS.items()]
    X = np.hstack([np.array(list(numbers.values())).T, *words])
    return Task(target, *train_test_split(X, y, seed=SEED))


def _creditcard(regression: bool) -> Task:
    if regression:
        raise ValueError("creditcard has no numeric column to predict")
    with lzma.open(_file("creditcard", 0), "rt", encoding="ascii") as stream:
        table = np.loadtxt(stream, delimiter=",", skiprows=1)
    X = table[:, :30] / 10.0
    X[:, 0] = table[:, 0] / 172_800.0  # two days of seconds
    X[:, 29] = np.log1p(table[:, 29]) / math.log1p(30_000.0)
    return Task("fraud", *train_test_split(X, np.where(table[:, 30] > 0.5, 1, -1), seed=SEED))


def covtype() -> Task:
    """The forest cover types of the UCI repository, doi 10.24432/C50K5N: spruce or fir or not.

    The ten numbers are divided by round bounds of the documentation's ranges. 500 000 records are
    for training and the other 81 012 for tests.

    Raises
    ------
    FileNotFoundError
        When covtype/covtype.data.gz is not there.
    """
    path = Path(os.environ.get("DPKERN_DATA", ""), "covtype", "covtype.data.gz")
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is not there. The environment variable DPKERN_DATA names a folder with "
            "covtype/covtype.data.gz of the UCI repository (doi 10.24432/C50K5N)."
        )
    table = np.loadtxt(path, delimiter=",", dtype=np.float32)
    bounds = [4000.0, 360.0, 90.0, 1500.0, 700.0, 7500.0, 255.0, 255.0, 255.0, 7500.0]
    table[:, :10] /= np.array(bounds, dtype=np.float32)
    order = np.random.default_rng(SEED).permutation(len(table))
    X, y = table[order, :54], np.where(table[order, 54] == 1.0, 1, -1)
    return Task("spruce or fir", X[:500_000], y[:500_000], X[500_000:], y[500_000:])


_LOADERS = {
    "a9a": _a9a,
    "ijcnn1": _ijcnn1,
    "adult": _adult,
    "wisconsin": _wisconsin,
    "wdbc": _wdbc,
    "kdd99": _kdd99,
    "bank": _bank,
    "creditcard": _creditcard,
}


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
