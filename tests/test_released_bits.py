"""Every released bit is the recorded one: models, histories, guarantees, certificates.

`python tests/released_bits.py --diff` says the same in more detail, and `--record` records.
"""

import pytest
import released_bits as net
from cases import for_each

GROUPS = sorted({net.group_of(id) for id in net.ids()})


@pytest.fixture(scope="module")
def recorded():
    return net.load()


def test_every_run_is_recorded_and_every_record_is_run(recorded):
    assert set(recorded["runs"]) == set(net.ids())


def test_every_solver_is_run():
    assert set(net.dpk.solvers.SOLVERS) <= set(GROUPS)


@for_each("group", GROUPS)
def test_released_bits_are_the_recorded_ones(recorded, group):
    same = recorded["environment"] == net.environment()
    differing = []
    for id in net.ids():
        if net.group_of(id) != group:
            continue
        for n_threads in (1, 2) if group.startswith("kernels/") else (1,):
            try:
                measured = net.measure(id, n_threads)
                parts = net.changed(recorded["runs"][id], measured, same_environment=same)
            except Exception as error:
                parts = [f"{type(error).__name__}: {error}"]
            if parts:
                differing.append(f"{id}, n_threads={n_threads}: {', '.join(parts)}")
    assert not differing, "\n".join([f"{len(differing)} differ", *differing])
