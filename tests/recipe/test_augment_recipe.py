"""The recipe with `augment`: only the networks are trained on the copies, with the alignment of the originals."""

import re
from pathlib import Path

import numpy as np
import pytest

from speech3.errors import Speech3Error
from speech3.frames.packed import open_packed
from speech3.io.ark import read_int_ark
from speech3.recipe.experiment import open_experiment
from speech3.recipe.plan import planned_steps
from speech3.recipe.steps import make_plan

FRAMES = ["train/tri.frames", "train/dnn", "decode/dnn", "score", "report"]


def would(out: Path, *overrides: str) -> list[str]:
    """Names of the steps that would run."""
    experiment = open_experiment("digits", out, None, list(overrides), "")
    return [plan.step.name for plan in make_plan(planned_steps(experiment), out, None, None) if plan.why]


@pytest.mark.slow
def test_the_network_learns_from_clean_and_augmented_speech(speech3, tiny, mine: Path) -> None:
    clean = open_packed(mine / "frames" / "tri" / "train.frames")
    before = {
        name: np.array(clean.frames_NF[begin:end])
        for name, begin, end in zip(clean.utterances, clean.offsets_U1[:-1], clean.offsets_U1[1:], strict=True)
    }
    options = (*tiny, "augment=noisy", "augment.reverb_prob=0.5")
    process = speech3("recipe", "digits", "--out", mine, *options)
    assert process.returncode == 0, process.stderr
    ran = re.findall(r"^\[\d+/\d+\] (\S+): .*, running$", process.stderr, re.M)
    assert ran == ["data/augment", "features/augmented", *FRAMES]
    assert [line.split()[1] for line in process.stdout.splitlines()[-3:]] == ["mono", "tri", "dnn"]

    packed = open_packed(mine / "frames" / "tri" / "train.frames")
    senones = read_int_ark(mine / "tri" / "align" / "train" / "ali.ark")
    names = set(packed.utterances)
    assert names == {*before, *(f"aug1-{name}" for name in before)}
    differ = 0
    for name, begin, end in zip(packed.utterances, packed.offsets_U1[:-1], packed.offsets_U1[1:], strict=True):
        original = name.removeprefix("aug1-")
        np.testing.assert_array_equal(packed.senones_N[begin:end], senones[original][: end - begin])
        assert len(before[original]) == end - begin
        same = np.array_equal(packed.frames_NF[begin:end], before[original])
        assert same or name != original
        differ += not same
    assert differ == len(before)
    assert packed.info["augment"]["noise_prob"] == 0.6 and packed.info["augment"]["reverb_prob"] == 0.5
    assert "reverb=" in (mine / "data" / "train_aug" / "augment.txt").read_text()
    assert would(mine, *options) == []
    assert would(mine, *tiny) == FRAMES, "without augmentation the network learns from clean speech again"

    e = open_experiment("digits", mine, None, [*options, "lfmmi={}"], "")
    for step in planned_steps(e):
        if step.name in ("features/fbank40_utt", "features/augmented", "hmm/lfmmi", "train/lfmmi.frames"):
            step.run()
    packed = open_packed(e.frames("lfmmi") / "train.frames")
    assert set(packed.utterances) == names and packed.info["augment"]["noise_prob"] == 0.6
    place = {name: slice(*packed.offsets_U1[number : number + 2]) for number, name in enumerate(packed.utterances)}
    for name in before:
        original, copy = place[name], place[f"aug1-{name}"]
        np.testing.assert_array_equal(packed.senones_N[original], packed.senones_N[copy])
    assert not np.array_equal(packed.frames_NF[place[min(before)]], packed.frames_NF[place[f"aug1-{min(before)}"]])


def test_what_it_changes(tiny, experiment: Path) -> None:
    assert would(experiment, *tiny, "augment=rooms") == ["data/augment", "features/augmented", *FRAMES]
    assert would(experiment, *tiny, "augment=null") == []
    assert would(experiment, *tiny, "augment=rooms", "features=fbank40") == [
        "data/augment",
        "features/fbank40",
        "features/augmented",
        "train/tri_fbank40.frames",
        *FRAMES[1:],
    ]
    whole = would(experiment, *tiny, "augment=rooms", "lfmmi={}")
    assert whole.index("features/augmented") > whole.index("features/fbank40_utt")
    assert "train/lfmmi.frames" in whole
    perturbed = open_experiment("digits", experiment, None, [*tiny, "augment=rooms", "speed_perturb=[0.9]"], "")
    assert perturbed.augmented == "train_sp_aug"


def test_directories_of_noise_are_what_the_copies_are_made_of(tiny, experiment: Path, tmp_path: Path) -> None:
    options = (*tiny, "augment=noisy", f"augment.noise_dir={tmp_path / 'musan'}")
    with pytest.raises(Speech3Error, match=r"musan: no such file or directory \(needed by data/augment\)"):
        would(experiment, *options)
    (tmp_path / "musan").mkdir()
    assert would(experiment, *options)[0] == "data/augment"


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["augment=mixed", "augment.speed=[0.9]"], r"augment\.speed: .* use speed_perturb"),
        (["augment=nothing"], r"nothing: neither a YAML file nor a preset of conf/augment \(mixed, noisy, "),
        (["augment.noise_prob=2"], r"augment\.noise_prob: .* less than or equal to 1 \(got 2\)"),
        (["augment=noisy", "augment.noise=1"], r"unknown key 'augment\.noise'; known here: .*noise_dir"),
        (["augment=mixed", "features=given"], "features=given: augment makes audio"),
        (["background=true", "features=given"], "features=given: background makes audio"),
        (["augment={}"], r"augment: .*set one of the keys \*_prob"),
    ],
)
def test_what_is_refused(tmp_path: Path, overrides: list[str], told: str) -> None:
    with pytest.raises(Speech3Error, match=told):
        open_experiment("digits", tmp_path, None, overrides, "")
