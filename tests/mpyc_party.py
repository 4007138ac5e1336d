"""One party of the studies of test_mpyc.py: python mpyc_party.py PARTY STUDIES ADDRESSES OUT."""

import json
import os
import pickle
import signal
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np

import dpkern as dpk
from dpkern.data.parted import held_by
from dpkern.federated import mpyc, mpyc_sums
from dpkern.federated.mpyc import MpycFederation, join
from dpkern.federated.mpyc_runtime import Certificates
from dpkern.federated.proposal import Proposal
from dpkern.federated.study import Silo, Study

from mpyc import runtime  # isort: skip  # no earlier: dpkern keeps it from starting itself

BUDGET = dpk.Budget(epsilon=1.0, delta=1e-5)
EXTREMES = (2**63 - 1, -(2**63), 2**53, -(2**53), 0, -1)


def data_of_all():
    return dpk.datasets.load_wisconsin(m=4, intercept=True, row_bound=4.0)


def study_of(data, *, trust="central", colluding=1):
    silos = tuple(Silo(f"s{j}", int(size), bytes([j] * 32)) for j, size in enumerate(data.sizes))
    options = {
        "task": data.task,
        "classes": data.classes.tolist(),
        "intercept": data.intercept,
        "row_bound": data.row_bound,
        "feature_range": data.feature_range,
    }
    if trust == "silo":
        colluding = None
    return Study("test", silos, trust, colluding, options, data.n_features)


def model_of(data):
    return dpk.solve("gradient_descent", data, budget=BUDGET, rng=0, rounds=4)


def integers(silo, size):
    """What a silo adds to a sum, with integers of all magnitudes."""
    rng = np.random.default_rng(100 + silo)
    values = rng.integers(-(2**63), 2**63, size, dtype=np.int64)
    values >>= rng.integers(0, 64, size)
    values[: len(EXTREMES)] = np.roll(EXTREMES, silo)[:size]
    return values


def sums(party, sizes):
    silo = party.silo
    for size in sizes:
        steps = np.zeros(size, np.int64) if silo is None else integers(silo, size)
        yield party.total(steps, "random integers")
    rows = np.zeros((4, 3, 2))
    if silo is not None:
        rows[silo] = silo + 0.5
    yield party.messages(rows, "rows")
    yield party.total(np.full((2, 3), silo or 0, np.int64), "shape")


class Faulty:
    """A party that dies, or does something else, before its release of a number."""

    def __init__(self, party, number, fault):
        self._party, self._left, self._fault = party, number, fault

    def __getattr__(self, name):
        return getattr(self._party, name)

    def _next(self):
        self._left -= 1
        if self._left == 0 and self._fault == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._left == 0 and self._fault == "sleep":
            time.sleep(6.0)
        if self._left == 0 and self._fault == "raise":
            raise ZeroDivisionError
        if self._left == 0 and self._fault == "see another sum":
            opened = mpyc_sums.unpacked
            mpyc_sums.unpacked = lambda *given: opened(*given) + 1

    def total(self, steps, what):
        self._next()
        return self._party.total(steps, what)

    def messages(self, rows, what):
        self._next()
        return self._party.messages(rows, what)


def take_part(pid, asked, addresses, folder):
    asked = asked | asked.get("of", {}).get(str(pid), {})
    data = data_of_all()
    arguments = {"l2": 1e-3, "trust": "central", **asked["arguments"]}
    trust = asked.get("trust", arguments["trust"])
    study = study_of(data, trust=trust, colluding=asked.get("t", 1))
    if asked["solver"] == "evaluate":
        study = replace(study, model=model_of(data))
    plan = Proposal(asked["solver"], BUDGET, arguments)
    files = asked.get("certificates")
    if files is not None:
        own = Path(files) / asked.get("certificate_of", f"party{pid}")
        files = Certificates(f"{own}.crt", f"{own}.key", Path(files) / "ca.crt")
    how = {
        "threshold": asked.get("threshold"),
        "certificates": files,
        "deadline": asked.get("deadline", 20.0),
    }
    own = data
    if pid:
        first, last = data.offsets[pid - 1 : pid + 1]
        own = data.part(np.arange(first, last), np.array([0, last - first]))
    if "as users do" in asked:
        if pid == 0:
            silos = MpycFederation(study, addresses, **how)
            if study.model is not None:
                return dpk.evaluate(study.model, silos, budget=BUDGET)
            return dpk.solve(asked["solver"], silos, budget=BUDGET, **arguments)
        own = study.silo_data(f"s{pid - 1}", own.X, own.classes[(own.y > 0).astype(int)])
        ledger = folder / f"{pid}.{asked['as users do']}"
        if "older" in asked:
            ledger.write_bytes(ledger.read_bytes().partition(b"\n")[0])
        kept = dpk.Accountant(ledger, epsilon=asked["epsilon"], delta=1e-4)
        before, place = len(kept.entries), (study, f"s{pid - 1}", own, addresses)
        with warnings.catch_warnings(record=True) as seen:
            result = mpyc.take_part(*place, accountant=kept, rng=7, n_threads=1, **how)
        assert len(kept.entries) == before + 1
        return [str(one.message) for one in seen] if "warnings" in asked else result
    name = None if pid == 0 else f"s{pid - 1}"
    with join(study, name, addresses, plan=plan if pid == 0 else None, **how) as (party, agreed):
        assert agreed == plan or "of" in asked
        if "sums" in asked:
            return list(sums(party, asked["sums"]))
        if "rounds" in asked:
            return rounds(party, **asked["rounds"])
        party.public = dpk.NoiseStream(7)
        if "fault" in asked:
            party = Faulty(party, *asked["fault"])
        here = held_by(party, own, data.sizes)
        # The analyst's own stream draws nothing that anybody sees.
        rng = 7 if pid else 8
        run = Proposal(asked["solver"], BUDGET, arguments) if "of" in asked else agreed
        result = dpk.solve(
            run.solver, here, budget=run.budget, rng=rng, n_threads=1, **run.arguments
        )
        return result


def rounds(party, d, times):
    """Seconds of rounds without computations."""
    found = []
    steps = np.full(d, 2**40, np.int64)
    for _ in range(times):
        start = time.perf_counter(), time.process_time()
        party.total(steps, "steps")
        found.append((time.perf_counter() - start[0], time.process_time() - start[1]))
    return found


def main():
    opened = mpyc_sums.unpacked
    runtime.pickle = None  # what others send is never unpickled
    pid, out = int(sys.argv[1]), Path(sys.argv[4])
    outcomes = []
    for asked, addresses in zip(json.loads(sys.argv[2]), json.loads(sys.argv[3]), strict=True):
        start, mpyc_sums.unpacked = time.monotonic(), opened
        try:
            outcome = take_part(pid, asked, addresses, out.parent)
        except Exception as error:
            outcome = f"{type(error).__name__}: {error}"
        outcomes.append((outcome, time.monotonic() - start))
        out.write_bytes(pickle.dumps(outcomes))


if __name__ == "__main__":
    main()
