"""The decoding graph H o C o L o G as one transducer from pdfs to words (Mohri et al. 2002; Kaldi's mkgraph.sh).

Input labels are pdf + 1. An arc that reads pdf p has the additional cost -c log(1 - self_loop[p]), because p is left
once, and its self-loop costs -c log(self_loop[p]), where c is the self-loop scale. Transitions of phones with a first
and a loop pdf cost nothing. All weights are in the tropical semiring.

H is not composed: each phone arc of C o L o G is replaced by the states of its phone, first without self-loops, with
input labels unit + 1. A unit is the pdf read on entering a state and the pdf of its self-loop: with three states per
phone, one pdf, and a phone is three units; with a first and a loop pdf, these two, and a phone is one unit.

Axes: S states, A arcs, P pdfs, U units, W context windows, L ways to read a phone (labels), N units of a phone.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from speech3.decode.beam_search import SearchGraph, search_graph
from speech3.decode.grammar import (
    GRAPH_LEXICON,
    LETTERS,
    UNSEEN_WEIGHT,
    Grammar,
    Speller,
    Spelling,
    filler_costs,
    from_arpa,
    lexicon_fst,
    mark_of,
    phone_costs,
    read_speller,
    with_filler,
    with_silence,
)
from speech3.decode.hot_words import Phrases
from speech3.errors import DataError, MismatchError, MissingError
from speech3.hmm import FIRST_AND_LOOP, Hmm, with_pronunciations
from speech3.io import (
    ARC,
    GRAMMAR_FILE,
    GRAPH_FILE,
    HCLG_FILE,
    LM_FILE,
    Fst,
    from_kaldifst,
    read_fst,
    to_kaldifst,
    write_fst,
)
from speech3.language import G2P, ArpaLm, write_arpa
from speech3.runtime import read_json, read_utf8, say, to_one_form, write_json, write_text

_GRAIN = 8192  # costs are compared after rounding to multiples of 1 / _GRAIN
_SEEDS = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F))
_ODD = np.uint64(0xFF51AFD7ED558CCD)  # MurmurHash3's finaliser
_SLOW_S = 5.0  # a build that takes longer reports its progress
_SLOW_ARCS = 50_000  # arcs of G above which building the graph takes seconds


@dataclass(frozen=True, eq=False)
class Units:
    """The units that input labels stand for before self-loops are added."""

    # enter_U, loop_U: int pdfs of entering a state and of staying in it
    enter_U: np.ndarray
    loop_U: np.ndarray
    # leave_U, stay_U: float64 costs of leaving, once per entry, and of staying
    leave_U: np.ndarray
    stay_U: np.ndarray


@dataclass(frozen=True, eq=False)
class Labels:
    """The input labels of C o L o G."""

    # int32: label of each context window: 0 for none, 1 to L for phones, above L for disambiguation symbols
    of_W: np.ndarray
    pdfs_LN: np.ndarray  # int32: the pdfs of the phone's states for labels 1 to L, in sorted order


def labels_of(hmm: Hmm, windows: Sequence[Sequence[int]]) -> Labels:
    """Labels for the context windows of kaldifst's `compose_context`; windows with the same pdfs share a label."""
    passing, phones_W3 = [], np.zeros((len(windows), 3), np.int64)
    for number, window in enumerate(windows):
        if len(window) == 1 and window[0] <= 0:  # [0]: context-fst.cc's #-1; [-d]: disambiguation symbol d
            passing.append(number)
        elif window:
            phones_W3[number] = {1: (0, *window, 0), 2: (*window, 0), 3: tuple(window)}[len(window)]
    spoken_W = phones_W3[:, 1] > 0
    pdfs_LN, label_W = np.unique(hmm.tree.pdfs_of(phones_W3[spoken_W]), axis=0, return_inverse=True)
    of_W = np.zeros(len(windows), np.int32)
    of_W[spoken_W] = label_W.reshape(-1) + 1
    of_W[passing] = len(pdfs_LN) + 1 + np.arange(len(passing))
    return Labels(of_W, pdfs_LN.astype(np.int32))


