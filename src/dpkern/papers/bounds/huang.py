"""Huang, federated algorithm under MPC: bounds and prescriptions."""

from dpkern.papers.bounds._arguments import checked


@checked
def bound_local_drift(*, step_size: float, local_steps: int, gradient_norm: float) -> float:
    """Return 4 eta^2 (K - 1)^2 H^2, Huang's Lemma 3.

    It bounds the mean squared distance of the silos' models from their average within K local
    steps, for gradients of norm at most H and steps that at most halve within a round.
    """
    return 4.0 * (step_size * (local_steps - 1) * gradient_norm) ** 2


@checked
def bound_federated_step(
    *,
    step_size: float,
    smoothness: float,
    strength: float,
    clip: float,
    dim: int,
    local_steps: int,
    square_distance: float,
    heterogeneity: float,
    std: float,
) -> float:
    """Return the bound on E |theta^(t+1) - theta*|^2 of one step, Huang's Lemma 2.

    It is (1 - eta lam) |theta^t - theta*|^2 + eta^2 (6 L Gamma + d sigma^2) + twice Lemma 3, for
    eta <= 1 / (4 L): restated from the constants of Theorem 4, which follows from it by induction.

    Parameters
    ----------
    step_size, square_distance : float
        eta and |theta^t - theta*|^2.
    smoothness, strength, clip, dim, local_steps, heterogeneity, std
        As for `bound_federated_gd`.
    """
    drift = bound_local_drift(step_size=step_size, local_steps=local_steps, gradient_norm=clip)
    noise = 6.0 * smoothness * heterogeneity + dim * std**2
    return (1.0 - step_size * strength) * square_distance + step_size**2 * noise + 2.0 * drift


@checked
def bound_federated_gd(
    *,
    smoothness: float,
    strength: float,
    clip: float,
    dim: int,
    steps: int,
    local_steps: int,
    square_distance: float,
    heterogeneity: float,
    std: float,
) -> float:
    """Return the bound on E J(theta^T) - J* of Huang's Theorem 4.

    With gamma = max(8 L / lam - 1, K) and steps 2 / (lam (t + gamma)), step_size="theorem" of
    `federated_gd`, it is 2 L / (lam (gamma + T)) (B / lam + 2 L |theta^0 - theta*|^2), where
    B = 6 L Gamma + 8 (K - 1)^2 G^2 + d sigma^2.

    Parameters
    ----------
    smoothness, strength : float
        L and lam of J.
    clip : float
        G, which bounds the gradients of the silos.
    dim : int
        d.
    steps, local_steps : int
        T in all, and K between two averages.
    square_distance : float
        |theta^0 - theta*|^2.
    heterogeneity : float
        Gamma = J* - sum_j p_j J_j*, which `diagnostics.measure_heterogeneity` reads from records.
    std : float
        sigma, for the printed noise `noise.federated_gd`.
    """
    spread = 8.0 * ((local_steps - 1) * clip) ** 2
    B = 6.0 * smoothness * heterogeneity + spread + dim * std**2
    gamma = max(8.0 * smoothness / strength - 1.0, float(local_steps))
    factor = 2.0 * smoothness / (strength * (gamma + steps))
    return factor * (B / strength + 2.0 * smoothness * square_distance)
