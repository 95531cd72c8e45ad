"""Training of neural language models by the engine: workers, resuming, the text in minibatches, messages."""

from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch

from speech3.config import NeuralLmConfig
from speech3.errors import OccupiedError, Speech3Error
from speech3.language import neural
from speech3.runtime import read_metrics
from speech3.train.neural_lm import Sentences, SimilarLengths, padded, train_neural

SUBJECTS, VERBS, OBJECTS = ("the cat", "a dog", "my bird"), ("sees", "hears"), ("the cat", "a dog", "my bird", "me")
TEXT = [f"{one} {two} {three}" for one in SUBJECTS for two in VERBS for three in OBJECTS]
CONFIG = NeuralLmConfig(
    width=12, dropout=0, word_dropout=0, samples=6, minibatch=4, epochs=3, learning_rate=0.02, schedule="constant"
)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "text").write_text("\n".join(TEXT) + "\n")
    return tmp_path / "text"


def losses(out: Path) -> list[float]:
    return [record["loss"] for record in read_metrics(out / "metrics.jsonl")]


@pytest.mark.parametrize("kind", ["lstm", "transformer"])
def test_two_asynchronous_workers_reduce_the_perplexity(kind: str, text: Path, tmp_path: Path) -> None:
    keys = {"kind": kind, "strategy": "asgd", "workers": 2, "simulate": True, "epochs": 6, "samples": 0}
    found = train_neural([text], tmp_path / "out", CONFIG.model_copy(update=keys), dev=text)
    records = read_metrics(tmp_path / "out" / "metrics.jsonl")
    assert [record["used"] for record in records] == [6] * 6
    by_epoch = [record["dev_perplexity"] for record in records]
    # Unigrams of this text have a perplexity of 8.0; the process that made it, of (3 2 4)^(1/6.75) = 1.6.
    assert by_epoch[-1] < 0.6 * by_epoch[0] and by_epoch[-1] < 4
    again = neural.read_neural(tmp_path / "out")
    assert again.dev == found.lm.dev == min(by_epoch)
    assert neural.measure_sentences(again, [line.split() for line in TEXT]).known == pytest.approx(again.dev)


def test_a_stopped_training_ends_as_one_that_was_not_stopped(text: Path, tmp_path: Path) -> None:
    train_neural([text], tmp_path / "whole", CONFIG)
    train_neural([text], tmp_path / "parts", CONFIG.model_copy(update={"epochs": 1}))
    train_neural([text], tmp_path / "parts", CONFIG)
    train_neural([text], tmp_path / "parts", CONFIG)  # finished: nothing happens
    assert losses(tmp_path / "whole") == losses(tmp_path / "parts") and len(losses(tmp_path / "parts")) == 3
    one, other = (neural.read_neural(tmp_path / name).network.state_dict() for name in ("whole", "parts"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    with pytest.raises(OccupiedError, match="holds a training with other values of width"):
        train_neural([text], tmp_path / "parts", CONFIG.model_copy(update={"width": 8}))
    with pytest.raises(OccupiedError, match="other values of dev"):  # its perplexity is not known
        train_neural([text], tmp_path / "parts", CONFIG, dev=text)
    text.write_text("the cat sees\n" * 8)
    with pytest.raises(Speech3Error, match="other values of text"):
        train_neural([text], tmp_path / "parts", CONFIG)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["asgd", "ddp", "downpour"])
def test_processes_train_it(strategy: str, text: Path, tmp_path: Path) -> None:
    keys = {"strategy": strategy, "workers": 2, "optimizer": "sgd", "learning_rate": 0.1}
    train_neural([text], tmp_path / "out", CONFIG.model_copy(update=keys))
    found = losses(tmp_path / "out")
    assert len(found) == 3 and found[-1] < found[0]


def test_minibatches_hold_every_unit_once() -> None:
    generator = np.random.default_rng(1)
    sentences = [[0, *generator.integers(3, 9, length), 1] for length in generator.integers(0, 12, 57)]
    items = Sentences(np.concatenate(sentences).astype(np.int32), longest=5)
    sampler = SimilarLengths(items.length_I, 4)
    batches = list(sampler)
    assert len(batches) == len(sampler) and sorted(chain.from_iterable(batches)) == list(range(len(items)))
    assert list(sampler) != batches and int(items.length_I.max()) == 5
    seen: list[list[int]] = []
    for number in range(len(items)):
        batch = padded([items[number], items[0]])
        length = int(items.length_I[number])
        first, labels = int(batch["inputs"][0, 0]), batch["labels"][0, :length].tolist()
        assert batch["inputs"][0, 1:length].tolist() == labels[:-1] and (batch["labels"][0, length:] == -1).all()
        if first == 0:
            seen.append([0])
        assert seen[-1][-1] == first
        seen[-1] += labels
    assert seen == [[int(unit) for unit in sentence] for sentence in sentences]
