"""Kaplan-Meier and Nelson-Aalen curves from one released table of counts, and concordance."""

from __future__ import annotations  # help() then shows type aliases by name

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from dpkern._html import table
from dpkern._numbers import aligned, inner, rounded_up
from dpkern._typing import FloatArray, IntArray
from dpkern.data.labels import labels
from dpkern.evaluation.evaluate import HELD_OUT, ROW_WISE, Evaluation
from dpkern.evaluation.figures import FEWEST, Score
from dpkern.evaluation.sums import LARGER, Sums
from dpkern.models.hazards import cells_of, checked_edges, comparable_pairs
from dpkern.privacy import Budget, Certificate, NoiseStream
from dpkern.privacy.accountant.accountant import Accountant
from dpkern.privacy.certificate.certificate import NOT_STATED
from dpkern.privacy.charged import ChargedReleases, size_notes, stated_size
from dpkern.privacy.mechanisms.concordance import MOST_RECORDS, release_comparable

#: The curve of all people, where there are no groups.
ALL = "all"
_REPEATS = 2000  # simulated tables
_MOST_CELLS = 4_000  # of a table, which is simulated in memory
_MOST_HAZARD = 0.999  # of an interval, of which the logarithm is taken
_HEAD = ("group", "time", "at risk", "events", "survival", "interval", "cumulative hazard")


class Curve(NamedTuple):
    """A survival curve at the edges of the intervals; arrays have shape (K + 1,).

    From where fewer people are at risk than noise can hide, values are not numbers, and intervals
    reach down to 0.

    Attributes
    ----------
    time : ndarray
        The edges.
    at_risk : ndarray
        Noisy numbers of people who are at risk for the whole interval after the edge, or have the
        event in it; at the last edge of those who are left.
    events : ndarray
        Noisy numbers of events in the interval before the edge, 0 at the first.
    survival, low, high : ndarray
        The Kaplan-Meier estimate, which does not increase, and its interval at each edge.
    band_low, band_high : ndarray
        The band that holds the whole curve with the confidence.
    hazard, hazard_low, hazard_high : ndarray
        The cumulative hazard by the Nelson-Aalen estimate for grouped times, the sum of -log(1 - h)
        with the share h of people at risk who have the event, and its interval at each edge.
    noise_std : ndarray
        Standard deviation of `survival` by the noise alone.
    """

    time: FloatArray
    at_risk: FloatArray
    events: FloatArray
    survival: FloatArray
    low: FloatArray
    high: FloatArray
    band_low: FloatArray
    band_high: FloatArray
    hazard: FloatArray
    hazard_low: FloatArray
    hazard_high: FloatArray
    noise_std: FloatArray


