"""Files that real people had trouble with: each of `../shared/cases` makes one and exits 1 while the fault is there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(sys.executable).with_name("speech3")
CASES = sorted((Path(__file__).parents[3] / "shared" / "cases").glob("[0-9]*.sh"))


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the recipe digits, without the systems that adapt to speakers, which the cases do not use.

    Its networks are of the full size: the cases check words, which a tiny model does not recognise.
    """
    given = os.environ.get("SPEECH3_DIGITS")
    if given:
        return Path(given)
    out = tmp_path_factory.mktemp("cases") / "digits"
    subprocess.run(
        [PROGRAM, "recipe", "digits", "--out", out, "hmm.lda=null", "hmm.sat=null"], check=True, capture_output=True
    )
    return out


@pytest.mark.slow
@pytest.mark.skipif(not CASES, reason="there is no ../shared/cases")
@pytest.mark.parametrize("case", CASES, ids=[case.stem for case in CASES])
def test_case(case: Path, digits: Path) -> None:
    process = subprocess.run(
        ["bash", case],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=900,
        env={**os.environ, "EXP": str(digits), "S3": str(PROGRAM)},
    )
    assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-3000:]
