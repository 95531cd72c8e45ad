"""The decoding graph H o C o L o G as one transducer from pdfs to words (Mohri et al. 2002; Kaldi's mkgraph.sh).

Input labels are pdf + 1. All probabilities of the HMMs, the lexicon and the language model are arc costs: an arc that
reads pdf p costs -c log(1 - self_loop[p]) beside the rest, for p is left once, and its self-loop -c log(self_loop[p]),
where c is the self-loop scale. The transitions of phones of a first and a loop pdf cost nothing.

While the parts are composed there are no self-loops, and input labels are unit + 1: a unit is what is read on entering
a state, and what may be read again and again there. With three states a phone that is one pdf, with a first and a loop
pdf it is the two, and a phone is one unit.

Weights are the tropical semiring's throughout, so the best path through the graph is the best path through its parts.

Axes: S states, A arcs, P pdfs, U units, W context windows.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from speech3.decoding.fst import ARC, Fst, FstBuilder, from_kaldifst, read_fst, to_kaldifst, write_fst
from speech3.decoding.grammar import Grammar, from_arpa
from speech3.decoding.lexicon_fst import lexicon_fst
from speech3.decoding.pieces import are_pieces
from speech3.decoding.search_graph import SearchGraph, search_graph
from speech3.errors import Speech3Error
from speech3.hmm.model import Hmm
from speech3.hmm.topology import FIRST_AND_LOOP
from speech3.io.atomic import read_json, write_json, write_text
from speech3.io.progress import say
from speech3.lm.arpa import ArpaLm

GRAMMAR = "G.fst"  # of a graph's directory, beside HCLG.fst
_SLOW_S = 5.0  # a graph that takes longer says how far it is


@dataclass(frozen=True, eq=False)
class Graph:
    """A decoding graph in memory.

    Attributes
    ----------
    fst
        Input labels pdf + 1, output labels indices in `words`.
    words
        The symbol table, `<eps>` first.
    num_pdfs
        Columns that the scores must have.
    about
        What `graph.json` says.
    """

    fst: Fst
    words: tuple[str, ...]
    num_pdfs: int
    about: dict[str, Any]
    path: Path

    @cached_property
    def arranged(self) -> SearchGraph:
        """As the search walks it; an error if it cannot be searched."""
        return search_graph(self.fst, self.num_pdfs, self.path)

    @cached_property
    def writes_pieces(self) -> bool:
        """Are its words pieces of words?"""
        return are_pieces(self.words)

    @cached_property
    def label_of(self) -> dict[str, int]:
        """The output label of each word."""
        return {word: label for label, word in enumerate(self.words)}


@dataclass(frozen=True, eq=False)
class Units:
    """What the arcs of a graph read before it has self-loops.

    Attributes
    ----------
    enter_U, loop_U
        int: the pdf of entering a state, and that of staying in it.
    leave_U, stay_U
        float64 costs of leaving, once for each entering, and of staying.
    """

    enter_U: np.ndarray
    loop_U: np.ndarray
    leave_U: np.ndarray
    stay_U: np.ndarray


def build_graph(hmm: Hmm, lm: ArpaLm | Grammar, out: Path | str, self_loop_scale: float) -> dict[str, Any]:
    """Build the graph into ``out/HCLG.fst``, ``out/words.txt`` and ``out/graph.json``; return what the last one says.

    ``out/G.fst`` is the language model as the graph has it, for `speech3 rescore`, which takes its costs out again.

    Parameters
    ----------
    lm
        An n-gram model, or a `Grammar`. Words of an n-gram model that the lexicon lacks are left out and listed in
        ``graph.json`` under ``dropped``.
    self_loop_scale
        Kaldi's --self-loop-scale; not used where transitions have no probabilities (and then None in
        ``graph.json``). There is one transition a frame, as there is one acoustic score, which is scaled down
        because frames are not independent; beside that, unscaled transitions drown it in connected speech, and words
        are deleted.

    Raises
    ------
    Speech3Error
        The model and the lexicon share no word, or nothing can be said.
    """
    started = time.monotonic()
    grammar = lm if isinstance(lm, Grammar) else from_arpa(lm, hmm.lexicon)
    out = Path(out)
    windows, cascade = _clg(hmm, grammar)
    if time.monotonic() - started > _SLOW_S:
        say(f"  {out.name}: C o L o G is done after {time.monotonic() - started:.0f} s, about half of the way")
    h, label_W, units = _h(hmm, windows, self_loop_scale)
    fst = add_self_loops(_hclg(h, label_W, len(units.enter_U), cascade), units)
    if fst.start < 0 or not len(fst.arcs_A) or np.isinf(fst.final_S).all():
        raise Speech3Error(f"{grammar.source}: the graph came out empty: this language model accepts no sentence")
    about = {
        "num_pdfs": hmm.num_pdfs, "states": len(fst.final_S), "arcs": len(fst.arcs_A), "words": len(grammar.words) - 2,
        "lm": grammar.source, "self_loop_scale": self_loop_scale if hmm.topology.weighted else None,
        "dropped": list(grammar.dropped), "seconds": round(time.monotonic() - started, 1),
    }  # fmt: skip
    (out / "graph.json").unlink(missing_ok=True)  # written last: its presence says that the rest belongs together
    write_text(out / "words.txt", "".join(f"{word} {label}\n" for label, word in enumerate(grammar.words)))
    write_fst(fst, out / "HCLG.fst")
    write_fst(grammar.fst, out / GRAMMAR)
    write_json(out / "graph.json", about)
    return about


def load_graph(path: Path | str) -> Graph:
    """Read what `build_graph` wrote and check that it can be searched.

    Raises
    ------
    Speech3Error
        A file is missing or damaged, the graph is empty or has no final state, or its labels exceed the pdfs or words.
    """
    path = Path(path)
    about = read_json(path / "graph.json")
    if not isinstance(about, dict) or not isinstance(about.get("num_pdfs"), int):
        raise Speech3Error(f"{path / 'graph.json'}: keys of another version of speech3; build the graph again")
    fst = read_fst(path / "HCLG.fst")
    try:
        words = tuple(line.split()[0] for line in (path / "words.txt").read_text(encoding="utf-8").splitlines())
    except (OSError, IndexError, UnicodeDecodeError) as error:
        raise Speech3Error(f"{path}/words.txt: {error}; build the graph again") from error
    check_graph(fst, about["num_pdfs"], len(words), path)
    return Graph(fst, words, about["num_pdfs"], about, path)


def check_graph(fst: Fst, num_pdfs: int, num_words: int, path: Path) -> None:
    """Refuse a graph that is empty or whose labels lie outside their ranges."""
    if fst.start < 0 or not len(fst.arcs_A) or np.isinf(fst.final_S).all():
        raise Speech3Error(f"{path}: the graph is empty or has no final state; build it again")
    for side, size in (("ilabel", num_pdfs + 1), ("olabel", num_words)):
        low, high = int(fst.arcs_A[side].min()), int(fst.arcs_A[side].max())
        if low < 0 or high >= size:
            raise Speech3Error(
                f"{path}: {side}s reach from {low} to {high}, but there are {size}; build the graph again"
            )


def _clg(hmm: Hmm, grammar: Grammar) -> tuple[list[list[int]], Any]:
    """C o L o G as a kaldifst transducer whose input labels are indices in the returned list of context windows."""
    import kaldifst

    lexicon, disambiguation = lexicon_fst(hmm.lexicon, grammar.words, hmm.tree.alike)
    left, right = to_kaldifst(lexicon), to_kaldifst(grammar.fst)
    kaldifst.arcsort(left, sort_type="olabel")
    kaldifst.arcsort(right, sort_type="ilabel")
    lg = kaldifst.compose(left, right)
    kaldifst.determinize_star(lg)
    kaldifst.minimize_encoded(lg)
    width = hmm.tree.width
    kaldifst.arcsort(lg, sort_type="ilabel")
    clg, windows = kaldifst.compose_context(disambiguation, width, width // 2, lg)
    return windows, clg


def _hclg(h: Fst, label_W: np.ndarray, units: int, clg: Any) -> Fst:
    """H o C o L o G without self-loops: determinised, disambiguation symbols removed, minimised."""
    import kaldifst

    arrays = from_kaldifst(clg)
    arcs_A = arrays.arcs_A.copy()
    arcs_A["ilabel"] = label_W[arcs_A["ilabel"]]
    right, left = to_kaldifst(Fst(arrays.start, arrays.final_S, arrays.source_A, arcs_A)), to_kaldifst(h)
    kaldifst.arcsort(left, sort_type="olabel")
    kaldifst.arcsort(right, sort_type="ilabel")
    hclg = kaldifst.compose(left, right)
    del left, right
    kaldifst.determinize_star(hclg)
    arrays = from_kaldifst(hclg)
    arcs_A = arrays.arcs_A.copy()
    arcs_A["ilabel"][arcs_A["ilabel"] > units] = 0
    hclg = to_kaldifst(Fst(arrays.start, arrays.final_S, arrays.source_A, arcs_A))
    kaldifst.minimize_encoded(hclg)
    kaldifst.connect(hclg)
    return from_kaldifst(hclg)


def _h(hmm: Hmm, windows: list[list[int]], scale: float) -> tuple[Fst, np.ndarray, Units]:
    """H without self-loops, the label it writes for each context window, and the units it reads.

    Windows with the same pdfs share a label (Kaldi's make-ilabel-transducer), which makes the graph smaller.
    Disambiguation symbols pass through, as labels above the units.
    """
    label_W = np.zeros(len(windows), np.int32)
    phones: dict[tuple[int, ...], int] = {}
    passing = []
    for number, window in enumerate(windows):
        if len(window) == 1 and window[0] <= 0:  # [0]: context-fst.cc's #-1; [-d]: disambiguation symbol d
            passing.append(number)
        elif window:
            left, phone, right = {1: (0, *window, 0), 2: (*window, 0), 3: tuple(window)}[len(window)]
            label_W[number] = phones.setdefault(hmm.pdfs(left, phone, right), len(phones) + 1)
    label_W[passing] = len(phones) + 1 + np.arange(len(passing))
    units, units_of = _units(hmm, list(phones), scale)
    builder = FstBuilder()
    hub = builder.state(final=0.0)
    for label, read in zip(phones.values(), units_of, strict=True):
        builder.chain(hub, hub, [unit + 1 for unit in read], label, float(units.leave_U[read].sum()))
    for place, number in enumerate(passing):
        builder.arc(hub, hub, len(units.enter_U) + 1 + place, int(label_W[number]))
    return builder.fst(), label_W, units


def _units(hmm: Hmm, phones: Sequence[tuple[int, ...]], scale: float) -> tuple[Units, list[list[int]]]:
    """The units of some phones, which are given by the pdfs of their states, and those of each phone."""
    if hmm.topology == FIRST_AND_LOOP:
        first_U, loop_U = np.array(phones, np.int32).reshape(-1, 2).T
        free_U = np.zeros(len(phones))
        return Units(first_U, loop_U, free_U, free_U), [[unit] for unit in range(len(phones))]
    pdf_U = np.arange(hmm.num_pdfs, dtype=np.int32)
    leave_U, stay_U = -scale * np.log1p(-hmm.self_loop), -scale * np.log(hmm.self_loop)
    return Units(pdf_U, pdf_U, leave_U, stay_U), [list(pdfs) for pdfs in phones]


def add_self_loops(fst: Fst, units: Units) -> Fst:
    """Let every state that was entered by reading a unit stay there, and turn units into pdfs.

    A state entered in several ways (by units of different loops, or by epsilon) cannot have a loop of its own: each
    loop gets a state before it, and an epsilon arc onwards (Kaldi's MakePrecedingInputSymbolsSame).
    """
    states, arcs_A = len(fst.final_S), fst.arcs_A.copy()
    loop_L, enter_L = (np.concatenate([[0], pdf_U + 1]) for pdf_U in (units.loop_U, units.enter_U))
    span = int(loop_L.max()) + 1
    stay_P = np.zeros(span)
    stay_P[loop_L[1:]] = units.stay_U
    key_A = arcs_A["nextstate"].astype(np.int64) * span + loop_L[arcs_A["ilabel"]]
    key_K, which_A = np.unique(key_A, return_inverse=True)
    state_K, label_K = key_K // span, key_K % span
    ways_S = np.bincount(state_K, minlength=states)
    if fst.start >= 0:
        ways_S[fst.start] += 1
    crowded_K = (ways_S[state_K] > 1) & (label_K > 0)
    place_K = state_K.copy()
    place_K[crowded_K] = states + np.arange(int(crowded_K.sum()))
    arcs_A["nextstate"], arcs_A["ilabel"] = place_K[which_A], enter_L[arcs_A["ilabel"]]
    emitting_K = label_K > 0
    loops = _arcs(label_K[emitting_K], stay_P[label_K[emitting_K]], place_K[emitting_K])
    onward = _arcs(0, 0.0, state_K[crowded_K])
    return Fst(
        fst.start,
        np.concatenate([fst.final_S, np.full(int(crowded_K.sum()), np.inf, np.float32)]),
        np.concatenate([fst.source_A, place_K[emitting_K], place_K[crowded_K]]).astype(np.int32),
        np.concatenate([arcs_A, loops, onward]),
    )


def _arcs(ilabel: Any, weight: Any, nextstate: np.ndarray) -> np.ndarray:
    arcs_A = np.zeros(len(nextstate), ARC)
    arcs_A["ilabel"], arcs_A["weight"], arcs_A["nextstate"] = ilabel, weight, nextstate
    return arcs_A
