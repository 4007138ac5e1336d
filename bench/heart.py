"""The figures of docs/tutorials/heart.md: what hospitals may expect of the studies there.

    python -m bench.heart

AUC of the heart disease study by hospital, alone and of four, and hazard ratios of the survival
study, each over 20 draws, with standard deviations. The files are prepared by the page's own
blocks, from the data of DPKERN_DATA.
"""

import contextlib
import lzma
import os
import re
import tempfile
import warnings
from pathlib import Path

import numpy as np
from sklearn.metrics import roc_auc_score

import dpkern as dpk

PAGE = Path(__file__).parents[1] / "docs" / "tutorials" / "heart.md"
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
DRAWS = 20


def blocks():
    """The kind and the text of the page's blocks."""
    return re.findall(r"^```(python|bash)\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def unpack(folder):
    """Write what the page downloads."""
    data = Path(os.environ["DPKERN_DATA"])
    (folder / "support").mkdir()
    names = [f"heart-disease/processed.{hospital}.data" for hospital in HOSPITALS]
    for name in (*names, "support/support2.csv"):
        place = folder / name.removeprefix("heart-disease/")
        place.write_bytes(lzma.decompress((data / f"{name}.xz").read_bytes()))


def read_parts(names):
    """Encoded rows and labels of each party in this folder, and their options."""
    schema = dpk.Schema.load("schema.json")
    frames = [dpk.io.read_frame(f"{name}.csv", schema) for name in names]
    return [(schema.encode(f), schema.labels(f)) for f in frames], schema.options()


def auc(parties, options, at, epsilon, draw):
    """The score on a third of one party's patients, of the model of all parties' others."""
    tests = [np.random.default_rng(draw).permutation(len(y)) % 3 == 0 for _, y in parties]
    rest = [(X[~test], y[~test]) for (X, y), test in zip(parties, tests, strict=True)]
    how = {"budget": dpk.Budget(epsilon=epsilon, delta=1e-5) if epsilon else None, "rounds": 40}
    how |= {"colluding": 1} if epsilon and len(parties) > 1 else {}
    result = dpk.solve("auto", dpk.SiloData.from_silos(rest, **options), **how)
    (X, y), test = parties[at], tests[at]
    return roc_auc_score(y[test], result.decision_function(X[test]))


def print_auc():
    parties, options = read_parts(HOSPITALS)
    for at, name in enumerate(HOSPITALS):
        if name == "switzerland":  # where 8 of 123 are healthy
            continue
        for used, place in ((parties[at : at + 1], 0), (parties, at)):
            for epsilon in (1, 3, None):
                draws = [auc(used, options, place, epsilon, draw) for draw in range(DRAWS)]
                figures = f"{np.mean(draws):.3f} +- {np.std(draws):.3f}"
                print(f"{name:10} of {len(used)}, epsilon {epsilon}: {figures}", flush=True)


def ratios(result):
    rows = {row.name: row.coefficient for row in result.coefficients()}
    found = {"metastases to none": rows["ca_metastatic"] - rows["ca_no"]}
    found["male to female"] = rows["sex_male"] - rows["sex_female"]
    found["ten years"] = 10.0 * rows["age"]
    return {name: np.exp(value) for name, value in found.items()}


def print_ratios():
    parties, options = read_parts(("north", "south", "west"))
    data = dpk.SiloData.from_silos(parties, **options)
    X, y = (np.concatenate(part) for part in zip(*parties, strict=True))
    for epsilon, draws in ((1, DRAWS), (3, DRAWS), (None, 1)):
        how = {"budget": None, "rounds": 3000}
        if epsilon:
            how = {"budget": dpk.Budget(epsilon=epsilon, delta=1e-6), "rounds": 100, "colluding": 1}
        results = [dpk.solve("auto", data, **how) for _ in range(draws)]
        of_draws = [{"concordance": r.score(X, y)} | ratios(r) for r in results]
        for name in of_draws[0]:
            values = [found[name] for found in of_draws]
            print(f"epsilon {epsilon}, {name}: {np.mean(values):.3f} +- {np.std(values):.3f}")


def main():
    prepare_hearts, prepare_support, _ = (text for kind, text in blocks() if kind == "python")
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(action="ignore"):
        unpack(Path(folder))
        with contextlib.chdir(folder):
            exec(prepare_hearts, {})
            print_auc()
        with contextlib.chdir(Path(folder, "support")):
            exec(prepare_support, {})
            print_ratios()


if __name__ == "__main__":
    main()
