"""Tables beside recordings, in the layouts in which corpora are published; what is not clear is refused."""

import json
from pathlib import Path

import pytest
from fieldwork import recording

from speech3.corpora import table
from speech3.corpora.anyspeech import prepare
from speech3.corpora.folder import read_folder
from speech3.corpora.pairs import find_pairs
from speech3.data.datadir import read_datadir
from speech3.errors import DataError
from speech3.recipe.aligner_files import read_source

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
    (root / "train.tsv").rename(root / "wavs" / "train.tsv")
    (one,) = read_source(root / "wavs" / "LJ001-02.wav").data.utterances.values()
    assert (one.speaker, one.text) == ("bo", "doctor no")


@pytest.mark.parametrize(
    "heading",
    [
        "sep=;\nfile;speaker;text",
        "Datei;Sprecher;Satz",
        "Fichier;Locuteur;Texte",
        "文件;说话人;文本",
        "Файл;Говорящий;Текст",
    ],
)
def test_headings_of_spreadsheets_in_other_languages(root: Path, heading: str) -> None:
    (root / "m.csv").write_text(f"{heading}\nLJ001-01;anna;printing really\nLJ001-02;bo;doctor no\n")
    data, _ = read_folder(root)
    assert [(u.speaker, u.text) for u in data.utterances.values()] == [("anna", "printing really"), ("bo", "doctor no")]


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


FOLDERS = {
    # A table names no recording of another folder, unless by its path from a folder around both.
    "elsewhere": (
        ["x/1", "y/2", "y/3"],
        {"x/m.csv": "file,text\n1.wav,one\n2.wav,two\ny/3.wav,three\n"},
        {"x/1": "one", "y/3": "three"},
    ),
    "one below each folder": (
        ["x/1", "y/1"],
        {"x/m.csv": "file,text\n1.wav,one\n", "y/m.csv": "file,text\n1.wav,two\n"},
        {"x/1": "one", "y/1": "two"},
    ),
    "VoxForge": (
        ["ann/wav/a1", "ann/wav/a2", "bo/wav/a1", "bo/wav/a3"],
        {
            "ann/etc/PROMPTS": "ann/mfc/a1 ONE DAY\nann/mfc/a2 TWO DAYS\nann/mfc/a3 THREE DAYS\n",
            "bo/etc/PROMPTS": "bo/mfc/a1 AT SEA\nbo/mfc/a3 NO SEA\n",
        },
        {"ann/wav/a1": "one day", "ann/wav/a2": "two days", "bo/wav/a1": "at sea", "bo/wav/a3": "no sea"},
    ),
    "folders that some rows name rightly": (
        ["a/1", "c/2"],
        {"m.csv": "file,text\na/1.wav,one\nb/2.wav,two\n"},
        {"a/1": "one"},
    ),
}


@pytest.mark.parametrize("case", FOLDERS)
def test_a_row_names_a_recording_near_its_table(tmp_path: Path, case: str) -> None:
    names, tables, expected = FOLDERS[case]
    for name in names:
        recording(tmp_path / f"{name}.wav", 0.3)
    for name, content in tables.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    items, faults = find_pairs(tmp_path)
    found = {str(item.audio.relative_to(tmp_path).with_suffix("")): item.row for item in items}
    assert {name: row.text.lower() for name, row in found.items() if row} == expected
    without = [fault for fault in faults if fault.kind == "row without recording"]
    assert len(without) == (case != "one below each folder")
    assert len(items) + sum(fault.kind == "no transcript" for fault in faults) == len(names)


LABELS = [
    ("info.csv", "file,gender\nLJ001-01,male\nLJ001-02,female\n"),
    ("labels.tsv", "filename\temotion\nLJ001-01\tangry\nLJ001-02\tsad\n"),
    ("gender.json", '{"LJ001-01": "male", "LJ001-02": "female"}'),
    ("utt2spk.txt", "LJ001-01 anna\nLJ001-02 bo\n"),
    ("segments.txt", "LJ001-01 anna 0 1\nLJ001-02 bo 0 1\n"),
    ("notes.txt", "LJ001-01 sounds noisy\nLJ001-02 was said twice\n"),
    ("region.csv", "LJ001-01,North Sea\nLJ001-02,North Sea\n"),
]


