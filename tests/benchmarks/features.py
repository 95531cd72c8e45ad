"""Speed of the features over torchaudio's and kaldi-native-fbank's, on one thread, with the numbers compared first.

    OMP_NUM_THREADS=1 python tests/benchmarks/features.py

One recording of 60 s at 16 kHz, 40 mel bins (MFCC: 23), dither off; rounds of all in turn, the median of their ratios.
"""

import importlib
import importlib.metadata
import json
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from speech3.config import FeatureConfig
from speech3.features.compute import static_features
from speech3.io.torchaudio_ import torchaudio_functional

RATE_HZ, SECONDS, ROUNDS = 16000, 60, 9
FBANK = FeatureConfig(num_mel_bins=40)
MFCC = FeatureConfig(kind="mfcc", use_energy=False)
Extractor = Callable[[Tensor], Tensor]


def ours(config: FeatureConfig) -> Extractor:
    """Static features of one recording."""
    return lambda wave_S: static_features(wave_S[None], torch.tensor([len(wave_S)]), config, RATE_HZ)[0][0]


def torchaudios(name: str, bins: int) -> Extractor:
    """torchaudio.compliance.kaldi's function of this name."""
    torchaudio_functional()  # where torchaudio's compiled part does not load, this makes room for its Python
    function = getattr(importlib.import_module("torchaudio.compliance.kaldi"), name)
    return lambda wave_S: function(wave_S[None] * 32768, num_mel_bins=bins, dither=0.0, sample_frequency=RATE_HZ)


def native() -> Extractor:
    """kaldi-native-fbank, C++; it hands out frame after frame, so making a matrix of them is part of its time."""
    knf = importlib.import_module("kaldi_native_fbank")
    options = knf.FbankOptions()
    options.frame_opts.dither, options.frame_opts.samp_freq, options.mel_opts.num_bins = 0.0, RATE_HZ, 40

    def extract(wave_S: Tensor) -> Tensor:
        online = knf.OnlineFbank(options)
        online.accept_waveform(RATE_HZ, (wave_S * 32768).numpy())
        online.input_finished()
        return torch.from_numpy(np.stack([online.get_frame(t) for t in range(online.num_frames_ready)]))

    return extract


def main() -> None:
    """Print a JSON line for each ratio."""
    torch.set_num_threads(1)
    wave_S = (torch.randn(RATE_HZ * SECONDS, generator=torch.Generator().manual_seed(1)) * 3000).round() / 32768
    audio = f"torchaudio {importlib.metadata.version('torchaudio')}"
    extractors = {
        "fbank": ours(FBANK),
        "mfcc": ours(MFCC),
        "torchaudio fbank": torchaudios("fbank", 40),
        "torchaudio mfcc": torchaudios("mfcc", 23),
        "native fbank": native(),
    }
    results = {name: extract(wave_S) for name, extract in extractors.items()}
    assert (results["fbank"] - results["torchaudio fbank"]).abs().max() < 1e-3
    assert (results["mfcc"] - results["torchaudio mfcc"]).abs().max() < 1e-3
    assert (results["fbank"] - results["native fbank"]).abs().max() < 1e-3
    seconds: dict[str, list[float]] = {name: [] for name in extractors}
    for _ in range(ROUNDS):
        for name, extract in extractors.items():
            start = time.perf_counter()
            extract(wave_S)
            seconds[name].append(time.perf_counter() - start)
    for line, mine, rival, package in (
        ("fbank40_over_torchaudio", "fbank", "torchaudio fbank", f"{audio} compliance.kaldi.fbank"),
        ("fbank40_over_native", "fbank", "native fbank", "kaldi-native-fbank"),
        ("mfcc13_over_torchaudio", "mfcc", "torchaudio mfcc", f"{audio} compliance.kaldi.mfcc"),
    ):
        ratio = statistics.median(r / m for m, r in zip(seconds[mine], seconds[rival], strict=True))
        speed = {"frames_per_s": mine, "rival_frames_per_s": rival}
        rates = {key: round(len(results["fbank"]) / statistics.median(seconds[who])) for key, who in speed.items()}
        print(json.dumps({"name": line, "value": round(ratio, 2), "unit": "ratio", "rival": package, **rates}))


if __name__ == "__main__":
    main()
