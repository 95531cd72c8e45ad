"""Forced alignment: times of words and phones, confidences, long recordings, words that the lexicon lacks."""
