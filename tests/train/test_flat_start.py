"""A flat start from transcripts alone: a toy corpus whose phone boundaries are known."""

import numpy as np
import pytest

from speech3.config import ModelConfig, TrainConfig, TrainingConfig, load_preset
from speech3.decode.trained_model import NetworkScorer
from speech3.errors import Speech3Error
from speech3.frames.packed import write_frames
from speech3.hmm.alignment.align import Transcripts, align_utterances
from speech3.hmm.model import FIRST_AND_LOOP, Hmm, monophone_tree
from speech3.language.lexicon import Lexicon, Pronunciation
from speech3.models import load_network
from speech3.runtime import read_metrics
from speech3.sequence.graph import estimate_phone_lm
from speech3.sequence.lfmmi import make_denominator, random_phones, word_labels
from speech3.train import train

DIM = 8
LEXICON = Lexicon(
    (
        Pronunciation("one", ("a", "b")),
        Pronunciation("one", ("a", "c")),
        Pronunciation("two", ("d", "a")),
        Pronunciation("three", ("b", "c", "d")),
        Pronunciation("four", ("c", "b")),
    )
)
PHONES = len(LEXICON.phones)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Words in random order, said in one of their ways, silence between some; where each phone is, is known."""
    root, rng = tmp_path_factory.mktemp("flat"), np.random.default_rng(0)
    centers = rng.normal(0, 2, (PHONES + 1, DIM))
    hmm = Hmm(LEXICON, monophone_tree(np.arange(PHONES), 2), np.full(2 * PHONES, 0.5), FIRST_AND_LOOP, 3)
    words, truth, feats, said = {}, {}, {}, []
    for name, count in (("train", 80), ("heldout", 8)):
        labels = {}
        for utterance in (f"{name}{i}" for i in range(count)):
            words[utterance] = rng.choice(list(LEXICON.by_word), rng.integers(2, 5)).tolist()
            phones = np.array(random_phones(LEXICON, words[utterance], rng))
            lengths = rng.integers(6, 16, len(phones))
            truth[utterance] = phones, np.cumsum([0, *lengths])
            clean = centers[np.repeat(phones, lengths)]
            feats[utterance] = (clean + rng.normal(size=clean.shape)).astype(np.float32)
            labels[utterance] = word_labels(LEXICON, words[utterance], len(clean))
            said.append(random_phones(LEXICON, words[utterance], rng))
        write_frames(
            root / "frames" / f"{name}.frames", feats, labels, 2 * len(LEXICON.by_word), utterances=list(labels)
        )
    hmm.save(root / "hmm")
    make_denominator(estimate_phone_lm(said, 100), hmm).save(root / "hmm")
    return root, hmm, words, truth, feats


def _config(root, **training):
    preset = load_preset(TrainingConfig, "training", "lfmmi_flat").model_dump()
    small = {"minibatch": 600, "max_epochs": 6, "speeds": (), "learning_rate": 0.01}
    network = {"family": "tdnn", "layers": 1, "width": 32, "bottleneck": 8, "prefinal": 16, "two_outputs": True}
    return TrainConfig(
        frames=str(root / "frames"),
        hmm=str(root / "hmm"),
        model=ModelConfig(**network),
        training=TrainingConfig.model_validate(preset | small | training),
    )


def test_finds_the_boundaries_of_phones(corpus, tmp_path):
    root, hmm, words, truth, feats = corpus
    train(_config(root), tmp_path / "out")
    history = [record for record in read_metrics(tmp_path / "out" / "metrics.jsonl") if record["event"] == "epoch"]
    assert history[-1]["heldout_loss"] < history[0]["heldout_loss"]
    assert history[-1]["heldout_per"] < 0.3  # of the first pronunciations; one word in four has two
    network, log_prior_P, _ = load_network(tmp_path / "out")
    scorer = NetworkScorer(network, log_prior_P, pseudo_likelihoods=True)
    found = align_utterances(
        hmm, scorer, Transcripts(words, {}), feats, beam=15, retry_beam=60, jobs=1, acoustic_scale=1.0
    ).alignments
    # The pronunciation that was used, too. A silence of one output may stand where there is none.
    silence, off = LEXICON.silence, []
    for utterance, alignment in found.items():
        (phones, starts), heard = truth[utterance], alignment.phones != silence
        if alignment.phones[heard].tolist() == phones[phones != silence].tolist():
            off.append(3 * alignment.starts[:-1][heard] - starts[:-1][phones != silence])
    assert len(off) > 0.95 * len(words)
    frames = np.abs(np.concatenate(off))
    assert frames.mean() < 3  # an output
    assert (frames <= 6).mean() > 0.95


def test_several_workers_share_the_minibatches_of_an_epoch(corpus, tmp_path):
    root, simulation = corpus[0], {"compute_s": 1.0, "sync_s": 0.05}
    about = train(_config(root, world="simulated", workers=2, simulation=simulation, max_epochs=3), tmp_path / "out")
    history = [record for record in read_metrics(tmp_path / "out" / "metrics.jsonl") if record["event"] == "epoch"]
    assert about["objective"] == "lfmmi"
    assert [record["minibatches"]["used"] for record in history] == 3 * [history[0]["minibatches"]["used"]]
    assert history[-1]["heldout_loss"] < history[0]["heldout_loss"]


def test_what_cannot_be_trained_is_named(corpus, tmp_path):
    root = corpus[0]
    for sequence in (0, 150):
        with pytest.raises(ValueError, match=rf"sequence={sequence}: .*whole utterances; remove sequence"):
            _config(root, sequence=sequence)
    of_phones = _config(root, lfmmi={"numerators": "alignment"}, sequence=30)
    with pytest.raises(Speech3Error, match=rf"8 senones.*{2 * PHONES + 2} labels"):
        train(of_phones, tmp_path / "out")
