"""Readers of tables, records to predict, and feature ranges."""

from __future__ import annotations  # help() then shows type aliases by name

import math
import os
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from dpkern._numbers import count, is_number, parse_number
from dpkern.data.frames import listed
from dpkern.data.validation import FLOATS, Float64Array, Matrix, has_width_read, is_sparse
from dpkern.io.csv_text import csv_rows, read_csv
from dpkern.io.libsvm import looks_like_libsvm, read_libsvm
from dpkern.io.npz import read_npz
from dpkern.io.table import Table, canonical_csr


def read_table(
    path: str | os.PathLike[str],
    *,
    target: str | int | None = None,
    silo_column: str | int | None = None,
    person: str | int | None = None,
    header: bool | None = None,
    sep: str | None = None,
    n_features: int | None = None,
    sparse: bool | None = None,
    classes: ArrayLike | None = None,
    feature_names: tuple[str, ...] | None = None,
    dtype: DTypeLike = np.float64,
) -> Table:
    """Read LIBSVM or CSV text, plain or compressed (.gz, .bz2, .xz), or an .npz archive.

    The suffixes .svm, .libsvm and .t (before .gz and the like) mean LIBSVM, .npz means an archive
    with the arrays X, y and, if there are silos or persons, groups and person. Any other text is
    LIBSVM when its lines look like ``label index:value ...``, and comma-separated values otherwise.

    LIBSVM text gives a CSR matrix, whatever its records hold, and CSV text an ndarray, unless
    `sparse` says otherwise. In an archive, X may also be CSR, with the arrays of
    `scipy.sparse.save_npz`: ``np.savez(path, y=y, format="csr", shape=X.shape, data=X.data,
    indices=X.indices, indptr=X.indptr)``.

    Parameters
    ----------
    path : str or path
    target : str or int, optional
        CSV only: the column of y, by name or index (negative ones count from the end). The default
        is the last column.
    silo_column : str or int, optional
        CSV only: the column with the silo of a record.
    person : str or int, optional
        CSV only: the column with the id of a record's person.
    header : bool, optional
        CSV only: whether the first row holds column names. By default it does if no field of it is
        a number and some field below is, be it with a decimal comma; a first row with numbers and
        with text above numbers raises, and so does one without names beside `feature_names`.
    sep : str, optional
        CSV only: the character between fields. By default the first of comma, semicolon, tab and
        bar that gives the first two lines equally many fields, at least two, most of them numbers.
    n_features : int, optional
        Required number of columns of X. LIBSVM rows with fewer are padded with zeros (an absent
        feature is a zero there); otherwise a file with another number raises. Without it the
        number of LIBSVM text is the largest index in the records, and certificates say so.
    sparse : bool, optional
        Whether X is CSR. By default LIBSVM text is, CSV text is not, and an archive is as stored.
    classes : array_like, optional
        CSV only: the public labels. If they are strings, so are those of y; by default y holds
        strings unless all labels are numbers.
    feature_names : tuple of str, optional
        Required names of the features in a CSV header, in this order.
    dtype : dtype, default=float64
        The dtype of X, float32 or float64.

    Returns
    -------
    Table

    Raises
    ------
    FileNotFoundError, IsADirectoryError
        When there is no such file.
    ValueError
        When the file is empty, damaged, ragged, in no known format, or has missing or non-numeric
        features. The message names the file, the line and the column, and never a value.
    """
    columns: dict[str, Any] = {"target": target, "silo_column": silo_column, "person": person}
    columns |= {"header": header, "sep": sep}
    table = _read(Path(path), columns, n_features, classes, feature_names, dtype, labelled=True)
    if sparse is None or sparse == is_sparse(table.X):
        return table
    if not sparse:
        if has_width_read(table.X):
            raise ValueError(
                "n_features must be the number of features with sparse=False for LIBSVM text, "
                "whose records may have fewer, got None"
            )
        rows: Any = table.X
        return replace(table, X=rows.toarray())
    from scipy.sparse import csr_array

    return replace(table, X=canonical_csr(csr_array(table.X), dtype))


def read_records(
    path: str | os.PathLike[str],
    *,
    n_features: int,
    target: str | int | None = None,
    silo_column: str | int | None = None,
    person: str | int | None = None,
    header: bool | None = None,
    sep: str | None = None,
    classes: ArrayLike | None = None,
    feature_names: tuple[str, ...] | None = None,
    dtype: DTypeLike = np.float64,
) -> tuple[Matrix, NDArray[Any] | None]:
    """Read records to predict, whose labels may be missing.

    Without `target`, a CSV file with n_features columns has no labels, and one with an additional
    column has them in the last one, unless that has the name of a feature. An archive may lack y.
    LIBSVM text always has labels, possibly placeholders.

    Parameters
    ----------
    path, target, silo_column, person, header, sep, classes, feature_names, dtype
        As for `read_table`; the columns of silos and of persons are ignored.
    n_features : int
        Required number of columns of X; LIBSVM rows with fewer are padded with zeros.

    Returns
    -------
    X : ndarray or csr_array of shape (N, n_features)
        As for `read_table`.
    y : ndarray of shape (N,), or None

    Raises
    ------
    FileNotFoundError, IsADirectoryError, ValueError
        As for `read_table`.
    """
    columns: dict[str, Any] = {"target": target, "silo_column": silo_column, "person": person}
    columns |= {"header": header, "sep": sep}
    table = _read(Path(path), columns, n_features, classes, feature_names, dtype, labelled=False)
    return table.X, table.y if len(table.y) else None


