"""The scores of a recording in progress: its features as they arrive, adapted to the speaker, and what reads them.

A network on features that GMMs adapt to speakers reads two kinds of features side by side; a mean of networks has
their scores side by side. What comes early waits.

Axes: S samples, T frames or outputs, F feature bins, D projected values, P pdfs.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from speech3.config import FeatureConfig
from speech3.decode.speaker_passes import KnownSpeakers, SpeakerModel, network_speakers, speaker_model
from speech3.decode.trained_model import ALIGNMENT_SCALE, BEAM, RETRY_BEAM, MeanScorer, NetworkScorer, TrainedModel
from speech3.errors import DataError, MismatchError, Speech3Error
from speech3.features import OnlineCmvn, OnlineFeatures
from speech3.hmm import (
    Alignment,
    ProjectedGmm,
    Scorer,
    WorkerShare,
    accumulate_speech,
    applied,
    likelihood_gain,
    score_one,
    search_one,
    zero_fmllr_stats,
)
from speech3.models import AcousticModel, Lstm, OnlineNetwork, OnnxNetwork


class OnlineScores:
    """The scores of a recording in progress, from its samples at `rate_hz`, the model's rate.

    A model that adapts to speakers takes the whole recording for one speaker: each segment is scored with the transform
    that the words of the segments before it give. Raises what `online_network` and `OnlineFeatures` raise.
    """

    def __init__(
        self, recognizer: TrainedModel, rate_hz: int, speaker: str | None = None, known: KnownSpeakers | None = None
    ) -> None:
        beside = network_speakers(recognizer)  # the GMMs whose features a network reads
        model = beside or speaker_model(recognizer)
        self._speaker = OnlineSpeaker(model, speaker, known) if model else None
        self.recognizer = self._speaker.recognizer if self._speaker else recognizer
        # The features of the network or of the GMMs, and for a network those that are adapted.
        self._kinds, self._adapted = list[_Extraction](), None
        if beside is None or recognizer.features.kind != "given":
            self._kinds.append(_Extraction(recognizer.without_adapted.features, rate_hz))
        if beside and self._speaker:
            _check_rates(recognizer, beside.recognizer)
            self._kinds.append(_Extraction(beside.recognizer.features, rate_hz))
            self._adapted = self._speaker.frames()
        self._waiting: list[np.ndarray | None] = [None] * len(self._kinds)
        gmm = self._speaker if not beside else None
        self._network = gmm.scores() if gmm else online_network(recognizer)

    @property
    def heard_sound(self) -> bool:
        """Whether there may have been sound in the segment, and not only background."""
        return self._kinds[0].cmvn.heard_sound

    def accept(self, wave_S: np.ndarray) -> np.ndarray:
        """Take the next samples; return the scores (T, P) that later samples cannot change, T often 0."""
        return self._network.accept(self._side_by_side([kind.accept(wave_S) for kind in self._kinds]))

    def finish(self, wave_S: np.ndarray) -> Iterator[np.ndarray]:
        """Take the last samples; yield the remaining scores, in two parts, between which a segment may end."""
        last = [np.concatenate([kind.accept(wave_S), kind.finish()]) for kind in self._kinds]
        yield self._network.accept(self._side_by_side(last, ended=True))
        yield self._network.finish()

    def end_segment(self, units: tuple[str, ...], aligned: Alignment | None, frames: int) -> TrainedModel | None:
        """Begin the next segment; its recogniser if the model adapts to speakers, which learns from the last segment.

        In that one, of this number of frames, `units` were said: words, or pieces of words.
        """
        for kind in self._kinds:
            kind.cmvn.restart(speech=bool(units))
        self._network.restart()
        if self._speaker is None:
            return None
        if self._adapted and self._speaker.learns:  # the alignment is of the network's HMM
            aligned = self._speaker.aligned(units, frames) if units else None
        self.recognizer = self._speaker.after(aligned, frames)
        return self.recognizer

    def _side_by_side(self, found: list[np.ndarray], *, ended: bool = False) -> np.ndarray:
        """The frames that all kinds of features have, (T, F)."""
        if self._adapted:
            found[-1] = self._adapted.accept(found[-1])
            found[-1] = np.concatenate([found[-1], self._adapted.finish()]) if ended else found[-1]
        if len(found) == 1:
            return found[0]
        pairs = zip(self._waiting, found, strict=True)
        parts = [new if before is None else np.concatenate([before, new]) for before, new in pairs]
        count = min(map(len, parts))
        self._waiting = [part[count:] for part in parts]
        return np.concatenate([part[:count] for part in parts], 1)


class _Extraction:
    """One kind of features of a recording in progress, normalised by what has been heard so far."""

    def __init__(self, config: FeatureConfig, rate_hz: int) -> None:
        self.cmvn = OnlineCmvn(config)
        self._features = OnlineFeatures(config, rate_hz, self.cmvn)

    def accept(self, wave_S: np.ndarray) -> np.ndarray:
        feats_TF: np.ndarray = self._features.accept(torch.from_numpy(wave_S)).numpy()
        return feats_TF

    def finish(self) -> np.ndarray:
        feats_TF: np.ndarray = self._features.finish().numpy()
        return feats_TF


def _check_rates(network: TrainedModel, gmm: TrainedModel) -> None:
    rates = [each.features.sample_frequency for each in (network, gmm)]
    if rates[0] != rates[1]:
        raise MismatchError(
            f"{network.directory}: reads audio at {rates[0]} Hz, and the model that adapts to speakers beside it at"
            f" {rates[1]} Hz, so they cannot process a stream; transcribe a finished recording without --stream"
        )


class OnlineSpeaker:
    """The speaker of a stream: adapts frames with the transform that is known so far, and learns from each segment.

    If it is not said who speaks, a segment that the twin fits better is taken for another speaker's: what was learned
    before is forgotten.
    """

    def __init__(self, model: SpeakerModel, name: str | None, known: KnownSpeakers | None) -> None:
        self._model, self._name, self._forgets = model, name or "speaker", name is None
        self.learns = model.adapted.passes > 1
        self._known = known if known and name and self.learns else KnownSpeakers()
        self._frames: list[np.ndarray] = []  # projected, (T, D), of the segment, and of the next where a network waits
        self.transform = self._known.transforms.get(self._name)
        self.recognizer = model.recognizer_of(self.transform)

    def frames(self) -> OnlineNetwork:
        """Adapted frames (T, D) from those of the GMMs' features as they arrive."""
        context = self._model.projection.context
        return OnlineNetwork.of_windows(self._adapted_inside, context, context, 1, self._model.projection.dim)

    def scores(self) -> OnlineNetwork:
        """The scores of the GMMs from their features as they arrive."""
        context, pdfs = self._model.projection.context, self.recognizer.outputs.num_pdfs
        return OnlineNetwork.of_windows(
            lambda feats_TF: self._gmm.loglikes(self._adapted_inside(feats_TF)), context, context, 1, pdfs
        )

    def aligned(self, units: tuple[str, ...], frames: int) -> Alignment | None:
        """The words of a segment aligned by the GMMs; None if they cannot be."""
        hmm, name = self._model.recognizer.hmm, "segment"
        feats_TD = self._adapted(np.concatenate(self._frames)[:frames])
        try:
            share = WorkerShare({name: hmm.lexicon.known(units)}, {name: feats_TD})
        except Speech3Error:  # a word that is spelled, and the lexicon has no `<unk>`
            return None
        scored = score_one(share, name, hmm, GivenScores(self._gmm.loglikes(feats_TD), 1, pseudo_likelihoods=False))
        found = scored if isinstance(scored, str) else search_one(scored, hmm, (BEAM, RETRY_BEAM), ALIGNMENT_SCALE)
        return None if isinstance(found, str) else found

    def after(self, aligned: Alignment | None, frames: int) -> TrainedModel:
        """The recogniser of the next segment; `aligned`: what was said in this one, None: nothing."""
        feats_TD = np.concatenate(self._frames) if self._frames else np.empty((0, self._model.projection.dim))
        self._frames = [feats_TD[frames:]]
        if aligned is None or not self.learns:
            return self.recognizer
        hmm, gmm, twin = self._model.recognizer.hmm, self._model.adapted.gmm, self._model.twin
        feats_TD = feats_TD[: aligned.num_frames]
        if self.transform is not None and self._forgets:
            gain, _ = likelihood_gain(aligned, hmm, gmm, twin, feats_TD, self.transform)
            if gain < 0:
                self._known.forget(self._name)
        stats = zero_fmllr_stats(feats_TD.shape[1])
        by = twin if self.transform is None else None
        accumulate_speech(stats, aligned, hmm, gmm, feats_TD, self._adapted(feats_TD), by)
        self._known.add({self._name: stats}, {})
        total = {self._name: self._known.stats[self._name]}
        self._known.add({}, self._model.estimated(total, self._known.transforms).transforms)
        self.transform = self._known.transforms.get(self._name)
        self.recognizer = self._model.recognizer_of(self.transform)
        return self.recognizer

    @property
    def _gmm(self) -> Scorer:
        return self._model.twin if self.transform is None else self._model.adapted.gmm

    def _adapted(self, feats_TD: np.ndarray) -> np.ndarray:
        return feats_TD if self.transform is None else applied(self.transform, feats_TD)

    def _adapted_inside(self, feats_TF: np.ndarray) -> np.ndarray:
        self._frames.append(self._model.projection.inside(feats_TF))
        return self._adapted(self._frames[-1])


