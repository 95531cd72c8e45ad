"""With global CMVN, all splits of a recipe are normalised with the statistics of the training data."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile

from speech3.config import FeatureConfig
from speech3.io.ark import ArkReader
from speech3.recipe.stages import extract_features

RATE_HZ = 8000


@pytest.mark.parametrize("cmvn", ["global", "utterance"])
def test_later_splits_get_the_statistics_of_the_first(tmp_path: Path, cmvn: str) -> None:
    random = np.random.default_rng(0)
    for split, deviation in (("train", 0.2), ("dev", 0.002)):
        data = tmp_path / "data" / split
        data.mkdir(parents=True)
        soundfile.write(data / "u.wav", random.normal(0, deviation, 8000), RATE_HZ)
        (data / "wav.scp").write_text("u u.wav\n")
        (data / "utt2spk").write_text("u s\n")
    experiment = SimpleNamespace(
        splits=("train", "dev"),
        extracted=("train", "dev"),
        presets={"mine": FeatureConfig(cmvn=cmvn)},
        jobs=1,
        data=lambda split: tmp_path / "data" / split,
        features=lambda preset, split: tmp_path / preset / split,
    )
    extract_features(experiment, "mine")
    train, dev = (ArkReader(tmp_path / "mine" / split / "feats.scp")["u"] for split in ("train", "dev"))
    assert abs(train.mean()) < 1e-4
    # A hundredth of the amplitude: log energies are lower by twice the logarithm of 100.
    expected = 2 * np.log(1 / 100) if cmvn == "global" else 0.0
    assert abs(dev.mean() - expected) < 0.2
    files = [(tmp_path / "mine" / split / "features.yaml").read_bytes() for split in ("train", "dev")]
    assert files[0] == files[1]
