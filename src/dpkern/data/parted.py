"""The data of a run whose silos are in several processes, as one of its parties has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dpkern.data.validation import frozen, frozen_matrix

if TYPE_CHECKING:
    from dpkern.data.silo_data import SiloData
    from dpkern.party import Party


def held_by(party: Party, data: SiloData, sizes: Sequence[int]) -> SiloData:
    """Return the data with the sizes of all silos, of which the party holds one, or none.

    Parameters
    ----------
    party : Party
    data : SiloData
        The records of the party's silo, as a single one; for the coordinator any data of the same
        columns, range, bounds, task and classes, none of whose records are used.
    sizes : sequence of int
        Public numbers of records n_j of all silos.

    Raises
    ------
    ValueError
        When the party has another number of records than its size says, or ids of persons.
    """
    if data.is_weighted:
        raise ValueError("data must have neither weight nor margin_offset in a federation")
    if data.persons is not None:
        raise ValueError("person must be None in a federation, whose certificates are for records")
    counts, silo, here = np.array(sizes, dtype=np.int64), party.silo, 0
    if silo is not None:
        here = data.n
        if here != counts[silo]:
            raise ValueError(
                f"sizes must be the numbers of records, got {counts[silo]} for silo {silo}, which "
                "has another one"
            )
    offsets = np.zeros(len(counts) + 1, dtype=np.int64)
    if silo is not None:
        offsets[silo + 1 :] = here
    return data._replaced(
        X=frozen_matrix(data.X[:here]),
        y=frozen(data.y[:here]),
        offsets=frozen(offsets),
        sizes=frozen(counts),
        m=len(counts),
        n=int(counts.sum()),
        silo_names=None,
        row_norms=None if data.row_norms is None else frozen(data.row_norms[:here]),
        party=party,
    )
