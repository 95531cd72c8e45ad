"""Pretraining without transcripts: clusters, hidden frames, the autoencoder's loss, runs, what begins with them."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from frame_corpus import DIM, SENONES, config, learnt, write
from interrupted import both_runs

from speech3.config import (
    ModelConfig,
    PretrainConfig,
    PretrainingConfig,
    TrainConfig,
    TrainingConfig,
    load_config,
    shipped,
)
from speech3.errors import OccupiedError, Speech3Error
from speech3.frames import PackedFrames, cluster_frames, nearest_cluster, open_packed, write_frames
from speech3.hmm import PdfsOnly
from speech3.io import load_tensors
from speech3.models import Reconstruction, build, masked_cross_entropy
from speech3.train import pretrain, train
from speech3.train.parts import make_parts, minibatches

CPU = torch.device("cpu")


def _task(corpus: Path, model: str, task: str, **keys: Any) -> TrainConfig:
    given = PretrainingConfig.model_validate({"task": task, "mask_frames": 4, **keys})
    return config(corpus, "cpu", model).model_copy(update={"pretraining": given})


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Frames whose labels are clusters: centres, which consecutive frames share, and noise."""
    root = tmp_path_factory.mktemp("corpus")
    write(root)
    return root


def _windows(corpus: Path, root: Path) -> Path:
    """The same frames for an autoencoder: as many outputs as a window has values."""
    for name in ("train", "heldout"):
        packed = open_packed(corpus / f"{name}.frames")
        feats = dict(zip(packed.utterances, np.split(packed.frames_NF, packed.offsets_U1[1:-1]), strict=True))
        zeros = {key: np.zeros(len(each), np.int32) for key, each in feats.items()}
        write_frames(root / f"{name}.frames", feats, zeros, 11 * DIM, utterances=list(feats))
    PdfsOnly(11 * DIM, "a test's").save(root)
    return root


def test_clusters_are_a_fixed_point_and_find_separate_groups() -> None:
    rng = np.random.default_rng(3)
    true_KD = rng.normal(0, 20, (7, 5))
    frames_ND = np.repeat(true_KD, 40, 0) + rng.normal(size=(280, 5))
    centre_KD = cluster_frames(frames_ND, 7, seed=2)
    # Each group is found: its centre is the mean of its frames, in float64.
    means_KD = frames_ND.reshape(7, 40, 5).mean(1)
    order = [int(np.square(centre_KD - mean_D).sum(1).argmin()) for mean_D in means_KD]
    assert sorted(order) == list(range(7))
    np.testing.assert_allclose(centre_KD[order], means_KD, rtol=1e-4, atol=1e-4)
    # The nearest centre is that of the smallest distance.
    probe_ND = rng.normal(0, 20, (50, 5))
    distance_NK = np.square(probe_ND[:, None] - centre_KD[None].astype(np.float64)).sum(2)
    np.testing.assert_array_equal(nearest_cluster(probe_ND, centre_KD), distance_NK.argmin(1))
    with pytest.raises(Speech3Error, match=r"pretraining\.clusters=4: there are only 3 different frames"):
        cluster_frames(np.repeat(np.eye(3), 5, 0), 4, seed=1)


def test_the_middle_of_a_share_of_the_windows_is_hidden(corpus: Path) -> None:
    frames = open_packed(corpus / "train.frames")
    task = _task(corpus, "dnn", "masked", mask_share=0.25)
    plain = minibatches(task.model_copy(update={"pretraining": None}), frames, CPU)
    source = minibatches(task, frames, CPU)
    mean_F = torch.from_numpy(frames.mean_F).float()
    masked, windows = 0, 0
    for number in range(len(source)):
        (inputs, labels), (clean, senones) = source.draw(2, number), plain.draw(2, number)
        assert torch.equal(labels, senones)
        hidden_BW = (inputs == mean_F).all(2)
        assert torch.equal(inputs[~hidden_BW], clean[~hidden_BW])
        width_B = hidden_BW.sum(1)
        assert set(width_B.tolist()) == {0, 4} and hidden_BW[width_B > 0, 5].all()
        masked, windows = masked + int((width_B > 0).sum()), windows + len(width_B)
    assert 0.2 < masked / windows < 0.3  # 2,880 windows: a deviation of 0.008
    again = source.draw(2, 3)[0]
    assert torch.equal(again, source.draw(2, 3)[0]) and not torch.equal(again, source.draw(3, 3)[0])
    assert all(torch.equal(a[0], b[0]) for a, b in zip(source.sequential(500), source.sequential(500), strict=True))


