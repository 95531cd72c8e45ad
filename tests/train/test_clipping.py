"""What cell clipping is for: a run that fails without it and succeeds with it, all else equal.

A state of the world lasts for a hundred frames, as silence does, and each frame shows it through noise: a cell adds up
what it sees. Nothing bounds it, chunks are short and the state is carried, so cells reach thousands. Then the gradient
of a peephole, a gate's times a cell, is thousands of times what it was, and a step throws the gates about. With cells
within +-3 the same rate learns the task. (Without peepholes we saw no run that failed for want of clipping.)
"""

import math

import numpy as np
import pytest

from speech3.config import LstmConfig, TrainConfig, TrainingConfig
from speech3.frames.packed import write_frames
from speech3.hmm.model import PdfsOnly
from speech3.train import train

STATES, LENGTH = 4, 2000


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    root, rng = tmp_path_factory.mktemp("clipping"), np.random.default_rng(0)
    for name, count in (("train", 16), ("heldout", 4)):
        labels, feats = {}, {}
        for number in range(count):
            changes = rng.random(LENGTH) < 0.01
            labels[f"{name}{number}"] = rng.integers(0, STATES, 1 + changes.sum())[changes.cumsum()].astype(np.int32)
            shown_TF = 2 * np.eye(STATES)[labels[f"{name}{number}"]] + rng.normal(0, 1, (LENGTH, STATES))
            feats[f"{name}{number}"] = shown_TF.astype(np.float32)
        write_frames(root / "frames" / f"{name}.frames", feats, labels, STATES, utterances=list(feats), info={})
    PdfsOnly(STATES, "made by hand").save(root / "hmm")
    return root


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_it_diverges_without_and_trains_with_it(corpus, tmp_path, seed):
    results = {}
    for clip in (math.inf, 3.0):
        config = TrainConfig(
            frames=str(corpus / "frames"),
            hmm=str(corpus / "hmm"),
            seed=seed,
            model=LstmConfig(layers=1, cells=8, peepholes=True, cell_clip=clip),
            training=TrainingConfig(
                minibatch=160, sequence=20, learning_rate=1.0, momentum=0.9, schedule="constant", max_epochs=2
            ),
        )
        results[clip] = train(config, tmp_path / str(clip))["history"][-1]
    assert results[3.0]["heldout_accuracy"] > 0.95 and results[3.0]["heldout_loss"] < 0.2
    assert results[math.inf]["heldout_loss"] > 0.5 and results[math.inf]["heldout_accuracy"] < 0.85
