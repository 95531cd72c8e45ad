"""Kaldi's models, read and written: transition models, trees, alignments, ``lang`` directories and graphs.

Features and lattices in Kaldi's formats are read and written in `speech3.io` and `speech3.decode`.
"""
