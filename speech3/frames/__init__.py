"""Frames with their senones, packed into one memory-mapped file, and the minibatches gathered from it. No training.

`sections` is the file, `packed` what it holds, `shuffle` the order of an epoch; `resident` frames on a device and their
windows, `minibatches` of single frames, `sequences` of chunks in streams.
"""
