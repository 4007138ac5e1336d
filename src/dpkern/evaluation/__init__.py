"""Scores of models on held-out records, and statistics of tables, released with a guarantee."""

from dpkern.evaluation.description import Description, Histogram, describe
from dpkern.evaluation.estimates import Statistic
from dpkern.evaluation.evaluate import Evaluation, evaluate
from dpkern.evaluation.figures import Score
from dpkern.evaluation.survival import Curve, SurvivalCurves, concordance_index, survival_curve

__all__ = [
    "Curve",
    "Description",
    "Evaluation",
    "Histogram",
    "Score",
    "Statistic",
    "SurvivalCurves",
    "concordance_index",
    "describe",
    "evaluate",
    "survival_curve",
]
