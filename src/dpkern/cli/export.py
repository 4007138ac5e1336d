"""``dpkern export``: coefficients, an ONNX graph or a paragraph of a saved model."""

import argparse
from pathlib import Path

from dpkern._files import replacing
from dpkern.cli._arguments import UsageError
from dpkern.cli._output import print_lines, refuse_output
from dpkern.solvers import load

HELP = "write a saved model's coefficients, its ONNX graph, or a paragraph of methods"
_KINDS = {
    ".csv": "coefficients and the noise in them, of fits with --inference their intervals",
    ".json": "the same",
    ".onnx": "model, for other runtimes",
    ".txt": "paragraph for the methods section of a paper",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", help="what fit --out has saved")
    kinds = "; ".join(f"{kind}: {what}" for kind, what in _KINDS.items())
    add("out", metavar="FILE", help=f"where to write; its ending says what ({kinds})")


def run(arguments: argparse.Namespace) -> None:
    path, kind = arguments.out, Path(arguments.out).suffix.lower()
    if kind not in _KINDS:
        raise UsageError(f"FILE must end in {', '.join(_KINDS)}, got {path!r}")
    refuse_output(path, arguments.model)
    model, what = load(arguments.model), _KINDS[kind]
    if kind == ".onnx":
        model.to_onnx(path)
    elif kind == ".txt":
        with replacing(path) as file:
            file.write(f"{model.methods()}\n".encode())
    elif model.inference is not None:
        what = "estimates, standard errors and intervals"
        model.summary().save(path)
    else:
        what = "coefficients and the noise in them"
        model.coefficients().save(path)
    print_lines([("saved", f"{path}: {what}")])
