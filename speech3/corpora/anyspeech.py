"""A user's own corpus: one Kaldi data directory, or ``train/`` with optional ``dev/``, ``test/`` and ``lang/``.

In place of a data directory there may be a folder of recordings with transcripts (`folder`). ``lang/`` may contain
``lexicon.txt`` (or ``lexiconp.txt``), one ``*.arpa`` or ``*.arpa.gz``, and ``text`` (sentences for the language model,
in addition to the transcripts of train; or, with an ARPA file, the sentences that it was estimated on). Missing splits
are drawn from train, by speaker or, if too few can be held out, by utterance; missing pronunciations are guessed.
"""

import gzip
import math
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from speech3.corpora.folder import check_rates, is_folder, read_folder
from speech3.corpora.pairs import find_pairs, has_recordings
from speech3.data import (
    DataDir,
    Fault,
    check_apart,
    is_datadir,
    plain_words,
    read_datadir,
    seconds_of,
    sentences_of_file,
    split_by_speaker,
    split_by_utterance,
    without_markup,
    write_datadir,
)
from speech3.errors import DataError, FormatError, MissingError, SettingError, Speech3Error, counted, listed
from speech3.language import (
    NOT_WORDS,
    Cutter,
    LangDir,
    PronouncedVocabulary,
    PronunciationTable,
    arpa_words,
    check_vocabulary,
    find_lang,
    guess_pronunciations,
    is_word,
    listed_phones,
    read_graphemes,
    scripts_of,
    single_letters,
    train_pieces,
)
from speech3.runtime import (
    UNREADABLE,
    atomic_path,
    compatibility_words,
    open_text,
    quietly,
    say,
    write_lines,
    write_text,
)

DEV_SHARE = 0.1
TEST_SHARE = 0.1
_LARGEST_SHARE = 0.25  # of dev and of test, if few speakers allow no smaller part
_MIN_OF_SHARE = 0.5  # of its usual share; an error rate on the 12 s of one speaker says nothing
_ENOUGH_VOICES = 8  # speakers needed to hold some out for dev
# Size of dev and of test, if split by utterance: tuning scale and penalty needs some minutes, but so does training.
_MIN_PART_S, _LARGEST_PART = 180.0, 0.15

Seconds = Mapping[str, float]  # by utterance
_MANY_UNKNOWN = 0.2  # share of the words
HELD_OUT_LEXICON = "held_out_lexicon.txt"
LETTERS = "letters.txt"
SET_NAMES = "sets.json"  # written by corpora with several: the names of train and test, and of the language model
SPLITS = ("train", "dev", "test")
_LOOKED_AT = 200  # recordings of a folder, before it is read
_WHY_TEXT = {
    "train": "write one line `utterance word word ...` for each",
    "dev": "scale and word penalty are tuned on it; write its text, or remove dev/ to use a tenth of train instead",
    "test": "it can be decoded but not scored; write its text, or remove test/ (to use a tenth of train instead) and"
    " decode it afterwards: speech3 decode MODEL DIR OUT",
}


def split_data(data: DataDir, shares: Mapping[str, float], seed: int) -> dict[str, DataDir]:
    """Split by speaker; with few speakers, split off dev by utterance, and with even fewer test, too.

    If dev were one of a few speakers, the epoch, the scale and the penalty would be chosen for that speaker, and the
    speech would be missing in training. `shares` are the usual ones of the speech for dev, test or both.
    """
    seconds = seconds_of(data)
    parts = _parts(data, shares, seed, seconds)
    say(f"  held out: {'; '.join(_described(name, parts, seconds) for name in shares)}")
    return parts


def _parts(data: DataDir, shares: Mapping[str, float], seed: int, seconds: Seconds) -> dict[str, DataDir]:
    if len(data.speakers()) >= _ENOUGH_VOICES and (parts := _by_speaker(data, shares, seed, seconds)):
        return parts
    unseen = {name: share for name, share in shares.items() if name == "test"}
    parts = _by_speaker(data, unseen, seed, seconds) if unseen else None
    if parts is None:
        return _by_utterance(data, shares, seed, seconds)
    if len(shares) == len(unseen):
        return parts
    rest = {"dev": shares["dev"]}
    return {**parts, **_by_utterance(parts["train"], rest, seed, seconds, taken=len(parts["test"].speakers()))}


