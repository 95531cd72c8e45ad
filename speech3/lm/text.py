"""Text as word numbers in blocks of whole sentences, from files with one sentence per line or from Python sequences.

A block is int32 (T,): the words of its sentences, where each sentence ends in the number of `</s>`.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from speech3.corpus.sentences import read_sentences, shown
from speech3.errors import Speech3Error
from speech3.lm.ngrams import BOS, EOS, UNKNOWN

_BLOCK_SENTENCES = 1 << 14


class Numbers(dict[str, int]):
    """Numbers of words, starting with `<s>` 0 and `</s>` 1; a new word gets the next number, or that of `<unk>`.

    Parameters
    ----------
    vocabulary
        Words that have a number, seen or not; others count as `<unk>`, which gets a number when it is first needed if
        it is not in the vocabulary. If None, every word gets a number.
    """

    def __init__(self, vocabulary: Collection[str] | None = None) -> None:
        words = (BOS, EOS, *sorted(set(vocabulary or ()) - {BOS, EOS}))
        super().__init__((word, number) for number, word in enumerate(words))
        self.closed = vocabulary is not None

    def __missing__(self, word: str) -> int:
        return self.setdefault(UNKNOWN if self.closed else word, len(self))


class Known(dict[str, int]):
    """Numbers of a model's words; other words have the number of `<unk>`, or -1 if the model has no `<unk>`."""

    def __init__(self, numbers: dict[str, int]) -> None:
        super().__init__(numbers)
        self.unknown = numbers.get(UNKNOWN, -1)

    def __missing__(self, word: str) -> int:
        return self.unknown


def read_tokens(paths: Sequence[Path], numbers: dict[str, int]) -> Iterator[np.ndarray]:
    """Read text files with one sentence per line, in blocks; lines without words are skipped.

    Raises what `speech3.corpus.sentences.read_sentences` raises.
    """
    for lines in shown(read_sentences(paths), paths, "reading text"):
        words = lines.text.replace("\n", f" {EOS} ").split()
        if not lines.text.endswith("\n"):
            words.append(EOS)
        word_T = np.fromiter(map(numbers.__getitem__, words), np.int32, len(words))
        end_T = word_T == numbers[EOS]
        empty_T = end_T & np.concatenate([[True], end_T[:-1]])
        if len(word_T := word_T[~empty_T]):
            yield word_T


def number_sentences(sentences: Iterable[Sequence[str]], numbers: dict[str, int], source: str) -> Iterator[np.ndarray]:
    """Number the words of sentences, in blocks.

    Raises
    ------
    Speech3Error
        A sentence contains `<s>` or `</s>`; `source` is the name of the text in the message.
    """
    remaining = iter(sentences)
    while some := list(islice(remaining, _BLOCK_SENTENCES)):
        words: list[int] = []
        for sentence in some:
            if BOS in sentence or EOS in sentence:
                raise Speech3Error(f"{source}: {BOS} or {EOS} inside a sentence; give the words alone")
            words += map(numbers.__getitem__, sentence)
            words.append(numbers[EOS])
        yield np.array(words, np.int32)
