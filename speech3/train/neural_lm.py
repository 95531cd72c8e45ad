"""Trains a neural language model (`speech3.language.neural`) by the engine, with any of the strategies of `fit`.

An item is a sentence, or a part of a long one; a minibatch has items of similar length.

Axes: T units of the text, I items, B minibatch.
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from speech3.config import NeuralLmConfig
from speech3.engine import EpochResult, fit
from speech3.errors import OccupiedError, Speech3Error
from speech3.io import METRICS_FILE, RUN_FILE
from speech3.language import NeuralLm, UnitText, neural, read_units
from speech3.runtime import Metrics, read_json, say, write_json

CHECKPOINTS = "checkpoints"
_POOL = 64  # minibatches whose items are sorted by length together
_OF_FIT = {"strategy", "workers", "epochs", "learning_rate", "optimizer", "schedule", "gradient_clip", "precision"}
_OF_FIT |= {"seed", "device", "simulate", "options"}
_CHANGEABLE = {"epochs", "workers", "device"}  # when training is resumed


class Sentences(Dataset[Tensor]):
    """The sentences of a text, each beginning with `<s>`; those of more units than `longest` in parts.

    A part begins with the last unit of the one before it.
    """

    def __init__(self, unit_T: np.ndarray, longest: int) -> None:
        self.unit_T = torch.from_numpy(unit_T)
        begins = np.flatnonzero(unit_T == neural.BOS_UNIT)
        lengths = np.diff(np.append(begins, len(unit_T))) - 1  # of what is predicted
        parts = -(-lengths // longest)
        part_I = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)
        self.begin_I = np.repeat(begins, parts) + longest * part_I
        self.length_I = np.minimum(longest, np.repeat(lengths, parts) - longest * part_I)

    def __len__(self) -> int:
        return len(self.begin_I)

    def __getitem__(self, index: int) -> Tensor:
        begin = int(self.begin_I[index])
        return self.unit_T[begin : begin + int(self.length_I[index]) + 1].long()


def padded(items: Sequence[Tensor]) -> dict[str, Tensor]:
    """A minibatch: `inputs` and `labels` (B, T); -1 is no label."""
    whole = torch.nn.utils.rnn.pad_sequence(list(items), batch_first=True, padding_value=-1)
    return {"inputs": whole[:, :-1].clamp(min=neural.BOS_UNIT), "labels": whole[:, 1:]}


class SimilarLengths(Sampler[list[int]]):
    """Minibatches of items of similar length, in a random order that PyTorch's generator decides."""

    def __init__(self, length_I: np.ndarray, batch_size: int) -> None:
        self.length_I, self.batch_size = torch.from_numpy(length_I), batch_size

    def __len__(self) -> int:
        return -(-len(self.length_I) // self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        pools = torch.randperm(len(self.length_I)).split(_POOL * self.batch_size)
        batches = [
            batch for pool in pools for batch in pool[self.length_I[pool].argsort(stable=True)].split(self.batch_size)
        ]
        yield from (batches[place].tolist() for place in torch.randperm(len(batches)).tolist())


@dataclass(frozen=True)
class TrainedNeural:
    """The result of `train_neural`: the model, and the words of its text, of which some were not in the vocabulary."""

    lm: NeuralLm
    words: int
    unknown: int


def train_neural(
    texts: Sequence[Path], out: Path, config: NeuralLmConfig, vocabulary: Path | None = None, dev: Path | None = None
) -> TrainedNeural:
    """Train a neural language model, or continue an unfinished training with the same arguments.

    Writes the model, ``metrics.jsonl`` with a record for each epoch, and ``checkpoints`` to `out`. `vocabulary` is a
    word list or lexicon; by default the words of the text. With a text `dev` the epoch with the lowest perplexity on it
    is kept.

    Raises Speech3Error: the texts cannot be used, or `out` holds another training; also what `fit` raises.
    """
    text = read_units(texts, config.pieces, vocabulary)
    with torch.random.fork_rng([]):
        torch.manual_seed(config.seed)
        network = neural.Network(config, text.count_V)
    lm = NeuralLm(config, text.units, network, text.pieces, str(out))
    held_out = neural.read_known(lm, [dev]) if dev else None
    _check_same(out, config, text, held_out)
    items = Sentences(text.unit_T, config.longest)
    sampler = SimilarLengths(items.length_I, config.minibatch)
    metrics, best = Metrics(out / METRICS_FILE), math.inf
    if neural.is_neural(out) and (out / CHECKPOINTS).exists():
        best = neural.read_neural(out).dev  # of the training that is resumed

    def after_epoch(result: EpochResult) -> None:
        nonlocal best
        found = neural.measure_sentences(lm, held_out).known if held_out else math.nan
        record = {"dev_perplexity": found} if held_out else {}
        metrics.write(epoch=result.epoch, loss=result.loss, seconds=result.seconds, used=result.used, **record)
        if held_out:
            say(f"  perplexity {found:.2f} on {dev}")
        if not found >= best:
            best = found
            replace(lm, dev=found).save(out)

    loader = DataLoader(items, batch_sampler=sampler, collate_fn=padded)
    try:
        fit(network, loader, on_epoch=after_epoch, out=out / CHECKPOINTS, **config.model_dump(include=_OF_FIT))
    except Speech3Error:
        if not any(path.is_file() for path in (out / CHECKPOINTS).rglob("*")):
            (out / RUN_FILE).unlink()  # nothing has begun: the same directory may be used with what is mended
        raise
    return TrainedNeural(neural.read_neural(out), text.words, text.unknown)


def _check_same(out: Path, config: NeuralLmConfig, text: UnitText, held_out: Sequence[Sequence[str]] | None) -> None:
    read = {"text": text.unit_T.tobytes() + "\n".join(text.units).encode()}
    if held_out:
        read["dev"] = "\n".join(map(" ".join, held_out)).encode()
    digests = {name: hashlib.sha256(content).hexdigest()[:16] for name, content in read.items()}
    options = {key: value for key, value in config.options.items() if key != "cluster"}  # where workers are may change
    run = {**digests, **config.model_copy(update={"options": options}).model_dump(mode="json", exclude=_CHANGEABLE)}
    if (out / RUN_FILE).exists() and (before := read_json(out / RUN_FILE)) != run:
        different = sorted(key for key in {*run, *before} if run.get(key) != before.get(key))
        raise OccupiedError(
            f"{out}: holds a training with other values of {', '.join(different)}; choose another --out, or remove it"
        )
    write_json(out / RUN_FILE, run)