def units_of(hmm: Hmm, labels: Labels, scale: float) -> tuple[Units, np.ndarray]:
    """The units, and the units of each label, int (L, N); `scale` is the self-loop scale."""
    if hmm.topology == FIRST_AND_LOOP:
        first_L, loop_L = labels.pdfs_LN.reshape(-1, 2).T
        free_L = np.zeros(len(first_L))
        return Units(first_L, loop_L, free_L, free_L), np.arange(len(first_L))[:, None]
    pdf_U = np.arange(hmm.num_pdfs, dtype=np.int32)
    leave_U, stay_U = -scale * np.log1p(-hmm.self_loop), -scale * np.log(hmm.self_loop)
    return Units(pdf_U, pdf_U, leave_U, stay_U), labels.pdfs_LN


def expanded(clg: Fst, read_LN: np.ndarray, units: Units) -> Fst:
    """H o (C o L o G) without self-loops: each arc that reads a phone becomes a chain of the phone's units.

    Arcs of a state whose phones begin with the same units share the arcs of these units, at the lowest of their costs,
    so that a deterministic transducer stays deterministic; an output label is placed on the first arc where it is
    unambiguous. States with identical continuations are merged. Disambiguation symbols become epsilon.
    """
    order_A = np.lexsort((clg.arcs_A["ilabel"], clg.source_A))
    source_A, arcs_A = clg.source_A[order_A], clg.arcs_A[order_A]
    reads_A = (arcs_A["ilabel"] > 0) & (arcs_A["ilabel"] <= len(read_LN))
    passing = arcs_A[~reads_A].copy()
    passing["ilabel"] = 0
    levels = _levels(source_A[reads_A], arcs_A[reads_A], read_LN, units)
    sources, arcs, states = [source_A[~reads_A]], [passing], len(clg.final_S)
    for (parent_A, step), (_, before) in zip(levels[:0:-1], levels[-2::-1], strict=True):
        number_G, kept_A = _merged(parent_A, step)
        before["nextstate"] = states + number_G[before["nextstate"]]
        sources.append(states + number_G[parent_A[kept_A]])
        arcs.append(step[kept_A])
        states += int(number_G.max(initial=-1)) + 1
    sources.append(levels[0][0])
    arcs.append(levels[0][1])
    final_S = np.concatenate([clg.final_S, np.full(states - len(clg.final_S), np.inf, np.float32)])
    return Fst(clg.start, final_S, np.concatenate(sources).astype(np.int32), np.concatenate(arcs))


