"""From waveforms to feature frames, equal to Kaldi: pure functions on batched tensors, the same code on CPU and CUDA.

`spectrum` cuts a recording into frames and computes their power spectra, `filterbank` turns these into filterbank, MFCC
or PLP features, `pitch` and `pitch_tracking` add pitch. `compute` combines them into static features and a model's
input: normalised (`normalisation`, `cmvn`) by what is sound and not background (`sound`), with deltas and spliced
(`context`). Only `extraction` and `units` read data directories and write files.
"""

from typing import TYPE_CHECKING

from speech3.runtime.door import door

if TYPE_CHECKING:
    from speech3.features.compute import (
        OnlineFeatures as OnlineFeatures,
        finish_features as finish_features,
        static_dim as static_dim,
        static_features as static_features,
    )
    from speech3.features.context import add_deltas as add_deltas, splice as splice
    from speech3.features.extraction import extract as extract, silent_in as silent_in
    from speech3.features.filterbank import mel_edges as mel_edges, mel_scale as mel_scale, mel_to_hertz as mel_to_hertz
    from speech3.features.normalisation import OnlineCmvn as OnlineCmvn, normalise as normalise
    from speech3.features.pitch import track_pitch as track_pitch, voicing_probability as voicing_probability
    from speech3.features.sound import (
        only_background as only_background,
        repeated_frames as repeated_frames,
        silent_frames as silent_frames,
    )
    from speech3.features.spectrum import frame_sizes as frame_sizes
else:
    __getattr__ = door(__file__)
