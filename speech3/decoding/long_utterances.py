"""Cut the long utterances of a data directory at pauses, decode the parts, and join the results.

The memory of a search grows with the length of an utterance, and that of an alignment with its square. So utterances of
more than `WHOLE_S` are cut as `transcribe` cuts recordings (`long_recordings`). Shorter ones are decoded as they are,
even if `transcribe` would cut them: their boundaries were chosen when the data directory was made, and so they keep
their names in lattices and N-best lists.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from speech3.alignment.times import Segment
from speech3.corpus import audio
from speech3.corpus.datadir import DataDir, Utterance, segment_name
from speech3.decoding.long_recordings import cut_at_pauses
from speech3.decoding.search import Decoding, Hypothesis
from speech3.errors import Speech3Error
from speech3.io.progress import progress, say

WHOLE_S = 300.0  # an utterance longer than this is cut
_BLOCK_S = 10.0


@dataclass(frozen=True)
class Parts:
    """The parts of each utterance that was cut, in order: their names, and their starts within it, in seconds."""

    begins_s: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def joined(self, decoding: Decoding) -> Decoding:
        """One hypothesis for each utterance; one that contains no speech has no words.

        Parts that failed are left out of their utterance; without any other part, it has no hypothesis.
        """
        if not self.begins_s:
            return decoding
        found = {each.utterance: each for each in decoding.hypotheses}
        for whole, begins_s in self.begins_s.items():
            parts = [found.pop(part) for part in begins_s if part in found]
            if parts or not begins_s:
                found[whole] = _joined(whole, parts)
        return Decoding(tuple(found[key] for key in sorted(found)), decoding.failed)

    def joined_times(self, times: Mapping[str, Sequence[Segment]]) -> Mapping[str, Sequence[Segment]]:
        """The words of each utterance, with times from its start."""
        if not self.begins_s:
            return times
        found = dict(times)
        for whole, begins_s in self.begins_s.items():
            found[whole] = [
                replace(word, start_s=word.start_s + begin_s, end_s=word.end_s + begin_s)
                for part, begin_s in begins_s.items()
                for word in found.pop(part, ())
            ]
        return dict(sorted(found.items()))


def _joined(whole: str, parts: Sequence[Hypothesis]) -> Hypothesis:
    known = [part.confidences for part in parts if part.confidences is not None]
    return Hypothesis(
        whole,
        tuple(chain.from_iterable(part.words for part in parts)),
        tuple(chain.from_iterable(part.units for part in parts)),
        sum(part.cost for part in parts),
        sum(part.acoustic_cost for part in parts),
        all(part.reached_final for part in parts),
        tuple(chain.from_iterable(known)) if len(known) == len(parts) else None,
    )


def cut_long(data: DataDir, longest_s: float = WHOLE_S) -> tuple[DataDir, Parts]:
    """The data directory with its long utterances cut at pauses.

    The parts are named by `segment_name`. An utterance whose audio cannot be read is left as it is: the extraction of
    features will report it.

    Raises
    ------
    Speech3Error
        No utterance contains speech; an utterance already has the name of a part.
    """
    begins_s: dict[str, dict[str, float]] = {}
    utterances = dict(data.utterances)
    shown = progress(data.utterances.values(), len(data.utterances), "lengths")
    for utterance, length_s in [(each, length) for each in shown if (length := _length_s(data, each)) > longest_s]:
        try:
            parts = {part.id: part for part in parts_at_pauses(data, utterance, length_s)}
        except audio.AudioError:
            continue
        del utterances[utterance.id]
        if taken := parts.keys() & data.utterances.keys():
            raise Speech3Error(
                f"{data.path}: {utterance.id} lasts {length_s:.0f} s and is to be cut, but an utterance already has the"
                f" name of one of its parts, {min(taken)}; remove one of the two"
            )
        begins_s[utterance.id] = {key: part.start_s - utterance.start_s for key, part in parts.items()}
        utterances |= parts
        say(
            f"{utterance.id}: {length_s:.0f} s, cut at pauses into {len(parts)} parts; lattices, N-best lists and"
            f" messages name these {utterance.id}-BEGIN-END"
        )
    if not utterances:
        raise Speech3Error(
            f"{data.path}: no utterance contains speech: they are equally loud throughout; listen to them"
        )
    return replace(data, utterances=dict(sorted(utterances.items()))), Parts(begins_s)


def _length_s(data: DataDir, utterance: Utterance) -> float:
    """The length of an utterance in seconds; 0 if it has no audio that can be read."""
    if utterance.recording not in data.recordings:
        return 0.0
    if utterance.end_s is not None:
        return utterance.end_s - utterance.start_s
    try:
        return audio.info(data.recording(utterance), directory=data.path).duration_s - utterance.start_s
    except Speech3Error:
        return 0.0


def parts_at_pauses(data: DataDir, utterance: Utterance, length_s: float) -> Iterator[Utterance]:
    """The parts of an utterance of this length that contain speech, as `long_recordings.cut_at_pauses` finds them."""
    recording = data.recording(utterance)
    rate_hz = audio.info(recording, directory=data.path).sample_rate_hz
    blocks = audio.read_blocks(
        recording, _BLOCK_S, directory=data.path, start_s=utterance.start_s, end_s=utterance.end_s
    )
    shown = progress(
        cut_at_pauses(blocks, rate_hz), int(length_s), utterance.id, place=lambda cut: (int(cut.begin_s), "")
    )
    for cut in shown:
        end_s = cut.begin_s + len(cut.wave_S) / rate_hz
        yield replace(
            utterance,
            id=segment_name(utterance.id, cut.begin_s, end_s),
            text=None,
            start_s=utterance.start_s + cut.begin_s,
            end_s=utterance.start_s + end_s,
        )
