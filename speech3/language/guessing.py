"""Pronunciations for all words: from the user's lexicon, from espeak-ng, or from their letters (graphemes)."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from speech3.data import case_doubts, has_case_rules, lower_case
from speech3.errors import (
    DataError,
    MachineError,
    MismatchError,
    MissingError,
    SettingError,
    Speech3Error,
    counted,
    listed,
)
from speech3.language import espeak, g2p
from speech3.language.graphemes import Graphemes, near_letters, silent_characters, uses_apostrophes
from speech3.language.lexicon import (
    NOISES,
    LexiconLine,
    is_word,
    lexicon_entries,
    lexicon_lines,
    read_lexicon_text,
    say_doubtful,
)
from speech3.language.pronounce import (
    Conversion,
    Phones,
    ipa_phones,
    learn,
    letters,
    phone_errors,
    read_in,
    replace_rare,
    script,
    spelled_out,
    stand_ins,
    with_replaced,
)
from speech3.runtime import say

UNKNOWN_LINE = "<unk> SPN"
_MIN_OCCURRENCES = 5  # phones with fewer occurrences in training are replaced by similar ones
# words pronounced by both, from which a lexicon's phones are learned
ENOUGH_PAIRS = 50
_MAX_PAIRS = 8000
_MAX_CHECKED, _SAME = 200, 0.8  # words compared with espeak-ng, and the share that must be equal
_BRACKETED = re.compile(r"[<\[({].*[>\])}]")  # <noise>, [laughter]
_MANY_LETTERS = 200
_REGULAR = 0.05  # share of wrong phones; if n-grams make more, `convert` is not tried: on minilibri it is always worse
_FOREIGN = "reads it in the language "

PronunciationTable = dict[str, list[Phones]]


@dataclass(frozen=True)
class PronouncedVocabulary:
    """The vocabulary with its pronunciations."""

    lines: list[str]  # lines of ``lexicon.txt``
    known: frozenset[str]  # words that have a pronunciation
    # `guessed`, `how`: words whose pronunciation was guessed, and a description of how
    guessed: Mapping[str, Sequence[Phones]] = field(default_factory=dict)
    how: str = ""
    unpronounced: Mapping[str, str] = field(default_factory=dict)  # words without a pronunciation, with the reason
    # phones that are too rare in training, with their replacements
    replaced: Mapping[str, Phones] = field(default_factory=dict)
    # how words are spelled, where their letters are their phones
    spelling: Graphemes = field(default_factory=Graphemes)
    # pronounces more words in the same way, by phones that train has; words that it cannot pronounce are left out
    further: Callable[[Sequence[str]], PronunciationTable] = lambda _: {}
    by: str = ""  # how words were guessed that the user's lexicon lacks, for messages: ``by espeak-ng (cy)``

    def spell(self, piece: str) -> Phones:
        """Phones of a word piece: its letters."""
        return tuple(phone for letter in self.spelling(piece) for phone in self.replaced.get(letter, (letter,)))


def check_language(language: str) -> None:
    """Raise an error if the code of a language is mistaken, although espeak-ng is not needed to pronounce words.

    Known are the languages of espeak-ng, and those with rules of letter case; without espeak-ng, every form of a code.
    """
    try:
        espeak.voice_of(language)
    except MachineError as error:
        if not re.fullmatch(r"(?:\w+/)?[a-zA-Z]{2,3}(?:[-_]\w+)*", language):
            raise SettingError(f"lang={language}: is no code of a language; use one such as tr or en-us") from error
    except SettingError as error:
        if not has_case_rules(language):
            message = str(error).partition("; or set lexicon=graphemes")[0]
            raise error.restated(f"{message}; or remove it") from error


def check_pronounceable(lexicon: Path | None, lang: str | None, *, spelled: bool) -> None:
    """Raise the errors of `guess_pronunciations` that do not depend on the words."""
    if lang and spelled:
        check_language(lang)
    elif lang and not lexicon:
        espeak.voice_of(lang)
    elif not (spelled or lexicon):
        raise MissingError(
            "no pronunciations: there is no lang/lexicon.txt; set the language, so that espeak-ng guesses them, as in"
            " lang=cy (`speech3 recipe any --source DIR lang=cy`), or lexicon=graphemes to spell words by their letters"
        )


def guess_pronunciations(
    wanted: Sequence[str],
    counts: Mapping[str, int],
    lexicon: Path | None,
    lang: str | None,
    *,
    spelled: bool,
    graphemes: Sequence[str] = (),
    kept: Path | None = None,
) -> PronouncedVocabulary:
    """Find a pronunciation for each word of `wanted`.

    Parameters
    ----------
    wanted
        The words of the training transcripts and of the language model.
    counts
        How often each word occurs in the transcripts.
    lexicon
        The user's lexicon; all its words are kept.
    spelled
        Pronounce all words by their letters, even if there is a lexicon.
    graphemes
        Then these are one phone each (`Graphemes.given`).
    kept
        A file to keep what was learnt from the lexicon in.

    Raises
    ------
    Speech3Error
        There is neither a lexicon nor a language, the language is not known, espeak-ng pronounces too few words of the
        lexicon, or most of the training text cannot be pronounced.
    """
    check_pronounceable(lexicon, lang, spelled=spelled)
    if spelled:
        words = _by_letters(wanted, counts, graphemes, lang or "")
    elif lexicon:
        words = _by_lexicon(wanted, counts, lexicon, lang, kept)
    else:
        words = _by_espeak(wanted, counts, lang or "")
    _check_coverage(words, counts, lexicon if not spelled else None, lang)
    return words


def _check_coverage(
    words: PronouncedVocabulary, counts: Mapping[str, int], lexicon: Path | None, lang: str | None
) -> None:
    # A text in another case than the lexicon's is no text of unknown words, though they could be guessed.
    known = words.known if lang or not lexicon else words.known - words.guessed.keys()
    missing = {word: count for word, count in counts.items() if word not in known}
    total = sum(counts.values())
    if not missing or sum(missing.values()) <= 0.5 * total:
        return
    frequent = sorted(missing, key=lambda word: (-missing[word], word))[:5]
    message = (
        f"{sum(missing.values()):,} of the {total:,} words of the training text have no pronunciation, for instance"
        f" {', '.join(frequent)} ({script(missing)} letters)"
    )
    if lexicon:
        raise MismatchError(
            f"{message}; {lexicon} has {script(known)} letters, as in {', '.join(sorted(known)[-3:])}:"
            " spell both the same way (script, upper or lower case), or set lang=CODE to let espeak-ng guess the rest"
        )
    if lang:
        raise DataError(
            f"{message}: espeak-ng does not pronounce them in {lang}, or only names their letters; check that"
            f" lang={lang} is the language of the text, or set lexicon=graphemes to spell any script by its letters"
        )
    raise DataError(f"{message}: they have no letters; write numbers as words")


def _lines(table: Mapping[str, Sequence[Phones]], probability: str = "") -> list[str]:
    return [f"{word} {probability}{' '.join(phones)}" for word, variants in table.items() for phones in variants]


def _finish(
    table: PronunciationTable,
    counts: Mapping[str, int],
    reasons: Mapping[str, str],
    pronounce: Callable[[Sequence[str]], PronunciationTable],
    how: str = "",
    spelling: Graphemes | None = None,
) -> PronouncedVocabulary:
    """Replace rare phones by similar ones, and list the words left without a pronunciation.

    The pronunciations are guesses, to be listed, unless they are spellings; `pronounce` makes those of further words.
    """
    _say_lacking(table, counts, "letters" if spelling else "phones")
    kept, replaced = replace_rare(table, counts, _MIN_OCCURRENCES, near_letters if spelling else stand_ins)
    pronounced = {word: variants for word, variants in kept.items() if variants}
    unpronounced = {
        word: reasons.get(word) or "has a phone that does not occur in train" for word in kept if word not in pronounced
    }
    what = "letters" if spelling else "phones"
    _say_replaced(f"{what} with fewer than {_MIN_OCCURRENCES} occurrences in train", dict(sorted(replaced.items())))
    trained = Counter[str]()
    for word, variants in pronounced.items():
        trained.update({phone: counts.get(word, 0) for phones in variants for phone in phones})
    return PronouncedVocabulary(
        [UNKNOWN_LINE, *_lines(pronounced)],
        frozenset(pronounced),
        {} if spelling else pronounced,
        how.format(words=f"{len(pronounced):,} of {len(table):,} words"),
        unpronounced,
        replaced,
        spelling or Graphemes(),
        lambda new: _in_phones_of_train(
            pronounce(new),
            replaced,
            trained,
            "that train lacks",
            letters=spelling is not None,
        ),
    )


def _say_lacking(table: PronunciationTable, counts: Mapping[str, int], what: str) -> None:
    """Say which phones of the words train lacks, with words that have them: sentences to record."""
    heard = {phone for word in table if counts.get(word) for phones in table[word] for phone in phones}
    lacking: dict[str, list[str]] = {}
    for word, variants in table.items():
        for phone in sorted({phone for phones in variants[:1] for phone in phones} - heard):
            lacking.setdefault(phone, []).append(word)
    if heard and lacking:
        shown = "; ".join(f"{phone} in {listed(words, 3)}" for phone, words in sorted(lacking.items()))
        say(f"  {what} of the text that train lacks (record words with them): {shown}")


def _say_replaced(which: str, like: Mapping[str, Phones]) -> None:
    """Say which phones are treated as others, and which have no similar one, so that words with them are left out."""
    if shown := ", ".join(f"{phone} as {' '.join(others)}" for phone, others in like.items() if others):
        say(f"  {which} are treated as others: {shown}")
    if alone := [phone for phone, others in like.items() if not others]:
        say(f"  {which}, with no similar one, so that words with them have no pronunciation: {', '.join(alone)}")


def _in_phones_of_train(
    table: PronunciationTable,
    replaced: Mapping[str, Phones],
    trained: Mapping[str, int],
    why: str,
    *,
    letters: bool = False,
) -> PronunciationTable:
    """Replace phones that train lacks by similar ones, like rare ones; words that have no such phone are left out.

    `why`: completes the note of what was replaced, "phones that ...".
    """
    strange = {phone for variants in table.values() for phones in variants for phone in phones}
    strange -= trained.keys() | replaced.keys()
    like = (near_letters if letters else stand_ins)(sorted(strange), trained)
    _say_replaced(f"{'letters' if letters else 'phones'} {why}", like)
    known: dict[str, Phones] = {phone: (phone,) for phone in trained}
    known |= {**replaced, **like}
    result: PronunciationTable = {}
    for word, variants in table.items():
        if found := with_replaced(filter(None, variants), known):
            result[word] = found
    return result


def _by_letters(
    wanted: Sequence[str], counts: Mapping[str, int], graphemes: Sequence[str], language: str
) -> PronouncedVocabulary:
    spell = Graphemes(tuple(graphemes), uses_apostrophes(counts), language)
    if not language and (doubt := case_doubts(wanted)):
        say(f"  warning: {doubt}")
    table = _spelled(wanted, spell)
    used = {letter for variants in table.values() for phones in variants for letter in phones}
    apostrophe = "; the apostrophe is one of them" if "'" in used else ""
    say(f"  {len(table):,} words are spelled by their letters, {len(used)} different ones{apostrophe}")
    if unused := [grapheme for grapheme in graphemes if grapheme not in used and not (set(spell(grapheme)) & used)]:
        say(f"  unused graphemes: {', '.join(unused)}")
    spoken = {word: count for word, count in counts.items() if not _BRACKETED.fullmatch(word)}
    if silent := silent_characters(spoken, spell):
        say(f"  unpronounced characters in train: {silent}")
    if len(used) > _MANY_LETTERS:
        say("  this is not an alphabet, and each letter must occur often; set lang=CODE to let espeak-ng guess phones")
    reasons = {word: "has no letter" for word in table if not table[word]}
    return _finish(table, counts, reasons, partial(_spelled, spell=spell), spelling=spell)


def _spelled(words: Sequence[str], spell: Graphemes) -> PronunciationTable:
    return {word: [phones] if not _BRACKETED.fullmatch(word) and (phones := spell(word)) else [] for word in words}


def _by_espeak(wanted: Sequence[str], counts: Mapping[str, int], lang: str) -> PronouncedVocabulary:
    voice = espeak.voice_of(lang)
    table, reasons = _heard(wanted, voice)
    foreign = sum(counts.get(word, 0) for word, why in reasons.items() if why.startswith(_FOREIGN))
    if foreign > 0.5 * sum(counts.values()):
        read = max(why for why in reasons.values() if why.startswith(_FOREIGN))
        raise DataError(
            f"{foreign:,} of the {sum(counts.values()):,} words of the training text ({script(counts)} letters) are"
            f" not in lang={lang}: espeak-ng {read}; set the language of the text"
        )
    how = f"{{words}} guessed by espeak-ng ({lang})"
    return _finish(table, counts, reasons, lambda new: _heard(new, voice)[0], how)


def _heard(words: Sequence[str], voice: str) -> tuple[PronunciationTable, dict[str, str]]:
    alone, reasons = _spoken(words, voice, stress=False)
    again, _ = _spoken([f"{word} {word}" for word in words], voice, stress=False)
    table: PronunciationTable = {}
    for word in words:
        phones, twice = alone[word], again[f"{word} {word}"]
        before_another = twice[: len(twice) - len(phones)] if twice[len(twice) - len(phones) :] == phones else ()
        table[word] = [] if not phones else list(dict.fromkeys(v for v in (phones, before_another) if v))
    return table, reasons


def _spoken(words: Sequence[str], voice: str, *, stress: bool) -> tuple[dict[str, Phones], dict[str, str]]:
    """Phones of each word (none if it cannot be pronounced), and remarks: why there are none, or a foreign language."""
    capitals = sum(word.isupper() for word in words) > len(words) / 2  # otherwise espeak takes them for abbreviations
    said = espeak.pronounce([lower_case(word, voice) if capitals else word for word in words], voice)
    found: dict[str, Phones] = {}
    reasons: dict[str, str] = {}
    for word, groups in zip(words, said, strict=True):
        phones = ipa_phones([symbol for group in groups for symbol in group], stress=stress)
        if _BRACKETED.fullmatch(word):
            phones, reasons[word] = (), "is not a word"
        elif not phones:
            reasons[word] = "espeak-ng says nothing"
        elif spelled_out(groups, word):
            phones, reasons[word] = (), "espeak-ng only names its letters, as for another script"
        elif foreign := read_in(groups):
            reasons[word] = f"{_FOREIGN}{foreign}"
        found[word] = phones
    return found, reasons


def _by_lexicon(
    wanted: Sequence[str], counts: Mapping[str, int], lexicon: Path, lang: str | None, kept: Path | None
) -> PronouncedVocabulary:
    text = read_lexicon_text(lexicon)
    table = lexicon_entries(text, lexicon)
    rows = list(lexicon_lines(text, lexicon))
    say_doubtful(rows, lexicon)
    _say_lacking({word: table[word] for word in wanted if word in table}, counts, "phones")
    with_probabilities = any(row.values for row in rows)
    lines = _given_lines(rows, with_probabilities)
    if "<unk>" not in table:
        lines.append(UNKNOWN_LINE)
    further = partial(_further_converted, table=table, lexicon=lexicon, lang=lang)
    missing = [word for word in wanted if word not in table]
    if not missing:
        if lang:
            check_language(lang)
        return PronouncedVocabulary(lines, frozenset(table), further=further)
    guessed, reasons, by = _converted(missing, table, lexicon, lang, kept)
    how = f"{len(guessed):,} of {len(wanted):,} words guessed {by}, in the phones of {lexicon.name}"
    other = "has a phone that the lexicon lacks" if by else "is not in the lexicon"
    unpronounced = {word: reasons.get(word) or other for word in missing if word not in guessed}
    known = frozenset(table) | frozenset(guessed)
    added = _lines(guessed, "1.0 " if with_probabilities else "")
    return PronouncedVocabulary(
        [*lines, *added], known, guessed, how if by else "", unpronounced, further=further, by=by
    )


def _given_lines(rows: Sequence[LexiconLine], with_probabilities: bool) -> list[str]:
    if not with_probabilities:
        return [f"{row.word} {' '.join(row.phones)}" for row in rows]
    return [f"{row.word} {float(row.values[0]) if row.values else 1.0} {' '.join(row.phones)}" for row in rows]


def _further_converted(
    words: Sequence[str], table: PronunciationTable, lexicon: Path, lang: str | None
) -> PronunciationTable:
    try:
        return _converted(words, table, lexicon, lang)[0]
    except Speech3Error:  # the lexicon is too small to learn from, but has all words of train
        return {}


def _converted(
    words: Sequence[str], table: PronunciationTable, lexicon: Path, lang: str | None, kept: Path | None = None
) -> tuple[PronunciationTable, dict[str, str], str]:
    """Pronounce words in the phones of a lexicon, where that is possible; with the remarks of `_spoken`, and how.

    By its own words (`g2p`) or, if there is a language, by espeak-ng: by whichever is better on words
    that are held out. The other pronounces what this one cannot. No word is pronounced, and `how` is empty, if the
    lexicon has too few words for the first and there is no language for the second.
    """
    # A lexicon that espeak-ng made: its phones are the lexicon's.
    spelled = _spelled_words(table)
    if lang and _are_espeaks(table, list(spelled), voice := espeak.voice_of(lang)):
        said, reasons = _heard(words, voice)
        trained = Counter(phone for word in spelled for phones in table[word] for phone in phones)
        heard = {word: variants for word, variants in said.items() if variants}
        found = _in_phones_of_train(heard, {}, trained, "that the lexicon lacks")
        for word in heard.keys() - found.keys():
            lacking = sorted({phone for phone in heard[word][0] if not stand_ins([phone], trained)[phone]})
            reasons[word] = f"has {' '.join(lacking)}, which no word of the lexicon has"
        return found, reasons, f"by espeak-ng ({lang}), whose phones they are"
    # From the lexicon's own words, by n-grams of graphones.
    taught = [word for word in sorted(table) if not _BRACKETED.fullmatch(word)]
    held_out = _held_out(list(spelled))
    model = g2p.learnt({word: table[word] for word in spelled}, held_out, str(lexicon), kept)
    by_model, unread = g2p.apply(model, words) if model else ({}, {})
    how = f"as {lexicon.name} pronounces its words (of its phones in held-out words {{}} wrong)"
    if not lang:
        by = how.format(f"{model.wrong:.1%} are") if model else ""
        return {word: [phones] for word, phones in by_model.items()}, unread, by

    # From espeak-ng, in the lexicon's phones; whichever errs less on held-out words comes first.
    step = -(-len(taught) // _MAX_PAIRS) or 1
    apart = held_out if model else []
    stressed, reasons = _spoken([*words, *taught[::step], *apart], voice, stress=True)
    teaching = {word: phones for word, phones in table.items() if word not in set(apart)}
    convertible = _conversion(teaching, stressed, lexicon, lang)
    by_espeak = {word: phones for word in words if (phones := convertible(stressed[word]))}
    by = f"by espeak-ng ({lang})"
    if model:
        wrong = phone_errors([table[word] for word in apart], [convertible(stressed[word]) for word in apart])
        if model.wrong < wrong:
            by = how.format(f"{model.wrong:.1%} are, of espeak-ng's {wrong:.1%}")
            by_espeak, by_model, reasons = by_model, by_espeak, unread
        by_espeak = {**by_model, **by_espeak}
    return {word: [by_espeak[word]] for word in words if word in by_espeak}, reasons, by


def _are_espeaks(table: PronunciationTable, spelled: Sequence[str], voice: str) -> bool:
    """Whether a lexicon's pronunciations are espeak-ng's, as `_by_espeak` makes them, rare phones replaced."""
    checked = spelled[:: -(-len(spelled) // _MAX_CHECKED) or 1]
    said, _ = _heard(checked, voice)
    known = dict.fromkeys((phone for word in spelled for phones in table[word] for phone in phones), 1)
    like = stand_ins(sorted({phone for variants in said.values() for phones in variants for phone in phones}), known)
    same = sum(
        any(tuple(p for phone in phones for p in like[phone]) in table[word] for phones in said[word])
        for word in checked
    )
    return same > 0 and same >= _SAME * len(checked)


def _conversion(table: PronunciationTable, said: Mapping[str, Phones], lexicon: Path, lang: str) -> Conversion:
    pairs = [(said[word], variants[0]) for word, variants in sorted(table.items()) if said.get(word)]
    if len(pairs) < ENOUGH_PAIRS:
        raise DataError(
            f"{lexicon}: {len(pairs)} of its words are also pronounced by espeak-ng ({lang}), but learning its phones"
            f" takes {ENOUGH_PAIRS}; add pronunciations, remove the lexicon, or omit lang"
        )
    conversion = learn(pairs)
    checked = pairs[:50]
    wrong = phone_errors([[truth] for _, truth in checked], [conversion(phones) for phones, _ in checked])
    if wrong > 0.5:
        say(
            f"  {lexicon} and espeak-ng ({lang}) disagree on over half of the phones: check that {lang} is its language"
        )
    return conversion


def from_spelling(
    wanted: Sequence[str], table: Mapping[str, Sequence[Phones]], lexicon: str, kept: Path | None = None
) -> tuple[dict[str, Phones], float]:
    """Pronounce words by their letters, as learnt from the words of a lexicon.

    By n-grams of letters with phones (`g2p`), or by the phones of each letter between its neighbours
    (`pronounce`), whichever is better on words of the lexicon that are held out: the latter where the
    lexicon has few words, or spells words by their letters; then so does this.

    `table`: the lexicon's words with their pronunciations; `lexicon` is its name for messages.
    `kept`: a file to keep the n-grams in.
    Returns: pronunciations, empty where a letter is in no word of the lexicon; and the phone error rate, as a fraction,
    on words of the lexicon that were held out.
    Raises Speech3Error: the lexicon has too few words to learn from.
    """
    spelled = _spelled_words(table)
    if len(spelled) < ENOUGH_PAIRS:
        raise DataError(
            f"{lexicon} has only {counted(len(spelled), 'word')} with letters to learn pronunciation from,"
            f" and {ENOUGH_PAIRS} are needed"
        )
    held_out = _held_out(list(spelled))
    model = g2p.learnt({word: table[word] for word in spelled}, held_out, lexicon, kept)
    if model and model.wrong > _REGULAR:
        return _by_model(model, wanted), model.wrong
    step = -(-len(spelled) // _MAX_PAIRS)
    apart = set(held_out)
    taught = [(spelled[word], table[word][0]) for word in list(spelled)[::step] if step > 1 or word not in apart]
    conversion = learn(taught)
    wrong = phone_errors([table[word] for word in held_out], [conversion(spelled[word]) for word in held_out])
    if model and model.wrong < wrong:
        return _by_model(model, wanted), model.wrong
    return {word: () if _BRACKETED.fullmatch(word) else conversion(letters(word)) for word in wanted}, wrong


def _by_model(model: g2p.G2p, wanted: Sequence[str]) -> dict[str, Phones]:
    found, _ = g2p.apply(model, [word for word in wanted if not _BRACKETED.fullmatch(word)])
    return {word: found.get(word, ()) for word in wanted}


def _spelled_words(table: Mapping[str, Sequence[Phones]]) -> dict[str, Phones]:
    words = (word for word in sorted(table) if is_word(word) and not NOISES.intersection(*table[word]))
    return {word: spelling for word in words if not _BRACKETED.fullmatch(word) and (spelling := letters(word))}


def _held_out(words: Sequence[str]) -> list[str]:
    """Words of a lexicon on which ways to pronounce are compared: one of twenty, 400 at most."""
    step = -(-len(words) // _MAX_PAIRS)
    return list(words[step - 1 :: 20 * step])
