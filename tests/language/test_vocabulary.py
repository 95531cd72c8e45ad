import unicodedata

import pytest

from speech3.errors import Speech3Error
from speech3.hmm.alignment.align import usable_transcripts
from speech3.language.lexicon import Lexicon, Pronunciation


def _lexicon(*words):
    return Lexicon(tuple(Pronunciation(word, ("a",)) for word in words))


@pytest.mark.parametrize("unknown", [[], ["<unk>"]])
@pytest.mark.parametrize(
    ("words", "texts", "message"),
    [
        (
            ["HELLO", "WORLD"],
            {"u1": "ПРИВЕТ МИР", "u2": "МИР"},
            r"3 of the 3 words of the transcripts \(100%\) are not in the lexicon, first in utterance u1; the"
            r" transcripts are in Cyrillic letters, the lexicon in Latin: give a lexicon for their language\n"
            r"  not in the lexicon: МИР, ПРИВЕТ\n  in the lexicon: HELLO, WORLD$",
        ),
        (["YI", "ER"], {"u1": "一 二 二"}, "transcripts are in CJK letters, the lexicon in Latin"),
        (["HELLO", "WORLD"], {"u1": "hello", "u2": "hello WORLD world"}, "3 of the 4 .* only in upper and lower case"),
        (["CAFÉ"], {"u1": unicodedata.normalize("NFD", "CAFÉ")}, r"only in the Unicode form of their letters"),
        (["ONE", "TWO"], {"u1": "EINS ZWEI DREI"}, "give the lexicon that belongs to these transcripts"),
        (["ONE"], {"u1": "a b c d e f g"}, r"not in the lexicon: a, b, c, d, e and 2 more\n"),
        (["ONE"], {"u1": "1 2 3"}, "the transcripts are in no letters, the lexicon in Latin"),
    ],
)
def test_transcripts_of_another_lexicon(unknown, words, texts, message):
    with pytest.raises(Speech3Error, match=message):
        usable_transcripts(texts, _lexicon(*unknown, *words), texts)


def test_up_to_half_of_the_words_may_be_missing():
    texts = {"u1": "ONE TWO eins zwei", "u2": "ONE TWO", "u3": "", "elsewhere": "eins zwei drei vier"}
    found = usable_transcripts(texts, _lexicon("ONE", "TWO", "<unk>"), ["u1", "u2", "u3"])
    assert found.words == {"u1": ["ONE", "TWO", "<unk>", "<unk>"], "u2": ["ONE", "TWO"]} and list(found.bad) == ["u3"]
    assert usable_transcripts(texts, _lexicon("ONE", "TWO"), ["u1", "u2"]).bad.keys() == {"u1"}
    assert usable_transcripts({}, _lexicon("ONE"), ["u1"]).bad == {"u1": "has no transcript"}
