"""Estimators of scikit-learn's shape over the solvers of dpkern.

They take part in pipelines, column transformers, searches and metadata routing as scikit-learn's
own do, and differ from their namesakes in what privacy asks for: a budget, public bounds, and a
certificate of every fit in `privacy_`.
"""

from dpkern.estimators.counts import DPGammaRegressor, DPPoissonRegressor
from dpkern.estimators.linear import DPLasso, DPLinearSVC, DPLogisticRegression, DPRidge
from dpkern.estimators.ordinal import DPOrdinalClassifier
from dpkern.estimators.perceptron import DPMLPClassifier
from dpkern.estimators.search import PrivateSearchCV
from dpkern.estimators.survival import DPDiscreteHazards

__all__ = [
    "DPDiscreteHazards",
    "DPGammaRegressor",
    "DPLasso",
    "DPLinearSVC",
    "DPLogisticRegression",
    "DPMLPClassifier",
    "DPOrdinalClassifier",
    "DPPoissonRegressor",
    "DPRidge",
    "PrivateSearchCV",
]
