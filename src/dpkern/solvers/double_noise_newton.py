"""Newton's method with noise on the gradient and on the direction.

Ganesh, Haghifam, Steinke, Thakurta, "Faster differentially private convex optimization via
second-order methods", NeurIPS 2023:

    w = 0
    for t = 1..T:
        g~ = grad J(w) + N(0, s_g^2 I)
        c~ = max( tr H(w) + N(0, s_c^2), 0 ),      H a mean of clipped curvatures h x x^T
        l0 = max( (32 a f^2 c~ / mu_p^2)^(1/3), 4 b, l(s_g), k (|g~| f / mu_p)^(1/2) ),   b = B / N
        add:   p = (H + l2 I + l0 I)^-1 g~,        D_p = |g~| b / (l0 (l0 + b)),  f = b
        clip:  p = max(H + l2 I, l0)^-1 g~,        D_p = |g~| f / l0^2
        f = sqrt(2) b for a record that is replaced, b for one that is added or removed
        w = w - (p + N(0, (D_p / mu_p)^2 I))
    return the mean of the last third of the iterates w

h is phi'' or its upper bound, the curvature of the least quadratic majorant of phi. l and k bound
what the two noises move margins by (docs/settings.md); the paper has neither, nor the mean. No
matrix is released: its noise would be d times larger in dimension than that of the direction.
"""

from typing import Literal

from dpkern.solvers.base import AUTO, BOTH, Count, Positive, Returns, Run, SolverResult, solver
from dpkern.solvers.base.options import Share
from dpkern.solvers.base.settings import direction_floor, newton_directions
from dpkern.solvers.releases.gradient import NoisyMeanGradient, Returned
from dpkern.solvers.releases.newton_direction import NoisyDirection, resolve_curvature, shared


@solver(
    trusts=("central",), federated=False, neighbours=BOTH, penalties="l2",
    settings=newton_directions, resolve=resolve_curvature, in_blocks=2, hessians=True,
    error=(0.27, 0.83), seconds=(0.85, 370.0), audit={"rounds": 1},
)  # fmt: skip
async def double_noise_newton(
    run: Run,
    *,
    hess_clip: float | None = AUTO,
    rounds: Count = AUTO,
    variant: Literal["add", "clip"] = "add",
    curvature: Literal["auto", "upper_bound", "hessian"] = "auto",
    trace_coeff: Positive = 1.0,
    gradient_share: Share = 0.5,
    trace_share: Share = 0.05,
    returns: Returns = "auto",
) -> SolverResult:
    """Newton's method on the clipped objective that releases directions instead of Hessians.

    Parameters
    ----------
    variant : {"add", "clip"}
        Whether l0 is added to all eigenvalues of the Hessian or truncates them from below.
    curvature : {"auto", "upper_bound", "hessian"}
        Whether h is phi'' or its upper bound, with which full steps without noise never increase
        the objective where B clips nothing. "auto" is the upper bound with a budget and a loss of
        the table.
    trace_coeff : float
        Factor a on the trace in l0: larger ones make shorter steps with less noise.
    gradient_share : float
        Share of mu^2 of the gradients.
    trace_share : float
        Share of the traces; directions have the rest.
    returns : {"auto", "last", "average", "tail"}, int or float
        Which iterate is returned: a number is the average of so many last ones, or of this share;
        "tail" is that of the last third, and "auto" with a budget, else "last".

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

    Nothing of this depends on what h in [0, B / |x|^2] is, nor on l0 beyond that it is public.

    Steps are full ones, as in the paper. With curvature "hessian" they can cycle where second
    derivatives jump, as those of the smoothed hinge do, and diverge where they vanish far from the
    labels, as those of all losses for classes do, with or without noise.

    The paper's constants are equal to these with neighbours "add_remove", or larger.
    """
    objective = run.objective
    mu_g, *mu = shared(run, gradient_share, trace_share)
    gradient = NoisyMeanGradient(run, mu=mu_g)
    least = direction_floor(objective, gradient.noise_std, run.plan.clip)
    newton = NoisyDirection(run, mu=mu, regularisation=least)

    w, returned = run.first_model(), Returned(run, rounds)
    run.qualify(*newton.notes)
    for t in run.numbered_rounds():
        g = await gradient(w) + objective.penalty_gradient(w)
        w = w - await newton(w, g)
        run.record(t, w, 1.0, g)
        returned.add(w)
    return run.result(returned.model)
