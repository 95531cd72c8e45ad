"""Utterances drawn at random from a known HMM, with their states."""

from dataclasses import dataclass

import numpy as np

from speech3.hmm.model import Hmm


@dataclass
class Drawn:
    """Utterances, with the words, states and means that they were drawn from."""

    words: dict[str, list[str]]
    feats: dict[str, np.ndarray]
    states: dict[str, np.ndarray]  # pdf of each frame under the monophone tree
    means: np.ndarray


def draw(hmm: Hmm, count: int, seed: int, separation: float = 3.0, dim: int = 6) -> Drawn:
    """Draw utterances: silence, words with optional silence between them, silence; one Gaussian per state."""
    rng = np.random.default_rng(seed)
    lexicon = hmm.lexicon
    means = rng.standard_normal((hmm.num_pdfs, dim)) * separation
    drawn = Drawn({}, {}, {}, means)
    for number in range(count):
        words = [str(word) for word in rng.choice(sorted(lexicon.by_word), rng.integers(1, 5))]
        phones = [lexicon.silence]
        for word in words:
            prons = lexicon.by_word[word]
            phones += [lexicon.phone_ids[p] for p in prons[rng.integers(len(prons))].phones]
            if rng.random() < 0.5:
                phones.append(lexicon.silence)
        states = hmm.topology.states
        pdfs = np.array([(phone - 1) * states + state for phone in phones for state in range(states)])
        lengths = rng.integers(2, 7, len(pdfs))
        lengths[~hmm.topology.loops_S[pdfs % states]] = 1  # states without a self-loop
        pdf_T = np.repeat(pdfs, lengths * hmm.subsampling)
        name = f"u{number:03d}"
        drawn.words[name], drawn.states[name] = words, pdf_T
        drawn.feats[name] = (means[pdf_T] + rng.standard_normal((len(pdf_T), dim))).astype(np.float32)
    return drawn
