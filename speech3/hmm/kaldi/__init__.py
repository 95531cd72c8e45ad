"""Kaldi's models, trees, transitions and alignments: read, converted and written."""
