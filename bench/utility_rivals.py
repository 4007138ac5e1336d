"""The rivals of bench.utility; run by the interpreter of an environment that has one of them.

    PYTHON bench/utility_rivals.py REQUEST

REQUEST is JSON with the rival's name, records (an npz file), row_bound, epsilons, delta, draws.
Every line printed is a cell as JSON: the best of a few settings by test accuracy, whose mean is
that of the same draws, so that the rival is flattered.
"""

import json
import math
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

_Fit = Callable[[dict[str, Any], float, Any], Any]


def diffprivlib(request: dict[str, Any], records: Any) -> tuple[dict[str, list[float]], _Fit]:
    """Objective perturbation; C is scikit-learn's, and 1 the default. Pure epsilon."""
    from diffprivlib.models import LogisticRegression

    def fit(request: dict[str, Any], epsilon: float, setting: float) -> Any:
        model = LogisticRegression(epsilon=epsilon, data_norm=request["row_bound"], C=setting)
        model.fit(records["X"], records["y"])
        return model.predict(records["X_test"])

    return {"C": [1.0, 0.1, 0.01, 0.001, 0.0001]}, fit


def opacus(request: dict[str, Any], records: Any) -> tuple[dict[str, list[float]], _Fit]:
    """DP-SGD: clip norm 1, ten epochs of Poisson batches of n / 50 records, at least 64."""
    import torch
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    torch.set_num_threads(1)
    X, X_test = (torch.from_numpy(records[k].astype(np.float32)) for k in ("X", "X_test"))
    y = torch.from_numpy(records["y"].astype(np.float32))
    batch = max(64, len(X) // 50)

    def fit(request: dict[str, Any], epsilon: float, setting: float) -> Any:
        linear = torch.nn.Linear(X.shape[1], 1)
        torch.nn.init.zeros_(linear.weight)
        torch.nn.init.zeros_(linear.bias)
        model, optimizer, loader = PrivacyEngine(accountant="prv").make_private_with_epsilon(
            module=linear,
            optimizer=torch.optim.SGD(linear.parameters(), lr=setting),
            data_loader=DataLoader(TensorDataset(X, y), batch_size=batch),
            target_epsilon=epsilon,
            target_delta=request["delta"],
            epochs=10,
            max_grad_norm=1.0,
        )
        loss = torch.nn.BCEWithLogitsLoss()
        for _ in range(10):
            for rows, labels in loader:
                optimizer.zero_grad()
                if len(rows):
                    loss(model(rows).squeeze(1), labels).backward()
                    optimizer.step()
        with torch.no_grad():
            return model(X_test).squeeze(1).numpy() > 0.0

    return {"learning rate": [0.1, 1.0, 10.0]}, fit


def main() -> None:
    warnings.simplefilter("ignore")
    request = json.loads(sys.argv[1])
    records = dict(np.load(request["records"]))
    rival = {"diffprivlib": diffprivlib, "opacus": opacus}[request["rival"]]
    grid, fit = rival(request, records)
    ((name, values),) = grid.items()
    for epsilon in request["epsilons"]:
        scores = {
            value: [
                float(np.mean(fit(request, epsilon, value) == records["y_test"]))
                for _ in range(request["draws"])
            ]
            for value in values
        }
        best = max(scores, key=lambda value: np.mean(scores[value]))
        chosen, draws = np.array(scores[best]), request["draws"]
        error = float(chosen.std(ddof=1) / math.sqrt(draws)) if draws > 1 else math.nan
        cell = {"accuracy": float(chosen.mean()), "error": error, "settings": {name: best}}
        cell["default"] = float(np.mean(scores[values[0]]))
        print(json.dumps({"epsilon": epsilon, "draws": draws} | cell), flush=True)


if __name__ == "__main__":
    main()
