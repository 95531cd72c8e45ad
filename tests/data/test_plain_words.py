"""Transcripts in plain words, with the characters of listed graphemes."""

import pytest

from speech3.data.transcripts import marked_at_edge, plain_words


@pytest.mark.parametrize(
    ("text", "graphemes", "words"),
    [
        ("K’ak’ TA: 'ala.", (), "k'ak ta ala"),
        ("K’ak’ TA: 'ala.", ("k'", "a:"), "k'ak' ta: ala"),
        ("K’ak’ TA: 'ala.", ("'",), "k'ak' ta 'ala"),
        ("na' k'a'?", ("k'",), "na k'a"),
        ("kʼakʼ", ("k'",), "k'ak'"),
        ("ma?a !xoo!", ("?", "!"), "ma?a !xoo!"),
        ("ma?a k!oo!", ("k!",), "ma a k!oo"),
        ("«Mama», [Laughs  loudly] ta·", ("a·",), "mama [laughs_loudly] ta·"),
    ],
)
def test_listed_graphemes_are_kept_where_they_match(text: str, graphemes: tuple[str, ...], words: str) -> None:
    assert plain_words(text, graphemes) == words


def test_words_that_lose_a_mark_at_one_edge() -> None:
    assert marked_at_edge("k’ak’ 'leo' ta:, ma:ma -na- : [a'] pa·") == ["k'ak'", "ta:", "pa·"]
