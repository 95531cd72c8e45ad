"""Recognisers of the language of whistles, and sounds in it."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile
import toys
import yaml
from whistles import FEATURES, HMM, RATE_HZ, SAID, SETTINGS, features, whistled

from speech3.decoding.graph import build_graph
from speech3.hmm.gmm import Gmm
from speech3.io.atomic import write_text


@pytest.fixture(scope="session")
def gmm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One Gaussian a phone (its three states alike), placed on the sounds above."""
    directory = tmp_path_factory.mktemp("gmm")
    lexicon = HMM.lexicon
    _, segments = SAID["a-bb"]
    feats_TF = features(whistled(*segments), directory)
    edges = np.cumsum([0, *(seconds for _, seconds in segments)])
    seconds_T = (np.arange(len(feats_TF)) + 1.25) * 0.01
    phone_T = np.array([lexicon.phone_ids[segments[np.searchsorted(edges, s) - 1][0]] for s in seconds_T])
    mean_PF = np.stack([feats_TF[phone_T == p].mean(0) for p in range(1, 4)]).repeat(3, axis=0)
    gaussians = Gmm(np.arange(HMM.num_pdfs + 1), np.ones(HMM.num_pdfs), mean_PF, np.full_like(mean_PF, 2.0))
    model = directory / "model"
    HMM.save(model)
    gaussians.save(model / "model.safetensors")
    write_text(model / "features.yaml", yaml.safe_dump(FEATURES.model_dump()))
    build_graph(HMM, toys.estimate([["A"], ["AB"], ["BB"], ["A", "BB"]], 2), model / "graph", toys.SCALE)
    SETTINGS.save(model)
    return model


@pytest.fixture
def model(gmm: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    return Path(shutil.copytree(gmm, tmp_path / "model"))


@pytest.fixture
def sounds(tmp_path: Path) -> dict[str, Path]:
    files = {}
    for name, (_, segments) in SAID.items():
        files[name] = tmp_path / f"{name}.wav"
        soundfile.write(files[name], whistled(*segments), RATE_HZ)
    return files
