"""Studies of which one process is killed at a random moment, over any transport."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from studies import NAMES

import dpkern as dpk
from dpkern.federated.journal import RecordedStar

EPSILON, DELTA = 1.0, 1e-5


def accountant_of(folder, j):
    return dpk.Accountant(folder / f"s{j}.json")


def models_in(folder):
    paths = [folder / f"{name}.npy" for name in (*NAMES, "analyst")]
    return [np.load(path) for path in paths if path.exists()]


def rounds_in(journal):
    """The releases whose answers the coordinator has: the first three rounds have none."""
    if not journal.exists():
        return 0
    return len(RecordedStar(NAMES, pytest.fail, journal)._records) - 3


class Kills:
    """Trials with four silos and a coordinator, each process made by `silo(j, folder)` and
    `coordinator(folder)`; `expected` is the model of `rounds` rounds.

    `patience` are the seconds by which all processes have to end after the death of one.
    """

    def __init__(self, silo, coordinator, expected, rounds, *, patience):
        self._silo, self._coordinator, self._expected = silo, coordinator, expected
        self._rounds, self._patience = rounds, patience

    def trials(self, folder: Path, number, longest, *, at_once=1):
        """In `number` studies, kill the coordinator and a silo in turn, up to `longest` seconds
        after the first round; they mostly wait, so several run `at_once`.

        A study without one of its silos ends, unless the silo had all it needed; one without its
        coordinator goes on when the coordinator is started again.
        """
        rng = np.random.default_rng()
        victims = [None if trial % 2 == 0 else int(rng.integers(4)) for trial in range(number)]
        folders = [folder / str(trial) for trial in range(number)]
        with ThreadPoolExecutor(at_once) as pool:
            list(pool.map(self._trial, folders, victims, rng.uniform(0.0, longest, number)))

    def _trial(self, folder: Path, victim, moment):
        """Kill silo `victim`, or the coordinator, `moment` seconds after the first round.

        No hang, no wrong model, and nothing sent that is not charged, whoever dies and when.
        """
        folder.mkdir()
        journal = folder / "journal"
        for j in range(4):
            dpk.Accountant(folder / f"s{j}.json", epsilon=1.5 * EPSILON, delta=DELTA)
        silos, coordinator = [self._silo(j, folder) for j in range(4)], self._coordinator(folder)
        for process in (*silos, coordinator):
            process.start()
        end = time.monotonic() + 30.0
        while not journal.exists() and time.monotonic() < end:
            time.sleep(0.001)
        time.sleep(moment)
        killed = coordinator if victim is None else silos[victim]
        killed.kill()
        killed.join()
        rounds_at_death = rounds_in(journal)
        if victim is None and killed.exitcode != 0:
            coordinator = self._coordinator(folder)
            coordinator.start()
        begin = time.monotonic()
        for process in (*silos, coordinator):
            process.join(self._patience + 20.0)
            assert process.exitcode is not None, "hangs"
        assert time.monotonic() - begin < self._patience
        assert all(np.array_equal(model, self._expected) for model in models_in(folder))
        if (folder / "analyst.npy").exists():
            # Only some have a model if a silo died before it saved its own, or the coordinator
            # while it said its last message.
            after_all_rounds = victim is not None or rounds_at_death == self._rounds
            assert len(models_in(folder)) == 5 or after_all_rounds
        elif victim is None:
            pytest.fail("a coordinator that was started again did not go on")
        if rounds_in(journal) > 0:
            assert min(accountant_of(folder, j).spent for j in range(4)) > 0.9 * EPSILON
