"""A party of a run whose silos are in several processes."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpkern.stream import NoiseStream

if TYPE_CHECKING:
    from dpkern.data import SiloData


class ImplausibleError(RuntimeError):
    """A released sum or message that no true run has, but with probability below 1e-12."""

    @property
    def public_reason(self) -> str:
        """What the other parties are told: all of it follows from what is released."""
        return str(self)


class Party(ABC):
    """What a run needs of the others: every party runs the same solver on what it holds.

    All that parties tell each other of records is what `total` and `messages` return, which each of
    them has noise for before it calls them. They call them in the same order, `ready` first.

    Attributes
    ----------
    silo : int or None
        The silo whose records this party holds; None for the coordinator, which holds none.
    public : NoiseStream
        A stream that all parties have, for what is drawn at random and public.
    colluding : int or None
        Number of silos that may pool what they know with whoever sees a sum; None without sums.
    note : str or None
        What a certificate says of how sums are made.
    silos : tuple of str
        Names of all silos, for errors.
    ledgers : str or None
        What a certificate says of the silos' ledgers.
    """

    silo: int | None
    public: NoiseStream
    colluding: int | None
    note: str | None = None
    silos: tuple[str, ...] = ()
    ledgers: str | None = None

    @abstractmethod
    def ready(self) -> None:
        """Say that this party has charged the run, and wait until all others have too.

        What fails until then has released nothing, so that no silo's budget pays for another's.
        """

    @abstractmethod
    def total(self, steps: NDArray[np.int64], what: str) -> NDArray[np.int64]:
        """Return the sum over parties of integers, modulo 2^64, of which nothing else is seen.

        `what` describes the sum; parties that mean different ones fail.
        """

    @abstractmethod
    def messages(self, rows: NDArray[np.float64], what: str) -> NDArray[np.float64]:
        """Return one message of every silo, shape (m, ...), which all parties see.

        Of the rows, shape (m, ...), the silo's own is its message, and the others are not used.
        """


class Remote(ABC):
    """What a solver takes for data that is elsewhere."""

    @property
    @abstractmethod
    def described(self) -> "SiloData":
        """A public record in place of the data, with all else as the data have it."""

    @property
    @abstractmethod
    def model(self) -> Any:
        """The `SolverResult` that is evaluated, None where a solver runs."""

    @abstractmethod
    def opened(
        self, solver: str, budget: Any, arguments: Mapping[str, Any]
    ) -> AbstractContextManager[tuple["SiloData", dict[str, Any]]]:
        """Tell all silos to run this solver, and join them.

        Returns the coordinator's data, and the arguments of its own run.
        """
