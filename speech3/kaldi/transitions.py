"""Kaldi's transition model, which defines transition-ids: the first object of a `final.mdl` (hmm/transition-model).

A transition-state is a tuple (phone, HMM state, forward pdf, self-loop pdf); the transition-ids number the arcs out of
all transition-states, from 1. The topology defines the arcs. Whatever follows (GMMs, a network) is not read.

Axes: K transition-ids, entry 0 unused.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from speech3.hmm.topology import THREE_STATES
from speech3.io.kaldi_object import KaldiObject, opened_object

NO_PDF = -1


@dataclass(frozen=True)
class TopologyState:
    """One state of a phone: pdf classes (`NO_PDF`: non-emitting) and arcs (target state, initial probability)."""

    forward_class: int
    loop_class: int
    arcs: tuple[tuple[int, float], ...]


Topology = dict[int, tuple[TopologyState, ...]]  # by phone


@dataclass(frozen=True, eq=False)
class TransitionModel:
    """Kaldi's transition model.

    Attributes
    ----------
    tuples
        (transition-states, 4) int32: phone, HMM state, forward pdf, self-loop pdf.
    log_prob_K
        float64 log probability of each transition-id.
    """

    topology: Topology
    tuples: np.ndarray
    log_prob_K: np.ndarray

    @property
    def num_pdfs(self) -> int:
        """One more than the largest pdf."""
        return int(self.tuples[:, 2:].max()) + 1

    @cached_property
    def tuple_K(self) -> np.ndarray:
        """int32: the transition-state (a row of `tuples`) of each transition-id; -1 for 0."""
        return np.array([-1] + [row for row, arcs in enumerate(self._arcs()) for _ in arcs], np.int32)

    @cached_property
    def target_K(self) -> np.ndarray:
        """int32: the HMM state that each transition-id leads to."""
        return np.array([-1] + [target for arcs in self._arcs() for target, _ in arcs], np.int32)

    @cached_property
    def self_loop_K(self) -> np.ndarray:
        """bool: is the transition-id a self-loop?"""
        return (self.tuple_K >= 0) & (self.tuples[self.tuple_K, 1] == self.target_K)

    @cached_property
    def pdf_K(self) -> np.ndarray:
        """int32: the pdf of each transition-id; -1 for 0."""
        pdf_K = np.where(self.self_loop_K, self.tuples[self.tuple_K, 3], self.tuples[self.tuple_K, 2])
        pdf_K[0] = NO_PDF
        return pdf_K.astype(np.int32)

    def _arcs(self) -> list[tuple[tuple[int, float], ...]]:
        return [self.topology[phone][state].arcs for phone, state in self.tuples[:, :2].tolist()]


def left_to_right(states: tuple[TopologyState, ...]) -> bool:
    """Is this `hmm.topology.THREE_STATES`: as many states, each with its pdf, a self-loop and an arc to the next?"""
    emitting = states[:-1]
    return len(emitting) == THREE_STATES.states and all(
        state.forward_class == state.loop_class == number and [to for to, _ in state.arcs] == [number, number + 1]
        for number, state in enumerate(emitting)
    )


def read_transition_model(path: Path | str) -> TransitionModel:
    """Read the transition model of a `final.mdl` of GMMs or a network, binary or text.

    Raises
    ------
    Speech3Error
        The file is missing, is not a Kaldi model, or is truncated.
    """
    with opened_object(path, "a Kaldi model", "give the final.mdl that made the alignment") as stream:
        stream.expect("<TransitionModel>")
        topology = _read_topology(stream)
        width = 4 if stream.expect("<Triples>", "<Tuples>") == "<Tuples>" else 3
        rows = [[stream.integer() for _ in range(width)] for _ in range(stream.integer())]
        stream.expect("</Triples>", "</Tuples>")
        stream.expect("<LogProbs>")
        log_prob_K = stream.vector()
        stream.expect("</LogProbs>")
        tuples = np.array([[*row, row[2]] if width == 3 else row for row in rows], np.int32).reshape(-1, 4)
        _check(topology, tuples)
        model = TransitionModel(topology, tuples, log_prob_K)
        if len(model.tuple_K) != len(log_prob_K):
            raise ValueError(f"{len(model.tuple_K) - 1} transitions, but {len(log_prob_K) - 1} probabilities")
    return model


def _check(topology: Topology, tuples: np.ndarray) -> None:
    if not len(tuples):
        raise ValueError("it has no transition-states")
    for phone, state, forward, loop in tuples.tolist():
        if phone not in topology or not 0 <= state < len(topology[phone]) or min(forward, loop) < 0:
            raise ValueError(f"a transition-state of phone {phone}, state {state}, which its topology lacks")


def _read_topology(stream: KaldiObject) -> Topology:
    stream.expect("<Topology>")
    return _binary_topology(stream) if stream.binary else _text_topology(stream)


def _binary_topology(stream: KaldiObject) -> Topology:
    phones, entry_of = stream.integers(), stream.integers()
    count = stream.integer()
    two_classes = count == -1  # chain models have separate forward and self-loop pdfs
    entries = []
    for _ in range(stream.integer() if two_classes else count):
        states = []
        for _ in range(stream.integer()):
            forward = stream.integer()
            loop = stream.integer() if two_classes else forward
            arcs = tuple((stream.integer(), stream.real()) for _ in range(stream.integer()))
            states.append(TopologyState(forward, loop, arcs))
        entries.append(tuple(states))
    stream.expect("</Topology>")
    if any(not 0 < phone < len(entry_of) or not 0 <= entry_of[phone] < len(entries) for phone in phones):
        raise ValueError("a phone without a topology")
    return {phone: entries[entry_of[phone]] for phone in phones}


def _text_topology(stream: KaldiObject) -> Topology:
    topology: Topology = {}
    while stream.expect("<TopologyEntry>", "</Topology>") == "<TopologyEntry>":
        stream.expect("<ForPhones>")
        phones = []
        while (word := stream.token()) != "</ForPhones>":
            phones.append(int(word))
        states = []
        while stream.expect("<State>", "</TopologyEntry>") == "<State>":
            states.append(_text_state(stream))
        topology |= dict.fromkeys(phones, tuple(states))
    return topology


def _text_state(stream: KaldiObject) -> TopologyState:
    stream.integer()
    forward = loop = NO_PDF
    arcs = []
    while True:
        match stream.expect("<PdfClass>", "<ForwardPdfClass>", "<SelfLoopPdfClass>", "<Transition>", "</State>"):
            case "<PdfClass>":
                forward = loop = stream.integer()
            case "<ForwardPdfClass>":
                forward = stream.integer()
            case "<SelfLoopPdfClass>":
                loop = stream.integer()
            case "<Transition>":
                arcs.append((stream.integer(), stream.real()))
            case _:
                return TopologyState(forward, loop, tuple(arcs))


def topology_text(topology: Topology) -> str:
    """A topology in Kaldi's text form, as in ``lang/topo``."""
    phones_of: dict[tuple[TopologyState, ...], list[int]] = {}
    for phone, states in sorted(topology.items()):
        phones_of.setdefault(states, []).append(phone)
    lines = ["<Topology>"]
    for states, phones in phones_of.items():
        lines += ["<TopologyEntry>", "<ForPhones>", " ".join(map(str, phones)), "</ForPhones>"]
        for number, state in enumerate(states):
            classes = f"<PdfClass> {state.forward_class} " if state.forward_class != NO_PDF else ""
            if state.forward_class != state.loop_class:
                classes = f"<ForwardPdfClass> {state.forward_class} <SelfLoopPdfClass> {state.loop_class} "
            arcs = "".join(f"<Transition> {to} {prob:.7g} " for to, prob in state.arcs)
            lines.append(f"<State> {number} {classes}{arcs}</State>")
        lines.append("</TopologyEntry>")
    return "\n".join([*lines, "</Topology>"]) + "\n"


def transition_model_text(model: TransitionModel) -> str:
    """A model in Kaldi's text form; rows have a fourth column if a state's self-loop pdf is not its forward pdf."""
    two_classes = any(state.forward_class != state.loop_class for each in model.topology.values() for state in each)
    name, width = ("Tuples", 4) if two_classes else ("Triples", 3)
    rows = "".join(" ".join(map(str, row[:width])) + " \n" for row in model.tuples.tolist())
    probs = " ".join(f"{value:.7g}" for value in model.log_prob_K)
    return (
        f"<TransitionModel> \n{topology_text(model.topology)}<{name}> {len(model.tuples)} \n{rows}</{name}> \n"
        f"<LogProbs> \n [ {probs} ]\n</LogProbs> \n</TransitionModel> \n"
    )
