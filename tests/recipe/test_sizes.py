"""Sizes of the bootstrap's models where a recipe leaves them open."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from speech3.config import HmmConfig, MonophoneConfig, TriphoneConfig
from speech3.hmm.lexicon import Lexicon, Pronunciation, mark_positions
from speech3.recipe.stages import _sized

OPEN = HmmConfig(
    mono=MonophoneConfig(gaussians=0), aligner=MonophoneConfig(gaussians=0), tri=TriphoneConfig(leaves=0, gaussians=0)
)
QUARTER_HOUR = {"u": np.zeros((90_000, 1), np.float32)}


def test_places_in_the_word_and_stress_share_roots_and_ask_for_no_more_leaves() -> None:
    prons = [Pronunciation(f"w{n}{m}", (f"p{chr(97 + n)}", f"E{m}", "t")) for n in range(26) for m in range(3)]
    plain = Lexicon(tuple(Pronunciation(pron.word, (pron.phones[0], "E", "t")) for pron in prons))
    marked = mark_positions(Lexicon(tuple(prons)))
    assert len(marked.phones) > len(plain.phones)
    experiment: Any = SimpleNamespace(recipe=SimpleNamespace(hmm=OPEN))
    feats: Any = QUARTER_HOUR
    assert _sized(experiment, feats, marked) == _sized(experiment, feats, plain)
