"""Tables as text, and the verb that prints them."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from speech3.cli.measure import score as command
from speech3.errors import Speech3Error
from speech3.evaluate import tables
from speech3.evaluate.wer import score

app = typer.Typer()
app.command()(command)

REF = "anna-1 the cat sat on the mat\nanna-2 one two three\nbert-1 日本 語 です\nbert-2\nbert-3 hello there\n"
HYP = "anna-1 the cat sit on mat\nanna-2 one two three\nbert-1 日本 後 です か\nbert-2 uh\nghost-1 boo\n"


@pytest.fixture
def paths(tmp_path: Path) -> tuple[str, str]:
    (tmp_path / "text").write_text(REF, encoding="utf-8")
    (tmp_path / "hyp.txt").write_text(HYP, encoding="utf-8")
    names = [line.split()[0] for line in REF.splitlines()]
    (tmp_path / "utt2spk").write_text("".join(f"{name} {name[:4]}\n" for name in names))
    return str(tmp_path / "text"), str(tmp_path / "hyp.txt")


def test_alignment_stands_word_under_word() -> None:
    utterance = score({"u": "日本 語 です"}, {"u": "日本 後 です か"}).utterances[0]
    assert tables.alignment_lines(utterance).splitlines() == [
        "u  ref  日本  語  です  ***",
        "u  hyp  日本  後  です  か",
        "u  op   C     S   C     I",
        "u  #csid  2 1 1 0",
    ]


def test_json_has_exactly_the_documented_keys(paths: tuple[str, str]) -> None:
    result = CliRunner().invoke(app, [*paths, "--json"])
    values = json.loads(result.stdout)
    assert list(values) == [
        "wer",
        "cer",
        "substitutions",
        "deletions",
        "insertions",
        "words",
        "ser",
        "wer_ci95",
        "missing",
    ]
    assert (values["substitutions"], values["deletions"], values["insertions"], values["words"]) == (2, 3, 2, 14)
    assert values["wer"] == 0.5
    assert values["ser"] == 0.8
    assert values["missing"] == ["bert-3"]
    assert values["wer_ci95"][0] < 0.5 < values["wer_ci95"][1]
    assert "ghost-1" in result.stderr


def test_against_adds_one_key(paths: tuple[str, str]) -> None:
    values = json.loads(CliRunner().invoke(app, [*paths, "--json", "--against", paths[0]]).stdout)
    assert list(values)[-1] == "against"
    assert values["against"]["wer"] == 0
    assert values["against"]["difference"] == -0.5
    assert {"p_value", "significant", "difference_ci95"} <= set(values["against"])


def test_what_people_read(paths: tuple[str, str], tmp_path: Path) -> None:
    arguments = [*paths, "--normalize", "nfkc,lower", "--against", paths[0], "--details", str(tmp_path / "details")]
    out = CliRunner().invoke(app, arguments).stdout
    for piece in (
        "Kaldi text", "nfkc, lower", "utt2spk", "WER 50.00 [", "7 errors in 14 words", "CER ", "SER 80.00", "bert-3",
        "ghost-1", "sat        sit", "p = 0.1", "no significant difference",
    ):  # fmt: skip
        assert piece in out, piece
    written = {path.name for path in (tmp_path / "details").iterdir()}
    assert written == {"per_utt", "per_speaker", "confusions", "alignments"}
    assert (tmp_path / "details" / "per_utt").read_text(encoding="utf-8").count("\n") == 6


def test_plain_files(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("the cat sat\non the mat\n")
    (tmp_path / "b").write_text("the cat sit\non mat\n")
    out = CliRunner().invoke(app, [str(tmp_path / "a"), str(tmp_path / "b")]).stdout
    assert "plain text" in out
    assert "2 errors in 6 words" in out


def test_empty_hypothesis_is_an_error(paths: tuple[str, str]) -> None:
    Path(paths[1]).write_text("")
    result = CliRunner().invoke(app, list(paths))
    assert isinstance(result.exception, Speech3Error)
    assert "nothing was decoded" in str(result.exception)


def test_details_where_a_file_stands(paths: tuple[str, str]) -> None:
    result = CliRunner().invoke(app, [*paths, "--details", paths[0]])
    assert isinstance(result.exception, Speech3Error)
    assert "is one of the inputs" in str(result.exception)


def test_many_utterances_are_shortened_on_screen_only() -> None:
    ref = {f"u{n:03}": "x" for n in range(200)}
    result = score(ref, {"u000": ""})
    assert "u050" not in tables.full(result)
    (warning, silent) = tables.warnings(result, "hyp")
    assert "lacks 199 of 200" in warning
    assert "and 149 more" in warning
    assert "every hypothesis is empty" in silent


@pytest.mark.parametrize(
    ("ref", "hyp", "said"),
    [
        ("Don't go, John!", "don’t go john", "3 of 3 errors"),
        ("one twenty-one", "one twenty one", "2 of 2 errors"),
        ("one two", "one three", ""),
    ],
)
def test_errors_of_case_and_punctuation_are_told(tmp_path: Path, ref: str, hyp: str, said: str) -> None:
    (tmp_path / "ref").write_text(f"u1 {ref}\nu2 a\n", encoding="utf-8")
    (tmp_path / "hyp").write_text(f"u1 {hyp}\nu2 a\n", encoding="utf-8")
    output = CliRunner().invoke(app, [str(tmp_path / "ref"), str(tmp_path / "hyp")]).output
    assert (f"warning: {said}" in output and "--normalize" in output) if said else "warning" not in output


def test_the_language_of_the_texts_matters_for_lower_case(tmp_path: Path) -> None:
    (tmp_path / "ref").write_text("u1 KIZ İZMİR ｶﾅ\nu2 a\n", encoding="utf-8")
    (tmp_path / "hyp").write_text("u1 kız izmir カナ\nu2 a\n", encoding="utf-8")
    files = [str(tmp_path / "ref"), str(tmp_path / "hyp")]
    unknown = CliRunner().invoke(app, [*files, "--normalize", "lower"]).output
    assert "WER 50.00" in unknown and "set the language, as in --lang tr" in unknown
    assert "1 substitution differs only in Unicode's compatibility forms, as ｶﾅ and カナ; --normalize nfkc" in unknown
    turkish = CliRunner().invoke(app, [*files, "--normalize", "nfkc,lower", "--lang", "tr"]).output
    assert "WER 0.00" in turkish and "warning" not in turkish
    wrong = CliRunner().invoke(app, [*files, "--normalize", "lower", "--lang", "xx"])
    assert "--lang xx: espeak-ng does not know this language" in str(wrong.exception)


def test_the_verb_scores_sclites_formats(tmp_path: Path) -> None:
    (tmp_path / "ref.stm").write_text("r A anna 0.0 1.0 { um / uh } yes\nr A anna 1.0 2.0 no\n")
    (tmp_path / "hyp.ctm").write_text("r 1 0.1 0.1 uh 0.9\nr 1 0.3 0.1 yes 0.9\nr 1 1.4 0.1 now 0.9\n")
    output = CliRunner().invoke(app, [str(tmp_path / "ref.stm"), str(tmp_path / "hyp.ctm")]).output
    assert "read as     stm: segments with times; ctm: words with times" in output
    assert "WER 33.33" in output and "anna" in output and "1 references have alternatives" in output


def test_a_difference_says_of_what_it_is(paths: tuple[str, str]) -> None:
    output = CliRunner().invoke(app, [*paths, "--against", paths[0]]).output
    assert f"WER of {paths[0]} minus WER of {paths[1]}: -50.00 [" in output


def test_symbols_that_are_not_scored_are_counted(tmp_path: Path) -> None:
    (tmp_path / "ref").write_text("u1 one two\nu2 three\n")
    (tmp_path / "hyp").write_text("u1 one <unk> two\nu2 three\n")
    output = CliRunner().invoke(app, [str(tmp_path / "ref"), str(tmp_path / "hyp")]).output
    assert "WER 0.00" in output and "are not scored: 1" in output
