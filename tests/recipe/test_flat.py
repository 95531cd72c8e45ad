"""The training data of the flat start without GMMs, and the utterances that it leaves out."""

import re
from pathlib import Path

import numpy as np
import pytest
import yaml

from speech3.config import FeatureConfig, load_preset
from speech3.errors import DataError, SettingError, Speech3Error
from speech3.frames.packed import open_packed, segment_numbers
from speech3.hmm.model import load_hmm
from speech3.io.ark import write_ark
from speech3.recipe import stages
from speech3.recipe.experiment import Experiment, open_experiment
from speech3.sequence.lfmmi import load_denominator

LEXICON = "one W AH N\ntwo T UW\ntwo T UH\nthree TH R IY\n"
USUAL = 40  # utterances of "one two three", 8 phones, in 30 frames


def experiment(root: Path, *odd: tuple[str, int]) -> Experiment:
    """A recipe whose train and dev have the usual utterances and some with another text or number of frames."""
    e = open_experiment("digits", root, None, ["hmm.flat_start=lfmmi", "lfmmi={}", "flat.longest_s=1.0"], "")
    preset = e.feature_preset("flat")
    for split in ("train", "dev"):
        spoken = [("one two three", 30)] * USUAL + list(odd)
        names = [f"{split}-{number:02}" for number in range(len(spoken))]
        data, features = e.data(split), e.features(preset, split)
        data.mkdir(parents=True)
        features.mkdir(parents=True)
        (data / "wav.scp").write_text("".join(f"{name} {name}.wav\n" for name in names))
        (data / "utt2spk").write_text("".join(f"{name} {name}\n" for name in names))
        (data / "text").write_text("".join(f"{name} {text}\n" for name, (text, _) in zip(names, spoken, strict=True)))
        rng = np.random.default_rng(0)
        matrices = (
            (name, rng.normal(size=(n, 40)).astype(np.float32)) for name, (_, n) in zip(names, spoken, strict=True)
        )
        write_ark(features / "feats.ark", matrices, features / "feats.scp")
        config = load_preset(FeatureConfig, "features", preset)
        (features / "features.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")))
    e.lexicon.write_text(LEXICON)
    return e


def test_what_cannot_be_learnt_from_is_left_out_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    e = experiment(tmp_path, ("one two three", 21), ("one two four", 30), ("one two one two", 300))
    stages.prepare_flat(e)
    hmm, denominator = load_hmm(e.model("flat_hmm")), load_denominator(e.model("flat_hmm"))
    assert hmm.num_pdfs == denominator.num_pdfs == 2 * len(hmm.lexicon.phones)
    said = capsys.readouterr().err
    for name, split in (("train", "train"), ("heldout", "dev")):
        packed = open_packed(e.frames("flat") / f"{name}.frames")
        assert packed.utterances == tuple(f"{split}-{number:02}" for number in range(USUAL))
        assert packed.info["speed_perturb"] == []
        words = segment_numbers(packed.senones_N[:30])
        assert [list(hmm.lexicon.word_numbers)[word] for word in words] == ["one", "two", "three"]
        assert re.search(rf"skipped {split}-40: too short at a third .*: 8 phones, 7 outputs", said)
        assert re.search(rf"skipped {split}-41: .*not in the lexicon: four", said)
        assert f"1 of 43 utterances of {split} are longer than 1 s" in said
    assert (e.frames("flat") / "features.yaml").exists()
    # Both pronunciations of "two" are in the phone language model.
    phones = hmm.lexicon.phone_ids
    assert {phones["UW"], phones["UH"]} <= set(denominator.lm.phone_J.tolist())


def test_too_many_short_utterances_stop_it(tmp_path: Path) -> None:
    e = experiment(tmp_path, *[("one two three", 21)] * 4)
    with pytest.raises(DataError, match="4 of 44 utterances cannot be used for"):
        stages.prepare_flat(e)


def test_what_cannot_be_trained_is_named_by_the_recipe_s_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    e = experiment(tmp_path)
    stages.prepare_flat(e)
    smoothed = e.recipe.flat.training.model_copy(update={"label_smoothing": 0.1})
    config = e.recipe.flat.model_copy(update={"training": smoothed})
    e = Experiment(e.name, e.recipe.model_copy(update={"flat": config}), e.out, None, "")
    with pytest.raises(SettingError, match=r"^flat\.training\.label_smoothing=0\.1"):
        stages.train_flat(e)

    def fail(*_: object) -> None:
        raise Speech3Error("a/model.safetensors: lower training.learning_rate, or set model.width=24, not model=dnn")

    monkeypatch.setattr("speech3.train.train", fail)
    with pytest.raises(
        Speech3Error,
        match=r"^a/model\.s\w+",
    ):
        stages.train_lfmmi(e)


def test_nothing_but_long_utterances_names_the_key(tmp_path: Path) -> None:
    e = experiment(tmp_path)
    short = e.recipe.flat.model_copy(update={"longest_s": 0.2})
    e = Experiment(e.name, e.recipe.model_copy(update={"flat": short}), e.out, None, "")
    with pytest.raises(Speech3Error, match=r"flat\.longest_s=0\.2"):
        stages.prepare_flat(e)
