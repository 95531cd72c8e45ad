"""All features of a data directory, as `extract` writes them."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from speech3.config import FeatureConfig
from speech3.data import DataDir
from speech3.features import extract
from speech3.io import ArkReader


def extracted(data: DataDir, config: FeatureConfig) -> dict[str, np.ndarray]:
    with TemporaryDirectory() as out:
        extract(data, Path(out), config, 1)
        return dict(ArkReader(Path(out) / "feats.scp"))
