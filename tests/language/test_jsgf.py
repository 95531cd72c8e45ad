"""Grammars: what they say and how probable it is, by hand and by enumeration."""

from pathlib import Path

import pytest
from random_graphs import sentences_of

from speech3.errors import Speech3Error
from speech3.language.grammar import WordGraph, read_jsgf, read_sentences


def grammar(tmp_path: Path, body: str) -> WordGraph:
    path = tmp_path / "g.jsgf"
    path.write_text(f"#JSGF V1.0;\ngrammar toy;\n{body}\n")
    return read_jsgf(path)


def said(graph: WordGraph, longest: int = 6) -> dict[str, float]:
    return {" ".join(words): share for words, share in sentences_of(graph, longest).items()}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("public <r> = hello world;", {"hello world": 1}),
        ("public <r> = a | b | c d;", {"a": 1 / 3, "b": 1 / 3, "c d": 1 / 3}),
        ("public <r> = /3/ a | /1/ b | /0/ c;", {"a": 3 / 4, "b": 1 / 4}),
        ("public <r> = [please] (go | stop) now;", {
            "go now": 1 / 4, "stop now": 1 / 4, "please go now": 1 / 4, "please stop now": 1 / 4,
        }),
        ("public <r> = <x> <x>;\n<x> = /.9/ one | /1e-1/ two;", {
            "one one": 0.81, "one two": 0.09, "two one": 0.09, "two two": 0.01,
        }),
        ("public <a> = x;\n<b> = unused;\npublic <c> = y z;", {"x": 1 / 2, "y z": 1 / 2}),
        ('public <r> = "New York" {CITY} | "say \\"x\\"" {a {nested} tag};', {"New York": 1 / 2, 'say "x"': 1 / 2}),
        ("// said\npublic <r> = a /* not\nthis; */ <NULL> b | c <VOID>; // end", {"a b": 1 / 2}),
        ("public <r> = a | a b | a b;", {"a": 1 / 3, "a b": 1 / 3}),  # the more probable way, and here both are alike
        ("public <r> = häßlich 日本;", {"häßlich 日本": 1}),
    ],
)  # fmt: skip
def test_sentences_and_their_probabilities(tmp_path: Path, body: str, expected: dict[str, float]) -> None:
    assert said(grammar(tmp_path, body)) == pytest.approx(expected)


@pytest.mark.parametrize(
    "body",
    [
        "public <r> = x (a | b)+;",
        "public <r> = x (a | b) (a | b)*;",
        "public <r> = x <l>;\n<l> = (a | b) | (a | b) <l>;",
        "public <r> = x <l>;\n<l> = <y> [<m>];\n<m> = <l>;\n<y> = a | b;",  # round by way of another rule
    ],
)
def test_repetition_and_what_refers_to_its_own_end(tmp_path: Path, body: str) -> None:
    found = said(grammar(tmp_path, body), 9)
    rounds = {length: {s: p for s, p in found.items() if len(s.split()) == length} for length in range(1, 10)}
    assert not rounds[1] and len(rounds[2]) == 2 and len(rounds[5]) == 2**4
    for length in range(2, 10):
        assert sum(rounds[length].values()) == pytest.approx(0.5 ** (length - 1))
        assert len(set(map(lambda p: round(p, 12), rounds[length].values()))) == 1


def test_a_star_may_be_nothing(tmp_path: Path) -> None:
    found = said(grammar(tmp_path, "public <r> = go (a | b)* [c];"))
    assert found["go"] == pytest.approx(1 / 4) and found["go c"] == pytest.approx(1 / 4)
    assert found["go a"] == pytest.approx(1 / 16) and found["go b a c"] == pytest.approx(1 / 64)


