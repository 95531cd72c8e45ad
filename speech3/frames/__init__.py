"""Frames with their senones, packed into one memory-mapped file, and the minibatches gathered from it. No training.

`packed` is the file: its format, its content, and the packing of a data directory with its alignment. `minibatches` of
windows are drawn in an order computed for each epoch; `chunks` has those of single chunks, of chunks in streams, and of
whole utterances. `masks` changes the frames of a minibatch (SpecAugment, frequency warps). `pretraining` has
minibatches of tasks without transcripts, and the clusters that label them.
"""

from typing import TYPE_CHECKING

from speech3.runtime.door import door

if TYPE_CHECKING:
    from speech3.frames.chunks import (
        Chunk,
        ChunkInputs,
        Chunks,
        RecurrentChunks,
        SequenceInputs,
        Sequences,
        Taught,
        WholeUtterances,
        default_chunk,
        padded_frames,
    )
    from speech3.frames.masks import FrequencyWarp, SpecAugment, frequency_warp, spec_augment
    from speech3.frames.minibatches import Minibatches, window_indices
    from speech3.frames.packed import (
        PackedFrames,
        open_packed,
        pack_aligned,
        segment_labels,
        segment_numbers,
        segment_starts,
        verify_once,
        write_frames,
    )
    from speech3.frames.pretraining import HiddenLabels, Pretraining, cluster_frames, nearest_cluster
else:
    __getattr__ = door(__file__)

__all__ = [
    "Chunk",
    "ChunkInputs",
    "Chunks",
    "FrequencyWarp",
    "HiddenLabels",
    "Minibatches",
    "PackedFrames",
    "Pretraining",
    "RecurrentChunks",
    "SequenceInputs",
    "Sequences",
    "SpecAugment",
    "Taught",
    "WholeUtterances",
    "cluster_frames",
    "default_chunk",
    "frequency_warp",
    "nearest_cluster",
    "open_packed",
    "pack_aligned",
    "padded_frames",
    "segment_labels",
    "segment_numbers",
    "segment_starts",
    "spec_augment",
    "verify_once",
    "window_indices",
    "write_frames",
]
