"""Counts against a Levenshtein distance of the test's own, and hand-counted cases."""

import math
from typing import Any

import pytest
from hypothesis import given, strategies as st

from speech3.errors import SettingError, Speech3Error
from speech3.evaluate.text import character_error_rate
from speech3.evaluate.wer import ErrorCounts, paired_test, score


def distance(ref: list[str] | str, hyp: list[str] | str) -> int:
    """Levenshtein by its definition, one row of the table at a time."""
    row = list(range(len(hyp) + 1))
    for i, left in enumerate(ref, 1):
        diagonal, row[0] = row[0], i
        for j, right in enumerate(hyp, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (left != right))
    return row[-1]


def joined(text: str) -> str:
    """The words joined by one space, by none beside a Chinese letter."""
    whole = ""
    for word in text.split():
        whole += ("" if not whole or whole[-1] in "日本" or word[0] in "日本" else " ") + word
    return whole


sentence = st.lists(st.sampled_from(["a", "b", "bc", "den", "ü", "日本"]), max_size=8).map(" ".join)


@given(st.lists(st.tuples(sentence, sentence), min_size=1, max_size=6).filter(lambda pairs: any(r for r, _ in pairs)))
def test_counts_are_the_levenshtein_distance(pairs: list[tuple[str, str]]) -> None:
    ref = {f"u{n}": pair[0] for n, pair in enumerate(pairs)}
    hyp = {f"u{n}": pair[1] for n, pair in enumerate(pairs)}
    result = score(ref, hyp)
    assert result.words.errors == sum(distance(r.split(), h.split()) for r, h in pairs)
    assert result.characters.errors == sum(distance(joined(r), joined(h)) for r, h in pairs)
    assert result.words.length == sum(len(r.split()) for r, _ in pairs)
    assert result.characters.length == sum(len(joined(r)) for r, _ in pairs)
    assert result.words.insertions - result.words.deletions == sum(len(h.split()) - len(r.split()) for r, h in pairs)
    assert result.wer == result.words.errors / result.words.length
    assert result.ser == sum(r != h for r, h in pairs) / len(pairs)


@given(st.lists(st.tuples(sentence, sentence), min_size=1, max_size=4).filter(lambda pairs: any(r for r, _ in pairs)))
def test_alignment_spells_both_sides_and_bears_the_counts(pairs: list[tuple[str, str]]) -> None:
    texts = [{f"u{n}": pair[side] for n, pair in enumerate(pairs)} for side in (0, 1)]
    for utterance, (ref, hyp) in zip(score(*texts).utterances, pairs, strict=True):
        alignment = utterance.alignment()
        assert " ".join(r for _, r, _ in alignment if r) == ref
        assert " ".join(h for _, _, h in alignment if h) == hyp
        kinds = [kind for kind, _, _ in alignment]
        assert all((kind == "equal") == (r == h) for kind, r, h in alignment)
        counts = utterance.words
        assert (counts.substitutions, counts.deletions, counts.insertions) == tuple(
            kinds.count(kind) for kind in ("substitute", "delete", "insert")
        )


def test_counted_by_hand() -> None:
    ref = {"a": "the cat sat on the mat", "b": "one two three", "c": "yes"}
    hyp = {"a": "the cat sit on mat", "b": "one two three four", "c": "yes"}
    result = score(ref, hyp)
    assert result.words == ErrorCounts(length=10, substitutions=1, deletions=1, insertions=1)
    assert result.wer == pytest.approx(0.3)
    assert result.ser == pytest.approx(2 / 3)
    # "the cat sat on the mat" (22) loses "the " and one vowel; "one two three" (13) gains " four"; "yes" (3).
    assert result.characters == ErrorCounts(length=38, substitutions=1, deletions=4, insertions=5)
    assert result.confusions == [("delete", "the", "", 1), ("insert", "", "four", 1), ("substitute", "sat", "sit", 1)]
    assert [u.name for u in result.worst(5)] == ["a", "b"]
    assert list(result.as_json()) == [
        "wer",
        "cer",
        "substitutions",
        "deletions",
        "insertions",
        "words",
        "ser",
        "wer_ci95",
        "missing",
    ]


def test_cer_counts_single_spaces_between_words() -> None:
    result = score({"a": "  ab   cd "}, {"a": "abcd"})
    assert result.characters == ErrorCounts(length=5, deletions=1)


@pytest.mark.parametrize(
    ("ref", "hyp", "counts"),
    [
        ("三 千 零 五", "三千零五", ErrorCounts(4)),
        ("三 千 零 五", "三 千 五", ErrorCounts(4, deletions=1)),
        ("二〇二六 年", "二 〇 二 五 年", ErrorCounts(5, substitutions=1)),
        ("我 爱 new york", "我爱 new yor", ErrorCounts(10, deletions=1)),
        ("カ タ ひ ら", "カタひら", ErrorCounts(4)),
        ("가 나 다", "가나 다", ErrorCounts(5, deletions=1)),  # Korean has spaces
        ("один два", "одиндва", ErrorCounts(8, deletions=1)),
    ],
)
def test_cer_counts_no_spaces_where_the_script_has_none(ref: str, hyp: str, counts: ErrorCounts) -> None:
    assert score({"a": ref}, {"a": hyp}).characters == counts
    rate = character_error_rate([ref, "ab c"], [hyp, "ab d"])
    assert rate == pytest.approx((counts.errors + 1) / (counts.length + 4))