def test_deterministic(tmp_path: Path) -> None:
    graph = grammar(tmp_path, "public <r> = turn (on | off) | turn (on the (lamp | fan) | up)* now;")
    assert len({(source, word) for source, word, _, _ in graph.arcs}) == len(graph.arcs)
    assert graph.words[0] == "turn" and set(graph.words) == {"turn", "on", "off", "the", "lamp", "fan", "up", "now"}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("public <r> = <r> a | b;", r"g\.jsgf:3: <r> refers to itself before its end.*only right recursion"),
        ("public <r> = x <l> y;\n<l> = a |\n b <l> c;", r"g\.jsgf:5: <l> refers to itself"),
        ("public <r> = (a <r>)+;", r"g\.jsgf:3: <r> refers to itself"),
        ("public <r> = a\n | <nobody>;", r"g\.jsgf:4: there is no rule <nobody>; there are <r>"),
        ("<r> = a;", r"g\.jsgf: no rule is public"),
        ("", r"g\.jsgf: no rule is public"),
        ("public <r> = a;\n<r> = b;", r"g\.jsgf:4: <r> is defined a second time \(first in line 3\)"),
        ("public <r> = a | ;", r"g\.jsgf:3: in <r>: no words before `;`"),
        ("public <r> = /2/ a | b;", r"g\.jsgf:3: in <r>: some alternatives have weights"),
        ("public <r> = /0/ a | /0/ b;", r"g\.jsgf:3: in <r>: all weights .* are 0"),
        ("public <r> = /x/ a | /1/ b;", r"g\.jsgf:3: /x/ is not a weight"),
        ("public <r> = [a;", r"g\.jsgf:3: expected `\]` to close the `\[` of line 3, found `;`"),
        ("public <r> = a", r"g\.jsgf:4: expected `;` at the end of <r>, found `the end of the file`"),
        ("public r = a;", r"g\.jsgf:3: expected a rule"),
        ("import <other.*>;\npublic <r> = a;", r"g\.jsgf:3: imports are not supported"),
        ("public <r> = a { b;", r"g\.jsgf:3: `\{ b;` is not valid in a grammar"),
        ("public <r> = <VOID> a;", r"g\.jsgf: the grammar accepts no sentence"),
        ("public <r> = <r>;", r"g\.jsgf: the grammar accepts no sentence"),
        ("public <r> = [<NULL>];", r"g\.jsgf: the grammar accepts no sentence with a word"),
        ("public <r> = (a | b)* | a*;", r"g\.jsgf: the grammar accepts the same words in too many ways"),
        ("public <r> = a \\<s\\> b;", r"g\.jsgf: <s> is not a word"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, body: str, message: str) -> None:
    with pytest.raises(Speech3Error, match=message):
        grammar(tmp_path, body)


def test_files_that_are_no_grammar(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_text("turn on the light\n")
    with pytest.raises(Speech3Error, match=r"list\.txt:1: a JSGF grammar begins with `#JSGF V1\.0;`"):
        read_jsgf(path)
    path.write_text("#JSGF V1.0;\npublic <r> = a;\n")
    with pytest.raises(Speech3Error, match=r"list\.txt:2: expected `grammar NAME;`"):
        read_jsgf(path)


def test_brackets_nested_too_deeply(tmp_path: Path) -> None:
    with pytest.raises(Speech3Error, match=r"nested too deeply; write inner expressions as rules"):
        grammar(tmp_path, f"public <r> = {'(' * 2000}a{')' * 2000};")


def test_rules_that_double_each_time_are_refused_before_they_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("speech3.language.grammar._MAX_STATES", 1000)
    rules = "\n".join(f"<r{n}> = <r{n + 1}> x <r{n + 1}>;" for n in range(30))
    with pytest.raises(Speech3Error, match="more than 1,000 states"):
        grammar(tmp_path, f"public <r> = <r0>;\n{rules}\n<r30> = y;")


def test_a_list_of_sentences_is_as_probable_as_it_is_frequent(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_text("go home\n go  home\n\ngo\nstop\n")
    assert said(read_sentences(path)) == pytest.approx({"go home": 1 / 2, "go": 1 / 4, "stop": 1 / 4})
    path.write_text("\n")
    with pytest.raises(Speech3Error, match=r"list\.txt: contains no sentence"):
        read_sentences(path)
    path.write_text("go <s> home\n")
    with pytest.raises(Speech3Error, match=r"list\.txt:1: <s> in the text"):
        read_sentences(path)


def test_a_list_of_sentences_may_be_kaldis_text(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("u01 go home\nu02 go\nu03 stop\nu04 go home\n")
    assert said(read_sentences(path)) == pytest.approx({"go home": 1 / 2, "go": 1 / 4, "stop": 1 / 4})
