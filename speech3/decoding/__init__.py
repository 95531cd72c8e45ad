"""The recogniser: a model directory that scores, aligns and decodes data directories, recordings and streams.

`recognizer` is the object, `search` decodes utterances in parallel, `tune` finds scale and penalty on dev,
`latticed` and `rescore` work with lattices, `apply`, `forced`, `live` and `streaming` are for users' data.
"""