def _by_speaker(data: DataDir, shares: Mapping[str, float], seed: int, seconds: Seconds) -> dict[str, DataDir] | None:
    """Parts that share no speaker, larger than usual if few speakers require it; None if there are too few.

    There are also too few if those who can be held out have so little of the speech that a part is too small.
    """
    total_s = _total_s(data, seconds)
    for share in (None, 0.15, 0.2, _LARGEST_SHARE):
        wanted = {name: share or usual for name, usual in shares.items()}
        try:
            parts = split_by_speaker(data, {**wanted, "train": 1 - sum(wanted.values())}, seed, seconds)
        except Speech3Error:
            continue
        if all(_total_s(parts[name], seconds) >= _MIN_OF_SHARE * shares[name] * total_s for name in shares):
            return parts
    return None


def _by_utterance(
    data: DataDir, shares: Mapping[str, float], seed: int, seconds: Seconds, taken: int = 0
) -> dict[str, DataDir]:
    """Parts that share speakers; larger than usual if there is little speech, so that there is enough to tune on.

    `taken`: number of speakers that test has already been given, for the message.
    """
    total_s = max(_total_s(data, seconds), 1e-9)
    wanted = {name: max(share, min(_MIN_PART_S / total_s, _LARGEST_PART)) for name, share in shares.items()}
    try:
        parts = split_by_utterance(data, {**wanted, "train": 1 - sum(wanted.values())}, seed, seconds)
    except Speech3Error as error:
        raise DataError(
            f"{data.path}: {counted(len(data.utterances), 'utterance')} ({total_s:.0f} s): too few to hold out"
            f" {' and '.join(shares)}, which get at most {max(wanted.values()):.0%} of the speech each: at least"
            f" {math.ceil(1 / max(wanted.values()))} utterances of about the same length are needed (a recogniser"
            " needs ten minutes of speech or more)"
        ) from error
    sizes = " and ".join(f"{name} ({wanted[name]:.0%} of the speech)" for name in shares)
    they = "they are" if len(shares) > 1 else "it is"
    voices = len(data.speakers())
    why = "of whom none can be held out, since each has too much of the speech or too little"
    if voices < _ENOUGH_VOICES:
        why = f"where {_ENOUGH_VOICES} are needed to hold some out"
    those = f"test has {taken} of the {taken + voices} speakers; {voices} remain" if taken else ""
    say(
        f"  {data.path}: {those or counted(voices, 'speaker')}, {why}: {sizes} split by utterance, so {they} from"
        " speakers that are also in train; expect more errors on new speakers"
    )
    return parts


def _described(name: str, parts: Mapping[str, DataDir], seconds: Seconds) -> str:
    speakers = parts[name].speakers().keys()
    both, minutes = len(speakers & parts["train"].speakers().keys()), _total_s(parts[name], seconds) / 60
    return (
        f"{name} {counted(len(parts[name].utterances), 'utterance')}, {minutes:.1f} minutes,"
        f" {counted(len(speakers), 'speaker')} ({both or 'none'} of them also in train)"
    )


def _total_s(data: DataDir, seconds: Seconds) -> float:
    return sum(seconds[key] for key in data.utterances)


