"""Kaldi's alignment directories and transforms in, senones and transforms out to Kaldi.

A directory with `final.mdl`, `tree` and `ali.*.gz` gives senones and, if they can be converted, an `Hmm`. The export
writes `tree`, `final.mdl` (transitions, text form), `topo`, `phones.txt` and the dictionary, from which Kaldi's
prepare_lang.sh and mkgraph.sh build a graph; with it latgen-faster-mapped decodes the log likelihoods of
`speech3 forward`. That final.mdl has no Gaussians, so programs that need the acoustic model cannot use it.

Transforms of features are ``final.mat`` (LDA and MLLT) and ``trans.*`` (fMLLR by speaker, with ``spk2utt``).

Axes: T frames, K transition-ids, P pdfs, F features, D transformed values.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from speech3.errors import FormatError, MismatchError, MissingError, OccupiedError, Speech3Error
from speech3.hmm.kaldi.model import (
    NO_PDF,
    KaldiTree,
    Leaf,
    Node,
    NodeTable,
    Question,
    Topology,
    TopologyState,
    TransitionModel,
    check_same_phones,
    left_to_right,
    read_lang,
    read_transition_model,
    read_tree,
    to_tree,
    topology_text,
    transition_model_text,
    tree_text,
)
from speech3.hmm.model import CENTRE, FIRST_AND_LOOP, LEFT, RIGHT, THREE_STATES, Hmm, PdfsOnly, Tree
from speech3.hmm.transforms import Projection
from speech3.io import ArkReader, read_int_ark, read_mat_ark, write_ark, write_mat
from speech3.language import UNKNOWN, Lexicon, Pronunciation, write_lexicon
from speech3.runtime import check_output, read_utf8, write_text

_INITIAL = 0.75  # self-loop probability in Kaldi's topologies, the initial value of training only
_LOOPS = (1e-3, 1 - 1e-3)
_PLACES = {"_B": "begin", "_E": "end", "_I": "internal", "_S": "singleton"}
FINAL_MAT, SPLICE_OPTS = "final.mat", "splice_opts"
_PART = re.compile(r"trans\.(\d+|ark)")


@dataclass(eq=False)
class KaldiAlignment:
    """An alignment directory with its model and tree, which were checked to match."""

    path: Path
    model: TransitionModel
    tree: KaldiTree
    parts: list[Path]
    seen_K: np.ndarray = field(init=False)  # frames of each transition-id in the alignments that `senones` has yielded

    def __post_init__(self) -> None:
        self.seen_K = np.zeros(len(self.model.pdf_K), np.int64)

    def senones(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield each utterance and the pdf of each of its frames, (T,) int32.

        Raises Speech3Error: a part is damaged, an utterance occurs twice, or the model lacks a transition-id.
        """
        yielded: set[str] = set()
        for part in self.parts:
            for utterance, ids_T in read_int_ark(part).items():
                if utterance in yielded:
                    raise FormatError(f"{part}: {utterance} occurs in {self.path} a second time; align again")
                yielded.add(utterance)
                wrong_T = (ids_T < 1) | (ids_T >= len(self.model.pdf_K))
                if wrong_T.any():
                    frame = int(wrong_T.argmax())
                    raise MismatchError(
                        f"{part}: {utterance}, frame {frame}: transition-id {ids_T[frame]}, but {self.path}/final.mdl"
                        f" has {len(self.model.pdf_K) - 1}; pass the final.mdl that made this alignment"
                    )
                self.seen_K += np.bincount(ids_T, minlength=len(self.seen_K))
                yield utterance, self.model.pdf_K[ids_T]

    def outputs(self, lang: Path | None) -> Hmm | PdfsOnly:
        """Convert model, tree and `lang` to an `Hmm`, or to the number of pdfs if that is impossible.

        Call it after `senones`, whose frames weight the self-loop probabilities.

        Raises Speech3Error: `lang` is damaged, or its phone set is not that of the alignment directory.
        """
        if lang is None:
            return self._pdfs_only("no lang directory was given (speech3 import --lang), so phones have no names")
        if (self.path / "phones.txt").exists():
            check_same_phones(self.path / "phones.txt", lang / "phones.txt")
        named = read_lang(lang)
        number = {named.phone_ids[phone]: ours for phone, ours in named.lexicon.phone_ids.items()}
        names = {kaldi: phone for phone, kaldi in named.phone_ids.items()}
        for phone in number:
            if phone not in self.model.topology:
                raise MissingError(
                    f"{lang}: phone {names[phone]} is not in {self.path}/final.mdl; pass the lang directory that the"
                    " model was trained with"
                )
            if not left_to_right(self.model.topology[phone]):
                states, ours = len(self.model.topology[phone]) - 1, THREE_STATES.states
                return self._pdfs_only(
                    f"phone {names[phone]} has {states} states or skips some, where speech3 has {ours} in a row"
                    f" (prepare_lang.sh --num-sil-states {ours} makes such phones)"
                )
        try:
            tree = to_tree(self.tree, number)
        except Speech3Error as error:
            return self._pdfs_only(str(error))
        # Kaldi lists silence phones, but its tree may ask about the neighbours of noises; then they are like any phone.
        asking = {phone for phone, ours in named.lexicon.phone_ids.items() if _asks_neighbours(tree, ours)}
        noises = tuple(phone for phone in named.lexicon.noise_phones if phone not in asking)
        lexicon = replace(named.lexicon, noise_phones=noises)
        if bound := [phone for phone in lexicon.silence_phones if phone in asking]:
            return self._pdfs_only(f"its tree lets {bound[0]} depend on its neighbours, unlike speech3's trees")
        return Hmm(lexicon, tree, self._self_loops())

    def _pdfs_only(self, why: str) -> PdfsOnly:
        return PdfsOnly(self.model.num_pdfs, f"a Kaldi alignment ({self.path}): {why}")

    def _self_loops(self) -> np.ndarray:
        """(P,) float64: Kaldi's self-loop probabilities, averaged over the frames of each pdf's states."""
        model = self.model
        loops_K = np.flatnonzero(model.self_loop_K)
        frames = np.bincount(model.tuple_K[1:], self.seen_K[1:], minlength=len(model.tuples)) + 1.0
        weight_K, pdf_K = frames[model.tuple_K[loops_K]], model.tuples[model.tuple_K[loops_K], 3]
        total_P = np.bincount(pdf_K, weight_K, minlength=model.num_pdfs)
        staying_P = np.bincount(pdf_K, weight_K * np.exp(model.log_prob_K[loops_K]), minlength=model.num_pdfs)
        with np.errstate(invalid="ignore"):
            return np.where(total_P > 0, staying_P / total_P, 0.5)


