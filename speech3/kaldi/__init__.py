"""Kaldi's models: transition models, trees, alignments, ``lang`` directories and graphs, in and out.

Features and lattices in Kaldi's formats are read and written in `speech3.io` and `speech3.lattices`.
"""
