"""Coded pushes: what the server steps by is what the codes stand for; bytes; what was lost; resume; two processes."""

import math
import os
from contextlib import ExitStack

import pytest
import tiny
import torch
from replay import replay

from speech3.config import AsgdConfig, CodecConfig
from speech3.engine import codecs as codec_module, server_optimizer as optimizer
from speech3.engine.backends import shared
from speech3.engine.backends.one_process import Simulated, Times
from speech3.engine.backends.processes import FileLock, memory_file
from speech3.engine.backends.shared import Shared
from speech3.engine.codecs import Ternary, key_of, layout, make_codec
from speech3.engine.flat import flatten
from speech3.engine.gradient import gradient
from speech3.engine.interface import REFUSED, USED, WorkerParts
from speech3.engine.optimizers import Sgd
from speech3.engine.server import Partition, memory_bytes, memory_layout
from speech3.engine.shard import Push, Shard, Wire, wire_of

BATCHES = tiny.Batches(60)
VALUES = 16 * (3 + 1 + 3 + 1)  # of the flat vector of 5 - 7 - 5, padding included
CODECS = [CodecConfig(kind=kind, share=0.2) for kind in ("none", "bf16", "ternary", "topk", "rows")]
BOTH_WAYS = CodecConfig(kind="ternary", down="ternary")


def simulated(config, codec, workers=1, batches=BATCHES):
    world = Simulated(tiny.Build(batches)(), config, Times((1.0,) * workers, 0.1, jitter=0.2), codec=codec)
    world.load({"parameters": flatten(tiny.model()).vector_K})
    return world


def epoch(world, number, batches=BATCHES, base=0.3):
    return list(world.epoch(number, tiny.waiting(batches), tiny.rate(base, number, batches)))[-1]


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.kind)
def test_server_applies_decoded_push(codec, local):
    """One worker; by hand: code what it would push, with what the last one lost, and step by that."""
    config = AsgdConfig(sync_every=2, max_distance=2, local_updates=local, push_scale=1.0, momentum=0.5)
    world = simulated(config, codec)
    done = epoch(world, 1)
    model = tiny.model()
    sgd = Sgd(model)
    own, velocity, lost = sgd.parameters, 0.0, 0.0
    coder, sent = make_codec(codec, own.views), 0
    parts = WorkerParts(model, BATCHES, tiny.loss, seed=1)
    for first in range(0, len(BATCHES), 2):
        fetched, total = own.vector_K.clone(), own.zeros_like()
        for number in (first, first + 1):
            g = gradient(parts, 1, number)[1]
            for view, each in zip(total.views, g, strict=True):
                view.add_(0.3 * each)
            if local:
                sgd.step(g, 0.3)
        push = fetched - own.vector_K if local else total.vector_K
        if coder:
            message, out = coder.encode(push + lost, key_of(1, 1, first + 1)), torch.zeros_like(push)
            coder.add(message, out)
            lost = 0.0 if coder.unbiased else push + lost - out
            sent, push = sent + message.numel(), out
        velocity = 0.5 * velocity + push
        own.vector_K.copy_(fetched - velocity)
    torch.testing.assert_close(world.snapshot().tensors["parameters"], own.vector_K, rtol=1e-4, atol=1e-5)
    assert done.up == (sent or 30 * 4 * VALUES)
    assert done.down == (30 + 1) * 4 * VALUES  # the first fetch
    assert done.used == len(BATCHES)


@pytest.mark.parametrize("codec", [*CODECS[1:], BOTH_WAYS], ids=lambda codec: codec.kind + codec.down)
def test_coded_pushes_learn_and_a_resumed_run_is_the_same(codec):
    config, right = AsgdConfig(sync_every=1, max_distance=3, push_scale=0.5), {}
    for each in (CODECS[0], codec):
        world = simulated(config, each, workers=3)
        for number in (1, 2, 3):
            if number == 3:
                tensors, seconds = world.snapshot().tensors, 0.0
            done = epoch(world, number)
        right[each.kind] = done.correct / done.frames
    again = simulated(config, codec, workers=3)
    again.load(tensors, seconds)
    assert epoch(again, 3) == done
    assert torch.equal(again.snapshot().tensors["parameters"], world.snapshot().tensors["parameters"])
    assert right[codec.kind] > 0.85 * right["none"] > 0.4


