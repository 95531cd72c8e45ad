"""Export senones to Kaldi: `tree`, `final.mdl` (transitions, text form), `topo`, `phones.txt` and the dictionary.

From these files, Kaldi's prepare_lang.sh and mkgraph.sh build a graph, with which latgen-faster-mapped decodes the log
likelihoods of `speech3 forward`. The final.mdl has no Gaussians, so programs that need the acoustic model cannot use
it.
"""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np

from speech3.hmm.model import Hmm
from speech3.hmm.topology import FIRST_AND_LOOP
from speech3.hmm.tree import CENTRE, LEFT, RIGHT, Tree
from speech3.io.atomic import write_text
from speech3.kaldi.transitions import (
    NO_PDF,
    Topology,
    TopologyState,
    TransitionModel,
    topology_text,
    transition_model_text,
)
from speech3.kaldi.tree import Leaf, Node, Question, Table, tree_text
from speech3.lexicon.lexicon import UNKNOWN, Lexicon, Pronunciation, write_lexicon

_INITIAL = 0.75  # self-loop probability in Kaldi's topologies, the initial value of training only
_LOOPS = (1e-3, 1 - 1e-3)
_PLACES = {"_B": "begin", "_E": "end", "_I": "internal", "_S": "singleton"}


def export_kaldi(hmm: Hmm, out: Path) -> None:
    """Write ``tree``, ``final.mdl``, ``topo``, ``phones.txt`` and ``dict/`` into `out`.

    Models with outputs at a third of the frames also get ``frame_subsampling_factor``, which Kaldi's scripts read.
    Phones and pdfs keep their numbers: prepare_lang.sh takes the numbers of the phones from ``--phone-symbol-table``,
    but only if phones have no positions. So a phone's position in the word is written ``-B``, not ``_B``, and listed
    for Kaldi in ``dict/word_boundary.txt``. The window of Kaldi's tree has only the neighbours that our tree asks
    about.
    """
    width = hmm.tree.width
    write_text(out / "tree", tree_text(_root(hmm, width), width, width // 2))
    topology = _topology(hmm)
    write_text(out / "topo", topology_text(topology))
    write_text(out / "final.mdl", transition_model_text(transition_model(hmm, topology)))
    if hmm.subsampling != 1:
        write_text(out / "frame_subsampling_factor", f"{hmm.subsampling}\n")
    else:  # an earlier export may have left one
        (out / "frame_subsampling_factor").unlink(missing_ok=True)
    phones = ["<eps>", *map(_exported, hmm.lexicon.phones), "#0"]
    write_text(out / "phones.txt", "".join(f"{phone} {number}\n" for number, phone in enumerate(phones)))
    _write_dictionary(hmm.lexicon, out / "dict")


def _exported(phone: str) -> str:
    return re.sub(r"_([BIES])$", r"-\1", phone)


def _topology(hmm: Hmm) -> Topology:
    if hmm.topology == FIRST_AND_LOOP:  # as in Kaldi: one state, with different pdfs for entering and staying
        states = [TopologyState(0, 1, ((0, 0.5), (1, 0.5)))]
    else:
        states = [TopologyState(s, s, ((s, _INITIAL), (s + 1, 1 - _INITIAL))) for s in range(hmm.topology.states)]
    phones = range(1, len(hmm.lexicon.phones) + 1)
    return dict.fromkeys(phones, (*states, TopologyState(NO_PDF, NO_PDF, ())))


def transition_model(hmm: Hmm, topology: Topology) -> TransitionModel:
    """Every (phone, state, pdf) that the tree can give, in Kaldi's order, with our self-loop probabilities."""
    if hmm.topology == FIRST_AND_LOOP:
        pairs = [(phone, 0, first, loop) for phone in topology for first, loop in sorted(_pairs(hmm.tree, phone))]
        return TransitionModel(topology, np.array(pairs, np.int32), np.log([1.0, *[0.5] * (2 * len(pairs))]))
    tuples = np.array([
        (phone, state, pdf, pdf)
        for phone in topology
        for state in range(hmm.topology.states)
        for pdf in sorted(_pdfs(hmm.tree, phone, state))
    ], np.int32)  # fmt: skip
    loop = np.clip(hmm.self_loop[tuples[:, 2]], *_LOOPS)
    log_prob_K = np.concatenate([[0.0], np.log(np.stack([loop, 1 - loop], axis=1)).reshape(-1)])
    return TransitionModel(topology, tuples, log_prob_K)


def _pairs(tree: Tree, phone: int) -> set[tuple[int, ...]]:
    """The pairs of pdfs that a phone's two states have in any context."""
    lefts, rights = (range(len(tree.root)) if side in tree.sides else (0,) for side in (LEFT, RIGHT))
    return {tree.pdfs(left, phone, right) for left in lefts for right in rights}


def _pdfs(tree: Tree, phone: int, state: int) -> set[int]:
    """The pdfs that a state of `phone` has in any context."""
    found, stack = set(), [int(tree.root[phone, state])]
    while stack:
        node = stack.pop()
        if tree.side[node] < 0:
            found.add(int(tree.yes[node]))
        elif tree.side[node] == CENTRE:
            stack.append(int(tree.yes[node] if tree.member[node, phone] else tree.no[node]))
        else:
            stack += [int(tree.yes[node]), int(tree.no[node])]
    return found


def _root(hmm: Hmm, width: int) -> Table:
    tree = hmm.tree

    def node(number: int, phone: int) -> Node:
        side, member = tree.side[number], tree.member[number]
        if side < 0:
            return Leaf(int(tree.yes[number]))
        if side == CENTRE:
            return node(int(tree.yes[number] if member[phone] else tree.no[number]), phone)
        key = 0 if side == LEFT else 2
        yes, no = node(int(tree.yes[number]), phone), node(int(tree.no[number]), phone)
        return Question(key, frozenset(np.flatnonzero(member).tolist()), yes, no)

    phones = range(1, len(hmm.lexicon.phones) + 1)
    ways = [
        Table(-1, tuple(node(int(tree.root[phone, state]), phone) for state in range(tree.states))) for phone in phones
    ]
    return Table(width // 2, (None, *ways))


def _write_dictionary(lexicon: Lexicon, out: Path) -> None:
    """Write what prepare_lang.sh reads: the lexicon, with silence probabilities if it has any, and phones by kind."""
    prons = [replace(pron, phones=tuple(map(_exported, pron.phones))) for pron in lexicon.pronunciations]
    if UNKNOWN not in lexicon.by_word:  # Kaldi requires a word for out-of-vocabulary words
        prons.append(Pronunciation(UNKNOWN, (_exported(lexicon.silence_phones[0]),)))
    exported = replace(lexicon, pronunciations=tuple(prons))
    write_lexicon(exported, out / "lexiconp.txt")
    if lexicon.end:
        write_lexicon(exported, out / "lexiconp_silprob.txt")
        write_text(
            out / "silprob.txt",
            f"<s> {lexicon.silence_prob:.6g}\n</s>_s {lexicon.end.given_silence:.6g}\n"
            f"</s>_n {lexicon.end.given_word:.6g}\noverall {lexicon.silence_prob:.6g}\n",
        )
    else:  # an earlier export may have left them, and prepare_lang.sh would use them
        for name in ("lexiconp_silprob.txt", "silprob.txt"):
            (out / name).unlink(missing_ok=True)
    silences = [phone for phone in lexicon.phones if lexicon.phone_ids[phone] in lexicon.context_free]
    others = [phone for phone in lexicon.phones if phone not in silences]
    for name, phones in (("silence_phones", silences), ("nonsilence_phones", others),
                         ("optional_silence", silences[:1]), ("extra_questions", [])):  # fmt: skip
        write_text(out / f"{name}.txt", "".join(f"{_exported(phone)}\n" for phone in phones))
    if lexicon.position_dependent:
        kinds = [_PLACES.get(phone[-2:], "nonword") for phone in lexicon.phones]
        lines = (f"{_exported(phone)} {kind}\n" for phone, kind in zip(lexicon.phones, kinds, strict=True))
        write_text(out / "word_boundary.txt", "".join(lines))
