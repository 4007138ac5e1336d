"""The releases of stochastic solvers: noisy means of clipped gradients over participating silos.

    mean of round r:  sum_{j in S_r} a_j (sum over silo j's batch + noise),  a_j = (m / M) p_j / K_j

S_r are M of the m silos, drawn in advance and public; K_j is the size of silo j's batch.
"""

import math
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from statistics import harmonic_mean
from typing import Any

import numpy as np

from dpkern._typing import FloatArray, IntArray
from dpkern.models.losses import Custom
from dpkern.models.oracles import Oracle
from dpkern.privacy.accountant.profiles import Bound
from dpkern.privacy.guarantees.rounding import sqrt_down, sqrt_up
from dpkern.privacy.mechanisms.binomial_sum import BinomialSum
from dpkern.privacy.mechanisms.gaussian_sum import GaussianSum
from dpkern.privacy.sampling.amplification import Events, Sampled, costliest, sampled_scale
from dpkern.privacy.sampling.record_sampling import (
    FullBatch,
    RecordSampler,
    Rows,
    make_record_sampler,
)
from dpkern.privacy.sensitivity.differences import COCOERCIVE, ConvexDifferences, covered
from dpkern.solvers.base.objective import Objective
from dpkern.solvers.base.plan import RunPlan, resolve_step_sizes
from dpkern.solvers.base.run import Run
from dpkern.solvers.releases.gradient import AddModels, compiled_rounds, over_silos
from dpkern.solvers.releases.record_sums import GlmSums, Sums, clipped, sums_of


@dataclass(frozen=True)
class Family:
    """Releases of one kind, such as all gradients of a run."""

    what: str  #: description of the released sum, for the ledger
    rounds: Sequence[int]  #: the rounds with such a release
    sampler: RecordSampler
    share: float = 1.0  #: of mu^2 of the budget
    sigma: FloatArray | None = None  #: a paper's noise std on each silo's mean, for the budget's


def norm(v: FloatArray) -> float:
    """Return |v|, as np.linalg.norm does in several times as long."""
    return math.sqrt(v @ v)


def difference_clip(run: Run, step: FloatArray) -> float:
    """Return the clip norm C_r of differences of gradients at two iterates, dw = `step` apart.

    It is min(2 C, max(beta |dw|, 2^-20 C)), beta the smoothness of the loss, which clips nothing;
    without a known smoothness it is 2 C. It depends on public numbers only.
    """
    clip, beta = run.plan.clip, run.objective.data_smoothness
    if beta == math.inf or clip == math.inf:
        return 2.0 * clip
    return min(2.0 * clip, max(beta * norm(step), 2.0**-20 * clip))


def convex_differences(
    run: Run, distance: float, norms: float, clip: float
) -> ConvexDifferences | None:
    """Return the bound of differences of a convex loss's gradients, clipped so, at two models.

    The models have this distance and sum of norms. None where nothing is known beyond the clip
    norm, and without a budget, where it does not matter. It depends on public numbers only.
    """
    objective = run.objective
    if isinstance(objective.loss, Oracle) or not objective.phi.convex or run.plan.budget is None:
        return None
    beta, row_bound = objective.data_smoothness, objective.data.row_bound
    public = {"curvature": objective.phi.smoothness, "row_bound": row_bound, "norms": norms}
    if not covered(clip=run.plan.clip, dim=objective.dim, reach=beta * norms, **public):
        return None
    diameter = max(beta * distance, 2.0**-20 * run.plan.clip)
    return ConvexDifferences(clip, diameter, beta * norms, objective.dim)


class Participation:
    """The participation schedule of the silos, drawn in advance; public, so it amplifies nothing.

    M[r] silos participate in round r, those of active[r], shape (rounds, m). Each draw is for so
    many consecutive rounds as `lengths` says.
    """

    def __init__(self, run: Run, lengths: IntArray) -> None:
        draws, m = len(lengths), run.objective.data.m
        counts = participants(run.plan, run.objective)
        if len(counts) not in (1, draws):
            raise ValueError(
                f"participation must be one number, or one for each of the {draws} draws of silos, "
                f"got {len(counts)}"
            )
        counts = np.broadcast_to(counts, draws)
        active = np.ones(draws * m, dtype=bool)
        if counts.min() < m:
            with run.public.release() as key:
                drawn, _ = key.subsets(np.arange(draws + 1) * m, counts.copy())
            active[:] = False
            active[drawn] = True
        self.active = np.repeat(active.reshape(draws, m), lengths, axis=0)
        self.M = np.repeat(counts, lengths)


