"""Help of all verbs, `-h`, `-V`, `--quiet`, and what the shell completes."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.main import get_command

import speech3
from speech3 import cli
from speech3.cli import _verb
from speech3.config import presets, shipped
from speech3.errors import Speech3Error
from speech3.language import train_lm
from speech3.recipe.experiment import open_experiment
from speech3.recipe.plan import planned_steps
from speech3.runtime import reporting, say

Run = Callable[..., subprocess.CompletedProcess[str]]
ROOT = Path(__file__).resolve().parents[2]
LM = ("lm train", "lm prune", "lm interpolate", "lm perplexity")
G2P = ("g2p train", "g2p apply")
MODULES = [verbs for group in cli._GROUPS.values() for verbs in group.values()]
VERBS = [*(verb for verbs in MODULES for verb in verbs if verb not in ("lm", "g2p")), *LM, *G2P]


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["speech3", *arguments])
        monkeypatch.setenv("COLUMNS", "100")
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert not end.value.code
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_every_verb_has_metavars_in_upper_case(program, verb: str) -> None:  # type: ignore[no-untyped-def]
    text = program(*verb.split(), "-h")
    assert text == program(*verb.split(), "--help")
    usage = next(line for line in text.splitlines() if "Usage:" in line)
    assert re.fullmatch(rf" Usage: .*speech3 {verb} \[OPTIONS\]( \[?[A-Z.=]+\]?(\.onnx)?)* *", usage), usage
    # A brace before a space is sclite's `{ um / uh / @ }`, in the help of score.
    assert not re.search(r"<(bool|int|str|path|float|list)|\{(?! )", text.replace('{"', ""))
    assert all(option in text for option in ("--quiet", "-q", "--help", "-h"))
    for line in text.splitlines():
        if line.startswith("│"):  # first column: the argument, or the option, its short form and its metavar
            assert not re.match(r"│ \*? +(--[a-z0-9-]+ +)?(-[a-z] +)?[a-z_]+  ", line), line


def test_version(program) -> None:  # type: ignore[no-untyped-def]
    assert program("-V") == program("--version") == f"speech3 {speech3.__version__}\n"


@pytest.mark.parametrize("place", ["before the verb", "after the verb", "not at all"])
def test_quiet_leaves_results_and_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, speech3: Run, place: str
) -> None:
    (tmp_path / "text.txt").write_text("a b\na c\n")
    kept = train_lm.train
    monkeypatch.setattr(train_lm, "train", lambda *arguments: (say("a note"), kept(*arguments))[1])
    monkeypatch.setenv("SPEECH3_QUIET", "")  # the option sets both
    monkeypatch.setattr(reporting.console, "quiet", False)
    arguments = ["lm", "train", "text.txt", "--out", "lm.arpa"]
    arguments = {"before the verb": ["--quiet", *arguments], "after the verb": [*arguments, "-q"]}.get(place, arguments)
    done = speech3(*arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "lm.arpa: " in done.stdout
    assert done.stderr == ("a note\n" if place == "not at all" else "")
    if place == "after the verb":
        arguments[arguments.index("text.txt")] = "missing.txt"
        done = speech3(*arguments, cwd=tmp_path)
        assert done.returncode == 1 and "missing.txt" in done.stderr


def completed(words: str) -> list[str]:
    environment = {"_SPEECH3_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.setattr(sys, "argv", ["speech3"])
        cli._register()
        from contextlib import redirect_stdout
        from io import StringIO

        with redirect_stdout(StringIO()) as out, pytest.raises(SystemExit):
            get_command(cli.app).main(prog_name="speech3")
    return out.getvalue().split()


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("speech3 recipe di", ["digits"]),
        ("speech3 recipe digits --from h", ["hmm"]),
        (
            "speech3 recipe digits model=cnn_t",
            [f"model=cnn_tdnn{size}" for size in ("", "_100k", "_1m", "_300k", "_3m")],
        ),
        ("speech3 recipe digits seed=2 model = ls", ["lstm", "lstm_small", "lstmp"]),  # as bash splits it
        ("speech3 recipe digits lfmmi.features =", presets("features")),
        ("speech3 recipe digits lfmm", ["lfmmi="]),
        ("speech3 train my.yaml --world s", ["sgd", "simulated", "shared", "sandblaster"]),
        ("speech3 simulate my.yaml --strategies sgd,ter", ["sgd,terngrad_ddp", "sgd,terngrad_momentum"]),
        ("speech3 extract a b --features fbank40_p", ["fbank40_pitch"]),
        ("speech3 augment a b --augment no", ["noisy"]),
    ],
)
def test_the_shell_completes(words: str, found: list[str]) -> None:
    assert completed(words) == found


def test_the_shell_completes_trained_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in ("exp/digits/dnn/model.safetensors", "exp/digits/tri/hmm.json", "exp/digits/data/text", "m/hmm.json"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    assert completed("speech3 decode exp/digits/") == ["exp/digits/dnn", "exp/digits/tri"]
    assert _verb.models("") == ["exp/digits/dnn", "exp/digits/tri"]
    assert _verb.models("m") == ["m"]


def test_completed_stages_are_those_of_recipes(tmp_path: Path) -> None:
    experiment = open_experiment("digits", tmp_path, None, ["lfmmi={}", "untranscribed=/nowhere", "lm.rescore=2"], "")
    assert {step.stage for step in planned_steps(experiment)} == set(_verb.STAGES)


def test_run_without_arguments_lists_the_recipes_before_it_installs(tmp_path: Path) -> None:
    copy = tmp_path / "recipes"
    for name in ("digits", "any"):
        (copy / name).mkdir(parents=True)
        (copy / name / "recipe.yaml").write_bytes((shipped("recipes") / name / "recipe.yaml").read_bytes())
    for name in ("run.sh", "environment.sh"):
        (copy / name).write_bytes((ROOT / "recipes" / name).read_bytes())
    done = subprocess.run(
        ["bash", copy / "run.sh"], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, timeout=60, check=True
    )
    assert "  digits      Synthesised connected digits" in done.stdout and "  any         Your own" in done.stdout
    assert done.stderr == "" and not (tmp_path / ".venv").exists()


def test_recipes_take_jobs_and_lang_as_options_and_as_keys(tmp_path: Path) -> None:
    from speech3.cli.train import _as_overrides

    assert _as_overrides([], jobs=2, lang="en-us", other=None) == ["jobs=2", "lang=en-us"]
    with pytest.raises(Speech3Error, match="--jobs 2, jobs=1"):
        _as_overrides(["jobs=1"], jobs=2)
