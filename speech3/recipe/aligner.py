"""Train an aligner on all of a user's speech, and align with it: monophone GMMs, and how its transcripts were written.

Nothing is held out, since an aligner is used on the speech that it was trained on. The GMMs and their features are
those of the system `aligner` of `recipe any`. The model directory is that of any model, and has in addition:

    aligner.json    how the transcripts were brought into plain words, and where pronunciations came from

so that the aligner reads further transcripts, and pronounces further words, in the same way.

The English aligner in the package has CMU's phones and was trained on 2.2 hours of LibriSpeech;
`data/english_aligner/README.md` has its measured errors and the command that makes it. With the phones of another
language (`speech3.hmm.model`) it aligns recordings that are too few to train on, and makes the alignment
from which training starts.
"""

import functools
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from difflib import SequenceMatcher
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from speech3.config import FeatureConfig, RecipeConfig, load_config, load_preset, shipped
from speech3.corpora import read_speech
from speech3.data import (
    MARKS,
    DataDir,
    case_fold,
    case_folded,
    is_datadir,
    plain_words,
    without_markup,
    words_in_spelling,
)
from speech3.decode import (
    Recognizer,
    Result,
    align_samples,
    load_recognizer,
    phones_of_segments,
    result_of,
    words_of_segments,
)
from speech3.errors import (
    MOST_UNALIGNED,
    DataError,
    MissingError,
    OccupiedError,
    SettingError,
    Speech3Error,
    check_bad,
    counted,
    listed,
)
from speech3.features import extract, silent_in
from speech3.hmm import (
    LONG_UTTERANCE_S,
    DataWaves,
    Gmm,
    GmmSystem,
    Hmm,
    Refinement,
    Segment,
    Workers,
    along_boundaries,
    by_lexicon,
    frame_clock,
    has_phones,
    phone_groups,
    train_monophone,
    usable_transcripts,
    with_nearest_pdfs,
    with_new_words,
    with_sizes,
)
from speech3.io import FEATURES_FILE, METRICS_FILE, MODEL_FILE, ArkReader
from speech3.language import (
    G2P,
    NOT_WORDS,
    UNKNOWN,
    Lexicon,
    Nearest,
    Pronunciation,
    guess_pronunciations,
    is_word,
    mark_positions,
    read_lexicon,
)
from speech3.recipe.aligner_files import read_source
from speech3.runtime import Metrics, available_jobs, read_json, say, write_json, write_text

ABOUT = "aligner.json"
_PHONE_LISTS = ("silence_phones.txt", "nonsilence_phones.txt")  # of Kaldi, beside a lexicon
LITTLE_S = 60.0  # of speech; with less, `map_aligner` is better than training
ENGLISH = "english"  # as a name of a model
_CODES = ("en", "en-us")  # of espeak-ng; the aligner's dictionary has American pronunciations
LITTLE_TO_TRAIN_ON_S = 600.0  # of speech; with more, --lang trains
_NOISE = ("[", "<", "{")  # begins what is a noise in a transcript
_FARTHEST = 5  # phones that are named
_SHOWN = 5  # words of a model
_BETWEEN_WORDS = re.compile("[–—/…]")  # without spaces, too
_KNOWN = 2 / 3  # share of the words without --lang
# What messages say of options, and of arguments of `Aligner.train`.
_ARGUMENTS = {
    "--lang CODE (espeak-ng, such as --lang en-us)": 'lang=CODE (espeak-ng, such as lang="en-us")',
    "--lexicon FILE": "lexicon=FILE",
    "--graphemes": "graphemes=True",
    "or --model DIR (a trained aligner)": "or use a trained aligner (Aligner.load)",
    "--lang ": "lang=",
    ", or pass --text for one recording": "",
}
_SURE = 100  # a count for words that are only to be pronounced, so that none of their phones is rare


