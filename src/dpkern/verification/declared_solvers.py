"""The releases that follow from what a run of each solver declares, for `dpkern verify`.

Of `dpkern verify`, and thus without an import of the solvers, the mechanisms and the ledger.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import compress, pairwise
from typing import Any

from dpkern.verification.declared_families import Family, Rows, Values
from dpkern.verification.declared_runs import ENDED_AFTER, ROUNDED, DeclaredRun
from dpkern.verification.plain_releases import (
    DIFFERENCES,
    GRADIENTS,
    as_list,
    curvature,
    least_of_differences,
)

# What distinguishes the options of solvers, the first that are all there.
_SOLVERS = {
    ("operator",): "fixed_point",
    ("users",): "admm",
    ("added_l2",): "objective_perturbation",
    ("floor", "hess_clip"): "local_newton",
    ("trace_share",): "double_noise_newton",
    ("noise", "local_steps"): "local_sgd",
    ("refresh_every",): "variance_reduced",
    ("phases",): "localized_sgd",
    ("sampling",): "minibatches",
    ("momentum",): "gradient_descent",
    ("accounting",): "local_descent",
    ("hess_clip",): "ridge",
    ("local_steps",): "output_perturbation",
    ("coverage",): "private_range",
    ("evaluated",): "evaluation",
    ("described",): "description",
    ("edges",): "survival_curve",
    ("concordance",): "concordance",
}
# A private search has so many candidates, of half the step size each.
_CANDIDATES = 8
# How the descriptions of what a recalibration releases begin.
LINE = "recalibration: "
LEVEL = f"{LINE}sums of targets and of means"
TEMPERATURE = f"{LINE}sum of scores and information of the temperature"
RESIDUALS = f"{LINE}sums of risks less labels, and of information"
_MEAN = "sum of targets over their bound"
_SIZES = f"{LINE}sum of sizes of margins"
_LINE_OF_TARGETS = f"{LINE}sums of residuals, and of these times predictions"
# Losses of which only the level of means is recalibrated.
LOG_LINKS = ("poisson", "gamma", "negative_binomial")
# Losses of labels, for which estimates with standard errors need no sum of targets.
LABELS = ("logistic", "probit", "cloglog")
# What these estimates release.
EST = "inference: sum of "
# Columns of a description: squares of a vector's norm and of the distance of two, and the number of
# coordinates beside the cells.
_BLOCKS = {
    "category": (1.0, 2.0, 0),
    "number": (0.75, 1.79, 2),
    "number or missing": (1.0, 1.79, 3),
}
# Bins of a range end at so many halvings of its wide bounds.
_OCTAVES = 30


class DeclaredSolver(DeclaredRun):
    """The kinds of releases of every solver, of private ranges, evaluations, tables and curves."""

    @property
    def solver(self) -> str | None:
        """The kind of solver, None for a certificate of anything else."""
        if any(str(release["what"]).startswith(EST) for release in self._values["releases"]):
            return "newton_inference"
        declared = self._declared.keys()
        found = (name for options, name in _SOLVERS.items() if declared >= {*options})
        return next(found, None)

    def families(self) -> list[Family]:
        """Return the kinds of releases; raise where what is declared does not say them."""
        found = list(getattr(self, f"_{self.solver}")())
        if self._declared.get("recalibrate"):
            found += self._recalibration()
        if ENDED_AFTER in self._declared:
            found = [family.at_most() for family in found]
        return [*found, self._score()] if self.is_selection else found

    def _score(self) -> Family:
        bound = self._of("score_bound")
        held = sum(self._held(self._of("sizes")))
        what, name = f"score on {held} records", self._of("score")
        if name == "auc":
            return self._about(what, 1, 2.0 * (held - 1), dim=2)
        D = {"log_loss": 6.0, "accuracy": 1.0}.get(str(name), bound)
        return self._about(what, 1, D, dim=1)

    def _recalibration(self) -> Iterator[Family]:
        """Return the releases of a line, a temperature, a level of means, or of targets."""
        loss = self._declared.get("loss")
        if isinstance(loss, Mapping) and loss.get("name") in LOG_LINKS:
            yield self._about(LEVEL, 1, 0.7072 * self.unit, dim=2)
            return
        if self._of("task") == "regression":
            yield self._about(_MEAN, 1, self.unit, dim=1)
            if self._declared.get("line_of_targets"):
                yield self._about(_SIZES, 1, 0.5 * self.unit, dim=1)
                yield self._about(_LINE_OF_TARGETS, 1, 0.7072 * self.unit, dim=2)
            return
        if self.is_ordered:
            K = self._count_of_labels()
            yield self._about(f"{LINE}counts of ordered classes", 1, self.unit, dim=K)
            return
        yield self._about(_SIZES, 1, 0.5 * self.unit, dim=1)
        if self._declared.get("model") is not None:  # a softmax of two classes, too
            yield self._about(TEMPERATURE, 2, 1.04 * self.unit, dim=2)
            return
        yield self._about(f"{LINE}sums of risks and labels", 1, 0.7072 * self.unit, dim=2)
        scores = f"{LINE}sum of scores and information of the slope"
        yield self._about(scores, 2, 1.04 * self.unit, dim=2)
        yield self._about(RESIDUALS, 1, 1.008 * self.unit, dim=2)

    def _gradient_descent(self) -> Iterator[Family]:
        yield self._gradients(self._count("rounds"))

    def _local_descent(self) -> Iterator[Family]:
        """federated_gd, and wd_dp of one round."""
        once = "rounds" not in self._declared
        rounds, K = 1 if once else self._count("rounds"), self._count("local_steps")
        last = self._of("accounting") == "last_iterate"
        if self.paper and (once or K > 1):
            yield self._local_steps(rounds * K)
            if once:
                noise = "noise on the weights, which protects nothing"
                yield Family(noise, (1, 1), [[0.0]], dim=1)
        elif self.paper:
            yield self._gradients(rounds, draws=len(self.sizes))
        elif not (once or last or K > 1):
            yield self._gradients(rounds)
        elif self.trust != "silo":
            yield self._hidden(rounds)
        else:
            yield self._last_iterates(rounds) if last else self._local_steps(rounds * K)

    def _output_perturbation(self) -> Iterator[Family]:
        yield self._hidden(1)

    def _local_newton(self) -> Iterator[Family]:
        steps = self._count("rounds") * self._count("local_steps")
        yield self._gradients(steps)
        yield self._hessians(steps)
        if self._of("step_size") == "private_search":
            largest = self._positive("max_step")
            norm = math.sqrt(math.fsum(4.0**-i for i in range(_CANDIDATES)))
            what = (
                "decreases of the loss along the released direction p, in units of a power of two "
                "above C |p|"
            )
            yield self._about(what, steps, self.unit * largest * norm, dim=_CANDIDATES)

    def _ridge(self) -> Iterator[Family]:
        yield self._hessians(1)
        yield self._gradients(1)

    def _newton_inference(self) -> Iterator[Family]:
        # Silos release rows in units of their own bounds.
        in_units = self.trust == "silo"
        clip = 1.0 if in_units else self._positive("clip")
        R, d = self._positive("row_bound"), self.dim or 0
        root = math.sqrt(2.0) if self.unit == 2.0 else 1.0
        # Of columns that the schema makes depend on each other, fewer are summed.
        r = max(
            (x["dim"] for x in self._values["releases"] if x["what"] == f"{EST}scores"), default=d
        )
        scores = min(int(r), d)
        # A record of ordered classes adds at most 1 to sums over thresholds, and no constant.
        of_constant = self._count_of_labels() - 1 if self.is_ordered else 0
        r, p = scores - of_constant, d - of_constant

        def outer(what: str, times: int, bound: float, r: int = r) -> Family:
            D, dim = root * bound**2, r * (r + 1) // 2
            return self._about(EST + what, times, D, most=ROUNDED, dim=dim)

        if self._of("intercept") or self.is_ordered:
            yield self._about(f"{EST}rows", 1, self.unit * R, dim=p)
        yield outer("outer products of rows", 1, R)
        B = 1.0 if in_units else max(clip, 1.25 * math.sqrt(r))
        yield outer("outer products of whitened rows", 1, B)
        if self.is_ordered:
            clip, what = 1.0, f"{EST}indicators of ordered classes"
            yield self._about(what, 1, self.unit, dim=of_constant + 1)
        loss = self._of("loss")
        name = loss.get("name") if isinstance(loss, Mapping) else loss
        if name not in LABELS and not self.is_ordered:
            what = "squared residuals" if name in ("huber", "squared") else "targets"
            times = 2 if name == "squared" else 1
            yield self._about(EST + what, times, 0.5 * self.unit, dim=1)
        yield self._about(f"{EST}scores", self._count("rounds"), self.unit * clip, dim=scores)
        yield outer("curvatures", self._count("rounds") - 1, clip, scores)
        yield outer("squared scores", 1, clip, scores)

    def _double_noise_newton(self) -> Iterator[Family]:
        rounds = self._count("rounds")
        yield self._gradients(rounds)
        B = self._positive("hess_clip")
        yield self._about("trace of the summed Hessian", rounds, B, most=ROUNDED, dim=1)
        # What a direction costs is a public share beside the gradients'.
        share = self._of("gradient_share")
        rest = 1.0 - (share + self._of("trace_share"))
        (gradients,) = [r for r in self._values["releases"] if r["what"] == GRADIENTS[0]]
        mu = math.sqrt(rest / share) * gradients["sensitivity"] / gradients["std"]

        def least(release: Values) -> list[float]:
            return [mu * release["std"] * (1.0 - 1e-6)]

        yield replace(self._about("Newton direction", rounds, 0.0), least=least)

    def _objective_perturbation(self) -> Iterator[Family]:
        yield self._about(
            "random linear term of the objective", 1, self.unit * self._positive("clip")
        )
        what = "minimiser within a distance of tau"
        yield Family(what, (1, 1), None, dim=self.dim, unknown=("sensitivity",))

    def _fixed_point(self) -> Iterator[Family]:
        rounds, operator = self._count("rounds"), self._of("operator")
        if operator == "admm":
            found = self._states(rounds)
        elif isinstance(operator, Mapping):
            D = float(operator["sensitivity"])
            found = self._about(f"value of {operator['name']}", rounds, D, most=ROUNDED)
        else:
            found = self._gradients(rounds)
        if self._of("activation") != 1.0:  # some rounds may have no active block
            found = replace(found, times=(0, rounds), unknown=("repetitions",))
        yield found

    def _minibatches(self) -> Iterator[Family]:
        yield self._in_batches(GRADIENTS[0], self._participants([1] * self._count("rounds")))

    def _variance_reduced(self) -> Iterator[Family]:
        """spider, and the two of SVRG, whose gradients are of all records."""
        T, q = self._count("rounds"), self._count("refresh_every")
        length, anchored = T, "restarts" in self._declared
        draws = range(T)  # where silos are drawn
        if self._declared.get("variant") == "alternate":
            T = length = 2 * T - 2
            q, draws = 2, range(-1, T, 2)
        elif anchored:
            length = -(-T // self._count("restarts"))
        fresh = [r % length % q == 0 for r in range(T)]
        begins = [max(r, 0) for r in draws if not anchored or fresh[r]]
        M = self._participants([end - r for r, end in pairwise([*begins, T])])
        yield self._in_batches(GRADIENTS[0], [*compress(M, fresh)], full=anchored)
        if not all(fresh):
            yield self._differences([n for n, first in zip(M, fresh, strict=True) if not first])

    def _local_sgd(self) -> Iterator[Family]:
        rounds, K = self._count("rounds"), self._count("local_steps")
        if self._of("noise") == "round":
            batches = self._of("sampling") != "full"
            used = self._uses(rounds * K) if batches else rounds
            yield self._hidden(rounds, min(used, rounds))
        else:
            yield self._in_batches(GRADIENTS[1], self._participants([K] * rounds), K)

    def _localized_sgd(self) -> Iterator[Family]:
        """Sums of which a record is in those of one phase alone."""
        M, of_all = self._participants([1] * self._count("rounds")), len(self.sizes)
        busiest = -(-sum(M) // (of_all * self._count("phases")))
        found = self._in_batches(GRADIENTS[0], M, full=True)
        yield replace(found, charged=busiest, active=())

    def _uses(self, batches: int) -> int:
        """Return in how many of so many batches in turn a record is at most."""
        b = self._count("batch_size")
        return max(-(-batches * b // n) for n in self.sizes)

    def _participants(self, lengths: Sequence[int]) -> list[int]:
        """Return how many silos take part in every release, drawn for so many of them each."""
        m, given = len(self.sizes), self._of("participation")
        M = [m] if given is None else as_list(given)
        if len(M) not in (1, len(lengths)) or any(type(n) is not int or not 1 <= n <= m for n in M):
            raise ValueError("participation")
        M = M * len(lengths) if len(M) == 1 else M
        return [n for n, length in zip(M, lengths, strict=True) for _ in range(length)]

    def _in_batches(
        self, what: str, M: Sequence[int], together: int = 1, *, full: bool = False
    ) -> Family:
        """Return sums over batches of so many silos, in rounds of so many releases."""
        sampling = "full" if full else self._of("sampling")
        sizes, in_turn = self.sizes, sampling in ("one_pass", "cyclic")
        m, times = len(sizes), len(M)
        more: dict[str, Any] = {"charged": times}
        if m > min(M) and self.trust == "silo":
            more |= {"active": () if in_turn else tuple(M), "unknown": ("rounds of one silo",)}
            if in_turn:  # the busiest silo takes part in so many rounds at least
                more["charged"] = -(-sum(M) // together // m) * together
        batches = sizes if sampling == "full" else [self._count("batch_size")] * m
        if in_turn:
            more["charged"] = min(more["charged"], self._uses(times))
        if self.trust == "shuffle":
            ordered = sorted(batches)
            more["vectors"] = sum(ordered[: min(M)]), sum(ordered[m - max(M) :])
            return replace(self._about(what, times, 0.0, **more), least=None)
        return self._gradients(times, what, **more)

    def _differences(self, M: Sequence[int]) -> Family:
        """Return sums of differences, whose sensitivity depends on the distance of two models."""
        found, declared = self._in_batches(DIFFERENCES, M), self._declared
        releases = [r for r in self._values["releases"] if r["what"] == DIFFERENCES]
        if any(least_of_differences(r, declared) is None for r in releases):
            found = replace(found, unknown=(*found.unknown, "sensitivity"))
        if self.trust == "shuffle":
            return found

        def least(release: Values) -> list[float]:
            unknown = [0.0] * (self._silos or 1)
            return least_of_differences(release, declared) or unknown

        return replace(found, least=least, most=None)

    # --- ADMM ---------------------------------------------------------------------------------

    def _states(self, rounds: int) -> Family:
        D = 2.0 * self._positive("prox_step") * self._positive("clip")
        return self._about("sum of the users' states, less its public part", rounds, D)

    def _changes(self, rounds: int) -> Family:
        """Return clipped changes of participants (docs/proofs/changes.md)."""
        bound = self._positive("relaxation") * self._positive("prox_step") * self._positive("clip")

        def least(release: Values) -> list[float]:
            return [2.0 * bound / math.sqrt(release["per_record"])]

        what = "sum of the participants' changes, less its public part"
        return replace(self._about(what, rounds, 0.0), least=least, most=None)

    def _admm(self) -> Iterator[Family]:
        rounds, mode, silos = self._count("rounds"), self._of("mode"), self._of("users") == "silos"
        n = len(self.sizes) if silos else sum(self.sizes)
        M = {"central": n, "token": 1}.get(mode) or self._count("participation")
        more: dict[str, Any] = {"charged": -(-rounds * M // n)}
        if mode != "central":
            more["unknown"] = ("rounds of one user",)
        if self._of("max_participations") is not None:  # a round may be without users
            most = self._count("max_participations")
            more |= {"times": (1, rounds), "charged": min(most, more["charged"])}
        if silos:
            found = self._silo_users(rounds, scheduled=mode != "central")
        elif self.trust == "central" and not self.paper:
            found = self._states(rounds) if mode == "central" else self._changes(rounds)
        else:
            gamma, lam = self._positive("prox_step"), self._positive("relaxation")
            D = 4.0 * lam * gamma * self._positive("clip")
            what = "message of a user"
            if rounds == 1 and not any(r["what"] == what for r in self._values["releases"]):
                what = "sum of the users' messages"
            found = self._about(what, rounds, D, draws=M)
        yield replace(found, **more)

    def _silo_users(self, rounds: int, *, scheduled: bool) -> Family:
        """Return messages of silos, or sums of their hidden states or of changes of these."""
        kind = "sum of the participants' changes" if scheduled else "mean of the silos' states"
        what = "message of a silo" if self._silos else f"weighted {kind}, less its public part"
        clip, gamma, lam = map(self._positive, ("clip", "prox_step", "relaxation"))
        L, R, K = curvature(self._declared), self._positive("row_bound"), self._count("local_steps")
        rows: Rows | None = None
        if L is not None:
            L *= R**2
            c = L / (L + 1.0 / gamma)
            E = gamma * (1.0 - c**K)  # K steps of 1 / (L + 1 / gamma)
            if self._silos:
                rows = [[2.0 * lam * 2.0 * clip / n * E for n in self.sizes]]
            else:
                e = [_state(2.0 * clip / n, L, E, gamma, c**K * gamma * clip) for n in self.sizes]
                times = 4.0 * lam if scheduled else 1.0
                rows = [[max(times * p * x for p, x in zip(self.weights, e, strict=True))]]
        return self._of_rounds(what, rounds, rows)

    def _private_range(self) -> Iterator[Family]:
        bounds = self._of("bounds")
        D = math.sqrt(self.unit * len(bounds))
        dim = sum(map(_bins, bounds))
        yield Family("counts of values in public bins", (1, 1), [[D]], dim=dim)

    def _evaluation(self) -> Iterator[Family]:
        task, bins = self._of("evaluated"), 0
        if task != "regression":
            bins = 3 * self._count("bins") + 2
        K = len(self._of("labels")) if bins else 0
        squares, dim = {
            "classification": ((1.375, 3.5), bins),
            "multiclass": ((2.375, 5.5), bins + K * K),
            "regression": ((1.0, 2.58), 4),
        }[task]
        n, two = self._count("size"), self.unit == 2.0
        silos = self._count("silos") if "silos" in self._declared else None
        messages, draws = (silos, None) if self.trust == "silo" else (None, silos)
        rows = [[math.sqrt(squares[two])] * (messages or 1)]
        what = "sums of an evaluation"
        yield Family(what, (1, 1), rows, dim=dim, draws=draws, messages=messages)
        if task == "classification" and two and silos is None and 2 <= n <= 1 << 25:
            pairs = "concordant less discordant pairs, and positives"
            yield Family(pairs, (1, 1), [[2.0 * (n - 1)]], dim=2)

    def _description(self) -> Iterator[Family]:
        columns, two = self._of("described"), self.unit == 2.0
        pairs, square, dim = self._of("cross_tables"), 0.0 if two else 1.0, 0 if two else 1
        for kind, cells in columns.values():
            of_norm, of_distance, more = _BLOCKS[kind]
            square += of_distance if two else of_norm
            dim += cells + more
        for cells in pairs.values():
            square += 2.0 if two else 1.0
            dim += cells
        yield Family("sums of a description", (1, 1), [[math.sqrt(square)]], dim=dim)

    def _survival_curve(self) -> Iterator[Family]:
        dim = len(self._of("groups")) * (2 * len(self._of("edges")) - 1)
        what = "counts of people by time and event"
        yield Family(what, (1, 1), [[math.sqrt(self.unit)]], dim=dim)

    def _concordance(self) -> Iterator[Family]:
        pairs = "concordant less discordant pairs, and comparable ones"
        yield Family(pairs, (1, 1), [[2.0 * (self._count("size") - 1)]], dim=2)


def _state(shift: float, L: float, E: float, gamma: float, left: float) -> float:
    """Return the smaller bound of the distance of hidden states, without rounding terms.

    `shift` is 2 C / n_j, and `left` bounds how far K steps end from the prox.
    """
    found = [shift * E / (1.0 - L * E)] if L * E < 1.0 else []
    phi, off = gamma * L / (2.0 + gamma * L), 2.0 * left
    root = math.sqrt(phi * off**2 + (1.0 - phi) * (gamma * shift) ** 2)
    return min([*found, (off + root) / (1.0 - phi)])


def _bins(bounds: list[float]) -> int:
    """Return the number of bins of a range with these wide bounds."""
    lo, hi = bounds
    sizes = [math.ldexp(max(abs(lo), abs(hi)), -k) for k in range(_OCTAVES + 1)]
    return len({lo, hi, *(e for q in sizes for e in (-q, q) if lo < e < hi)}) - 1
