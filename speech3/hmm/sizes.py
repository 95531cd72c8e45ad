"""How large the bootstrap's models should be for so much speech, where the config leaves it open (0).

Powers of the number of frames through what was found best on three corpora (10 minutes to 2.2 hours): README of
``recipes/any``. Kaldi's recipes for 5 to 100 hours lie near the same lines.
"""

from speech3.config import HmmConfig
from speech3.hmm.tree import STATES

_HOUR = 360_000  # frames of 10 ms
_LARGEST_LEAVES, _LARGEST_GAUSSIANS = 6000, 60_000


def sized(config: HmmConfig, frames: int, phones: int) -> HmmConfig:
    """Fill in ``mono.gaussians``, ``aligner.gaussians``, ``tri.leaves`` and ``tri.gaussians`` where they are 0.

    Parameters
    ----------
    frames
        Of the training data.
    phones
        Of the lexicon: each needs a Gaussian for each state, and a leaf if it shares its root with no other.
    """
    hours = frames / _HOUR
    mono = config.mono.gaussians or max(phones * STATES, min(1000, round(650 * hours**0.5)))
    aligner = config.aligner.gaussians or max(phones * STATES, min(1000, round(400 * hours**0.5)))
    leaves = config.tri.leaves or max(round(1.2 * phones * STATES), min(_LARGEST_LEAVES, round(450 * hours**0.7)))
    gaussians = config.tri.gaussians or max(leaves, min(_LARGEST_GAUSSIANS, round(4000 * hours**0.85)))
    return config.model_copy(
        update={
            "mono": config.mono.model_copy(update={"gaussians": mono}),
            "aligner": config.aligner.model_copy(update={"gaussians": aligner}),
            "tri": config.tri.model_copy(update={"leaves": leaves, "gaussians": gaussians}),
        }
    )
