"""Alignments at a third of the frames, and trees of left biphones grown on them."""

import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, strategies as st

from speech3.errors import SettingError, Speech3Error
from speech3.hmm.clustering import alignment_stats, left_biphone_pdfs, middle_frames, to_first_and_loop, train_tree
from speech3.hmm.model import CENTRE, FIRST_AND_LOOP, LEFT, Hmm, context_free_tree
from speech3.hmm.transcript import Alignment
from speech3.language.lexicon import Lexicon, Pronunciation


def alignment_of(lengths: list[int], phones: list[int] | None = None) -> Alignment:
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    phones_P = np.array(phones or [1 + i % 3 for i in range(len(lengths))], np.int32)
    states = np.concatenate([np.arange(length) * 3 // length for length in lengths]).astype(np.int8)
    return Alignment(phones_P, np.arange(len(lengths), dtype=np.int32), starts, states, -1.0)


def test_boundaries_go_to_the_nearest_output() -> None:
    found = to_first_and_loop(alignment_of([4, 6, 7, 3]))  # boundaries at 4, 10, 17 of 20 frames: 1.33, 3.33, 5.67
    assert found.starts.tolist() == [0, 1, 3, 6, 7]
    assert found.states.tolist() == [0, 0, 1, 0, 1, 1, 0]
    assert found.words.tolist() == [0, 1, 2, 3] and found.score == -1.0


def smallest_shift(wanted: list[int], outputs: int) -> int:
    """The smallest largest shift of boundaries that leaves each phone an output, by trying all."""
    ways = itertools.combinations(range(1, outputs), len(wanted))
    return min(max((abs(a - b) for a, b in zip(way, wanted, strict=True)), default=0) for way in ways)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_every_phone_has_an_output_and_boundaries_hardly_move(lengths: list[int]) -> None:
    alignment, outputs = alignment_of(lengths), -(-sum(lengths) // 3)
    if outputs < len(lengths):
        with pytest.raises(Speech3Error, match="too short at a third of the frame rate"):
            to_first_and_loop(alignment)
        return
    found = to_first_and_loop(alignment)
    assert found.num_frames == outputs == found.starts[-1] and found.starts[0] == 0
    assert (np.diff(found.starts) >= 1).all()
    first_K = np.isin(np.arange(outputs), found.starts)
    np.testing.assert_array_equal(found.states, ~first_K)
    np.testing.assert_array_equal(found.phones, alignment.phones)
    nearest = [(boundary + 1) // 3 for boundary in alignment.starts[1:-1].tolist()]
    moved = max((abs(a - b) for a, b in zip(found.starts[1:-1].tolist(), nearest, strict=True)), default=0)
    assert moved == smallest_shift(nearest, outputs)


@given(st.lists(st.integers(3, 12), min_size=1, max_size=8))
def test_phones_of_three_states_move_by_no_more_than_one_output(lengths: list[int]) -> None:
    found = to_first_and_loop(alignment_of(lengths))
    boundaries_s = found.starts[1:-1] * 3 - alignment_of(lengths).starts[1:-1]
    assert np.abs(boundaries_s).max(initial=0) <= 3


def test_utterances_that_are_too_short_are_refused() -> None:
    with pytest.raises(Speech3Error, match="too short at a third of the frame rate: 4 phones, 2 outputs"):
        to_first_and_loop(alignment_of([1, 1, 1, 1]))


def test_an_output_takes_the_frame_in_its_middle() -> None:
    feats_TD = np.arange(8, dtype=np.float32)[:, None]
    assert middle_frames(feats_TD)[:, 0].tolist() == [1, 4, 7]
    assert middle_frames(feats_TD[:7])[:, 0].tolist() == [1, 4, 6]


@pytest.fixture
def drawn() -> tuple[Lexicon, dict[str, Alignment], dict[str, np.ndarray]]:
    """Frames of `a` depend on what is left of it, those of `b` on what is right, silence on its left."""
    lexicon = Lexicon((Pronunciation("all", ("a", "b", "p", "t", "m")),))
    rng, ids = np.random.default_rng(0), lexicon.phone_ids
    mean = {phone: rng.normal(0, 8, 4) for phone in ids.values()}
    alignments, feats = {}, {}
    for number in range(300):
        phones = [ids["SIL"], *rng.choice(list(ids.values()), 12).tolist(), ids["SIL"]]
        lengths = rng.integers(6, 15, len(phones)).tolist()
        rows = []
        for left, phone, right, length in zip([0, *phones], phones, [*phones[1:], 0], lengths, strict=False):
            row = mean[phone] + rng.normal(0, 1, (length, 4))
            row[:3] += 20.0  # the first frames sound alike, unlike the others
            row += 6.0 * (phone == ids["a"] and left in (ids["p"], ids["t"]))
            row -= 6.0 * (phone == ids["b"] and right in (ids["p"], ids["t"]))
            row += 3.0 * (phone == ids["SIL"] and left == ids["m"])
            rows.append(row)
        alignments[f"u{number}"] = to_first_and_loop(alignment_of(lengths, phones))
        feats[f"u{number}"] = np.concatenate(rows).astype(np.float32)
    return lexicon, alignments, feats


def test_left_biphones(drawn) -> None:
    lexicon, alignments, feats = drawn
    hmm = train_tree(alignments, feats, lexicon, leaves=14, min_frames=20)
    ids, tree = lexicon.phone_ids, hmm.tree
    assert (hmm.topology, hmm.subsampling, hmm.num_pdfs, tree.states) == (FIRST_AND_LOOP, 3, 14, 2)
    assert tree.sides <= {LEFT, CENTRE} and tree.width == 2
    assert tree.pdfs(ids["p"], ids["a"], 0) == tree.pdfs(ids["t"], ids["a"], 0) != tree.pdfs(ids["m"], ids["a"], 0)
    assert len({tree.pdfs(left, ids["SIL"], 0) for left in range(7)}) == 1
    everywhere = [tree.pdfs(left, phone, right) for left in range(7) for phone in range(1, 7) for right in range(7)]
    assert len({pdf for pdfs in everywhere for pdf in pdfs}) == 14
    assert {pdfs[0] for pdfs in everywhere}.isdisjoint(pdfs[1] for pdfs in everywhere)
    pdfs_NN2 = left_biphone_pdfs(hmm)
    assert not pdfs_NN2[:, 0].any()
    assert all(tuple(pdfs_NN2[left, phone]) == tree.pdfs(left, phone, 0) for left in range(7) for phone in range(1, 7))
    for utterance in ("u0", "u1"):
        pdf_K = alignments[utterance].pdfs(hmm)
        assert len(pdf_K) == -(-len(feats[utterance]) // 3)


def test_the_biphones_of_many_phones_are_not_kept_in_memory() -> None:
    lexicon = Lexicon(tuple(Pronunciation(f"w{number}", (f"p{number}",)) for number in range(300)))
    pdfs_P2 = np.arange(2 * len(lexicon.phones)).reshape(-1, 2)
    hmm = Hmm(lexicon, context_free_tree(pdfs_P2), np.full(pdfs_P2.size, 0.5), FIRST_AND_LOOP, 3)
    tracemalloc.start()
    pdfs_NN2 = left_biphone_pdfs(hmm)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (pdfs_NN2[:, 1:] == pdfs_P2).all() and kept < 2 * pdfs_NN2.nbytes


def test_statistics_are_gathered_only_for_neighbours_that_may_be_asked_about() -> None:
    found = alignment_stats(
        to_first_and_loop(alignment_of([6, 6, 3], [2, 3, 2])), np.ones((5, 2), np.float32), (LEFT, CENTRE)
    )
    assert found.context.tolist() == [[0, 2, 0, 0], [0, 2, 0, 1], [2, 3, 0, 0], [2, 3, 0, 1], [3, 2, 0, 0]]
    assert found.stats.tolist() == [[1.0] * 5] * 5


def test_errors_name_what_is_wrong(drawn) -> None:
    lexicon, alignments, feats = drawn
    with pytest.raises(SettingError, match=r"hmm\.lfmmi\.leaves=5"):
        train_tree(alignments, feats, lexicon, leaves=5, min_frames=20, key="hmm.lfmmi.leaves")
    with pytest.raises(Speech3Error, match=r"u0: \d+ frames are \d+ outputs, but its alignment has \d+"):
        train_tree({"u0": alignments["u0"]}, {"u0": feats["u0"][:9]}, lexicon, leaves=12, min_frames=20)
    with pytest.raises(Speech3Error, match="no utterance is aligned"):
        train_tree({}, feats, lexicon, leaves=12, min_frames=20)
