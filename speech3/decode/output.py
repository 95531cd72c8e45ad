"""The files of decoding, `hyp.txt` and `hyp.ctm`, and how long recordings are cut, decoded and joined again.

A recording is cut where it is quietest, into parts that are recognised as utterances. A part that is equally loud
throughout contains no speech and is left out: if its features were normalised by themselves, such noise would look like
speech. Silence at the ends of a part is trimmed to half a second, since more would shift the mean of the features.

Utterances of a data directory are cut only if they last more than `WHOLE_S`, because the memory of a search grows with
the length of an utterance, and that of an alignment with its square. Shorter ones keep their names in lattices.

Axes: S samples, T stretches of 10 ms.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

import numpy as np

from speech3.data import DataDir, Utterance, audio, segment_name
from speech3.decode.grammar import join_segments
from speech3.decode.search import Decoding, Hypothesis
from speech3.decode.trained_model import TrainedModel
from speech3.errors import DataError, Speech3Error, counted
from speech3.hmm import Alignment, PdfsOnly, Segment, Wave, unmarked, word_segments, write_ctm
from speech3.io import ComputedMapping
from speech3.language import UNKNOWN
from speech3.runtime import progress, say, write_text

LONG_S = 60.0  # a recording longer than this is cut
_SHORTEST_S, _LONGEST_S = 10.0, 28.0  # of a part, before its silence is trimmed
_LEAST_LEFT_S = 2.0  # at least this much audio must follow a cut
_PAUSE_S = 0.4  # the cut is in the middle of the quietest stretch of this length
_SYLLABLE_S = 0.2  # duration over which loudness is averaged to tell speech from noise
_LEAST_RANGE_DB = 6.0  # smallest difference between the loudest and the quietest syllable of speech
_SHORT_S = 2.0  # a shorter part may be a word that is equally loud throughout
_QUIET = 0.25  # silence is below this fraction of the range, in dB, from the quietest to the loudest syllable
_MARGIN_S = 0.5  # silence that is kept at both ends
_STEP_S = 0.01
_FLOOR = 1e-9  # power; below it, -90 dB, everything counts as silence
WHOLE_S = 300.0  # an utterance longer than this is cut
_BLOCK_S = 10.0


@dataclass(frozen=True, eq=False)
class Cut:
    """A part of a recording: its start in seconds, and its samples, float32 (S,)."""

    begin_s: float
    wave_S: np.ndarray


def cut_at_pauses(blocks: Iterable[np.ndarray], rate_hz: int) -> Iterator[Cut]:
    """Yield the parts of a recording that contain speech; `blocks` are its samples, float32, in blocks of any size."""
    waiting_S, begin, enough = np.zeros(0, np.float32), 0, math.ceil((_LONGEST_S + _LEAST_LEFT_S) * rate_hz)
    for block_S in blocks:
        waiting_S = np.concatenate([waiting_S, block_S])
        while len(waiting_S) >= enough:
            at = _quietest(waiting_S[:enough], rate_hz)  # a block may be much longer than a part
            yield from _spoken(waiting_S[:at], begin, rate_hz)
            begin, waiting_S = begin + at, waiting_S[at:]
    yield from _spoken(waiting_S, begin, rate_hz)


def _spoken(wave_S: np.ndarray, begin: int, rate_hz: int) -> Iterator[Cut]:
    """Yield a part with the silence at its ends trimmed; nothing if it contains no speech."""
    if not len(wave_S):
        return
    # (T,) level in dB of each syllable-long stretch, one step apart; empty if the audio is shorter.
    level_T = 10 * np.log10(_means(_powers(wave_S, rate_hz), round(_SYLLABLE_S / _STEP_S)))
    first, last = 0, len(wave_S)
    if len(level_T):
        quietest, loudest = level_T.min(), level_T.max()
        long = len(wave_S) > _SHORT_S * rate_hz or loudest <= 10 * np.log10(_FLOOR)
        if loudest - quietest < _LEAST_RANGE_DB and long:
            return
        loud_T = np.flatnonzero(level_T >= quietest + _QUIET * (loudest - quietest))
        first = max(0, round((loud_T[0] * _STEP_S - _MARGIN_S) * rate_hz))
        last = min(last, round((loud_T[-1] * _STEP_S + _SYLLABLE_S + _MARGIN_S) * rate_hz))
    yield Cut((begin + first) / rate_hz, wave_S[first:last])


def _quietest(wave_S: np.ndarray, rate_hz: int) -> int:
    """Index of the sample in the middle of the quietest stretch; of the last one if several are equally quiet."""
    first, last = round(_SHORTEST_S / _STEP_S), round(_LONGEST_S / _STEP_S)
    pause = round(_PAUSE_S / _STEP_S)
    level_T = _means(10 * np.log10(_powers(wave_S, rate_hz)), pause)[first - pause // 2 : last - pause // 2]
    quietest = len(level_T) - 1 - int(np.argmin(level_T[::-1]))
    return round((first + quietest) * _STEP_S * rate_hz)


def _powers(wave_S: np.ndarray, rate_hz: int) -> np.ndarray:
    """(T,) float64: mean square of each 10 ms."""
    step = round(_STEP_S * rate_hz)
    steps = len(wave_S) // step
    wave_S = wave_S - wave_S.mean(dtype=np.float64)  # an offset would make silence as loud as speech
    powers_T: np.ndarray = np.square(wave_S[: steps * step], dtype=np.float64).reshape(steps, step).mean(1)
    return np.maximum(powers_T, _FLOOR)


def _means(values_T: np.ndarray, width: int) -> np.ndarray:
    if len(values_T) < width:
        return values_T[:0]
    sums_T = np.concatenate([[0.0], np.cumsum(values_T)])
    means_T: np.ndarray = (sums_T[width:] - sums_T[:-width]) / width
    return means_T


@dataclass(frozen=True)
class UtteranceParts:
    """The parts of each utterance that was cut, in order: their names, and their starts within it, in seconds."""

    begins_s: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def joined(self, decoding: Decoding) -> Decoding:
        """One hypothesis for each utterance; one that contains no speech has no words.

        Parts that failed are left out of their utterance; without any other part, it has no hypothesis.
        """
        if not self.begins_s:
            return decoding
        found = {each.utterance: each for each in decoding.hypotheses}
        for whole, begins_s in self.begins_s.items():
            parts = [found.pop(part) for part in begins_s if part in found]
            if parts or not begins_s:
                found[whole] = _joined(whole, parts)
        return Decoding(tuple(found[key] for key in sorted(found)), decoding.failed)

    def divided(self, words: Mapping[str, str], ctm: Mapping[str, Sequence[Segment]]) -> dict[str, str]:
        """The words of utterances, with those of each that was cut given to its parts, by the times of a CTM."""
        found = {key: text for key, text in words.items() if key not in self.begins_s}
        for whole, begins_s in self.begins_s.items():
            if not begins_s or whole not in words or whole not in ctm:
                continue
            parts, starts = list(begins_s), np.array(list(begins_s.values()))
            said: dict[str, list[str]] = {part: [] for part in parts}
            spoken = set(words[whole].split())
            for word in ctm[whole]:
                middle_s = (word.start_s + word.end_s) / 2
                part = parts[max(0, int(np.searchsorted(starts, middle_s, "right")) - 1)]
                said[part].append(unmarked(word.label, spoken))
            found |= {part: " ".join(each) for part, each in said.items()}
        return found

    def joined_times(self, times: Mapping[str, Sequence[Segment]]) -> Mapping[str, Sequence[Segment]]:
        """The words of each utterance, with times from its start."""
        if not self.begins_s:
            return times
        found = dict(times)
        for whole, begins_s in self.begins_s.items():
            found[whole] = [
                replace(word, start_s=word.start_s + begin_s, end_s=word.end_s + begin_s)
                for part, begin_s in begins_s.items()
                for word in found.pop(part, ())
            ]
        return dict(sorted(found.items()))


def _joined(whole: str, parts: Sequence[Hypothesis]) -> Hypothesis:
    known = [part.confidences for part in parts if part.confidences is not None]
    return Hypothesis(
        whole,
        tuple(chain.from_iterable(part.words for part in parts)),
        tuple(chain.from_iterable(part.units for part in parts)),
        sum(part.cost for part in parts),
        sum(part.acoustic_cost for part in parts),
        all(part.reached_final for part in parts),
        tuple(chain.from_iterable(known)) if len(known) == len(parts) else None,
    )


def cut_long_utterances(data: DataDir, longest_s: float = WHOLE_S) -> tuple[DataDir, UtteranceParts]:
    """The data directory with its long utterances cut at pauses into parts that are named by `segment_name`.

    An utterance whose audio cannot be read is left as it is: the extraction of features will report it.

    Raises `Speech3Error`: no utterance contains speech; an utterance already has the name of a part.
    """
    begins_s: dict[str, dict[str, float]] = {}
    utterances = dict(data.utterances)
    shown = progress(data.utterances.values(), len(data.utterances), "lengths")
    for utterance, length_s in [
        (each, length) for each in shown if (length := utterance_length_s(data, each)) > longest_s
    ]:
        try:
            parts = {part.id: part for part in parts_at_pauses(data, utterance, length_s)}
        except audio.AudioError:
            continue
        del utterances[utterance.id]
        if taken := parts.keys() & data.utterances.keys():
            raise DataError(
                f"{data.path}: {utterance.id} lasts {length_s:.0f} s and is to be cut, but an utterance already has the"
                f" name of one of its parts, {min(taken)}; remove one of the two"
            )
        begins_s[utterance.id] = {key: part.start_s - utterance.start_s for key, part in parts.items()}
        utterances |= parts
        say(
            f"{utterance.id}: {length_s:.0f} s, cut at pauses into {counted(len(parts), 'part')}; lattices,"
            " N-best lists and"
            f" messages name these {utterance.id}-BEGIN-END"
        )
    if not utterances:
        raise DataError(f"{data.path}: no utterance contains speech: they are equally loud throughout; listen to them")
    return replace(data, utterances=dict(sorted(utterances.items()))), UtteranceParts(begins_s)


def utterance_length_s(data: DataDir, utterance: Utterance) -> float:
    """The length of an utterance in seconds; 0 if it has no audio that can be read."""
    if utterance.recording not in data.recordings:
        return 0.0
    if utterance.end_s is not None:
        return utterance.end_s - utterance.start_s
    try:
        return audio.info(data.recording(utterance), directory=data.path).duration_s - utterance.start_s
    except Speech3Error:
        return 0.0


def parts_at_pauses(data: DataDir, utterance: Utterance, length_s: float) -> Iterator[Utterance]:
    """The parts of an utterance of this length that contain speech, as `cut_at_pauses` finds them."""
    recording = data.recording(utterance)
    rate_hz = audio.info(recording, directory=data.path).sample_rate_hz
    blocks = audio.read_blocks(
        recording, _BLOCK_S, directory=data.path, start_s=utterance.start_s, end_s=utterance.end_s
    )
    shown = progress(
        cut_at_pauses(blocks, rate_hz), int(length_s), utterance.id, place=lambda cut: (int(cut.begin_s), "")
    )
    for cut in shown:
        end_s = cut.begin_s + len(cut.wave_S) / rate_hz
        yield replace(
            utterance,
            id=segment_name(utterance.id, cut.begin_s, end_s),
            text=None,
            start_s=utterance.start_s + cut.begin_s,
            end_s=utterance.start_s + end_s,
        )


def aligned_words(
    recognizer: TrainedModel,
    feats: Mapping[str, np.ndarray],
    decoding: Decoding,
    jobs: int = 1,
    waves: Mapping[str, Wave] | None = None,
    *,
    judge: bool = True,
) -> tuple[dict[str, list[Segment]], Mapping[str, Alignment]]:
    """Times and, if known, confidences of the decoded words, found by aligning them with the same acoustic model.

    Times are more exact where the waveform is in `waves` (`speech3.hmm.alignment.boundaries`). The alignments of the
    utterances that could be aligned are returned, too. `judge` as for `times_in`.

    The path through the graph gives no exact word boundaries, because determinisation and weight pushing move the word
    labels; Kaldi realigns lattices for the same reason (lattice-align-words). The words of an utterance that cannot be
    aligned are kept, and their times are spread over it (`spread_over`).
    """
    texts: dict[str, str | None] = {h.utterance: " ".join(h.units) for h in decoding.hypotheses if h.units}
    if not texts:
        return {}, {}
    alignments, bad = recognizer.align(
        ComputedMapping(texts, feats.__getitem__), texts, jobs, strict=False, waves=waves
    )
    times = times_in(recognizer, alignments, decoding, judge=judge)
    for found in decoding.hypotheses:
        if found.units and found.utterance not in times:
            end_s = len(feats[found.utterance]) * recognizer.clock.shift_s
            times[found.utterance] = spread_over(recognizer, found, 0.0, end_s)
    if bad:
        utterance, reason = next(iter(bad.items()))
        say(
            f"the words of {len(bad)} of {len(texts)} utterances could not be aligned, so their times are spread evenly"
            f" over the utterance, such as {utterance}: {reason.removeprefix(f'{utterance}: ')}"
        )
    return dict(sorted(times.items())), alignments


def spread_over(recognizer: TrainedModel, found: Hypothesis, start_s: float, end_s: float) -> list[Segment]:
    """The words of a hypothesis from `start_s` to `end_s`, each with time in proportion to its number of phones."""
    spoken = recognizer.hmm.lexicon.by_word
    phones = [min((len(pron.phones) for pron in spoken.get(unit, ())), default=1) for unit in found.units]
    edges = (start_s + (end_s - start_s) * np.cumsum([0, *phones]) / max(1, sum(phones))).tolist()
    values = found.confidences or [None] * len(found.units)
    segments = [
        Segment(begin, end, unit, value)
        for begin, end, unit, value in zip(edges[:-1], edges[1:], found.units, values, strict=True)
    ]
    return [_calibrated(word, recognizer) for word in _whole_words(recognizer, segments)]


def _whole_words(recognizer: TrainedModel, units: Sequence[Segment]) -> Sequence[Segment]:
    """Words from the units of the recogniser's graph, which may be pieces of words."""
    graph = recognizer.graph
    return join_segments(units, graph.mark, graph.speller) if graph.mark else units


