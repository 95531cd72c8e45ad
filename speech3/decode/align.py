"""Forced alignment of a whole data directory, for `speech3 align`, and the files that it writes."""

import functools
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from speech3.data import DATADIR_FILES, DataDir, Utterance, lengths_s, write_datadir
from speech3.decode.apply import features_for, say_skipped
from speech3.decode.output import utterance_length_s
from speech3.decode.recognizer import Recognizer, features_of_samples
from speech3.decode.speaker_passes import speaker_model, transforms_along
from speech3.decode.trained_model import TrainedModel
from speech3.errors import MOST_BAD, DataError, MissingError, Speech3Error, check_bad, counted
from speech3.features import silent_in
from speech3.hmm import (
    LONG_UTTERANCE_S,
    NONE,
    Aligned,
    DataWaves,
    GuessedPronunciations,
    Hmm,
    Limits,
    LongLayout,
    LongPart,
    PartFeats,
    PartWaves,
    Segment,
    Suspicion,
    Transcripts,
    by_espeak,
    by_lexicon,
    check_names,
    differences,
    fit,
    has_phones,
    lay_out_long,
    limits_of,
    match,
    moved,
    paired,
    part_names,
    part_texts,
    phone_segments,
    spoken,
    suspicions,
    tracks,
    unknown_words,
    usable_transcripts,
    with_new_words,
    word_segments,
    write_alignments,
)
from speech3.io import A_DATADIR, A_MODEL, ComputedMapping
from speech3.language import G2P, Pronunciation, check_vocabulary, read_lexicon
from speech3.runtime import check_output, parallel_map, say, write_text

LONGEST_SAMPLES_S = 600.0  # the search without a beam needs memory for every state of every frame
_WRITTEN = (
    *("ali.ark", "phones.ctm", "words.ctm", "textgrid", "bad.txt"),
    *("confidence.txt", "suspicious.txt", "oov.txt", "gaps.txt"),
    *(f"split/{name}" for name in DATADIR_FILES),
)
_FIRST = 5  # number of utterances listed for an unknown word


@dataclass(frozen=True, eq=False)
class FoundAlignment:
    """The result of an alignment."""

    recognizer: Recognizer  # the model, with the pronunciations that were added
    aligned: Aligned  # alignments of utterances, and of the parts of long ones
    layouts: dict[str, LongLayout]  # how each long utterance was cut
    # utterances and parts whose transcripts are doubtful, because their confidences are below `limits`
    suspicious: list[Suspicion]
    unknown: dict[str, list[str]]  # for each word that the lexicon lacks, the utterances that contain it
    limits: Limits
    # texts, durations_s: of utterances and of parts of long ones
    texts: dict[str, str | None]
    parts: dict[str, LongPart]
    durations_s: dict[str, float]
    total: int  # number of utterances and parts, with those that could not be aligned

    def tracks(self) -> tuple[Mapping[str, list[Segment]], Mapping[str, list[Segment]]]:
        """Words and phones of each utterance, in seconds from its beginning; the parts of long ones are joined."""
        found, model = self.aligned, self.recognizer
        lexicon, clock = model.hmm.lexicon, model.clock
        return tracks(found.alignments, lexicon, self.texts, clock, self.durations_s, found.confidences, self.parts)


def check_alignment(out: Path, inputs: Iterable[Path | None]) -> None:
    """Refuse a directory for `align_datadir` where it would replace an input, or files that it has not written."""
    check_output(out, inputs, _WRITTEN, marks=["ali.ark"], not_in=[A_MODEL, A_DATADIR])


