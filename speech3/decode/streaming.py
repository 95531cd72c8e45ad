"""Streaming recognition: takes samples, returns the words so far, and a result at each pause (endpoint).

Features, scores and the search advance in blocks of `BLOCK_FRAMES` frames, so results do not depend on how the caller
splits the samples. A segment of speech ends at a pause or at a maximum length; then the search and the state of a
recurrent network start afresh, as for a new utterance. Features and the context windows of other networks continue.
Memory is bounded by the length of a segment (`Pauses.longest_s`). A model that adapts to speakers takes the whole
stream for one speaker: each segment is recognised with the transform that the words of the segments before it give.

The words of a segment are those that offline decoding of the same features finds. Offline features are the same unless
the model normalises by utterance or speaker (`speech3.features.normalisation`) or has pitch features.

Axes: S samples, T frames or outputs, W context window, F feature bins, P pdfs.
"""

from dataclasses import dataclass, field, replace
from typing import NoReturn

import numpy as np
from numpy.typing import ArrayLike

from speech3.data import NOISE, OnlineResampler, audio, checked_rate, checked_samples
from speech3.decode.beam_search import BeamSearch, with_word_penalty
from speech3.decode.grammar import bare, begins_filler
from speech3.decode.online_scores import GivenScores, OnlineScores
from speech3.decode.output import spread_over, times_in
from speech3.decode.search import (
    LATTICE_BEAM,
    Decoding,
    Hypothesis,
    best_and_lattice,
    confidences_in,
    decode,
    hypothesis_of,
    words_in,
)
from speech3.decode.speaker_passes import KnownSpeakers, check_speaker
from speech3.decode.trained_model import BEAM, RETRY_BEAM, Result, TrainedModel, Word, result_of, words_of_segments
from speech3.errors import DataError, MismatchError, Speech3Error
from speech3.hmm import Alignment, Hmm, Refinement, WorkerShare, score_one, search_one
from speech3.language import is_word
from speech3.runtime import announce_compiling, say

BLOCK_FRAMES = 24  # a multiple of the subsampling factors of models
_SHORTEST_S = 0.1  # of a segment with a word


@dataclass(frozen=True)
class Pauses:
    """Rules for endpointing, in seconds of silence at the end of a segment (compare Kaldi's online-endpoint.h)."""

    after_words_s: float = 0.5  # silence that ends a segment with words
    before_words_s: float = 2.0  # silence that ends a segment without words, which is then discarded
    # long_s, in_long_s: in a segment longer than `long_s`, a pause of `in_long_s` is enough
    long_s: float = 20.0
    in_long_s: float = 0.1
    longest_s: float = 30.0  # a segment of this length ends even without a pause


