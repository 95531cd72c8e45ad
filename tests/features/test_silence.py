"""Zeros put into recordings do not change the features of their speech."""

from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from extracted import extracted

from speech3.config import FeatureConfig, load_preset
from speech3.data import audio
from speech3.data.datadir import read_datadir
from speech3.errors import Speech3Error
from speech3.features.cmvn import SILENCE_DEVIATIONS, apply_cmvn, cmvn_stats
from speech3.features.compute import OnlineFeatures, finish_features, static_features
from speech3.features.extraction import extract
from speech3.features.normalisation import OnlineCmvn
from speech3.features.sound import repeated_frames, silent_frames
from speech3.frames.packed import open_packed, write_frames
from speech3.hmm.alignment.longform import local_features
from speech3.io.ark import write_ark

MINILIBRI = Path(__file__).parents[3] / "shared" / "corpora" / "minilibri" / "test"
needs_speech = pytest.mark.skipif(not MINILIBRI.is_dir(), reason=f"{MINILIBRI} is not there")
RATE_HZ = 16000
PLACES = ("front", "behind", "inside")
# The pitch tracker's values depend on the energy of the whole recording, as in Kaldi.
PITCH = {"fbank40_pitch": (40, 41, 42), "plp13_pitch1_d2_utt": (13, 27, 41)}
PRESETS = ("fbank40_utt", "fbank40_d2_utt", "fbank40", "mfcc13_d2_utt", "plp13_pitch1_d2_utt", "fbank40_pitch")


def noise(samples: int, seed: int = 0, steps: float = 300.0) -> torch.Tensor:
    """16-bit samples whose standard deviation is `steps`."""
    return (torch.randn(samples, generator=torch.Generator().manual_seed(seed)) * steps).round() / 32768


