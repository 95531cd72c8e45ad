"""Waveforms to static features, and static features to a model's input: static -> CMVN -> deltas -> splicing.

`OnlineFeatures` does the same for a recording in progress, in bounded memory (Kaldi feat/online-feature.cc): it takes
pieces of any size, applies the same functions to the samples and frames around them, and returns frames as soon as they
are complete.

Axes: N utterances, S samples, T frames, F features, P values of the pitch.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from speech3.config import FeatureConfig, PitchConfig
from speech3.data import checked_rate
from speech3.errors import SettingError
from speech3.features.cmvn import OnlineSlidingCmvn
from speech3.features.context import add_deltas, splice
from speech3.features.filterbank import fbank, mel_blocks, mfcc, plp
from speech3.features.normalisation import OnlineCmvn, normalise
from speech3.features.sound import silent_frames
from speech3.features.spectrum import check_wave, check_waves, frame_sizes, mirror_edges

_KINDS = {"fbank": fbank, "mfcc": mfcc, "plp": plp}


def static_dim(config: FeatureConfig) -> int:
    """Values per frame before deltas, including pitch."""
    return _spectral_dim(config) + (config.pitch.dim if config.pitch else 0)


def _spectral_dim(config: FeatureConfig) -> int:
    return config.num_mel_bins + config.use_energy if config.kind == "fbank" else config.num_ceps


def static_features(
    waves_NS: Tensor,
    lengths_N: Tensor,
    config: FeatureConfig,
    sample_rate_hz: int,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Filterbank, MFCC or PLP of a batch, with pitch appended if the config asks for it, before CMVN and deltas.

    Equal to Kaldi's compute-*-feats without dither (which the caller adds), combined by paste-feats with
    process-kaldi-pitch-feats.

    Parameters
    ----------
    waves_NS
        float32 in [-1, 1), on any device. Samples beyond an utterance's length are ignored.
    lengths_N
        Samples of each utterance, integers.
    generator
        For the noise in delta pitch (`delta_pitch_noise_stddev`), on the CPU; without it no noise is added.

    Returns
    -------
    feats_NTF
        float32, on the device of `waves_NS`; zeros beyond an utterance's frames.
    frames_N
        int64 on the CPU; 0 for an utterance shorter than one frame. With pitch, the smaller of the two frame counts.

    Raises
    ------
    Speech3Error
        The config does not fit the sample rate, or an argument is wrong (`check_waves`).
    """
    check_waves(waves_NS, lengths_N, sample_rate_hz)
    sizes = frame_sizes(config, sample_rate_hz)
    frames_N = torch.tensor([sizes.frames(samples) for samples in lengths_N.tolist()], dtype=torch.int64)
    pitch_NTP: Tensor | None = None
    if config.pitch and frames_N.any():
        pitch_NTP, pitch_N = _pitch(waves_NS, lengths_N, config, sample_rate_hz, generator)
        frames_N = torch.minimum(frames_N, pitch_N)
    frames = frames_N.tolist()
    longest, spectral = max(frames, default=0), _spectral_dim(config)
    feats_NTF = waves_NS.new_empty(len(frames), longest, static_dim(config))
    if longest > 0:
        if not config.snip_edges:
            waves_NS = mirror_edges(waves_NS, lengths_N, sizes, longest)
        for block in mel_blocks(waves_NS, frames, config, sample_rate_hz):
            feats_RF = _KINDS[config.kind](block.energies_RM, block.log_energy_R, config, sample_rate_hz)
            block.put(feats_RF, feats_NTF[..., :spectral])
    if pitch_NTP is not None:
        feats_NTF[..., spectral:] = pitch_NTP[:, :longest]
    if min(frames, default=0) < longest:
        beyond_NT = torch.arange(longest)[None, :] >= frames_N[:, None]
        feats_NTF.masked_fill_(beyond_NT[..., None].to(feats_NTF.device), 0.0)
    return feats_NTF, frames_N


