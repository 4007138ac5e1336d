"""Objective perturbation: a random linear term, and noise on the minimiser that doubles reach."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np

from dpkern import kernels
from dpkern._typing import FloatArray
from dpkern.privacy.certificate.ledger import MINIMISER
from dpkern.privacy.guarantees.gdp import Budget
from dpkern.privacy.guarantees.objective_perturbation import ObjectivePerturbation
from dpkern.privacy.guarantees.rounding import floor_log2, sqrt_up
from dpkern.privacy.mechanisms.channel import Channel
from dpkern.privacy.mechanisms.messages import GaussianMessages
from dpkern.privacy.sensitivity.grids import noise_std
from dpkern.privacy.sensitivity.local_runs import LARGEST_DRAW
from dpkern.privacy.sensitivity.minimisation import Minimisation

# Share of the budget's mu for the noise on the minimiser: the noise of b grows by about 1 % for it.
_SHARE = 0.0625
# That noise need not be below this share of the least std of a coordinate of the exact minimiser.
_LEAST_NOISE = 0.125
# Share of delta for exact noise, as for `Budget`: the rest covers the draws' distance from it.
_EXACT_NOISE_SHARE = 1.0 - 2.0**-30


class PerturbedMinimiser:
    """V = round_q( w ) + N(0, t^2) for a w within tau of the minimiser of J(w) + b . w.

    `guarantee` is that of `guarantees.objective_perturbation`; b ~ N(0, s^2 I) on a
    grid that is fine enough for tau, which is that of `Minimisation`. Given the exact minimiser V
    is mu-GDP, t = (2 tau + q sqrt(d)) / mu, for a mu that is a sixteenth of the budget's. The
    budget is that of both and of a further release that is mu_beside-GDP.

    Parameters
    ----------
    channel : Channel
    budget : Budget
        Given as epsilon and delta.
    beside : float
        mu_beside.
    clip, dim, records, smoothness, kappa, penalties
        As for `Minimisation`.
    public : float
        Bound of the norm of the public part of the linear term.

    Attributes
    ----------
    guarantee : ObjectivePerturbation
    std : float
        s.
    minimisation : Minimisation
        The steps that reach tau, and tau.
    """

    def __init__(
        self,
        channel: Channel,
        budget: Budget,
        *,
        clip: float,
        dim: int,
        smoothness: float,
        penalties: tuple[float, float],
        records: int,
        kappa: float,
        beside: float = 0.0,
        public: float = 0.0,
    ) -> None:
        if budget.epsilon is None or budget.delta is None:
            raise ValueError("budget must be given as epsilon and delta for a perturbed objective")
        sensitivity, directions = (clip, 1) if channel.add_remove else (2.0 * clip, 2)
        own = _SHARE * budget.mu
        together = ObjectivePerturbation.within(
            budget.epsilon,
            budget.delta * _EXACT_NOISE_SHARE,
            volume=math.log1p(smoothness / penalties[0]) * (1.0 + 2.0**-48),
            directions=directions,
            mu=sqrt_up(Fraction(own) ** 2 + Fraction(beside) ** 2) if beside else own,
        )
        self.guarantee = replace(together, mu=own)
        self.std = noise_std(sensitivity, self.guarantee.shift)
        self._grid = math.ldexp(1.0, floor_log2(Fraction(self.std)) - 31)
        bound = LARGEST_DRAW * sqrt_up(Fraction(dim)) * self.std
        noise = _LEAST_NOISE * self.std / (records * smoothness + penalties[1])
        self.minimisation = Minimisation(
            clip=clip,
            dim=dim,
            records=records,
            smoothness=smoothness,
            kappa=kappa,
            penalties=penalties,
            linear_bound=(bound + public) * (1.0 + 2.0**-40),
            linear_grid=self._grid,
            target=0.5 * self.guarantee.mu * noise,
        )
        self._channel, self._dim = channel, dim
        self._linear = channel.describe(
            what="random linear term of the objective",
            seen_by="nobody",
            sensitivity=sensitivity,
            std=self.std,
            grid=self._grid,
            dim=dim,
            minimiser=self.guarantee,
        )
        self._messages = GaussianMessages(
            channel,
            what=MINIMISER,
            dim=dim,
            mu=self.guarantee.mu,
            random=True,
        )
        self._messages.require_grid(2.0 * self.minimisation.tau, self.minimisation.iterate_bound)

    def linear_term(self) -> FloatArray:
        """Draw b on its grid, shape (d,), which nobody may see."""
        return kernels.gaussian(self._dim, self.std, grid=self._grid, rng=self._channel.stream)

    def release(self, w: FloatArray) -> FloatArray:
        """Record the release and return V, shape (d,), for the point w that the steps end at."""
        found = self.minimisation
        V = self._messages.release(
            w[np.newaxis], sensitivity=(2.0 * found.tau,), bound=found.iterate_bound
        )
        self._channel.ledger.append(self._linear)  # nothing of it, had the release failed
        return V
