"""The decoding graph H o C o L o G as one transducer from pdfs to words (Mohri et al. 2002; Kaldi's mkgraph.sh).

Input labels are pdf + 1. All probabilities of the HMMs, the lexicon and the language model are arc costs: an arc that
reads pdf p costs -c log(1 - self_loop[p]) beside the rest, for p is left once, and its self-loop -c log(self_loop[p]),
where c is the self-loop scale. The transitions of phones of a first and a loop pdf cost nothing.

H is not composed: each arc of C o L o G becomes the states of its phone (`hmm_states`).

Weights are the tropical semiring's throughout, so the best path through the graph is the best path through its parts.

Axes: S states, A arcs, W context windows.
"""

import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from speech3.decoding.fst import Fst, from_kaldifst, read_fst, to_kaldifst, write_fst
from speech3.decoding.grammar import Grammar, from_arpa
from speech3.decoding.hmm_states import Labels, add_self_loops, expanded, labels_of, units_of
from speech3.decoding.lexicon_fst import lexicon_fst
from speech3.decoding.phrases import Phrases
from speech3.decoding.pieces import are_pieces
from speech3.decoding.search_graph import SearchGraph, search_graph
from speech3.errors import Speech3Error
from speech3.hmm.model import Hmm
from speech3.io.atomic import read_json, write_json, write_text
from speech3.io.progress import say
from speech3.lm.arpa import ArpaLm, write_arpa

LM = "lm.arpa.gz"  # in a graph's directory, if its language model is of n-grams
GRAMMAR = "G.fst"  # in a graph's directory, beside HCLG.fst
_SLOW_S = 5.0  # a graph that takes longer says how far it is
_MANY = 50_000  # arcs of a grammar whose graph takes seconds


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
    phrases
        What the lattices of its searches are searched for (`speech3.decoding.hot`).
    """

    fst: Fst
    words: tuple[str, ...]
    num_pdfs: int
    about: dict[str, Any]
    path: Path
    phrases: Phrases | None = None

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


def build_graph(hmm: Hmm, lm: ArpaLm | Grammar, out: Path | str, self_loop_scale: float) -> dict[str, Any]:
    """Build the graph into ``out/HCLG.fst``, ``out/words.txt`` and ``out/graph.json``; return what the last one says.

    ``out/G.fst`` is the language model as the graph has it, for `speech3 rescore`, which takes its costs out again. An
    n-gram model is also kept as ``out/lm.arpa.gz``, for `speech3 graph`, which adds words to it.

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
    if len(grammar.fst.arcs_A) > _MANY:
        say(f"  {out.name}: a graph of {len(grammar.words) - 2:,} words and {len(grammar.fst.arcs_A):,} n-grams")
    clg, labels = _clg(hmm, grammar)
    if time.monotonic() - started > _SLOW_S:
        say(f"  {out.name}: composed after {time.monotonic() - started:.0f} s, nearly done")
    units, read_LN = units_of(hmm, labels, self_loop_scale)
    fst = add_self_loops(expanded(clg, read_LN, units), units)
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
    if isinstance(lm, ArpaLm):
        write_arpa(lm, out / LM)
    else:
        (out / LM).unlink(missing_ok=True)
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


def _clg(hmm: Hmm, grammar: Grammar) -> tuple[Fst, Labels]:
    """C o L o G, deterministic, whose input labels say how phones are read: what they are is returned as well.

    Windows of phones that read the same pdfs have the same label (Kaldi's make-ilabel-transducer), which is why C o L o
    G is determinised once more. It is not minimised after that: of 300,000 to 940,000 states of what it becomes that
    removed 0.2 to 4 % in a quarter of the time that all the rest takes.
    """
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
    labels = labels_of(hmm, windows)
    arrays = from_kaldifst(clg)
    arcs_A = arrays.arcs_A.copy()
    arcs_A["ilabel"] = labels.of_W[arcs_A["ilabel"]]
    labelled = to_kaldifst(Fst(arrays.start, arrays.final_S, arrays.source_A, arcs_A))
    kaldifst.determinize_star(labelled)
    return from_kaldifst(labelled), labels
