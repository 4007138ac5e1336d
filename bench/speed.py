"""Cases as tests of pytest-benchmark: small sizes, and with the mark `full` those of the report."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from bench.cases import Case


def speed_test(
    cases: Callable[[bool], list[Case]], contenders: Sequence[str]
) -> Callable[..., None]:
    """Return a test that times each of the contenders, by name, at each case that has it."""
    small = {case.name: case for case in cases(True)}
    sizes: list[Any] = [pytest.param(case, id=name) for name, case in small.items()]
    for case in cases(False):
        if case.name not in small:
            sizes.append(pytest.param(case, id=case.name, marks=pytest.mark.full))

    @pytest.mark.parametrize("contender", contenders)
    @pytest.mark.parametrize("case", sizes)
    def test_speed(case: Case, contender: str, call_of: Any, benchmark: Any) -> None:
        benchmark.group, benchmark.name = case.name, contender
        benchmark(call_of(case, contender))

    return test_speed