def open_alignment(path: Path | str) -> KaldiAlignment:
    """Read the model and the tree of an alignment directory and find its parts.

    Raises Speech3Error: a file is missing or damaged, tree and model have different numbers of pdfs, or a part is
    missing.
    """
    path = Path(path)
    if not path.is_dir():
        raise MissingError(f"{path}: no such directory; pass a directory with final.mdl, tree and ali.*.gz")
    model, tree = read_transition_model(path / "final.mdl"), read_tree(path / "tree")
    if model.num_pdfs != tree.num_pdfs:
        raise MismatchError(
            f"{path}/final.mdl has {model.num_pdfs} pdfs, {path}/tree has {tree.num_pdfs}: they belong to"
            " different models; take both from one directory"
        )
    numbers = sorted(int(p.name.split(".")[1]) for p in path.glob("ali.*.gz") if p.name.split(".")[1].isdigit())
    jobs = path / "num_jobs"
    if not numbers:
        raise MissingError(f"{path}: has no ali.*.gz; make them with Kaldi's steps/align_si.sh or align_fmllr.sh")
    expected = (
        int(text) if jobs.exists() and (text := jobs.read_text(encoding="utf-8").strip()).isdigit() else numbers[-1]
    )
    if missing := sorted(set(range(1, expected + 1)) - set(numbers)):
        raise MissingError(f"{path}: ali.{missing[0]}.gz is missing, one of {expected}; copy it too, or align again")
    return KaldiAlignment(path, model, tree, [path / f"ali.{number}.gz" for number in numbers])


def _asks_neighbours(tree: Tree, phone: int) -> bool:
    return any(tree.side[tree.root[phone, state]] >= 0 for state in range(tree.states))


def export_kaldi(hmm: Hmm, out: Path) -> None:
    """Write ``tree``, ``final.mdl``, ``topo``, ``phones.txt`` and ``dict/`` into `out`.

    Models with outputs at a third of the frames also get ``frame_subsampling_factor``, which Kaldi's scripts read.
    Phones and pdfs keep their numbers: prepare_lang.sh takes the numbers of the phones from ``--phone-symbol-table``,
    but only if phones have no positions. So a phone's position in the word is written ``-B``, not ``_B``, and listed
    for Kaldi in ``dict/word_boundary.txt``. The window of Kaldi's tree has only the neighbours that our tree asks
    about.

    Raises Speech3Error: `out` has a model that no export wrote, such as Kaldi's own.
    """
    if (out / "final.mdl").exists() and not (out / "dict").is_dir():
        raise OccupiedError(f"{out}: has a final.mdl that is not from an earlier export; choose another OUT")
    width = hmm.tree.width
    files = ("tree", "topo", "final.mdl", "phones.txt", "dict/*", FINAL_MAT, SPLICE_OPTS, "frame_subsampling_factor")
    check_output(out, [], files, marks=["final.mdl"])
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
    """Every (phone, state, pdf) that the tree can return, in Kaldi's order, with our self-loop probabilities."""
    if hmm.topology == FIRST_AND_LOOP:
        pairs = [(phone, 0, first, loop) for phone in topology for first, loop in sorted(_pairs(hmm.tree, phone))]
        return TransitionModel(topology, np.array(pairs, np.int32), np.log([1.0, *[0.5] * (2 * len(pairs))]))
    states = [(phone, state) for phone in topology for state in range(hmm.topology.states)]
    rows = [(phone, state, pdf, pdf) for phone, state in states for pdf in sorted(_pdfs(hmm.tree, phone, state))]
    tuples = np.array(rows, np.int32)
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


