"""A recipe's GMMs on transformed features: the systems `lda` and `sat`, from their keys to their error rates."""

import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import soundfile
import yaml

from speech3.config import FeatureConfig, ModelConfig, check_frequencies, load_preset, parse
from speech3.data import read_datadir
from speech3.decode import load_recognizer
from speech3.decode.apply import features_for
from speech3.errors import SettingError
from speech3.frames.packed import open_packed
from speech3.hmm.kaldi.convert import read_spk2utt, read_transforms
from speech3.hmm.sat import load_adapted, load_projection
from speech3.io.ark import ArkReader
from speech3.io.checkpoint import read_about, save_tensors
from speech3.models.info import model_info
from speech3.recipe.costs import Speech, expected_costs
from speech3.recipe.experiment import open_experiment, without_mel_bins
from speech3.recipe.plan import planned_steps
from speech3.runtime.files import read_json

SMALL = "iterations: 4, leaves: 80, gaussians: 100, transform: [2], realign: [3]"
SPEAKERS = (
    f"hmm.lda={{{SMALL}, dim: 20, min_minutes: 0}}",
    # A dozen utterances of dev decide whether the second pass helps: transforms near the identity lose to none.
    f"hmm.sat={{{SMALL}, min_frames: 100, decode_min_frames: 50, passes: 2, prior_frames: 500}}",
    "lfmmi.adapted=true", "lfmmi.taught=true",
    "lfmmi.leaves=70", "lfmmi.extra_lm_states=20", "lfmmi.passes=4", "lfmmi.model.layers=2", "lfmmi.model.width=64",
    "lfmmi.model.bottleneck=16", "lfmmi.model.prefinal=32", "lfmmi.training.minibatch=1200",
)  # fmt: skip


def test_its_steps_come_after_what_they_need_and_change_no_other(tmp_path: Path) -> None:
    keys = ["hmm.lda=null"]
    plain, with_it = (open_experiment("digits", tmp_path, None, each, "") for each in (keys, []))
    before, after = ({step.name: step for step in planned_steps(each)} for each in (plain, with_it))
    names = list(after)
    for step in after.values():
        assert all(names.index(needed) < names.index(step.name) for needed in step.needs)
    assert set(after) - set(before) == {
        "hmm/lda", "hmm/sat", "graph/lda", "graph/sat", "decode/lda", "decode/sat", "adapted/features", "adapted/align",
        "adapted/sat.frames", "adapted/sat_dnn", "adapted/sat_dnn.decode",
    }  # fmt: skip
    assert all(after[name].config == before[name].config for name in before if name != "score")
    assert with_it.systems == ("tri", "lda", "sat", *plain.systems[1:], "sat_dnn")
    # The network has SAT's senones and graph, and the dry run knows what its steps take.
    assert with_it.hmm_of("sat_dnn") == "sat" and with_it.feature_preset("sat_dnn") == "sat"
    costs = expected_costs(with_it, Speech(1.0, 0.1, 0.1))
    assert costs["hmm/lda"].seconds > 0 and costs["hmm/sat"].seconds > 0
    assert costs["decode/sat"].seconds > costs["decode/lda"].seconds > 0
    assert costs["adapted/sat_dnn"].seconds > 0 and costs["adapted/sat_dnn.decode"].seconds > 0
    assert costs["adapted/sat.frames"].size == 2.1 * 360_000 * 40 * 4
    assert open_experiment("digits", tmp_path, None, ["hmm.sat=null"], "").gmms == ("tri", "lda")
    # With an LF-MMI system, networks are decoded with transforms along its words, and trained as without it.
    better = open_experiment("digits", tmp_path, None, ["lfmmi.adapted=true"], "")
    steps = {step.name: step for step in planned_steps(better)}
    assert steps["adapted/words"].needs == ["decode/lfmmi", "hmm/sat"]
    for system in ("sat_dnn", "sat_lfmmi", "lfmmi_mean"):
        assert "adapted/words" in steps[f"adapted/{system}.decode"].needs
        assert "adapted/words" not in steps[f"adapted/{system}"].needs
    assert steps["adapted/sat_dnn"].needs == after["adapted/sat_dnn"].needs