def participants(plan: RunPlan, objective: Objective) -> IntArray:
    """Return the number M of silos that participate in a round, or one for each draw."""
    m, given = objective.data.m, plan.arguments["participation"]
    M = given if isinstance(given, tuple) else (m if given is None else given,)
    if m < max(M):
        raise ValueError(f"participation must be at most the {m} silos, got {max(M)}")
    return np.array(M, dtype=np.int64)


def sampler_of(plan: RunPlan, objective: Objective, releases: int) -> RecordSampler:
    """Return the sampler of the run's batches."""
    return make_record_sampler(
        plan.arguments.get("sampling", "full"),
        plan.arguments["batch_size"],
        sizes=objective.sizes,
        releases=releases,
        neighbours=plan.neighbours,
        trust=plan.trust,
    )


def resolve_updates(plan: RunPlan, objective: Objective) -> RunPlan:
    """Return the plan of `spider`, which has two updates a round with variant "alternate"."""
    if plan.arguments["variant"] == "alternate":
        if plan.rounds < 2:
            raise ValueError(
                f"rounds must be at least 2 with variant='alternate', got {plan.rounds}"
            )
        plan = replace(plan, updates=2 * plan.rounds - 2)
    return resolve_step_sizes(plan, objective, theorem=0.5)


def resolve_anchored_steps(plan: RunPlan, objective: Objective) -> RunPlan:
    """Return the plan of `prox_svrg`, whose theorem's steps depend on batches and silos."""
    n, M = int(objective.sizes.max()), harmonic_mean(participants(plan, objective).tolist())
    K = max(sampler_of(plan, objective, plan.rounds).batch_sizes)
    theorem = min(1.0, K**1.5 * math.sqrt(M) / n) / 8.0
    return resolve_step_sizes(plan, objective, theorem=theorem)


def allocate(run: Run, families: Sequence[Family], silos: Participation) -> list[float | None]:
    """Return mu of one release of every family, by the families' shares of the budget.

    Under silo trust a silo is charged for the rounds in which it participates, else for all. For
    secret samples, all mu are scaled up until the epsilon of the costliest silo equals
    the budget's.
    """
    budget, trust = run.plan.budget, run.plan.trust
    amplified = trust != "shuffle" and any(family.sampler.amplifies for family in families)
    if budget is not None and amplified and isinstance(run.objective.loss, Custom):
        # Samples that differ in one record may shift the others to other positions.
        raise ValueError(
            f"sampling={run.plan.arguments['sampling']!r} needs a loss of the table: what a custom "
            "one returns for a record may depend on those before it"
        )
    if budget is None or any(family.sigma is not None for family in families):
        return [None] * len(families)
    times = [_times(family, silos, trust) for family in families]
    squares = [
        Fraction(family.share) / int(c.max()) for family, c in zip(families, times, strict=True)
    ]
    costliest = max(
        sum((int(c[j]) * w for c, w in zip(times, squares, strict=True)), Fraction(0))
        for j in range(len(times[0]))
    )
    rho = Fraction(budget.mu) ** 2 / 2
    mu = [sqrt_down(2 * rho * w / costliest) for w in squares]
    if not amplified:
        return list(mu)

    if budget.epsilon is None or budget.delta is None:
        raise ValueError(
            f"sampling={run.plan.arguments['sampling']!r} needs a budget given as epsilon and delta"
        )
    kinds = _releases_of_silos(families, times, mu)
    delta = budget.delta * (1.0 - 2.0**-29)
    scale = 0.0
    for kind in sorted(kinds, key=_largest_rate, reverse=True):
        scale = sampled_scale(kind, budget.epsilon, delta, run.plan.neighbours, least=scale)
    mu = [one / scale for one in mu]
    if run.charge is not None:
        # One that releases at least so much noise, in full and as samples.
        full = sqrt_up(2 * rho / Fraction(scale) ** 2 * (1 + Fraction(1, 1 << 40)))
        samples = _releases_of_silos(families, times, [one * (1.0 + 2.0**-40) for one in mu])
        n_draws = run.charge.accountant.assumed_draws
        run.charge.bound(Bound(mu=full, samples=frozenset(samples), n_draws=n_draws))
    return list(mu)


