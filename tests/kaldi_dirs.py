"""Directories like those that Kaldi writes, made from one of our HMMs; and Kaldi's binary values, encoded by hand."""

import gzip
import struct
from pathlib import Path

import numpy as np

from speech3.hmm.kaldi.convert import export_kaldi
from speech3.hmm.kaldi.model import KaldiTree, Leaf, Node, Question, TransitionModel, read_transition_model
from speech3.hmm.model import Hmm
from speech3.io.ark import write_ark
from speech3.io.fst import Fst, read_fst, write_fst


def integer(value: int) -> bytes:
    return b"\x04" + struct.pack("<i", value)


def unsigned(value: int) -> bytes:
    return b"\xfc" + struct.pack("<I", value)


def real(value: float) -> bytes:
    return b"\x04" + struct.pack("<f", value)


def integers(*values: int) -> bytes:
    return b"\x04" + struct.pack(f"<i{len(values)}i", len(values), *values)


def vector(*values: float) -> bytes:
    return b"FV " + b"\x04" + struct.pack(f"<i{len(values)}f", len(values), *values)


def transition_ids(model: TransitionModel, pdfs_T: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """For each pdf, one of its transition-ids at random."""
    return np.array([rng.choice(np.flatnonzero(model.pdf_K == pdf)) for pdf in pdfs_T], np.int32)


def kaldi_alignment(directory: Path, hmm: Hmm, pdfs: dict[str, np.ndarray], parts: int = 2) -> TransitionModel:
    """``final.mdl``, ``tree``, ``ali.*.gz`` and ``num_jobs`` for an alignment in pdfs."""
    export_kaldi(hmm, directory)
    model, rng = read_transition_model(directory / "final.mdl"), np.random.default_rng(0)
    names = sorted(pdfs)
    for part in range(parts):
        ids = [(name, transition_ids(model, pdfs[name], rng)) for name in names[part::parts]]
        write_ark(directory / "ali", ids)
        (directory / f"ali.{part + 1}.gz").write_bytes(gzip.compress((directory / "ali").read_bytes()))
    (directory / "ali").unlink()
    (directory / "num_jobs").write_text(f"{parts}\n")
    return model


def kaldi_lang(directory: Path, hmm: Hmm, oov: str = "<UNK>") -> None:
    """``phones.txt``, ``phones/align_lexicon.txt``, ``phones/optional_silence.txt``, ``oov.txt``."""
    lexicon = hmm.lexicon
    (directory / "phones").mkdir(parents=True)
    names = ["<eps>", *lexicon.phones, "#0", "#1"]
    (directory / "phones.txt").write_text("".join(f"{name} {number}\n" for number, name in enumerate(names)))
    lines = [f"{pron.word} {pron.word} {' '.join(pron.phones)}" for pron in lexicon.pronunciations]
    silence = lexicon.silence_phones[0]
    text = "\n".join([f"<eps> <eps> {silence}", f"!SIL !SIL {silence}", *lines])
    (directory / "phones" / "align_lexicon.txt").write_text(text + "\n")
    (directory / "phones" / "optional_silence.txt").write_text(f"{silence}\n")
    (directory / "oov.txt").write_text(f"{oov}\n")


def kaldi_graph(directory: Path, ours: Path, model: TransitionModel) -> None:
    """HCLG.fst with transition-ids, words.txt and num_pdfs, from one of our graphs."""
    fst, rng = read_fst(ours / "HCLG.fst"), np.random.default_rng(1)
    arcs_A = fst.arcs_A.copy()
    reading = arcs_A["ilabel"] > 0
    arcs_A["ilabel"][reading] = transition_ids(model, arcs_A["ilabel"][reading] - 1, rng)
    directory.mkdir(parents=True)
    write_fst(Fst(fst.start, fst.final_S, fst.source_A, arcs_A), directory / "HCLG.fst")
    (directory / "words.txt").write_bytes((ours / "words.txt").read_bytes())
    (directory / "num_pdfs").write_text(f"{model.num_pdfs}\n")


def answer(tree: KaldiTree, window: tuple[int, ...], pdf_class: int) -> int | None:
    """Pdf of a state of the phone in the middle of the window, as Kaldi looks it up; None if the tree has none."""
    node: Node | None = tree.root
    while node is not None and not isinstance(node, Leaf):
        value = pdf_class if node.key == -1 else window[node.key]
        if isinstance(node, Question):
            node = node.yes if value in node.members else node.no
        else:
            node = node.ways[value] if 0 <= value < len(node.ways) else None
    return None if node is None else node.pdf
