"""The recogniser of the Python interface: a trained model that also takes samples, at once or as they arrive.

`tune_recognizer` finds its acoustic scale and word penalty on a dev set.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import jiwer
import numpy as np
from numpy.typing import ArrayLike

from speech3.config import DecodeConfig, parse
from speech3.decode.apply import transcribe_samples
from speech3.decode.hot_words import replace_graph
from speech3.decode.search import decode_settings
from speech3.decode.streaming import Stream
from speech3.decode.trained_model import Result, TrainedModel
from speech3.decode.tune import DecodeSettings, ErrorRate, Tuning, drawn, error_rate_of, tune
from speech3.errors import SettingError
from speech3.io import ComputedMapping
from speech3.runtime import progress, read_json, say

TUNING_FILE = "tuning.json"  # in a model directory


@dataclass(frozen=True, eq=False)
class Recognizer(TrainedModel):
    """A trained model that recognises recordings and streams."""

    @classmethod
    def load(
        cls, model: Path | str, *, graph: Path | str | None = None, hot: Path | Sequence[str] | None = None
    ) -> Self:
        """Read a model directory, or OUT.onnx of `speech3 export` with the directory beside it.

        Parameters
        ----------
        graph
            A directory of `speech3 graph`, used in place of the model's own graph.
        hot
            Words and phrases to expect, ``["Aberystwyth", "turn left 5"]``, each with a boost or without; or a file
            of such lines.

        Raises
        ------
        Speech3Error
            A file is missing, or the files do not belong together; a hot word is not in the graph.
        """
        if isinstance(hot, str):
            raise SettingError(f"hot={hot!r}: pass a list of words, or a Path")
        recognizer = super().load(model)
        return replace_graph(recognizer, Path(graph) if graph else None, hot) if graph or hot else recognizer

    def transcribe(self, samples: ArrayLike, rate: int) -> Result:
        """Recognise a recording: its text, and its words with times and confidences.

        Parameters
        ----------
        samples
            One channel, floats from -1 to 1, or int16, int32 or uint8 over their whole range. Recordings of more than a
            minute are cut at pauses.
        rate
            Samples per second; if it is not the model's rate, the recording is resampled.

        Raises
        ------
        Speech3Error
            The samples or the rate cannot be used, the recording is shorter than a frame, or nothing could be decoded.
        """
        return transcribe_samples(self, samples, rate)

    def stream(self, rate: int) -> Stream:
        """Begin streaming recognition of a recording with `rate` samples per second; raises what `Stream` raises."""
        return Stream(self, rate)


def load_recognizer(model: Path | str) -> Recognizer:
    """Read a recogniser; raises what `TrainedModel.load` raises."""
    return Recognizer.load(model)


def tune_recognizer(
    recognizer: Recognizer,
    feats: Mapping[str, np.ndarray],
    references: Mapping[str, Sequence[str]],
    config: DecodeConfig,
    jobs: int = 1,
    error_rate: ErrorRate = jiwer.wer,
) -> Tuning:
    """Pick the acoustic scale and word penalty on a dev set and write them to the model's decode.json.

    A calibration of the words' posteriors is fitted and written with them. The grid is searched on
    ``config.tuning_minutes`` of the dev set, but the error rate returned for the best point is that of the whole set.
    """
    graph, shift_s = recognizer.tuning_graph, recognizer.features.frame_shift / 1000
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
    best, setting = found.best, (found.best.acoustic_scale, found.best.word_penalty)
    if rest:
        quick = config.model_copy(update={"max_active": config.tuning_max_active})
        shown = progress(scores(rest), len(rest), "rest of dev")
        words = {key: each for key, (each,) in decode_settings(graph, shown, quick, [setting], jobs).items()}
        found = replace(found, words={**found.words, **words})
        best = replace(best, error_rate=error_rate_of(said, found.words, error_rate))
    DecodeSettings(*setting, config.beam, config.max_active, found.calibration).save(recognizer.directory)
    return replace(found, best=best)


def load_tuning(recognizer: Recognizer) -> DecodeConfig:
    """The tuning grid of the model's recipe, from tuning.json; the default grid if there is no such file."""
    path = recognizer.directory / TUNING_FILE
    return parse(DecodeConfig, read_json(path), path) if path.exists() else DecodeConfig()
