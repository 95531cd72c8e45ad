"""From words to one senone per frame: topology, GMMs, decision tree, Viterbi alignment. No neural networks.

Phones are numbered from 1 in the order of `Lexicon.phones`; 0 is "no phone": epsilon in graphs, and the context
beyond either end of an utterance. `hmm.topology` defines the states of a phone.
"""
