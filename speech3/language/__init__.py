"""Words and their phones: the lexicon, and pronunciations that are given, guessed by espeak-ng, or spelled by letters.

`lexicon` is the class that the HMMs use, `langdir` reads the files of a user, `guess` finds pronunciations for all
words, `subwords` segments words into pieces.
"""
