"""Alignments: the phone and its state in each frame, independent of the model that made them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from speech3.hmm.model import Hmm
from speech3.hmm.topology import THREE_STATES, Topology
from speech3.hmm.transcript import NO_WORD, TranscriptGraph
from speech3.lexicon.lexicon import Lexicon


@dataclass(frozen=True, eq=False)
class Alignment:
    """The alignment of one utterance (T frames, P phone segments).

    Attributes
    ----------
    phones
        (P,) int32, phone numbers.
    words
        (P,) int32: index of the word in the transcript, `NO_WORD` for silence.
    starts
        (P + 1,) int32: first frame of each segment, then T.
    states
        (T,) int8: state within the phone.
    score
        Log probability per frame, as returned by `hmm.viterbi.best_path`.
    """

    phones: np.ndarray
    words: np.ndarray
    starts: np.ndarray
    states: np.ndarray
    score: float

    @property
    def num_frames(self) -> int:
        """Number of frames, T."""
        return len(self.states)

    @cached_property
    def segment(self) -> np.ndarray:
        """(T,) int32: the segment of each frame."""
        return np.repeat(np.arange(len(self.phones), dtype=np.int32), np.diff(self.starts))

    def windows(self) -> np.ndarray:
        """(P, 3) int32: left phone, phone, right phone of each segment; 0 beyond the ends."""
        padded = np.concatenate([[0], self.phones, [0]]).astype(np.int32)
        return np.stack([padded[:-2], padded[1:-1], padded[2:]], axis=1)

    def pdfs(self, hmm: Hmm) -> np.ndarray:
        """(T,) int32: the senone of each frame under the tree of `hmm`."""
        table = np.array([hmm.pdfs(*window) for window in self.windows().tolist()], np.int32)
        return table[self.segment, self.states]


def from_path(graph: TranscriptGraph, path: np.ndarray, score: float) -> Alignment:
    """Convert a path through a transcript's HMM, (T,) states, to an alignment."""
    copy = graph.copy[path]
    first = np.flatnonzero(np.concatenate([[True], copy[1:] != copy[:-1]]))
    starts = np.concatenate([first, [len(path)]]).astype(np.int32)
    at = path[first]
    return Alignment(graph.phone[at], graph.word[at], starts, graph.state[path].astype(np.int8), score)


def evened_out(alignment: Alignment, topology: Topology = THREE_STATES) -> Alignment:
    """Divide the frames of each phone equally among its states."""
    lengths = np.diff(alignment.starts)
    place = np.arange(alignment.num_frames) - np.repeat(alignment.starts[:-1], lengths)
    part_T = alignment.segment * topology.min_frames + place * topology.min_frames // np.repeat(lengths, lengths)
    return replace(alignment, states=topology.states_of_parts(part_T))


def equal_alignment(
    lexicon: Lexicon, words: Sequence[str], num_frames: int, topology: Topology = THREE_STATES
) -> Alignment | None:
    """Divide the frames equally among silence, the first pronunciation of each word, and silence (a flat start).

    Returns None if there are fewer frames than these phones need.
    """
    phones, index = [lexicon.silence], [NO_WORD]
    for number, word in enumerate(words):
        spoken = lexicon.by_word[word][0].phones
        phones += [lexicon.phone_ids[phone] for phone in spoken]
        index += [number] * len(spoken)
    phones, index = [*phones, lexicon.silence], [*index, NO_WORD]
    parts = len(phones) * topology.min_frames
    if num_frames < parts:
        return None
    edges = np.linspace(0, num_frames, parts + 1).round().astype(np.int32)
    states = topology.states_of_parts(np.repeat(np.arange(parts), np.diff(edges)))
    starts = edges[:: topology.min_frames]
    return Alignment(np.array(phones, np.int32), np.array(index, np.int32), starts, states, 0.0)
