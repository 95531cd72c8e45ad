"""Left biphones with a first and a loop pdf at a third of the frames, from alignments of three-state phones.

The HMM of LF-MMI (Povey et al. 2016; Kaldi's steps/nnet3/chain/build_tree.sh): `FIRST_AND_LOOP`, a tree that
asks about the phone and its left neighbour, and one output per `SUBSAMPLING` frames. Output k stands for the frames
from ``SUBSAMPLING * k`` up to those of the next output.

Axes: T frames, K outputs, D values of a frame, P phone segments.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from speech3.errors import DataError, MismatchError
from speech3.hmm.clustering import ContextStats, build_tree, merged_stats
from speech3.hmm.model import CENTRE, FIRST_AND_LOOP, LEFT, Hmm, num_outputs
from speech3.hmm.train import alignment_stats
from speech3.hmm.transcript import Alignment, evened_out
from speech3.language import Lexicon
from speech3.runtime import progress

SUBSAMPLING = 3
_SIDES = (LEFT, CENTRE)


def to_first_and_loop(alignment: Alignment, subsampling: int = SUBSAMPLING) -> Alignment:
    """Convert an alignment to `FIRST_AND_LOOP` phones at every `subsampling`-th frame.

    Each phone boundary moves to the nearest boundary between outputs. Phones left without an output get one: the
    boundaries around them are shifted such that the largest shift is as small as possible.

    `alignment`: an alignment of T frames, with any topology.
    Returns: it has ``ceil(T / subsampling)`` outputs, at least one per phone. The score is that of `alignment`.
    Raises Speech3Error: there are fewer outputs than phones.
    """
    outputs, phones = num_outputs(alignment.num_frames, subsampling), len(alignment.phones)
    if outputs < phones:
        part = "a third" if subsampling == 3 else f"1/{subsampling}"
        raise DataError(f"too short at {part} of the frame rate: {phones} phones, {outputs} outputs")
    # An output belongs to the phone of its middle frame.
    nearest = (alignment.starts + subsampling // 2) // subsampling
    nearest[-1] = outputs
    # With one output per phone set aside, boundaries need only be in order: each goes midway between the largest before
    # it and the smallest after it.
    slack = nearest - np.arange(phones + 1)
    in_order = (np.maximum.accumulate(slack) + np.minimum.accumulate(slack[::-1])[::-1]) // 2
    starts = (np.clip(in_order, 0, outputs - phones) + np.arange(phones + 1)).astype(np.int32)
    return evened_out(replace(alignment, starts=starts, states=np.zeros(outputs, np.int8)), FIRST_AND_LOOP)


def left_biphone_pdfs(hmm: Hmm) -> np.ndarray:
    """The pdfs of each phone after each left phone, (N + 1, N + 1, 2) int32 by left phone (0: none) and phone.

    The first of two is that of the phone's first frame, the second that of its later ones; those of phone 0 are zero.

    Raises Speech3Error: the HMM has a different topology.
    """
    if hmm.topology.states != FIRST_AND_LOOP.states:
        raise MismatchError("LF-MMI needs an HMM with one pdf for a phone's first frame and one for the later ones")
    phones = np.arange(len(hmm.lexicon.phones) + 1, dtype=np.int32)
    pdfs_NN2 = np.zeros((len(phones), len(phones), 2), np.int32)
    windows_W3 = np.zeros((len(phones) - 1, 3), np.int32)
    windows_W3[:, CENTRE] = phones[1:]
    for left in phones:
        windows_W3[:, LEFT] = left
        pdfs_NN2[left, 1:] = hmm.tree.pdfs_of(windows_W3)
    return pdfs_NN2


def middle_frames(feats_TD: np.ndarray, subsampling: int = SUBSAMPLING) -> np.ndarray:
    """(K, D): the middle frame of those that each output stands for."""
    middle_K = np.arange(num_outputs(len(feats_TD), subsampling)) * subsampling + subsampling // 2
    return feats_TD[np.minimum(middle_K, len(feats_TD) - 1)]


def train_tree(
    alignments: Mapping[str, Alignment],
    feats: Mapping[str, np.ndarray],
    lexicon: Lexicon,
    leaves: int,
    min_frames: float,
    extra: Sequence[frozenset[int]] = (),
    *,
    key: str = "hmm.tri.leaves",
) -> Hmm:
    """Grow a left-biphone tree with two states per phone; silence and spoken noise have one pdf per state.

    Parameters
    ----------
    alignments
        As returned by `to_first_and_loop`.
    feats
        Matrices (T, D) of all frames: the features, with derivatives, of the GMMs that made the alignments.
    leaves, min_frames, extra
        As in `build_tree`; `min_frames` counts outputs.
    key
        Config key of `leaves`, for the error message.

    Raises
    ------
    Speech3Error
        There are no alignments, `leaves` is smaller than the number of roots, or features and alignment of an utterance
        differ in length.
    """
    if not alignments:
        raise DataError("no utterance is aligned, so no tree can be grown; see bad.txt of the alignment")

    def stats_of(utterance: str, alignment: Alignment) -> ContextStats:
        feats_KD = middle_frames(feats[utterance])
        if len(feats_KD) != alignment.num_frames:
            raise MismatchError(
                f"{utterance}: {len(feats[utterance])} frames are {len(feats_KD)} outputs, but its alignment has"
                f" {alignment.num_frames}: it was made from different features; align again"
            )
        return alignment_stats(alignment, feats_KD, _SIDES)

    shown = progress(alignments.items(), len(alignments), "statistics for the tree")
    (stats,) = merged_stats(stats_of(*item) for item in shown)
    tree = build_tree(stats, lexicon, leaves, min_frames, extra, topology=FIRST_AND_LOOP, sides=_SIDES, key=key)
    return Hmm(lexicon, tree, np.full(tree.num_pdfs, 0.5), FIRST_AND_LOOP, SUBSAMPLING)
