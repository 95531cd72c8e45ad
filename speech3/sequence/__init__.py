"""Sequence training: graphs as arrays, forward-backward, LF-MMI, MMI and sMBR.

The criterion is a function of a network's outputs and of transcripts or alignments; networks are defined elsewhere.
Begin with `lfmmi`, or with `discriminative` to train a network further after cross-entropy, or with `bmmi` to train
GMMs further by the same criterion.
"""

from typing import TYPE_CHECKING

from speech3.runtime.door import door

if TYPE_CHECKING:
    from speech3.sequence import bmmi
    from speech3.sequence.discriminative import Discriminative, senone_graph, silence_senones
    from speech3.sequence.graph import estimate_phone_lm
    from speech3.sequence.lfmmi import (
        AlignmentNumerators,
        LfMmi,
        TranscriptNumerators,
        check_tree,
        load_denominator,
        make_denominator,
        random_phones,
        word_labels,
    )
else:
    __getattr__ = door(__file__)

__all__ = [
    "AlignmentNumerators",
    "Discriminative",
    "LfMmi",
    "TranscriptNumerators",
    "bmmi",
    "check_tree",
    "estimate_phone_lm",
    "load_denominator",
    "make_denominator",
    "random_phones",
    "senone_graph",
    "silence_senones",
    "word_labels",
]
