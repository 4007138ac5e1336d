"""Mean squared errors of "auto" and `ridge` beside AdaSSP (Wang 2018): examples/papers/ridge.py."""

import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.utility_text import Cells, Row, wrapped

DRAWS = 50
_PAPERS = str(Path(__file__).parents[1] / "examples" / "papers")
_METHODS = ("adassp_paper", "adassp", "ridge", "auto", "no_privacy")

_HOW = """\
In regressions `solve("auto")` was set beside AdaSSP (Wang 2018) with three releases of mu^2 / 3
each, less noise than the paper's for the same guarantee, on {sets} sets at {budgets} budgets, by
mean squared test errors over {draws} draws; `examples/papers/ridge.py` says what the sets are, and
prints the same.
"""


def cells() -> Iterator[Row]:
    """Every set of examples/papers/ridge.py at every budget."""
    sys.path.append(_PAPERS)
    import ridge

    for name, task, bound, intercept in ridge.tasks(
        [*ridge.REAL, *ridge.CHOSEN_ON, *ridge.JUDGED_ON]
    ):
        mean = float(((task.y_test - task.y.mean()) ** 2).mean())
        for epsilon, *found in ridge.errors(task, bound, intercept, DRAWS):
            key = {"set": name, "solver": "ridge", "epsilon": epsilon, "draws": DRAWS}
            yield key | dict(zip(_METHODS, found, strict=True)) | {"mean": mean}


def section(regression: Cells) -> list[str]:
    """In how many cells the defaults have the larger error."""
    if not regression:
        return []
    every = list(regression.values())
    parts = []
    for method in ("auto", "ridge"):
        worse = sum(row[method] > row["adassp"] for row in every)
        excess = statistics.median(
            (row[method] - row["no_privacy"]) / (row["adassp"] - row["no_privacy"]) for row in every
        )
        parts.append(
            f"The error of `{method}` is larger than that of AdaSSP in {worse} of {len(every)} "
            f"cells; above that without privacy it is {excess:.2f} times that of AdaSSP in the "
            "median cell."
        )
    sizes = {"sets": len({row["set"] for row in every})}
    sizes |= {"budgets": len({row["epsilon"] for row in every}), "draws": every[0]["draws"]}
    return [wrapped(" ".join([_HOW.format(**sizes), *parts]))]
