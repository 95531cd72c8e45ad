"""Training on whole sentences in every world: what was said is learnt, and what cannot be trained so is named."""

import shutil

import numpy as np
import pytest
from interrupted import both_runs
from sentences import DIM, LEXICON, PHONES, config_of, write

from speech3.config import ModelConfig
from speech3.errors import DataError, MismatchError, MissingError, OccupiedError, SettingError, Speech3Error
from speech3.frames.packed import open_packed, write_frames
from speech3.hmm.model import FIRST_AND_LOOP, Hmm, context_free_tree, load_hmm
from speech3.runtime import read_metrics
from speech3.sequence.graph import estimate_phone_lm
from speech3.sequence.lfmmi import load_denominator, make_denominator
from speech3.train import train


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    root = tmp_path_factory.mktemp("lfmmi")
    write(root)
    return root


@pytest.mark.parametrize(
    "training",
    [
        {},
        {"optimizer": "adamw"},
        {"optimizer": "sgd", "learning_rate": 0.3, "momentum": 0.9, "weight_decay": 0.0},
        {"world": "simulated", "workers": 3, "simulation": {"compute_s": 1.0, "sync_s": 0.05}},
        {
            "world": "simulated",
            "workers": 2,
            "simulation": {"compute_s": 1.0, "sync_s": 0.05, "strategy": "synchronous"},
        },
        {"world": "shared", "workers": 2},
        {"world": "ddp", "workers": 2},
        pytest.param({"world": "cluster"}, marks=pytest.mark.slow),
    ],
    ids=["sgd", "adamw", "momentum", "asgd simulated", "synchronous", "shared", "ddp", "cluster"],
)
def test_every_world_learns_what_was_said(corpus, tmp_path, training, monkeypatch):
    if training.get("world") == "cluster":
        pytest.importorskip("ray", reason="world cluster needs ray: pip install speech3[cluster]")
        monkeypatch.setattr(
            "speech3.engine.backends.cluster_actors._engine_digest", lambda: ""
        )  # it may be edited meanwhile
    about = train(config_of(corpus, **training), tmp_path / "out")
    history = [record for record in read_metrics(tmp_path / "out" / "metrics.jsonl") if record["event"] == "epoch"]
    assert about["objective"] == "lfmmi"
    assert about["num_senones"] == 2 * PHONES
    assert about["best_epoch"] == len(history) == 4
    assert history[-1]["heldout_loss"] < 0.45  # 0.9 without training
    assert history[-1]["heldout_per"] < 0.4
    used = sum(record["minibatches"]["used"] for record in history)
    assert used == 4 * history[0]["minibatches"]["used"]


@pytest.mark.parametrize(
    "training",
    [
        {},
        {"world": "simulated", "workers": 2, "simulation": {"compute_s": 1.0, "sync_s": 0.05}},
        {
            "world": "simulated",
            "workers": 2,
            "simulation": {"compute_s": 1.0, "sync_s": 0.05, "strategy": "synchronous"},
        },
        {"world": "shared", "workers": 2},
        {"world": "ddp", "workers": 2},
    ],
    ids=["sgd", "asgd simulated", "synchronous", "shared", "ddp"],
)
def test_chunks_without_a_path_are_counted_in_every_world(tmp_path, training, capsys):
    write(root := tmp_path / "corpus", impossible=3)
    train(config_of(root, max_epochs=2, **training), tmp_path / "out")
    for record in read_metrics(tmp_path / "out" / "metrics.jsonl"):
        if record["event"] == "epoch":
            assert 0 < record["left_out"] <= 0.05
            assert record["left_out_frames"] == 3 * 10
    assert "of frames left out because no path fits their transcript" in capsys.readouterr().err


def test_many_chunks_without_a_path_stop_training_with_the_reason(tmp_path):
    write(root := tmp_path / "corpus", impossible=20)
    with pytest.raises(DataError, match=r"epoch 1.* of the frames cannot be used, more than 5 %"):
        train(config_of(root), tmp_path / "out")


