"""The recogniser of the Python interface, of audio files and samples in memory, at once or as they arrive.

Axes: S samples, T frames, F feature bins.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike

from speech3.config import FeatureConfig
from speech3.data import OnlineResampler, audio, checked_rate, checked_samples, segment_name
from speech3.decode.lattice_directory import decode_one
from speech3.decode.lattice_paths import MOST_PATHS
from speech3.decode.new_graph import replace_graph
from speech3.decode.output import LONG_S, Cut, aligned_words, cut_at_pauses, without_doubtful
from speech3.decode.search import Decoding
from speech3.decode.speaker_passes import KnownSpeakers, adapt, check_speaker, network_speakers, speaker_model
from speech3.decode.streaming import Stream
from speech3.decode.trained_model import (
    Alternative,
    Result,
    TrainedModel,
    Word,
    phones_of_segments,
    result_of,
    warn_of_rate,
    words_of_segments,
)
from speech3.decode.word_lattice import WordLattice
from speech3.errors import DataError, MismatchError, SettingError, Speech3Error, counted
from speech3.features import finish_features, only_background, silent_frames, static_features
from speech3.hmm import Hmm, Segment, applied, phone_segments
from speech3.runtime import progress, say

_BLOCK_S = 10.0  # how much of a long recording is read at once
_ADAPT_S = 300.0  # how much of a speaker is enough to adapt to: more changes little, and must fit in memory


@dataclass(frozen=True, eq=False, repr=False)
class Recognizer(TrainedModel):
    """A trained model that recognises recordings and streams.

    A model that adapts to speakers, such as `sat` of a recipe, remembers those that calls name with `speaker`, until
    `forget`. Each takes some hundred kilobytes.
    """

    @classmethod
    def load(
        cls,
        model: Path | str,
        *,
        graph: Path | str | None = None,
        hot: Path | Sequence[str] | None = None,
        nbest: int = 0,
        min_confidence: float = 0.0,
    ) -> Self:
        """Read a model directory, or OUT.onnx of `speech3 export` with the directory beside it.

        Parameters
        ----------
        graph
            A directory of `speech3 graph`, used in place of the model's own graph.
        hot
            Words and phrases to expect, ``["Aberystwyth", "turn left 5"]``, each with a boost or without; or a file
            of such lines. Words that the graph lacks are added to it with guessed pronunciations, unless it is that of
            a grammar.
        nbest
            Results of `transcribe` have up to so many word sequences, at most `MOST_PATHS`.
        min_confidence
            Words of lower confidence are written `<unk>` in results; not in their `nbest`, and not in what
            `Stream.accept` returns.

        Raises
        ------
        Speech3Error
            A file is missing, or the files do not belong together; a hot word cannot be pronounced, or the graph cannot
            have further words; a number is out of range.
        """
        if graph is not None and not (isinstance(graph, str | os.PathLike) and str(graph)):
            raise SettingError(f"graph={graph!r}: pass a directory of speech3 graph, or None for the model's own graph")
        if not isinstance(nbest, int | np.integer) or isinstance(nbest, bool) or not 0 <= nbest <= MOST_PATHS:
            raise SettingError(f"nbest={nbest!r}: must be a whole number from 0 to {MOST_PATHS:,}")
        lines = () if hot is None or isinstance(hot, Path) else hot
        if isinstance(lines, str) or not (isinstance(lines, Sequence) and all(isinstance(line, str) for line in lines)):
            raise SettingError(f"hot={hot!r}: pass a list of words, or a Path")
        recognizer = replace(super().load(model).with_min_confidence(min_confidence), nbest=nbest)
        return replace_graph(recognizer, Path(graph) if graph else None, hot) if graph or hot else recognizer

    @cached_property
    def _known(self) -> KnownSpeakers:
        return KnownSpeakers()

    @property
    def speakers(self) -> tuple[str, ...]:
        """The names of the speakers that are remembered, in the order in which they were first heard."""
        return tuple(self._known.stats)

    def forget(self, speaker: str) -> None:
        """Forget a speaker's voice, if it is remembered; recordings with this name are then those of a new speaker.

        Of a stream of this speaker that is in progress, what is said from now on is remembered.
        """
        check_speaker(speaker)
        self._known.forget(speaker)

    @cached_property
    def _rates_said(self) -> set[int]:
        return set()

    def warn_once_of_rate(self, rate: int) -> None:
        """Print a warning, once, if samples of this rate lack a part of the spectrum that the model was trained on."""
        if (rate_hz := checked_rate(rate)) not in self._rates_said:
            self._rates_said.add(rate_hz)
            warn_of_rate("samples", rate_hz, self.features.sample_frequency or 0)

    def transcribe(self, samples: ArrayLike, rate: int, speaker: str | None = None) -> Result:
        """Recognise a recording: its text, and its words with times and confidences.

        Parameters
        ----------
        samples
            One channel, floats from -1 to 1, or int16, int32 or uint8 over their whole range. Recordings of more than a
            minute are cut at pauses.
        rate
            Samples per second; if it is not the model's rate, the recording is resampled.
        speaker
            A name for the speaker, whom the recogniser remembers until `forget`: it adapts to all recordings with this
            name together. None: it adapts to the recording by itself. Models that do not adapt to speakers ignore it.

        Raises
        ------
        Speech3Error
            The samples or the rate cannot be used, the recording is shorter than a frame, or nothing could be decoded.
        """
        self.warn_once_of_rate(rate)
        return transcribe_samples(self, samples, rate, speaker, self._known)

    def stream(self, rate: int, speaker: str | None = None) -> Stream:
        """Begin streaming recognition of a recording with `rate` samples per second; raises what `Stream` raises.

        A model that adapts to speakers does so from the first result on, or from the start if it remembers the
        `speaker` (see `transcribe`).
        """
        self.warn_once_of_rate(rate)
        return Stream(self, rate, speaker=speaker, known=self._known)


def load_recognizer(model: Path | str) -> Recognizer:
    """Read a recogniser; raises what `TrainedModel.load` raises."""
    return Recognizer.load(model)


@dataclass(frozen=True, eq=False)
class Wanted:
    """What to find beside the words."""

    times: bool = False
    lattices: bool = False


@dataclass(frozen=True, eq=False)
class _Found:
    """What was recognised in a recording or in a part of one; times count from its start."""

    spelled: tuple[str, ...]
    words: Sequence[Segment] = field(default_factory=list)
    phones: Sequence[Segment] = ()
    nbest: Sequence[Alternative] = ()
    lattices: Mapping[str, WordLattice] = field(default_factory=dict)  # one, or one for each part


@dataclass(frozen=True)
class Transcription:
    """The words recognised in a file; their times, phones, alternatives and lattices if those were requested.

    A long recording has a lattice for each part, named as parts of utterances are.
    """

    name: str
    text: str
    words: Sequence[Segment]
    duration_s: float
    phones: Sequence[Segment] = ()
    nbest: Sequence[Alternative] = ()
    lattices: Mapping[str, WordLattice] = field(default_factory=dict)


def transcribe(
    recognizer: TrainedModel,
    files: Sequence[Path],
    *,
    times: bool = False,
    lattices: bool = False,
    one_speaker: bool = False,
    names: Mapping[Path, str] = MappingProxyType({}),
    failed: list[Speech3Error] | None = None,
) -> Iterator[Transcription]:
    """Recognise audio files, each as one utterance of a separate speaker; long files are cut at pauses.

    A recording longer than `LONG_S` is read in parts; a part that cannot be recognised is reported and left out. A
    model that adapts to speakers does so to each file, or to all of them if they have `one_speaker`, by the first
    `_ADAPT_S` of speech. `names` has other names for files. If there is a list `failed`, files that cannot be
    recognised are left out, and their errors are added to it.

    Raises
    ------
    Speech3Error
        A file is missing, unreadable, shorter than a frame, or could not be decoded; the message names it. Or
        `one_speaker` is for a model that does not adapt to speakers.
    """
    if isinstance(files, str | Path):
        raise SettingError(f"files={files!r}: pass a list of paths, even of one")
    if one_speaker and not (recognizer.sat or recognizer.adapted):
        raise SettingError(f"--one-speaker: {recognizer.path} does not adapt to speakers; remove the option")
    if times:
        _ = recognizer.hmm  # raises its error before anything is recognised
    wanted = Wanted(times, lattices)
    using = recognizer
    if one_speaker:
        using = _of_speaker(recognizer, _parts_of_all(recognizer, files, tolerant=failed is not None))
    for path in files:
        name = names.get(path, str(path))
        _refuse_given(recognizer, name)
        try:
            if not one_speaker:
                using = _of_speaker(recognizer, _parts_of(recognizer, path))
            yield _transcribed(recognizer, using, path, name, wanted)
        except Speech3Error as error:
            if failed is None:
                raise
            failed.append(error.restated(str(error).replace(str(path.absolute()), name)))


def _transcribed(recognizer: TrainedModel, using: TrainedModel, path: Path, name: str, wanted: Wanted) -> Transcription:
    """A file recognised by `using`, the recogniser adapted to its speaker; what is odd about the audio is said."""
    about = audio.info(path)
    warn_of_rate(name, about.sample_rate_hz, recognizer.features.sample_frequency or 0)
    if about.claim:
        say(f"{name}: {about.claim}; the audio in the file is recognised")
    clipping = audio.ClippingListener(name, about.sample_rate_hz)
    if about.channels > 1 and (why := audio.channel_mix(path).why):
        say(f"{name}: has {about.channels} channels: {why}")
    if about.duration_s <= LONG_S:
        for block_S in audio.read_blocks(path, _BLOCK_S):  # at its own rate: resampling hides what was cut off
            clipping.add(block_S)
        clipping.end()
        wave_S, rate_hz = _whole(recognizer, path)
        _say_quiet(name, wave_S)
        found = _recognised(using, name, wave_S, rate_hz, wanted)
    else:
        blocks = _heard(audio.read_blocks(path, _BLOCK_S), clipping)
        parts, rate_hz = _parts(recognizer, blocks, about.sample_rate_hz)
        shown = progress(parts, int(about.duration_s), name, place=lambda cut: (int(cut.begin_s), ""))
        found = _long(using, name, shown, rate_hz, wanted)
    text = " ".join(found.spelled)
    return Transcription(name, text, found.words, about.duration_s, found.phones, found.nbest, found.lattices)


def _heard(blocks: Iterable[np.ndarray], clipping: audio.ClippingListener) -> Iterator[np.ndarray]:
    for block_S in blocks:
        clipping.add(block_S)
        yield block_S
    clipping.end()


def _say_quiet(name: str, wave_S: np.ndarray) -> None:
    if audio.is_quiet(wave_S) and not audio.is_silent(wave_S):
        steps = np.ptp(wave_S) * 2**15
        say(
            f"{name}: very quiet (its samples are within {steps:.0f} of the 65,536 steps of 16 bits);"
            " record at a higher level: expect more errors"
        )


def _whole(recognizer: TrainedModel, path: Path) -> tuple[np.ndarray, int]:
    wanted_hz = recognizer.features.sample_frequency
    return audio.read_file(path, sample_rate_hz=wanted_hz, resample=True, mix_channels=True)


def _parts_of(recognizer: TrainedModel, path: Path) -> Iterator[tuple[np.ndarray, int]]:
    """The samples that are recognised at once, and their rate: a file, or the parts of a long one."""
    about = audio.info(path)
    if about.duration_s <= LONG_S:
        yield _whole(recognizer, path)
        return
    parts, rate_hz = _parts(recognizer, audio.read_blocks(path, _BLOCK_S), about.sample_rate_hz)
    yield from ((cut.wave_S, rate_hz) for cut in parts)


def _parts_of_all(
    recognizer: TrainedModel, files: Iterable[Path], *, tolerant: bool
) -> Iterator[tuple[np.ndarray, int]]:
    """The parts of all files; if `tolerant`, without files that cannot be read, which are reported later."""
    for path in files:
        try:
            yield from _parts_of(recognizer, path)
        except Speech3Error:
            if not tolerant:
                raise


def _of_speaker(
    recognizer: TrainedModel,
    parts: Iterable[tuple[np.ndarray, int]],
    speaker: str = "speaker",
    known: KnownSpeakers | None = None,
) -> TrainedModel:
    """The recogniser adapted to the speaker of these parts, of which the first `_ADAPT_S` are used, if it adapts."""
    if not (model := speaker_model(recognizer) or network_speakers(recognizer)):
        return recognizer
    feats, seconds = dict[str, np.ndarray](), 0.0
    for wave_S, rate_hz in parts:
        if seconds >= _ADAPT_S:
            break
        seconds += len(wave_S) / rate_hz
        if audio.is_silent(wave_S):
            continue
        name = f"part {len(feats) + 1}"
        try:
            feats[name], _ = _features_of(model.recognizer, name, wave_S, rate_hz)
        except Speech3Error:  # said again when it is recognised
            continue
    if not feats:
        return model.recognizer_of(None)
    try:
        return adapt(model, feats, speaker, known)
    except Speech3Error as error:  # such as no path through the graph: the words of the first pass are kept
        say(f"not adapted to the speaker: {error}")
        return model.recognizer_of(None)


def transcribe_samples(
    recognizer: TrainedModel,
    samples: ArrayLike,
    rate_hz: Any,
    speaker: str | None = None,
    known: KnownSpeakers | None = None,
) -> Result:
    """Recognise a recording in memory (see `Recognizer.transcribe`), with the time and confidence of each word.

    What is `known` of the speaker, if that is given, is used and added to.
    """
    name, wave_S, rate_hz = "samples", checked_samples(samples), checked_rate(rate_hz)
    check_speaker(speaker)
    _refuse_given(recognizer, name)
    if not len(wave_S):
        raise DataError("there are no samples: an empty recording cannot be recognised")
    clipping, block = audio.ClippingListener(name, rate_hz), round(_BLOCK_S * rate_hz)
    for start in range(0, len(wave_S), block):
        clipping.add(wave_S[start : start + block])
    clipping.end()
    wanted = Wanted(times=isinstance(recognizer.outputs, Hmm))
    if len(wave_S) > LONG_S * rate_hz:
        cuts, rate_hz = _parts(recognizer, [wave_S], rate_hz)
        parts = list(cuts)
    else:
        wave_S, rate_hz = _at_its_rate(recognizer, wave_S, rate_hz)
        parts = [Cut(0.0, wave_S)]
    heard = ((cut.wave_S, rate_hz) for cut in parts)
    using = _of_speaker(recognizer, heard, speaker or "speaker", known if speaker else None)
    if len(parts) == 1 and parts[0].wave_S is wave_S:
        _say_quiet(name, wave_S)
        found = _recognised(using, name, wave_S, rate_hz, wanted)
    else:
        found = _long(using, name, parts, rate_hz, wanted)
    words = words_of_segments(found.words) or [Word(word, None, None, None) for word in found.spelled]
    phones = phones_of_segments(found.phones, recognizer.hmm.lexicon) if found.phones else ()
    return replace(result_of(words), phones=phones, nbest=tuple(found.nbest))


def _at_its_rate(recognizer: TrainedModel, wave_S: np.ndarray, rate_hz: int) -> tuple[np.ndarray, int]:
    wanted_hz = recognizer.features.sample_frequency or rate_hz
    resampler = OnlineResampler(rate_hz, wanted_hz)
    return np.concatenate([resampler.accept(wave_S), resampler.finish()]), wanted_hz


def features_of_samples(
    recognizer: TrainedModel, samples: ArrayLike, rate: int
) -> tuple[np.ndarray, tuple[np.ndarray, int]]:
    """Features (T, F) of a recording in memory, and its waveform (S,) at the model's rate with that rate.

    Silence, less than a frame and invalid samples are refused.
    """
    wave_S, rate_hz = checked_samples(samples), checked_rate(rate)
    _refuse_given(recognizer, "samples")
    if not len(wave_S):
        raise DataError("there are no samples; pass a recording with speech")
    if audio.is_silent(wave_S):
        raise SettingError("samples: are digital silence (all are equal); pass a recording with speech")
    wave_S, rate_hz = _at_its_rate(recognizer, wave_S, rate_hz)
    feats_TF, _ = _features_of(recognizer, "samples", wave_S, rate_hz)
    return feats_TF, (wave_S, rate_hz)


def _parts(recognizer: TrainedModel, blocks: Iterable[np.ndarray], rate_hz: int) -> tuple[Iterator[Cut], int]:
    """The parts of a recording, resampled to the model's rate, and that rate."""
    wanted_hz = recognizer.features.sample_frequency or rate_hz
    resampler = OnlineResampler(rate_hz, wanted_hz)

    def resampled() -> Iterator[np.ndarray]:
        yield from (resampler.accept(block_S) for block_S in blocks)
        yield resampler.finish()

    return cut_at_pauses(resampled(), wanted_hz), wanted_hz


