"""Every solver over Flower, with a process for each silo: the same bits as in one process."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import dpkern as dpk

pytest.importorskip("cryptography")
pytest.importorskip("flwr")

from studies import SEED, same, study_of, wisconsin

from dpkern.federated.federation import Federation
from dpkern.federated.flower import FlowerStar
from dpkern.federated.flower_superlink import SuperLink

BUDGET = dpk.Budget(epsilon=1.0, delta=1e-5)
HOSPITAL = Path(__file__).with_name("flower_hospital.py")
RUNS = [
    ("gradient_descent", {"rounds": 3}),
    ("federated_gd", {"rounds": 2, "local_steps": 3}),
    ("wd_dp", {"local_steps": 5}),
    ("output_perturbation", {"local_steps": 5}),
    ("local_newton", {"rounds": 2}),
    ("admm", {"rounds": 2, "users": "silos"}),
    ("minibatch_sgd", {"rounds": 2, "sampling": "one_pass"}),
    ("local_sgd", {"rounds": 2, "local_steps": 2}),
    ("spider", {"rounds": 2}),
    ("prox_svrg", {"rounds": 2}),
]


def over_flower(m, runs, folder):
    """Run studies, each (solver, arguments, trust), one after the other; compare all parties."""
    data, found = wisconsin(m), []
    with SuperLink(insecure=True) as superlink:
        trusts = ",".join(trust for _, _, trust in runs)
        command = [sys.executable, str(HOSPITAL), superlink.address]
        outputs = [folder / f"s{j}.npy" for j in range(m)]
        silos = [
            subprocess.Popen([*command, str(j), str(m), trusts, str(out)])
            for j, out in enumerate(outputs)
        ]
        try:
            for name, how, trust in runs:
                study = study_of(data, trust)

                def connect(study=study):
                    where = study.names, superlink.address, superlink.secret
                    return FlowerStar(*where, insecure=True, deadline=60.0, join_deadline=60.0)

                federation = Federation(study, star=connect)
                found.append(dpk.solve(name, federation, budget=BUDGET, **how))
            assert [silo.wait(30.0) for silo in silos] == [0] * m
        finally:
            for silo in silos:
                silo.kill()
                silo.wait()
    for i, (name, how, trust) in enumerate(runs):
        t = 1 if trust == "central" else None
        expected = dpk.solve(name, data, budget=BUDGET, rng=SEED, trust=trust, colluding=t, **how)
        assert same(found[i], expected), (name, trust)
        model = np.append(expected.coef, expected.intercept)
        assert all(np.array_equal(np.load(out)[i], model) for out in outputs), (name, trust)


def cases(trust):
    return [(name, how, trust) for name, how in RUNS]


@pytest.mark.parametrize("trust", ["central", "silo"])
def test_solvers_over_flower_have_the_bits_of_one_process(trust, tmp_path):
    runs = cases(trust)
    if trust == "central":  # local steps are hidden there
        runs = [(n, {**h, "noise": "round"} if n == "local_sgd" else h, t) for n, h, t in runs]
    over_flower(4, runs, tmp_path)


def test_eight_silos(tmp_path):
    runs = [("gradient_descent", {"rounds": 2}, "central"), ("wd_dp", {"local_steps": 3}, "silo")]
    over_flower(8, runs, tmp_path)
