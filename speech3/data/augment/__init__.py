"""Augmentation of audio: noise, other speakers, rooms, the telephone, volume and speed.

`waveforms` and `rooms` are pure functions of samples, `noises` reads directories of sounds, `augmenter` draws the
changes of one utterance, `copies` and `speed` write augmented data directories. Masks and warps of features are in
`speech3.frames`.
"""
