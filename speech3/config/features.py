"""Features, with Kaldi's option names and defaults."""

from typing import Any, Literal

from pydantic import Field, model_validator

from speech3.config.base import Config
from speech3.config.kaldi_conf import with_underscores, without_kaldis_own
from speech3.config.pitch import PitchConfig


class FeatureConfig(Config):
    """How features are computed from a waveform, with Kaldi's option names and defaults (feat/feature-*.h).

    One default differs: `dither` is 0, because with Kaldi's 1 no two runs are equal. Deltas and CMVN, separate
    programs in Kaldi, are keys here; by default nothing is appended or normalised.
    """

    kind: Literal["fbank", "mfcc", "plp", "given"] = Field(
        "fbank", description="given: the data directory's own feats.scp"
    )
    sample_frequency: int | None = Field(
        None, gt=0, description="Hz; none: the rate of the data, which must be the same everywhere"
    )
    resample: bool = Field(False, description="resample recordings with another rate instead of rejecting them")
    mix_channels: bool = Field(False, description="make one channel of several instead of rejecting them")
    frame_length: float = Field(25.0, gt=0, description="ms")
    frame_shift: float = Field(10.0, gt=0, description="ms")
    dither: float = Field(0.0, ge=0, description="standard deviation, in units of 16-bit samples")
    preemphasis_coefficient: float = Field(0.97, ge=0, le=1)
    remove_dc_offset: bool = True
    window_type: Literal["povey", "hamming", "hanning", "sine", "rectangular", "blackman"] = "povey"
    blackman_coeff: float = 0.42
    round_to_power_of_two: bool = True
    snip_edges: bool = Field(True, description="only frames that fit; false: centred frames, mirrored at the edges")
    num_mel_bins: int = Field(23, ge=3)
    low_freq: float = Field(20.0, ge=0, description="Hz")
    high_freq: float = Field(0.0, description="Hz; zero or negative: offset from the Nyquist frequency")
    use_energy: bool = Field(
        False, description="fbank: log energy before the bins; mfcc, plp: in place of C0 (default true)"
    )
    raw_energy: bool = Field(True, description="energy before preemphasis and window")
    energy_floor: float = Field(0.0, ge=0)
    use_log_fbank: bool = Field(True, description="fbank only")
    use_power: bool = Field(True, description="fbank only; false: magnitudes")
    num_ceps: int = Field(13, ge=1)
    cepstral_lifter: float = Field(22.0, ge=0)
    lpc_order: int = Field(12, ge=1, description="plp only, like the next two keys")
    compress_factor: float = Field(1 / 3, gt=0, description="exponent for the equal-loudness spectrum")
    cepstral_scale: float = Field(1.0, gt=0)
    pitch: PitchConfig | None = Field(
        None, description="pitch features, appended before CMVN; {}: the three features of Kaldi's defaults"
    )
    deltas: int = Field(0, ge=0, le=4, description="highest order of the derivatives that are appended")
    delta_window: int = Field(2, ge=1)
    cmvn: Literal["none", "utterance", "speaker", "global", "sliding"] = "none"
    norm_means: bool = True
    norm_vars: bool = False
    cmn_window: int = Field(600, ge=1, description="sliding: frames of the window")
    min_cmn_window: int = Field(
        100, ge=1, description="sliding: minimum frames of the window, at the start, if center is false"
    )
    center: bool = Field(False, description="sliding: the window is centred on the frame instead of preceding it")
    global_stats: tuple[tuple[float, ...], tuple[float, ...]] | None = Field(
        None,
        description="Kaldi's statistics (sums and count, sums of squares and 0); none: computed from the data. With"
        " global they normalise; with utterance or speaker streams begin with them (features.online_cmvn)",
    )
    left_context: int = Field(0, ge=0, description="preceding frames, spliced to each frame as the last step")
    right_context: int = Field(0, ge=0, description="following frames, spliced to each frame as the last step")

    @model_validator(mode="before")
    @classmethod
    def _kaldis_names(cls, values: Any) -> Any:
        if isinstance(values, dict):
            values = without_kaldis_own(with_underscores(values), cls.model_fields)
        if isinstance(values, dict) and values.get("kind") in ("mfcc", "plp"):
            return {"use_energy": True, **values}
        return values

    @model_validator(mode="after")
    def _consistent(self) -> "FeatureConfig":
        if self.kind == "mfcc" and self.num_ceps > self.num_mel_bins:
            raise ValueError(f"num_ceps {self.num_ceps} must not exceed num_mel_bins {self.num_mel_bins}")
        if self.kind == "plp" and self.num_ceps > self.lpc_order + 1:
            raise ValueError(f"num_ceps {self.num_ceps} must not exceed lpc_order {self.lpc_order} + 1")
        if self.kind == "given" and self.pitch:
            raise ValueError("pitch is computed from audio, so it cannot be appended to kind=given; remove pitch")
        if self.norm_vars and not self.norm_means:
            raise ValueError("norm_vars needs norm_means, as in Kaldi's apply-cmvn")
        if self.frame_shift > self.frame_length:
            raise ValueError("frame_shift must not exceed frame_length")
        return self

    def of_values(self) -> dict[str, Any]:
        """The keys on which the features of a finished recording depend.

        Which recordings are accepted is not among them, nor are statistics with which only streams begin.
        """
        without = {"resample", "mix_channels"} | ({"global_stats"} if self.cmvn != "global" else set())
        return self.model_dump(exclude=without)
