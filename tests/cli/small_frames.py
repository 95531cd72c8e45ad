"""A corpus of so few frames that `speech3 train` takes seconds."""

from pathlib import Path
from typing import Any

import numpy as np
import yaml

from speech3.frames.packed import write_frames
from speech3.hmm.model import PdfsOnly

SENONES, DIM, MINIBATCHES = 4, 3, 12


def config_with_frames(home: Path, training: dict[str, Any]) -> Path:
    """Write ``home/my.yaml`` with minibatches of 32 frames, 12 per epoch, and the keys in `training`."""
    rng = np.random.default_rng(0)
    for name, count in (("train", MINIBATCHES), ("heldout", 2)):
        labels = {f"{name}{i}": rng.integers(0, SENONES, 32).astype(np.int32) for i in range(count)}
        feats = {u: (x[:, None] + rng.normal(0, 0.2, (32, DIM))).astype(np.float32) for u, x in labels.items()}
        write_frames(home / "frames" / f"{name}.frames", feats, labels, SENONES, utterances=list(feats), info={})
    PdfsOnly(SENONES, "made by hand").save(home / "hmm")
    config = {
        "frames": str(home / "frames"),
        "hmm": str(home / "hmm"),
        "model": {"layers": 1, "width": 8},
        "training": {"minibatch": 32, **training},
    }
    (home / "my.yaml").write_text(yaml.safe_dump(config))
    return home / "my.yaml"
