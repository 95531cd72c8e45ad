"""A trained network becomes a model directory that stands on its own: what its outputs mean, what its inputs are."""

import os
import shutil
from pathlib import Path

from speech3.hmm.model import load_outputs

GRAPHS = ("graph", "graph_tuning")  # for use, and to tune with
GRAPH = ("HCLG.fst", "words.txt", "graph.json")
OF_GRAMMAR = ("G.fst", "lm.arpa.gz")  # older graphs have none; only n-gram models have the second
TUNING, DENOMINATOR = "tuning.json", "denominator.safetensors"


def complete(model: Path, hmm: Path, data: Path) -> None:
    """Copy into `model` the HMM of `hmm`, its denominator, decoding graphs and grid, and the features of `data`.

    Denominator, graphs and grid only if there are any. The senones are those of `hmm`, so its graphs serve the network
    as they are.
    """
    load_outputs(hmm).save(model)
    if (data / "features.yaml").exists():
        shutil.copyfile(data / "features.yaml", model / "features.yaml")
    if (hmm / DENOMINATOR).exists():
        shutil.copyfile(hmm / DENOMINATOR, model / DENOMINATOR)
    if (hmm / TUNING).exists():
        shutil.copyfile(hmm / TUNING, model / TUNING)
    if (hmm / GRAPHS[0] / GRAPH[-1]).exists():
        for graph in GRAPHS:
            _copy_graph(hmm / graph, model / graph)


def _copy_graph(graph: Path, out: Path) -> None:
    shutil.rmtree(out, ignore_errors=True)  # an earlier one to tune with, which this HMM has no more
    if (graph / GRAPH[-1]).exists():
        out.mkdir()
        for name in (*GRAPH, *OF_GRAMMAR):
            if name not in OF_GRAMMAR or (graph / name).exists():
                _share(graph / name, out / name)


def _share(source: Path, copy: Path) -> None:
    """Graphs are large, and nobody writes into one: where the file system can, both names are of one file."""
    try:
        os.link(source, copy)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, copy)
