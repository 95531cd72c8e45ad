"""Augmentation of audio: noise, other speakers, reverberation, speed, volume, telephone channels."""
