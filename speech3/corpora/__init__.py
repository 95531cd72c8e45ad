"""One module for each public corpus, and one for a user's own; each writes data directories and a lexicon.

``prepare`` of a module takes the files that the publisher distributes. `anyspeech` takes a data directory, or a
folder of recordings with transcripts (`folder`, `tiers`, `textgrid`, `elan`); `digits` and `shuzi` are synthesised
(`synthetic`).
"""
