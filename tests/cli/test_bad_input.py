"""Users' mistakes on the command line: one message that names the file or utterance, exit status 1, no traceback."""

import resource
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import soundfile

Run = Callable[..., subprocess.CompletedProcess[str]]
RATE_HZ = 16000


def refused(process: subprocess.CompletedProcess[str], *culprits: str | Path) -> str:
    """Check that the program ended with a message that names all culprits; return the message."""
    assert process.returncode == 1, process.stdout + process.stderr
    assert "Traceback" not in process.stderr
    message = process.stderr[process.stderr.index("error: ") :]
    for subject in culprits:
        assert str(subject) in message
    return message


@pytest.fixture
def data(experiment: Path, tmp_path: Path) -> Path:
    """A copy of the test set, to be damaged: 22 utterances, so one bad utterance is less than 5 %."""
    shutil.copytree(experiment / "data" / "test", tmp_path / "test")
    return tmp_path / "test"


def first(data: Path) -> Path:
    return min((data / "wav").glob("*.wav"))


def test_empty_data_directory(experiment: Path, tmp_path: Path, speech3: Run) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    for verb in (
        ["extract", empty, tmp_path / "out", "--features", "fbank40"],
        ["decode", experiment / "mono", empty, tmp_path / "out"],
    ):
        refused(speech3(*verb), empty)
    (empty / "wav.scp").touch()
    (empty / "utt2spk").touch()
    refused(speech3("decode", experiment / "mono", empty, tmp_path / "out"), empty)
    assert not (tmp_path / "out" / "hyp.txt").exists()


def test_wav_scp_that_points_nowhere(experiment: Path, data: Path, tmp_path: Path, speech3: Run) -> None:
    shutil.move(data / "wav", data / "waves")
    refused(speech3("decode", experiment / "mono", data, tmp_path / "out"), data, "s40-000.wav")
    process = speech3("validate", data, "--all")
    assert process.returncode == 1
    assert (count := process.stdout.count("no such file")) >= 22
    process = speech3("validate", data)
    assert process.returncode == 1
    assert process.stdout.count("no such file") == 20
    assert f"... and {count - 20} more faults; --all prints all {count}\n" in process.stdout


def _no_bytes(path: Path) -> None:
    path.write_bytes(b"")


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-4000])


def _eight_channels(path: Path) -> None:
    wave_N = soundfile.read(path)[0]
    soundfile.write(path, np.tile(wave_N[:, None], (1, 8)), RATE_HZ)


def _gone(path: Path) -> None:
    path.unlink()


def _too_short(path: Path) -> None:
    soundfile.write(path, np.zeros(100), RATE_HZ)


@pytest.mark.parametrize("spoil", [_no_bytes, _cut, _eight_channels, _gone, _too_short])
def test_one_bad_recording_is_skipped_and_listed(
    experiment: Path, data: Path, tmp_path: Path, speech3: Run, spoil: Callable[[Path], None]
) -> None:
    subject = first(data)
    spoil(subject)
    process = speech3("decode", experiment / "mono", data, tmp_path / "out")
    assert process.returncode == 0, process.stderr
    assert f"not decoded: {subject.stem}: " in process.stderr
    assert "Traceback" not in process.stderr
    assert "21 utterances" in process.stdout
    assert len((tmp_path / "out" / "hyp.txt").read_text().splitlines()) == 21


@pytest.mark.parametrize("spoil", [_no_bytes, _cut, _too_short])
def test_a_bad_file_to_transcribe(experiment: Path, data: Path, speech3: Run, spoil: Callable[[Path], None]) -> None:
    subject = first(data)
    spoil(subject)
    refused(speech3("transcribe", experiment / "dnn", subject), subject)


def test_many_bad_recordings_stop_it(experiment: Path, data: Path, tmp_path: Path, speech3: Run) -> None:
    for path in sorted((data / "wav").glob("*.wav"))[:3]:
        _cut(path)
    refused(speech3("decode", experiment / "mono", data, tmp_path / "out"), data, "3 of 22", "s40-000", "speech3 fix")


def test_digital_silence(experiment: Path, data: Path, tmp_path: Path, speech3: Run) -> None:
    soundfile.write(first(data), np.zeros(RATE_HZ), RATE_HZ)
    for model in ("mono", "dnn"):
        process = speech3("transcribe", experiment / model, first(data))
        assert "Traceback" not in process.stderr
        if process.returncode:
            refused(process, first(data).name)
    process = speech3("align", experiment / "mono", data, tmp_path / "out")
    assert process.returncode == 0, process.stderr
    assert "Traceback" not in process.stderr and "nan" not in (tmp_path / "out" / "phones.ctm").read_text()


@pytest.mark.parametrize(
    ("text", "reason"),
    [("ONE " * 300, "too few for its phones"), ("ONE ELEVEN", "not in the lexicon: ELEVEN"), ("", "no transcript")],
)
def test_a_bad_transcript_is_listed(
    experiment: Path, data: Path, tmp_path: Path, speech3: Run, text: str, reason: str
) -> None:
    lines = (data / "text").read_text().splitlines()
    (data / "text").write_text("\n".join([f"s40-000 {text}".rstrip(), *lines[1:]]) + "\n")
    process = speech3("align", experiment / "mono", data, tmp_path / "out")
    if process.returncode:  # an empty transcript may be reported as a fault of the directory
        refused(process, "s40-000")
    else:
        assert "not aligned: s40-000: " in process.stderr and reason in process.stderr
        assert "s40-000" in (tmp_path / "out" / "bad.txt").read_text()
    assert "Traceback" not in process.stderr


