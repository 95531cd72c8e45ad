"""`speech3 align SOURCE OUT` and `speech3.Aligner`, on words of whistled letters whose boundaries are known.

Letter a is a tone of 500 Hz, b of 1,500 Hz, c of 2,800 Hz; words are spelled, so their phones are their letters.
"""

import csv
import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
import soundfile

import speech3 as package
from speech3.corpora.tiers import read_elan, read_textgrid
from speech3.data import case_folded
from speech3.errors import SettingError, Speech3Error
from speech3.hmm.alignment.times import Segment, read_ctm, write_textgrid
from speech3.language import espeak
from speech3.recipe.aligner import TextRules, as_written

Run = Callable[..., subprocess.CompletedProcess[str]]
RATE_HZ = 8000
TONES_HZ = {"a": 500, "b": 1500, "c": 2800}
WORDS = ("ab", "ba", "cab", "bac", "abc", "ca")
PAUSE_S = 0.25


def whistled(words: list[str], seed: int) -> tuple[np.ndarray, list[Segment], list[Segment]]:
    """A recording with pauses between its words, and the times of its words and letters."""
    generator = np.random.default_rng(seed)
    parts, letters, said, now_s = [np.zeros(round(PAUSE_S * RATE_HZ))], list[Segment](), list[Segment](), PAUSE_S
    for word in words:
        begin_s = now_s
        for letter in word:
            samples = round(generator.uniform(0.1, 0.25) * RATE_HZ)
            time_s = np.arange(samples) / RATE_HZ
            parts.append(0.3 * np.sin(2 * np.pi * TONES_HZ[letter] * time_s))
            letters.append(Segment(now_s, now_s + samples / RATE_HZ, letter))
            now_s += samples / RATE_HZ
        said.append(Segment(begin_s, now_s, word))
        parts.append(np.zeros(round(PAUSE_S * RATE_HZ)))
        now_s += PAUSE_S
    wave = np.concatenate(parts)
    return wave + generator.normal(0, 0.003, len(wave)), said, letters


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[Segment]]]:
    """A folder of two speakers' recordings, some of them bad, and the times of the letters of the good ones."""
    folder, truth = tmp_path_factory.mktemp("recordings"), {}
    generator = np.random.default_rng(0)
    for number in range(24):
        words = [WORDS[i] for i in generator.integers(0, len(WORDS), 4)]
        wave, _, letters = whistled(words, number)
        place = folder / ("anna" if number % 2 else "ben") / f"r{number:02d}"
        place.parent.mkdir(exist_ok=True)
        soundfile.write(place.with_suffix(".wav"), wave, RATE_HZ)
        spelled = " ".join(word.capitalize() for word in words) + "."
        if number == 1:
            place.with_suffix(".lab").write_bytes(spelled.encode("utf-16"))
        else:
            place.with_suffix(".lab" if number % 4 else ".txt").write_text(spelled)
        truth[f"{place.parent.name}/{place.name}"] = letters
    ben = folder / "ben"
    soundfile.write(ben / "silent.wav", np.zeros(RATE_HZ), RATE_HZ)
    (ben / "silent.txt").write_text("ab ba")
    soundfile.write(ben / "short.wav", whistled(["a"], 90)[0][: RATE_HZ // 5], RATE_HZ)
    (ben / "short.txt").write_text("abc cab bac abc cab bac")
    soundfile.write(ben / "latin.wav", whistled(["ab"], 91)[0], RATE_HZ)
    (ben / "latin.lab").write_bytes("été".encode("latin-1"))
    soundfile.write(ben / "htk.wav", whistled(["ab"], 93)[0], RATE_HZ)
    (ben / "htk.lab").write_text("0 1000000 a\n1000000 2000000 b\n")
    return folder, truth


@pytest.fixture(scope="module")
def aligned(
    corpus: tuple[Path, dict[str, list[Segment]]], tmp_path_factory: pytest.TempPathFactory, speech3: Run
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    out = tmp_path_factory.mktemp("results") / "aligned"
    process = speech3(
        "align", corpus[0], out, "--graphemes", "--format", "textgrid,elan,audacity,ctm,json,csv", "--jobs", 1
    )
    assert process.returncode == 0, process.stderr
    return out, process


def boundaries(letters: list[Segment]) -> np.ndarray:
    return np.array([s.start_s for s in letters] + [s.end_s for s in letters])


def test_the_boundaries_are_where_they_were_made(
    corpus: tuple[Path, dict[str, list[Segment]]], aligned: tuple[Path, subprocess.CompletedProcess[str]]
) -> None:
    errors = []
    for place, letters in corpus[1].items():
        tiers = {tier.name: tier.annotations for tier in read_textgrid(aligned[0] / f"{place}.TextGrid")}
        assert list(tiers) == ["words", "phones"]
        found = [Segment(a.start_s, a.end_s, a.text) for a in tiers["phones"] if a.text]
        assert [s.label for s in found] == [s.label for s in letters]
        errors.append(np.abs(boundaries(found) - boundaries(letters)))
        assert tiers["phones"][-1].end_s == pytest.approx(soundfile.info(corpus[0] / f"{place}.wav").duration, abs=1e-4)
    assert np.mean(np.concatenate(errors)) < 0.01


def test_every_recording_has_a_result_and_the_last_lines_count(
    corpus: tuple[Path, dict[str, list[Segment]]], aligned: tuple[Path, subprocess.CompletedProcess[str]]
) -> None:
    out, process = aligned
    assert "24 of 26 utterances of 26 recordings aligned" in process.stdout
    assert "2 not aligned" in process.stdout and "files and annotations left out: 2; " in process.stdout
    for name in ("silent", "short", "latin", "htk"):
        tiers = read_textgrid(out / "ben" / f"{name}.TextGrid")
        assert [tier.name for tier in tiers] == ["words", "phones"]
        assert all(not a.text for tier in tiers for a in tier.annotations)
    left_out = (out / "left_out.txt").read_text(encoding="utf-8")
    assert "latin.lab" in left_out and "not UTF-8" in left_out and "htk.lab: has times" in left_out
    rows = {row["utterance"]: row for row in csv.DictReader((out / "report.csv").open(encoding="utf-8"))}
    assert len(rows) == 26 and rows["ben_silent"]["status"] == rows["ben_short"]["status"] == "not aligned"
    assert "digital silence" in rows["ben_silent"]["reason"] and "too few" in rows["ben_short"]["reason"]


def test_all_formats_hold_the_same_times(aligned: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    out = aligned[0]
    about = json.loads((out / "anna" / "r01.json").read_text(encoding="utf-8"))["utterances"][0]
    rows = list(csv.DictReader((out / "anna" / "r01.csv").open(encoding="utf-8")))
    words = read_ctm(out / "words.ctm")["anna_r01"]
    assert (
        [w["word"] for w in about["words"]]
        == [w.label for w in words]
        == [row["Label"] for row in rows if row["Type"] == "words"]
    )
    assert [w["start"] for w in about["words"]] == pytest.approx([w.start_s for w in words], abs=6e-4)
    assert all(0 <= w["confidence"] <= 1 for w in about["words"])
    elan = {tier.name: tier.annotations for tier in read_elan(out / "anna" / "r01.eaf")}
    assert [a.text for a in elan["words"]] == [w.label for w in words]
    assert [a.end_s for a in elan["words"]] == pytest.approx([w.end_s for w in words], abs=1.1e-3)
    root = ElementTree.parse(out / "anna" / "r01.eaf").getroot()
    slots = {slot.attrib["TIME_SLOT_ID"] for slot in root.iter("TIME_SLOT")}
    uses = [a.attrib[f"TIME_SLOT_REF{n}"] for a in root.iter("ALIGNABLE_ANNOTATION") for n in (1, 2)]
    assert sorted(uses) == sorted(slots)  # each slot is used once
    media = next(root.iter("MEDIA_DESCRIPTOR")).attrib["RELATIVE_MEDIA_URL"]
    assert soundfile.info(out / "anna" / media).samplerate == RATE_HZ
    labels = [line.split("\t") for line in (out / "anna" / "r01.words.txt").read_text().splitlines()]
    assert [label for _, _, label in labels] == [w.label for w in words]
    assert [float(start) for start, _, _ in labels] == pytest.approx([w.start_s for w in words], abs=6e-4)


def test_the_page_shows_what_is_to_be_checked(aligned: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    text = (aligned[0] / "index.html").read_text(encoding="utf-8")
    players = re.findall(r'<audio [^>]*src="([^"#]*)#t=', text)
    assert players and all((aligned[0] / unquote(each)).is_file() for each in players)
    assert text.index("<header>ben_short") < text.index("The least confident of the others") < text.index("<svg")


def test_run_again_only_what_changed_is_aligned(
    corpus: tuple[Path, dict[str, list[Segment]]],
    aligned: tuple[Path, subprocess.CompletedProcess[str]],
    tmp_path: Path,
    speech3: Run,
) -> None:
    folder, out = tmp_path / "recordings", tmp_path / "aligned"
    shutil.copytree(corpus[0], folder)
    model = aligned[0] / "model"

    def run(*options: object) -> str:
        process = speech3("align", folder, out, "--jobs", 1, *options)
        assert process.returncode == 0, process.stderr
        return process.stderr

    def grid(name: str) -> list[tuple[float, float, str]]:
        return [(a.start_s, a.end_s, a.text) for a in read_textgrid(out / f"{name}.TextGrid")[1].annotations]

    assert "since the last run" not in run("--model", model)
    first = {name: grid(name) for name in corpus[1]}
    assert "0 of 26 utterances are new or changed" in run("--model", model)
    (folder / "anna" / "r03.lab").write_text("ab ba cab bac")  # in the place of another transcript
    assert "1 of 26 utterances are new or changed" in run("--model", model)
    again = {name: grid(name) for name in corpus[1]}
    assert [name for name in again if again[name] != first[name]] == ["anna/r03"]
    # The same words, aligned alone: the features are normalised with all of the speaker's, as before.
    shutil.copyfile(corpus[0] / "anna" / "r03.lab", folder / "anna" / "r03.lab")
    assert "1 of 26" in run("--model", model)
    assert grid("anna/r03") == first["anna/r03"]


def test_the_model_reads_text_as_people_write_it(
    aligned: tuple[Path, subprocess.CompletedProcess[str]],
    tmp_path: Path,
    speech3: Run,
    capsys: pytest.CaptureFixture[str],
) -> None:
    wave, said, _ = whistled(["ab", "cab", "acb"], 77)
    soundfile.write(tmp_path / "one.wav", wave, RATE_HZ)
    model = aligned[0] / "model"
    process = speech3(
        "align", tmp_path / "one.wav", tmp_path / "out", "--model", model, "--text", "Ab, CAB acb!", "--jobs", 1
    )
    assert process.returncode == 0, process.stderr
    assert "1 of 1 new words pronounced" in process.stderr  # acb is in no transcript
    found = [a for a in read_textgrid(tmp_path / "out" / "one.TextGrid")[0].annotations if a.text]
    assert [a.text for a in found] == ["Ab", "CAB", "acb"]  # as written by the user
    again = speech3("align", tmp_path / "one.wav", tmp_path / "out", "--model", model, "--text", "AB cab acb")
    assert again.returncode == 0 and "AB" in (tmp_path / "out" / "one.TextGrid").read_text()
    result = package.Aligner.load(model).align((wave * 32767).astype(np.int16), RATE_HZ, "AB cab. Acb")
    assert result.text == "AB cab Acb"
    assert [w.start_s for w in result.words] == pytest.approx([a.start_s for a in found], abs=2e-3)
    assert [w.start_s for w in result.words] == pytest.approx([s.start_s for s in said], abs=0.02)
    assert [p.phone for p in result.phones] == list("abcabacb") and result.confidence > 0.5
    with pytest.raises(Speech3Error, match="no text"):
        package.Aligner.load(model).align(wave, RATE_HZ, " ")
    with pytest.raises(Speech3Error, match="too few for its phones"):
        package.Aligner.load(model).align(wave[:800], RATE_HZ, "abc abc")
    with pytest.raises(Speech3Error, match="silence"):
        package.Aligner.load(model).align(0 * wave, RATE_HZ, "abc")
    # Markup is none of the words; wrong types, and a text of unknown words, are errors.
    marked = package.Aligner.load(model).align(wave, RATE_HZ, "<i>AB</i> cab. Acb 777")
    assert [word.text.lower() for word in marked.words] == ["ab", "cab", "acb", "777"]
    told = capsys.readouterr().err
    assert "<i>" in told and "<unk>: 777" in told
    for text, named in ((None, "text=None"), (["ab"], "text="), (b"ab", "text="), ("777 888", "777")):
        with pytest.raises(Speech3Error, match=named):
            package.Aligner.load(model).align(wave, RATE_HZ, text)
    for call in (package.Aligner.load, package.Aligner.train):
        for path in (None, 3):
            with pytest.raises(SettingError, match=f"{path}: pass a path"):
                call(path)
    with pytest.raises(SettingError, match="lexicon=a: graphemes=True"):
        package.Aligner.train(model, lexicon="a", graphemes=True)


def test_training_in_python_is_told_of_arguments(
    corpus: tuple[Path, dict[str, list[Segment]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(espeak, "voices", lambda: ())
    for keys, message in (
        ({}, r'where do pronunciations come from.*lang=CODE .*lang="en-us".*lexicon=FILE.*graphemes=True'),
        ({"lang": "xx"}, "lang=xx: espeak-ng does not know this language.*graphemes=True"),
    ):
        with pytest.raises(Speech3Error, match=message) as error:
            package.Aligner.train(corpus[0], **keys)
        assert "--" not in str(error.value)


def test_words_have_the_letter_case_of_their_transcript() -> None:
    assert as_written(["well"], "\u201eWell\u3002") == ["Well"]
    assert as_written(["AB", "CA", "B’A", "AB"], "ab Cab b'a Ab") == ["ab", "CA", "b'a", "Ab"]
    found = as_written(["well", "known", "facts", "are", "well", "understood"], "Well-Known Facts Are Well Understood")
    assert found == ["well", "known", "Facts", "Are", "Well", "Understood"]
    assert as_written(["the", "cat", "saw", "the", "dog"], "The, Cat saw THE dog") == [
        "The",
        "Cat",
        "saw",
        "THE",
        "dog",
    ]
    assert TextRules().words("AB b'a cab", {"ab", "B’A"}, case_folded({"ab", "B’A"})) == ["ab", "B’A", "cab"]


def test_tiers_name_speakers_and_stay(
    aligned: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path, speech3: Run
) -> None:
    wave, said, _ = whistled(["ab", "cab", "ba"], 78)
    (tmp_path / "in").mkdir()
    soundfile.write(tmp_path / "in" / "talk.wav", wave, RATE_HZ)
    duration_s = len(wave) / RATE_HZ

    def around(word: Segment) -> Segment:
        return Segment(word.start_s - 0.1, word.end_s + 0.1, word.label)

    tiers = {"ann - text": [around(said[0]), around(said[2])], "bo - text": [around(said[1])]}
    write_textgrid(tmp_path / "in" / "talk.TextGrid", tiers, duration_s)
    process = speech3("align", tmp_path / "in", tmp_path / "in" / "out", "--model", aligned[0] / "model", "--jobs", 1)
    assert process.returncode == 0, process.stderr
    again = speech3("align", tmp_path / "in", tmp_path / "in" / "out", "--model", aligned[0] / "model", "--jobs", 1)
    assert again.returncode == 0 and "left out" not in again.stderr  # results in the source are not read
    found = {t.name: t.annotations for t in read_textgrid(tmp_path / "in" / "out" / "talk.TextGrid")}
    assert list(found) == ["ann - words", "ann - phones", "bo - words", "bo - phones", "ann - text", "bo - text"]
    assert [a.text for a in found["ann - words"] if a.text] == ["ab", "ba"]
    (bo,) = [a for a in found["bo - words"] if a.text]
    assert (bo.start_s, bo.end_s) == pytest.approx((said[1].start_s, said[1].end_s), abs=0.03)
    for annotations in found.values():
        assert all(a.end_s == b.start_s for a, b in pairwise(annotations))


def test_mistakes_are_named_and_nothing_is_replaced(
    corpus: tuple[Path, dict[str, list[Segment]]],
    aligned: tuple[Path, subprocess.CompletedProcess[str]],
    tmp_path: Path,
    speech3: Run,
) -> None:
    folder, model = corpus[0], aligned[0] / "model"

    def refused(*arguments: object) -> str:
        process = speech3("align", *arguments)
        assert process.returncode == 1 and "Traceback" not in process.stderr
        return process.stderr.splitlines()[-1]

    assert "where do pronunciations come from" in refused(folder, tmp_path / "a")
    assert "choose another directory" in refused(folder, folder, "--graphemes")
    assert "no such recording" in refused(folder / "none", tmp_path / "a")
    assert "one recording, but" in refused(folder, tmp_path / "a", "--text", "ab")
    assert "is not a format" in refused(folder, tmp_path / "a", "--format", "praat")
    assert "--text: only for" in refused(model, folder, tmp_path / "a", "--text", "ab")
    assert "--graphemes: is for training" in refused(folder, tmp_path / "a", "--model", model, "--graphemes")
    assert "is not a recording" in refused(folder / "ben" / "r00.txt", tmp_path / "a", "--model", model)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "r00.TextGrid").write_text("mine")
    said = refused(folder / "ben" / "r00.wav", tmp_path / "own", "--model", model)
    assert "own/r00.TextGrid: exists and was not written by speech3 align" in said
    assert (tmp_path / "own" / "r00.TextGrid").read_text() == "mine"
    (tmp_path / "file").write_text("")
    assert "is a file; expected a directory" in refused(folder, tmp_path / "file", "--graphemes")


def test_results_of_others_and_corrected_ones_stay(
    corpus: tuple[Path, dict[str, list[Segment]]],
    aligned: tuple[Path, subprocess.CompletedProcess[str]],
    tmp_path: Path,
    speech3: Run,
) -> None:
    def run(folder: Path, *options: object) -> str:
        process = speech3("align", folder, tmp_path / "out", "--model", aligned[0] / "model", "--jobs", 1, *options)
        assert process.returncode == (1 if "choose another directory" in process.stderr else 0), process.stderr
        return process.stderr

    mine, other = tmp_path / "mine", tmp_path / "other"
    for folder, names in ((mine, ("r01", "r03")), (other, ("r05",))):
        folder.mkdir()
        for name in names:
            shutil.copy(corpus[0] / "anna" / f"{name}.wav", folder)
            shutil.copy((corpus[0] / "anna" / name).with_suffix(".lab"), folder)
    run(mine, "--format", "textgrid,json")
    first = tmp_path / "out" / "r01.TextGrid"
    first.write_text(corrected := first.read_text().replace("words", "Words"))
    # Another folder: nothing of the first is lost, and its files are not replaced.
    assert "results of" in run(other) and str(mine) in run(other)
    assert {path.name for path in (tmp_path / "out").glob("r*.TextGrid")} == {f"r0{n}.TextGrid" for n in (1, 3, 5)}
    shutil.copy(mine / "r03.wav", other)
    shutil.copy(mine / "r03.lab", other)
    assert f"r03.TextGrid: is the result of {mine}" in run(other)
    # The first folder again, which has lost a recording: what was corrected stays, the rest is made again.
    (mine / "r03.wav").unlink()
    assert "changed them: r01.TextGrid;" in run(mine)
    assert first.read_text() == corrected
    assert sorted(path.name for path in (tmp_path / "out").glob("r0*")) == ["r01.TextGrid", "r05.TextGrid"]
    assert "changed them: r01.TextGrid;" in run(mine), "it is still known to be changed"


def test_where_no_recording_can_be_read_the_reason_is_the_error(tmp_path: Path, speech3: Run) -> None:
    samples = np.full(16000, 0.1)
    samples[100] = np.nan
    soundfile.write(tmp_path / "one.wav", samples, 16000, subtype="FLOAT")
    process = speech3("align", tmp_path / "one.wav", tmp_path / "out", "--text", "two")
    assert process.returncode == 1 and "Traceback" not in process.stderr
    assert process.stderr.count("one.wav: contains values that are not finite numbers") == 1, process.stderr
    assert "\n  one: /" in process.stderr and "no utterances" not in process.stderr


def test_a_quarter_of_the_utterances_may_be_unusable_for_training(tmp_path: Path, speech3: Run) -> None:
    for number in range(8):
        soundfile.write(tmp_path / f"r{number}.wav", whistled(["ab", "cab"], number)[0], RATE_HZ)
        (tmp_path / f"r{number}.txt").write_text("ab cab" if number else "abc cab bac " * 20)
    (tmp_path / "r1.txt").write_text("abc cab bac " * 20)
    process = speech3("align", tmp_path, tmp_path / "out", "--graphemes", "--jobs", 1)
    assert process.returncode == 0, process.stderr
    assert "trained without 2 of 8 utterances" in process.stderr
    assert "6 of 8 utterances of 8 recordings aligned" in process.stdout
    (tmp_path / "r2.txt").write_text("abc cab bac " * 20)
    process = speech3("align", tmp_path, tmp_path / "out2", "--graphemes", "--jobs", 1)
    assert process.returncode == 1 and "3 of 8 utterances" in process.stderr and "more than 25 %" in process.stderr