@pytest.mark.parametrize("model", ["lstm", "blstm"])
def test_the_loss_of_chunks_counts_hidden_frames_alone(corpus: Path, model: str) -> None:
    frames = open_packed(corpus / "train.frames")
    task = _task(corpus, model, "masked")
    plain = make_parts(task, frames, CPU).source
    inputs, targets = plain.draw(1, 0)
    network = build(task.model, DIM, SENONES, seed=0).eval()
    outputs_BTS = network(inputs).detach()
    hidden_BT = (inputs.feats_BTF == torch.from_numpy(frames.mean_F).float()).all(2)
    first = plain.source.left
    places = hidden_BT[:, first : first + plain.source.chunk].flatten().nonzero().flatten()
    assert torch.equal(places, targets.place_N) and 0 < len(targets) < outputs_BTS.flatten(0, 1).shape[0]
    loss, correct = masked_cross_entropy(outputs_BTS, targets)
    chosen_NS = outputs_BTS.flatten(0, 1)[places].double()
    expected = torch.nn.functional.cross_entropy(chosen_NS, targets.labels_N)
    assert float(loss) == pytest.approx(float(expected), rel=1e-5)
    assert int(correct) == int((chosen_NS.argmax(1) == targets.labels_N).sum())


def test_reconstruction_is_that_of_its_definition() -> None:
    rng = np.random.default_rng(5)
    clean_BD, rebuilt_BD, hidden_BH = rng.normal(size=(8, 6)), rng.normal(size=(8, 6)) / 3, rng.normal(size=(8, 9))
    error = np.square(rebuilt_BD - clean_BD).mean()
    scaled_BH = hidden_BH / np.sqrt(np.square(hidden_BH).mean(0))
    spread = (np.abs(scaled_BH).sum(1) / (3 * np.linalg.norm(scaled_BH, axis=1))).mean()
    outputs = torch.from_numpy(rebuilt_BD), torch.from_numpy(hidden_BH)
    loss, explained = Reconstruction(0.5)(outputs, torch.from_numpy(clean_BD))
    assert float(loss) == pytest.approx(error + 0.5 * spread, rel=1e-6)
    assert int(explained) == max(0, round(8 * (1 - error / np.square(clean_BD).mean())))
    # The bounds of the measure: each frame has one unit of its own, whatever its scale, or all units are alike.
    exact_BD = torch.ones(9, 6)
    for hidden_BH, expected in ((np.diag(np.arange(1.0, 10)), 1 / 3), (np.ones((9, 9)), 1.0)):
        loss, _ = Reconstruction(1.0)((exact_BD, torch.from_numpy(hidden_BH)), exact_BD)
        assert float(loss) == pytest.approx(expected, rel=1e-6)


def _mean_and_damage(frames: PackedFrames, source: Any) -> tuple[float, torch.Tensor, torch.Tensor]:
    inputs_BWF, clean_BD = source.draw(1, 0)
    scaled_BWF = (inputs_BWF.double() - torch.from_numpy(frames.mean_F)) / torch.from_numpy(frames.variance_F).sqrt()
    return float((scaled_BWF.abs() < 1e-6).double().mean()), scaled_BWF.flatten(1), clean_BD


def test_the_autoencoder_gets_damaged_windows_and_learns_to_mend_them(corpus: Path, tmp_path: Path) -> None:
    windows = _windows(corpus, tmp_path / "windows")
    frames = open_packed(windows / "train.frames")
    task = _task(windows, "dnn", "autoencoder", noise=0.3)
    quick = {**task.training.model_dump(), "optimizer": "adamw", "learning_rate": 0.01}
    task = task.model_copy(update={"training": TrainingConfig.model_validate(quick)})
    share, damaged_BD, clean_BD = _mean_and_damage(frames, minibatches(task, frames, CPU))
    assert abs(share - 0.3) < 0.01
    whole = damaged_BD.abs() >= 1e-6
    np.testing.assert_allclose(damaged_BD[whole], clean_BD[whole], rtol=1e-4, atol=1e-5)
    about = train(task, tmp_path / "run")
    assert about["num_senones"] == 11 * DIM and about["heldout_accuracy"] > 0.4 and learnt(tmp_path / "run")
    # Its hidden layers are what the acoustic model begins with; its output layer is not.
    begun = train(config(corpus, "cpu", "dnn").model_copy(update={"init": str(tmp_path / "run")}), tmp_path / "dnn")
    assert begun["before"]["new"] == ["output.weight", "output.bias"]
    assert not (tmp_path / "run" / "MODEL_CARD.md").exists() and (tmp_path / "dnn" / "MODEL_CARD.md").exists()


@pytest.mark.parametrize(("model", "world"), [("cnn", "sgd"), ("lstm", "sgd"), ("dnn", "simulated")])
def test_masked_prediction_beats_chance_and_is_never_the_same_senones(
    corpus: Path, tmp_path: Path, model: str, world: str, capsys: pytest.CaptureFixture[str]
) -> None:
    task = _task(corpus, model, "masked")
    more = {"world": world, "workers": 2 if world == "simulated" else 1, "max_epochs": 2}
    more |= {
        "optimizer": "adamw",
        "learning_rate": 0.01,
        "asgd": {"warm_start": 0.5},
        "simulation": {"compute_s": 1.0, "sync_s": 0.1},
    }
    training = TrainingConfig.model_validate({**task.training.model_dump(), **more})
    train(task.model_copy(update={"training": training}), tmp_path / "run")
    assert learnt(tmp_path / "run")[-1] > 0.4  # six clusters
    train(
        config(corpus, "cpu", model, max_epochs=1).model_copy(update={"init": str(tmp_path / "run")}), tmp_path / "am"
    )
    assert "pretrained without transcripts (masked), so the output layer is new" in capsys.readouterr().err


