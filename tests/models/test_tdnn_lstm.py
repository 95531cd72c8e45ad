"""TDNN-LSTM against nn.LSTM on the layers of `speech3.models.tdnn`, which have tests of their own; chunks; configs."""

import json

import pytest
import torch
from torch import nn

from speech3.config import ModelConfig, TdnnConfig, TdnnLstmConfig, TrainConfig, TrainingConfig, parse
from speech3.errors import Speech3Error
from speech3.frames.chunks import RecurrentChunks
from speech3.models import build, logits
from speech3.models.tdnn import Tdnn, TdnnLstm, TimeDelay

BINS, SENONES, CELLS = 11, 7, 5
CONVOLUTIONS = [{"maps": 4, "kernel": [3, 5], "stride": 2}, {"maps": 5, "kernel": [2, 3]}]
SIZES = {
    "family": "tdnn_lstm",
    "time_layers": 2,
    "width": 12,
    "bottleneck": 5,
    "cells": CELLS,
    "layers": 2,
    "convolutions": CONVOLUTIONS,
}


def model_of(**changes) -> TdnnLstm:
    """In evaluation; no norm is that of the beginning."""
    model = build(parse(ModelConfig, SIZES | changes, "x"), BINS, SENONES, seed=1)
    assert isinstance(model, TdnnLstm)
    torch.manual_seed(2)
    model.set_input_statistics(torch.randn(BINS), torch.rand(BINS) + 0.5)
    for each in [*model.parameters(), *model.buffers()]:
        if each.ndim == 1:
            each.data += 0.3 * torch.rand_like(each)
    return model.eval()


def the_same_time_delay_network(model: TdnnLstm, config: TdnnConfig) -> Tdnn:
    """A network of family tdnn or cnn_tdnn whose first layers have the parameters of `model`'s."""
    tdnn = build(config, BINS, SENONES, seed=3).eval()
    assert isinstance(tdnn, Tdnn)
    tdnn.load_state_dict(model.before.state_dict(), strict=False)
    tdnn.shift_F.copy_(model.shift_F), tdnn.scale_F.copy_(model.scale_F)
    return tdnn


@pytest.mark.parametrize(("convolutions", "adapted"), [([], 0), (CONVOLUTIONS, 0), (CONVOLUTIONS, 4)])
@pytest.mark.parametrize("subsampling", [1, 3])
def test_equals_nn_lstm_on_a_time_delay_network(convolutions, adapted, subsampling):
    keys = {"subsampling": subsampling, "convolutions": convolutions, "adapted": adapted}
    model = model_of(**keys, cell_clip=float("inf"))
    config = parse(ModelConfig, SIZES | keys, "x")
    assert isinstance(config, TdnnLstmConfig)
    tdnn = the_same_time_delay_network(model, config.before_cells)
    assert (model.left_context, model.right_context) == (tdnn.left_context, tdnn.right_context)
    stock = nn.LSTM(12, CELLS, 2)
    for number, layer in enumerate(model.layers):
        for kind, value in (
            ("weight_ih", layer.ahead.weight_ih),
            ("weight_hh", layer.ahead.weight_hh),
            ("bias_ih", layer.ahead.bias),
            ("bias_hh", torch.zeros(4 * CELLS)),
        ):
            getattr(stock, f"{kind}_l{number}").data.copy_(value)
    feats_TF = torch.randn(61, BINS)
    frame_T = torch.arange(-tdnn.left_context, 60 + subsampling + tdnn.right_context).clamp(0, 60)
    with torch.no_grad():
        x_TD = tdnn._hidden(feats_TF[frame_T][None])[0]
        expected_TS = model.output(stock(x_TD)[0])
    found_TS = logits(model, feats_TF)
    assert len(found_TS) == -(-61 // subsampling)
    torch.testing.assert_close(found_TS, expected_TS[: len(found_TS)], rtol=1e-4, atol=1e-5)


def test_a_third_of_the_frames_is_every_third_of_all():
    """So a network trained by cross-entropy at every frame can go on with LF-MMI."""
    all_frames, third = model_of(subsampling=1).before, model_of(subsampling=3).before
    assert isinstance(all_frames, TimeDelay) and isinstance(third, TimeDelay)
    third.load_state_dict(all_frames.state_dict())
    feats_BTF = torch.randn(2, 80, BINS)
    with torch.no_grad():
        torch.testing.assert_close(third(feats_BTF), all_frames(feats_BTF)[:, ::3], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("keys", [{}, {"delay": 6}, {"bidirectional": True, "lookahead": 9}])
def test_a_chunk_behind_all_that_was_before_it_has_the_outputs_of_the_whole(keys):
    model = model_of(**keys, subsampling=3, two_outputs=True)
    feats_TF = torch.randn(90, BINS)
    beyond = 3 * max(model.delay, model.lookahead)
    frame_T = torch.arange(-model.left_context, 90 + beyond + model.right_context).clamp(0, 89)
    inputs = RecurrentChunks(feats_TF[frame_T][None], torch.tensor([False]), torch.tensor([20]), warm_up=10)
    with torch.no_grad():
        found_BTS, second_BTS = model(inputs)
    assert found_BTS.shape == second_BTS.shape == (1, 20, SENONES)
    expected_TS = logits(model, feats_TF)[10:]  # at the beginning of the warm-up the state is zero, as in the utterance
    torch.testing.assert_close(found_BTS[0], expected_TS, rtol=1e-4, atol=1e-5)


def test_dropout_is_that_of_the_cells():
    config = parse(ModelConfig, SIZES | {"dropout": 0.5, "time_dropout": 0.25}, "x")
    model = build(config, BINS, SENONES, seed=1)
    assert isinstance(model, TdnnLstm) and isinstance(model.before, TimeDelay)
    assert model.dropout.dropped == 128  # of 256
    assert [layer.dropout.dropped for layer in model.before.layers] == [64, 64]


def test_lfmmi_gives_it_a_third_of_the_outputs_and_a_second_layer():
    training = TrainingConfig(objective="lfmmi")
    config = TrainConfig(frames="x", hmm="y", model=parse(ModelConfig, SIZES, "x"), training=training).model
    assert (config.subsampling, config.two_outputs, config.left_context) == (3, True, 0)
    assert config.system == "tdnn_lstm" and TdnnLstmConfig(bidirectional=True).system == "tdnn_blstm"
    assert type(ModelConfig(family="tdnn_lstm")) is TdnnLstmConfig
    assert parse(ModelConfig, json.loads(config.model_dump_json()), "x") == config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"left_context": 5}, "left_context: .*the layers of this family determine the context; leave it out"),
        ({"input_layers": [8]}, "input_layers: .*the layers before the cells are time_layers; leave it out"),
        ({"bottleneck": 12}, "bottleneck=12 must be below width=12"),
        ({"convolutions": [{"maps": 4, "kernel": [3, 2]}], "subsampling": 3}, "convolutions.0.kernel: 2 frames, moved"),
        ({"delay": 3, "bidirectional": True}, "delay is for unidirectional layers"),
        ({"time_layers": 0}, "time_layers: .*greater"),
    ],
)
def test_bad_configs_are_refused(changes, message):
    with pytest.raises(Speech3Error, match=f"(?s)^my.yaml: .*{message}"):
        parse(ModelConfig, SIZES | changes, "my.yaml")
