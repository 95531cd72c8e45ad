"""Pronunciations by rule: from espeak-ng's symbols or from letters, and by conversion from other phones.

Pure functions. A pronunciation is a tuple of phones; an empty one means that the word cannot be pronounced. Rare phones
are replaced by similar ones (`replace_rare`).

A conversion from one phone set to another is learned from words that have pronunciations in both. A source phone
becomes none, one or two target phones, found by expectation maximisation over monotone alignments (`graphones`; as in
Jiampojamarn et al. 2007, "Applying many-to-many alignments and hidden Markov models to letter-to-phoneme conversion",
without its HMM). The conversion of a phone depends on its neighbours if they were seen together often enough.

`check_vocabulary` compares transcripts and lexicon once, before each word is looked up: otherwise a lexicon with
`<unk>` would turn a transcript in another script, or in lower case, into nothing but `<unk>`.
"""

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from speech3.data import APOSTROPHES, lower_case
from speech3.errors import MissingError, listed
from speech3.language import graphones

Phones = tuple[str, ...]

PRIMARY, SECONDARY = "ˈ", "ˌ"
_VOWELS = frozenset("aeiouyæøœɐɑɒɔəɘɛɜɞɤɨɪɯɵɶɚɝʉʊʌʏᵻᵿ")
_SWITCH = re.compile(r"\([a-z0-9-]+\)")  # espeak switches to the phones of another language
_TONES = {"ɜ": "3", "ɵ": "8"}  # espeak prints tones 3 and 8 as the vowels that these digits are in ASCII-IPA
# Marks that change the letter before them; others (Indic vowel signs, points of Arabic and Hebrew) are sounds.
ATTACHED = frozenset({1, 7, 9, 107, 122, *range(200, 241)})  # overlays, nukta, virama, tones of Thai and Lao, accents
EDGE = "#"
_ROUNDS = 6
_SHAPES = ((1, 0), (1, 1), (1, 2))  # source phones, and target phones that they become
_MIN_SEEN = (3, 3, 3, 1)  # times that each kind of context must have been seen to be used
Pair = tuple[Phones, Phones]
_MAX_UNKNOWN = 0.5  # of the running words; real corpora have a fifth at worst
_SHOWN_WORDS = 5
# Words that are equal after one of these are the same word to a reader.
_SAME_WORD: dict[str, Callable[[str], str]] = {
    "upper and lower case": str.casefold,
    "the Unicode form of their letters (NFC, NFD)": lambda word: unicodedata.normalize("NFC", word),
}


def ipa_phones(symbols: Sequence[str], *, stress: bool = False) -> Phones:
    """Cut espeak's IPA symbols into phones.

    A diphthong, an affricate and a long vowel are one phone; a vowel with a consonant after it (``ɔːɹ``) is two, and a
    third vowel begins another (``aɪɚ``: ``aɪ ɚ``). A tone is a digit after its vowel (``ɑu2``). Stress is removed, or
    with `stress` put after its vowel (``ɑːˈ``); where it is distinctive (English), the vowel differs as well.

    `symbols`: as `espeak.pronounce` returns them.
    """
    phones: list[str] = []
    for symbol in symbols:
        bare = _SWITCH.sub("", symbol).replace("-", "")
        mark = bare[:1] if bare[:1] in (PRIMARY, SECONDARY) else ""
        found = _segments(bare.strip(PRIMARY + SECONDARY))
        if mark and stress and found:
            place = next((index for index, phone in enumerate(found) if phone[0] in _VOWELS), 0)
            found[place] += mark
        phones += found
    return tuple(phones)


