"""Word lattices: determinisation, N-best lists, minimum Bayes risk, other language models, Kaldi's archives.

A `word_lattice` contains each word sequence once, with graph and acoustic costs. `lm_states` and `compose` replace
one language model with another; `directory` reads and writes the directory of `speech3 decode --lattice`.
"""
