"""Anybody's directory: splits, pronunciations, pieces, and what is refused."""

import gzip
from pathlib import Path

import numpy as np
import pytest
import soundfile

from speech3.corpora import anyspeech
from speech3.corpora.anyspeech import prepare
from speech3.data.datadir import read_datadir
from speech3.errors import DataError, MissingError, Speech3Error
from speech3.io.ark import write_ark
from speech3.language.lexicon import Pronunciation, read_lexicon

pytest.importorskip("espeakng_loader", reason="the espeak extra is not installed")

WORDS = ["mtoto", "mama", "kitabu", "nyumba", "samaki", "anasoma", "anapika", "leo", "jana", "kubwa"]
ARPA = "\\data\\\nngram 1=4\n\n\\1-grams:\n-0.6\t<s>\n-0.6\t</s>\n-0.6\tmama\n-0.6\twanyama\n\n\\end\\\n"


def datadir(path: Path, speakers: int = 10, utterances: int = 4, words: list[str] = WORDS, seed: int = 1) -> Path:
    """A data directory with 0.1 s of noise for each utterance."""
    rng = np.random.default_rng(seed)
    (path / "wav").mkdir(parents=True)
    lines: dict[str, list[str]] = {"wav.scp": [], "text": [], "utt2spk": []}
    for speaker in range(speakers):
        for number in range(utterances):
            key = f"s{speaker:02d}-{number:02d}"
            soundfile.write(path / "wav" / f"{key}.wav", 0.1 * rng.standard_normal(800), 8000)
            lines["wav.scp"].append(f"{key} wav/{key}.wav")
            lines["utt2spk"].append(f"{key} s{speaker:02d}")
            lines["text"].append(f"{key} {' '.join(rng.choice(words, 5))}")
    for name, rows in lines.items():
        (path / name).write_text("".join(f"{row}\n" for row in rows))
    return path


def lexicon(path: Path) -> dict[str, str]:
    return dict(line.split(" ", 1) for line in (path / "lexicon.txt").read_text().splitlines())


def test_split_by_speaker_written_down(tmp_path: Path) -> None:
    prepare(datadir(tmp_path / "all"), tmp_path / "out", 1, lang="sw")
    parts = {name: read_datadir(tmp_path / "out" / name) for name in ("train", "dev", "test")}
    assert [len(part.speakers()) for part in parts.values()] == [8, 1, 1]
    rows = [line.split() for line in (tmp_path / "out" / "splits.txt").read_text().splitlines()[1:]]
    assert {(name, speaker) for name, speaker, _ in rows} == {
        (n, s) for n, part in parts.items() for s in part.speakers()
    }
    prepare(tmp_path / "all", tmp_path / "again", 1, lang="sw")
    prepare(tmp_path / "all", tmp_path / "other", 2, lang="sw")
    anyspeech = [(tmp_path / name / "splits.txt").read_text() for name in ("out", "again", "other")]
    assert anyspeech[0] == anyspeech[1] != anyspeech[2]


