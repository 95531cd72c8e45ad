"""Sequence minibatches: every frame once an epoch, streams that go on where they ended, resets, delay and lookahead."""

import itertools

import numpy as np
import pytest
import torch

from speech3.features.filterbank import mel_scale
from speech3.frames.chunks import Sequences
from speech3.frames.masks import FrequencyWarp, MelColumns, SpecAugment
from speech3.frames.packed import open_packed, write_frames

LENGTHS = (1, 2, 30, 7, 64, 5, 20, 21, 3, 40, 11)
FRAMES = sum(LENGTHS)


@pytest.fixture(params=["float32", "float16"])
def corpus(tmp_path, request):
    rng = np.random.default_rng(0)
    feats = {f"u{i}": rng.normal(size=(n, 3)).astype(request.param) for i, n in enumerate(LENGTHS)}
    ends = np.cumsum(LENGTHS)
    # A senone that is the frame's own number tells which frame a target belongs to.
    senones = {u: np.arange(end - len(x), end) for (u, x), end in zip(feats.items(), ends, strict=True)}
    write_frames(tmp_path / "x", feats, senones, FRAMES, utterances=list(feats), dtype=request.param)
    return feats, open_packed(tmp_path / "x")


def _sequences(packed, *, chunk=8, streams=3, left=2, right=4, seed=1, row_minibatches=4, **more):
    return Sequences(
        packed,
        left=left,
        right=right,
        chunk=chunk,
        streams=streams,
        seed=seed,
        device=torch.device("cpu"),
        row_minibatches=row_minibatches,
        **more,
    )


def _targets(inputs, senones_N):
    """Senone of each step (T, B), -1 where there is none."""
    senones_TB = torch.full(inputs.feats_TBWF.shape[:2], -1)
    senones_TB.view(-1)[inputs.scored_N] = senones_N
    return senones_TB


def _chunks(length, chunk):
    return [min(chunk, length - start) for start in range(0, length, chunk)]


@pytest.mark.parametrize(("delay", "lookahead"), [(0, 0), (0, 5), (3, 0)])
@pytest.mark.parametrize(
    ("chunk", "streams", "row_minibatches"), [(8, 3, 4), (8, 1, 4), (4, 5, 7), (20, 2, 50), (64, 4, 1), (500, 30, 1)]
)
def test_an_epoch_has_every_chunk_once_in_continuous_streams(corpus, chunk, streams, row_minibatches, delay, lookahead):
    _, packed = corpus
    source = _sequences(
        packed, chunk=chunk, streams=streams, row_minibatches=row_minibatches, delay=delay, lookahead=lookahead
    )
    assert list(itertools.chain(*source.rows)) == list(range(len(source)))
    first_frames, ends = {int(offset) for offset in packed.offsets_U1[:-1]}, packed.offsets_U1
    orders = []
    for epoch in (1, 2):
        seen, lengths, not_full = [], [], 0
        for row in source.rows:
            steps_since_B, ended_at_B = [0] * streams, [-1] * streams  # since the utterance began, if that is known
            for number in row:
                inputs, senones_N = source.draw(epoch, number)
                assert senones_N.dtype == torch.int64 and len(senones_N) == len(inputs.scored_N)
                assert inputs.place == (epoch, number)
                senones_TB = _targets(inputs, senones_N)
                assert senones_TB.shape == (int(inputs.lengths_B.max()), streams)
                assert inputs.own == min(chunk, int(inputs.lengths_B.max()))
                assert (senones_TB[inputs.own :] == -1).all()
                not_full += bool((inputs.lengths_B == 0).any())
                for b, (targets_T, length, begins) in enumerate(
                    zip(senones_TB.t().tolist(), inputs.lengths_B.tolist(), inputs.begins_B.tolist(), strict=True)
                ):
                    frames = [frame for frame in targets_T if frame >= 0]
                    if not length:
                        assert number == row[-1] and not frames
                        continue
                    steps_since_B[b] = 0 if begins else steps_since_B[b]
                    if not frames:  # an utterance shorter than the delay, or the chunk ends with it
                        continue
                    assert frames == list(range(frames[0], frames[0] + len(frames)))
                    at_the_beginning = frames[0] in first_frames
                    none_before = targets_T.index(frames[0])
                    if at_the_beginning and begins:
                        assert none_before == delay
                    assert begins or at_the_beginning or frames[0] == ended_at_B[b]
                    assert begins == (number == row[0] or (at_the_beginning and none_before == delay)) or delay
                    own = min(length, chunk)
                    end = int(ends[np.searchsorted(ends, frames[0], side="right")])
                    # What is seen beyond the chunk is no more than lookahead, and stays in the utterance.
                    assert length - own == min(lookahead, end + delay - (frames[-1] + 1 + delay)) or length < chunk
                    ended_at_B[b] = frames[-1] + 1
                    seen += frames
                    lengths.append(own)
        assert sorted(seen) == list(range(FRAMES))
        if not delay:
            assert sorted(lengths) == sorted(itertools.chain(*(_chunks(length, chunk) for length in LENGTHS)))
        assert not_full <= 1
        orders.append(seen)
    assert orders[0] != orders[1]