def prepare(
    source: Path,
    out: Path,
    seed: int,
    *,
    lang: str | None = None,
    lexicon: str = "espeak",
    units: str = "words",
    pieces: int = 500,
    tier: str | None = None,
    graphemes: str | None = None,
    sample_rate: int | None = None,
) -> None:
    """Write ``out/train``, ``out/dev``, ``out/test``, ``out/lexicon.txt``, the language model or its text, and lists.

    ``out/splits.txt``: the speakers of each split, if any was drawn. ``out/guessed.txt``: words whose pronunciation was
    guessed, with their count in train. ``out/unpronounced.txt``: words without a pronunciation.
    ``out/held_out_lexicon.txt``: pronunciations of words that only dev and test have. ``out/letters.txt``: the letters
    that words are spelled with, and their phones. ``out/left_out.txt``: the files and annotations of a folder that are
    not used. ``out/lm.arpa.gz``, or ``out/lm_text``: sentences to estimate a language model from.
    ``out/pieces.model``, ``out/pieces.txt``: SentencePiece's model and pieces.

    Parameters
    ----------
    source
        A data directory, a folder of recordings with transcripts, or a directory that contains ``train/``.
    seed
        Of the splits that are drawn.
    lang
        espeak-ng's code of the language, with which it pronounces words that have no pronunciation.
    lexicon
        ``espeak``, or ``graphemes``: the letters of a word are its phones, even if there is a lexicon.
    units
        ``words``, or ``sentencepiece``: the language model has `pieces` word pieces, whose phones are their letters.
    tier, sample_rate
        For a folder of recordings: as for `read_folder`.
    graphemes
        File that lists the graphemes of several letters, if words are spelled with their letters.

    Raises
    ------
    Speech3Error
        A directory is faulty, a part has no text, two parts have the same utterances, or there are no pronunciations
        for most words of train or dev.
    """
    spelled = lexicon == "graphemes" or units == "sentencepiece"
    if graphemes and not spelled:
        raise SettingError(f"graphemes={graphemes}: words are not spelled by their letters; set lexicon=graphemes, too")
    given = read_graphemes(Path(graphemes)) if graphemes else ()
    faults: list[Fault] = []
    plain = set[str]()  # parts whose transcripts are in plain words

    def read(path: Path, part: str) -> DataDir:
        if not is_folder(path):
            return _with_text(path, part)
        pairs = find_pairs(path, above=source if path != source else None)
        data, found = read_folder(path, tier, sample_rate, given, lang or "", pairs=pairs)
        faults.extend(found)
        plain.add(part)
        return data

    parts, drawn = _splits(source, seed, read)
    if tier and all(is_datadir(data.path) for data in parts.values()):
        raise SettingError(f"{source}: tier={tier}: Kaldi data directories have no tiers; remove it")
    kind: dict[str, Any] = {"lang": lang, "lexicon": lexicon, "units": units, "pieces": pieces, "graphemes": given}
    write_corpus(parts, find_lang(source / "lang"), out, **kind, plain="train" in plain)
    if faults:
        write_text(out / "left_out.txt", "".join(f"{fault}\n" for fault in faults))
        say(f"  everything that is left out is listed in {out / 'left_out.txt'}")
    if drawn:
        write_text(out / "splits.txt", _members(parts))


