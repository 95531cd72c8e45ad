"""Recurrent models in every world: they learn, carry their state along rows, go on, begin with another's parameters."""

import numpy as np
import pytest
import torch

from speech3.config import DnnConfig, LstmConfig, TrainConfig, TrainingConfig
from speech3.engine.optimizers import Sgd
from speech3.errors import MismatchError, SettingError, Speech3Error
from speech3.frames.packed import open_packed, write_frames
from speech3.hmm.model import PdfsOnly
from speech3.models import load_network, logits
from speech3.models.lstm import Carried
from speech3.runtime import read_metrics
from speech3.runtime.files import write_text
from speech3.train import run as run_module, train
from speech3.train.parts import minibatches

DIM, SENONES, FRAMES = 5, 4, 1600


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """What a senone is was said two frames before: only who remembers can know."""
    root, rng = tmp_path_factory.mktemp("recurrent"), np.random.default_rng(0)
    centers = rng.normal(0, 2.5, (SENONES, DIM)) + 10
    for name, count in (("train", 40), ("heldout", 8)):
        labels = {f"{name}{i}": rng.integers(0, SENONES, 40).astype(np.int32) for i in range(count)}
        feats = {
            u: (centers[np.roll(x, -2)] + rng.normal(0, 0.3, (40, DIM))).astype(np.float32) for u, x in labels.items()
        }
        write_frames(root / "frames" / f"{name}.frames", feats, labels, SENONES, utterances=list(feats), info={})
    write_text(root / "frames" / "features.yaml", f"kind: fbank\nnum_mel_bins: {DIM}\nsample_frequency: 8000\n")
    PdfsOnly(SENONES, "made by hand").save(root / "hmm")
    return root


def _config(corpus, model=(), init=None, **training):
    values = {
        "minibatch": 40,
        "sequence": 10,
        "learning_rate": 0.5,
        "momentum": 0.9,
        "max_epochs": 10,
        "schedule": "constant",
        "gradient_clip": 1.0,
        **training,
    }
    return TrainConfig(
        frames=str(corpus / "frames"),
        hmm=str(corpus / "hmm"),
        init=init and str(init),
        training=TrainingConfig(**values),
        model=LstmConfig(**{"layers": 1, "cells": 16, **dict(model)}),
    )


def _accuracy(corpus, directory):
    """Of the stored model on the held-out frames, utterance by utterance."""
    model, _, _ = load_network(directory)
    heldout, right = open_packed(corpus / "frames" / "heldout.frames"), 0
    for begin, end in zip(heldout.offsets_U1[:-1], heldout.offsets_U1[1:], strict=True):
        scores = logits(model, torch.from_numpy(np.array(heldout.frames_NF[begin:end])))
        right += int((scores.argmax(1).numpy() == heldout.senones_N[begin:end]).sum())
    return right / len(heldout)


@pytest.mark.parametrize(
    ("model", "training"),
    [
        ({}, {}),
        ({"delay": 1}, {"max_epochs": 60}),
        ({"delay": 1, "dropout": 0.1, "dropout_per_chunk": True, "cell_normalization": "batch"},
         {"targets_inside": True, "label_smoothing": 0.1, "max_epochs": 12, "average": 4}),
        ({"projection": 8, "peepholes": True}, {"sequence": 0, "minibatch": 80}),
        ({"bidirectional": True, "lookahead": 5, "cells": 12}, {}),
        ({"delay": 1, "cell_normalization": "batch"}, {"speeds": (1.0, 1.0), "minibatch": 80, "max_epochs": 30}),
        ({"bidirectional": True, "lookahead": 5, "cells": 12}, {"speeds": (1.0,), "chunk_context": 10, "sequence": 20}),
        (
            {"left_context": 1, "right_context": 1, "input_layers": [16], "output_layers": [16], "dropout": 0.1,
             "bidirectional": True, "normalization": "batch"}, {"sequence": 20, "momentum": 0.5},
        ),
    ],
)  # fmt: skip
def test_it_learns_what_only_memory_knows(corpus, tmp_path, model, training):
    about = train(_config(corpus, model, **training), tmp_path / "out")
    assert about["heldout_accuracy"] > 0.85  # the first two of 40 cannot be known
    # What training says of itself is what decoding finds, chunked there and whole here: alike but for lookahead.
    assert _accuracy(corpus, tmp_path / "out") == pytest.approx(about["heldout_accuracy"], abs=0.03)


def test_without_memory_nothing_is_learnt(corpus, tmp_path):
    config = _config(corpus).model_copy(update={"model": DnnConfig(layers=1, width=16, left_context=1)})
    assert train(config, tmp_path / "out")["heldout_accuracy"] < 0.4


@pytest.mark.parametrize("world", ["simulated", "synchronous", "ddp"])
def test_workers_carry_their_states_on(corpus, tmp_path, world, monkeypatch):
    taken, take = [], Carried.take

    def watched(self, place):
        states = take(self, place)
        taken.append(states is not None)
        return states

    monkeypatch.setattr(Carried, "take", watched)
    simulation = {"compute_s": 0.01, "sync_s": 0.001, "strategy": "synchronous" if world == "synchronous" else "asgd"}
    config = _config(
        corpus,
        world={"synchronous": "simulated"}.get(world, world),
        workers=2,
        simulation=simulation,
        asgd={"warm_start": 1.0, "sync_every": 1, "push_scale": 0.5},
        max_epochs=3,
    )
    about = train(config, tmp_path / "out")
    assert about["heldout_accuracy"] > 0.5
    records = [record for record in read_metrics(tmp_path / "out" / "metrics.jsonl") if record["event"] == "epoch"]
    assert [record["frames"] for record in records] == [FRAMES, 2 * FRAMES, 3 * FRAMES]
    if world in (
        "simulated",
        "synchronous",
    ):  # one row in the warm start, two workers after it; held-out frames besides
        assert sum(taken) > 0.7 * len(taken)


