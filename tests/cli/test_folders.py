"""Verbs of data directories on a folder of recordings with transcripts beside them."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile

from speech3.corpora import read_speech
from speech3.data import write_datadir
from speech3.errors import DataError, OccupiedError, SettingError
from speech3.hmm.alignment.times import Segment, write_textgrid
from speech3.recipe.experiment import open_experiment
from speech3.runtime import write_json

Run = Callable[..., subprocess.CompletedProcess[str]]
TEXTS = {"ann_1": "Good morning!", "ann_2": "Yes, yes.", "bo_1": "No."}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "calls"
    folder.mkdir()
    for number, name in enumerate((*TEXTS, "bo_2")):
        wave = np.random.default_rng(number).normal(0, 0.1, 8000)
        soundfile.write(folder / f"{name}.wav", wave, 8000)
        if name in TEXTS:
            (folder / f"{name}.txt").write_text(TEXTS[name])
    return folder


def test_recordings_without_transcripts_are_only_decoded(folder: Path) -> None:
    data, faults = read_speech(folder)
    assert {key: u.text for key, u in data.utterances.items()} == {
        "ann_1": "good morning",
        "ann_2": "yes yes",
        "bo_1": "no",
    }
    assert [fault.kind for fault in faults] == ["no transcript"]
    every, _ = read_speech(folder, transcribed=False)
    assert set(every.utterances) == {*TEXTS, "bo_2"} and every.utterances["bo_2"].text is None
    assert not read_speech(folder, transcribed=False)[1]
    for name in TEXTS:
        (folder / f"{name}.txt").unlink()
    assert set(read_speech(folder, transcribed=False)[0].utterances) == {*TEXTS, "bo_2"}


def test_two_recordings_of_one_name_are_named(folder: Path) -> None:
    for name in ("bo 1.wav", "ann_1.flac"):
        soundfile.write(folder / name, np.zeros(800), 8000)
    for name in ("bo_2.flac", "ann/1.wav"):
        (folder / name).parent.mkdir(exist_ok=True)
        soundfile.write(folder / name, np.zeros(800), 8000)
    data, faults = read_speech(folder, transcribed=False)
    assert list(data.utterances) == sorted({*TEXTS, "bo_2"})
    assert {Path(place).suffix for place in data.recordings.values()} == {".wav", ".flac"}
    assert {fault.kind for fault in faults} == {"second recording"}
    assert len(faults) == 4


def test_transcripts_that_cannot_be_used_do_not_matter_for_decoding(folder: Path) -> None:
    for name in TEXTS:
        (folder / f"{name}.txt").write_text("[0:01] good morning")
    assert set(read_speech(folder, transcribed=False)[0].utterances) == {*TEXTS, "bo_2"}


def test_validate_stats_and_score(folder: Path, tmp_path: Path, speech3: Run) -> None:
    process = speech3("validate", folder)
    assert process.returncode == 1 and "bo_2.wav: has no transcript" in process.stdout
    assert "fine" not in process.stdout and "1 fault (1 no transcript)" in process.stdout
    (folder / "bo_2.wav").unlink()
    process = speech3("validate", folder)
    assert process.returncode == 0 and f"{folder}: fine: 3 utterances, 2 speakers" in process.stdout, process.stdout
    process = speech3("stats", folder)
    assert process.returncode == 0 and "5" in process.stdout
    (tmp_path / "hyp.txt").write_text("ann_1 good morning\nann_2 yes\nbo_1 no\n")
    process = speech3("score", folder, tmp_path / "hyp.txt", "--json")
    assert process.returncode == 0 and '"deletions": 1' in process.stdout and '"words": 5' in process.stdout
    # What a model writes is compared with plain words as plain words, and a lexicon's words are in its own spelling.
    (tmp_path / "hyp.txt").write_text("".join(f"{name} {text.upper()}\n" for name, text in TEXTS.items()))
    process = speech3("score", folder, tmp_path / "hyp.txt")
    assert "WER 0.00" in process.stdout and "normalised  plain words" in process.stdout, process.stdout
    assert f"speakers    of the tiers, subfolders or names of recordings in {folder}" in process.stdout
    (tmp_path / "lexicon.txt").write_text("GOOD g\nMORNING m\nYES y\n")
    missing = json.loads(speech3("stats", folder, "--lexicon", tmp_path / "lexicon.txt", "--json").stdout)
    assert missing["out_of_vocabulary"]["counts"] == {"no": 1}, missing
    write_datadir(read_speech(folder)[0], tmp_path / "data")
    process = speech3("stats", tmp_path / "data", "--lexicon", tmp_path / "lexicon.txt")
    assert "the lexicon has 3 of these 4 in another letter case" in process.stdout, process.stdout


def test_the_tier_can_be_named(folder: Path, tmp_path: Path, speech3: Run) -> None:
    for name in TEXTS:
        (folder / f"{name}.txt").unlink()
    tiers = {"tx": [Segment(0, 1, "no")], "gloss": [Segment(0, 1, "not any")]}
    write_textgrid(folder / "bo_1.TextGrid", tiers, 1.0)
    with pytest.raises(DataError, match="--tier"):
        read_speech(folder)
    assert json.loads(speech3("stats", folder, "--tier", "gloss", "--json").stdout)["words"]["running"] == 2
    write_datadir(read_speech(folder, "tx")[0], tmp_path / "data")
    with pytest.raises(SettingError, match="no tiers"):
        read_speech(tmp_path / "data", "tx")


def test_faults_of_a_folder_have_the_remedies_of_folders(folder: Path, tmp_path: Path, speech3: Run) -> None:
    soundfile.write(folder / "ann_1.wav", np.random.default_rng(1).normal(0, 0.1, (8000, 2)), 16000)
    (folder / "bo_2.txt").write_text("no no")
    process = speech3("validate", folder)
    first, second, summary = process.stdout.splitlines()
    for line in (first, second):
        assert "ann_1.wav" in line and "sample_rate=" in line and "feature config" not in line
    assert "2 faults" in summary and process.returncode == 1
    assert "sample_rate=" in speech3("stats", folder).stderr
    for args in (["fix", folder, "out"], ["subset", folder, "out", "--first", 1], ["split", folder, "out"]):
        process = speech3(*(tmp_path / "out" if each == "out" else each for each in args))
        told = " ".join(process.stderr.split())
        assert process.returncode == 1 and f"--source {folder} --to data lexicon=graphemes" in told
        assert f"exp/{folder.name}/data/train" in told
    told = " ".join(speech3("align", "model", folder, tmp_path / "out").stderr.split())
    assert f"`speech3 align {folder} {tmp_path / 'out'} --model model`" in told


def test_another_corpus_needs_another_directory(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    experiment = open_experiment("any", None, folder, ["lang=en-us"], "")
    assert experiment.out == tmp_path / "exp" / "calls"
    record = {"fingerprint": "f", "used": {}, "settings": {}, "inputs": {str(folder): "mark"}}
    write_json(experiment.out / ".done" / "data.corpus.json", record)
    assert open_experiment("any", None, folder, ["lang=en-us"], "").out == experiment.out
    other = tmp_path / "other" / "calls"
    other.mkdir(parents=True)
    with pytest.raises(OccupiedError, match=str(folder)):
        open_experiment("any", None, other, ["lang=en-us"], "")
    assert open_experiment("any", experiment.out, other, ["lang=en-us"], "").out == experiment.out
