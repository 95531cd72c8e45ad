"""Scores of a recogniser's model, computed online as features arrive.

Axes: T frames or outputs, W context window, F feature bins, P pdfs.
"""

from typing import Any

import numpy as np
import torch

from speech3.decoding.recognizer import NetworkScorer, Recognizer
from speech3.errors import Speech3Error
from speech3.export.onnx_runtime import OnnxNetwork
from speech3.models.base import AcousticModel
from speech3.models.lstm import Lstm
from speech3.models.online import OnlineNetwork, OnlineRecurrent, OnlineWindows


def online_scores(recognizer: Recognizer) -> OnlineNetwork:
    """A scorer that computes the log likelihoods (T, P) of `Recognizer.scores` from features as they arrive.

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
    return OnlineWindows(scorer.loglikes, 0, 0, 1, pdfs)


def _unbounded(recognizer: Recognizer) -> Speech3Error:
    return Speech3Error(
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
