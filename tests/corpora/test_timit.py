"""TIMIT as it is distributed, on a small tree of the same layout; and its classes of phones."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from timit_tree import make_timit, speakers_of_test

from speech3.corpora import timit
from speech3.data.audio import load
from speech3.data.datadir import read_datadir
from speech3.data.phones import fold, phones61
from speech3.errors import MissingError, Speech3Error
from speech3.evaluate.text import ERROR_RATES
from speech3.hmm.alignment.times import read_ctm

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.parametrize("small_letters", [False, True])
@pytest.mark.parametrize("inside", ["", "TIMIT", "timit"])
def test_timit(tmp_path: Path, small_letters: bool, inside: str, capsys: pytest.CaptureFixture[str]) -> None:
    make_timit(tmp_path / "source" / inside, train=3, sentences=2, phones=5, small_letters=small_letters)
    timit.prepare(tmp_path / "source", tmp_path / "out", 1)
    found = {name: read_datadir(tmp_path / "out" / name) for name in ("train", "dev", "test")}
    assert {name: len(data.utterances) for name, data in found.items()} == {"train": 6, "dev": 50, "test": 24}
    assert set(found["test"].speakers()) == set(speakers_of_test()["test"])
    assert set(found["dev"].speakers()) == set(speakers_of_test()["dev"])
    assert not [key for data in found.values() for key in data.utterances if "-SA" in key]
    said = capsys.readouterr().err
    assert "train has 6 of its 3,696 utterances" in said and "test has 24 of its 192" in said
    utterance = next(iter(found["test"].utterances.values()))
    assert utterance.gender == utterance.speaker[0].lower()
    track = read_ctm(tmp_path / "out" / "test" / "reference.ctm")[utterance.id]
    assert " ".join(s.label for s in track if s.label != "SIL") == utterance.text
    assert (track[0].label, track[-1].label, track[0].start_s) == ("SIL", "SIL", 0.0)
    wave_N, rate_hz = load(found["test"], utterance.id)
    assert rate_hz == 16000 and abs(len(wave_N) / rate_hz - track[-1].end_s) < 1e-4
    assert np.abs(wave_N).max() > 0.1
    lexicon = (tmp_path / "out" / "lexicon.txt").read_text().split("\n")
    assert "ax-h ax-h" in lexicon and len([line for line in lexicon if line]) == 60 and "h# h#" not in lexicon


def test_what_is_missing_or_damaged(tmp_path: Path) -> None:
    root = tmp_path / "TIMIT"
    with pytest.raises(Speech3Error, match=r"not TIMIT: no TRAIN/ and TEST/ .*LDC93S1"):
        timit.prepare(tmp_path, tmp_path / "out", 1)
    make_timit(root, train=2, sentences=1, phones=3)
    directory = next((root / "TEST").glob("*/MDAB0"))
    hidden = shutil.move(directory, tmp_path / "MDAB0")
    with pytest.raises(MissingError, match="TEST: 1 of the 24 speakers of test are missing,"):
        timit.prepare(tmp_path, tmp_path / "out", 1)
    shutil.move(hidden, directory)
    labels = next(directory.glob("S[IX]*.PHN"))
    kept = labels.read_text()
    for damage, message in (
        ("0 100\n", r"\.PHN:1: not `BEGIN END LABEL` in samples: `0 100`"),
        ("0 100 h#\n100 200 AH0\n", r"\.PHN:2: AH0 is not one of TIMIT's 61 phones"),
        ("0 100 h#\n", r"\.PHN: has no phones"),
    ):
        labels.write_text(damage)
        with pytest.raises(Speech3Error, match=message):
            timit.prepare(tmp_path, tmp_path / "out", 1)
    labels.write_text(kept)
    sound = labels.with_suffix(".WAV")
    sound.write_bytes(sound.read_bytes()[:1024].replace(b"pcm", b"pcm,embedded-shorten-v2.00", 1))
    with pytest.raises(Speech3Error, match=r"\.WAV: compressed by shorten.*sph2pipe"):
        timit.prepare(tmp_path, tmp_path / "out", 1)
    sound.unlink()
    with pytest.raises(Speech3Error, match=r"\.WAV: no such file, but its labels"):
        timit.prepare(tmp_path, tmp_path / "out", 1)
    shutil.rmtree(root / "TRAIN")
    with pytest.raises(Speech3Error, match=r"TIMIT: TRAIN/DR\*/SPEAKER is missing"):
        timit.prepare(tmp_path, tmp_path / "out", 1)


def test_lee_and_hons_classes() -> None:
    phones = phones61()
    assert len(phones) == 61
    assert len({fold(phone, 48) for phone in phones} - {""}) == 48
    assert len({fold(phone, 39) for phone in phones} - {""}) == 39
    assert [phone for phone in phones if not fold(phone, 39)] == ["q"]
    for phone in phones:
        assert fold(fold(phone, 48), 39) == fold(phone, 39) == fold(fold(phone, 39), 39)
    # Section IV of the paper: the groups within which confusions do not count.
    groups = ["sil cl vcl epi", "l el", "n en", "sh zh", "ao aa", "ih ix", "ah ax"]
    assert {frozenset(group.split()) for group in groups} == {
        frozenset(same)
        for phone in phones
        if len(same := {fold(p, 48) for p in phones if fold(p, 39) == fold(phone, 39)} - {""}) > 1
    }


def test_phone_error_rate(tmp_path: Path, speech3: Run) -> None:
    reference, hypothesis = "kcl k ix q s hv ae dcl", "pcl k ih s hh ae epi t"
    assert ERROR_RATES["PER"]([reference], [hypothesis]) == pytest.approx(1 / 7)  # t is inserted
    (tmp_path / "ref").write_text(f"a-1 {reference}\na-2 s\n")
    (tmp_path / "hyp").write_text(f"a-1 {hypothesis}\na-2 s\n")
    for steps, errors, phones in (("phones39", 1, 8), ("phones48", 3, 8), ("", 6, 9)):
        more = ["--normalize", steps] if steps else []
        found = json.loads(speech3("score", tmp_path / "ref", tmp_path / "hyp", "--json", *more).stdout)
        assert (round(found["wer"] * found["words"]), found["words"]) == (errors, phones)
