"""Forced alignment of a data set, its files (Kaldi archive, CTM, TextGrid), and utterances with suspicious transcripts.

An utterance is suspicious if the confidence of its alignment (`speech3.hmm.alignment.times`) is low. That of a word is
a mean over its phones, so it is less reliable for a short word: the doubt about a word of n phones is
``(usual - confidence) * sqrt(n)``, where `usual` is the median of all words. On LibriSpeech, with words replaced, left
out or taken from other utterances, one threshold gave the same false alarm rate for triphones and monophones, on
speakers of the training data and on others: 0.5 % of the words at 0.57, 0.3 % at `DOUBTFUL`. Models with an output for
every third frame have fewer values per phone, so their mean is less precise, but they separate wrong from correct words
far better: on minilibri's dev, with one word of each utterance replaced, 0.3 % of the correct words and 95 % of the
replaced ones are above `DOUBTFUL_SUBSAMPLED`; triphones, at the same false alarm rate, find 60 %.
"""

import math
import tempfile
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import numpy as np

from speech3.errors import Speech3Error
from speech3.hmm import train
from speech3.hmm.alignment.boundaries import Refinement
from speech3.hmm.alignment.longform import LongPart, joined
from speech3.hmm.alignment.times import (
    Confidence,
    FrameClock,
    Segment,
    confidence,
    file_name,
    phone_segments,
    word_segments,
    write_ctm,
    write_textgrid,
)
from speech3.hmm.gmm import Gmm
from speech3.hmm.model import Hmm
from speech3.hmm.train import Scorer
from speech3.hmm.transcript import NO_WORD, Alignment
from speech3.hmm.workers import StoredAlignments, WordLists, Workers, WorkerShare, merged_alignments
from speech3.io import ComputedMapping, write_ark
from speech3.language import UNKNOWN, Lexicon, check_vocabulary
from speech3.runtime import progress, write_text

_BLOCK = 1000  # frames for which a GMM scores all pdfs at once
DOUBTFUL, DOUBTFUL_SUBSAMPLED = 0.7, 1.05  # doubt above which a word is doubtful
UTTERANCE = 0.72  # confidence below which an utterance is suspicious in any set
OUTLIER, LEAST = 4.0, 0.08  # suspicious too: this many robust standard deviations and this much below the set's median
_MIN_SET = 20  # utterances that a set needs for its own limits
_USUAL_WORD = 0.85  # least confidence of a usual word in smaller sets
# Silence of at least so many seconds with less confidence than this may be speech that the transcript lacks. With the
# English aligner, no utterance of minilibri's test and of timit_sample has such silence, and 51 of minilibri's 60 have
# it where the transcript has only the first half of the words; of 1,680 noisy ones of `digits` none has it.
_LONG_S, _SURE_SILENCE = 0.5, 0.75


@dataclass(frozen=True)
class Transcripts:
    """Words to align, all in the lexicon (or `<unk>`), and the utterances that cannot be aligned, with the reasons."""

    words: MutableMapping[str, list[str]]
    bad: dict[str, str]


def usable_transcripts(
    texts: Mapping[str, str | None], lexicon: Lexicon, utterances: Iterable[str], *, strict: bool = True
) -> Transcripts:
    """Separate the utterances that can be aligned from those that cannot.

    Parameters
    ----------
    texts
        Transcript of each utterance.
    utterances
        The utterances that have features.
    strict
        Refuse transcripts whose words are mostly not in the lexicon.

    Raises
    ------
    Speech3Error
        More than half of the words of all transcripts are not in the lexicon.
    """
    utterances = list(utterances)
    if strict:
        check_vocabulary({utterance: texts.get(utterance) for utterance in utterances}, lexicon.by_word)
    words, bad = WordLists(), dict[str, str]()
    for utterance in utterances:
        text = (texts.get(utterance) or "").split()
        if not text:
            bad[utterance] = "has no transcript"
            continue
        try:
            words[utterance] = lexicon.known(text)
        except Speech3Error as error:
            bad[utterance] = str(error)
    return Transcripts(words, bad)


@dataclass(frozen=True)
class Aligned:
    """Alignments sorted by utterance; utterances without one, with the reasons; those that needed the retry beam."""

    alignments: Mapping[str, Alignment] = field(default_factory=dict)
    bad: dict[str, str] = field(default_factory=dict)
    retried: set[str] = field(default_factory=set)
    confidences: dict[str, Confidence] = field(default_factory=dict)  # empty unless requested