@pytest.mark.parametrize(("word", "cause"), [("ПЯТЬ", "Cyrillic letters, the lexicon in Latin"), ("five", "case")])
def test_transcripts_in_another_script_or_case(
    experiment: Path, data: Path, tmp_path: Path, speech3: Run, word: str, cause: str
) -> None:
    text = [f"{line.split()[0]} {word}" for line in (data / "text").read_text().splitlines()]
    (data / "text").write_text("\n".join(text) + "\n")
    refused(speech3("align", experiment / "mono", data, tmp_path / "out"), cause, word, "utterance s40-000")
    assert not (tmp_path / "out").exists()


def test_one_bad_recording_is_not_aligned(experiment: Path, data: Path, tmp_path: Path, speech3: Run) -> None:
    _cut(first(data))
    process = speech3("align", experiment / "mono", data, tmp_path / "out")
    assert process.returncode == 0, process.stderr
    assert len({line.split()[0] for line in (tmp_path / "out" / "words.ctm").read_text().splitlines()}) == 21


def test_words_without_a_pronunciation_stop_training(mine: Path, speech3: Run, tiny: Sequence[str]) -> None:
    text = mine / "data" / "train" / "text"
    text.write_text(text.read_text().replace("SEVEN", "SEVENTY"))
    options = ("recipe", "digits", "--out", mine, *tiny)
    refused(speech3(*options, "--from", "hmm", "--to", "hmm"), mine / "data" / "train", "SEVENTY", "lexicon")
    assert (mine / "features" / "mfcc13_d2_utt" / "train" / "feats.scp").exists()


@pytest.mark.parametrize("other", ["mono", "dnn", "cut"])
def test_checkpoint_of_another_model(experiment: Path, tmp_path: Path, speech3: Run, other: str) -> None:
    model = tmp_path / "model"
    shutil.copytree(experiment / "tri", model)
    weights = (experiment / other.replace("cut", "tri") / "model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes(weights[: 1000 if other == "cut" else None])
    refused(speech3("transcribe", model, first(experiment / "data" / "test")), "model")


@pytest.mark.parametrize(
    ("arguments", "culprits"),
    [
        (["dgits"], ["dgits", "digits, fsdd"]),
        (["digits", "model.wdth=3"], ["model.wdth", "width"]),
        (["digits", "model.width=["], ["model.width=["]),
        (["digits", "model.width"], ["model.width", "key=value"]),
        (["digits", "corpus_options.train=many", "--to", "data"], ["corpus_options.train", "many"]),
        (["digits", "corpus_options.sped=2", "--to", "data"], ["sped", "train, dev, test"]),
        (["digits", "corpus_options.train=0", "--to", "data"], ["train", "at least one"]),
        (["digits", "--source", "."], ["digits", "--source"]),
        (["digits", "--out", "file"], ["file", "choose another"]),
        (["fsdd"], ["fsdd", "--source DIR"]),
        (["fsdd", "--source", "nowhere"], ["nowhere", "no such file or directory"]),
        (["fsdd", "--source", "file"], ["file", "not the Free Spoken Digit Dataset"]),
        (["digits", "lm.order=null", "lm.arpa=no.arpa"], ["no.arpa", "no such file"]),
    ],
)
def test_recipes_that_cannot_run(tmp_path: Path, speech3: Run, arguments: list[str], culprits: list[str]) -> None:
    (tmp_path / "file").touch()
    refused(speech3("recipe", *arguments, cwd=tmp_path), *culprits)


def test_usage_is_not_an_input(speech3: Run) -> None:
    assert speech3("recipe", "digits", "--nope").returncode == 2
    assert speech3("transscribe").returncode == 2
    assert speech3("recipe", "--help").returncode == 0


def _small_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))


def test_a_file_larger_than_may_be_written(
    mine: Path, speech3: Run, started: Callable[..., subprocess.Popen[str]], tiny: Sequence[str]
) -> None:
    """The limit acts like a full disk or quota: a write fails in the middle of the file."""
    options = ("recipe", "digits", "--out", mine, *tiny)
    limited = started(*options, "--from", "features", "--to", "features", preexec_fn=_small_files)
    stdout, stderr = limited.communicate(timeout=300)
    process = subprocess.CompletedProcess(options, limited.returncode, stdout, stderr)
    refused(process, mine / "features" / "mfcc13_d2_utt" / "train" / "feats.ark", "no space left")
    assert (mine / "data" / "train" / "wav.scp").exists()
    process = speech3(*options, "--to", "features")
    assert process.returncode == 0, process.stderr


def test_full_disk(experiment: Path, tmp_path: Path, speech3: Run) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("only root may mount a small disk")
    try:
        data = experiment / "data" / "test"
        refused(speech3("extract", data, disk / "feats", "--features", "fbank40"), disk / "feats", "no space left")
        refused(speech3("decode", experiment / "mono", data, disk / "out"), disk / "out", "no space left")
        assert [path for path in disk.rglob("*") if path.is_file()] == []
    finally:
        subprocess.run(["umount", disk], check=True)