@dataclass(frozen=True)
class TextRules:
    """How transcripts become words, and where pronunciations come from.

    `plain`: transcripts are brought into plain words (`speech3.data.plain_words`). `lang`: espeak-ng's code of the
    language, or empty. `spelled`: the phones of a word are its letters. `given`: pronunciations come from a lexicon.
    """

    plain: bool = True
    lang: str = ""
    spelled: bool = False
    given: bool = False

    def words(self, text: str, vocabulary: Collection[str], folded: Mapping[str, str]) -> list[str]:
        """The words of a text, in the spelling of the vocabulary where it has them; `folded`: its words by their
        case-folded forms.
        """
        return words_in_spelling(text, vocabulary, folded, self.lang)


def as_written(words: Iterable[str], text: str) -> list[str]:
    """Write a lexicon's words in the letter case of the transcript that they come from, in whose order they are."""
    tokens, found = [token.strip(MARKS) for token in text.split()], list(words)
    matcher = SequenceMatcher(None, [*map(case_fold, tokens)], [*map(case_fold, found)], autojunk=False)
    for token, word, size in matcher.get_matching_blocks():
        found[word : word + size] = tokens[token : token + size]
    return found


def written_track(track: Sequence[Segment], text: str) -> list[Segment]:
    """A track with its words as `as_written`."""
    labels = as_written((word.label for word in track), text)
    return [replace(word, label=label) for word, label in zip(track, labels, strict=True)]


def in_user_spelling(track: Sequence[Segment], plain: str, text: str) -> list[Segment]:
    """A track with its words as in a text that a person wrote, where they are in it; `plain`: its plain words."""
    return written_track(written_track(track, plain), _BETWEEN_WORDS.sub(" ", text))


def in_vocabulary(data: DataDir, rules: TextRules, vocabulary: Collection[str]) -> DataDir:
    """The data with its transcripts in the spelling of the vocabulary; how many words changed is said."""
    folded, changed, total = case_folded(vocabulary), 0, 0
    utterances = {}
    for key, utterance in data.utterances.items():
        before = (utterance.text or "").split()
        words = rules.words(utterance.text or "", vocabulary, folded)
        total += len(before)
        changed += sum((Counter(before) - Counter(words)).values())
        utterances[key] = replace(utterance, text=" ".join(words) or None)
    if changed:
        say(f"  {changed:,} of {total:,} words were changed to the lexicon's spelling (letter case, punctuation)")
    return replace(data, utterances=utterances)


