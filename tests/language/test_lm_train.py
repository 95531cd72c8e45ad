"""From text and counts to a model, in ranges of words as in one."""

import gzip
import io
import sys
from pathlib import Path

import numpy as np
import pytest
import small_texts

from speech3.errors import MismatchError, Speech3Error
from speech3.language import kneser_ney
from speech3.language.arpa import read_arpa
from speech3.language.kneser_ney import estimate_lm
from speech3.language.ngrams import ArpaLm
from speech3.language.train_lm import train


def same(one: ArpaLm, other: ArpaLm, digits: float = 1e-12) -> bool:
    """The same n-grams with the same numbers, in whatever order."""
    return one.order == other.order and all(
        ours == {ngram: pytest.approx(values, abs=digits) for ngram, values in theirs.items()}
        for ours, theirs in zip(one.ngrams, other.ngrams, strict=True)
    )


def write(path: Path, sentences: list[list[str]]) -> Path:
    path.write_text("".join(f"{' '.join(sentence)}\n" for sentence in sentences))
    return path


@pytest.fixture
def on_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Ranges of about twenty words of text, and no memory for what waits."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(kneser_ney, "RANGE", 20)
    monkeypatch.setattr(kneser_ney, "_ROOM", 0)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    return tmp_path / "tmp"


@pytest.mark.parametrize("order", [1, 2, 4, 6])
def test_ranges_of_words_and_files_change_nothing(on_disk: Path, monkeypatch: pytest.MonkeyPatch, order: int) -> None:
    text = [["a"], [], *small_texts.text(60, seed=1), *small_texts.text(40, seed=2, words="uvwxyz")]
    in_ranges = estimate_lm(text, order)
    assert not list(on_disk.iterdir())
    monkeypatch.undo()
    whole = estimate_lm(text, order)
    for name in ("starts_N", "first_H", "word_G", "prob_G", "backoff_H"):
        np.testing.assert_array_equal(getattr(in_ranges, name), getattr(whole, name))


def test_many_words_need_more_than_one_integer() -> None:
    """Six words of 17 bits: two integers an n-gram."""
    rng, size = np.random.default_rng(0), 70_000
    packing = kneser_ney._Packing(6, size)
    assert packing.dtype["key"].shape == (2,)
    words_RN = rng.integers(0, size, (500, 6)).astype(np.int32)[rng.integers(0, 500, 2000)]
    rows_R = packing.merged(packing.packed(words_RN, np.ones(2000, np.int64)))
    expected, seen = np.unique(words_RN, axis=0, return_counts=True)
    np.testing.assert_array_equal(packing.words(rows_R), expected)
    np.testing.assert_array_equal(rows_R["count"], seen)


def test_files_of_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = small_texts.text(30, seed=3)
    first, second = write(tmp_path / "a.txt", text[:10]), tmp_path / "b.gz"
    content = "\n\n".join(" ".join(sentence) for sentence in text[10:20])  # no end of the line at its end
    second.write_bytes(gzip.compress(content.encode()))
    rest = "".join(f"  {' '.join(sentence)}\r\n" for sentence in text[20:])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(rest.encode())))
    monkeypatch.setattr("speech3.data.transcripts._BLOCK_BYTES", 7)  # a line ends in another block than it begins
    about = train([first, second, Path("-")], 3, tmp_path / "lm.arpa.gz")
    expected = estimate_lm(text, 3)
    assert same(read_arpa(tmp_path / "lm.arpa.gz"), expected, 1e-6)
    assert about.words == sum(map(len, text)) and about.unknown == 0
    assert about.sizes == tuple(map(len, expected.ngrams))


def ngram_counts(text: list[list[str]], order: int) -> str:
    """What SRILM's `ngram-count -order N -write` prints: all orders, `<s>` and `</s>` too."""
    found: dict[tuple[str, ...], int] = {}
    for sentence in text:
        words = ["<s>", *sentence, "</s>"]
        for length in range(1, order + 1):
            for i in range(len(words) - length + 1):
                ngram = tuple(words[i : i + length])
                found[ngram] = found.get(ngram, 0) + 1
    return "".join(f"{' '.join(ngram)}\t{count}\n" for ngram, count in sorted(found.items()))


@pytest.mark.parametrize("order", [1, 2, 3, 5])
@pytest.mark.parametrize("vocabulary", [None, "a b c zebra"])
def test_counts_give_the_model_of_their_text(tmp_path: Path, order: int, vocabulary: str | None) -> None:
    text = [["b"], *small_texts.text(50, seed=4)]
    path, words = tmp_path / "counts", tmp_path / "words"
    path.write_text(ngram_counts(text, order))
    listed = vocabulary.split() if vocabulary else None
    if listed:
        words.write_text("".join(f"{word} A B\n" for word in [*listed, "<s>", "!SIL", "<eps>"]))
    about = train([path], order, tmp_path / "lm.arpa", words if listed else None, counted=True)
    strange = sum(listed is not None and word not in listed for sentence in text for word in sentence)
    assert (about.words, about.unknown) == (sum(map(len, text)), strange)
    assert same(read_arpa(tmp_path / "lm.arpa"), estimate_lm(text, order, listed), 1e-6)


def test_unk_is_listed_but_not_in_the_text(tmp_path: Path) -> None:
    about = train(
        [write(tmp_path / "text", [["1", "2"]])],
        2,
        tmp_path / "lm.arpa",
        write(tmp_path / "words", [["1"], ["2"], ["<unk>"]]),
    )
    assert (about.words, about.unknown) == (2, 0)  # the words have numbers below that of <unk>


