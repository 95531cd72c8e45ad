"""Speed of the features on a GPU over torchaudio's on the same GPU; their values are compared first.

    python tests/benchmarks/gpu_features.py [--device cuda:0]

As in `features.py`, one recording of 60 s at 16 kHz, dither off; also the speed for a batch of recordings, which
torchaudio does not support. The Viterbi search of the pitch tracker runs on the CPU.

fbank40_over_torchaudio, mfcc13_over_torchaudio
    Time of torchaudio over ours for one recording.
fbank40_realtime, plp13_realtime, pitch_realtime
    Seconds of audio per second of computation for a batch.
"""

import statistics
from collections.abc import Callable

import torch
from engine import line
from engine_rivals import left_out
from features import FBANK, MFCC, PITCH, PLP, RATE_HZ, SECONDS, ours, torchaudios, voice
from gpu_timing import Work, device_of_arguments, milliseconds, name_of, ratio, timed
from torch import Tensor

from speech3.errors import Speech3Error
from speech3.features.compute import static_features
from speech3.features.pitch import process, track_pitch


def over_torchaudio(wave_S: Tensor, device: str) -> None:
    """Print the ratios."""
    try:
        theirs = {"fbank40": torchaudios("fbank", 40), "mfcc13": torchaudios("mfcc", 23)}
    except (ImportError, Speech3Error) as error:
        left_out("fbank40_over_torchaudio, mfcc13_over_torchaudio", str(error))
        return
    for name, config in (("fbank40", FBANK), ("mfcc13", MFCC)):
        extract, rival = ours(config), theirs[name]
        worst = float((extract(wave_S) - rival(wave_S)).abs().max())
        assert worst < 5e-3, f"{name}: results differ by {worst:.1e}"
        works = {"ours": _on(extract, wave_S), "torchaudio": _on(rival, wave_S)}
        measured = timed(works, device)
        value = ratio(measured["torchaudio"], measured["ours"])
        about = {"device": name_of(device), "difference": worst, **milliseconds(measured)}
        print(line(f"{name}_over_torchaudio", value, "ratio", "torchaudio.compliance.kaldi", **about), flush=True)


def realtime(waves_NS: Tensor, device: str) -> None:
    """Print how much faster than real time a batch is."""
    lengths_N = torch.full((len(waves_NS),), waves_NS.shape[1])

    def pitch() -> None:
        assert PITCH.pitch
        process(*track_pitch(waves_NS, lengths_N, PITCH, RATE_HZ), PITCH.pitch)

    works: dict[str, Work] = {
        "fbank40": lambda: static_features(waves_NS, lengths_N, FBANK, RATE_HZ),
        "plp13": lambda: static_features(waves_NS, lengths_N, PLP, RATE_HZ),
        "pitch": pitch,
    }
    measured = timed(works, device)
    for name, each in measured.items():
        speed = waves_NS.numel() / RATE_HZ / statistics.median(each)
        about = {"device": name_of(device), "recordings": len(waves_NS), "seconds": waves_NS.shape[1] / RATE_HZ}
        print(line(f"{name}_realtime", speed, "times real time", "none", **about), flush=True)


def _on(extract: Callable[[Tensor], Tensor], wave_S: Tensor) -> Work:
    return lambda: extract(wave_S)


def main() -> None:
    """Print the figures."""
    device = device_of_arguments()
    wave_S = voice()[: RATE_HZ * (SECONDS if device != "cpu" else 2)].to(device)
    over_torchaudio(wave_S, device)
    realtime(wave_S.expand(64 if device != "cpu" else 2, -1).contiguous(), device)


if __name__ == "__main__":
    main()
