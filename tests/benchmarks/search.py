"""Speed of our search compared with kaldi-decoder's FasterDecoder, on a model and data; one JSON line per figure.

    OMP_NUM_THREADS=1 python tests/benchmarks/search.py MODEL FEATS.scp [GRAPH] [--utterances 20] [--rounds 5]

The model scores the utterances first, which is not measured. Then both searches take turns, round by round and
utterance by utterance, with the model's beam, limit of states, acoustic scale and word penalty (if the model is not
tuned: 15, 7000, 1 for LF-MMI and 0.1 for others, 0). Results are medians over rounds of the CPU seconds of the
searching thread.

search_over_kaldi_decoder
    The best path, including its words.
lattice_over_kaldi_decoder
    Ours with a state-level lattice (lattice beam 8, pruned, as arrays) over kaldi-decoder's best path only: its own
    lattices have no limit of states, and take ten times as long.

Both lines have the number of utterances with different words, and the largest difference of the cost of our path and
the rival's (exact costs of both paths by the scores; below 0: ours found a better path for every utterance).
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import kaldi_decoder
import kaldifst
import numpy as np
import torch

from speech3.decode.beam_search import BeamSearch, BestPath, SearchGraph, with_word_penalty
from speech3.decode.graph import DecodingGraph
from speech3.decode.recognizer import Recognizer, load_recognizer
from speech3.decode.trained_model import DecodeSettings
from speech3.io.ark import ArkReader

LATTICE_BEAM = 8.0


def settings_of(recognizer: Recognizer) -> DecodeSettings:
    """The tuned settings of the model, or the usual ones."""
    if (recognizer.directory / "decode.json").exists():
        return recognizer.settings
    return DecodeSettings(1.0 if recognizer.scorer.pseudo_likelihoods else 0.1, 0.0, 15.0, 7000)


def rival_search(
    graph: DecodingGraph, charged: SearchGraph, settings: DecodeSettings
) -> Callable[[np.ndarray], tuple[np.ndarray, tuple[int, ...], float]]:
    """kaldi-decoder as speech3 used to call it: returns pdfs, words and the graph's cost of the best path."""
    from speech3.io.fst import ARC, Fst, temporary_fst

    source_A = np.repeat(np.arange(len(graph.fst.final_S), dtype=np.int32), np.diff(charged.begin_S1))
    arcs_A = charged.arcs_A4.reshape(-1).view(ARC)
    with temporary_fst(Fst(graph.fst.start, graph.fst.final_S, source_A, arcs_A)) as path:
        fst = kaldifst.StdConstFst.read(str(path))
    options = kaldi_decoder.FasterDecoderOptions(beam=settings.beam, max_active=settings.max_active)

    def search(scores_TP: np.ndarray) -> tuple[np.ndarray, tuple[int, ...], float]:
        scaled_TP = np.ascontiguousarray(scores_TP * settings.acoustic_scale, dtype=np.float32)
        decoder = kaldi_decoder.FasterDecoder(fst, options)
        decoder.decode(kaldi_decoder.DecodableCtc(scaled_TP))
        _, path = decoder.get_best_path()
        _, labels, words, weight = kaldifst.get_linear_symbol_sequence(path)
        return np.array(labels, np.int32) - 1, tuple(words), weight.value1

    return search


def measured(
    scores: Mapping[str, np.ndarray], searches: Mapping[str, Callable[[np.ndarray], Any]], rounds: int
) -> tuple[dict[str, list[float]], dict[str, list[Any]]]:
    """CPU seconds of each search in each round, and the paths that each found."""
    seconds: dict[str, list[float]] = {name: [] for name in searches}
    found: dict[str, list[Any]] = {}
    for _ in range(rounds):
        spent = dict.fromkeys(searches, 0.0)
        found = {name: [] for name in searches}
        for scores_TP in scores.values():
            for name, search in searches.items():
                start = time.thread_time()
                found[name].append(search(scores_TP))
                spent[name] += time.thread_time() - start
        for name, value in spent.items():
            seconds[name].append(value)
    return seconds, found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("feats", type=Path)
    parser.add_argument("graph", type=Path, nargs="?")
    parser.add_argument("--utterances", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    recognizer = load_recognizer(given.model)
    graph, settings = recognizer.read_graph(given.graph) if given.graph else recognizer.graph, settings_of(recognizer)
    feats = ArkReader(given.feats)
    scores = dict(recognizer.scores({key: feats[key] for key in list(feats)[: given.utterances]}))
    charged, search = with_word_penalty(graph.arranged, settings.word_penalty), BeamSearch()

    def ours(scores_TP: np.ndarray, lattice_beam: float | None = None) -> BestPath | None:
        scale, beam, most = settings.acoustic_scale, settings.beam, settings.max_active
        search.begin(charged, "an utterance", scale, beam, most, lattice_beam)
        search.read(scores_TP)
        assert lattice_beam is None or search.lattice() is not None
        return search.best_path()

    searches = {
        "kaldi": rival_search(graph, charged, settings),
        "one_best": ours,
        "lattice": lambda scores_TP: ours(scores_TP, LATTICE_BEAM),
    }
    for one in searches.values():
        one(next(iter(scores.values())))  # compiles, and allocates memory
    seconds, found = measured(scores, searches, given.rounds)
    frames = sum(map(len, scores.values()))
    for name, key, rival in (
        ("search_over_kaldi_decoder", "one_best", "kaldi-decoder's FasterDecoder, one best path"),
        ("lattice_over_kaldi_decoder", "lattice", "kaldi-decoder's FasterDecoder, one best path without a lattice"),
    ):
        ratios = [theirs / mine for theirs, mine in zip(seconds["kaldi"], seconds[key], strict=True)]
        excess, other = -np.inf, 0
        for (pdfs_T, words, graph_cost), path, scores_TP in zip(
            found["kaldi"], found[key], scores.values(), strict=True
        ):
            read_T = scores_TP[np.arange(len(scores_TP)), pdfs_T].astype(np.float64)
            excess = max(excess, path.cost - graph_cost + settings.acoustic_scale * read_T.sum())
            other += path.olabels != words
        print(json.dumps({
            "name": name, "value": round(statistics.median(ratios), 3), "unit": "times", "rival": rival,
            "model": str(given.model), "beam": settings.beam, "max_active": settings.max_active,
            "utterances": len(scores), "frames": frames, "other_words": other, "worst_excess_cost": round(excess, 5),
            "our_cpu_s": round(statistics.median(seconds[key]), 3), "rounds": given.rounds,
        }), flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
