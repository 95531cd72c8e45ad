"""Files that real people had trouble with: each of `../shared/cases` makes one and exits 1 while the fault is there."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from speech3 import corpora
from speech3.corpora import synthetic

Run = Callable[..., subprocess.CompletedProcess[str]]
PROGRAM = Path(sys.executable).with_name("speech3")
CASES = sorted((Path(__file__).parents[3] / "shared" / "cases").glob("[0-9]*.sh"))


# No case looks at what a model that it trains has learnt.
QUICK = (
    "jobs=1", "hmm.lda=null", "hmm.sat=null", "hmm.mono.phone_iterations=3", "hmm.mono.iterations=4",
    "hmm.aligner.phone_iterations=3", "hmm.aligner.iterations=3", "hmm.tri.iterations=4",
)  # fmt: skip


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`speech3`, whose recipes make few passes."""
    path = tmp_path_factory.mktemp("program") / "speech3"
    path.write_text(f'#!/bin/sh\n[ "$1" = recipe ] && set -- "$@" {" ".join(QUICK)}\nexec {PROGRAM} "$@"\n')
    path.chmod(0o755)
    return path


@pytest.fixture(scope="module")
def digits(experiment: Path, speech3: Run, tiny: Sequence[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the recipe digits, without the systems that adapt to speakers, which the cases do not use.

    Its network is of the full size, but trained for a short time: one case has less shared memory than that. The cases
    take eight utterances of each of the first ten speakers of test.
    """
    given = os.environ.get("SPEECH3_DIGITS")
    if given:
        return Path(given)
    out = tmp_path_factory.mktemp("cases") / "digits"
    shutil.copytree(experiment, out, symlinks=True)
    process = speech3("recipe", "digits", "--out", out, *tiny, "model.width=256", "--to", "decode")
    assert process.returncode == 0, process.stderr
    shutil.rmtree(out / "data" / "test")
    speakers = synthetic.read_speakers("digits", "test")
    written = [
        utterance
        for speaker in speakers[:10]
        for utterance in synthetic._speak_all(
            speaker, "digits", corpora.digits._say, out / "data", seed=1, sizes={"test": 8 * len(speakers)}
        )
    ]
    synthetic._write_split(written, out / "data" / "test")
    return out


@pytest.mark.slow
@pytest.mark.skipif(not CASES, reason="there is no ../shared/cases")
@pytest.mark.parametrize("case", CASES, ids=[case.stem for case in CASES])
def test_case(case: Path, digits: Path, program: Path) -> None:
    process = subprocess.run(
        ["bash", case],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=900,
        env={**os.environ, "EXP": str(digits), "S3": str(program), "PY": sys.executable},
    )
    assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-3000:]