def read_feature_range(
    path: str | os.PathLike[str],
    *,
    feature_names: tuple[str, ...] | None = None,
    sep: str | None = None,
) -> tuple[Float64Array, Float64Array]:
    """Read public bounds of features: CSV rows ``lo,hi``, or ``name,lo,hi``, one per feature.

    A first row whose last two fields are not numbers is a header.

    Parameters
    ----------
    path : str or path
        Plain or compressed as for `read_table`.
    feature_names : tuple of str, optional
        Names of the features in their order, for rows with names, which are matched by them alone.
    sep : str, optional
        As for `read_table`.

    Returns
    -------
    lo, hi : ndarray of shape (n_features,), float64

    Raises
    ------
    FileNotFoundError, IsADirectoryError
        When there is no such file.
    ValueError
        When a row has other fields, or the names do not match `feature_names`.
    """
    path = Path(path)
    rows = list(csv_rows(path, sep))
    if rows and len(rows[0][1]) in (2, 3) and not any(map(is_number, rows[0][1][-2:])):
        rows = rows[1:]
    if not rows:
        raise ValueError(
            f"{path} must hold a row lo,hi or name,lo,hi for every feature, got no rows"
        )
    width = len(rows[0][1])
    for line, fields in rows:
        if width not in (2, 3) or len(fields) != width or not all(map(is_number, fields[-2:])):
            raise ValueError(
                f"{path}, line {line} must be lo,hi or name,lo,hi with numbers, as in every row"
            )
    bounds = np.array([[parse_number(field) for field in fields[-2:]] for _, fields in rows])
    for k, ((line, fields), (lo, hi)) in enumerate(zip(rows, bounds.tolist(), strict=True)):
        if not -math.inf < lo < hi < math.inf:
            name = fields[0] if width == 3 else dict(enumerate(feature_names or ())).get(k, k)
            raise ValueError(
                f"{path}, line {line} must have lo < hi, both finite, got {lo!r} and {hi!r} for "
                f"feature {name!r}"
            )
    if width == 3:
        if feature_names is None:
            raise ValueError(
                f"{path} must hold rows lo,hi in the order of the columns for records without "
                "names, got names: give the records a header, or remove the names"
            )
        names = [fields[0] for _, fields in rows]
        rest = {
            "no row for": list((Counter(feature_names) - Counter(names)).elements()),
            "no feature for the rows": list((Counter(names) - Counter(feature_names)).elements()),
        }
        if any(rest.values()):
            found = "; ".join(f"{what} {listed(of)}" for what, of in rest.items() if of)
            raise ValueError(f"{path} must have one row for each feature, got {found}")
        bounds = bounds[[names.index(name) for name in feature_names]]
    return bounds[:, 0].copy(), bounds[:, 1].copy()


def _read(
    path: Path,
    columns: dict[str, Any],
    n_features: int | None,
    classes: ArrayLike | None,
    feature_names: tuple[str, ...] | None,
    dtype: DTypeLike,
    labelled: bool,
) -> Table:
    """Read a table; without labels, which `labelled` requires, y is empty."""
    if n_features is not None:
        n_features = count("n_features", n_features)
    for name in ("target", "silo_column", "person"):
        if not isinstance(columns[name], str | None):
            columns[name] = count(name, columns[name], least=-sys.maxsize)
    if not isinstance(columns["header"], bool | None):
        raise TypeError(f"header must be None, True or False, got {columns['header']!r}")
    if np.dtype(dtype) not in FLOATS:
        raise TypeError(f"dtype must be float32 or float64, got {dtype!r}")
    archive = path.suffix.lower() == ".npz"
    if archive or looks_like_libsvm(path):
        given = [name for name, value in columns.items() if value is not None]
        if given:
            kind = "an .npz archive" if archive else "LIBSVM text"
            raise ValueError(
                f"{', '.join(given)} must be left out for {path}, which is {kind} and no CSV"
            )
        if archive:
            return read_npz(path, n_features, dtype, labelled)
        return read_libsvm(path, n_features, dtype)
    columns = {**columns, "text": np.asarray(classes).dtype.kind == "U"}
    rest: dict[str, Any] = {"feature_names": feature_names, "dtype": dtype, "labelled": labelled}
    return read_csv(path, n_features=n_features, **columns, **rest)
