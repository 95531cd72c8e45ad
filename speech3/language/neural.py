"""Neural language models: an LSTM or a causal transformer that predicts words or word pieces, alone or with n-grams.

    p(u | h) = softmax(E y + b)[u]

y is the last layer's output after the units h before u in the sentence, which begins with `<s>`. The embeddings E are
those of the input, too (Press and Wolf 2017, "Using the output embedding to improve language models"), and b begins as
the logarithm of the units' relative frequencies. The probability of a word in pieces is that of its pieces.

In training the softmax may be sampled: the sum over all units is replaced by exp(s_u) for the unit u that follows, and
exp(s_v) / (S q(v)) for each of S other units v that were drawn from q, the same for all positions of a minibatch. This
estimate of the sum has no bias (Bengio and Senecal 2003, "Quick training of probabilistic neural nets by importance
sampling"). q is proportional to the frequency to the power of 0.75. All probabilities that are reported or used come
from the whole softmax.

Mixed with n-grams, the probability of each word is ``share * neural + (1 - share) * n-gram`` (Mikolov et al. 2010).

Axes: B sentences of a minibatch, T units of a sentence, D width, V units of the vocabulary, N positions whose next unit
is predicted, S units drawn, W words and the end of a sentence, M models.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from speech3.config import NeuralLmConfig, parse
from speech3.data import sentences_of_file
from speech3.errors import DataError, FormatError, MismatchError, MissingError, listed
from speech3.io import METRICS_FILE, RUN_FILE, load_tensors, save_tensors
from speech3.language.arpa import read_arpa, write_arpa
from speech3.language.kneser_ney import Known, number_sentences
from speech3.language.mixtures import em_weights
from speech3.language.ngrams import EOS, UNKNOWN, ArpaLm, score
from speech3.language.pieces import BOS_UNIT, EOS_UNIT, SPECIAL, UNKNOWN_UNIT, Cutter
from speech3.language.train_lm import Perplexity
from speech3.runtime import progress

FILE, KIND = "neural.safetensors", "neural-lm"
NGRAMS = "ngrams.arpa.gz"  # of a mixture
WRITTEN = FILE, NGRAMS, RUN_FILE, METRICS_FILE, "checkpoints"  # by trainings and mixtures
_POWER = 0.75  # of the frequencies with which units are drawn
_AT_ONCE = 4096  # units of the sentences that are scored together
_ROWS = 1024  # positions whose whole softmax is in memory together
Words = Sequence[str]


class Network(nn.Module):
    """Embeddings, the layers of a config, and the tied softmax."""

    log_draw_V: Tensor

    def __init__(self, config: NeuralLmConfig, count_V: np.ndarray) -> None:
        super().__init__()
        self.config = config
        width, layers, dropout = config.width, config.layers, config.dropout
        frequency_V = torch.from_numpy(np.maximum(count_V, 0.5) / np.maximum(count_V, 0.5).sum())
        self.embedding = nn.Embedding(len(count_V), width)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        self.bias = nn.Parameter(frequency_V.log().float())
        self.dropout = nn.Dropout(dropout)
        self.body: nn.Module
        if config.kind == "lstm":
            self.body = nn.LSTM(width, width, layers, dropout=dropout if layers > 1 else 0.0, batch_first=True)
        else:
            layer = nn.TransformerEncoderLayer(
                width, config.heads, 4 * width, dropout, "gelu", batch_first=True, norm_first=True
            )
            self.body = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
            self.places = nn.Embedding(config.longest, width)
        draw_V = frequency_V**_POWER
        self.register_buffer("log_draw_V", (draw_V / draw_V.sum()).log().float())

    def hidden(self, unit_BT: Tensor) -> Tensor:
        """The last layer's outputs (B, T, D), each after the units up to its own."""
        if self.training and self.config.word_dropout:
            lost_BT = torch.rand(unit_BT.shape, device=unit_BT.device) < self.config.word_dropout
            unit_BT = torch.where(lost_BT & (unit_BT != BOS_UNIT), UNKNOWN_UNIT, unit_BT)
        x_BTD = self.embedding(unit_BT)
        if self.config.kind == "lstm":
            y_BTD, _ = self.body(self.dropout(x_BTD))
        else:
            length = unit_BT.shape[1]
            x_BTD = x_BTD * math.sqrt(self.config.width) + self.places.weight[:length]
            mask_TT = nn.Transformer.generate_square_subsequent_mask(length, device=unit_BT.device, dtype=x_BTD.dtype)
            y_BTD = self.body(self.dropout(x_BTD), mask=mask_TT, is_causal=True)
        return self.dropout(y_BTD)

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The mean loss over the positions of `inputs` (B, T) that have a label; the label is -1 after the end."""
        y_ND, next_N = self.hidden(inputs)[labels >= 0], labels[labels >= 0]
        samples = self.config.samples
        if not 0 < samples < len(self.bias):
            return {"loss": F.cross_entropy(self.logits(y_ND).float(), next_N)}
        drawn_S = torch.multinomial(self.log_draw_V.exp(), samples, replacement=True)
        return {"loss": self.sampled_loss(y_ND, next_N, drawn_S)}

    def logits(self, y_ND: Tensor) -> Tensor:
        return F.linear(y_ND, self.embedding.weight, self.bias)

    def sampled_loss(self, y_ND: Tensor, next_N: Tensor, drawn_S: Tensor) -> Tensor:
        """The mean of minus the log probability of the next units, with the estimated sum (see the module)."""
        weight_SD = F.embedding(torch.cat([next_N, drawn_S]), self.embedding.weight)
        own_N = (y_ND * weight_SD[: len(next_N)]).sum(1).float() + self.bias[next_N]
        score_NS = F.linear(y_ND, weight_SD[len(next_N) :]).float() + (
            self.bias[drawn_S] - self.log_draw_V[drawn_S] - math.log(len(drawn_S))
        )
        score_NS = score_NS.masked_fill(drawn_S == next_N[:, None], -math.inf)
        return (torch.logsumexp(torch.cat([own_N[:, None], score_NS], 1), 1) - own_N).mean()


@dataclass(frozen=True, eq=False)
class NeuralLm:
    """A neural language model, and the n-grams that it is mixed with."""

    config: NeuralLmConfig
    units: tuple[str, ...]  # the vocabulary of the network: `<s>`, `</s>`, `<unk>`, then words or pieces
    network: Network
    pieces: bytes  # SentencePiece's model; empty if the units are words
    source: str  # its directory, for messages
    ngrams: ArpaLm | None = None  # None: the neural model alone
    share: float = 1.0  # the weight of the neural model in the mixture
    dev: float = math.nan  # perplexity of the text that the epoch was chosen by; NaN without one
    _cut: dict[str, tuple[int, ...]] = field(default_factory=dict, repr=False)

    @cached_property
    def numbers(self) -> dict[str, int]:
        return {unit: number for number, unit in enumerate(self.units)}

    @cached_property
    def cutter(self) -> Cutter | None:
        return Cutter(self.pieces) if self.pieces else None

    def units_of(self, word: str) -> tuple[int, ...]:
        """The numbers of a word's units; that of `<unk>` for what the network lacks."""
        if word not in self._cut:
            parts = self.cutter(word) if self.cutter and word != UNKNOWN else (word,)
            self._cut[word] = tuple(self.numbers.get(part, UNKNOWN_UNIT) for part in parts) or (UNKNOWN_UNIT,)
        return self._cut[word]

    def knows(self, word: str) -> bool:
        """Whether the network or the n-grams have the word."""
        known = self.ngrams is not None and word != UNKNOWN and word in self.ngrams.numbers
        return known or UNKNOWN_UNIT not in self.units_of(word)

    def log_probs(self, sentences: Sequence[Words], label: str = "") -> list[np.ndarray]:
        """Natural logarithms of the probabilities of each sentence's words and its end: float64 (W,) each.

        `label`: what to call the work in a progress bar; none without it.
        """
        if self.ngrams is None:
            return self.neural_log_probs(sentences, label)
        log_share_M = np.log(np.maximum([self.share, 1 - self.share], 1e-300))[:, None]
        return [np.logaddexp(*(log_share_M + log_prob_MW)) for log_prob_MW in self.of_both(sentences, label)]

    def of_both(self, sentences: Sequence[Words], label: str = "") -> Iterator[np.ndarray]:
        """The same of the network and of the n-grams: (2, W) each.

        A word that one of them lacks has probability zero in it; one that both lack is `<unk>` in both.
        """
        assert self.ngrams is not None
        found = self.neural_log_probs(sentences, label), ngram_log_probs(self.ngrams, sentences)
        for words, *log_probs in zip(sentences, *found, strict=True):
            log_prob_MW = np.stack(log_probs)
            lacks_W = [UNKNOWN_UNIT in self.units_of(word) for word in words]
            lacked_W = [word == UNKNOWN or word not in self.ngrams.numbers for word in words]
            lacks_MW = np.array([[*lacks_W, False], [*lacked_W, False]])
            log_prob_MW[lacks_MW & ~lacks_MW.all(axis=0)] = -np.inf
            yield log_prob_MW

    def sentence_scores(self, sentences: Sequence[Words]) -> list[float]:
        """Natural logarithm of the probability of each sentence, with its end."""
        return [float(log_prob_W.sum()) for log_prob_W in self.log_probs(sentences)]

    def neural_log_probs(self, sentences: Sequence[Words], label: str = "") -> list[np.ndarray]:
        """As `log_probs`, of the network alone.

        A sentence of more units than `config.longest` is scored in parts, each after the last unit before it.
        """
        cut = [[self.units_of(word) for word in sentence] + [(EOS_UNIT,)] for sentence in sentences]
        flat = [np.array([BOS_UNIT, *(unit for word in words for unit in word)], np.int64) for words in cut]
        parts = [
            (number, begin, unit_T[begin : begin + self.config.longest + 1])
            for number, unit_T in enumerate(flat)
            for begin in range(0, len(unit_T) - 1, self.config.longest)
        ]
        found = [np.zeros(len(unit_T) - 1) for unit_T in flat]
        batches: Iterable[list[tuple[int, int, np.ndarray]]] = _batches(sorted(parts, key=lambda part: len(part[2])))
        if label:
            batches = list(batches)
            batches = progress(batches, len(batches), label)
        for batch in batches:
            for (number, begin, _), log_prob_T in zip(batch, self._scored([part[2] for part in batch]), strict=True):
                found[number][begin : begin + len(log_prob_T)] = log_prob_T
        firsts = [np.cumsum([0, *map(len, words[:-1])]) for words in cut]
        return [np.add.reduceat(each, first) for each, first in zip(found, firsts, strict=True)]

    @torch.no_grad()
    def _scored(self, sequences: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Log probability of each unit but the first, given those before it.

        Sequences that begin alike, as N-best lists do, share their positions: the softmax of each is computed once.
        """
        unit_BT = torch.zeros(len(sequences), max(map(len, sequences)) - 1, dtype=torch.int64)
        place: dict[tuple[int, int], int] = {}  # the position after a position and a unit
        first: list[tuple[int, int]] = []  # where each position is in the minibatch
        at: list[list[int]] = []
        for row, unit_T in enumerate(sequences):
            unit_BT[row, : len(unit_T) - 1] = torch.from_numpy(unit_T[:-1])
            here, here_T = -1, []
            for column, unit in enumerate(unit_T[:-1].tolist()):
                here = place.setdefault((here, unit), len(first))
                if here == len(first):
                    first.append((row, column))
                here_T.append(here)
            at.append(here_T)
        self.network.eval()
        rows, columns = map(list, zip(*first, strict=True))
        y_ND = self.network.hidden(unit_BT)[rows, columns]
        pair_P = torch.tensor([here for here_T in at for here in here_T])
        next_P = torch.from_numpy(np.concatenate([unit_T[1:] for unit_T in sequences]))
        log_prob_P = torch.empty(len(pair_P), dtype=torch.float64)
        for begin in range(0, len(first), _ROWS):
            score_NV = self.network.logits(y_ND[begin : begin + _ROWS])
            score_NV[:, BOS_UNIT] = -math.inf  # it never follows
            inside_P = (pair_P >= begin) & (pair_P < begin + _ROWS)
            row_P, unit_P = pair_P[inside_P] - begin, next_P[inside_P]
            log_prob_P[inside_P] = (score_NV[row_P, unit_P] - torch.logsumexp(score_NV, 1)[row_P]).double()
        return np.split(log_prob_P.numpy(), np.cumsum(list(map(len, at)))[:-1])

    def neighbours(self, word: str, most: int = 10) -> list[tuple[str, float]]:
        """The units whose embeddings are nearest to that of a word or piece, by cosine, and the cosines.

        Raises Speech3Error: the network lacks the word, or it consists of several pieces.
        """
        number = self.numbers.get(word, next(iter(self.units_of(word))) if len(self.units_of(word)) == 1 else 0)
        if number < len(SPECIAL):
            pieces = " ".join(self.units[unit] for unit in self.units_of(word)) if self.pieces else ""
            what = f"consists of the pieces {pieces}; pass one of them" if pieces else "is not among its words"
            raise MissingError(f"{self.source}: {word} {what}")
        unit_VD = F.normalize(self.network.embedding.weight.detach())
        cosine_V = unit_VD @ unit_VD[number]
        cosine_V[[*range(len(SPECIAL)), number]] = -math.inf
        best = cosine_V.topk(min(most, len(self.units) - len(SPECIAL) - 1))
        return [(self.units[at], value) for at, value in zip(best.indices.tolist(), best.values.tolist(), strict=True)]

    def save(self, directory: Path) -> None:
        """Write the model, and its n-grams if it has any."""
        directory.mkdir(parents=True, exist_ok=True)
        tensors = {name: value.detach().cpu().numpy() for name, value in self.network.state_dict().items()}
        about = {
            "kind": KIND,
            "config": self.config.model_dump(mode="json"),
            "units": self.units,
            "share": self.share,
            "dev": self.dev if math.isfinite(self.dev) else None,
            "mixed": self.ngrams is not None,
        }
        if self.ngrams is not None:
            write_arpa(self.ngrams, directory / NGRAMS)
        save_tensors(directory / FILE, {**tensors, "pieces": np.frombuffer(self.pieces, np.uint8)}, about)


def _batches(parts: list[tuple[int, int, np.ndarray]]) -> Iterator[list[tuple[int, int, np.ndarray]]]:
    batch: list[tuple[int, int, np.ndarray]] = []
    for part in parts:  # sorted by length: the last is the longest
        if batch and (len(batch) + 1) * len(part[2]) > _AT_ONCE:
            yield batch
            batch = []
        batch.append(part)
    if batch:
        yield batch


def is_neural(path: Path) -> bool:
    """Whether this is the directory of a neural language model."""
    return (path / FILE).is_file()


def read_neural(path: Path) -> NeuralLm:
    """Read what `NeuralLm.save` wrote.

    Raises Speech3Error: the directory has no such model, or it is damaged.
    """
    if not is_neural(path):
        raise MissingError(f"{path}: has no {FILE}; pass a directory that speech3 lm train --neural wrote")
    tensors, about = load_tensors(path / FILE, KIND)
    pieces, units = tensors.pop("pieces").tobytes(), tuple(about["units"])
    config = parse(NeuralLmConfig, about["config"], path / FILE)
    with torch.random.fork_rng([]):
        network = Network(config, np.ones(len(units)))
    try:
        network.load_state_dict({name: torch.from_numpy(value) for name, value in tensors.items()})
    except RuntimeError as error:
        raise FormatError(f"{path / FILE}: is not of this version of speech3 ({error}); train it again") from error
    network.eval()
    dev = about["dev"] if about["dev"] is not None else math.nan
    ngrams = read_arpa(path / NGRAMS) if about["mixed"] else None
    return NeuralLm(config, units, network, pieces, str(path), ngrams, about["share"], dev)


def ngram_log_probs(lm: ArpaLm, sentences: Sequence[Words]) -> list[np.ndarray]:
    """As `NeuralLm.log_probs`, of an n-gram model; minus infinity for words that it lacks if it has no `<unk>`."""
    blocks = [
        score(lm.trie, word_T, lm.start, lm.numbers[EOS])[1]
        for word_T in number_sentences(sentences, Known(lm.numbers), lm.source)
    ]
    ends = np.cumsum([0, *(len(sentence) + 1 for sentence in sentences)])
    log_prob_T = np.concatenate([np.zeros(0), *blocks]) * math.log(10)
    return [log_prob_T[begin:end] for begin, end in pairwise(ends)]


def read_known(lm: NeuralLm, texts: Sequence[Path]) -> list[list[str]]:
    """The sentences of a text.

    Raises Speech3Error: there are none, or the model has none of their words.
    """
    sentences = [words for path in texts for words in sentences_of_file(path)]
    name = ", ".join(map(str, texts))
    if not sentences:
        raise DataError(f"{name}: no sentences; pass a text with one sentence per line")
    if not any(lm.knows(word) for words in sentences for word in words):
        known = lm.units[len(SPECIAL) :]
        raise MismatchError(
            f"{name}: none of its words is among the {len(known):,} of {lm.source} ({listed(known, 3)});"
            " spell both the same way (upper or lower case?)"
        )
    return sentences


def measure_sentences(lm: NeuralLm, sentences: Sequence[Words], label: str = "") -> Perplexity:
    """Perplexity of sentences, which are not empty; unknown words are scored as `<unk>`."""
    sums = np.zeros(2)  # over known words and ends, and over unknown words
    strange = 0
    for words, log_prob_W in zip(sentences, lm.log_probs(sentences, label), strict=True):
        strange_W = np.array([*(not lm.knows(word) for word in words), False])
        strange += int(strange_W.sum())
        sums += [log_prob_W[~strange_W].sum(), log_prob_W[strange_W].sum()]
    known, unknown = (sums / math.log(10)).tolist()
    return Perplexity(len(sentences), sum(map(len, sentences)), strange, known, unknown, ())


def mixed(lm: NeuralLm, ngrams: ArpaLm, share: float | None, tune: Path | None = None) -> NeuralLm:
    """A neural model interpolated with n-grams, with this share of the neural one or the best one for a text.

    The share that makes the text most probable is found by expectation maximisation.

    Raises Speech3Error: the models have no word in common, or the text has no word of both.
    """
    alone = replace(lm, ngrams=None)
    if not any(alone.knows(word) for word in ngrams.words if word != UNKNOWN):
        raise MismatchError(
            f"{ngrams.source} ({', '.join(ngrams.words[:3])} ...) and {lm.source} ({', '.join(lm.units[3:6])} ...) have"
            " no word in common; spell both the same way (upper or lower case?)"
        )
    if share is None:
        assert tune is not None
        both = replace(lm, ngrams=ngrams)
        sentences = read_known(both, [tune])
        known_T = np.concatenate([[*map(both.knows, words), True] for words in sentences])
        log_prob_MT = np.concatenate(list(both.of_both(sentences, "scoring")), axis=1)
        share = float(em_weights(np.exp(log_prob_MT[:, known_T]))[0])
    return replace(lm, ngrams=ngrams, share=share)