def find_pronunciations(
    data: DataDir, rules: TextRules, lexicon: Path | None, out: Path, *, trained: bool = True
) -> DataDir:
    """Pronounce the words of the transcripts; write ``lexicon.txt`` and ``unpronounced.txt`` into `out`.

    Returns the data, in the spelling of the lexicon if there is one.

    `trained`: the phones are to be trained on the data, so rare ones are replaced by similar ones.

    Raises `Speech3Error`: there is neither a lexicon nor a language, or most words cannot be pronounced.
    """
    if not (lexicon or rules.lang or rules.spelled):
        raise DataError(
            f"{data.path}: where do pronunciations come from? Pass --lang CODE (espeak-ng, such as --lang en-us),"
            " --lexicon FILE (`word phone phone ...`), --graphemes (letters are the phones), or --model DIR (a trained"
            " aligner)"
        )
    if lexicon and not rules.spelled:
        data = in_vocabulary(data, rules, read_lexicon(lexicon).by_word)
    counts = Counter(word for utterance in data.utterances.values() for word in (utterance.text or "").split())
    wanted = tuple(word for word in sorted(counts) if word not in NOT_WORDS)
    if not wanted:
        raise MissingError(f"{data.path}: has no transcripts; write what is said, or pass --text for one recording")
    try:
        often = counts if trained else Counter({word: _SURE * count for word, count in counts.items()})
        found = guess_pronunciations(
            wanted, often, None if rules.spelled else lexicon, rules.lang or None, spelled=rules.spelled
        )
    except Speech3Error as error:
        message = str(error).replace("lang=", "--lang ").replace("lexicon=graphemes", "--graphemes")
        raise error.restated(message) from error
    write_text(out / "lexicon.txt", "".join(f"{line}\n" for line in found.lines))
    for name in _PHONE_LISTS:
        (out / name).unlink(missing_ok=True)
        if lexicon and not rules.spelled and (lexicon.parent / name).is_file():
            shutil.copyfile(lexicon.parent / name, out / name)
    if found.how:
        say(f"  {found.how}: {out / 'lexicon.txt'}")
    if found.unpronounced:
        rows = (f"{word} {counts[word]} {why}\n" for word, why in sorted(found.unpronounced.items()))
        write_text(out / "unpronounced.txt", "".join(rows))
        say(
            f"  no pronunciation of {counted(len(found.unpronounced), 'word')}, which become <unk>:"
            f" {out / 'unpronounced.txt'}"
        )
    else:
        (out / "unpronounced.txt").unlink(missing_ok=True)
    return data


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained model, and the data with the transcripts as it reads them."""

    recognizer: Recognizer
    data: DataDir


def train_aligner(
    data: DataDir, rules: TextRules, lexicon: Path | None, out: Path, rate_hz: int, jobs: int, seed: int = 1
) -> Trained:
    """Train monophones of `rate_hz` on all utterances that can be aligned, and write the model directory `out`.

    Other recordings are resampled. Long and silent utterances, and those that are too short for their words, are left
    out of training; they may still be aligned.

    Raises `Speech3Error`: there are no pronunciations (`find_pronunciations`), or a quarter of the utterances cannot be
    aligned.
    """
    with tempfile.TemporaryDirectory(prefix="speech3-align-") as scratch:
        work = Path(scratch)
        data = find_pronunciations(data, rules, lexicon, out)
        config = load_config(RecipeConfig, shipped("recipes") / "any" / "recipe.yaml").hmm
        said = mark_positions(read_lexicon(out / "lexicon.txt", config.silence_prob))
        features = load_preset(FeatureConfig, "features", config.aligner_features).model_copy(
            update={"sample_frequency": rate_hz, "resample": True, "mix_channels": True}
        )
        # Which utterances can be trained on.
        report = extract(data, work / "feats", features, jobs, most_bad=1.0)
        feats = ArkReader(work / "feats" / "feats.scp") if report.utterances else {}
        texts = {key: utterance.text for key, utterance in data.utterances.items()}
        transcripts = usable_transcripts(texts, said, feats)
        bad = {**report.skipped, **transcripts.bad, **dict.fromkeys(silent_in(work / "feats"), "is digital silence")}
        shift_s = features.frame_shift / 1000
        lengths = {key: shift_s * len(feats[key]) for key in transcripts.words if key not in bad}
        long = {key for key, seconds in lengths.items() if seconds > LONG_UTTERANCE_S}
        used_s = sum(seconds for key, seconds in lengths.items() if key not in long)
        if used_s >= LITTLE_S:  # else the long ones are all there is
            bad |= {key: f"lasts {lengths[key]:.0f} s, too long to train on" for key in long}
        used = {key: transcripts.words[key] for key in lengths if key not in bad}
        check_bad(_without_long(bad, long), len(texts), str(data.path), "cannot be used", most=MOST_UNALIGNED)
        seconds = sum(lengths[key] for key in used)
        if seconds < LITTLE_S:
            say(
                f"  warning: {seconds:.0f} s of speech is little to train on: check the boundaries, add recordings, or"
                " pass --model DIR"
            )
        # Monophones, then again along the boundaries that the waveforms suggest.
        sized = with_sizes(config, seconds / 3600, len(phone_groups(said)))
        generator, metrics = np.random.default_rng(seed), Metrics(out / METRICS_FILE)
        waves = DataWaves(data, features.sample_frequency)
        with Workers(used, feats, jobs) as workers:
            mono = sized.model_copy(update={"mono": sized.aligner})
            known = None if rules.spelled or rate_hz != english().features.sample_frequency else in_phones_of(said)
            if known:
                say("  training starts from the alignment of the English aligner in speech3")
            system = train_monophone(workers, said, mono, generator, metrics, known.system if known else None)
            system = along_boundaries(workers, system, sized, Refinement(frame_clock(features), waves))
        bad |= system.failed
        check_bad(_without_long(bad, long), len(texts), str(data.path), "could not be aligned", most=MOST_UNALIGNED)
        # The model directory.
        system.hmm.save(out)
        shutil.copyfile(work / "feats" / FEATURES_FILE, out / FEATURES_FILE)
        system.gmm.save(out / MODEL_FILE, {"features": config.aligner_features})
        _write_rules(rules, lexicon, out)
    if bad:
        say(f"  trained without {len(bad):,} of {len(texts):,} utterances, which could not be used")
    return Trained(load_recognizer(out), data)


def _write_rules(rules: TextRules, lexicon: Path | None, out: Path) -> None:
    write_json(out / ABOUT, asdict(replace(rules, given=lexicon is not None and not rules.spelled)))


@dataclass(frozen=True, eq=False)
class MappedAligner:
    """The English aligner with the phones of another lexicon, and the English phone nearest to each of them."""

    hmm: Hmm
    nearest: Mapping[str, Nearest]

    @property
    def system(self) -> GmmSystem:
        gmm = english().scorer
        assert isinstance(gmm, Gmm)
        return GmmSystem(self.hmm, gmm, {})

    def farthest(self) -> str:
        """The phones that are farthest from the English ones that they are aligned as, for messages."""
        far = sorted(self.nearest, key=lambda phone: -self.nearest[phone].distance)[:_FARTHEST]
        return ", ".join(
            f"{phone} -> {self.nearest[phone].phone.rstrip('012')}" for phone in far if self.nearest[phone].distance
        )


def in_phones_of(lexicon: Lexicon) -> MappedAligner | None:
    """The English aligner with the phones of a lexicon; None if these are in neither IPA nor TIMIT's symbols."""
    found = with_nearest_pdfs(english().hmm, lexicon)
    return MappedAligner(*found) if found else None


