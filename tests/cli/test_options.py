"""Every option of every verb acts, or is refused with those that leave it without effect; so are keys of configs."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.main import get_command

from speech3 import cli
from speech3.config import TrainingConfig
from speech3.errors import SettingError
from speech3.recipe.experiment import open_experiment

EVERYWHERE = {"--quiet", "--help", "--no-commands"}
# Options that act whatever else is given. Those of seeds and processes may have nothing to do; of a model or of files,
# the verb can only see when it has read them whether they are for these (`--transforms`, `--one-speaker`, `--unit`).
ACT = {
    "validate": "--jobs --all --no-text --features",
    "fix": "--jobs",
    "stats": "--lexicon --out --json --tier",
    "subset": "--speakers --utterances --per-speaker --shortest --first --hours --seed",
    "combine": "",
    "split": "--by --seed",
    "speakers": "--model --out --number --jobs",
    "augment": "--augment --copies --seed --jobs",
    "extract": "--features --jobs --compress --augment --seed",
    "recipe": "--source --out --from --to --jobs --lang --dry-run",
    "pack": "--ali --features --hmm --heldout --seed --jobs",
    "train": "--out --workers --world --device --init --restart",
    "pretrain": "--out --restart",
    "simulate": "--out --jobs --throughput",
    "lm train": "--out --vocabulary --neural",
    "lm prune": "--threshold",
    "lm interpolate": "--out",
    "lm perplexity": "--json",
    "g2p train": "--order",
    "g2p apply": "--nbest --reverse",
    "transcribe": "--graph --hot --json --stream",
    "decode": "--nbest --lattice --mbr --jobs --graph --with --transforms --words --hot --min-confidence",
    "rescore": "--tune --nbest --ctm --old --jobs",
    "graph": "--add --lm --text --grammar --sentences --lexicon --lang",
    "align": "--lang --lexicon --jobs --corrected",
    "tune": "--jobs --tier",
    "forward": "--jobs",
    "export": "--int8",
    "score": "--against --json --utt2spk --details",
    "boundaries": "--level --words-tier --phones-tier --json",
    "import": "--lang --graph",
    "export-kaldi": "",
    "doctor": "",
    "inspect": "--out --features --utterance --unit",
    "model-info": "--json",
    "watch": "",
    "compare": "--out --json",
}
# Command lines that would ignore the option that comes last; the files need not exist.
IGNORED = (
    "train a.yaml --address auto",
    "simulate a.yaml --throughput 2 --workers 3",
    "simulate a.yaml --throughput 2 --rates 0.1",
    "simulate a.yaml --throughput 2 --seeds 3",
    "simulate a.yaml --throughput 2 --strategies sgd",
    "simulate a.yaml --throughput 2 --no-synchronous",
    "simulate a.yaml --strategies sgd,asgd --no-synchronous",
    "simulate a.yaml --models dnn",
    "simulate a.yaml --gigabits 1",
    "lm train a.txt --out o --neural lstm --order 4",
    "lm train a.txt --out o --neural lstm --counts",
    "lm train a.txt --out o --neural lstm --minimum-counts 1,2",
    "lm train a.txt --out o --dev b.txt",
    "lm train a.txt --out o lm.width=8",
    "lm interpolate a.arpa b.arpa --out o --tune t --weights 0.5,0.5",
    "lm interpolate a.arpa b.arpa --out o --weights 0.5,0.5 --tune t",
    "transcribe m a.wav --json --ctm",
    "transcribe m a.wav --nbest 3 --min-confidence 0.5",
    "transcribe m a.wav --ctm --nbest 3",
    "transcribe m - --stream --with n",
    "transcribe m - --stream --textgrid d",
    "transcribe m - --stream --lattice d",
    "transcribe m - --stream --one-speaker",
    "transcribe m a.wav --rate 8000",
    "rescore d a.arpa o --tune t --weight 0.5",
    "graph m o --lm a.arpa --order 3",
    "align m d o --model n",
    "align m d o --train",
    "align m d o --text t",
    "align m d o --tier t",
    "align m d o --format csv",
    "align d o --model m --train",
    "align d o --model m --graphemes",
    "align d o --lexicon l --graphemes",
    "score r lat.ark --normalize lower",
    "score r lat.ark --format plain",
    "score r lat.ark --card m",
    "score r h --lang tr",
    "score r h --tier words",
    "validate d --tier words",
    "inspect a.wav --frames f",
    "inspect a.wav --word w",
)


def options_of(command: typer.core.TyperGroup, before: str = "") -> Iterator[tuple[str, set[str]]]:
    for name, verb in command.commands.items():
        if isinstance(verb, typer.core.TyperGroup):
            yield from options_of(verb, f"{name} ")
        else:
            named = {option.opts[0] for option in verb.params if option.param_type_name == "option"}
            yield f"{before}{name}", named - EVERYWHERE


def test_every_option_is_in_a_table() -> None:
    cli._register()
    program = get_command(cli.app)
    assert isinstance(program, typer.core.TyperGroup)
    found = dict(options_of(program))
    assert found.keys() == ACT.keys()
    for verb, options in found.items():
        lines = [line.split() for line in IGNORED if line.startswith(f"{verb} ")]
        refused = {option.replace("--no-", "--") for line in lines for option in line if option.startswith("--")}
        assert options == {*ACT[verb].split(), *refused}, verb


@pytest.mark.parametrize("line", IGNORED)
def test_an_option_without_effect_is_refused(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text("{frames: f, hmm: h, model: dnn_small, training: sgd}")
    monkeypatch.setattr(sys, "argv", ["speech3", *line.split()])
    with pytest.raises(SystemExit, match="1"):
        cli.main()
    named = [word for word in line.split() if word.startswith("--") or "=" in word][-1]
    said = capsys.readouterr().err
    assert said.startswith("error: ") and named in said and "Traceback" not in said
    assert {path.name for path in tmp_path.iterdir()} == {"a.yaml"}


@pytest.mark.parametrize(
    ("suffix", "line", "option"), [("ctm", "a 1 0.0 0.5 yes", "--words-tier"), ("wrd", "0 9 yes", "--level")]
)
def test_options_of_other_files_than_these(
    suffix: str,
    line: str,
    option: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    files = [tmp_path / f"{name}_words.{suffix}" for name in ("ours", "theirs")]
    for file in files:
        file.write_text(f"{line}\n")
    monkeypatch.setattr(sys, "argv", ["speech3", "boundaries", *map(str, files), option, "words"])
    with pytest.raises(SystemExit, match="1"):
        cli.main()
    assert capsys.readouterr().err.startswith(f"error: {option}")


@pytest.mark.parametrize("key", ["training.final_rate=0.1", "pretraining.noise=0.1"])
def test_a_key_of_pretraining_without_effect_is_refused(
    key: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["speech3", "pretrain", "recordings", key])
    with pytest.raises(SystemExit, match="1"):
        cli.main()
    assert capsys.readouterr().err.startswith(f"error: {key}: has no effect here: ")


@pytest.mark.parametrize(
    "key",
    [
        "asgd.sync_every=2", "lbfgs.history=3", "cluster.address=auto", "simulation.jitter=0.1",
        "lfmmi.leaky_hmm_coefficient=0.2", "discriminative.boost=0.1", "betas=[0.5,0.9]", "final_rate=0.1",
        "time_mask_frames=5", "frequency_mask_bins=4",
    ],
)  # fmt: skip
def test_a_key_of_training_without_effect_is_refused(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    conf = tmp_path / "a.yaml"
    conf.write_text("{frames: f, hmm: h, model: dnn_small, training: sgd}")
    monkeypatch.setattr(sys, "argv", ["speech3", "train", str(conf), f"training.{key}"])
    with pytest.raises(SystemExit, match="1"):
        cli.main()
    assert capsys.readouterr().err.startswith(f"error: training.{key}: has no effect here: ")


def test_keys_that_the_others_leave_without_effect() -> None:
    plain, every = TrainingConfig(), TrainingConfig.model_fields.keys()
    assert plain.unused.keys() <= every
    used = [
        {"world": "shared", "schedule": "exponential", "optimizer": "adamw", "objective": "lfmmi"},
        {"world": "cluster", "objective": "smbr", "time_masks": 1},
        {"world": "simulated", "frequency_masks": 1},
        {"world": "sandblaster"},
    ]
    assert not set(plain.unused).intersection(*(TrainingConfig(**keys).unused for keys in used))


@pytest.mark.parametrize(
    "keys",
    [
        "hmm.bmmi.iterations=2",
        "flat.longest_s=9",
        "pieces=99",
        "decode.metric=CER",
        "hmm.lda=null hmm.sat.passes=2",
        "lfmmi={} hmm.flat_start=lfmmi hmm.tri.leaves=99",
        "lfmmi.passes=3 lfmmi.training.max_epochs=4",
        "lfmmi={} lfmmi.training.final_rate=0.1",
        "training.final_rate=0.1",
    ],
)
def test_a_key_of_a_recipe_without_effect_is_refused(keys: str, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="has no effect here") as caught:
        open_experiment("digits", tmp_path / "out", None, keys.split(), "")
    assert str(caught.value).startswith(keys.split()[-1])
