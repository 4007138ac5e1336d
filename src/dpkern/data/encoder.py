"""A scikit-learn transformer that encodes raw records by a public schema."""

from __future__ import annotations  # help() then shows type aliases by name

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin

from dpkern.data.schema import Schema


class PublicEncoder(TransformerMixin, BaseEstimator):
    """Encode raw records by a public schema; nothing is learnt from data.

    Numbers are clamped to their range and mapped to [-1, 1], categories become indicators, unknown
    ones the average of the indicators, and missing values what the schema states. A record is
    encoded from itself and the schema alone, so that what follows needs no privacy budget for this
    step.

    Parameters
    ----------
    schema : Schema
        The public description of the records.
    sparse_output : bool, default=False
        Whether `transform` returns CSR.

    Attributes
    ----------
    n_features_in_ : int
        Number of columns of the schema that are features.
    feature_names_in_ : ndarray of str
        Their names.

    Notes
    -----
    `fit` reads no record and may be left out. Both attributes are of the schema.

    Examples
    --------
    >>> from dpkern.data import Column, Schema
    >>> schema = Schema([Column("age", "number", lo=0, hi=100)])
    >>> PublicEncoder(schema).transform({"age": [25, 150]})
    array([[-0.5],
           [ 1. ]])
    """

    def __init__(self, schema: Schema, *, sparse_output: bool = False) -> None:
        self.schema = schema
        self.sparse_output = sparse_output

    def fit(self, X: Any = None, y: Any = None) -> Self:
        """Check the parameters; X and y are ignored."""
        self._checked()
        return self

    def transform(self, X: Any) -> Any:
        """Return the encoded features of raw records.

        Parameters
        ----------
        X : data frame (pandas, polars), mapping of names to columns, or list of mappings
            The columns of the schema in any order; those that are no features may be absent.

        Returns
        -------
        ndarray or csr_array of shape (n, n_features), float64
            Or what `set_output` says.

        Raises
        ------
        TypeError, ValueError
            As for `Schema.encode` and `Schema.check_values`, which also warns.
        """
        schema = self._checked()
        schema.check_values(X)
        return schema.encode(X, sparse_output=self.sparse_output)

    def count_outside(self, X: Any) -> dict[str, tuple[int, int]]:
        """Return the counts of values outside what is declared, as `Schema.count_outside`."""
        return self._checked().count_outside(X)

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """Return the names of the encoded features; `input_features` is ignored."""
        return np.array(self._checked().feature_names, dtype=object)

    @property
    def feature_names_in_(self) -> NDArray[Any]:
        """Names of the schema's columns that are features."""
        return np.array([column.name for column in self._checked().features], dtype=object)

    @property
    def n_features_in_(self) -> int:
        """Number of the schema's columns that are features."""
        return len(self._checked().features)

    def _checked(self) -> Schema:
        if not isinstance(self.schema, Schema):
            raise TypeError(f"schema must be a dpkern.Schema, got a {type(self.schema).__name__}")
        if not isinstance(self.sparse_output, bool):
            raise TypeError(f"sparse_output must be True or False, got {self.sparse_output!r}")
        return self.schema

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        tags.input_tags.allow_nan = tags.input_tags.string = tags.input_tags.categorical = True
        tags.input_tags.two_d_array = False
        tags.input_tags.dict = True
        return tags
