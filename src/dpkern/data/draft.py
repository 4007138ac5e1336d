"""The text of a schema, and drafts of one, in which columns may have blanks."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dpkern.data.column import blank_keys

VERSION = 1
VERSION_KEY = "dpkern_schema"
MISSING = ("", "?")  #: texts of a missing value in every column


def blanks_of(columns: Sequence[Mapping[str, Any]]) -> str:
    """Return the keys that are still blank, with the columns."""
    names: dict[str, list[str]] = {}
    for column in columns:
        if keys := blank_keys(column.get("kind", ""), column):
            names.setdefault(keys, []).append(str(column.get("name")))
    return "; ".join(f"{keys} of {', '.join(of)}" for keys, of in names.items())


def draft_of(columns: list[dict[str, Any]], **layout: Any) -> dict[str, Any]:
    """Return the dictionary of a schema, in which columns may have blanks."""
    defaults = {"intercept": True, "row_bound": None}
    return {VERSION_KEY: VERSION, **layout, **defaults, "columns": columns}


def schema_text(values: Mapping[str, Any]) -> str:
    """Return a schema, or a draft of one, as JSON with a line for each column."""

    def lines() -> Iterator[str]:
        for key, value in values.items():
            if key != "columns":
                yield f"  {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}"
        columns = [json.dumps(c, ensure_ascii=False) for c in values["columns"]]
        yield '  "columns": [\n    ' + ",\n    ".join(columns) + "\n  ]"

    return "{\n" + ",\n".join(lines()) + "\n}\n"
