"""The file of an accountant: concurrent writers, crashes, damage and full disks."""

import fcntl
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from forks import FORKS
from makers import assert_refused

import dpkern as dpk
from dpkern import Accountant, Budget, BudgetSpentError
from dpkern.privacy.accountant.profiles import Bound

DELTA = 1e-6


@pytest.fixture
def path(tmp_path):
    return tmp_path / "study.json"


@pytest.fixture
def accountant(path):
    return Accountant(path, epsilon=3.0, delta=DELTA)


def charged(path):
    return [entry.what for entry in Accountant(path).entries]


def small_fit(accountant, **arguments):
    X = np.linspace(-1.0, 1.0, 60).reshape(20, 3)
    data = dpk.SiloData.split(X, np.resize([-1.0, 1.0], 20), m=1, row_bound=2.0)
    how = {"clip": 1.0, "rounds": 2, "budget": Budget(mu=0.01), **arguments}
    return dpk.solve("gradient_descent", data, accountant=accountant, **how)


# ----------------------------------------------------------------------------- several writers


def _charge(path, name, times):
    accountant = Accountant(path)
    for i in range(times):
        accountant.charge(f"{name} {i}", mu=0.01)


@pytest.mark.processes
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_two_processes_lose_nothing(accountant, path, method):
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no {method} here")
    context = multiprocessing.get_context(method)
    workers = [context.Process(target=_charge, args=(path, name, 25)) for name in "ab"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
        assert worker.exitcode == 0
    assert sorted(charged(path)) == sorted(f"{name} {i}" for name in "ab" for i in range(25))
    assert accountant.spent == pytest.approx(dpk.privacy.gdp_epsilon(0.01 * 50**0.5, DELTA))


def test_threads_that_share_an_accountant_lose_nothing_and_spend_no_more_than_there_is(accountant):
    refused = []

    def work(name):
        for _ in range(10):
            try:
                accountant.charge(name, mu=0.2)
            except BudgetSpentError:
                refused.append(name)

    threads = [threading.Thread(target=work, args=(f"thread {i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    room = int((dpk.privacy.gdp_mu(3.0, DELTA) / 0.2) ** 2)
    assert (len(accountant.entries), len(refused)) == (room, 40 - room)
    assert accountant.spent <= 3.0


@pytest.mark.processes
def test_two_processes_create_one_file(path):
    opened = f"dpkern.Accountant({str(path)!r}, epsilon=3.0, delta=1e-6)"
    code = f"import dpkern; {opened}.charge('x', mu=.1)"
    workers = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    assert [worker.wait(120) for worker in workers] == [0, 0]
    assert charged(path) == ["x", "x"]


def test_a_reader_does_not_wait_for_a_writer(accountant):
    with accountant._file.writer(create=False):
        assert accountant.spent == 0.0


# ----------------------------------------------------------------------------- crashes


def victim(path, released):
    """Charge and release all the time."""
    accountant = dpk.Accountant(path, epsilon=30.0, delta=1e-6)
    data = dpk.SiloData.split(
        np.linspace(-1.0, 1.0, 60).reshape(20, 3), np.resize([-1.0, 1.0], 20), m=1, row_bound=2.0
    )
    out = os.open(released, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(out, b"start\n")
    how = {"clip": 1.0, "rounds": 2, "budget": dpk.Budget(mu=0.001), "accountant": accountant}

    def show(t, release):
        if t == 0:
            os.write(out, b"released\n")

    while True:
        dpk.solve("gradient_descent", data, **how, callback=show)


def killed_at(moment, tmp_path):
    """Kill a process that charges and releases all the time; return both of its files."""
    path, released = tmp_path / "study.json", tmp_path / "released.txt"
    released.touch()
    before = released.stat().st_size
    process = FORKS.Process(target=victim, args=(path, released))
    process.start()
    try:
        while released.stat().st_size == before:  # it imports this module
            time.sleep(0.005)
            assert process.is_alive()
        time.sleep(moment)
    finally:
        process.kill()
        process.join()
    assert process.exitcode == -signal.SIGKILL
    return path, released


def check_after_kills(tmp_path, kills, seed):
    moments = random.Random(seed)
    in_progress = 0
    for i in range(kills):
        folder = tmp_path / str(i // 20)
        folder.mkdir(exist_ok=True)
        path, released = killed_at(moments.uniform(0.0, 0.05), folder)
        shown = released.read_text().splitlines().count("released")
        accountant = Accountant(path)
        entries = accountant.entries
        in_progress += not entries[-1].ended if entries else 0
        # At most one run of every process was charged and had not released.
        starts = released.read_text().splitlines().count("start")
        assert shown <= len(entries) <= shown + starts
        assert accountant.spent >= dpk.privacy.gdp_epsilon(0.0005 * shown**0.5, DELTA)
        # Whoever comes next can go on.
        number = accountant.charge("after the crash", mu=0.0005)
        assert number == len(entries) + 1
        with open(released, "a") as file:
            file.write("released\n")
    assert in_progress > 0  # some were killed between a charge and its certificate


@pytest.mark.processes
@pytest.mark.skipif(os.name != "posix", reason="SIGKILL")
def test_a_killed_process_has_charged_what_it_released(tmp_path):
    check_after_kills(tmp_path, 20, seed=1)


@pytest.mark.processes
@pytest.mark.skipif(os.name != "posix", reason="SIGKILL")
def test_a_process_killed_at_two_hundred_moments_has_charged_what_it_released(tmp_path):
    check_after_kills(tmp_path, 200, seed=2)


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
def test_an_append_that_was_cut_off_counts_as_never_made(accountant, path, share):
    accountant.charge("first", mu=0.1)
    whole = path.read_bytes()
    accountant.charge("second", mu=0.1)
    second = path.read_bytes()[len(whole) :]
    path.write_bytes(whole + second[: 1 + int(share * (len(second) - 2))])
    assert charged(path) == ["first"]
    assert Accountant(path).charge("third", mu=0.1) == 2
    assert charged(path) == ["first", "third"]
    assert path.read_bytes().startswith(whole)


def test_a_charge_without_its_newline_counts(accountant, path):
    accountant.charge("first", mu=0.1)
    accountant.charge("second", mu=0.2)
    path.write_bytes(path.read_bytes()[:-1])
    assert charged(path) == ["first", "second"]
    assert accountant.charge("third", mu=0.1) == 3
    assert charged(path) == ["first", "second", "third"]
    assert Accountant(path).spent == accountant.spent


def test_an_interrupted_writer_leaves_no_lock(accountant, path, monkeypatch):
    def interrupted(descriptor):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("dpkern.privacy.accountant.append_only._unlock", interrupted)
        with pytest.raises(KeyboardInterrupt):
            accountant.charge("first", mu=0.1)
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert accountant.charge("second", mu=0.1) == 2


def test_a_cut_off_settlement_leaves_the_bound(accountant, path):
    small_fit(accountant)
    path.write_bytes(path.read_bytes()[:-20])
    (entry,) = Accountant(path).entries
    assert not entry.ended
    assert Accountant(path).spent >= dpk.privacy.gdp_epsilon(0.01, DELTA)


def test_a_cut_off_first_line_is_written_again(path):
    Accountant(path, epsilon=3.0, delta=DELTA)
    for length in (0, 5, 40):
        path.write_bytes(path.read_bytes()[:length])
        with pytest.raises(FileNotFoundError, match="restore it from a copy, or give epsilon and"):
            Accountant(path)
        assert Accountant(path, epsilon=2.0, delta=DELTA).epsilon == 2.0


# ----------------------------------------------------------------------------- damage


def test_other_files_are_left_alone(path):
    for content in (b"my thesis", b"a,b\n1,2\n", b'{"format": "something else"}\n', b"\x00\n"):
        path.write_bytes(content)
        for figures in ({}, {"epsilon": 1.0, "delta": DELTA}):
            assert_refused("is another kind of file", Accountant, path, **figures)
        assert path.read_bytes() == content


EDITS = {
    "budget": lambda text: text.replace('"epsilon": 3.0', '"epsilon": 9.0', 1),
    "mu": lambda text: text.replace('"mu": 0.1', '"mu": 0.01', 1),
    "certificate": lambda text: text.replace('"n_draws": 6', '"n_draws": 5', 1),
    "what": lambda text: text.replace("first", "other", 1),
    "line removed": lambda text: "".join(
        line for i, line in enumerate(text.splitlines(keepends=True)) if i != 1
    ),
    "lines swapped": lambda text: "".join(
        text.splitlines(keepends=True)[i] for i in (0, 2, 1, *range(3, text.count("\n")))
    ),
    "line repeated": lambda text: text + text.splitlines(keepends=True)[-1],
    "line ends": lambda text: text.replace("\n", "\r\n"),
    "rubbish": lambda text: text + "{}\n",
    "blank line": lambda text: text + "\n",
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_file_is_refused_as_a_whole(accountant, path, edit):
    accountant.charge("first", mu=0.1)
    accountant.charge("second", mu=0.2)
    small_fit(accountant)
    edited = EDITS[edit](path.read_text())
    assert edited != path.read_text()
    path.write_bytes(edited.encode())
    for read in (lambda: Accountant(path), lambda: accountant.spent):
        assert_refused("was edited or damaged", read)
    assert_refused("was edited or damaged", small_fit, accountant)
    assert path.read_bytes() == edited.encode()


@pytest.mark.parametrize(
    "row",
    [
        {"event": "refund", "id": 1},
        {"event": "charge", "id": 7, "bound": {"mu": 0.1}},
        {"event": "settle", "id": 0, "certificate": {}},
        {"event": "settle", "id": 9, "certificate": {}},
        {"event": "charge", "id": 1, "bound": {"nu": 0.1}},
        {"event": "charge", "id": 1},
    ],
)
def test_rows_that_make_no_sense_are_refused(accountant, path, row):
    with accountant._file.writer(create=False) as writer:
        writer.append([row])
    with pytest.raises(ValueError, match=r"line 2 does not"):
        _ = accountant.entries


def test_a_later_version_is_refused(path):
    from dpkern.privacy.accountant.append_only import AppendOnlyFile

    with AppendOnlyFile(path, "dpkern accountant").writer(create=True) as writer:
        writer.append([{"format": "dpkern accountant", "version": 3}])
    assert_refused("must be of version 2", Accountant, path)


def test_a_file_that_was_replaced_or_deleted_is_charged_by_nobody(accountant, path, tmp_path):
    Accountant(tmp_path / "other.json", epsilon=9.0, delta=DELTA)
    os.replace(tmp_path / "other.json", path)
    assert_refused("it has been replaced", small_fit, accountant)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        small_fit(accountant)
    assert not path.exists()


def test_an_older_copy_is_no_new_budget(accountant, path):
    before = path.read_bytes()
    other = Accountant(path)
    small_fit(accountant)
    path.write_bytes(before)
    assert_refused("every charge that was read from it before", small_fit, accountant)
    with pytest.raises(ValueError, match="every charge that was read from it before"):
        _ = accountant.spent
    assert path.read_bytes() == before
    assert other.spent == 0.0  # which has read no charge


def test_an_open_accountant_misses_its_own_charge(accountant, path):
    for what, charge in (("first", lambda: accountant), ("second", lambda: accountant.part("a"))):
        before = path.read_bytes()
        charge().charge(what, mu=0.1)
        after = path.read_bytes()
        path.write_bytes(before)
        for act in (lambda: accountant.charge("more", mu=0.1), lambda: accountant.spent):
            assert_refused("every charge that was read from it before", act)
        path.write_bytes(after)
    assert charged(path) == ["first", "second"]


def test_an_open_accountant_misses_its_own_certificate(accountant, path):
    accountant.charge("first", mu=0.1)
    before = path.read_bytes()
    small_fit(accountant)
    path.write_bytes(before + path.read_bytes()[len(before) :].split(b"\n")[0] + b"\n")
    assert_refused("every charge that was read from it before", accountant.charge, "more", mu=0.1)


def test_a_ledger_is_its_owners_and_is_only_appended_to(path, monkeypatch):
    flags, real = [], os.open

    def opened(name, mode, *rest, **more):
        flags.append(mode)
        return real(name, mode, *rest, **more)

    def refused(descriptor, size):
        raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", opened)
        patch.setattr(os, "ftruncate", refused)
        accountant = Accountant(path, epsilon=3.0, delta=DELTA)
        small_fit(accountant)
        accountant.charge("second", mu=0.1)
        assert all(mode & os.O_APPEND for mode in flags if mode & os.O_RDWR)
        assert path.stat().st_mode & 0o777 == 0o600
        with open(path, "ab") as file:
            file.write(b'{"event": "cha')
        with pytest.raises(
            PermissionError, match=r"was interrupted, and has to be removed.*chattr"
        ):
            accountant.charge("third", mu=0.1)
    assert accountant.charge("third", mu=0.1) == 3


def test_the_last_line_has_a_number_and_a_check(accountant, path):
    first = accountant.last_line
    assert first == (1, json.loads(path.read_text())["check"])
    accountant.charge("first", mu=0.1)
    last = json.loads(path.read_text().splitlines()[-1])["check"]
    assert accountant.last_line == (2, last) == Accountant(path).last_line
    assert all(map(accountant.has_line, (first, (2, last))))
    assert not any(map(accountant.has_line, ((2, first[1]), (1, last), (0, last), (3, last))))


# ----------------------------------------------------------------------------- disks

FULL = """
import resource, sys
import dpkern as dpk
accountant = dpk.Accountant(sys.argv[1])
size = __import__("os").stat(sys.argv[1]).st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 40, size + 40))
try:
    accountant.charge("too long for the disk", mu=0.1)
except OSError as error:
    print("refused", type(error).__name__)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="RLIMIT_FSIZE")
def test_a_check_cannot_be_computed_from_what_lines_may_say(tmp_path, monkeypatch):
    """Others are told it: the same budget, at the same second, has another one in each file."""
    monkeypatch.setattr(
        "dpkern.privacy.accountant.accountant._now", lambda: "2026-01-01T00:00:00+00:00"
    )
    files = (Accountant(tmp_path / name, epsilon=1.0, delta=1e-6) for name in ("a", "b"))
    assert len({accountant.last_line for accountant in files}) == 2


def test_on_a_full_disk_nothing_is_charged(accountant, path):
    accountant.charge("first", mu=0.1)
    before = path.read_bytes()
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["refused", "OSError"]
    assert path.read_bytes() == before


def test_a_run_whose_charge_cannot_be_written_releases_nothing(accountant, path, monkeypatch):
    released = []
    before = path.read_bytes()
    real = os.fsync

    def fails(descriptor):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="Input/output"):
        small_fit(accountant, callback=lambda t, release: released.append(t))
    monkeypatch.setattr(os, "fsync", real)
    assert released == []
    assert path.read_bytes() == before


def test_a_file_that_only_may_be_read_shows_and_refuses(accountant, path, monkeypatch):
    small_fit(accountant)
    real = os.open

    def refused(name, flags, *rest, **more):  # chmod does not stop who runs the tests as root
        if flags & os.O_RDWR:
            raise PermissionError(13, "Permission denied", str(name))
        return real(name, flags, *rest, **more)

    monkeypatch.setattr(os, "open", refused)
    again = Accountant(path, epsilon=3.0, delta=DELTA)
    assert again.spent > 0.0
    released = []
    with pytest.raises(PermissionError):
        small_fit(again, callback=lambda t, release: released.append(t))
    assert released == []


def test_a_certificate_that_cannot_be_written_leaves_the_bound_and_the_result(
    accountant, monkeypatch
):
    def fails(number, certificate):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(accountant, "settle", fails)
    with pytest.warns(UserWarning, match="stands at its bound: .*No space left"):
        result = small_fit(accountant)
    assert np.isfinite(result.coef).all()
    assert not accountant.entries[0].ended


def test_every_line_is_json_for_people(accountant, path):
    accountant.charge("größe, \u2028 and\nlines", mu=0.1)
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
    assert rows[1]["what"] == "größe, \u2028 and\nlines"
    assert charged(path) == ["größe, \u2028 and\nlines"]


@pytest.mark.processes
def test_a_forked_process_neither_settles_nor_withdraws_a_charge(tmp_path, monkeypatch):
    accountant = Accountant(tmp_path / "study.json", epsilon=3.0, delta=1e-6)
    charge = accountant.begin("run", Bound(mu=0.1), neighbours="replace_one", seeded=False)
    charge.make()
    mine = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: mine + 1)
    charge.withdraw()
    assert accountant.certificates == ()
    monkeypatch.setattr(os, "getpid", lambda: mine)
    charge.withdraw()
    assert [certificate.mu for certificate in accountant.certificates] == [0.0]


def test_devices_are_no_files_of_accountants():
    with pytest.raises(ValueError, match="/dev/full must be a regular file"):
        Accountant("/dev/full", epsilon=1.0, delta=1e-6)