def test_of_few_speakers_dev_has_the_voices_of_train(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepare(datadir(tmp_path / "six", speakers=6, utterances=10), tmp_path / "out6", 1, lang="sw")
    train, dev, test = (read_datadir(tmp_path / "out6" / name) for name in ("train", "dev", "test"))
    assert len(test.speakers()) == 1 and not set(test.speakers()) & set(train.speakers())
    assert len(train.speakers()) == 5 and set(dev.speakers()) < set(train.speakers()) and len(dev.speakers()) > 1
    assert (len(train.utterances), len(dev.utterances), len(test.utterances)) == (43, 7, 10)
    assert "dev (15% of the speech) split by utterance, so it is from speakers that are also in train" in (
        " ".join(capsys.readouterr().err.split())
    )
    prepare(datadir(tmp_path / "one", speakers=1, utterances=20), tmp_path / "out1", 1, lang="sw")
    sizes = [len(read_datadir(tmp_path / "out1" / name).utterances) for name in ("train", "dev", "test")]
    assert sizes == [14, 3, 3]
    assert "they are from speakers that are also in train" in " ".join(capsys.readouterr().err.split())


def test_a_tenth_is_enough_where_there_is_more_speech(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anyspeech, "_MIN_PART_S", 0.24)  # of 2 s
    prepare(datadir(tmp_path / "one", speakers=1, utterances=20), tmp_path / "out", 1, lang="sw")
    assert len(read_datadir(tmp_path / "out" / "dev").utterances) == 2


def test_words_are_guessed_and_listed(tmp_path: Path) -> None:
    source = tmp_path / "source"
    datadir(source / "train", words=[*WORDS, "привет"])
    datadir(source / "test", 2, words=["kiwi"], seed=2)
    (source / "lang").mkdir()
    (source / "lang" / "text").write_text("mama anasoma vitabu\n")
    prepare(source, tmp_path / "out", 1, lang="sw")
    found = lexicon(tmp_path / "out")
    assert found["<unk>"] == "SPN" and found["kitabu"] == "k i t a b u"
    assert "kiwi" not in found  # said in test only
    assert "привет" not in found
    guessed = [line.split() for line in (tmp_path / "out" / "guessed.txt").read_text().splitlines()]
    spoken = (tmp_path / "out" / "train" / "text").read_text().split()
    assert {word: int(count) for word, count, *_ in guessed if word in WORDS} == {w: spoken.count(w) for w in WORDS}
    assert "привет" in (tmp_path / "out" / "unpronounced.txt").read_text()
    assert "mama anasoma vitabu" in (tmp_path / "out" / "lm_text").read_text().splitlines()


def test_a_lexicon_stays_as_it_is(tmp_path: Path) -> None:
    source = tmp_path / "source"
    datadir(source / "train")
    (source / "lang").mkdir()
    text = "<unk> SPN\n" + "".join(f"{word} {' '.join(word.upper())}\n" for word in WORDS)
    (source / "lang" / "lexicon.txt").write_text(text)
    prepare(source, tmp_path / "out", 1)
    assert (tmp_path / "out" / "lexicon.txt").read_text() == text
    assert not (tmp_path / "out" / "guessed.txt").exists()
    (source / "lang" / "lexicon.txt").write_text(text.removeprefix("<unk> SPN\n"))
    prepare(source, tmp_path / "out2", 1)
    assert lexicon(tmp_path / "out2") == lexicon(tmp_path / "out")


def test_what_dev_and_test_say_leaves_no_trace_in_the_vocabulary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "source"
    for seed, (name, words) in enumerate(
        (("train", WORDS), ("dev", ["kasuku", "simba", "mama"]), ("test", ["kiwi", "simba"]))
    ):
        datadir(source / name, 2, words=words, seed=seed)
    (source / "lang").mkdir()
    (source / "lang" / "lexicon.txt").write_text("".join(f"{w} {' '.join(w.upper())}\n" for w in [*WORDS, "simba"]))
    prepare(source, tmp_path / "out", 1)
    for name in ("lexicon.txt", "lm_text"):
        content = (tmp_path / "out" / name).read_text()
        assert "kiwi" not in content and "kasuku" not in content, name
    assert lexicon(tmp_path / "out").keys() == {"<unk>", *WORDS, "simba"}
    said = [line.split()[1:] for line in (source / "test" / "text").read_text().splitlines()]
    strange = sum(words.count("kiwi") for words in said)
    assert f"test: {strange} of {sum(map(len, said))} words " in capsys.readouterr().err  # simba can be recognised


def test_missing_words_come_in_the_phones_of_the_lexicon(tmp_path: Path) -> None:
    source = tmp_path / "source"
    datadir(source / "train", words=[*WORDS, "kasuku"])
    (source / "lang").mkdir()
    syllables = [c + v for c in "kmtns" for v in "aiu"]
    made = [a + b for a in syllables for b in syllables]
    (source / "lang" / "lexicon.txt").write_text("".join(f"{w} {' '.join(w.upper())}\n" for w in made + WORDS[:2]))
    (source / "lang" / "model.arpa").write_text(ARPA)
    prepare(source, tmp_path / "out", 1, lang="sw")
    assert lexicon(tmp_path / "out")["kasuku"] == "K A S U K U"
    assert "kasuku" in (tmp_path / "out" / "guessed.txt").read_text()
    assert "wanyama" in (tmp_path / "out" / "unpronounced.txt").read_text()  # a word of the ARPA; no W in the lexicon
    assert gzip.decompress((tmp_path / "out" / "lm.arpa.gz").read_bytes()).decode() == ARPA


def test_graphemes(tmp_path: Path) -> None:
    prepare(
        datadir(tmp_path / "all", words=["Ng'ombe", "MTOTO", "xyz-", "10"]), tmp_path / "out", 1, lexicon="graphemes"
    )
    assert lexicon(tmp_path / "out") == {
        "<unk>": "SPN",
        "Ng'ombe": "n g ' o m b e",
        "MTOTO": "m t o t o",
        "xyz-": "x y z",
    }
    assert (tmp_path / "out" / "unpronounced.txt").read_text().split()[0] == "10"
    letters = (tmp_path / "out" / "letters.txt").read_text().splitlines()
    assert letters == ["' '", "M m", "N n", "O o", "T t", "b b", "e e", "g g", "m m", "o o", "x x", "y y", "z- z"]


def test_pieces(tmp_path: Path) -> None:
    source = datadir(tmp_path / "all", words=[*WORDS, "ng'ombe"], utterances=8)
    prepare(source, tmp_path / "out", 1, units="sentencepiece", pieces=40)
    found = lexicon(tmp_path / "out")
    pieces = (tmp_path / "out" / "pieces.txt").read_text().split()
    said = [line.split(" ", 1)[1] for line in (tmp_path / "out" / "train" / "text").read_text().splitlines()]
    text = (tmp_path / "out" / "lm_text").read_text().splitlines()
    assert ["".join(line.split()).replace("▁", " ").strip() for line in text] == said
    assert {piece for line in text for piece in line.split()} <= set(pieces) <= set(found)
    assert all(found[piece] == " ".join(piece.replace("▁", "")) for piece in pieces)
    assert {"▁k", "k", "▁u", "u"} <= set(pieces)  # every word of these letters can be written
    prepare(source, tmp_path / "again", 1, units="sentencepiece", pieces=40)
    for name in ("pieces.model", "lm_text", "lexicon.txt"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "out" / name).read_bytes()


def test_what_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "source"
    datadir(source / "train")

    def refused(match: str, **options: str) -> None:
        with pytest.raises(Speech3Error, match=match):
            prepare(source, tmp_path / "out", 1, **options)  # type: ignore[arg-type]
        assert not (tmp_path / "out").exists()

    refused(r"no pronunciations.*lang=cy")
    refused(r"lang=swahili: espeak-ng does not know.*near matches: .*sw", lang="swahili")
    (source / "lang").mkdir()
    refused(r"lang: contains none of lexicon.txt", lang="sw")
    for name in ("a.arpa", "b.arpa"):
        (source / "lang" / name).write_text(ARPA)
    refused(r"contains 2 language models .a.arpa, b.arpa.", lang="sw")
    (source / "lang" / "b.arpa").unlink()
    refused(r"a.arpa: is a language model of words", units="sentencepiece")
    (source / "lang" / "lexicon.txt").write_text("мама M A M A\n")
    refused(r"have no pronunciation.*Latin letters.*lexicon.txt has Cyrillic letters")
    (source / "lang" / "lexicon.txt").write_text("mama\n")
    refused(r"lexicon.txt:1: mama has no phones")
    (source / "lang" / "lexicon.txt").write_text("mama M A M A\n")
    refused(r"lexicon.txt: 1 of its words", lang="sw")


@pytest.mark.parametrize("part", ["train", "dev", "test"])
def test_a_part_without_text(tmp_path: Path, part: str) -> None:
    for name in ("train", "dev", "test"):
        datadir(tmp_path / "source" / name, 2)
    (tmp_path / "source" / part / "text").unlink()
    with pytest.raises(Speech3Error, match=f"{part}: has no text; "):
        prepare(tmp_path / "source", tmp_path / "out", 1, lang="sw")


def test_text_in_another_script_than_the_language(tmp_path: Path) -> None:
    source = datadir(tmp_path / "all", words=["привет", "мама", "дом"])
    with pytest.raises(Speech3Error, match=r"Cyrillic letters.*check that lang=en-us is the language"):
        prepare(source, tmp_path / "out", 1, lang="en-us")
    source = datadir(tmp_path / "hindi", words=["नमस्ते", "किताब"])
    with pytest.raises(Speech3Error, match=r"not in lang=sw: espeak-ng reads it in the language hi"):
        prepare(source, tmp_path / "out", 1, lang="sw")


def test_features_alone_are_not_enough(tmp_path: Path) -> None:
    for name in ("train", "dev", "test"):
        source = datadir(tmp_path / "source" / name, 2)
        keys = [line.split()[0] for line in (source / "wav.scp").read_text().splitlines()]
        write_ark(source / "feats.ark", ((key, np.zeros((20, 3), np.float32)) for key in keys), source / "feats.scp")
        (source / "wav.scp").unlink()
    with pytest.raises(Speech3Error, match=r"train: has features, but no recordings.*speech3 pack"):
        prepare(tmp_path / "source", tmp_path / "out", 1, lexicon="graphemes")
    assert not (tmp_path / "out").exists()


def test_the_same_utterances_in_two_parts(tmp_path: Path) -> None:
    source = tmp_path / "source"
    datadir(source / "train")
    datadir(source / "test", 2)  # the same random numbers
    with pytest.raises(DataError, match="train and test have the same utterances, such as"):
        prepare(source, tmp_path / "out", 1, lexicon="graphemes")
    for number, sound in enumerate((source / "test" / "wav").iterdir()):  # other recordings of the same names
        soundfile.write(sound, 0.1 * np.random.default_rng(number).standard_normal(800), 8000)
    prepare(source, tmp_path / "out", 1, lexicon="graphemes")


def test_a_dev_set_of_new_words_is_refused_before_anything_is_trained_unless_they_can_be_pronounced(
    tmp_path: Path,
) -> None:
    source = tmp_path / "source"
    datadir(source / "train")
    datadir(source / "dev", 2, words=["kasuku", "simba"], seed=1)
    datadir(source / "test", 2, words=["kiwi"], seed=2)
    (source / "lang").mkdir()
    (source / "lang" / "lexicon.txt").write_text("".join(f"{word} {' '.join(word.upper())}\n" for word in WORDS))
    with pytest.raises(MissingError, match="dev: 40 of the 40 words of the transcripts"):
        prepare(source, tmp_path / "out", 1)
    assert not (tmp_path / "out").exists()
    (source / "lang" / "lexicon.txt").unlink()
    (source / "lang").rmdir()
    prepare(source, tmp_path / "out", 1, lang="sw")
    held_out = (tmp_path / "out" / "held_out_lexicon.txt").read_text().splitlines()
    assert {"kasuku k a s u k u", "simba s i m b a"} <= set(held_out)
    assert not {"kasuku", "simba", "kiwi"} & lexicon(tmp_path / "out").keys()
    phones = {
        phone for line in (tmp_path / "out" / "lexicon.txt").read_text().splitlines() for phone in line.split()[1:]
    }
    assert {phone for line in held_out for phone in line.split()[1:]} <= phones, "train has no w"


def test_new_words_come_in_the_phones_of_the_lexicon(tmp_path: Path) -> None:
    source = tmp_path / "source"
    datadir(source / "train")
    datadir(source / "dev", 2, words=["kasuku"], seed=1)
    datadir(source / "test", 2, words=["mama"], seed=2)
    (source / "lang").mkdir()
    syllables = [c + v for c in "kmtns" for v in "aiu"]
    made = [a + b for a in syllables for b in syllables]
    (source / "lang" / "lexicon.txt").write_text("".join(f"{w} {' '.join(w.upper())}\n" for w in made + WORDS))
    prepare(source, tmp_path / "out", 1, lang="sw")
    assert (tmp_path / "out" / "held_out_lexicon.txt").read_text() == "kasuku K A S U K U\n"


def test_noises_are_not_called_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "source"
    for seed, (name, words) in enumerate((("train", WORDS), ("dev", ["mama", "[laughs]"]), ("test", ["mama"]))):
        datadir(source / name, 2, words=words, seed=seed)
    prepare(source, tmp_path / "out", 1, lexicon="graphemes")
    assert "outside the vocabulary" not in capsys.readouterr().err


def test_a_dictionary_with_columns_and_lists_of_phones(tmp_path: Path) -> None:
    source = tmp_path / "source"
    datadir(source / "train")
    (source / "lang").mkdir()
    rows = [f"{word}\t0.99\t0.17\t1.43\t0.9\t{' '.join(word)}\n" for word in WORDS]
    (source / "lang" / "lexicon.txt").write_bytes(gzip.compress("".join([*rows, "[um]\tBRH\n"]).encode("utf-16")))
    (source / "lang" / "silence_phones.txt").write_text("SIL\nSPN BRH\n")
    (source / "lang" / "text").write_text("utt_1 mama leo\nutt_2 jana\n")
    prepare(source, tmp_path / "out", 1)
    found = read_lexicon(tmp_path / "out" / "lexicon.txt")
    assert found.by_word["mama"] == (Pronunciation("mama", tuple("mama"), 0.99),)
    assert set(found.noise_phones) == {"BRH", "SPN"} and set(found.phones) == {"SIL", "BRH", "SPN", *"".join(WORDS)}
    assert (tmp_path / "out" / "lm_text").read_text().splitlines()[-2:] == ["mama leo", "jana"]
    (source / "lang" / "text").write_text("mama leo\n<s> jana\n")
    with pytest.raises(Speech3Error, match=r"lang/text:2: <s> in the text"):
        prepare(source, tmp_path / "again", 1)
