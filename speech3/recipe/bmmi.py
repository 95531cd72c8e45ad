"""The step of a recipe's boosted MMI system, hmm.tri.discriminative: bmmi.

OUT/bmmi    the model directory: the triphones' HMM and graphs, and their GMMs trained further
"""

from speech3.hmm.gmm import load_gmm
from speech3.hmm.model import load_hmm
from speech3.hmm.workers import Workers
from speech3.io.ark import ArkReader, IntArkReader
from speech3.io.progress import Metrics
from speech3.recipe.experiment import BMMI, Experiment
from speech3.sequence import bmmi
from speech3.sequence.senones import silence_senones
from speech3.training.package import complete


def train_gmms(e: Experiment) -> None:
    """Train the triphones' GMMs further on their alignment; the HMM and its graphs are copied into the directory."""
    tri, out, preset = e.model("tri"), e.model(BMMI), e.recipe.hmm.features
    feats = ArkReader(e.features(preset, e.train) / "feats.scp")
    alignment = e.alignment("tri", e.train) / "ali.ark"
    aligned = IntArkReader(alignment)
    gmm, metrics = load_gmm(tri / "model.safetensors"), Metrics(out / "metrics.jsonl")
    hmm = load_hmm(tri)
    left_out_S, silence_S = bmmi.unknown_senones(hmm), silence_senones(hmm)
    # Transcripts are not needed any more.
    with Workers({utterance: [] for utterance in feats if utterance in aligned}, feats, e.jobs) as workers:
        gmm = bmmi.train(workers, gmm, e.recipe.hmm.bmmi, alignment, left_out_S, metrics, silence_S)
    complete(out, hmm=tri, data=tri)
    gmm.save(out / "model.safetensors", {"features": preset})
