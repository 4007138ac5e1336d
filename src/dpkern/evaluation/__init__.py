"""Scores of models on held-out records, released with a guarantee."""

from dpkern.evaluation.evaluate import Evaluation, evaluate
from dpkern.evaluation.figures import Score

__all__ = ["Evaluation", "Score", "evaluate"]
