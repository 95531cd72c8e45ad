"""What `fit` trains on: dictionaries, collate_fn, DataLoaders, streams, and minibatches in parts."""

import multiprocessing
import random
from functools import partial

import loops
import moons
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, WeightedRandomSampler

from speech3.engine import fit
from speech3.errors import SettingError, Speech3Error

DATA = moons.moons(450)
CROSS_ENTROPY = nn.CrossEntropyLoss()
SENTENCES = loops.Sentences()


def fitted(model=None, data=DATA, loss=CROSS_ENTROPY, **keys):
    defaults = {"strategy": "sgd", "epochs": 2, "quiet": True}
    return fit(model or moons.network(), data, loss, **{**defaults, **keys})


def values(model):
    return [tensor for tensor in model.state_dict().values() if tensor.is_floating_point()]


def same(one, other, atol=0.0):
    for ours, theirs in zip(values(one), values(other), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=atol)


@pytest.mark.parametrize("loss", [None, loops.of_logits])
def test_dictionaries_are_keyword_arguments_as_for_models_of_hugging_face(loss):
    model = loops.Classifier()
    result = fitted(
        model,
        SENTENCES,
        loss,
        collate_fn=loops.padded,
        minibatch=16,
        epochs=6,
        validation=loops.Sentences(64),
        optimizer=partial(torch.optim.AdamW, lr=0.05),
    )
    assert result.history[-1].accuracy > 0.9 and result.history[-1].validation_accuracy > 0.9


def test_the_model_computes_the_loss_with_shards_and_in_bf16():
    for keys in ({"strategy": "asgd", "workers": 2, "simulate": True}, {"precision": "bf16"}):
        result = fitted(
            loops.Classifier(),
            SENTENCES,
            None,
            collate_fn=loops.padded,
            minibatch=16,
            epochs=6,
            optimizer=partial(torch.optim.AdamW, lr=0.05),
            **keys,
        )
        assert result.history[-1].accuracy > 0.9


def test_dictionaries_are_stacked_without_a_collate_fn():
    items = [
        {"input_ids": torch.tensor([7 + index % 2, 9]), "attention_mask": torch.ones(2), "labels": index % 2}
        for index in range(60)
    ]
    assert fitted(loops.Classifier(), items, None, minibatch=10, learning_rate=1.0, epochs=8).history[-1].accuracy == 1


def packed(items):
    """Sequences of various lengths, as recurrent networks of PyTorch read them."""
    words = [nn.functional.one_hot(item["input_ids"], loops.WORDS).float() for item in items]
    return nn.utils.rnn.pack_sequence(words, enforce_sorted=False), torch.tensor([item["labels"] for item in items])


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.lstm, self.output = nn.LSTM(loops.WORDS, 16), nn.Linear(16, 2)

    def forward(self, inputs):
        return self.output(self.lstm(inputs)[1][0][0])


def test_packed_sequences():
    result = fitted(
        Recurrent(), SENTENCES, collate_fn=packed, minibatch=16, epochs=12, optimizer=partial(torch.optim.Adam, lr=0.03)
    )
    assert result.history[-1].accuracy > 0.9


def test_minibatches_in_parts_have_the_gradient_of_the_whole():
    for keys in (
        {"options": {"momentum": 0.9}},
        {"strategy": "ddp", "workers": 2, "simulate": True},
        {"strategy": "asgd", "simulate": True},
    ):
        whole, parts = plain(), plain()
        one = fitted(whole, minibatch=100, gradient_clip=0.3, **keys)
        two = fitted(parts, minibatch=25, accumulate=4, gradient_clip=0.3, **keys)
        same(whole, parts, 1e-6)  # the last of five minibatches has two parts
        assert [epoch.used for epoch in two.history] == [5, 5]
        for ours, theirs in zip(two.history, one.history, strict=True):
            assert ours.loss == pytest.approx(theirs.loss, abs=1e-6) and ours.accuracy == theirs.accuracy


