import json

import numpy as np
import pytest
import soundfile
from sounds import RATE_HZ, tone

from speech3.data.datadir import read_datadir
from speech3.data.stats import describe_corpus, lengths_s, measure_corpus
from speech3.errors import Speech3Error
from speech3.evaluate.figures import write_histograms
from speech3.io.ark import write_ark


@pytest.fixture
def directory(make):
    """Utterances of 1, 2 and 6 seconds with 2, 1 and 3 words; u1 and u2 are a's, u3 is b's."""
    path = make(text="u1 ONE TWO\nu2 THREE\nu3 ONE ONE SIX\n", spk2gender="a f\nb m\n")
    for key, seconds in (("u1", 1), ("u2", 2), ("u3", 6)):
        soundfile.write(path / "wav" / f"{key}.wav", tone(seconds), RATE_HZ)
    return path


def test_numbers_by_hand(directory):
    stats = measure_corpus(read_datadir(directory), ["ONE", "THREE", "FOUR"])
    assert (stats.utterances, stats.speakers, stats.recordings) == (3, 2, 3)
    assert stats.hours == pytest.approx(9 / 3600)
    assert stats.sample_rates_hz == {RATE_HZ: 3} and stats.channels == {1: 3} and stats.genders == {"f": 1, "m": 1}
    assert stats.speaker_s == {"a": 3.0, "b": 6.0}
    words, oov = stats.words, stats.out_of_vocabulary
    assert (words.running, words.distinct, words.once, words.without) == (6, 4, 3, 0)
    assert words.per_utterance == 2.0 and words.per_second == pytest.approx(6 / 9)
    assert (oov.lexicon, oov.running, oov.distinct, oov.utterances) == (3, 2, 2, 2)
    assert oov.rate == pytest.approx(2 / 6) and oov.counts == {"SIX": 1, "TWO": 1}
    values = stats.as_json()
    assert values["utterance_s"] == {
        "mean": 3.0,
        "min": 1.0,
        "5%": 1.1,
        "25%": 1.5,
        "50%": 2.0,
        "75%": 4.0,
        "95%": pytest.approx(5.6),
        "max": 6.0,
    }
    assert values["speaker_minutes"]["50%"] == pytest.approx(4.5 / 60)
    assert values["minutes_of_speaker"] == {"a": 0.05, "b": 0.1}


def test_as_text(directory):
    text = describe_corpus(measure_corpus(read_datadir(directory), ["ONE", "THREE"]))
    for line in (
        "speakers    2 (1 f, 1 m)",
        f"recordings  3 ({RATE_HZ} Hz)",
        "words       6, 2.0 per utterance, 0.67 per second",
        "not in it   2 words (33.33%), 2 distinct, in 2 utterances",
        "            SIX 1, TWO 1",
    ):
        assert line in text.splitlines()
    head, utterance, speaker = text.splitlines()[6:9]
    assert len(head) == len(utterance) == len(speaker)


def test_of_one_as_text(directory):
    (directory / "text").write_text("u1 ONE TWO\nu2 ONE\nu3 ONE\n")
    lines = describe_corpus(measure_corpus(read_datadir(directory), ["ONE"])).splitlines()
    for line in (
        "vocabulary  2, of which 1 occurs once",
        "not in it   1 word (25.00%), 1 distinct, in 1 utterance",
    ):
        assert line in lines


def test_without_words_and_with_several_rates(directory, capsys, program):
    (directory / "text").unlink()
    soundfile.write(directory / "wav" / "u3.wav", np.stack([tone(6, rate_hz=16000)] * 2, axis=1), 16000)
    done = program("stats", directory)
    assert done.exit_code == 0 and "words" not in done.stdout
    assert f"3 ({RATE_HZ} Hz in 2, 16000 Hz in 1)" in done.stdout and "channels    1 in 2, 2 in 1" in done.stdout
    assert "several sample rates" in done.stderr and "mix_channels" in done.stderr


def test_a_lost_recording(directory):
    (directory / "wav" / "u2.wav").unlink()
    with pytest.raises(Speech3Error, match=r"1 of 3 utterances have no length.*\n  u2: .*no such file"):
        measure_corpus(read_datadir(directory))


@pytest.mark.parametrize("rows", ["[0:39]", "[10:19,0:1]", ""])
def test_frames_count_where_there_is_no_audio(directory, rows):
    feats = {key: np.zeros((frames, 3), dtype) for key, frames, dtype in (("u1", 40, "f4"), ("u2", 90, "f8"))}
    feats["u3"] = np.zeros((7, 3), np.float32)
    write_ark(directory / "f.ark", feats.items(), directory / "feats.scp")
    (directory / "feats.scp").write_text((directory / "feats.scp").read_text().replace("\n", f"{rows}\n", 1))
    (directory / "wav.scp").unlink()
    stats = measure_corpus(read_datadir(directory))
    first = {"[0:39]": 0.4, "[10:19,0:1]": 0.1, "": 0.4}[rows]
    assert stats.lengths_s == (first, 0.9, 0.07) and stats.recordings == 0
    assert "features only" in describe_corpus(stats)


@pytest.mark.parametrize("kind", [b"CM ", b"CM2 ", b"CM3 "])
def test_frames_of_compressed_matrices(directory, kind):
    """Kaldi's header: token, minimum, range, rows, columns (matrix/compressed-matrix.h)."""
    header = b"\0B" + kind + np.array([-1, 2], "<f4").tobytes() + np.array([321, 13], "<i4").tobytes()
    (directory / "f.ark").write_bytes(b"u1 " + header)
    (directory / "feats.scp").write_text("".join(f"u{n} f.ark:3\n" for n in (1, 2, 3)))
    (directory / "wav.scp").unlink()
    assert lengths_s(read_datadir(directory)) == {"u1": 3.21, "u2": 3.21, "u3": 3.21}
    (directory / "f.ark").write_bytes(b"u1 " + header[:8])
    with pytest.raises(Speech3Error, match=r"f\.ark:3: number of frames unknown"):
        lengths_s(read_datadir(directory))


def test_the_verb(directory, tmp_path, program):
    lexicon = tmp_path / "lexicon.txt"
    lexicon.write_text("ONE W AH N\nTHREE TH R IY\n")
    out = tmp_path / "out"
    done = program("stats", directory, "--lexicon", lexicon, "--out", out, "--json")
    assert done.exit_code == 0, done.exception
    assert json.loads(done.stdout) == json.loads((out / "stats.json").read_text())
    assert (out / "oov.txt").read_text() == "SIX 1\nTWO 1\n"
    assert (out / "stats.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_the_picture_shows_every_utterance_and_speaker(directory, tmp_path, monkeypatch):
    from matplotlib.axes import Axes

    drawn = []
    hist, bar = Axes.hist, Axes.bar
    monkeypatch.setattr(Axes, "hist", lambda axes, x, **o: drawn.append(hist(axes, x, **o)[0].sum()))
    monkeypatch.setattr(Axes, "bar", lambda axes, x, y, *a, **o: drawn.append(list(y)) or bar(axes, x, y, *a, **o))
    write_histograms(measure_corpus(read_datadir(directory)), tmp_path / "a.png")
    assert sum(drawn[0]) == 3 and drawn[1:] == [3.0, [0.1, 0.05]]  # a histogram is drawn as bars
