"""The project file, dpkern.toml: what fits are called, who answers for them, and their ledger.

    study = "readmissions 2026"
    purpose = "to predict readmission within 30 days"
    controller = "University Hospital, data protection office"
    data = "register of stays"              # a name for people, not that of the file
    bounds = "handbook of the register"     # where declared bounds are from
    ledger = "study.ledger"                 # relative to this file
    require_ledger = true                   # no fit without it

All keys may be left out. The file in the working directory counts, or the nearest above it.
"""

import argparse
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from dpkern._numbers import refuse_unknown
from dpkern.cli._arguments import UsageError
from dpkern.cli._output import Line
from dpkern.privacy.certificate.certificate import NAMES, checked_texts

FILE = "dpkern.toml"
_TEXTS = (*NAMES, "bounds")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the option that says what a run is called."""
    what = f"what the certificate says beside the guarantee: KEY is {', '.join(_TEXTS)}; repeatable"
    add = parser.add_argument
    add("--about", action="append", default=[], metavar="KEY=TEXT", help=f"{what} ({FILE} too)")


@dataclass(frozen=True)
class Project:
    """What a project file says; nothing without one."""

    path: Path | None
    texts: Mapping[str, str]
    ledger: str | None = None
    requires_ledger: bool = False

    @classmethod
    def read(cls) -> Self:
        """Read the nearest project file, in the working directory or above it.

        Raises
        ------
        ValueError
            When it is not TOML, or a key is unknown or of another type.
        """
        here = Path.cwd()
        path = next((p for f in (here, *here.parents) if (p := f / FILE).is_file()), None)
        if path is None:
            return cls(None, {})
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
            refuse_unknown("the project", values, (*_TEXTS, "ledger", "require_ledger"))
            ledger, required = values.pop("ledger", None), values.pop("require_ledger", False)
            if not isinstance(required, bool):
                raise ValueError(f"require_ledger must be true or false, got {required!r}")
            if ledger is not None:
                ledger = str(path.parent / checked_texts("ledger", {"ledger": ledger})["ledger"])
            return cls(path, checked_texts("the project", values), ledger, required)
        except (TypeError, ValueError) as error:  # of tomllib and of decoding too
            raise ValueError(f"{path}: {error}") from error

    @property
    def lines(self) -> list[Line]:
        """What a command prints of it."""
        return [] if self.path is None else [("project", str(self.path))]

    def texts_for(self, given: list[str], **known: str) -> dict[str, str]:
        """Return the arguments of `with_names`: of --about, then what is known, then the file's."""
        stated: dict[str, str] = {}
        for item in given:
            name, equals, text = item.partition("=")
            if not equals:
                raise UsageError(f"--about must be KEY=TEXT, got {item!r}")
            if name in stated:
                raise UsageError(f"--about {name} was given twice; give it once")
            stated[name] = text
        try:
            refuse_unknown("--about", stated, _TEXTS)
        except ValueError as error:
            raise UsageError(str(error)) from error
        try:
            about = checked_texts("--about", stated)
        except ValueError as error:
            raise UsageError(f"--about {error}") from error
        return {**self.texts, **checked_texts("known", known), **about}

    def ledger_for(self, given: str | None, *, needed: bool = True) -> str | None:
        """Return the accountant's file that a run charges, if it has any.

        Raises
        ------
        ValueError
            When the project's is not there, or the project requires one and there is none.
        """
        if given is None and needed and self.ledger is not None:
            if not Path(self.ledger).exists():
                raise ValueError(
                    f"{self.path}: ledger must be an accountant's file, got {self.ledger}, which "
                    "does not exist; dpkern ledger creates one"
                )
            return self.ledger
        if self.requires_ledger and (given is None or not needed):
            raise ValueError(
                f"{self.path}: require_ledger is true, and this would charge none; fit takes "
                "--ledger FILE, with a budget"
            )
        return given
