"""Participation of silos and users: who takes part in which round, drawn in advance and public.

Neither sampling nor a walk amplifies anything here: the adversary knows the schedule. What counts
is how often one user takes part.
"""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import scipy  # whose parts load when they are first used: an import of dpkern is cheap
from numpy.typing import NDArray

from dpkern._numbers import count
from dpkern.privacy.subsets import random_subset
from dpkern.stream import NoiseStream, Purpose

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class ParticipationSchedule:
    """Users of every round.

    Attributes
    ----------
    users : ndarray, shape (rounds, k), int64
        Whose turn it is, without repetition within a round.
    takes_part : ndarray, shape (rounds, k), bool
        False where a user stays silent, having taken part as often as it may.
    """

    users: IntArray
    takes_part: NDArray[np.bool_]

    @classmethod
    def capped(cls, users: IntArray, most: int | None) -> Self:
        """Return the schedule in which nobody takes part more than `most` times, if not None."""
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
        """How often the busiest user takes part."""
        return int(np.bincount(self.users[self.takes_part]).max())

    def __getitem__(self, t: int) -> IntArray:
        """Return the users that take part in round t, sorted; maybe none."""
        users: IntArray = self.users[t, self.takes_part[t]]
        return users


def sample_users(
    stream: NoiseStream, *, n: int, participants: int, rounds: int, most: int | None = None
) -> ParticipationSchedule:
    """Draw the users of every round uniformly without replacement.

    Parameters
    ----------
    stream : NoiseStream
        The run's; one release of it is taken.
    n : int
        Number of users.
    participants : int
        How many are drawn for a round, at most n.
    rounds : int
        Number of rounds.
    most : int, optional
        A user that has taken part so often stays silent when it is drawn again.
    """
    participants = count("participation", participants)
    if participants > n:
        raise ValueError(f"participation must be at most the {n} users, got {participants}")
    with stream.release() as key:
        drawn = [random_subset(key, t, n, participants) for t in range(rounds)]
    return ParticipationSchedule.capped(np.array(drawn, dtype=np.int64), most)


def walk_graph(
    stream: NoiseStream, *, n: int, hops: int, graph: Any = None, most: int | None = None
) -> ParticipationSchedule:
    """Draw the walk of a token from user to user: one user a round.

    Parameters
    ----------
    stream : NoiseStream
        The run's; one release of it is taken.
    n : int
        Number of users.
    hops : int
        Number of rounds.
    graph : sparse matrix of shape (n, n), optional
        Symmetric adjacency of a connected graph: any entry that is not 0 is an edge, and every
        neighbour is equally likely to be next. None is the complete graph: any user is, the last
        one included. The first user is drawn uniformly.
    most : int, optional
        A user that has taken part so often hands the token on as it is.
    """
    neighbours = None if graph is None else _neighbours(graph, n)
    with stream.release() as key:
        u = _uniform(key.words(Purpose.WALK, hops))
    if neighbours is None:
        return ParticipationSchedule.capped(_below(u, n)[:, np.newaxis], most)
    start, ends = neighbours
    at = int(u[0] * n)
    walk = [at]
    for x in u[1:].tolist():
        first = start[at]
        at = ends[first + int(x * (start[at + 1] - first))]
        walk.append(at)
    return ParticipationSchedule.capped(np.array(walk, dtype=np.int64)[:, np.newaxis], most)


def activate_blocks(
    stream: NoiseStream, *, blocks: int, rounds: int, probability: float
) -> NDArray[np.bool_]:
    """Draw which blocks are active in which round, each with the same probability, independently.

    Returns
    -------
    active : ndarray, shape (rounds, blocks), bool
    """
    if probability == 1.0:
        return np.ones((rounds, blocks), dtype=bool)
    with stream.release() as key:
        u = _uniform(key.words(Purpose.SAMPLING, rounds * blocks))
    active: NDArray[np.bool_] = (u < probability).reshape(rounds, blocks)
    return active


def _neighbours(graph: Any, n: int) -> tuple[list[int], list[int]]:
    """Return the rows of the adjacency as CSR lists, which Python reads faster than arrays."""
    if not scipy.sparse.issparse(graph):
        raise TypeError(
            f"graph must be None or a scipy.sparse adjacency, got {type(graph).__name__}"
        )
    if graph.shape != (n, n):
        raise ValueError(f"graph must have shape {(n, n)}, one row per user, got {graph.shape}")
    edges = scipy.sparse.csr_array(graph != 0)
    if (edges != edges.T).nnz:
        raise ValueError("graph must be symmetric, got an edge that leads one way only")
    parts = scipy.sparse.csgraph.connected_components(edges, directed=False)[0]
    if parts > 1 or not edges.nnz:
        raise ValueError(f"graph must be connected, with an edge at least, got {parts} parts")
    edges.sort_indices()
    return edges.indptr.tolist(), edges.indices.tolist()


def _uniform(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return uniform multiples of 2^-53 in [0, 1)."""
    numbers: NDArray[np.float64] = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return numbers


def _below(u: NDArray[np.float64], n: int) -> IntArray:
    """Return integers 0 .. n - 1, uniform but for n 2^-53: for what is public."""
    return (u * n).astype(np.int64)