@pytest.mark.parametrize(("name", "content"), LABELS)
def test_labels_are_no_words(root: Path, name: str, content: str) -> None:
    (root / name).write_text(content)
    with pytest.raises(DataError, match=name):
        read_folder(root)
    (root / "metadata.csv").write_text(HUGGING_FACE)
    assert texts(root) == ["printing really", "doctor no"]


def test_a_heading_of_words_is_preferred_to_a_guess(root: Path) -> None:
    (root / "a.csv").write_text("LJ001-01,was rather noisy\nLJ001-02,has much echo\n")
    (root / "metadata.csv").write_text(HUGGING_FACE)
    assert texts(root) == ["printing really", "doctor no"]


@pytest.mark.parametrize(
    ("heading", "first", "second"),
    [
        ("file_name,raw_transcription,transcription", '"Printing, really.",printing really', "Dr. No,doctor no"),
        ("file_name,text,words", "printing really,2", "doctor no,2"),
        ("file_name,text,orthographic", "printing really,Prynting", "doctor no,Docteur"),
    ],
)
def test_a_raw_form_or_a_count_is_no_second_text(root: Path, heading: str, first: str, second: str) -> None:
    (root / "m.csv").write_text(f"{heading}\nLJ001-01.wav,{first}\nLJ001-02.wav,{second}\n")
    assert texts(root) == ["printing really", "doctor no"]


def test_words_of_scripts_without_spaces(root: Path) -> None:
    (root / "filelist.txt").write_text("LJ001-01|7|今天天气\nLJ001-02|9|我们回家\n")
    assert texts(root) == ["今天天气", "我们回家"]


def test_tables_are_read_only_for_recordings_without_a_transcript(root: Path) -> None:
    for name in ("LJ001-01", "LJ001-02"):
        (root / "wavs" / f"{name}.txt").write_text("said")
    (root / "broken.json").write_text("{")
    (root / "m.csv").write_text("path,text\nLJ001-01,one\nLJ001-01,two\n")
    assert [len(part) for part in find_pairs(root)] == [2, 0]
    (root / "wavs" / "LJ001-02.txt").unlink()
    assert [len(part) for part in find_pairs(root, only=root / "wavs" / "LJ001-01.wav")] == [1, 0]
    _, faults = find_pairs(root)
    assert [(fault.kind, Path(fault.where).name) for fault in faults] == [
        ("unreadable table", "broken.json"),
        ("no transcript", "LJ001-02.wav"),
    ]


def test_two_texts_are_one_fault_that_names_the_recording_and_both_tables(root: Path) -> None:
    for folder in ("", "wavs/"):
        (root / f"{folder}m.csv").write_text(f"path,text\nLJ001-01,one{len(folder)}\nLJ001-02,two\n")
    items, (fault,) = find_pairs(root)
    assert len(items) == 1 and fault.where == str(root / "wavs" / "LJ001-01.wav")
    assert "m.csv" in fault.problem and "wavs/m.csv" in fault.problem


def test_rows_of_blanks_are_passed_over(root: Path) -> None:
    (root / "m.csv").write_text("path,text\nLJ001-01,one\n,\nLJ001-02,two\n")
    assert find_pairs(root)[1] == []