def plain():
    """Without batch normalisation, which depends on the size of a part."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))


@pytest.mark.slow
def test_minibatches_in_parts_in_processes():
    whole, parts = plain(), plain()
    fitted(whole, strategy="ddp", workers=2, minibatch=100)
    fitted(parts, strategy="ddp", workers=2, minibatch=25, accumulate=4)
    same(whole, parts, 1e-6)


def test_a_dataloader_is_read_in_the_order_of_its_sampler():
    seen = []

    def noted(outputs, targets):
        seen.append(targets.tolist())
        return CROSS_ENTROPY(outputs, targets % 2)

    numbers = torch.utils.data.TensorDataset(torch.rand(50, 1), torch.arange(50))
    batches = BatchSampler(SequentialSampler(range(50)), 20, drop_last=True)
    for loader, sizes, sorted_ in [
        (DataLoader(numbers, batch_size=20), [20, 20, 10], True),
        (DataLoader(numbers, batch_size=20, shuffle=True, drop_last=True), [20, 20], False),
        (DataLoader(numbers, batch_sampler=batches), [20, 20], True),
        (DataLoader(numbers, batch_size=25, sampler=WeightedRandomSampler([1.0] * 50, 50)), [25, 25], False),
        (DataLoader(numbers, 25, True, generator=torch.Generator(), collate_fn=loops.collected), [25, 25], False),
    ]:
        seen.clear()
        result = fitted(nn.Linear(1, 2), loader, noted)
        assert [epoch.used for epoch in result.history] == [len(sizes)] * 2
        assert [len(each) for each in seen[2:]] == sizes * 2
        flat = [number for each in seen[2:] for number in each]
        assert (flat == [*range(sum(sizes))] * 2) == sorted_
        first = list(seen)
        seen.clear()
        fitted(nn.Linear(1, 2), loader, noted)
        assert seen == first  # the seed of fit decides, not what the sampler was used for before


@pytest.mark.parametrize(
    "loader",
    [
        partial(DataLoader, DATA, 50, shuffle=True),
        partial(DataLoader, loops.Points(items=450), 50),
        partial(DataLoader, loops.Points(items=450), 50, num_workers=1),
    ],
)
def test_the_generators_of_a_dataloader_are_as_before(loader):
    generator = torch.Generator().manual_seed(123)
    before = generator.get_state()
    held_out = DataLoader(DATA, 50, shuffle=True, generator=generator)
    result = fitted(data=loader(generator=generator), validation=held_out)
    assert torch.equal(before, generator.get_state())
    generator.manual_seed(5)  # and what they were used for changes nothing
    again = fitted(data=loader(generator=generator), validation=held_out)
    assert [each.loss for each in again.history] == [each.loss for each in result.history]


class Batches(torch.utils.data.Dataset):
    """Whose items are whole minibatches."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.full((3 + index, 2), float(index)), torch.arange(3 + index) % 2


def test_a_dataset_of_whole_minibatches():
    result = fitted(data=DataLoader(Batches(), batch_size=None))
    assert [epoch.used for epoch in result.history] == [4, 4]


@pytest.mark.parametrize("strategy", ["sgd", pytest.param("asgd", marks=pytest.mark.slow)])
def test_workers_of_a_dataloader_read_the_same(strategy):
    models = []
    for workers in (0, 2):
        model = moons.network()
        loader = DataLoader(loops.Noisy(), batch_size=10, num_workers=workers)
        states = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
        result = fitted(model, loader, strategy=strategy, workers=1, epochs=3, learning_rate=0.1)
        assert torch.equal(states[0], torch.get_rng_state()) and states[2] == random.getstate()
        assert states[1] == np.random.get_state()[1].tolist()  # noqa: NPY002
        assert [epoch.used for epoch in result.history] == [12] * 3
        models.append(model)
    same(*models)


@pytest.mark.parametrize(
    ("keys", "used"),
    [
        ({"strategy": "sgd"}, 12),
        ({"strategy": "ddp", "workers": 3, "simulate": True}, 12),
        ({"strategy": "asgd", "workers": 4, "simulate": True}, 12),
    ],
)
def test_streams(keys, used):
    model = moons.network()
    result = fitted(model, loops.Points(), minibatch=50, epochs=4, learning_rate=0.5, **keys)
    assert [epoch.used for epoch in result.history] == [used] * 4 and result.history[-1].accuracy > 0.9


def test_every_item_of_a_stream_is_used_once_whoever_reads_it():
    """Also if a worker dies, and others begin the stream again."""
    seen = []

    def noted(outputs, targets):
        seen.extend(targets.tolist())
        return CROSS_ENTROPY(outputs, targets % 2)

    options = {"simulation": {"failures": [[1, 2.5]], "restart_s": 1.0}}
    result = fitted(
        nn.Linear(1, 2),
        Numbers(),
        noted,
        strategy="asgd",
        options=options,
        minibatch=2,
        steps_per_epoch=10,
        epochs=2,
        simulate=True,
        workers=3,
    )
    assert result.restarts == 1 and result.history[0].returned and [epoch.used for epoch in result.history] == [10, 10]
    again = 2 * result.history[0].returned  # what the dead worker had computed was computed once more
    assert len(seen[4:]) == 40 + again and all(seen[4:].count(number) >= 2 for number in range(20))


def test_a_stream_without_an_end_of_its_own_goes_on_in_the_next_epoch():
    seen = []

    def noted(outputs, targets):
        seen.append(targets.tolist())
        return CROSS_ENTROPY(outputs, targets % 2)

    stream = Numbers()
    fitted(nn.Linear(1, 2), stream, noted, minibatch=4, steps_per_epoch=3, epochs=3)
    assert [number for each in seen[2:] for number in each] == [*range(20), *range(16)]
    seen.clear()
    fitted(nn.Linear(1, 2), stream, noted, minibatch=2, accumulate=2, steps_per_epoch=3, epochs=3)
    assert [number for each in seen[2:] for number in each] == [*range(20), *range(16)]


