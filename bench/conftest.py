"""One case's data at a time, shared by its contenders."""

import pytest


@pytest.fixture(scope="session")
def call_of():
    """The callable of a contender; skips where this case does not have it."""
    current = {}

    def call_of(case, name):
        if case.name not in current:
            current.clear()
            current[case.name] = case.setup()[0]
        if name not in current[case.name]:
            pytest.skip(f"{case.name} has no {name}")
        return current[case.name][name]

    return call_of
