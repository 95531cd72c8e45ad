"""Sequence training: language models of phones and senones, graphs as arrays, forward-backward, LF-MMI, MMI and sMBR.

The criterion is a function of a network's outputs and of transcripts or alignments; networks are defined elsewhere.
Begin with `lfmmi`, with `discriminative` for the continuation of a network trained by cross-entropy, and with `bmmi`
for GMMs, which are trained further by the same criterion.
"""
