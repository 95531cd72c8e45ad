"""A Kaldi alignment directory (`final.mdl`, `tree`, `ali.*.gz`) as senones and, if they can be converted, an `Hmm`.

Axes: T frames, K transition-ids, P pdfs.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from speech3.errors import Speech3Error
from speech3.hmm.model import Hmm, PdfsOnly
from speech3.hmm.topology import THREE_STATES
from speech3.hmm.tree import Tree
from speech3.io.ark import read_int_ark
from speech3.kaldi.lang import check_same_phones, read_lang
from speech3.kaldi.transitions import TransitionModel, left_to_right, read_transition_model
from speech3.kaldi.tree import KaldiTree, read_tree, to_tree


@dataclass(eq=False)
class KaldiAlignment:
    """An alignment directory with its model and tree, which were checked to match.

    Attributes
    ----------
    seen_K
        Frames of each transition-id in the alignments that `senones` has yielded.
    """

    path: Path
    model: TransitionModel
    tree: KaldiTree
    parts: list[Path]
    seen_K: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.seen_K = np.zeros(len(self.model.pdf_K), np.int64)

    def senones(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield each utterance and the pdf of each of its frames, (T,) int32.

        Raises
        ------
        Speech3Error
            A part is damaged, an utterance occurs twice, or the model lacks a transition-id.
        """
        yielded: set[str] = set()
        for part in self.parts:
            for utterance, ids_T in read_int_ark(part).items():
                if utterance in yielded:
                    raise Speech3Error(f"{part}: {utterance} occurs in {self.path} a second time; align again")
                yielded.add(utterance)
                wrong_T = (ids_T < 1) | (ids_T >= len(self.model.pdf_K))
                if wrong_T.any():
                    frame = int(wrong_T.argmax())
                    raise Speech3Error(
                        f"{part}: {utterance}, frame {frame}: transition-id {ids_T[frame]}, but {self.path}/final.mdl"
                        f" has {len(self.model.pdf_K) - 1}; give the final.mdl that made this alignment"
                    )
                self.seen_K += np.bincount(ids_T, minlength=len(self.seen_K))
                yield utterance, self.model.pdf_K[ids_T]

    def outputs(self, lang: Path | None) -> Hmm | PdfsOnly:
        """Convert model, tree and `lang` to an `Hmm`, or to the number of pdfs if that is impossible.

        Call it after `senones`, whose frames weight the self-loop probabilities.

        Raises
        ------
        Speech3Error
            `lang` is damaged, or its phone set is not that of the alignment directory.
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
                raise Speech3Error(
                    f"{lang}: phone {names[phone]} is not in {self.path}/final.mdl; give the lang directory that the"
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

    Raises
    ------
    Speech3Error
        A file is missing or damaged, tree and model have different numbers of pdfs, or a part is missing.
    """
    path = Path(path)
    if not path.is_dir():
        raise Speech3Error(f"{path}: no such directory; give a directory with final.mdl, tree and ali.*.gz")
    model, tree = read_transition_model(path / "final.mdl"), read_tree(path / "tree")
    if model.num_pdfs != tree.num_pdfs:
        raise Speech3Error(
            f"{path}/final.mdl has {model.num_pdfs} pdfs, {path}/tree has {tree.num_pdfs}: they belong to"
            " different models; take both from one directory"
        )
    numbers = sorted(int(p.name.split(".")[1]) for p in path.glob("ali.*.gz") if p.name.split(".")[1].isdigit())
    jobs = path / "num_jobs"
    if not numbers:
        raise Speech3Error(f"{path}: has no ali.*.gz; make them with Kaldi's steps/align_si.sh or align_fmllr.sh")
    expected = (
        int(text) if jobs.exists() and (text := jobs.read_text(encoding="utf-8").strip()).isdigit() else numbers[-1]
    )
    if missing := sorted(set(range(1, expected + 1)) - set(numbers)):
        raise Speech3Error(f"{path}: ali.{missing[0]}.gz is missing, one of {expected}; copy it too, or align again")
    return KaldiAlignment(path, model, tree, [path / f"ali.{number}.gz" for number in numbers])


def _asks_neighbours(tree: Tree, phone: int) -> bool:
    return any(tree.side[tree.root[phone, state]] >= 0 for state in range(tree.states))
