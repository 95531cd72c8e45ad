"""The recogniser: a model directory that scores, aligns and decodes data directories, recordings and streams.

`recognizer` is the model as an object, `search` decodes utterances in parallel, and `tune` finds the acoustic scale and
word penalty on dev. `latticed` and `rescore` work with lattices; `apply` (data directories and audio files), `forced`
(alignment), `streaming` and `live` apply a recogniser to users' data.
"""
