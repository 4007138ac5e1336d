"""Scores of models on held-out records, and statistics of tables, released with a guarantee."""

from dpkern.evaluation.description import Description, Histogram, describe
from dpkern.evaluation.estimates import Statistic
from dpkern.evaluation.evaluate import Evaluation, evaluate
from dpkern.evaluation.figures import Score

__all__ = ["Description", "Evaluation", "Histogram", "Score", "Statistic", "describe", "evaluate"]
