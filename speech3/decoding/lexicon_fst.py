"""L: from phones to words, with optional silence and disambiguation symbols (Kaldi's make_lexicon_fst.py)."""

import math
from collections import Counter
from collections.abc import Sequence

from speech3.decoding.fst import Fst, FstBuilder
from speech3.hmm.lexicon import Lexicon, Pronunciation


def lexicon_fst(lexicon: Lexicon, words: Sequence[str]) -> tuple[Fst, list[int]]:
    """Return L and its disambiguation symbols.

    Parameters
    ----------
    words
        Symbol table: `<eps>`, words of the lexicon, `#0`.

    Returns
    -------
    L
        Input labels are phones, then disambiguation symbols from ``len(lexicon.phones) + 1``, the first of which goes
        with the back-off arcs of G; output labels are indices in `words`. Silence costs -log(silence_prob) at the
        start and after every word, its absence -log(1 - silence_prob).
    """
    wanted = set(words[1:-1])
    spoken = [pron for pron in lexicon.pronunciations if pron.word in wanted]
    marks = _disambiguate(spoken)
    backoff = len(lexicon.phones) + 1
    silence_mark = backoff + 1 + max(marks, default=0)
    silence_spoken = any(lexicon.silence_phones[0] in pron.phones for pron in spoken)
    silence, ids, labels = lexicon.silence, lexicon.phone_ids, {word: label for label, word in enumerate(words)}
    p = lexicon.silence_prob
    cost_without, cost_with = (-math.log(q) if q > 0 else math.inf for q in (1 - p, p))

    builder = FstBuilder()
    start, hub, before_silence = builder.state(), builder.state(final=0.0), builder.state()
    # only a lexicon that spells silence out can confuse its own with the optional one
    builder.chain(before_silence, hub, [silence, silence_mark] if silence_spoken else [silence], 0, 0.0)
    exits = [(hub, cost_without), (before_silence, cost_with)]
    for target, cost in exits:
        if cost < math.inf:
            builder.arc(start, target, 0, 0, cost)
    for pron, mark in zip(spoken, marks, strict=True):
        phones = [ids[phone] for phone in pron.phones] + ([backoff + mark] if mark else [])
        for target, cost in exits:
            if cost < math.inf:
                builder.chain(hub, target, phones, labels[pron.word], cost - math.log(pron.prob))
    builder.arc(hub, hub, backoff, labels[words[-1]])
    return builder.fst(), list(range(backoff, silence_mark + 1))


def _disambiguate(spoken: Sequence[Pronunciation]) -> list[int]:
    """Number of the symbol that must end each pronunciation; 0: none, for it is unique and begins no other."""
    times = Counter(pron.phones for pron in spoken)
    beginnings = {pron.phones[:length] for pron in spoken for length in range(1, len(pron.phones))}
    used: Counter[tuple[str, ...]] = Counter()
    marks = []
    for pron in spoken:
        if times[pron.phones] > 1 or pron.phones in beginnings:
            used[pron.phones] += 1
            marks.append(used[pron.phones])
        else:
            marks.append(0)
    return marks
