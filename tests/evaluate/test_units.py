"""`inspect --unit`: which windows excite a unit, checked against a network whose units are known."""

from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
import torch

from speech3.config import DnnConfig
from speech3.errors import Speech3Error
from speech3.evaluate import draw_unit
from speech3.evaluate.units import excitement
from speech3.frames import open_packed, write_frames
from speech3.io import save_tensors
from speech3.models import build, load_network, network_tensors

FEATS = {f"u{n}": np.random.default_rng(n).normal(size=(80, 4)).astype(np.float32) for n in range(3)}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A DNN whose unit 2 of layer 1 is bin 3 of the frame after the middle one."""
    labels = {key: np.arange(80, dtype=np.int32) % 5 for key in FEATS}
    write_frames(tmp_path / "frames" / "train.frames", FEATS, labels, 5, utterances=list(FEATS))
    config = DnnConfig(layers=2, width=6, left_context=1, right_context=1)
    model = build(config, 4, 5, seed=1)
    with torch.no_grad():
        model.layers.hidden[0].weight[2] = torch.eye(12)[2 * 4 + 3]
    about = {"kind": "nn", "model": config.model_dump(), "feat_dim": 4, "num_senones": 5}
    tensors = {**network_tensors(model), "log_prior": np.zeros(5, np.float32)}
    save_tensors(tmp_path / "model.safetensors", tensors, about)
    return tmp_path


def test_the_strongest_windows_are_those_that_the_unit_was_made_for(run: Path) -> None:
    found = excitement(load_network(run)[0], open_packed(run / "frames" / "train.frames"), 1, 2, most=10)
    after = np.concatenate([np.append(feats_TF[1:, 3], feats_TF[-1, 3]) for feats_TF in FEATS.values()])
    np.testing.assert_allclose(found.values_N, np.maximum(after, 0), atol=1e-6)
    assert found.strongest[0] == after.argmax() and len(found.strongest) == 10
    assert min(np.diff(sorted(found.strongest))) > 2  # windows of three frames do not overlap
    chosen = set(found.strongest)
    left_out = [n for n in np.argsort(-after)[:10].tolist() if n not in chosen]
    assert all(any(abs(n - other) <= 2 and after[other] >= after[n] for other in chosen) for n in left_out)


def test_the_picture_and_its_description(run: Path) -> None:
    lines = dict(draw_unit(run, "1:2", None, run / "unit.png"))
    assert lines["frames"].startswith("240 of") and "above 0 in" in lines["output"]
    assert matplotlib.image.imread(run / "unit.png").std() > 0


@pytest.mark.parametrize(
    ("unit", "message"),
    [
        ("3", r"--unit 3: expected LAYER:UNIT, as in 3:17"),
        ("3:1", r"--unit 3:1: the fully connected hidden layers are 1 to 2"),
        ("1:6", r"--unit 1:6: layer 1 has the units 0 to 5"),
    ],
)
def test_what_does_not_exist_is_named(run: Path, unit: str, message: str) -> None:
    with pytest.raises(Speech3Error, match=message):
        draw_unit(run, unit, None, run / "unit.png")


def test_frames_that_do_not_fit_are_named(run: Path) -> None:
    feats, labels = {"a": np.zeros((9, 3), np.float32)}, {"a": np.zeros(9, np.int32)}
    write_frames(run / "other.frames", feats, labels, 5, utterances=["a"])
    with pytest.raises(Speech3Error, match="3 feature bins per frame, but the network reads 4"):
        draw_unit(run, "1:2", run / "other.frames", run / "unit.png")
    (run / "frames" / "train.frames").unlink()
    with pytest.raises(Speech3Error, match="pass --frames FILE"):
        draw_unit(run, "1:2", None, run / "unit.png")