def times_in(
    recognizer: TrainedModel, alignments: Mapping[str, Alignment], decoding: Decoding, *, judge: bool = True
) -> dict[str, list[Segment]]:
    """Times and confidences of the decoded words in alignments with their units.

    `judge`: whether a word whose length is not that of the word becomes ``<unk>`` (`WordLengths`).
    """
    said = {h.utterance: h for h in decoding.hypotheses}
    times = {
        key: _whole_words(
            recognizer, word_segments(found, said[key].units, recognizer.clock, words_W=said[key].confidences)
        )
        for key, found in alignments.items()
    }
    known = recognizer.settings.lengths if judge else None
    if known:
        times = {key: [word if known.fits(word) else unknown(word) for word in found] for key, found in times.items()}
    return {key: [_calibrated(word, recognizer) for word in found] for key, found in times.items()}


def _calibrated(word: Segment, recognizer: TrainedModel) -> Segment:
    """The word with its calibrated confidence; `<unk>` if that is below the recogniser's `min_confidence`.

    It is not left out: that something was said there may matter, as in a command that lacks a word.
    """
    if word.confidence is None:
        return word
    confidence = recognizer.settings.calibrated(word.confidence)
    sure = word if confidence >= recognizer.min_confidence else unknown(word)
    return replace(sure, confidence=confidence)


