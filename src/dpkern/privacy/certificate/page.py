"""A certificate as a page of HTML that answers the questions of a data-protection officer."""

from html import escape
from typing import TYPE_CHECKING

from dpkern._html import document, table
from dpkern.privacy.certificate.certificate import READ
from dpkern.privacy.certificate.report import TITLE, in_words, release_lines, report_entries

if TYPE_CHECKING:
    from dpkern.privacy.certificate.certificate import Certificate

_NEIGHBOURS = {
    "replace_one": "their values, any for any others; that they are in the data, and how many "
    "there are, is public",
    "add_remove": "whether they are in the data, and their values",
}
_BY_SOURCE = {
    READ: "read from the records: one record may change it, and the guarantee does not cover that",
}
_CHECK = (
    "dpkern verify CERTIFICATE.json MODEL.npz recomputes the figures from the releases, and the "
    "SHA-256 of the model. This page is a copy for people: the JSON file is what counts"
)
_NOT_SAID = "not stated"

Rows = list[tuple[str, str]]


def page(certificate: "Certificate") -> str:
    """Return a document of HTML that needs nothing else: no script, font, picture or style."""
    c, entries = certificate, report_entries(certificate)
    people = in_words(c)
    parts = [f"<p>{people[0].upper()}{escape(people[1:])}.</p>"]
    for question, rows in _answers(c, entries):
        names = [name for name, _ in rows]
        shown = [("" if names[:i][-1:] == [name] else name, text)
                 for i, (name, text) in enumerate(rows)]  # fmt: skip
        parts.append(f"<h2>{question}</h2>{table('', shown)}")
    study = c.names.get("study")
    return document(TITLE if study is None else f"{TITLE}: {study}", parts)


def _answers(c: "Certificate", entries: dict[str, str]) -> list[tuple[str, Rows]]:
    """Return the questions, with names and texts of the answers."""
    models = [("SHA-256", run.model) for run in c.runs if run.model is not None]
    times = dict.fromkeys(run.started for run in c.runs if run.started is not None)
    names = {name: c.names.get(name, _NOT_SAID) for name in ("study", "purpose", "controller")}
    amounts = [(name, entries[name]) for name in ("guarantee", "epsilon", "mu", "rho", "claimed")
               if name in entries]  # fmt: skip
    sources = [(name.replace("_", " "), _BY_SOURCE.get(source, source))
               for name, source in c.sources.items()]  # fmt: skip
    return [
        ("What was released?", [
            *(("releases", line) for line in release_lines(c.releases)),
            ("and", "whatever follows from these releases, as the model does"),
        ]),
        ("About whom?", [
            ("data", c.names.get("data", _NOT_SAID)),
            ("protected", c.unit),
            ("of them", _NEIGHBOURS[c.neighbours]),
        ]),
        ("To whom?", [("trust", c.trust), ("who", c.adversary)]),
        ("How much does it tell?", [
            *amounts, ("noise", entries["noise"]), ("arithmetic", c.arithmetic)
        ]),
        ("What is not covered?", [
            ("public", "what was declared, below; it must not be computed from the "
             "records. Where it is from:"),
            *sources,
            *(("declared", line) for line in entries.get("declared", "").split("\n") if line),
            *(("note", note) for note in c.notes),
            ("elsewhere", "other releases about the same people, which add up, and whatever was "
             "shown of the records without noise, such as scores on them"),
        ]),
        ("Which model?", [
            *(models or [("SHA-256", "none: no model was released")]),
            *(("run began", time) for time in times),
            ("made by", c.package),
        ]),
        ("Who answers for it?", list(names.items())),
        ("How is it checked?", [
            ("certificate", str(c.to_dict()["digest"])), ("command", _CHECK)
        ]),
    ]  # fmt: skip