def write_corpus(
    parts: Mapping[str, DataDir],
    given: LangDir,
    out: Path,
    *,
    lang: str | None = None,
    lexicon: str = "espeak",
    units: str = "words",
    pieces: int = 0,
    graphemes: Sequence[str] = (),
    plain: bool = False,
) -> None:
    """Write the splits, and what is known or can be guessed about their language.

    Parameters, files and errors are those of `prepare`, except that `given` is the content of ``lang/``, `graphemes`
    are the graphemes themselves, and with `plain` the transcripts of train are in plain words (`plain_words`), so the
    text in ``lang/`` is changed in the same way. The modules of corpora with other layouts call this function, too.
    """
    spelled = lexicon == "graphemes" or units == "sentencepiece"
    if units == "sentencepiece" and given.arpa:
        raise DataError(
            f"{given.arpa}: is a language model of words, but units=sentencepiece makes one of pieces; remove it from"
            " lang/ (its text may be put into lang/text), or set units=words"
        )
    if silent := [str(data.path) for data in parts.values() if not data.recordings]:
        raise DataError(
            f"{silent[0]}: has features, but no recordings, which this recipe needs (its aligner uses other features):"
            " add wav.scp, or train on the features with speech3 pack and speech3 train"
        )
    # The words to be pronounced: those of train, and those of the language model or its text.
    check_apart(parts)
    change: Callable[[str], str] = partial(_as_transcript, graphemes=graphemes, language=lang or "") if plain else str
    text = _Text(None if given.arpa else parts["train"], given.text, change)
    if plain and given.text:
        say_markup(given.text, graphemes)
    counts = Counter(_words(parts["train"]))
    further = set(arpa_words(given.arpa)) if given.arpa else {word for each in text for word in each}
    wanted = dict.fromkeys(word for word in (*sorted(counts), *sorted(further)) if word not in NOT_WORDS)
    every = sum((Counter(_words(data)) for data in parts.values()), Counter[str]())
    _say_scripts(every)
    if forms := compatibility_words(every):
        shown = listed((f"{word} ({plain})" for word, plain in forms.items()), 5)
        say(
            f"  warning: {len(forms)} words have letters that stand for others in Unicode (NFKC), which are different"
            f" letters here: {shown}; write the ordinary ones, unless they are meant"
        )
    # Their pronunciations, and those of words that only dev and test have.
    words = guess_pronunciations(tuple(wanted), counts, given.lexicon, lang, spelled=spelled, graphemes=graphemes)
    if units == "words":
        _say_what_is_unknown(parts, words.known & further if given.arpa else words.known, spelled=spelled)
    held_out = _held_out(parts, words)
    # The files.
    lines = list(words.lines)
    if units == "sentencepiece":
        lines += _write_pieces(out, text, words, pieces)
    elif not given.arpa or (plain and given.text):
        write_lines(out / "lm_text", (f"{' '.join(sentence)}\n" for sentence in text))
    if given.arpa:
        _copy_arpa(given.arpa, out / "lm.arpa.gz")
    write_text(out / "lexicon.txt", "".join(f"{line}\n" for line in lines))
    _write_phones(given.lexicon if not spelled else None, out)
    if spelled:
        letters = sorted({part for word in words.known for part in words.spelling.parts(word)})
        write_text(out / LETTERS, "".join(f"{part} {' '.join(words.spell(part))}\n" for part in letters))
    if held_out:
        rows = (f"{word} {' '.join(phones)}\n" for word, variants in held_out.items() for phones in variants)
        write_text(out / HELD_OUT_LEXICON, "".join(rows))
    _write_lists(out, words, counts)
    for name, data in parts.items():
        write_datadir(data, out / name)


def say_if_incomplete(part: str, found: int, whole: int, what: str = "utterances") -> None:
    """Report, on stderr, that a part of a public corpus has fewer utterances (or `what`) than were published."""
    if found < whole:
        say(f"  {part} has {found:,} of its {whole:,} {what}: unpack it again, unless that is intended")


def _places(source: Path) -> dict[str, Path]:
    """Where each given split is; `source` itself is train if it is not divided."""
    if is_datadir(source) or (not (source / "train").is_dir() and has_recordings(source)):
        return {"train": source}
    if not (source / "train").is_dir():
        raise MissingError(
            f"{source}: neither a Kaldi data directory (no wav.scp) nor one that contains train/, nor a folder of"
            " recordings (wav, flac, mp3, ...), each with a transcript of the same name (.eaf, .TextGrid, .srt or .txt)"
        )
    return {name: source / name for name in SPLITS if (source / name).is_dir()}


