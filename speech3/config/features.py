"""Features and pitch, with Kaldi's option names and defaults, and Kaldi's ``.conf`` files.

Kaldi's programs spell the names with dashes in place of underscores (feat/feature-*.h, featbin/compute-*-feats.cc);
their ``.conf`` files are read as in util/parse-options.cc: one option per line, ``#`` begins a comment, the last of two
equal options counts. Pitch has the options of compute-kaldi-pitch-feats and process-kaldi-pitch-feats.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from pydantic import Field, model_validator

from speech3.config.base import Config
from speech3.errors import FormatError, MissingError, SettingError, listed

_WAVE = ("sample-frequency", "preemphasis-coefficient", "remove-dc-offset", "dither")
_WINDOW = ("frame-length", "frame-shift", "window-type", "blackman-coeff", "round-to-power-of-two", "snip-edges")
_FRAMES = (*_WAVE, *_WINDOW)
_MEL = ("num-mel-bins", "low-freq", "high-freq")
_ENERGY = ("use-energy", "energy-floor", "raw-energy")
OPTIONS = {
    "mfcc": (*_FRAMES, *_MEL, *_ENERGY, "num-ceps", "cepstral-lifter"),
    "fbank": (*_FRAMES, *_MEL, *_ENERGY, "use-log-fbank", "use-power"),
    "plp": (*_FRAMES, *_MEL, *_ENERGY, "num-ceps", "lpc-order", "compress-factor", "cepstral-lifter", "cepstral-scale"),
}
_BOOLEAN = {"remove-dc-offset", "round-to-power-of-two", "snip-edges", "use-energy", "raw-energy", "use-log-fbank"}
_BOOLEAN |= {
    "use-power",
    "allow-downsample",
    "allow-upsample",
    "htk-compat",
    "subtract-mean",
    "debug-mel",
    "print-args",
}
# Options that do not change the features, or only together with an option that is refused.
_WITHOUT_EFFECT = {"max-feature-vectors", "debug-mel", "print-args", "verbose", "output-format", "write-utt2dur"}
_WITHOUT_EFFECT |= {"vtln-low", "vtln-high"}
# What speech3 does otherwise: the values with which nothing changes, and what to write in place of any other.
_REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "htk-compat": ((False,), "speech3 has the energy or C0 first, as Kaldi without it; remove it"),
    "vtln-warp": (("1", "1.0"), "speech3 warps frequencies only in training; write training.frequency_warp=0.1 there"),
    "vtln-map": ((), "speech3 warps frequencies only in training; write training.frequency_warp=0.1 there"),
    "utt2spk": ((), "only for --vtln-map; remove it"),
    "channel": (("-1",), "choose the channel in wav.scp (sox FILE -t wav - remix 2 |), or write mix_channels: true"),
    "min-duration": (("0", "0.0"), "remove short utterances from the data directory (speech3 subset)"),
    "compress": (("false",), "write --compress after speech3 extract"),
    "compression-method": ((), "write --compress after speech3 extract"),
    "delta-order": ((), "an option of add-deltas; write deltas: 2 in a YAML file"),
    "truncate": (("0",), "an option of add-deltas, which speech3 does not have; remove it"),
    "norm-vars": ((), "an option of apply-cmvn; write cmvn: speaker and norm_vars: true in a YAML file"),
    "norm-means": ((), "an option of apply-cmvn; write cmvn: speaker in a YAML file"),
    "cmn-window": ((), "an option of sliding CMVN; write cmvn: sliding and cmn_window: 600 in a YAML file"),
    "min-cmn-window": ((), "an option of sliding CMVN; write cmvn: sliding and min_cmn_window: 100 in a YAML file"),
    "center": ((), "an option of sliding CMVN; write cmvn: sliding and center: true in a YAML file"),
    "delta-window": ((), "an option of add-deltas; write deltas: 2 and delta_window: 2 in a YAML file"),
    "left-context": ((), "an option of splice-feats; write left_context: 4 in a YAML file"),
    "right-context": ((), "an option of splice-feats; write right_context: 4 in a YAML file"),
}
_TRUE, _FALSE = ("true", "t", "1", ""), ("false", "f", "0")


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
    pitch_scale: float = Field(2.0, description="factor of the normalised log pitch")
    pov_scale: float = Field(2.0, description="factor of the voicing feature")
    pov_offset: float = Field(0.0, description="added to the scaled voicing feature")
    delta_pitch_scale: float = Field(10.0, description="factor of the delta pitch")
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


class FeatureConfig(Config):
    """How features are computed from a waveform, with Kaldi's option names and defaults (feat/feature-*.h).

    One default differs: `dither` is 0, because with Kaldi's 1 no two runs are equal. Deltas and CMVN, separate
    programs in Kaldi, are keys here; by default nothing is appended or normalised.
    """

    kind: Literal["fbank", "mfcc", "plp", "given"] = Field(
        "fbank", description="given: the data directory's own feats.scp"
    )
    sample_frequency: int | None = Field(
        None, ge=1000, le=768_000, description="Hz; none: the rate of the data, which must be the same everywhere"
    )
    resample: bool = Field(False, description="resample recordings with another rate instead of rejecting them")
    mix_channels: bool = Field(False, description="make one channel of several instead of rejecting them")
    frame_length: float = Field(25.0, gt=0, description="ms")
    frame_shift: float = Field(10.0, gt=0, description="ms")
    dither: float = Field(0.0, ge=0, description="standard deviation, in units of 16-bit samples")
    preemphasis_coefficient: float = Field(0.97, ge=0, le=1)
    remove_dc_offset: bool = True
    window_type: Literal["povey", "hamming", "hanning", "sine", "rectangular", "blackman"] = "povey"
    blackman_coeff: float = Field(0.42, description="mean of the Blackman window")
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
    cepstral_lifter: float = Field(22.0, ge=0, description="mfcc, plp: raises the higher coefficients; 0: off")
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
        " global they normalise; with utterance or speaker they count as a fifth of a second of each, and streams begin"
        " with them",
    )
    left_context: int = Field(0, ge=0, description="preceding frames, spliced to each frame as the last step")
    right_context: int = Field(0, ge=0, description="following frames, spliced to each frame as the last step")
    adapted: int = Field(
        0,
        ge=0,
        exclude_if=lambda values: values == 0,  # older models have no such key
        description="last values of a frame, after derivatives and spliced frames of the others, which the model in the"
        " directory `sat` adapts to speakers; recipes set it. With given there are no others",
    )

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

    @property
    def from_audio(self) -> bool:
        return self.kind != "given" or self.adapted > 0

    def of_values(self) -> dict[str, Any]:
        """The keys on which the values of features depend; which recordings are accepted is not among them."""
        return self.model_dump(exclude={"resample", "mix_channels"})

    @property
    def for_training(self) -> "FeatureConfig":
        """Without the statistics of other training data, which would count as frames of each utterance or speaker."""
        return self if self.cmvn == "global" else self.model_copy(update={"global_stats": None})


def read_conf(path: Path) -> dict[str, Any]:
    """Read a `.conf` file of compute-mfcc-feats, compute-fbank-feats or compute-plp-feats as keys of `FeatureConfig`.

    Raises Speech3Error: it cannot be read, has an unknown option or one of another meaning, or is for no known kind of
    features; the message names file, line and option.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise MissingError(f"{path}: no such file") from error
    except OSError as error:
        raise FormatError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: not a text file: {error}") from error
    lines: dict[str, tuple[str, Any]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if stripped := line.partition("#")[0].strip():
            option, value = _option(stripped, f"{path}:{number}")
            lines[option] = f"{path}:{number}", value
    of_pitch = {name.replace("_", "-") for name in PitchConfig.model_fields} - {"delta-window"} | {"resample-frequency"}
    if pitch := sorted(of_pitch & lines.keys()):
        keys = ", ".join(f"{option.replace('-', '_')}: {lines[option][1]}" for option in pitch)
        raise SettingError(
            f"{lines[pitch[0]][0]}: --{pitch[0]}: an option of pitch, which is appended to other features; write a YAML"
            f" file such as\n  kind: mfcc\n  pitch: {{{keys}}}"
        )
    kind = _kind(path, set(lines))
    return {"kind": kind, **_keys(kind, lines)}


def _option(line: str, where: str) -> tuple[str, Any]:
    match = re.fullmatch(r"--([A-Za-z][\w-]*)\s*(=)?\s*(.*)", line)
    if not match or (match[3] and not match[2]):
        raise SettingError(f"{where}: {line!r}: expected an option of Kaldi such as --num-mel-bins=40")
    option, value = match[1].lower().replace("_", "-"), match[3].strip("'\"")
    if option in _BOOLEAN:
        if value.lower() not in (*_TRUE, *_FALSE):
            raise SettingError(f"{where}: --{option}={value}: expected true or false")
        return option, value.lower() in _TRUE
    if not value:
        raise SettingError(f"{where}: --{option}: has no value; write --{option}=VALUE")
    return option, value


def _kind(path: Path, options: set[str]) -> str:
    named = [kind for kind in OPTIONS if kind in path.name.lower()]
    if len(named) == 1:
        return named[0]
    known = options & {option for kind in OPTIONS for option in OPTIONS[kind]}
    found = [kind for kind in OPTIONS if known <= set(OPTIONS[kind])]
    if len(found) == 1:
        return found[0]
    raise SettingError(
        f"{path}: neither its name nor its options say which features these are; name it mfcc.conf, fbank.conf or"
        " plp.conf"
    )


def _keys(kind: str, lines: Mapping[str, tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    unknown = []
    for option, (where, value) in lines.items():
        if option in OPTIONS[kind]:
            found[option.replace("-", "_")] = value
        elif option in ("allow-downsample", "allow-upsample"):
            found["resample"] = found.get("resample", False) or value
        elif option == "subtract-mean":
            found |= {"cmvn": "utterance"} if value else {}
        elif option in _REFUSED:
            usual, remedy = _REFUSED[option]
            if value not in usual and str(value).lower() not in usual:
                raise SettingError(f"{where}: --{option}={str(value).lower()}: {remedy}")
        elif option not in _WITHOUT_EFFECT:
            unknown.append(f"{where}: --{option}")
    if unknown:
        raise SettingError(
            f"{listed(unknown, 5)}: not an option of Kaldi's compute-{kind}-feats; known here:"
            f" {', '.join(f'--{option}' for option in sorted(OPTIONS[kind]))}"
        )
    return found


def with_underscores(values: Any, renamed: Mapping[str, str] = MappingProxyType({})) -> Any:
    """The keys of a config with underscores for Kaldi's dashes; `renamed`: keys that differ from Kaldi's options.

    Raises ValueError if both spellings of one key are given.
    """
    if not isinstance(values, Mapping):
        return values
    found: dict[Any, Any] = {}
    for key, value in values.items():
        name = key.replace("-", "_") if isinstance(key, str) else key
        name = renamed.get(name, name)
        if name in found:
            raise ValueError(f"{name} is set twice, in two spellings; remove one")
        found[name] = value
    return found


def without_kaldis_own(values: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a feature config, without Kaldi's options of another meaning where they have no effect.

    Raises ValueError if an option of Kaldi has no counterpart; the message says what to write.
    """
    found = dict(values)
    for key, value in values.items():
        option = str(key).replace("_", "-")
        if key in known or option not in _REFUSED:
            continue
        usual, remedy = _REFUSED[option]
        if value not in usual and str(value).lower() not in usual:
            raise ValueError(f"{key}={value}: {remedy}")
        del found[key]
    return found
