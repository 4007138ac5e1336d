"""Mean squared errors of `ridge` beside AdaSSP (Wang 2018), of examples/papers/ridge.py."""

import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.utility_text import Cells, Row, table, wrapped

DRAWS = 50
_PAPERS = str(Path(__file__).parents[1] / "examples" / "papers")
_METHODS = ("adassp_paper", "adassp", "ridge", "no_privacy")

_HOW = """\
Mean squared test errors: `ridge` with its defaults / AdaSSP (Wang 2018) with three releases of
mu^2 / 3 each / AdaSSP with the noise of the paper, which is more for the same guarantee. Means of
{draws} draws at delta 1e-6; records, declared bounds of rows and of targets, and the relation (one
record is replaced) are the same. `examples/papers/ridge.py` says what the synthetic sets are, on
which sets the shares of the budget and the prior of `ridge` were chosen, and prints the same.
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
    """The table, and in how many cells ridge has the larger error."""
    if not regression:
        return []
    epsilons = sorted({key[2] for key in regression})
    head = ["set", *(f"epsilon {epsilon:g}" for epsilon in epsilons), "no privacy", "mean"]
    body = []
    for name in dict.fromkeys(key[0] for key in regression):
        rows = [row for key, row in regression.items() if key[0] == name]
        of = {row["epsilon"]: row for row in rows}
        errors = [
            " / ".join(f"{of[e][method]:.3g}" for method in ("ridge", "adassp", "adassp_paper"))
            for e in epsilons
        ]
        body.append([f"`{name}`", *errors, *(f"{rows[0][k]:.3g}" for k in ("no_privacy", "mean"))])
    every = list(regression.values())
    worse = sum(row["ridge"] > min(row["adassp"], row["adassp_paper"]) for row in every)
    excess = statistics.median(
        (row["ridge"] - row["no_privacy"]) / (row["adassp"] - row["no_privacy"]) for row in every
    )
    said = (
        f" The error of `ridge` is the larger one in {worse} of {len(every)} cells; above that "
        f"without privacy it is {excess:.2f} times that of AdaSSP in the median cell."
    )
    text = wrapped(_HOW.format(draws=every[0]["draws"]) + said)
    return ["## Regression\n", text, table(head, body)]
