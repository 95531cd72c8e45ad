"""A recipe's GMMs on transformed features: the systems `lda` and `sat`, from their keys to their error rates."""

import re
from pathlib import Path

import numpy as np
import pytest
import soundfile

from speech3.frames.packed import open_packed
from speech3.hmm.kaldi.convert import read_spk2utt, read_transforms
from speech3.hmm.sat import load_adapted, load_projection
from speech3.io.ark import ArkReader
from speech3.io.checkpoint import read_about
from speech3.recipe.costs import Speech, expected_costs
from speech3.recipe.experiment import open_experiment
from speech3.recipe.plan import planned_steps
from speech3.runtime.files import read_json

SMALL = "iterations: 4, leaves: 80, gaussians: 100, transform: [2], realign: [3]"
SPEAKERS = (
    f"hmm.lda={{{SMALL}, dim: 20, least_minutes: 0}}",
    f"hmm.sat={{{SMALL}, least_frames: 100, decode_least_frames: 50, passes: 2}}",
    "lfmmi.adapted=true", "lfmmi.taught=true",
    "lfmmi.leaves=70", "lfmmi.longer_histories=20", "lfmmi.passes=4", "lfmmi.model.layers=2", "lfmmi.model.width=64",
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
    assert open_experiment("digits", tmp_path, None, ["model=lstm_small"], "").adapted == ()
    # The network has SAT's senones and graph, and the dry run knows what its steps take.
    assert with_it.hmm_of("sat_dnn") == "sat" and with_it.feature_preset("sat_dnn") == "sat"
    costs = expected_costs(with_it, Speech(1.0, 0.1, 0.1))
    assert costs["hmm/lda"].seconds > 0 and costs["hmm/sat"].seconds > 0
    assert costs["decode/sat"].seconds > costs["decode/lda"].seconds > 0
    assert costs["adapted/sat_dnn"].seconds > 0 and costs["adapted/sat_dnn.decode"].seconds > 0
    assert costs["adapted/sat.frames"].size == 2.1 * 360_000 * 40 * 4
    assert open_experiment("digits", tmp_path, None, ["hmm.sat=null"], "").gmms == ("tri", "lda")


@pytest.mark.slow
def test_from_the_alignment_to_error_rates(speech3, tiny, mine: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    process = speech3("recipe", "digits", "--out", mine, *tiny, *SPEAKERS)
    assert process.returncode == 0, process.stderr
    ran = re.findall(r"^\[\d+/\d+\] (\S+): .*, running$", process.stderr, re.M)
    assert ran == ["features/fbank40_utt", "hmm/lda", "hmm/sat", "hmm/lfmmi", "graph/lda", "graph/sat",
                   "graph/lfmmi_hmm", "train/lfmmi.frames", "train/lfmmi", "decode/lda", "decode/sat", "decode/lfmmi",
                   "adapted/features", "adapted/align", "adapted/sat.frames", "adapted/sat_dnn",
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
        decoded = speech3("decode", mine / system, test, tmp_path / system)
        assert decoded.returncode == 0, decoded.stderr
        words = (mine / "decode" / system / "test" / "hyp.txt").read_text()
        assert (tmp_path / system / "hyp.txt").read_text() == words
        heard = speech3("transcribe", mine / system, *waves)  # each file is of a speaker of its own, as in the corpus
        assert heard.returncode == 0, heard.stderr
        assert [line.split()[1:] for line in heard.stdout.splitlines()] == [
            line.split()[1:] for line in words.splitlines()[:2]
        ]
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
    stream = speech3("transcribe", "--stream", mine / "sat_lfmmi", waves[0])
    assert stream.returncode == 1 and "cannot process a stream" in stream.stderr
    exported = speech3("export", mine / "sat_dnn", tmp_path / "net.onnx")
    assert exported.returncode == 1 and "adapted to speakers by GMMs" in exported.stderr
