"""A model directory as one object that scores, aligns and decodes, and the words that it recognises.

A model directory is self-contained, however it was trained:

    model.safetensors   GMMs (kind ``gmm``), a network with its class priors (kind ``nn``), or several (kind ``mean``)
    lda.safetensors, adapted/   of GMMs with transforms (`speech3.hmm.sat`)
    sat/                the model directory of such GMMs, if the network reads the features that they adapt to speakers
    hmm.json, tree.safetensors, lexiconp.txt    what the outputs mean (`speech3.hmm.model`)
    features.yaml       what the inputs are
    graph/              HCLG.fst, words.txt, graph.json (`speech3.decode.graph`)
    graph_tuning/       the same without the dev set's sentences, if the language model's text contains them
    decode.json         acoustic scale, word penalty, cost of fillers and calibration, tuned on the dev set; lengths of
                        words; beam and maximum of states
    tuning.json         `DecodeConfig` of its recipe, with the tuning grid

An exported network (`speech3.decode.model_export`) is a file, OUT.onnx, which includes the config of its features, and
beside it the directory OUT.decode with the other files; it is used in the same way as a model directory.

Axes: T frames, D features, K rows of scores, P pdfs.
"""

import math
import numbers
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from speech3.config import DecodeConfig, FeatureConfig, parse, read_yaml
from speech3.decode.grammar import FILLER_COSTS, with_lexicon_of
from speech3.decode.graph import DecodingGraph, decode_directory, load_graph
from speech3.decode.search import Decoding, Setting, decode
from speech3.decode.word_lengths import WordLengths, lengths_of
from speech3.errors import (
    MOST_UNALIGNED,
    DataError,
    FormatError,
    MismatchError,
    MissingError,
    SettingError,
    Speech3Error,
    check_bad,
)
from speech3.features import static_dim
from speech3.hmm import (
    ADAPTED,
    LARGEST_PSEUDO,
    Adapted,
    Aligned,
    Alignment,
    FrameClock,
    Hmm,
    PdfsOnly,
    ProjectedGmm,
    Refinement,
    Scorer,
    Segment,
    Transcripts,
    Wave,
    align_utterances,
    frame_clock,
    load_adapted,
    load_gmm,
    load_hmm,
    load_outputs,
    load_projection,
    usable_transcripts,
)
from speech3.io import (
    DECODE_FILE,
    FEATURES_FILE,
    GRAPH_DIR,
    GRAPH_FILE,
    MODEL_FILE,
    TUNING_GRAPH_DIR,
    check_is_directory,
    read_about,
)
from speech3.language import Lexicon
from speech3.models import AcousticModel, OnnxNetwork, load_networks, logits
from speech3.runtime import progress, read_json, say, write_json

ALIGNMENT_SCALE = 0.1  # of the acoustic scores, as in Kaldi's align scripts
PSEUDO_SCALE = 1.0  # for scores that were trained as likelihoods (LF-MMI)
# Beams of forced alignment, in scaled log probabilities, wide because an utterance takes only milliseconds. They are
# the same for LF-MMI: its scores, at a third of the frames and scale 1, differ by about as much per second of speech as
# other scores at scale 0.1.
BEAM = 15.0
RETRY_BEAM = 60.0
_CLIP = 1e-3  # posteriors are clipped to this distance from 0 and 1: one unit of the last digit in hyp.ctm
SAT = "sat"  # in the model directory of a network
_Parts = tuple[Path, Hmm | PdfsOnly, FeatureConfig, Scorer]


