"""Kaldi's names for the options of features: dashes, and the `.conf` files of compute-{mfcc,fbank,plp}-feats.

The names are Kaldi's with dashes in place of underscores (feat/feature-*.h, featbin/compute-*-feats.cc), and the files
are read as in util/parse-options.cc: one option per line, ``#`` begins a comment, the last of two equal options counts.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from speech3.errors import Speech3Error, listed

_FRAMES = (
    "sample-frequency", "frame-length", "frame-shift", "preemphasis-coefficient", "remove-dc-offset", "dither",
    "window-type", "blackman-coeff", "round-to-power-of-two", "snip-edges",
)  # fmt: skip
_MEL = ("num-mel-bins", "low-freq", "high-freq")
_ENERGY = ("use-energy", "energy-floor", "raw-energy")
OPTIONS = {
    "mfcc": (*_FRAMES, *_MEL, *_ENERGY, "num-ceps", "cepstral-lifter"),
    "fbank": (*_FRAMES, *_MEL, *_ENERGY, "use-log-fbank", "use-power"),
    "plp": (*_FRAMES, *_MEL, *_ENERGY, "num-ceps", "lpc-order", "compress-factor", "cepstral-lifter", "cepstral-scale"),
}
_BOOLEAN = {
    "remove-dc-offset", "round-to-power-of-two", "snip-edges", "use-energy", "raw-energy", "use-log-fbank", "use-power",
    "allow-downsample", "allow-upsample", "htk-compat", "subtract-mean", "debug-mel", "print-args",
}  # fmt: skip
# Options that do not change the features, or only together with an option that is refused.
_WITHOUT_EFFECT = {
    "max-feature-vectors", "debug-mel", "print-args", "verbose", "output-format", "vtln-low", "vtln-high",
    "write-utt2dur",
}  # fmt: skip
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
_OF_PITCH = {
    "min-f0", "max-f0", "soft-min-f0", "penalty-factor", "lowpass-cutoff", "resample-frequency", "resample-freq",
    "delta-pitch", "nccf-ballast", "lowpass-filter-width", "upsample-filter-width", "max-frames-latency",
    "preemph-coeff", "pitch-scale", "pov-scale", "pov-offset", "delta-pitch-scale", "delta-pitch-noise-stddev",
    "normalization-left-context", "normalization-right-context", "add-pov-feature", "add-normalized-log-pitch",
    "add-delta-pitch", "add-raw-log-pitch",
}  # fmt: skip
_TRUE, _FALSE = ("true", "t", "1", ""), ("false", "f", "0")


def with_underscores(values: Any, renamed: Mapping[str, str] = MappingProxyType({})) -> Any:
    """The keys of a config with underscores for Kaldi's dashes; `renamed`: keys that differ from Kaldi's options.

    Raises
    ------
    ValueError
        Both spellings of one key are given.
    """
    if not isinstance(values, Mapping):
        return values
    found: dict[Any, Any] = {}
    for key, value in values.items():
        name = key.replace("-", "_") if isinstance(key, str) else key
        name = renamed.get(name, name)
        if name in found:
            raise ValueError(f"{name} is given twice, in two spellings; remove one")
        found[name] = value
    return found


def without_kaldis_own(values: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a feature config, without Kaldi's options of another meaning where they have no effect.

    Raises
    ------
    ValueError
        An option of Kaldi has no counterpart; the message says what to write.
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


def read_conf(path: Path) -> dict[str, Any]:
    """Read a `.conf` file of compute-mfcc-feats, compute-fbank-feats or compute-plp-feats as keys of `FeatureConfig`.

    Raises
    ------
    Speech3Error
        It cannot be read, has an unknown option or one of another meaning, or is for no known kind of features; the
        message names file, line and option.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise Speech3Error(f"{path}: no such file") from error
    except OSError as error:
        raise Speech3Error(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise Speech3Error(f"{path}: not a text file: {error}") from error
    lines: dict[str, tuple[str, Any]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if stripped := line.partition("#")[0].strip():
            option, value = _option(stripped, f"{path}:{number}")
            lines[option] = f"{path}:{number}", value
    if pitch := sorted(_OF_PITCH & lines.keys()):
        keys = ", ".join(f"{option.replace('-', '_')}: {lines[option][1]}" for option in pitch)
        raise Speech3Error(
            f"{lines[pitch[0]][0]}: --{pitch[0]}: an option of pitch, which is appended to other features; write a YAML"
            f" file such as\n  kind: mfcc\n  pitch: {{{keys}}}"
        )
    kind = _kind(path, set(lines))
    return {"kind": kind, **_keys(kind, lines)}


def _option(line: str, where: str) -> tuple[str, Any]:
    """Name, with dashes, and value of an option."""
    match = re.fullmatch(r"--([A-Za-z][\w-]*)\s*(=)?\s*(.*)", line)
    if not match or (match[3] and not match[2]):
        raise Speech3Error(f"{where}: {line!r}: expected an option of Kaldi such as --num-mel-bins=40")
    option, value = match[1].lower().replace("_", "-"), match[3].strip("'\"")
    if option in _BOOLEAN:
        if value.lower() not in (*_TRUE, *_FALSE):
            raise Speech3Error(f"{where}: --{option}={value}: expected true or false")
        return option, value.lower() in _TRUE
    if not value:
        raise Speech3Error(f"{where}: --{option}: has no value; write --{option}=VALUE")
    return option, value


def _kind(path: Path, options: set[str]) -> str:
    named = [kind for kind in OPTIONS if kind in path.name.lower()]
    if len(named) == 1:
        return named[0]
    known = options & {option for kind in OPTIONS for option in OPTIONS[kind]}
    found = [kind for kind in OPTIONS if known <= set(OPTIONS[kind])]
    if len(found) == 1:
        return found[0]
    raise Speech3Error(
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
                raise Speech3Error(f"{where}: --{option}={str(value).lower()}: {remedy}")
        elif option not in _WITHOUT_EFFECT:
            unknown.append(f"{where}: --{option}")
    if unknown:
        raise Speech3Error(
            f"{listed(unknown, 5)}: not an option of Kaldi's compute-{kind}-feats; known here:"
            f" {', '.join(f'--{option}' for option in sorted(OPTIONS[kind]))}"
        )
    return found