def _long(recognizer: TrainedModel, name: str, parts: Iterable[Cut], rate_hz: int, wanted: Wanted) -> _Found:
    """Recognise the parts of a recording, one of which must succeed; times count from the start of the recording."""
    found: list[_Found] = []
    nbest: Sequence[Alternative] = []
    lattices: dict[str, WordLattice] = {}
    failed = ""
    for cut in parts:
        end_s = cut.begin_s + len(cut.wave_S) / rate_hz
        place = f"{name}, {cut.begin_s:.2f} to {end_s:.2f} s"
        try:
            part = _recognised(recognizer, place, cut.wave_S, rate_hz, wanted)
        except Speech3Error as error:
            failed = failed or str(error)
            say(f"left out: {error}")
            continue
        nbest = part.nbest if not found else _best_pairs(nbest, part.nbest, recognizer.nbest)
        lattices |= {segment_name(name, cut.begin_s, end_s): each for each in part.lattices.values()}
        words, phones = _later(part.words, cut.begin_s), _later(part.phones, cut.begin_s)
        found.append(_Found(part.spelled, words, phones))
    if not failed and not found:
        say(f"{name}: no speech in it: it is silent, or equally loud throughout; there are no words")
    if failed and not found:
        raise DataError(f"{name}: no part of it could be recognised; the first reason: {failed}")
    words, phones = ([s for part in found for s in getattr(part, each)] for each in ("words", "phones"))
    return _Found(tuple(word for part in found for word in part.spelled), words, phones, nbest, lattices)


