"""Pitch, with the option names and defaults of Kaldi's compute-kaldi-pitch-feats and process-kaldi-pitch-feats."""

from typing import Any

from pydantic import Field, model_validator

from speech3.config.base import Config
from speech3.config.kaldi_conf import with_underscores


class PitchConfig(Config):
    """How pitch is tracked and turned into features (feat/pitch-functions.h).

    Sample rate, frame length, frame shift and `snip_edges` are those of the features to which pitch is appended. One
    default differs: `delta_pitch_noise_stddev` is 0, because with Kaldi's 0.005 no two runs are equal.
    """

    min_f0: float = Field(50.0, gt=0, description="Hz")
    max_f0: float = Field(400.0, gt=0, description="Hz")
    soft_min_f0: float = Field(10.0, gt=0, description="Hz; pitches near it are penalised")
    penalty_factor: float = Field(0.1, ge=0, description="cost of a change of pitch between two frames")
    lowpass_cutoff: float = Field(1000.0, gt=0, description="Hz; cutoff of the filter before resampling")
    resample_freq: float = Field(4000.0, gt=0, description="Hz; rate at which the correlation is computed")
    delta_pitch: float = Field(0.005, gt=0, description="smallest relative change of pitch that is distinguished")
    nccf_ballast: float = Field(7000.0, ge=0, description="makes the correlation of quiet frames small")
    lowpass_filter_width: int = Field(1, ge=1, description="width of the resampling filter, in zero crossings")
    upsample_filter_width: int = Field(
        5, ge=1, description="width of the filter that interpolates between lags, in zero crossings"
    )
    preemph_coeff: float = Field(0.0, ge=0, le=1)
    max_frames_latency: int = Field(
        0, ge=0, description="streaming: frames by which the tracker may lag; 0: until all its paths agree"
    )
    pitch_scale: float = 2.0
    pov_scale: float = 2.0
    pov_offset: float = 0.0
    delta_pitch_scale: float = 10.0
    delta_pitch_noise_stddev: float = Field(0.0, ge=0)
    normalization_left_context: int = Field(75, ge=0, description="frames")
    normalization_right_context: int = Field(75, ge=0, description="frames")
    delta_window: int = Field(2, ge=1)
    add_pov_feature: bool = True
    add_normalized_log_pitch: bool = True
    add_delta_pitch: bool = True
    add_raw_log_pitch: bool = False

    @model_validator(mode="before")
    @classmethod
    def _kaldis_names(cls, values: Any) -> Any:
        return with_underscores(
            values, {"resample_frequency": "resample_freq", "preemphasis_coefficient": "preemph_coeff"}
        )

    @property
    def dim(self) -> int:
        """Values per frame."""
        wanted = (self.add_pov_feature, self.add_normalized_log_pitch, self.add_delta_pitch, self.add_raw_log_pitch)
        return sum(wanted)

    @property
    def right_context(self) -> int:
        """Number of later frames that a frame's values depend on, once the tracker has decided on their pitch."""
        normalised = self.normalization_right_context if self.add_normalized_log_pitch else 0
        return max(normalised, self.delta_window if self.add_delta_pitch else 0)

    @model_validator(mode="after")
    def _consistent(self) -> "PitchConfig":
        if not self.min_f0 < self.max_f0:
            raise ValueError(f"min_f0 {self.min_f0:g} Hz must be below max_f0 {self.max_f0:g} Hz")
        if not 2 * self.lowpass_cutoff <= self.resample_freq:
            raise ValueError(
                f"lowpass_cutoff {self.lowpass_cutoff:g} Hz must be at most half of resample_freq"
                f" {self.resample_freq:g} Hz"
            )
        if not self.dim:
            raise ValueError("no pitch feature is selected: remove pitch, or set one of the keys add_*")
        return self
