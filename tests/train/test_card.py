"""The model card says what is in the directory, and the same twice."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from speech3.config import DnnConfig, TrainConfig, TrainingConfig
from speech3.frames.packed import write_frames
from speech3.hmm.model import Hmm, PdfsOnly, monophone_tree
from speech3.io.checkpoint import load_tensors, save_tensors
from speech3.language.lexicon import Lexicon, Pronunciation
from speech3.models import save_mean
from speech3.train import train
from speech3.train.card import Scored, write_card

DIM, SENONES = 6, 6
TESTED = Scored(
    "dev of it", 20, 1234, 0.1234, (0.102, 0.146), 0.0456, (0.03, 0.06), {"acoustic scale": 0.1, "beam": 15.0}
)


def _train(home: Path, cmvn: str = "cmvn: speaker", augment: dict | None = None, **training) -> Path:
    rng = np.random.default_rng(0)
    for name, count in (("train", 40), ("heldout", 8)):
        labels = {f"{name}{i}": rng.integers(0, SENONES, 40).astype(np.int32) for i in range(count)}
        feats = {u: rng.normal(0, 1, (40, DIM)).astype(np.float32) + x[:, None] for u, x in labels.items()}
        info = {
            "corpus": "made up",
            "alignment": "tri",
            "speed_perturb": [],
            "augment": augment,
            "background": augment is not None,
        }
        write_frames(home / "frames" / f"{name}.frames", feats, labels, SENONES, utterances=list(feats), info=info)
    (home / "frames" / "features.yaml").write_text(f"{{kind: fbank, num_mel_bins: 6, sample_frequency: 8000, {cmvn}}}")
    Hmm(Lexicon((Pronunciation("WORD", ("a",)),)), monophone_tree(np.arange(2)), np.full(6, 0.5)).save(home / "hmm")
    config = TrainConfig(
        frames=str(home / "frames"),
        hmm=str(home / "hmm"),
        model=DnnConfig(layers=1, width=8),
        training=TrainingConfig(**{"max_epochs": 2, "minibatch": 64, **training}),
    )
    train(config, home / "out")
    return home / "out"


def _rows(card: str, head: str) -> list[list[str]]:
    """Cells of the Markdown table whose first column is called `head`."""
    lines = card.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(f"| {head} "))
    rows = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    assert len({len(row) for row in rows}) == 1
    return [rows[0], *rows[2:]]


def test_a_finished_run_has_a_card(tmp_path):
    out = _train(tmp_path)
    about, card = load_tensors(out / "model.safetensors")[1], (out / "MODEL_CARD.md").read_text()
    assert card.startswith("# out: acoustic model trained on made up\n\nA DNN that")
    assert "each of 6 senones" in card and "states of 2 phones, with a dictionary of 1 words" in card
    assert "Word error rate: not measured." in card and "speech3 tune out DEV" in card
    assert "Labels from the alignment by: tri. Senones" in card
    train_row, heldout_row = _rows(card, "part")[1:]
    assert train_row == ["train", "40", "1,600", "0.00", about["frames"]["train"]]
    assert heldout_row[:3] == ["heldout", "8", "320"]
    epochs = _rows(card, "epoch")
    assert [row[2] for row in epochs[1:]] == [f"{100 * each['heldout_accuracy']:.2f}" for each in about["history"]]
    assert f"{100 * about['heldout_accuracy']:.2f} % of the held-out frames" in card
    assert "training: {minibatch: 64, max_epochs: 2}\n" in card and "width: 8" in card
    assert [row[0] for row in _rows(card, "layer")] == ["layer", "layers.hidden.0", "output", "all"]
    assert "fbank, no preset, 6 values per frame, normalised by speaker" in card
    assert "resampled to 8,000 Hz" in card and "right speaker" in card
    assert all(f"{name} {version}" in card for name, version in about["versions"].items())


@pytest.mark.parametrize(
    ("cmvn", "said"),
    [
        ("cmvn: sliding", "normalised by sliding window"),
        (f"cmvn: global, global_stats: [{[0.0] * 6 + [9.0]}, {[1.0] * 7}]", "by statistics of its training data"),
    ],
)
def test_normalisation_over_no_utterance_and_no_speaker_and_augmented_copies(tmp_path, cmvn, said):
    augment = {"noise_prob": 0.6, "noise_dir": None, "noise_snr_db": [0, 5], "reverb_prob": 0.0, "babble_prob": 0.4}
    card = (_train(tmp_path, cmvn, augment) / "MODEL_CARD.md").read_text()
    assert "tri. Also trained on a copy of each utterance with background noise before, in and after it. Also" in card
    assert "Also trained on an augmented copy of each utterance: noise_prob 0.6, babble_prob 0.4." in card
    assert said in card and "normalised per" not in card


def test_scores_take_the_place_of_their_absence(tmp_path):
    out = _train(tmp_path)
    without = (out / "MODEL_CARD.md").read_text()
    write_card(out, [TESTED])
    once = (out / "MODEL_CARD.md").read_text()
    assert _rows(once, "test set")[1] == [
        "dev of it",
        "20",
        "1,234",
        "12.34",
        "[10.20, 14.60]",
        "4.56",
        "[3.00, 6.00]",
        "acoustic scale 0.1, beam 15",
    ]
    assert "not measured" not in once and "speech3 tune" not in once
    write_card(out, [TESTED])
    assert (out / "MODEL_CARD.md").read_text() == once
    write_card(out)
    assert (out / "MODEL_CARD.md").read_text() == without


def test_of_many_epochs_a_few_are_shown(tmp_path):
    out = _train(tmp_path)
    tensors, about = load_tensors(out / "model.safetensors")
    about |= {"history": [{**about["history"][0], "epoch": epoch} for epoch in range(1, 31)], "best_epoch": 7}
    save_tensors(out / "model.safetensors", tensors, about)
    write_card(out)
    shown = [int(row[0]) for row in _rows((out / "MODEL_CARD.md").read_text(), "epoch")[1:]]
    assert len(shown) <= 8 and {1, 7, 30} <= set(shown) and shown == sorted(shown)


def test_keys_of_older_versions_do_no_harm(tmp_path):
    out = _train(tmp_path)
    before = (out / "MODEL_CARD.md").read_text()
    tensors, about = load_tensors(out / "model.safetensors")
    about["training"]["asgd"]["key_of_an_older_version"] = 0.0
    save_tensors(out / "model.safetensors", tensors, about)
    write_card(out)
    assert "The epoch was selected on the held-out frames" in before
    assert "The epoch was selected on the held-out frames" in (out / "MODEL_CARD.md").read_text()


def test_a_restart_takes_the_card_away(tmp_path, monkeypatch):
    out = _train(tmp_path)
    monkeypatch.setattr("speech3.train.run._Run.finish", lambda self: {})
    train(
        TrainConfig(
            frames=str(tmp_path / "frames"),
            hmm=str(tmp_path / "hmm"),
            model=DnnConfig(layers=1, width=9),
            training=TrainingConfig(max_epochs=1),
        ),
        out,
        restart=True,
    )
    assert not (out / "MODEL_CARD.md").exists()


def test_outputs_known_by_number_only(tmp_path):
    out = _train(tmp_path)
    for name in ("tree.safetensors", "lexiconp.txt"):
        (out / name).unlink()
    PdfsOnly(SENONES, "made elsewhere").save(out)
    write_card(out)
    card = (out / "MODEL_CARD.md").read_text()
    assert "known by number only" in card and "dictionary" not in card


def test_a_simulated_run(tmp_path):
    card = (_train(tmp_path, world="simulated", workers=3, simulation={"compute_s": 0.1}) / "MODEL_CARD.md").read_text()
    assert "world simulated, 3 workers (virtual seconds)" in card
    assert "simulation: {compute_s: 0.1}" in card


def test_a_run_that_began_with_a_model_and_made_it_no_better(tmp_path):
    out = _train(tmp_path, max_epochs=20, learning_rate=0.3)
    config = TrainConfig(
        frames=str(tmp_path / "frames"),
        hmm=str(tmp_path / "hmm"),
        model=DnnConfig(layers=1, width=8),
        init=str(out),
        training=TrainingConfig(max_epochs=1, learning_rate=1e-9, schedule="constant"),
    )
    about = train(config, tmp_path / "second")
    card = (tmp_path / "second" / "MODEL_CARD.md").read_text()
    assert (
        f"started from {out}/model.safetensors, held-out accuracy {100 * about['before']['heldout_accuracy']:.2f} %"
        in card
    )
    assert about["best_epoch"] == 0 and "after epoch 0" not in card


def test_the_card_of_a_mean_describes_both_networks(tmp_path):
    one = _train(tmp_path)
    two, mean = (Path(shutil.copytree(one, tmp_path / name)) for name in ("two", "mean"))
    save_mean(mean / "model.safetensors", [one, two])
    write_card(mean, (TESTED,))
    card = (mean / "MODEL_CARD.md").read_text()
    assert card.startswith("# mean: acoustic model trained on made up\n\nA mean of the networks out and two")
    heads = ["Results", "Use", "Data of out", "Data of two", "Model", "Training of out", "Training of two"]
    assert [line[3:] for line in card.splitlines() if line.startswith("## ")] == [*heads, "Limits", "Versions"]
    assert "12.34" in card and "--init" not in card and card.count("held-out frames are classified correctly") == 2
