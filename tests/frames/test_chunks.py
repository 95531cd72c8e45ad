"""Chunks: what they cover, their targets, other speeds and warps, and that a minibatch is its own."""

import numpy as np
import pytest
import torch

from speech3.features.filterbank import mel_scale
from speech3.frames.chunks import Chunks, Taught, default_chunk
from speech3.frames.masks import FrequencyWarp, SpecAugment
from speech3.frames.packed import open_packed, write_frames

LENGTHS = (1, 2, 30, 7, 64, 5, 20, 21, 3, 40, 11)
FRAMES = sum(LENGTHS)
BINS = 6


@pytest.fixture
def corpus(tmp_path):
    """The first value of a frame is its number in the corpus, as is its label."""
    ends = np.cumsum(LENGTHS)
    numbers = {f"u{i}": np.arange(end - n, end) for i, (n, end) in enumerate(zip(LENGTHS, ends, strict=True))}
    feats = {u: np.repeat(x[:, None], BINS, 1).astype(np.float32) for u, x in numbers.items()}
    write_frames(tmp_path / "x", feats, numbers, FRAMES, utterances=list(feats))
    return open_packed(tmp_path / "x")


def _chunks(packed, *, chunk=9, streams=4, left=2, right=4, subsampling=3, seed=1, **more):
    return Chunks(
        packed,
        left=left,
        right=right,
        chunk=chunk,
        streams=streams,
        subsampling=subsampling,
        seed=seed,
        device=torch.device("cpu"),
        **more,
    )


def _utterance(packed, label):
    return int(np.searchsorted(packed.offsets_U1, label, side="right")) - 1


def test_sequential_has_every_frame_with_its_context_and_targets_in_the_middle_of_outputs(corpus):
    source, seen = _chunks(corpus), set()
    for inputs, targets in source.sequential(30):
        feats_BTF = inputs.feats_BTF
        assert feats_BTF.shape[1:] == (2 + 9 + 4, BINS)
        for x_T, labels in zip(feats_BTF[:, :, 0].numpy(), targets.view(-1, 3).numpy(), strict=True):
            utterance = _utterance(corpus, int(x_T[2]))
            first, last = corpus.offsets_U1[utterance], corpus.offsets_U1[utterance + 1] - 1
            np.testing.assert_array_equal(x_T, np.clip(np.arange(x_T[2] - 2, x_T[2] + 13), first, last))
            np.testing.assert_array_equal(labels, x_T[[3, 6, 9]])
            seen |= set(x_T[2:11].astype(int))
    assert seen == set(range(FRAMES))


