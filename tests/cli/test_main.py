"""The exit status and the last message of the program."""

import errno

import pytest

from speech3 import cli
from speech3.errors import Speech3Error


def _caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("raised", "status", "said"),
    [
        (Speech3Error("u1: too short"), 1, "error: u1: too short\n"),
        (OSError(errno.ENOSPC, "No space left on device", "x/metrics.jsonl"), 1, "x/metrics.jsonl"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (SystemExit(130), 130, "interrupted"),
        (_caused(ImportError("initialization failed"), KeyboardInterrupt()), 130, "interrupted"),
        (SystemExit(2), 2, ""),
        (BrokenPipeError(), 1, ""),
    ],
)
def test_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], raised: BaseException, status: int, said: str
) -> None:
    def verb() -> None:
        raise raised

    monkeypatch.setattr(cli, "app", verb)
    monkeypatch.setattr(cli, "_register", lambda: None)
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == status
    message = capsys.readouterr().err
    assert said in message and bool(said) == bool(message)


@pytest.mark.parametrize(
    "error", [OSError(errno.EIO, "bad disk"), ImportError("no such module"), ValueError("a defect")]
)
def test_defects_keep_their_traceback(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def verb() -> None:
        raise error

    monkeypatch.setattr(cli, "app", verb)
    monkeypatch.setattr(cli, "_register", lambda: None)
    with pytest.raises(type(error)):
        cli.main()