@pytest.mark.parametrize("codec", CODECS[1:], ids=lambda codec: codec.kind)
@pytest.mark.parametrize("value", [math.nan, math.inf, 1e30])
def test_a_push_that_is_not_finite_is_refused_and_the_next_is_not(codec, value):
    world = simulated(AsgdConfig(local_updates=False), codec)
    world.memory.states.states_M[:] = 0
    server, push = world.server.partitions[0], world.shards[0].pushes[0]
    tiny.visit(server, push)
    before = world.snapshot().tensors["parameters"]
    push.numbers, push.push_P[3] = [0], value
    assert tiny.visit(server, push) == REFUSED
    assert torch.equal(world.snapshot().tensors["parameters"], before) and not push.push_P.any()
    push.numbers, push.push_P[3] = [1], 0.01
    assert tiny.visit(server, push) == USED  # nothing is left of the other


def test_error_of_coded_fetch_comes_with_next_fetch():
    """The server does not move any more: what the shard has comes to what the server has, up to the noise of a code."""
    wire, own = wire_of(BOTH_WAYS, flatten(tiny.model()).views), flatten(tiny.model())
    wire.receive(own)
    goal_P, far = own.parameters_P + 0.1 * torch.sign(own.parameters_P), []
    for number in range(40):
        own.parameters_P.copy_(goal_P)
        wire.key = key_of(number)
        wire.receive(own)
        assert torch.equal(own.parameters_P, wire.has_P)
        far.append(float((own.parameters_P - goal_P).norm()))
    assert far[-1] < 0.05 * max(far) and wire.down < 4 * VALUES * 7


@pytest.mark.parametrize("bucket", [0, 4096])
def test_error_of_coded_fetches_stays_bounded(bucket):
    """The server moves on between fetches; with a scale for all 4,096 values the error would grow without end."""
    own = flatten(torch.nn.Linear(64, 64, bias=False))
    wire = wire_of(BOTH_WAYS.model_copy(update={"bucket": bucket}), own.views)
    server_P, generator, far = own.parameters_P.clone(), torch.Generator().manual_seed(5), []
    for number in range(101):
        server_P += torch.randn(len(server_P), generator=generator)
        own.parameters_P.copy_(server_P)
        wire.key = key_of(number)
        wire.receive(own)
        far.append(float((own.parameters_P - server_P).norm()) / math.sqrt(len(server_P)))  # in steps
    assert far[0] == 0 and 2 < far[50] < 3.5 and 2 < far[100] < 3.5


def test_model_buffers_are_sent_as_float32():
    build = tiny.Build(BATCHES, norm=True)
    world = Simulated(build(), AsgdConfig(sync_every=1), Times((1.0,), 0.1), codec=CODECS[2])
    world.load({"parameters": flatten(tiny.model(norm=True)).vector_K})
    done = epoch(world, 1)
    own = flatten(tiny.model(norm=True))
    message = make_codec(CODECS[2], own.views).encode(own.parameters_P, 0)
    assert done.up == done.versions * (message.numel() + own.buffers.nbytes)
    assert not torch.equal(world.snapshot().tensors["parameters"][own.num_parameters :], own.buffers)


def test_two_processes_and_their_replay(tmp_path):
    build, config = tiny.Build(BATCHES), AsgdConfig(sync_every=1, max_distance=4)
    codec = BOTH_WAYS
    start = {"parameters": flatten(tiny.model()).vector_K.clone()}
    world = Shared(build, build(), config, workers=2, record=tmp_path, codec=codec)
    try:
        world.load(start)
        done = epoch(world, 1)
        found = world.snapshot().tensors
    finally:
        world.close()
    assert done.used == len(BATCHES)
    message = make_codec(codec, flatten(tiny.model()).views).encode(torch.zeros(VALUES), 0)
    assert done.up == done.down - 2 * 4 * VALUES == done.versions * message.numel()  # each of them fetches all once
    again = replay(build(), config, start, lambda e: tiny.rate(0.3, e, BATCHES), tmp_path, codec=codec)
    assert torch.equal(again["parameters"], found["parameters"])


