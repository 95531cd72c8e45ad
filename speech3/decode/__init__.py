"""The decoding graph H o C o L o G (Mohri et al. 2002): from a language model, a lexicon and an HMM to one transducer.

`grammar` makes G, `lexicon_fst` makes L, `hmm_states` adds H, and `decoding_graph` puts them together. `another_graph`
makes another graph for a trained model. An input label is pdf + 1 (0 is epsilon), an output label a word of
`words.txt`. Costs are negative natural logarithms of probabilities; language models are kept in log10, as in ARPA
files.
"""
