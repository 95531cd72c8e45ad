"""Sizes of GMMs and trees, and passes of LF-MMI, for a given amount of speech, used where the config has 0.

They are powers of the number of hours. Up to two hours, the curves pass through the best values for fsdd (a quarter of
an hour: 80 leaves, 250 Gaussians, 200 for monophones) and minilibri (2.24 hours: 800, 8,000, 1,000); above that they
grow as slowly as in Kaldi's recipes.
"""

from speech3.config import HmmConfig
from speech3.hmm.model import FIRST_AND_LOOP, THREE_STATES

_LARGEST_LEAVES, _LARGEST_GAUSSIANS = 6000, 60_000


def triphone_leaves(hours: float) -> float:
    """Leaves of the triphone tree, unless its roots need more: 800 for minilibri's two hours, at most 6,000."""
    return min(_LARGEST_LEAVES, 360 * hours, 520 * hours**0.55)


def biphone_leaves(hours: float, groups: int) -> int:
    """Leaves of LF-MMI's left-biphone tree: five eighths of the triphone tree's; 500 for minilibri's two hours."""
    roots = groups * FIRST_AND_LOOP.states
    return max(round(1.2 * roots), round(0.625 * triphone_leaves(hours)))


def lfmmi_passes(hours: float, *, started: bool = False) -> int:
    """Passes of LF-MMI over the speech: 50 over an hour or less, 40 over two hours.

    With Muon, 40 were better than 20 on two hours (`recipes/minilibri`). On 10, 20 and 40 minutes only 50 were tried
    (`recipes/any`); on ten they were as good as 100 with AdamW. The formula was not tested on larger amounts; it gives
    5 for 100 hours, about as many as in Kaldi's recipes.

    `started`: the network starts from a trained one: half as many.
    """
    passes = min(50, max(4, round(40 * (2 / hours) ** 0.53)))
    return -(-passes // 2) if started else passes


def with_sizes(config: HmmConfig, hours: float, groups: int) -> HmmConfig:
    """Fill in ``mono.gaussians``, ``aligner.gaussians``, ``tri.leaves`` and ``tri.gaussians`` where they are 0.

    `hours`: hours of training speech.
    `groups`: number of groups of phones that share a root (`phone_groups`): each needs a leaf and a Gaussian per state.
    """
    roots = groups * THREE_STATES.states
    mono = config.mono.gaussians or max(roots, min(1000, round(545 * hours**0.75)))
    aligner = config.aligner.gaussians or max(roots, min(1000, round(400 * hours**0.5)))
    leaves = config.tri.leaves or max(round(1.2 * roots), round(triphone_leaves(hours)))
    gaussians = config.tri.gaussians or max(
        leaves, round(min(_LARGEST_GAUSSIANS, 2500 * hours**1.45, 5000 * hours**0.6))
    )
    return config.model_copy(
        update={
            "mono": config.mono.model_copy(update={"gaussians": mono}),
            "aligner": config.aligner.model_copy(update={"gaussians": aligner}),
            "tri": config.tri.model_copy(update={"leaves": leaves, "gaussians": gaussians}),
        }
    )


def sized_transformed(config: HmmConfig, hours: float) -> HmmConfig:
    """Fill in the sizes of ``lda`` and ``sat`` where they are 0, when those of ``tri`` are known.

    LDA has those of `tri`. SAT has those, too, up to an hour (fsdd, digits), and a quarter more from two hours
    (minilibri) on, since its pdfs are compact enough for them.
    """
    tri, more = config.tri, min(1.25, max(1.0, 1.25 * (hours / 2) ** 0.32))
    changed = {}
    for name, stage, factor in (("lda", config.lda, 1.0), ("sat", config.sat, more)):
        if stage:
            sizes = {
                "leaves": stage.leaves or round(factor * tri.leaves),
                "gaussians": stage.gaussians or round(factor * tri.gaussians),
            }
            changed[name] = stage.model_copy(update=sizes)
    return config.model_copy(update=changed)
