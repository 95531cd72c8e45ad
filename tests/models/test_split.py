"""A split model against the whole one: loss, gradients, training; PyTorch's own loss over split classes; bad splits.

Axes: B minibatch, W context window, F feature bins, S senones.
"""

import copy
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import loss_parallel

from speech3.config import CnnConfig, DnnConfig, LstmConfig, ModelConfig, TdnnConfig, TdnnLstmConfig, load_preset
from speech3.engine.flat import flatten
from speech3.engine.papers.replicas import Slices
from speech3.errors import Speech3Error
from speech3.models import build
from speech3.models.base import cross_entropy
from speech3.models.split import SplitCrossEntropy, split_model

DIM, SENONES, FRAMES = 6, 11, 24  # 11 senones: uneven for two members as for three
CONTEXT = {"left_context": 2, "right_context": 1}
MAPS = ({"maps": 5, "kernel": (2, 2), "pool": 2}, {"maps": 6, "kernel": (1, 2)})
MODELS = {
    "batch": DnnConfig(layers=3, width=7, normalization="batch", **CONTEXT),
    "layer": DnnConfig(layers=2, width=7, normalization="layer", activation="sigmoid", **CONTEXT),
    "none": DnnConfig(layers=2, width=8, **CONTEXT),
    "softmax": DnnConfig(layers=0, **CONTEXT),
    "cnn": CnnConfig(channels=1, convolutions=MAPS, layers=2, width=7, normalization="batch", **CONTEXT),
    "maps": CnnConfig(channels=1, convolutions=MAPS, layers=0, normalization="layer", **CONTEXT),
}


def whole_model(config):
    model = build(config, DIM, SENONES, seed=3)
    model.set_input_statistics(torch.full((DIM,), 0.5), torch.full((DIM,), 2.0))
    generator = torch.Generator().manual_seed(4)
    for parameter in model.parameters():  # biases and scales as after some training
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model