def _segments(symbol: str) -> list[str]:
    symbol = unicodedata.normalize("NFD", symbol)
    tone = _tone(symbol)
    segments: list[str] = []
    for character in symbol[: len(symbol) - len(tone)]:
        previous = segments[-1] if segments else ""
        vowels = sum(c in _VOWELS for c in previous)
        if (previous and character not in _VOWELS and not character.isalpha()) or (
            previous and unicodedata.category(character) == "Lm"
        ):
            segments[-1] += character
        elif previous and (vowels == 1 if character in _VOWELS else not vowels):
            segments[-1] += character  # diphthong; affricate
        elif character.isalpha():
            segments.append(character)
    place = next((index for index, phone in enumerate(segments) if phone[0] in _VOWELS), len(segments) - 1)
    if segments and tone:
        segments[place] += "".join(_TONES.get(digit, digit) for digit in tone)
    return segments


def _tone(symbol: str) -> str:
    match = re.fullmatch(r".*?[^\W\d_].*?([0-9]+|(?<=[aeiouyəɛɔɨɯʊɑː])[ɜɵ])", symbol)
    return match[1] if match else ""


def spelled_out(symbols: Sequence[Sequence[str]], word: str) -> bool:
    """Did espeak name the letters one by one, as it does for a script that the language does not use?

    `symbols`: espeak's lists of symbols for `word`.
    """
    letters = sum(character.isalpha() for character in word)
    if any(character.isdigit() for character in word) or not letters:
        return False
    ideographs = any(unicodedata.category(character) == "Lo" for character in word)
    named = len(symbols) == letters >= 2 and not ideographs
    return named or sum(map(len, symbols)) > 3 * letters + 6


def read_in(symbols: Sequence[Sequence[str]]) -> str:
    """The language in which espeak pronounced a word from its beginning, if not the voice's own; else empty."""
    first = symbols[0][0] if symbols and symbols[0] else ""
    return first[1:-1] if _SWITCH.fullmatch(first) else ""


def letters(word: str, *, silent: bool = False) -> Phones:
    """Spell a word: each letter (grapheme), with the marks on it, is a phone; capitals become lower case.

    Korean syllables are split into their letters. Digits, punctuation, apostrophes and hyphens are left out, unless
    `silent` ones are letters, too:

    >>> letters("Don’t", silent=True)
    ('d', 'o', 'n', "'", 't')
    """
    found: list[str] = []
    for character in hangul_split(lower_case(word).replace("ς", "σ")):
        kind = unicodedata.category(character)[0]
        attached = kind == "M" and unicodedata.combining(character) in ATTACHED
        if attached and found:
            found[-1] += character
        elif silent or (kind in "LM" and not attached):
            found.append("'" if silent and character in APOSTROPHES else character)
    return tuple(found)


def hangul_split(text: str) -> str:
    """The text with Korean syllables split into their letters."""
    return "".join(unicodedata.normalize("NFD", c) if "가" <= c <= "힣" else c for c in text)


def script(words: Iterable[str]) -> str:
    """The script of most letters of `words`: Latin, CJK, ...; ``no`` if none."""
    return next(iter(scripts_of(Counter(words))), "no")


def scripts_of(counts: Mapping[str, int]) -> dict[str, tuple[int, list[str]]]:
    """The scripts of words, that of most letters first: the first word of the letters' Unicode names.

    Japanese kana count as CJK, since they are written together; letters such as ``ʼ`` and ``ʰ`` belong to any script.

    Returns: for each script its number of letters, and the three most frequent words that have some.
    """
    letters, words = Counter[str](), dict[str, Counter[str]]()
    for word, count in counts.items():
        for character in word:
            if character.isalpha() and unicodedata.category(character) != "Lm":
                name = unicodedata.name(character, "?").split()[0]
                name = "CJK" if name in ("CJK", "HIRAGANA", "KATAKANA") else name.capitalize()
                letters[name] += count
                words.setdefault(name, Counter())[word] += count
    ordered = sorted(letters, key=lambda name: (letters[name], name), reverse=True)
    return {name: (letters[name], sorted(words[name], key=lambda w: (-words[name][w], w))[:3]) for name in ordered}