class Numbers(torch.utils.data.IterableDataset):
    """The numbers from 0 to 19."""

    def __iter__(self):
        yield from ((torch.tensor([number / 20]), number) for number in range(20))


def test_workers_of_a_dataloader_read_a_stream():
    models = []
    for _ in range(2):
        model = moons.network()
        loader = DataLoader(loops.Points(noise=0.1), batch_size=50, num_workers=2)
        assert [epoch.used for epoch in fitted(model, loader).history] == [12, 12]
        models.append(model)
    same(*models)


@pytest.mark.parametrize("name", ["worker_init_fn", "collate_fn"])
@pytest.mark.parametrize("keys", [{}, {"multiprocessing_context": "forkserver"}])
def test_a_lambda_of_a_dataloader_whose_workers_cannot_get_it(name, keys):
    """Of a map-style dataset, or of a stream where PyTorch starts processes that are not forked."""
    data = loops.Points() if keys else DATA
    loader = DataLoader(data, 50, num_workers=1, **{name: lambda given: None, **keys})
    if name == "collate_fn":
        loader.collate_fn = lambda items: torch.utils.data.default_collate(items)
    with pytest.raises(SettingError, match=f"^{name}: cannot be copied to other processes") as raised:
        fitted(data=loader)
    assert raised.value.__cause__ and raised.value.remedy
    assert not multiprocessing.active_children()


class Short(list):
    """A sampler that says that it has one minibatch more."""

    def __len__(self):
        return 4


class Missing(torch.utils.data.IterableDataset):
    def __len__(self):
        return 40

    def __iter__(self):
        raise FileNotFoundError("no line")


class Wrong(torch.utils.data.IterableDataset):
    def __len__(self):
        return 40

    def __iter__(self):
        yield from list(loops.Points())[:20]
        raise ValueError("the line is dead")


@pytest.mark.parametrize(
    ("message", "keys"),
    [
        (r"^minibatch=10: the DataLoader has batch_size=5", {"data": DataLoader(DATA, 5), "minibatch": 10}),
        (r"^collate_fn: the DataLoader has its own", {"data": DataLoader(DATA, 5), "collate_fn": loops.padded}),
        (r"^dataset: the DataLoader has a DistributedSampler.*shuffle=True",
         {"data": DataLoader(DATA, 5, sampler=torch.utils.data.DistributedSampler(DATA, 2, 0))}),
        (r"^dataset: a Numbers has no length.*steps_per_epoch", {"data": Numbers()}),
        (r"^dataset: a Numbers has no length.*steps_per_epoch", {"data": DataLoader(Numbers(), 5)}),
        (r"^steps_per_epoch: is for an IterableDataset", {"steps_per_epoch": 5}),
        (r"^dataset: raised ValueError after 2 minibatches: the line is dead", {"data": Wrong(), "minibatch": 10}),
        (r"^dataset: raised FileNotFoundError after 0 minibatches: no line", {"data": Missing(), "minibatch": 10}),
        (r"^dataset: sandblaster reads .*list of the items of the IterableDataset",
         {"data": loops.Points(), "minibatch": 50, "strategy": "sandblaster", "simulate": True}),
        (r"^collate_fn raised KeyError for items .*'input_ids'", {"data": [{"x": 1}] * 9, "collate_fn": loops.padded}),
        (r"^a minibatch is a list of length 3; .*collate_fn", {"data": [(1, 2, 3)] * 9, "collate_fn": loops.collected}),
        (r"^the minibatches have the entries x, but not 'labels'.*leave loss out", {"data": [{"x": 1.0}] * 9}),
        (r"^loss: was left out, but the model returned a Tensor", {"loss": None}),
        (r"^model: called with .*keyword arguments \(x\).*unexpected keyword argument 'x'",
         {"data": [{"x": 1.0, "labels": 1}] * 9}),
        (r"^dataset\[\d\] is of type int; .* or a dictionary, or collate_fn", {"data": [1] * 9}),
        (r"^the entries of items .* cannot be stacked.*collate_fn", {"data": SENTENCES}),
        (r"^dataset: the sampler of the DataLoader chose 3 minibatches, but len",
         {"data": DataLoader(DATA, batch_sampler=Short([[*range(20)]] * 3))}),
        (r"^workers=10: an epoch has only 5 minibatches \(450 items by minibatch=30, accumulate=3\)",
         {"minibatch": 30, "accumulate": 3, "workers": 10, "strategy": "asgd", "simulate": True}),
    ],
)  # fmt: skip
def test_unusable_data_are_refused(message, keys):
    with pytest.raises(Speech3Error, match=message):
        fitted(**keys)
