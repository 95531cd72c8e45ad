"""Mel filters: closed forms."""

import numpy as np
import pytest
import torch

from speech3.config import FeatureConfig
from speech3.errors import Speech3Error
from speech3.features.filterbank import mel_energies, mel_filters, mel_scale


def test_mel_scale_is_htks() -> None:
    np.testing.assert_allclose(mel_scale(np.array([0.0, 700.0, 1000.0])), [0, 2595 * np.log10(2), 1000], atol=0.01)


@pytest.mark.parametrize("rate_hz", [8000, 11025, 16000, 44100])
def test_filters_add_up_to_one_between_the_first_and_last_centre(rate_hz: int) -> None:
    config = FeatureConfig(num_mel_bins=30, low_freq=100.0, high_freq=-200.0)
    filters_BM = mel_filters(config, rate_hz)
    hz_B = np.arange(len(filters_BM)) * rate_hz / (2 * len(filters_BM))
    edges = np.linspace(mel_scale(100.0), mel_scale(rate_hz / 2 - 200.0), 32)
    inner_B = (mel_scale(hz_B) >= edges[1]) & (mel_scale(hz_B) <= edges[-2])
    np.testing.assert_allclose(filters_BM[inner_B].sum(axis=1), 1.0, atol=1e-12)
    assert not filters_BM[(hz_B <= 100) | (hz_B >= rate_hz / 2 - 200)].any()


@pytest.mark.parametrize("bins", [3, 8, 23, 40])
def test_a_row_does_not_depend_on_those_beside_it(bins: int) -> None:
    config = FeatureConfig(num_mel_bins=bins)
    power_RB = torch.rand(100, 257, generator=torch.Generator().manual_seed(1))
    together_RM = torch.empty(100, bins)
    mel_energies(power_RB, config, 16000, together_RM)
    for first, rows in ((0, 1), (3, 2), (17, 3), (50, 4), (61, 39)):
        alone_RM = torch.empty(rows, bins)
        mel_energies(power_RB[first : first + rows], config, 16000, alone_RM)
        torch.testing.assert_close(alone_RM, together_RM[first : first + rows], rtol=1e-6, atol=0)


@pytest.mark.parametrize("bins", [3, 15, 16, 17, 23, 40, 80])
def test_groups_of_filters_equal_the_whole_matrix(bins: int) -> None:
    config = FeatureConfig(num_mel_bins=bins)
    power_RB = torch.rand(7, 257, generator=torch.Generator().manual_seed(1))
    whole_RM = power_RB[:, :-1].double().numpy() @ mel_filters(config, 16000)
    out_RM = torch.empty(7, bins)
    mel_energies(power_RB, config, 16000, out_RM)
    np.testing.assert_allclose(out_RM.numpy(), whole_RM, rtol=1e-5)


@pytest.mark.parametrize(
    "options", [{"high_freq": 4001.0}, {"low_freq": 4000.0}, {"low_freq": 300.0, "high_freq": 200.0}]
)
def test_frequencies_outside_the_band_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(Speech3Error, match=r"low_freq .* and high_freq .* 8000 Hz"):
        mel_filters(FeatureConfig(**options), 8000)


def test_more_filters_than_frequencies_are_refused() -> None:
    with pytest.raises(Speech3Error, match="num_mel_bins 120 is too many"):
        mel_filters(FeatureConfig(num_mel_bins=120), 8000)
