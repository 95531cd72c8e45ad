"""Kaldi's tree: read from both forms, asked, translated into ours, and ours written for Kaldi."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from kaldi_dirs import answer, integer, integers, unsigned

from speech3.errors import Speech3Error
from speech3.hmm.kaldi.convert import export_kaldi
from speech3.hmm.kaldi.model import (
    read_transition_model,
    read_tree,
    to_tree,
    tree_text,
)
from speech3.hmm.model import CENTRE, LEFT, RIGHT, Hmm, Tree
from speech3.language.lexicon import Lexicon

# Phones 1 (silence), 2, 3, 4. Phones 2 and 3 share their roots; a question about the phone itself stands below one
# about its left neighbour, those about the state below both.
TEXT = (
    "ContextDependency 3 1 ToPdf SE 1 [ 1 ]\n{ TE -1 3 ( CE 0 CE 1 CE 2 ) \nSE 1 [ 2 3 ]\n{ SE 0 [ 0 1 4 ]\n"
    "{ SE 1 [ 3 ]\n{ SE -1 [ 0 1 ]\n{ CE 3 CE 4 } \nTE -1 3 ( CE 7 CE 8 CE 9 ) \n} \nCE 10 } \n"
    "TE 2 5 ( CE 11 CE 12 NULL CE 5 CE 6 ) \n} \n} \nEndContextDependency "
)


def _table(key: int, *ways: bytes) -> bytes:
    return b"TE " + integer(key) + unsigned(len(ways)) + b"( " + b"".join(ways) + b") "


def _question(key: int, members: list[int], yes: bytes, no: bytes) -> bytes:
    return b"SE " + integer(key) + integers(*members) + b"{ " + yes + no + b"} "


def _leaf(pdf: int) -> bytes:
    return b"CE " + integer(pdf)


_SPOKEN = _question(
    0,
    [0, 1, 4],
    _question(1, [3], _question(-1, [0, 1], _leaf(3), _leaf(4)), _table(-1, _leaf(7), _leaf(8), _leaf(9))),
    _leaf(10),
)
_LAST = _table(2, _leaf(11), _leaf(12), b"NULL ", _leaf(5), _leaf(6))
BINARY = (
    b"\0BContextDependency "
    + integer(3)
    + integer(1)
    + b"ToPdf "
    + _question(1, [1], _table(-1, _leaf(0), _leaf(1), _leaf(2)), _question(1, [2, 3], _SPOKEN, _LAST))
    + b"EndContextDependency "
)


def by_hand(left: int, phone: int, right: int, state: int) -> int | None:
    if phone == 1:
        return state
    if phone == 4:
        return [11, 12, None, 5, 6][right]
    if left not in (0, 1, 4):
        return 10
    if phone == 3:
        return 3 if state < 2 else 4
    return 7 + state


WINDOWS = list(itertools.product(range(5), range(1, 5), range(5)))


@pytest.fixture(params=[TEXT.encode(), BINARY], ids=["text", "binary"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    (tmp_path / "tree").write_bytes(request.param)
    return tmp_path / "tree"


def test_a_tree_is_read_and_asked(path: Path) -> None:
    tree = read_tree(path)
    assert (tree.width, tree.centre, tree.num_pdfs) == (3, 1, 13)
    for window in WINDOWS:
        assert [answer(tree, window, s) for s in range(3)] == [by_hand(*window, s) for s in range(3)]
    assert tree_text(tree.root, 3, 1) == TEXT


def test_translated_with_other_numbers_of_phones(path: Path) -> None:
    number = {1: 2, 2: 4, 3: 1, 4: 3}
    ours = to_tree(read_tree(path), number)
    number[0] = 0
    for left, phone, right in WINDOWS:
        if (phone, right) == (4, 2):
            continue  # Kaldi's tree knows no answer
        window = number[left], number[phone], number[right]
        assert ours.pdfs(*window) == tuple(by_hand(left, phone, right, state) for state in range(3))


def test_a_monophone_tree(tmp_path: Path) -> None:
    (tmp_path / "tree").write_text(
        "ContextDependency 1 0 ToPdf TE 0 3 ( NULL TE -1 3 ( CE 3 CE 4 CE 5 ) TE -1 3 ( CE 0 CE 1 CE 2 ) ) "
        "EndContextDependency "
    )
    tree = to_tree(read_tree(tmp_path / "tree"), {1: 1, 2: 2})
    assert [tree.pdfs(2, 1, 0), tree.pdfs(0, 2, 1)] == [(3, 4, 5), (0, 1, 2)]
    with pytest.raises(Speech3Error, match="phone 3, state 0: has no pdf"):
        to_tree(read_tree(tmp_path / "tree"), {3: 1})


def test_damage(tmp_path: Path) -> None:
    path = tmp_path / "tree"
    for whole in (TEXT.encode(), BINARY):
        for length in range(0, len(whole) - len("EndContextDependency "), 3):
            path.write_bytes(whole[:length])
            with pytest.raises(Speech3Error, match=r"tree: not a Kaldi tree, or damaged .*pass the tree"):
                read_tree(path)
    path.write_text("ContextDependency 5 2 ToPdf CE 0 EndContextDependency ")
    with pytest.raises(Speech3Error, match="window is 5 phones wide"):
        to_tree(read_tree(path), {1: 1})
    path.write_text(f"ContextDependency 3 1 ToPdf {'SE 0 [ 1 ] { CE 0 ' * 5000}")
    with pytest.raises(Speech3Error, match="not a Kaldi tree"):
        read_tree(path)


def _ours() -> Tree:
    """Phone 1: no questions. Phones 2 and 3 share roots, and ask about both neighbours and about themselves."""
    sides = [-1, -1, -1, LEFT, CENTRE, RIGHT, -1, -1, -1, -1]
    member = np.zeros((10, 4), bool)
    member[3, [0, 1]] = member[4, 2] = member[5, [2, 3]] = True
    root = np.array([[0, 0, 0], [0, 1, 2], [3, 5, 9], [3, 5, 9]], np.int32)
    yes = np.array([0, 1, 2, 4, 6, 7, 3, 4, 5, 6], np.int32)
    no = np.array([0, 1, 2, 8, 7, 8, 3, 4, 5, 6], np.int32)
    return Tree(root, np.array(sides, np.int8), member, yes, no)


def test_ours_for_kaldi_and_back(lexicon: Lexicon, tmp_path: Path) -> None:
    prons = tuple(pron for pron in lexicon.pronunciations if "c" not in pron.phones)
    tree, loops = _ours(), np.linspace(0.3, 0.9, 7)
    hmm = Hmm(replace(lexicon, pronunciations=prons), tree, loops)
    export_kaldi(hmm, tmp_path)
    theirs, model = read_tree(tmp_path / "tree"), read_transition_model(tmp_path / "final.mdl")
    assert (theirs.width, theirs.centre, theirs.num_pdfs, model.num_pdfs) == (3, 1, 7, 7)
    back = to_tree(theirs, {phone: phone for phone in (1, 2, 3)})
    for window in itertools.product(range(4), (1, 2, 3), range(4)):
        assert tuple(answer(theirs, window, s) for s in range(3)) == tree.pdfs(*window) == back.pdfs(*window)
    rows = [[1, 0, 0], [1, 1, 1], [1, 2, 2], [2, 0, 3], [2, 0, 5], [2, 1, 4], [2, 1, 5], [2, 2, 6],
            [3, 0, 4], [3, 0, 5], [3, 1, 4], [3, 1, 5], [3, 2, 6]]  # fmt: skip
    assert model.tuples[:, :3].tolist() == rows
    probs = np.exp(model.log_prob_K[1:]).reshape(-1, 2)
    np.testing.assert_allclose(probs[:, 0], loops[model.tuples[:, 2]], atol=1e-6)
    np.testing.assert_allclose(probs.sum(1), 1, atol=1e-6)
    assert (tmp_path / "phones.txt").read_text() == "<eps> 0\nSIL 1\na 2\nb 3\n#0 4\n"
    assert (tmp_path / "dict" / "lexiconp.txt").read_text() == "ab 1 a b\nba 1 b a\n<unk> 1 SIL\n"
    kinds = {
        name: (tmp_path / "dict" / f"{name}.txt").read_text().split()
        for name in ("silence_phones", "nonsilence_phones", "optional_silence", "extra_questions")
    }
    assert list(kinds.values()) == [["SIL"], ["a", "b"], ["SIL"], []]
