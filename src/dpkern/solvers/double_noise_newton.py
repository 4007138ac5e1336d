"""Newton's method with noise on the gradient and on the direction.

Ganesh, Haghifam, Steinke, Thakurta, "Faster differentially private convex optimization via
second-order methods", NeurIPS 2023:

    w = 0
    for t = 1..T:
        g~ = grad J(w) + N(0, s_g^2 I)
        c~ = max( tr H(w) + N(0, s_c^2), 0 ),      H the mean Hessian of the clipped losses
        l0 = max( (32 f^2 c~ / mu_p^2)^(1/3), 4 b, l ),    b = B / N,  l from s_g
        add:   p = (H + l2 I + l0 I)^-1 g~,        D_p = |g~| b / (l0 (l0 + b)),  f = b
        clip:  p = max(H + l2 I, l0)^-1 g~,        D_p = |g~| f / l0^2
        f = sqrt(2) b for a record that is replaced, b for one that is added or removed
        w = w - (p + N(0, (D_p / mu_p)^2 I))
    return the mean of the last third of the iterates w

l bounds what the gradient's noise moves margins by (docs/settings.md); the paper has neither l nor
the mean. No matrix is released: its noise would be d times larger in dimension than that of the
direction, which shrinks with the gradient.
"""

from typing import Literal

from dpkern.privacy import split_budget
from dpkern.solvers.base import AUTO, BOTH, Count, Run, SolverResult, solver
from dpkern.solvers.base.settings import newton_directions, newton_floor
from dpkern.solvers.releases.gradient import NoisyMeanGradient
from dpkern.solvers.releases.hessian import hessian_bound
from dpkern.solvers.releases.newton_direction import NoisyDirection
from dpkern.solvers.releases.returned import Returned

# Shares of the squared budget of a round: gradient, trace, direction.
_SHARES = (0.5, 0.05, 0.45)

SOLVED = (
    "solving takes LAPACK and BLAS to be conventional (no Strassen-like products, no emulated "
    "doubles)"
)
CLIPPED = (
    "variant 'clip' takes LAPACK's symmetric eigensolver to converge, and eigenvalues and vectors "
    "to be backward stable within 16 (d + 1)^2 2^-53 of the matrix's norm, in Frobenius norm"
)


@solver(
    trusts=("central",),
    federated=False,
    neighbours=BOTH,
    penalties="l2",
    settings=newton_directions,
)
async def double_noise_newton(
    run: Run,
    *,
    hess_clip: float | None = AUTO,
    rounds: Count = AUTO,
    variant: Literal["add", "clip"] = "add",
    returns: Literal["auto", "last", "average", "tail"] = "auto",
) -> SolverResult:
    """Newton's method on the clipped objective that releases directions instead of Hessians.

    Parameters
    ----------
    variant : {"add", "clip"}
        Whether l0 is added to all eigenvalues of the Hessian or truncates them from below.
    returns : {"auto", "last", "average", "tail"}
        Which iterate is returned; "tail" is the average over the last third of the rounds, and
        "auto" with a budget, else "last".

    Notes
    -----
    Every round has three releases to whoever sees the aggregate. Let om = max_k p_k / n_k.

    1. The noisy mean gradient, as in `gradient_descent`: the sum has sensitivity 2 C, or C where a
       record is added or removed.
    2. The trace of the summed Hessian. One record's is in [0, B]: sensitivity B.
    3. The direction p = f(A) g~, A the mean Hessian with penalty, where g~ and l0 are public. A
       record's share of A is positive semi-definite, of rank one and of norm b = B om at most.
       "add", f(x) = 1 / (x + l0): with M = A + l0 I less one record's share, M^-1 - (M + b v v')^-1
       is positive semi-definite and at most b / (l0 (l0 + b)) (Sherman, Morrison), with equality
       for M = l0 I. This is the effect of adding a record. Replacing one is the difference of two
       such matrices, which is no larger than the larger of them: the same constant.
       "clip", f(x) = 1 / max(x, l0) has Lipschitz constant 1 / l0^2, on symmetric matrices in
       Frobenius norm too; replacing a record changes A by at most sqrt(2) b in that norm, adding or
       removing one by b.
       Where every coordinate is penalised, l2 adds to l0, or is a second lower bound.
       Rounding errors of the solve are bounded by the backward error of Cholesky's method,
       (A + E) p = g~ with |E| <= 4 d (3 d + 1) 2^-53 |A| (Higham, Accuracy and stability, theorem
       10.4), and charged; the certificate states the same as an assumption for the eigensolver.
       Where sizes are not public, |A| is bounded by the released trace plus 14 standard deviations
       of its noise and 2 B om.

    Steps are full Newton steps, as in the paper: with losses whose second derivative jumps, such as
    the smoothed hinge, they can cycle, with or without noise.

    The shares of mu^2 are 50 % for gradients, 5 % for traces and 45 % for directions.

    The paper's constants are equal to these with neighbours "add_remove", or larger.
    """
    B = hessian_bound(run, hess_clip)
    mu_g = mu_c = mu_p = None
    if run.budget is not None:
        mu_g, mu_c, mu_p = split_budget(run.budget.mu, _SHARES, (rounds,) * 3)
    gradient = NoisyMeanGradient(run, mu=mu_g)
    least = newton_floor(run.objective, gradient.noise_std)
    newton = NoisyDirection(
        run, variant=variant, hess_clip=B, trace_mu=mu_c, mu=mu_p, regularisation=least
    )

    w, returned = run.objective.start(), Returned(run, rounds)
    for t in run.numbered_rounds():
        g = await gradient(w) + run.objective.penalty_gradient(w)
        w = w - await newton(w, g)
        run.record(t, w, 1.0, g)
        returned.add(w)
    notes = (SOLVED,) if variant == "add" else (SOLVED, CLIPPED)
    return run.result(returned.model, notes=notes if run.budget else ())
