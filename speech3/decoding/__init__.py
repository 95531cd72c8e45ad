"""From log likelihoods to words: the graph H o C o L o G, the beam search, tuning on dev.

Graph labels: an input label is pdf + 1 (0 is epsilon), an output label a word of `words.txt`. Costs are negative
natural logarithms of probabilities; language models are kept in log10, as ARPA files have them.
"""
