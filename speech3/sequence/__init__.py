"""Sequence training: a phone language model, graphs as arrays, forward-backward, and LF-MMI over them.

Networks do not belong here: the criterion is a function of outputs and transcripts. Begin with `lfmmi`.
"""
