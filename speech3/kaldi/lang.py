"""Read a lexicon from Kaldi's `lang/` directory (Kaldi utils/prepare_lang.sh).

The files read are ``phones.txt``, ``phones/align_lexicon.txt``, ``phones/optional_silence.txt`` and ``oov.txt``.
Pronunciation probabilities, which the directory itself has only inside L.fst, come from ``../local/lang/lexiconp.txt``
or ``../local/dict/lexiconp.txt``, where prepare_lang.sh usually writes or finds them.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from speech3.errors import Speech3Error
from speech3.io.text import read_utf8
from speech3.io.unicode_form import one_form
from speech3.lexicon.lexicon import SPOKEN_NOISE, UNKNOWN, Lexicon, Pronunciation, read_lexicon

_EPSILON = "<eps>"


@dataclass(frozen=True)
class Lang:
    """A lexicon with Kaldi's names of phones (``AH_I``), and the number that Kaldi gives each phone."""

    lexicon: Lexicon
    phone_ids: dict[str, int]


def read_lang(directory: Path | str) -> Lang:
    """Read a `lang/` directory.

    The word for out-of-vocabulary words (``oov.txt``) is also added as our `<unk>`.

    Raises
    ------
    Speech3Error
        A file is missing or damaged, or a phone of the lexicon is not in ``phones.txt``.
    """
    directory = Path(directory)
    ids = read_symbols(directory / "phones.txt")
    path = directory / "phones" / "align_lexicon.txt"
    prons: dict[Pronunciation, None] = {}
    for number, line in enumerate(_lines(path), 1):
        word, *rest = line.split()
        if len(rest) < 2:
            raise Speech3Error(f"{path}:{number}: not a line `word word phone ...`; make it again with prepare_lang.sh")
        if word != _EPSILON:
            prons[Pronunciation(one_form(word), tuple(rest[1:]))] = None
        for phone in rest[1:]:
            if phone not in ids:
                raise Speech3Error(f"{path}:{number}: phone {phone} is not in {directory / 'phones.txt'}")
    silence = "".join(_lines(directory / "phones" / "optional_silence.txt")).strip()
    if silence not in ids:
        raise Speech3Error(f"{directory}/phones/optional_silence.txt: phone {silence!r} is not in phones.txt")
    silences = directory / "phones" / "silence.txt"
    noises = tuple(_lines(silences)) if silences.is_file() else (SPOKEN_NOISE,)
    lexicon = Lexicon(
        tuple(pron for pron in prons if pron.phones != (silence,)), silence_phones=(silence,), noise_phones=noises,
        position_dependent=(directory / "phones" / "word_boundary.txt").exists(),
    )  # fmt: skip
    return Lang(_with_unknown(_with_probabilities(lexicon, directory), directory), ids)


def read_symbols(path: Path | str) -> dict[str, int]:
    """Read ``symbol number`` lines (Kaldi's ``phones.txt``, ``words.txt``).

    Raises
    ------
    Speech3Error
        The file is missing, or a line has another form.
    """
    symbols = {}
    for number, line in enumerate(_lines(Path(path)), 1):
        fields = line.split()
        if len(fields) != 2 or not fields[1].isdigit():
            raise Speech3Error(f"{path}:{number}: not a line `symbol number`: {line.strip()!r}")
        symbols[fields[0]] = int(fields[1])
    return symbols


def read_symbol_table(path: Path | str, remedy: str) -> tuple[str, ...]:
    """The words of such a file, composed (NFC), by their numbers 0, 1, 2, ...; errors end with `remedy`."""
    symbols = sorted(read_symbols(path).items(), key=lambda entry: entry[1])
    if [number for _, number in symbols] != list(range(len(symbols))):
        raise Speech3Error(f"{path}: its numbers are not 0, 1, 2, ...; {remedy}")
    return tuple(one_form(symbol) for symbol, _ in symbols)


def check_same_phones(one: Path, other: Path) -> None:
    """Raise an error if a phone has different numbers in two ``phones.txt`` (utils/lang/check_phones_compatible.sh)."""
    first, second = read_symbols(one), read_symbols(other)
    for phone in [*first, *second]:
        if not phone.startswith("#") and first.get(phone) != second.get(phone):
            raise Speech3Error(
                f"{one} and {other} have different phone sets: {phone} is {first.get(phone)} in the first and"
                f" {second.get(phone)} in the second; give the lang directory that the model was trained with"
            )


def _with_probabilities(lexicon: Lexicon, directory: Path) -> Lexicon:
    for path in (directory.parent / "local" / place / "lexiconp.txt" for place in ("lang", "dict")):
        if path.exists():
            known = {(pron.word, pron.phones): pron.prob for pron in read_lexicon(path).pronunciations}
            break
    else:
        return lexicon

    def prob(pron: Pronunciation) -> float:
        bare = tuple(lexicon.base_phone(phone) for phone in pron.phones)
        return known.get((pron.word, pron.phones), known.get((pron.word, bare), 1.0))

    return replace(lexicon, pronunciations=tuple(replace(pron, prob=prob(pron)) for pron in lexicon.pronunciations))


def _with_unknown(lexicon: Lexicon, directory: Path) -> Lexicon:
    path = directory / "oov.txt"
    oov = read_utf8(path).strip() if path.exists() else UNKNOWN
    if UNKNOWN in lexicon.by_word or oov not in lexicon.by_word:
        return lexicon
    more = tuple(replace(pron, word=UNKNOWN) for pron in lexicon.by_word[oov])
    return replace(lexicon, pronunciations=lexicon.pronunciations + more)


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        raise Speech3Error(f"{path}: no such file; give a lang directory of Kaldi's prepare_lang.sh")
    return [line for line in read_utf8(path).splitlines() if line.strip()]