def minibatch(number=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(number)
    feats_BWF = torch.randn(FRAMES, 4, DIM, generator=generator) + 0.5
    return feats_BWF.to(dtype), torch.randint(SENONES, (FRAMES,), generator=generator)


def gradient(model, loss, feats_BWF, senones_B):
    value, correct = loss(model(feats_BWF), senones_B)
    return value.detach(), int(correct), torch.autograd.grad(value, list(model.parameters()))


def slices_of(config, members):
    return Slices(
        whole_model(config), [split_model(whole_model(config), rank, members, None) for rank in range(members)]
    )


def _member(rank, store):
    """Three of a group, then two of them as another: to start a process takes longer than all that it does here."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=Path(store).as_uri(), rank=rank, world_size=3, timeout=timedelta(seconds=60)
    )
    three, pair = DeviceMesh.from_group(dist.group.WORLD, "cpu"), dist.new_group([0, 1])
    for name in ("batch", "cnn"):
        _is_the_whole_model(MODELS[name], rank, 3, three, torch.float32, 1e-5, name)
    if rank < 2:
        mesh = DeviceMesh.from_group(pair, "cpu")
        for name, config in MODELS.items():
            _is_the_whole_model(config, rank, 2, mesh, torch.float32, 1e-5, name)
            _is_the_whole_model(config, rank, 2, mesh, torch.float64, 1e-13, name)
        _loss_is_pytorchs(rank, mesh)
        _trains_as_the_whole_model(rank, mesh)
        _dropout_is_each_ones_own(rank, mesh)
        _all_hear_of_a_loss_that_is_not_finite(rank, mesh)
    dist.barrier()


def _is_the_whole_model(config, rank, members, mesh, dtype, tolerance, name):
    """Loss, frames right, every row of every gradient, the running means; in training mode and out of it."""
    whole = whole_model(config).to(dtype)
    model = split_model(copy.deepcopy(whole), rank, members, mesh)
    feats_BWF, senones_B = minibatch(dtype=dtype)
    loss = SplitCrossEntropy(mesh, SENONES)
    for mode in (True, False):
        whole.train(mode), model.train(mode)
        expected, right, g_whole = gradient(whole, cross_entropy, feats_BWF, senones_B)
        found, correct, g = gradient(model, loss, feats_BWF, senones_B)
        assert correct == right, name
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=0)
        length = torch.nn.utils.get_total_norm(g_whole)
        for each, all_rows in zip(g, g_whole, strict=True):
            own_rows = all_rows.chunk(members)[rank]
            assert each.shape == own_rows.shape and len(each) < len(all_rows)
            assert (each - own_rows).norm() <= tolerance * length, name
    for (key, own), (_, all_rows) in zip(model.named_buffers(), whole.named_buffers(), strict=True):
        own_rows = all_rows.chunk(members)[rank] if "running" in key else all_rows
        torch.testing.assert_close(own, own_rows, rtol=tolerance, atol=tolerance)


def _loss_is_pytorchs(rank, mesh):
    """The loss and its gradient by loss_parallel, with logits too far apart for exponentials that are not shifted."""
    logits_BS = 60 * torch.randn(FRAMES, SENONES, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    senones_B = torch.arange(FRAMES) % SENONES
    ours = logits_BS.chunk(2, 1)[rank].clone().requires_grad_()
    theirs = ours.detach().clone().requires_grad_()
    loss, correct = SplitCrossEntropy(mesh, SENONES)(ours, senones_B)
    loss.backward()
    with loss_parallel():
        sharded = DTensor.from_local(theirs, mesh, [Shard(1)], shape=logits_BS.shape, stride=logits_BS.stride())
        expected = nn.functional.cross_entropy(sharded, senones_B)
        expected.backward()
    torch.testing.assert_close(loss, expected.full_tensor())
    torch.testing.assert_close(ours.grad, theirs.grad)
    assert correct == (logits_BS.argmax(1) == senones_B).sum()


def _trains_as_the_whole_model(rank, mesh):
    """Ten steps of SGD by each on its own slice, put together, are ten steps of the whole model."""
    config = MODELS["batch"]
    whole, model = whole_model(config), split_model(whole_model(config), rank, 2, mesh)
    flat_whole, flat = flatten(whole), flatten(model)
    for number in range(10):
        batch = minibatch(number)
        *_, g_whole = gradient(whole, cross_entropy, *batch)
        *_, g = gradient(model, SplitCrossEntropy(mesh, SENONES), *batch)
        for views, gradients in ((flat_whole.views, g_whole), (flat.views, g)):
            for view, each in zip(views, gradients, strict=True):
                view.sub_(each, alpha=0.3)
    slices = slices_of(config, 2)
    parts = [torch.zeros(values) for values, _ in slices.members]
    parts[rank] += flat.vector_K
    for member, part in enumerate(parts):
        dist.broadcast(part, member, group=mesh.get_group())
    assert (flat_whole.vector_K - flatten(whole_model(config)).vector_K).norm() > 0.5
    torch.testing.assert_close(slices.joined(parts), flat_whole.vector_K, rtol=1e-5, atol=1e-5)


def _dropout_is_each_ones_own(rank, mesh):
    """Half of the units are dropped, others for each member as their seeds are; none in evaluation."""
    config = DnnConfig(layers=1, width=64, dropout=0.5, **CONTEXT)
    model = split_model(build(config, DIM, SENONES, seed=3), rank, 2, mesh)
    seen = []
    model.output.register_forward_hook(lambda module, args, output: seen.append(args[0].detach()))
    torch.manual_seed(rank)
    for mode in (True, False):
        model.train(mode)
        model(minibatch()[0])
    whole = build(config, DIM, SENONES, seed=3).eval()
    active = whole.layers(whole.normalize(minibatch()[0]).flatten(1))
    torch.testing.assert_close(seen[1], active)
    torch.testing.assert_close(seen[0], 2 * active * (seen[0] != 0))
    first, second = (
        (part != 0) | (there == 0) for part, there in zip(seen[0].chunk(2, 1), active.chunk(2, 1), strict=True)
    )
    assert not torch.equal(first, second)
    assert 0.4 < (seen[0] != 0).sum() / (active != 0).sum() < 0.6


def _all_hear_of_a_loss_that_is_not_finite(rank, mesh):
    """Though only one has the senone whose logit overflows."""
    for value in (float("nan"), float("inf")):
        model = split_model(whole_model(MODELS["none"]), rank, 2, mesh)
        if rank == 1:
            model.output.bias.data[-1] = value
        loss, _ = SplitCrossEntropy(mesh, SENONES)(model(minibatch()[0]), minibatch()[1])
        assert not loss.isfinite()


@pytest.mark.slow
def test_split_models_compute_what_the_whole_model_does(tmp_path):
    torch.multiprocessing.spawn(_member, (str(tmp_path / "store"),), nprocs=3)


@pytest.mark.parametrize("name", ["batch", "cnn"])
@pytest.mark.parametrize("members", [2, 3])
def test_slices_hold_every_parameter_once_and_make_the_whole_again(name, members):
    config = MODELS[name]
    models = [split_model(whole_model(config), rank, members, None) for rank in range(members)]
    whole, parts = flatten(whole_model(config)), [flatten(model) for model in models]
    sizes = [sum(view.numel() for view in part.views) for part in parts]
    assert sum(sizes) == sum(view.numel() for view in whole.views)
    assert max(sizes) < 0.7 * sum(sizes)
    slices = Slices(whole_model(config), models)
    taken = slices.take(whole.vector_K)
    for found, part in zip(taken, parts, strict=True):
        assert torch.equal(found, part.vector_K)  # as `split` cut them
    assert torch.equal(slices.joined(taken), whole.vector_K)
    velocity = torch.rand(whole.num_parameters) * (whole.parameters_P != 0)
    slots = slices.take(velocity)
    assert [len(slot) for slot in slots] == [part.num_parameters for part in parts]
    assert torch.equal(slices.joined(slots), velocity)


def test_presets_can_be_split():
    for name in ("dnn", "dnn_distbelief", "cnn"):
        config = load_preset(ModelConfig, "models", name)
        dim = 120 if name == "cnn" else 40
        whole, half = (build(config, dim, 803, seed=1) for _ in range(2))
        split_model(half, 1, 2, None)
        counts = [sum(each.numel() for each in model.parameters()) for model in (whole, half)]
        assert counts[1] == pytest.approx(counts[0] / 2, rel=0.01)


@pytest.mark.parametrize(
    ("config", "members", "message"),
    [
        (
            DnnConfig(layers=1, width=3, **CONTEXT),
            4,
            r"training.model_partitions=4: layer layers.hidden.0 of the dnn has 3 units \(model.width\), divided into "
            r"1 \+ 1 \+ 1, so 1 of the devices would have none; set training.model_partitions=3 at most",
        ),
        (DnnConfig(layers=1, width=5, **CONTEXT), 4, r"5 units \(model.width\), divided into 2 \+ 2 \+ 1, so 1 of"),
        (DnnConfig(layers=1, width=60, **CONTEXT), 12, r"layer output of the dnn has 11 units \(the senones"),
        (CnnConfig(channels=1, convolutions=MAPS), 6, r"convolutions.0.convolution .*\(model.convolutions\[0\].maps\)"),
        (LstmConfig(layers=1, cells=8), 2, r"=2: a model of family lstm cannot be split .*cells \(layers.0\)"),
        (TdnnLstmConfig(), 2, r"=2: a model of family tdnn_lstm cannot be split .*cells \(layers.0\)"),
        (TdnnConfig(layers=1), 2, r"=2: a model of family tdnn cannot be split .*bottleneck .* semi-orthogonal"),
    ],
)
def test_what_cannot_be_split_is_said(config, members, message):
    with pytest.raises(Speech3Error, match=message):
        split_model(build(config, DIM, SENONES, seed=1), 0, members, None)


def test_one_member_has_the_whole_model():
    model = build(LstmConfig(layers=1, cells=8), DIM, SENONES, seed=1)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for name, tensor in split_model(model, 0, 1, None).state_dict().items():
        assert torch.equal(tensor, before[name])
