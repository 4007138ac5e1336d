"""Participation schedules of silos and users, drawn in advance and public.

Neither sampling of users nor a random walk amplifies anything here, since the adversary knows the
schedule: the noise depends on the number of rounds in which one user participates.
"""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import scipy  # submodules load lazily, which keeps the import of dpkern cheap
from numpy.typing import NDArray

from dpkern._numbers import count
from dpkern._typing import IntArray
from dpkern.stream import NoiseStream, PublicDraws, Purpose


@dataclass(frozen=True)
class ParticipationSchedule:
    """The users (rounds, k) that are drawn for every round, without repetition within a round.

    A user stays silent after its largest number of participations, where `participates` is False.
    """

    users: IntArray
    participates: NDArray[np.bool_]

    @classmethod
    def capped(cls, users: IntArray, most: int | None) -> Self:
        """Return the schedule in which no user participates more than `most` times, if given."""
        if most is None:
            return cls(users, np.ones(users.shape, dtype=bool))
        most = count("max_participations", most)
        flat = users.ravel()
        order = np.argsort(flat, kind="stable")
        _, first, lengths = np.unique(flat[order], return_index=True, return_counts=True)
        before = np.empty(flat.size, dtype=np.int64)
        before[order] = np.arange(flat.size) - np.repeat(first, lengths)
        return cls(users, (before < most).reshape(users.shape))

    @property
    def most(self) -> int:
        """Number of rounds of the busiest user."""
        return int(np.bincount(self.users[self.participates]).max())

    @property
    def participants(self) -> tuple[IntArray, IntArray]:
        """The participants of all rounds that have any, round after round, and their bounds."""
        sizes = np.count_nonzero(self.participates, axis=1)
        return self.users[self.participates], np.cumsum(np.append(0, sizes[sizes > 0]))

    def __getitem__(self, t: int) -> IntArray:
        """Return the participants of round t, sorted; there may be none."""
        return self.users[t, self.participates[t]]


def sample_users(
    stream: NoiseStream | PublicDraws,
    *,
    n: int,
    participants: int,
    rounds: int,
    most: int | None = None,
) -> ParticipationSchedule:
    """Draw some of n users for every round, uniformly without replacement, by one release.

    A user that is drawn more than `most` times stays silent from then on.
    """
    participants = count("participation", participants)
    if participants > n:
        raise ValueError(f"participation must be at most the {n} users, got {participants}")
    counts = np.full(rounds, participants)
    with stream.release() as key:
        drawn, _ = key.subsets(np.arange(rounds + 1) * n, counts)
    return ParticipationSchedule.capped(drawn.reshape(rounds, participants) % n, most)


@dataclass(frozen=True, eq=False)
class Graph:
    """A public connected graph of n users, on which a token walks.

    User i has the neighbours ends[starts[i] : starts[i + 1]]; without them, all users and itself.
    """

    n: int
    declaration: str  #: what a certificate says of it
    starts: list[int] | None = None  # lists, whose elements Python reads faster than arrays
    ends: list[int] | None = None

    @classmethod
    def of(cls, adjacency: Any, n: int) -> Self:
        """Return the graph of a sparse symmetric matrix, or of None the complete one.

        Every nonzero entry is an edge.
        """
        if adjacency is None:
            return cls(n, "complete")
        if not scipy.sparse.issparse(adjacency):
            raise TypeError(
                f"graph must be None or a scipy.sparse adjacency, got {type(adjacency).__name__}"
            )
        if adjacency.shape != (n, n):
            raise ValueError(
                f"graph must have shape {(n, n)}, one row per user, got {adjacency.shape}"
            )
        edges = scipy.sparse.csr_array(adjacency != 0)
        if (edges != edges.T).nnz:
            raise ValueError("graph must be symmetric, got an edge that leads one way only")
        parts = scipy.sparse.csgraph.connected_components(edges, directed=False)[0]
        if parts > 1 or not edges.nnz:
            raise ValueError(f"graph must be connected, with an edge at least, got {parts} parts")
        edges.sort_indices()
        said = f"connected, {adjacency.nnz} entries"
        return cls(n, said, edges.indptr.tolist(), edges.indices.tolist())


def walk_graph(
    stream: NoiseStream | PublicDraws, graph: Graph, *, hops: int, most: int | None = None
) -> ParticipationSchedule:
    """Draw the random walk of a token, which has one user per round, by one release.

    The first user is drawn uniformly, and the next one among its neighbours. After `most`
    participations a user passes the token on unchanged.
    """
    with stream.release() as key:
        u = _uniform(key.words(Purpose.WALK, hops))
    if graph.starts is None or graph.ends is None:
        # Uniform up to n 2^-53, which suffices for public choices.
        return ParticipationSchedule.capped((u * graph.n).astype(np.int64)[:, np.newaxis], most)
    at = int(u[0] * graph.n)
    walk = [at]
    for x in u[1:].tolist():
        first = graph.starts[at]
        at = graph.ends[first + int(x * (graph.starts[at + 1] - first))]
        walk.append(at)
    return ParticipationSchedule.capped(np.array(walk, dtype=np.int64)[:, np.newaxis], most)


def activate_blocks(
    stream: NoiseStream | PublicDraws, *, blocks: int, rounds: int, probability: float
) -> NDArray[np.bool_]:
    """Draw the active blocks of every round independently, as booleans (rounds, blocks)."""
    if probability == 1.0:
        return np.ones((rounds, blocks), dtype=bool)
    with stream.release() as key:
        u = _uniform(key.words(Purpose.SAMPLING, rounds * blocks))
    return (u < probability).reshape(rounds, blocks)


def _uniform(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return uniform multiples of 2^-53 in [0, 1)."""
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
