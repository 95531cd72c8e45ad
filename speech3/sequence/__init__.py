"""Sequence training: graphs as arrays, forward-backward, LF-MMI, MMI and sMBR.

The criterion is a function of a network's outputs and of transcripts or alignments; networks are defined elsewhere.
Begin with `lfmmi`, or with `discriminative` to train a network further after cross-entropy, or with `bmmi` to train
GMMs further by the same criterion.
"""

from typing import TYPE_CHECKING

from speech3.runtime.door import door

if TYPE_CHECKING:
    from speech3.sequence import bmmi as bmmi
    from speech3.sequence.discriminative import (
        Discriminative as Discriminative,
        senone_graph as senone_graph,
        silence_senones as silence_senones,
    )
    from speech3.sequence.graph import estimate_phone_lm as estimate_phone_lm
    from speech3.sequence.lfmmi import (
        AlignmentNumerators as AlignmentNumerators,
        LfMmi as LfMmi,
        TranscriptNumerators as TranscriptNumerators,
        check_tree as check_tree,
        load_denominator as load_denominator,
        make_denominator as make_denominator,
        random_phones as random_phones,
        word_labels as word_labels,
    )
else:
    __getattr__ = door(__file__)