ADAPTED = {"family": "cnn_tdnn", "adapted": 4, "convolutions": [{"maps": 4, "kernel": [3, 3]}]}
AUGMENTED = {"frequency_warp": 0.1, "speeds": (0.9, 1.1), "time_masks": 1, "frequency_masks": 1,
             "frequency_mask_bins": 1}  # fmt: skip


@pytest.mark.parametrize(("model", "training"), [({}, {}), (ADAPTED, AUGMENTED)], ids=["tdnn", "adapted"])
def test_a_run_that_was_interrupted_ends_where_one_that_was_not_does(corpus, tmp_path, monkeypatch, model, training):
    features = corpus / "frames" / "features.yaml"
    features.write_text("{kind: fbank, num_mel_bins: 4, sample_frequency: 16000, adapted: 4}")
    first = both_runs(config_of(corpus, model, **training), tmp_path, monkeypatch, 2)
    features.unlink()
    assert not first["log_prior"].any()
    epochs = [record for record in read_metrics(next(tmp_path.glob("*/metrics.jsonl"))) if record["event"] == "epoch"]
    assert epochs[-1]["heldout_loss"] < epochs[0]["heldout_loss"] < 0.9


def test_frame_cross_entropy_trains_the_same_network(corpus, tmp_path):
    senones = tmp_path / "frames"
    rng = np.random.default_rng(0)
    for name in ("train", "heldout"):
        labels = {f"u{i}": np.repeat(rng.integers(0, 2 * PHONES, 8), 6) for i in range(20)}
        feats = {
            u: (np.eye(2 * PHONES)[x] + rng.normal(0, 0.1, (48, 2 * PHONES))).astype(np.float32)
            for u, x in labels.items()
        }
        write_frames(senones / f"{name}.frames", feats, labels, 2 * PHONES, utterances=list(feats))
    config = config_of(corpus, {"subsampling": 3}, objective="cross_entropy", max_epochs=8)
    about = train(config.model_copy(update={"frames": str(senones)}), tmp_path / "out")
    assert about["heldout_accuracy"] > 0.9


@pytest.mark.parametrize(
    ("model", "training", "words"),
    [
        ({"family": "dnn"}, {}, [r"model\.subsampling=1", "per 3 frames"]),
        ({"subsampling": 1}, {}, [r"model\.subsampling=1", "per 3 frames"]),
        ({"subsampling": 3, "two_outputs": True}, {"objective": "cross_entropy"}, [r"model\.two_outputs=true"]),
        ({}, {"schedule": "halving"}, [r"schedule=halving", "cosine"]),
        ({"two_outputs": False}, {}, [r"lfmmi\.cross_entropy=0\.1", r"two_outputs=true"]),
        ({}, {"chunk_frames": 500}, [r"chunk_frames=500"]),
        (
            {},
            {"world": "sandblaster", "workers": 2, "gradient_clip": None, "optimizer": "sgd"},
            ["sandblaster", "another world"],
        ),
        (
            {"family": "tdnn_lstm"},
            {"world": "sandblaster", "workers": 2, "gradient_clip": None, "optimizer": "sgd"},
            ["sandblaster", "semi-orthogonal"],
        ),
        (
            {},
            {"optimizer": "sgd", "asgd": {"local_updates": False}, "world": "shared", "workers": 2},
            [r"local_updates=false", "true"],
        ),
        ({}, {"sequence": 31}, [r"training\.sequence=31", "30"]),
        ({}, {"asgd": {"local_updates": False}, "world": "shared", "workers": 2}, ["muon", "local_updates=true"]),
    ],
)
def test_what_cannot_be_trained_is_named_with_the_key_to_change(corpus, tmp_path, model, training, words):
    with pytest.raises((Speech3Error, ValueError)) as error:
        if "family" in model:
            config = config_of(corpus, **training).model_copy(update={"model": ModelConfig(**model)})
        else:
            config = config_of(corpus, model, **training)
        train(config, tmp_path / "out")
    for word in words:
        assert error.match(word)


