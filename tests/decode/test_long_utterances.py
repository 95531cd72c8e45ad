"""`speech3 decode` cuts utterances of more than five minutes at pauses, and joins the results."""

from pathlib import Path

import numpy as np
import pytest
import soundfile
from whistles import RATE_HZ, whistled

from speech3.data import audio
from speech3.data.datadir import DataDir, Utterance, read_datadir
from speech3.decode.output import WHOLE_S, UtteranceParts, cut_long_utterances
from speech3.decode.recognizer import load_recognizer, transcribe
from speech3.errors import DataError
from speech3.hmm.alignment.times import read_ctm

SENTENCE = (("SIL", 0.3), ("a", 0.3), ("b", 0.25), ("SIL", 0.2), ("b", 0.3), ("SIL", 0.35))  # "AB BB", 1.7 s
BEFORE_S = 4.0  # of silence, before the long utterance in its recording


@pytest.fixture
def long_data(tmp_path: Path) -> Path:
    """A recording with a long utterance from its fourth second on and a short one at its end."""
    said_S = np.tile(whistled(*SENTENCE), 30)  # 51 s
    silence_S = np.zeros(round(260 * RATE_HZ), np.float32)
    before_S = np.zeros(round(BEFORE_S * RATE_HZ), np.float32)
    wave_S = np.concatenate([before_S, said_S, silence_S, said_S, whistled(*SENTENCE)])
    path = tmp_path / "long"
    path.mkdir()
    soundfile.write(path / "talk.flac", wave_S, RATE_HZ)
    (path / "wav.scp").write_text("talk talk.flac\n")
    (path / "segments").write_text(f"s-long talk {BEFORE_S} {BEFORE_S + 362}\ns-short talk {BEFORE_S + 362} 367.7\n")
    (path / "utt2spk").write_text("s-long s\ns-short s\n")
    return path


def test_decoded_in_parts_and_joined(model: Path, long_data: Path, tmp_path: Path, speech3) -> None:
    out = tmp_path / "out"
    done = speech3("decode", model, long_data, out, "--jobs", "1", "--lattice", "--nbest", "2")
    assert done.stdout.startswith(f"2 utterances: {out}/hyp.txt, {out}/hyp.ctm")
    assert "s-long: 362 s, cut at pauses into" in done.stderr
    assert (out / "hyp.txt").read_text() == f"s-long {' '.join(['AB BB'] * 60)}\ns-short AB BB\n"
    times = read_ctm(out / "hyp.ctm")
    assert list(times) == ["s-long", "s-short"]
    begins_s = [1.7 * n + (260 if n >= 30 else 0) for n in range(60)]
    assert [word.start_s for word in times["s-long"][::2]] == pytest.approx([b + 0.3 for b in begins_s], abs=0.06)
    assert all(word.confidence is not None for word in times["s-long"])
    named = [line.split()[0] for line in (out / "lat.scp").read_text().splitlines()]
    assert named[-1] == "s-short" and len(named) > 4
    assert all(name.startswith("s-long-0") for name in named[:-1])
    # What was recognised in it, divided among its parts again, so that speakers can be adapted to it.
    cut, parts = cut_long_utterances(read_datadir(long_data))
    said = {line.split()[0]: line.split(" ", 1)[1] for line in (out / "hyp.txt").read_text().splitlines()}
    divided = parts.divided(said, times)
    assert set(divided) == set(cut.utterances) and divided["s-short"] == "AB BB"
    assert " ".join(divided[name] for name in sorted(divided)[:-1]) == said["s-long"]
    assert all(divided[name].startswith("AB") and divided[name].endswith("BB") for name in divided)
    assert parts.divided(said, {}) == {"s-short": "AB BB"}
    assert UtteranceParts({"s-long": {}}).divided(said, times) == {"s-short": "AB BB"}
    # `transcribe` cuts in the same places.
    wave_S, _ = audio.read_file(long_data / "talk.flac", start_s=BEFORE_S, end_s=BEFORE_S + 362)
    soundfile.write(tmp_path / "long.flac", wave_S, RATE_HZ)
    (found,) = transcribe(load_recognizer(model), [tmp_path / "long.flac"], times=True)
    assert [w.label for w in found.words] == [w.label for w in times["s-long"]]
    assert [w.start_s for w in found.words] == pytest.approx([w.start_s for w in times["s-long"]], abs=0.011)


def recordings(path: Path, utterances: dict[str, np.ndarray]) -> DataDir:
    for name, wave_S in utterances.items():
        soundfile.write(path / f"{name}.wav", wave_S, 1000)
    named = {name: f"{name}.wav" for name in utterances}
    return DataDir(path, named, {name: Utterance(name, name, name, None) for name in sorted(named)})


def test_what_is_not_cut(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    data = recordings(tmp_path, {"a": rng.normal(0, 0.1, round(WHOLE_S * 1000)).astype(np.float32)})
    missing = Utterance("b", "b", "b", None)
    data = DataDir(tmp_path, {**data.recordings, "b": "none.wav"}, {**data.utterances, "b": missing})
    found, parts = cut_long_utterances(data)
    assert found == data and not parts.begins_s
    segment = Utterance("b", "b", "b", None, 0.0, WHOLE_S + 20)  # its length is known, but not its sound
    data = DataDir(tmp_path, data.recordings, {**data.utterances, "b": segment})
    assert cut_long_utterances(data) == (data, parts)


def test_an_utterance_of_silence_has_no_words(model: Path, tmp_path: Path, speech3) -> None:
    said_S, silence_S = whistled(*SENTENCE), np.zeros(round(301 * RATE_HZ), np.float32)
    for name, wave_S in (("said", said_S), ("silent", silence_S)):
        soundfile.write(tmp_path / f"{name}.flac", wave_S, RATE_HZ)
    data = tmp_path / "data"
    data.mkdir()
    (data / "wav.scp").write_text(f"silent cat {tmp_path}/silent.flac |\n")
    (data / "utt2spk").write_text("silent x\n")
    refused = speech3("decode", model, data, tmp_path / "out")
    assert refused.returncode == 1 and "data: no utterance contains speech" in refused.stderr
    (data / "wav.scp").write_text(f"said {tmp_path}/said.flac\nsilent cat {tmp_path}/silent.flac |\n")
    (data / "utt2spk").write_text("said x\nsilent x\n")
    speech3("decode", model, data, tmp_path / "out", "--jobs", "1")
    assert (tmp_path / "out" / "hyp.txt").read_text() == "said AB BB\nsilent\n"


def test_a_name_that_exists_already(tmp_path: Path) -> None:
    loud = np.random.default_rng(0).normal(0, 0.1, 25_000).astype(np.float32)
    loud[5000:10_000] *= 0.001
    data = recordings(tmp_path, {"a": loud})
    (part,) = cut_long_utterances(data, 20.0)[0].utterances
    assert part == "a-0000000-0002500"
    with pytest.raises(DataError, match=r"a lasts 25 s and is to be cut, but .* parts,"):
        cut_long_utterances(recordings(tmp_path, {"a": loud, part: loud[:1000]}), 20.0)