@dataclass(frozen=True, eq=False)
class SurvivalCurves:
    """Released survival curves: ``curves["drug"].survival``, or ``curves["all"]`` without groups.

    Attributes
    ----------
    curves : dict of str to Curve
        By group.
    confidence : float
        Of the intervals and bands, which hold the noise and the sampling of the people.
    noise_std : float
        Of a count.
    privacy : Certificate
    """

    curves: dict[str, Curve]
    confidence: float
    noise_std: float
    privacy: Certificate = field(repr=False)

    def __getitem__(self, group: str) -> Curve:
        return self.curves[group]

    def _cells(self) -> list[tuple[str, ...]]:
        rows = []
        for group, c in self.curves.items():
            for k in range(len(c.time)):
                first = (group if not k else "", f"{c.time[k]:g}")
                counts = (f"{max(n, 0.0):.0f}" for n in (c.at_risk[k], c.events[k]))
                interval = f"{c.low[k]:.3f} to {c.high[k]:.3f}"
                rows.append(
                    (*first, *counts, f"{c.survival[k]:.3f}", interval, f"{c.hazard[k]:.3f}")
                )
        return rows

    def _note(self) -> str:
        at = self.privacy.stated_delta or 1e-6
        return (
            f"{100.0 * self.confidence:g} % intervals of noise and sampling; counts have noise of "
            f"std {self.noise_std:.3g}; spent epsilon {rounded_up(self.privacy.epsilon(at))} at "
            f"delta {at:g}"
        )

    def __str__(self) -> str:
        return "\n".join([*aligned([_HEAD, *self._cells()], right=(1, 2, 3, 4, 6)), self._note()])

    def _repr_html_(self) -> str:
        shown = table("Survival", self._cells(), head=_HEAD, note=self._note())
        return shown + self.privacy._repr_html_()

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Return a figure of the curves with their bands, written as PNG where a path is given.

        Raises
        ------
        ImportError
            Where matplotlib is not installed.
        """
        from dpkern.plotting import plot_survival

        shown = {
            group: (c.time, c.survival, c.band_low, c.band_high) for group, c in self.curves.items()
        }
        return plot_survival(shown, path, title=f"{100.0 * self.confidence:g} % bands")


def survival_curve(
    time: ArrayLike,
    event: ArrayLike,
    *,
    edges: Sequence[float],
    budget: Budget,
    groups: ArrayLike | None = None,
    levels: Sequence[Any] | None = None,
    neighbours: str = "replace_one",
    public_size: int | None = None,
    confidence: float = 0.95,
    accountant: Accountant | None = None,
    rng: int | NoiseStream | None = None,
) -> SurvivalCurves:
    """Release Kaplan-Meier and Nelson-Aalen curves of times to an event.

    Parameters
    ----------
    time : array_like of shape (n,)
        Time of the event or of censoring of each person, from 0 on.
    event : array_like of shape (n,), bool, or 0 and 1
        Whether the event happened at that time.
    edges : sequence of K + 1 floats
        Public times at which curves are known, increasing from 0 or more. Events up to the first
        one count in the first interval, those after the last as none, and a time of censoring
        within an interval as its nearer edge.
    budget : Budget
        Of all curves together.
    groups : array_like of shape (n,), optional
        The group of each person, which is private as the rest.
    levels : sequence of labels, optional
        The groups that there may be, public; required with `groups`.
    neighbours : {"replace_one", "add_remove"}, default="replace_one"
        As for `dpkern.solve`.
    public_size : int, optional
        With "add_remove", a public number that stands for that of the people, which is private.
    confidence : float, default=0.95
        Of intervals and bands.
    accountant : Accountant, optional
        What is charged before the release.
    rng : int, NoiseStream or None
        As for `dpkern.solve`.

    Returns
    -------
    SurvivalCurves

    Raises
    ------
    TypeError, ValueError
        When an argument is not as described; nothing is released.

    Notes
    -----
    Released is one noisy table: how many people of each group have the event in each interval, or
    are censored at each edge. A person is in one cell, so that the sensitivity is sqrt(2), and 1
    with "add_remove" (docs/proofs/survival.md). The people of all silos are taken together: central
    trust alone. Numbers at risk are that of all people less the cumulated noisy counts, or with
    groups or "add_remove" the sums of what is left.

    Examples
    --------
    >>> curves = dpkern.survival_curve(time, event, edges=range(0, 361, 30), budget=budget)
    >>> curves["all"].survival, curves["all"].low
    """
    run = ChargedReleases(budget, accountant, neighbours=neighbours)
    points = checked_edges("edges", list(edges) if isinstance(edges, range) else edges)
    z, stated = _quantile(confidence), stated_size(public_size, neighbours)
    cells = cells_of(time, event, points)
    if not (n := len(cells)):
        raise ValueError("time must hold at least one person, got none")
    names, group = _groups(groups, levels, n)
    shape = (len(names), 2 * len(points) - 1)
    if shape[0] * shape[1] > _MOST_CELLS:
        raise ValueError(
            f"edges and levels must make at most {_MOST_CELLS} cells, got {shape[0] * shape[1]}"
        )
    sums, mu = _counts(group * shape[1] + cells, shape[0] * shape[1]), run.record_mu
    with run.charged("survival_curve", sums.dim, rng) as channel:
        noisy, std = sums.release(channel, (0, n), (stated or n,), mu)
    privacy = run.certificate(
        {"edges": points, "groups": names, "size": stated or n},
        sources=dict.fromkeys(("edges", "groups"), NOT_STATED),
        notes=size_notes(stated),
    )
    counts = noisy.reshape(shape)
    if stated is None:
        counts = counts + (n - counts.sum()) / counts.size
    with np.errstate(all="ignore"):
        public = n if stated is None else None
        curves = _curves(np.asarray(points), counts, std, public, z, confidence)
    return SurvivalCurves(dict(zip(names, curves, strict=True)), confidence, std, privacy)


def concordance_index(
    risk: ArrayLike,
    time: ArrayLike,
    event: ArrayLike,
    *,
    budget: Budget,
    confidence: float = 0.95,
    accountant: Accountant | None = None,
    rng: int | NoiseStream | None = None,
) -> Evaluation:
    """Release Harrell's concordance of risks and times to an event.

    Parameters
    ----------
    risk : array_like of shape (n,)
        What a public or released model says of each person, higher for earlier events, such as
        `DPDiscreteHazards.predict`: a function of the person alone.
    time, event : array_like of shape (n,)
        As for `survival_curve`, of people whom the model was not fitted on.
    budget, confidence, accountant, rng
        As for `survival_curve`.

    Returns
    -------
    Evaluation
        With the score "concordance". Its interval is for the noise and a bound of the sampling, and
        wider than it need be.

    Raises
    ------
    TypeError, ValueError
        When an argument is not as described; nothing is released.

    Notes
    -----
    Released are the concordant less the discordant pairs and the comparable ones, of the
    sensitivity 2 (n - 1) together where a record is replaced (docs/proofs/survival.md).

    Examples
    --------
    >>> risk = model.predict(X_test)
    >>> dpkern.evaluation.concordance_index(risk, time, event, budget=budget).concordance
    """
    run = ChargedReleases(budget, accountant, neighbours="replace_one")
    z = _quantile(confidence)
    pairs, n = comparable_pairs(time, event, risk), len(np.asarray(time))
    if not 2 <= n <= MOST_RECORDS:
        raise ValueError(f"time must hold 2 to {MOST_RECORDS} people, got {n}")
    with run.charged("concordance_index", 2, rng) as channel:
        S, D, std, of_pairs = release_comparable(channel, pairs, n, run.record_mu)
    privacy = run.certificate(
        {"concordance": "of times to an event", "size": n}, sources={}, notes=(HELD_OUT, ROW_WISE)
    )
    score = Score(np.nan, 0.0, 1.0, np.inf)
    if FEWEST * of_pairs <= D:
        theta = min(max(S / D, -1.0), 1.0)
        value, noise = 0.5 + 0.5 * theta, 0.5 * math.hypot(std, theta * of_pairs) / D
        # Hoeffding: the variance of a mean over pairs is at most 2 / n of that of a pair.
        sampling = 2.0 * value * (1.0 - value) / (n * min(2.0 * D / (n * (n - 1.0)), 1.0))
        width = z * math.sqrt(noise**2 + sampling)
        score = Score(value, max(value - width, 0.0), min(value + width, 1.0), noise)
    return Evaluation({"concordance": score}, confidence, privacy)


def _quantile(confidence: float) -> float:
    """Return the deviations of a normal distribution that hold the probability."""
    return NormalDist().inv_cdf(0.5 + 0.5 * inner("confidence", confidence))


def _groups(
    groups: ArrayLike | None, levels: Sequence[Any] | None, n: int
) -> tuple[tuple[str, ...], IntArray]:
    """Return the names of all groups, and the number of that of each of n people."""
    if (groups is None) != (levels is None):
        raise ValueError("levels must be given with groups, and only then: all that there may be")
    if groups is None or levels is None:
        return (ALL,), np.zeros(n, dtype=np.int64)
    if isinstance(levels, str) or not isinstance(levels, Sequence | np.ndarray):
        raise TypeError(f"levels must be a list of labels, got {type(levels).__name__}")
    known, given = labels(levels, len(levels), name="levels"), labels(groups, n, name="groups")
    place = np.argsort(known)
    if len(known) < 2 or len(np.unique(known)) < len(known):
        raise ValueError(f"levels must be two or more distinct groups, got {known.tolist()}")
    texts = [x.dtype.kind in "US" for x in (known, given)]
    strangers = n if texts[0] != texts[1] else int(np.count_nonzero(~np.isin(given, known)))
    if strangers:
        raise ValueError(f"groups must be levels, {known.tolist()}, got {strangers} of {n} others")
    numbers = place[np.searchsorted(known[place], given)]
    return tuple(str(label) for label in known.tolist()), numbers


def _counts(cells: IntArray, dim: int) -> Sums:
    """Return the sums of the indicators of the cells of people (n,)."""

    def vectors(rows: slice) -> FloatArray:
        chosen = cells[rows]
        V = np.zeros((len(chosen), dim))
        V[np.arange(len(chosen)), chosen] = 1.0
        return V

    return Sums(vectors, dim, LARGER, np.sqrt(2.0) * LARGER, "counts of people by time and event")


def _curves(
    time: FloatArray, counts: FloatArray, std: float, n: int | None, z: float, confidence: float
) -> list[Curve]:
    """Return the curves of released counts (groups, 2 K + 1), which add up to n if it is public."""
    rng, total = np.random.default_rng(0), n or max(round(float(counts.sum())), 1)
    shares = np.maximum(counts, 0.0).ravel()
    shares = shares / shares.sum() if shares.sum() > 0.0 else np.full(counts.size, 1 / counts.size)
    at_random = (_REPEATS, *counts.shape)

    def noisy(exact: Any) -> FloatArray:
        cells = exact + rng.normal(0.0, std, at_random)
        off = 0.0 if n is None else n - cells.sum(axis=(1, 2), keepdims=True)
        return np.asarray(cells + off / counts.size)

    by_noise = noisy(total * shares.reshape(counts.shape))
    by_all = noisy(rng.multinomial(total, shares, size=_REPEATS).reshape(at_random))
    found = []
    for g, cells in enumerate(counts):
        at_risk, events, survival, hazard = _estimates(cells)
        spread = _estimates(by_all[:, g])
        of_survival, of_hazard = (np.std(x, axis=0) for x in spread[2:])
        few = at_risk[:-1] < FEWEST * _at_risk_std(counts, std, public=n is not None)
        hidden = np.append(False, np.logical_or.accumulate(few))
        far = np.abs(spread[2] - spread[2].mean(axis=0)) / np.where(of_survival > 0, of_survival, 1)
        widest = float(np.quantile(far[:, ~hidden].max(axis=1), confidence))
        falling = np.clip(_falling(survival), 0.0, 1.0)
        rising = np.maximum(-_falling(-hazard), 0.0)
        ends = [falling + side * of_survival for side in (-z, z, -widest, widest)]
        of_rising = [rising - z * of_hazard, rising + z * of_hazard]
        if hidden.any():
            last = int(np.argmax(hidden)) - 1
            falling[hidden] = rising[hidden] = np.nan
            for values, value in zip(ends, (0.0, ends[1][last], 0.0, ends[3][last]), strict=True):
                values[hidden] = value
            of_rising[0][hidden], of_rising[1][hidden] = of_rising[0][last], np.inf
        low, high, band_low, band_high = (np.clip(x, 0.0, 1.0) for x in ends)
        hazard_low, hazard_high = (np.maximum(x, 0.0) for x in of_rising)
        noise = np.std(_estimates(by_noise[:, g])[2], axis=0)
        curve = Curve(
            *(time, at_risk, events, falling, low, high, band_low, band_high),
            *(rising, hazard_low, hazard_high, noise),
        )
        found.append(curve)
    return found


def _estimates(cells: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return numbers at risk, events, survival and hazard (..., K + 1) of counts (..., 2 K + 1)."""
    K = cells.shape[-1] // 2
    events, lost = cells[..., :K], cells[..., K:]
    none = np.zeros((*cells.shape[:-1], 1))
    left = cells.sum(axis=-1, keepdims=True)
    # At risk in interval k is who has neither had the event before nor is censored up to its start.
    gone = np.concatenate([none, np.cumsum(events, axis=-1)], axis=-1)
    at_risk = left - gone - np.cumsum(lost, axis=-1)
    at_risk[..., -1] += lost[..., -1]  # who is left at the last edge
    with np.errstate(all="ignore"):
        h = np.clip(events / np.maximum(at_risk[..., :-1], 1.0), -1.0, 1.0)
    survival = np.concatenate([none + 1.0, np.cumprod(1.0 - h, axis=-1)], axis=-1)
    hazards = -np.log1p(-np.minimum(h, _MOST_HAZARD))
    hazard = np.concatenate([none, np.cumsum(hazards, axis=-1)], axis=-1)
    return at_risk, np.concatenate([none, events], axis=-1), survival, hazard


def _falling(values: FloatArray) -> FloatArray:
    """Return the least-squares fit (k,) that does not increase: least of the largest means."""
    sums, k = np.insert(np.cumsum(values), 0, 0.0), len(values)
    first, last = np.arange(k)[:, np.newaxis], np.arange(k)
    with np.errstate(all="ignore"):
        means = (sums[1:] - sums[:-1, np.newaxis]) / (last - first + 1)
    means[last < first] = -np.inf
    largest = np.maximum.accumulate(means[:, ::-1], axis=1)[:, ::-1]
    largest[last < first] = np.inf
    return np.asarray(largest.min(axis=0))


def _at_risk_std(counts: FloatArray, std: float, *, public: bool) -> FloatArray:
    """Return the std of the noise in the numbers at risk in each interval, shape (K,).

    Numbers at risk are sums of the cells that are left, which add up to the number of people where
    it is public.
    """
    K = counts.shape[1] // 2
    cells = 2.0 * (K - np.arange(K))
    return np.asarray(std * np.sqrt(cells * (1.0 - public * cells / counts.size)))
