"""What the secrecy of samples gives a certificate beside full batches."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from dpkern.privacy.certificate.ledger import Release
from dpkern.privacy.guarantees.base import DRAW_ERROR
from dpkern.privacy.sampling.amplification import (
    Events,
    Sampled,
    costliest,
    sampled_delta,
    sampled_epsilon,
)


@dataclass(frozen=True)
class SecretSamples:
    """The releases about the records of silos, some on secret samples, and their draws.

    Silos for which another one's releases surely cost more are left out.
    """

    silos: frozenset[Events]
    neighbours: str
    n_draws: int

    @classmethod
    def of(cls, releases: Sequence[Release], neighbours: str, n_draws: int) -> Self:
        silos = max(len(dict(r.sampling)["sizes"]) for r in releases if r.sampling is not None)
        found = set()
        for j in range(silos):
            events: Counter[Sampled] = Counter()
            for event, times in filter(None, (r.sampled(j) for r in releases)):
                events[event] += times
            found.add(frozenset(events.items()))
        return cls(costliest(found - {frozenset()}), neighbours, n_draws)

    def delta(self, epsilon: float) -> float:
        """Return delta with the error of the draws."""
        sampled = max(sampled_delta(e, epsilon, self.neighbours) for e in self.silos)
        return min(1.0, (sampled + self._error(epsilon)) * (1.0 + 2.0**-48))

    def epsilon(self, delta: float) -> float:
        """Return epsilon; infinity where the error of the draws is too large."""
        most = delta * (1.0 - 2.0**-30)
        epsilon = max(sampled_epsilon(e, most, self.neighbours) for e in self.silos)
        return epsilon if self._error(epsilon) <= delta - most else math.inf

    def _error(self, epsilon: float) -> float:
        return (1.0 + math.exp(min(epsilon, 700.0))) * self.n_draws * DRAW_ERROR
