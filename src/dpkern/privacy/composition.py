"""Sequential and parallel composition of the certificates of several runs."""

import math
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any

from dpkern.privacy._exact import round_up, sqrt_up
from dpkern.privacy.certificate import Certificate
from dpkern.privacy.objective_perturbation import ObjectivePerturbation


def compose_sequential(*certificates: Certificate) -> Certificate:
    """Return the certificate of several runs on the same data: mu^2 and the draws add up.

    Secret samples are charged in full, here and in `compose_parallel`.
    """
    _refuse_others(certificates)
    mu, zcdp = math.inf, None
    if not any(c.rho == math.inf for c in certificates):
        if all(c.zcdp is None for c in certificates):
            mu = _root_of_squares([c.mu for c in certificates])
        else:
            zcdp = round_up(sum((Fraction(c.rho) for c in certificates), Fraction(0)))
    # The sum of the runs' largest silo totals may exceed the largest total of a silo.
    per_silo = any(r.n_messages is not None for c in certificates for r in c.releases)
    return _merged(
        certificates,
        mu=mu,
        zcdp=zcdp,
        minimiser=_with_laws(certificates, ObjectivePerturbation.sequential, _root_of_squares),
        n_draws=sum(c.n_draws for c in certificates),
        may_be_smaller=per_silo and len(certificates) > 1,
        note=f"sequential composition of {len(certificates)} runs on the same data",
    )


def compose_parallel(*certificates: Certificate) -> Certificate:
    """Return the certificate of several runs on disjoint data: the largest mu and n_draws.

    The partition must be independent of the data.
    """
    _refuse_others(certificates)
    mu, rho = max(c.mu for c in certificates), max(c.rho for c in certificates)
    return _merged(
        certificates,
        mu=mu,
        zcdp=rho if mu == math.inf and rho < math.inf else None,
        minimiser=_with_laws(
            certificates, ObjectivePerturbation.parallel, lambda mus: max(mus, default=0.0)
        ),
        n_draws=max((c.n_draws for c in certificates), default=0),
        may_be_smaller=False,
        note=f"parallel composition of {len(certificates)} runs on disjoint data, "
        "split without looking at them",
    )


def _root_of_squares(mus: list[float]) -> float:
    """Return the mu of releases with these, rounded up."""
    return sqrt_up(sum((Fraction(mu) ** 2 for mu in mus), Fraction(0)))


def _refuse_others(certificates: tuple[Any, ...]) -> None:
    if not certificates:
        raise ValueError("certificates must hold at least one, got none")
    for c in certificates:
        if not isinstance(c, Certificate):
            raise TypeError(
                "certificates must be given one after another, each a Certificate such as the "
                f"privacy of a result, got {type(c).__name__}"
            )
        if c.selection is not None:
            raise ValueError(
                "certificates must have a mu or a rho to compose, got that of a selection: add "
                "epsilon and delta of the others to its own"
            )
    if _laws(certificates) and any(c.zcdp is not None for c in certificates):
        raise ValueError(
            "certificates must have a mu to compose with that of a perturbed objective, got one "
            "with a rho alone: add their epsilons and deltas"
        )


def _laws(certificates: Iterable[Any]) -> list[ObjectivePerturbation]:
    """Return the laws of perturbed objectives among the certificates."""
    return [c.minimiser for c in certificates if c.minimiser is not None]


def _with_laws(
    certificates: tuple[Certificate, ...],
    compose: Callable[[list[ObjectivePerturbation], float], ObjectivePerturbation],
    mu_of_others: Callable[[list[float]], float],
) -> ObjectivePerturbation | None:
    """Return the law of minimisers together with Gaussian releases; None without a guarantee."""
    laws = _laws(certificates)
    if not laws or not all(c.states_something for c in certificates):
        return None
    return compose(laws, mu_of_others([c.mu for c in certificates if c.minimiser is None]))


def _merged(
    certificates: tuple[Certificate, ...],
    *,
    mu: float,
    zcdp: float | None,
    minimiser: ObjectivePerturbation | None,
    n_draws: int,
    may_be_smaller: bool,
    note: str,
) -> Certificate:
    first = certificates[0]
    for name in ("unit", "neighbours"):
        values = sorted({str(getattr(c, name)) for c in certificates})
        if len(values) > 1:
            raise ValueError(f"{name} must be one for all certificates, got {', '.join(values)}")
    trusts = dict.fromkeys(trust for c in certificates for trust in c.trust.split(" + "))
    deltas = {c.stated_delta for c in certificates}
    exact = all(c.bound == "exact" for c in certificates) and not may_be_smaller
    return Certificate(
        trust=" + ".join(trusts),
        noise=next((c.noise for c in certificates if c.noise != "os"), "os"),
        mu=mu,
        zcdp=zcdp,
        minimiser=minimiser,
        n_draws=n_draws,
        releases=tuple(release for c in certificates for release in c.releases),
        unit=first.unit,
        neighbours=first.neighbours,
        arithmetic="grid" if all(c.arithmetic == "grid" for c in certificates) else "float",
        declared=_by_run([c.declared for c in certificates]) or {},
        claimed=_by_run([c.claimed for c in certificates]),
        bound="exact" if exact else "upper",
        notes=(note, *(text for c in certificates for text in c.notes)),
        at_delta=deltas.pop() if len(deltas) == 1 else None,
    )


def _by_run(parameters: list[dict[str, Any] | None]) -> dict[str, Any] | None:
    """Merge the parameters of several runs, with one entry per run unless all agree."""
    if all(p == parameters[0] for p in parameters):
        return parameters[0]
    return {f"run {i}": p for i, p in enumerate(parameters, 1) if p}