def _later(segments: Sequence[Segment], by_s: float) -> list[Segment]:
    return [replace(s, start_s=s.start_s + by_s, end_s=s.end_s + by_s) for s in segments]


def _best_pairs(before: Sequence[Alternative], after: Sequence[Alternative], n: int) -> list[Alternative]:
    """The N best word sequences of two parts together, which were recognised independently."""
    # Both are in the order of their costs: i * j pairs are as good as the i-th sequence with the j-th, or better.
    pairs = [(a, b) for rank, a in enumerate(before[:n], 1) for b in after[: n // rank]]
    both = sorted(pairs, key=lambda pair: pair[0].cost + pair[1].cost)
    return [
        Alternative(a.words + b.words, a.acoustic_cost + b.acoustic_cost, a.graph_cost + b.graph_cost)
        for a, b in both[:n]
    ]


def _recognised(recognizer: TrainedModel, name: str, wave_S: np.ndarray, rate_hz: int, wanted: Wanted) -> _Found:
    feats_TF, is_background = _features_of(recognizer, name, wave_S, rate_hz)
    if audio.is_silent(wave_S):
        say(f"{name}: is silent (its samples differ by less than half a step of 16 bits), so there are no words")
        return _no_words(recognizer)
    if is_background:
        say(f"{name}: nobody speaks in it: it is equally loud throughout, so there are no words")
        return _no_words(recognizer)
    feats = {name: feats_TF}
    paths: Sequence[Alternative] = ()
    lattice: WordLattice | None = None
    # To judge the lengths of words takes their times.
    judged = recognizer.settings.lengths is not None and isinstance(recognizer.outputs, Hmm)
    if recognizer.nbest or wanted.lattices:
        best, lattice, paths = decode_one(recognizer, name, feats[name], recognizer.nbest)
        decoding = Decoding((best,), {})
    else:
        decoding = recognizer.decode(feats, confidences=wanted.times or judged or recognizer.min_confidence > 0)
    if len(paths) < recognizer.nbest:
        say(f"{name}: has {counted(len(paths), 'word sequence')} within the lattice beam, not {recognizer.nbest}")
    words, phones = [], []
    timed: Sequence[Segment] | None = None
    if wanted.times or judged:
        times, alignments = aligned_words(recognizer, feats, decoding, waves={name: (wave_S, rate_hz)})
        timed, words = times.get(name), times.get(name, []) if wanted.times else []
        if wanted.times and name in alignments:
            phones = phone_segments(alignments[name], recognizer.hmm.lexicon, recognizer.clock)
    spelled = without_doubtful(recognizer, decoding.hypotheses[0], timed).words
    return _Found(spelled, words, phones, paths, {name: lattice} if lattice else {})


def _no_words(recognizer: TrainedModel) -> _Found:
    return _Found((), nbest=[Alternative((), 0.0, 0.0)] if recognizer.nbest else ())


def _static_of(config: FeatureConfig, wave_S: np.ndarray, rate_hz: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The static features of a recording, float32 (T, F), T perhaps 0, and which frames are digital silence, (T,)."""
    samples_S = torch.from_numpy(wave_S)
    feats_1TF, frames_1 = static_features(samples_S[None], torch.tensor([len(wave_S)]), config, rate_hz)
    static_TF = feats_1TF[0][: int(frames_1[0])]
    return static_TF, silent_frames(samples_S, len(static_TF), config, rate_hz)


def _refuse_given(recognizer: TrainedModel, name: str) -> None:
    if not recognizer.features.from_audio:
        raise MismatchError(
            f"{name}: this model takes its features from a file (feats.scp) and does not compute them from audio; make"
            " a data directory with the recording's features and use speech3 decode"
        )


def _features_of(recognizer: TrainedModel, name: str, wave_S: np.ndarray, rate_hz: int) -> tuple[np.ndarray, bool]:
    """The features (T, F) of a recording, and whether it is only background."""
    if model := network_speakers(recognizer):
        feats_TF, is_background = _features_of(model.recognizer, name, wave_S, rate_hz)
        unadapted_TD = model.projection(feats_TF)
        adapted_TD = unadapted_TD if recognizer.transform is None else applied(recognizer.transform, unadapted_TD)
        if recognizer.features.kind == "given":
            return adapted_TD, is_background
        beside_TF, _ = _features_of(recognizer.without_adapted, name, wave_S, rate_hz)
        return np.concatenate([beside_TF, adapted_TD], 1), is_background
    config = recognizer.features
    static_TF, silent_T = _static_of(config, wave_S, rate_hz)
    if not len(static_TF):
        raise DataError(f"{name}: shorter than one frame ({config.frame_length:g} ms); nothing to recognise")
    feats_TF = finish_features([static_TF], config, [silent_T])[0].numpy()
    return feats_TF, only_background(static_TF, silent_T, config)
