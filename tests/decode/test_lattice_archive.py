"""Lattice archives against kaldifst's reading of them, and against Kaldi's text written by hand."""

import dataclasses
import struct

import kaldifst
import numpy as np
import pytest
from random_graphs import random_graph, random_scores
from test_lattice import SCALE, check_form, content, lattice_of
from test_word_lattice import every_path

from speech3.decode.lattice_archive import read_lattices, write_lattices
from speech3.decode.word_lattice import WordLattice, words_of
from speech3.errors import Speech3Error


def lattices():
    found = {}
    for seed in range(4):
        _, lattice = lattice_of(random_graph(seed, states=5, finals=0.6), random_scores(seed, 5), 3.0)
        found[f"utt{seed}"] = lattice
    return found


def test_state_level_lattices_come_back_as_they_were(tmp_path):
    written = lattices()
    assert write_lattices(tmp_path / "lat.ark", written.items()) == 4
    again = dict(read_lattices(tmp_path / "lat.ark"))
    assert list(again) == list(written)
    for utterance, lattice in written.items():
        check_form(again[utterance])
        assert sorted(again[utterance].frame_S) == sorted(lattice.frame_S)
        assert len(content(again[utterance])[0]) == len(content(lattice)[0])
        for name in ("graph_A", "acoustic_A", "olabel_A", "ilabel_A"):
            assert sorted(getattr(again[utterance], name)) == sorted(getattr(lattice, name))


def test_word_lattices_come_back_as_they_were(tmp_path):
    written = {utterance: words_of(lattice, SCALE, 3.0) for utterance, lattice in lattices().items()}
    write_lattices(tmp_path / "lat.ark", written.items())
    again = dict(read_lattices(tmp_path / "lat.ark"))
    assert list(again) == list(written)
    for utterance, lattice in written.items():
        assert isinstance(again[utterance], WordLattice) and again[utterance].frames == lattice.frames
        assert again[utterance].density == lattice.density
        mine, theirs = every_path(lattice), every_path(again[utterance])
        assert set(mine) == set(theirs) and len(mine) > 1
        for said, (graph, acoustic, pdfs) in mine.items():
            assert theirs[said][:2] == pytest.approx((graph, acoustic), rel=1e-5, abs=1e-4)
            assert theirs[said][2] == pdfs


def test_kaldifst_reads_what_is_written(tmp_path):
    lattice = lattices()["utt1"]
    write_lattices(tmp_path / "lat.ark", [("u", lattice)])
    archive = (tmp_path / "lat.ark").read_bytes()
    assert archive.startswith(b"u ")
    (tmp_path / "lat.fst").write_bytes(archive[2:])  # Kaldi's tables write OpenFst's format after the key as it is
    fst = kaldifst.Lattice.read(str(tmp_path / "lat.fst"))
    assert (fst.num_states, fst.start) == (len(lattice.final_S), 0)
    rows, finals = [], {}
    for line in fst.to_str().splitlines():
        *fields, weight = line.split()
        costs = tuple(map(float, weight.split(",")))
        if len(fields) > 1:
            rows.append((*map(int, fields), *costs))
        elif fields:
            finals[int(fields[0])] = costs[0]
    assert finals == pytest.approx({n: cost for n, cost in enumerate(lattice.final_S.tolist()) if np.isfinite(cost)})
    np.testing.assert_allclose(sorted(rows), content(lattice)[0], rtol=1e-5)


def test_what_kaldifst_writes_is_read(tmp_path):
    fst = kaldifst.Lattice()
    for _ in range(3):
        fst.add_state()
    fst.start = 2
    fst.add_arc(2, kaldifst.LatticeArc(4, 7, kaldifst.LatticeWeight(0.5, 2.5), 0))
    fst.add_arc(0, kaldifst.LatticeArc(0, 8, kaldifst.LatticeWeight(0.25, 0.0), 1))
    fst.set_final(1, kaldifst.LatticeWeight(1.5, 0.0))
    fst.write(str(tmp_path / "lat.fst"))
    (tmp_path / "lat.ark").write_bytes(b"some-utt " + (tmp_path / "lat.fst").read_bytes())
    ((key, lattice),) = read_lattices(tmp_path / "lat.ark")
    assert key == "some-utt"
    assert lattice.source_A.tolist() == [0, 1] and lattice.target_A.tolist() == [1, 2]
    assert lattice.ilabel_A.tolist() == [4, 0] and lattice.olabel_A.tolist() == [7, 8]
    assert lattice.acoustic_A.tolist() == [2.5, 0.0] and lattice.final_S.tolist() == [np.inf, np.inf, 1.5]


