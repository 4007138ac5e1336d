"""Properties of files that appear whole or not at all."""

import io
import os
import random
import socket
import stat
import zipfile
from pathlib import Path

import numpy as np
import pytest
from cases import for_each
from makers import assert_refused, peak_memory

import dpkern as dpk
from dpkern._files import refuse_unwritable, replacing
from dpkern.io import read_table


def test_a_file_appears_when_it_is_whole(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"old")
    with replacing(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


@for_each("error", [ValueError, KeyboardInterrupt])
def test_a_failure_leaves_nothing_behind(tmp_path, error):
    def fail():
        with replacing(tmp_path / "x") as file:
            file.write(b"half")
            raise error

    with pytest.raises(error):
        fail()
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(os.name != "posix", reason="permissions are POSIX's")
def test_permissions_are_those_of_any_new_file(tmp_path):
    with replacing(tmp_path / "x") as file:
        file.write(b"new")
    (tmp_path / "y").write_bytes(b"new")
    modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert len(modes) == 1


def test_folders_are_refused_as_files(tmp_path):
    with pytest.raises(IsADirectoryError, match="got a folder"):
        refuse_unwritable(tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        refuse_unwritable(tmp_path / "none" / "x")
    refuse_unwritable(tmp_path / "x")
    assert not list(tmp_path.iterdir())


def special(path, kind):
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(str(path))
    elif kind == "link":
        (path.parent / "target").write_bytes(b"old")
        path.symlink_to("target")
    elif kind == "dangling link":
        path.symlink_to("none")
    else:
        try:
            os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 3))  # that of /dev/null
        except PermissionError:
            pytest.skip("only root makes devices")


@pytest.mark.skipif(os.name != "posix", reason="FIFOs and devices are POSIX's")
@for_each("kind", ["FIFO", "socket", "link", "dangling link", "device"])
def test_only_regular_files_are_replaced(tmp_path, kind, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    path = Path("x")
    special(path, kind)
    before = path.lstat().st_ino, path.lstat().st_mode
    with pytest.raises(FileExistsError, match="must be a regular file, or not be there, got a"):
        refuse_unwritable(path)
    with (
        pytest.raises(FileExistsError, match="must be a regular file, or not be there, got a"),
        replacing(path),
    ):
        pytest.fail("the block ran")
    assert (path.lstat().st_ino, path.lstat().st_mode) == before
    path.unlink()

    def appears_meanwhile():
        with replacing(path) as file:
            file.write(b"new")
            special(path, kind)

    with pytest.raises(FileExistsError, match="must be a regular file, or not be there, got a"):
        appears_meanwhile()
    assert not path.is_file() or path.is_symlink()
    assert {p.name for p in tmp_path.iterdir()} <= {"x", "target"}
    assert kind != "link" or Path("target").read_bytes() == b"old"


@for_each("function", [refuse_unwritable, lambda path: replacing(path).__enter__()])
def test_a_dash_is_no_file(tmp_path, monkeypatch, function):
    monkeypatch.chdir(tmp_path)
    assert_refused("got '-'", function, "-")
    assert not list(tmp_path.iterdir())
    refuse_unwritable("./-")


@pytest.mark.skipif(os.name != "posix", reason="FIFOs are POSIX's")
def test_models_are_saved_to_regular_files_only(tmp_path):
    data = dpk.SiloData.split([[0.5], [-0.5]], [1, -1], 1, seed=0, row_bound=1.0)
    result = dpk.solve("gradient_descent", data, budget=None, rounds=1)
    os.mkfifo(tmp_path / "x")
    with pytest.raises(FileExistsError, match="got a FIFO"):
        result.save(tmp_path / "x")
    result.save(tmp_path / "y")
    result.save(tmp_path / "y")
    assert dpk.load(tmp_path / "y").coef == result.coef


def archive_of(path, compression, **parts):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in parts.items():
            archive.writestr(f"{name}.npy", content)


def head_of(shape, dtype="<f8"):
    text = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        text, {"descr": dtype, "fortran_order": False, "shape": shape}
    )
    return text.getvalue()


def test_a_small_archive_takes_no_large_memory(tmp_path):
    """Stated sizes beyond what the archive holds, and compressed models, are refused."""
    path, zeros = tmp_path / "model.npz", bytes(50_000_000)
    forged = {
        "stated": (zipfile.ZIP_STORED, {"coef": head_of((10**10,))}),
        "text": (zipfile.ZIP_STORED, {"header": head_of((), "<U2000000000")}),
        "compressed": (zipfile.ZIP_DEFLATED, {"coef": head_of((6_250_000,)) + zeros}),
    }
    for compression, parts in forged.values():
        archive_of(path, compression, **parts)
        _, peak = peak_memory(assert_refused, "not a dpkern model", dpk.load, path)
        assert peak < 10_000_000


@for_each("compress", [False, True])
def test_damaged_archives_of_records_are_named(tmp_path, compress):
    from scipy.sparse import csr_array

    rng, path = np.random.default_rng(1), tmp_path / "records.npz"
    X, y, draws = rng.random((30, 3)), np.arange(30) % 2, random.Random(2)
    csr = csr_array(X)
    parts = {"format": "csr", "shape": csr.shape, "data": csr.data}
    parts |= {"indices": csr.indices, "indptr": csr.indptr}
    for arrays in ({"X": X}, parts):
        (np.savez_compressed if compress else np.savez)(path, y=y, **arrays)
        good, table = path.read_bytes(), read_table(path)
        assert np.array_equal(table.y, y)
        for _ in range(60):
            content, place = bytearray(good), draws.randrange(len(good))
            content[place] ^= draws.randrange(1, 256)
            path.write_bytes(content)
            found = outcome_of(path)
            if isinstance(found, ValueError):
                assert "records.npz" in str(found)
            else:
                assert np.array_equal(found.y, y)
                assert np.array_equal(to_dense(found.X), X)


def outcome_of(path):
    try:
        return read_table(path)
    except ValueError as error:
        return error


def to_dense(X):
    return X if isinstance(X, np.ndarray) else X.toarray()
