"""Decoding with more results than the best path: lattices, N-best lists, minimum Bayes risk."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from speech3.config import DecodeConfig
from speech3.decoding.recognizer import Recognizer
from speech3.decoding.search import (
    LATTICE_BEAM,
    Decoding,
    Hypothesis,
    confidences_in,
    latticed,
    small_enough,
    words_in,
)
from speech3.errors import check_bad
from speech3.graph.decoding_graph import Graph
from speech3.graph.pieces import join_words
from speech3.io.atomic import write_text
from speech3.io.progress import progress
from speech3.lattices.archive import write_lattices
from speech3.lattices.bayes_risk import confidences, minimum_bayes_risk
from speech3.lattices.directory import ARCHIVE, INDEX, describe_lattices, forget_lattices
from speech3.lattices.word_lattice import WordLattice, words_of
from speech3.lattices.word_paths import nbest
from speech3.search.lattice import Lattice

NBEST = "nbest.jsonl"


@dataclass(frozen=True)
class Wanted:
    """The results to produce in addition to words and confidences.

    Attributes
    ----------
    nbest
        Length of the N-best lists; 0 for none.
    archive
        Write lattices.
    bayes_risk
        Return the words with the fewest expected errors in place of the best path's.
    """

    nbest: int = 0
    archive: bool = False
    bayes_risk: bool = False


@dataclass(eq=False)
class Kept:
    """Statistics of the lattices that `decode_latticed` made.

    Attributes
    ----------
    densities
        Mean number of arcs per frame in each utterance's lattice (Kaldi's lattice-depth).
    without
        For each decoded utterance without a lattice, the reason.
    """

    densities: dict[str, float] = field(default_factory=dict)
    without: dict[str, str] = field(default_factory=dict)

    @property
    def density(self) -> float:
        """The mean of the utterances' densities."""
        return float(np.mean(list(self.densities.values()))) if self.densities else 0.0


_Made = tuple[Hypothesis, WordLattice | None, str]


def decode_latticed(
    recognizer: Recognizer,
    feats: Mapping[str, np.ndarray],
    out: Path,
    wanted: Wanted,
    jobs: int = 1,
    graph: Graph | None = None,
) -> tuple[Decoding, Kept]:
    """Decode with the tuned settings; write ``lat.ark`` and its companion files, and ``nbest.jsonl``, if `wanted`.

    The hypotheses have confidences. Each lattice is written as soon as it is made.

    Raises
    ------
    Speech3Error
        More than 5 % of the utterances failed (such as by scores that are NaN), or there were none.
    """
    graph, tuned = graph or recognizer.graph, recognizer.settings
    config, setting = DecodeConfig(beam=tuned.beam, max_active=tuned.max_active), (
        tuned.acoustic_scale, tuned.word_penalty
    )  # fmt: skip

    def make(best: Hypothesis, lattice: Lattice | None) -> _Made:
        return _made(graph, best, lattice, setting[0], wanted)

    found: dict[str, Hypothesis] = {}
    failed: dict[str, str] = {}
    lines: list[str] = []
    kept = Kept()
    shown = progress(recognizer.scores(feats), len(feats), "decoding")
    results = latticed(graph, shown, config, setting, jobs, make)

    def lattices() -> Iterator[tuple[str, WordLattice]]:
        for utterance, each in results:
            if isinstance(each, str):
                failed[utterance] = each
                continue
            found[utterance], lattice, best_lines = each
            lines.append(best_lines)
            if lattice is None:
                kept.without[utterance] = "its recording is too long"
            else:
                kept.densities[utterance] = lattice.density
                yield utterance, lattice

    forget_lattices(out)  # so that, if this is interrupted, those of an earlier decoding are not taken for this one's
    if wanted.archive:
        write_lattices(out / ARCHIVE, lattices(), out / INDEX)
        describe_lattices(out, graph, recognizer.directory, setting, LATTICE_BEAM)
    else:
        for _ in lattices():
            pass
    check_bad(failed, len(found) + len(failed), str(graph.path), "could not be decoded")
    if wanted.nbest:
        write_text(out / NBEST, "".join(lines))
    else:
        (out / NBEST).unlink(missing_ok=True)
    return Decoding(tuple(found.values()), failed), kept


def _made(graph: Graph, best: Hypothesis, lattice: Lattice | None, scale: float, wanted: Wanted) -> _Made:
    """For one utterance: hypothesis with confidences, word lattice, lines of ``nbest.jsonl``."""
    words = words_of(lattice, scale, LATTICE_BEAM) if lattice else None
    lines = "" if words is None else nbest_lines(best.utterance, words, graph.words, graph.mark, scale, wanted.nbest)
    said = tuple(graph.label_of[unit] for unit in best.units)
    if words is None or not small_enough(words, len(said)):
        # The lattice of the full beam is too large, so only narrower beams are tried.
        values = confidences_in(graph, lattice, best.units, scale, shares=(0.5, 0.25))
        return replace(best, confidences=values), words, lines
    risk = (minimum_bayes_risk if wanted.bayes_risk else confidences)(words, said, scale)
    units = tuple(graph.words[label] for label in risk.words)
    best = replace(best, units=units, words=words_in(graph, risk.words), confidences=risk.confidences)
    return best, words, lines


def nbest_lines(utterance: str, lattice: WordLattice, symbols: Sequence[str], mark: str, scale: float, n: int) -> str:
    """The N best paths of a lattice as lines of JSON (see `nbest_line`).

    Costs are minus natural logarithms; the acoustic cost is scaled, so that it and the graph cost add up to the cost.
    """
    paths = nbest(lattice, n, scale) if n else []
    lines = []
    for rank, path in enumerate(paths, 1):
        acoustic, units = scale * path.acoustic_cost(lattice), [symbols[word] for word in path.words]
        words = join_words(units, mark) if mark else units
        lines.append(nbest_line(utterance, rank, acoustic, path.cost - acoustic, words))
    return "".join(lines)


def nbest_line(utterance: str, rank: int, acoustic_cost: float, graph_cost: float, words: Sequence[str]) -> str:
    """A line of ``nbest.jsonl``: ``utterance``, ``rank`` from 1, ``cost``, its two parts, and ``words`` as a string."""
    costs = {"cost": acoustic_cost + graph_cost, "acoustic_cost": acoustic_cost, "graph_cost": graph_cost}
    rounded = {name: round(cost, 4) for name, cost in costs.items()}
    line = {"utterance": utterance, "rank": rank, **rounded, "words": " ".join(words)}
    return json.dumps(line, ensure_ascii=False) + "\n"
