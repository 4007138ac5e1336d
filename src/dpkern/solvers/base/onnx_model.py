"""Models as ONNX graphs of doubles: linear models and perceptrons, with their map of the rows."""

import json
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

from dpkern.models.networks import MLP
from dpkern.solvers.base.calibration import LogMeans, Temperature

if TYPE_CHECKING:  # which imports this module
    from dpkern.solvers.base.result import SolverResult

_OPSET, _IR = 17, 8  # of 2022, which runtimes have
_FLOAT, _INT64, _DOUBLE = 1, 7, 11  # of onnx.TensorProto


def onnx_model(result: "SolverResult") -> Any:
    """Return the graph of a model as `SolverResult.to_onnx` describes it."""
    oracle = result.oracle
    if oracle is not None and not isinstance(oracle, MLP):
        raise ValueError(f"model must be linear or an MLP to become ONNX, got {oracle.name!r}")
    try:
        from onnx import TensorProto, helper, numpy_helper
    except ImportError as error:
        raise ImportError("to_onnx needs onnx: pip install 'dpkern[onnx]'") from error
    graph = _Graph(helper, numpy_helper)
    outputs = _outputs(graph, result)
    labels = result.classes
    kinds = {"label": TensorProto.DOUBLE if labels is None else _kind(TensorProto, labels)}
    described = [
        helper.make_tensor_value_info(name, kinds.get(name, TensorProto.DOUBLE), ["n", *shape])
        for name, shape in outputs.items()
    ]
    rows = [helper.make_tensor_value_info("X", TensorProto.DOUBLE, ["n", len(_names(result))])]
    made = helper.make_graph(graph.nodes, "dpkern", rows, described, graph.constants)
    opset = [helper.make_opsetid("", _OPSET)]
    model = helper.make_model(made, opset_imports=opset, ir_version=_IR, producer_name="dpkern")
    model.producer_version = version("dpkern")
    at = result.privacy.stated_delta
    helper.set_model_props(
        model,
        {
            "feature_names": json.dumps(_names(result)),
            "model": str(result.privacy.model),
            "epsilon": "" if at is None else f"{result.privacy.epsilon(at)!r} at delta {at!r}",
        },
    )
    return model


class _Graph:
    """The nodes and constants of a graph; every node has one output."""

    def __init__(self, helper: Any, numpy_helper: Any) -> None:
        self._helper, self._arrays = helper, numpy_helper
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, value: Any) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants.append(self._arrays.from_array(np.asarray(value), name))
        return name

    def node(self, operator: str, *inputs: Any, name: str = "", **attributes: Any) -> str:
        """Add a node, whose inputs are names or numbers; return the name of its output."""
        names = [x if isinstance(x, str) else self.constant(x) for x in inputs]
        name = name or f"value_{len(self.nodes)}"
        self.nodes.append(self._helper.make_node(operator, names, [name], **attributes))
        return name


def _phi(graph: _Graph, x: str) -> str:
    """Add the normal distribution function; runtimes have Erf of floats alone."""
    scaled = graph.node("Cast", graph.node("Mul", x, np.sqrt(0.5)), to=_FLOAT)
    erf = graph.node("Cast", graph.node("Erf", scaled), to=_DOUBLE)
    return graph.node("Mul", graph.node("Add", erf, np.float64(1.0)), np.float64(0.5))


def _names(result: "SolverResult") -> list[str]:
    names = result.feature_names
    return [f"x{j}" for j in range(result.transform.n_features)] if names is None else list(names)


def _kind(tensors: Any, labels: Any) -> Any:
    kinds = {"U": tensors.STRING, "O": tensors.STRING, "f": tensors.DOUBLE}
    return kinds.get(labels.dtype.kind, tensors.INT64)


def _outputs(graph: _Graph, result: "SolverResult") -> dict[str, tuple[int, ...]]:
    """Add the nodes from rows to outputs; return the names of these with their shapes."""
    transform, classes, oracle = result.transform, result.classes, result.oracle
    x, ratio = "X", ""
    if transform.scale is not None:
        x = graph.node("Mul", x, np.array(transform.scale))
    if transform.shift is not None:
        x = graph.node("Add", x, np.array(transform.shift))
    if np.isfinite(transform.row_bound):
        square = graph.node("ReduceSumSquare", x, axes=[1], keepdims=1)
        square = graph.node("Add", square, float(transform.intercept))
        # No ratio is taken of a row of zeros.
        norm = graph.node("Max", graph.node("Sqrt", square), np.float64(transform.row_bound))
        ratio = graph.node("Div", np.float64(transform.row_bound), norm)
    if isinstance(oracle, MLP):
        x = graph.node("Mul", x, ratio) if ratio else x
        matrices = oracle.matrices(result.w, transform.n_features)
        for k, W in enumerate(matrices):
            x = graph.node("Add", graph.node("MatMul", x, W[:, :-1].T.copy()), W[:, -1].copy())
            if k < len(matrices) - 1:
                x = graph.node("Relu" if oracle.activation == "relu" else "Tanh", x)
    else:
        x = graph.node("MatMul", x, result.coef[:, np.newaxis])
        x = graph.node("Add", x, np.float64(result.intercept))
        x = graph.node("Mul", x, ratio) if ratio else x
    line = result.calibration
    if isinstance(line, Temperature):
        x = graph.node("Mul", x, np.float64(line.factor))
    elif line is not None:
        u = graph.node("Div", graph.node("Sub", x, line.centre), np.float64(line.unit))
        u = graph.node("Clip", u, np.float64(-1.0), np.float64(1.0))
        x = graph.node("Add", graph.node("Mul", u, line.slope), np.float64(line.offset))
    last = graph.constant(np.array([1]))
    if classes is None:
        x = graph.node("Add", x, np.float64(transform.target_middle))
        x = graph.node("Exp", x) if isinstance(line, LogMeans) else x
        graph.node("Squeeze", x, last, name="prediction")
        return {"prediction": ()}
    K, of_several = (len(classes),), isinstance(oracle, MLP) and oracle.loss == "softmax"
    if of_several:
        graph.node("Identity", x, name="decision")
        place = graph.node("ArgMax", x, axis=1, keepdims=0)
        graph.node("Softmax", x, axis=1, name="probabilities")
    else:
        graph.node("Squeeze", x, last, name="decision")
        place = graph.node("Cast", graph.node("Greater", "decision", np.float64(0.0)), to=_INT64)
        if result.predicts_probabilities:
            positive = (
                _phi(graph, x) if result.output_loss == "probit" else graph.node("Sigmoid", x)
            )
            negative = graph.node("Sub", np.float64(1.0), positive)
            graph.node("Concat", negative, positive, axis=1, name="probabilities")
    labels = classes.astype(object) if classes.dtype.kind == "U" else classes
    labels = labels.astype(np.int64) if labels.dtype.kind in "iub" else labels
    graph.node("Gather", labels, place, name="label")
    found: dict[str, tuple[int, ...]] = {"label": (), "decision": K if of_several else ()}
    return found | ({"probabilities": K} if result.predicts_probabilities else {})
