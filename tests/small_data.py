"""Fixtures: a small valid data directory, which a test may damage, and the program, called in this process."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Path]:
    """Build ``data/`` with utterances u1, u2, u3 of speakers a and b; keyword arguments replace files."""
    import soundfile  # imported here, because a machine with a GPU may lack it
    from sounds import RATE_HZ, tone

    def build(**files: str | bytes | None) -> Path:
        directory = tmp_path / "data"
        (directory / "wav").mkdir(parents=True, exist_ok=True)
        for key in ("u1", "u2", "u3"):
            soundfile.write(directory / "wav" / f"{key}.wav", tone(), RATE_HZ)
        contents: dict[str, str | bytes | None] = {
            "wav.scp": "u1 wav/u1.wav\nu2 wav/u2.wav\nu3 wav/u3.wav\n",
            "text": "u1 ONE TWO\nu2 THREE\nu3 FOUR FIVE SIX\n",
            "utt2spk": "u1 a\nu2 a\nu3 b\n",
        }
        contents.update({name.replace("wav_scp", "wav.scp"): value for name, value in files.items()})
        for name, value in contents.items():
            if value is not None:
                (directory / name).write_bytes(value.encode() if isinstance(value, str) else value)
        return directory

    return build


@pytest.fixture(scope="session")
def program() -> Callable[..., Any]:
    """A function that calls `speech3` with arguments and returns typer's `Result`."""
    from typer.testing import CliRunner

    from speech3.cli import _register, app

    _register()
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])