def map_aligner(data: DataDir, rules: TextRules, lexicon: Path | None, out: Path) -> Trained | None:
    """Give the English aligner the phones of the data's words, and write the model directory `out`.

    None if the pronunciations are in neither IPA nor TIMIT's symbols.

    Raises `Speech3Error`: there are no pronunciations (`find_pronunciations`).
    """
    data = find_pronunciations(data, rules, lexicon, out, trained=False)
    found = in_phones_of(mark_positions(read_lexicon(out / "lexicon.txt")))
    if not found:
        return None
    for name in (FEATURES_FILE, MODEL_FILE):
        shutil.copyfile(english().directory / name, out / name)
    found.hmm.save(out)
    _write_rules(rules, lexicon, out)
    far = found.farthest()
    say(
        "  the English aligner in speech3 aligns each phone as the nearest of its own"
        + (f"; the farthest: {far}" if far else "")
    )
    return Trained(load_recognizer(out), data)


def _without_long(bad: Mapping[str, str], long: Collection[str]) -> dict[str, str]:
    return {key: reason for key, reason in bad.items() if key not in long}


def model_rules(recognizer: Recognizer) -> TextRules:
    """What ``aligner.json`` says; for a model that has none, its lexicon's spelling and no language."""
    path = recognizer.directory / ABOUT
    return TextRules(**read_json(path)) if path.exists() else TextRules(given=True)


def read_for(recognizer: Recognizer, source: Path, tier: str | None = None) -> DataDir:
    """A Kaldi data directory as it is, or a folder of recordings with its transcripts in the spelling of a model."""
    data, _ = read_speech(source, tier)
    if is_datadir(source):
        return data
    return in_vocabulary(data, model_rules(recognizer), recognizer.hmm.lexicon.by_word)


def model_path(model: Path) -> Path:
    """The directory of a model: `english` is the one in the package, unless there is a directory of that name."""
    return shipped("data") / "english_aligner" if str(model) == ENGLISH and not model.exists() else model


@functools.cache
def english() -> Recognizer:
    """The English aligner in the package."""
    return load_recognizer(shipped("data") / "english_aligner")


