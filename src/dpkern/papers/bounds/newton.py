"""Cao, Guo, Zhang (2023), GDP-LocalNewton: bounds and prescriptions."""

from dpkern.papers.bounds._arguments import checked


@checked
def choose_newton_step(
    *,
    smoothness: float,
    strength: float,
    hessian_lipschitz: float,
    hessian_error: float,
    beta: float = 0.5,
) -> float:
    """Return the largest step alpha* that Equation (11) of Cao, Guo, Zhang (2023) admits.

    It is min(2 (1 - beta) kappa (1 - e) / (M (1 + e)), 2 beta kappa^2 / (3 M (M - kappa / 4) L)).
    At a step within the first of the two the search (10) always accepts the step that it tries
    first, so that it is a constant step.

    Parameters
    ----------
    smoothness, strength : float
        M and kappa, between which all eigenvalues of the silos' Hessians are.
    hessian_lipschitz : float
        L of the Hessians.
    hessian_error : float
        e, the relative error of a noisy Hessian.
    beta : float
        Of the search (10).
    """
    M, kappa, e = smoothness, strength, hessian_error
    first = 2.0 * (1.0 - beta) * kappa * (1.0 - e) / (M * (1.0 + e))
    return min(first, 2.0 * beta * kappa**2 / (3.0 * M * (M - kappa / 4.0) * hessian_lipschitz))
