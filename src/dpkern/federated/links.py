"""How silos and their coordinator reach each other: a star with the coordinator in its middle.

A study is a sequence of rounds. In every round the coordinator sends each silo one message and
waits for one answer from each. What is in the messages is no concern of the transports.
"""

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Self

_NAME = re.compile(r"[A-Za-z0-9][\w -]{0,62}", re.ASCII)
_REASON = re.compile(r"[A-Za-z_]\w{0,63}(: [ -~]{1,500})?", re.ASCII)


class FederationError(RuntimeError):
    """A study that cannot begin or go on; its text holds public facts alone."""

    @property
    def public_reason(self) -> str:
        """What the other parties are told."""
        return str(self)


class SilosLostError(FederationError):
    """Silos that failed, left or did not answer in time; a study ends there.

    Attributes
    ----------
    silos : tuple of str
        Their names.
    """

    def __init__(self, silos: Sequence[str], why: str) -> None:
        self.silos = tuple(silos)
        super().__init__(f"{', '.join(self.silos)}: {why}")


class CoordinatorLostError(FederationError):
    """The coordinator failed, left, or did not send its next message in time."""


def ended(why: object = "") -> CoordinatorLostError:
    """Return the error of a silo that the coordinator has told so, with the reason that it gave."""
    reason = f": {readable_reason(why)}" if why else ""
    return CoordinatorLostError(f"the coordinator ended the study{reason}")


def public_reason(error: BaseException) -> str:
    """Return what other parties are told of an error: its class, and a reason if that is public.

    That is for an error to say, by an attribute `public_reason`: texts of others may follow from
    records.
    """
    reason = getattr(error, "public_reason", "")
    text = reason.replace("\n", " ").encode("unicode_escape").decode()[:500]
    return readable_reason(f"{type(error).__name__}: {text}" if text else type(error).__name__)


def readable_reason(said: object) -> str:
    """Return a reason that another party has sent, or "an error" for text that could be no reason.

    It is printable ASCII, which cannot act on a terminal.
    """
    return said if isinstance(said, str) and _REASON.fullmatch(said) else "an error"


def describe_claims(names: Sequence[str], claims: Iterable[tuple[str, str]]) -> str:
    """Return who has said a name that is not its own, to follow the names of who is missing.

    Of every party, claims have the name of its key or certificate, empty where it has none that is
    known, and the name that it has said.
    """
    told, said = dict[str, None](), Counter[str]()
    for owner, name in claims:
        if owner not in ("", name):
            told[f"{_readable_name(owner)} says to be {_readable_name(name)}"] = None
        elif name not in names:
            told[f"{_readable_name(name)} says to be there, which the study does not have"] = None
        else:
            said[name] += 1
    told |= {f"more than one says to be {name}": None for name, n in said.items() if n > 1}
    cure = "start each with its own name and keys and the same study"
    return f", while {', '.join(told)}: {cure}" if told else ""


def _readable_name(name: str) -> str:
    return name if _NAME.fullmatch(name) else "another party"


class Star(ABC):
    """The coordinator's end.

    Attributes
    ----------
    silos : tuple of str
        Names of the silos, in the order of messages and answers.
    """

    silos: tuple[str, ...]

    @abstractmethod
    def exchange(self, messages: Sequence[bytes]) -> list[bytes]:
        """Send every silo its message and return their answers, all or none.

        Raises
        ------
        SilosLostError
            When a silo failed, left, or did not answer by the deadline.
        """

    @abstractmethod
    def finish(self, last: bytes, silos: Sequence[str], seconds: float) -> list[str]:
        """Send these silos the last message, and return those that confirm it in so many seconds.

        It may be called again for the others, by other connections too.
        """

    @abstractmethod
    def close(self, why: str = "") -> None:
        """End the connections; unless `finish` was called, silos learn that the study has ended.

        They are told why by the reason of an error (`public_reason`).
        """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, *_: object) -> None:
        self.close("" if error is None else public_reason(error))


class Link(ABC):
    """A silo's end."""

    @abstractmethod
    def exchange(self, answer: bytes | None) -> bytes:
        """Answer the coordinator's last message, except before the first, and return the next.

        Raises
        ------
        CoordinatorLostError
            When the coordinator left, or sent nothing by the deadline.
        """

    @abstractmethod
    def close(self, error: str | None = None) -> None:
        """End the connection; the reason of an error tells the coordinator why."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, *_: object) -> None:
        self.close(None if error is None else public_reason(error))
