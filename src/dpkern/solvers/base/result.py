"""The result of a solver: the released model, its certificate, and prediction with it."""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

import numpy as np
import scipy  # submodules load lazily, which keeps the import of dpkern cheap
from numpy.typing import ArrayLike, NDArray

from dpkern._files import refuse_unwritable, replacing
from dpkern._html import table
from dpkern._json import decode, encode, model_digest
from dpkern._numbers import probability
from dpkern.data import Schema, Transform
from dpkern.data.frames import column_names, refuse_other_names, table_columns
from dpkern.io import read_arrays
from dpkern.models.hazards import DiscreteHazards
from dpkern.models.networks import MLP, load_oracle
from dpkern.models.oracles import Oracle
from dpkern.models.ordinal import AllThreshold
from dpkern.privacy import Certificate
from dpkern.solvers.base.calibration import (
    Calibration,
    LogMeans,
    Temperature,
    stored_calibration,
)
from dpkern.solvers.base.coefficients import (
    LISTED,
    CoefficientNoise,
    Coefficients,
    coefficients,
    has_coefficients,
)
from dpkern.solvers.base.inference import ARRAYS, Inference, Summary, summary
from dpkern.solvers.base.methods import methods_text
from dpkern.solvers.base.onnx_model import onnx_model
from dpkern.solvers.base.outcome import stored_model
from dpkern.solvers.base.pooling import combined, of_silos

FORMAT = 5

# Entries of the history from the monitor, which saved files omit if it is the training data.
MONITORED = ("objective", "accuracy")

# Fields that a file holds as they are, beside what predicts.
_PLAIN = ("solver", "converged", "n_rounds", "parameters", "message")
_PREDICTS = (
    *("coef", "intercept", "classes", "transform", "loss", "oracle", "feature_names", "schema"),
    "calibration",
)


