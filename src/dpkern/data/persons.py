"""People with several records: which of their rows are used, and where they are.

A person has at most `max_records` rows, the first ones in the order in which rows were given: which
rows are used depends on this order and on the ids alone, never on a value of a row. It is decided
before rows are sorted by silo or shuffled. Of the ids only this is kept: how many rows every person
has, and which they are. It is taken as public, and neighbours under "replace_one" differ in all
values of one person's rows, not in whose rows they are.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpkern._numbers import count
from dpkern._typing import IntArray
from dpkern.data.labels import ids
from dpkern.data.validation import frozen

T = TypeVar("T")

_OTHERS = (
    "blocks with person must hold the same records in the same order in every pass, got others"
)


@dataclass(frozen=True, eq=False)
class Persons:
    """The persons of a data set, without their ids.

    Attributes
    ----------
    max_records : int
        k, the largest number of rows of a person, over all silos.
    offsets : ndarray of shape (P + 1,), int64, or None
        Person i has the rows offsets[i] to offsets[i + 1], all of them in one silo; persons of a
        silo are sorted by their number of rows. None where silos divide a person.
    """

    max_records: int
    offsets: IntArray | None = field(default=None, repr=False)

    @property
    def typical(self) -> int | None:
        """The median number of rows of a person, the larger one of two; None for divided ones."""
        if self.offsets is None:
            return None
        sizes = np.sort(np.diff(self.offsets))
        return int(sizes[len(sizes) // 2])


def kept_rows(
    person: ArrayLike | None, max_records: int | None, n: int
) -> tuple[IntArray, IntArray] | None:
    """Return the rows that are used, in the order given, and the number of the person of each.

    Persons are numbered as they first appear. None where neither argument is given.
    """
    if person is None and max_records is None:
        return None
    if person is None:
        raise ValueError("max_records must be left out without person, the ids of rows' persons")
    if max_records is None:
        raise ValueError("max_records must be given with person: how many rows of one are used")
    most = count("max_records", max_records)
    _, first, number = np.unique(ids(person, n, "person"), True, True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    number = rank[number.reshape(n)]
    by_person, sizes = np.argsort(number, kind="stable"), np.bincount(number)
    place = np.empty(n, dtype=np.int64)
    place[by_person] = np.arange(n) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    rows = np.flatnonzero(place < most)
    return rows, number[rows]


def arranged(
    person: ArrayLike | None, max_records: int | None, offsets: IntArray
) -> tuple[Persons, IntArray, IntArray]:
    """Return the persons, the order of the rows that are used, and the offsets of their silos.

    A silo may be left without a row.
    """
    found = kept_rows(person, max_records, int(offsets[-1]))
    assert found is not None
    assert max_records is not None
    (rows, number), most = found, int(max_records)
    silo = np.searchsorted(offsets, rows, side="right") - 1
    new = np.append(0, np.cumsum(np.bincount(silo, minlength=len(offsets) - 1)))
    sizes = np.bincount(number)
    order = np.lexsort((number, sizes[number], silo))
    last = np.append(np.diff(number[order]) != 0, True)
    if np.count_nonzero(last | np.append(np.diff(silo[order]) != 0, True)) > len(sizes):
        return Persons(most), rows, new
    ends = np.append(0, 1 + np.flatnonzero(last))
    return Persons(most, frozen(ends.astype(np.int64))), rows[order], new


def whole_in_silos(number: IntArray, order: IntArray, sizes: IntArray) -> tuple[IntArray, IntArray]:
    """Return the order of rows and the sizes of silos from those of persons, by their numbers.

    Rows are then as `arranged` has them, so that they need not be copied again.
    """
    position = np.empty(len(order), dtype=np.int64)
    position[order] = np.arange(len(order))
    place, records = position[number], np.bincount(number)[number]
    silo = np.repeat(np.arange(len(sizes)), sizes)[place]
    return np.lexsort((place, records, silo)), np.bincount(silo, minlength=len(sizes))


class FirstRecords:
    """Which records are used where they are read in blocks: the first ones of every person.

    The first pass counts, and keeps a bit of every record: whether it is used. Later passes must
    read the same ids in the same order, as bits would be those of other records.

    Attributes
    ----------
    numbers : dict
        Until `forget`: how many records of every person are used.
    """

    def __init__(self, max_records: int) -> None:
        self.numbers: dict[Any, int] = {}
        self._most, self._n = count("max_records", max_records), 0
        self._bits: NDArray[np.uint8] | None = None
        self._digest = b""

    def of(self, blocks: Iterable[tuple[T, NDArray[Any]]]) -> Iterator[tuple[T, NDArray[np.bool_]]]:
        """Yield blocks, which come with ids of their records, with the mask of those in use."""
        counted: list[NDArray[np.bool_]] = []
        n, read, again = 0, blake2b(), self._bits is not None
        for block, person in blocks:
            used = self._kept(n, len(person)) if again else self._counted(person)
            if not again:
                counted.append(used)
            n += len(person)
            read.update(_as_bytes(person))
            yield block, used
        if not again:
            self._bits = np.packbits(np.concatenate([np.empty(0, np.bool_), *counted]))
            self._n, self._digest = n, read.digest()
        elif (n, read.digest()) != (self._n, self._digest):
            raise ValueError(_OTHERS)

    def forget(self) -> None:
        """Release the ids, which later passes do not need."""
        self.numbers = {}

    def _counted(self, person: NDArray[Any]) -> NDArray[np.bool_]:
        numbers, most, used = self.numbers, self._most, []
        refuse_mixed(numbers, given := person.tolist())
        for name in given:
            if is_used := (number := numbers.get(name, 0)) < most:
                numbers[name] = number + 1
            used.append(is_used)
        return np.array(used, dtype=np.bool_)

    def _kept(self, begin: int, size: int) -> NDArray[np.bool_]:
        if begin + size > self._n or self._bits is None:
            raise ValueError(_OTHERS)
        bits = np.unpackbits(self._bits[begin // 8 : -(-(begin + size) // 8)])
        return bits[begin % 8 : begin % 8 + size].astype(np.bool_)


def refuse_mixed(*ids_of: Iterable[Any]) -> None:
    """Raise TypeError where some collections of ids are text, and others numbers."""
    kinds = {type(name) for given in ids_of for name in islice(given, 1)}
    if len(kinds) > 1 and kinds & {str, bytes}:
        raise TypeError("person must be text in all blocks, or numbers in all, got both")


def _as_bytes(person: NDArray[Any]) -> bytes:
    """Return ids as bytes that are the same for other blocks of the same records."""
    if person.dtype.kind == "U":
        return "\0".join([*person.tolist(), ""]).encode("utf-8", "surrogatepass")
    if person.dtype.kind == "S":
        return b"\0".join([*person.tolist(), b""])
    return person.astype(np.float64 if person.dtype.kind == "f" else np.int64).tobytes()


def joined_ids(person: Any, sizes: Sequence[int]) -> NDArray[Any]:
    """Return the ids of all rows from one sequence of ids per silo."""
    given = list(person)
    if len(given) != len(sizes):
        raise ValueError(
            f"person must hold the ids of the rows of each of {len(sizes)} silos, got {len(given)}"
        )
    found = [ids(own, n, "person") for own, n in zip(given, sizes, strict=True)]
    if len({own.dtype.kind in "US" for own in found}) > 1:
        raise TypeError("person must be strings in every silo or numbers in every silo, got both")
    return np.concatenate(found)
