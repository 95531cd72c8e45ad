"""`speech3 lm`: the output of its verbs, and their messages about users' mistakes."""

import gzip
import json
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from speech3 import cli
from speech3.cli.inspect import inspect
from speech3.cli.language import lm_verbs as verbs
from speech3.errors import Speech3Error
from speech3.language.arpa import read_arpa

TRAIN = "the cat sat\na dog ran\nthe dog sat\nthe cat ran away\n\na cat\nthe dog ran\n" * 3
HELD_OUT = "the dog sat\na cat ran\nthe bird sat\n"
OTHER = "the bird sang\na bird sat\nthe cat sang\n" * 4


def run(*arguments: str | Path) -> str:
    """Run a verb that must succeed; return its standard output."""
    result = CliRunner().invoke(verbs, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with texts, which becomes the working directory."""
    monkeypatch.chdir(tmp_path)
    for name, text in (("train.txt", TRAIN), ("held.txt", HELD_OUT), ("other.txt", OTHER)):
        Path(name).write_text(text)
    return tmp_path


def test_the_group_is_registered(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["speech3", "lm", "perplexity", "none.arpa", "none.txt"])
    monkeypatch.setattr(cli.app, "registered_groups", [])
    monkeypatch.setattr(cli.app, "registered_commands", [])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 1
    assert "error: none.arpa: no such language model" in capsys.readouterr().err


def test_train_and_measure(here: Path) -> None:
    said = run("train", "train.txt", "--order", "3", "--out", "lm.arpa.gz")
    assert said.startswith("lm.arpa.gz: 9 1-grams, ")
    said = run("perplexity", "lm.arpa.gz", "held.txt")
    assert "3 sentences, 9 words, 1 unknown (OOV, 11.11 %)" in said
    assert "with unknown words infinite, the model has no <unk>" in said
    found = json.loads(run("perplexity", "lm.arpa.gz", "held.txt", "--json"))
    assert f"perplexity {found['ppl']:.2f};" in said
    assert sum(found["hits"]) == 9 + 3 - 1 and found["oov"] == 1 and found["ppl_with_oov"] is None
    Path("words").write_text("the\ncat\nbird\n")
    said = run("train", "train.txt", "--order", "2", "--vocabulary", "words", "--out", "closed.arpa")
    assert re.search(r"33 of 54 words of the text \(61\.11 %\) are not in words: <unk>", said), said
    assert json.loads(run("perplexity", "closed.arpa", "held.txt", "--json"))["oov"] == 5


def test_prune_and_interpolate(here: Path) -> None:
    run("train", "train.txt", "--out", "lm.arpa")
    run("train", "other.txt", "--out", "other.arpa", "--order", "2")
    said = run("prune", "lm.arpa", "small.arpa.gz", "--threshold", "0.01")
    kept, whole = (len(read_arpa(name).ngrams[1]) for name in ("small.arpa.gz", "lm.arpa"))
    assert f"{kept} of {whole} 2-grams" in said and 0 < kept < whole
    said = run("interpolate", "lm.arpa", "other.arpa", "--tune", "held.txt", "--out", "mix.arpa")
    one, two, mixture = said.splitlines()
    first, second = (float(re.search(r"weight ([\d.]+), perplexity", line)[1]) for line in (one, two))  # type: ignore[index]
    assert first + second == pytest.approx(1, abs=1e-3) and 0 < first < 1
    found = json.loads(run("perplexity", "mix.arpa", "held.txt", "--json"))
    assert mixture == f"mix.arpa: the mixture, perplexity {found['ppl']:.1f}" and found["oov"] == 0
    assert "weight 0.2500" in run("interpolate", "lm.arpa", "other.arpa", "--weights", "0.25,0.75", "--out", "mix.arpa")


def test_a_neural_model_is_trained_mixed_and_inspected(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ("lm.width=8", "lm.samples=4", "lm.epochs=2", "lm.minibatch=4")
    said = run("train", "train.txt", *small, "--neural", "lstm", "--dev", "held.txt", "--out", "lstm")
    value = re.fullmatch(r"lstm: lstm, 10 units, 666 parameters, perplexity ([\d.]+) on held\.txt\n", said)
    found = json.loads(run("perplexity", "lstm", "held.txt", "--json"))
    assert value and float(value[1]) == pytest.approx(found["ppl"], abs=0.06) and found["oov"] == 1
    assert "found as" not in run("perplexity", "lstm", "held.txt")
    run("train", "train.txt", "--out", "lm.arpa")
    said = run("interpolate", "lm.arpa", "lstm", "--tune", "held.txt", "--out", "mixed")
    first, second = (float(re.search(r"weight ([\d.]+)$", line)[1]) for line in said.splitlines()[:2])  # type: ignore[index]
    mixture = json.loads(run("perplexity", "mixed", "held.txt", "--json"))
    unknown = f"without {mixture['oov']} unknown of 9 words"
    assert said.splitlines()[2] == f"mixed: the mixture, perplexity {mixture['ppl']:.1f} {unknown}"
    best = min(found["ppl"], json.loads(run("perplexity", "lm.arpa", "held.txt", "--json"))["ppl"])
    assert first + second == pytest.approx(1, abs=1e-3) and mixture["ppl"] <= best + 1e-6
    given = ("interpolate", "lm.arpa", "lstm", "--weights", "0.25,0.75", "--out", "mixed")
    assert run(*given).splitlines() == ["lstm: weight 0.7500", "lm.arpa: weight 0.2500", "mixed: the mixture"]
    inspect(Path("lstm"), word="cat")
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert {word for _, word in rows} == {"the", "a", "sat", "dog", "ran", "away"} and rows == sorted(
        rows, reverse=True
    )
    for file, word, message in (
        ("lstm", None, "lstm: is a neural language model; pass a word"),
        ("lstm", "horse", "lstm: horse is not among its words"),
        ("lm.arpa", "cat", "--word cat: only for a neural language model"),
    ):
        with pytest.raises(Speech3Error, match=message):
            inspect(Path(file), word=word)
    with pytest.raises(Speech3Error, match="--unit 3:17: has no effect with --word"):
        inspect(Path("lstm"), word="cat", unit="3:17")
    for arguments, message in (
        ("interpolate lstm lstm --tune held.txt --out no", "lstm, lstm: pass one neural model and one ARPA file"),
        ("interpolate mixed lm.arpa --tune held.txt --out no", "mixed: is a mixture already"),
        ("interpolate lstm lm.arpa --tune held.txt --out lstm", "--out lstm: is one of the inputs"),
        ("interpolate lm.arpa lm.arpa --weights 0.5,0.5 --out lstm", "--out lstm: is a directory"),
        ("perplexity lstm/checkpoints held.txt", "lstm/checkpoints: is a directory; an ARPA file is needed here"),
        ("prune lstm x --threshold 0", "lstm: is a neural language model; an ARPA file is needed here"),
        ("train train.txt --dev held.txt --out no", "--dev held.txt: only for --neural"),
        ("train train.txt --neural lstm --counts --out no", "--counts, --minimum-counts: for n-grams"),
        ("train train.txt --neural lstm lm.hight=3 --out no", "unknown key 'hight'; known here: .*width"),
        ("train train.txt --neural transformer lm.heads=3 --out no", "must be a multiple of heads, 3"),
    ):
        with pytest.raises(Speech3Error, match=message):
            run(*arguments.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("train train.txt --order 0 --out x", "order 0: must be from 1 to 6"),
        ("train train.txt --order 7 --out x", "order 7: must be from 1 to 6"),
        ("train train.txt --minimum-counts one --out x", "--minimum-counts one: expected whole numbers"),
        ("train train.txt --vocabulary upper.txt --out x", "upper.txt: none of the text's words is among its 1 (CAT"),
        ("train empty.txt --out x", "empty.txt: no sentences"),
        ("train latin.txt --out x", "latin.txt:1: not UTF-8"),
        ("train ends.txt --out x", "ends.txt:1: </s> and <s> in the text"),
        ("perplexity lm.arpa empty.txt", "empty.txt: no sentences"),
        ("perplexity broken.arpa held.txt", "broken.arpa: after `the` the back-off weights are broken"),
        ("prune lm.arpa x --threshold -1", "--threshold -1"),
        ("interpolate lm.arpa lm.arpa --out x", "use either --tune TEXT or --weights"),
        ("interpolate lm.arpa lm.arpa --weights 0.5,0.6 --out x", "0.5, 0.6 sum to 1.1"),
        ("interpolate lm.arpa lm.arpa --weights a,b --out x", "--weights a,b: expected numbers"),
        ("interpolate lm.arpa upper.arpa --weights 0.5,0.5 --out x", "have no word in common"),
        ("interpolate lm.arpa --tune held.txt --out x", "at least two language models"),
        ("interpolate lm.arpa lm.arpa --tune upper.txt --out x", "upper.txt: no word of the language models"),
        ("interpolate lm.arpa lm.arpa --weights 0.5,0.5 --out lm.arpa", "--out lm.arpa: is one of the inputs"),
        ("prune lm.arpa ./lm.arpa --threshold 0", "lm.arpa: is one of the inputs"),
        ("perplexity lm.arpa upper.txt", "upper.txt: none of its words is in lm.arpa"),
        ("train train.txt --out .", ".: is a directory; pass the name of a file"),
        ("interpolate lm.arpa lm.arpa --tune strange.txt --out x", "strange.txt: no word of the language models"),
    ],
)
def test_mistakes_are_named(here: Path, arguments: str, message: str) -> None:
    Path("empty.txt").write_text("\n\n")
    Path("latin.txt").write_bytes(b"caf\xe9 noir\n")
    Path("ends.txt").write_text("<s> a cat </s>\n")
    Path("upper.txt").write_text("CAT\n")
    Path("strange.txt").write_text("")
    run("train", "train.txt", "--order", "2", "--out", "lm.arpa")
    run("train", "upper.txt", "--order", "2", "--out", "upper.arpa")
    content = Path("lm.arpa").read_text()
    Path("broken.arpa").write_text(re.sub(r"\tthe\t.*\n", "\tthe\t1.5\n", content, count=1))
    before = sorted(here.iterdir())
    with pytest.raises(Speech3Error, match=re.escape(message)):
        run(*arguments.split())
    assert sorted(here.iterdir()) == before


def test_a_full_disk_leaves_nothing_behind(here: Path, started: Callable[..., subprocess.Popen[str]]) -> None:
    many = "".join(f"word{n} word{n + 1} word{n * 7919 % 9973}\n" for n in range(5000))
    (here / "many.txt").write_text(many)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    process = started("lm", "train", "many.txt", "--out", "x.arpa", preexec_fn=limit)
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 1
    assert "error: x.arpa: no space left on the disk" in stderr and "Traceback" not in stderr
    assert not list(here.glob("*x.arpa*"))


def test_standard_input(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("train", "train.txt", "--out", "expected.arpa")
    result = CliRunner().invoke(verbs, ["train", "-", "--out", "lm.arpa.gz"], input=TRAIN)
    assert result.exit_code == 0, result.output
    assert gzip.decompress(Path("lm.arpa.gz").read_bytes()) == Path("expected.arpa").read_bytes()


def test_kaldis_text_and_packed_texts_give_the_same_model(here: Path) -> None:
    lines = [line for line in TRAIN.splitlines() if line]
    Path("text").write_text("".join(f"spk1_{n:03d} {line}\n" for n, line in enumerate(lines)))
    Path("packed").write_bytes(gzip.compress("\n".join(lines).encode("utf-16")))
    for name in ("train.txt", "text", "packed"):
        run("train", name, "--order", "2", "--out", f"{name}.arpa")
    assert Path("text.arpa").read_text() == Path("train.txt.arpa").read_text() == Path("packed.arpa").read_text()
    expected = json.loads(run("perplexity", "text.arpa", "train.txt", "--json"))
    Path("odd.arpa").write_bytes(b"\xef\xbb\xbf" + gzip.decompress(gzip.compress(Path("text.arpa").read_bytes())))
    Path("also.arpa").write_bytes(gzip.compress(Path("text.arpa").read_bytes()))
    for name in ("odd.arpa", "also.arpa"):
        assert json.loads(run("perplexity", name, "text", "--json")) == expected


def test_a_lexicon_as_vocabulary_has_comments_and_variants(here: Path) -> None:
    Path("dict").write_text(";;; words\nthe DH AH\nthe(2) DH IY\ncat K AE T # an animal\n")
    run("train", "train.txt", "--vocabulary", "dict", "--out", "lm.arpa")
    assert set(read_arpa("lm.arpa").words) == {"the", "cat", "<unk>"}