def _levels(
    source_A: np.ndarray, arcs_A: np.ndarray, read_LN: np.ndarray, units: Units
) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each unit position: what precedes each arc, and the arcs that read the unit in that position.

    Input arcs are sorted by source state, then by label, so arcs with a common prefix are neighbours. An arc of the
    first level is preceded by a state, one of a later level by an arc of the previous level. Arcs of the last level
    lead to states; the others lead to groups of arcs of the next level.
    """
    read_AN = read_LN[arcs_A["ilabel"] - 1]
    cost_A = arcs_A["weight"].astype(np.float64) + units.leave_U[read_AN].sum(axis=1)
    word_A, paid_A, parent_A = arcs_A["olabel"], np.zeros(len(arcs_A)), source_A.astype(np.int64)
    levels = []
    for place in range(read_AN.shape[1]):
        fresh_A = np.ones(len(arcs_A), bool)
        if place + 1 < read_AN.shape[1]:
            fresh_A[1:] = (parent_A[1:] != parent_A[:-1]) | (read_AN[1:, place] != read_AN[:-1, place])
        first_G, group_A = np.flatnonzero(fresh_A), np.cumsum(fresh_A) - 1
        step = np.zeros(len(first_G), ARC)
        if len(first_G):
            least_G = np.minimum.reduceat(cost_A, first_G)
            low_G, high_G = np.minimum.reduceat(word_A, first_G), np.maximum.reduceat(word_A, first_G)
            step["ilabel"] = read_AN[first_G, place] + 1
            step["olabel"] = np.where(low_G == high_G, low_G, 0)
            step["weight"] = least_G - paid_A[first_G]
            step["nextstate"] = arcs_A["nextstate"] if place + 1 == read_AN.shape[1] else np.arange(len(first_G))
            word_A = np.where((low_G == high_G)[group_A], 0, word_A)
            paid_A = least_G[group_A]
        levels.append((parent_A[first_G], step))
        parent_A = group_A
    return levels


def _merged(parent_A: np.ndarray, step: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Merge states with the same outgoing arcs: the new number (G,) of each state, and which arcs to keep.

    States are compared by two independent 64-bit hash sums over their arcs.
    """
    if not len(step):
        return np.zeros(0, np.int64), np.zeros(0, bool)
    columns = [step[name].astype(np.uint64) for name in ("ilabel", "olabel", "nextstate")]
    columns.append(np.round(step["weight"].astype(np.float64) * _GRAIN).astype(np.int64).astype(np.uint64))
    first_G = np.flatnonzero(np.diff(parent_A, prepend=-1))
    sums_G2 = np.empty((len(first_G), 2), np.uint64)
    for side, seed in enumerate(_SEEDS):
        mixed_A = np.full(len(step), seed, np.uint64)
        for column in columns:
            mixed_A = (mixed_A ^ column) * _ODD
            mixed_A ^= mixed_A >> np.uint64(29)
        sums_G2[:, side] = np.add.reduceat(mixed_A, first_G)
    pairs_G = sums_G2.view([("one", np.uint64), ("other", np.uint64)])[:, 0]
    _, representative, number_G = np.unique(pairs_G, return_index=True, return_inverse=True)
    stays_G = np.zeros(len(first_G), bool)
    stays_G[representative] = True
    return number_G.reshape(-1), stays_G[parent_A]


def add_self_loops(fst: Fst, units: Units) -> Fst:
    """Add a self-loop to every state entered by reading a unit, and turn units into pdfs.

    A state entered in several ways (by units with different loops, or by epsilon) cannot have a self-loop: each loop is
    put on a new state before it, with an epsilon arc to it (Kaldi's MakePrecedingInputSymbolsSame).
    """
    # By label: the loop pdf + 1 and the pdf + 1 of entering; by loop: the cost of staying.
    states, arcs_A = len(fst.final_S), fst.arcs_A.copy()
    loop_L, enter_L = (np.concatenate([[0], pdf_U + 1]) for pdf_U in (units.loop_U, units.enter_U))
    span = int(loop_L.max()) + 1
    stay_P = np.zeros(span)
    stay_P[loop_L[1:]] = units.stay_U
    # The ways to enter each state: a pair of state and loop, of which a state has several if it is crowded.
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


def decode_directory(onnx: Path) -> Path:
    """OUT.decode beside OUT.onnx, with everything else that decoding needs."""
    return onnx.with_suffix(".decode")


@dataclass(frozen=True, eq=False)
class DecodingGraph:
    """A decoding graph in memory."""

    fst: Fst  # input labels are pdf + 1, output labels are indices into `words`
    words: tuple[str, ...]  # the symbol table, `<eps>` first
    num_pdfs: int  # number of columns that the scores must have
    about: dict[str, Any]  # the contents of `graph.json`
    path: Path
    phrases: Phrases | None = None  # hot phrases to be boosted in the lattices (`speech3.decode.hot_words`)
    filler_cost: float = 0.0  # what was added to the costs of fillers (`speech3.decode.grammar`)
    speller: Speller | None = None  # guesses the words of fillers; None: they are `<unk>`

    def with_costs(self, cost_V: np.ndarray) -> "DecodingGraph":
        """The graph with costs (V,) added to the arcs that output each symbol."""
        arcs_A = self.fst.arcs_A.copy()
        arcs_A["weight"] += cost_V[arcs_A["olabel"]]
        return replace(self, fst=Fst(self.fst.start, self.fst.final_S, self.fst.source_A, arcs_A))

    @cached_property
    def has_filler(self) -> bool:
        return bool(filler_costs(self.words, 1.0).any())

    def with_filler_cost(self, cost: float) -> "DecodingGraph":
        """The graph with this cost of a filler, in place of the one that it has."""
        if not self.has_filler or cost == self.filler_cost:
            return self
        return replace(self.with_costs(filler_costs(self.words, cost - self.filler_cost)), filler_cost=cost)

    @cached_property
    def arranged(self) -> SearchGraph:
        """The graph arranged for the search; raises an error if it cannot be searched."""
        return search_graph(self.fst, self.num_pdfs, self.path)

    @cached_property
    def mark(self) -> str:
        """The mark of word pieces among its symbols; empty if there are none."""
        return mark_of(self.words)

    @cached_property
    def label_of(self) -> dict[str, int]:
        return {word: label for label, word in enumerate(self.words)}