@pytest.mark.parametrize("world", ["sgd", "shared"])
def test_workers_learn(corpus, tmp_path, world):
    asgd = {"warm_start": 1.0, "sync_every": 1, "push_scale": 0.5}
    config = _config(corpus, world=world, workers=1 if world == "sgd" else 2, asgd=asgd, max_epochs=16)
    assert train(config, tmp_path / "out")["heldout_accuracy"] > 0.8


def test_a_run_that_was_stopped_resumes(corpus, tmp_path, monkeypatch):
    config = _config(corpus, max_epochs=6, checkpoint_s=1e6)
    look, looks = run_module._Run._heldout, []

    def stop(self, *arguments):
        looks.append(1)
        if len(looks) == 3:
            raise KeyboardInterrupt
        return look(self, *arguments)

    monkeypatch.setattr(run_module._Run, "_heldout", stop)
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "out")
    monkeypatch.setattr(run_module._Run, "_heldout", look)
    about, whole = train(config, tmp_path / "out"), train(config, tmp_path / "whole")
    # From one epoch to the next no state is carried: the same to the last bit.
    assert [e["heldout_loss"] for e in about["history"]] == [e["heldout_loss"] for e in whole["history"]]


def test_a_run_that_was_killed_inside_an_epoch_resumes_and_loses_one_state(corpus, tmp_path, monkeypatch):
    config = _config(corpus, max_epochs=2, checkpoint_s=0)
    step, steps, take, taken = Sgd.step, [], Carried.take, {}

    def killed(self, *arguments):
        if len(steps) == 50:  # of 40 an epoch, all in one row
            raise KeyboardInterrupt
        steps.append(step(self, *arguments))

    def watched(self, place):
        states = take(self, place)
        if place[0]:  # not held out
            taken[place] = states is not None
        return states

    with monkeypatch.context() as patch:
        patch.setattr(Sgd, "step", killed)
        with pytest.raises(KeyboardInterrupt):
            train(config, tmp_path / "out")
    monkeypatch.setattr(Carried, "take", watched)
    about = train(config, tmp_path / "out")
    assert taken == {(2, number): number != 10 for number in range(10, 40)}
    whole = train(config, tmp_path / "whole")
    assert about["history"][0]["heldout_loss"] == whole["history"][0]["heldout_loss"]
    assert about["heldout_loss"] == pytest.approx(whole["heldout_loss"], rel=0.1)


def test_it_begins_with_another(corpus, tmp_path):
    train(_config(corpus), tmp_path / "old")
    about = train(_config(corpus, init=tmp_path / "old", max_epochs=1, learning_rate=0.01), tmp_path / "new")
    assert about["before"]["heldout_accuracy"] > 0.85
    with pytest.raises(MismatchError, match=r"another architecture \(cells 16 there, 8 here\)"):
        train(_config(corpus, model={"cells": 8}, init=tmp_path / "old"), tmp_path / "newer")
    other = _config(corpus, init=tmp_path / "old").model_copy(update={"model": DnnConfig(layers=1, width=16)})
    with pytest.raises(Speech3Error, match="is a lstm, but this run's model is a dnn"):
        train(other, tmp_path / "newest")


def test_a_chunk_shorter_than_the_delay(corpus, tmp_path):
    with pytest.raises(SettingError, match=r"training\.sequence=5: .* model\.delay=5"):
        train(_config(corpus, model={"delay": 5}, sequence=5), tmp_path / "out")
    assert not (tmp_path / "out" / "model.safetensors").exists()


def test_a_gradient_is_cut_down_to_its_length():
    from speech3.engine.gradient import clip

    torch.manual_seed(0)
    g = [torch.randn(3, 4), torch.randn(5)]
    before, length = [each.clone() for each in g], float(torch.cat([each.flatten() for each in g]).norm())
    assert clip(g, 2 * length).item() == pytest.approx(length)
    assert all(torch.equal(one, other) for one, other in zip(g, before, strict=True))
    clip(g, length / 4)
    for one, other in zip(g, before, strict=True):
        torch.testing.assert_close(one, other / 4)
    nothing, wrong = [torch.zeros(2)], [torch.tensor([1.0, torch.nan]), torch.ones(2)]
    assert clip(nothing, 1.0) == 0 and (nothing[0] == 0).all()
    assert not clip(wrong, 1.0).isfinite()  # so that nobody applies it
    assert (wrong[1] == 1).all()


@pytest.mark.parametrize(
    ("sequence", "lookahead", "chunk", "streams"),
    [(None, 0, 20, 32), (None, 5, 20, 32), (None, 15, 30, 21), (10, 15, 10, 64), (0, 0, 40, 16)],
)
def test_chunks_are_as_long_as_said_and_the_rest_is_streams(corpus, sequence, lookahead, chunk, streams):
    model = {"bidirectional": bool(lookahead), "lookahead": lookahead}
    config = _config(corpus, model, sequence=sequence, minibatch=640)
    source = minibatches(config, open_packed(corpus / "frames" / "train.frames"), torch.device("cpu"))
    assert (source.chunk, source.streams, source.lookahead) == (chunk, streams, lookahead)
