"""Parties of the tests of Flower, as processes."""

import os
import signal
import sys
import time

from dpkern.federated.flower import FlowerLink, FlowerStar
from dpkern.federated.flower_superlink import SuperLink

FAULTS = {
    "is killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "is told to end": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "sleeps": lambda: time.sleep(1.5),
    "hangs": lambda: time.sleep(60.0),
    "raises": lambda: {}["a record of 12345"],
    "raises a strange class": lambda: exec("raise type('a record of 12345', (Exception,), {})"),
}


def silo(name, superlink, said, options, fault=None):
    """Answer messages by the name and the message reversed; write to `said` what ended it.

    `fault` is None or what goes wrong and the message, counted from 1, at which it does.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    answer, count = None, 0
    try:
        with FlowerLink(name, superlink, join_deadline=30.0, **options) as link:
            while True:
                message = link.exchange(answer)
                answer, count = name.encode() + message[::-1], count + 1
                if fault is not None and count == fault[1]:
                    FAULTS[fault[0]]()
    except BaseException as error:
        said.write_text(f"{type(error).__name__}: {error}")


def coordinator(said, silos):
    """Start a SuperLink and a study, write to `said` where they are, and do rounds for ever."""
    with SuperLink(insecure=True) as superlink:
        said.write_text(f"{superlink.address} {superlink._process.pid}")
        with FlowerStar(silos, superlink.address, superlink.secret, insecure=True) as star:
            while True:
                star.exchange([b"message"] * len(silos))
