"""The notice before something is compiled."""

import numba
import pytest

from speech3.runtime.native import announce_compiling


def test_it_is_printed_once_and_only_if_something_is_compiled(capsys: pytest.CaptureFixture[str]) -> None:
    announce_compiling("a test")
    announce_compiling("a test")
    assert capsys.readouterr() == ("", "")
    inner = numba.njit(lambda x: x + 1)
    outer = numba.njit(lambda x: inner(x) + 1)
    assert (outer(1), outer(1.0)) == (3, 3.0)
    out, err = capsys.readouterr()
    assert out == "" and err.count("compiling a test, which is done once") == 1
