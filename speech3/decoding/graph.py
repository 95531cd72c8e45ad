"""The decoding graph H o C o L o G as one transducer from pdfs to words (Mohri et al. 2002; Kaldi's mkgraph.sh).

Input labels are pdf + 1. All probabilities of the HMMs, the lexicon and the language model are arc costs: an arc that
reads pdf p costs -c log(1 - self_loop[p]) beside the rest, for p is left once, and its self-loop -c log(self_loop[p]),
where c is the self-loop scale.

Weights are the tropical semiring's throughout, so the best path through the graph is the best path through its parts.

Axes: S states, A arcs, P pdfs.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from speech3.decoding.arpa import ArpaLm
from speech3.decoding.fst import ARC, Fst, FstBuilder, from_kaldifst, read_fst, to_kaldifst, write_fst
from speech3.decoding.grammar import Grammar, from_arpa
from speech3.decoding.lexicon_fst import lexicon_fst
from speech3.errors import Speech3Error
from speech3.hmm.model import Hmm
from speech3.hmm.tree import CENTRE
from speech3.io.atomic import read_json, write_json, write_text
from speech3.io.progress import say

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


def build_graph(hmm: Hmm, lm: ArpaLm | Grammar, out: Path | str, self_loop_scale: float) -> dict[str, Any]:
    """Build the graph into ``out/HCLG.fst``, ``out/words.txt`` and ``out/graph.json``; return what the last one says.

    Parameters
    ----------
    lm
        An n-gram model, or a `Grammar`. Words of an n-gram model that the lexicon lacks are left out and listed in
        ``graph.json`` under ``dropped``.
    self_loop_scale
        Kaldi's --self-loop-scale. There is one transition a frame, as there is one acoustic score, which is scaled down
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
    fst = add_self_loops(_hclg(hmm, windows, cascade, self_loop_scale), hmm.self_loop, self_loop_scale)
    if fst.start < 0 or not len(fst.arcs_A) or np.isinf(fst.final_S).all():
        raise Speech3Error(f"{grammar.source}: the graph came out empty: this language model accepts no sentence")
    about = {
        "num_pdfs": hmm.num_pdfs, "states": len(fst.final_S), "arcs": len(fst.arcs_A), "words": len(grammar.words) - 2,
        "lm": grammar.source, "self_loop_scale": self_loop_scale, "dropped": list(grammar.dropped),
        "seconds": round(time.monotonic() - started, 1),
    }  # fmt: skip
    (out / "graph.json").unlink(missing_ok=True)  # written last: its presence says that the rest belongs together
    write_text(out / "words.txt", "".join(f"{word} {label}\n" for label, word in enumerate(grammar.words)))
    write_fst(fst, out / "HCLG.fst")
    write_json(out / "graph.json", about)
    return about


def load_graph(path: Path | str) -> Graph:
    """Read what `build_graph` wrote and check that the decoder can be trusted with it.

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
    """Refuse whatever kaldi-decoder answers with a segmentation fault."""
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
    tree = hmm.tree
    width = 3 if np.isin(tree.side, (-1, CENTRE), invert=True).any() else 1  # a monophone tree asks no neighbours
    kaldifst.arcsort(lg, sort_type="ilabel")
    clg, windows = kaldifst.compose_context(disambiguation, width, width // 2, lg)
    return windows, clg


def _hclg(hmm: Hmm, windows: list[list[int]], clg: Any, scale: float) -> Fst:
    """H o C o L o G without self-loops: determinised, disambiguation symbols removed, minimised."""
    import kaldifst

    h, label_W = _h(hmm, windows, scale)
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
    arcs_A["ilabel"][arcs_A["ilabel"] > hmm.num_pdfs] = 0
    hclg = to_kaldifst(Fst(arrays.start, arrays.final_S, arrays.source_A, arcs_A))
    kaldifst.minimize_encoded(hclg)
    kaldifst.connect(hclg)
    return from_kaldifst(hclg)


def _h(hmm: Hmm, windows: list[list[int]], scale: float) -> tuple[Fst, np.ndarray]:
    """H without self-loops, and the label it writes for each context window.

    Windows with the same three pdfs share a label (Kaldi's make-ilabel-transducer), which makes the graph smaller.
    Disambiguation symbols pass through, as labels above the pdfs.
    """
    label_W = np.zeros(len(windows), np.int32)
    phones: dict[tuple[int, ...], int] = {}
    passing = []
    for number, window in enumerate(windows):
        if len(window) == 1 and window[0] <= 0:  # [0]: context-fst.cc's #-1; [-d]: disambiguation symbol d
            passing.append(number)
        elif window:
            left, phone, right = window if len(window) == 3 else (0, window[0], 0)
            label_W[number] = phones.setdefault(hmm.pdfs(left, phone, right), len(phones) + 1)
    label_W[passing] = len(phones) + 1 + np.arange(len(passing))
    builder = FstBuilder()
    hub = builder.state(final=0.0)
    for pdfs, label in phones.items():
        forward = float(-scale * np.log1p(-hmm.self_loop[list(pdfs)]).sum())
        builder.chain(hub, hub, [pdf + 1 for pdf in pdfs], label, forward)
    for place, number in enumerate(passing):
        builder.arc(hub, hub, hmm.num_pdfs + 1 + place, int(label_W[number]))
    return builder.fst(), label_W


def add_self_loops(fst: Fst, self_loop_P: np.ndarray, scale: float) -> Fst:
    """Let every state that was entered by reading a pdf read it again, at -scale log(self_loop).

    A state entered in several ways (by different pdfs, or by epsilon) cannot have a loop of its own: each pdf gets a
    state before it, with the loop and an epsilon arc onwards (Kaldi's MakePrecedingInputSymbolsSame).
    """
    states, arcs_A = len(fst.final_S), fst.arcs_A.copy()
    span = len(self_loop_P) + 1
    key_A = arcs_A["nextstate"].astype(np.int64) * span + arcs_A["ilabel"]
    key_K, which_A = np.unique(key_A, return_inverse=True)
    state_K, label_K = key_K // span, key_K % span
    ways_S = np.bincount(state_K, minlength=states)
    if fst.start >= 0:
        ways_S[fst.start] += 1
    crowded_K = (ways_S[state_K] > 1) & (label_K > 0)
    place_K = state_K.copy()
    place_K[crowded_K] = states + np.arange(int(crowded_K.sum()))
    arcs_A["nextstate"] = place_K[which_A]
    emitting_K = label_K > 0
    stay_K = -scale * np.log(self_loop_P[label_K[emitting_K] - 1])
    loops = _arcs(label_K[emitting_K], stay_K, place_K[emitting_K])
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