def test_a_table_beside_the_splits_names_their_recordings(tmp_path: Path) -> None:
    rows = [f"{part}/{number}.wav,{part} word {number}" for part in ("train", "dev", "test") for number in range(2)]
    for row in rows:
        recording(tmp_path / "in" / row.split(",")[0], 0.3)
    (tmp_path / "in" / "metadata.csv").write_text("\n".join(["file_name,text", *rows]))
    prepare(tmp_path / "in", tmp_path / "out", 1, lexicon="graphemes")
    for part in ("train", "dev", "test"):
        said = {utterance.text for utterance in read_datadir(tmp_path / "out" / part).utterances.values()}
        assert said == {f"{part} word 0", f"{part} word 1"}
    (tmp_path / "in" / "metadata.csv").write_text("file_name,text\n0.wav,train word\n")  # of which part?
    with pytest.raises(DataError, match=r"\.\./metadata\.csv"):
        prepare(tmp_path / "in", tmp_path / "out", 1, lexicon="graphemes")


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("m.csv", "path,text,sentence\nLJ001-01,one,two\nLJ001-02,three,four\n", "text and sentence"),
        ("m.csv", "LJ001-01,one two,three four,five\nLJ001-02,six,seven eight,nine\n", "column 2 or column 3"),
        ("m.csv", "file,speaker,text\nLJ001-01,anna,one, two\nLJ001-02,bo,three\n", "LJ001-01"),
        ("m.jsonl", '{"path": "LJ001-01", "text": "one"}\n{"path": "LJ001-02"', "line 2"),
        ("m.csv", "path,offset,text\nLJ001-01,0.0,one\nLJ001-01,2.5,two\n", "offset"),
        ("m.csv", "path,start,end,text\nLJ001-01,0,1,one\nLJ001-01,1,2,two\n", "start_s"),
        ("m.csv", "path,start,end,text\nLJ001-01,1.a,1.0,one\nLJ001-01,2.b,2.0,two\n", "column start"),
        ("m.csv", "path,text\nLJ001-01,one\nLJ001-01,two\n", "two different texts in m.csv"),
        ("notes.csv", "day,weather\nMonday,rain\n", "notes.csv"),
        ("m.csv", 'path,text\nLJ001-01,"one\nLJ001-02,two\n', "line 2"),
        ("m.csv", 'path,text\nLJ001-01,one\nLJ001-02,"' + "x " * 70_000 + '"\n', "line 3"),
        ("m.csv", "LJ001-01,yes sir, I am here\nLJ001-02,no sir, I am not\n", "heading"),
        ("m.csv", "LJ001-01,one two,three\nLJ001-02,four five\n", "heading"),
        ("m.csv", "LJ001-01.wav|one two|Anna Smith\nLJ001-02.wav|four five|Bo Jones\n", "column 2 or column 3"),
        ("m.csv", "path,inhalt\nLJ001-01,one two\nLJ001-02,three four\n", "column inhalt"),
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
    (root / "metadata.csv").write_text("LJ001-01|one two\nLJ001-02|\n")
    (root / "notes.txt").write_text("LJ001-02 was hoarse\n")
    data, faults = read_folder(root)
    assert [utterance.text for utterance in data.utterances.values()] == ["one two"]
    assert [(fault.kind, fault.subject) for fault in faults if not fault.warning] == [
        ("no recording", ""),
        ("empty", "LJ001-02.wav"),
    ]


SAID = (("a.wav", 0.0, 0.9, "anna", "oh one"), ("a.wav", 1.0, 1.95, "bo", "two"), ("b.wav", 0.5, 2.0, "bo", "oh"))
PARTS = {
    "clips.csv": "file,start,end,speaker,text\n" + "".join(",".join(map(str, row)) + "\n" for row in SAID),
    "clips.tsv": "path\tstart_ms\tend_ms\tspk\tsentence\n"
    + "".join(
        f"{path[0]}\t{1000 * start:.0f}\t{1000 * end:.0f}\t{who}\t{text}\n" for path, start, end, who, text in SAID
    ),
    "clocks.csv": "file;begin;end;speaker;text\n"
    + "".join(f"{path};0:{start:05.2f};0:00:{end};{who};{text}\n" for path, start, end, who, text in SAID),
    "nemo.jsonl": "".join(
        json.dumps({"audio_filepath": path, "offset": start, "duration": end - start, "speaker": who, "text": text})
        + "\n"
        for path, start, end, who, text in SAID
    ),
}