KALDI = """utt-a 
0 1 7 2.5,30.25,3_3_4
0\t2\t9\t1,2,
1 2 8 0.5,1,5
2 0.25,4,6_6
2

utt-b 
3 1 5 0,1,4
1

"""  # Kaldi writes a space after the key


def test_kaldi_s_text_is_read(tmp_path):
    (tmp_path / "lat.txt").write_text(KALDI.replace("0\t2\t9\t1,2,\n", "0\t2\t9\t1,2,1_1_1_1\n").replace("\n2\n", "\n"))
    first, second = read_lattices(tmp_path / "lat.txt")
    assert first[0] == "utt-a" and first[1].frames == 6
    assert every_path(first[1]) == {
        (7, 8): (2.5 + 0.5 + 0.25, 30.25 + 1 + 4, (2, 2, 3, 4, 5, 5)),
        (9,): (1.25, 6.0, (0, 0, 0, 0, 5, 5)),
    }
    assert second[0] == "utt-b" and every_path(second[1]) == {(5,): (0.0, 1.0, (3,))}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (KALDI, "utt-a: not a lattice: paths to state 2 read different numbers of frames"),
        ("u \n0 1 7 1,1,3\n1 0 7 1,1,3\n1\n\n", "u: not a lattice: its arcs form a cycle"),
        ("u \n\n", "u: the lattice is empty"),
        ("u \n0 1 x 1,1,3\n\n", "u: cut short, or not a lattice"),
        ("u 0 1 7 1,1,3\n", "u: cut short, or not a lattice"),
        ("no-archive-at-all", "ends within the name of an utterance"),
        ("u \n0 1 2 3 1,1\n1 0.5,0.5\n\n", "u: has acoustic costs on final states"),
    ],
)
def test_what_is_no_archive_of_lattices_is_named(tmp_path, text, message):
    (tmp_path / "lat.ark").write_text(text)
    with pytest.raises(Speech3Error, match=rf"lat\.ark: {message}"):
        list(read_lattices(tmp_path / "lat.ark"))


def test_a_binary_archive_that_is_cut_short_is_named_wherever_it_ends(tmp_path):
    lattice = words_of(lattices()["utt0"], SCALE, 3.0)
    write_lattices(tmp_path / "lat.ark", [("u", lattice)])
    whole = (tmp_path / "lat.ark").read_bytes()
    for length in range(3, len(whole), max(1, len(whole) // 60)):
        (tmp_path / "lat.ark").write_bytes(whole[:length])
        with pytest.raises(Speech3Error, match=r"lat\.ark: u: "):
            list(read_lattices(tmp_path / "lat.ark"))
    (tmp_path / "lat.ark").write_bytes(whole.replace(b"vector", b"xector"))
    with pytest.raises(Speech3Error, match=r"of OpenFst's type b'xector'"):
        list(read_lattices(tmp_path / "lat.ark"))
    with pytest.raises(Speech3Error, match=r"gone\.ark: No such file"):
        list(read_lattices(tmp_path / "gone.ark"))
    (tmp_path / "lat.ark").write_bytes(whole[: whole.index(b"compact")] + b"compactlattice44" + struct.pack("<i", -1))
    with pytest.raises(Speech3Error, match=r"lat\.ark: u: cut short"):
        list(read_lattices(tmp_path / "lat.ark"))


def test_states_that_the_start_does_not_lead_to_are_left_out(tmp_path):
    (tmp_path / "lat.ark").write_text("u \n4 1 5 0,1,4\n2 1 6 0,0,3\n1\n\n")
    ((_, lattice),) = read_lattices(tmp_path / "lat.ark")
    assert lattice.word_A.tolist() == [5] and len(lattice.frame_S) == 2
    assert dataclasses.asdict(lattice)["frames"] == 1
