"""Newton's method with noise, for estimates whose standard errors are released with them.

An M-estimator with weights that depend on a row alone (Mallows), whose gradients are never cut
short, and the sandwich covariance of Huber (1967) with the variance of the noise in it, after
Avella-Medina, Bradshaw, Loh, "Differentially private inference via noisy optimization", Annals of
Statistics 51 (2023), Algorithm 2:

    m = sum_i x_i + noise                                          columns are centred by it
    G = sum_i x_i x_i^T + noise,  and once more in its own coordinates         W = a (G/n)^-1/2
    u_i = W^T x_i,  f_i = min(1, C^2 / |u_i|^2)                        |f_i u_i| <= C, whatever x_i
    w = W theta, theta = 0, for t = 1..T:
        J = sum_i f_i phi''(z_i) u_i u_i^T + noise                     z_i = x_i . w, from t = 2 on
        g_t = sum_i f_i phi'(z_i) u_i + noise of std s_t
        e_t = theta - J^-1 g_t,  theta = e_t, or the mean of e_(t-1) and e_t, below
    estimate: e_(T-1), e_T, weighted by 1/s_t^2                        both with the last J
    V = J^-1 Q J^-1 + s^2 J^-1 J^-1 + what the noise and the moves of J add
        with Q = sum_i f_i^2 phi'(z_i)^2 u_i u_i^T + noise

From t = 3 on theta is that mean wherever noise explains g_t, which then has a smaller error than
e_t. a is 1, or more where R |W| would be below C. theta_1 of a model of labels or means is, in
place of e_1, what normal rows with the first g would have, of its slopes 0.7, and theta_0 of a
model of means has the released mean of the targets. Newton's method diverges where a few rows are
far from all others, and curvatures vanish: so steps of likelihoods after the first move margins by
at most 1.5 of logistic models, 0.8 of probit, 1 of complementary log-log and 0.5 of log links, in
the mean of squares. And where g_t says that the last long step went beyond the least sum along it,
and the next one would go back by more than half of it, J has in its direction at least the
curvature between the two, by which g changed. phi' is bounded by k: of a likelihood by the loss's
own bound, 1 of the logistic loss and of the Poisson loss the larger one of its largest mean and
target, of Huber's loss by delta, and of the squared loss by k C / |f u|, k at most three released
standard deviations of residuals, so that |f phi' u| <= k C. V has a sandwich, which holds where a
likelihood is wrong. Weights multiply phi' and phi'', and offsets are added to z alone. How good W
is changes the noise, and not what is estimated; where f_i < 1 and the model is wrong, the estimand
is that of the weighted records. Under silo trust every silo does all of this by itself, and
coefficients are means of the silos', by precision.
"""

import numpy as np

from dpkern._threads import one_blas_thread
from dpkern.models.ordinal import AllThreshold
from dpkern.solvers.base import AUTO, BOTH, Count, Run, SolverResult, solver
from dpkern.solvers.base.pooling import pooled
from dpkern.solvers.base.settings import estimation
from dpkern.solvers.releases.estimation import Estimation
from dpkern.solvers.releases.estimation_sums import Sums
from dpkern.solvers.releases.foreseen import resolve_foreseen
from dpkern.solvers.releases.ordered_estimation import OrderedEstimation


@solver(
    trusts=("central", "silo"), neighbours=BOTH, penalties="l2", settings=estimation,
    models="ordered", estimates=True, resolve=resolve_foreseen, in_blocks=2, audit={"rounds": 4},
)  # fmt: skip
async def newton_inference(run: Run, *, rounds: Count = AUTO) -> SolverResult:
    """Newton's method for estimates with standard errors.

    The result has the covariance of its coefficients, `SolverResult.inference`, and a table of
    them, `SolverResult.summary`: under silo trust the meta-analysis of the silos' own estimates.
    The argument `clip` is C, the bound of a whitened row: "auto" is as large as the noise permits,
    between sqrt(1.5 d) and 4 sqrt(d), of each silo by its records, and infinite without a budget.

    Parameters
    ----------
    rounds : int
        Number of steps T: 5 with a budget, the last with half of their mu^2, and 25 without one.
        Logistic models that tell nearly all records apart may need 6 or 7.

    Notes
    -----
    Whoever sees the aggregate sees these sums over all records, or whoever sees a silo's messages
    those over its records, each with the Gaussian mechanism's noise on an exact sum, where R is the
    row bound and B the larger of C and 1.25 sqrt(d):

    ========================================  =========================  =============
    sum of                                    sensitivity                share of mu^2
    ========================================  =========================  =============
    rows x                                    2 R                        0.03
    x x^T, of rows less the released mean     sqrt(2) R^2, and rounding  0.05
    f u u^T                                   sqrt(2) B^2, and rounding  0.06
    squared residuals / T^2 less 1/2, T the   1                          0.02, twice for
    bound of targets                                                     "squared", once
                                                                         for Huber's loss
    targets / Y less 1/2, Y their bound       1                          0.02, of means
    f phi'' / sup phi'' u u^T, T - 1 times    sqrt(2) C^2, and rounding  0.20
    f^2 q / sup q u u^T                       sqrt(2) C^2, and rounding  0.04
    f phi' / k u, T times                     2 C                        0.60
    ========================================  =========================  =============

    Ordered classes (`AllThreshold`) have the sum of the indicators of their classes in the place of
    that of targets, of sensitivity 2 and share 0.02. A record has a row at each of T thresholds;
    sums of scores, curvatures and squared scores are over their bounds, of sensitivities 2 and
    sqrt(2) (docs/proofs/inference.md).

    With "add_remove" the sensitivities are R, R^2, B^2, 1/2, C^2 and C. A record's vector is a
    function of that record and of released numbers, bit by bit, and is cut to its norm by itself.
    Everything else is post-processing.

    Under silo trust each silo has the whole budget, as its records are in no other, and noise of
    its own for every sum; rows are in units of B or C, which are 1 in the table then, so that silos
    with different C have the same sensitivities. A seed gives all silos' noise of a sum at once:
    that of a silo is not the one of a run with this seed on its records alone.
    """
    # Functions of records must not raise, nor may parties with more cores have other bits.
    with np.errstate(all="ignore"), one_blas_thread():
        run.draw_no_conclusion()
        release, shares = Sums(run), run.objective.shares() if run.plan.trust == "silo" else [1.0]
        clips = np.broadcast_to(run.plan.clip, len(release.sizes)).tolist()
        ordered = isinstance(run.objective.loss, AllThreshold)
        kind = OrderedEstimation if ordered else Estimation
        each = [kind(run, rounds, n=n, clip=C) for n, C in zip(release.sizes, clips, strict=True)]
        thetas = release(one.start() for one in each)
        for t in run.numbered_rounds():
            found = release(one.step(t, theta) for one, theta in zip(each, thetas, strict=True))
            gradients, directions = zip(*found, strict=True)
            thetas = [theta - p for theta, p in zip(thetas, directions, strict=True)]
            models = np.array([one.W @ theta for one, theta in zip(each, thetas, strict=True)])
            run.record(t, shares @ models, 1.0, np.concatenate(gradients) / run.objective.n)
        estimates = release(one.estimate() for one in each)
        w, inference = pooled(run.objective.data, estimates, release.sizes)
    return run.result(w, inference=inference)
