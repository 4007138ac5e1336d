"""Objective perturbation.

Chaudhuri, Monteleoni, Sarwate, "Differentially private empirical risk minimization", JMLR 2011;
Kifer, Smith, Thakurta, "Private convex empirical risk minimization and high-dimensional
regression", COLT 2012; with an approximate minimiser after Iyengar, Near, Song, Thakkar, Thakurta,
Wang, "Towards practical differentially private convex optimization", S&P 2019 (AMP):

    b ~ N(0, s^2 I)                                                         never seen
    w ~ argmin sum_i om_i l_i(w) + (Lambda/2) |w|^2 + b . w,   |w - w*| <= tau
    return w + N(0, t^2 I)                                                  the only release

    papers:  l_i bounded and smooth as declared, tau from a norm of the gradient that is measured
    here:    l_i clipped, tau what a public number of steps reaches in doubles

l_i are the clipped losses and om_i = (p_j/n_j) / max_k (p_k/n_k), divided by which the penalty of
the mean objective, l2 + added_l2, is Lambda. s follows from epsilon and delta by the privacy loss
of Redberg, Koskela, Wang, "Improving the privacy and practicality of objective perturbation for
differentially private linear learners", NeurIPS 2023, as an expectation of it
(`dpkern.privacy.guarantees.objective_perturbation`).
"""

from dpkern.solvers.base import AUTO, BOTH, NotNegative, Run, SolverResult, solver
from dpkern.solvers.base.settings import perturbed
from dpkern.solvers.releases.minimiser import TWICE_PUBLIC, Minimiser

HIDDEN = (
    "hidden: the linear term and every step of the minimisation; the guarantee rests on the "
    "declared row bound, on the loss being convex, and on the curvature and rounding error that it "
    "states"
)


@solver(
    trusts=("central",), federated=False, neighbours=BOTH, penalties="l2", settings=perturbed,
    gaussian=False, in_blocks=1, on_card=True, error=(0.27, 0.93), seconds=(0.87, 7.2), audit={},
    weights=False, penalizes_intercept=True,
)  # fmt: skip
async def objective_perturbation(run: Run, *, added_l2: NotNegative = AUTO) -> SolverResult:
    """Minimiser of the clipped objective with a random linear term.

    Parameters
    ----------
    added_l2 : float or "auto"
        Strength of a penalty (added_l2/2) |w|^2 on all coordinates, the intercept too, beside l2.
        The smallest penalty bounds how much the curvature of one record matters: it costs
        log(1 + L / Lambda) of epsilon, and the rest pays for the noise. "auto" adds what l2 lacks
        of a penalty that suits epsilon, and of 2^-13 of the smoothness, without a budget too.

    Notes
    -----
    The only release is V = round_q( w ) + N(0, t^2) to whoever sees the aggregate, for a w within
    tau of the exact minimiser w*, which is neither computed nor seen. The sum of clipped gradients,
    which b hides at w*, has sensitivity 2 C in the span of the two rows, or C along one with
    "add_remove"; the determinants of the Hessians differ by a factor of at most 1 + L / Lambda,
    L = phi''max row_bound^2. So the privacy loss of w* is at most that plus
    m chi_k + m^2 / 2, m = 2 C / s and k = 2, or m = C / s and k = 1, and given w* the release has
    sensitivity 2 tau + q sqrt(d) and std t: both together have the guarantee
    delta(epsilon) <= E delta(epsilon - Z; mu) of `guarantees.objective_perturbation`, which is
    neither Gaussian nor concentrated DP. The budget must be given as epsilon and delta; the
    certificate composes with those that have a mu.

    tau is public (`sensitivity.minimisation`): the distance that so many accelerated gradient
    steps reach for any records, rounding errors counted. Their number grows with the square root of
    the condition number. It needs a row bound and a convex loss of bounded curvature, and with
    "add_remove" that there are at most twice the public number of records.
    """
    minimiser = Minimiser(run, added_l2)
    if run.plan.budget is not None:
        twice = (TWICE_PUBLIC,) if run.plan.sizes_are_hidden else ()
        run.qualify(HIDDEN, *twice, upper=True)
    w = await minimiser.release()
    run.record(0, w, 1.0, run.objective.start() - w)
    return run.result(w)
