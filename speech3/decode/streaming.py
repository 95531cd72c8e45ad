"""Streaming recognition: takes samples, returns the words so far, and a result at each pause (endpoint).

Features, scores and the search advance in blocks of `BLOCK_FRAMES` frames, so results do not depend on how the caller
splits the samples. A segment of speech ends at a pause or at a maximum length; then the search and the state of a
recurrent network start afresh, as for a new utterance. Features and the context windows of other networks continue
across segments. Memory is bounded by the length of a segment (`Pauses.longest_s`).

A model that adapts to speakers (`hmm.sat`) takes the whole stream for one speaker: each segment is recognised with the
transform that the words of the segments before it give, the first without one.

The words of a segment are those that offline decoding of the same features finds. Offline features are the same unless
the model normalises by utterance or speaker (`speech3.features.cmvn`) or has pitch features.

`transcribe_arriving` is `speech3 transcribe --stream`: it shows the words as they come, and measures the latency.

Axes: S samples, T frames or outputs, W context window, F feature bins, P pdfs.
"""

import json
import shutil
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TextIO

import numpy as np
import torch
from numpy.typing import ArrayLike
from rich.cells import cell_len

from speech3.config import DecodeConfig
from speech3.data import OnlineResampler, PcmDecoder, arriving_bytes, checked_rate, checked_samples
from speech3.decode.beam_search import BeamSearch, BestPath, Lattice, with_word_penalty
from speech3.decode.grammar import join_segments
from speech3.decode.output import doubted, spread_over
from speech3.decode.phrases import best_path, with_phrases
from speech3.decode.search import LATTICE_BEAM, Hypothesis, confidences_in, decode, hypothesis_of, words_in
from speech3.decode.speaker_passes import KnownSpeakers, SpeakerModel, speaker_model
from speech3.decode.trained_model import (
    BEAM,
    RETRY_BEAM,
    NetworkScorer,
    Result,
    TrainedModel,
    Word,
    result_of,
    warn_of_rate,
    words_of_segments,
)
from speech3.decode.transcript_files import word_of
from speech3.errors import DataError, MismatchError, Speech3Error
from speech3.features import OnlineCmvn, OnlineFeatures
from speech3.hmm import (
    Alignment,
    Hmm,
    ProjectedGmm,
    Refinement,
    WorkerShare,
    accumulate_speech,
    applied,
    likelihood_gain,
    score_one,
    search_one,
    word_segments,
    zero_fmllr_stats,
)
from speech3.language import is_word
from speech3.models import AcousticModel, Lstm, OnlineNetwork, OnlineRecurrent, OnlineWindows, OnnxNetwork
from speech3.runtime import announce_compiling, deferred_interrupt, say

BLOCK_FRAMES = 24  # a multiple of the subsampling factors of models
_USUAL_HZ = 16000  # assumed for raw samples if the model has no rate either
_REMEMBERED_S = 120.0  # of audio whose arrival times are kept: longer than a segment


def online_scores(recognizer: TrainedModel) -> OnlineNetwork:
    """A scorer that computes the log likelihoods (T, P) of `TrainedModel.scores` from features as they arrive.

    Raises
    ------
    Speech3Error
        The model is bidirectional: its outputs depend on the whole rest of the recording.
    """
    scorer, pdfs = recognizer.scorer, recognizer.outputs.num_pdfs
    if isinstance(scorer, NetworkScorer):
        if scorer.network.bidirectional:
            raise _unbounded(recognizer)
        return _of_network(scorer, scorer.network, pdfs)
    if isinstance(scorer, OnnxNetwork):
        if scorer.about["recurrent"] and scorer.about["beyond"]:
            raise _unbounded(recognizer)
        return _of_onnx(scorer, pdfs)
    if isinstance(scorer, ProjectedGmm):
        context = scorer.projection.context
        return OnlineWindows(scorer.score_inside, context, context, 1, pdfs)
    return OnlineWindows(scorer.loglikes, 0, 0, 1, pdfs)


