"""Every filterbank, MFCC, delta and CMVN vector that Kaldi computed for the recordings in ../shared/reference."""

import numpy as np
import pytest
import soundfile
import torch
from kaldi64 import EPS, cepstra, frames_of, log_mel, plp
from reference import RECORDINGS, REFERENCE, needs_reference, vectors, wave

from speech3.config import FeatureConfig
from speech3.features.cmvn import apply_cmvn, cmvn_stats
from speech3.features.compute import finish_features, static_features

pytestmark = needs_reference
CORPORA = REFERENCE.parent / "corpora"
needs_corpora = pytest.mark.skipif(not CORPORA.is_dir(), reason=f"{CORPORA} is absent")
FURTHER = sorted(
    str(path.relative_to(CORPORA))
    for path in [*(CORPORA / "minilibri" / "test").rglob("*.flac"), *(CORPORA / "fsdd").rglob("*.wav")]
)[::150]

# In natural logarithms, below the frame's loudest bin (12: 52 dB): there float32 has few digits left, Kaldi's as ours.
NEARLY_EMPTY = 12.0


def computed(rate: str, name: str, **options: object) -> np.ndarray:
    wave_S = torch.from_numpy(wave(rate, name))
    config = FeatureConfig(**options)
    feats_NTF, _ = static_features(wave_S[None], torch.tensor([len(wave_S)]), config, 8000 if rate == "8k" else 16000)
    return finish_features([feats_NTF[0]], config)[0].numpy()


@pytest.mark.parametrize(("rate", "name"), RECORDINGS)
@pytest.mark.parametrize("snip_edges", [True, False])
def test_fbank(rate: str, name: str, snip_edges: bool) -> None:
    ours = computed(rate, name, num_mel_bins=40, snip_edges=snip_edges)
    kaldi = vectors(rate)[f"{name}.fbank40" if snip_edges else f"{name}.fbank40_nosnip"]
    hz = 8000 if rate == "8k" else 16000
    exact, _ = log_mel(frames_of(wave(rate, name), hz, snip_edges), hz, 40)
    full = exact.max(axis=1, keepdims=True) - exact < NEARLY_EMPTY
    assert ours.shape == kaldi.shape
    assert full.mean() > 0.7
    np.testing.assert_allclose(ours[full], kaldi[full], rtol=0, atol=1e-3)
    # fsdd_up was 8 kHz once: in its empty upper half Kaldi itself is up to 0.018 from the truth. We are not.
    np.testing.assert_array_less(np.abs(ours - kaldi), 1e-3 + 1.5 * np.abs(kaldi - exact))
    np.testing.assert_allclose(ours, exact, rtol=0, atol=2e-3)


@pytest.mark.parametrize(("rate", "name"), RECORDINGS)
def test_fbank_with_energy_first(rate: str, name: str) -> None:
    ours = computed(rate, name, num_mel_bins=40, use_energy=True)
    np.testing.assert_allclose(ours[:, 0], vectors(rate)[f"{name}.fbank40_energy"][:, 0], rtol=0, atol=1e-4)
    np.testing.assert_array_equal(ours[:, 1:], computed(rate, name, num_mel_bins=40))


@pytest.mark.parametrize(("rate", "name"), RECORDINGS)
@pytest.mark.parametrize("energy", [True, False])
def test_mfcc(rate: str, name: str, energy: bool) -> None:
    ours = computed(rate, name, kind="mfcc", use_energy=energy)
    kaldi = vectors(rate)[f"{name}.mfcc13" if energy else f"{name}.mfcc13_noenergy"]
    hz = 8000 if rate == "8k" else 16000
    exact_TM, energy_T = log_mel(frames_of(wave(rate, name), hz), hz, 23)
    exact = cepstra(exact_TM)
    if energy:
        exact[:, 0] = energy_T
    full_T = np.ptp(exact_TM, axis=1) < NEARLY_EMPTY
    assert ours.shape == kaldi.shape
    assert full_T.any() or name == "fsdd_up"
    np.testing.assert_allclose(ours[full_T], kaldi[full_T], rtol=0, atol=1e-3)
    np.testing.assert_array_less(np.abs(ours - kaldi), 3e-3 + np.abs(kaldi - exact))
    np.testing.assert_allclose(ours, exact, rtol=0, atol=3e-3)


@pytest.mark.parametrize(("rate", "name"), RECORDINGS)
@pytest.mark.parametrize("kind", ["fbank40", "mfcc13"])
@pytest.mark.parametrize(
    ("suffix", "options"),
    [
        ("d2", {"deltas": 2}),
        ("cmn_utt", {"cmvn": "utterance"}),
        ("cmvn_utt", {"cmvn": "utterance", "norm_vars": True}),
    ],
)
def test_deltas_and_utterance_cmvn_of_kaldis_statics(
    rate: str, name: str, kind: str, suffix: str, options: dict[str, object]
) -> None:
    static_TF = torch.from_numpy(vectors(rate)[f"{name}.{kind}"])
    (ours_TF,) = finish_features([static_TF], FeatureConfig(**options))
    assert ours_TF.dtype == torch.float32
    np.testing.assert_allclose(ours_TF.numpy(), vectors(rate)[f"{name}.{kind}_{suffix}"], rtol=0, atol=1e-4)