def test_frames_labelled_by_senones_and_a_missing_denominator_are_refused(corpus, tmp_path):
    feats = {"u": np.zeros((60, DIM), np.float32)}
    for name in ("train", "heldout"):
        write_frames(tmp_path / "frames" / f"{name}.frames", feats, {"u": np.zeros(60, int)}, 7, utterances=["u"])
    with pytest.raises(Speech3Error, match=r"7 senones.*12 labels"):
        train(config_of(corpus).model_copy(update={"frames": str(tmp_path / "frames")}), tmp_path / "out")
    Hmm(LEXICON, context_free_tree(np.arange(10).reshape(5, 2)), np.full(10, 0.5), FIRST_AND_LOOP, 3).save(
        tmp_path / "hmm"
    )
    with pytest.raises(Speech3Error, match=r"denominator\.safetensors: no such file"):
        train(config_of(corpus).model_copy(update={"hmm": str(tmp_path / "hmm")}), tmp_path / "out")


def test_a_run_of_another_denominator_is_another_run(corpus, tmp_path):
    shutil.copytree(corpus / "hmm", tmp_path / "hmm")
    config = config_of(corpus, max_epochs=1).model_copy(update={"hmm": str(tmp_path / "hmm")})
    train(config, tmp_path / "out")
    assert load_denominator(tmp_path / "out").num_states == load_denominator(corpus / "hmm").num_states
    hmm = load_hmm(tmp_path / "hmm")
    make_denominator(estimate_phone_lm([[1, 2, 3]], 10), hmm).save(tmp_path / "hmm")
    with pytest.raises(Speech3Error, match=r"another config \(outputs \w+ there, \w+ now"):
        train(config, tmp_path / "out")


def test_a_denominator_of_another_tree_is_refused(corpus, tmp_path):
    config = config_of(corpus)
    hmm = Hmm(LEXICON, context_free_tree(np.tile(np.arange(2), (5, 1))), np.full(2, 0.5), FIRST_AND_LOOP, 3)
    hmm.save(tmp_path / "hmm")
    (tmp_path / "hmm" / "denominator.safetensors").write_bytes((corpus / "hmm/denominator.safetensors").read_bytes())
    with pytest.raises(Speech3Error, match=r"10 pdfs.*2"):
        train(config.model_copy(update={"hmm": str(tmp_path / "hmm")}), tmp_path / "out")


def test_a_denominator_of_another_tree_with_as_many_leaves_is_refused(corpus, tmp_path):
    shutil.copytree(corpus / "hmm", tmp_path / "hmm")
    pdfs_P2 = np.arange(2 * PHONES).reshape(PHONES, 2)[::-1]
    other = Hmm(LEXICON, context_free_tree(pdfs_P2), np.full(2 * PHONES, 0.5), FIRST_AND_LOOP, 3)
    make_denominator(estimate_phone_lm([[1, 2, 3]], 10), other).save(tmp_path / "hmm")
    with pytest.raises(MismatchError, match="hmm: its denominator, with 10 pdfs, belongs to"):
        train(config_of(corpus).model_copy(update={"hmm": str(tmp_path / "hmm")}), tmp_path / "out")


def test_features_that_are_not_bins_alone_are_refused_for_convolutions_over_frequency(corpus, tmp_path):
    shutil.copytree(corpus / "frames", tmp_path / "frames")
    (tmp_path / "frames" / "features.yaml").write_text("{kind: fbank, num_mel_bins: 3, deltas: 1, use_energy: true}\n")
    config = config_of(corpus, {"family": "cnn_tdnn"}).model_copy(update={"frames": str(tmp_path / "frames")})
    with pytest.raises(SettingError, match=r"model: a cnn_tdnn .*features\.yaml has deltas,"):
        train(config, tmp_path / "out")


