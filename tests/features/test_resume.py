"""An extraction that was killed, and the same command again: nothing finished is done twice, and no byte differs."""

import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import numpy as np
import pytest
import soundfile
from extracted import extracted

from speech3.config import AugmentConfig, FeatureConfig, parse, read_yaml
from speech3.data.augment.augmenter import make_augmenter
from speech3.data.datadir import DataDir, read_datadir
from speech3.errors import Speech3Error
from speech3.features import extraction as room
from speech3.features.extraction import extract, fingerprint, open_parts
from speech3.io.ark import ArkReader

RATE_HZ = 8000
UTTERANCES = [f"u{i:02}" for i in range(40)]  # three units
CONFIG = FeatureConfig(cmvn="utterance", deltas=1)
GLOBAL = FeatureConfig(cmvn="global", norm_vars=True)


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    """40 utterances, the third too short to be used."""
    directory, random = tmp_path / "data", np.random.default_rng(0)
    directory.mkdir()
    for i, name in enumerate(UTTERANCES):
        soundfile.write(directory / f"{name}.wav", random.normal(0, 0.1, 100 if i == 2 else 1000 + 20 * i), RATE_HZ)
    (directory / "wav.scp").write_text("".join(f"{name} {name}.wav\n" for name in UTTERANCES))
    (directory / "utt2spk").write_text("".join(f"{name} a\n" for name in UTTERANCES))
    return read_datadir(directory)


