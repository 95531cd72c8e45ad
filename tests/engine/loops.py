"""Data, functions and plain PyTorch loops for tests of `fit`; importable by processes that are spawned."""

import math
import os
import random
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from speech3.engine.fitting.dataset import data_of

WORDS = 30


def decayed(params, optimizer=torch.optim.AdamW, lr=0.01, **keys):
    """Weight decay for matrices; none for biases and normalisation."""
    groups = [
        {"params": [p for p in params if p.ndim >= 2], "weight_decay": 0.1},
        {"params": [p for p in params if p.ndim < 2], "weight_decay": 0.0, "lr": 2 * lr},
    ]
    return optimizer(groups, lr=lr, **keys)


def sgd_with_momentum(params):
    return decayed(params, torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True)


def one_cycle(optimizer, steps):
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=[0.05, 0.02], total_steps=steps)


class Sentences(Dataset):
    """Dictionaries with sentences of various lengths, in which the word 7 is or is not."""

    def __init__(self, items=240):
        generator = torch.Generator().manual_seed(5)
        self.items = []
        for _ in range(items):
            length = int(torch.randint(3, 12, (), generator=generator))
            words = torch.randint(8, WORDS, (length,), generator=generator)
            label = int(torch.randint(0, 2, (), generator=generator))
            if label:
                words[int(torch.randint(0, length, (), generator=generator))] = 7
            self.items.append({"input_ids": words, "labels": label})

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


def padded(items):
    """Sentences in one tensor, with a mask, as a data collator of Hugging Face."""
    words = nn.utils.rnn.pad_sequence([item["input_ids"] for item in items], batch_first=True)
    return {
        "input_ids": words,
        "attention_mask": (words > 0).float(),
        "labels": torch.tensor([item["labels"] for item in items]),
    }


class Output(dict):
    """As `transformers.utils.ModelOutput`: a dictionary whose entries are attributes."""

    __getattr__ = dict.__getitem__


class Classifier(nn.Module):
    """As a model of Hugging Face: called by keywords, with labels it returns its loss."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.embedding, self.output = nn.Embedding(WORDS, 16, padding_idx=0), nn.Linear(16, 2)

    def forward(self, input_ids, attention_mask, labels=None):
        embedded = self.embedding(input_ids).masked_fill(attention_mask[..., None] == 0, -math.inf)
        logits = self.output(embedded.amax(1))
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return Output(loss=loss, logits=logits)


def of_logits(outputs, labels):
    return nn.functional.cross_entropy(outputs.logits, labels)


class Points(IterableDataset):
    """A stream of points and of the half in which they are, in an order of its own in every pass."""

    def __init__(self, items=600, length=True, noise=0.0):
        self.items, self.noise = items, noise
        if length:
            self.__class__ = WithLength

    def __iter__(self):
        info = get_worker_info()
        order = torch.randperm(self.items)
        for index in order.tolist()[info.id :: info.num_workers] if info else order.tolist():
            angle = 0.1 * index
            x = torch.tensor([math.cos(angle), math.sin(angle)])
            yield x + self.noise * (random.random() + float(np.random.rand())), int(x[0] > 0)  # noqa: NPY002


class WithLength(Points):
    def __len__(self):
        return self.items


def noted_process(path, number):
    """A ``worker_init_fn`` that writes the process into a file."""
    with Path(path).open("a") as stream:
        stream.write(f"{os.getpid()}\n")


def read_for_ever(path, pipe):
    """Begin to read a stream as a shard does, say so, and wait to be killed."""
    loader = DataLoader(Points(200), 20, num_workers=1, worker_init_fn=partial(noted_process, path))
    source = data_of(loader, None, None, None, 1).source(1, torch.device("cpu"), own_loss=False)
    source.draw(1, 0)
    pipe.send("reads")
    pipe.recv()


def collected(items):
    """The default, by another name."""
    return torch.utils.data.default_collate(items)


class Noisy(Dataset):
    """Items that are augmented by the generators of PyTorch, NumPy and Python."""

    def __len__(self):
        return 120

    def __getitem__(self, index):
        x = torch.tensor([index % 2, index / 120]) + 0.1 * torch.rand(2)
        return x + 0.1 * (random.random() + float(np.random.rand())), index % 2  # noqa: NPY002


def plain_loop(model, batches, loss, optimizer, scheduler=None, clip=None):
    """PyTorch's own loop; returns the loss of each minibatch."""
    losses = []
    model.train()
    for inputs, targets in batches:
        value = loss(model(inputs), targets)
        optimizer.zero_grad()
        value.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        if scheduler:
            scheduler.step()
        losses.append(value.item())
    return losses


half_of = partial(torch.optim.SGD, lr=0.1)