def put_in(wave_S: np.ndarray, place: str, zeros: np.ndarray) -> tuple[np.ndarray, int]:
    """The recording with `zeros` put in, and the sample at which they begin."""
    at = {"front": 0, "inside": len(wave_S) // 2, "behind": len(wave_S)}[place]
    return np.insert(wave_S, at, zeros), at


def statics(wave_S: torch.Tensor, config: FeatureConfig) -> tuple[torch.Tensor, torch.Tensor]:
    feats_TF = static_features(wave_S[None], torch.tensor([len(wave_S)]), config, RATE_HZ)[0][0]
    return feats_TF, silent_frames(wave_S, len(feats_TF), config, RATE_HZ)


def whole(wave_S: torch.Tensor, config: FeatureConfig) -> torch.Tensor:
    feats_TF, silent_T = statics(wave_S, config)
    return finish_features([feats_TF], config, [silent_T])[0]


def as_before(wave_S: torch.Tensor, config: FeatureConfig) -> torch.Tensor:
    """All frames count."""
    return finish_features([statics(wave_S, config)[0]], config)[0]


def streamed(wave_S: torch.Tensor, config: FeatureConfig, size: int, cmvn: OnlineCmvn | None = None) -> torch.Tensor:
    online = OnlineFeatures(config, RATE_HZ, cmvn)
    return torch.cat([*map(online.accept, wave_S.split(size)), online.finish()])


@pytest.fixture(scope="module")
def recordings() -> list[np.ndarray]:
    data = read_datadir(MINILIBRI)
    # These have no digital silence of their own.
    found = [audio.load(data, key)[0] for key in sorted(data.utterances)[1:]]
    return [wave_S for wave_S in found if not statics(torch.from_numpy(wave_S), FeatureConfig())[1].any()][:10]


def online_cmvn(norm_vars: bool, stats: tuple | None, config: FeatureConfig | None = None) -> OnlineCmvn:
    return OnlineCmvn((config or FeatureConfig()).model_copy(update={"norm_vars": norm_vars, "global_stats": stats}))


@needs_speech
@pytest.mark.parametrize("preset", PRESETS)
def test_zeros_do_not_move_the_features_of_speech(preset: str, recordings: list[np.ndarray]) -> None:
    config = load_preset(FeatureConfig, "features", preset)
    assert len(recordings) == 10
    for number, wave_S in enumerate(recordings):
        wave_S = wave_S[: 4 * RATE_HZ]
        plain_TF = whole(torch.from_numpy(wave_S), config)
        assert plain_TF.equal(as_before(torch.from_numpy(wave_S), config))
        for ms in (100, 200, 500):
            place = PLACES[(number + ms // 100) % 3]
            zeros_S = np.zeros(RATE_HZ * ms // 1000, np.float32)
            padded_S, at = put_in(wave_S, place, zeros_S)
            found_TF = whole(torch.from_numpy(padded_S), config)
            edge, added = at // 160, len(zeros_S) // 160
            # Frames next to the zeros have no counterpart: windows and derivatives reach 6 frames.
            before, after = slice(0, max(edge - 6, 0)), slice(edge + 6, None)
            pairs = [(plain_TF[before], found_TF[before]), (plain_TF[after], found_TF[after.start + added :])]
            plain, found = (torch.cat([pair[i][: len(pair[1 - i])] for pair in pairs]) for i in (0, 1))
            dims = [dim for dim in range(plain.shape[1]) if dim not in PITCH.get(preset, ())]
            deviation_F = plain.std(0)
            assert ((found.mean(0) - plain.mean(0)) / deviation_F)[dims].abs().max() < 0.02
            assert (found.std(0) / deviation_F - 1)[dims].abs().max() < 0.02
            # The zeros themselves are no outliers, nor are the derivatives at their edges.
            near_TF = found_TF[max(edge - 6, 0) : edge + added + 6]
            assert ((near_TF - plain.mean(0)) / deviation_F)[:, dims].abs().max() < 8


@needs_speech
def test_today_zeros_shrink_the_variance_of_speech(recordings: list[np.ndarray]) -> None:
    """What this guards against: if the zeros count, the deviation of speech is 0.4 to 0.7 of what it should be."""
    config = load_preset(FeatureConfig, "features", "fbank40_utt")
    padded_S, _ = put_in(recordings[0][: 4 * RATE_HZ], "front", np.zeros(8000, np.float32))
    assert as_before(torch.from_numpy(padded_S), config)[55:].std() < 0.6
    assert whole(torch.from_numpy(padded_S), config)[55:].std() > 0.95


@pytest.mark.parametrize(
    "silence",
    [
        pytest.param(torch.zeros(8000), id="zeros"),
        pytest.param(torch.full((8000,), 8 / 32768), id="a constant, as A-law decodes to"),
        pytest.param((noise(8000, 1, 1.0).abs() > 1.3 / 32768) * noise(8000, 2).sign() / 32768, id="some ones"),
        pytest.param(
            (
                (torch.rand(8000, generator=torch.Generator().manual_seed(1)) - 0.5)
                + (torch.rand(8000, generator=torch.Generator().manual_seed(2)) - 0.5)
            ).round()
            / 32768,
            id="triangular dither",
        ),
        pytest.param(noise(8000, 3, 1.0).double().float() * 1e-3, id="what a decoder leaves in floats"),
    ],
)
@pytest.mark.parametrize("snip_edges", [True, False])
def test_what_is_digital_silence(silence: torch.Tensor, snip_edges: bool) -> None:
    wave_S = torch.cat([noise(8000), silence, noise(8000, 4)])
    silent_T = silent_frames(wave_S, 147 if snip_edges else 150, FeatureConfig(snip_edges=snip_edges), RATE_HZ)
    inside = silent_T.nonzero().flatten()
    assert silent_T[51:97].all() and not silent_T[:48].any() and not silent_T[101:].any()
    assert len(inside) == int(inside[-1] - inside[0]) + 1


@pytest.mark.parametrize("steps", [1.0, 3.0, 1000.0])
def test_quiet_noise_counts_and_so_does_dither(steps: float) -> None:
    wave_S = noise(160_000, 5, steps)
    assert not silent_frames(wave_S, 998, FeatureConfig(), RATE_HZ).any()


def test_a_recording_shorter_than_a_frame_or_a_block() -> None:
    for samples in (0, 1, 30, 399):
        config = FeatureConfig(snip_edges=False)
        found_TF, silent_T = statics(torch.zeros(samples), config)
        assert silent_T.shape == (len(found_TF),) and silent_T.all()
    assert silent_frames(torch.zeros(10), 0, FeatureConfig(), RATE_HZ).shape == (0,)


@pytest.mark.parametrize("kind", ["fbank", "mfcc", "plp"])
@pytest.mark.parametrize("cmvn", ["utterance", "speaker", "sliding", "global"])
@pytest.mark.parametrize("norm_vars", [False, True])
def test_nothing_but_silence(kind: str, cmvn: str, norm_vars: bool) -> None:
    stats = tuple(map(tuple, cmvn_stats(statics(noise(RATE_HZ), FeatureConfig(kind=kind))[0]).tolist()))
    config = FeatureConfig(kind=kind, cmvn=cmvn, norm_vars=norm_vars, deltas=2, global_stats=stats)
    found_TF = whole(torch.zeros(RATE_HZ), config)
    assert found_TF.isfinite().all() and (cmvn == "global" or found_TF.abs().max() < 1e-2)
    online = None if cmvn in ("sliding", "global") else online_cmvn(norm_vars, stats, config)
    assert streamed(torch.zeros(RATE_HZ), config, 1000, online).isfinite().all()
    if online:
        assert streamed(torch.zeros(RATE_HZ), config, 1000, online_cmvn(norm_vars, None)).eq(0).all()


def test_a_silent_utterance_of_a_speaker_with_others() -> None:
    config = FeatureConfig(cmvn="speaker", norm_vars=True)
    loud, silent = statics(noise(RATE_HZ), config), statics(torch.zeros(RATE_HZ), config)
    found = finish_features([loud[0], silent[0]], config, [loud[1], silent[1]])
    assert found[0].equal(finish_features([loud[0]], config)[0])
    assert found[1].eq(-SILENCE_DEVIATIONS).all()


@pytest.mark.parametrize("norm_vars", [False, True])
@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("size", [777, 100_000])
def test_a_sliding_window_passes_over_silence_and_streams_agree(norm_vars: bool, center: bool, size: int) -> None:
    config = FeatureConfig(
        cmvn="sliding", cmn_window=80, min_cmn_window=30, center=center, norm_vars=norm_vars, num_mel_bins=8
    )
    zeros, parts = torch.zeros(RATE_HZ), [noise(9600, n, 100.0 * n + 50) for n in range(3)]
    wave_S = torch.cat([zeros, parts[0], zeros, zeros, parts[1], parts[2], zeros])
    found_TF = whole(wave_S, config)
    torch.testing.assert_close(streamed(wave_S, config, size), found_TF, atol=2e-5, rtol=0)
    assert found_TF.isfinite().all() and found_TF[:18].eq(0).all()
    feats_TF, silent_T = statics(wave_S, config)
    alone_TF = finish_features([feats_TF[~silent_T]], config)[0]
    torch.testing.assert_close(found_TF[~silent_T], alone_TF, atol=1e-6, rtol=0)
    if norm_vars:
        assert found_TF[silent_T].abs().max() <= SILENCE_DEVIATIONS + 1e-6


@pytest.mark.parametrize("norm_vars", [False, True])
@pytest.mark.parametrize("size", [640, 3840])
def test_streams_normalise_speech_as_without_silence(norm_vars: bool, size: int) -> None:
    config = FeatureConfig(cmvn="utterance", norm_vars=norm_vars, num_mel_bins=8)
    zeros, parts = torch.zeros(3840), [noise(38400, n, 100.0 * n + 50) for n in range(2)]
    prior = tuple(map(tuple, cmvn_stats(statics(noise(RATE_HZ, 7), config)[0]).tolist()))
    wave_S = torch.cat([zeros, parts[0], zeros, parts[1], zeros])
    found_TF = streamed(wave_S, config, size, online_cmvn(norm_vars, prior, config))
    feats_TF, silent_T = statics(wave_S, config)
    cmvn = online_cmvn(norm_vars, prior, config)
    alone_TF = torch.cat([cmvn.accept(feats_TF[t : t + 1]) for t in range(len(feats_TF)) if not silent_T[t]])
    # The level of the prior is that of the first frames, which are others without silence among them.
    torch.testing.assert_close(found_TF[~silent_T][130:], alone_TF[130:], atol=1e-2, rtol=0)
    assert found_TF.shape == feats_TF.shape and found_TF.abs().max() < 30


@pytest.mark.parametrize("cmvn", ["utterance", "sliding"])
@pytest.mark.parametrize("center", [False, True])
def test_a_muted_microphone_does_not_fill_the_memory(cmvn: str, center: bool) -> None:
    config = FeatureConfig(cmvn=cmvn, center=center, num_mel_bins=8)
    online = OnlineFeatures(config, RATE_HZ, online_cmvn(False, None))
    given = [len(online.accept(noise(4000))), *(len(online.accept(torch.zeros(RATE_HZ))) for _ in range(40))]
    assert sum(given) > 3000
    given.append(len(online.accept(noise(4000))))
    assert sum(given) + len(online.finish()) == 1 + (4000 + 40 * RATE_HZ + 4000 - 400) // 160


def test_silence_at_the_beginning_of_a_stream_does_not_wait() -> None:
    online = OnlineFeatures(FeatureConfig(cmvn="utterance"), RATE_HZ, online_cmvn(False, None))
    assert len(online.accept(torch.zeros(RATE_HZ))) == 98


def test_frames_that_repeat_are_silence_and_few_are_not() -> None:
    feats_TF = noise(50, 1).view(-1, 1).repeat(1, 3) * 1e4
    feats_TF[10:14] = feats_TF[10]
    feats_TF[20:26] = feats_TF[20] + torch.rand(6, 3) * 1e-6
    assert repeated_frames(feats_TF).nonzero().flatten().tolist() == list(range(20, 26))
    assert not repeated_frames(torch.full((9, 2), torch.nan)).any()
    assert repeated_frames(feats_TF[:0]).shape == (0,) and not repeated_frames(feats_TF[20:23]).any()


@pytest.fixture
def given_data(tmp_path: Path) -> tuple[Path, np.ndarray]:
    """A directory whose features are those of noise with 300 ms of zeros, as Kaldi computes them without dither."""
    feats_TF = statics(torch.cat([noise(16000), torch.zeros(4800), noise(16000, 1)]), FeatureConfig())[0].numpy()
    write_ark(tmp_path / "feats.ark", [("a-1", feats_TF)], tmp_path / "feats.scp")
    for name in ("utt2spk", "text"):
        (tmp_path / name).write_text("a-1 a\n")
    return tmp_path, feats_TF


@pytest.mark.parametrize("cmvn", ["speaker", "utterance", "global"])
def test_features_that_are_given(given_data: tuple[Path, np.ndarray], cmvn: str) -> None:
    directory, feats_TF = given_data
    config = FeatureConfig(kind="given", cmvn=cmvn, norm_vars=True)
    found_TF = extracted(read_datadir(directory), config)["a-1"]
    quiet_T = feats_TF.max(1) < -15
    assert quiet_T.sum() == 28
    np.testing.assert_allclose(found_TF[~quiet_T].std(0), 1, atol=1e-4)
    np.testing.assert_allclose(found_TF[quiet_T], -SILENCE_DEVIATIONS, atol=1e-4)


def test_features_that_are_given_with_statistics(given_data: tuple[Path, np.ndarray]) -> None:
    directory, feats_TF = given_data
    stats_2G = cmvn_stats(torch.from_numpy(feats_TF[:90])).numpy()
    for rows, lowest in ((2, None), (1, feats_TF.min() - feats_TF[:90].mean(0))):
        write_ark(directory / "cmvn.ark", [("a", stats_2G[:rows])], directory / "cmvn.scp")
        found_TF = extracted(read_datadir(directory), FeatureConfig(kind="given", cmvn="speaker"))["a-1"]
        limit_F = -SILENCE_DEVIATIONS * feats_TF[:90].std(0) if lowest is None else lowest
        np.testing.assert_allclose(found_TF[feats_TF.max(1) < -15], np.tile(limit_F, (28, 1)), rtol=1e-3)


def test_packed_statistics_leave_silence_out(given_data: tuple[Path, np.ndarray]) -> None:
    directory, feats_TF = given_data
    counted_TF = feats_TF[feats_TF.max(1) > -15].astype(np.float64)
    senones = {"a-1": np.zeros(len(feats_TF), np.int64), "a-2": np.zeros(20, np.int64)}
    feats = {"a-1": feats_TF, "a-2": np.full((20, 23), -15.9, np.float32)}
    for order in (["a-1", "a-2"], ["a-2", "a-1"]):
        write_frames(directory / "x", feats, senones, 1, utterances=order)
        packed = open_packed(directory / "x")
        np.testing.assert_allclose(packed.mean_F, counted_TF.mean(0), rtol=1e-9)
        np.testing.assert_allclose(packed.variance_F, counted_TF.var(0), rtol=1e-6)
        assert len(packed) == len(feats_TF) + 20
    write_frames(directory / "x", feats, senones, 1, utterances=["a-2"])
    packed = open_packed(directory / "x")
    np.testing.assert_allclose(packed.mean_F, -15.9, rtol=1e-6)
    assert not packed.variance_F.any()


def test_parts_of_long_recordings_leave_silence_out() -> None:
    config = FeatureConfig(cmvn="utterance", norm_vars=True, deltas=1)
    feats_TF = whole(torch.cat([noise(32000), torch.zeros(16000), noise(32000, 1)]), config).numpy()
    found_TF = local_features(feats_TF, 0, 250, config)
    assert abs(found_TF[:190, :23].std() - 1) < 0.02
    np.testing.assert_allclose(found_TF[210:250, :23], -SILENCE_DEVIATIONS, atol=0.2)
    assert np.isfinite(local_features(feats_TF, 205, 240, config)).all()


def data_of(directory: Path, waves: dict[str, torch.Tensor]) -> Path:
    directory.mkdir()
    for name, wave_S in waves.items():
        soundfile.write(directory / f"{name}.wav", wave_S.numpy(), RATE_HZ, subtype="PCM_16")
    (directory / "wav.scp").write_text("".join(f"{name} {name}.wav\n" for name in waves))
    (directory / "utt2spk").write_text("".join(f"{name} {name}\n" for name in waves))
    return directory


@pytest.mark.parametrize("cmvn", ["utterance", "global"])
def test_extraction_leaves_silence_out_of_all_statistics(tmp_path: Path, cmvn: str) -> None:
    config, plain_S = FeatureConfig(cmvn=cmvn, norm_vars=True), noise(RATE_HZ)
    padded_S = torch.cat([torch.zeros(4800), plain_S])
    plain = extract(read_datadir(data_of(tmp_path / "plain", {"a": plain_S})), tmp_path / "1", config, jobs=1)
    waves = {"a": padded_S, "b": torch.zeros(RATE_HZ)}
    padded = extract(read_datadir(data_of(tmp_path / "padded", waves)), tmp_path / "2", config, jobs=1)
    assert plain.config.global_stats and padded.config.global_stats
    assert padded.config.global_stats[0][-1] == pytest.approx(plain.config.global_stats[0][-1], abs=2)
    np.testing.assert_allclose(
        *(np.array(each.config.global_stats) / each.config.global_stats[0][-1] for each in (plain, padded)), rtol=0.01
    )
    silence = read_datadir(data_of(tmp_path / "silence", {"b": torch.zeros(RATE_HZ)}))
    if cmvn == "global":
        with pytest.raises(Speech3Error, match="every frame is digital silence"):
            extract(silence, tmp_path / "3", config, jobs=1)
    else:
        report = extract(silence, tmp_path / "3", config, jobs=1)
        assert report.config.global_stats is None and report.silent == ["b"]


def test_dither_leaves_no_silence(tmp_path: Path) -> None:
    data = read_datadir(data_of(tmp_path / "a", {"a": torch.cat([torch.zeros(8000), noise(RATE_HZ)])}))
    config = FeatureConfig(dither=1.0, cmvn="utterance", norm_vars=True)
    found_TF = extracted(data, config)["a"]
    np.testing.assert_allclose(found_TF.std(0), 1, atol=1e-4)


def test_statistics_without_squares_cannot_limit() -> None:
    feats_TF = torch.randn(20, 3)
    silent_T = torch.zeros(20, dtype=torch.bool)
    silent_T[3] = True
    stats_2G = cmvn_stats(feats_TF)
    torch.testing.assert_close(
        apply_cmvn(stats_2G[:1], feats_TF, silent_T=silent_T), feats_TF - feats_TF.mean(0), atol=1e-5, rtol=0
    )
