"""The parts into which a long recording is cut, their features, and how their alignments are joined.

Axes: T frames, F features.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import torch

from speech3.alignment.times import FrameClock, Segment
from speech3.config import FeatureConfig
from speech3.features.cmvn import normalise
from speech3.features.deltas import add_deltas
from speech3.features.silence import repeated_frames
from speech3.features.splice import splice

LOCAL_S = 15.0  # least audio for the mean and variance of a part


@dataclass(frozen=True)
class Part:
    """Frames `start` to `end` (exclusive) of an utterance, and the indices of its words spoken there."""

    utterance: str
    start: int
    end: int
    words: tuple[int, ...]

    def times_s(self, clock: FrameClock) -> tuple[float, float]:
        """Start and end of the audio from which its frames are computed, in seconds from the utterance's beginning."""
        return self.start * clock.shift_s, self.end * clock.shift_s + 2 * clock.offset_s


def local_features(feats_TF: np.ndarray, start: int, end: int, config: FeatureConfig) -> np.ndarray:
    """Features of a part of a recording, normalised over the part, and over the audio around it if the part is short.

    Microphone and speaker may change within an hour. Normalising the static features again undoes the normalisation
    over the whole recording; derivatives and spliced frames are computed anew.
    """
    if config.cmvn not in ("utterance", "speaker"):
        return feats_TF[start:end]
    least = round(LOCAL_S * 1000 / config.frame_shift)
    margin = max(0, least - (end - start)) // 2
    left, right = config.left_context, config.right_context
    dim = feats_TF.shape[1] // ((config.deltas + 1) * (left + 1 + right))
    own = left * (config.deltas + 1) * dim  # first column of the frame itself, after the frames spliced before it
    static_TF = torch.from_numpy(feats_TF[:, own : own + dim])
    around = slice(max(0, start - margin), end + margin)
    (normal_TF,) = normalise([static_TF[around]], config, [repeated_frames(static_TF[around])])
    normal_TF = normal_TF[start - around.start :][: end - start]
    return splice(add_deltas(normal_TF, config.deltas, config.delta_window), left, right).numpy()


@dataclass
class PartFeats(Mapping[str, np.ndarray]):
    """Features of utterances and of parts of utterances, computed on access; can be pickled."""

    feats: Mapping[str, np.ndarray]
    parts: Mapping[str, Part]
    config: FeatureConfig
    _last: tuple[str, np.ndarray] | None = field(default=None, repr=False)

    def __getitem__(self, name: str) -> np.ndarray:
        """Matrix (T, F) float32."""
        if name not in self.parts:
            return self.feats[name]
        part = self.parts[name]
        if self._last is None or self._last[0] != part.utterance:
            self._last = (part.utterance, self.feats[part.utterance])  # read once for all its parts
        return local_features(self._last[1], part.start, part.end, self.config)

    def __iter__(self) -> Iterator[str]:
        yield from self.feats
        yield from self.parts

    def __len__(self) -> int:
        return len(self.feats) + len(self.parts)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_last": None}


def joined(
    tracks: Mapping[str, Sequence[Segment]], parts: Mapping[str, Part], clock: FrameClock
) -> dict[str, list[Segment]]:
    """Join the segments of each recording's parts, with times in the recording; other utterances are not changed."""
    whole: dict[str, list[Segment]] = {}
    for name in sorted(
        tracks, key=lambda name: (parts[name].utterance, parts[name].start) if name in parts else (name, 0)
    ):
        part = parts.get(name)
        if part is None:
            whole[name] = list(tracks[name])
            continue
        begin_s, _ = part.times_s(clock)
        moved = [replace(s, start_s=s.start_s + begin_s, end_s=s.end_s + begin_s) for s in tracks[name]]
        whole.setdefault(part.utterance, []).extend(moved)
    return {name: _disjoint(track) for name, track in sorted(whole.items())}


def _disjoint(track: list[Segment]) -> list[Segment]:
    # Neighbouring parts overlap by the few milliseconds by which a frame's window is longer than the shift.
    ends = [min(a.end_s, b.start_s) if a.start_s < b.start_s else a.end_s for a, b in pairwise(track)]
    return [replace(s, end_s=end) for s, end in zip(track, ends, strict=False)] + track[-1:]
