"""From waveforms to feature frames, equal to Kaldi: pure functions on batched tensors, the same code on CPU and CUDA.

`window` cuts frames, `spectrum` computes their power spectra chunk by chunk, and `mel`, `fbank`, `mfcc` and `plp` turn
those into static features; `compute.static_features` combines these steps. `compute.finish` then applies `cmvn`,
`deltas` and `splice`. Only `extract` reads data directories and writes files.
"""

from typing import TYPE_CHECKING

from speech3.runtime.door import door

if TYPE_CHECKING:
    from speech3.features.cmvn import OnlineCmvn, normalise, repeated_frames, silent_frames
    from speech3.features.compute import OnlineFeatures, finish_features, static_dim, static_features
    from speech3.features.context import add_deltas, splice
    from speech3.features.extraction import extract, silent_in
    from speech3.features.filterbank import mel_edges, mel_scale, mel_to_hertz
    from speech3.features.pitch import track_pitch, voicing_probability
    from speech3.features.spectrum import frame_sizes
else:
    __getattr__ = door(__file__)

__all__ = [
    "OnlineCmvn",
    "OnlineFeatures",
    "add_deltas",
    "extract",
    "finish_features",
    "frame_sizes",
    "mel_edges",
    "mel_scale",
    "mel_to_hertz",
    "normalise",
    "repeated_frames",
    "silent_frames",
    "silent_in",
    "splice",
    "static_dim",
    "static_features",
    "track_pitch",
    "voicing_probability",
]
