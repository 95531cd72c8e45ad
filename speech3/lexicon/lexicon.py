"""The lexicon: words with their pronunciations, the phone inventory, silence."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from speech3.errors import Speech3Error, listed
from speech3.io.atomic import write_text
from speech3.io.text import read_utf8
from speech3.lexicon.langdir import NOISES, LexiconLine, lexicon_lines, listed_phones
from speech3.lexicon.subwords import JOINER

SILENCE = "SIL"
SPOKEN_NOISE = "SPN"
UNKNOWN = "<unk>"


@dataclass(frozen=True)
class Silences:
    """Silence probabilities of a pronunciation (Chen et al. 2015; the columns of Kaldi's lexiconp_silprob.txt).

    Attributes
    ----------
    after
        Probability of silence after it.
    given_silence, given_word
        Factors by which it follows silence, or directly follows a word, more often than the words before it predict.
    """

    after: float
    given_silence: float = 1.0
    given_word: float = 1.0


@dataclass(frozen=True)
class Pronunciation:
    """One pronunciation of a word; `prob` is relative to the word's most probable one (Kaldi's lexiconp.txt)."""

    word: str
    phones: tuple[str, ...]
    prob: float = 1.0
    silences: Silences | None = None


@dataclass(frozen=True)
class Lexicon:
    """Pronunciations in a fixed order, and the phones they use.

    Attributes
    ----------
    silence_prob
        Probability of optional silence before the first word and after each pronunciation without `Silences`.
    position_dependent
        Phones are marked with their position in the word; see `mark_positions`.
    end
        Silence probabilities of the end of the sentence; `after` is not used.
    noise_phones
        Further phones of sounds that are not speech, whose states do not depend on their neighbours either.
    inventory
        The value of `phones`, if pronunciations were replaced and need not use all phones of the model.
    """

    pronunciations: tuple[Pronunciation, ...]
    silence_prob: float = 0.5
    silence_phones: tuple[str, ...] = field(default=(SILENCE,))
    position_dependent: bool = False
    end: Silences | None = None
    inventory: tuple[str, ...] | None = None
    noise_phones: tuple[str, ...] = (SPOKEN_NOISE,)

    @cached_property
    def phones(self) -> tuple[str, ...]:
        """Silence phones first, then the others sorted; phone i is at index i - 1."""
        if self.inventory is not None:
            return self.inventory
        spoken = {phone for pron in self.pronunciations for phone in pron.phones} - set(self.silence_phones)
        return self.silence_phones + tuple(sorted(spoken))

    @cached_property
    def phone_ids(self) -> dict[str, int]:
        """Number of each phone, from 1."""
        return {phone: number for number, phone in enumerate(self.phones, 1)}

    @cached_property
    def by_word(self) -> dict[str, tuple[Pronunciation, ...]]:
        """The pronunciations of each word."""
        table: dict[str, list[Pronunciation]] = {}
        for pron in self.pronunciations:
            table.setdefault(pron.word, []).append(pron)
        return {word: tuple(prons) for word, prons in table.items()}

    @cached_property
    def word_numbers(self) -> dict[str, int]:
        """Number of each word, from 0."""
        return {word: number for number, word in enumerate(self.by_word)}

    @property
    def silence(self) -> int:
        """Number of the phone used for optional silence."""
        return self.phone_ids[self.silence_phones[0]]

    @property
    def context_free(self) -> frozenset[int]:
        """Phones whose states do not depend on their neighbours: silence and noises."""
        return frozenset(n for p, n in self.phone_ids.items() if p in (*self.silence_phones, *self.noise_phones))

    def base_phone(self, phone: str) -> str:
        """The phone without its position in the word."""
        return re.sub(r"_[BIES]$", "", phone) if self.position_dependent else phone

    def silences(self, pron: Pronunciation) -> Silences:
        """The silence probabilities of a pronunciation; `silence_prob` applies if it has none of its own."""
        return pron.silences or Silences(self.silence_prob)

    def known(self, words: Iterable[str]) -> list[str]:
        """Replace out-of-vocabulary words by `<unk>`.

        Raises
        ------
        Speech3Error
            There are such words and the lexicon has no `<unk>`. The message lists the words.
        """
        words = list(words)
        missing = sorted({word for word in words if word not in self.by_word})
        if missing and UNKNOWN not in self.by_word:
            raise Speech3Error(
                f"not in the lexicon: {listed(missing)}; add them, or add a line `{UNKNOWN} {SPOKEN_NOISE}`"
            )
        return [word if word in self.by_word else UNKNOWN for word in words]


def mark_positions(lexicon: Lexicon) -> Lexicon:
    """Mark phones with their position in the word: begin ``_B``, end ``_E``, internal ``_I``, singleton ``_S``.

    Silence and noises are not marked. (Kaldi marks them too, to align words in lattices.) The letters of a
    spelled word (`speech3.lm.letters`) are marked with their place in that word.
    """
    unmarked = {*lexicon.silence_phones, *lexicon.noise_phones}

    def marked(pron: Pronunciation) -> tuple[str, ...]:
        before, after = pron.word.startswith(JOINER), pron.word.endswith(JOINER)
        size = before + len(pron.phones) + after
        places = "S" if size == 1 else "B" + "I" * (size - 2) + "E"
        within = zip(pron.phones, places[before : size - after], strict=True)
        return tuple(phone if phone in unmarked else f"{phone}_{place}" for phone, place in within)

    prons = tuple(replace(pron, phones=marked(pron)) for pron in lexicon.pronunciations)
    return replace(lexicon, pronunciations=prons, position_dependent=True)


def read_lexicon(path: Path | str, silence_prob: float = 0.5) -> Lexicon:
    """Read ``word phone phone ...`` lines (Kaldi's lexicon.txt), or ``word prob phone ...`` lines (lexiconp.txt).

    A file whose name ends in ``_silprob.txt`` has four numbers after the word: its probability and the three of
    `Silences`. Phones of noises are those with the names that Kaldi's recipes give them (`NOISES`) and those that
    ``silence_phones.txt`` beside the lexicon lists, except those that ``nonsilence_phones.txt`` lists.

    Raises
    ------
    Speech3Error
        The file is missing, empty, not UTF-8, or has a word without phones or with impossible probabilities.
    """
    path = Path(path)
    if not path.exists():
        raise Speech3Error(f"{path}: no such lexicon")
    seen: dict[tuple[str, tuple[str, ...]], Pronunciation] = {}
    for line in lexicon_lines(read_utf8(path), path):
        pron = _pronunciation(line, path)
        if pron.phones == (SILENCE,):  # Kaldi's `!SIL SIL` or `<sil> SIL`; graphs insert optional silence
            continue
        seen.setdefault((pron.word, pron.phones), pron)
    if not seen:
        raise Speech3Error(f"{path}: the lexicon is empty")
    used = dict.fromkeys(phone for pron in seen.values() for phone in pron.phones)
    silent, spoken = listed_phones(path)
    noises = (phone for phone in used if phone in (NOISES | silent) - spoken - {SILENCE})
    return Lexicon(tuple(seen.values()), silence_prob, noise_phones=tuple(noises))


def _pronunciation(line: LexiconLine, path: Path) -> Pronunciation:
    if len(line.values) < 4:
        return Pronunciation(line.word, line.phones, line.values[0] if line.values else 1.0)
    prob, after, given_silence, given_word = line.values
    if not (0 < prob <= 1 and 0 < after < 1 and 0 < given_silence < math.inf and 0 < given_word < math.inf):
        raise Speech3Error(
            f"{path}:{line.number}: {line.word}: impossible numbers {' '.join(f'{value:g}' for value in line.values)};"
            " give probabilities between 0 and 1 and factors above 0"
        )
    return Pronunciation(line.word, line.phones, prob, Silences(after, given_silence, given_word))


def write_lexicon(lexicon: Lexicon, path: Path | str) -> None:
    """Write ``word prob phone phone ...``, with three more numbers if the name ends in ``_silprob.txt``."""
    lines = []
    for pron in lexicon.pronunciations:
        numbers = [pron.prob]
        if str(path).endswith("_silprob.txt"):
            silences = lexicon.silences(pron)
            numbers += [silences.after, silences.given_silence, silences.given_word]
        lines.append(f"{pron.word} {' '.join(f'{number:.6g}' for number in numbers)} {' '.join(pron.phones)}\n")
    write_text(path, "".join(lines))
