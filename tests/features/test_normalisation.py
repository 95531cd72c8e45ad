"""The mean and deviation so far, with those of the training before them."""

import numpy as np
import pytest
import torch

from speech3.config import FeatureConfig
from speech3.errors import Speech3Error
from speech3.features.cmvn import cmvn_stats
from speech3.features.compute import OnlineFeatures, finish_features
from speech3.features.normalisation import CARRIED_FRAMES, PRIOR_FRAMES, WAIT_FRAMES, OnlineCmvn

F = 3


def frames(count: int, seed: int, mean: float = 5.0) -> torch.Tensor:
    return mean + torch.randn(count, F, generator=torch.Generator().manual_seed(seed)) * torch.tensor([1.0, 2.0, 0.5])


PRIOR = tuple(tuple(row) for row in cmvn_stats(frames(5000, 9, 4.7)).tolist())  # about as loud as the frames


def run(online: OnlineCmvn, feats_TF: torch.Tensor, size: int) -> np.ndarray:
    out = [online.accept(piece) for piece in feats_TF.split(size)]
    waited = online.finish()
    return torch.cat(out if waited is None else [*out, waited]).numpy()


def by_hand(feats_TF: torch.Tensor, norm_vars: bool, weighted: list[tuple[np.ndarray, float]]) -> np.ndarray:
    """Every frame by the weighted frames that it knows; the first ones know each other."""
    x, out = feats_TF.double().numpy(), []
    for t in range(len(x)):
        known = x[: max(t + 1, min(WAIT_FRAMES, len(x)))]
        values = np.concatenate([known, *(each for each, _ in weighted)])
        weights = np.concatenate([np.ones(len(known)), *(np.full(len(e), w / len(e)) for e, w in weighted)])
        mean = np.average(values, axis=0, weights=weights)
        scale = np.sqrt(np.average((values - mean) ** 2, axis=0, weights=weights)) if norm_vars else 1.0
        out.append((x[t] - mean) / scale)
    return np.array(out)


def online_cmvn(norm_vars: bool, prior: tuple | None) -> OnlineCmvn:
    return OnlineCmvn(FeatureConfig(num_mel_bins=F, norm_vars=norm_vars, global_stats=prior))


@pytest.mark.parametrize("norm_vars", [False, True])
@pytest.mark.parametrize("count", [10, WAIT_FRAMES, WAIT_FRAMES + 150])
@pytest.mark.parametrize("prior", [None, PRIOR])
def test_each_frame_by_those_before_it(norm_vars: bool, count: int, prior: tuple | None) -> None:
    feats_TF = frames(count, 1)
    weighted = [] if prior is None else [(frames(5000, 9, 4.7).double().numpy(), PRIOR_FRAMES)]
    expected = by_hand(feats_TF, norm_vars, weighted)
    for size in (1, 7, 1000):
        found = run(online_cmvn(norm_vars, prior), feats_TF, size)
        # a piece that ends the wait is normalised as one with those that waited
        first = min(count, -(-WAIT_FRAMES // size) * size)
        np.testing.assert_allclose(found[first:], expected[first:], atol=1e-5)
        if size == 1:
            np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_stream_without_frames() -> None:
    online = online_cmvn(False, None)
    assert online.accept(frames(0, 1)).shape == (0, F)
    waited = online.finish()
    assert waited is None or waited.shape == (0, F)
    online.restart(speech=True)
    assert run(online, frames(50, 1), 10).shape == (50, F)


def test_speech_is_remembered_and_silence_forgotten() -> None:
    spoken_TF, silence_TF, next_TF = frames(300, 1), frames(200, 2, -20.0), frames(50, 3)
    one, other = online_cmvn(True, PRIOR), online_cmvn(True, PRIOR)
    for online in (one, other):
        online.accept(spoken_TF)
        online.restart(speech=True)
    one.accept(silence_TF)
    one.restart(speech=False)
    found = one.accept(next_TF)
    # The level is smoothed, so that a few frames after silence do not count yet.
    torch.testing.assert_close(found, other.accept(next_TF), rtol=0, atol=0.02)
    known = np.concatenate([spoken_TF.double().numpy(), next_TF[:1].double().numpy()])
    prior = np.array(PRIOR[0][:-1]) / PRIOR[0][-1]
    mean = (known.sum(0) + PRIOR_FRAMES * prior) / (len(known) + PRIOR_FRAMES)
    variance = (np.square(known).sum(0) + PRIOR_FRAMES * np.array(PRIOR[1][:-1]) / PRIOR[0][-1]) / (
        len(known) + PRIOR_FRAMES
    ) - mean**2
    np.testing.assert_allclose(found[0].numpy(), (next_TF[0].numpy() - mean) / np.sqrt(variance), atol=0.02)


def test_of_long_ago_little_counts() -> None:
    online = online_cmvn(False, None)
    for number in range(20):
        online.accept(frames(2000, number, float(number)))
        online.restart(speech=True)
    assert online._speaker.carried_2G is not None and float(online._speaker.carried_2G[0, -1]) <= CARRIED_FRAMES
    assert float(online._speaker.carried_2G[0, 0] / online._speaker.carried_2G[0, -1]) > 17


def test_in_place_of_the_normalisation_of_a_model() -> None:
    pieces = (torch.randn(16000, generator=torch.Generator().manual_seed(0)) * 0.1).split(777)
    config = FeatureConfig(num_mel_bins=F, cmvn="utterance", norm_vars=True, deltas=1, left_context=2)
    online = OnlineFeatures(config, 8000, online_cmvn(True, PRIOR))
    found_TF = torch.cat([*map(online.accept, pieces), online.finish()])
    plain, cmvn = config.model_copy(update={"cmvn": "none"}), online_cmvn(True, PRIOR)
    statics = OnlineFeatures(FeatureConfig(num_mel_bins=F), 8000)
    normal = [*(cmvn.accept(statics.accept(piece)) for piece in pieces), cmvn.accept(statics.finish())]
    normal_TF = torch.cat([*normal, *([] if (waited_TF := cmvn.finish()) is None else [waited_TF])])
    torch.testing.assert_close(found_TF, finish_features([normal_TF], plain)[0], atol=1e-5, rtol=0)
    with pytest.raises(Speech3Error, match="cmvn: utterance needs whole recordings"):
        OnlineFeatures(config, 8000)


@pytest.mark.parametrize("count", [50, WAIT_FRAMES + 50])
def test_a_quiet_microphone(count: int) -> None:
    """The level of what was heard first becomes that of the prior, until it turns out not to have been speech."""
    loud_TF, quiet_TF = frames(count, 1), frames(count, 1, 5.0 - 6.9)
    found, quiet = (run(online_cmvn(True, PRIOR), each_TF, 10) for each_TF in (loud_TF, quiet_TF))
    np.testing.assert_allclose(quiet, found, atol=0.7)  # without it 2.7
    online = online_cmvn(True, PRIOR)
    online.accept(quiet_TF)
    online.finish()
    online.restart(speech=False)
    np.testing.assert_array_equal(run(online, loud_TF, 10), found)


def test_statistics_of_other_features() -> None:
    with pytest.raises(Speech3Error, match="global_stats: 4 and 4 values"):
        online_cmvn(True, PRIOR).accept(torch.zeros(10, F + 1))
    with pytest.raises(Speech3Error, match="global_stats: 4 and 3 values"):
        online_cmvn(True, (PRIOR[0], PRIOR[1][:-1]))
