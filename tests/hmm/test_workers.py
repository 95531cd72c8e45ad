"""Shares of the utterances: the first says how far it is, and each keeps its HMMs from pass to pass."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

from speech3.hmm.model import Hmm, monophone_tree
from speech3.hmm.workers import Workers, WorkerShare
from speech3.runtime import reporting as progress_module

FEATS = {f"u{n}": np.zeros((1, 1), np.float32) for n in range(5)}
WORDS = {utterance: ["A"] for utterance in FEATS}


def _shown(share: WorkerShare) -> tuple[int, int, list[str]]:
    return share.number, share.parts, list(share.shown("pass"))


@pytest.mark.parametrize(("jobs", "parts"), [(1, [list(FEATS)]), (2, [["u0", "u2", "u4"], ["u1", "u3"]])])
def test_all_utterances_are_shown_in_their_shares(jobs: int, parts: list[list[str]]) -> None:
    with Workers(WORDS, FEATS, jobs) as workers:
        assert workers.run(_shown) == [(number, jobs, part) for number, part in enumerate(parts)]


def test_only_the_first_share_says_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress_module, "_QUIET_SECONDS", 0.0)
    for number in (0, 1):
        list(WorkerShare(WORDS, FEATS, number, 2).shown("alignment"))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4 and lines[0].startswith("alignment (one of 2 processes): 1/5, ")


def test_the_hmm_of_a_transcript_is_made_once_for_each_tree(hmm: Hmm) -> None:
    share = WorkerShare({"u": hmm.lexicon.known(["ab"])}, {})
    first = share.graph("u", hmm)
    assert share.graph("u", pickle.loads(pickle.dumps(hmm))) is first  # as a worker process gets it
    one_pdf_each = monophone_tree(np.zeros(len(hmm.lexicon.phones), int))
    assert share.graph("u", replace(hmm, tree=one_pdf_each)) is not first
