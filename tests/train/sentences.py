"""A small corpus of sentences with all that training by LF-MMI needs, and a config for it."""

from pathlib import Path
from typing import Any

import numpy as np

from speech3.config import ModelConfig, TrainConfig, TrainingConfig, load_preset
from speech3.frames.packed import segment_labels, write_frames
from speech3.hmm.model import FIRST_AND_LOOP, Hmm, context_free_tree
from speech3.language.lexicon import Lexicon, Pronunciation
from speech3.sequence.graph import estimate_phone_lm
from speech3.sequence.lfmmi import make_denominator

PHONES, DIM = 5, 8
LEXICON = Lexicon(tuple(Pronunciation(f"w{p}", (p,)) for p in "abcd"))


def write(root: Path, impossible: int = 0) -> None:
    """Phones with features around centres of their own, in sentences of two patterns.

    `impossible`: number of further utterances in train with more phones than outputs.
    """
    rng = np.random.default_rng(0)
    centers = rng.normal(0, 1.5, (PHONES + 1, DIM))
    hmm = Hmm(
        LEXICON,
        context_free_tree(np.arange(2 * PHONES).reshape(PHONES, 2)),
        np.full(2 * PHONES, 0.5),
        FIRST_AND_LOOP,
        3,
    )
    said = {}
    for name, count in (("train", 40), ("heldout", 6)):
        feats, labels = {}, {}
        for i in range(count):
            phones = np.array([1, *rng.permutation([2, 3]), 4, 5, *rng.permutation([2, 4]), 1])
            lengths = rng.integers(4, 9, len(phones))
            labels[f"{name}{i}"] = segment_labels(phones, np.cumsum([0, *lengths]))
            feats[f"{name}{i}"] = (centers[np.repeat(phones, lengths)] + rng.normal(size=(lengths.sum(), DIM))).astype(
                np.float32
            )
            said[f"{name}{i}"] = phones.tolist()
        for i in range(impossible if name == "train" else 0):
            labels[f"bad{i}"] = segment_labels(np.array([2, 3] * 14), np.arange(29))
            feats[f"bad{i}"] = np.zeros((28, DIM), np.float32)
        write_frames(root / "frames" / f"{name}.frames", feats, labels, 2 * PHONES + 2, utterances=list(feats))
    hmm.save(root / "hmm")
    make_denominator(estimate_phone_lm(said.values(), 10), hmm).save(root / "hmm")


def config_of(corpus: Path, model: Any = (), **training: Any) -> TrainConfig:
    """To train a small network on it."""
    preset = load_preset(TrainingConfig, "training", "lfmmi")
    small = {"minibatch": 240, "sequence": 30, "max_epochs": 4, "frequency_warp": 0.0, "time_masks": 0,
             "frequency_masks": 0, "speeds": (), "learning_rate": 0.01, "weight_decay": 0.1,
             "precision": "float32"}  # fmt: skip
    network = {"family": "tdnn", "layers": 2, "width": 24, "bottleneck": 8, "prefinal": 16}
    return TrainConfig(
        frames=str(corpus / "frames"),
        hmm=str(corpus / "hmm"),
        model=ModelConfig(**{**network, **dict(model)}),
        training=TrainingConfig.model_validate(preset.model_dump() | small | training),
    )