def test_counts_without_the_ends_of_sentences_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "counts").write_text("a b 3\nb a 2\na a 1\n")
    train([tmp_path / "counts"], 2, tmp_path / "lm.arpa", counted=True)
    assert "counts: no n-gram has <s> or </s>" in " ".join(capsys.readouterr().err.split())
    (tmp_path / "counts").write_text("<s> a 3\na b 3\nb </s> 3\n")
    train([tmp_path / "counts"], 2, tmp_path / "lm.arpa", counted=True)
    assert "no n-gram" not in capsys.readouterr().err


def test_counts_of_a_higher_order_serve_as_well(tmp_path: Path) -> None:
    text = [["b"], *small_texts.text(50, seed=5)]
    (tmp_path / "counts").write_text(ngram_counts(text, 4))
    train([tmp_path / "counts"], 3, tmp_path / "lm.arpa", counted=True)
    assert same(read_arpa(tmp_path / "lm.arpa"), estimate_lm(text, 3), 1e-6)


def test_rare_ngrams_leave_their_share_to_others(tmp_path: Path) -> None:
    text = small_texts.text(60, seed=6)
    train([write(tmp_path / "text", text)], 3, tmp_path / "lm.arpa", minimums=[1, 2, 3])
    whole, lm = estimate_lm(text, 3), read_arpa(tmp_path / "lm.arpa")
    seen = [[line.split("\t") for line in ngram_counts(text, order).splitlines()] for order in (1, 2, 3)]
    for order, minimum in ((2, 2), (3, 3)):
        frequent = {tuple(words.split()) for words, n in seen[order - 1] if int(n) >= minimum}
        assert set(lm.ngrams[order - 1]) == {ngram for ngram in frequent if len(ngram) == order}
        assert 0 < len(lm.ngrams[order - 1]) < len(whole.ngrams[order - 1])
    for history in (("never",), *small_texts.histories(lm)):
        assert small_texts.distribution(lm, history).sum() == pytest.approx(1, abs=1e-5)
    everything = train([tmp_path / "text"], 3, tmp_path / "short.arpa", minimums=[1, 2, 1000])
    assert len(everything.sizes) == read_arpa(tmp_path / "short.arpa").order == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"text: no sentences"),
        (b"\n \n\t\n", r"text: no sentences"),
        (b"a b\nb\n<s> a b </s>\n", r"text:3: </s> and <s> in the text.*sed -E 's:"),
        (b"a b\nb </s>", r"text:2: </s> in the text"),
        (b"a\nb\xe4rig\n", r"text:2: not UTF-8.*iconv"),
    ],
)
def test_texts_that_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "text").write_bytes(content)
    with pytest.raises(Speech3Error, match=message):
        train([tmp_path / "text"], 2, tmp_path / "lm.arpa")
    assert not (tmp_path / "lm.arpa").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no sentences"),
        ("a b\t2\na b c\n", r"counts:2: not words and a whole number: `a b c`"),
        ("a b 1.5\n", r"counts:1: not words and a whole number"),
        ("7\n", r"counts:1: not words"),
        ("a <s> 3\n", r"counts:1: <s> or </s> in the middle of `a <s>`"),
        ("a 3\nb 4\n", r"no 2-grams among the counts; the longest have 1 word: --order 1"),
    ],
)
def test_counts_that_are_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "counts").write_text(content)
    with pytest.raises(Speech3Error, match=message):
        train([tmp_path / "counts"], 2, tmp_path / "lm.arpa", counted=True)


def test_what_else_is_refused(tmp_path: Path) -> None:
    text, words = write(tmp_path / "text", [["a", "b"]]), tmp_path / "words"
    words.write_text("A a\nB b\n")
    with pytest.raises(MismatchError, match="words: none of the text's words is among its 2"):
        train([text], 2, tmp_path / "lm", words)
    words.write_text("<eps>\n")
    with pytest.raises(Speech3Error, match="words: no words"):
        train([text], 2, tmp_path / "lm", words)
    for order in (0, 7, -1):
        with pytest.raises(Speech3Error, match=f"text: n-gram order {order}: must be from 1 to 6"):
            train([text], order, tmp_path / "lm")
    for minimums in ([2], [1, 2, 1], [1, 1, 1, 1], [0, 1]):
        with pytest.raises(Speech3Error, match="minimum counts"):
            train([text], 3, tmp_path / "lm", minimums=minimums)
    with pytest.raises(Speech3Error, match=r"none\.txt: cannot be read \(No such file"):
        train([tmp_path / "none.txt"], 3, tmp_path / "lm")
    with pytest.raises(Speech3Error, match=r"cut\.gz: cannot be read"):
        (tmp_path / "cut.gz").write_bytes(gzip.compress(b"a b c\n" * 1000)[:30])
        train([tmp_path / "cut.gz"], 3, tmp_path / "lm")


def test_a_full_disk_is_named(tmp_path: Path, on_disk: Path) -> None:
    """/dev/full refuses every write; the spool's first file is a link to it."""
    with kneser_ney.Spool() as kept:
        kept.add(("first",), np.zeros(3))
        (directory,) = on_disk.iterdir()
        (directory / "second").symlink_to("/dev/full")
        with pytest.raises(Speech3Error, match=r"speech3-lm-.*: no space left on the disk.*TMPDIR"):
            kept.add(("second",), np.zeros(3))
    assert not list(on_disk.iterdir())
