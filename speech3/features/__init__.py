"""From waveforms to frames, equal to Kaldi: pure functions on batched tensors, on CPU and CUDA by the same code.

`window` cuts frames, `spectrum` gives their power spectra chunk by chunk, `mel`, `fbank` and `mfcc` make features of
those, `compute.static_features` binds them; `cmvn` and `deltas` follow, `compute.finish` binds those. Only `extract`
reads data directories and writes files.
"""
