"""Check that transcripts and lexicon have the same words, once for all utterances, before each is looked up.

Otherwise a lexicon with `<unk>` would turn a transcript in another script, or in lower case, into nothing but `<unk>`.
"""

import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Mapping

from speech3.errors import Speech3Error, listed
from speech3.lexicon.pronounce import script

_MOST_UNKNOWN = 0.5  # of the running words; real corpora have a fifth at worst
_SHOWN = 5

# Words that are equal after one of these are the same word to a reader.
_SAME: dict[str, Callable[[str], str]] = {
    "upper and lower case": str.casefold,
    "the Unicode form of their letters (NFC, NFD)": lambda word: unicodedata.normalize("NFC", word),
}


def check_vocabulary(texts: Mapping[str, str | None], known: Collection[str]) -> None:
    """Check that most words of the transcripts are in the lexicon.

    Parameters
    ----------
    texts
        Transcript of each utterance.
    known
        The words of the lexicon.

    Raises
    ------
    Speech3Error
        More than half are not. The message shows words of both and, if known, the cause: another script, or another
        case.
    """
    words = Counter(word for text in texts.values() for word in (text or "").split())
    unknown = Counter({word: count for word, count in words.items() if word not in known})
    if unknown.total() <= _MOST_UNKNOWN * words.total():
        return
    utterance = next(key for key, text in texts.items() if set((text or "").split()) & unknown.keys())
    spelled = [word for word in known if not word.startswith(("<", "!"))] or list(known)
    raise Speech3Error(
        f"{unknown.total():,} of the {words.total():,} words of the transcripts ({unknown.total() / words.total():.0%})"
        f" are not in the lexicon, first in utterance {utterance}; {_cause(unknown, spelled)}\n"
        f"  not in the lexicon: {listed((word for word, _ in unknown.most_common()), _SHOWN)}\n"
        f"  in the lexicon: {listed(spelled, _SHOWN)}"
    )


def _cause(unknown: Counter[str], spelled: list[str]) -> str:
    for difference, plain in _SAME.items():
        known = {plain(word) for word in spelled}
        if sum(count for word, count in unknown.items() if plain(word) in known) > unknown.total() / 2:
            return f"most of them differ from its words only in {difference}: write both the same way"
    here, there = script(unknown.elements()), script(spelled)
    if here != there:
        return f"the transcripts are in {here} letters, the lexicon in {there}: give a lexicon for their language"
    return "give the lexicon that belongs to these transcripts, or add their words to it"