def _releases_of_silos(
    families: Sequence[Family], times: Sequence[IntArray], mu: Sequence[float]
) -> set[Events]:
    """Return the costliest sets of releases, of these mu, about a silo's records."""
    found = set()
    for j in range(len(times[0])):
        events: Counter[Sampled] = Counter()
        for family, c, one in zip(families, times, mu, strict=True):
            if c[j]:
                events[Sampled.of(family.sampler.sampling, j, 1.0 / one)] += int(c[j])
        found.add(frozenset(events.items()))
    return set(costliest(found - {frozenset()}))


def _largest_rate(events: Events) -> float:
    rates = (event.batch / event.size for event, _ in events if event.method is not None)
    return max(rates, default=1.0)


def _times(family: Family, silos: Participation, trust: str) -> IntArray:
    """Return how many releases of the family a record of each silo is charged for, shape (m,)."""
    rounds = np.asarray(family.rounds, dtype=np.int64)
    times = np.full(silos.active.shape[1], len(rounds))
    if trust == "silo":
        times = np.count_nonzero(silos.active[rounds], axis=0)
    per_record = family.sampler.per_record
    return times if per_record is None else np.minimum(times, per_record)


def noisy_means(
    run: Run, silos: Participation, first: Family, second: Family
) -> tuple["NoisyMeans", "NoisyMeans"]:
    """Return the releases of two families that share the budget; the second may have no rounds."""
    families = [first, second] if second.rounds else [first]
    mu, sums = allocate(run, families, silos), sums_of(run)
    means = [NoisyMeans(run, sums, f, silos, one) for f, one in zip(families, mu, strict=True)]
    return means[0], means[-1]


