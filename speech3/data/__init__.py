"""Data directories, which say what was said, by whom, in which file; their audio and faults. No features.

`datadir` reads and writes the directory, `audio` reads its recordings, `validate` lists every fault, `fix` writes a
repaired copy; `subset`, `combine` and `split` derive other directories from it, `stats` describes its content.
"""