def build_graph(
    hmm: Hmm, lm: ArpaLm | Grammar, out: Path | str, self_loop_scale: float, spelling: Spelling | None = None
) -> dict[str, Any]:
    """Write ``out/HCLG.fst``, ``out/words.txt`` and ``out/graph.json``; return the contents of the last.

    ``out/G.fst`` is the language model as used in the graph, for `speech3 rescore`, which subtracts its costs. An
    n-gram model is also kept as ``out/lm.arpa.gz``, for `speech3 graph`, which adds words to it.

    Parameters
    ----------
    lm
        Words of an n-gram model that the lexicon lacks are left out, and listed in ``graph.json`` under ``dropped``.
    self_loop_scale
        Kaldi's --self-loop-scale; not used if transitions have no probabilities (``graph.json`` then has None). Each
        frame has one transition and one acoustic score, which is scaled down because frames are not independent.
        Unscaled transitions would dominate it in connected speech, and words would be deleted.
    spelling
        How unseen words are spelled; None: they cannot be recognised. With a `Grammar`, only a filler.

    Raises
    ------
    Speech3Error
        The model and the lexicon share no word, or the language model accepts no sentence.
    """
    started = time.monotonic()
    # G, with the spelling of unseen words or the filler.
    hmm = with_pronunciations(hmm, spelling.pronunciations, "letters") if spelling else hmm
    if isinstance(lm, Grammar):
        grammar = with_filler(lm, spelling) if spelling else lm
    else:
        grammar = from_arpa(spelling.added_to(lm) if spelling else lm, hmm.lexicon)
        grammar = with_silence(grammar) if spelling and spelling.is_filler else grammar
    out = Path(out)
    if len(grammar.fst.arcs_A) > _SLOW_ARCS:
        say(f"  {out.name}: a graph of {len(grammar.words) - 2:,} words and {len(grammar.fst.arcs_A):,} n-grams")
    # C o L o G, then the states of the HMMs with their self-loops.
    clg, labels = _clg(hmm, grammar)
    if time.monotonic() - started > _SLOW_S:
        say(f"  {out.name}: composed after {time.monotonic() - started:.0f} s; only the HMM states remain")
    units, read_LN = units_of(hmm, labels, self_loop_scale)
    fst = add_self_loops(expanded(clg, read_LN, units), units)
    fst.arcs_A["weight"] += phone_costs(grammar.words, spelling)[fst.arcs_A["olabel"]]
    if fst.start < 0 or not len(fst.arcs_A) or np.isinf(fst.final_S).all():
        raise DataError(f"{grammar.source}: the graph is empty: this language model accepts no sentence")
    # Write all files, graph.json last; those of an earlier graph that this one lacks are removed.
    about = {
        "num_pdfs": hmm.num_pdfs,
        "states": len(fst.final_S),
        "arcs": len(fst.arcs_A),
        "words": len(grammar.words) - 2,
        "lm": grammar.source,
        "self_loop_scale": self_loop_scale if hmm.topology.weighted else None,
        "dropped": list(grammar.dropped),
        "seconds": round(time.monotonic() - started, 1),
        **({UNSEEN_WEIGHT: spelling.weight} if spelling else {}),
    }
    (out / GRAPH_FILE).unlink(missing_ok=True)  # written last: if it exists, the other files are complete
    write_text(out / "words.txt", "".join(f"{word} {label}\n" for label, word in enumerate(grammar.words)))
    write_fst(fst, out / HCLG_FILE)
    write_fst(grammar.fst, out / GRAMMAR_FILE)
    if isinstance(lm, ArpaLm):
        write_arpa(lm, out / LM_FILE)
    else:
        (out / LM_FILE).unlink(missing_ok=True)
    for name in (LETTERS, GRAPH_LEXICON, G2P):
        (out / name).unlink(missing_ok=True)
    if spelling:
        spelling.save(out)
    write_json(out / GRAPH_FILE, about)
    return about


