"""`speech3 watch` as a user runs it: in a pipe, on a terminal, and in directories with nothing to show."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import typer.testing

Run = Callable[..., subprocess.CompletedProcess[str]]


def epoch(number: int) -> str:
    record = {
        "event": "epoch",
        "epoch": number,
        "seconds": 10.0 * number,
        "frames": 1000 * number,
        "world": "shared",
        "workers": 2,
        "heldout_accuracy": 0.25 + number / 100,
        "heldout_loss": 3.0 - number,
        "minibatches": {"used": 18, "stale": 1, "refused": 1, "returned": 3},
    }
    return json.dumps(record) + "\n"


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    path = tmp_path / "asgd2"
    path.mkdir()
    (path / "run.json").write_text(json.dumps({"training": {"max_epochs": 3, "schedule": "cosine"}}))
    return path


def test_a_finished_run_in_a_pipe(run_dir: Path, speech3: Run) -> None:
    (run_dir / "metrics.jsonl").write_text(epoch(1) + "{'event'\n" + epoch(2) + epoch(3)[:-30])
    (run_dir / "model.safetensors").touch()
    done = speech3("watch", run_dir)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("asgd2: world shared, 2 workers\nfinished after 2 of 3 epochs; the result is from")
    assert "metrics.jsonl: ignoring unreadable line 2" in done.stdout  # the last line may still be incomplete
    assert "whole run 36 2 2 6" in " ".join(done.stdout.split())
    assert "\x1b" not in done.stdout


def test_what_cannot_be_shown(tmp_path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch, speech3: Run) -> None:
    done = speech3("watch", tmp_path / "nowhere")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: {tmp_path}/nowhere: no such directory") and done.stderr.count("\n") == 1

    def said(path: Path) -> str:
        from speech3.cli.inspect import watch

        app = typer.Typer()
        app.command()(watch)
        return str(typer.testing.CliRunner().invoke(app, [str(path)]).exception)

    assert f"{run_dir}/metrics.jsonl: nothing was recorded yet; wait for the end of the first epoch" in said(run_dir)
    assert f"{tmp_path}: not the directory of a training run" in said(tmp_path)
    (run_dir / "metrics.jsonl").mkdir()
    assert f"{run_dir}/metrics.jsonl: cannot be read" in said(run_dir)


class Terminal:
    """A terminal of 80 x 40 in which ``speech3 watch`` runs."""

    def __init__(self, run_dir: Path) -> None:
        self._own, its = pty.openpty()
        self.process = subprocess.Popen(
            [Path(sys.executable).with_name("speech3"), "watch", run_dir],
            stdin=its,
            stdout=its,
            stderr=its,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "40"},
        )
        os.close(its)

    def wait_for(self, words: str) -> None:
        """Read until `words` appear."""
        said, deadline = b"", time.monotonic() + 60
        while words.encode() not in said:
            assert time.monotonic() < deadline, said
            said += os.read(self._own, 65536)

    def rest(self) -> str:
        """The output from here until the program has ended."""
        said = b""
        try:
            while piece := os.read(self._own, 65536):
                said += piece
        except OSError:  # on Linux: the other side was closed
            pass
        os.close(self._own)
        return said.decode()


def test_a_run_that_is_watched_to_its_end(run_dir: Path) -> None:
    terminal = Terminal(run_dir)
    terminal.wait_for("nothing recorded yet; waiting")
    (run_dir / "metrics.jsonl").write_text(epoch(1))
    terminal.wait_for("1 of 3 epochs done")
    with (run_dir / "metrics.jsonl").open("a") as stream:
        stream.write(epoch(2))
    (run_dir / "model.safetensors").touch()
    said = terminal.rest()
    assert terminal.process.wait(60) == 0
    screen, _, after = said.rpartition("\x1b[?1049l")  # the terminal's former content is restored
    assert "finished after 2 of 3 epochs" in screen and "finished after 2 of 3 epochs" in after


def test_ctrl_c(run_dir: Path) -> None:
    (run_dir / "metrics.jsonl").write_text(epoch(1))
    terminal = Terminal(run_dir)
    terminal.wait_for("1 of 3 epochs done")
    terminal.process.send_signal(signal.SIGINT)
    said = terminal.rest()
    assert terminal.process.wait(60) == 0
    assert "Traceback" not in said and "interrupted" not in said and "1 of 3 epochs done" in said
