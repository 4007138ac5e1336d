"""Properties of threads: how many there are, and how long they spin when they wait."""

import os
import subprocess
import sys

import pytest
from cases import for_each

from dpkern import _core
from dpkern._threads import usable_cores

SETTINGS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


@for_each(
    ("value", "most"), [("1", 1), ("1,4", 1), ("", None), ("0", None), ("two", None), ("999", None)]
)
def test_omp_num_threads_limits_the_threads_and_only_that(monkeypatch, value, most):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    cores = usable_cores()
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    assert usable_cores() == (most or cores)


def imported(**variables):
    """What OpenMP prints of its settings when dpkern is imported, and what is left of them."""
    code = f"import dpkern, os; print([n for n in {SETTINGS} if n in os.environ])"
    kept = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=kept | {"OMP_DISPLAY_ENV": "VERBOSE"} | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stderr, done.stdout.strip()


@pytest.mark.skipif(not _core.openmp, reason="built without OpenMP")
def test_threads_sleep_soon_when_they_wait_and_the_environment_stays_as_it_was():
    settings, left = imported()
    if "GOMP_SPINCOUNT" not in settings:
        pytest.skip("another OpenMP than GNU's")
    assert "GOMP_SPINCOUNT = '3000'" in settings
    assert left == "[]"


@pytest.mark.processes
@pytest.mark.skipif(not _core.openmp, reason="built without OpenMP")
def test_how_long_threads_spin_is_the_users_choice_where_there_is_one():
    settings, left = imported(OMP_WAIT_POLICY="active")
    assert "GOMP_SPINCOUNT = '3000'" not in settings
    assert left == "['OMP_WAIT_POLICY']"
