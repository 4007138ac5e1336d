"""How silos and their coordinator reach each other: a star with the coordinator in its middle.

A study is a sequence of rounds. In every round the coordinator sends each silo one message and
waits for one answer from each. What is in the messages is no concern of the transports.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Self


class FederationError(RuntimeError):
    """A study that cannot begin or go on."""


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
    def close(self, last: bytes) -> None:
        """Send every silo a last message, which is not answered, and end the connections."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close(b"")


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
        """End the connection; an error, the name of a class alone, tells the coordinator why."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(None if kind is None else kind.__name__)