def _root(hmm: Hmm, width: int) -> NodeTable:
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
        NodeTable(-1, tuple(node(int(tree.root[phone, state]), phone) for state in range(tree.states)))
        for phone in phones
    ]
    return NodeTable(width // 2, (None, *ways))


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
    lists = {"silence_phones": silences, "nonsilence_phones": others, "optional_silence": silences[:1]}
    for name, phones in {**lists, "extra_questions": list[str]()}.items():
        write_text(out / f"{name}.txt", "".join(f"{_exported(phone)}\n" for phone in phones))
    if lexicon.position_dependent:
        kinds = [_PLACES.get(phone[-2:], "nonword") for phone in lexicon.phones]
        lines = (f"{_exported(phone)} {kind}\n" for phone, kind in zip(lexicon.phones, kinds, strict=True))
        write_text(out / "word_boundary.txt", "".join(lines))


def write_projection(out: Path, projection: Projection) -> None:
    """Write ``final.mat`` (D, S) and ``splice_opts``, which Kaldi's scripts read."""
    write_mat(out / FINAL_MAT, projection.matrix.astype(np.float32))
    context = projection.context
    write_text(out / SPLICE_OPTS, f"--left-context={context} --right-context={context}\n")


def write_transforms(
    ark: Path,
    transforms: Mapping[str, np.ndarray],
    scp: Path | None = None,
    spk2utt: Path | None = None,
    speaker_of: Mapping[str, str] | None = None,
) -> None:
    """Write an archive of transforms by speaker, float32 (D, D + 1), and optionally its index and ``spk2utt``."""
    items = ((speaker, each.astype(np.float32)) for speaker, each in sorted(transforms.items()))
    write_ark(ark, items, scp)
    if spk2utt:
        utterances: dict[str, list[str]] = {}
        for utterance, speaker in sorted((speaker_of or {}).items()):
            utterances.setdefault(speaker, []).append(utterance)
        lines = (f"{speaker} {' '.join(each)}\n" for speaker, each in sorted(utterances.items()))
        write_text(spk2utt, "".join(lines))


def read_transforms(path: Path) -> dict[str, np.ndarray]:
    """Read transforms by speaker, float64: an archive, an index (``.scp``), or a directory with one or the other.

    Of a directory, ``trans.scp`` is read, or ``trans.ark`` and all of ``trans.1``, ``trans.2`` and so on, as Kaldi's
    scripts leave them.

    Raises Speech3Error: there are none, a file is damaged, or a speaker occurs in two archives.
    """
    if path.is_dir() and (path / "trans.scp").exists():
        path = path / "trans.scp"
    if path.suffix == ".scp":
        return {speaker: each.astype(np.float64) for speaker, each in ArkReader(path).items()}
    parts = sorted(each for each in path.glob("trans.*") if _PART.fullmatch(each.name)) if path.is_dir() else [path]
    if not parts or not parts[0].exists():
        within = path / "sat" / "trans.scp"  # where decoding by a network on adapted features writes them
        place = within.parent if within.exists() else "a directory that has some"
        raise MissingError(f"{path}: no transforms (trans.scp, trans.1, ...); pass {place}")
    numbers = sorted(int(part.suffix[1:]) for part in parts if path.is_dir() and part.suffix != ".ark")
    if missing := set(range(1, max(numbers, default=0) + 1)) - set(numbers):
        last = f"trans.{numbers[-1]}"
        raise MissingError(f"{path / f'trans.{min(missing)}'}: no such file, although {last} exists; copy it, too")
    found: dict[str, np.ndarray] = {}
    for part in parts:
        for speaker, matrix in read_mat_ark(part):
            if speaker in found:
                raise FormatError(f"{part}: {speaker} occurs a second time; remove one of the two transforms")
            found[speaker] = matrix.astype(np.float64)
    return found


def read_spk2utt(path: Path) -> dict[str, str]:
    """The speaker of each utterance, from lines ``speaker utterance utterance ...``.

    Raises Speech3Error: the file cannot be read, or an utterance has two speakers.
    """
    speaker_of: dict[str, str] = {}
    for number, line in enumerate(read_utf8(path).splitlines(), 1):
        speaker, *utterances = line.split() or [""]
        for utterance in utterances:
            if speaker_of.setdefault(utterance, speaker) != speaker:
                raise MismatchError(
                    f"{path}:{number}: {utterance} belongs to {speaker} here, but to {speaker_of[utterance]} above"
                )
    return speaker_of