class NoisyMeans:
    """The mechanism of one family of releases.

    Central trust: V = sum_j om_j S_j + Z, om_j = a_j / max_k a_k on the records before rounding.
    Silo trust: V_j = S_j + Z_j of every silo of the round. The sensitivity is 2 C, C the clip norm
    of the release, or C where records are added or removed, plus q sqrt(P) for an MLP.
    Shuffle trust: the counts of `BinomialSum` on the batch's vectors om_j v_i.
    Differences of a convex loss's gradients have a smaller one (`sensitivity.differences`), and
    are shuffled around the centre of the ball that they lie in.
    `mu` is the budget of one release, from `allocate`. A record is in the releases of one family of
    a `series` alone.
    """

    def __init__(
        self,
        run: Run,
        sums: Sums,
        family: Family,
        silos: Participation,
        mu: float | None,
        *,
        series: int | None = None,
    ) -> None:
        self._run, self._sums, self._family, self._silos, self._mu = run, sums, family, silos, mu
        self._trust, self._series = run.plan.trust, series
        if self._trust == "shuffle" and run.plan.clip == math.inf:
            raise ValueError("clip must be finite under trust='shuffle', which counts, got inf")
        self._sizes = np.array(family.sampler.batch_sizes)
        objective, data = run.objective, run.objective.data
        most = int(silos.M.max())
        self._weights = objective.shares() * (data.m / most) / self._sizes
        self._factors = most / silos.M  # of the mean of a round's silos
        self._scale = float(self._weights.max())
        same = bool(np.all(self._weights == self._scale))
        self._silo_weight = None if same or self._trust == "silo" else self._weights / self._scale
        # The number of releases that `allocate` charged.
        capped = family.sampler.per_record is not None
        self._per_record = int(_times(family, silos, self._trust).max()) if capped else None
        if capped and self._trust == "shuffle" and silos.M.min() < most:
            # Counts of so many vectors are one mechanism each, and each is charged by itself.
            raise ValueError(
                "participation must be one number under trust='shuffle' with batches in turn, got "
                "several"
            )
        self._mechanisms: dict[tuple[object, ...], GaussianSum] = {}
        self._shuffled_sums: dict[int, BinomialSum] = {}
        self._everybody = bool(silos.active.all())
        self._all_records = self._everybody and isinstance(family.sampler, FullBatch)

    async def gradient(self, r: int, w: FloatArray) -> FloatArray:
        """Release round r's mean gradient at the public model w; shape (P,)."""
        return self._mean(r, await self._gradients(r, w))

    def noise_stds(self, rounds: int) -> FloatArray:
        """Return the std of the noise on the mean gradient in every round, 0 where not Gaussian."""
        if self._trust == "shuffle":
            return np.zeros(rounds)
        sigma = self._gaussian(self._run.plan.clip, self._family.sigma, 1).sigma
        factors = self._factors[:rounds]
        if self._trust == "central":
            return factors * (self._scale * float(np.linalg.norm(sigma)))
        return factors * np.sqrt(self._silos.active[:rounds] @ (self._weights * sigma) ** 2)

    async def compiled_rounds(
        self, w: FloatArray, eta: FloatArray, add: AddModels, momentum: float = 0.0
    ) -> int:
        """Run the rounds of proximal gradient descent as `compiled_rounds`, if they can be."""
        run, drawn, everybody = self._run, self._family.sampler.compiled, self._everybody
        linear = isinstance(self._sums, GlmSums)
        summed = run.plan.person_clip is None and run.plan.shares is None
        if self._trust != "central" or drawn is None or not (linear and everybody and summed):
            return 0
        mechanism = self._gaussian(run.plan.clip, self._family.sigma, 1)
        how = {"scale": self._scale, "silo_weight": self._silo_weight, **drawn}
        return await compiled_rounds(run, mechanism, w, eta, add, momentum, **how)

    async def difference(
        self,
        r: int,
        new: FloatArray,
        old: FloatArray,
        *,
        clip: float,
        sigma: FloatArray | None = None,
    ) -> FloatArray:
        """Release round r's mean difference of gradients, each clipped to `clip`; shape (P,).

        A paper's `sigma` must be at least the same multiple of `clip` in every round, so that a
        certificate does not depend on what is released.
        """
        run = self._run
        if sigma is not None:  # a grid for a smaller clip may not represent this noise
            total_std = float((sigma * self._sizes).max())
            clip = max(clip, total_std * math.sqrt(run.objective.dim) * 2.0**-24)
        total = partial(self._sums.difference, new, old)
        each = partial(self._sums.difference_vectors, new, old)
        # A paper's noise is not in proportion to the ball's bound, which depends on what was
        # released: its certificate is for the largest ratio, that of the clip norm.
        models = norm(new - old), norm(new) + norm(old)
        ball = convex_differences(run, *models, clip) if sigma is None else None
        centre = None
        if ball is not None and self._trust == "shuffle" and ball.diameter < 2.0 * clip:
            centre = 0.5 * run.objective.data_smoothness * (new - old)
            clip = 0.5 * ball.diameter * (1.0 + 2.0**-20)
        elif ball is not None:
            total = partial(total, curvature=run.objective.phi.smoothness)
            run.qualify(COCOERCIVE)
        between = None  # what the sensitivity depends on, if it is not four times the clip norm
        if not isinstance(run.objective.loss, Oracle) and (ball or clip < 2.0 * run.plan.clip):
            between = models
        released = self._release(
            *(r, clip, sigma, total, each), points=2, ball=ball, centre=centre, between=between
        )
        return self._mean(r, await released)

    async def of_silos(self, r: int, w: FloatArray) -> FloatArray:
        """Release every silo's mean gradient at its own model, (m, P), 0 if silent (silo trust)."""
        return await self._gradients(r, w) / self._sizes[:, np.newaxis]

    async def _gradients(self, r: int, w: FloatArray) -> FloatArray:
        total, each = partial(self._sums.gradient, w), partial(self._sums.vectors, w)
        return await self._release(r, self._run.plan.clip, self._family.sigma, total, each)

    def _mean(self, r: int, released: FloatArray) -> FloatArray:
        mean = self._weights @ released if self._trust == "silo" else self._scale * released
        return np.asarray(self._factors[r] * mean)

    async def _release(
        self,
        r: int,
        clip: float,
        sigma: FloatArray | None,
        total: Callable[..., Coroutine[Any, Any, FloatArray]],
        each: Callable[[IntArray], FloatArray],
        points: int = 1,
        ball: ConvexDifferences | None = None,
        centre: FloatArray | None = None,
        between: tuple[float, float] | None = None,
    ) -> FloatArray:
        run, active, rows = self._run, self._silos.active[r], None
        data = run.objective.data
        if not self._all_records:
            here = active & data.held
            rows = self._family.sampler.draw(run.stream, data.offsets, r, here)
            if run.shows_all_records and self._family.sampler.amplifies:
                rows = None
        if self._trust == "shuffle":
            return self._shuffled(clip, each, rows, centre)
        mechanism = self._gaussian(clip, sigma, points, ball, between)
        grid = mechanism.grid
        if grid is not None and len(grid) != data.m:
            grid = np.full(data.m, grid[0])
        sums = await total(clip=clip, grid=grid, silo_weight=self._silo_weight, rows=rows)
        if self._trust == "central":
            sums = over_silos(run, sums, grid)
        with run.clock("noise"):
            everybody = self._everybody or self._trust == "central"
            return mechanism.release(sums, active=None if everybody else active)

    def _shuffled(
        self,
        clip: float,
        each: Callable[[IntArray], FloatArray],
        rows: Rows | None,
        centre: FloatArray | None,
    ) -> FloatArray:
        """Return the noisy sum of vectors clipped around 0, or around a public centre."""
        run, data = self._run, self._run.objective.data
        records, offsets = (np.arange(data.offsets[-1]), data.offsets) if rows is None else rows
        with run.clock("kernels"):
            V = each(records)
            if centre is not None:
                V -= centre
            weight = float(len(records))
            if self._silo_weight is not None:
                weight = float(self._silo_weight @ np.diff(offsets))
                V = clipped(V, clip, np.repeat(self._silo_weight, np.diff(offsets))[:, np.newaxis])
        with run.clock("noise"):
            mechanism = self._binomial(len(records))
            total = mechanism.release(V, bound=clip, n_threads=run.objective.n_threads)
        return total if centre is None else total + weight * centre

    def _gaussian(
        self,
        clip: float,
        sigma: FloatArray | None,
        points: int,
        ball: ConvexDifferences | None = None,
        between: tuple[float, float] | None = None,
    ) -> GaussianSum:
        """Return the mechanism for this clip norm, on which grid and noise depend."""
        key = clip, ball, between, None if sigma is None else sigma.tobytes()
        if key not in self._mechanisms:
            run, sampler = self._run, self._family.sampler
            per_silo = self._trust == "silo"
            sizes = tuple(self._sizes.tolist())
            self._mechanisms.clear()  # clip norms rarely recur
            self._mechanisms[key] = GaussianSum(
                run.channel(self._trust),
                what=self._family.what,
                clip=clip,
                dim=run.objective.dim,
                sizes=sizes if per_silo else (sum(sizes),),
                mu=self._mu,
                sigma=None if sigma is None else sigma * self._sizes,
                sampling=sampler.sampling if run.plan.budget is not None else None,
                per_record=self._per_record,
                series=self._series,
                finest=self._sums.finest(clip, points=points),
                person_clip=run.plan.person_clip,
                replaced=None if ball is None else ball.sensitivity,
                between=between,
            )
        return self._mechanisms[key]

    def _binomial(self, n: int) -> BinomialSum:
        if n not in self._shuffled_sums:
            run, sampler = self._run, self._family.sampler
            self._shuffled_sums[n] = BinomialSum(
                run.channel("shuffle"),
                what=self._family.what,
                dim=run.objective.dim,
                n=n,
                mu=self._mu,
                sampling=sampler.sampling,
                per_record=self._per_record,
            )
        return self._shuffled_sums[n]