def unknown(word: Segment) -> Segment:
    return replace(word, label=UNKNOWN, guessed=False)


def without_doubtful(recognizer: TrainedModel, found: Hypothesis, timed: Sequence[Segment] | None = None) -> Hypothesis:
    """The hypothesis with `<unk>` in place of words of low confidence; its units are unchanged.

    `timed`: its words with their times (`times_in`), if they are known: then their lengths are judged, too.
    """
    if timed is not None:
        return replace(found, words=tuple(word.label for word in timed))
    if not (recognizer.min_confidence and found.confidences):
        return found
    pieces = [Segment(0.0, 0.0, unit, each) for unit, each in zip(found.units, found.confidences, strict=True)]
    words = _whole_words(recognizer, pieces)
    return replace(found, words=tuple(_calibrated(word, recognizer).label for word in words))


def write_hypotheses(path: Path, decoding: Decoding) -> None:
    """Write the hypotheses as a Kaldi text file; refused if there are none."""
    if not decoding.hypotheses:
        raise DataError(f"{path.parent}: no utterance could be decoded")
    lines = (f"{h.utterance} {' '.join(h.words)}".rstrip() + "\n" for h in decoding.hypotheses)
    write_text(path, "".join(lines))


def write_decoding(
    out: Path,
    recognizer: TrainedModel,
    feats: Mapping[str, np.ndarray],
    decoding: Decoding,
    jobs: int = 1,
    parts: UtteranceParts = UtteranceParts(),  # it is frozen
    waves: Mapping[str, Wave] | None = None,
) -> Decoding:
    """Write ``hyp.txt`` (Kaldi text), ``hyp.ctm`` and, if an utterance has no hypothesis, ``failed.txt``.

    With a model that cannot align (`PdfsOnly`), no ``hyp.ctm`` is written. The results of `parts` are joined; the
    decoding with one hypothesis for each utterance is returned. `waves` as for `aligned_words`.
    """
    marked = replace(decoding, hypotheses=tuple(without_doubtful(recognizer, each) for each in decoding.hypotheses))
    joined = parts.joined(marked)
    (out / "hyp.ctm").unlink(missing_ok=True)  # of an earlier decoding
    write_hypotheses(out / "hyp.txt", joined)  # first: decoding took most of the time, and the steps below may fail
    if decoding.failed:
        write_text(out / "failed.txt", "".join(f"{u} {why}\n" for u, why in decoding.failed.items()))
    else:
        (out / "failed.txt").unlink(missing_ok=True)
    if isinstance(recognizer.outputs, PdfsOnly):
        say(f"no word times (hyp.ctm): the model cannot align: {recognizer.outputs.why}")
        return joined
    times, _ = aligned_words(recognizer, feats, decoding, jobs, waves)
    if recognizer.settings.lengths:
        judged = (without_doubtful(recognizer, each, times.get(each.utterance)) for each in decoding.hypotheses)
        joined = parts.joined(replace(decoding, hypotheses=tuple(judged)))
        write_hypotheses(out / "hyp.txt", joined)
    write_ctm(out / "hyp.ctm", parts.joined_times(times))
    return joined
