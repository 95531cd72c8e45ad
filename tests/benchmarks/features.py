"""Speed of the features over torchaudio's and kaldi-native-fbank's, on one thread; their values are compared first.

    OMP_NUM_THREADS=1 python tests/benchmarks/features.py

One recording of 60 s at 16 kHz, 40 mel bins (MFCC, PLP: 23), dither off. All rivals take turns in rounds; results are
medians of the rounds' ratios. PLP and pitch, which the others do not have, are compared with torchaudio's filterbank.
"""

import importlib
import importlib.metadata
import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from speech3.config import FeatureConfig, PitchConfig, load_preset
from speech3.data.resampling import torchaudio_functional
from speech3.features.compute import finish_features, static_features
from speech3.features.pitch import process, track_pitch
from speech3.frames.packed import write_frames

RATE_HZ, SECONDS, ROUNDS = 16000, 60, 9
FBANK = FeatureConfig(num_mel_bins=40)
MFCC = FeatureConfig(kind="mfcc", use_energy=False)
PLP = FeatureConfig(kind="plp", use_energy=False)
PITCH = FeatureConfig(pitch=PitchConfig())
FRONT_END = load_preset(FeatureConfig, "features", "plp13_pitch1_d2")
Extractor = Callable[[Tensor], Tensor]


def voice() -> Tensor:
    """A signal similar to speech: a gliding tone with many harmonics and pauses, in noise, as 16-bit audio."""
    generator = torch.Generator().manual_seed(1)
    time_S = torch.arange(RATE_HZ * SECONDS, dtype=torch.float64) / RATE_HZ
    phase_S = 2 * math.pi * torch.cumsum(140 + 40 * torch.sin(2 * time_S) + 10 * torch.sin(9 * time_S), 0) / RATE_HZ
    harmonics = [torch.sin(k * phase_S) / k for k in range(1, 20)]
    voiced_S = torch.stack(harmonics).sum(0) * torch.sin(5 * time_S).clamp(min=0)
    noise_S = torch.randn(len(time_S), generator=generator, dtype=torch.float64)
    return ((4000 * voiced_S + 300 * noise_S).round() / 32768).float()


def ours(config: FeatureConfig) -> Extractor:
    """Static features of one recording."""
    return lambda wave_S: static_features(wave_S[None], torch.tensor([len(wave_S)]), config, RATE_HZ)[0][0]


def pitch(wave_S: Tensor) -> Tensor:
    """Kaldi's three pitch features of one recording."""
    assert PITCH.pitch
    raw_NT2, frames_N = track_pitch(wave_S[None], torch.tensor([len(wave_S)]), PITCH, RATE_HZ)
    return process(raw_NT2, frames_N, PITCH.pitch)[0]


def front_end(wave_S: Tensor) -> Tensor:
    """Compute PLP and pitch with deltas, normalised, and write a packed file (with all senones 0)."""
    (feats_TF,) = finish_features([ours(FRONT_END)(wave_S)], FRONT_END)
    with tempfile.TemporaryDirectory() as directory:
        senones = {"u": np.zeros(len(feats_TF), dtype=np.int32)}
        write_frames(Path(directory) / "x.frames", {"u": feats_TF.numpy()}, senones, 1, utterances=["u"])
    return feats_TF


def torchaudios(name: str, bins: int) -> Extractor:
    """The function of this name in torchaudio.compliance.kaldi."""
    torchaudio_functional()  # makes torchaudio's Python code usable if its compiled part cannot be loaded
    function = getattr(importlib.import_module("torchaudio.compliance.kaldi"), name)
    return lambda wave_S: function(wave_S[None] * 32768, num_mel_bins=bins, dither=0.0, sample_frequency=RATE_HZ)


def native() -> Extractor:
    """kaldi-native-fbank, C++; it returns single frames, so its time includes making a matrix of them."""
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
    wave_S = voice()
    audio = f"torchaudio {importlib.metadata.version('torchaudio')}"
    extractors = {
        "fbank": ours(FBANK),
        "mfcc": ours(MFCC),
        "plp": ours(PLP),
        "pitch": pitch,
        "front end": front_end,
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
        ("plp13_over_torchaudio_fbank", "plp", "torchaudio fbank", f"{audio} compliance.kaldi.fbank"),
        ("pitch_over_torchaudio_fbank", "pitch", "torchaudio fbank", f"{audio} compliance.kaldi.fbank"),
    ):
        ratio = statistics.median(r / m for m, r in zip(seconds[mine], seconds[rival], strict=True))
        speed = {"frames_per_s": mine, "rival_frames_per_s": rival}
        rates = {key: round(len(results["fbank"]) / statistics.median(seconds[who])) for key, who in speed.items()}
        print(json.dumps({"name": line, "value": round(ratio, 2), "unit": "ratio", "rival": package, **rates}))
    speed = round(SECONDS / statistics.median(seconds["front end"]))
    print(json.dumps({"name": "plp13_pitch1_d2_realtime", "value": speed, "unit": "times real time", "rival": None}))


if __name__ == "__main__":
    main()