@dataclass(frozen=True, eq=False)
class NetworkScorer:
    """Scaled likelihoods of a network: log posterior minus log prior (Bourlard and Morgan 1994).

    With `pseudo_likelihoods` (LF-MMI, Povey et al. 2016), outputs are neither normalised nor is a prior subtracted.
    """

    network: AcousticModel
    log_prior_P: np.ndarray
    pseudo_likelihoods: bool = False

    @property
    def subsampling(self) -> int:
        return self.network.subsampling

    def loglikes(self, feats_TD: np.ndarray, pdfs: np.ndarray | None = None) -> np.ndarray:
        """(K, P) float32, or only the columns of `pdfs`; one row for each `subsampling` frames."""
        scores_KP = self.of_logits(logits(self.network, torch.from_numpy(feats_TD)))
        return scores_KP if pdfs is None else scores_KP[:, pdfs]

    def of_logits(self, logits_KP: torch.Tensor) -> np.ndarray:
        """(K, P) float32 scores from the outputs of the network."""
        if self.pseudo_likelihoods:
            return logits_KP.numpy().clip(-LARGEST_PSEUDO, LARGEST_PSEUDO)
        scores_KP: np.ndarray = logits_KP.log_softmax(1).numpy() - self.log_prior_P
        return scores_KP


@dataclass(frozen=True)
class MeanScorer:
    """The mean of the scores of several models; `columns` are those of the features (T, D) that each reads."""

    scorers: tuple[Scorer, ...]
    columns: tuple[slice, ...]

    @property
    def subsampling(self) -> int:
        return self.scorers[0].subsampling

    @property
    def pseudo_likelihoods(self) -> bool:
        return self.scorers[0].pseudo_likelihoods

    def loglikes(self, feats_TD: np.ndarray, pdfs: np.ndarray | None = None) -> np.ndarray:
        parts = zip(self.scorers, self.columns, strict=True)
        scores = [scorer.loglikes(feats_TD[:, columns], pdfs) for scorer, columns in parts]
        mean_KP: np.ndarray = np.stack(scores).mean(0, dtype=np.float32)
        return mean_KP


@dataclass(frozen=True)
class Calibration:
    """``log odds = offset + slope * log odds of the posterior``."""

    offset: float
    slope: float

    def __call__(self, posterior: float) -> float:
        """The probability, between 0 and 1, that a word with this posterior is correct."""
        return float(1 / (1 + np.exp(-self.offset - self.slope * log_odds(np.array(posterior)))))


def calibration_of(values: Any) -> Calibration | None:
    """Restore a calibration from its `dataclasses.asdict`; a TypeError if it is none. ``None`` returns ``None``."""
    if values is None:
        return None
    found = Calibration(**values)
    if not all(isinstance(value, float | int) and np.isfinite(value) for value in (found.offset, found.slope)):
        raise TypeError(f"{values} is not a calibration")
    return found


def log_odds(posterior_W: np.ndarray) -> np.ndarray:
    """Of posteriors at least `_CLIP` away from 0 and 1."""
    bounded_W = np.clip(posterior_W, _CLIP, 1 - _CLIP)
    return np.asarray(np.log(bounded_W / (1 - bounded_W)))


@dataclass(frozen=True)
class DecodeSettings:
    """Decoding settings of a model, tuned on the dev set and never on test."""

    acoustic_scale: float
    word_penalty: float
    beam: float
    max_active: int
    confidence: Calibration | None = None  # maps posteriors to confidences; None: the confidences are the posteriors
    filler_cost: float = FILLER_COSTS[-1]  # added to the cost of each filler (`speech3.decode.grammar`)
    lengths: WordLengths | None = None  # words of other lengths are not believed; None: their lengths are not judged

    def __post_init__(self) -> None:
        numbers = self.acoustic_scale, self.word_penalty, self.filler_cost
        finite = all(map(math.isfinite, numbers))
        if not (finite and self.acoustic_scale > 0 and self.beam > 0 and self.max_active == int(self.max_active) >= 1):
            raise TypeError("acoustic_scale, beam and max_active must be above 0")

    @property
    def search(self) -> DecodeConfig:
        return DecodeConfig(beam=self.beam, max_active=self.max_active)

    @property
    def setting(self) -> Setting:
        return self.acoustic_scale, self.word_penalty

    def calibrated(self, posterior: float) -> float:
        """The confidence of a word with this posterior; the posterior itself if no calibration was fitted."""
        return self.confidence(posterior) if self.confidence else posterior

    def save(self, directory: Path | str) -> None:
        write_json(Path(directory) / DECODE_FILE, asdict(self))


