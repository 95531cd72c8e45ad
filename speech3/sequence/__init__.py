"""Sequence training: language models of phones and senones, graphs as arrays, forward-backward, LF-MMI, MMI and sMBR.

The criterion is a function of a network's outputs and of transcripts or alignments; networks are defined elsewhere.
Begin with `lfmmi`, or with `discriminative` to train a network further after cross-entropy, or with `bmmi` to train
GMMs further by the same criterion.
"""
