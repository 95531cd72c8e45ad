"""Fixtures: recognisers for the language of `whistles`, and recordings in it."""

import shutil
from pathlib import Path

import pytest
import soundfile
from whistles import RATE_HZ, SAID, save_gmm, whistled


@pytest.fixture(scope="session")
def gmm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory with GMMs, which must not be changed."""
    return save_gmm(tmp_path_factory.mktemp("gmm"))


@pytest.fixture
def model(gmm: Path, tmp_path: Path) -> Path:
    """A copy of the model directory, which a test may damage."""
    return Path(shutil.copytree(gmm, tmp_path / "model"))


@pytest.fixture
def sounds(tmp_path: Path) -> dict[str, Path]:
    files = {}
    for name, (_, segments) in SAID.items():
        files[name] = tmp_path / f"{name}.wav"
        soundfile.write(files[name], whistled(*segments), RATE_HZ)
    return files


@pytest.fixture
def data(sounds: dict[str, Path], tmp_path: Path) -> Path:
    """The recordings as a data directory."""
    path = tmp_path / "data"
    path.mkdir()
    (path / "wav.scp").write_text("".join(f"{name} {sound}\n" for name, sound in sounds.items()))
    (path / "utt2spk").write_text("".join(f"{name} {name}\n" for name in sounds))
    (path / "text").write_text("".join(f"{name} {' '.join(SAID[name][0])}\n" for name in sounds))
    return path
