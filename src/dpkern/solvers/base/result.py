"""What a solver returns: the released model, its certificate, and what is needed to predict."""

import json
import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpkern._serialize import decode, encode
from dpkern.data import Transform
from dpkern.data.frames import column_names, refuse_other_names
from dpkern.io import refuse_unwritable, replacing
from dpkern.models.networks import MLP, load_oracle
from dpkern.models.oracles import Oracle
from dpkern.privacy import Certificate

FORMAT = 1


# What a run keeps of its monitor, and not in a file: it may be of the training records.
MONITORED = ("objective", "accuracy")


@dataclass(frozen=True, eq=False)
class SolverResult:
    """A model and what is true about it; equal ones hold the same model and certificate.

    Attributes
    ----------
    solver : str
        Name in `dpkern.solvers.SOLVERS`.
    coef : ndarray, shape (n_features,)
        Weights of the features, after the data's feature range and row bound.
    intercept : float
        Weight of the virtual constant; 0 without one.
    classes_ : ndarray, shape (2,) or (K,), or None
        Labels of the negative and the positive side, or of the classes; None for regression.
    converged : bool
        Whether the last released gradient of the objective is at most 1e-6 in norm. Noise usually
        keeps it above.
    n_rounds : int
        Released aggregations.
    parameters : dict
        Every parameter of the run, defaults resolved.
    history : dict of list
        One public number per round.
    privacy : Certificate
        The guarantee of the released bits.
    timing : dict
        Seconds in "kernels", "noise", "python", and "total", which grow with the number of records;
        empty for a model from a file.
    message : str
        How the run ended.
    transform : Transform
        Maps rows to the effective rows that the model was fitted on.
    loss : str
        Name of the loss.
    oracle : Oracle or None
        The model where it is not linear; its parameters are all in `coef`.
    feature_names : tuple of str, or None
        Columns of the data that the model was fitted on: a frame to predict must have the same,
        in this order.
    """

    solver: str
    coef: NDArray[np.float64]
    intercept: float
    classes_: NDArray[Any] | None
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

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SolverResult) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self.w.tobytes())

    @property
    def _identity(self) -> tuple[object, ...]:
        labels = None if self.classes_ is None else self.classes_.tolist()
        return self.solver, self.loss, self.w.tobytes(), labels, self.transform, self.privacy

    @property
    def w(self) -> NDArray[np.float64]:
        """The model as one vector, shape (d,): coef, then the intercept where there is one."""
        return np.append(self.coef, self.intercept) if self.transform.intercept else self.coef

    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """Margins of rows X, shape (n, n_features) -> (n,); scores (n, K) of a model with those.

        Raises
        ------
        TypeError, ValueError
            When X does not have the model's number of features, is a frame with other column names
            or another order, or is not finite; for a user's own model from a file.
        """
        refuse_other_names(column_names(X), self.feature_names)
        if self.oracle is not None:
            return self.oracle.outputs(self.w, self.transform.apply(X))
        return self.transform.margins(X, self.w)

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Labels (classification) or values (regression) for rows X, shape (n,)."""
        z = self.decision_function(X)
        if self.classes_ is None:
            return z
        return self.classes_[z.argmax(axis=1) if z.ndim == 2 else (z > 0.0).astype(np.intp)]

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Class probabilities, shape (n, K), columns as `classes_`.

        Those of the logistic loss, linear or of a perceptron, and of a perceptron with "softmax".

        Raises
        ------
        ValueError
            When the loss is another one.
        """
        loss = self.oracle.loss if isinstance(self.oracle, MLP) else self.loss
        if loss not in ("logistic", "softmax"):
            raise ValueError(
                f"predict_proba needs the loss 'logistic' or 'softmax', this model has {loss!r}"
            )
        z = self.decision_function(X)
        if loss == "softmax":
            e = np.exp(z - z.max(axis=1, keepdims=True))
            return np.asarray(e / e.sum(axis=1, keepdims=True))
        e = np.exp(-np.abs(z))
        positive = np.where(z >= 0.0, 1.0, e) / (1.0 + e)
        return np.column_stack([1.0 - positive, positive])

    def score(self, X: ArrayLike, y: ArrayLike) -> float:
        """Accuracy (classification) or R^2 (regression) on labelled rows.

        Raises
        ------
        ValueError
            When y has another shape than the rows, or holds other labels than `classes_`.
        """
        y = np.asarray(y)
        predicted = self.predict(X)
        if y.shape != predicted.shape:
            raise ValueError(f"y must have shape {predicted.shape}, got {y.shape}")
        if self.classes_ is not None:
            if y.dtype.hasobject:
                y = np.asarray(y.tolist())
            known = np.isin(y, self.classes_)
            known &= (y.dtype.kind in "US") == (self.classes_.dtype.kind in "US")
            if not known.all():
                raise ValueError(
                    f"y holds {np.count_nonzero(~known)} labels that are none of the model's, "
                    f"which are {' and '.join(repr(c) for c in self.classes_.tolist())}"
                )
            return float(np.mean(predicted == y))
        return float(1.0 - np.sum((y - predicted) ** 2) / np.sum((y - y.mean()) ** 2))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model as .npz with JSON, no pickle; the file appears whole or not at all.

        Timing and a history of `monitor="train"` stay out: files are shared, and neither is
        private.

        Raises
        ------
        ValueError
            When the labels are neither numbers nor strings.
        OSError
            When the file cannot be written.
        """
        header = {
            "format": FORMAT,
            "solver": self.solver,
            "loss": self.loss,
            "oracle": None if self.oracle is None else self.oracle.declaration,
            "intercept": self.intercept,
            "converged": self.converged,
            "n_rounds": self.n_rounds,
            "parameters": self.parameters,
            "history": self._public_history(),
            "privacy": self.privacy.to_dict(),
            "message": self.message,
            "transform": self.transform.to_dict(),
            "feature_names": self.feature_names,
        }
        arrays: dict[str, Any] = {"coef": self.coef}
        if self.classes_ is not None:
            arrays["classes"] = np.array(self.classes_.tolist())
        for name, array in arrays.items():
            if array.dtype.hasobject:
                raise ValueError(f"{name} holds Python objects, which a file without pickle cannot")
        refuse_unwritable(path)
        text = json.dumps(encode(header), allow_nan=False)
        with replacing(path) as file:
            np.savez(file, header=np.array(text), **arrays)

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
            ("timing", spent),
            ("message", self.message),
        ]
        return "\n".join([*(f"{name:<10} {value}" for name, value in rows), str(self.privacy)])


def load(path: str | os.PathLike[str]) -> SolverResult:
    """Read a model that `SolverResult.save` wrote.

    Raises
    ------
    ValueError
        When the file is not such a model.
    OSError
        When it cannot be read.
    """
    with open(path, "rb") as file:
        if file.read(2) != b"PK":  # np.load would take it for a pickle and advise to trust it
            raise ValueError(f"{path}: not a dpkern model (no .npz archive)")
    try:
        with np.load(path, allow_pickle=False) as arrays:
            header = decode(json.loads(str(arrays["header"])))
            coef = arrays["coef"]
            classes = arrays.get("classes")
        if header["format"] != FORMAT:
            raise ValueError(f"format {header['format']!r}, expected {FORMAT}")
        names = header.get("feature_names")
        return SolverResult(
            solver=header["solver"],
            coef=coef,
            intercept=header["intercept"],
            classes_=classes,
            converged=header["converged"],
            n_rounds=header["n_rounds"],
            parameters=header["parameters"],
            history=header["history"],
            privacy=Certificate.from_dict(header["privacy"]),
            timing={},
            message=header["message"],
            transform=Transform.from_dict(header["transform"]),
            loss=header["loss"],
            oracle=None if header["oracle"] is None else load_oracle(header["oracle"]),
            feature_names=None if names is None else tuple(names),
        )
    except OSError:
        raise
    except Exception as error:
        raise ValueError(f"{path}: not a dpkern model ({error})") from error