@pytest.mark.parametrize(
    ("model", "system", "frames", "values"),
    [
        (["lstm_small"], "sat_lstm", "sat", 40),
        (["blstm"], "sat_blstm", "sat", 40),
        (["tdnn"], "sat_tdnn", "sat", 40),
        (["tdnn_lstm", "model.convolutions=[]"], "sat_tdnn_lstm", "sat", 40),
        (["cnn_small"], "sat_cnn", "sat_fbank40_d2_utt", 160),
        (["cnn_tdnn", "features=fbank40_utt"], "sat_cnn_tdnn", "sat_fbank40_utt", 80),
        (["tdnn_blstm", "features=fbank40_utt"], "sat_tdnn_blstm", "sat_fbank40_utt", 80),
    ],
)
def test_any_family_reads_adapted_features(
    model: list[str], system: str, frames: str, values: int, tmp_path: Path
) -> None:
    name, *keys = model
    e = open_experiment("digits", tmp_path, None, [f"model={name}", "training.frequency_warp=0.1", *keys], "")
    steps = {step.name: step for step in planned_steps(e)}
    assert e.systems == ("tri", "lda", "sat", system.removeprefix("sat_"), system)
    assert steps[f"adapted/{system}"].needs == [f"adapted/{frames}.frames"]
    assert f"adapted/{system}.decode" in steps and e.hmm_of(system) == "sat"
    # With convolutions it reads mel bins, too, which are warped; each preset of these has packed frames of its own.
    bins = values > 40
    assert e.frames(system) == tmp_path / "frames" / frames
    assert e.feature_preset(system) == (e.recipe.features if bins else "sat")
    assert (f"features/{e.recipe.features}" in steps[f"adapted/{frames}.frames"].needs) == bins
    assert e.sat_model(40) == e.recipe.model.model_copy(update={"adapted": 40} if bins else {})
    assert e.sat_training == (e.recipe.training if bins else without_mel_bins(e.recipe.training))
    assert parse(ModelConfig, e.sat_model(40).model_dump(), "x").model_dump() == e.sat_model(40).model_dump()
    costs = expected_costs(e, Speech(1.0, 0.1, 0.1))
    assert costs[f"adapted/{frames}.frames"].size == 2.1 * 360_000 * values * 4
    plain = costs.get(f"train/{system.removeprefix('sat_')}")
    assert not plain or costs[f"adapted/{system}"].seconds > plain.seconds  # twice the frames


@pytest.mark.parametrize("keys", [["training=mmi"], ["model=cnn_small", "features=given"], ["hmm.sat=null"]])
def test_where_no_network_reads_adapted_features(keys: list[str], tmp_path: Path) -> None:
    assert open_experiment("digits", tmp_path, None, keys, "").adapted == ()


def test_a_kernel_of_one_frame_leaves_adapted_values_without_neighbours(tmp_path: Path) -> None:
    kernel = "model.convolutions=[{maps: 4, kernel: [5, 1]}]"
    e = open_experiment("digits", tmp_path, None, ["model=cnn_tdnn", "features=fbank40_utt", kernel], "")
    with pytest.raises(SettingError, match=r"sat_cnn_tdnn .*hmm\.sat=null.*convolutions\.0\.kernel"):
        planned_steps(e)


def test_a_model_on_adapted_features_is_no_start_of_others_and_its_features_no_preset(tmp_path: Path) -> None:
    features = load_preset(FeatureConfig, "features", "fbank40").model_copy(update={"adapted": 40})
    (tmp_path / "sat_cnn").mkdir()
    (tmp_path / "sat_cnn" / "features.yaml").write_text(yaml.safe_dump(features.model_dump()))
    model = load_preset(ModelConfig, "models", "cnn_small").model_copy(update={"channels": 1, "adapted": 40})
    about = {"kind": "nn", "model": model.model_dump(mode="json")}
    save_tensors(tmp_path / "sat_cnn" / "model.safetensors", {"x": np.zeros(1, np.float32)}, about)
    keys = [f"init={tmp_path / 'sat_cnn'}", "model=cnn_small", "features=fbank40"]
    with pytest.raises(SettingError, match=r"sat_cnn: .* adapts to speakers"):
        open_experiment("digits", tmp_path / "out", None, keys, "")
    with pytest.raises(SettingError, match=r"features\.yaml: adapted"):
        load_preset(FeatureConfig, "features", str(tmp_path / "sat_cnn" / "features.yaml"))
    for adapted in (0, 39):
        with pytest.raises(SettingError, match=rf"^model\.adapted={adapted}: .* set model\.adapted=40"):
            check_frequencies(model.model_copy(update={"adapted": adapted}), features, "x")


