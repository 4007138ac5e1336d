"""Runs of a solver on two neighbouring data sets, each with the log-likelihood ratio of its bits.

The scores are those of who sees all releases, knows both data sets, and not which of them was
used. A release with Gaussian noise on a known sum has the ratio of two normal densities, one from
the run and one from a replay of it on the other data set; with secret samples that of two
distributions of the sum, one with the record at times and one without it. A release of which only
the result is known, such as hidden local steps or shuffled counts, gives its numbers as they are:
`scores` finds their best linear combination by runs that bound nothing.
"""

import math
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray

from dpkern._typing import FloatArray
from dpkern.data import SiloData
from dpkern.privacy import Certificate
from dpkern.solvers import SolverResult, solve
from dpkern.stream import NoiseStream
from dpkern.transcript import Complete, Entry, Transcript

_CHUNK = 250  # runs of one task
_IMPOSSIBLE = 1e6  # in place of infinity, which has no difference


@dataclass(frozen=True, eq=False)
class Pair:
    """Two neighbouring data sets, and the arguments of the runs on them."""

    inside: SiloData  #: with the record
    outside: SiloData  #: with another one in its place, or without it
    solver: str
    arguments: dict[str, Any]
    public: int = 0  #: seed of what is drawn at random and public, such as who takes part when

    def certificate(self) -> tuple[Certificate, int]:
        """Return the certificate of a run, and its number of releases."""
        seen = Transcript()
        result = self._run(True, 0, seen)
        return result.privacy, len(seen.entries)

    def transcript(self, inside: bool, seed: int, transcript: Transcript) -> list[Entry]:
        """Run the solver on one of them, until the transcript is complete."""
        with suppress(Complete):
            self._run(inside, seed, transcript)
        return transcript.entries

    def separation(self) -> float:
        """Return the distance of the sums on the two data sets, in stds of the noise.

        Both are shown the releases of one run.
        """
        seen = self.transcript(True, self.public, Transcript())
        here, there = (
            self.transcript(inside, self.public, Transcript(seen, last=len(seen)))
            for inside in (True, False)
        )
        square = 0.0
        for a, b in zip(here, there, strict=True):
            if a.exact is not None and b.exact is not None:
                noisy = a.std > 0.0
                square += float(np.sum(np.square((a.exact - b.exact)[noisy] / a.std[noisy])))
        return math.sqrt(square)

    def _run(self, inside: bool, seed: int, transcript: Transcript) -> SolverResult:
        stream = NoiseStream(seed)
        stream.audit(transcript, NoiseStream(self.public))
        data = self.inside if inside else self.outside
        return solve(self.solver, data, rng=stream, **self.arguments)


@dataclass(frozen=True, eq=False)
class Scored:
    """Log-likelihood ratios (n,) of runs, and what has none: numbers (n, P), scaled by its std."""

    ratios: FloatArray
    numbers: FloatArray


def one_run(pair: Pair, inside: bool, seed: int, last: int) -> tuple[float, FloatArray]:
    """Return the log-likelihood ratio of one run, and the numbers that have none."""
    here = there = seen = pair.transcript(inside, seed, Transcript(last=last))
    known = [entry for entry in seen if entry.exact is not None]
    if known:
        there = pair.transcript(not inside, seed, Transcript(seen, last=len(seen)))
    if any(entry.rate < 1.0 for entry in known):
        here = pair.transcript(inside, seed, Transcript(seen, last=len(seen)))
    with_it, without = (here, there) if inside else (there, here)
    ratio = sum((_ratio(a, b) for a, b in zip(with_it, without, strict=True)), 0.0)
    rest = [e.released / np.where(e.std > 0.0, e.std, 1.0) for e in seen if e.exact is None]
    return ratio, np.concatenate([np.zeros(0), *rest])


def _ratio(inside: Entry, outside: Entry) -> float:
    """Return the log-likelihood ratio of one release.

    Of secret samples the sums are of all records. A sample is taken to have its share of those of
    `outside`, which is so where these are all alike, and in `inside` the record in place of one of
    them, or beside them, with the probability of that.
    """
    v, s, p = inside.released, inside.std, inside.rate
    if inside.exact is None or outside.exact is None:
        return 0.0
    noisy = s > 0.0
    if p < 1.0:
        without, moved = p * outside.exact, inside.exact - outside.exact
        with_it = _log_density(v, without + moved, s, noisy) - _log_density(v, without, s, noisy)
        return float(np.logaddexp(math.log1p(-p), math.log(p) + with_it))
    return _log_density(v, inside.exact, s, noisy) - _log_density(v, outside.exact, s, noisy)


def _log_density(v: FloatArray, mean: FloatArray, s: FloatArray, noisy: NDArray[np.bool_]) -> float:
    """Return the log-density of v, less one that does not depend on the mean."""
    wrong = int(np.count_nonzero(v[~noisy] != mean[~noisy]))
    known = ((v - 0.5 * mean) * mean)[noisy] / s[noisy] ** 2
    return float(known.sum()) - _IMPOSSIBLE * wrong


def many_runs(
    pair: Pair, inside: bool, seeds: Sequence[int], last: int, n_jobs: int | None
) -> Scored:
    """Return the scores of a run for every seed."""
    chunks = (seeds[i : i + _CHUNK] for i in range(0, len(seeds), _CHUNK))
    found = Parallel(n_jobs=n_jobs)(delayed(_chunk)(pair, inside, c, last) for c in chunks)
    ratios, numbers = zip(*found, strict=True)
    return Scored(np.concatenate(ratios), np.concatenate(numbers))


def _chunk(
    pair: Pair, inside: bool, seeds: Sequence[int], last: int
) -> tuple[FloatArray, FloatArray]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a run that is audited learns nothing
        runs = [one_run(pair, inside, seed, last) for seed in seeds]
    return np.array([ratio for ratio, _ in runs]), np.array([numbers for _, numbers in runs])


def scores(inside: Scored, outside: Scored) -> tuple[FloatArray, FloatArray]:
    """Return the scores of the runs with and without the record.

    The even runs of both choose the weights of the numbers without a likelihood.
    """
    a, b = inside.numbers[::2], outside.numbers[::2]
    variance = 0.5 * (a.var(axis=0) + b.var(axis=0))
    weights, middle = np.zeros_like(variance), 0.5 * (a.mean(axis=0) + b.mean(axis=0))
    np.divide(a.mean(axis=0) - b.mean(axis=0), variance, out=weights, where=variance > 0.0)
    with_it, without = (x.ratios + (x.numbers - middle) @ weights for x in (inside, outside))
    return with_it, without
