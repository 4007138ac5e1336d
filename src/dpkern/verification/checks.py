"""The checks of one certificate in plain numbers, for `dpkern verify`.

Nothing of the ledger, the certificate and the guarantees is imported (`dpkern.verification`).
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpkern.verification.declared_families import summed
from dpkern.verification.declared_solvers import DeclaredSolver
from dpkern.verification.plain_releases import (
    BESIDE,
    STD,
    as_list,
    close,
    event,
    is_beside,
    is_sampled,
    problems,
    volume,
)
from dpkern.verification.plain_terms import PERSON, SEEN_BY, adversary, is_unit
from dpkern.verification.recomputation import (
    AMPLIFIED,
    DIGITS,
    Guarantee,
    binomial_mu,
    mean_runs,
    multiprecision,
    multiset,
)

TAKEN = "taken as stated"
#: What no arithmetic tells of any certificate, and its name among the checks.
_REST = "noise, stds, neighbours, readers, bound, declared, claimed, notes, names, sources, start"
ALWAYS = "always"
_MODEL = re.compile(r"sha256:[0-9a-f]{64}")
_START = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
#: How the description of a selection's last release begins.
SCORE = "score"
# The relative excess of a stated figure over the recomputed one, by roundings, of parts too.
_ROUNDING = 1e-12
# The same of the bound of binomial noise.
_BOUND = 0.02


@dataclass(frozen=True)
class Check:
    """One comparison: what, as stated, as recomputed, and whether they agree."""

    what: str
    stated: str
    recomputed: str
    ok: bool


class Verifier:
    """The checks of a certificate in plain numbers, and of its parts."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values, self._mp = values, multiprecision()
        self.n_draws: int
        self.has_coins: bool
        self._stated = values["guarantee"]
        self._wrong: list[str] = []
        self._taken: dict[str, str] = {}  # what nothing is compared with
        self.parts = [Verifier(part) for part in values.get("parts", ())]
        if self.parts:
            self._refuse(values["composition"] not in ("sequential", "parallel"), "composition")
            self._refuse("releases" in values, "releases beside those of the parts")
            self.name, self.of = self._composed()
            self.n_draws = (sum if self._sequential else max)(p.n_draws for p in self.parts)
            self.has_coins = any(part.has_coins for part in self.parts)
            self._check_composition()
        else:
            self.name, self.of = self._of_run()
            self.n_draws = sum(self._draws(release) for release in values["releases"])
            self.has_coins = any(r["coins"] is not None for r in values["releases"])
            self._check_run()
        self._in_group()
        self._check_fields()

    @property
    def _sequential(self) -> bool:
        return bool(self._values["composition"] == "sequential")

    def _refuse(self, wrong: bool, what: str) -> None:
        if wrong:
            self._wrong.append(what)

    def checks(self) -> list[Check]:
        releases = len(self._values.get("releases", ()))
        number, noun = (len(self.parts), "part") if self.parts else (releases, "release")
        what = f"{number} {noun}{'s' if number != 1 else ''}"
        wrong = ", ".join(dict.fromkeys(self._wrong))
        found = [Check("structure", what, wrong or "consistent", not wrong)]
        if self._stated["law"]["name"] != self.name:
            return [*found, Check("law", self._stated["law"]["name"], self.name, False)]
        if not self._mp.isinf(self.of.get("mu", 0)):
            found.append(Check(ALWAYS, _REST, TAKEN, True))
        for name, value in self._taken.items():
            found.append(Check(name, value, TAKEN, True))
        found += self._parameters()
        found += self._figures()
        for i, part in enumerate(self.parts, 1):
            found += [
                Check(f"part {i}: {c.what}", c.stated, c.recomputed, c.ok) for c in part.checks()
            ]
        return found

    # --- What the releases say ---------------------------------------------------------------

    def _of_run(self) -> tuple[str, dict[str, Any]]:
        """Return the guarantee of the releases of one run."""
        mp, values, releases = self._mp, self._values, self._values["releases"]
        none = "gaussian", {"mu": mp.inf}
        if values["arithmetic"] == "float" or any(r["std"] and r["grid"] is None for r in releases):
            self._refuse(values["arithmetic"] != "float", "noise without a grid is float")
            return none
        stated = self._stated["law"]
        if stated["name"] == "selection":
            return "selection", self._selection(stated, releases)
        laws = [r["minimiser"] for r in releases if "minimiser" in r]
        if laws and stated["name"] == "gaussian":  # not one minimiser alone
            return none
        if laws:
            return "objective_perturbation", self._minimiser(laws, releases)
        total = self._mu_squared(releases)
        if mp.isinf(total):
            return none
        mu = mp.sqrt(total)
        if any(r["coins"] is not None for r in releases):
            # The bound that dpkern computes is this little larger.
            taken = mp.mpf(stated.get("mu", mp.inf)) / self._values["group_size"]
            mu = taken if mu <= taken <= mu * (1 + _BOUND) else mu
        return "gaussian", {"mu": mu}

    def _mu_squared(self, releases: Sequence[Mapping[str, Any]]) -> Any:
        """Return the largest total over silos of charged D^2 / s^2."""
        mp = self._mp
        silos = max((len(as_list(r["sensitivity"])) for r in releases), default=1)
        sums = [mp.mpf(0)] * silos
        series: dict[int, list[tuple[int, list[Any]]]] = {}
        capped: dict[int, int] = {}
        for r in releases:
            charged = r["times"] if r["per_record"] is None else min(r["times"], r["per_record"])
            shares = self._once(r)
            shares = shares if isinstance(r["sensitivity"], list) else shares * silos
            if r.get("series") is not None:
                series.setdefault(r["series"], []).append((r["times"], shares))
                capped[r["series"]] = max(capped.get(r["series"], 0), r["per_record"])
                continue
            for j in range(silos):
                sums[j] += charged * shares[j]
        for number, rounds in series.items():
            for j in range(silos):
                every = [shares[j] for times, shares in rounds for _ in range(times)]
                sums[j] += mp.fsum(sorted(every, reverse=True)[: capped[number]])
        return max(sums)

    def _once(self, release: Mapping[str, Any]) -> list[Any]:
        """Return D^2 / s^2 of one repetition of each message."""
        mp, std, shares = self._mp, as_list(release["std"]), []
        for j, d in enumerate(as_list(release["sensitivity"])):
            s = std[j] if std else 0.0
            if release["coins"] is not None:
                shares.append(binomial_mu(release["coins"], d) ** 2)
            elif d == 0.0:
                shares.append(mp.mpf(0))
            else:
                shares.append((mp.mpf(d) / s) ** 2 if s else mp.inf)
        return shares

    def _draws(self, release: Mapping[str, Any]) -> int:
        if release["draws"] is not None:
            return int(release["times"] * release["draws"])
        pairs = zip(as_list(release["sensitivity"]), as_list(release["std"]), strict=False)
        return int(release["times"] * release["dim"] * sum(d > 0.0 and s > 0.0 for d, s in pairs))

    def _minimiser(
        self, laws: Sequence[Mapping[str, Any]], releases: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Return the guarantee of one minimiser, checked against its two releases, and others."""
        law, linear = laws[0], next(r for r in releases if "minimiser" in r)
        messages = [r for r in releases if r["what"] == "minimiser within a distance of tau"]
        others = [r for r in releases if "minimiser" not in r and r not in messages]
        once = len(laws) == len(messages) == 1 == linear["times"] == messages[0]["times"]
        self._refuse(not once, "a minimiser is released once")
        shift = self._mp.sqrt(self._mu_squared([linear]))
        self._refuse(not close(law["shift"], shift, STD), "shift of the linear term")
        self._refuse(linear["seen_by"] != "nobody", "the linear term is seen")
        spent = self._mp.sqrt(self._mu_squared(messages))
        self._refuse(not close(law["mu"], spent, STD), "mu given the minimiser")
        found = volume(self._values["declared"])
        if found is None:
            self._taken["volume"] = _short(law["volume"])
        right = found is None or close(law["volume"], found, STD)
        self._refuse(not right, "volume for the declared penalty")
        directions = 2 if self._values["neighbours"] == "replace_one" else 1
        self._refuse(law["directions"] != directions, "directions of a perturbed objective")
        beside = self._mu_squared(others)
        return {
            **law,
            "mu": self._mp.sqrt(self._mp.mpf(law["mu"]) ** 2 + beside) if beside else law["mu"],
        }

    def _selection(
        self, law: Mapping[str, Any], releases: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Return the guarantee of a selection for one record, checked against the published run.

        The last release is the score, of the records that do not train: the model and the score
        compose in parallel, and one record's mu is that of the guarantee.
        """
        declared, size = self._values["declared"], self._values["group_size"]
        mean = mean_runs(law["eta"], law["gamma"])
        self._refuse(law["eta"] != declared["eta"], "eta of the selection")
        below = not 0.0 < law["gamma"] < 1.0 or mean > declared["mean_runs"] * (1 + STD)
        self._refuse(
            below or mean < declared["mean_runs"] * (1 - 1e-6), "mean of the number of runs"
        )
        if releases:
            # Sums and scores are of one record.
            found = PERSON.fullmatch(self._values["unit"])
            people = int(found[1]) if found and size == 1 else 1
            parts = [self._mu_squared(part) for part in (releases[:-1], releases[-1:])]
            spent = size * people * max(map(self._mp.sqrt, parts))
            score = releases[-1]["what"].startswith(SCORE)
            self._refuse(not score, "the score that selects")
            # A person's records may train and score, each for a share of mu.
            self._refuse(bool(declared.get("person_clip")), "person_clip of a selection")
            self._refuse(not close(law["mu"], spent, STD), "mu of one run of the selection")
        else:  # before it was made, or every run failed
            self._taken["mu of one run"] = _short(law["mu"])
        enough = self._values["n_draws"] >= mean * 2**40
        self._refuse(not enough, "draws of all runs of the selection")
        return {**law, "mu": self._mp.mpf(law["mu"]) / size}

    def _composed(self) -> tuple[str, dict[str, Any]]:
        """Return the guarantee of the parts together."""
        mp, join = self._mp, sum if self._sequential else max
        laws = [(part.name, part.of) for part in self.parts]
        names = {name for name, _ in laws}
        if any(mp.isinf(of.get("mu", 0)) for _, of in laws) or "selection" in names:
            self._refuse("selection" in names, "a selection composes by epsilon and delta only")
            return "gaussian", {"mu": mp.inf}
        squares = join(mp.mpf(of.get("mu", 0)) ** 2 for _, of in laws)
        if "objective_perturbation" in names:
            those = [of for name, of in laws if name == "objective_perturbation"]
            return "objective_perturbation", {
                "volume": join(mp.mpf(of["volume"]) for of in those),
                "shift": mp.sqrt(join(mp.mpf(of["shift"]) ** 2 for of in those)),
                "directions": join(of["directions"] for of in those),
                "mu": mp.sqrt(squares),
            }
        if "concentrated" in names:
            return "concentrated", {"rho": join(of.get("rho", of.get("mu", 0) ** 2 / 2)
                                                for _, of in laws)}  # fmt: skip
        return "gaussian", {"mu": mp.sqrt(squares)}

    def _in_group(self) -> None:
        """Multiply the guarantee of one record by the size of the group."""
        size = self._values["group_size"]
        self._refuse(not (isinstance(size, int) and size >= 1), "group_size")
        if self.has_coins:  # docs/proofs/shuffle.md
            alone = size > 1 and self.name != "gaussian"
            self._refuse(alone, "a group of another law beside binomial noise")
            self.n_draws *= size
        self._refuse(size > 1 and self.name == "concentrated", "a group without a mu")
        self.of = {
            name: value if name in ("eta", "gamma", "name") else size * value
            for name, value in self.of.items()
        }

    # --- What does not depend on figures ----------------------------------------------------

    def _check_run(self) -> None:
        values, declared = self._values, self._values["declared"]
        sizes = declared.get("sizes")
        lengths = {len(r["sensitivity"]) for r in values["releases"]
                   if isinstance(r["sensitivity"], list)}  # fmt: skip
        self._refuse(len(lengths) > 1, "numbers of silos")
        if sizes is not None and lengths:
            self._refuse(lengths != {len(as_list(sizes))}, "numbers of silos")
        trust = values["trust_of_runs"] or values["trust"]
        if not self._mp.isinf(self.of.get("mu", 0)):
            self._check_declared()
        for r in values["releases"]:
            for problem in problems(r):
                self._refuse(True, f"{problem} of {r['what']!r}")
            hidden = "minimiser" in r or not any(as_list(r["sensitivity"]))
            seen = r["seen_by"] in (SEEN_BY.get(trust), *(["nobody"] * hidden))
            self._refuse(not seen, f"trust {trust!r} and who sees {r['what']!r}")
            coins = r["coins"] is not None or trust != "shuffle" or not r["std"]
            self._refuse(not coins, f"noise of {r['what']!r} under a shuffler")
            if str(r["what"]).endswith(BESIDE):  # what is no text is refused elsewhere
                self._refuse(not is_beside(r, values), f"sensitivity of {r['what']!r}")
            if r["sampling"] is not None:
                of, method = r["sampling"], AMPLIFIED.get(values["neighbours"])
                right = of["method"] == method and is_sampled(of, declared)
                self._refuse(not right, "sampling of records")

    def _check_declared(self) -> None:
        """Compare the releases with those that follow from what the run declares."""
        run, left = DeclaredSolver(self._values), list(self._values["releases"])
        if run.solver is None:
            if left:
                self._taken["releases"] = "kinds, numbers, sensitivities"
            for r in left:
                self._refuse(run.is_short(r), f"sensitivity of {r['what']!r}")
            return
        try:
            families = run.families()
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
            self._refuse(True, f"what is declared: {error}")
            return
        series: list[int] = []
        for family in families:
            own = [r for r in left if summed(r) == family.what]
            series += {r["series"] for r in own if r.get("series") is not None}
            left = [r for r in left if summed(r) != family.what]
            for problem in family.wrong(own):
                self._refuse(True, f"{problem} of {family.what!r} for what is declared")
            if family.unknown:
                self._taken[family.what] = ", ".join(family.unknown)
        self._refuse(not run.is_noted(), "neighbours that notes do not tell")
        self._refuse(not run.tells_its_end(), "an early end that notes do not tell")
        self._refuse(len(set(series)) < len(series), "a series of two kinds of releases")
        for r in left:
            self._refuse(True, f"{r['what']!r}, which no run that declares this releases")

    def _check_composition(self) -> None:
        values, parts = self._values, [part._values for part in self.parts]
        for name in ("neighbours", "unit"):
            same = all(part[name] == parts[0][name] for part in parts)
            self._refuse(not same, f"{name} of the parts")
        self._refuse(values["neighbours"] != parts[0]["neighbours"], "neighbours of the parts")
        trusts = {trust for part in parts for trust in part["trust"].split(" + ")}
        stated = (values["trust_of_runs"] or values["trust"]).split(" + ")
        self._refuse(set(stated) != trusts, "trust of the parts")
        seeded = any(part["noise"] != "os" for part in parts)
        self._refuse(seeded and values["noise"] == "os", "seeded parts called os")
        told = f"{values['composition']} composition of {len(parts)} runs"
        noted = any(note.startswith(told) for note in values["notes"])
        self._refuse(not noted, "composition that notes do not tell")
        floats = any(part["arithmetic"] != "grid" for part in parts)
        self._refuse(floats and values["arithmetic"] == "grid", "float parts called grid")

    def _check_fields(self) -> None:
        values, size = self._values, self._values["group_size"]
        for name, allowed in (
            ("neighbours", ("replace_one", "add_remove")),
            ("noise", ("os", "seeded: not private")),
            ("arithmetic", ("grid", "float")),
        ):
            self._refuse(values[name] not in allowed, name)
        self._refuse(not set(values["trust"].split(" + ")) <= set(SEEN_BY), "trust")
        if values["trust_of_runs"]:
            self._refuse(values["trust"] != "central", "trust of what was restated")
        model, started = values["model"], values["started"]
        self._refuse(
            model is not None and (bool(self.parts) or not _MODEL.fullmatch(model)), "model"
        )
        self._refuse(started is not None and not _START.fullmatch(started), "start")
        of_part = self.parts[0]._values["unit"] if self.parts else None
        whole = self.name == "selection" or values["declared"].get("person_clip") is not None
        self._refuse(not is_unit(values, of_part, divided=not whole), "unit")
        self._refuse(values["adversary"] != adversary(values), "adversary")
        deltas, at = [f["delta"] for f in self._stated["epsilon"]], self._stated["at_delta"]
        self._refuse(at is not None and at not in deltas, "epsilon at the stated delta")
        self._refuse(self._stated["bound"] not in ("exact", "upper"), "bound")
        loose = self.name != "gaussian" or size > 1 or self._stated["amplified"]
        loose = loose or any(r["sampling"] or r["coins"] for r in values.get("releases", ()))
        loose = loose or any(part._stated["bound"] != "exact" for part in self.parts)
        loose = loose or values["trust_of_runs"] is not None
        self._refuse(loose and self._stated["bound"] == "exact", "bound")
        if self.name != "selection":
            self._refuse(values["n_draws"] != self.n_draws, "number of draws")
        if self._stated["amplified"]:
            methods = {r["sampling"]["method"] for r in values.get("releases", ())
                       if r["sampling"]}  # fmt: skip
            right = methods == {AMPLIFIED.get(values["neighbours"])} and size == 1
            self._refuse(not right or self.name != "gaussian", "amplification by samples")

    # --- Figures ----------------------------------------------------------------------------

    def _parameters(self) -> Iterator[Check]:
        """Compare the parameters of the guarantee, mu and rho."""
        mp, law = self._mp, self._stated["law"]
        mu = self.of["mu"] if self.name == "gaussian" else mp.inf
        rho = self.of["rho"] if self.name == "concentrated" else mu**2 / 2
        for name, value in self.of.items():
            if name != "name":
                of = " of the law" if law[name] != self._stated.get(name) else ""
                yield _compared(f"{name}{of}", law[name], value, _ROUNDING)
        for name, value in (("mu", mu), ("rho", rho)):
            if law.get(name) != self._stated[name]:
                yield _compared(name, self._stated[name], value, _ROUNDING)

    def _guarantee(self) -> Guarantee:
        values, silos = self._values, []
        if self._stated["amplified"]:
            releases = values["releases"]
            number = max(
                (len(r["sampling"]["sizes"]) for r in releases if r["sampling"]), default=0
            )
            for j in range(number):
                events = [event(r, j) for r in releases]
                silos.append(multiset([one for one in events if one is not None]))
        draws = values["n_draws"] if self.name == "selection" else self.n_draws
        parameters = tuple(sorted((k, v) for k, v in self.of.items() if k != "name"))
        return Guarantee(
            self.name, parameters, draws, tuple(filter(None, silos)), values["neighbours"]
        )

    def _figures(self) -> Iterator[Check]:
        if self.name == "gaussian" and self._mp.isinf(self.of["mu"]):
            none = all(f["epsilon"] == math.inf for f in self._stated["epsilon"])
            none = none and all(f["delta"] == 1.0 for f in self._stated["delta"])
            yield Check("epsilon", "none" if none else "finite", "none", none)
            return
        found = self._guarantee()
        for figure in (*self._stated["epsilon"], *self._stated["delta"]):
            yield self._figure(found, figure, figure in self._stated["epsilon"])

    def _figure(self, found: Guarantee, figure: Mapping[str, float], of_epsilon: bool) -> Check:
        epsilon, delta = figure["epsilon"], figure["delta"]
        what = f"epsilon at delta {delta:g}" if of_epsilon else f"delta at epsilon {epsilon:g}"
        stated = f"{epsilon:.12g}" if of_epsilon else f"{delta:.6e}"
        if epsilon == math.inf:
            least = min(found.delta(e) for e in (0.0, 1.0, 10.0, 40.0, 60.0))
            return Check(what, "infinite", f"delta > {float(least):.3g}", least > delta)
        least = found.delta(epsilon, delta)
        loosest = found.loosest()
        reduced, slack, rounding = loosest.reduced(epsilon)
        # Bounds are loose where delta is large, and draws decide where it is tiny.
        checked = self.name != "selection" or delta <= 1e-3
        checked = checked and reduced > 0.0 and delta > 1e6 * found.n_draws * 2.0**-100
        tight = not checked or delta <= loosest.delta(reduced, delta) * (1 + slack) + rounding
        shown = f"delta {float(least):.6e}" if of_epsilon else f"{float(least):.6e}"
        return Check(what, stated, shown, bool(least <= delta and tight))


def _compared(what: str, stated: Any, found: Any, tolerance: float) -> Check:
    """Compare a figure that is rounded up, exactly from below."""
    mp = multiprecision()
    if mp.isinf(found):
        return Check(what, _short(stated), "none", stated == math.inf)
    ok = found * (1 - mp.mpf(10) ** (10 - DIGITS)) <= stated <= found * (1 + tolerance)
    return Check(what, _short(stated), _short(found), bool(ok))


def _short(value: Any) -> str:
    return "none" if value == math.inf else f"{float(value):.12g}"
