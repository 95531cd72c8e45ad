"""LSTM models: equal to nn.LSTM where the clip is infinite, the same whatever the chunks, states carried and reset."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from speech3.config import LstmConfig, ModelConfig, load_preset, parse
from speech3.errors import Speech3Error
from speech3.frames.chunks import SequenceInputs, Sequences
from speech3.frames.packed import open_packed, write_frames
from speech3.models import build, load_network, logits, lstm as module, network_tensors

DIM, SENONES = 4, 7


def _model(**keys):
    torch.manual_seed(0)
    model = build(LstmConfig(**{"cells": 6, "cell_clip": float("inf"), **keys}), DIM, SENONES, seed=1)
    model.set_input_statistics(torch.randn(DIM), torch.rand(DIM) + 0.5)
    return model.eval()


def _inputs(feats_TBF, *, left=0, right=0, lengths=None, begins=None, own=None, place=(1, 0)):
    """Chunks of which every step has a target."""
    steps, streams = feats_TBF.shape[:2]
    padded = torch.cat([feats_TBF[:1].expand(left, -1, -1), feats_TBF, feats_TBF[-1:].expand(right, -1, -1)])
    lengths_B = torch.tensor(lengths or [steps] * streams)
    own = own or steps
    scored_TB = torch.arange(own)[:, None] < lengths_B
    steps_A = (torch.arange(steps)[:, None] < lengths_B).flatten().nonzero().squeeze(1)
    return SequenceInputs(
        padded.unfold(0, left + 1 + right, 1).transpose(2, 3),
        lengths_B,
        torch.tensor([True] * streams if begins is None else begins),
        scored_TB.flatten().nonzero().squeeze(1),
        own,
        place,
        steps_A,
    )


def _stock(model, bidirectional, projection):
    """nn.LSTM with the same weights."""
    cells, layers = model.layers[0].ahead.sizes[1], len(model.layers)
    inputs = model.layers[0].ahead.weight_ih.shape[1]
    stock = nn.LSTM(inputs, cells, layers, bidirectional=bidirectional, proj_size=projection)
    for number, layer in enumerate(model.layers):
        for suffix, side in (("", layer.ahead), ("_reverse", layer.back)):
            if side is None:
                continue
            getattr(stock, f"weight_ih_l{number}{suffix}").data.copy_(side.weight_ih)
            getattr(stock, f"weight_hh_l{number}{suffix}").data.copy_(side.weight_hh)
            getattr(stock, f"bias_ih_l{number}{suffix}").data.copy_(side.bias)
            getattr(stock, f"bias_hh_l{number}{suffix}").data.zero_()
            if projection:
                getattr(stock, f"weight_hr_l{number}{suffix}").data.copy_(side.weight_hr)
    return stock


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("projection", [0, 3])
def test_equals_pytorchs_lstm(bidirectional, projection):
    model = _model(layers=3, bidirectional=bidirectional, projection=projection, left_context=1, right_context=2)
    stock = _stock(model, bidirectional, projection)
    feats_TBF = torch.randn(12, 3, DIM)
    inputs = _inputs(feats_TBF, left=1, right=2)
    ours = model(inputs)
    x_TBI = ((inputs.feats_TBWF + model.shift_F) * model.scale_F).flatten(2)
    expected = stock(x_TBI)[0].flatten(0, 1) @ model.output.weight.t() + model.output.bias
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)  # float32, 36 recurrent steps
    weight = torch.randn_like(ours)
    ours_g = torch.autograd.grad((ours * weight).sum(), [model.layers[0].ahead.weight_hh, model.layers[2].ahead.bias])
    stock_g = torch.autograd.grad((expected * weight).sum(), [stock.weight_hh_l0, stock.bias_ih_l2])
    for one, other in zip(ours_g, stock_g, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_backward_layers_begin_at_the_end_of_each_stream():
    model = _model(bidirectional=True)
    feats_TBF = torch.randn(9, 3, DIM)
    lengths = [9, 4, 1]
    inputs = _inputs(feats_TBF, lengths=lengths)
    together = torch.full((9 * 3, SENONES), torch.nan)
    together[inputs.scored_N] = model(inputs).detach()
    for b, length in enumerate(lengths):
        alone = model(_inputs(feats_TBF[:length, b : b + 1]))
        torch.testing.assert_close(together.view(9, 3, SENONES)[:length, b], alone.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("keys", [{}, {"peepholes": True, "projection": 2}, {"cell_clip": 0.1}])
def test_chunks_with_carried_states_equal_the_whole(keys):
    model = _model(**keys)
    feats_TBF = torch.randn(20, 2, DIM)
    whole = model(_inputs(feats_TBF))
    parts = [
        model(_inputs(part, begins=[number == 0] * 2, place=(1, number)))
        for number, part in enumerate(feats_TBF.split(7))
    ]
    torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-4, atol=1e-6)


def test_states_are_reset_where_an_utterance_begins_and_where_nothing_was_carried():
    model = _model()
    first, second = torch.randn(5, 2, DIM), torch.randn(5, 2, DIM)
    alone = model(_inputs(second)).view(5, 2, -1)
    model(_inputs(first, place=(1, 0)))
    mixed = model(_inputs(second, begins=[True, False], place=(1, 1))).view(5, 2, -1)
    torch.testing.assert_close(mixed[:, 0], alone[:, 0])
    assert (mixed[:, 1] - alone[:, 1]).abs().max() > 1e-3
    # Minibatch 1 was computed, 2 was not (by this worker): what carries on from 2 begins with nothing.
    unknown = model(_inputs(second, begins=[False, False], place=(1, 3))).view(5, 2, -1)
    torch.testing.assert_close(unknown, alone)
    other_epoch = model(_inputs(second, begins=[False, False], place=(2, 2))).view(5, 2, -1)
    torch.testing.assert_close(other_epoch, alone)


def test_what_is_not_finite_ends_with_its_minibatch():
    """Else whoever is refused one minibatch is refused the rest of the row, and a reset does not help."""
    model, feats_TBF = _model(), torch.randn(5, 2, DIM)
    fresh = model(_inputs(feats_TBF)).view(5, 2, -1)
    bad_TBF = feats_TBF.clone()
    bad_TBF[2, 0] = torch.nan
    assert not model(_inputs(bad_TBF, place=(1, 0))).isfinite().all()
    after = model(_inputs(feats_TBF, begins=[False, False], place=(1, 1))).view(5, 2, -1)
    torch.testing.assert_close(after[:, 0], fresh[:, 0])  # begins anew
    assert after[:, 1].isfinite().all() and (after[:, 1] - fresh[:, 1]).abs().max() > 1e-3  # goes on
    model.carried.kept[1, 5] = [(h * torch.nan, c * torch.inf) for h, c in model.states(2)]
    torch.testing.assert_close(model(_inputs(feats_TBF, place=(1, 6))).view(5, 2, -1), fresh)


def test_what_is_beyond_a_chunk_is_in_no_statistics():
    results = []
    for beyond in (0.0, 100.0):
        model = _model(
            bidirectional=True, input_layers=(5,), normalization="batch", layers=2, cell_normalization="batch"
        ).train()
        torch.manual_seed(3)
        feats_TBF = torch.randn(6, 3, DIM)
        feats_TBF[4:, 1], feats_TBF[:, 2] = beyond, beyond  # a chunk of 4 steps, and a stream that has ended
        logits_NS = model(_inputs(feats_TBF, lengths=[6, 4, 0]))
        results.append([logits_NS, *torch.autograd.grad(logits_NS.square().sum(), list(model.parameters()))])
        results[-1] += [each for norm in (model.before.norms[0], *model.norms) for each in norm.buffers()]
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


def test_a_minibatch_of_one_step_is_normalised_by_those_before_it():
    """The chunk that is left over at the end of an epoch may be so short; nn.BatchNorm1d refuses it."""
    model = _model(output_layers=(5,), normalization="batch").train()
    model(_inputs(torch.randn(30, 2, DIM)))  # moves the statistics
    before, one = model.after.norms[0].running_mean.clone(), _inputs(torch.randn(1, 1, DIM), place=(1, 5))
    trained = model(one)
    assert torch.equal(model.after.norms[0].running_mean, before) and (before != 0).any()
    torch.testing.assert_close(trained, model.eval()(one))
    assert all(g.isfinite().all() for g in torch.autograd.grad(trained.sum(), list(model.after.parameters())))


@pytest.mark.parametrize("keys", [{}, {"delay": 5}, {"bidirectional": True}])
def test_of_no_frames_there_are_no_scores(keys):
    assert logits(_model(**keys), torch.zeros(0, DIM)).shape == (0, SENONES)


def test_no_gradient_goes_back_beyond_a_chunk():
    model = _model()
    first = torch.randn(5, 2, DIM, requires_grad=True)
    model(_inputs(first, place=(1, 0)))
    after = model(_inputs(torch.randn(5, 2, DIM), begins=[False] * 2, place=(1, 1)))
    assert torch.autograd.grad(after.sum(), first, allow_unused=True) == (None,)


def test_few_states_are_kept():
    model = _model()
    for number in range(0, 300, 2):  # rows of one minibatch: nobody takes what is kept
        model(_inputs(torch.randn(2, 1, DIM), place=(1, number)))
    assert len(model.carried.kept) == module.Carried.most


def test_lookahead_is_seen_by_backward_layers_only_and_the_state_is_that_of_the_chunk():
    model = _model(bidirectional=True, lookahead=4)
    feats_TBF = torch.randn(13, 2, DIM)
    whole = model(_inputs(feats_TBF)).view(13, 2, -1)  # forward layers see all of it
    cut = model(_inputs(feats_TBF[:9], own=5, place=(1, 0))).view(5, 2, -1)
    assert (cut - whole[:5]).abs().max() > 1e-5  # backward layers began at frame 9, not 13
    shorter = model(_inputs(feats_TBF[:5], place=(3, 0))).view(5, 2, -1)
    assert (cut - shorter).abs().max() > 1e-3
    # Frames 5 to 12 with nothing cut off: equal to the whole if the state is that after frame 4, and not after 8.
    rest = model(_inputs(feats_TBF[5:], begins=[False] * 2, place=(1, 1))).view(8, 2, -1)
    one_layer = _model(bidirectional=True, lookahead=4, layers=1)
    whole_1 = one_layer(_inputs(feats_TBF)).view(13, 2, -1)
    one_layer(_inputs(feats_TBF[:9], own=5, place=(1, 0)))
    rest_1 = one_layer(_inputs(feats_TBF[5:], begins=[False] * 2, place=(1, 1))).view(8, 2, -1)
    torch.testing.assert_close(rest_1, whole_1[5:], rtol=1e-4, atol=1e-6)
    assert rest.shape == (8, 2, SENONES)


@pytest.mark.parametrize(
    ("keys", "inside"),
    [
        ({}, False),
        ({"delay": 3}, False),
        ({"delay": 3}, True),
        ({"delay": 9, "cell_normalization": "layer"}, True),
        ({"bidirectional": True}, False),
        ({"left_context": 2, "right_context": 1, "input_layers": [5], "cell_normalization": "batch"}, False),
    ],
)
def test_an_utterance_is_scored_as_its_frames_are_held_out(tmp_path, keys, inside):
    """Held-out minibatches and `logits` are two ways to the same scores, delay and context included."""
    model = _model(**keys)
    rng = np.random.default_rng(0)
    feats = {f"u{i}": rng.normal(size=(n, DIM)).astype(np.float32) for i, n in enumerate((1, 2, 30, 7, 12))}
    labels = {u: np.full(len(x), i) for i, (u, x) in enumerate(feats.items())}
    write_frames(tmp_path / "x", feats, labels, SENONES, utterances=list(feats))
    source = Sequences(
        open_packed(tmp_path / "x"),
        left=model.left_context,
        right=model.right_context,
        delay=model.delay,
        chunk=40 if model.bidirectional else 8,
        streams=2,
        seed=1,
        device=torch.device("cpu"),
        targets_inside=inside,
    )
    found = {u: [] for u in range(5)}
    for inputs, senones_N in source.sequential(16 if not model.bidirectional else 80):
        with torch.no_grad():
            scores_NS = model(inputs)
        order = torch.argsort(inputs.scored_N % inputs.feats_TBWF.shape[1], stable=True)
        for utterance, score_S in zip(senones_N[order].tolist(), scores_NS[order], strict=True):
            found[utterance].append(score_S)
    for utterance, x_TF in enumerate(feats.values()):
        expected = logits(model, torch.from_numpy(x_TF))
        torch.testing.assert_close(torch.stack(found[utterance]), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("keys", [{}, {"delay": 5}, {"peepholes": True, "projection": 3, "delay": 2}])
def test_scores_do_not_depend_on_how_an_utterance_is_cut(monkeypatch, keys):
    model, feats_TF = _model(**keys), torch.randn(50, DIM)
    whole = logits(model, feats_TF)
    for size in (1, 3, 7, 50, 51):
        monkeypatch.setattr(module, "_SCORED_AT_A_TIME", size)
        torch.testing.assert_close(logits(model, feats_TF), whole, rtol=1e-4, atol=1e-6)


def test_long_utterances_of_two_directions_see_at_least_so_far(monkeypatch):
    model, feats_TF = _model(bidirectional=True, layers=1, cell_clip=0.5), torch.randn(400, DIM)
    whole = logits(model, feats_TF)
    monkeypatch.setattr(module, "_SCORED_AT_A_TIME", 60)
    cut = logits(model, feats_TF)
    # What backward layers do not see is over a hundred frames away, and forgotten.
    torch.testing.assert_close(cut, whole, rtol=1e-3, atol=1e-4)
    monkeypatch.setattr(module, "_LOOKAHEAD", 0)
    assert (logits(model, feats_TF) - whole).abs().max() > 1e-2


@pytest.mark.parametrize("keys", [{"delay": 2}, {"bidirectional": True}])
def test_an_utterance_of_any_length_in_constant_memory(monkeypatch, keys):
    model, seen = _model(cells=3, layers=1, **keys), []
    steps = module.Lstm.steps

    def watched(self, feats_TWF, states, own):
        seen.append(len(feats_TWF))
        return steps(self, feats_TWF, states, own)

    monkeypatch.setattr(module.Lstm, "steps", watched)
    scores = logits(model, torch.randn(70_000, DIM))
    assert scores.shape == (70_000, SENONES) and torch.isfinite(scores).all()
    assert max(seen) <= 4096 + 100 and len(seen) > 15


def test_equal_seeds_equal_parameters():
    first, second, third = (build(LstmConfig(cells=8), DIM, SENONES, seed) for seed in (1, 1, 2))
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[name])
    assert not torch.equal(first.layers[1].ahead.weight_hh, third.layers[1].ahead.weight_hh)
    assert (first.layers[0].ahead.bias[8:16] == 1).all() and (first.layers[0].ahead.bias[:8] == 0).all()


def test_the_clip_is_that_of_the_config():
    model = _model(cell_clip=0.05, layers=1)
    _, states = model.steps(torch.randn(40, 1, DIM) * 50, model.states(), 40)
    assert states[0][1].abs().max().item() == pytest.approx(0.05)


def test_a_file_says_what_it_is(tmp_path):
    from speech3.io.checkpoint import save_tensors

    model = _model(peepholes=True, projection=2, bidirectional=True, lookahead=3, output_layers=(5,), cell_clip=7.0)
    config = LstmConfig(
        cells=6, peepholes=True, projection=2, bidirectional=True, lookahead=3, output_layers=(5,), cell_clip=7.0
    )
    about = {"kind": "nn", "model": config.model_dump(), "feat_dim": DIM, "num_senones": SENONES}
    prior = np.zeros(SENONES, np.float32)
    save_tensors(tmp_path / "model.safetensors", {**network_tensors(model), "log_prior": prior}, about)
    again, _, _ = load_network(tmp_path)
    feats_TF = torch.randn(30, DIM)
    assert torch.equal(logits(again, feats_TF), logits(model, feats_TF))


@pytest.mark.parametrize("name", ["lstm", "lstm_small", "lstmp", "blstm", "tc_dnn_blstm_dnn"])
def test_presets(name):
    config = load_preset(ModelConfig, "models", name)
    assert isinstance(config, LstmConfig)
    assert config.bidirectional == ("blstm" in name) and bool(config.projection) == (name == "lstmp")
    assert bool(config.output_layers) == (name == "tc_dnn_blstm_dnn")
    assert config.left_context == config.right_context == (5 if config.input_layers else 0)
    assert config.cell_clip == 50


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"cell_clip": 0}, r"cell_clip: .*greater than 0 \(got 0\)"),
        ({"cell_clip": -1.5}, r"cell_clip: .*greater than 0 \(got -1.5\)"),
        ({"projection": 320}, "projection=320 must be below cells=320"),
        ({"bidirectional": True, "delay": 5}, "delay is for unidirectional layers"),
        ({"lookahead": 5}, "lookahead is for bidirectional layers"),
        ({"output_layers": [3, 0]}, "widths, at least 1"),
        ({"layers": 0}, "layers: .*greater than or equal to 1"),
    ],
)
def test_what_makes_no_model(keys, message):
    with pytest.raises(Speech3Error, match=rf"^here\.yaml: .*{message}"):
        parse(ModelConfig, {"family": "lstm", **keys}, "here.yaml")


def test_one_mask_for_a_chunk_drops_a_unit_in_all_steps():
    for per_chunk in (True, False):
        model = _model(layers=1, dropout=0.5, dropout_per_chunk=per_chunk).train()
        model.output = torch.nn.Identity()
        torch.manual_seed(1)
        y_TBD = model(_inputs(torch.randn(20, 3, DIM))).view(20, 3, -1)
        dropped_TBD = y_TBD == 0
        assert 0.3 < dropped_TBD.float().mean() < 0.7
        assert bool((dropped_TBD == dropped_TBD[0]).all()) is per_chunk
        if per_chunk:
            assert not (dropped_TBD[0, 0] == dropped_TBD[0, 1]).all(), "each stream has its own mask"
            kept_TBD = model.eval()(_inputs(torch.randn(20, 3, DIM))).view(20, 3, -1)
            assert (kept_TBD != 0).all()


def test_outputs_of_cells_are_normalised_as_by_pytorch():
    plain, normed = _model(layers=1), _model(layers=1, cell_normalization="batch").train()
    normed.load_state_dict(plain.state_dict(), strict=False)
    plain.output = normed.output = torch.nn.Identity()
    inputs = _inputs(torch.randn(12, 3, DIM))
    found, cells = normed(inputs), plain(inputs)
    expected = torch.nn.functional.batch_norm(cells, None, None, training=True)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_dropout_is_of_training_only():
    model = _model(dropout=0.5)
    inputs = [_inputs(torch.ones(4, 1, DIM), place=(1, 2 * n)) for n in range(2)]
    assert torch.equal(model(inputs[0]), model(inputs[1]))
    model.train()
    dropped = [model(_inputs(torch.ones(4, 1, DIM), place=(1, 2 * n))) for n in range(8)]
    assert any(not torch.equal(a, b) for a, b in itertools.pairwise(dropped))
