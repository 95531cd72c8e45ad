"""The path of each lattice with the fewest errors, as a hypothesis that can be scored (Kaldi's lattice-oracle)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from speech3.errors import Speech3Error
from speech3.lattices.compose import spelled
from speech3.lattices.directory import LatticeDir, open_lattices
from speech3.lattices.word_lattice import WordLattice
from speech3.lattices.word_paths import oracle_words


def oracle_texts(archive: Path, references: Mapping[str, str]) -> dict[str, str]:
    """For each utterance with a lattice and a reference, the words of the lattice's path with the fewest errors.

    Raises
    ------
    Speech3Error
        The archive is missing or damaged, was not written by `speech3 decode --lattice`, or has no utterance of the
        reference.
    """
    directory = open_lattices(archive.parent)
    number = {name: label for label, name in enumerate(directory.symbols)}
    texts = {
        utterance: _oracle_text(lattice, directory, number, references[utterance].split())
        for utterance, lattice in directory.lattices()
        if utterance in references
    }
    if not texts:
        raise Speech3Error(f"{archive}: has no utterance of the reference; they belong to different sets")
    return texts


def _oracle_text(lattice: WordLattice, directory: LatticeDir, number: dict[str, int], reference: list[str]) -> str:
    names: Sequence[str] = directory.symbols
    if directory.mark:
        lattice, names = _of_words(lattice, directory.symbols)
        number = {name: label for label, name in enumerate(names)}
    found = oracle_words(lattice, [number.get(word, -1) for word in reference])
    return " ".join(names[word] for word in found if word)


def _of_words(lattice: WordLattice, symbols: tuple[str, ...]) -> tuple[WordLattice, list[str]]:
    """A lattice of whole words from one of pieces, and the words' names.

    Each word is on the arc that completes it; words that are completed where a path ends are on arcs to one more state.
    """
    expanded, words, last = spelled(lattice, symbols)
    names = ["", *sorted({*words, *last} - {""})]
    number = {name: label for label, name in enumerate(names)}
    ends, state = np.flatnonzero(np.isfinite(expanded.final_graph_S)), len(last)
    source_A = np.concatenate([expanded.source_A, ends])
    order_A = np.argsort(source_A, kind="stable")
    word_A = np.array([number[word] for word in (*words, *(last[end] for end in ends))], np.int32)
    target_A = np.concatenate([expanded.target_A, np.full(len(ends), state)])
    final_S = np.append(np.full(state, np.inf), 0.0)
    spoken = replace(
        expanded, source_A=source_A[order_A], target_A=target_A[order_A], word_A=word_A[order_A], final_graph_S=final_S
    )
    return spoken, names
