"""Sequence training: a phone language model, graphs as arrays, forward-backward, and LF-MMI over them.

The criterion is a function of a network's outputs and of transcripts; networks are elsewhere. Begin with `lfmmi`.
"""