@dataclass
class GivenScores:
    """Precomputed scores of one utterance as a `Scorer` for that utterance."""

    scores_TP: np.ndarray
    subsampling: int
    pseudo_likelihoods: bool

    def loglikes(self, feats_TD: np.ndarray, pdfs: np.ndarray | None = None) -> np.ndarray:
        return self.scores_TP if pdfs is None else self.scores_TP[:, pdfs]


class OnlineMean:
    """The mean of the scores of several networks without states, for features as they arrive (see `MeanScorer`)."""

    def __init__(self, members: list[OnlineNetwork], columns: tuple[slice, ...]) -> None:
        self._members, self._columns = members, columns
        self._early: list[np.ndarray | None] = [None] * len(members)

    def accept(self, feats_TF: np.ndarray) -> np.ndarray:
        parts = zip(self._members, self._columns, strict=True)
        return self._mean([member.accept(feats_TF[:, columns]) for member, columns in parts])

    def finish(self) -> np.ndarray:
        return self._mean([member.finish() for member in self._members])

    def restart(self) -> None:
        """Begin a new utterance at the next output; there is no state to forget."""

    def _mean(self, found: list[np.ndarray]) -> np.ndarray:
        """The mean (T, P) of the outputs that all networks have; those that are early wait."""
        pairs = zip(self._early, found, strict=True)
        scores = [new if before is None else np.concatenate([before, new]) for before, new in pairs]
        count = min(map(len, scores))
        self._early = [each[count:] for each in scores]
        mean_TP: np.ndarray = np.stack([each[:count] for each in scores]).mean(0, dtype=np.float32)
        return mean_TP