def bare_letters(phone: str) -> str:
    """A phone's letters, without marks, lengths and tones."""
    return "".join(c for c in unicodedata.normalize("NFD", phone) if unicodedata.category(c) in ("Ll", "Lo", "Lt"))


def stand_ins(phones: Sequence[str], trained: Mapping[str, int]) -> dict[str, Phones]:
    """Replacements for phones that are not in training: the same phone with other marks, else its parts.

    ``é`` becomes ``e``, ``aː3`` becomes ``aː5``, a diphthong its two vowels.

    `trained`: how often each phone that has its own model occurs.

    Returns: the replacement of each of `phones`; empty if no phone is similar.
    """
    alike: dict[str, str] = {}
    for phone in sorted(trained, key=lambda phone: (-trained[phone], phone)):
        alike.setdefault(bare_letters(phone), phone)
    table: dict[str, Phones] = {}
    for phone in dict.fromkeys(phones):
        if phone in trained:
            table[phone] = (phone,)
        elif (bare := bare_letters(phone)) in alike:
            table[phone] = (alike[bare],)
        else:
            parts = [alike.get(character, "") for character in bare]
            table[phone] = tuple(parts) if parts and all(parts) else ()
    return table


def replace_rare(
    pronunciations: Mapping[str, Sequence[Phones]],
    counts: Mapping[str, int],
    least: int,
    alike: Callable[[Sequence[str], Mapping[str, int]], dict[str, Phones]] = stand_ins,
) -> tuple[dict[str, list[Phones]], dict[str, Phones]]:
    """Replace phones with fewer than `least` occurrences in training, if similar phones exist.

    `counts`: how often each word occurs in the training transcripts.
    `alike`: finds the replacements of phones among those that are frequent enough.

    Returns: the pronunciations, none for a word with a phone that cannot be trained or replaced; and what replaced each
    rare phone.
    """
    occurrences = Counter[str]()
    for word, variants in pronunciations.items():
        for phone in variants[0] if variants else ():
            occurrences[phone] += counts.get(word, 0)
    trained = {phone: count for phone, count in occurrences.items() if count >= least}
    table = alike(sorted(occurrences), trained)
    table |= {phone: (phone,) for phone, like in table.items() if not like and occurrences[phone]}
    result: dict[str, list[Phones]] = {}
    for word, variants in pronunciations.items():
        result[word] = with_replaced(variants, table)
    return result, {phone: like for phone, like in table.items() if like != (phone,)}


def with_replaced(variants: Iterable[Phones], table: Mapping[str, Phones]) -> list[Phones]:
    """Pronunciations with phones replaced by those of `table`; none for one with a phone that has no replacement."""
    possible = (phones for phones in variants if all(table.get(phone) for phone in phones))
    return list(dict.fromkeys(tuple(new for phone in phones for new in table[phone]) for phones in possible))


@dataclass(frozen=True)
class Conversion:
    """What a phone becomes in the context of both neighbours, one or none; the first of these that is known counts."""

    tables: tuple[dict[tuple[str, ...], Phones], ...]

    def __call__(self, phones: Phones) -> Phones:
        """Convert a pronunciation; the result is empty if one of its phones was never seen."""
        result: list[str] = []
        for keys in _contexts(phones):
            (phone,) = keys[-1]
            bare = phone.rstrip(PRIMARY + SECONDARY)
            other_stress = [((bare + mark,), self.tables[-1]) for mark in ("", PRIMARY, SECONDARY)]
            tried = [*zip(keys, self.tables, strict=True), *other_stress]
            chunk = next((table[key] for key, table in tried if key in table), None)
            if chunk is None:
                return ()
            result += chunk
        return tuple(result)


def _contexts(phones: Phones) -> Iterator[tuple[tuple[str, ...], ...]]:
    for before, phone, after in zip((EDGE, *phones), phones, (*phones[1:], EDGE), strict=False):
        yield (before, phone, after), (phone, after), (before, phone), (phone,)


