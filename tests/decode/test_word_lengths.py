"""Lengths of words: what no word is as long as becomes `<unk>`, in recordings, in files of results and in streams."""

import math
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from whistles import RATE_HZ, SAID, whistled

from speech3.cli.recognise import rescore
from speech3.corpora import read_speech
from speech3.data.datadir import DataDir, Utterance, write_datadir
from speech3.decode import WantedResults, decode_datadir, load_recognizer, search
from speech3.decode.recognizer import Recognizer, transcribe
from speech3.decode.word_lengths import WordLengths, learn_lengths, lengths_of
from speech3.errors import MismatchError
from speech3.hmm import Segment, read_ctm


def words(label: str, lengths_s: list[float]) -> list[Segment]:
    return [Segment(1.0, 1.0 + length_s, label) for length_s in lengths_s]


def test_the_limits_are_deviations_of_the_logarithm() -> None:
    logs = np.random.default_rng(1).normal(math.log(0.3), 0.4, 50)
    others = [*words("rare", [0.3] * 9), *words("<unk>", [0.3] * 50)]
    found = learn_lengths([*words("six", np.exp(logs).tolist()), *others])
    assert found is not None and set(found.words) == {"six"}
    mean, deviation = logs.mean(), logs.std()
    assert found.words["six"] == pytest.approx((mean, deviation))
    for factor, fits in ((-3.01, False), (-2.99, True), (0.0, True), (3.99, True), (4.01, False)):
        length_s = math.exp(mean + factor * deviation)
        assert found.fits(Segment(0.0, length_s, "six")) == fits
        assert found.fits(Segment(0.0, length_s, "rare")), "nothing is known of it"
    assert lengths_of(asdict(found)) == found and lengths_of(None) is None
    assert learn_lengths(words("rare", [0.3])) is None
    alike = learn_lengths(words("six", [0.3] * 20))
    assert alike is not None and alike.words["six"][1] == 0.25, "other speakers are faster or slower"


@pytest.fixture
def judging(model: Path) -> Path:
    """A model for which BB is a word of 5 ms, and A one of 0.3 s: in `a-bb` each of them lasts 0.3 s."""
    known = WordLengths({"BB": (math.log(0.005), 0.1), "A": (math.log(0.3), 0.3)})
    replace(load_recognizer(model).settings, lengths=known).save(model)
    return model


def test_in_recordings_and_streams(judging: Path, sounds: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    recognizer = Recognizer.load(judging)
    for times in (False, True):
        (found,) = transcribe(recognizer, [sounds["a-bb"]], times=times)
        assert found.text == "A <unk>" and [word.label for word in found.words] == ["A", "<unk>"] * times
    monkeypatch.setattr(search, "_MAX_FRAMES", 5)  # a recording that is too long for confidences
    (found,) = transcribe(recognizer, [sounds["a-bb"]])
    assert found.text == "A <unk>"
    monkeypatch.undo()
    wave_S = whistled(*SAID["a-bb"][1])
    assert recognizer.transcribe(wave_S, RATE_HZ).text == "A <unk>"
    stream = recognizer.stream(RATE_HZ)
    stream.accept(wave_S)
    assert stream.finish().text == "A <unk>"


def test_in_files(judging: Path, sounds: dict[str, Path], tmp_path: Path) -> None:
    data = DataDir(tmp_path / "data", {"u": str(sounds["a-bb"])}, {"u": Utterance("u", "u", "u", "A BB")})
    write_datadir(data, tmp_path / "data")
    recognizer, data = load_recognizer(judging), read_speech(tmp_path / "data")[0]
    decode_datadir(recognizer, [], data, tmp_path / "out", WantedResults(), 1)
    assert (tmp_path / "out" / "hyp.txt").read_text() == "u A <unk>\n"
    assert [word.label for word in read_ctm(tmp_path / "out" / "hyp.ctm")["u"]] == ["A", "<unk>"]
    # Rescored, with times or without.
    decode_datadir(recognizer, [], data, tmp_path / "lat", WantedResults(archive=True), 1)
    for ctm in (False, True):
        rescore(tmp_path / "lat", str(judging / "graph" / "lm.arpa.gz"), tmp_path / "rescored", ctm=ctm, jobs=1)
        assert (tmp_path / "rescored" / "hyp.txt").read_text() == "u A <unk>\n"


@pytest.mark.parametrize("wrong", ["{}", '{"words": {"A": [1]}}', '{"words": {"A": [1, 0]}}', '{"words": 3}', "[]"])
def test_damaged_ones_are_refused_by_the_name_of_their_file(judging: Path, wrong: str) -> None:
    settings = judging / "decode.json"
    begin, _, _ = settings.read_text().partition('"lengths"')
    settings.write_text(f'{begin}"lengths": {wrong}}}')
    with pytest.raises(MismatchError, match=r"decode\.json: has keys of another version"):
        _ = load_recognizer(judging).settings
