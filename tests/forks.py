"""Processes of tests that begin with what takes most of a second to import."""

import multiprocessing

# There is one server of forks a process, with what was preloaded when it started: so one list. What
# is not installed is left out.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["dpkern.federated.silo", "dpkern.federated.flower", "sklearn.datasets", "pytest"]
)
