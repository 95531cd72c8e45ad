"""`speech3 align` as a user runs it: confidences, lists, long recordings."""

import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import soundfile

from speech3.data import audio
from speech3.data.datadir import DataDir, read_datadir
from speech3.hmm.alignment.times import read_ctm

Run = Callable[..., subprocess.CompletedProcess[str]]
RATE_HZ = 16000


def lines(path: Path) -> list[list[str]]:
    return [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]


def directory(path: Path, waves: dict[str, np.ndarray], texts: dict[str, str]) -> Path:
    path.mkdir()
    for name, wave in waves.items():
        soundfile.write(path / f"{name}.wav", wave, RATE_HZ)
    (path / "wav.scp").write_text("".join(f"{name} {name}.wav\n" for name in waves))
    (path / "text").write_text("".join(f"{name} {text}\n" for name, text in texts.items()), encoding="utf-8")
    (path / "utt2spk").write_text("".join(f"{name} {name}\n" for name in waves))
    return path


@pytest.fixture(scope="module")
def test_set(experiment: Path) -> DataDir:
    return read_datadir(experiment / "data" / "test")


@pytest.fixture(scope="module")
def waves(test_set: DataDir) -> dict[str, np.ndarray]:
    return {name: audio.load(test_set, name)[0] for name in test_set.utterances}


def test_confidences_and_lists(
    experiment: Path, test_set: DataDir, waves: dict[str, np.ndarray], tmp_path: Path, speech3: Run
) -> None:
    texts = {name: utterance.text or "" for name, utterance in test_set.utterances.items()}
    wrong = max(texts, key=lambda name: len(texts[name].split()))
    texts[wrong] = " ".join("ONE" if word == "SEVEN" else "SEVEN" for word in texts[wrong].split())
    data = directory(tmp_path / "data", waves, texts)
    process = speech3("align", experiment / "tri", data, tmp_path / "out")
    assert process.returncode == 0, process.stderr
    words = read_ctm(tmp_path / "out" / "words.ctm")
    assert all(0 <= s.confidence <= 1 for track in words.values() for s in track if s.confidence is not None)
    assert all(s.confidence is not None for track in words.values() for s in track)
    sure = {row[0]: float(row[1]) for row in lines(tmp_path / "out" / "confidence.txt")}
    assert sure.keys() == words.keys()
    listed = lines(tmp_path / "out" / "suspicious.txt")
    assert wrong in [row[0] for row in listed[:2]]
    assert any("*" in row[3] for row in listed)
    assert [float(row[1]) for row in listed] == sorted(float(row[1]) for row in listed)
    assert not (tmp_path / "out" / "split").exists() and lines(tmp_path / "out" / "oov.txt") == []


def test_unknown_words_are_listed_and_a_lexicon_helps(
    experiment: Path, test_set: DataDir, waves: dict[str, np.ndarray], tmp_path: Path, speech3: Run
) -> None:
    texts = {name: utterance.text or "" for name, utterance in test_set.utterances.items()}
    victim = next(name for name, text in texts.items() if "NINE" in text.split())
    texts[victim] = texts[victim].replace("NINE", "NEUN")
    data = directory(tmp_path / "data", waves, texts)
    process = speech3("align", experiment / "tri", data, tmp_path / "out")
    assert process.returncode == 0, process.stderr
    count = texts[victim].split().count("NEUN")
    assert lines(tmp_path / "out" / "oov.txt") == [["NEUN", str(count), victim]]
    assert victim in (tmp_path / "out" / "bad.txt").read_text() and "oov.txt; add pronunciations" in process.stdout
    phones = next(
        line.split()[1:]
        for line in (experiment / "data" / "lexicon.txt").read_text().splitlines()
        if line.startswith("NINE ")
    )
    (tmp_path / "more.txt").write_text(f"NEUN {' '.join(phones)}\n")
    process = speech3("align", experiment / "tri", data, tmp_path / "out", "--lexicon", tmp_path / "more.txt")
    assert process.returncode == 0, process.stderr
    assert lines(tmp_path / "out" / "oov.txt") == []
    assert "NEUN" in [s.label for s in read_ctm(tmp_path / "out" / "words.ctm")[victim]]


@pytest.mark.slow
def test_a_long_recording_is_cut(
    experiment: Path, test_set: DataDir, waves: dict[str, np.ndarray], tmp_path: Path, speech3: Run
) -> None:
    names = list(test_set.utterances)
    parts: list[np.ndarray] = []
    begins: list[tuple[float, str]] = []
    text: list[str] = []
    for name in names * 4:
        begins.append((sum(map(len, parts)) / RATE_HZ, name))
        parts.append(waves[name])
        text.append(test_set.utterances[name].text or "")
    duration_s = sum(map(len, parts)) / RATE_HZ
    assert duration_s > 100
    whole = np.concatenate(parts)
    single = directory(tmp_path / "single", waves, {name: test_set.utterances[name].text or "" for name in names})
    long = directory(tmp_path / "long", {"talk": whole}, {"talk": " ".join(text)})
    for data in (single, long):
        process = speech3("align", experiment / "tri", data, tmp_path / f"{data.name}-out")
        assert process.returncode == 0, process.stderr
    found = read_ctm(tmp_path / "long-out" / "words.ctm")["talk"]
    alone = read_ctm(tmp_path / "single-out" / "words.ctm")
    expected = [(begin_s + s.start_s, s.label) for begin_s, name in begins for s in alone[name]]
    near = sum(any(s.label == label and abs(s.start_s - start_s) < 0.1 for s in found) for start_s, label in expected)
    assert near > 0.75 * len(expected)  # the model was trained on 66 utterances of other voices
    assert all(a.end_s <= b.start_s + 0.002 for a, b in pairwise(found))
    split = read_datadir(tmp_path / "long-out" / "split")
    assert all(0 < (u.end_s or 0) - u.start_s <= 30 and u.speaker == "talk" for u in split.utterances.values())
    assert sum(len((u.text or "").split()) for u in split.utterances.values()) > 0.3 * len(" ".join(text).split())
    grid = (tmp_path / "long-out" / "textgrid" / "talk.TextGrid").read_text()
    assert f"xmax = {duration_s:.4f}" in grid
    assert "talk: " in process.stderr and "words found" in process.stderr


@pytest.mark.parametrize(("text", "message"), [("ONE TWO", "2 words for"), ("ONE " * 3000, "too fast for speech")])
def test_a_transcript_of_something_else(
    experiment: Path, waves: dict[str, np.ndarray], tmp_path: Path, speech3: Run, text: str, message: str
) -> None:
    wave = np.concatenate([*waves.values()] * 4)
    data = directory(tmp_path / "data", {"talk": wave}, {"talk": text})
    process = speech3("align", experiment / "tri", data, tmp_path / "out")
    assert process.returncode == 1 and "Traceback" not in process.stderr
    error = process.stderr[process.stderr.index("error: ") :]
    assert "talk" in error and message in error
    assert not (tmp_path / "out" / "words.ctm").exists()