def align_utterances(
    hmm: Hmm,
    scorer: Scorer,
    transcripts: Transcripts,
    feats: Mapping[str, np.ndarray],
    *,
    beam: float,
    retry_beam: float,
    jobs: int,
    acoustic_scale: float = 0.1,
    scored: bool = False,
    refinement: Refinement | None = None,
    widen: bool = False,
) -> Aligned:
    """Align all transcripts. The caller checks whether too many of them failed (`check_bad`).

    Parameters
    ----------
    beam, retry_beam, acoustic_scale
        As in `speech3.hmm.transcript.best_path`; the second beam is tried where the first finds no path.
    scored
        Also compute confidences, which needs the likelihoods of all pdfs.
    refinement
        Also compute the times of boundaries between frames (`Alignment.edges`).
    widen
        Where the second beam finds no path either, search without a beam: every utterance that is long enough for its
        phones is then aligned.
    """
    parts: list[Aligned] = []
    with tempfile.TemporaryDirectory(prefix="speech3-ali-") as scratch:
        if transcripts.words:
            with Workers(transcripts.words, feats, jobs) as workers:
                beams = (beam, retry_beam, math.inf) if widen else (beam, retry_beam)
                parts = workers.run(_align_share, hmm, scorer, beams, acoustic_scale, scored, refinement, Path(scratch))
        stores = (cast(StoredAlignments, part.alignments) for part in parts)
        whole = Aligned(merged_alignments(stores), dict(transcripts.bad))
    for part in parts:
        whole.bad.update(part.bad)
        whole.retried.update(part.retried)
        whole.confidences.update(part.confidences)
    return whole


def _align_share(
    share: WorkerShare,
    hmm: Hmm,
    scorer: Scorer,
    beams: tuple[float, ...],
    acoustic_scale: float,
    scored: bool,
    refinement: Refinement | None,
    scratch: Path,
) -> Aligned:
    """Align a share; the alignments are in a file, from which the calling process reads them."""
    done = Aligned(stored := StoredAlignments(scratch / f"{share.number}.ali"))
    for utterance in share.shown("alignment"):
        one = WorkerShare({utterance: share.words[utterance]}, share.feats)  # its HMM is used only here, so not kept
        scores = train.score_one(one, utterance, hmm, scorer)
        if isinstance(scores, str):
            done.retried.add(utterance)
            done.bad[utterance] = scores
            continue
        found = train.search_one(scores, hmm, beams[:1], acoustic_scale)
        if isinstance(found, str):
            found = train.search_one(scores, hmm, beams[1:], acoustic_scale)
            done.retried.add(utterance)
        if isinstance(found, str):
            done.bad[utterance] = found
            continue
        if refinement:
            found = refinement.refined(found, utterance, scores, hmm, acoustic_scale)
        stored[utterance] = found
        if scored:
            done.confidences[utterance] = confidence(found, hmm, _blocks(scorer, share.feats[utterance]))
    return done


def _blocks(scorer: Scorer, feats_TD: np.ndarray) -> Iterator[np.ndarray]:
    """Log likelihoods of all pdfs, block by block: of a GMM, those of a long utterance would need gigabytes."""
    if not isinstance(scorer, Gmm):  # a network needs the context of each frame
        yield scorer.loglikes(feats_TD)
        return
    for first in range(0, len(feats_TD), _BLOCK):
        yield scorer.loglikes(feats_TD[first : first + _BLOCK])


def write_alignments(
    out: Path,
    hmm: Hmm,
    alignments: Mapping[str, Alignment],
    texts: Mapping[str, str | None],
    clock: FrameClock,
    *,
    durations_s: Mapping[str, float] | None = None,
    bad: Mapping[str, str] | None = None,
    textgrids: bool = True,
    confidences: Mapping[str, Confidence] | None = None,
    parts: Mapping[str, LongPart] | None = None,
) -> None:
    """Write ``ali.ark`` (Kaldi int32 vectors of pdfs), ``phones.ctm``, ``words.ctm``, ``textgrid/`` and ``bad.txt``.

    Words outside the lexicon keep their spelling in the CTM, although they were aligned as `<unk>`. Times count from
    the beginning of the utterance (of the segment, if the data directory has `segments`).

    `confidences`: the sixth column of both CTM files.
    `parts`: parts of long recordings. Their alignments, texts and durations are given per part, and ``ali.ark`` is
    written per part; CTM and TextGrid describe whole recordings, except what no part covers.
    """
    out.mkdir(parents=True, exist_ok=True)
    durations = durations_s or {}
    words, phones = tracks(alignments, hmm.lexicon, texts, clock, durations, confidences or {}, parts or {})
    shown = progress(alignments.items(), len(alignments), "ali.ark")
    write_ark(out / "ali.ark", ((u, a.pdfs(hmm)) for u, a in shown))
    write_ctm(out / "phones.ctm", phones)
    write_ctm(out / "words.ctm", words)
    if textgrids:
        kept = {f"{file_name(utterance)}.TextGrid" for utterance in phones}
        for old in (out / "textgrid").glob("*.TextGrid"):  # of an earlier alignment
            if old.name not in kept:
                old.unlink()
        for utterance, tier in progress(phones.items(), len(phones), "textgrid"):
            end_s = max(durations.get(utterance, 0.0), tier[-1].end_s)
            tiers = {"words": words[utterance], "phones": tier}
            write_textgrid(out / "textgrid" / f"{file_name(utterance)}.TextGrid", tiers, end_s)
    write_text(out / "bad.txt", "".join(f"{u} {reason}\n" for u, reason in sorted((bad or {}).items())))