def align_datadir(
    recognizer: Recognizer,
    data: DataDir,
    out: Path,
    jobs: int,
    *,
    lexicon: Path | None = None,
    lang: str | None = None,
    corrected: Mapping[str, Sequence[Segment]] | None = None,
) -> FoundAlignment:
    """Align every utterance with its transcript, and write the files listed in the help of `speech3 align`.

    Parameters
    ----------
    lexicon
        Pronunciations of words that the model lacks, in its phones.
    lang
        espeak-ng's language code, for guessing pronunciations of the words that are still missing.
    corrected
        Phones and silences of some utterances with times corrected by the user: all boundaries are moved by the same
        conventions, if that helps (`speech3.hmm.alignment.compared`).

    Raises
    ------
    Speech3Error
        There are no transcripts; most of their words are not in the lexicon; more than 5 % of the utterances are bad
        (raised after all files were written, so that the lists name them).
    """
    found = find_alignment(recognizer, data, out, jobs, lexicon=lexicon, lang=lang, corrected=corrected)
    aligned = found.aligned
    write_alignments(
        out,
        found.recognizer.hmm,
        aligned.alignments,
        found.texts,
        found.recognizer.clock,
        durations_s=found.durations_s,
        bad=aligned.bad,
        confidences=aligned.confidences,
        parts=found.parts,
    )
    _write_lists(out, found)
    _write_split(out, data, found)
    say_skipped(aligned.bad, "not aligned")
    remedy = f"the others were; check the utterances listed in {out}/bad.txt and {out}/suspicious.txt"
    if found.unknown:
        remedy += f", and pass pronunciations of the words in {out}/oov.txt with --lexicon or --lang"
    check_bad(aligned.bad, found.total, str(data.path), "could not be aligned", remedy)
    return found


def find_alignment(
    recognizer: Recognizer,
    data: DataDir,
    out: Path,
    jobs: int,
    *,
    lexicon: Path | None = None,
    lang: str | None = None,
    corrected: Mapping[str, Sequence[Segment]] | None = None,
    tolerant: bool = False,
    only: Collection[str] | None = None,
    limits: Limits | None = None,
) -> FoundAlignment:
    """Align as `align_datadir` does, but write only the features and ``guessed.txt`` to `out`.

    Parameters
    ----------
    tolerant
        Any number of utterances may be bad, silent ones are, and where no path is found within the beams, the search
        goes on without a beam.
    only
        The utterances to align; the others serve to normalise the features of their speakers.
    limits
        Which utterances are suspicious; None: outliers among these.
    """
    texts = {key: utterance.text for key, utterance in data.utterances.items()}
    if not any(texts.values()):
        raise MissingError(
            f"{data.path}: has no transcripts; write them to {data.path}/text, or use speech3 decode, which needs none"
        )
    if corrected is not None:
        check_names(corrected, texts)
    recognizer = _more_words(recognizer, texts, lexicon, lang, out)
    hmm, clock, config = recognizer.hmm, recognizer.clock, recognizer.features
    check_vocabulary(texts, hmm.lexicon.by_word)  # before hours of audio are read
    # A network on adapted features hears them adapted along the transcripts.
    known = _transcripts_for(recognizer.sat, data, texts) if recognizer.sat and data.recordings else None
    feats, skipped = features_for(recognizer, data, jobs, out, 1.0 if tolerant else MOST_BAD, known)
    durations = lengths_s(data.subset(feats)) if feats else {}
    # Which utterances to align, and with which words.
    transcripts = usable_transcripts(texts, hmm.lexicon, feats)
    transcripts.bad.update({key: reason.removeprefix(f"{key}: ") for key, reason in skipped.items()})
    for utterance in silent_in(out / "feats") if tolerant else ():
        transcripts.words.pop(utterance, None)
        transcripts.bad[utterance] = "is digital silence from end to end"
    for kept in (transcripts.words, transcripts.bad) if only is not None else ():
        for utterance in kept.keys() - set(only or ()):
            del kept[utterance]
    # Long utterances are aligned in parts.
    layouts = _lay_out(recognizer, transcripts, feats, durations, jobs)
    parts = part_names((part for layout in layouts.values() for part in layout.parts), 1 / clock.shift_s)
    texts |= part_texts(parts, texts)
    for name, part in parts.items():
        transcripts.words[name] = hmm.lexicon.known((texts[name] or "").split())
        begin_s, end_s = part.times_s(clock)
        durations[name] = min(end_s, durations.get(part.utterance, end_s)) - begin_s
    # Align, for models that adapt to speakers with their transforms, and refine boundaries on the waveforms.
    scorer, given = recognizer.scorer, PartFeats(feats, parts, config)
    searched: Mapping[str, np.ndarray] = given
    if model := speaker_model(recognizer):
        speaker_of = {key: data.utterances[parts[key].utterance if key in parts else key].speaker for key in given}
        said = {key: " ".join(words) for key, words in transcripts.words.items()}
        transforms = transforms_along(model, given, speaker_of, said, jobs)
        adapted, searched = model.adapted_to(given, speaker_of, transforms, graph=None)
        scorer = adapted.scorer
    waves = PartWaves(DataWaves(data, config.sample_frequency), parts, clock)
    aligned = recognizer.align_transcripts(
        transcripts, searched, jobs, waves, scorer=scorer, scored=True, widen=tolerant
    )
    total = len(transcripts.words) + len(transcripts.bad)
    if not aligned.alignments and not tolerant:
        check_bad(aligned.bad, total, str(data.path), "could not be aligned")
    if corrected is not None and aligned.alignments:
        aligned = _as_corrected(aligned, corrected, recognizer, durations)
    # What the user should look at: words without pronunciations, and doubtful transcripts.
    unknown = unknown_words({key: texts[key] for key in data.utterances}, hmm.lexicon)
    limits = limits or limits_of(aligned)
    doubtful = suspicions(aligned, texts, clock, limits)
    return FoundAlignment(recognizer, aligned, layouts, doubtful, unknown, limits, texts, parts, durations, total)