def test_an_epoch_has_each_utterance_as_often_as_covers_it_and_begins_elsewhere_in_the_next(corpus):
    source = _chunks(corpus)
    expected = {u: -(-n // 9) for u, n in enumerate(LENGTHS)}
    starts = []
    for epoch in (1, 2, 3):
        counts = dict.fromkeys(expected, 0)
        for number in range(len(source)):
            inputs, _ = source.draw(epoch, number)
            begins = inputs.feats_BTF[:, 2, 0].int().tolist()
            for begin in begins:
                utterance = _utterance(corpus, begin)
                counts[utterance] += 1
                assert begin + 9 <= corpus.offsets_U1[utterance + 1] or LENGTHS[utterance] < 9
            starts.append((epoch, *begins))
        assert counts == expected
    assert len(starts) == len({begins[1:] for begins in starts})


def test_chunks_reach_both_ends_of_long_utterances(corpus):
    source = _chunks(corpus)
    begins = [
        int(b) for epoch in range(30) for n in range(len(source)) for b in source.draw(epoch, n)[0].feats_BTF[:, 2, 0]
    ]
    long = LENGTHS.index(64)
    first, end = corpus.offsets_U1[long], corpus.offsets_U1[long + 1]
    own = [begin for begin in begins if first <= begin < end]
    assert min(own) == first
    assert max(own) == end - 9
    assert len(set(own)) > 15


def test_a_minibatch_depends_on_its_number_alone(corpus):
    more = {"speeds": (0.9, 1.1), "masks": SpecAugment(torch.zeros(BINS), time_masks=1, time_mask_frames=3)}
    one, other = _chunks(corpus, **more), _chunks(corpus, **more)
    for number in range(len(one)):
        one.draw(2, number)
    for number in reversed(range(len(one))):
        for a, b in zip(one.draw(2, number), other.draw(2, number), strict=True):
            assert torch.equal(
                a.feats_BTF if a is not None and hasattr(a, "feats_BTF") else a,
                b.feats_BTF if hasattr(b, "feats_BTF") else b,
            )


@pytest.mark.parametrize("speed", [0.8, 1.0, 1.25])
def test_another_speed_passes_more_or_fewer_frames(corpus, speed):
    source = _chunks(corpus, speeds=(speed,), left=0, right=0)
    long = LENGTHS.index(64)
    first, last = corpus.offsets_U1[long], corpus.offsets_U1[long + 1] - 1
    found = 0
    for number in range(len(source)):
        inputs, targets = source.draw(1, number)
        for x_T, labels in zip(inputs.feats_BTF[:, :, 0].numpy(), targets.view(-1, 3).numpy(), strict=True):
            if first <= x_T[0] <= last:
                found += 1
                expected = np.clip(x_T[0] + speed * np.arange(9), first, last)
                np.testing.assert_allclose(x_T, expected, rtol=1e-6)  # the ramp is linear, so interpolation is exact
                np.testing.assert_array_equal(labels, np.floor(expected[[1, 4, 7]] + 1e-9))
    assert found == 8


def test_speed_moves_frequencies_as_it_moves_time(tmp_path):
    centre = np.linspace(mel_scale(np.array(100.0)), mel_scale(np.array(4000.0)), 20)
    peak = np.exp(-0.5 * ((centre - centre[8]) / 200) ** 2).astype(np.float32)
    write_frames(tmp_path / "x", {"u": np.repeat(peak[None], 30, 0)}, {"u": np.zeros(30, int)}, 1, utterances=["u"])
    warp = FrequencyWarp(centre, 0.0)
    tops = {}
    for speed in (0.8, 1.0, 1.25):
        inputs, _ = _chunks(open_packed(tmp_path / "x"), speeds=(speed,), warp=warp).draw(1, 0)
        tops[speed] = int(inputs.feats_BTF[0, 5].argmax())
    assert tops[0.8] < tops[1.0] == 8 < tops[1.25]


def test_targets_may_be_anything_made_of_the_chunks(corpus):
    source = _chunks(corpus, targets=lambda chunks: [(len(c.labels_T), c.start, c.speed) for c in chunks])
    inputs, targets = source.draw(1, 0)
    assert len(targets) == len(inputs.feats_BTF)
    assert all(0 <= start <= max(0, length - 9) and speed == 1.0 for length, start, speed in targets)


def test_chunks_of_short_utterances_are_short():
    assert default_chunk(np.array([40] * 95 + [400] * 5), 3) == 42
    assert default_chunk(np.array([40] * 50 + [400] * 50), 3) == 150


def test_a_teacher_sees_the_same_chunks_without_masks(corpus):
    masks = SpecAugment(torch.full((BINS,), -1.0), time_masks=2, time_mask_frames=5)
    seen = []
    more = {"speeds": (0.9, 1.1), "masks": masks}
    source = _chunks(
        corpus, teacher=lambda inputs: seen.append(inputs.feats_BTF.clone()) or inputs.feats_BTF[:, ::3], **more
    )
    plain = _chunks(corpus, speeds=(0.9, 1.1))
    for number in range(len(source)):
        inputs, taught = source.draw(2, number)
        unmasked, labels = plain.draw(2, number)
        assert isinstance(taught, Taught) and torch.equal(taught.targets, labels) and len(taught) == len(labels)
        assert torch.equal(seen[number], unmasked.feats_BTF) and torch.equal(taught.outputs_BTS, seen[number][:, ::3])
        assert torch.equal(inputs.feats_BTF, _chunks(corpus, **more).draw(2, number)[0].feats_BTF)
    assert not any(isinstance(targets, Taught) for _, targets in source.sequential(30)) and len(seen) == len(source)