def _pitch(
    waves_NS: Tensor, lengths_N: Tensor, config: FeatureConfig, sample_rate_hz: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Pitch features (N, T, P) at the times of the other features' frames, and their number for each utterance."""
    from speech3.features.pitch import process, track_pitch  # imports numba, which takes a second to load

    assert config.pitch is not None
    raw_NT2, frames_N = track_pitch(waves_NS, lengths_N, config, sample_rate_hz)
    noise_NT = None
    if config.pitch.delta_pitch_noise_stddev and generator is not None:
        noise_NT = torch.randn(raw_NT2.shape[:2], generator=generator).to(raw_NT2.device)
    feats_NTP = process(raw_NT2, frames_N, config.pitch, noise_NT)
    ratio = pitch_ratio(config, sample_rate_hz)
    if ratio == 1:
        return feats_NTP, frames_N
    nearest_T = (torch.arange(int(raw_NT2.shape[1] / ratio) + 1, dtype=torch.float64) * ratio).round().long()
    counts_N = torch.searchsorted(nearest_T, frames_N)
    nearest_T = nearest_T[: int(counts_N.max())]
    return feats_NTP[:, nearest_T.to(feats_NTP.device)], counts_N


def pitch_ratio(config: FeatureConfig, sample_rate_hz: int) -> float:
    """The other features' frame shift divided by that of pitch: their frame t lies at frame t * ratio of the pitch.

    The shifts are truncated to whole samples, one at the rate of the audio, the other at the rate at which pitch is
    tracked. If they differ as a result, as at 11,025 Hz, the nearest frame in time is taken. Otherwise the ratio is 1.
    """
    from speech3.features.pitch_tracking import pitch_sizes

    pitch = config.pitch or PitchConfig()
    samples = frame_sizes(config, sample_rate_hz).shift * int(pitch.resample_freq)
    return samples / (sample_rate_hz * pitch_sizes(config, sample_rate_hz).shift)


def finish_features(
    statics: list[Tensor], config: FeatureConfig, silent: Sequence[Tensor] | None = None
) -> list[Tensor]:
    """CMVN, then deltas, then splicing for the utterances of one CMVN unit: one utterance, or all of one speaker.

    `statics`: float32 (T, F) each.
    `silent`: for each, which frames are digital silence (`silent_frames`); None: none.
    Returns: float32 (T, F * (deltas + 1) * (left_context + 1 + right_context)) each, as Kaldi's ``apply-cmvn |
    add-deltas | splice-feats`` without `global_stats`.
    Raises Speech3Error: global statistics are missing or do not fit the features.
    """
    normal = normalise(statics, config, silent)
    derived = [add_deltas(feats_TF, config.deltas, config.delta_window) for feats_TF in normal]
    return [splice(feats_TF, config.left_context, config.right_context) for feats_TF in derived]


class OnlineFeatures:
    """Extracts the features of one utterance: `accept` its samples piece by piece, then `finish`.

    The features are those of the whole recording to within rounding; but pitch lags behind, so that the others wait for
    it, and it may differ (`OnlinePitch`). `cmvn` replaces normalisation by utterance or speaker, which needs whole
    recordings.

    Raises Speech3Error: the config does not fit the sample rate; it normalises by utterance or speaker and there is no
    `cmvn`; or the features are given.
    """

    def __init__(self, config: FeatureConfig, sample_rate_hz: int, cmvn: OnlineCmvn | None = None) -> None:
        sample_rate_hz = checked_rate(sample_rate_hz, "sample_rate_hz")
        needs_whole = config.cmvn in ("utterance", "speaker") and config.norm_means
        if (needs_whole and cmvn is None) or config.kind == "given":
            raise SettingError(
                f"{'kind: given' if config.kind == 'given' else f'cmvn: {config.cmvn}'} needs whole recordings;"
                " to process a recording in pieces, choose cmvn: sliding, global or none"
            )
        self._spectral = _OnlineSpectral(config, sample_rate_hz)
        self._pitch = _OnlinePitchBeside(config, sample_rate_hz) if config.pitch else None
        self._cmvn: OnlineCmvn | OnlineSlidingCmvn | None = cmvn if needs_whole else None
        if config.cmvn == "sliding" and config.norm_means:
            self._cmvn = OnlineSlidingCmvn(config)
        self._config = config
        self._silent_T = torch.zeros(0, dtype=torch.bool)  # of frames that wait for their pitch
        self._context = _Context(config)

    def accept(self, wave_S: Tensor) -> Tensor:
        """Take the next samples, float32 in [-1, 1); return the frames (T, F) that they complete, T often 0."""
        check_wave(wave_S, "wave_S", 1)
        feats_TF, silent_T = self._spectral.accept(wave_S)
        if self._pitch:
            feats_TF = self._pitch.accept(feats_TF, wave_S)
        return self._context.accept(self._normalised(feats_TF, silent_T))

    def finish(self) -> Tensor:
        """Return the remaining frames, which were waiting for later samples."""
        feats_TF, silent_T = self._spectral.finish()
        if self._pitch:
            feats_TF = self._pitch.finish(feats_TF)
        feats_TF = self._normalised(feats_TF, silent_T)
        if self._cmvn and (waited_TF := self._cmvn.finish()) is not None:
            feats_TF = torch.cat([feats_TF, waited_TF])
        return self._context.finish(feats_TF)

    def _normalised(self, feats_TF: Tensor, silent_T: Tensor) -> Tensor:
        """Normalise complete frames; `silent_T`: of the next frames of the recording, some of which wait for pitch."""
        self._silent_T = torch.cat([self._silent_T.to(silent_T.device), silent_T])
        silent_T, self._silent_T = self._silent_T[: len(feats_TF)], self._silent_T[len(feats_TF) :]
        if self._cmvn:
            return self._cmvn.accept(feats_TF, silent_T)
        return normalise([feats_TF], self._config, [silent_T])[0]


class _OnlineSpectral:
    """Filterbank, MFCC or PLP, and which frames are digital silence; keeps the samples from the next frame on."""

    def __init__(self, config: FeatureConfig, sample_rate_hz: int) -> None:
        self._config = config.model_copy(update={"pitch": None})
        self._inside = self._config.model_copy(update={"snip_edges": True})
        self._rate_hz = sample_rate_hz
        self._sizes = frame_sizes(config, sample_rate_hz)
        self._waiting_S = torch.zeros(0)
        self._samples = self._frames = 0
        self._begun = config.snip_edges

    def accept(self, wave_S: Tensor) -> tuple[Tensor, Tensor]:
        self._samples += len(wave_S)
        self._waiting_S = torch.cat([self._waiting_S.to(wave_S), wave_S])
        if not self._begun and self._samples >= self._sizes.length:
            # Frame 0 begins before the recording, with its mirror image.
            before = self._sizes.length // 2 - self._sizes.shift // 2
            self._waiting_S = torch.cat([self._waiting_S[:before].flip(0), self._waiting_S])
            self._begun = True
        complete = 1 + (len(self._waiting_S) - self._sizes.length) // self._sizes.shift
        return self._take(max(complete, 0) if self._begun else 0)

    def finish(self) -> tuple[Tensor, Tensor]:
        if not self._begun:  # shorter than a frame, so it may be mirrored more than once
            return self._static(self._waiting_S, self._config)
        frames = self._sizes.frames(self._samples) - self._frames
        missing = self._sizes.span(frames) - len(self._waiting_S) if frames else 0
        self._waiting_S = torch.cat([self._waiting_S, self._waiting_S.flip(0)[: max(missing, 0)]])
        return self._take(frames)

    def _take(self, frames: int) -> tuple[Tensor, Tensor]:
        found = self._static(self._waiting_S[: self._sizes.span(frames) if frames else 0], self._inside)
        self._waiting_S = self._waiting_S[frames * self._sizes.shift :]
        self._frames += frames
        return found

    def _static(self, wave_S: Tensor, config: FeatureConfig) -> tuple[Tensor, Tensor]:
        feats_TF = static_features(wave_S[None], torch.tensor([len(wave_S)]), config, self._rate_hz)[0][0]
        return feats_TF, silent_frames(wave_S, len(feats_TF), config, self._rate_hz)


class _OnlinePitchBeside:
    def __init__(self, config: FeatureConfig, sample_rate_hz: int) -> None:
        from speech3.features.pitch import OnlinePitch  # imports numba, which takes a second to load

        self._online = OnlinePitch(config, sample_rate_hz)
        self._ratio = pitch_ratio(config, sample_rate_hz)
        self._feats_TF: Tensor | None = None  # waiting, from frame self._next on
        self._pitch_TP: Tensor | None = None  # from frame self._first on
        self._next = self._first = 0

    def accept(self, feats_TF: Tensor, wave_S: Tensor) -> Tensor:
        return self._paste(feats_TF, self._online.accept(wave_S))

    def finish(self, feats_TF: Tensor) -> Tensor:
        return self._paste(feats_TF, self._online.finish())

    def _paste(self, feats_TF: Tensor, pitch_TP: Tensor) -> Tensor:
        waiting_TF = feats_TF if self._feats_TF is None else torch.cat([self._feats_TF, feats_TF])
        pitch_TP = pitch_TP if self._pitch_TP is None else torch.cat([self._pitch_TP, pitch_TP])
        numbers_T = torch.arange(self._next, self._next + len(waiting_TF) + 1, dtype=torch.float64)
        rows_T = (numbers_T * self._ratio).round().long() - self._first
        ready = int((rows_T[:-1] < len(pitch_TP)).sum())
        pasted_TF = torch.cat([waiting_TF[:ready], pitch_TP[rows_T[:ready].to(pitch_TP.device)]], dim=1)
        done = min(int(rows_T[ready]), len(pitch_TP))
        self._feats_TF, self._pitch_TP = waiting_TF[ready:], pitch_TP[done:]
        self._next, self._first = self._next + ready, self._first + done
        return pasted_TF


class _Context:
    def __init__(self, config: FeatureConfig) -> None:
        self._config = config.model_copy(update={"cmvn": "none"})
        derivatives = config.deltas * config.delta_window
        self._left, self._right = derivatives + config.left_context, derivatives + config.right_context
        self._kept_TF: Tensor | None = None  # from frame self._first on
        self._first = self._next = 0

    def accept(self, feats_TF: Tensor) -> Tensor:
        return self._emit(max(self._add(feats_TF) - self._right, self._next))

    def finish(self, feats_TF: Tensor) -> Tensor:
        return self._emit(self._add(feats_TF))

    def _add(self, feats_TF: Tensor) -> int:
        self._kept_TF = feats_TF if self._kept_TF is None else torch.cat([self._kept_TF, feats_TF])
        return self._first + len(self._kept_TF)

    def _emit(self, end: int) -> Tensor:
        assert self._kept_TF is not None
        (out_TF,) = finish_features([self._kept_TF], self._config)
        out_TF = out_TF[self._next - self._first : end - self._first]
        keep = max(end - self._left, self._first)
        self._kept_TF = self._kept_TF[keep - self._first :].clone()
        self._next, self._first = end, keep
        return out_TF
