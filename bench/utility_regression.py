"""Mean squared errors of "auto" and `ridge` beside AdaSSP (Wang 2018): examples/papers/ridge.py."""

import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.utility_text import Cells, Row, table, wrapped

DRAWS = 50
_PAPERS = str(Path(__file__).parents[1] / "examples" / "papers")
_METHODS = ("adassp_paper", "adassp", "ridge", "auto", "no_privacy")

_HOW = """\
Mean squared test errors of `solve("auto")`, which is `gradient_descent` here / `ridge` with its
defaults / AdaSSP (Wang 2018) with three releases of mu^2 / 3 each, which is less noise than the
paper's for the same guarantee. Means of {draws} draws at delta 1e-6; records, declared bounds of
rows and of targets, and the relation (one record is replaced) are the same.
`examples/papers/ridge.py` says what the synthetic sets are and on which of them the shares of the
budget and the prior of `ridge` were chosen, and prints the same; the settings of "auto" for real
targets were chosen on other sets (docs/settings.md).
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
            " / ".join(f"{of[e][method]:.3g}" for method in ("auto", "ridge", "adassp"))
            for e in epsilons
        ]
        body.append([f"`{name}`", *errors, *(f"{rows[0][k]:.3g}" for k in ("no_privacy", "mean"))])
    every = list(regression.values())
    parts = []
    for method in ("auto", "ridge"):
        worse = sum(row[method] > min(row["adassp"], row["adassp_paper"]) for row in every)
        excess = statistics.median(
            (row[method] - row["no_privacy"]) / (row["adassp"] - row["no_privacy"]) for row in every
        )
        parts.append(
            f"The error of `{method}` is larger than that of AdaSSP in {worse} of {len(every)} "
            f"cells; above that without privacy it is {excess:.2f} times that of AdaSSP in the "
            "median cell."
        )
    said = " ".join(["", *parts])
    text = wrapped(_HOW.format(draws=every[0]["draws"]) + said)
    return ["## Regression\n", text, table(head, body)]