def load_graph(path: Path | str) -> DecodingGraph:
    """Read what `build_graph` wrote; refuse a damaged file, and a graph that cannot be searched (`check_graph`)."""
    path = Path(path)
    about = read_json(path / GRAPH_FILE)
    if not isinstance(about, dict) or not isinstance(about.get("num_pdfs"), int):
        raise MismatchError(f"{path / 'graph.json'}: has keys of another version of speech3; build the graph again")
    fst = read_fst(path / HCLG_FILE)
    if not (path / "words.txt").exists():
        raise MissingError(f"{path}/words.txt: no such file; build the graph again")
    try:
        listed = read_utf8(path / "words.txt").splitlines()
        words = tuple(to_one_form(line.split()[0]) for line in listed)
    except IndexError as error:
        raise DataError(f"{path}/words.txt: {error}; build the graph again") from error
    check_graph(fst, about["num_pdfs"], len(words), path)
    return DecodingGraph(fst, words, about["num_pdfs"], about, path, speller=read_speller(path))


def check_graph(fst: Fst, num_pdfs: int, num_words: int, path: Path) -> None:
    """Refuse a graph that is empty or whose labels lie outside their ranges."""
    if fst.start < 0 or not len(fst.arcs_A) or np.isinf(fst.final_S).all():
        raise DataError(f"{path}: the graph is empty or has no final state; build it again")
    for side, size in (("ilabel", num_pdfs + 1), ("olabel", num_words)):
        low, high = int(fst.arcs_A[side].min()), int(fst.arcs_A[side].max())
        if low < 0 or high >= size:
            raise MismatchError(
                f"{path}: {side}s range from {low} to {high}, but there are {size}; build the graph again"
            )


def _clg(hmm: Hmm, grammar: Grammar) -> tuple[Fst, Labels]:
    """Deterministic C o L o G, and its input labels, which stand for the pdfs of a phone in context.

    Context windows with the same pdfs share a label (Kaldi's make-ilabel-transducer), which is why C o L o G is
    determinised once more. It is not minimised after that: minimisation took a quarter of the time of all other steps
    together, and removed only 0.2 to 4 % of the 300,000 to 940,000 states of the graphs built from it.
    """
    import kaldifst

    # L o G, determinised and minimised.
    lexicon, disambiguation = lexicon_fst(hmm.lexicon, grammar.words, hmm.tree.phone_classes)
    left, right = to_kaldifst(lexicon), to_kaldifst(grammar.fst)
    kaldifst.arcsort(left, sort_type="olabel")
    kaldifst.arcsort(right, sort_type="ilabel")
    lg = kaldifst.compose(left, right)
    kaldifst.determinize_star(lg)
    kaldifst.minimize_encoded(lg)
    # Phones in context, relabelled by their pdfs.
    width = hmm.tree.width
    kaldifst.arcsort(lg, sort_type="ilabel")
    clg, windows = kaldifst.compose_context(disambiguation, width, width // 2, lg)
    labels = labels_of(hmm, windows)
    arrays = from_kaldifst(clg)
    arcs_A = arrays.arcs_A.copy()
    arcs_A["ilabel"] = labels.of_W[arcs_A["ilabel"]]
    labelled = to_kaldifst(Fst(arrays.start, arrays.final_S, arrays.source_A, arcs_A))
    kaldifst.determinize_star(labelled)
    return from_kaldifst(labelled), labels