def test_characters_rank_and_group_by_the_metric() -> None:
    ref = {"a": "三百 五十", "b": "一 二 三 四"}
    hyp = {"a": "三百 九九九", "b": "一 四"}
    result = score(ref, hyp, {"a": "x", "b": "y"})
    assert [u.name for u in result.worst(2)] == ["b", "a"]  # one word against two, but three characters against two
    assert [u.name for u in result.worst(2, "CER")] == ["a", "b"]
    assert result.by_speaker("CER") == {
        "x": ErrorCounts(4, substitutions=2, insertions=1),
        "y": ErrorCounts(4, deletions=2),
    }
    assert result.speakers == result.by_speaker("WER")
    other = score(ref, {"a": "三百 五九九", "b": "一 四"}, {"a": "x", "b": "y"})
    assert paired_test(result, other).difference == 0
    assert paired_test(result, other, metric="CER").difference == pytest.approx(-1 / 8)


def test_empty_reference_counts_insertions() -> None:
    result = score({"a": "", "b": "x y"}, {"a": "uh huh", "b": "x y"})
    assert result.words == ErrorCounts(length=2, insertions=2)
    assert result.wer == 1.0
    assert math.isnan(result.utterances[0].words.rate)


def test_missing_utterances_are_deletions_and_extra_ones_are_named() -> None:
    result = score({"a": "x y z", "b": "x"}, {"b": "x", "ghost": "boo"})
    assert result.words == ErrorCounts(length=4, deletions=3)
    assert result.missing == ("a",)
    assert result.extra == ("ghost",)


def test_speakers_add_up() -> None:
    ref = {"a1": "x y", "a2": "x", "b1": "x y z"}
    hyp = {"a1": "x", "a2": "q", "b1": "x y z"}
    result = score(ref, hyp, {"a1": "anna", "a2": "anna", "b1": "bert"})
    assert result.speakers == {"anna": ErrorCounts(3, 1, 1, 0), "bert": ErrorCounts(3, 0, 0, 0)}


@pytest.mark.parametrize(
    ("ref", "hyp", "speakers", "says"),
    [
        ({}, {"a": "x"}, None, "reference holds no utterance"),
        ({"a": "x"}, {}, None, "nothing was decoded"),
        ({"a": "x"}, {"b": "x"}, None, "the same set"),
        ({"a": " "}, {"a": "x"}, None, "no word"),
        ({"a": "x", "b": "y"}, {"a": "x"}, {"a": "s"}, "utterance b has no speaker"),
    ],
)
def test_faults_are_named(ref, hyp, speakers, says) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(Speech3Error, match=says):
        score(ref, hyp, speakers)


def test_line_of_a_recipe() -> None:
    ref = {f"u{n}": "abcd" for n in range(50)}
    hyp = {f"u{n}": "abcd" if n % 5 else "abxx" for n in range(50)}
    result = score(ref, hyp)
    low, high = result.wer_ci95
    assert result.line("fsdd", "dnn") == f"fsdd dnn WER 20.00 [{100 * low:.2f}, {100 * high:.2f}]"
    low, high = result.cer_ci95
    assert result.line("fsdd", "dnn", metric="CER") == f"fsdd dnn CER 10.00 [{100 * low:.2f}, {100 * high:.2f}]"


def test_compare_finds_a_clear_winner_and_no_difference() -> None:
    ref = {f"u{n}": "yes" for n in range(200)}
    poor = score(ref, {name: "no" if int(name[1:]) % 2 else "yes" for name in ref})
    good = score(ref, {name: "no" if int(name[1:]) % 20 == 1 else "yes" for name in ref})
    paired = paired_test(poor, good)
    assert paired.difference == pytest.approx(-0.45)
    assert paired.significant
    assert paired.verdict("poor", "good").startswith("good is significantly better than poor")
    assert paired_test(good, poor).verdict("good", "poor").startswith("good is significantly better than poor")
    assert paired_test(poor, poor).p_value == 1.0
    assert "no significant difference" in paired_test(poor, poor).verdict("poor", "poor")


def test_compare_needs_the_same_references() -> None:
    with pytest.raises(Speech3Error, match="same reference"):
        paired_test(score({"a": "x"}, {"a": "x"}), score({"b": "x"}, {"b": "x"}))


def test_references_of_other_lengths_have_their_own_rates() -> None:
    # Of { a / b c d e } x, each system is scored against what is nearest to it: two words, or five.
    first = score({"u": "a x", "v": "y z"}, {"u": "a x", "v": "y q"})
    other = score({"u": "b c d e x", "v": "y z"}, {"u": "b c d x", "v": "y z"})
    paired = paired_test(first, other)
    assert paired.difference == pytest.approx(1 / 7 - 1 / 4)
    assert paired.difference_ci95 == pytest.approx((-1 / 2, 1 / 5))  # v drawn twice, u drawn twice


@pytest.mark.parametrize(
    ("ref", "hyp", "normalize", "named"),
    [
        ({"u": ["a", "b"]}, {"u": "a b"}, (), r"ref\['u'\]"),
        ({"u": "a b"}, {"u": ["a", "b"]}, (), r"hyp\['u'\]"),
        ("a b", "a b", (), "ref='a b'"),
        ({"u": "a b"}, {"u": "a b"}, "lower", "normalize='lower'"),
    ],
)
def test_arguments_of_other_types_are_named(ref: Any, hyp: Any, normalize: Any, named: str) -> None:
    with pytest.raises(SettingError, match=named):
        score(ref, hyp, normalize=normalize)


def test_symbols_are_not_words() -> None:
    result = score({"u": "one <unk> two", "v": "three"}, {"u": "one two <noise>", "v": "<UNK> three <unk>"})
    assert result.words == ErrorCounts(3) and result.characters == ErrorCounts(12) and result.left_out == 4