class Stopper:
    """Stands for `unit_features` or `unit_stats`, counts the calls, and raises at one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.function, self.calls, self.at = getattr(room, name), 0, -1
        self.error: BaseException = KeyboardInterrupt()
        monkeypatch.setattr(room, name, self)

    def __call__(self, *arguments: object, **options: object) -> object:
        self.calls += 1
        if self.calls == self.at:
            raise self.error
        return self.function(*arguments, **options)

    def stop(self, at: int) -> None:
        self.calls, self.at = 0, at


@pytest.fixture
def stopper(monkeypatch: pytest.MonkeyPatch) -> Stopper:
    return Stopper(monkeypatch, "unit_features")


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def interrupted(data: DataDir, out: Path, config: FeatureConfig, stopper: Stopper, at: int = 3) -> None:
    stopper.stop(at)
    with pytest.raises(KeyboardInterrupt):
        extract(data, out, config, 1)
    assert not (out / "feats.ark").exists()
    stopper.stop(-1)


@pytest.mark.parametrize("compress", [False, True])
def test_finished_units_are_taken_over(
    data: DataDir, tmp_path: Path, stopper: Stopper, capsys: pytest.CaptureFixture[str], compress: bool
) -> None:
    whole = extract(data, tmp_path / "whole", CONFIG, 1, compress=compress)
    stopper.stop(3)
    with pytest.raises(KeyboardInterrupt):
        extract(data, tmp_path / "out", CONFIG, 1, compress=compress)
    stopper.stop(-1)
    report = extract(data, tmp_path / "out", CONFIG, 1, compress=compress)
    assert stopper.calls == 1
    assert "31 of 40 utterances are kept from an interrupted run" in capsys.readouterr().err
    assert report == whole and list(report.skipped) == ["u02"]
    assert names(tmp_path / "out") == ["feats.ark", "feats.scp", "features.yaml", "skipped.txt"]
    for name in ("feats.ark", "features.yaml", "skipped.txt"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    there, here = (ArkReader(tmp_path / name / "feats.scp") for name in ("whole", "out"))
    assert sorted(here) == sorted(there) == sorted(set(UTTERANCES) - {"u02"})
    np.testing.assert_array_equal(here["u39"], there["u39"])


def _cut_data(out: Path) -> None:
    path = out / ".feats.ark.parts"
    os.truncate(path, path.stat().st_size - 1)


def _cut_journal(out: Path) -> None:
    path = out / ".feats.ark.journal"
    os.truncate(path, path.stat().st_size - 10)


def _flip_a_byte(out: Path) -> None:
    path = out / ".feats.ark.parts"
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)


def _zeros(out: Path) -> None:
    path = out / ".feats.ark.journal"
    content = path.read_bytes()
    last = content[:-1].rindex(b"\n") + 1
    path.write_bytes(content[:last] + b"\0" * 50 + b"\n")


def _half_a_unit_more(out: Path) -> None:
    with (out / ".feats.ark.parts").open("ab") as stream:
        stream.write(b"u32 \0BFM half")


@pytest.mark.parametrize(
    ("damage", "again"), [(_cut_data, 2), (_cut_journal, 2), (_flip_a_byte, 2), (_zeros, 2), (_half_a_unit_more, 1)]
)
def test_what_was_cut_short_is_computed_again(
    data: DataDir, tmp_path: Path, stopper: Stopper, damage: Callable[[Path], None], again: int
) -> None:
    extract(data, tmp_path / "whole", CONFIG, 1)
    interrupted(data, tmp_path / "out", CONFIG, stopper)
    damage(tmp_path / "out")
    extract(data, tmp_path / "out", CONFIG, 1)
    assert stopper.calls == again
    assert (tmp_path / "out" / "feats.ark").read_bytes() == (tmp_path / "whole" / "feats.ark").read_bytes()


def _other_config(data: DataDir) -> tuple[DataDir, FeatureConfig]:
    return data, CONFIG.model_copy(update={"deltas": 2})


def _other_audio(data: DataDir) -> tuple[DataDir, FeatureConfig]:
    os.utime(data.path / "u01.wav", (0, 0))
    return data, CONFIG


def _fewer(data: DataDir) -> tuple[DataDir, FeatureConfig]:
    return data.subset(UTTERANCES[1:]), CONFIG


@pytest.mark.parametrize("change", [_other_config, _other_audio, _fewer])
def test_another_config_or_other_data_begins_again(
    data: DataDir,
    tmp_path: Path,
    stopper: Stopper,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[DataDir], tuple[DataDir, FeatureConfig]],
) -> None:
    interrupted(data, tmp_path / "out", CONFIG, stopper)
    data, config = change(data)
    capsys.readouterr()
    extract(data, tmp_path / "out", config, 1)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and "not resuming an interrupted run" in said[0]
    assert stopper.calls == 3
    extract(data, tmp_path / "whole", config, 1)
    assert (tmp_path / "out" / "feats.ark").read_bytes() == (tmp_path / "whole" / "feats.ark").read_bytes()


def test_other_noise_begins_again(data: DataDir, tmp_path: Path) -> None:
    def found() -> str:
        config = AugmentConfig(noise_prob=1, noise_dir=str(data.path), reverb_prob=1, rir_dir=str(tmp_path / "rirs"))
        return fingerprint(data, [UTTERANCES], CONFIG, False, make_augmenter(config, data, 1))

    (tmp_path / "rirs").mkdir()
    response = np.eye(1, 100, dtype=np.float32)[0]
    soundfile.write(tmp_path / "rirs" / "a.wav", response, RATE_HZ)
    before = found()
    assert found() == before
    soundfile.write(tmp_path / "rirs" / "b.wav", response, RATE_HZ)
    more = found()
    assert more != before
    os.utime(tmp_path / "rirs" / "a.wav", (0, 0))
    assert found() not in (before, more)


def test_what_is_finished_is_made_again(data: DataDir, tmp_path: Path, stopper: Stopper) -> None:
    for _ in range(2):
        stopper.stop(-1)
        extract(data, tmp_path / "out", CONFIG, 1)
        assert stopper.calls == 3


def test_an_index_never_belongs_to_another_archive(
    data: DataDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extract(data, tmp_path / "out", CONFIG, 1)
    Stopper(monkeypatch, "write_text").stop(1)
    with pytest.raises(KeyboardInterrupt):
        extract(data, tmp_path / "out", CONFIG.model_copy(update={"low_freq": 100.0}), 1)
    assert "feats.ark" in names(tmp_path / "out") and "feats.scp" not in names(tmp_path / "out")


def test_a_dead_worker_loses_nothing_bad_data_keep_nothing(data: DataDir, tmp_path: Path, stopper: Stopper) -> None:
    dead = Speech3Error("a worker process died")
    dead.__cause__ = BrokenProcessPool()
    for error, left in ((dead, [".feats.ark.journal", ".feats.ark.parts"]), (Speech3Error("bad data"), [])):
        stopper.stop(2)
        stopper.error = error
        with pytest.raises(Speech3Error):
            extract(data, tmp_path / "out", CONFIG, 1)
        assert [name for name in names(tmp_path / "out") if "feats" in name] == left


def test_a_full_disk_leaves_nothing(data: DataDir, tmp_path: Path) -> None:
    """The limit of a file's size stands for it."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        with pytest.raises(Speech3Error, match=r"out/feats\.ark: no space left"):
            extract(data, tmp_path / "out", CONFIG, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert names(tmp_path / "out") == []


def test_two_at_once(data: DataDir, tmp_path: Path) -> None:
    with (
        open_parts(tmp_path / "out" / "feats.ark"),
        pytest.raises(Speech3Error, match=r"feats\.ark: another run is writing it"),
    ):
        extract(data, tmp_path / "out", CONFIG, 1)
    assert extract(data, tmp_path / "out", CONFIG, 1).utterances == 39


def test_global_statistics_of_all_the_data(data: DataDir, tmp_path: Path) -> None:
    report = extract(data, tmp_path / "out", GLOBAL, 1)
    written = tmp_path / "out" / "features.yaml"
    config = parse(FeatureConfig, read_yaml(written), written)
    assert config == report.config and config.global_stats is not None
    plain = extracted(data, FeatureConfig())
    together_TF = np.concatenate(list(plain.values())).astype(np.float64)
    np.testing.assert_allclose(config.global_stats[0], [*together_TF.sum(0), len(together_TF)], rtol=1e-12)
    np.testing.assert_allclose(config.global_stats[1], [*np.square(together_TF).sum(0), 0], rtol=1e-12)
    found = ArkReader(tmp_path / "out" / "feats.scp")
    normal_TF = (together_TF - together_TF.mean(0)) / together_TF.std(0)
    np.testing.assert_allclose(np.concatenate([found[name] for name in plain]), normal_TF, atol=1e-4)
    # whoever extracts with that file uses them, and does not compute its own
    some = data.subset(["u05", "u06"])
    again = extracted(some, config)
    np.testing.assert_array_equal(again["u05"], found["u05"])
    assert not np.allclose(extracted(some, GLOBAL)["u05"], found["u05"], atol=0.1)


@pytest.mark.parametrize(("name", "left"), [("unit_stats", 1), ("unit_features", 0)])
def test_global_statistics_are_gone_on_with(
    data: DataDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, left: int
) -> None:
    extract(data, tmp_path / "whole", GLOBAL, 1)
    stats = Stopper(monkeypatch, "unit_stats")
    interrupted(data, tmp_path / "out", GLOBAL, stats if name == "unit_stats" else Stopper(monkeypatch, name))
    stats.stop(-1)
    report = extract(data, tmp_path / "out", GLOBAL, 1)
    assert stats.calls == left
    assert list(report.skipped) == ["u02"]
    for file in ("feats.ark", "features.yaml"):
        assert (tmp_path / "out" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()
    assert names(tmp_path / "out") == ["feats.ark", "feats.scp", "features.yaml", "skipped.txt"]


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_process_that_was_killed(
    data: DataDir, tmp_path: Path, started: Callable[..., subprocess.Popen[str]], number: signal.Signals
) -> None:
    """The 21st utterance waits, until the process is killed; each says that it was read."""
    directory = data.path
    lines = [f"echo {name} >> {directory}/read; cat {directory}/{name}.wav |" for name in UTTERANCES]
    lines[20] = f"touch {directory}/waits; until [ -e {directory}/go ]; do sleep 0.02; done; " + lines[20]
    (directory / "wav.scp").write_text("".join(f"{n} {line}\n" for n, line in zip(UTTERANCES, lines, strict=True)))
    command = ("extract", directory, tmp_path / "out", "--features", "fbank40_d2_utt", "--jobs", "1")
    process, journal = started(*command), tmp_path / "out" / ".feats.ark.journal"
    until = time.monotonic() + 60
    # a shell that is only being started can outlive the signal: nobody knows it yet
    while not (directory / "waits").exists() and time.monotonic() < until:
        time.sleep(0.02)
    assert journal.read_bytes().count(b"\n") == 2
    os.killpg(process.pid, number)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == (-number if number == signal.SIGKILL else 130), stderr
    assert "Traceback" not in stderr
    (directory / "go").touch()
    (directory / "read").unlink()
    process = started(*command)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 0, stderr
    assert "15 of 40 utterances are kept" in stderr
    assert "39 utterances" in stdout and "1 utterance skipped" in stdout
    # the first is looked at for the sample rate
    assert (directory / "read").read_text().split() == ["u00", *UTTERANCES[16:]]
    assert (tmp_path / "out" / "skipped.txt").read_text().startswith("u02 u02: shorter than one frame")
    config = parse(FeatureConfig, read_yaml(tmp_path / "out" / "features.yaml"), tmp_path)
    extract(read_datadir(directory), tmp_path / "whole", config.model_copy(update={"global_stats": None}), 1)
    assert (tmp_path / "out" / "feats.ark").read_bytes() == (tmp_path / "whole" / "feats.ark").read_bytes()