@dataclass(frozen=True, eq=False)
class SolverResult:
    """A released model with its certificate; results are equal if both of these are.

    Attributes
    ----------
    solver : str
        Name in `dpkern.solvers.SOLVERS`.
    coef : ndarray, shape (n_features,)
        Weights of the features as transformed by the data's feature range and row bound.
    intercept : float
        Weight of the constant feature; 0 without an intercept.
    classes : ndarray, shape (2,) or (K,), or None
        Labels of the negative and the positive class, or of all classes; None for regression.
    converged : bool
        Whether the last released gradient of the objective is at most 1e-6 in norm. Noise usually
        keeps it above.
    n_rounds : int
        Number of released aggregations.
    parameters : dict
        Every parameter of the run, with defaults resolved.
    history : dict of list
        One public number per round, or per update where a round has several.
    privacy : Certificate
        The guarantee of the released bits.
    timing : dict
        Seconds in "kernels", "noise", "python" and "total", compiled rounds with their noise being
        "kernels"; not private, since they grow with the number of records. Empty for a model from a
        file.
    message : str
        How the run ended.
    transform : Transform
        The map from rows to the effective rows that the model was fitted on.
    loss : str
        Name of the loss.
    oracle : Oracle or None
        The model if it is not linear; all of its parameters are in `coef`.
    feature_names : tuple of str, or None
        Column names of the training data; a frame passed to `predict` must have the same columns
        in the same order.
    schema : Schema or None
        The public schema that the training data were encoded by: with it, `predict`,
        `decision_function`, `predict_proba` and `score` take raw records with the schema's columns
        too.
    calibration : Calibration, Temperature or None
        The line from the margins of `coef` and `intercept` to log odds, or of several classes the
        temperature of their scores, which `decision_function`, `predict` and `predict_proba` apply.
    noise : CoefficientNoise or None
        The standard deviation of the noise in `coef` and `intercept`, by public numbers alone; None
        where the solver does not know it, and without noise.
    inference : Inference or None
        The covariance of `w`, which `summary` makes a table of; None but for `newton_inference`.
    """

    solver: str
    coef: NDArray[np.float64]
    intercept: float
    classes: NDArray[Any] | None
    converged: bool
    n_rounds: int
    parameters: dict[str, Any]
    history: dict[str, list[float]]
    privacy: Certificate
    timing: dict[str, float]
    message: str
    transform: Transform
    loss: str = field(default="logistic")
    oracle: Oracle | None = None
    feature_names: tuple[str, ...] | None = None
    schema: Schema | None = None
    calibration: Calibration | Temperature | None = None
    noise: CoefficientNoise | None = None
    inference: Inference | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SolverResult) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self.w.tobytes())

    @property
    def _identity(self) -> tuple[object, ...]:
        labels = None if self.classes is None else self.classes.tolist()
        fitted = self.w.tobytes(), self.calibration
        return self.solver, self.loss, *fitted, labels, self.transform, self.privacy

    @property
    def w(self) -> NDArray[np.float64]:
        """The model as one vector, shape (d,): coef, followed by the intercept if there is one."""
        return np.append(self.coef, self.intercept) if self.transform.intercept else self.coef

    @property
    def digest(self) -> str:
        """SHA-256 of all that predicts, by which certificates name the model."""
        return model_digest(self._stored)

    @property
    def _stored(self) -> dict[str, Any]:
        return stored_model(**{name: getattr(self, name) for name in _PREDICTS})

    @property
    def noise_std(self) -> NDArray[np.float64] | None:
        """The standard deviation of the noise in each entry of `coef`; None where `noise` is.

        `noise.proved` says whether it is an upper bound or nominal.
        """
        return None if self.noise is None else np.full(self.coef.shape, self.noise.std)

    def coefficients(self) -> Coefficients:
        """Return the coefficients of a linear model by name, in the units of the records.

        They make the decision function of rows that are no longer than the row bound: the intercept
        plus the sum of coefficients times values. With a schema, a number's values are those of the
        raw column, or the log1p that the name says; the intercept is that of a record with every
        category at its average, and the coefficient of a category is its difference from that. With
        a `calibration`, coefficients are those of the log odds, of the logits of classes, or of the
        log of means. Ordered classes have thresholds in place of the intercept, the log odds of a
        class below each for such a record, and coefficients of the log odds of a class above.

        Returns
        -------
        Coefficients
            A tuple of (name, coefficient, noise_std), which ``pandas.DataFrame`` takes: the
            intercept, then the coefficients in the order of their absolute values over the standard
            deviation of their noise.

        Raises
        ------
        ValueError
            When the model has hidden layers or is a user's own.
        """
        return coefficients(self)

    def summary(
        self, *, level: float = 0.95, contrasts: Mapping[str, Mapping[str, float]] | None = None
    ) -> Summary:
        """Return estimates with standard errors, of a model that was fitted with inference=True.

        They are in the units of the records. With a schema, the coefficient of a category is its
        difference from the first one that the schema lists, and the intercept is that of a record
        with the first of every category. Standard errors hold the sampling of the records and the
        noise, whose part is shown by itself; intervals and p-values are those of a normal
        distribution.

        Parameters
        ----------
        level : float
            Probability of the intervals, in (0, 1).
        contrasts : mapping of str to mappings of str to float, optional
            Sums of coefficients by a name, in place of the coefficients:
            ``{"b for a": {"group: b, for c": 1, "group: a, for c": -1}}``.

        Returns
        -------
        Summary
            A tuple of (name, estimate, std_error, noise_std, z, p_value, low, high), NaN where the
            noise hides what is to be known, with the `notes` that a reader needs. Of silos that
            have each fitted a model, with trust "silo", it is their `dpkern.meta_analysis`, a
            contrast being the mean of theirs.

        Raises
        ------
        ValueError
            When the model has no standard errors, or a contrast names no coefficient.
        """
        if self.inference is not None and self.inference.silos:
            return combined(of_silos(self), probability("level", level), contrasts)
        return summary(self, level, contrasts)

    def methods(self) -> str:
        """Return a paragraph for the methods section of a paper, with the numbers of this run."""
        return methods_text(self)

    def to_onnx(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Return the model as ONNX, and write it where a path is given; `dpkern[onnx]` has it.

        The input "X" are rows (n, n_features) of doubles, encoded where the model has a schema. The
        outputs are "label", "decision", as `decision_function` returns it, and "probabilities"
        where there are any; of a regression "prediction" alone, as `predict` returns it.

        Raises
        ------
        ImportError
            Where onnx is not installed.
        ValueError
            When the model is a user's own.
        """
        model = onnx_model(self)
        if path is not None:
            refuse_unwritable(path)
            with replacing(path) as file:
                file.write(model.SerializeToString())
        return model

    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the margins (n,) of rows X (n, n_features), or the scores (n, K) of K classes.

        With a `calibration` they are log odds, logits of the classes, or logs of means.

        Raises
        ------
        TypeError, ValueError
            When X does not have the model's number of features, is a frame with other columns or
            another order, or is not finite; when raw records have a column that is mostly outside
            what the schema declares; or when a user's own model was read from a file.
        """
        X = self._encoded(X)
        if self.oracle is None:
            found = self.transform.margins(X, self.w)
        else:
            found = self.oracle.outputs(self.w, self.transform.apply(X))
        if self.calibration is not None:
            found = self.calibration.apply(found)
        return np.add(found, self.transform.target_middle)

    def _encoded(self, X: Any) -> Any:
        """Return rows as the model was fitted on them; refuse other columns."""
        names = column_names(X)
        if self.schema is not None and table_columns(X) is not None and names != self.feature_names:
            self.schema.check_values(X)
            return self.schema.encode(X, sparse_output=self.schema.sparse)
        refuse_other_names(names, self.feature_names)
        return X

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Predict labels, values, or means of a log link, of rows X, shape (n,).

        Means are those of a margin offset of 0, such as an exposure of 1. Of `DiscreteHazards` they
        are risks, logs of hazard ratios to an effective row of zeros, higher for earlier events.
        """
        if isinstance(self.oracle, DiscreteHazards):
            return self.oracle.risks(self.w, self.transform.apply(self._encoded(X)))
        z = self.decision_function(X)
        if self.classes is None:
            return np.exp(z) if isinstance(self.calibration, LogMeans) else z
        return self.classes[z.argmax(axis=1) if z.ndim == 2 else (z > 0.0).astype(np.intp)]

    def predict_survival_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """Predict probabilities of no event up to each edge of `DiscreteHazards`, (n, K + 1)."""
        if not isinstance(self.oracle, DiscreteHazards):
            raise ValueError(f"model must be hazards of intervals, got {self.output_loss!r}")
        return self.oracle.survival(self.w, self.transform.apply(self._encoded(X)))

    @property
    def output_loss(self) -> str:
        """The name of the loss of the model's outputs."""
        return self.oracle.loss if isinstance(self.oracle, MLP) else self.loss

    @property
    def predicts_probabilities(self) -> bool:
        """Whether the loss is one whose models predict probabilities."""
        ordered = isinstance(self.oracle, AllThreshold)
        return ordered or self.output_loss in ("logistic", "probit", "softmax")

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Predict class probabilities, shape (n, K), with columns in the order of `classes`.

        They exist for the logistic and the probit loss, for perceptrons with "softmax", and for
        `AllThreshold`.

        Raises
        ------
        ValueError
            When the model has another loss.
        """
        if not self.predicts_probabilities:
            raise ValueError(
                "predict_proba needs the loss 'logistic', 'probit' or 'softmax', this model has "
                f"{self.output_loss!r}"
            )
        z = self.decision_function(X)
        if z.ndim == 2:
            e = np.exp(z - z.max(axis=1, keepdims=True))
            return np.asarray(e / e.sum(axis=1, keepdims=True))
        if self.output_loss == "probit":
            return np.column_stack([scipy.special.ndtr(-z), scipy.special.ndtr(z)])
        e = np.exp(-np.abs(z))
        positive = np.where(z >= 0.0, 1.0, e) / (1.0 + e)
        return np.column_stack([1.0 - positive, positive])

    def score(self, X: ArrayLike, y: ArrayLike) -> float:
        """Return the accuracy (classification) or R^2 (regression) on labelled rows.

        Of `DiscreteHazards` it is Harrell's concordance of the risks and the cells y.

        Raises
        ------
        ValueError
            When y has another shape than the rows, or holds other labels than `classes`.
        """
        y = np.asarray(y)
        predicted = self.predict(X)
        if y.shape != predicted.shape:
            raise ValueError(f"y must have shape {predicted.shape}, got {y.shape}")
        if self.classes is not None:
            if y.dtype.hasobject:
                y = np.asarray(y.tolist())
            known = np.isin(y, self.classes)
            known &= (y.dtype.kind in "US") == (self.classes.dtype.kind in "US")
            if not known.all():
                raise ValueError(
                    f"y holds {np.count_nonzero(~known)} labels that are none of the model's, "
                    f"which are {' and '.join(repr(c) for c in self.classes.tolist())}"
                )
            if isinstance(self.oracle, DiscreteHazards):
                return self.oracle.concordance(y, predicted)
            return float(np.mean(predicted == y))
        return float(1.0 - np.sum((y - predicted) ** 2) / np.sum((y - y.mean()) ** 2))

    def _repr_html_(self) -> str:
        rows = [
            ("loss", self.loss),
            ("model", f"{self.coef.size} coefficients, intercept {self.intercept:.4g}"),
            ("ended", self.message),
            ("parameters", ", ".join(f"{k} {v}" for k, v in self.parameters.items())),
        ]
        if self.calibration is not None:
            rows.insert(2, (self.calibration.name, str(self.calibration)))
        if self.classes is not None:
            rows.insert(1, ("classes", ", ".join(map(str, self.classes.tolist()))))
        parts = [table(f"Result of {self.solver}", rows)]
        if self.inference is not None:
            parts.append(self.summary()._repr_html_())
        elif has_coefficients(self.oracle):
            parts.append(coefficients(self, LISTED)._repr_html_())
        return "".join([*parts, self.privacy._repr_html_()])

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Return a figure of the public quantities of every round.

        It is written as a PNG where a path is given.

        The gradient's norm has a band where it would be, 95 % of the time, were it noise alone, if
        all that the rounds released are gradients of silos weighted by their sizes. What
        `monitor="train"` tells is left out, since it is not private, and what never changes.

        Raises
        ------
        ImportError
            Where matplotlib is not installed.
        """
        from dpkern.plotting import plot_history

        history = {name: values for name, values in self._public_history().items() if values}
        varied = {name: values for name, values in history.items() if len(set(values)) > 1}
        shown = varied or history  # of one round nothing varies
        band = self._noise_band()
        bands = {"gradient_norm": band} if band is not None else {}
        return plot_history(shown, bands, path, title=f"{self.solver}: {self.message}")

    def _noise_band(self) -> tuple[float, float] | None:
        """Return where the norm of the noise on a mean gradient is 95 % of the time."""
        declared = self.privacy.declared
        of_rounds = [r for r in self.privacy.releases if not r.what.startswith("recalibration")]
        if len(of_rounds) != 1 or declared.get("weights") != "size":
            return None
        (release,) = of_rounds
        of_gradients = release.what == "sum of clipped gradients" and release.coins is None
        everywhere = release.times == len(self.history["gradient_norm"])
        if not (of_gradients and everywhere) or release.sampling is not None or not release.std:
            return None
        std = float(np.linalg.norm(release.std)) / sum(declared["sizes"])
        low, high = scipy.special.gammaincinv(0.5 * release.dim, [0.025, 0.975])
        return std * math.sqrt(2.0 * low), std * math.sqrt(2.0 * high)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model atomically as .npz with a JSON header and no pickle.

        Timing and the history of `monitor="train"` are omitted, since they are not private.

        Raises
        ------
        ValueError
            When the labels are neither numbers nor strings.
        OSError
            When the file cannot be written.
        """
        model = self._stored
        arrays: dict[str, Any] = {"coef": model.pop("coef")}
        classes = model.pop("classes")
        if classes is not None:
            arrays["classes"] = np.array(classes)
        header = {
            "format": FORMAT,
            **{name: getattr(self, name) for name in _PLAIN},
            **model,
            "history": self._public_history(),
            "privacy": self.privacy.to_dict(),
            "noise": None if self.noise is None else asdict(self.noise),
        }
        if self.inference is not None:
            header["weighted"] = self.inference.weighted
            arrays |= self.inference.arrays
        for name, array in arrays.items():
            if array.dtype.hasobject:
                raise ValueError(f"{name} holds Python objects, which a file without pickle cannot")
        refuse_unwritable(path)
        text = json.dumps(encode(header), allow_nan=False)
        with replacing(path) as file:
            np.savez(file, header=np.array(text), **arrays)

    def with_names(self, **names: str) -> Self:
        """Return the result with a certificate that has names, as `Certificate.with_names` says."""
        return replace(self, privacy=self.privacy.with_names(**names))

    def _public_history(self) -> dict[str, list[float]]:
        if self.parameters.get("monitor") != "train":
            return self.history
        return {name: values for name, values in self.history.items() if name not in MONITORED}

    def __str__(self) -> str:
        spent = ", ".join(f"{name} {seconds:.3g} s" for name, seconds in self.timing.items())
        spent = spent or "not kept in files"
        rows = [
            ("solver", self.solver),
            ("loss", self.loss),
            ("rounds", str(self.n_rounds)),
            ("features", str(len(self.coef))),
            ("|coef|", f"{np.linalg.norm(self.coef):.4g}"),
            ("intercept", f"{self.intercept:.4g}"),
            *([] if self.calibration is None else [(self.calibration.name, str(self.calibration))]),
            ("timing", spent),
            ("message", self.message),
        ]
        shown = coefficients(self, LISTED).lines() if has_coefficients(self.oracle) else []
        shown = shown if self.inference is None else str(self.summary()).split("\n")
        lines = [f"{name:<10} {value}" for name, value in rows]
        return "\n".join([*lines, *shown, str(self.privacy)])


def load(path: str | os.PathLike[str]) -> SolverResult:
    """Read a model that `SolverResult.save` wrote.

    Raises
    ------
    ValueError
        When the file is not such a model.
    OSError
        When it cannot be read.
    """
    try:
        arrays = read_arrays(path, ("header", "coef", "classes", *ARRAYS), compressed=False)
        stored, coef = json.loads(str(arrays["header"])), arrays["coef"]
        classes = arrays.get("classes")
        header = decode(stored)
        if header["format"] != FORMAT:
            raise ValueError(f"format {header['format']!r}, expected {FORMAT}")
        line, noise = header["calibration"], header["noise"]
        names = header["feature_names"]
        return SolverResult(
            **{name: header[name] for name in (*_PLAIN, "loss", "intercept")},
            coef=coef,
            classes=classes,
            history=header["history"],
            privacy=Certificate.from_dict(stored["privacy"]),
            timing={},
            transform=Transform.of_fields(header["transform"]),
            oracle=None if header["oracle"] is None else load_oracle(header["oracle"]),
            feature_names=None if names is None else tuple(names),
            schema=None if header["schema"] is None else Schema.from_dict(header["schema"]),
            calibration=None if line is None else stored_calibration(line),
            noise=None if noise is None else CoefficientNoise(**noise),
            inference=Inference.of_arrays(arrays, header["weighted"])
            if ARRAYS[0] in arrays
            else None,
        )
    except OSError:
        raise
    except Exception as error:
        if not isinstance(path, str | os.PathLike):
            raise TypeError(f"path must be a path, got {type(path).__name__}") from None
        raise ValueError(f"{path}: not a dpkern model ({error})") from error
