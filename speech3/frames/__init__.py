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
        Chunk as Chunk,
        ChunkInputs as ChunkInputs,
        Chunks as Chunks,
        RecurrentChunks as RecurrentChunks,
        SequenceInputs as SequenceInputs,
        Sequences as Sequences,
        Taught as Taught,
        WholeUtterances as WholeUtterances,
        default_chunk as default_chunk,
        padded_frames as padded_frames,
    )
    from speech3.frames.masks import (
        FrequencyWarp as FrequencyWarp,
        SpecAugment as SpecAugment,
        frequency_warp as frequency_warp,
        spec_augment as spec_augment,
    )
    from speech3.frames.minibatches import Minibatches as Minibatches, window_indices as window_indices
    from speech3.frames.packed import (
        PackedFrames as PackedFrames,
        open_packed as open_packed,
        pack_aligned as pack_aligned,
        segment_labels as segment_labels,
        segment_numbers as segment_numbers,
        segment_starts as segment_starts,
        verify_once as verify_once,
        write_frames as write_frames,
    )
    from speech3.frames.pretraining import (
        HiddenLabels as HiddenLabels,
        Pretraining as Pretraining,
        cluster_frames as cluster_frames,
        nearest_cluster as nearest_cluster,
    )
else:
    __getattr__ = door(__file__)