def _unbounded(recognizer: TrainedModel) -> Speech3Error:
    return DataError(
        f"{recognizer.directory}: a bidirectional LSTM needs the whole utterance before it can score the first frame,"
        " so it cannot process a stream; use a unidirectional model, or transcribe a finished recording"
        " without --stream"
    )


def _of_network(scorer: NetworkScorer, network: AcousticModel, pdfs: int) -> OnlineNetwork:
    left, right = network.left_context, network.right_context
    if isinstance(network, Lstm):

        @torch.no_grad()
        def steps(feats_TF: np.ndarray, states: Any) -> tuple[np.ndarray, Any]:
            windows_TWF = torch.from_numpy(feats_TF).unfold(0, network.window, network.subsampling).transpose(1, 2)
            logits_TP, states = network.steps(windows_TWF, states, len(windows_TWF))
            return scorer.of_logits(logits_TP), states

        return OnlineRecurrent(steps, network.states, left, right, network.subsampling, network.delay, pdfs)

    @torch.no_grad()
    def score_inside(feats_TF: np.ndarray) -> np.ndarray:
        return scorer.of_logits(network.score_inside(torch.from_numpy(feats_TF)))

    return OnlineWindows(score_inside, left, right, network.subsampling, pdfs)


def _of_onnx(network: OnnxNetwork, pdfs: int) -> OnlineNetwork:
    left, right, step = network.about["left_context"], network.about["right_context"], network.subsampling
    if network.about["recurrent"]:

        def steps(feats_TF: np.ndarray, states: Any) -> tuple[np.ndarray, Any]:
            return network.steps(feats_TF, states, (len(feats_TF) - left - right) // step)

        return OnlineRecurrent(steps, network.states, left, right, step, network.about["delay"], pdfs)
    before = -(-left // step)  # in outputs, rounded up so that the first frame given begins an output

    def score_inside(feats_TF: np.ndarray) -> np.ndarray:
        outputs = (len(feats_TF) - before * step - right) // step
        return network.windows(feats_TF)[before : before + outputs]

    return OnlineWindows(score_inside, before * step, right, step, pdfs)


@dataclass(frozen=True)
class Pauses:
    """Rules for endpointing, in seconds of silence at the end of a segment (compare Kaldi's online2/online-endpoint.h).

    Attributes
    ----------
    after_words_s
        Silence that ends a segment with words.
    before_words_s
        Silence that ends a segment without words, which is then discarded.
    long_s, in_long_s
        In a segment longer than `long_s`, a pause of `in_long_s` is enough.
    longest_s
        A segment of this length ends even without a pause.
    """

    after_words_s: float = 0.5
    before_words_s: float = 2.0
    long_s: float = 20.0
    in_long_s: float = 0.1
    longest_s: float = 30.0


@dataclass
class GivenScores:
    """Precomputed scores of one utterance as a `speech3.hmm.train.Scorer` for that utterance."""

    scores_TP: np.ndarray
    subsampling: int
    pseudo_likelihoods: bool

    def loglikes(self, feats_TD: np.ndarray, pdfs: np.ndarray | None = None) -> np.ndarray:
        return self.scores_TP if pdfs is None else self.scores_TP[:, pdfs]


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
    """

    def __init__(
        self, recognizer: TrainedModel, rate_hz: int, pauses: Pauses | None = None, speaker: str | None = None,
        known: KnownSpeakers | None = None,
    ) -> None:  # fmt: skip
        features, self.rate_hz = recognizer.features, checked_rate(rate_hz)
        if features.kind == "given":
            raise MismatchError(
                f"{recognizer.directory}: this model takes its features from a file (feats.scp) and not from audio, so"
                " it cannot process a stream; use a model whose features are computed from audio"
            )
        model, self._speaker = speaker_model(recognizer), None
        if model and model.adapted.passes > 1:
            self._speaker = _OnlineSpeaker(model, speaker, known)
            recognizer = self._speaker.recognizer
        self._scores = self._speaker.scores() if self._speaker else online_scores(recognizer)
        model_hz = features.sample_frequency or self.rate_hz
        self._resampler = OnlineResampler(self.rate_hz, model_hz)
        self._cmvn = OnlineCmvn(features.norm_vars, features.global_stats)
        self._features = OnlineFeatures(features, model_hz, self._cmvn)
        self._block = round(BLOCK_FRAMES * features.frame_shift / 1000 * model_hz)  # samples
        self._waiting_S = np.zeros(0, np.float32)  # samples of the block that is not complete yet
        self._segment = _Segment(recognizer, pauses or Pauses())
        self._ended: list[Result] = []
        self._samples, self._finished = 0, False

    @property
    def duration_s(self) -> float:
        return self._samples / self.rate_hz

    def accept(self, samples: ArrayLike) -> str:
        """Take the next samples and return the words of the current segment so far.

        Parameters
        ----------
        samples
            Any number of samples, as `speech3.data.resampling.checked_samples` takes them.

        Raises
        ------
        Speech3Error
            The samples cannot be used, or the stream was finished.
        """
        if self._finished:
            raise DataError("this stream was finished; begin another one with Recognizer.stream")
        wave_S = checked_samples(samples)
        self._samples += len(wave_S)
        self._take(self._resampler.accept(wave_S))
        return self._segment.shown

    def ended(self) -> list[Result]:
        """Return the results of the segments that have ended since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def finish(self) -> Result:
        """End the recording; return all segments that `ended` has not returned yet, as one result."""
        if not self._finished:
            self._finished = True
            self._take(self._resampler.finish())
            tail_TF = torch.cat([self._features.accept(torch.from_numpy(self._waiting_S)), self._features.finish()])
            self._read(self._scores.accept(tail_TF.numpy()))
            self._read(self._scores.finish())
            self._end_segment()
        return result_of(word for result in self.ended() for word in result.words)

    def _take(self, wave_S: np.ndarray) -> None:
        wave_S = np.concatenate([self._waiting_S, wave_S])
        whole = len(wave_S) - len(wave_S) % self._block
        for start in range(0, whole, self._block):
            feats_TF = self._features.accept(torch.from_numpy(wave_S[start : start + self._block]))
            self._read(self._scores.accept(feats_TF.numpy()))
        self._waiting_S = wave_S[whole:].copy()

    def _read(self, scores_TP: np.ndarray) -> None:
        if len(scores_TP):
            self._segment.read(scores_TP)
            if self._segment.is_over:
                self._end_segment()

    def _end_segment(self) -> None:
        words = self._segment.end()
        if words:
            self._ended.append(result_of(words))
        if self._speaker:
            self._segment.use(self._speaker.after(self._segment.aligned if words else None))
        self._cmvn.restart(speech=bool(words))
        self._scores.restart()


class _OnlineSpeaker:
    """The speaker of a stream: scores frames with the transform that is known so far, and learns from each segment.

    If it is not said who speaks, a segment that the twin fits better is taken for another speaker's: what was learned
    before is forgotten.
    """

    def __init__(self, model: SpeakerModel, name: str | None, known: KnownSpeakers | None) -> None:
        self._model, self._name, self._forgets = model, name or "speaker", name is None
        self._known = known = known if known and name else KnownSpeakers()
        name = self._name
        self._frames: list[np.ndarray] = []  # projected, (T, D), of the segment
        self.recognizer = model.recognizer_of(known.transforms.get(name))

    def scores(self) -> OnlineNetwork:
        context = self._model.projection.context
        return OnlineWindows(self._score_inside, context, context, 1, self.recognizer.outputs.num_pdfs)

    @property
    def _scorer(self) -> ProjectedGmm:
        assert isinstance(self.recognizer.scorer, ProjectedGmm)
        return self.recognizer.scorer

    def _score_inside(self, feats_TF: np.ndarray) -> np.ndarray:
        self._frames.append(self._model.projection.inside(feats_TF))
        return self._scorer.of_projected(self._frames[-1])

    def after(self, aligned: Alignment | None) -> TrainedModel:
        """The recogniser of the next segment; None: nothing was said in this one."""
        frames, self._frames = self._frames, []
        if aligned is None:
            return self.recognizer
        feats_TD, transform, gmm = np.concatenate(frames), self._scorer.transform, self._model.adapted.gmm
        hmm, twin = self.recognizer.hmm, self._model.twin
        if transform is not None and self._forgets:
            gain, _ = likelihood_gain(aligned, hmm, gmm, twin, feats_TD, transform)
            if gain < 0:
                self._known.forget(self._name)
        stats = zero_fmllr_stats(feats_TD.shape[1])
        seen_TD, by = (feats_TD, twin) if transform is None else (applied(transform, feats_TD), None)
        accumulate_speech(stats, aligned, hmm, gmm, feats_TD, seen_TD, by)
        self._known.add({self._name: stats}, {})
        total = {self._name: self._known.stats[self._name]}
        self._known.add({}, self._model.estimated(total, self._known.transforms).transforms)
        self.recognizer = self._model.recognizer_of(self._known.transforms.get(self._name))
        return self.recognizer


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
    _lattice: Lattice | None = None  # of the segment that is ending
    aligned: Alignment | None = None  # of the words of the segment that has ended

    def __post_init__(self) -> None:
        announce_compiling("the search")
        recognizer, settings = self.recognizer, self.recognizer.settings
        self._output_s = recognizer.clock.shift_s * recognizer.scorer.subsampling
        self._graph = with_word_penalty(recognizer.graph.arranged, settings.word_penalty)
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
    def _name(self) -> str:
        return f"{self._begin * self._output_s:.2f} s"

    @property
    def _outputs(self) -> int:
        return sum(map(len, self._scores))

    def read(self, scores_TP: np.ndarray) -> None:
        self._scores.append(scores_TP)
        self._search.read(scores_TP)
        best = self._search.best_path(ended=False)
        if best:
            before = self.partial.split()[:1]
            self.partial = " ".join(filter(is_word, words_in(self.recognizer.graph, best.olabels)))
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

    def end(self) -> tuple[Word, ...]:
        words: tuple[Word, ...] = ()
        self.aligned = None
        # Skip segments that are silent throughout: to end in a final state, the search would have to put a word there.
        if self._scores and (self.partial or self.silent < self._outputs):
            words = self._words(np.concatenate(self._scores))
        self._begin += self._outputs
        self._restart()
        return words

    def _words(self, scores_TP: np.ndarray) -> tuple[Word, ...]:
        graph, scale = self.recognizer.graph, self.recognizer.settings.acoustic_scale
        self._lattice = self._search.lattice()
        if self._lattice and graph.phrases:
            self._lattice = with_phrases(self._lattice, graph.phrases)
            best: BestPath | None = best_path(self._lattice, scale)
        else:
            best = self._search.best_path()
        try:
            found = self._hypothesis(best) if best and best.reached_final else self._again(scores_TP)
        except Speech3Error as error:
            say(f"from {self._name}: {error}")
            return ()
        return self._timed(found, scores_TP)

    def _hypothesis(self, best: BestPath) -> Hypothesis:
        graph, scale = self.recognizer.graph, self.recognizer.settings.acoustic_scale
        found = hypothesis_of(graph, self._name, best)
        values = confidences_in(graph, self._lattice, found.units, scale)
        return replace(found, confidences=values)

    def _again(self, scores_TP: np.ndarray) -> Hypothesis:
        """Search again with wider beams, as in offline decoding, because no path ended in a final state."""
        tuned = self.recognizer.settings
        config = DecodeConfig(beam=tuned.beam, max_active=tuned.max_active)
        setting = (tuned.acoustic_scale, tuned.word_penalty)
        found = decode(self.recognizer.graph, [(self._name, scores_TP)], config, *setting, confidences=True)
        return found.hypotheses[0]

    def _timed(self, found: Hypothesis, scores_TP: np.ndarray) -> tuple[Word, ...]:
        """The words with times from an alignment, as `speech3.decode.output.word_times` finds them."""
        recognizer, begin_s = self.recognizer, self._begin * self._output_s
        uncalibrated = found
        if found.confidences:
            calibrated = recognizer.settings.calibrated
            found = replace(found, confidences=tuple(calibrated(posterior) for posterior in found.confidences))
        if isinstance(recognizer.outputs, Hmm) and found.units:
            aligned = self._aligned(found, scores_TP)
            if not isinstance(aligned, str):
                self.aligned = aligned
                segments = word_segments(aligned, found.units, recognizer.clock, words_W=found.confidences)
                mark = recognizer.graph.mark
                segments = join_segments(segments, mark) if mark else segments
                return words_of_segments([doubted(word, recognizer) for word in segments], begin_s)
            say(f"from {self._name}: the words could not be aligned, so their times are spread evenly: {aligned}")
            end_s = begin_s + len(scores_TP) * self._output_s
            return words_of_segments(spread_over(recognizer, uncalibrated, begin_s, end_s))
        values = found.confidences if found.confidences and len(found.confidences) == len(found.words) else None
        return tuple(Word(word, None, None, values[n] if values else None) for n, word in enumerate(found.words))

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
    """The pdfs of silence, int64; empty if only the number of pdfs is known."""
    if not isinstance(recognizer.outputs, Hmm):
        return np.empty(0, np.int64)
    hmm = recognizer.hmm
    phones = [hmm.lexicon.phone_ids[phone] for phone in hmm.lexicon.silence_phones]
    return np.unique([pdf for phone in phones for pdf in hmm.pdfs(0, phone, 0)])


@dataclass
class Meter:
    """Measures latency: the time from the arrival of the end of a word to its result.

    Attributes
    ----------
    busy_s
        Seconds spent on recognition.
    duration_s
        Seconds of audio.
    final_s, first_s
        Latency of each word with a known end time: to its final result, and to the first partial (or final) result
        with at least as many words.
    """

    busy_s: float = 0.0
    duration_s: float = 0.0
    final_s: list[float] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)
    _arrivals: deque[tuple[float, float]] = field(default_factory=deque)  # seconds of audio, and when they had arrived
    _shown: list[float] = field(default_factory=list)  # times when the segment first had 1, 2, ... words

    def arrived(self, duration_s: float, now_s: float) -> None:
        """Record that `duration_s` of audio in all had arrived at `now_s`."""
        self.duration_s = duration_s
        self._arrivals.append((duration_s, now_s))
        while self._arrivals[0][0] < duration_s - _REMEMBERED_S:
            self._arrivals.popleft()

    def partial(self, text: str, now_s: float) -> None:
        """Record that the current segment had these words at `now_s`."""
        self._shown += [now_s] * (len(text.split()) - len(self._shown))

    def final(self, result: Result, now_s: float) -> None:
        """Record that the segment's final result was known at `now_s`."""
        self.partial(result.text, now_s)
        for word, shown_s in zip(result.words, self._shown, strict=False):
            if word.end_s is not None:
                came_s = next((at for until, at in self._arrivals if until >= word.end_s), now_s)
                self.final_s.append(now_s - came_s)
                self.first_s.append(shown_s - came_s)
        self._shown = []

    def summary(self) -> str:
        rate = f"real-time factor {self.busy_s / self.duration_s:.3f}" if self.duration_s else "no audio"
        if not self.final_s:
            return f"{self.duration_s:.1f} s of audio, no words; {rate}"
        final, first = (
            f"mean {np.mean(each):.2f} s, 95th percentile {np.percentile(each, 95):.2f} s"
            for each in (self.final_s, self.first_s)
        )
        return (
            f"{self.duration_s:.1f} s of audio, {len(self.final_s)} words; from the end of a word until it is first"
            f" shown: {first}; until it is final: {final}; {rate}"
        )


class Display(Protocol):
    def partial(self, text: str) -> None: ...

    def final(self, result: Result) -> None:
        """Show the words of a segment that has ended."""


@dataclass
class Terminal:
    """Shows the words so far on one line that is overwritten; only their end if they are too long for the line."""

    out: TextIO
    _shown: str = ""

    def partial(self, text: str) -> None:
        text = _fitted(text, shutil.get_terminal_size().columns - 1)
        if text != self._shown:
            self.out.write(f"\r\x1b[K{text}")
            self.out.flush()
            self._shown = text

    def final(self, result: Result) -> None:
        self.out.write(f"\r\x1b[K{result.text}\n")
        self.out.flush()
        self._shown = ""


def _fitted(text: str, room: int) -> str:
    """As much of the end of a text as fits into `room` columns; a Chinese character takes two."""
    if cell_len(text) <= room:
        return text
    begin = 0
    while begin < len(text) and cell_len(text[begin:]) > room - 3:
        begin += 1
    return "..." + text[begin:]


@dataclass
class Lines:
    """Writes a line for each change: ``partial TEXT`` or ``final TEXT``, or a JSON object."""

    out: TextIO
    as_json: bool
    _shown: str = ""

    def partial(self, text: str) -> None:
        if text and text != self._shown:
            self._write(json.dumps({"partial": text}, ensure_ascii=False) if self.as_json else f"partial {text}")
        self._shown = text

    def final(self, result: Result) -> None:
        words = [word_of(word.word, word.start_s, word.end_s, word.confidence) for word in result.words]
        whole = {"final": result.text, "words": words}
        self._write(json.dumps(whole, ensure_ascii=False) if self.as_json else f"final {result.text}")
        self._shown = ""

    def _write(self, line: str) -> None:
        self.out.write(line + "\n")
        self.out.flush()


def transcribe_arriving(recognizer: TrainedModel, source: str, rate_hz: int | None, *, as_json: bool = False) -> None:
    """Transcribe standard input (``-``) or a growing file; finally print latency and real-time factor.

    Parameters
    ----------
    rate_hz
        Sampling rate of raw samples; None for the model's own.

    Raises
    ------
    Speech3Error
        There is no audio, or it cannot be used; the model cannot process streams.
    """
    said_hz = None if rate_hz is None else checked_rate(rate_hz)
    model_hz = recognizer.features.sample_frequency or _USUAL_HZ
    _warm_up(recognizer, said_hz or model_hz)
    name = "standard input" if source == "-" else source
    decoder, meter = PcmDecoder(name, said_hz, model_hz), Meter()
    display = Terminal(sys.stdout) if sys.stdout.isatty() and not as_json else Lines(sys.stdout, as_json)
    stream: Stream | None = None
    with deferred_interrupt() as interrupt:
        for wave_S in _samples(decoder, arriving_bytes(source, lambda: interrupt.pressed)):
            if stream is None:
                stream = Stream(recognizer, decoder.rate_hz)
                warn_of_rate(name, decoder.rate_hz, model_hz)
            take(stream, wave_S, meter, display)
        if interrupt and stream is None:
            say("interrupted before there was any sound")
            return
        fault = "" if interrupt else decoder.fault()
        if stream is not None:
            end(stream, meter, display)
    if interrupt:
        say("interrupted: the words up to that point are above")
    if fault:
        say(f"warning: {fault}")
    say(meter.summary())


def _warm_up(recognizer: TrainedModel, rate_hz: int) -> None:
    """Recognise noise, so that errors of the model are reported and compiled code is loaded before audio arrives."""
    stream = Stream(recognizer, rate_hz)
    stream.accept(np.random.default_rng(0).uniform(-0.1, 0.1, rate_hz))
    stream.finish()


def _samples(decoder: PcmDecoder, blocks: Iterator[bytes]) -> Iterator[np.ndarray]:
    for data in blocks:
        wave_S = decoder.feed(data)
        if len(wave_S):
            yield wave_S
        if decoder.ended:
            return


def take(stream: Stream, wave_S: np.ndarray, meter: Meter, display: Display) -> None:
    began = time.perf_counter()
    meter.arrived(stream.duration_s + len(wave_S) / stream.rate_hz, began)
    partial = stream.accept(wave_S)
    now = time.perf_counter()
    meter.busy_s += now - began
    for result in stream.ended():
        meter.final(result, now)
        display.final(result)
    meter.partial(partial, now)
    display.partial(partial)


def end(stream: Stream, meter: Meter, display: Display) -> None:
    began = time.perf_counter()
    result = stream.finish()
    now = time.perf_counter()
    meter.busy_s += now - began
    meter.final(result, now)
    if result.words:
        display.final(result)
    else:
        display.partial("")
