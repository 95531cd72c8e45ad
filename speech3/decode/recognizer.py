"""The recogniser of the Python interface: a trained model that also takes samples, at once or as they arrive.

`tune_recognizer` finds its acoustic scale and word penalty on a dev set, `tune_passes` those of decoding in passes.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Self

import jiwer
import numpy as np
from numpy.typing import ArrayLike

from speech3.config import DecodeConfig, parse
from speech3.data import checked_rate
from speech3.decode.apply import transcribe_samples
from speech3.decode.grammar import FILLER_OFF
from speech3.decode.lattice_paths import MOST_PATHS
from speech3.decode.new_graph import replace_graph
from speech3.decode.search import decode
from speech3.decode.speaker_passes import (
    KnownSpeakers,
    check_speaker,
    passes_before_last,
    say_speakers,
    speaker_model,
)
from speech3.decode.streaming import Stream
from speech3.decode.trained_model import Result, TrainedModel, warn_of_rate
from speech3.decode.tune import DecodeSettings, ErrorRate, Tuning, drawn, error_rate_of, tune, tune_filler
from speech3.errors import SettingError
from speech3.hmm import ADAPTED, PASSES
from speech3.io import DECODE_FILE, TUNING_FILE, ComputedMapping
from speech3.runtime import progress, read_json, say, write_json


@dataclass(frozen=True, eq=False)
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


def tune_recognizer(
    recognizer: TrainedModel,
    feats: Mapping[str, np.ndarray],
    references: Mapping[str, Sequence[str]],
    config: DecodeConfig,
    jobs: int = 1,
    error_rate: ErrorRate = jiwer.wer,
    negatives: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> Tuning:
    """Pick the acoustic scale and word penalty on a dev set and write them to the model's decode.json.

    The cost of fillers, if the graph has them, and a calibration of the words' posteriors are written with them. The
    grid is searched on ``config.tuning_minutes`` of the dev set, but the error rate returned is that of the whole set.
    `negatives` are features of sounds without words, for the cost and the calibration (`tune_filler`).
    """
    graph = recognizer.tuning_graph.with_filler_cost(FILLER_OFF)
    shift_s = recognizer.features.frame_shift / 1000
    chosen = drawn({key: shift_s * len(feats_TF) for key, feats_TF in feats.items()}, config.tuning_minutes)
    rest = sorted(feats.keys() - set(chosen))
    if rest:
        say(f"  tuning on {len(chosen)} of {len(feats)} utterances, {config.tuning_minutes:g} minutes")

    def scores(keys: Sequence[str]) -> Iterable[tuple[str, np.ndarray]]:
        return recognizer.scores(ComputedMapping(dict.fromkeys(keys), feats.__getitem__))

    pseudo = recognizer.scorer.pseudo_likelihoods
    said = {key: references.get(key, ()) for key in feats}
    found = tune(
        graph, scores(chosen), {key: said[key] for key in chosen}, config, jobs, error_rate, pseudo_likelihoods=pseudo
    )
    # The cost of fillers, which were off; then the words of the utterances that were not drawn.
    best, setting, filler_cost = found.best, (found.best.acoustic_scale, found.best.word_penalty), FILLER_OFF
    if graph.has_filler:
        part = {key: said[key] for key in chosen}
        silent = recognizer.scores(negatives), len(negatives)
        filler = tune_filler(graph, scores(chosen), part, config, found, jobs, error_rate, silent)
        found = replace(found, words=filler.words, calibration=filler.calibration)
        graph, filler_cost = graph.with_filler_cost(filler.cost), filler.cost
    if rest:
        quick = config.model_copy(update={"max_active": config.tuning_max_active})
        shown = progress(scores(rest), len(rest), "rest of dev")
        words = decode(graph, shown, quick, *setting, jobs, tolerant=True).words
        found = replace(found, words={**found.words, **words})
        best = replace(best, error_rate=error_rate_of(said, found.words, error_rate))
    DecodeSettings(*setting, config.beam, config.max_active, found.calibration, filler_cost).save(recognizer.directory)
    return replace(found, best=best)


@dataclass(frozen=True, eq=False)
class TunedPasses:
    """What `tune_passes` found: the tuning of the first and the last pass; features and transforms for the last."""

    first: Tuning
    last: Tuning
    feats: Mapping[str, np.ndarray]
    transforms: Mapping[str, np.ndarray]

    @property
    def helps(self) -> bool:
        return self.last.best.error_rate <= self.first.best.error_rate


def tune_passes(
    recognizer: TrainedModel,
    feats: Mapping[str, np.ndarray],
    speaker_of: Mapping[str, str],
    references: Mapping[str, Sequence[str]],
    config: DecodeConfig,
    jobs: int = 1,
    error_rate: ErrorRate = jiwer.wer,
) -> TunedPasses:
    """Tune a model that adapts to speakers: the first pass and the last; those between have the settings of the first.

    If the last is worse than the first, the model decodes in one pass from now on.
    """
    directory = recognizer.directory / ADAPTED
    for left in (DECODE_FILE, PASSES):  # of an earlier run, until the last pass is tuned
        (directory / left).unlink(missing_ok=True)
    first = tune_recognizer(recognizer, feats, references, config, jobs, error_rate)
    say(f"  pass 1: {config.metric} {100 * first.best.error_rate:.2f} % on dev")
    model = speaker_model(replace(recognizer))  # which reads the settings again
    assert model is not None
    words = {key: " ".join(each) for key, each in first.words.items()}
    transforms: Mapping[str, np.ndarray] = {}
    graph = recognizer.tuning_graph
    for each in passes_before_last(model, feats, speaker_of, graph=graph, jobs=jobs, first=words):
        if each.number == 1:
            say_speakers(speaker_of, each.estimated)
        transforms = each.estimated.transforms
    model.recognizer.settings.save(directory)
    adapted, given = model.adapted_to(feats, speaker_of, transforms, graph)
    last = tune_recognizer(adapted, given, references, config, jobs, error_rate)
    found = TunedPasses(first, last, given, transforms)
    if not found.helps:
        say("  adapting to speakers does not help on dev, so only the first pass is used")
        write_json(directory / PASSES, {"passes": 1})
    return found


def load_tuning(recognizer: Recognizer) -> DecodeConfig:
    """The tuning grid of the model's recipe, from tuning.json; the default grid if there is no such file."""
    path = recognizer.directory / TUNING_FILE
    return parse(DecodeConfig, read_json(path), path) if path.exists() else DecodeConfig()