def _transcripts_for(gmm: TrainedModel, data: DataDir, texts: Mapping[str, str | None]) -> dict[str, str] | None:
    """The transcripts along which GMMs can adapt to speakers; None if they have to recognise what is said.

    They align whole utterances, so long ones take part only by their speakers.
    """
    # Recordings that cannot be read count as short: the extraction of their features says so, and how many may be bad.
    short = [
        key for key, utterance in data.utterances.items() if utterance_length_s(data, utterance) <= LONG_UTTERANCE_S
    ]
    usable = usable_transcripts(texts, gmm.hmm.lexicon, short, strict=False).words
    return {key: " ".join(words) for key, words in usable.items()} or None


def align_samples(
    recognizer: Recognizer, samples: ArrayLike, rate: int, words: Sequence[str]
) -> tuple[list[Segment], list[Segment], float]:
    """Align one recording in memory: its words, its phones (times in seconds), and the confidence of the whole.

    Parameters
    ----------
    samples
        One channel, as floats from -1 to 1 or as integers; resampled if `rate` (Hz) is not the model's.
    words
        What is said. A word that the model lacks is aligned as `<unk>` and keeps its spelling.

    Raises
    ------
    Speech3Error
        There are no words or no samples; the recording is silent, too short for the words, or longer than
        `LONGEST_SAMPLES_S`; the model has no `<unk>` for a word that it lacks.
    """
    if not words:
        raise DataError("there is no text: pass the words that are said in the recording")
    feats_TF, wave = features_of_samples(recognizer, samples, rate)
    duration_s = len(wave[0]) / wave[1]
    if duration_s > LONGEST_SAMPLES_S:
        raise DataError(
            f"the recording lasts {duration_s:.0f} s; cut it into parts of at most {LONGEST_SAMPLES_S:g} s, or use"
            " `speech3 align`, which does that"
        )
    hmm, clock, name = recognizer.hmm, recognizer.clock, "samples"
    transcripts = Transcripts({name: hmm.lexicon.known(words)}, {})
    aligned = recognizer.align_transcripts(transcripts, {name: feats_TF}, 1, {name: wave}, scored=True, widen=True)
    if name in aligned.bad:
        raise DataError(f"the recording could not be aligned: {aligned.bad[name]}; check its text")
    found, sure = aligned.alignments[name], aligned.confidences[name]
    said = word_segments(found, words, clock, duration_s, sure.words_W)
    return said, phone_segments(found, hmm.lexicon, clock, duration_s, sure), sure.utterance