@pytest.fixture(scope="module")
def teacher(corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("teacher")
    train(config_of(corpus), out)
    return out


def test_a_network_learns_from_a_teacher_alone(corpus, teacher, tmp_path):
    """Its transcripts have two phones exchanged, which is right half of the time; the teacher knows better."""
    frames = tmp_path / "frames"
    shutil.copytree(corpus / "frames", frames)
    packed = open_packed(corpus / "frames" / "train.frames")
    exchanged = np.array([0, 1, 3, 2, 4, 5], np.int32)
    labels_N = 2 * exchanged[packed.senones_N >> 1] + (packed.senones_N & 1)
    spans = {name: slice(*packed.offsets_U1[i : i + 2]) for i, name in enumerate(packed.utterances)}
    feats, labels = ({name: array[span] for name, span in spans.items()} for array in (packed.frames_NF, labels_N))
    write_frames(frames / "train.frames", feats, labels, packed.num_senones, utterances=list(spans))
    rates = []
    for lfmmi in ({}, {"teacher": str(teacher), "teaching": 1.0}):
        config = config_of(corpus, lfmmi=lfmmi).model_copy(update={"frames": str(frames)})
        train(config, tmp_path / "out", restart=True)
        records = read_metrics(tmp_path / "out" / "metrics.jsonl")
        rates.append([record for record in records if record["event"] == "epoch"][-1]["heldout_per"])
    wrong, taught = rates
    assert taught < 0.4 < wrong, rates
    shutil.copytree(teacher, tmp_path / "moved")
    same = {"teacher": str(tmp_path / "moved"), "teaching": 1.0}
    about = train(config_of(corpus, lfmmi=same).model_copy(update={"frames": str(frames)}), tmp_path / "out")
    assert about["best_epoch"] == 4  # finished before
    with pytest.raises(Speech3Error, match="another config"):
        train(config_of(corpus).model_copy(update={"frames": str(frames)}), tmp_path / "out")


def test_teachers_that_do_not_fit_are_refused(corpus, teacher, tmp_path):
    def refused(kind, model=(), **training):
        with pytest.raises(kind) as error:
            train(config_of(corpus, model, **training), tmp_path / "out")
        return str(error.value)

    lfmmi = {"teacher": str(teacher)}
    assert f"teacher={tmp_path}" in refused(MissingError, lfmmi={"teacher": str(tmp_path)})
    assert f"teacher={teacher}: reads " in refused(MismatchError, {"layers": 3}, lfmmi=lfmmi)
    other = shutil.copytree(teacher, tmp_path / "other")
    context_free = context_free_tree(np.arange(2 * PHONES).reshape(PHONES, 2)[::-1].copy())
    Hmm(LEXICON, context_free, np.full(2 * PHONES, 0.5), FIRST_AND_LOOP, 3).save(other)
    assert f"teacher={other}: 10 senones" in refused(MismatchError, lfmmi={"teacher": str(other)})
    assert "teaching=0.5" in refused(SettingError, lfmmi={"teaching": 0.5})
    before = (teacher / "model.safetensors").read_bytes()
    with pytest.raises(OccupiedError, match="teacher"):
        train(config_of(corpus, lfmmi=lfmmi), teacher, restart=True)
    assert (teacher / "model.safetensors").read_bytes() == before
    shutil.copytree(teacher, tmp_path / "done")
    with pytest.raises(MismatchError):  # before the earlier model is removed
        train(config_of(corpus, {"layers": 3}, lfmmi=lfmmi), tmp_path / "done", restart=True)
    assert (tmp_path / "done" / "model.safetensors").exists()
    with pytest.raises(ValueError, match=r"lfmmi\.teacher"):
        config_of(corpus, lfmmi=lfmmi, objective="cross_entropy")
    with pytest.raises(ValueError, match=r"lfmmi\.teacher"):
        config_of(corpus, lfmmi={**lfmmi, "numerators": "transcripts"}, sequence=None)
