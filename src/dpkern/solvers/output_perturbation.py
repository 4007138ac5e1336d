"""Output perturbation of averaged local models.

Pathak, Rane, Raj, "Multiparty differential privacy via aggregation of locally trained classifiers",
NeurIPS 2010; output method of Jayaraman, Wang, Evans, Gu, "Distributed learning without distress:
privacy-preserving empirical risk minimization", NeurIPS 2018:

    theta_j = 0 in every silo j
    for t = 1..T:  theta_j = prox_{eta_t h}( theta_j - eta_t grad J_j(theta_j) )
    return sum_j p_j theta_j + z                               the only release (central)

    sound, central:  z ~ N(0, s^2 I)
    sound, silo:     every silo sends theta_j + z_j, z_j ~ N(0, s_j^2 I)
    paper:           z Laplace in every coordinate, of scale 2 C / (m n_min l2 epsilon)

J_j is the mean over silo j of the clipped losses plus the penalties, h the proximal penalty, and
p_j = 1/m in the papers (weights "uniform"). The papers divide an l2 sensitivity by epsilon for
independent Laplace noise, which needs an l1 sensitivity, up to sqrt(d) times larger; and their
proof is for exact minimisers instead of T steps. Here the number of steps is public, and the
sensitivity is that of the steps.
"""

from dpkern.papers import noise
from dpkern.papers.mechanisms import LaplaceAverage
from dpkern.solvers.base import AUTO, Count, Run, SolverResult, StepSize, solver
from dpkern.solvers.base.settings import hidden_descent
from dpkern.solvers.releases.local_runs import HIDDEN, HiddenSteps, average_runs


@solver(
    trusts=("central", "silo"), paper=("central",), settings=hidden_descent, error=(0.26, 0.87),
    seconds=(0.43, 0.0), audit={"local_steps": 4, "step_size": 1e-5}, sends_models=True,
    weights=False, penalizes_intercept=True,
)  # fmt: skip
async def output_perturbation(
    run: Run,
    *,
    local_steps: Count = AUTO,
    step_size: StepSize = "auto",
) -> SolverResult:
    """Average of local models with noise on the result.

    Parameters
    ----------
    local_steps : int
        Number of steps T of every silo; no tolerance stops them earlier.

    Notes
    -----
    Under central trust, the only release is V = sum_j round_q( p_j theta_j ) + Z to whoever sees
    the aggregate, of sensitivity D = max_j p_j (2 C / n_j) E_T plus rounding terms
    (`sensitivity.local_runs`) and std D / mu. Under silo trust it is round_q( theta_j ) + Z_j of
    every silo, with p_j = 1 in D_j; silos hold disjoint records and compose in parallel. Both need
    a row bound and a loss of bounded curvature.

    Calibration "paper" draws the Laplace noise of Jayaraman et al., of scale
    2 C / (m n_min l2 epsilon), Pathak's divided by m, in floating point: the certificate has
    arithmetic "float", an infinite mu and no guarantee.
    """
    eta, data, claim = run.plan.step_sizes, run.objective.data, run.plan.claimed
    if claim is None:
        return await average_runs(run, eta, HiddenSteps(run, mu=run.plan.mu_of_one(1)), HIDDEN)
    sensitivity = noise.output_perturbation(
        clip=run.plan.clip, smallest=int(data.sizes.min()), m=data.m, l2=run.objective.l2
    )
    perturbed = LaplaceAverage(run, sensitivity=sensitivity, epsilon=claim["epsilon"])
    return await average_runs(run, eta, perturbed)
