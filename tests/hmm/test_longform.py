"""Long recordings drawn from a known HMM: words are found though parts are missing on either side."""

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from drawn import Drawn, draw

from speech3.config import FeatureConfig
from speech3.errors import DataError, Speech3Error
from speech3.features.compute import finish_features
from speech3.hmm.alignment import longform
from speech3.hmm.alignment.longform import (
    LONGEST_PART_S,
    PART_S,
    AlignedWord,
    LongPart,
    PartFeats,
    check_rate,
    in_order,
    joined,
    lay_out_long,
    local_features,
    part_names,
    part_texts,
)
from speech3.hmm.alignment.times import FrameClock, Segment
from speech3.hmm.clustering import middle_frames
from speech3.hmm.gmm import Gmm
from speech3.hmm.model import FIRST_AND_LOOP, Hmm, monophone_tree
from speech3.language.lexicon import Lexicon

CONFIG = FeatureConfig()


def gmm_of(hmm: Hmm, drawn: Drawn) -> Gmm:
    return Gmm(np.arange(hmm.num_pdfs + 1), np.ones(hmm.num_pdfs), drawn.means, np.ones_like(drawn.means))


class Long:
    """Utterances one after the other; some not in the transcript, some not in the recording."""

    def __init__(self, drawn: Drawn, unwritten: range = range(0), unsaid: range = range(0)) -> None:
        self.words: list[str] = []
        self.at: list[int | None] = []  # first frame of each word's utterance
        parts: list[np.ndarray] = []
        for number, (name, words) in enumerate(drawn.words.items()):
            now = sum(map(len, parts))
            if number not in unwritten:
                self.words += words
                self.at += [None if number in unsaid else now] * len(words)
            if number not in unsaid:
                parts.append(drawn.feats[name])
        self.feats = np.concatenate(parts)


def placed(long: Long, parts: tuple[LongPart, ...]) -> tuple[int, int]:
    """Words in a part that holds their place, and words in another."""
    right = wrong = 0
    for part in parts:
        for word in part.words:
            at = long.at[word]
            if at is not None and part.start - 60 <= at < part.end:
                right += 1
            else:
                wrong += 1
    return right, wrong


def test_all_is_there(hmm: Hmm) -> None:
    drawn = draw(hmm, 300, seed=4)
    long = Long(drawn)
    layout = lay_out_long(hmm, gmm_of(hmm, drawn), "u", long.words, long.feats, CONFIG)
    right, wrong = placed(long, layout.parts)
    assert wrong == 0 and right == layout.found == layout.words == len(long.words)
    assert all(a.end == b.start for a, b in itertools.pairwise(layout.parts))
    lengths = [(p.end - p.start) / 100 for p in layout.parts]
    assert max(lengths) <= LONGEST_PART_S and np.mean([s <= PART_S for s in lengths]) > 0.9
    assert not layout.gaps


@dataclass(frozen=True)
class AtAThird:
    """Gaussians that score the middle of three frames."""

    gmm: Gmm
    subsampling = 3
    pseudo_likelihoods = False

    def loglikes(self, feats_TD: np.ndarray, pdfs: np.ndarray | None = None) -> np.ndarray:
        return self.gmm.loglikes(middle_frames(feats_TD), pdfs)


def test_at_a_third_of_the_frames(lexicon: Lexicon) -> None:
    tree = monophone_tree(np.arange(len(lexicon.phones)), 2)
    hmm = Hmm(lexicon, tree, np.full(tree.num_pdfs, 0.5), FIRST_AND_LOOP, 3)
    drawn = draw(hmm, 300, seed=6)
    long = Long(drawn, unwritten=range(60, 110), unsaid=range(180, 240))
    layout = lay_out_long(hmm, AtAThird(gmm_of(hmm, drawn)), "u", long.words, long.feats, CONFIG)
    right, wrong = placed(long, layout.parts)
    said = sum(at is not None for at in long.at)
    assert right > 0.95 * said and wrong < 0.05 * said
    begin = sum(len(drawn.feats[f"u{number:03d}"]) for number in range(60))
    end = begin + sum(len(drawn.feats[f"u{number:03d}"]) for number in range(60, 110))
    longest = max(layout.gaps, key=lambda gap: gap.end - gap.start)
    assert abs(longest.start - begin) < 200 and abs(longest.end - end) < 200
    assert max(part.end for part in layout.parts) <= len(long.feats)


