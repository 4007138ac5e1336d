"""A paragraph for the methods section of a paper, with the numbers of a run."""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING

from dpkern.models.hazards import DiscreteHazards
from dpkern.models.networks import MLP
from dpkern.models.ordinal import AllThreshold, CumulativeLogit
from dpkern.privacy.certificate.report import in_words, report_entries
from dpkern.solvers.base.calibration import LogMeans, Temperature
from dpkern.solvers.base.inference import WEIGHTED

if TYPE_CHECKING:  # which imports this module
    from dpkern.solvers.base.result import SolverResult

_NEIGHBOURS = {
    "replace_one": "one record's values are replaced",
    "add_remove": "one record is added or removed",
}
_LOSSES = {
    "logistic": "logistic regression",
    "probit": "probit regression",
    "squared": "linear regression",
    "softmax": "softmax regression",
    "poisson": "Poisson regression",
    "gamma": "gamma regression with a log link",
    "negative_binomial": "negative binomial regression",
    "cloglog": "complementary log-log regression",
}
_GAUSSIAN = (
    'Dong, Roth, Su, "Gaussian differential privacy", Journal of the Royal Statistical Society B, '
    "2022"
)


def methods_text(result: "SolverResult") -> str:
    """Return the paragraph that `SolverResult.methods` describes."""
    privacy, oracle, transform = result.privacy, result.oracle, result.transform
    declared, entries = privacy.declared, report_entries(privacy)
    loss = result.output_loss
    model = _LOSSES.get(loss, f"a linear model with the {loss.replace('_', ' ')} loss")
    if isinstance(oracle, MLP) and oracle.hidden:
        hidden = ", ".join(map(str, oracle.hidden))
        model = f"a perceptron with hidden layers of {hidden} units ({oracle.activation}, {loss})"
    elif isinstance(oracle, DiscreteHazards):
        model = f"hazards of {oracle.intervals} intervals of time by the link {oracle.link}"
    elif isinstance(oracle, AllThreshold):
        model = "ordered classes by the sum of logistic losses at all thresholds between them"
        if isinstance(oracle, CumulativeLogit):
            model = "a cumulative logit (proportional odds) model of ordered classes"
    elif oracle is not None and not isinstance(oracle, MLP):
        model = f"the model {oracle.name}"
    sizes = [int(n) for n in declared.get("sizes", ())]
    said = "a public number of" if privacy.neighbours == "add_remove" else ""
    silos = f" in {len(sizes)} silos" if len(sizes) > 1 else ""
    text = [
        f"We fitted {model} on {transform.n_features} features of {said} {sum(sizes)} records"
        f"{silos} with the solver {result.solver} [1] of dpkern {version('dpkern')}, in "
        f"{result.n_rounds} rounds."
    ]
    clip = declared.get("clip")
    if result.inference is not None:
        text.append(
            "No gradient was clipped; standard errors are by a sandwich covariance that holds the "
            "sampling of the records and the noise, and intervals are normal."
        )
        if result.inference.weighted:
            text.append(f"{WEIGHTED[0].upper()}{WEIGHTED[1:]}.")
        if result.inference.silos:
            text.append(
                "Every silo fitted a model to its own records, and these were combined by "
                "fixed-effect meta-analysis of every coefficient."
            )
    elif isinstance(clip, float) and clip < float("inf"):
        text.append(f"The gradient of every record was clipped to the norm {clip:.4g}.")
    if "sources" in entries:
        bounds = "; ".join(entries["sources"].split("\n"))
        text.append(f"What was taken as public, and where it is from: {bounds}.")
    if not privacy.states_something:
        text.append("No noise was added, or too little: the fit has no privacy guarantee.")
    else:
        mu = entries["mu"]
        gaussian = "" if mu == "none" else f", mu {mu} in Gaussian differential privacy [2]"
        text.append(
            f"The fit is (epsilon, delta)-differentially private with epsilon {entries['epsilon']}"
            f"{gaussian}, for {privacy.unit}, where neighbouring data sets are those in which "
            f"{_NEIGHBOURS[privacy.neighbours]}, under {privacy.trust} trust: the adversary "
            f"{privacy.adversary}."
        )
        words = in_words(privacy)
        text.append(f"{words[0].upper()}{words[1:]}.")
    line = result.calibration
    if isinstance(line, LogMeans):
        if line.level:
            text.append("The level of the predicted means was estimated within the same budget.")
    elif isinstance(line, Temperature) and not line.slope_error:
        text.append(
            f"Scores were divided by {line.temperature:.3g}, a number that follows from those of "
            "records and budget, for predicted probabilities."
        )
    elif line is not None:
        text.append("Predicted probabilities were recalibrated within the same budget.")
    references = [f"[1] {_citation(result.solver)}"]
    if privacy.states_something and entries["mu"] != "none":
        references.append(f"[2] {_GAUSSIAN}.")
    paragraph = " ".join(" ".join(text).split())
    return "\n".join([paragraph, *references])


def _citation(solver: str) -> str:
    """Return the second paragraph of a solver's module, which cites its papers."""
    page = import_module(f"dpkern.solvers.{solver}").__doc__ or solver
    text = " ".join(page.split("\n\n")[1].split()) if "\n\n" in page else page
    return f"{text.rstrip(':.')}."