def _as_corrected(
    aligned: Aligned, truth: Mapping[str, Sequence[Segment]], recognizer: Recognizer, durations: Mapping[str, float]
) -> Aligned:
    """Move the boundaries by the user's conventions, if they can be told from the corrected recordings."""
    lexicon, clock, errors = recognizer.hmm.lexicon, recognizer.clock, {}
    for name, other in paired(list(truth), list(aligned.alignments)).items():
        ours = phone_segments(aligned.alignments[other], lexicon, clock, durations.get(other))
        matched = match(spoken(truth[name]), spoken(ours), "phones")
        errors[other] = differences(ours, matched, truth[name])
    offsets = fit(errors)
    say(
        f"{offsets.boundaries:,} boundaries of {offsets.recordings} corrected recordings are {offsets.before_ms:.1f} ms"
        f" from the aligned ones; moved by what the other recordings say, each would be {offsets.after_ms:.1f} ms away:"
        f" {'all boundaries are moved so' if offsets.help else 'too few, or too different, so nothing is moved'}"
    )
    if not offsets.help:
        return aligned
    found = aligned.alignments
    return replace(aligned, alignments=ComputedMapping(found, lambda key: moved(found[key], lexicon, clock, offsets)))


def _more_words(
    recognizer: Recognizer, texts: Mapping[str, str | None], lexicon: Path | None, lang: str | None, out: Path
) -> Recognizer:
    known = hmm = recognizer.hmm
    if lexicon:
        hmm = with_new_words(hmm, read_lexicon(lexicon).pronunciations, str(lexicon))
    guessed = _guessed(recognizer, hmm, texts, lang)
    if guessed.pronunciations:
        hmm = with_new_words(hmm, guessed.pronunciations, f"pronunciations guessed {guessed.how}")
        rows = (f"{pron.word} {' '.join(pron.phones)}\n" for pron in guessed.pronunciations)
        write_text(out / "guessed.txt", "".join(rows))
        words = len({pron.word for pron in guessed.pronunciations})
        say(f"{counted(words, 'word')} pronounced {guessed.how}: {out}/guessed.txt")
    else:
        (out / "guessed.txt").unlink(missing_ok=True)
    recognizer = replace(recognizer, outputs=hmm)
    if recognizer.sat is None or hmm is known:
        return recognizer
    # The GMMs that adapt the network's features get the same words, as far as they have their phones.
    own = recognizer.sat.hmm
    new = [pron for pron in hmm.lexicon.pronunciations if pron.word not in own.lexicon.by_word]
    more = [Pronunciation(pron.word, tuple(map(hmm.lexicon.base_phone, pron.phones)), pron.prob) for pron in new]
    source = "pronunciations of new words"
    gmm = with_new_words(own, [pron for pron in more if has_phones(pron, own.lexicon)], source)
    return replace(recognizer, sat=replace(recognizer.sat, outputs=gmm))


def _guessed(
    recognizer: Recognizer, hmm: Hmm, texts: Mapping[str, str | None], lang: str | None
) -> GuessedPronunciations:
    """Pronunciations of the unknown words in the model's phones; words that need other phones get none.

    Without a language, none if the model's lexicon has too few words to learn from, or its spelling says little.
    """
    unknown, kept = list(unknown_words(texts, hmm.lexicon)), recognizer.directory / G2P
    if not lang:
        check_vocabulary(texts, hmm.lexicon.by_word)  # most words unknown: a text in another case, or language
        return by_lexicon(hmm, unknown, kept) if unknown else NONE
    counts = Counter(word for text in texts.values() for word in (text or "").split())
    try:
        return by_espeak(hmm, unknown, counts, lang, kept)
    except Speech3Error as error:
        raise error.restated(f"{error}; for pronunciations without --lang, use --lexicon FILE") from error


