"""What was said, by whom, in which file: the data directory, its audio and its faults, the corpora. No features.

`datadir` reads and writes the directory, `audio` its sound, `validate` lists every fault, `fix` writes a mended copy;
`subset`, `combine` and `split` make other directories of it, `stats` counts what it holds;
one module per public corpus (`fsdd`, ...) makes such directories out of the files that its publisher hands out.
"""
