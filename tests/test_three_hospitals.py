"""The tutorials and the page of studies: their commands, copied, in processes of their own."""

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
from dpkern.privacy.mechanisms.concordance import count_pairs

pytestmark = pytest.mark.docs

pytest.importorskip("cryptography")
pytest.importorskip("flwr")

HELD_OUT = {"north": 1_200, "south": 1_000, "west": 800}
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


def test_the_pages_scores_of_a_released_model(source_tree, tmp_path, monkeypatch):
    page = (source_tree / "docs" / "federation.md").read_text()
    text = page.partition("## Scores of a released model")[2].partition("\n## ")[0]
    (study,), (commands,) = (
        re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL) for kind in ("toml", "bash")
    )
    plan, silo, evaluate = commands.strip().split("\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")

    def shell(command):
        done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    schema = dpk.Schema(
        [
            dpk.data.Column("age", "number", lo=0, hi=100),
            dpk.data.Column("ill", "target", classes=["no", "yes"]),
        ]
    )
    ages = np.random.default_rng(0).uniform(0.0, 100.0, 5_000)
    ill = np.where(ages + np.random.default_rng(1).normal(0.0, 20.0, 5_000) > 50.0, "yes", "no")
    data = schema.silo_data({"age": ages[:2_000], "ill": ill[:2_000]}, 1)
    dpk.solve("auto", data, budget=dpk.Budget(epsilon=1.0, delta=1e-6)).save("model.npz")
    Path("held_out.toml").write_text(study.replace("127.0.0.1:9092", f"127.0.0.1:{free_port()}"))
    first = 2_000
    for name, n in HELD_OUT.items():
        rows = zip(ages[first : first + n], ill[first : first + n], strict=True)
        lines = ["age,ill", *(f"{float(age)!r},{label}" for age, label in rows)]
        Path(f"{name}_held_out.csv").write_text("\n".join(lines))
        shell(f"dpkern federation keys {name} --silo {name} --records {n} >> held_out.toml")
        shell(f"dpkern ledger {name}.json --epsilon 1 --delta 1e-6")
        first += n
    shell("dpkern federation keys analyst --coordinator 127.0.0.1 localhost")
    shell("cp */*.node.pub analyst/ && cp analyst/ca.crt .")
    shown = shell("dpkern federation show held_out.toml")
    Path("fingerprint").write_text(re.search(r"fingerprint\s+(\S+)", shown)[1])
    shell(plan)
    with ExitStack() as stack:
        waiting = ["dpkern federation up held_out.toml --keys analyst"]
        waiting += [silo.replace("north", name) for name in HELD_OUT]
        running = []
        for i, command in enumerate(waiting):
            out = stack.enter_context(open(f"out-{i}.txt", "w"))
            process = subprocess.Popen(["bash", "-ec", f"exec {command}"], stdout=out, stderr=out)
            running.append(process)
            stack.callback(ended, process)
            end = time.monotonic() + 60.0
            while not Path("analyst/superlink.secret").exists() and time.monotonic() < end:
                time.sleep(0.1)
        scores = shell(evaluate)
        assert [process.wait(30.0) for process in running[1:]] == [0, 0, 0]
    auc = float(re.search(r"^auc\s+(\S+)", scores, re.MULTILINE)[1])
    truth = count_pairs(ages[2_000:], ill[2_000:] == "yes")
    positives = np.count_nonzero(ill[2_000:] == "yes")
    assert auc == pytest.approx(0.5 + 0.5 * truth / positives / (3_000 - positives), abs=0.05)
    for i in (1, 2, 3):  # all parties print the same scores
        assert re.search(r"^auc .*", scores, re.MULTILINE)[0] in Path(f"out-{i}.txt").read_text()
    for name in HELD_OUT:
        assert 0.9 < dpk.Accountant(f"{name}.json").spent <= 1.0
    certificate = Certificate.load("scores.certificate.json")
    assert certificate.model == dpk.load("model.npz").digest
    assert certificate.declared["colluding"] == 1
    shell("dpkern verify scores.certificate.json model.npz")


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
