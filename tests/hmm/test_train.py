"""The bootstrap on drawn utterances: from a flat start to the truth, in one process or two."""

from pathlib import Path

import numpy as np
import pytest
from drawn import Drawn, draw

from speech3.config import HmmConfig
from speech3.errors import Speech3Error, check_bad
from speech3.hmm.alignment.align import align_utterances, usable_transcripts
from speech3.hmm.gmm import Gmm, load_gmm
from speech3.hmm.model import Hmm, load_hmm
from speech3.hmm.train import GmmSystem, train_monophone, train_triphone
from speech3.hmm.transcript import Alignment
from speech3.hmm.workers import Workers, WorkerShare
from speech3.language.lexicon import Lexicon, Pronunciation, read_lexicon
from speech3.runtime import Metrics, read_metrics

CONFIG = HmmConfig.model_validate(
    {
        "mono": {"iterations": 12, "gaussians": 20, "max_iteration_increase": 8},
        "tri": {
            "iterations": 6,
            "leaves": 18,
            "gaussians": 30,
            "max_iteration_increase": 4,
            "realign": [2, 4],
            "min_leaf_frames": 20,
        },
    }
)


def _alignments(share: WorkerShare) -> dict[str, Alignment]:
    return dict(share.alignments)


def bootstrap(
    drawn: Drawn, lexicon: Lexicon, tmp_path: Path, jobs: int
) -> tuple[GmmSystem, GmmSystem, dict[str, Alignment]]:
    rng, metrics = np.random.default_rng(0), Metrics(tmp_path / "metrics.jsonl")
    with Workers(drawn.words, drawn.feats, jobs) as workers:
        mono = train_monophone(workers, lexicon, CONFIG, rng, metrics)
        tri = train_triphone(workers, mono, CONFIG, rng, metrics)
        found = {k: v for share in workers.run(_alignments) for k, v in share.items()}
    return mono, tri, found


def test_flat_start_finds_the_true_segments(lexicon: Lexicon, hmm: Hmm, tmp_path: Path) -> None:
    drawn = draw(hmm, 80, seed=0)
    mono, tri, found = bootstrap(drawn, lexicon, tmp_path, jobs=1)
    assert not mono.failed and not tri.failed and len(found) == 80
    right = total = 0
    for name, alignment in found.items():
        truth = drawn.states[name] // 3 + 1
        right += int((alignment.phones[alignment.segment] == truth).sum())
        total += len(truth)
    assert right > 0.97 * total
    records = read_metrics(tmp_path / "metrics.jsonl")
    likes = [r["loglike_per_frame"] for r in records if r["system"] == "mono"]
    assert len(likes) == 12 and likes[-1] > likes[0]


