"""Frames with their senones, packed into one memory-mapped file, and the minibatches gathered from it. No training.

`sections` is the file format, `packed` its content, `shuffle` the order of an epoch, `resident` frames on a device and
their windows. Minibatches: `minibatches` of windows, `sequences` of chunks in streams, `chunks` of single chunks,
`whole` of utterances. `warp` and `masks` change the frames of a minibatch.
"""