def check_source(source: Path, sample_rate: int | None) -> None:
    """Raise the errors of `prepare` that names of files show, and say it if the headers of a few recordings differ."""
    for place in _places(source).values():
        if is_folder(place):
            items, _ = find_pairs(place, above=source if place != source else None)
            try:
                check_rates([item.audio for item in items[:: len(items) // _LOOKED_AT + 1]], place, sample_rate)
            except SettingError as error:
                say(f"  warning: {error}")


def _splits(source: Path, seed: int, read: Callable[[Path, str], DataDir]) -> tuple[dict[str, DataDir], bool]:
    shares, places = {"dev": DEV_SHARE, "test": TEST_SHARE}, _places(source)
    if places == {"train": source}:
        return split_data(read(source, "train"), shares, seed), True
    given = {name: read(place, name) for name, place in places.items()}
    missing = {name: share for name, share in shares.items() if name not in given}
    if missing:
        given |= split_data(given["train"], missing, seed)
    for name in ("dev", "test"):
        both = sorted(set(given["train"].speakers()) & set(given[name].speakers()))
        if both and name not in missing:
            say(
                f"  {len(both)} speakers of {name}/ are also in train/ ({', '.join(both[:5])}): expect lower error"
                " rates than on new speakers"
            )
    return {name: given[name] for name in SPLITS}, bool(missing)


def _as_transcript(text: str, graphemes: Sequence[str], language: str) -> str:
    """A text changed as the transcripts of a folder are."""
    return plain_words(without_markup(text, graphemes)[0], graphemes, language)


def change_of_text(source: Path, graphemes: Sequence[str], language: str) -> Callable[[str], str] | None:
    """How a sentence is to be changed to be written as the transcripts of `source` are; None if it stays as it is."""
    plain = is_folder(_places(source)["train"])
    return partial(_as_transcript, graphemes=graphemes, language=language) if plain else None


def pronounce_more(
    words: Sequence[str],
    source: Path,
    train: DataDir,
    lang: str | None,
    *,
    spelled: bool,
    graphemes: Sequence[str] = (),
) -> PronunciationTable:
    """Pronunciations of further words, guessed as `write_corpus` guessed those of the words of `train`.

    Words that cannot be pronounced by phones that train has are left out.
    """
    counts = Counter(_words(train))
    wanted = [word for word in sorted(counts) if word not in NOT_WORDS]
    lexicon = find_lang(source / "lang").lexicon
    with quietly():  # its remarks on the words of train were made before
        found = guess_pronunciations(wanted, counts, lexicon, lang, spelled=spelled, graphemes=graphemes)
    return found.further([word for word in words if word not in NOT_WORDS])


def say_markup(path: Path, graphemes: Sequence[str]) -> None:
    """Say, once for each kind, what `_as_transcript` takes out of a text."""
    found: dict[str, tuple[str, str, str]] = {}
    counts = Counter[str]()
    for sentence in sentences_of_file(path):
        for remark in without_markup(" ".join(sentence), graphemes)[1]:
            found.setdefault(remark.kind, remark)
            counts[remark.kind] += 1
    for kind, (_, problem, fate) in found.items():
        others = f" ({counts[kind]:,} times)" if counts[kind] > 1 else ""
        say(f"  {path}: {kind}{others}: one {problem}; {fate}")


def _with_text(path: Path, part: str) -> DataDir:
    data = read_datadir(path)
    if not any(utterance.text for utterance in data.utterances.values()):
        raise MissingError(f"{path}: has no text; {_WHY_TEXT[part]}")
    return data


@dataclass(frozen=True)
class _Text(Iterable[list[str]]):
    train: DataDir | None
    path: Path | None
    change: Callable[[str], str]

    def __iter__(self) -> Iterator[list[str]]:
        for utterance in self.train.utterances.values() if self.train else ():
            yield (utterance.text or "").split()
        if self.path is None:
            return
        empty = True
        for sentence in sentences_of_file(self.path):
            if words := self.change(" ".join(sentence)).split():
                empty = False
                yield words
        if empty:
            raise DataError(f"{self.path}: is empty; write one sentence per line, or remove it")


def _say_what_is_unknown(parts: Mapping[str, DataDir], vocabulary: frozenset[str], *, spelled: bool) -> None:
    for name in ("dev", "test"):
        spoken = Counter(filter(is_word, _words(parts[name])))
        total, unknown = spoken.total(), sum(count for word, count in spoken.items() if word not in vocabulary)
        if not unknown:
            continue
        of_all = f"{unknown} of {total:,} words ({unknown / total:.1%})"
        if spelled:
            say(f"  {name}: {of_all} are outside the vocabulary and can only be spelled (lm.letters)")
            continue
        hopeless = ": none can be recognised, the word error rate will be 100 % or more" * (unknown == total)
        remedy = "; lexicon=graphemes can spell them" * (unknown > _MANY_UNKNOWN * total)
        say(f"  {name}: {of_all} are outside the vocabulary{hopeless}{remedy}")


def _words(data: DataDir) -> Iterator[str]:
    return (word for utterance in data.utterances.values() for word in (utterance.text or "").split())


def _say_scripts(counts: Mapping[str, int]) -> None:
    """Warn about letters of several scripts: mistyped look-alikes, or words of another language."""
    found = scripts_of(counts)
    if len(found) > 1:
        (main, (letters, _)), *others = found.items()
        shown = "; ".join(
            f"{name}: {counted(count, 'letter')}, as in {', '.join(words)}" for name, (count, words) in others
        )
        say(
            f"  warning: the transcripts are in several scripts, {main} ({counted(letters, 'letter')}) and"
            f" {shown}; letters"
            " that look alike but are of different scripts count as different: correct them, unless both are meant"
        )


def _write_pieces(out: Path, text: Iterable[list[str]], words: PronouncedVocabulary, vocabulary: int) -> list[str]:
    counts = Counter(word for sentence in text for word in sentence if word in words.known)
    model = train_pieces(counts, vocabulary)
    cut = Cutter(model)
    used = {piece for word in counts for piece in cut(word)}
    every = sorted(used | single_letters(words.known))
    spelled = {piece: phones for piece in every if (phones := words.spell(piece))}
    with atomic_path(out / "pieces.model") as path:
        path.write_bytes(model)
    write_text(out / "pieces.txt", "".join(f"{piece}\n" for piece in spelled))
    in_pieces = ([piece for word in sentence if word in words.known for piece in cut(word)] for sentence in text)
    write_lines(out / "lm_text", (f"{' '.join(sentence)}\n" for sentence in in_pieces if sentence))
    pieces = sum(len(cut(word)) * count for word, count in counts.items())
    say(f"  {len(spelled)} word pieces, {pieces / max(counts.total(), 1):.2f} per word")
    return [f"{piece} {' '.join(phones)}" for piece, phones in spelled.items() if piece not in words.known]


def _held_out(parts: Mapping[str, DataDir], words: PronouncedVocabulary) -> PronunciationTable:
    """Pronounce words that only dev and test have: to align them, never to recognise them."""
    new = sorted({*_words(parts["dev"]), *_words(parts["test"])} - words.known)
    found = words.further(new) if new else {}
    texts = {key: utterance.text for key, utterance in parts["dev"].utterances.items()}
    try:
        check_vocabulary(texts, dict.fromkeys((*sorted(words.known), "<unk>", *found)))
    except Speech3Error as error:
        raise error.restated(f"{parts['dev'].path}: dev: {error}") from error
    return found


def _copy_arpa(arpa: Path, out: Path) -> None:
    try:
        with atomic_path(out) as path, open_text(arpa) as (content, _), path.open("wb") as raw:
            packed = gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0)
            shutil.copyfileobj(content, packed)
            packed.close()
    except UNREADABLE as error:
        raise FormatError(f"{arpa}: cannot be read ({error}); copy it again") from error


def _write_phones(lexicon: Path | None, out: Path) -> None:
    """Write Kaldi's lists of silence and other phones beside the lexicon, if the user's lexicon has them."""
    lists = listed_phones(lexicon) if lexicon else (frozenset[str](), frozenset[str]())
    for name, phones in zip(("silence_phones.txt", "nonsilence_phones.txt"), lists, strict=True):
        (out / name).unlink(missing_ok=True)  # of an earlier lexicon
        if phones:
            write_text(out / name, "".join(f"{phone}\n" for phone in sorted(phones)))


def _write_lists(out: Path, words: PronouncedVocabulary, counts: Mapping[str, int]) -> None:
    by_count = sorted(words.guessed, key=lambda word: (-counts.get(word, 0), word))
    if by_count:
        lines = (f"{word} {counts.get(word, 0)} {' '.join(p)}\n" for word in by_count for p in words.guessed[word])
        write_text(out / "guessed.txt", "".join(lines))
        say(f"  {words.how}: {out.name}/guessed.txt")
    if words.unpronounced:
        lines = (f"{word} {counts.get(word, 0)} {why}\n" for word, why in sorted(words.unpronounced.items()))
        write_text(out / "unpronounced.txt", "".join(lines))
        times = sum(counts.get(word, 0) for word in words.unpronounced)
        say(
            f"  {counted(len(words.unpronounced), 'word')} ({times} times in train)"
            f" have no pronunciation and become <unk>: {out.name}/unpronounced.txt"
        )


def _members(parts: Mapping[str, DataDir]) -> str:
    rows = [
        f"{name} {speaker} {len(ids)}\n" for name, data in parts.items() for speaker, ids in data.speakers().items()
    ]
    return "".join(["part speaker utterances\n", *rows])
