"""Compiled code is kept somewhere even where neither the package nor a home directory can be written (containers)."""

import os
import tempfile
from pathlib import Path

import pytest

from speech3.runtime import compiled_cache, keep_compiled_code


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NUMBA_CACHE_DIR", "")
    monkeypatch.setattr(compiled_cache, "_writable", lambda place: False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"speech3-compiled-{os.getuid()}"


def test_a_private_temporary_directory_is_the_last_resort(nowhere: Path) -> None:
    keep_compiled_code()
    assert os.environ["NUMBA_CACHE_DIR"] == str(nowhere)
    assert nowhere.stat().st_mode & 0o777 == 0o700


def test_a_directory_that_others_may_write_is_not_used(nowhere: Path) -> None:
    nowhere.mkdir()
    nowhere.chmod(0o777)
    keep_compiled_code()
    assert not os.environ["NUMBA_CACHE_DIR"]


def test_no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as for a user who is not in passwd, without HOME
    assert not compiled_cache._in_home()


def test_numbas_own_place_is_used_where_it_can_be_written(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_cache, "_writable", lambda place: place.name == "__pycache__")
    keep_compiled_code()
    assert not nowhere.exists()
