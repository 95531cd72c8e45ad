"""Training that is interrupted after some checkpoints and then resumed, beside training that is not."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from speech3.config import TrainConfig
from speech3.io.checkpoint import load_tensors
from speech3.train import train
from speech3.train.run import _Run


def both_runs(config: TrainConfig, root: Path, monkeypatch: pytest.MonkeyPatch, saves: int) -> dict[str, np.ndarray]:
    """The tensors of a run; one that is interrupted after `saves` checkpoints, one a minibatch, ends with the same."""
    whole = train(config, root / "whole")
    save, saved = _Run._save, []

    def save_and_stop(run: Any) -> None:
        save(run)
        saved.append(run.state.epoch)
        if len(saved) == saves:
            raise KeyboardInterrupt

    monkeypatch.setattr(_Run, "_save", save_and_stop)
    often = config.training.model_copy(update={"checkpoint_s": 0.0})
    with pytest.raises(KeyboardInterrupt):
        train(config.model_copy(update={"training": often}), root / "parts")
    monkeypatch.setattr(_Run, "_save", save)
    parts = train(config, root / "parts")
    assert parts["heldout_loss"] == pytest.approx(whole["heldout_loss"], rel=1e-5)
    first, second = (load_tensors(root / name / "model.safetensors", "nn")[0] for name in ("whole", "parts"))
    for name, array in first.items():
        np.testing.assert_allclose(second[name], array, rtol=1e-4, atol=1e-5)
    return first