class Stream:
    """Recognition of a recording in progress: pass its samples to `accept` as they arrive, then call `finish`.

    Create it with `Recognizer.stream`. Only one thread at a time may use it.

    Attributes
    ----------
    rate_hz
        Sample rate of the samples that it accepts.

    Raises
    ------
    Speech3Error
        The model cannot process a stream (it is bidirectional, or its features are not computed from audio), is not
        tuned or has no graph; `rate_hz` is not a sample rate.
    TypeError
        It is pickled or copied, for instance as an argument of another process.
    """

    def __init__(
        self,
        recognizer: TrainedModel,
        rate_hz: int,
        pauses: Pauses | None = None,
        speaker: str | None = None,
        known: KnownSpeakers | None = None,
    ) -> None:
        features, self.rate_hz = recognizer.features, checked_rate(rate_hz)
        check_speaker(speaker)
        if not features.from_audio:
            raise MismatchError(
                f"{recognizer.directory}: this model takes its features from a file (feats.scp) and not from audio, so"
                " it cannot process a stream; use a model whose features are computed from audio"
            )
        self._model_hz = model_hz = features.sample_frequency or self.rate_hz
        self._scores = OnlineScores(recognizer, model_hz, speaker, known)
        self._resampler = OnlineResampler(self.rate_hz, model_hz)
        self._clipping = audio.ClippingListener("stream", self.rate_hz)
        self._block = round(BLOCK_FRAMES * features.frame_shift / 1000 * model_hz)  # samples
        self._waiting_S = np.zeros(0, np.float32)  # samples of the block that is not complete yet
        self._segment = _Segment(self._scores.recognizer, pauses or Pauses())
        self._ended: list[Result] = []
        self._samples, self._finished = 0, False
        self._taken, self._sound_end = 0, 0  # samples at the model's rate: all, and to the end of the last sound

    @property
    def duration_s(self) -> float:
        return self._samples / self.rate_hz

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a stream cannot be pickled or copied; begin it in the process that uses it, with Recognizer.stream"
        )

    def accept(self, samples: ArrayLike) -> str:
        """Take the next samples, any number of them, and return the words of the current segment so far.

        These may still change, and have no confidences: `min_confidence` of `Recognizer.load` does not apply to them.

        Raises a Speech3Error after `finish`, and for samples that `checked_samples` refuses.
        """
        if self._finished:
            raise DataError("this stream was finished; begin another one with Recognizer.stream")
        wave_S = checked_samples(samples)
        self._samples += len(wave_S)
        self._clipping.add(wave_S)
        self._take(self._resampler.accept(wave_S))
        return self._segment.shown if self._heard else ""

    def ended(self) -> list[Result]:
        """Return the results of the segments that have ended since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def finish(self) -> Result:
        """End the recording; return all segments that `ended` has not returned yet, as one result."""
        if not self._finished:
            self._finished = True
            self._clipping.end()
            self._take(self._resampler.finish())
            self._listen(self._waiting_S)
            for scores_TP in self._scores.finish(self._waiting_S):
                self._read(scores_TP)
            self._end_segment()
        return result_of(word for result in self.ended() for word in result.words)

    def _take(self, wave_S: np.ndarray) -> None:
        wave_S = np.concatenate([self._waiting_S, wave_S])
        whole = len(wave_S) - len(wave_S) % self._block
        for start in range(0, whole, self._block):
            block_S = wave_S[start : start + self._block]
            self._listen(block_S)
            self._read(self._scores.accept(block_S))
        self._waiting_S = wave_S[whole:].copy()

    def _listen(self, block_S: np.ndarray) -> None:
        self._taken += len(block_S)
        if not audio.is_silent(block_S):
            self._sound_end = self._taken

    @property
    def _heard(self) -> bool:
        """Whether there was any sound in the current segment: neither silence nor a room has words."""
        return self._scores.heard_sound and self._sound_end > self._segment.begin_s * self._model_hz

    def _read(self, scores_TP: np.ndarray) -> None:
        if len(scores_TP):
            self._segment.read(scores_TP)
            if self._segment.is_over:
                self._end_segment()

    def _end_segment(self) -> None:
        words = self._segment.end(heard=self._heard)
        if words:
            self._ended.append(result_of(words))
        said = self._segment.said if words else ()
        adapted = self._scores.end_segment(said, self._segment.aligned if words else None, self._segment.frames)
        if adapted:
            self._segment.use(adapted)


@dataclass(eq=False)
class _Segment:
    """The search of the current segment, restarted for each new one."""

    recognizer: TrainedModel
    pauses: Pauses
    partial: str = ""  # the words so far
    shown: str = ""  # the same, from when two blocks in succession have the same first word: noise flashes less
    silent: int = 0  # number of silence outputs at the end of the best path
    _begin: int = 0  # number of outputs before this segment
    _scores: list[np.ndarray] = field(default_factory=list)
    _search: BeamSearch = field(default_factory=BeamSearch)
    # Of the segment that has ended: its words (or pieces of words), their alignment, its length.
    said: tuple[str, ...] = ()
    aligned: Alignment | None = None
    frames: int = 0

    def __post_init__(self) -> None:
        announce_compiling("the search")
        recognizer = self.recognizer
        # The graph first: if there is none, the advice to tune would not help.
        graph, settings = recognizer.graph, recognizer.settings
        self._output_s = recognizer.clock.shift_s * recognizer.scorer.subsampling
        self._graph = with_word_penalty(graph.arranged, settings.word_penalty)
        self._silence = silence_pdfs(recognizer)
        self._restart()

    def use(self, recognizer: TrainedModel) -> None:
        """Search with the settings of this recogniser, which has the same graph, from now on."""
        if recognizer.settings.word_penalty != self.recognizer.settings.word_penalty:
            self._graph = with_word_penalty(recognizer.graph.arranged, recognizer.settings.word_penalty)
        self.recognizer = recognizer
        self._restart()

    def _restart(self) -> None:
        tuned = self.recognizer.settings
        self._search.begin(self._graph, self._name, tuned.acoustic_scale, tuned.beam, tuned.max_active, LATTICE_BEAM)
        self._scores, self.partial, self.shown, self.silent = [], "", "", 0

    @property
    def begin_s(self) -> float:
        return self._begin * self._output_s

    @property
    def _name(self) -> str:
        return f"{self.begin_s:.2f} s"

    @property
    def _outputs(self) -> int:
        return sum(map(len, self._scores))

    def read(self, scores_TP: np.ndarray) -> None:
        self._scores.append(scores_TP)
        self._search.read(scores_TP)
        best = self._search.best_path(ended=False)
        if best:
            before = self.partial.split()[:1]
            self.partial = " ".join(filter(is_word, words_in(self.recognizer.graph, best.olabels, guess=False)))
            self.shown = self.partial if self.shown or before == self.partial.split()[:1] else ""
            spoken = np.flatnonzero(~np.isin(best.pdfs_T, self._silence))
            self.silent = len(best.pdfs_T) - (int(spoken[-1]) + 1 if len(spoken) else 0)

    @property
    def is_over(self) -> bool:
        """Whether the segment ends here: at a pause, at its maximum length, or because no path is left."""
        pauses, length_s, silent_s = self.pauses, self._outputs * self._output_s, self.silent * self._output_s
        if length_s >= pauses.longest_s or not self._search.alive:
            return True
        if not self.partial:
            return silent_s >= pauses.before_words_s
        return silent_s >= (pauses.in_long_s if length_s >= pauses.long_s else pauses.after_words_s)

    def end(self, *, heard: bool) -> tuple[Word, ...]:
        words: tuple[Word, ...] = ()
        self.said, self.aligned, self.frames = (), None, self._outputs * self.recognizer.scorer.subsampling
        # Skip segments that are silent throughout: to end in a final state, the search would have to put a word there;
        # and the last frames after a word, in which there is no room for another.
        is_empty = self.silent == self._outputs or self._outputs * self._output_s < _SHORTEST_S
        if self._scores and heard and (self.partial or not is_empty):
            words = self._words(np.concatenate(self._scores))
        self._begin += self._outputs
        self._restart()
        return words

    def _words(self, scores_TP: np.ndarray) -> tuple[Word, ...]:
        graph, scale = self.recognizer.graph, self.recognizer.settings.acoustic_scale
        best, lattice = best_and_lattice(self._search, graph, scale)
        try:
            if best and best.reached_final:
                found = hypothesis_of(graph, self._name, best)
                found = replace(found, confidences=confidences_in(graph, lattice, found.units, scale))
            else:
                found = self._again(scores_TP)
        except Speech3Error as error:
            say(f"from {self._name}: {error}")
            return ()
        return self._timed(found, scores_TP)

    def _again(self, scores_TP: np.ndarray) -> Hypothesis:
        """Search again with wider beams, as in offline decoding, because no path ended in a final state."""
        graph, tuned = self.recognizer.graph, self.recognizer.settings
        found = decode(graph, [(self._name, scores_TP)], tuned.search, *tuned.setting, confidences=True)
        return found.hypotheses[0]

    def _timed(self, found: Hypothesis, scores_TP: np.ndarray) -> tuple[Word, ...]:
        """The words with times from an alignment, as `speech3.decode.output.aligned_words` finds them."""
        recognizer, begin_s = self.recognizer, self.begin_s
        self.said = found.units
        if isinstance(recognizer.outputs, Hmm) and found.units:
            aligned = self._aligned(found, scores_TP)
            if not isinstance(aligned, str):
                self.aligned = aligned
                times = times_in(recognizer, {found.utterance: aligned}, Decoding((found,), {}))
                return words_of_segments(times[found.utterance], begin_s)
            say(f"from {self._name}: the words could not be aligned, so their times are spread evenly: {aligned}")
            end_s = begin_s + len(scores_TP) * self._output_s
            return words_of_segments(spread_over(recognizer, found, begin_s, end_s))
        if not found.confidences or len(found.confidences) != len(found.words):
            return tuple(Word(word, None, None, None) for word in found.words)
        sure = map(recognizer.settings.calibrated, found.confidences)
        return tuple(Word(word, None, None, value) for word, value in zip(found.words, sure, strict=True))

    def _aligned(self, found: Hypothesis, scores_TP: np.ndarray) -> Alignment | str:
        """The alignment of the words, or why there is none."""
        recognizer, scorer = self.recognizer, self.recognizer.scorer
        given = GivenScores(scores_TP, scorer.subsampling, scorer.pseudo_likelihoods)
        frames_TD = np.empty((len(scores_TP) * scorer.subsampling, 0), np.float32)
        try:
            words = recognizer.hmm.lexicon.known(found.units)
        except Speech3Error as error:
            return str(error)
        share = WorkerShare({self._name: words}, {self._name: frames_TD})
        scale, hmm = recognizer.alignment_scale, recognizer.hmm
        scores = score_one(share, self._name, hmm, given)
        path = scores if isinstance(scores, str) else search_one(scores, hmm, (BEAM, RETRY_BEAM), scale)
        if isinstance(scores, str) or isinstance(path, str):
            return path
        return Refinement(recognizer.clock).refined(path, self._name, scores, hmm, scale)  # the samples are gone


def silence_pdfs(recognizer: TrainedModel) -> np.ndarray:
    """The pdfs of silence, int64; empty if only the number of pdfs is known.

    In a model with garbage words (`speech3.data.augment.negatives`) noise and other speech count as silence.
    """
    if not isinstance(recognizer.outputs, Hmm):
        return np.empty(0, np.int64)
    hmm = recognizer.hmm
    silence = [hmm.lexicon.phone_ids[phone] for phone in hmm.lexicon.silence_phones]
    garbage = any(begins_filler(unit) and bare(unit) == NOISE for unit in recognizer.graph.words)
    return np.unique([p for phone in (hmm.lexicon.context_free if garbage else silence) for p in hmm.pdfs(0, phone, 0)])
