"""The tutorials of studies: their commands, copied, in processes of their own."""

import importlib
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
import pytest
from network import free_port
from sklearn.metrics import roc_auc_score

import dpkern as dpk
from dpkern.privacy import Certificate

pytestmark = pytest.mark.docs

pytest.importorskip("cryptography")
pytest.importorskip("flwr")

BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def ended(process):
    process.terminate()
    process.wait(20.0)


def test_the_tutorial_of_three_hospitals(source_tree, tmp_path, monkeypatch):
    text = (source_tree / "docs" / "tutorials" / "three_hospitals.md").read_text()
    text = text.replace("127.0.0.1:9092", f"127.0.0.1:{free_port()}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    hospitals, rehearsed = [], ""
    with ExitStack() as stack:
        for kind, block in BLOCK.findall(text):
            command = [sys.executable, "-c", block] if kind == "python" else ["bash", "-ec", block]
            waits = block.startswith(("dpkern federation up", "dpkern silo"))
            if waits and "--dry-run" not in block:
                # In place of the shell, which its commands would outlive.
                out = stack.enter_context(open(f"out-{len(hospitals)}.txt", "w"))
                process = subprocess.Popen(
                    ["bash", "-ec", f"exec {block}"], stdout=out, stderr=subprocess.STDOUT
                )
                stack.callback(ended, process)
                if "silo" in block:
                    hospitals.append(process)
                end = time.monotonic() + 60.0
                while not Path("analyst/superlink.secret").exists() and time.monotonic() < end:
                    time.sleep(0.1)  # as a reader does, who sees that it has started
                continue
            done = subprocess.run(command, capture_output=True, text=True, timeout=120)
            assert done.returncode == 0, f"{block}\n{done.stdout}{done.stderr}"
            rehearsed = done.stdout if "--dry-run" in block else rehearsed
        assert [hospital.wait(30.0) for hospital in hospitals] == [0, 0, 0]
    model = dpk.load("model.npz")
    for name in ("north", "south", "west"):
        assert (dpk.load(f"{name}.npz").coef == model.coef).all()
        assert 0.9 < dpk.Accountant(f"{name}.json").spent <= 1.0
    assert Certificate.load("certificate.json").declared["colluding"] == 1
    shown = re.search(r"```text\n(.*?)```", text, re.DOTALL)[1]
    assert shown == rehearsed
    table = dpk.datasets.wisconsin_table()
    frame = {n.replace(" ", "_"): x for n, x in zip(table.feature_names, table.X.T, strict=True)}
    labels = ["benign" if y else "malignant" for y in table.y]
    assert model.score(frame, labels) > 0.85


def test_the_tutorial_of_heart_disease_and_survival(source_tree, tmp_path, monkeypatch):
    if "DPKERN_DATA" not in os.environ:
        pytest.skip("the environment variable DPKERN_DATA is not set")
    monkeypatch.syspath_prepend(source_tree)
    heart = importlib.import_module("bench.heart")
    heart.unpack(tmp_path)
    script = ["set -e"]
    for kind, text in heart.blocks():
        pasted = "\n".join(line for line in text.splitlines() if "curl" not in line)
        script.append(pasted if kind == "bash" else f"python - <<'PASTED'\n{pasted}\nPASTED")
    text = "\n".join(script).replace("127.0.0.1:9092", f"127.0.0.1:{free_port()}")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    how = {"cwd": tmp_path, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen(["bash", "-c", text], start_new_session=True, **how)
    try:
        out, _ = process.communicate(timeout=500.0)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, out
    for folder, names in ((tmp_path, heart.HOSPITALS), (tmp_path / "support", ["north", "south"])):
        model = dpk.load(folder / "model.npz")
        assert model.privacy.declared["colluding"] == 1
        for name in names:
            np.testing.assert_array_equal(dpk.load(folder / f"{name}.npz").coef, model.coef)
    assert 2.0 < heart.ratios(model)["metastases to none"] < 3.5
    monkeypatch.chdir(tmp_path)
    parties, _ = heart.read_parts(heart.HOSPITALS)
    X, y = (np.concatenate(part) for part in zip(*parties, strict=True))
    assert roc_auc_score(y, dpk.load("model.npz").decision_function(X)) > 0.8
