"""The search for words: token passing through one graph for one utterance, and the lattice of the paths that it kept.

`beam_search` takes frames as they arrive, `token_passing` is its compiled core, `lattice` holds the paths that
remained, and `linked_frames` and `lattice_links` make it from the tokens. Labels are those of `speech3.graph`.
"""