def _windows(feats, left, right):
    for x_TF in feats.values():
        padded = np.concatenate([x_TF[:1].repeat(left, 0), x_TF, x_TF[-1:].repeat(right, 0)])
        yield from (padded[t : t + left + 1 + right] for t in range(len(x_TF)))


@pytest.mark.parametrize("lookahead", [0, 6])
@pytest.mark.parametrize(("left", "right"), [(2, 4), (0, 0), (5, 0), (0, 9)])
def test_windows_repeat_the_edges_of_each_utterance(corpus, left, right, lookahead):
    feats, packed = corpus
    source = _sequences(packed, left=left, right=right, lookahead=lookahead)
    expected_NWF = np.stack(list(_windows(feats, left, right))).astype(np.float32)
    for number in range(len(source)):
        inputs, senones_N = source.draw(1, number)
        feats_XWF = inputs.feats_TBWF.flatten(0, 1)
        assert feats_XWF.dtype == torch.float32
        np.testing.assert_array_equal(feats_XWF[inputs.scored_N].numpy(), expected_NWF[senones_N.numpy()])
        assert torch.isfinite(feats_XWF).all()


def test_what_looks_ahead_are_the_frames_that_come(corpus):
    feats, packed = corpus
    source = _sequences(packed, left=0, right=0, lookahead=5)
    x_NF, ends, seen = np.concatenate(list(feats.values())).astype(np.float32), packed.offsets_U1[1:], 0
    for number in range(len(source)):
        inputs, senones_N = source.draw(1, number)
        for b, last in enumerate(_targets(inputs, senones_N).amax(0).tolist()):
            beyond = inputs.feats_TBWF[inputs.own : int(inputs.lengths_B[b]), b, 0].numpy()
            np.testing.assert_array_equal(beyond, x_NF[last + 1 : last + 1 + len(beyond)])
            assert not len(beyond) or last + len(beyond) < ends[np.searchsorted(ends, last, side="right")]
            seen += len(beyond)
    assert seen > 20


def test_with_a_delay_a_step_reads_the_frame_that_comes_later(corpus):
    feats, packed = corpus
    source = _sequences(packed, left=0, right=0, delay=3)
    x_NF, utterance_N = np.concatenate(list(feats.values())).astype(np.float32), np.repeat(range(11), LENGTHS)
    last_N = packed.offsets_U1[1:][utterance_N] - 1
    for number in range(len(source)):
        inputs, senones_N = source.draw(1, number)
        read_NF = inputs.feats_TBWF.flatten(0, 1)[inputs.scored_N, 0]
        np.testing.assert_array_equal(read_NF.numpy(), x_NF[np.minimum(senones_N.numpy() + 3, last_N[senones_N])])


@pytest.mark.parametrize("delay", [3, 12])
def test_targets_inside_are_those_of_the_frames_of_the_chunk(corpus, delay):
    feats, packed = corpus
    every = np.concatenate(list(feats.values()))
    source, seen = _sequences(packed, delay=delay, targets_inside=True, left=0, right=0), []
    assert len(source) == len(_sequences(packed)), "an utterance has no steps more"
    for number in range(len(source)):
        inputs, senones_N = source.draw(1, number)
        step_N, stream_N = np.divmod(inputs.scored_N.numpy(), inputs.feats_TBWF.shape[1])
        np.testing.assert_array_equal(
            inputs.feats_TBWF[step_N - delay, stream_N, 0].numpy(), every[senones_N.numpy()].astype(np.float32)
        )  # the step of the frame itself is in the chunk
        assert (step_N < inputs.lengths_B.numpy()[stream_N]).all() and (step_N - delay < inputs.own).all()
        seen += senones_N.tolist()
    assert sorted(seen) == list(range(FRAMES))


def test_a_minibatch_is_known_by_epoch_and_number(corpus):
    first, second, other = (_sequences(corpus[1], seed=seed) for seed in (1, 1, 2))
    drawn = {(e, n): first.draw(e, n)[1].tolist() for e in (1, 2) for n in range(len(first))}
    for (epoch, number), targets in reversed(drawn.items()):
        assert second.draw(epoch, number)[1].tolist() == targets
    assert other.draw(1, 0)[1].tolist() != drawn[1, 0]


def test_whole_utterances(corpus):
    source = _sequences(corpus[1], chunk=64, streams=2)
    for number in range(len(source)):
        inputs, _ = source.draw(1, number)
        assert inputs.begins_B.all()
        assert set(inputs.lengths_B.tolist()) <= {0, *LENGTHS}


