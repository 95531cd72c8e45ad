"""Kaldi's `.conf` files and option names where features are configured."""

from pathlib import Path

import pytest

from speech3.config import FeatureConfig, load_preset
from speech3.config.features import OPTIONS
from speech3.errors import Speech3Error

HIRES = """# config for high-resolution MFCC features, intended for neural network training
--use-energy=false   # use average of log energy, not energy.
--num-mel-bins=40     # similar to Google's setup.
--num-ceps=40     # there is no dimensionality reduction.
--low-freq=20     # low cutoff frequency for mel bins
--high_freq=-400 # high cutoff frequently, relative to Nyquist of 8000 (=7600)
--Sample-Frequency=16000
--allow-downsample
--verbose=2
--htk-compat=false
"""


def features(directory: Path, name: str, text: str) -> FeatureConfig:
    (directory / name).write_text(text, encoding="utf-8")
    return load_preset(FeatureConfig, "features", str(directory / name))


def test_mfcc_hires_of_kaldis_recipes(tmp_path: Path) -> None:
    wanted = FeatureConfig(
        kind="mfcc",
        use_energy=False,
        num_mel_bins=40,
        num_ceps=40,
        low_freq=20,
        high_freq=-400,
        sample_frequency=16000,
        resample=True,
    )
    assert features(tmp_path, "mfcc_hires.conf", HIRES) == wanted
    assert features(tmp_path, "mfcc.conf", HIRES.replace("\n", "\r\n")) == wanted


def test_every_option_of_kaldi_is_a_key() -> None:
    for kind, options in OPTIONS.items():
        keys = {option.replace("-", "_") for option in options}
        assert keys <= set(FeatureConfig.model_fields), kind


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("fbank.conf", "--num-mel-bins=40", "fbank"),
        ("plp.conf", "", "plp"),
        ("a.conf", "--use-power=false", "fbank"),
        ("a.conf", "--lpc-order=14", "plp"),
    ],
)
def test_the_kind_is_that_of_the_name_or_of_the_options(tmp_path: Path, name: str, text: str, kind: str) -> None:
    assert features(tmp_path, name, text).kind == kind


def test_kaldis_defaults_of_a_kind_hold(tmp_path: Path) -> None:
    assert features(tmp_path, "mfcc.conf", "").use_energy
    assert not features(tmp_path, "fbank.conf", "").use_energy


def test_subtract_mean_is_normalisation_by_utterance(tmp_path: Path) -> None:
    config = features(tmp_path, "mfcc.conf", "--subtract-mean=true")
    assert (config.cmvn, config.norm_means, config.norm_vars) == ("utterance", True, False)


def test_of_two_equal_options_the_last_counts(tmp_path: Path) -> None:
    assert features(tmp_path, "mfcc.conf", "--num-mel-bins=30\n--num-mel-bins=40\n").num_mel_bins == 40


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("--num-mel-bins=40\n--num-mel-bin=40", ["mfcc.conf:2: --num-mel-bin:", "--num-mel-bins"]),
        ("--use-power=false", ["mfcc.conf:1: --use-power", "compute-mfcc-feats"]),
        ("num-mel-bins=40", ["mfcc.conf:1", "'num-mel-bins=40'", "--num-mel-bins=40"]),
        ("--num-mel-bins 40", ["mfcc.conf:1"]),
        ("--num-mel-bins", ["mfcc.conf:1: --num-mel-bins", "VALUE"]),
        ("--num-mel-bins=forty", ["mfcc.conf", "num_mel_bins", "forty"]),
        ("--use-energy=no", ["mfcc.conf:1: --use-energy=no", "true or false"]),
        ("--htk-compat=true", ["mfcc.conf:1: --htk-compat=true", "remove it"]),
        ("\n--channel=1", ["mfcc.conf:2: --channel=1", "remix"]),
        ("--vtln-warp=0.9", ["--vtln-warp=0.9", "training.frequency_warp"]),
        ("--compress=true", ["--compress=true", "speech3 extract"]),
        ("--norm-vars=true", ["--norm-vars", "cmvn: speaker"]),
        ("--delta-order=2", ["--delta-order=2", "deltas: 2"]),
        ("--sample-frequency=16000\n--min-f0=60", ["mfcc.conf:2: --min-f0", "pitch: {min_f0: 60}"]),
        ("--config=other.conf", ["mfcc.conf:1: --config"]),
    ],
)
def test_what_is_not_understood_is_named(tmp_path: Path, text: str, said: list[str]) -> None:
    with pytest.raises(Speech3Error) as error:
        features(tmp_path, "mfcc.conf", text)
    for words in said:
        assert words in str(error.value)


def test_a_conf_without_a_kind_and_one_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(Speech3Error, match=r"a\.conf: neither .* mfcc\.conf"):
        features(tmp_path, "a.conf", "--num-mel-bins=40\n--num-ceps=13")
    with pytest.raises(Speech3Error, match=r"mfcc\.conf: no such file"):
        load_preset(FeatureConfig, "features", str(tmp_path / "mfcc.conf"))
    (tmp_path / "mfcc.conf").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(Speech3Error, match=r"mfcc\.conf: not a text file"):
        load_preset(FeatureConfig, "features", str(tmp_path / "mfcc.conf"))


def test_yaml_with_dashes(tmp_path: Path) -> None:
    text = "kind: mfcc\nnum-mel-bins: 40\nsample-frequency: 8000\nhtk-compat: false\nchannel: -1\n"
    config = features(tmp_path, "a.yaml", text + "pitch: {min-f0: 60, resample-frequency: 3000}\n")
    assert (config.num_mel_bins, config.sample_frequency, config.use_energy) == (40, 8000, True)
    assert config.pitch is not None and (config.pitch.min_f0, config.pitch.resample_freq) == (60, 3000)
    for more, said in (
        ("num_mel_bins: 40\n", "num_mel_bins is set twice"),
        ("num-mel-bin: 40\n", "unknown key 'num_mel_bin'"),
        ("vtln-warp: 0.9\n", "vtln_warp=0.9: .*training.frequency_warp"),
    ):
        with pytest.raises(Speech3Error, match=said):
            features(tmp_path, "a.yaml", text.replace("channel: -1\n", "") + more)