def english_for(data: DataDir, speech_s: float, lang: str | None) -> Recognizer | None:
    """The English aligner if it suits recordings for which the user has given neither a model nor a lexicon.

    `speech_s`: seconds of the recordings that can be read.
    """
    if lang:
        if lang not in _CODES or speech_s > LITTLE_TO_TRAIN_ON_S:
            return None
        return english()
    known = {word.casefold() for word in english().hmm.lexicon.by_word}
    counts = Counter(word for utterance in data.utterances.values() for word in (utterance.text or "").split())
    heard = sum(count for word, count in counts.items() if word.casefold() in known)
    return english() if counts and heard >= _KNOWN * counts.total() else None


def with_further_words(
    recognizer: Recognizer, rules: TextRules, words: Collection[str], *, alone: bool = False
) -> Recognizer:
    """Pronounce words that the model lacks as those that it was trained on, by espeak-ng or by letters.

    Words that need other phones than the model's are left out, and named: they are aligned as `<unk>`. If the words are
    those of one recording `alone`, it is an error if the model has no `<unk>`, or most words are left out. Where
    pronunciations came from a lexicon, they are learnt from it.
    """
    new = sorted(word for word in set(words) if word not in recognizer.hmm.lexicon.by_word and word not in NOT_WORDS)
    pronounced = _pronounced(recognizer, rules, new) if new else recognizer
    lost = [word for word in new if word not in pronounced.hmm.lexicon.by_word]
    known = UNKNOWN in pronounced.hmm.lexicon.by_word
    if alone and (len(lost) > len(set(words)) / 2 or (lost and not known)):
        some = listed((word for word in recognizer.hmm.lexicon.by_word if is_word(word)), _SHOWN)
        lacks = listed(lost) + ("" if known else f", and no {UNKNOWN} to align them as")
        others = "" if recognizer.directory == model_path(Path(ENGLISH)) else f'Aligner.load("{ENGLISH}") or '
        remedy = f"write other words, or use {others}a model that Aligner.train makes of recordings with these words"
        if any(character.isdigit() for word in lost for character in word):
            remedy = "write numbers as they are spoken, in words"
        raise MissingError(f"text: this model (words: {some}) has no pronunciation of {lacks}; {remedy}")
    if lost := [word for word in lost if not (known and word.startswith(_NOISE))]:
        say(f"  no pronunciation, so {f'aligned as {UNKNOWN}' if known else 'not aligned'}: {listed(lost)}")
    return pronounced


def _pronounced(recognizer: Recognizer, rules: TextRules, new: Sequence[str]) -> Recognizer:
    if rules.given:
        learnt = by_lexicon(recognizer.hmm, new, recognizer.directory / G2P)
        return replace(recognizer, outputs=with_new_words(recognizer.hmm, learnt.pronunciations, learnt.how))
    if not (rules.lang or rules.spelled):
        return recognizer
    try:
        counts = dict.fromkeys(new, _SURE)
        found = guess_pronunciations(new, counts, None, rules.lang or None, spelled=rules.spelled)
    except Speech3Error:  # none of them can be pronounced
        return recognizer
    rows = (line.split() for line in found.lines)
    table = [Pronunciation(word, tuple(phones)) for word, *phones in rows if word in found.known]  # without <unk>
    usable = [pron for pron in table if has_phones(pron, recognizer.hmm.lexicon)]
    how = "spelled" if rules.spelled else f"by espeak-ng ({rules.lang})"
    say(f"  {len({pron.word for pron in usable})} of {len(new)} new words pronounced {how}")
    return replace(recognizer, outputs=with_new_words(recognizer.hmm, usable, how))


