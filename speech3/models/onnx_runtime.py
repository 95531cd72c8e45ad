"""Scores features with a file of `speech3.models.onnx` by onnxruntime, in one thread, in the memory of one chunk.

Axes: T frames, F feature bins, S senones.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from speech3.errors import FormatError, MachineError, MismatchError, MissingError
from speech3.models.base import check_features
from speech3.models.online import spans
from speech3.models.onnx import FORMAT

OnnxStates = dict[str, np.ndarray]  # h and c of each layer, by the names of the graph's inputs


class OnnxNetwork:
    """A network in a file of `speech3 export`, with the interface of `speech3.decode.trained_model.NetworkScorer`.

    `about` is the metadata of the file: ``model`` and ``features`` (configs), ``num_senones``, ``int8``, ``training``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._session = _session(path)
        self.about = _about(self._session, path)

    def __reduce__(self) -> tuple[type["OnnxNetwork"], tuple[Path]]:
        return OnnxNetwork, (self.path,)  # a session cannot be pickled; the other process reads the file again

    @property
    def num_senones(self) -> int:
        return int(self.about["num_senones"])

    @property
    def subsampling(self) -> int:
        return int(self.about["subsampling"])

    @property
    def pseudo_likelihoods(self) -> bool:
        """As in `speech3.decode.trained_model.NetworkScorer`."""
        return self.about.get("objective") == "lfmmi"

    def loglikes(self, feats_TD: np.ndarray, pdfs: np.ndarray | None = None) -> np.ndarray:
        """Log posteriors minus log priors, or LF-MMI outputs, (T, S) float32 of one utterance; or only columns `pdfs`.

        With `subsampling` there are ceil(T / subsampling) rows.
        """
        check_features(feats_TD.shape, self.about["feat_dim"])
        feats_TF = np.ascontiguousarray(feats_TD, np.float32)
        loglikes_TS = self._recurrent(feats_TF) if self.about["recurrent"] else self._windows(feats_TF)
        return loglikes_TS if pdfs is None else loglikes_TS[:, pdfs]

    def _windows(self, feats_TF: np.ndarray) -> np.ndarray:
        step = self.subsampling
        outputs = -(-len(feats_TF) // step)
        loglikes_TS = np.empty((outputs, self.num_senones), np.float32)
        chunk, left, right = (self.about[key] for key in ("chunk_frames", "left_context", "right_context"))
        at_a_time = max(1, chunk // step)
        for start in range(0, outputs, at_a_time):
            stop = min(start + at_a_time, outputs)
            first = max(0, start - -(-left // step))
            found_TS = self.windows(feats_TF[first * step : stop * step + right])
            loglikes_TS[start:stop] = found_TS[start - first :][: stop - start]
        return loglikes_TS

    def windows(self, feats_TF: np.ndarray) -> np.ndarray:
        """Scores of some frames of a network that is not recurrent, edge frames repeated beyond their ends."""
        found_TS: np.ndarray = self._session.run(None, {"feats": feats_TF})[0]
        return found_TS

    def states(self) -> OnnxStates:
        """The zero states of a recurrent network before the first step of an utterance."""
        inputs = self._session.get_inputs()
        return {each.name: np.zeros(each.shape, np.float32) for each in inputs if each.name[0] in "hc"}

    def steps(self, feats_KF: np.ndarray, states: OnnxStates, own: int) -> tuple[np.ndarray, OnnxStates]:
        """Scores of consecutive steps of a recurrent network from frames with their context, and the states after `own`
        of them.
        """
        more = {"own": np.array(own)} if "own" in {each.name for each in self._session.get_inputs()} else {}
        names = ["loglikes", *(f"{name}_after" for name in states)]
        found_TS, *after = self._session.run(names, {"feats": feats_KF, **states, **more})
        return found_TS, dict(zip(states, after, strict=True))

    def _recurrent(self, feats_TF: np.ndarray) -> np.ndarray:
        """Like `speech3.models.lstm.Lstm.score`, with the graph."""
        outputs = -(-len(feats_TF) // self.subsampling)
        loglikes_TS = np.empty((outputs, self.num_senones), np.float32)
        chunk, left, right = (self.about[key] for key in ("chunk_frames", "left_context", "right_context"))
        delay, beyond = self.about["delay"], self.about["beyond"]
        states = self.states()
        for span in spans(outputs, delay=delay, at_a_time=chunk, beyond=beyond):
            first, end = span.start * self.subsampling - left, span.stop * self.subsampling + right
            frames_K = np.arange(first, end).clip(0, len(feats_TF) - 1)
            found_TS, states = self.steps(feats_TF[frames_K], states, span.own)
            loglikes_TS[span.begin : span.end] = found_TS[span.own - (span.end - span.begin) :]
        return loglikes_TS


def _session(path: Path) -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise MachineError(f"{path}: to run ONNX files, pip install speech3[onnx]") from error
    if not path.is_file():
        raise MissingError(f"{path}: no such file")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4  # fatal errors only: errors are raised, too
    try:
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its classes are private and have no common base
        reason = str(error).strip().partition("\n")[0]
        raise FormatError(
            f"{path}: not an ONNX file, or damaged; write it again with speech3 export ({reason})"
        ) from error


def _about(session: Any, path: Path) -> dict[str, Any]:
    try:
        about = json.loads(session.get_modelmeta().custom_metadata_map["speech3"])
        version = about["format"]
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"{path}: not written by speech3 export; pass a file that is") from error
    if version != FORMAT:
        raise MismatchError(f"{path}: of another version of speech3 (format {version}, not {FORMAT}); export it again")
    return dict(about)
