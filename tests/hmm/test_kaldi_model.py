"""Kaldi's transition model from bytes and text written by hand (the formats stand in Kaldi's hmm/*.cc)."""

from pathlib import Path

import numpy as np
import pytest
from kaldi_dirs import integer, integers, real, vector

from speech3.errors import FormatError, Speech3Error
from speech3.hmm.kaldi.model import (
    TransitionModel,
    left_to_right,
    read_transition_model,
    topology_text,
    transition_model_text,
)

# Phone 2 has three states in a row; phone 1, silence, three states of which the middle one can be skipped.
TEXT = """<TransitionModel>
<Topology>
<TopologyEntry>
<ForPhones> 2
</ForPhones>
<State> 0 <PdfClass> 0 <Transition> 0 0.75 <Transition> 1 0.25 </State>
<State> 1 <PdfClass> 1 <Transition> 1 0.75 <Transition> 2 0.25 </State>
<State> 2 <PdfClass> 2 <Transition> 2 0.75 <Transition> 3 0.25 </State>
<State> 3 </State>
</TopologyEntry>
<TopologyEntry>
<ForPhones> 1 </ForPhones>
<State> 0 <PdfClass> 0 <Transition> 0 0.5 <Transition> 1 0.25 <Transition> 2 0.25 </State>
<State> 1 <PdfClass> 1 <Transition> 1 0.5 <Transition> 2 0.5 </State>
<State> 2 <PdfClass> 2 <Transition> 2 0.5 <Transition> 3 0.5 </State>
<State> 3 </State>
</TopologyEntry>
</Topology>
<Triples> 7
1 0 4
1 1 5
1 2 6
2 0 0
2 0 3
2 1 1
2 2 2
</Triples>
<LogProbs>
 [ 0 -0.6931472 -1.386294 -1.386294 -0.6931472 -0.6931472 -0.6931472 -0.6931472
 -0.1 -2.3 -0.2 -1.7 -0.3 -1.35 -0.4 -1.1 ]
</LogProbs>
</TransitionModel>
<DIMENSION> 39 <NUMPDFS> 7 <DiagGMM>
"""
LOGS = [0, -0.6931472, -1.386294, -1.386294, -0.6931472, -0.6931472, -0.6931472, -0.6931472, -0.1, -2.3, -0.2, -1.7,
        -0.3, -1.35, -0.4, -1.1]  # fmt: skip


def _state(pdf_class: int, *arcs: tuple[int, float], loop: int | None = None) -> bytes:
    classes = integer(pdf_class) + (b"" if loop is None else integer(loop))
    return classes + integer(len(arcs)) + b"".join(integer(to) + real(prob) for to, prob in arcs)


def _row(stay: float) -> list[bytes]:
    return [_state(s, (s, stay), (s + 1, 1 - stay)) for s in range(3)] + [_state(-1)]


BINARY = (
    b"\0B<TransitionModel> <Topology> " + integers(1, 2) + integers(-1, 1, 0) + integer(2)
    + integer(4) + b"".join(_row(0.75))
    + integer(4) + _state(0, (0, 0.5), (1, 0.25), (2, 0.25)) + b"".join(_row(0.5)[1:])
    + b"</Topology> <Triples> " + integer(7)
    + b"".join(map(integer, [1, 0, 4, 1, 1, 5, 1, 2, 6, 2, 0, 0, 2, 0, 3, 2, 1, 1, 2, 2, 2]))
    + b"</Triples> <LogProbs> " + vector(*LOGS) + b"</LogProbs> </TransitionModel> "
)  # fmt: skip
GMMS = b"<DIMENSION> \x04" + bytes(range(256))


def read(tmp_path: Path, data: bytes) -> TransitionModel:
    (tmp_path / "final.mdl").write_bytes(data)
    return read_transition_model(tmp_path / "final.mdl")