def learn(pairs: Sequence[Pair]) -> Conversion:
    """Learn a conversion from pairs of pronunciations of the same words."""
    # Find which target phones each source phone becomes in each pair.
    sources, targets = (sorted({phone for pair in pairs for phone in pair[side]}) for side in (0, 1))
    words = graphones.numbered(pairs, sources, targets)
    cuts = list(graphones.cut(words, graphones.learn(words, _SHAPES, _ROUNDS), _SHAPES))
    target_T2 = graphones.symbols_of(np.concatenate(cuts), words.sizes)[1]
    chunks = iter([tuple(targets[n] for n in row if n >= 0) for row in target_T2.tolist()])
    # The most frequent ones in each context.
    tables: list[defaultdict[tuple[str, ...], Counter[Phones]]] = [defaultdict(Counter) for _ in _MIN_SEEN]
    for (source, _), cut in zip(pairs, cuts, strict=True):
        for keys in _contexts(source) if len(cut) else ():
            chunk = next(chunks)
            for table, key in zip(tables, keys, strict=True):
                table[key][chunk] += 1
    return Conversion(tuple(map(_most_frequent, tables, _MIN_SEEN)))


def _most_frequent(table: Mapping[tuple[str, ...], Counter[Phones]], least: int) -> dict[tuple[str, ...], Phones]:
    return {
        key: min(seen, key=lambda chunk: (-seen[chunk], chunk)) for key, seen in table.items() if seen.total() >= least
    }


def phone_errors(truth: Sequence[Sequence[Phones]], guesses: Sequence[Phones]) -> float:
    """Phone error rate: edits per reference phone. If a word has several pronunciations, the nearest counts."""
    errors = total = 0
    for variants, guess in zip(truth, guesses, strict=True):
        distance, length = min((edit_distance(variant, guess), len(variant)) for variant in variants)
        errors, total = errors + distance, total + length
    return errors / max(total, 1)


def edit_distance(a: Sequence[object], b: Sequence[object]) -> int:
    """Levenshtein distance: the smallest number of substitutions, deletions and insertions."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        diagonal, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (x != y))
    return row[-1]


def check_vocabulary(texts: Mapping[str, str | None], known: Collection[str]) -> None:
    """Check that most words of the transcripts are in the lexicon.

    `texts`: transcript of each utterance.
    `known`: the words of the lexicon.
    Raises Speech3Error: more than half are not. The message shows words of both and, if known, the cause: another
    script, or another case.
    """
    words = Counter(word for text in texts.values() for word in (text or "").split())
    unknown = Counter({word: count for word, count in words.items() if word not in known})
    if unknown.total() <= _MAX_UNKNOWN * words.total():
        return
    utterance = next(key for key, text in texts.items() if set((text or "").split()) & unknown.keys())
    spelled = [word for word in known if not word.startswith(("<", "!"))] or list(known)
    raise MissingError(
        f"{unknown.total():,} of the {words.total():,} words of the transcripts ({unknown.total() / words.total():.0%})"
        f" are not in the lexicon, first in utterance {utterance}; {_cause(unknown, spelled)}\n"
        f"  not in the lexicon: {listed((word for word, _ in unknown.most_common()), _SHOWN_WORDS)}\n"
        f"  in the lexicon: {listed(spelled, _SHOWN_WORDS)}"
    )


def _cause(unknown: Counter[str], spelled: list[str]) -> str:
    for difference, plain in _SAME_WORD.items():
        known = {plain(word) for word in spelled}
        if sum(count for word, count in unknown.items() if plain(word) in known) > unknown.total() / 2:
            return f"most of them differ from its words only in {difference}: write both the same way"
    here, there = script(unknown.elements()), script(spelled)
    if here != there:
        return f"the transcripts are in {here} letters, the lexicon in {there}: pass a lexicon for their language"
    return "pass the lexicon that belongs to these transcripts, or add their words to it"
