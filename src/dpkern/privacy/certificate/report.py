"""The printed form of releases and certificates, folded at 88 columns."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from dpkern._html import folded, table
from dpkern._numbers import fold, rounded_up

if TYPE_CHECKING:
    from dpkern.privacy.certificate.certificate import Certificate
    from dpkern.privacy.certificate.ledger import Release

ADVERSARIES = {
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

SELECTED = (
    "sees the published run's aggregates of every round, its settings and its score; trusts who "
    "makes the runs, holds all records and shows nothing else, not even how long it takes"
)

TITLE = "Privacy certificate"
_PARTS = 20  # of an epsilon, at which bounds are compared
_LISTED = 3  # models of a certificate of several runs
_SHORT = len("sha256:") + 32


def adversaries(trust: str, declared: Mapping[str, Any]) -> str:
    """Return the views of the adversaries under a trust model, or several with " + "."""
    views = ADVERSARIES
    if declared.get("colluding") is not None:
        views = {**views, "central": _COLLUDING.format(declared["colluding"])}
    return "; ".join(views[one] for one in trust.split(" + "))


def report(certificate: "Certificate", width: int = 88) -> str:
    """Return the text of a certificate: one entry per field, with figures rounded up."""
    lines = [TITLE]
    if certificate.noise != "os":
        lines.append(f"  {_seeded(certificate)}")
    entries = _entries(certificate)
    lines += [" ".join(f"  {name:<10}  {text}".split("\n")) for name, text in entries]
    return fold("\n".join(lines), width)


def html(certificate: "Certificate") -> str:
    """Return a certificate as HTML, with all but the guarantee and its adversary folded."""
    rows, identity = _entries(certificate), identity_rows(certificate)
    first, rest = [name for name, _ in rows].index("arithmetic") + 1, ""
    title = TITLE if certificate.noise == "os" else f"{TITLE}, {_seeded(certificate)}"
    if middle := rows[first : -len(identity)]:
        rest = folded("releases, what is declared, notes", table("", middle))
    return table(title, rows[:first] + identity) + rest


def report_entries(certificate: "Certificate") -> dict[str, str]:
    """Return the lines of every entry by its name."""
    found: dict[str, str] = {}
    last = ""
    for name, text in _entries(certificate):
        last = name or last
        found[last] = f"{found[last]}\n{text}" if not name else text
    return found


def _seeded(certificate: "Certificate") -> str:
    return f"{certificate.noise} (the figures are those that fresh noise would give)"


def _entries(certificate: "Certificate") -> list[tuple[str, str]]:
    """Return the name and the text of every entry."""
    c = certificate
    most = "at most " if c.bound == "upper" else ""
    rows = [("guarantee", "none: epsilon is infinite at every delta")]
    if c.states_something:
        rows = [("epsilon", f"{most}{_epsilon(c, c.stated_delta or 1e-6)}")]
    has_own_kind = c.guarantee.word != ""
    rows += [
        ("unit", c.unit),
        ("neighbours", c.neighbours),
        ("trust", c.trust),
        ("adversary", c.adversary),
        ("mu", f"{most}{_rounded_up(c.mu)}" if c.zcdp is None and not has_own_kind else "none"),
        ("rho", f"{most}{_rounded_up(c.rho)}" if not has_own_kind else "none"),
        ("noise", f"{c.noise}, {_draws(c)} draws" if c.n_draws else "none"),
        ("arithmetic", c.arithmetic),
    ]
    rows += _rows("releases", release_lines(c.releases))
    rows += _rows("declared", _declared_lines(c.declared))
    if c.claimed is not None:
        rows.append(("claimed", f"{_listed(c.claimed)}; true: {_true_beside_claimed(c)}"))
    return rows + _rows("notes", c.notes) + identity_rows(c)


def identity_rows(certificate: "Certificate") -> list[tuple[str, str]]:
    """Return the rows of names, sources, model and start, and one sentence for people."""
    c = certificate
    sources: dict[str, list[str]] = {}
    for name, source in c.sources.items():
        sources.setdefault(source, []).append(name.replace("_", " "))
    models = [f"{run.model[:_SHORT]}..." for run in c.runs if run.model is not None]
    more = [f"and {len(models) - _LISTED} more"] if len(models) > _LISTED else []
    starts = sorted({run.started for run in c.runs if run.started is not None})
    return [
        *_rows("sources", [f"{', '.join(bounds)}: {text}" for text, bounds in sources.items()]),
        *c.names.items(),
        *_rows("model", models[:_LISTED] + more),
        *_rows("started", [" to ".join(dict.fromkeys((starts[0], starts[-1])))] if starts else []),
        ("in words", in_words(c)),
    ]


def in_words(certificate: "Certificate") -> str:
    """Return one sentence for the people in the data."""
    c = certificate
    if not c.states_something:
        return "what was released may tell anything about the people in the data"
    chance = 50.0 * (1.0 + _largest_advantage(c))
    subject, be = (
        ("a record", "was") if c.unit == "one record" else (f"the data of {c.unit}", "were")
    )
    other = "another" if be == "was" else "others"
    choice = f"{be} used at all" if c.neighbours == "add_remove" else f"or {other} {be} used"
    said = (
        "whoever sees all that was released, knows everybody else's data and guesses whether "
        f"{subject} {choice}, each as likely, is right in at most "
        f"{rounded_up(Decimal(chance), 4)} of 100 cases, where a coin is right in 50"
    )
    if c.noise != "os":
        return f"nothing holds, as this noise can be computed again; otherwise {said}"
    return said


def _largest_advantage(certificate: "Certificate") -> float:
    """Return a bound of the total variation between neighbours, by all that was released.

    By (epsilon, delta)-DP it is at most (e^epsilon - 1 + 2 delta) / (e^epsilon + 1) (Kairouz, Oh,
    Viswanath 2015): delta(0) where that is exact, and less at another epsilon where it is a bound.
    """
    c, stated = certificate, certificate.stated_delta
    largest = c.epsilon(stated) if c.bound == "upper" and stated is not None else 0.0
    parts = range(1, _PARTS + 1) if 0.0 < largest < 700.0 else ()
    epsilons = [0.0, *(largest * part / _PARTS for part in parts)]
    return min(math.tanh(0.5 * e) + 2.0 * c.delta(e) / (math.exp(e) + 1.0) for e in epsilons)


def describe(release: "Release") -> str:
    """Return one release as one line."""
    parts = [f"{release.what}: {release.times} x {release.dim} coordinates"]
    if release.n_messages is not None:
        parts[0] += f" from each of {release.n_messages} silos"
    parts.append(f"sensitivity {_range(release.sensitivities)}")
    kind = "noise" if release.coins is None else f"binomial noise of {release.coins} coins,"
    parts.append(_scale(f"{kind} std", "noise", release.stds))
    parts.append(_scale("grid", "grid", release.grids))
    if release.sampling is not None:
        parts.append(f"sampling {_listed(dict(release.sampling))}")
    if release.per_record is not None:
        of_series = "" if release.series is None else f" of series {release.series}"
        parts.append(f"each record in at most {release.per_record}{of_series}")
    parts.append(f"seen by {release.seen_by}")
    return ", ".join(parts)


def _epsilon(certificate: "Certificate", delta: float) -> str:
    epsilon = certificate.epsilon(delta)
    text = f"{_rounded_up(epsilon)} at delta {delta!r}"
    if epsilon == math.inf and certificate.states_something:
        what = certificate.guarantee.word or "rho"
        text += f" (too small a delta for this {what} and 2^-100 of sampling error per draw)"
    return text


def _draws(certificate: "Certificate") -> str:
    return f"{'at most ' if certificate.selection is not None else ''}{certificate.n_draws}"


def _true_beside_claimed(certificate: "Certificate") -> str:
    c, claimed = certificate, certificate.claimed or {}
    true = [f"{name} {_rounded_up(getattr(c, name))}" for name in ("mu", "rho") if name in claimed]
    if c.stated_delta is not None and not true:
        true = [f"epsilon {_epsilon(c, c.stated_delta)}"]
    return ", ".join(true) or f"mu {_rounded_up(c.mu)}"


def _rounded_up(value: float) -> str:
    return rounded_up(Decimal(value), 6)  # not below the double itself


def _range(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:.6g}" if low == high else f"{low:.6g} to {high:.6g}"


def _scale(name: str, of: str, values: Sequence[float]) -> str:
    return f"{name} {_range(values)}" if values else f"no {of}"


def _rows(name: str, lines: Iterable[str]) -> list[tuple[str, str]]:
    return [("" if i else name, line) for i, line in enumerate(lines)]


def release_lines(releases: Iterable["Release"]) -> list[str]:
    """Return a line per release, or a summary of more than three that differ only in scale."""
    alike: dict[tuple[object, ...], list[Release]] = {}
    for r in releases:
        key = (r.what, r.dim, r.n_messages, r.coins, r.sampling, r.per_record, r.series, r.seen_by)
        alike.setdefault(key, []).append(r)
    lines: list[str] = []
    for group in alike.values():
        # The same release may occur in several runs.
        counted = Counter(map(describe, group)).items()
        texts = [line if n == 1 else f"{line} ({n} runs)" for line, n in counted]
        lines += texts if len(texts) <= 3 else [_summary(group)]
    return lines


def _summary(releases: Sequence["Release"]) -> str:
    def sent(name: str) -> list[float]:
        return [v for r in releases for v in getattr(r, name) if v > 0.0]

    first = releases[0]
    parts = [f"{first.what}: {sum(r.times for r in releases)} x {first.dim} coordinates"]
    if first.n_messages is not None:
        parts[0] += f" from silos, {first.n_messages} at most"
    parts.append(f"sensitivity {_range(sent('sensitivities') or [0.0])}")
    parts.append(_scale("noise std", "noise std", sent("stds")))
    parts.append(_scale("grid", "grid", sent("grids")))
    if first.sampling is not None:
        parts.append(f"sampling {_listed(dict(first.sampling))}")
    if first.per_record is not None:
        parts.append(f"each record in at most {first.per_record}")
    parts.append(f"{len(releases)} kinds of them, seen by {first.seen_by}")
    return ", ".join(parts)


def _declared_lines(values: Mapping[str, Any]) -> list[str]:
    """Return one line, or one per run where several runs declared different parameters."""
    if values and all(isinstance(value, Mapping) for value in values.values()):
        return [f"{name}: {_listed(value)}" for name, value in values.items()]
    return [_listed(values)] if values else []


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {_short(value)}" for name, value in values.items())


def _short(value: object) -> str:
    """Return a value as text, a long tuple of numbers as its length and range."""
    if not (isinstance(value, tuple) and len(value) > 4):
        return str(value)
    if not all(isinstance(v, int | float) for v in value):
        return str(value)
    low, high = min(value), max(value)
    return f"{len(value)} x {low:g}" if low == high else f"{len(value)} from {low:g} to {high:g}"
