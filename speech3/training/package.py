"""A trained network becomes a model directory that stands on its own: what its outputs mean, what its inputs are."""

import shutil
from pathlib import Path

from speech3.hmm.model import load_outputs

GRAPH = ("HCLG.fst", "words.txt", "graph.json")


def complete(model: Path, hmm: Path, data: Path) -> None:
    """Copy into `model` the HMM of the directory `hmm`, its decoding graph if it has one, and the features of `data`.

    The senones are those of `hmm`, so its graph serves the network as it is.
    """
    load_outputs(hmm).save(model)
    if (data / "features.yaml").exists():
        shutil.copyfile(data / "features.yaml", model / "features.yaml")
    if (hmm / "graph" / GRAPH[-1]).exists():
        (model / "graph").mkdir(exist_ok=True)
        for name in GRAPH:
            shutil.copyfile(hmm / "graph" / name, model / "graph" / name)
