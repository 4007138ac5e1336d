"""LIBSVM text: ``label index:value ...``, indices from 1."""

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import DTypeLike

from dpkern._files import OPENERS, opened
from dpkern._numbers import is_number
from dpkern.data.validation import MAX_FEATURES
from dpkern.io.table import Table, canonical_csr, parse_labels, refuse_width, tidy_numbers

_SUFFIXES = (".svm", ".libsvm", ".t")
_LINE = re.compile(rb"[^\s,:]+(\s+(qid|\d+):[^\s,:]+)+")
_SNIFFED_LINES = 50  # several, since a record without nonzero features is a bare label


def looks_like_libsvm(path: Path) -> bool:
    with opened(path) as stream:
        lines = (line.partition(b"#")[0].strip() for line in stream)
        found = [line for line, _ in zip(filter(None, lines), range(_SNIFFED_LINES), strict=False)]
    if not found:
        raise ValueError(f"{path} is empty")
    inner = path.with_suffix("") if path.suffix.lower() in OPENERS else path
    if inner.suffix.lower() in _SUFFIXES:
        return True
    return any(_LINE.fullmatch(line) for line in found)


def read_libsvm(path: Path, n_features: int | None, dtype: DTypeLike) -> Table:
    from sklearn.datasets import load_svmlight_file

    try:
        with opened(path) as stream:
            # zero_based="auto" would shift the columns of a file whose first column is empty.
            rows, y = load_svmlight_file(_Strict(stream), dtype=np.float64, zero_based=False)
            rows.check_format()
    except (ValueError, OverflowError):
        # scikit-learn's message quotes the data and has no line number.
        line = _first_bad_libsvm_line(path)
        if line is None:
            raise
        raise ValueError(
            f"{path}, line {line} must be 'label index:value ...' with numbers and increasing "
            "indices from 1"
        ) from None
    undeclared = n_features is None
    if n_features is not None:
        if rows.shape[1] > n_features:
            refuse_width(path, rows.shape[1], n_features)
        rows.resize((len(y), n_features))
    X = rows.astype(dtype, copy=False)
    long = np.abs(y).max(initial=0.0) >= 2.0**53
    labels = parse_labels(_labels(path)) if long else tidy_numbers(y)
    return Table(canonical_csr(X, dtype, width_is_read=undeclared), labels)


def _labels(path: Path) -> list[str]:
    """Return the labels as they are written, whose doubles may be those of others."""
    with opened(path) as stream:
        lines = (line.partition(b"#")[0].split() for line in stream)
        return [parts[0].decode() for parts in lines if parts]


class _Strict:
    """Lines of a stream, of which those with numbers that `parse_number` refuses are an error."""

    def __init__(self, stream: BinaryIO) -> None:
        self._lines = stream
        self.read = stream.read

    def __iter__(self) -> Iterator[bytes]:
        for line in self._lines:
            if (b"_" in line or not line.isascii()) and not _is_strict(line):
                raise ValueError
            yield line


def _is_strict(line: bytes) -> bool:
    numbers = line.partition(b"#")[0]
    return b"_" not in numbers and numbers.isascii()


def _first_bad_libsvm_line(path: Path) -> int | None:
    with opened(path) as stream:
        for number, line in enumerate(stream, start=1):
            label, *rest = line.partition(b"#")[0].split() or [b"0"]
            pairs = [token.partition(b":") for token in rest if not token.startswith(b"qid:")]
            indices = [int(index) if index.isdigit() else 0 for index, _, _ in pairs]
            increase = all(a < b <= MAX_FEATURES for a, b in pairwise([0, *indices]))
            if (
                not increase
                or not _is_strict(line)
                or not all(map(is_number, [label, *(value for *_, value in pairs)]))
            ):
                return number
    return None