def test_rows_are_of_one_length_about(corpus):
    source = _sequences(corpus[1], chunk=1, streams=2, row_minibatches=10)
    assert len(source.rows) == round(FRAMES / 20)
    assert {len(row) for row in source.rows} <= {10, 11}


@pytest.mark.parametrize("delay", [0, 3])
def test_in_sequence_every_frame_comes_once_and_streams_are_whole_utterances(corpus, delay):
    source, seen, numbers = _sequences(corpus[1], delay=delay), [], [0]
    for inputs, senones_N in source.sequential(8 * 4):
        assert inputs.feats_TBWF.shape[1] <= 4 and inputs.place[0] == 0
        begins = bool(inputs.begins_B.any())
        assert bool(inputs.begins_B.all()) == begins
        # What follows no other must not be taken for one that does.
        assert inputs.place[1] == numbers[-1] + (2 if begins else 1)
        numbers.append(inputs.place[1])
        seen += senones_N.tolist()
    assert sorted(seen) == list(range(FRAMES))


def test_an_utterance_is_warped_alike_in_all_its_chunks(tmp_path):
    centres = mel_scale(np.linspace(100.0, 3000.0, 8))
    warp = FrequencyWarp(np.linspace(centres[0], centres[-1], 8), 0.2)
    rng = np.random.default_rng(3)
    feats = {f"u{i}": np.tile(rng.normal(size=(1, 16)), (30, 1)).astype(np.float32) for i in range(6)}
    write_frames(tmp_path / "x", feats, {u: np.full(30, i) for i, u in enumerate(feats)}, 6, utterances=list(feats))
    packed = open_packed(tmp_path / "x")
    plain, warped = _sequences(packed, streams=2), _sequences(packed, streams=2, warp=warp)
    seen = {}
    for epoch in (1, 2):
        for number in range(len(plain)):
            inputs, senones_N = warped.draw(epoch, number)
            for x_WF, utterance in zip(
                inputs.feats_TBWF.flatten(0, 1)[inputs.scored_N], senones_N.tolist(), strict=True
            ):
                seen.setdefault((epoch, utterance), x_WF)
                torch.testing.assert_close(x_WF, seen[epoch, utterance])
    factors = np.linspace(0.8, 1.2, 33)
    for (_, utterance), x_WF in seen.items():
        x_F = feats[f"u{utterance}"][0]
        candidates = [np.concatenate([warp.matrix(f) @ x_F[:8], warp.matrix(f) @ x_F[8:]]) for f in factors]
        assert min(np.abs(x_WF[0].numpy() - each).max() for each in candidates) < 1e-5
    assert any(not torch.equal(seen[1, u], seen[2, u]) for u in range(6))
    for (inputs, _), (same, _) in zip(plain.sequential(16), warped.sequential(16), strict=True):
        assert torch.equal(inputs.feats_TBWF, same.feats_TBWF)


def test_bands_are_hidden_alike_in_all_chunks_of_an_utterance_and_stretches_of_time_in_each(corpus):
    _, packed = corpus
    masks = SpecAugment(torch.full((3,), 99.0), 1, 3, 1, 1, MelColumns(3))
    plain, masked, again = (_sequences(packed, streams=2, masks=each) for each in (None, masks, masks))
    bands, stretches = {}, set()
    for epoch, number in [(epoch, number) for epoch in (2, 1) for number in range(len(plain))]:
        (before, senones_N), (after, same_N) = plain.draw(epoch, number), masked.draw(epoch, number)
        assert torch.equal(after.feats_TBWF, again.draw(epoch, number)[0].feats_TBWF) and torch.equal(senones_N, same_N)
        changed_TBF = (after.feats_TBWF != before.feats_TBWF)[:, :, 2]
        assert (after.feats_TBWF[:, :, 2][changed_TBF] == 99).all()
        for b, targets_T in enumerate(_targets(before, senones_N).t()):
            scored = targets_T >= 0
            if scored.sum() < 3:
                continue
            utterance = int(np.searchsorted(packed.offsets_U1, int(targets_T[scored][0]), side="right"))
            stretch_T = changed_TBF[scored, b].all(1)
            stretches.add((epoch, number, b, int(stretch_T.sum())))
            if not stretch_T.all():
                band_F = tuple(changed_TBF[scored, b][~stretch_T].all(0).tolist())
                assert bands.setdefault((epoch, utterance), band_F) == band_F
    assert len({frames for *_, frames in stretches}) > 2, "from none to three frames"
    assert len({band_F for (epoch, _), band_F in bands.items() if epoch == 1}) > 2
    assert any(bands.get((1, u), band_F) != band_F for (epoch, u), band_F in bands.items() if epoch == 2)
    for (one, _), (other, _) in zip(plain.sequential(16), masked.sequential(16), strict=True):
        assert torch.equal(one.feats_TBWF, other.feats_TBWF)
