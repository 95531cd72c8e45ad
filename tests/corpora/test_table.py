"""Tables beside recordings, in the layouts in which corpora are published; what is not clear is refused."""

import json
from pathlib import Path

import pytest
from fieldwork import recording

from speech3.corpora.folder import read_folder
from speech3.errors import DataError
from speech3.recipe.aligner_source import read_source

LJSPEECH = 'LJ001-01|Printing, "in 1455.|Printing, in fourteen\nLJ001-02|"Dr. No|Doctor No\n'
VITS = "wavs/LJ001-01.wav|4|printing\nwavs/LJ001-02.wav|7|doctor no\n"
COMMON_VOICE = (
    "client_id\tpath\tsentence\tup_votes\nanna\tLJ001-01.mp3\tPrinting, really\t2\nbo\tLJ001-02.mp3\tDoctor No\t2\n"
)
HUGGING_FACE = 'file_name,transcription\nwavs/LJ001-01.wav,"Printing, really"\nwavs/LJ001-02.wav,Doctor No\n'
SPREADSHEET = "﻿Archivo;Texto\r\nLJ001-01.wav;Printing, really\r\nLJ001-02.wav;Doctor No\r\n"
NEMO = "".join(
    json.dumps({"audio_filepath": f"/data/wavs/{name}.wav", "duration": 0.3, "offset": 0.0, "text": text}) + "\n"
    for name, text in (("LJ001-01", "printing"), ("LJ001-02", "doctor no"))
)
BY_NAME = json.dumps({"LJ001-01": "printing", "LJ001-02": {"sentence": "doctor no"}}).replace(
    '"printing"', '{"sentence": "printing"}'
)
PROMPTS = "*/LJ001-01 PRINTING REALLY\n*/LJ001-02 DOCTOR NO\n".replace("*/", "")
FESTIVAL = '( LJ001-01 "Printing, really." )\n( LJ001-02 "Doctor No." )\n'


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("LJ001-01", "LJ001-02"):
        recording(tmp_path / "wavs" / f"{name}.wav", 0.3)
    return tmp_path


def texts(root: Path) -> list[str]:
    data, _ = read_folder(root)
    return [data.utterances[key].text or "" for key in sorted(data.utterances)]


@pytest.mark.parametrize(
    ("name", "content", "words", "columns"),
    [
        ("metadata.csv", LJSPEECH, "printing in fourteen", "recordings in column 1, words in column 3"),
        ("metadata.csv", LJSPEECH.replace("|Printing, in fourteen", "").replace("|Doctor No", ""), None, "column 2"),
        ("train_filelist.txt", VITS, "printing", "recordings in column 1, words in column 3"),
        ("train.tsv", COMMON_VOICE, "printing really", "words in column sentence, speakers in column client_id"),
        ("metadata.csv", HUGGING_FACE, "printing really", "in column file_name, words in column transcription"),
        ("texts.csv", SPREADSHEET, "printing really", "words in column Texto"),
        ("manifest.json", NEMO, "printing", "recordings in column audio_filepath, words in column text"),
        ("texts.json", BY_NAME, "printing", "words in column sentence"),
        ("PROMPTS", PROMPTS, "printing really", "words in column 2"),
        ("LJ001.trans.txt", PROMPTS, "printing really", "words in column 2"),
        ("txt.done.data", FESTIVAL, "printing really", "words in column 2"),
    ],
)
def test_tables_as_they_are_published(
    root: Path, capsys: pytest.CaptureFixture[str], name: str, content: str, words: str | None, columns: str
) -> None:
    (root / name).write_text(content)
    first, second = texts(root)
    assert (first, second) == (words, "doctor no") if words else (first, second) == ("printing in 1455", "dr no")
    said = capsys.readouterr().err
    assert columns in said and name in said


def test_align_reads_a_table_and_its_speakers(root: Path) -> None:
    (root / "train.tsv").write_text(COMMON_VOICE)
    source = read_source(root)
    assert {target.place for target in source.targets.values()} == {"wavs/LJ001-01", "wavs/LJ001-02"}
    assert {utterance.speaker for utterance in source.data.utterances.values()} == {"anna", "bo"}


def test_a_transcript_beside_the_recording_is_preferred(root: Path) -> None:
    (root / "metadata.csv").write_text(HUGGING_FACE)
    (root / "wavs" / "LJ001-01.txt").write_text("pressing")
    assert texts(root) == ["pressing", "doctor no"]


def test_folders_count_where_names_are_the_same(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        recording(tmp_path / folder / "1.wav", 0.3)
    (tmp_path / "metadata.csv").write_text("path,text\nb/1.wav,two\na/1.wav,one\nc/1.wav,three\n")
    data, faults = read_folder(tmp_path)
    assert {each.speaker: each.text for each in data.utterances.values()} == {"a": "one", "b": "two"}
    (fault,) = faults
    assert fault.warning and "c/1.wav" in fault.problem


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("m.csv", "path,text,sentence\nLJ001-01,one,two\nLJ001-02,three,four\n", "text and sentence"),
        ("m.csv", "LJ001-01,one two,three four,five\nLJ001-02,six,seven eight,nine\n", "column 2 or column 3"),
        ("m.csv", "file,speaker,text\nLJ001-01,anna,one, two\nLJ001-02,bo,three\n", "LJ001-01"),
        ("m.jsonl", '{"path": "LJ001-01", "text": "one"}\n{"path": "LJ001-02"', "line 2"),
        ("m.csv", "path,offset,text\nLJ001-01,0.0,one\nLJ001-01,2.5,two\n", "offset"),
        ("m.csv", "path,text\nLJ001-01,one\nLJ001-01,two\n", "two different texts in m.csv"),
        ("notes.csv", "day,weather\nMonday,rain\n", "no recording is named in notes.csv"),
        ("durations.csv", "path,duration\nLJ001-01,0.3\n", "durations.csv"),
    ],
)
def test_what_is_not_clear_is_refused(root: Path, name: str, content: str, named: str) -> None:
    (root / name).write_text(content)
    with pytest.raises(DataError, match=named) as error:
        read_folder(root)
    assert name in str(error.value)


def test_clips_that_listeners_refused_are_not_used(root: Path) -> None:
    (root / "validated.tsv").write_text(COMMON_VOICE.replace("bo\tLJ001-02.mp3\tDoctor No\t2\n", ""))
    (root / "invalidated.tsv").write_text("client_id\tpath\tsentence\nbo\tLJ001-02.mp3\tDoctor No\n")
    assert texts(root) == ["printing really"]


def test_a_row_without_words_and_notes_of_one_line(root: Path) -> None:
    (root / "metadata.csv").write_text("LJ001-01|one\nLJ001-02|\n")
    (root / "notes.txt").write_text("LJ001-02 was hoarse\n")
    data, faults = read_folder(root)
    assert [utterance.text for utterance in data.utterances.values()] == ["one"]
    assert [(fault.kind, fault.subject) for fault in faults if not fault.warning] == [
        ("no recording", ""),
        ("empty", "LJ001-02.wav"),
    ]
