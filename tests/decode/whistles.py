"""A language whose two phones are whistles, with recognisers that need no training."""

from pathlib import Path

import numpy as np
import soundfile
import torch
import toys
import yaml

from speech3.config import FeatureConfig, ModelConfig
from speech3.data import audio
from speech3.decode.graph import build_graph
from speech3.decode.recognizer import Recognizer, features_of_samples
from speech3.decode.trained_model import DecodeSettings
from speech3.hmm.gmm import Gmm, load_gmm
from speech3.io.checkpoint import save_tensors
from speech3.language.lexicon import Lexicon, Pronunciation
from speech3.models.base import AcousticModel
from speech3.models.registry import build, network_tensors
from speech3.runtime.files import write_text

RATE_HZ = 8000
FEATURES = FeatureConfig(kind="fbank", num_mel_bins=8, sample_frequency=RATE_HZ, cmvn="utterance")
PHONE_HZ = {"a": 500.0, "b": 1800.0}
PRONUNCIATIONS = {"A": ("a",), "AB": ("a", "b"), "BB": ("b", "b")}
HMM = toys.toy_hmm(Lexicon(tuple(Pronunciation(*entry) for entry in PRONUNCIATIONS.items())))
SETTINGS = DecodeSettings(acoustic_scale=0.1, word_penalty=0.0, beam=30.0, max_active=1000)


def whistled(*segments: tuple[str, float]) -> np.ndarray:
    """The audio of segments (phone or "SIL", seconds), float32 (samples,)."""
    rng = np.random.default_rng(0)
    parts = []
    for phone, seconds in segments:
        time_s = np.arange(round(seconds * RATE_HZ)) / RATE_HZ
        tone = 0.3 * np.sin(2 * np.pi * PHONE_HZ[phone] * time_s) if phone in PHONE_HZ else 0.0 * time_s
        parts.append(tone + 0.003 * rng.standard_normal(len(time_s)))
    return np.concatenate(parts).astype(np.float32)


SAID = {
    "ab": (("AB",), (("SIL", 0.3), ("a", 0.2), ("b", 0.2), ("SIL", 0.3))),
    "a-bb": (("A", "BB"), (("SIL", 0.25), ("a", 0.3), ("SIL", 0.2), ("b", 0.3), ("SIL", 0.3))),
}


SMALL = {"layers": 1, "width": 5}


def features_of_file(recognizer: Recognizer, path: Path) -> np.ndarray:
    return features_of_samples(recognizer, *audio.read_file(path))[0]


def features(wave_S: np.ndarray, directory: Path, config: FeatureConfig = FEATURES) -> np.ndarray:
    soundfile.write(directory / "x.wav", wave_S, RATE_HZ)
    recognizer = Recognizer(directory, HMM, config, Gmm(*(np.zeros(1) for _ in range(4))))
    return features_of_file(recognizer, directory / "x.wav")


def save_gmm(directory: Path, config: FeatureConfig = FEATURES) -> Path:
    """Write a model directory with one Gaussian per phone (the same in its three states), with means from `SAID`."""
    lexicon = HMM.lexicon
    _, segments = SAID["a-bb"]
    feats_TF = features(whistled(*segments), directory, config)
    edges = np.cumsum([0, *(seconds for _, seconds in segments)])
    seconds_T = (np.arange(len(feats_TF)) + 1.25) * 0.01
    phone_T = np.array([lexicon.phone_ids[segments[np.searchsorted(edges, s) - 1][0]] for s in seconds_T])
    mean_PF = np.stack([feats_TF[phone_T == p].mean(0) for p in range(1, 4)]).repeat(3, axis=0)
    gaussians = Gmm(np.arange(HMM.num_pdfs + 1), np.ones(HMM.num_pdfs), mean_PF, np.full_like(mean_PF, 2.0))
    model = directory / "model"
    HMM.save(model)
    gaussians.save(model / "model.safetensors")
    write_text(model / "features.yaml", yaml.safe_dump(config.model_dump()))
    build_graph(HMM, toys.estimate_lm([["A"], ["AB"], ["BB"], ["A", "BB"]], 2), model / "graph", toys.SCALE)
    SETTINGS.save(model)
    return model


def save_network(
    directory: Path, num_senones: int = HMM.num_pdfs, feat_dim: int = FEATURES.num_mel_bins, **keys: object
) -> tuple[torch.nn.Module, np.ndarray]:
    """Write a network with random parameters and priors, in the form that training writes."""
    config = ModelConfig.model_validate({"left_context": 1, "right_context": 2, **(keys or SMALL)})
    network = build(config, feat_dim, num_senones, seed=3).eval()
    log_prior = np.log(np.random.default_rng(1).dirichlet(np.ones(num_senones))).astype(np.float32)
    write_network(directory, config, network, log_prior)
    return network, log_prior


def write_network(
    directory: Path, config: ModelConfig, network: AcousticModel, log_prior: np.ndarray, **more: object
) -> None:
    about = {"kind": "nn", "model": config.model_dump(), "feat_dim": network.feat_dim, "num_senones": len(log_prior)}
    about |= more
    save_tensors(directory / "model.safetensors", {**network_tensors(network), "log_prior": log_prior}, about)


def gaussians_to_network(directory: Path) -> None:
    """Replace Gaussians with a common variance by a network without hidden layers that gives the same scores."""
    gaussians = load_gmm(directory / "model.safetensors")
    config = ModelConfig.model_validate({"layers": 0, "left_context": 0, "right_context": 0})
    network = build(config, gaussians.mean.shape[1], gaussians.num_pdfs, seed=0)
    network.output.weight.data = torch.from_numpy(gaussians.mean / gaussians.var).float()
    network.output.bias.data = torch.from_numpy(-0.5 * (gaussians.mean**2 / gaussians.var).sum(1)).float()
    write_network(directory, config, network, np.full(gaussians.num_pdfs, -np.log(gaussians.num_pdfs), np.float32))
