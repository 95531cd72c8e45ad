"""L: from phones to words, with optional silence and disambiguation symbols (Kaldi's make_lexicon_fst.py)."""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from speech3.graph.pieces import continues, mark_of
from speech3.io.fst import Fst, FstBuilder
from speech3.lexicon.lexicon import Lexicon
from speech3.lexicon.subwords import JOINER


def lexicon_fst(lexicon: Lexicon, words: Sequence[str], class_P: np.ndarray) -> tuple[Fst, list[int]]:
    """Return L and its disambiguation symbols.

    Parameters
    ----------
    words
        Symbol table: `<eps>`, words of the lexicon, `#0`.
    class_P
        `Tree.phone_classes`: pronunciations that differ only within classes may become the same pdfs, so
        they are treated as homophones.

    Returns
    -------
    L
        Input labels are phones, then disambiguation symbols from ``len(lexicon.phones) + 1``, the first of which is for
        the back-off arcs of G; output labels are indices into `words`. Silence costs -log(silence_prob) at the start
        and -log(silences.after) after a word; its absence costs -log(1 - the same probability).
    disambiguation
        The disambiguation symbols.
    """
    wanted = set(words[1:-1])
    spoken = [pron for pron in lexicon.pronunciations if pron.word in wanted]
    ids, labels = lexicon.phone_ids, {word: label for label, word in enumerate(words)}
    marks = _disambiguate([tuple(int(class_P[ids[phone]]) for phone in pron.phones) for pron in spoken])
    backoff = len(lexicon.phones) + 1
    silence_mark = backoff + 1 + max(marks, default=0)
    silence_spoken = any(lexicon.silence_phones[0] in pron.phones for pron in spoken)

    builder = FstBuilder()
    start, before_silence = builder.state(), builder.state()
    after_word = after_silence = builder.state(final=0.0)
    begins = [(after_word, "given_word")]
    if lexicon.end:  # the cost of the next word depends on whether there was silence before it
        after_silence = builder.state(final=-math.log(lexicon.end.given_silence))
        builder.finals[after_word] = -math.log(lexicon.end.given_word)
        begins.append((after_silence, "given_silence"))
    # No silence can precede a piece within a word, so silence probabilities do not apply there.
    piece_mark = mark_of(words)
    inside = [builder.state()] if piece_mark else []
    # Optional silence is ambiguous, and needs a mark, only if pronunciations contain silence.
    silence = [lexicon.silence, silence_mark] if silence_spoken else [lexicon.silence]
    builder.chain(before_silence, after_silence, silence, 0, 0.0)

    def exits(prob: float, word: str = "") -> list[tuple[int, float]]:
        within = [(state, 1.0) for state in inside if piece_mark != JOINER or word.endswith(JOINER)]
        around = [] if word.endswith(JOINER) else [(after_word, 1.0 - prob), (before_silence, prob)]
        return [(target, -math.log(share)) for target, share in (*around, *within) if share > 0]

    for target, cost in exits(lexicon.silence_prob):
        builder.arc(start, target, 0, 0, cost)
    for pron, mark in zip(spoken, marks, strict=True):
        phones = [ids[phone] for phone in pron.phones] + ([backoff + mark] if mark else [])
        silences = lexicon.silences(pron)
        if inside and continues(pron.word, piece_mark):
            sources = [(inside[0], pron.prob)]
        else:
            sources = [(source, pron.prob * getattr(silences, condition)) for source, condition in begins]
        for source, prob in sources:
            for target, cost in exits(silences.after, pron.word):
                builder.chain(source, target, phones, labels[pron.word], cost - math.log(prob))
    for source in [*(source for source, _ in begins), *inside]:
        builder.arc(source, source, backoff, labels[words[-1]])
    return builder.fst(), list(range(backoff, silence_mark + 1))


def _disambiguate(spoken: Sequence[tuple[int, ...]]) -> list[int]:
    """Number of the symbol that must end each pronunciation; 0 if it is unique and not a prefix of another one."""
    times = Counter(spoken)
    beginnings = {phones[:length] for phones in spoken for length in range(1, len(phones))}
    used: Counter[tuple[int, ...]] = Counter()
    marks = []
    for phones in spoken:
        if times[phones] > 1 or phones in beginnings:
            used[phones] += 1
            marks.append(used[phones])
        else:
            marks.append(0)
    return marks
