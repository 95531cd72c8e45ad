"""Markup in transcripts, as subtitles, HTML, Whisper's users, Fisher and oral histories have it."""

from collections.abc import Sequence

import pytest

from speech3.data import plain_words
from speech3.data.markup import without_markup


@pytest.mark.parametrize(
    ("text", "words", "kinds"),
    [
        ("<b>hello</b> world", "hello world", ["HTML in text"]),
        ('<i>un<u>believ</u>able</i><br/>yes <font color="#fff">no', "unbelievable yes no", ["HTML in text"]),
        ("<v Anna>hello <00:01.500><c.loud>there</c>", "hello there", ["HTML in text"]),
        ("Tom &amp; Ann&#39;s&nbsp;dog", "tom ann's dog", ["HTML in text"]),
        ("<foreign>ciao</foreign> bella", "ciao bella", ["HTML in text"]),
        ("<b> hello <noise> [breath] <unk>", "<b> hello <noise> [breath] <unk>", ["tag or noise"]),
        ("<s> hello </s>", "<s> hello </s>", []),  # symbols, which the readers name
        ("SPEAKER1: hello", "hello", ["speaker in text"]),
        ("Interviewer: how\n[Speaker 2]: fine", "how fine", ["speaker in text"]),
        (">> ANNA: hello there", "hello there", ["speaker in text"]),
        ("A: hello", "hello", ["speaker in text"]),
        ("Note: it rains", "note it rains", ["speaker or word"]),
        ("it is 10:30 and a:ni", "it is 10:30 and a:ni", []),
        ("well (laughs) (coughs loudly 2) yes", "well [laughs] (coughs loudly 2) yes", None),
        ("well (soft laughter) *sighs* yes", "well [soft_laughter] [sighs] yes", ["noise in text"]),
        ("a (( )) b ((maybe)) c", "a [unintelligible] b maybe c", ["noise in text", "words in parentheses"]),
        ("they (the others) *really* left", "they the others really left", ["words in parentheses"]),
        ("♪ la la ♪ 👍🏽 + 5 °", "la la + 5", ["picture in text"]),
        ("plain words, it's <noise>", "plain words it's <noise>", []),
    ],
)
def test_markup_is_no_word(text: str, words: str, kinds: Sequence[str] | None) -> None:
    found, remarks = without_markup(text)
    if kinds is None:
        assert "[laughs]" in found
        return
    assert plain_words(found) == words
    assert [remark.kind for remark in remarks] == kinds


def test_colons_may_be_letters() -> None:
    assert without_markup("A: bai", ("a:",))[0] == "A: bai"
