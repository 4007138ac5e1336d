"""Laws of files that appear whole or not at all."""

import os
import stat

import pytest

from dpkern.io import refuse_unwritable, replacing


def test_a_file_appears_when_it_is_whole(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"old")
    with replacing(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
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
    with pytest.raises(IsADirectoryError, match="is a folder"):
        refuse_unwritable(tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        refuse_unwritable(tmp_path / "none" / "x")
    refuse_unwritable(tmp_path / "x")
    assert not list(tmp_path.iterdir())
