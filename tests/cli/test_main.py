"""The exit status and the last message of the program."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from speech3 import __version__, cli
from speech3.errors import Speech3Error


def _caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("raised", "status", "said"),
    [
        (Speech3Error("u1: too short"), 1, "error: u1: too short\n"),
        (OSError(errno.ENOSPC, "No space left on device", "x/metrics.jsonl"), 1, "x/metrics.jsonl"),
        (NotADirectoryError(errno.ENOTDIR, "Not a directory", f"{__file__}/hyp.ctm"), 1, "expected a directory"),
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
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)  # which an interrupt silences
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
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    with pytest.raises(type(error)):
        cli.main()


def test_what_an_interrupt_left_half_made_says_nothing() -> None:
    program = """
import speech3.cli as cli
class Half:
    def __del__(self):
        self.missing
def app():
    half = Half()
    raise KeyboardInterrupt
cli.app, cli._register = app, lambda: None
cli.main()
"""
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert process.returncode == 130
    assert process.stderr == "interrupted; finished work is kept: run the same command again to resume\n"


def test_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "speech3", "--version"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == f"speech3 {__version__}\n"


def test_a_working_directory_that_was_removed(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    script = f"mkdir {gone} && cd {gone} && rmdir {gone} && exec {sys.executable} -m speech3 stats x"
    done = subprocess.run(script, shell=True, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr.startswith("error: ") and str(tmp_path / "gone") in done.stderr


@pytest.mark.parametrize("verb", [["score", "text", "text"], ["lm", "train", "text", "--out", "lm.arpa"]])
def test_verbs_of_texts_do_not_wait_for_pytorch(tmp_path: Path, verb: list[str]) -> None:
    (tmp_path / "text").write_text("u1 hello world\nu2 hello there\n")
    program = (
        "import sys; from speech3 import cli\ntry: cli.main()\nfinally: print('torch' in sys.modules, file=sys.stderr)"
    )
    ended = subprocess.run([sys.executable, "-c", program, *verb], cwd=tmp_path, capture_output=True, text=True)
    assert ended.stderr.splitlines()[-1] == "False" and ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("end", ["time.sleep(30)", "raise RuntimeError('no compiled object yet')"])
def test_interrupt_is_not_lost_in_a_callback_from_c(end: str) -> None:
    program = f"""
import ctypes, os, signal, time
import speech3.cli as cli
called = ctypes.CFUNCTYPE(None)(lambda: (os.kill(os.getpid(), signal.SIGINT), time.sleep(0.1)))
def app():
    called()
    {end}
cli.app, cli._register = app, lambda: None
cli.main()
"""
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert process.returncode == 130
    assert process.stderr == "interrupted; finished work is kept: run the same command again to resume\n"
