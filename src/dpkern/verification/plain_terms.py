"""Who sees what, and whose data a certificate is about, in words, for `dpkern verify`.

Of `dpkern verify`, and thus without an import of the ledger, the certificate and the guarantees.
"""

import re
from collections.abc import Mapping
from typing import Any

#: Who sees what, by trust.
SEEN_BY = {
    "central": "whoever sees the aggregate of a round",
    "silo": "whoever sees a silo's message",
    "shuffle": "whoever sees the shuffled messages of a round",
    "local": "everybody: a user is believed by itself alone",
}
#: The unit of guarantees for people with several records.
PERSON = re.compile(r"one person with at most (\d+) records?")

_VIEWS = {
    "central": "sees the released aggregates of every round; trusts the aggregator or the secure "
    "aggregation",
    "silo": "sees every message of every silo",
    "shuffle": "sees the shuffled multiset of messages",
    "local": "sees every message of every record's owner",
}
_COLLUDING = (
    "sees the released aggregates of every round, and the noise of up to {} of the silos; trusts "
    "the others to add theirs"
)
_OF_SELECTION = (
    "sees the published run's aggregates of every round, its settings and its score; trusts who "
    "makes the runs, holds all records and shows nothing else, not even how long it takes"
)


def adversary(values: Mapping[str, Any]) -> str:
    """Return what the adversary of a certificate sees."""
    if values["guarantee"]["law"]["name"] == "selection":
        return _OF_SELECTION
    colluding, views = values["declared"].get("colluding"), dict(_VIEWS)
    if colluding is not None:
        views["central"] = _COLLUDING.format(colluding)
    return "; ".join(views[trust] for trust in values["trust"].split(" + "))


def is_unit(values: Mapping[str, Any], of_part: str | None, *, divided: bool) -> bool:
    """Whether the unit is that of the group's size, of the parts, and of what is declared.

    `divided` says that a guarantee for people is one for each of their records, not for sums.
    """
    unit, size, most = values["unit"], values["group_size"], values["declared"].get("max_records")
    if of_part is not None and size == 1:
        return bool(unit == of_part)
    if of_part is None and most is not None:
        people = f"one person with at most {most} record{'' if most == 1 else 's'}"
        return bool(unit == people and size == (most if divided else 1))
    if unit == "one record":
        return bool(size == 1)
    sizes = values["declared"].get("sizes") or [size]
    silo = size == max(sizes if isinstance(sizes, list) else [sizes])
    units = [f"one person with {size} records"] * (size > 1)
    units += [f"one person with at most {size} record{'' if size == 1 else 's'}"]
    units += [f"one silo, of {size} records at most"] * silo
    return unit in units and of_part in (None, "one record")
