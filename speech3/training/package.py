"""Makes the directory of a trained network self-contained: the meaning of its outputs, the features it reads."""

import os
import shutil
from pathlib import Path

from speech3.hmm.model import load_outputs

GRAPHS = ("graph", "graph_tuning")  # for decoding, and for tuning
GRAPH = ("HCLG.fst", "words.txt", "graph.json")
OF_GRAMMAR = ("G.fst", "lm.arpa.gz", "letters.arpa.gz", "lexicon.txt")  # not every graph has them
TUNING, DENOMINATOR = "tuning.json", "denominator.safetensors"


def complete(model: Path, hmm: Path, data: Path) -> None:
    """Copy into `model` the HMM of `hmm`, its denominator, decoding graphs and grid, and the features of `data`.

    What does not exist there is removed from `model`, where an earlier run may have left it. The network has the
    senones of `hmm`, so its graphs are valid for the network.
    """
    load_outputs(hmm).save(model)
    for source, name in ((data, "features.yaml"), (hmm, DENOMINATOR), (hmm, TUNING)):
        if (source / name).exists():
            shutil.copyfile(source / name, model / name)
        else:
            (model / name).unlink(missing_ok=True)
    share_graphs(model, hmm)


def share_graphs(model: Path, hmm: Path) -> None:
    """Give `model` the decoding graphs of `hmm`, if there are any: they depend on the HMM only, not on the network."""
    if (hmm / GRAPHS[0] / GRAPH[-1]).exists():
        for graph in GRAPHS:
            _copy_graph(hmm / graph, model / graph)


def _copy_graph(graph: Path, out: Path) -> None:
    shutil.rmtree(out, ignore_errors=True)  # it may be an old tuning graph, which this HMM no longer has
    if (graph / GRAPH[-1]).exists():
        out.mkdir()
        for name in (*GRAPH, *OF_GRAMMAR):
            if name not in OF_GRAMMAR or (graph / name).exists():
                _share(graph / name, out / name)


def _share(source: Path, copy: Path) -> None:
    """Make a hard link if the file system can, else copy: graphs are large and never written to."""
    try:
        os.link(source, copy)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, copy)