def test_a_run_that_is_interrupted_within_an_epoch_ends_the_same(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both_runs(_task(corpus, "dnn", "masked"), tmp_path, monkeypatch, saves=7)


@pytest.mark.parametrize(
    ("model", "task", "training", "message"),
    [
        ("lstm", "autoencoder", {}, r"pretraining=autoencoder: reconstructs single windows"),
        ("dnn", "autoencoder", {"speeds": [0.9, 1.0]}, r"pretraining=autoencoder: reconstructs single windows"),
        ("dnn", "masked", {"label_smoothing": 0.1}, r"training.label_smoothing=0.1: not with pretraining=masked"),
        ("dnn", "masked", {"group_lasso": 0.1, "schedule": "cosine"}, r"training.group_lasso=0.1: not with"),
    ],
)
def test_what_does_not_fit_is_named(
    corpus: Path, tmp_path: Path, model: str, task: str, training: dict[str, Any], message: str
) -> None:
    given = config(corpus, "cpu", model, **training).model_copy(update={"pretraining": PretrainingConfig(task=task)})
    with pytest.raises(Speech3Error, match=message):
        train(given, tmp_path / "run")


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight recordings of half a second each: seven of 16 kHz, one of 8 kHz."""
    root, rng = tmp_path_factory.mktemp("recordings"), np.random.default_rng(7)
    for number in range(8):
        rate_hz = 8000 if number == 7 else 16000
        tone = np.sin(2 * np.pi * (200 + 100 * number) * np.arange(rate_hz // 2) / rate_hz)
        soundfile.write(root / f"r{number}.wav", 0.2 * tone + 0.01 * rng.normal(size=len(tone)), rate_hz)
    return root


def _config(*overrides: str) -> PretrainConfig:
    few = ["jobs=1", "heldout=0.2", "model.layers=1", "model.width=8", "model.normalization=none", "features=fbank40"]
    overrides = ("pretraining.clusters=8", "training.max_epochs=2", "training.minibatch=64", *few, *overrides)
    return load_config(PretrainConfig, shipped("conf") / "pretrain.yaml", list(overrides))


def test_a_folder_of_recordings_is_enough(
    recordings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    about = pretrain(recordings, run, _config())
    said = capsys.readouterr().err
    assert "recordings at other rates are resampled to 16,000 Hz: 1 at 8,000 Hz" in said
    assert about["pretraining"]["task"] == "masked" and about["num_senones"] == 8 and not (run / "features").exists()
    packed = open_packed(run / "frames" / "train.frames")
    assert packed.num_senones == 8 and packed.counts_S.sum() == len(packed)
    # The same command does nothing; one that lost its model begins with the frames that are there.
    stamp = (run / "frames" / "train.frames").stat().st_mtime_ns
    assert pretrain(recordings, run, _config()) == about
    (run / "model.safetensors").unlink()
    tensors = load_tensors(sorted((run / "checkpoints").glob("e*.safetensors"))[-1], "nn-checkpoint")[0]
    pretrain(recordings, run, _config())
    np.testing.assert_array_equal(
        load_tensors(run / "model.safetensors", "nn")[0]["output.bias"], tensors["best.output.bias"]
    )
    assert (run / "frames" / "train.frames").stat().st_mtime_ns == stamp
    with pytest.raises(OccupiedError, match="holds frames of other labels"):
        pretrain(recordings, run, _config("pretraining.clusters=9"))
    # Features of another dimension than those of the acoustic model are named.
    other = TrainConfig(
        frames=str(tmp_path),
        hmm=str(tmp_path),
        init=str(run),
        training=TrainingConfig(max_epochs=1),
        model=ModelConfig(**_config().model.model_dump()),
    )
    write(tmp_path)
    with pytest.raises(Speech3Error, match=rf"trained on 40 feature bins per frame, .*train.frames has {DIM}"):
        train(other, tmp_path / "am")


def test_an_empty_corpus_and_too_few_recordings_are_named(recordings: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(Speech3Error, match=r"empty: no recordings .* pass a folder that has some"):
        pretrain(tmp_path / "empty", tmp_path / "run", _config())
    (tmp_path / "one").mkdir()
    shutil.copyfile(recordings / "r0.wav", tmp_path / "one" / "r0.wav")
    with pytest.raises(Speech3Error, match="1 utterance: too few, none is left for heldout"):
        pretrain(tmp_path / "one", tmp_path / "run", _config())
