"""Phone errors of a network on held-out speech: what is decoded, what a run reports, and where they cannot be known."""

import jiwer
import numpy as np
import pytest
import torch

from speech3.config import DnnConfig, TrainConfig, TrainingConfig
from speech3.evaluate.page import Report, System, write_report
from speech3.evaluate.wer import score
from speech3.frames.packed import open_packed, write_frames
from speech3.hmm.model import Hmm, PdfsOnly, monophone_tree
from speech3.hmm.phone_loop import best_phones, loop_phones
from speech3.language.lexicon import Lexicon, Pronunciation
from speech3.models import load_network, logits
from speech3.runtime import read_metrics
from speech3.train import phone_errors as module, train
from speech3.train.curves import _SCALARS
from speech3.train.parts import log_priors

PHONES, DIM, STATES = ("a", "b", "c"), 5, 3


def _hmm():
    return Hmm(Lexicon((Pronunciation("W", PHONES),)), monophone_tree(np.arange(4)), np.full(12, 0.6))


@pytest.fixture
def corpus(tmp_path):
    """Silence, some phones, silence; each state lasts for two to four frames around a point of its own."""
    rng = np.random.default_rng(0)
    centers, spoken = rng.normal(0, 2, (12, DIM)), {}
    for name, count in (("train", 60), ("heldout", 12)):
        phones = {f"{name}{i}": [0, *rng.integers(1, 4, rng.integers(1, 8)), 0] for i in range(count)}
        states = {u: np.concatenate([np.arange(STATES) + STATES * p for p in each]) for u, each in phones.items()}
        labels = {u: np.repeat(each, rng.integers(2, 5, len(each))).astype(np.int32) for u, each in states.items()}
        feats = {u: (centers[x] + rng.normal(0, 1.2, (len(x), DIM))).astype(np.float32) for u, x in labels.items()}
        write_frames(tmp_path / "frames" / f"{name}.frames", feats, labels, 12, utterances=list(feats))
        spoken[name] = {u: [int(p) for p in each if p] for u, each in phones.items()}
    _hmm().save(tmp_path / "hmm")
    return tmp_path, spoken["heldout"]


def _config(home, **training):
    return TrainConfig(
        frames=str(home / "frames"),
        hmm=str(home / "hmm"),
        model=DnnConfig(layers=1, width=32),
        training=TrainingConfig(minibatch=64, max_epochs=4, **training),
    )


def test_a_run_says_its_phone_errors(corpus):
    home, spoken = corpus
    about = train(_config(home), home / "out")
    records = read_metrics(home / "out" / "metrics.jsonl")
    assert records[0]["heldout_per"] > records[-1]["heldout_per"] < 0.1
    assert about["heldout_per"] == records[about["best_epoch"] - 1]["heldout_per"]
    assert f"{100 * about['heldout_per']:.2f} %" in (home / "out" / "MODEL_CARD.md").read_text()
    assert "heldout_per" in _SCALARS
    # Again, of the model that was written, with what the utterances were made of as reference.
    model, log_prior, _ = load_network(home / "out")
    packed, loop = open_packed(home / "frames" / "heldout.frames"), loop_phones(_hmm())
    frames = open_packed(home / "frames" / "train.frames")
    made = module.phone_errors(_hmm(), {"train": frames, "heldout": packed}, log_prior, 1, torch.device("cpu"))
    hypotheses = []
    for feats in np.split(packed.frames_NF, packed.offsets_U1[1:-1]):
        scores = loop.scores(logits(model, torch.from_numpy(feats.copy())).numpy(), log_prior)
        hypotheses.append(" ".join(map(str, best_phones(loop, made.bigram, scores, module.ACOUSTIC_SCALE))))
    references = [" ".join(map(str, spoken[utterance])) for utterance in packed.utterances]
    assert jiwer.wer(references, hypotheses) == pytest.approx(about["heldout_per"])


def test_the_reference_is_what_was_said(corpus):
    home, spoken = corpus
    packed, loop = open_packed(home / "frames" / "heldout.frames"), loop_phones(_hmm())
    for utterance, senones in zip(packed.utterances, np.split(packed.senones_N, packed.offsets_U1[1:-1]), strict=True):
        assert loop.spoken(loop.segments(senones)).tolist() == spoken[utterance]


def test_senones_known_by_number_only_have_none(corpus):
    home, _ = corpus
    PdfsOnly(12, "because").save(home / "hmm")
    about = train(_config(home), home / "out")
    assert "heldout_per" not in about and all("heldout_per" not in record for record in about["history"])
    assert "phone loop" not in (home / "out" / "MODEL_CARD.md").read_text()


def test_what_is_decoded_is_drawn_and_bounded(corpus, monkeypatch):
    home, _ = corpus
    train_frames, heldout = (open_packed(home / "frames" / f"{name}.frames") for name in ("train", "heldout"))
    lengths, prior = np.diff(heldout.offsets_U1), log_priors(train_frames.counts_S)

    def drawn(frames, seed):
        monkeypatch.setattr(module, "DECODED_FRAMES", frames)
        made = module.phone_errors(
            _hmm(), {"train": train_frames, "heldout": heldout}, prior, seed, torch.device("cpu")
        )
        return made.utterances.tolist()

    assert drawn(10**9, 1) == list(range(12))
    half = int(lengths.sum()) // 2
    assert half - lengths.max() < lengths[drawn(half, 1)].sum() <= half
    assert drawn(half, 1) == drawn(half, 1) and len({tuple(drawn(half, seed)) for seed in range(5)}) > 1
    assert drawn(1, 1) == [int(lengths.argmin())]
    monkeypatch.setattr(module, "MOST_PHONES", 3)
    assert (
        module.phone_errors(_hmm(), {"train": train_frames, "heldout": heldout}, prior, 1, torch.device("cpu")) is None
    )


def test_the_report_has_a_figure_and_a_table(tmp_path):
    records = [
        {
            "event": "epoch",
            "epoch": n,
            "seconds": 10.0 * n,
            "frames": 1000 * n,
            "heldout_accuracy": 0.4 + n / 100,
            "heldout_loss": loss,
            "train_loss": 1.0,
            "heldout_per": per,
        }
        for n, (loss, per) in enumerate(((2.0, 0.5), (1.8, 0.3125), (1.9, 0.25)), 1)
    ]
    without = [{key: value for key, value in each.items() if key != "heldout_per"} for each in records]
    systems = [
        System(name, score({"u": "a"}, {"u": "a"}), metrics=kept, network={**kept[1], "best_epoch": 2})
        for name, kept in (("one", records), ("two", without))
    ]
    write_report(tmp_path / "report.html", Report("t", "c", systems))
    page = (tmp_path / "report.html").read_text()
    assert "Phone error rate, held-out" in page
    row = next(line for line in page.split("<tr") if ">one<" in line and "31.25" in line)
    assert [text in row for text in ("epoch 2", "42.00", "1.8000")] == [True] * 3
    assert any(">two<" in line and "1.8000" in line and "31.25" not in line for line in page.split("<tr"))
    write_report(tmp_path / "without.html", Report("t", "c", systems[1:]))
    assert "Phone error rate, held-out" not in (tmp_path / "without.html").read_text()
