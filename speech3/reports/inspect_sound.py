"""Statistics and pictures of recordings: their samples, and the features and the pitch computed from them.

Axes: S samples, N utterances, T frames, F features.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice, pairwise
from math import ceil
from pathlib import Path

import numpy as np
import torch

from speech3.alignment.times import frame_clock
from speech3.config import FeatureConfig, PitchConfig
from speech3.corpus import audio
from speech3.errors import Speech3Error
from speech3.features.compute import finish, static_features
from speech3.features.mel import hertz, mel_edges
from speech3.features.silence import silent_frames
from speech3.io.progress import progress
from speech3.reports.picture import Picture, Pitch
from speech3.reports.statistics import FeatureStatistics

_MOST_HEARD_S = 600.0
_PIECE_S = 60.0
_SILENCE_S = 0.01  # least duration of equal samples that counts as digital silence
_FULL_SCALE = 32767 / 32768

Lines = list[tuple[str, str]]


def recording_lines(path: Path | str, directory: Path | None = None) -> Lines:
    """A description of a recording, from its header."""
    about = audio.info(path, directory=directory)
    channels = "1 channel" if about.channels == 1 else f"{about.channels} channels, which are averaged"
    return [("file", f"{path}: recording, {about.sample_rate_hz:,} Hz, {channels}, {about.duration_s:.2f} s")]


def recordings_lines(path: Path, entries: Mapping[str, str], most: int) -> Lines:
    """A description of the first `most` recordings of a ``wav.scp``, from their headers."""
    rates: dict[str, int] = {}
    seconds: dict[str, float] = {}
    bad: dict[str, str] = {}
    for name in progress(list(islice(entries, most)), min(most, len(entries)), "headers"):
        try:
            about = audio.info(entries[name], directory=path.parent)
        except Speech3Error as error:
            bad[name] = str(error)
            continue
        kind = f"{about.sample_rate_hz:,} Hz" + (f" {about.channels} channels" if about.channels > 1 else "")
        rates[kind] = rates.get(kind, 0) + 1
        seconds[name] = about.duration_s
    lines = [("file", f"{path}: list of {len(entries):,} recordings")]
    if len(entries) > most:
        lines.append(("read", f"the headers of the first {most:,}"))
    if seconds:
        kinds = ", ".join(f"{kind} ({count:,})" if len(rates) > 1 else kind for kind, count in rates.items())
        shortest, longest = min(seconds, key=lambda name: seconds[name]), max(seconds, key=lambda name: seconds[name])
        lines.append(("sound", f"{sum(seconds.values()) / 3600:.2f} h at {kinds}"))
        lines.append(("lengths", f"{seconds[shortest]:.2f} s ({shortest}) to {seconds[longest]:.2f} s ({longest})"))
    if bad:
        lines.append(("unreadable", f"{len(bad):,}; the first: {next(iter(bad.values()))}"))
    return lines


@dataclass(frozen=True)
class Sound:
    """A recording, or an utterance within one; `place` is as in a ``wav.scp`` of `directory`."""

    name: str
    place: Path | str
    directory: Path | None = None
    start_s: float = 0.0
    end_s: float | None = None

    def duration_s(self) -> float:
        """Duration of the part, up to the end of the recording if `end_s` is None; an error if there is none."""
        whole_s = audio.info(self.place, directory=self.directory).duration_s
        duration_s = min(self.end_s or whole_s, whole_s) - self.start_s
        if duration_s <= 0:
            raise Speech3Error(
                f"{self.name}: begins at {self.start_s:g} s, but its recording ends at {whole_s:g} s; correct segments"
            )
        return duration_s

    def read(self, start_s: float, end_s: float, rate_hz: int | None = None) -> tuple[np.ndarray, int]:
        """Samples (S,) and their rate, as from `audio.read_file`; times are relative to the start of the part."""
        return audio.read_file(
            self.place, directory=self.directory, start_s=self.start_s + start_s, end_s=self.start_s + end_s,
            sample_rate_hz=rate_hz, resample=True, mix_channels=True,
        )  # fmt: skip


def draw_recording(sound: Sound, preset: FeatureConfig, most_s: float) -> tuple[Lines, Picture]:
    """Statistics of a recording, and its waveform, features and pitch, of at most `most_s` seconds.

    Raises
    ------
    Speech3Error
        The recording cannot be read or is shorter than a frame, or `preset` does not compute features from audio.
    """
    if preset.kind == "given":
        raise Speech3Error("--features: given features are not computed from a recording; choose another preset")
    whole_s, name = sound.duration_s(), sound.name
    lines = _heard(sound, whole_s)
    wave_S, rate_hz = sound.read(0.0, min(most_s, whole_s), preset.sample_frequency)
    config = preset.model_copy(update={"sample_frequency": rate_hz})
    feats_TF = _features(wave_S, config, name)
    pitch, clock = _pitch(wave_S, config), frame_clock(config)
    statistics = FeatureStatistics(feats_TF.shape[1])
    statistics.add(name, feats_TF)
    cut = f" (the first {most_s:g} s of {whole_s:,.1f})" if whole_s > most_s else ""
    lines += [("drawn", f"{name}{cut}"), *statistics.lines(config.frame_shift), _pitch_line(pitch)]
    picture = Picture(
        title=f"{name}{cut}", feats_TF=feats_TF, shift_s=clock.shift_s, offset_s=clock.offset_s,
        centres_hz=bin_centres(config, feats_TF.shape[1]),
        blocks=(config.deltas + 1) * (config.left_context + 1 + config.right_context),
        wave_S=wave_S, sample_rate_hz=rate_hz, pitch=pitch, statistics=statistics,
    )  # fmt: skip
    return lines, picture


def _heard(sound: Sound, whole_s: float) -> Lines:
    """Level, clipping and digital silence, piece by piece."""
    heard_s = min(whole_s, _MOST_HEARD_S)
    peak = total = energy = 0.0
    clipped = silent = samples = rate_hz = 0
    for start_s, end_s in pairwise(np.linspace(0, heard_s, 1 + ceil(heard_s / _PIECE_S)).tolist()):
        wave_S, rate_hz = sound.read(start_s, end_s)
        peak = max(peak, float(np.abs(wave_S).max()))
        total += float(wave_S.sum(dtype=np.float64))
        energy += float(np.square(wave_S, dtype=np.float64).sum())
        clipped += int((np.abs(wave_S) >= _FULL_SCALE).sum())
        silent += _in_runs(wave_S, round(_SILENCE_S * rate_hz))
        samples += len(wave_S)
    rms = np.sqrt(energy / samples)
    lines = [] if heard_s == whole_s else [("heard", f"the first {heard_s:g} s")]
    lines += [
        ("level", f"peak {_decibels(peak)}, RMS {_decibels(rms)} of full scale; mean {total / samples:.2g}"),
        ("clipped", f"{clipped:,} samples at full scale" if clipped else "no sample at full scale"),
        ("silence", f"digital: {silent / rate_hz:.2f} s in which samples do not change"
         if silent else "no digital silence"),
    ]  # fmt: skip
    return lines


def _in_runs(wave_S: np.ndarray, least: int) -> int:
    """Number of samples that are in runs of at least `least` equal samples."""
    boundaries = np.flatnonzero(np.diff(wave_S)) + 1
    runs = np.diff(np.concatenate([[0], boundaries, [len(wave_S)]]))
    return int(runs[runs >= max(least, 2)].sum())


def _decibels(value: float) -> str:
    return f"{20 * np.log10(value):.1f} dB" if value > 0 else "0 (silence)"


def _features(wave_S: np.ndarray, config: FeatureConfig, name: str) -> np.ndarray:
    waves_NS, lengths_N = torch.from_numpy(wave_S)[None], torch.tensor([len(wave_S)])
    feats_NTF, frames_N = static_features(waves_NS, lengths_N, config, config.sample_frequency or 0)
    if not frames_N[0]:
        raise Speech3Error(f"{name}: shorter than one frame ({config.frame_length:g} ms): nothing to draw")
    if config.cmvn == "global" and config.global_stats is None:  # the only recording's statistics are the global ones
        config = config.model_copy(update={"cmvn": "utterance"})
    silent_T = silent_frames(waves_NS[0], len(feats_NTF[0]), config, config.sample_frequency or 0)
    return finish([feats_NTF[0]], config, [silent_T])[0].numpy()


def bin_centres(config: FeatureConfig, dim: int) -> np.ndarray | None:
    """Centre frequency in Hz of each dimension (F,), if all dimensions are mel bins; else None."""
    if config.kind != "fbank" or dim != config.num_mel_bins or config.sample_frequency is None:
        return None
    return hertz(mel_edges(config, config.sample_frequency)[1:-1])


def _pitch(wave_S: np.ndarray, config: FeatureConfig) -> Pitch | None:
    from speech3.features.pitch import track  # imports numba, which takes a second
    from speech3.features.pitch_post import voicing

    pitch, rate_hz = config.pitch or PitchConfig(), config.sample_frequency or 0
    if rate_hz < 2 * pitch.lowpass_cutoff:
        return None
    tracked = FeatureConfig(pitch=pitch)
    raw_NT2, frames_N = track(torch.from_numpy(wave_S)[None], torch.tensor([len(wave_S)]), tracked, rate_hz)
    raw_T2 = raw_NT2[0, : int(frames_N[0])]
    if len(raw_T2) < 2:
        return None
    clock = frame_clock(tracked)
    times_s = clock.offset_s + (np.arange(len(raw_T2)) + 0.5) * clock.shift_s
    return Pitch(times_s, raw_T2[:, 1].numpy(), voicing(raw_T2[:, 0]).numpy())


def _pitch_line(pitch: Pitch | None) -> tuple[str, str]:
    if pitch is None:
        return "pitch", "none: the recording is too short, or its sample rate too low"
    voiced = pitch.voicing > 0.5
    if not voiced.any():
        return "pitch", "no voiced frame"
    low, middle, high = np.percentile(pitch.hz[voiced], (5, 50, 95))
    share = f"{100 * voiced.mean():.0f} % of {len(voiced):,} frames voiced"
    return "pitch", f"{share}; median {middle:.0f} Hz, 90 % within {low:.0f} to {high:.0f} Hz"
