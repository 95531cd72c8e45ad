from pathlib import Path

import pytest

from speech3.corpora.fsdd import DIGITS, prepare
from speech3.data.datadir import read_datadir
from speech3.errors import MissingError, Speech3Error

SHARED = Path(__file__).parents[2].parent / "shared" / "corpora"
here = pytest.mark.skipif(not SHARED.exists(), reason=f"{SHARED} is not here")


@here
def test_split_by_speaker(tmp_path):
    prepare(SHARED / "fsdd", tmp_path, 1)
    sets = {name: read_datadir(tmp_path / name) for name in ("train", "dev", "test")}
    assert {name: sorted(data.speakers()) for name, data in sets.items()} == {
        "train": ["jackson", "nicolas", "yweweler"],
        "dev": ["theo"],
        "test": ["george", "lucas"],
    }
    assert [len(data.utterances) for data in sets.values()] == [1500, 500, 1000]


@here
def test_names_and_words_are_those_of_the_kaldi_files(tmp_path):
    prepare(SHARED / "fsdd", tmp_path, 1, dev_speaker="jackson")
    theirs = read_datadir(SHARED / "fsdd")
    ours = {}
    for name in ("train", "dev", "test"):
        data = read_datadir(tmp_path / name)
        ours.update({key: (utt.text, utt.speaker, data.recordings[key]) for key, utt in data.utterances.items()})
    expected = {
        key: (utt.text, utt.speaker, str(SHARED / "fsdd" / theirs.recordings[key]))
        for key, utt in theirs.utterances.items()
    }
    assert ours == expected


@here
def test_pronunciations_are_those_of_the_cmu_dictionary(tmp_path):
    dictionary = set()
    for line in (SHARED / "minilibri/lang/lexicon.txt").read_text().splitlines():
        word, *phones = line.split()
        dictionary.add((word, " ".join(phone.rstrip("012") for phone in phones)))
    ours = {(word, pron) for word, prons in DIGITS.items() for pron in prons}
    assert ours - dictionary == {("ONE", "HH W AH N")}  # in the CMU dictionary, not in this excerpt of it
    prepare(SHARED / "fsdd", tmp_path, 1)
    lines = (tmp_path / "lexicon.txt").read_text().splitlines()
    assert len(lines) == 12 and {tuple(line.split(" ", 1)) for line in lines} == ours


def test_a_source_of_something_else(tmp_path):
    (tmp_path / "x.wav").touch()
    with pytest.raises(Speech3Error, match="not the Free Spoken Digit Dataset"):
        prepare(tmp_path, tmp_path / "out", 1)
    with pytest.raises(Speech3Error, match="not the Free Spoken Digit Dataset"):
        prepare(tmp_path / "nowhere", tmp_path / "out", 1)


def test_a_part_of_the_corpus_as_it_is_published(tmp_path):
    (tmp_path / "recordings").mkdir()
    for name in ("0_george_0", "1_lucas_0", "2_theo_0", "3_jackson_11"):
        (tmp_path / "recordings" / f"{name}.wav").touch()
    prepare(tmp_path, tmp_path / "out", 1)
    assert list(read_datadir(tmp_path / "out/train").utterances) == ["jackson-3-11"]
    with pytest.raises(MissingError, match="no recordings of nobody"):
        prepare(tmp_path, tmp_path / "out", 1, dev_speaker="nobody")
    with pytest.raises(Speech3Error, match="dev_speaker lucas is a test speaker"):
        prepare(tmp_path, tmp_path / "out", 1, dev_speaker="lucas")