def online_network(recognizer: TrainedModel) -> OnlineNetwork | OnlineMean:
    """A scorer of features as they arrive, equal to `TrainedModel.scores`; a bidirectional model is refused."""
    if isinstance(recognizer.scorer, MeanScorer):
        members = [_online(recognizer, scorer) for scorer in recognizer.scorer.scorers]
        if not all(member.is_stateless for member in members):
            raise MismatchError(
                f"{recognizer.directory}: scores are the mean of those of several networks with states, which cannot"
                " process a stream; use one of them"
            )
        return OnlineMean(members, recognizer.scorer.columns)
    return _online(recognizer, recognizer.scorer)


def _online(recognizer: TrainedModel, scorer: Scorer) -> OnlineNetwork:
    pdfs = recognizer.outputs.num_pdfs
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
        return OnlineNetwork.of_windows(scorer.score_inside, context, context, 1, pdfs)
    return OnlineNetwork.of_windows(scorer.loglikes, 0, 0, 1, pdfs)


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

        return OnlineNetwork(steps, network.states, left, right, network.subsampling, network.delay, pdfs)

    @torch.no_grad()
    def score_inside(feats_TF: np.ndarray) -> np.ndarray:
        return scorer.of_logits(network.score_inside(torch.from_numpy(feats_TF)))

    return OnlineNetwork.of_windows(score_inside, left, right, network.subsampling, pdfs)


def _of_onnx(network: OnnxNetwork, pdfs: int) -> OnlineNetwork:
    left, right, step = network.about["left_context"], network.about["right_context"], network.subsampling
    if network.about["recurrent"]:

        def steps(feats_TF: np.ndarray, states: Any) -> tuple[np.ndarray, Any]:
            return network.steps(feats_TF, states, (len(feats_TF) - left - right) // step)

        return OnlineNetwork(steps, network.states, left, right, step, network.about["delay"], pdfs)
    before = -(-left // step)  # in outputs, rounded up so that the first frame given begins an output

    def score_inside(feats_TF: np.ndarray) -> np.ndarray:
        outputs = (len(feats_TF) - before * step - right) // step
        return network.windows(feats_TF)[before : before + outputs]

    return OnlineNetwork.of_windows(score_inside, before * step, right, step, pdfs)