def test_a_search_without_enough_memory_is_an_error(hmm: Hmm, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = draw(hmm, 60, seed=4)
    monkeypatch.setattr(longform, "_RECORDS", 1010)
    with pytest.raises(DataError, match=r"too many word hypotheses after \d+ scores \(over 1,010\)"):
        lay_out_long(hmm, gmm_of(hmm, drawn), "u", Long(drawn).words, Long(drawn).feats, CONFIG)


def test_missing_parts_are_gaps_and_the_thread_is_found_again(hmm: Hmm) -> None:
    drawn = draw(hmm, 300, seed=6)
    long = Long(drawn, unwritten=range(60, 110), unsaid=range(180, 240))
    layout = lay_out_long(hmm, gmm_of(hmm, drawn), "u", long.words, long.feats, CONFIG)
    right, wrong = placed(long, layout.parts)
    said = sum(at is not None for at in long.at)
    assert right > 0.95 * said and wrong < 0.05 * said
    unsaid = {word for word, at in enumerate(long.at) if at is None}
    listed = {word for gap in layout.gaps for word in gap.words}
    assert len(unsaid & listed) > 0.9 * len(unsaid)
    begin = sum(len(drawn.feats[f"u{number:03d}"]) for number in range(60))
    end = begin + sum(len(drawn.feats[f"u{number:03d}"]) for number in range(60, 110))
    longest = max(layout.gaps, key=lambda gap: gap.end - gap.start)
    assert abs(longest.start - begin) < 200 and abs(longest.end - end) < 200


def test_other_transcripts_are_refused(hmm: Hmm) -> None:
    drawn = draw(hmm, 100, seed=7)
    long = Long(drawn)
    with pytest.raises(DataError, match="10 words for 3,600 s of audio, one in 360 s"):
        check_rate(10, 3600.0)
    with pytest.raises(Speech3Error, match="50,000 words for 3,600 s of audio, 14 per second"):
        check_rate(50000, 3600.0)
    check_rate(9000, 3600.0)
    noise = np.random.default_rng(0).standard_normal(long.feats.shape).astype(np.float32) * 9
    with pytest.raises(Speech3Error, match=r"only [\d,]+ of the [\d,]+ words of the transcript were found"):
        lay_out_long(hmm, gmm_of(hmm, drawn), "u", long.words, noise, CONFIG)


def test_the_heaviest_chain_in_order() -> None:
    found = [
        AlignedWord(0, 0, 5),
        AlignedWord(7, 5, 9),
        AlignedWord(1, 10, 14),
        AlignedWord(2, 14, 20),
        AlignedWord(1, 20, 22),
        AlignedWord(3, 22, 30),
    ]
    assert [f.word for f in in_order(found, 8)] == [0, 1, 2, 3]
    assert in_order([], 8) == []
    rng = np.random.default_rng(1)
    for _ in range(20):
        some = [AlignedWord(int(w), 10 * n, 10 * n + int(d)) for n, (w, d) in enumerate(rng.integers(1, 9, (8, 2)))]
        best = 0
        for mask in range(1 << len(some)):
            chain = [f for n, f in enumerate(some) if mask >> n & 1]
            if all(a.word < b.word for a, b in itertools.pairwise(chain)):
                best = max(best, sum(f.end - f.start for f in chain))
        assert sum(f.end - f.start for f in in_order(some, 9)) == best


def test_parts_normalise_themselves() -> None:
    rng = np.random.default_rng(2)
    static = rng.standard_normal((4000, 5)).astype(np.float32)
    config = FeatureConfig(cmvn="utterance", norm_vars=True)
    part = local_features(static * 3 + 7, 1000, 3000, config)
    assert part == pytest.approx(local_features(static, 1000, 3000, config), abs=1e-4)
    known = config.model_copy(update={"global_stats": ((9.0,) * 6, (90.0,) * 5 + (0.0,))})  # of values before it
    assert (local_features(static * 3 + 7, 1000, 3000, known) == part).all()
    adapted = config.model_copy(update={"adapted": 3, "deltas": 1})
    both = np.concatenate([static, static, static[:, :3]], 1)
    assert local_features(both, 1000, 3000, adapted).shape == (2000, 13)
    assert (local_features(both, 1000, 3000, adapted)[:, 10:] == static[1000:3000, :3]).all()
    assert part.mean(0) == pytest.approx(np.zeros(5), abs=1e-4) and part.std(0) == pytest.approx(np.ones(5), abs=1e-3)
    assert (local_features(static, 10, 20, FeatureConfig()) == static[10:20]).all()
    sliding = FeatureConfig(cmvn="sliding", deltas=1)
    assert (local_features(static, 10, 20, sliding) == static[10:20]).all(), "that is local already"
    spliced = config.model_copy(update={"deltas": 1, "left_context": 2, "right_context": 1})
    (whole_TF,) = finish_features([torch.from_numpy(static * 3 + 7)], spliced)
    assert local_features(whole_TF.numpy(), 1000, 3000, spliced)[:, 20:25] == pytest.approx(part, abs=1e-4)
    feats = PartFeats({"u": static}, {"u-1": LongPart("u", 1000, 3000, (0,))}, config)
    assert (feats["u-1"] == local_features(static, 1000, 3000, config)).all() and (feats["u"] == static).all()
    assert list(feats) == ["u", "u-1"]


def test_times_are_those_of_the_recording() -> None:
    parts = part_names([LongPart("u", 0, 100, (0, 1)), LongPart("u", 100, 250, (3,))], 100.0)
    assert list(parts) == ["u-0000000-0000100", "u-0000100-0000250"]
    assert part_texts(parts, {"u": "a b c d"}) == {"u-0000000-0000100": "a b", "u-0000100-0000250": "d"}
    clock = FrameClock(0.01, 0.0075)
    first, second = parts
    tracks = {
        first: [Segment(0, 0.5, "a"), Segment(0.5, 1.015, "b")],
        second: [Segment(0, 1.515, "d")],
        "v": [Segment(0, 1, "x")],
    }
    whole = joined(tracks, parts, clock)
    assert whole["v"] == [Segment(0, 1, "x")] and [s.label for s in whole["u"]] == ["a", "b", "d"]
    assert [s.start_s for s in whole["u"]] == pytest.approx([0, 0.5, 1.0])
    assert [s.end_s for s in whole["u"]] == pytest.approx([0.5, 1.0, 2.515])
