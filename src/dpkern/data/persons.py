"""People with several records: which of their rows are used, and where they are.

A person has at most `max_records` rows, the first ones in the order in which rows were given: which
rows are used depends on this order and on the ids alone, never on a value of a row. It is decided
before rows are sorted by silo or shuffled. Of the ids only this is kept: how many rows every person
has, and which they are. It is taken as public, and neighbours under "replace_one" differ in all
values of one person's rows, not in whose rows they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpkern._numbers import count
from dpkern._typing import IntArray
from dpkern.data.ids import ids
from dpkern.data.validation import frozen


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
) -> tuple[Persons | None, IntArray | None, IntArray]:
    """Return the persons, the order of the rows that are used, and the offsets of their silos.

    The order is None without persons. A silo may be left without a row.
    """
    found = kept_rows(person, max_records, int(offsets[-1]))
    if found is None or max_records is None:
        return None, None, offsets
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