def test_training_starts_from_the_alignment_of_another_system(lexicon: Lexicon, hmm: Hmm, tmp_path: Path) -> None:
    drawn, right = draw(hmm, 20, seed=0), []
    once = CONFIG.model_copy(update={"mono": CONFIG.mono.model_copy(update={"iterations": 1, "realign": ()})})
    gmm = true_gmm(hmm, drawn)
    backwards = Gmm(gmm.offset, gmm.weight, gmm.mean[::-1], gmm.var[::-1])
    for first in (gmm, backwards):
        rng, metrics = np.random.default_rng(0), Metrics(tmp_path / "metrics.jsonl")
        with Workers(drawn.words, drawn.feats, 1) as workers:
            train_monophone(workers, lexicon, once, rng, metrics, GmmSystem(hmm, first, {}))
            found = {k: v for share in workers.run(_alignments) for k, v in share.items()}
        same = [found[key].phones[found[key].segment] == drawn.states[key] // 3 + 1 for key in found]
        right.append(np.concatenate(same).mean())
    assert right[0] > 0.97 and right[1] < 0.9


def test_two_processes_give_what_one_gives(lexicon: Lexicon, hmm: Hmm, tmp_path: Path) -> None:
    drawn = draw(hmm, 30, seed=1)
    _, one, found_one = bootstrap(drawn, lexicon, tmp_path, jobs=1)
    _, two, found_two = bootstrap(drawn, lexicon, tmp_path, jobs=2)
    np.testing.assert_allclose(one.gmm.mean, two.gmm.mean, atol=1e-6)
    assert set(found_one) == set(found_two)
    assert all((found_one[name].starts == found_two[name].starts).all() for name in found_one)


def true_gmm(hmm: Hmm, drawn: Drawn) -> Gmm:
    return Gmm(np.arange(hmm.num_pdfs + 1), np.ones(hmm.num_pdfs), drawn.means, np.ones_like(drawn.means))


def test_short_and_unknown_utterances_are_named(lexicon: Lexicon, hmm: Hmm) -> None:
    drawn = draw(hmm, 60, seed=2)
    texts: dict[str, str | None] = {name: " ".join(words) for name, words in drawn.words.items()}
    texts["u000"], texts["u001"] = "ab nonsense", None
    drawn.feats["u002"] = drawn.feats["u002"][:4]
    transcripts = usable_transcripts(texts, lexicon, drawn.feats)
    found = align_utterances(hmm, true_gmm(hmm, drawn), transcripts, drawn.feats, beam=10, retry_beam=40, jobs=1)
    bad = found.bad
    assert set(bad) == {"u000", "u001", "u002"} and len(found.alignments) == 57
    assert "nonsense" in bad["u000"] and "no transcript" in bad["u001"] and "too few for its phones" in bad["u002"]


def test_more_than_five_per_cent_bad_stops() -> None:
    check_bad({"a": "x"}, 20, "alignment")
    with pytest.raises(Speech3Error, match=r"2 of 20 utterances are bad.*\n.*a: x"):
        check_bad({"a": "x", "b": "y"}, 20, "alignment")
    with pytest.raises(Speech3Error):
        check_bad({}, 0, "alignment")


def test_no_usable_utterance_is_an_error(lexicon: Lexicon, hmm: Hmm, tmp_path: Path) -> None:
    drawn = draw(hmm, 3, seed=3)
    feats = {name: feats[:2] for name, feats in drawn.feats.items()}
    with (
        Workers(drawn.words, feats, 1) as workers,
        pytest.raises(Speech3Error, match=r"no utterance could be aligned.*\n.*: 2 frames: fewer than its phones need"),
    ):
        train_monophone(workers, lexicon, CONFIG, np.random.default_rng(0), Metrics(tmp_path / "m"))


def test_model_round_trip_and_mixed_up_files(lexicon: Lexicon, hmm: Hmm, tmp_path: Path) -> None:
    hmm.save(tmp_path)
    back = load_hmm(tmp_path)
    assert back.lexicon == lexicon and back.num_pdfs == hmm.num_pdfs
    np.testing.assert_array_equal(back.self_loop, hmm.self_loop)
    assert back.pdfs(0, 2, 3) == hmm.pdfs(0, 2, 3)
    (tmp_path / "lexiconp.txt").write_text("ab 1 a b\n")
    with pytest.raises(Speech3Error, match="other phones"):
        load_hmm(tmp_path)
    with pytest.raises(Speech3Error, match="expected 'gmm'"):
        load_gmm(tmp_path / "tree.safetensors")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("one w\ntwo\n", "l.txt:2: two has no phones"),
        (b"\xff\xf0x", "UTF-8"),
        (None, "no such lexicon"),
    ],
)
def test_broken_lexicons(tmp_path: Path, text: str | bytes | None, message: str) -> None:
    path = tmp_path / "l.txt"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(Speech3Error, match=message):
        read_lexicon(path)


def test_lexicon_formats(tmp_path: Path) -> None:
    path = tmp_path / "l.txt"
    path.write_text("\ufeffa 0.25 x y\n!SIL SIL\na x\n2pac 1 t\nb y 3\n<unk> SPN\nb y 3\n")
    lexicon = read_lexicon(path)
    assert lexicon.by_word["a"] == (Pronunciation("a", ("x", "y"), 0.25), Pronunciation("a", ("x",), 1.0))
    assert lexicon.by_word["2pac"][0].phones == ("t",) and len(lexicon.by_word["b"]) == 1
    assert lexicon.phones == ("SIL", "3", "SPN", "t", "x", "y")
    assert lexicon.context_free == {1, 3}
    assert lexicon.known(["a", "zzz"]) == ["a", "<unk>"]
    with pytest.raises(Speech3Error, match="zzz"):
        Lexicon(lexicon.pronunciations[:2]).known(["zzz"])
    path.write_text("a x\nsil SIL\nb SIL SIL\n")
    with pytest.raises(Speech3Error, match=r"l.txt:3: b is pronounced as silence, SIL SIL; write its phones"):
        read_lexicon(path)