def load_settings(directory: Path | str, model: Path | str | None = None) -> DecodeSettings:
    """Read decode.json; if it is missing, the error says to tune `model`, by default the directory itself."""
    path, model = Path(directory) / DECODE_FILE, model or directory
    if not path.exists():
        raise MissingError(
            f"{path}: no such file; the model is not tuned yet: run speech3 tune {model} DIR, with a data"
            " directory that it was not trained on"
        )
    try:
        values = {**read_json(path)}
        values["confidence"] = calibration_of(values.get("confidence"))
        values["lengths"] = lengths_of(values.get("lengths"))
        return DecodeSettings(**values)
    except TypeError as error:
        raise MismatchError(
            f"{path}: has keys of another version of speech3, or impossible values; write it again with speech3 tune"
            f" {model} DIR"
        ) from error


@dataclass(frozen=True, eq=False, repr=False)
class TrainedModel:
    """An acoustic model with everything that aligning and decoding need.

    `chosen_graph`, if given, replaces the model's own graph. Recognised words with a confidence below `min_confidence`
    are replaced by `<unk>`. Results of recordings have up to `nbest` word sequences.

    `sat` are the GMMs of a network that reads features adapted to speakers, and `transform` (D, D + 1) is that of the
    speaker of the recordings; without one their features are not adapted.

    `graphs` is the directory with the decoding graphs if it is not the model's: settings of the passes after the first
    have a directory of their own.
    """

    directory: Path
    outputs: Hmm | PdfsOnly
    features: FeatureConfig
    scorer: Scorer
    chosen_graph: DecodingGraph | None = None
    min_confidence: float = 0.0
    nbest: int = 0
    sat: "TrainedModel | None" = None
    transform: np.ndarray | None = None
    graphs: Path | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.directory}>"

    def with_min_confidence(self, least: float) -> Self:
        if not isinstance(least, numbers.Real) or isinstance(least, bool) or not 0 <= least <= 1:
            raise SettingError(f"min_confidence={least!r}: must be a number from 0 to 1")
        return replace(self, min_confidence=least)

    @classmethod
    def load(cls, model: Path | str) -> Self:
        """Read a model directory, or OUT.onnx of `speech3 export` with the directory beside it.

        Raises
        ------
        Speech3Error
            A file is missing, or the files do not belong together.
        """
        try:
            found = cls(*_read(model))
        except MissingError as error:
            if error.remedy:
                raise
            raise error.restated(f"{error}; copy the whole model directory again, or train the model again") from error
        return replace(found, sat=TrainedModel.load(found.directory / SAT)) if found.features.adapted else found

    @property
    def hmm(self) -> Hmm:
        """The HMM whose pdfs are the outputs; raises an error if only the number of outputs is known."""
        return self.outputs if isinstance(self.outputs, Hmm) else load_hmm(self.directory)

    @property
    def path(self) -> Path:
        """What a user names: the model directory, or OUT.onnx."""
        return self.scorer.path if isinstance(self.scorer, OnnxNetwork) else self.directory

    @property
    def clock(self) -> FrameClock:
        return frame_clock(self.features, self.hmm.subsampling)

    @property
    def alignment_scale(self) -> float:
        return PSEUDO_SCALE if self.scorer.pseudo_likelihoods else ALIGNMENT_SCALE

    @cached_property
    def graph(self) -> DecodingGraph:
        """The decoding graph, read on first use; raises an error if there is none or its number of pdfs differs."""
        if self.chosen_graph:
            return self.chosen_graph
        own = (self.graphs or self.directory) / GRAPH_DIR
        if not (own / GRAPH_FILE).exists():
            raise MissingError(
                f"{own.parent}: has no decoding graph, so it can align but not decode; use another model directory"
                " of the same recipe, such as tri or dnn"
            )
        return self.read_graph(own)

    @property
    def tuning_graph(self) -> DecodingGraph:
        """The graph for tuning: one whose language model has not seen the dev set's sentences, if it exists."""
        own = (self.graphs or self.directory) / TUNING_GRAPH_DIR
        if not (own / GRAPH_FILE).exists() or (self.chosen_graph and self.chosen_graph.path == own):
            return self.graph
        return self.read_graph(own)

    def read_graph(self, path: Path) -> DecodingGraph:
        """Read a decoding graph from any path, with the model's cost of fillers; refuse another number of pdfs."""
        graph = load_graph(path)
        if graph.num_pdfs != self.outputs.num_pdfs:
            raise MismatchError(
                f"{graph.path}: built for {graph.num_pdfs} pdfs, but the model has {self.outputs.num_pdfs};"
                " build it again"
            )
        tuned = (self.directory / DECODE_FILE).exists()
        return graph.with_filler_cost(self.settings.filler_cost if tuned else DecodeSettings.filler_cost)

    @cached_property
    def adapted(self) -> Adapted | None:
        """What decoding in passes needs; None if the model does not adapt to speakers."""
        fits = isinstance(self.scorer, ProjectedGmm) and self.scorer.transform is None
        return load_adapted(self.directory) if fits and (self.directory / ADAPTED).is_dir() else None

    @property
    def without_adapted(self) -> Self:
        """For the features that the network reads beside those adapted to speakers."""
        return replace(self, features=self.features.model_copy(update={"adapted": 0}), sat=None)

    @cached_property
    def settings(self) -> DecodeSettings:
        return load_settings(self.directory, self.path)

    def read_settings_again(self) -> None:
        """Forget what was read from decode.json, which has changed: the settings, and the graph's cost of fillers."""
        for read in ("settings", "graph"):
            self.__dict__.pop(read, None)

    def scores(self, feats: Mapping[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
        """Yield each utterance with its log likelihoods (K, P), computed lazily; one row per `subsampling` frames."""
        for utterance, feats_TF in feats.items():
            try:
                loglikes_TP = self.scorer.loglikes(feats_TF)
            except Speech3Error as error:
                raise error.restated(f"{utterance}: {error}") from error
            yield utterance, loglikes_TP

    def decode(
        self,
        feats: Mapping[str, np.ndarray],
        jobs: int = 1,
        graph: DecodingGraph | None = None,
        *,
        confidences: bool = False,
    ) -> Decoding:
        """Decode with the tuned settings, through the model's own graph or another one (see `search.decode`)."""
        graph, tuned, scores = graph or self.graph, self.settings, self.scores(feats)
        shown = progress(scores, len(feats), "decoding") if len(feats) > 1 else scores
        return decode(graph, shown, tuned.search, *tuned.setting, jobs, confidences=confidences)

    def align(
        self,
        feats: Mapping[str, np.ndarray],
        texts: Mapping[str, str | None],
        jobs: int = 1,
        *,
        strict: bool = True,
        waves: Mapping[str, Wave] | None = None,
    ) -> tuple[Mapping[str, Alignment], dict[str, str]]:
        """Align each utterance with its words; return the alignments, and the reason for each one that failed.

        If not `strict`, any number may fail; else more than a quarter, or most words unknown to the lexicon, are an
        error. Boundaries are refined, better where the waveform is in `waves`.
        """
        transcripts = usable_transcripts(texts, self.hmm.lexicon, feats, strict=strict)
        found = self.align_transcripts(transcripts, feats, jobs, waves or {})
        if strict:
            total = len(transcripts.words) + len(transcripts.bad)
            check_bad(found.bad, total, "alignment", most=MOST_UNALIGNED)
        return found.alignments, found.bad

    def align_transcripts(
        self,
        transcripts: Transcripts,
        feats: Mapping[str, np.ndarray],
        jobs: int,
        waves: Mapping[str, Wave],
        *,
        scorer: Scorer | None = None,
        scored: bool = False,
        widen: bool = False,
    ) -> Aligned:
        """Align transcripts, by default with the model's own scorer (see `align_utterances`)."""
        return align_utterances(
            self.hmm,
            scorer or self.scorer,
            transcripts,
            feats,
            beam=BEAM,
            retry_beam=RETRY_BEAM,
            jobs=jobs,
            acoustic_scale=self.alignment_scale,
            scored=scored,
            refinement=Refinement(self.clock, waves),
            widen=widen,
        )


def warn_of_rate(name: str, rate_hz: int, model_hz: int) -> None:
    """Print a warning if audio of this sample rate lacks a part of the spectrum that the model was trained on."""
    if rate_hz < model_hz:
        say(
            f"{name}: {rate_hz} Hz, resampled to the model's {model_hz} Hz: the upper part of the spectrum is missing;"
            " expect more errors"
        )


@dataclass(frozen=True)
class Spoken:
    """A word or a phone that was recognised or aligned.

    Attributes
    ----------
    text
        The word, or the phone without its position in the word.
    start_s, end_s
        Seconds from the beginning of the recording; None if the model cannot align.
    confidence
        From 0 to 1; None if unknown. Of a recognised word: its calibrated posterior. Of an aligned word or phone: 1 if
        no pdf fits any of its frames better, 0 if a random one would fit as well.
    """

    text: str
    start_s: float | None
    end_s: float | None
    confidence: float | None


@dataclass(frozen=True)
class Word(Spoken):
    """A word; `<unk>` for one that is not known or not sure.

    It is `guessed` if it was spelled from its phones, as a word that the graph lacks (`lm.filler=spelled`).
    """

    guessed: bool = False

    @property
    def marked(self) -> str:
        """The word, in angle brackets if it is a guess."""
        return f"<{self.text}>" if self.guessed else self.text

    @property
    def word(self) -> str:
        return self.text


class Phone(Spoken):
    """A phone, or a letter if the model's pronunciations are spelled."""

    @property
    def phone(self) -> str:
        return self.text


@dataclass(frozen=True)
class Alternative:
    """One of the N best word sequences; costs are minus natural logarithms, and the acoustic cost is scaled."""

    words: tuple[str, ...]
    acoustic_cost: float
    graph_cost: float

    @property
    def text(self) -> str:
        return " ".join(self.words)

    @property
    def cost(self) -> float:
        return self.acoustic_cost + self.graph_cost


@dataclass(frozen=True)
class Result:
    """What was recognised in a recording, or aligned with it.

    Attributes
    ----------
    phones
        Silences are left out; empty for streams and for models that cannot align.
    nbest
        The best word sequences, best first, if they were requested: as many as there are within the beam.
    confidence
        Of the whole, after an alignment.
    """

    text: str
    words: tuple[Word, ...]
    phones: tuple[Phone, ...] = ()
    nbest: tuple[Alternative, ...] = ()
    confidence: float | None = None


def result_of(words: Iterable[Word]) -> Result:
    words = tuple(words)
    return Result(" ".join(word.text for word in words), words)


def words_of_segments(segments: Sequence[Segment], begin_s: float = 0.0) -> tuple[Word, ...]:
    """Words from the segments of an alignment, shifted by `begin_s`, where the aligned part begins."""
    return tuple(Word(s.label, begin_s + s.start_s, begin_s + s.end_s, s.confidence, s.guessed) for s in segments)


def phones_of_segments(segments: Sequence[Segment], lexicon: Lexicon) -> tuple[Phone, ...]:
    """The phones in the segments of an alignment; silences are left out."""
    heard = (s for s in segments if s.label not in lexicon.silence_phones)
    return tuple(Phone(s.label, s.start_s, s.end_s, s.confidence) for s in heard)


def _read(model: Path | str) -> _Parts:
    if not isinstance(model, str | os.PathLike):
        raise SettingError(f"model={model!r}: pass the path of a model directory, or of OUT.onnx")
    directory = Path(model)
    if directory.suffix == ".onnx" and not directory.is_dir():
        return _read_exported(directory)
    check_is_directory(directory)
    if not (directory / MODEL_FILE).exists():
        whole = directory.resolve()  # `.` has no name
        onnx = whole.with_suffix(".onnx") if whole.name else whole
        if onnx.is_file() and decode_directory(onnx) == whole:  # as lattices name the model that made them
            return _read_exported(onnx)
        below = ", ".join(str(path.parent) for path in sorted(directory.glob("*/model.safetensors")))
        raise FormatError(
            f"{directory}: not a model directory, because it has no model.safetensors"
            + (f"; use one of: {below}" if below else "; make one with speech3 recipe or speech3 train")
        )
    # The model's parts: outputs with the lexicon, features, and what scores them: GMMs or networks.
    known = with_lexicon_of(load_outputs(directory), directory / GRAPH_DIR)
    features = parse(FeatureConfig, read_yaml(directory / FEATURES_FILE), directory / FEATURES_FILE)
    about = read_about(directory / MODEL_FILE)
    scorer: Scorer
    if about.get("kind") == "gmm":
        scorer = gmm = load_gmm(directory / MODEL_FILE)
        outputs, feat_dim = gmm.num_pdfs, gmm.mean.shape[1]
        if projection := load_projection(directory):
            scorer, feat_dim = ProjectedGmm(gmm, projection), projection.inputs
    else:
        scorers = tuple(
            NetworkScorer(network, log_prior_P, pseudo_likelihoods=about.get("objective") == "lfmmi")
            for network, log_prior_P, about in load_networks(directory).values()
        )
        dims = [each.network.feat_dim for each in scorers]
        scorer = scorers[0] if len(scorers) == 1 else MeanScorer(scorers, tuple(map(slice, dims)))
        outputs, feat_dim = len(scorers[0].log_prior_P), max(dims)
    # Parts that do not fit together.
    _check_features(directory, features, feat_dim)
    _check_outputs(directory / MODEL_FILE, outputs, known)
    _check_subsampling(directory, scorer, known)
    return directory, known, features, scorer


def _read_exported(path: Path) -> _Parts:
    scorer, directory = OnnxNetwork(path), decode_directory(path)
    if not directory.is_dir():
        raise DataError(
            f"{path}: this is the network alone; decoding also needs {directory}, which speech3 export wrote: move"
            " both together, or export again"
        )
    known = with_lexicon_of(load_outputs(directory), directory / GRAPH_DIR)
    _check_outputs(path, scorer.num_senones, known)
    _check_subsampling(directory, scorer, known)
    return directory, known, parse(FeatureConfig, scorer.about["features"], path), scorer


def _check_features(directory: Path, features: FeatureConfig, feat_dim: int) -> None:
    own = static_dim(features) * (features.deltas + 1) * (features.left_context + 1 + features.right_context)
    dim = own + features.adapted
    if features.kind != "given" and dim != feat_dim:
        raise MismatchError(
            f"{directory / 'features.yaml'}: {dim} values per frame, but {directory / 'model.safetensors'} was trained"
            f" on {feat_dim}; restore the features.yaml that belongs to the model"
        )


def _check_subsampling(directory: Path, scorer: Scorer, known: Hmm | PdfsOnly) -> None:
    if isinstance(known, Hmm) and known.subsampling != scorer.subsampling:
        raise MismatchError(
            f"{directory}: the model has an output every {scorer.subsampling} frames, but hmm.json says every"
            f" {known.subsampling}: they come from different training runs; restore the model's own hmm.json"
        )


def _check_outputs(path: Path, outputs: int, known: Hmm | PdfsOnly) -> None:
    if outputs != known.num_pdfs:
        raise MismatchError(
            f"{path}: {outputs} outputs, but the tree beside it has {known.num_pdfs} pdfs;"
            " it is a checkpoint of another model"
        )