@pytest.mark.slow
def test_families_from_the_alignment_to_error_rates(speech3, tiny, mine: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    keys = [key for key in tiny if not key.startswith("model.")] + list(SPEAKERS[:2])
    lstm = ("model=lstm_small", "model.cells=32", "training.minibatch=160", "--to", "adapted")
    cnn = ("model=cnn_small", "model.width=32", "model.convolutions=[{maps: 16, kernel: [9, 9], pool: 3}]",
           "training.frequency_masks=1", "training.frequency_warp=0.1", "--to", "score")  # fmt: skip
    for family in (lstm, cnn):
        process = speech3("recipe", "digits", "--out", mine, *keys, *family)
        assert process.returncode == 0, process.stderr
    # The networks of the first run stand beside those of the second.
    scores = mine / "score"
    rates = {name: read_json(scores / name / "score.json")["wer"] for name in ("lstm", "sat_lstm", "cnn", "sat_cnn")}
    assert rates["sat_lstm"] < 0.6 and rates["sat_cnn"] < 0.6, rates
    # Decoding computes from recordings what training and the recipe's decoding read: bins, deltas, adapted values.
    packed, dev = open_packed(mine / "frames" / "sat_fbank40_d2_utt" / "heldout.frames"), mine / "data" / "dev"
    assert packed.dim == 140
    given = mine / "decode" / "sat" / "dev_transforms"
    network, info = load_recognizer(mine / "sat_cnn"), model_info(mine / "sat_cnn")
    assert info.features == "fbank40_d2_utt and 20 values adapted to speakers" and info.latency_frames is None
    feats, _ = features_for(network, read_datadir(dev), 1, tmp_path / "dev", known=given)
    for utterance, (start, end) in zip(packed.utterances, pairwise(packed.offsets_U1), strict=True):
        np.testing.assert_allclose(feats[utterance], packed.frames_NF[start:end], rtol=1e-4, atol=1e-4)
    test = mine / "data" / "test"
    wave = test / (test / "wav.scp").read_text().split()[1]
    for system in ("sat_cnn", "sat_lstm"):
        heard = speech3("transcribe", mine / system, wave)
        assert heard.returncode == 0, heard.stderr
        words = (mine / "decode" / system / "test" / "hyp.txt").read_text().splitlines()[0]
        assert heard.stdout.split() == words.split()[1:]


@pytest.mark.slow
def test_a_system_alone_has_all_that_it_needs(speech3, tiny, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    process = speech3("recipe", "digits", "--out", tmp_path / "out", *tiny, *SPEAKERS, "--to", "lfmmi_taught")
    assert process.returncode == 0, process.stderr
    assert re.fullmatch(r"digits lfmmi_taught WER \d+\.\d\d \[.*\]", process.stdout.splitlines()[-1])
    made = set(re.findall(r"^\[\d+/\d+\] (\S+): .*, running$", process.stderr, re.M))
    assert {"hmm/mono", "graph/sat", "decode/sat", "adapted/lfmmi_mean"} <= made
    assert not {"hmm/aligner", "graph/mono", "decode/tri", "train/dnn", "adapted/lfmmi_mean.decode", "score"} & made


@pytest.mark.slow
def test_from_the_alignment_to_error_rates(speech3, tiny, mine: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    process = speech3("recipe", "digits", "--out", mine, *tiny, *SPEAKERS)
    assert process.returncode == 0, process.stderr
    ran = re.findall(r"^\[\d+/\d+\] (\S+): .*, running$", process.stderr, re.M)
    assert ran == ["features/fbank40_utt", "hmm/lda", "hmm/sat", "hmm/lfmmi", "graph/lda", "graph/sat",
                   "graph/lfmmi_hmm", "train/lfmmi.frames", "train/lfmmi", "decode/lda", "decode/sat", "decode/lfmmi",
                   "adapted/features", "adapted/words", "adapted/align", "adapted/sat.frames", "adapted/sat_dnn",
                   "adapted/sat_dnn.decode", "adapted/sat_lfmmi.frames", "adapted/sat_lfmmi",
                   "adapted/sat_lfmmi.decode", "adapted/lfmmi_mean", "adapted/lfmmi_mean.decode",
                   "adapted/lfmmi_taught", "adapted/lfmmi_taught.decode", "score", "report"]  # fmt: skip
    rates = dict(re.findall(r"^digits (\w+) WER (\d+\.\d\d) \[", process.stdout, re.M))
    assert " ".join(rates) == "mono tri lda sat_pass1 sat dnn sat_dnn sat_lfmmi lfmmi lfmmi_mean lfmmi_taught"
    assert all(float(rate) < 60 for system, rate in rates.items() if "lfmmi" not in system), rates
    projection, adapted = load_projection(mine / "sat"), load_adapted(mine / "sat")
    assert projection and projection.matrix.shape == (20, 91) and projection.inputs == 39
    assert adapted.gmm.num_pdfs == len(adapted.frames) and adapted.passes == 2
    page = (mine / "report.html").read_text()
    assert ">sat</td>" in page and ">lfmmi_mean</td>" in page and "WER % in pass 1" in page
    # What later stages read.
    features = ArkReader(mine / "features" / "sat" / "train" / "feats.scp")
    plain = ArkReader(mine / "features" / "mfcc13_d2_utt" / "train" / "feats.scp")
    assert list(features) == list(plain)
    utterance, transforms = next(iter(plain)), read_transforms(mine / "sat")
    speaker = read_spk2utt(mine / "sat" / "spk2utt")[utterance]
    expected = projection(plain[utterance]) @ transforms[speaker][:, :-1].T + transforms[speaker][:, -1]
    np.testing.assert_allclose(features[utterance], expected, rtol=1e-3, atol=1e-3)
    assert read_json(mine / "features" / "sat" / "test" / "adapted.json")["along"] == "recognised words"
    heard = mine / "decode" / "lfmmi" / "test" / "hyp.txt"
    assert read_json(mine / "features" / "sat_words" / "test" / "adapted.json")["along"] == "words recognised by lfmmi"
    assert len((mine / "decode" / "lfmmi" / "dev" / "hyp.txt").read_text().splitlines()) == 12
    # The network's frames: every utterance once as adapted, then without its speaker's transform.
    packed = open_packed(mine / "frames" / "sat" / "train.frames")
    ids = list(packed.utterances)

    def frames(name: str) -> np.ndarray:
        start, end = packed.offsets_U1[ids.index(name) :][:2]
        return packed.frames_NF[start:end]

    adapted_to = [key for key in features if read_spk2utt(mine / "sat" / "spk2utt")[key] in transforms]
    assert sorted(ids) == sorted([*features, *(f"{key}+unadapted" for key in adapted_to)])
    np.testing.assert_allclose(frames(utterance), features[utterance], rtol=1e-5, atol=1e-5)
    beside = open_packed(mine / "frames" / "sat_lfmmi" / "train.frames")
    bins = ArkReader(mine / "features" / "fbank40_utt" / "train" / "feats.scp")[utterance]
    start, end = beside.offsets_U1[list(beside.utterances).index(utterance) :][:2]
    expected = np.concatenate([bins, features[utterance]], 1)
    np.testing.assert_allclose(beside.frames_NF[start:end], expected, rtol=1e-5, atol=1e-5)
    assert len(list(beside.utterances)) == len(ids)
    np.testing.assert_allclose(frames(f"{utterance}+unadapted"), projection(plain[utterance]), rtol=1e-4, atol=1e-4)
    # Decoding in passes from the command line, and with transforms given.
    test = mine / "data" / "test"
    decoded = speech3("decode", mine / "sat", test, tmp_path / "out")
    assert decoded.returncode == 0, decoded.stderr
    assert (tmp_path / "out" / "hyp.txt").read_text() == (mine / "decode" / "sat" / "test" / "hyp.txt").read_text()
    again = speech3("decode", mine / "sat", test, tmp_path / "again", "--transforms", tmp_path / "out" / "pass1")
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "again" / "hyp.txt").read_text() == (tmp_path / "out" / "hyp.txt").read_text()
    wrong = speech3("decode", mine / "sat", test, tmp_path / "wrong", "--transforms", mine / "sat")
    assert wrong.returncode == 1 and "has transforms of other speakers" in wrong.stderr
    wrong = speech3("decode", mine / "tri", test, tmp_path / "wrong", "--transforms", mine / "sat")
    assert wrong.returncode == 1 and "does not adapt to speakers" in wrong.stderr
    # Networks on adapted features read recordings, too: the GMMs beside them make the earlier passes.
    waves = [test / path for path in sorted((test / "wav.scp").read_text().split()[1::2])[:2]]
    for system in ("sat_dnn", "sat_lfmmi", "lfmmi_mean", "lfmmi_taught"):
        decoded = speech3("decode", mine / system, test, tmp_path / "words" / system, "--words", heard)
        assert decoded.returncode == 0, decoded.stderr
        words = (mine / "decode" / system / "test" / "hyp.txt").read_text()
        assert (tmp_path / "words" / system / "hyp.txt").read_text() == words
        decoded = speech3("decode", mine / system, test, tmp_path / system)
        assert decoded.returncode == 0, decoded.stderr
        words = (tmp_path / system / "hyp.txt").read_text()
        spoken = speech3("transcribe", mine / system, *waves)  # each file is of a speaker of its own, as in the corpus
        assert spoken.returncode == 0, spoken.stderr
        assert [line.split()[1:] for line in spoken.stdout.splitlines()] == [
            line.split()[1:] for line in words.splitlines()[:2]
        ]
    both = speech3("decode", mine / "sat", test, tmp_path / "no", "--words", heard, "--transforms", mine / "sat")
    assert both.returncode == 1 and "both say what to adapt to" in both.stderr
    wrong = speech3("decode", mine / "tri", test, tmp_path / "no", "--words", heard)
    assert wrong.returncode == 1 and f"--words {heard}: {mine / 'tri'} does not adapt" in wrong.stderr
    given = ("--transforms", tmp_path / "sat_lfmmi" / "sat")
    again = speech3("decode", mine / "lfmmi", test, tmp_path / "both", "--with", mine / "sat_lfmmi", *given)
    assert again.returncode == 0 and "adapting to speakers" not in again.stderr, again.stderr
    about = read_about(mine / "lfmmi_taught" / "model.safetensors")
    assert Path(about["training"]["lfmmi"]["teacher"]) == mine / "lfmmi_mean"
    assert "## Training of sat_lfmmi" in (mine / "lfmmi_mean" / "MODEL_CARD.md").read_text()
    (tmp_path / "silent").mkdir()
    soundfile.write(tmp_path / "silent" / "quiet.wav", np.zeros(16000), 16000)
    decoded = speech3("decode", mine / "sat_dnn", tmp_path / "silent", tmp_path / "none")
    assert decoded.returncode == 0, decoded.stderr
    assert (tmp_path / "none" / "hyp.txt").read_text().split() == ["quiet"]
    heard = speech3("transcribe", mine / "sat_dnn", tmp_path / "silent" / "quiet.wav")
    assert heard.returncode == 0 and not heard.stdout.strip(), heard.stderr
    for system in ("sat_dnn", "sat_lfmmi", "lfmmi_mean"):
        stream = speech3("transcribe", "--stream", mine / system, waves[0])
        assert stream.returncode == 0, stream.stderr
    exported = speech3("export", mine / "sat_dnn", tmp_path / "net.onnx")
    assert exported.returncode == 1 and "adapted to speakers by GMMs" in exported.stderr
