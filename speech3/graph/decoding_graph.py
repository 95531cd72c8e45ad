"""The decoding graph H o C o L o G as one transducer from pdfs to words (Mohri et al. 2002; Kaldi's mkgraph.sh).

Input labels are pdf + 1. All probabilities of the HMMs, the lexicon and the language model are arc costs. An arc that
reads pdf p has the additional cost -c log(1 - self_loop[p]), because p is left once, and its self-loop costs
-c log(self_loop[p]), where c is the self-loop scale. Transitions of phones with a first and a loop pdf cost nothing.

H is not composed: each arc of C o L o G is replaced by the states of its phone (`hmm_states`).

All weights are in the tropical semiring, so the best path through the graph is the best path through its parts.

Axes: S states, A arcs, W context windows.
"""

import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from speech3.alignment.oov import with_pronunciations
from speech3.errors import Speech3Error
from speech3.graph.grammar import Grammar, from_arpa
from speech3.graph.hmm_states import Labels, add_self_loops, expanded, labels_of, units_of
from speech3.graph.lexicon_fst import lexicon_fst
from speech3.graph.pieces import mark_of
from speech3.graph.spelling import LETTERS, LEXICON, WEIGHT, Spelling
from speech3.hmm.model import Hmm
from speech3.io.atomic import read_json, write_json, write_text
from speech3.io.fst import Fst, from_kaldifst, read_fst, to_kaldifst, write_fst
from speech3.io.progress import say
from speech3.io.text import read_utf8
from speech3.io.unicode_form import one_form
from speech3.lm.arpa import ArpaLm, write_arpa
from speech3.search.phrases import Phrases
from speech3.search.search_graph import SearchGraph, search_graph

LM = "lm.arpa.gz"  # in a graph's directory, if its language model is an n-gram model
GRAMMAR = "G.fst"  # in a graph's directory, beside HCLG.fst
_SLOW_S = 5.0  # a build that takes longer reports its progress
_MANY = 50_000  # arcs of G above which building the graph takes seconds


@dataclass(frozen=True, eq=False)
class Graph:
    """A decoding graph in memory.

    Attributes
    ----------
    fst
        Input labels are pdf + 1, output labels are indices into `words`.
    words
        The symbol table, `<eps>` first.
    num_pdfs
        Number of columns that the scores must have.
    about
        The contents of `graph.json`.
    phrases
        Hot phrases to be boosted in the lattices (`speech3.graph.hot`).
    """

    fst: Fst
    words: tuple[str, ...]
    num_pdfs: int
    about: dict[str, Any]
    path: Path
    phrases: Phrases | None = None

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
        """The output label of each word."""
        return {word: label for label, word in enumerate(self.words)}


def build_graph(
    hmm: Hmm, lm: ArpaLm | Grammar, out: Path | str, self_loop_scale: float, spelling: Spelling | None = None
) -> dict[str, Any]:
    """Write the graph to ``out/HCLG.fst``, ``out/words.txt`` and ``out/graph.json``; return the contents of the last.

    ``out/G.fst`` is the language model as used in the graph, for `speech3 rescore`, which subtracts its costs. An
    n-gram model is also kept as ``out/lm.arpa.gz``, for `speech3 graph`, which adds words to it.

    Parameters
    ----------
    lm
        An n-gram model, or a `Grammar`. Words of an n-gram model that the lexicon lacks are left out and listed in
        ``graph.json`` under ``dropped``.
    self_loop_scale
        Kaldi's --self-loop-scale; not used if transitions have no probabilities (``graph.json`` then has None). Each
        frame has one transition and one acoustic score, which is scaled down because frames are not independent.
        Unscaled transitions would dominate it in connected speech, and words would be deleted.
    spelling
        With an n-gram model: how unseen words are spelled; None: they cannot be recognised.

    Raises
    ------
    Speech3Error
        The model and the lexicon share no word, or the language model accepts no sentence.
    """
    started = time.monotonic()
    if isinstance(lm, Grammar):
        grammar, spelling = lm, None
    else:
        hmm = with_pronunciations(hmm, spelling.pronunciations, "letters") if spelling else hmm
        grammar = from_arpa(spelling.added_to(lm) if spelling else lm, hmm.lexicon)
    out = Path(out)
    if len(grammar.fst.arcs_A) > _MANY:
        say(f"  {out.name}: a graph of {len(grammar.words) - 2:,} words and {len(grammar.fst.arcs_A):,} n-grams")
    clg, labels = _clg(hmm, grammar)
    if time.monotonic() - started > _SLOW_S:
        say(f"  {out.name}: composed after {time.monotonic() - started:.0f} s; only the HMM states remain")
    units, read_LN = units_of(hmm, labels, self_loop_scale)
    fst = add_self_loops(expanded(clg, read_LN, units), units)
    if fst.start < 0 or not len(fst.arcs_A) or np.isinf(fst.final_S).all():
        raise Speech3Error(f"{grammar.source}: the graph is empty: this language model accepts no sentence")
    about = {
        "num_pdfs": hmm.num_pdfs, "states": len(fst.final_S), "arcs": len(fst.arcs_A), "words": len(grammar.words) - 2,
        "lm": grammar.source, "self_loop_scale": self_loop_scale if hmm.topology.weighted else None,
        "dropped": list(grammar.dropped), "seconds": round(time.monotonic() - started, 1),
        **({WEIGHT: spelling.weight} if spelling else {}),
    }  # fmt: skip
    (out / "graph.json").unlink(missing_ok=True)  # written last: if it exists, the other files are complete
    write_text(out / "words.txt", "".join(f"{word} {label}\n" for label, word in enumerate(grammar.words)))
    write_fst(fst, out / "HCLG.fst")
    write_fst(grammar.fst, out / GRAMMAR)
    if isinstance(lm, ArpaLm):
        write_arpa(lm, out / LM)
    else:
        (out / LM).unlink(missing_ok=True)
    for name in (LETTERS, LEXICON):
        (out / name).unlink(missing_ok=True)
    if spelling:
        spelling.save(out)
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
        raise Speech3Error(f"{path / 'graph.json'}: has keys of another version of speech3; build the graph again")
    fst = read_fst(path / "HCLG.fst")
    try:
        listed = read_utf8(path / "words.txt").splitlines()
        words = tuple(one_form(line.split()[0]) for line in listed)
    except IndexError as error:
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
                f"{path}: {side}s range from {low} to {high}, but there are {size}; build the graph again"
            )


def _clg(hmm: Hmm, grammar: Grammar) -> tuple[Fst, Labels]:
    """Deterministic C o L o G, and its input labels, which stand for the pdfs of a phone in context.

    Context windows with the same pdfs share a label (Kaldi's make-ilabel-transducer), which is why C o L o G is
    determinised once more. It is not minimised after that: minimisation took a quarter of the time of all other steps
    together, and removed only 0.2 to 4 % of the 300,000 to 940,000 states of the graphs built from it.
    """
    import kaldifst

    lexicon, disambiguation = lexicon_fst(hmm.lexicon, grammar.words, hmm.tree.phone_classes)
    left, right = to_kaldifst(lexicon), to_kaldifst(grammar.fst)
    kaldifst.arcsort(left, sort_type="olabel")
    kaldifst.arcsort(right, sort_type="ilabel")
    lg = kaldifst.compose(left, right)
    kaldifst.determinize_star(lg)
    kaldifst.minimize_encoded(lg)
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