@dataclass(frozen=True, eq=False)
class Aligner:
    """A trained aligner: `train` or `load` it, then `align` recordings in memory."""

    recognizer: Recognizer
    rules: TextRules
    _scratch: tempfile.TemporaryDirectory[str] | None = None  # of a model that was not saved; deleted with this object

    @classmethod
    def train(
        cls,
        folder: Path | str,
        *,
        lang: str | None = None,
        lexicon: Path | str | None = None,
        graphemes: bool = False,
        out: Path | str | None = None,
        jobs: int = 1,
    ) -> "Aligner":
        """Train on all recordings of a folder that have a transcript, or on a Kaldi data directory.

        Parameters
        ----------
        lang, lexicon, graphemes
            Where pronunciations come from: espeak-ng's code of the language, a lexicon, or letters. By default
            ``lang/lexicon.txt`` in the folder. With `graphemes`, `lang` is only the language whose rules of letter
            case apply.
        out
            A directory for the model; None: it is kept only as long as this object.
        jobs
            Processes; with more than one, a script needs the guard ``if __name__ == "__main__":``. 0: one per core.

        Raises
        ------
        Speech3Error
            There is nothing to train on, or too much of it cannot be aligned.
        """
        if lexicon and graphemes:
            raise SettingError(f"lexicon={lexicon}: graphemes=True makes the pronunciations; remove one of them")
        try:
            return cls._trained(_path(folder, "folder"), lang, lexicon, graphemes, out, jobs)
        except Speech3Error as error:
            raise error.restated(_in_python(str(error))) from error

    @classmethod
    def _trained(
        cls,
        folder: Path,
        lang: str | None,
        lexicon: Path | str | None,
        graphemes: bool,
        out: Path | str | None,
        jobs: int,
    ) -> "Aligner":
        scratch = None if out else tempfile.TemporaryDirectory(prefix="speech3-aligner-")
        directory = Path(out) if out else Path(scratch.name)  # type: ignore[union-attr]
        source = read_source(folder, lang=lang or "")
        given = Path(lexicon) if lexicon else source.lexicon
        rules = TextRules(source.plain, lang or "", graphemes)
        trained = train_aligner(source.data, rules, given, directory, source.rate_hz, jobs or available_jobs())
        return cls(trained.recognizer, model_rules(trained.recognizer), scratch)

    @classmethod
    def load(cls, path: Path | str) -> "Aligner":
        """Read a model directory, of an aligner (``OUT/model``) or of any recipe; ``english``: that of the package."""
        recognizer = load_recognizer(model_path(_path(path, "path")))
        return cls(recognizer, model_rules(recognizer))

    def save(self, path: Path | str) -> None:
        """Copy the model to a new directory; it is an error if `path` exists."""
        if Path(path).exists():
            raise OccupiedError(f"{path}: exists; choose a new directory")
        shutil.copytree(self.recognizer.directory, path)

    def align(self, samples: ArrayLike, rate: int, text: str) -> Result:
        """Align a recording with what is said in it.

        Parameters
        ----------
        samples
            One channel, floats from -1 to 1, or int16, int32 or uint8 over their whole range.
        rate
            Samples per second; if it is not the model's rate, the recording is resampled.
        text
            What is said, as it is written: letter case and punctuation do not matter. The words of the result are in
            its letter case.

        Raises
        ------
        Speech3Error
            The recording is empty, silent or too short for the text, there is no text, or most of its words are
            unknown, or one is and the model has no `<unk>`.
        """
        if not isinstance(text, str):
            raise SettingError(f"text={text!r}: pass what is said as a string")
        text, remarks = without_markup(text)
        for remark in remarks:
            say(f"  text: {remark.problem}; {remark.handling}")
        vocabulary = self.recognizer.hmm.lexicon.by_word
        words = self.rules.words(text, vocabulary, case_folded(vocabulary))
        model = with_further_words(self.recognizer, self.rules, words, alone=True)
        self.recognizer.warn_once_of_rate(rate)
        said, phones, confidence = align_samples(model, samples, rate, words)
        heard = phones_of_segments(phones, model.hmm.lexicon)
        spelled = words_of_segments(in_user_spelling(said, plain_words(text, (), self.rules.lang), text))
        return replace(result_of(spelled), phones=heard, confidence=confidence)


def _in_python(message: str) -> str:
    """A message about options of the command line, as one about arguments of `Aligner.train`."""
    for option, argument in _ARGUMENTS.items():
        message = message.replace(option, argument)
    return message


def _path(value: object, name: str) -> Path:
    if not isinstance(value, str | Path):
        raise SettingError(f"{name}={value!r}: pass a path")
    return Path(value)
