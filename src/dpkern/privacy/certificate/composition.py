"""Sequential and parallel composition of the certificates of several runs."""

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

from dpkern.privacy.certificate.certificate import Certificate
from dpkern.privacy.guarantees.base import Guarantee
from dpkern.privacy.guarantees.gdp import NO_GUARANTEE, GaussianDP
from dpkern.privacy.guarantees.objective_perturbation import ObjectivePerturbation
from dpkern.privacy.guarantees.rounding import round_up, sqrt_up
from dpkern.privacy.guarantees.zcdp import ConcentratedDP

_WHOLE = "; taken as true: no person has records in two of them"


def compose_sequential(*certificates: Certificate) -> Certificate:
    """Return the certificate of several runs on the same data: mu^2 and the draws add up.

    Secret samples are charged in full, here and in `compose_parallel`.

    The total holds for runs whose guarantees, and their number, were fixed beforehand; settings
    may depend on earlier results. Where results choose how much is spent next, or when to stop and
    state a total, give the runs an `Accountant`, whose budget is fixed beforehand.
    """
    _refuse_others(certificates)
    # The sum of the runs' largest silo totals may exceed the largest total of a silo.
    per_silo = any(r.n_messages is not None for c in certificates for r in c.releases)
    return _merged(
        certificates,
        "sequential",
        may_be_smaller=per_silo and len(certificates) > 1,
        note=f"sequential composition of {len(certificates)} runs on the same data, whose "
        "guarantees were fixed beforehand",
    )


def compose_parallel(*certificates: Certificate) -> Certificate:
    """Return the certificate of several runs on disjoint data: the largest mu and n_draws.

    The partition must be independent of the data, and divide no person whom a certificate is for.
    """
    _refuse_others(certificates)
    return _merged(
        certificates,
        "parallel",
        may_be_smaller=False,
        note=f"parallel composition of {len(certificates)} runs on disjoint data, "
        f"split without looking at them{'' if certificates[0].unit == 'one record' else _WHOLE}",
    )


def _together(guarantees: list[Guarantee], *, parallel: bool) -> Guarantee:
    """Return the guarantee of releases about the same records, or about disjoint ones."""
    if NO_GUARANTEE in guarantees:
        return NO_GUARANTEE
    for one in guarantees:
        if not isinstance(one, GaussianDP | ConcentratedDP | ObjectivePerturbation):
            raise ValueError(
                "certificates must have a mu, a rho or a perturbed objective to compose, got "
                f"{one!r}: add its epsilon and delta to those of the others"
            )
    mus = [g.mu for g in guarantees if isinstance(g, GaussianDP)]
    minimisers = [g for g in guarantees if isinstance(g, ObjectivePerturbation)]
    if parallel:
        mu = max(mus, default=0.0)
    else:
        mu = sqrt_up(sum((Fraction(one) ** 2 for one in mus), Fraction(0)))
    if minimisers:
        kind = ObjectivePerturbation
        return (kind.parallel if parallel else kind.sequential)(minimisers, mu)
    if len(mus) == len(guarantees):
        return GaussianDP(mu=mu)
    rhos = [g.rho for g in guarantees if isinstance(g, GaussianDP | ConcentratedDP)]
    return ConcentratedDP(
        rho=max(rhos) if parallel else round_up(sum(map(Fraction, rhos), Fraction(0)))
    )


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
    kinds = {type(c.guarantee) for c in certificates}
    if {ConcentratedDP, ObjectivePerturbation} <= kinds:
        raise ValueError(
            "certificates must have a mu to compose with that of a perturbed objective, got one "
            "with a rho alone: add their epsilons and deltas"
        )


def _merged(
    certificates: tuple[Certificate, ...],
    composition: str,
    *,
    may_be_smaller: bool,
    note: str,
) -> Certificate:
    first, parallel = certificates[0], composition == "parallel"
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
        guarantee=_together([c.guarantee for c in certificates], parallel=parallel),
        n_draws=(max if parallel else sum)(c.n_draws for c in certificates),
        parts=certificates,
        composition=composition,
        unit=first.unit,
        neighbours=first.neighbours,
        arithmetic="grid" if all(c.arithmetic == "grid" for c in certificates) else "float",
        declared=_by_run([c.declared for c in certificates]) or {},
        claimed=_by_run([c.claimed for c in certificates]),
        bound="exact" if exact else "upper",
        notes=(note, *(text for c in certificates for text in c.notes)),
        at_delta=deltas.pop() if len(deltas) == 1 else None,
        names=_merged_texts(c.names for c in certificates),
        sources=_merged_texts(c.sources for c in certificates),
    )


def _by_run(parameters: list[dict[str, Any] | None]) -> dict[str, Any] | None:
    """Merge the parameters of several runs, with one entry per run unless all agree."""
    if all(p == parameters[0] for p in parameters):
        return parameters[0]
    return {f"run {i}": p for i, p in enumerate(parameters, 1) if p}


def _merged_texts(several: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return the texts of several runs, with those that differ one after another."""
    texts: dict[str, dict[str, None]] = {}
    for one in several:
        for name, entry in one.items():
            texts.setdefault(name, {})[entry] = None
    return {name: "; ".join(entries) for name, entries in texts.items()}