@pytest.mark.parametrize("data", [TEXT.encode(), BINARY + GMMS], ids=["text", "binary"])
def test_what_transition_ids_mean(tmp_path: Path, data: bytes) -> None:
    model = read(tmp_path, data)
    assert model.num_pdfs == 7
    assert model.pdf_K.tolist() == [-1, 4, 4, 4, 5, 5, 6, 6, 0, 0, 3, 3, 1, 1, 2, 2]
    assert np.flatnonzero(model.self_loop_K).tolist() == [1, 4, 6, 8, 10, 12, 14]
    assert model.target_K.tolist() == [-1, 0, 1, 2, 1, 2, 2, 3, 0, 1, 0, 1, 1, 2, 2, 3]
    np.testing.assert_allclose(model.log_prob_K, LOGS, atol=1e-6)
    assert [left_to_right(model.topology[phone]) for phone in (1, 2)] == [False, True]


def test_leaving_and_staying_may_have_different_pdfs(tmp_path: Path) -> None:
    data = (
        b"\0B<TransitionModel> <Topology> " + integers(1) + integers(-1, 0) + integer(-1) + integer(1) + integer(2)
        + _state(0, (0, 0.5), (1, 0.5), loop=1) + _state(-1, loop=-1) + b"</Topology> <Tuples> " + integer(1)
        + b"".join(map(integer, [1, 0, 0, 1])) + b"</Tuples> <LogProbs> " + vector(0, -0.7, -0.7)
        + b"</LogProbs> </TransitionModel> "
    )  # fmt: skip
    text = (
        "<TransitionModel> <Topology> <TopologyEntry> <ForPhones> 1 </ForPhones> <State> 0 <ForwardPdfClass> 0 "
        "<SelfLoopPdfClass> 1 <Transition> 0 0.5 <Transition> 1 0.5 </State> <State> 1 </State> </TopologyEntry> "
        "</Topology> <Tuples> 1 1 0 0 1 </Tuples> <LogProbs> [ 0 -0.7 -0.7 ] </LogProbs> </TransitionModel> "
    )
    for form in (data, text.encode()):
        model = read(tmp_path, form)
        assert model.num_pdfs == 2 and model.pdf_K.tolist() == [-1, 1, 0]
        assert not left_to_right(model.topology[1])


@pytest.mark.parametrize("whole", [BINARY, TEXT.partition("<DIMENSION>")[0].encode()], ids=["binary", "text"])
def test_cut_anywhere(tmp_path: Path, whole: bytes) -> None:
    for length in range(0, len(whole) - len(b"</TransitionModel> "), 3):
        with pytest.raises(FormatError, match=r"final\.mdl"):
            read(tmp_path, whole[:length])


def test_other_files(tmp_path: Path) -> None:
    with pytest.raises(Speech3Error, match=r"final\.mdl: No such file"):
        read_transition_model(tmp_path / "final.mdl")
    with pytest.raises(Speech3Error, match=r"'<Nnet3>' where <TransitionModel> was expected"):
        read(tmp_path, b"\0B<Nnet3> ")
    with pytest.raises(Speech3Error, match="phone 3, state 2, which its topology lacks"):
        read(tmp_path, TEXT.replace("\n2 2 2\n", "\n3 2 2\n").encode())
    with pytest.raises(Speech3Error, match="15 transitions, but 14 probabilities"):
        read(tmp_path, TEXT.replace(" -1.1 ]", " ]").encode())


def test_written_and_read(tmp_path: Path) -> None:
    model = read(tmp_path, TEXT.encode())
    again = read(tmp_path, transition_model_text(model).encode())
    assert again.topology == model.topology
    np.testing.assert_array_equal(again.tuples, model.tuples)
    np.testing.assert_allclose(again.log_prob_K, model.log_prob_K, rtol=1e-6)
    assert topology_text(model.topology).splitlines()[5] == (
        "<State> 0 <PdfClass> 0 <Transition> 0 0.5 <Transition> 1 0.25 <Transition> 2 0.25 </State>"
    )
