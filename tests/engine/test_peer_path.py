"""The server on another device than the shards, with shared tensors of the CPU in the place of a GPU's memory.

What a GPU's peer path does and the CPU's own path does not: the state lies in tensors that are handed over, not in the
host's memory of the server, and the step is that of PyTorch's operations. Both must train alike.

Axes: K values of the model.
"""

from contextlib import nullcontext

import numpy as np
import pytest
import tiny
import torch
from torch import Tensor

from speech3.config import AsgdConfig, CodecConfig
from speech3.engine import server_optimizer as optimizer
from speech3.engine.interface import Rate
from speech3.engine.server import Server, make_server, memory_layout, private_memory
from speech3.engine.shard import Shard

BATCHES, MINIBATCHES = tiny.Batches(24), 24


def server_of(shard: Shard, config: AsgdConfig, peer: bool) -> Server:
    """A server for two shards; the peer's state is in shared tensors."""
    own = shard.sgd.parameters
    sizes, on_peer = memory_layout(own, config, 2, MINIBATCHES), None
    if peer:
        shapes = (own.vector_K.numel(), own.num_parameters if config.momentum else 0, 0)
        on_peer = tuple(torch.zeros(2, size).share_memory_() for size in shapes)
        sizes |= {name: (np.float32, (2, 0)) for name in ("state_2K", "velocity_2P", "squares_2P")}
    server = make_server(private_memory(sizes), config, own, nullcontext(), on_peer)
    server.load({"parameters": own.vector_K})
    return server


def trained(config: AsgdConfig, codec: CodecConfig, peer: bool) -> dict[str, Tensor]:
    """The published state after two shards in turn have computed all minibatches, with a sync after every second."""
    shards = [Shard(tiny.Build(BATCHES, norm=True)(), config, number=n, workers=2, codec=codec) for n in range(2)]
    server = server_of(shards[0], config, peer)
    for number in range(MINIBATCHES):
        shard = shards[number // 2 % 2]
        if shard.pushes[0].version < 0:  # the first fetch
            for partition, push in zip(server.partitions, shard.pushes, strict=True):
                tiny.visit(partition, push)
        server.states.computed(number, shard.compute(1, number, Rate(0.2, 1, MINIBATCHES)))
        if number % 2:
            for partition, push in zip(server.partitions, shard.pushes, strict=True):
                tiny.visit(partition, push)
    assert server.version == MINIBATCHES // 2 and server.states.finished
    return server.tensors()


@pytest.mark.parametrize("local_updates", [True, False])
@pytest.mark.parametrize(
    "codec", [CodecConfig(), CodecConfig(kind="ternary", down="ternary", float_below=0)], ids=["float32", "ternary"]
)
def test_server_on_another_device_trains_as_one_in_shared_memory(
    local_updates: bool, codec: CodecConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = AsgdConfig(sync_every=2, partitions=2, momentum=0.3, push_scale=0.5, local_updates=local_updates)
    expected = trained(config, codec, peer=False)
    monkeypatch.setattr(optimizer, "_step_of", lambda *_: optimizer.step_torch)
    found = trained(config, codec, peer=True)
    assert set(found) == set(expected) == {"parameters", "server.velocity"}
    first = tiny.model(norm=True)
    assert not torch.equal(found["parameters"][:35], next(first.parameters()).flatten())
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-5)