def tracks(
    alignments: Mapping[str, Alignment],
    lexicon: Lexicon,
    texts: Mapping[str, str | None],
    clock: FrameClock,
    durations_s: Mapping[str, float],
    confidences: Mapping[str, Confidence],
    parts: Mapping[str, LongPart],
) -> tuple[Mapping[str, list[Segment]], Mapping[str, list[Segment]]]:
    """Words and phones of each utterance, in seconds from its beginning; the parts of long ones are joined."""

    def words_of(key: str) -> list[Segment]:
        sure, said = confidences[key].words_W if key in confidences else None, (texts.get(key) or UNKNOWN).split()
        return word_segments(alignments[key], said, clock, durations_s.get(key), sure)

    def phones_of(key: str) -> list[Segment]:
        return phone_segments(alignments[key], lexicon, clock, durations_s.get(key), confidences.get(key))

    words: Mapping[str, list[Segment]] = ComputedMapping(alignments, words_of)
    phones: Mapping[str, list[Segment]] = ComputedMapping(alignments, phones_of)
    return (joined(words, parts, clock), joined(phones, parts, clock)) if parts else (words, phones)


@dataclass(frozen=True)
class Suspicion:
    """An utterance, why it is suspicious, and its transcript with ``*`` around the doubtful words."""

    utterance: str
    confidence: float
    reason: str
    transcript: str


@dataclass(frozen=True)
class Limits:
    """An utterance of less confidence than `utterance` is suspicious; `word` is the median confidence of words."""

    utterance: float
    word: float


def limits_of(aligned: Aligned) -> Limits:
    """Estimate `Limits`. Outliers are `OUTLIER` * 1.4826 median absolute deviations or more below the median."""
    if not aligned.confidences:
        return Limits(UTTERANCE, _USUAL_WORD)
    utterances = np.array([confidence.utterance for confidence in aligned.confidences.values()])
    word = float(np.median(np.concatenate([confidence.words_W for confidence in aligned.confidences.values()])))
    if len(utterances) < _MIN_SET:
        return Limits(UTTERANCE, max(word, _USUAL_WORD))
    middle = float(np.median(utterances))
    outlier = middle - max(OUTLIER * 1.4826 * float(np.median(np.abs(utterances - middle))), LEAST)
    return Limits(max(UTTERANCE, outlier), word)


def doubtful_words(aligned: Aligned, utterance: str, word: float, doubtful: float) -> np.ndarray:
    """(W,) bool: the words that were probably not spoken; `word` is the confidence of a usual one."""
    owner = aligned.alignments[utterance].words
    phones_W = np.bincount(owner[owner != NO_WORD])
    doubt_W: np.ndarray = (word - aligned.confidences[utterance].words_W) * np.sqrt(phones_W)
    return doubt_W > doubtful


def unsaid_s(aligned: Aligned, utterance: str, output_s: float) -> float:
    """Seconds of long silences that are probably speech, for which the transcript has no words."""
    found = aligned.alignments[utterance]
    lengths_S = np.diff(found.starts) * output_s
    doubtful_S = aligned.confidences[utterance].phones_S < _SURE_SILENCE
    return float(lengths_S[(found.words == NO_WORD) & doubtful_S & (lengths_S >= _LONG_S)].sum())


def suspicions(
    aligned: Aligned, texts: Mapping[str, str | None], clock: FrameClock, limits: Limits | None = None
) -> list[Suspicion]:
    """List suspicious utterances, the worst first.

    They have no path, low confidence, doubtful words, long silences that are probably speech, or were aligned on retry
    only. `limits`: None: those of `aligned`.
    """
    limits, doubtful = limits or limits_of(aligned), DOUBTFUL_SUBSAMPLED if clock.subsampling > 1 else DOUBTFUL
    found = [
        Suspicion(utterance, 0.0, reason, texts.get(utterance) or "")
        for utterance, reason in aligned.bad.items()
        if utterance in aligned.retried
    ]
    for utterance, confidences in aligned.confidences.items():
        words = (texts.get(utterance) or "").split()
        doubtful_W = doubtful_words(aligned, utterance, limits.word, doubtful)
        reasons = []
        if confidences.utterance < limits.utterance:
            reasons.append(f"below {limits.utterance:.2f} as a whole")
        if doubtful_W.any():
            reasons.append(f"{doubtful_W.sum()} of {len(words)} words doubtful")
        if (lost_s := unsaid_s(aligned, utterance, clock.shift_s * clock.subsampling)) > 0:
            reasons.append(f"{lost_s:.1f} s without words that sound like speech")
        if utterance in aligned.retried:
            reasons.append("aligned at the retry beam only")
        if reasons:
            marked = " ".join(f"*{word}*" if bad else word for word, bad in zip(words, doubtful_W, strict=True))
            found.append(Suspicion(utterance, confidences.utterance, ", ".join(reasons), marked))
    return sorted(found, key=lambda s: (s.confidence, s.utterance))
