"""Seconds that a round of a study takes beside the silos' own computing, for every transport.

    python -m bench.federation                 4 silos, 123 and 100 000 coefficients
    python -m bench.federation --silos 8 --dim 123

Runs gradient descent on a few records, so that a round is its messages: in one process with noise
by shares, and with a process for each silo by every transport. A round is the median of the times
between two models at the coordinator.
"""

import argparse
import multiprocessing
import secrets
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import dpkern as dpk
from dpkern.federated.federation import Federation
from dpkern.federated.silo import take_part
from dpkern.federated.study import Silo, Study

_RECORDS = 8
_BUDGET = dpk.Budget(mu=1.0)
_DEADLINE = 120.0


def identity(j: int) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(bytes([j + 1]) * 32)


def study_of(silos: int, dim: int) -> Study:
    keys = [identity(j).public_key().public_bytes_raw() for j in range(silos)]
    members = tuple(Silo(f"s{j}", _RECORDS, key) for j, key in enumerate(keys))
    options: Any = {"row_bound": 1.0, "task": "classification", "classes": [0, 1]}
    return Study("bench", members, "central", 1, options, dim)


def records_of(study: Study, j: int) -> dpk.SiloData:
    X = np.random.default_rng(j).random((_RECORDS, study.n_features))
    return study.silo_data(f"s{j}", X, np.arange(_RECORDS) % 2)


def silo(j: int, silos: int, dim: int, transport: str, where: Any) -> None:
    """Take part in one study; a process of its own."""
    study = study_of(silos, dim)
    data, how = records_of(study, j), {"accountant": None, "n_threads": 1}
    if transport == "mpyc":
        from dpkern.federated import mpyc

        mpyc.take_part(study, f"s{j}", data, where, deadline=_DEADLINE, **how)
        return
    if transport == "flower":
        from dpkern.federated.flower import FlowerLink

        link: Any = FlowerLink(f"s{j}", where, insecure=True, deadline=_DEADLINE)
    else:
        from tests.local_stars import ProcessLink

        link = ProcessLink(f"s{j}", *where, deadline=_DEADLINE)
    with link:
        take_part(study, f"s{j}", data, link, identity(j), **how)


@contextmanager
def federation_of(study: Study, transport: str) -> Iterator[tuple[Any, Any]]:
    """Return what a solver takes, and where its silos connect."""
    if transport == "mpyc":
        from dpkern.federated.mpyc import MpycFederation

        addresses = [f"127.0.0.1:{free_port()}" for _ in range(len(study.names))]
        yield MpycFederation(study, addresses, deadline=_DEADLINE), addresses
        return
    if transport == "flower":
        from dpkern.federated.flower import FlowerStar
        from dpkern.federated.flower_superlink import SuperLink

        with SuperLink(insecure=True) as link:

            def connect() -> Any:
                how = {"insecure": True, "deadline": _DEADLINE}
                return FlowerStar(study.names, link.address, link.secret, **how)

            yield Federation(study, star=connect), link.address
        return
    from tests.local_stars import ProcessStar

    key = secrets.token_bytes(16)
    star = ProcessStar(study.names, key, deadline=_DEADLINE)

    def accept() -> ProcessStar:
        star.accept()
        return star

    yield Federation(study, star=accept), (star.address, key)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def seconds_of_a_round(solve: Callable[..., Any], rounds: int) -> float:
    """Return the median of the times between two models."""
    times: list[float] = []
    solve(
        budget=_BUDGET,
        rounds=rounds,
        clip=1.0,
        step_size=0.1,
        callback=lambda t, release: times.append(time.perf_counter()),
    )
    return statistics.median(np.diff(times))


def in_one_process(silos: int, dim: int, rounds: int) -> float:
    study = study_of(silos, dim)
    parts = [records_of(study, j) for j in range(silos)]
    data = dpk.SiloData.from_silos([(p.X, p.y > 0) for p in parts], row_bound=1.0)

    def solve(**how: Any) -> Any:
        return dpk.solve("gradient_descent", data, colluding=1, **how)

    return seconds_of_a_round(solve, rounds)


def over(transport: str, silos: int, dim: int, rounds: int) -> float:
    study, spawn = study_of(silos, dim), multiprocessing.get_context("spawn")
    with federation_of(study, transport) as (federation, where), ExitStack() as stack:
        for j in range(silos):
            process = spawn.Process(target=silo, args=(j, silos, dim, transport, where))
            process.start()
            stack.callback(process.join, _DEADLINE)

        def solve(**how: Any) -> Any:
            return dpk.solve("gradient_descent", federation, **how)

        return seconds_of_a_round(solve, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--silos", type=int, default=4)
    parser.add_argument("--dim", type=int, nargs="+", default=[123, 100_000])
    transports = ("processes", "flower", "mpyc")
    parser.add_argument("--transport", nargs="+", choices=transports, default=transports)
    arguments = parser.parse_args()
    print(f"{'transport':<14}{'silos':>6}{'dim':>9}{'ms a round':>12}{'beside':>10}")
    for dim in arguments.dim:
        rounds = 40 if dim < 10_000 else 12
        alone = in_one_process(arguments.silos, dim, rounds)
        print(f"{'one process':<14}{arguments.silos:>6}{dim:>9}{1e3 * alone:>12.3f}", flush=True)
        for transport in arguments.transport:
            found = over(transport, arguments.silos, dim, rounds)
            text = f"{transport:<14}{arguments.silos:>6}{dim:>9}{1e3 * found:>12.1f}"
            print(f"{text}{1e3 * (found - alone):>10.1f}", flush=True)


if __name__ == "__main__":
    main()
