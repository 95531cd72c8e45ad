"""Sequence training: a phone language model, graphs as arrays, forward-backward over them, and LF-MMI.

The criterion is a function of a network's outputs and of transcripts; networks are defined elsewhere. Begin with
`lfmmi`.
"""
