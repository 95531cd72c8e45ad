"""`speech3 augment` as a user runs it."""

from pathlib import Path

import numpy as np
import pytest
import soundfile

RATE_HZ = 16000


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Three utterances of two speakers."""
    directory, rng = tmp_path / "data", np.random.default_rng(1)
    (directory / "wav").mkdir(parents=True)
    for key in ("a-1", "a-2", "b-1"):
        soundfile.write(directory / "wav" / f"{key}.wav", 0.1 * rng.standard_normal(RATE_HZ).clip(-3, 3), RATE_HZ)
    (directory / "wav.scp").write_text("".join(f"{key} wav/{key}.wav\n" for key in ("a-1", "a-2", "b-1")))
    (directory / "utt2spk").write_text("a-1 a\na-2 a\nb-1 b\n")
    (directory / "text").write_text("a-1 ONE\na-2 TWO\nb-1 ONE TWO\n")
    return directory


def test_copies_in_noise(speech3, data: Path, tmp_path: Path) -> None:
    process = speech3("augment", "data", "noisy", "--augment", "noisy", "--copies", "2", "--jobs", "1", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert process.stdout == "6 copies, 0 of them unchanged: noisy; changes are listed in noisy/augment.txt\n"
    assert (tmp_path / "noisy" / "text").read_text().startswith("aug1-a-1 ONE\naug1-a-2 TWO\n")
    lines = (tmp_path / "noisy" / "augment.txt").read_text().splitlines()
    assert len(lines) == 6 and all(" noise=" in line and line.endswith("dB") for line in lines)
    assert speech3("validate", tmp_path / "noisy").returncode == 0
    again = speech3("combine", "all", "data", "noisy", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert len((tmp_path / "all" / "utt2spk").read_text().splitlines()) == 9


def test_a_config_of_the_users_own_and_another_seed(speech3, data: Path, tmp_path: Path) -> None:
    (tmp_path / "rooms").mkdir()
    pulse = np.zeros(1000)
    pulse[[100, 900]] = 0.9, 0.3
    soundfile.write(tmp_path / "rooms" / "r.wav", pulse, RATE_HZ)
    (tmp_path / "my.yaml").write_text("reverb_prob: 1\nrir_dir: rooms\nvolume_prob: 1\n")
    for out, seed in (("first", "1"), ("second", "2")):
        process = speech3("augment", "data", out, "--augment", "my.yaml", "--seed", seed, "--jobs", "1", cwd=tmp_path)
        assert process.returncode == 0, process.stderr
    first, second = ((tmp_path / out / "augment.txt").read_text() for out in ("first", "second"))
    assert first.count("reverb=r.wav volume=") == second.count("reverb=r.wav volume=") == 3 and first != second


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["data", "out", "--augment", "loud"],
            "loud: neither a YAML file nor a preset of conf/augment (mixed, noisy, ",
        ),
        (["data", "data", "--augment", "noisy"], "data: is one of the inputs"),
        (["data", "out", "--augment", "my.yaml"], "nowhere: no such directory"),
        (["nothing", "out", "--augment", "noisy"], "nothing: no such directory"),
    ],
)
def test_what_is_refused(speech3, data: Path, tmp_path: Path, arguments: list[str], told: str) -> None:
    (tmp_path / "my.yaml").write_text("noise_prob: 1\nnoise_dir: nowhere\n")
    process = speech3("augment", *arguments, cwd=tmp_path)
    assert (process.returncode, process.stdout) == (1, "")
    assert told in process.stderr and "Traceback" not in process.stderr
    assert not (tmp_path / "out" / "wav.scp").exists()