def _lay_out(
    recognizer: Recognizer,
    transcripts: Transcripts,
    feats: Mapping[str, np.ndarray],
    durations: Mapping[str, float],
    jobs: int,
) -> dict[str, LongLayout]:
    """Cut the long utterances; remove them from the words of `transcripts`, and add to its `bad` those that fail."""
    long = [utterance for utterance in transcripts.words if durations.get(utterance, 0.0) > LONG_UTTERANCE_S]
    items = [(utterance, tuple(transcripts.words.pop(utterance))) for utterance in long]
    work = functools.partial(_lay_out_one, recognizer, feats)
    layouts = {}
    for utterance, layout in zip(long, parallel_map(work, items, jobs, "long recordings"), strict=True):
        if isinstance(layout, str):
            transcripts.bad[utterance] = layout
            continue
        layouts[utterance] = layout
        unsaid, unwritten = layout.words - layout.found, sum(1 for gap in layout.gaps if not gap.words)
        say(
            f"{utterance}: {durations[utterance]:.0f} s in {counted(len(layout.parts), 'part')}; {layout.found:,} of"
            f" {counted(layout.words, 'word')} found{', gaps.txt lists the others' if unsaid else ''}"
            f"{f'; {unwritten} stretches of audio without words' if unwritten else ''}"
        )
    return layouts


def _lay_out_one(
    recognizer: Recognizer, feats: Mapping[str, np.ndarray], item: tuple[str, tuple[str, ...]]
) -> LongLayout | str:
    utterance, words = item
    hmm, scorer, scale = recognizer.hmm, recognizer.scorer, recognizer.alignment_scale
    try:
        return lay_out_long(hmm, scorer, utterance, words, feats[utterance], recognizer.features, scale)
    except Speech3Error as error:
        return str(error)


def _write_lists(out: Path, found: FoundAlignment) -> None:
    """Write tab-separated confidence.txt, suspicious.txt, oov.txt, and gaps.txt if a recording was long."""
    said = {utterance: (text or "").split() for utterance, text in found.texts.items()}
    rows = []
    for utterance, confidence in found.aligned.confidences.items():
        worst, sure = said[utterance][confidence.worst], confidence.words_W[confidence.worst]
        lasts = f"{found.durations_s[utterance]:.2f}"
        rows.append((utterance, f"{confidence.utterance:.3f}", worst, f"{sure:.3f}", lasts))
    _write_table(out / "confidence.txt", rows)
    doubtful = [(s.utterance, f"{s.confidence:.3f}", s.reason, s.transcript) for s in found.suspicious]
    _write_table(out / "suspicious.txt", doubtful)
    unknown = (
        (word, str(len(keys)), " ".join(list(dict.fromkeys(keys))[:_FIRST])) for word, keys in found.unknown.items()
    )
    _write_table(out / "oov.txt", unknown)
    if not found.layouts:
        (out / "gaps.txt").unlink(missing_ok=True)
        return
    absent, shift_s = [], found.recognizer.clock.shift_s
    for utterance, layout in found.layouts.items():
        for gap in layout.gaps:
            words = " ".join(said[utterance][word] for word in gap.words)
            absent.append((utterance, f"{gap.start * shift_s:.2f}", f"{gap.end * shift_s:.2f}", words))
    _write_table(out / "gaps.txt", absent)


def _write_table(path: Path, rows: Iterable[tuple[str, ...]]) -> None:
    write_text(path, "".join("\t".join(row) + "\n" for row in rows))


def _write_split(out: Path, data: DataDir, found: FoundAlignment) -> None:
    """Write the parts of long recordings, without the suspicious ones, as a data directory if there are any."""
    parts, doubtful = found.parts, {suspicion.utterance for suspicion in found.suspicious}
    kept: dict[str, Utterance] = {}
    for name in sorted(found.aligned.alignments.keys() & parts.keys() - doubtful):
        whole = data.utterances[parts[name].utterance]
        start_s = whole.start_s + parts[name].times_s(found.recognizer.clock)[0]
        end_s = round(start_s + found.durations_s[name], 3)
        kept[name] = replace(whole, id=name, text=found.texts[name], start_s=start_s, end_s=end_s)
    if kept and data.recordings:
        used = {utterance.recording for utterance in kept.values()}
        recordings = {key: value for key, value in data.recordings.items() if key in used}
        write_datadir(DataDir(data.path, recordings, kept), out / "split")
    else:  # files of an earlier run would be mistaken for this one's
        for file in DATADIR_FILES:
            (out / "split" / file).unlink(missing_ok=True)
