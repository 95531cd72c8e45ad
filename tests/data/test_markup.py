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
        ("Tom &amp; Ann&#39;s&nbsp;dog", "tom ann's dog", ["HTML in text", "sign or word"]),
        ("<foreign>ciao</foreign> bella", "ciao bella", ["HTML in text"]),
        ("<b> hello <noise> [breath] <unk>", "<b> hello <noise> [breath] <unk>", ["tag or noise"]),
        ("<s> hello </s>", "<s> hello </s>", []),  # symbols, which the readers name
        ("SPEAKER1: hello", "hello", ["speaker in text"]),
        ("Interviewer: how\n[Speaker 2]: fine", "how fine", ["speaker in text"]),
        (">> ANNA: hello there", "hello there", ["speaker in text"]),
        ("SPEAKER_00: hello", "hello", ["speaker in text"]),
        ("A: hello", "a hello", ["speaker or word"]),
        ("Note: it rains", "note it rains", ["speaker or word"]),
        ("it is 10:30 and a:ni", "it is 10:30 and a:ni", []),
        ("Well, (soft laughter) yes. *Sighs*", "well [soft_laughter] yes [sighs]", ["noise in text"]),
        ("I left. (Music)\nYes (laughs)", "i left [music] yes [laughs]", ["noise in text"]),
        ("to (inaudible) yesterday", "to [inaudible] yesterday", ["noise in text"]),
        ("a (( )) b ((maybe)) c", "a [unintelligible] b maybe c", ["noise in text", "word or noise"]),
        ("they (the others) *really* left", "they the others really left", ["word or noise"]),
        ("♪ la la ♪ 👍🏽 ❤️ + 5", "la la + 5", ["emoji or symbol"]),
        ("<p>hello<br>there</p>", "hello there", ["HTML in text"]),
        ("<a href='x'>hello", "hello", ["HTML in text"]),
        ("plain words, it's <noise>", "plain words it's <noise>", []),
        ("1. Yes.\n2. No, no.\n3. Oh.\n", "yes no no oh", ["number in text"]),
        (" 0) yes\n\n1) no\n2) oh", "yes no oh", ["number in text"]),
        ("black & white", "black white", ["sign or word"]),
        ("a rise of 5%.", "a rise of 5", ["sign or word"]),
    ],
)
def test_markup_is_no_word(text: str, words: str, kinds: Sequence[str]) -> None:
    found, remarks = without_markup(text)
    assert plain_words(found) == words
    assert [remark.kind for remark in remarks] == kinds


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        *[("NASA: we have liftoff", ["speaker or word"]), ("OK: let us go", ["speaker or word"])],
        *[("COVID-19: what we know", ["speaker or word"]), ("U2: the band", ["speaker or word"])],
        *[
            ("I: think so", ["speaker or word"]),
            ("Я: люблю", ["speaker or word"]),
            ("participants: two", []),
            (">> the thing: it is", []),
        ],
        *[("the (noise) level", ["word or noise"]), ("the sound of (music)", ["word or noise"])],
        *[("the *noise* outside", ["word or noise"]), ("I heard a *click*", ["word or noise"])],
        *[("he (laughs) at it", ["word or noise"]), ("wind-(noise)-level", ["word or noise"])],
        *[("№ 5", []), ("20 ℃", []), ("5 ㎏", []), ("⠓⠑⠇⠇⠕", []), ("B ♭ and C ♯", []), ("❶ one", [])],
        *[("<p> hello <br>", ["tag or noise"]), ("<a> hello", ["tag or noise"])],
        *[("1. May", []), ("1. yes\n3. no", []), ("1. yes\nno", []), ("1\n2\n3", []), ("1.5 is\n2.5", [])],
        *[("1. Januar\n2. Januar", []), ("2. a\n3. b\n4. c", []), ("2024. év\n2025. év\n2026. év", [])],
    ],
)
def test_what_may_be_said_stays(text: str, kinds: Sequence[str]) -> None:
    found, remarks = without_markup(text)
    assert found == text
    assert [remark.kind for remark in remarks] == kinds


@pytest.mark.parametrize(
    ("text", "grapheme"),
    [
        ("A: bai", "a:"),
        ("k *click*", "*"),
        ("ba (click)", "("),
        ("♪ ba", "♪"),
        ("<b>a</b>", "<"),
        ("&amp; a", "&"),
        ("5 & a", "&"),
    ],
)
def test_marks_may_be_letters(text: str, grapheme: str) -> None:
    assert without_markup(text)[1]
    assert without_markup(text, (grapheme,)) == (text, [])
