"""Laws of the number of threads."""

import pytest

from dpkern._threads import usable_cores


@pytest.mark.parametrize(
    ("value", "most"), [("1", 1), ("1,4", 1), ("", None), ("0", None), ("two", None), ("999", None)]
)
def test_omp_num_threads_limits_the_threads_and_only_that(monkeypatch, value, most):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    cores = usable_cores()
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    assert usable_cores() == (most or cores)