@pytest.mark.parametrize("name", PARTS)
def test_rows_with_times_are_parts_of_recordings(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    recording(tmp_path / "a.wav", 2.0)
    recording(tmp_path / "b.wav", 2.0)
    (tmp_path / name).write_text(PARTS[name])
    data, faults = read_folder(tmp_path)
    found = [(u.recording, u.speaker, u.text, u.start_s, u.end_s) for u in data.utterances.values()]
    assert found == [
        ("a", "anna", "oh one", 0.0, 0.9),
        ("a", "bo", "two", 1.0, 1.95),
        ("b", "bo", "oh", 0.5, 2.0),
    ]
    assert not faults and "times in column" in (said := capsys.readouterr().err) and "from a table" in said


def test_parts_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    recording(tmp_path / "a.wav", 2.0)
    rows = ("0.0,0.9,oh", "0.9,,one", "1.0,0.5,two", "1.5,9.0,three", "1.5,1.9,")
    (tmp_path / "a.csv").write_text("path,start,end,text\n" + "".join(f"a.wav,{row}\n" for row in rows))
    data, faults = read_folder(tmp_path)
    assert [u.text for u in data.utterances.values()] == ["oh"]
    assert [fault.kind for fault in faults] == ["no times", "no length", "outside", "empty"]


def test_two_texts_of_one_span_are_named(tmp_path: Path) -> None:
    recording(tmp_path / "a.wav", 2.0)
    rows = ("0.0,0.9,ann,oh", "0.0,0.9,ann,one", "1.0,1.9,ann,two", "1.0,1.9,ann,two")
    (tmp_path / "a.csv").write_text("path,start,end,speaker,text\n" + "".join(f"a.wav,{row}\n" for row in rows))
    data, faults = read_folder(tmp_path)
    assert [u.text for u in data.utterances.values()] == ["two"]
    assert [fault.kind for fault in faults] == ["two texts", "two texts"]


def parts_in(folder: Path, **tables: str) -> list[tuple[str | None, float, float | None]]:
    recording(folder / "a.wav", 10.0)
    for name, content in tables.items():
        (folder / f"{name}.csv").write_text(content)
    data, _ = read_folder(folder)
    return [(u.text, u.start_s, u.end_s) for u in data.utterances.values()]


@pytest.mark.parametrize(
    ("content", "spans"),
    [
        ("path,start,end,text\na,0.0,2.5,oh\n", [(0.0, 2.5)]),
        ("path,onset,offset,duration,text\na,1.0,3.5,2.5,oh\na,4.0,5.5,1.5,one\n", [(1.0, 3.5), (4.0, 5.5)]),
        ("path,offset,start,end,text\na,7.5,1.0,3.5,oh\n", [(1.0, 3.5)]),
        ("path,Start (ms),End (ms),text\na,1000,3500,oh\n", [(1.0, 3.5)]),
        *(
            (f"path,{start},{end},text\na,1,3,oh\n", [(1.0, 3.0)])
            for start in ("start_s", "start (s)", "begin_s", "Start seconds")
            for end in ("end_s", "end (s)")
        ),
        ("path,start_s,duration_s,text\na,1,2,oh\n", [(1.0, 3.0)]),
        ("audio_filepath,offset,duration,text\na,1,2,oh\n", [(1.0, 3.0)]),  # NeMo's
        ("path,start_milliseconds,duration_milliseconds,text\na,1000,2500,oh\n", [(1.0, 3.5)]),
        ("path,from,to,text\na,1.0,3.5,oh\n", [(1.0, 3.5)]),
        ("path,from,to,text\na,Bern,Basel,oh\n", [(0.0, None)]),
        ("path,start,end,duration,text\na,1.0,,2.5,oh\na,4.0,5.5,,one\n", [(1.0, 3.5), (4.0, 5.5)]),
        ("path,start,end,text\na,1.0,3.5,oh\na,1.0,3.5,oh\n", [(1.0, 3.5)]),
        ("path,offset,duration,text\na,0.0,10.0,oh\n", [(0.0, None)]),
        ("path;Début;Durée;texte\na;1,0;2,5;oh\n", [(1.0, 3.5)]),
        ("path;Begin Time - hh:mm:ss.ms;End Time - ss.msec;text\na;00:00:01.000;3.5;oh\n", [(1.0, 3.5)]),
        ("a,1,3.5,oh no\n", [(0.0, None)]),
        ("path,t_min,t_max,text\na,0.5,1.5,oh\n", [(0.5, 1.5)]),
        ("path,x_min,x_max,text\na,0.5,1.5,oh\n", [(0.5, 1.5)]),
        ("path,duration_frames,start,duration,text\na,400,1.0,2.5,oh\n", [(1.0, 3.5)]),
        ("path,start_frame,end_frame,start_s,end_s,text\na,1600,8000,1.0,3.5,oh\n", [(1.0, 3.5)]),
        ("path,start frame,text\na,0,oh\n", [(0.0, None)]),
        ("path,start_s,duration_frames,text\na,0,8000,oh\n", [(0.0, None)]),
        ("path,phrase,text\na,p1,oh\n", [(0.0, None)]),
        ("path,debut,text\na,yes,oh\n", [(0.0, None)]),
        ("path,Anfang,text\na,laut,oh\n", [(0.0, None)]),
    ],
)
def test_columns_of_times_are_known_by_their_headings(
    tmp_path: Path, content: str, spans: list[tuple[float, float | None]]
) -> None:
    assert [(start, end) for _, start, end in parts_in(tmp_path, table=content)] == spans


@pytest.mark.parametrize(
    "content",
    [
        "path,starts,ends,text\na,1000,3500,oh\n",
        "path,start,end,text\na,1000.0,3500.0,oh\n",
        "path,start,end,text\na,1500,a while,oh\n",
        "path,start_sample,end_sample,text\na,1500,8000,oh\n",
        "path,start_frame,end_frame,text\na,0,8000,oh\n",
        "path,start_s,duration_min,text\na,1.0,2.5,oh\n",
        "path,start_s,end_frame,text\na,0,800,oh\n",
        "a,1.0,3.5,oh no\n",
        "a;anna;1,0;3,5;oh no\n",
    ],
)
def test_times_without_a_unit_and_other_values_are_refused(tmp_path: Path, content: str) -> None:
    with pytest.raises(
        DataError, match=r"table\.csv.*(starts_s.*ends_s|column end|column \w+ has times in|columns . and . may)"
    ):
        parts_in(tmp_path, table=content)


@pytest.mark.parametrize("headings", [("offset", "duration"), ("Begin", "End"), ("x_min", "x_max"), ("start", "dur_s")])
def test_advice_on_units_keeps_what_a_column_means(tmp_path: Path, headings: tuple[str, str]) -> None:
    with pytest.raises(DataError, match="seconds or of milliseconds") as refused:
        parts_in(tmp_path, table=f"path,{','.join(headings)},text\na,1,2,oh\n")
    advised = [f"{name}_s" for name in headings if f"`{name}_s`" in str(refused.value)]
    assert advised == [f"{name}_s" for name in headings if not name.endswith("_s")]
    followed = ",".join(f"{name}_s" if f"{name}_s" in advised else name for name in headings)
    assert parts_in(tmp_path, table=f"path,{followed},text\na,1,2,oh\n") == [
        ("oh", 1.0, 3.0 if headings[1].startswith("dur") else 2.0)
    ]


@pytest.mark.parametrize("heading", ["path,phrase,text", "path,frase,sentence", "path,words,texte"])
def test_headings_in_other_languages_count_only_where_no_other_is(root: Path, heading: str) -> None:
    first, second = (1, 2) if heading.endswith("texte") else ("p1", "p2")
    (root / "m.csv").write_text(f"{heading}\nLJ001-01,{first},oh\nLJ001-02,{second},two\n")
    assert texts(root) == ["oh", "two"]


def test_columns_that_cannot_be_times_are_not_parsed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    monkeypatch.setattr(table, "_seconds", parsed.append)
    (root / "m.csv").write_text("LJ001-01,1,2,oh no\nLJ001-02,3,4,two of us\n")
    assert texts(root) == ["oh no", "two of us"] and not parsed


def test_parts_in_several_tables_are_joined_and_preferred_to_the_whole(tmp_path: Path) -> None:
    train, dev = ("path,start,end,text\n" + row for row in ("a,1.0,3.5,oh\n", "a,4.0,5.5,one\na,1.0,3.5,oh\n"))
    found = parts_in(tmp_path, train=train, dev=dev, all="path,text\na,oh one\n")
    assert sorted(found) == [("oh", 1.0, 3.5), ("one", 4.0, 5.5)]
