"""What a run declares, and the kinds of releases that follow from it, for `dpkern verify`.

Sensitivities are those of docs/design.md in real arithmetic, below the certified ones by what is
added for rounding. Of `dpkern verify`, and thus without an import of the solvers, the mechanisms
and the ledger.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dpkern.verification.declared_families import Family, Rows, Values
from dpkern.verification.plain_releases import BESIDE, GRADIENTS, as_list, curvature

#: What a run declares that an error ended: the number of its updates.
ENDED_AFTER = "ended_after"
OF_PERSONS = "sum of clipped gradients, clipped for each person"
HESSIANS = "sum of clipped Hessians"
#: The share by which a sensitivity may exceed that of real arithmetic: by the rounding of a sum to
#: a coarser grid, and by all errors of hidden steps.
ROUNDED, HIDDEN = 1.05, 1.4


class DeclaredRun:
    """What a run of one of the solvers declares; attributes are as in docs/design.md."""

    def __init__(self, values: Values) -> None:
        self._values, self._declared = values, values["declared"]
        self.trust = values["trust_of_runs"] or values["trust"]
        self.unit = 2.0 if values["neighbours"] == "replace_one" else 1.0
        self.is_selection = values["guarantee"]["law"]["name"] == "selection"
        self.paper = self._declared.get("calibration") == "paper"

    def is_short(self, release: Values) -> bool:
        """Whether a sum of gradients has less than the sensitivity of its clip norm."""
        sent = [d for d in as_list(release["sensitivity"]) if d > 0.0]
        least = self.unit * (self._declared.get("clip") or 0.0)
        return release["what"] in GRADIENTS and any(d < least for d in sent)

    def is_noted(self) -> bool:
        """Whether notes tell of records that are added or removed, where neighbours are these."""
        notes = self._values["notes"]
        of_solver = "n_features" in self._declared and "coverage" not in self._declared
        told = any(note.startswith("add or remove") for note in notes)
        return self.unit == 2.0 or not of_solver or told

    def tells_its_end(self) -> bool:
        """Whether notes tell that an error ended the run, and only where that is declared.

        Every update has a release.
        """
        ended, after = "the run ended after update ", self._declared.get(ENDED_AFTER)
        told = [note for note in self._values["notes"] if note.startswith(ended)]
        if ENDED_AFTER not in self._declared:
            return not told
        made = sum(release["times"] for release in self._values["releases"])
        counted = type(after) is int and 1 <= after <= made
        return counted and bool(told) and told[0].startswith(f"{ended}{after}, by an error")

    # --- What is declared -------------------------------------------------------------------

    def _of(self, name: str) -> Any:
        if name not in self._declared:
            raise LookupError(f"no {name}")
        return self._declared[name]

    def _count(self, name: str) -> int:
        value = self._of(name)
        if not (isinstance(value, int) and value >= 1):
            raise ValueError(name)
        return value

    def _positive(self, name: str) -> float:
        value = self._of(name)
        if not (isinstance(value, int | float) and 0.0 < value < math.inf):
            raise ValueError(name)
        return float(value)

    @property
    def sizes(self) -> list[int]:
        """n_j of the records that are used: of a selection, of those that train."""
        sizes = as_list(self._of("sizes"))
        if self.is_selection:
            return [n - held for n, held in zip(sizes, self._held(sizes), strict=True)]
        return sizes

    def _held(self, sizes: Sequence[int]) -> list[int]:
        """Return how many records of every silo score the runs of a selection."""
        return [min(max(round(self._of("holdout") * n), 1), n - 1) for n in sizes]

    @property
    def is_ordered(self) -> bool:
        """Whether the model is one of ordered classes, with a threshold between each two."""
        model = self._declared.get("model")
        names = ("all_threshold", "cumulative_logit")
        return isinstance(model, Mapping) and model.get("name") in names

    def _count_of_labels(self) -> int:
        labels = self._of("labels")
        if not (isinstance(labels, list) and len(labels) >= 2):
            raise ValueError("labels")
        return len(labels)

    @property
    def dim(self) -> int | None:
        """The number of coordinates of a linear model, or one of ordered classes."""
        if self.is_ordered:
            return int(self._of("n_features")) + self._count_of_labels() - 1
        if self._declared.get("model") is not None:
            return None
        return int(self._of("n_features")) + bool(self._of("intercept"))

    @property
    def weights(self) -> list[float]:
        """p_j."""
        sizes = self.sizes
        if self._of("weights") == "size":
            return [n / sum(sizes) for n in sizes]
        return [1.0 / len(sizes)] * len(sizes)

    @property
    def _silos(self) -> int | None:
        return len(self.sizes) if self.trust == "silo" else None

    @property
    def _silos_of_all(self) -> int:
        """m; 0 where only one number of all records is declared."""
        return len(self.sizes) if isinstance(self._of("sizes"), list) else 0

    # --- Releases of one kind ---------------------------------------------------------------

    def _about(self, what: str, times: int, D: float, **more: Any) -> Family:
        """Return sums of one sensitivity, under central trust or of every silo."""
        more = {"dim": self.dim, "messages": self._silos, **more}
        messages = more["messages"]
        if more["dim"] is None:  # of a model, which the file does not hold
            more["unknown"] = ("coordinates", *more.get("unknown", ()))
        if self._declared.get("colluding") is not None and messages is None:
            more.setdefault("draws", self._silos_of_all)
        return Family(what, (times, times), [[D] * (messages or 1)], **more)

    def _gradients(self, times: int, what: str = GRADIENTS[0], **more: Any) -> Family:
        D = self.unit * self._positive("clip")
        if self._declared.get("person_clip") is not None:
            if self.is_selection:
                raise ValueError("person_clip of a selection, whose score is of one record")
            what, D = OF_PERSONS, D * self._positive("person_clip")
        if self._declared.get("model") is not None:
            more.setdefault("most", ROUNDED)
        return self._about(what, times, D, **more)

    def _local_steps(self, times: int, **more: Any) -> Family:
        return self._gradients(times, GRADIENTS[1], messages=len(self.sizes), **more)

    def _hessians(self, times: int) -> Family:
        beside = any(r["what"] == HESSIANS + BESIDE for r in self._values["releases"])
        B = self._positive("hess_clip") * (math.sqrt(2.0) if self.unit == 2.0 else 1.0)
        d = self.dim or 0
        found = self._about(
            HESSIANS + (BESIDE if beside else ""), times, B, most=ROUNDED, dim=d * (d + 1) // 2
        )
        return replace(found, least=None) if beside else found

    def _hidden(self, rounds: int, charged: int | None = None) -> Family:
        """Return models after hidden local steps, whose rows are of rounds."""
        K, batch = self._count("local_steps"), self._declared.get("batch_size")
        of = "" if batch is None else f" on batches of {batch}"
        what = f"{'average ' * (self._silos is None)}model after {K} hidden local steps{of}"
        rows = None
        factors = [1.0] * len(self.sizes) if self._silos else self.weights
        if (effects := self._effects(rounds, K)) is not None:
            rows = []
            for etas, expansions in effects:
                of_all = {n: _effect(etas, expansions, n, batch) for n in set(self.sizes)}
                D = [
                    p * 2.0 * self._positive("clip") / (batch or n) * of_all[n]
                    for p, n in zip(factors, self.sizes, strict=True)
                ]
                rows.append(D if self._silos else [max(D)])
        return self._of_rounds(what, rounds, rows, charged=charged)

    def _of_rounds(self, what: str, rounds: int, rows: Rows | None, **more: Any) -> Family:
        found = self._about(what, rounds, 0.0, most=HIDDEN, **more)
        if rows is None:
            return replace(found, least=None, unknown=("sensitivity",))
        return replace(found, least=rows[:1] if all(row == rows[0] for row in rows) else rows)

    def _effects(self, rounds: int, K: int) -> list[tuple[list[float], list[float]]] | None:
        """Return (step sizes, c_t) of every round; None where steps or curvature are not known."""
        L, step, l2 = curvature(self._declared), self._of("step_size"), self._of("l2")
        R = self._positive("row_bound")
        if L is None or self._of("penalty") is not None:
            return None
        L *= R**2
        penalized = self._of("penalize_intercept") or not self._of("intercept")
        low, high = (l2 if penalized else 0.0), l2 + L
        loss = self._declared["loss"]
        if isinstance(loss, Mapping) and not loss.get("convex", True):
            low -= L
        T = rounds * K
        if step == "theorem":
            gamma = max(8.0 * (L + l2) / l2 - 1.0, float(K))
            etas = [2.0 / (l2 * (t + gamma)) for t in range(1, T + 1)]
        else:
            etas = step if isinstance(step, list) else [step] * T
        if len(etas) != T or any(not isinstance(eta, int | float) for eta in etas):
            raise ValueError("step_size")
        parts = [etas[:K]] if not isinstance(step, list | str) else [
            etas[r * K : (r + 1) * K] for r in range(rounds)
        ]  # fmt: skip
        return [
            (part, [max(abs(1.0 - eta * low), abs(1.0 - eta * high)) for eta in part])
            for part in parts
        ]

    def _last_iterates(self, rounds: int) -> Family:
        K, clip = self._count("local_steps"), self._positive("clip")
        what = f"last of {K} noisy local iterates (sensitivity includes the steps before)"
        rows, effects = None, self._effects(rounds, K)
        if effects is not None:
            rows = []
            for etas, expansions in effects:
                c = max(expansions)
                power = c**K
                factor = math.sqrt((1.0 - power) / (1.0 + power) * (1.0 + c) / (1.0 - c))
                rows.append([2.0 * clip * etas[0] / n * factor for n in self.sizes])
        return self._of_rounds(what, rounds, rows, draws=K * len(self.sizes))


def _effect(etas: Sequence[float], expansions: Sequence[float], n: int, batch: int | None) -> float:
    """Return E_K, or the largest sum in its place over positions in the order of batches."""
    if batch is None or batch >= n:
        E = 0.0
        for eta, c in zip(etas, expansions, strict=True):
            E = c * E + eta
        return E
    K = len(etas)
    # Which batches hold a position changes where one begins or ends.
    ends = {t * batch % n for t in range(K)} | {(t * batch - 1) % n for t in range(K + 1)}
    largest = 0.0
    for position in ends:
        E = 0.0
        for t, (eta, c) in enumerate(zip(etas, expansions, strict=True)):
            E = c * E + (eta if (position - t * batch) % n < batch else 0.0)
        largest = max(largest, E)
    return largest