@pytest.mark.parametrize("rate", ["8k", "16k"])
@pytest.mark.parametrize("kind", ["fbank40", "mfcc13"])
def test_speaker_cmvn_of_kaldis_statics(rate: str, kind: str) -> None:
    names = [name for its_rate, name in RECORDINGS if its_rate == rate]
    statics = [torch.from_numpy(vectors(rate)[f"{name}.{kind}"]) for name in names]
    stats_2G = torch.stack([cmvn_stats(static_TF) for static_TF in statics]).sum(0)
    np.testing.assert_allclose(stats_2G.numpy(), vectors(rate)[f"all.{kind}_cmvnstats_spk"], rtol=1e-6)
    for name, ours_TF in zip(
        names, finish_features(statics, FeatureConfig(cmvn="speaker", norm_vars=True)), strict=True
    ):
        np.testing.assert_allclose(ours_TF.numpy(), vectors(rate)[f"{name}.{kind}_cmvn_spk"], rtol=0, atol=1e-4)


@pytest.mark.parametrize(("rate", "name"), RECORDINGS)
def test_kaldis_cmvn_archives_can_be_applied(rate: str, name: str) -> None:
    stats_2G = torch.from_numpy(vectors(rate)[f"{name}.mfcc13_cmvnstats_utt"])
    ours_TF = apply_cmvn(stats_2G, torch.from_numpy(vectors(rate)[f"{name}.mfcc13"]), norm_vars=True)
    np.testing.assert_allclose(ours_TF.numpy(), vectors(rate)[f"{name}.mfcc13_cmvn_utt"], rtol=0, atol=1e-4)


@pytest.mark.parametrize(("rate", "name"), RECORDINGS)
def test_splicing_of_kaldis_statics(rate: str, name: str) -> None:
    static_TF = vectors(rate)[f"{name}.fbank40"]
    (ours_TF,) = finish_features([torch.from_numpy(static_TF)], FeatureConfig(left_context=5, right_context=5))
    # The archive lacks the fbank40_splice5 of commands.txt, so this is SpliceFrames' own loop.
    last = len(static_TF) - 1
    spliced = [np.concatenate([static_TF[min(max(t + j, 0), last)] for j in range(-5, 6)]) for t in range(last + 1)]
    kaldi = vectors(rate).get(f"{name}.fbank40_splice5", np.array(spliced))
    np.testing.assert_array_equal(ours_TF.numpy(), kaldi)


@needs_corpora
@pytest.mark.parametrize("kind", ["fbank", "mfcc", "plp"])
@pytest.mark.parametrize("recording", FURTHER)
def test_further_recordings(kind: str, recording: str) -> None:
    knf = pytest.importorskip("kaldi_native_fbank")
    wave_S, hz = soundfile.read(CORPORA / recording, dtype="float32")
    wave_S = wave_S[: 4 * hz]
    bins = 40 if kind == "fbank" else 23
    config = FeatureConfig(kind=kind, num_mel_bins=bins, use_energy=False)
    ours = static_features(torch.from_numpy(wave_S)[None], torch.tensor([len(wave_S)]), config, hz)[0][0].numpy()
    exact_TM, _ = log_mel(frames_of(wave_S, hz), hz, bins, floor=0.0 if kind == "plp" else EPS)
    exact = {"fbank": lambda m: m, "mfcc": cepstra, "plp": lambda m: plp(m, hz)}[kind](exact_TM)
    np.testing.assert_allclose(ours, exact, rtol=0, atol=1e-3)
    if kind == "plp":
        return  # nobody else has it
    options = knf.FbankOptions() if kind == "fbank" else knf.MfccOptions()
    options.frame_opts.dither, options.frame_opts.samp_freq, options.mel_opts.num_bins = 0.0, hz, bins
    options.use_energy = False
    online = (knf.OnlineFbank if kind == "fbank" else knf.OnlineMfcc)(options)
    online.accept_waveform(hz, (wave_S * 32768).tolist())
    online.input_finished()
    theirs = np.stack([online.get_frame(t) for t in range(online.num_frames_ready)])
    if kind == "mfcc":
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-3)
        return
    full_TM = exact_TM.max(axis=1, keepdims=True) - exact_TM < NEARLY_EMPTY
    assert (np.abs(ours - theirs) < np.where(full_TM, 1e-3, 1e-2)).all()
