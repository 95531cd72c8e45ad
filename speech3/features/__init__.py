"""From waveforms to feature frames, equal to Kaldi: pure functions on batched tensors, the same code on CPU and CUDA.

`window` cuts frames, `spectrum` computes their power spectra chunk by chunk, and `mel`, `fbank`, `mfcc` and `plp` turn
those into static features; `compute.static_features` combines these steps. `compute.finish` then applies `cmvn`,
`deltas` and `splice`. Only `extract` reads data directories and writes files.
"""
