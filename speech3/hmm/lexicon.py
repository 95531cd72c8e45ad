"""The pronunciation dictionary: words with variants, the phone inventory, silence."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from speech3.errors import Speech3Error
from speech3.io.atomic import write_text

SILENCE = "SIL"
SPOKEN_NOISE = "SPN"
UNKNOWN = "<unk>"


@dataclass(frozen=True)
class Pronunciation:
    """One way to say a word; `prob` is relative to the word's most probable way (Kaldi's lexiconp.txt)."""

    word: str
    phones: tuple[str, ...]
    prob: float = 1.0


@dataclass(frozen=True)
class Lexicon:
    """Pronunciations in a fixed order, and the phones they use.

    `silence_prob` is that of an optional silence before the first word and after each word.
    """

    pronunciations: tuple[Pronunciation, ...]
    silence_prob: float = 0.5
    silence_phones: tuple[str, ...] = field(default=(SILENCE,))

    @cached_property
    def phones(self) -> tuple[str, ...]:
        """Silence phones first, then the others sorted; phone i stands at index i - 1."""
        spoken = {phone for pron in self.pronunciations for phone in pron.phones} - set(self.silence_phones)
        return self.silence_phones + tuple(sorted(spoken))

    @cached_property
    def phone_ids(self) -> dict[str, int]:
        """Number of each phone, from 1."""
        return {phone: number for number, phone in enumerate(self.phones, 1)}

    @cached_property
    def by_word(self) -> dict[str, tuple[Pronunciation, ...]]:
        """The variants of each word."""
        table: dict[str, list[Pronunciation]] = {}
        for pron in self.pronunciations:
            table.setdefault(pron.word, []).append(pron)
        return {word: tuple(prons) for word, prons in table.items()}

    @property
    def silence(self) -> int:
        """Number of the phone used for optional silence."""
        return self.phone_ids[self.silence_phones[0]]

    @property
    def context_free(self) -> frozenset[int]:
        """Phones whose states do not depend on their neighbours: silence and spoken noise."""
        return frozenset(n for p, n in self.phone_ids.items() if p in (*self.silence_phones, SPOKEN_NOISE))

    def known(self, words: Iterable[str]) -> list[str]:
        """Replace words outside the lexicon by `<unk>`; without `<unk>` in the lexicon they are an error.

        Raises
        ------
        Speech3Error
            Naming the words.
        """
        words = list(words)
        missing = sorted({word for word in words if word not in self.by_word})
        if missing and UNKNOWN not in self.by_word:
            raise Speech3Error(
                f"not in the lexicon: {', '.join(missing[:10])}{' ...' if len(missing) > 10 else ''};"
                f" add them, or add a line `{UNKNOWN} {SPOKEN_NOISE}`"
            )
        return [word if word in self.by_word else UNKNOWN for word in words]


def read_lexicon(path: Path | str, silence_prob: float = 0.5) -> Lexicon:
    """Read ``word phone phone ...`` lines (Kaldi's lexicon.txt), or ``word prob phone ...`` lines (lexiconp.txt).

    Raises
    ------
    Speech3Error
        The file is missing, empty, not UTF-8, or has a word without phones.
    """
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError as error:
        raise Speech3Error(f"{path}: no such lexicon") from error
    except UnicodeDecodeError as error:
        raise Speech3Error(f"{path}: not UTF-8 text ({error})") from error
    seen: dict[tuple[str, tuple[str, ...]], Pronunciation] = {}
    silences = set()
    for number, line in enumerate(lines, 1):
        fields = line.split()
        if not fields:
            continue
        word, rest = fields[0], fields[1:]
        prob = _probability(rest)
        if prob is not None:
            rest = rest[1:]
        if not rest:
            raise Speech3Error(f"{path}:{number}: {word} has no phones; add its pronunciation or remove the line")
        if rest == [SILENCE]:  # Kaldi's `!SIL SIL` or `<sil> SIL`: optional silence is ours to insert
            silences.add(word)
            continue
        pron = Pronunciation(word, tuple(rest), 1.0 if prob is None else prob)
        seen.setdefault((pron.word, pron.phones), pron)
    if not seen:
        raise Speech3Error(f"{path}: the lexicon is empty")
    return Lexicon(tuple(seen.values()), silence_prob)


def _probability(fields: Sequence[str]) -> float | None:
    if not fields or not fields[0][0].isdigit():
        return None
    try:
        value = float(fields[0])
    except ValueError:
        return None
    return value if 0 < value <= 1 and math.isfinite(value) and len(fields) > 1 else None


def write_lexicon(lexicon: Lexicon, path: Path | str) -> None:
    """Write lexiconp.txt: ``word prob phone phone ...``."""
    lines = (f"{pron.word} {pron.prob:.6g} {' '.join(pron.phones)}\n" for pron in lexicon.pronunciations)
    write_text(path, "".join(lines))
