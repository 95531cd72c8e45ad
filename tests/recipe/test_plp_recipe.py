"""A recipe whose network reads PLP and pitch: frequency warps and masks are left out, with a message."""

from pathlib import Path

import pytest

from speech3.config import FeatureConfig, parse, read_yaml
from speech3.frames.packed import open_packed
from speech3.recipe.experiment import open_experiment


@pytest.mark.slow
def test_plp_and_pitch_by_one_word(speech3, tiny, mine: Path) -> None:
    options = (*tiny, "features=plp13_pitch1_d2", "training.frequency_warp=0.1")
    process = speech3("recipe", "digits", "--out", mine, *options)
    assert process.returncode == 0, process.stderr
    assert "plp13_pitch1_d2 has no mel bins: training without frequency warps, masks and speeds" in process.stderr
    assert process.stdout.splitlines()[-1].startswith("digits dnn WER ")
    assert open_packed(mine / "frames" / "tri_plp13_pitch1_d2" / "train.frames").dim == 42
    path = mine / "dnn" / "features.yaml"
    config = parse(FeatureConfig, read_yaml(path), path)
    assert config.kind == "plp" and config.pitch and config.pitch.dim == 1
    recording = sorted((mine / "data" / "test" / "wav").glob("*.wav"))[0]
    heard = speech3("transcribe", mine / "dnn", recording)
    assert heard.returncode == 0, heard.stderr


def test_mel_bins_are_warped_with_pitch_beside_them(tmp_path: Path) -> None:
    options = ["features=fbank40_pitch", "training.frequency_warp=0.1"]
    assert open_experiment("digits", tmp_path, None, options, "").training.frequency_warp == 0.1
    options[0] = "features=mfcc13_d2"
    assert open_experiment("digits", tmp_path, None, options, "").training.frequency_warp == 0.0