def test_wire_without_codec_copies_nothing():
    own, wire = flatten(tiny.model()), Wire()
    push = Push(own, None, torch.ones(VALUES))
    push.numbers = [0]
    push.pack()
    assert push.packed.push_P is push.push_P and wire.counted() == push.wire.counted() == (0, 0)
    push.pushed()
    assert push.wire.counted() == (4 * VALUES, 0) and layout(own.views).words == 3 + 1 + 3 + 1


def test_no_partition_is_locked_while_a_codec_works(monkeypatch):
    """A shard's driver of world shared, in this process; other descriptors of the locks see whether it holds one."""
    config, parts = AsgdConfig(sync_every=1, partitions=2), tiny.Build(BATCHES)()
    shard = Shard(parts, config, codec=BOTH_WAYS)
    own = shard.sgd.parameters
    sizes, seen = memory_layout(own, config, 1, len(BATCHES)), {"encode": [], "add": [], "sync": []}
    with ExitStack() as stack:
        memory, queue_lock, *paths = (
            stack.enter_context(memory_file(name, size))
            for name, size in (("server", memory_bytes(sizes)), ("pool", 0), ("lock0", 0), ("lock1", 0))
        )
        files = memory, tuple(paths), queue_lock
        place = shared.ServerAddress(*files, sizes, config, 1, os.getpid(), None, None, BOTH_WAYS)
        server, locks = place.attach(own, None)
        probes = [FileLock(path) for path in paths]

        def noting(kind, name):
            method = getattr(kind, name)

            def noted(*args, **kwargs):
                free = [probe.try_acquire() for probe in probes]
                for probe in probes:
                    probe.release()
                seen[name].append(sum(free))
                return method(*args, **kwargs)

            monkeypatch.setattr(kind, name, noted)

        for kind, name in ((Ternary, "encode"), (Ternary, "add"), (Partition, "sync")):
            noting(kind, name)
        server.load({"parameters": own.vector_K.clone()})
        server.begin_epoch(tiny.waiting(BATCHES))
        rate = tiny.rate(0.1, 1, BATCHES)
        shared.run_shard(0, shard, server, locks, rate, os.getppid(), lambda _: None)
        assert server.states.finished
    assert set(seen["sync"]) == {1}  # the other partition is free: a shard never holds two
    assert set(seen["encode"]) == set(seen["add"]) == {2}
    assert len(seen["encode"]) >= 2 * 2 * len(BATCHES)  # up and down, in both partitions


@pytest.mark.parametrize("bucket", [0, 4])
@pytest.mark.parametrize("down", ["float32", "ternary"])
@pytest.mark.parametrize("kind", ["none", "bf16", "ternary", "topk", "rows"])
@pytest.mark.parametrize(
    "config",
    [
        AsgdConfig(sync_every=1),
        AsgdConfig(sync_every=1, fetch_every=2, momentum=0.5, partitions=2, projection=True),
        AsgdConfig(sync_every=2, local_updates=False, adagrad=0.1),
    ],
)
def test_all_compiled_code_is_loaded_before_the_first_sync(config, kind, down, bucket, monkeypatch):
    chosen = CodecConfig(kind=kind, down=down, bucket=bucket)
    world = Simulated(tiny.Build(BATCHES)(), config, Times((1.0,), 0.1), codec=chosen)
    used, run, step = set(), codec_module._run, optimizer._one_pass

    def noting(kernel, *args):
        used.add(kernel.__name__)
        run(kernel, *args)

    def pass_noted(*arrays):
        used.add(tuple(array is None for array in arrays))
        return step(*arrays)

    monkeypatch.setattr(codec_module, "_run", noting)
    monkeypatch.setattr(optimizer, "_one_pass", pass_noted)
    world.load({"parameters": flatten(tiny.model()).vector_K})
    shared._warm_up(world.server, world.shards[0])
    loaded = frozenset(used)
    assert epoch(world, 1).versions > 1
    assert used == loaded and ("_pack" in loaded) == (kind == "ternary" or down == "ternary")
