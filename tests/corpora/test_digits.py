"""The built-in corpus: the same bytes every time, and a reference alignment that lines up with the sound."""

import hashlib
import os
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import soundfile

from speech3.corpora import digits, synthetic
from speech3.data.datadir import read_datadir
from speech3.data.validation import validate
from speech3.errors import Speech3Error
from speech3.language.espeak import synthesize
from speech3.runtime import parallel

pytest.importorskip("espeakng_loader", reason="the espeak extra is not installed")

SIZES = {"train": 33, "dev": 6, "test": 55}
Ctm = dict[str, list[tuple[float, float, str]]]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("digits") / "corpus"
    digits.prepare(None, out, 5, jobs=1, **SIZES)
    return out


def _ctm(path: Path) -> Ctm:
    table: Ctm = {}
    for line in path.read_text().splitlines():
        key, channel, start, duration, label = line.split()
        assert channel == "1"
        table.setdefault(key, []).append((float(start), float(start) + float(duration), label))
    return table


def _digests(out: Path) -> dict[str, str]:
    files = sorted(path for path in out.rglob("*") if path.is_file())
    return {str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_same_bytes_with_more_processes(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "_ALONE_S", -1.0)  # so little work would start no process
    digits.prepare(None, tmp_path / "again", 5, jobs=2, **SIZES)
    assert _digests(tmp_path / "again") == _digests(corpus)
    assert [path.name for path in tmp_path.iterdir()] == ["again"]


def test_another_seed_is_another_corpus(corpus: Path, tmp_path: Path) -> None:
    digits.prepare(None, tmp_path, 6, jobs=2, **SIZES)
    first, second = _digests(corpus), _digests(tmp_path)
    assert not [name for name in first if name.endswith(".wav") and first[name] == second.get(name)]


def test_data_directories_are_whole(corpus: Path) -> None:
    speakers: Counter[str] = Counter()
    for split, size in SIZES.items():
        data = read_datadir(corpus / split)
        assert len(data.utterances) == size
        assert not validate(corpus / split).faults
        assert list(data.recordings.values()) == [f"wav/{key}.wav" for key in data.utterances]
        speakers.update(list(data.speakers()))
        texts = [str(utterance.text).split() for utterance in data.utterances.values()]
        assert all(1 <= len(words) <= 7 for words in texts)
        conditions = dict(line.split() for line in (corpus / split / "conditions").read_text().splitlines())
        assert list(conditions) == list(data.utterances)
    assert len(speakers) >= 40 and set(speakers.values()) == {1}  # no speaker is in two splits


def test_no_variant_is_in_two_splits() -> None:
    split = {}
    for speaker in synthetic.read_speakers("digits"):
        variant = speaker.voice.partition("+")[2] or speaker.voice
        assert split.setdefault(variant, speaker.split) == speaker.split


def test_all_conditions_and_words_occur(corpus: Path) -> None:
    lines = [line.split() for split in SIZES for line in (corpus / split / "conditions").read_text().splitlines()]
    counts = Counter(condition for _, condition in lines)
    assert set(counts) == set(synthetic.CONDITIONS)
    assert 0.35 < counts["clean"] / len(lines) < 0.65
    words = {word for split in SIZES for line in (corpus / split / "text").open() for word in line.split()[1:]}
    assert words == set(synthetic.read_lexicon("digits")) == {*digits.DIGITS, "OH"}


def test_reference_is_gapless_and_agrees_with_text_and_lexicon(corpus: Path) -> None:
    lexicon = synthetic.read_lexicon("digits")
    for split in SIZES:
        data = read_datadir(corpus / split)
        phones, words = _ctm(corpus / split / "reference.ctm"), _ctm(corpus / split / "reference_words.ctm")
        assert set(phones) == set(words) == set(data.utterances)
        for key, utterance in data.utterances.items():
            duration_s = soundfile.info(corpus / split / data.recordings[key]).duration
            assert phones[key][0][0] == 0 and phones[key][-1][1] == pytest.approx(duration_s, abs=2e-4)
            assert all(end == pytest.approx(start, abs=2e-4) for (_, end, _), (start, _, _) in pairwise(phones[key]))
            assert all(end - start > 0.02 for start, end, _ in phones[key])
            assert phones[key][0][2] == phones[key][-1][2] == "SIL"
            assert [word for _, _, word in words[key]] == str(utterance.text).split()
            for start, end, word in words[key]:
                within = [one for one in phones[key] if one[0] > start - 5e-4 and one[1] < end + 5e-4]
                assert tuple(label for _, _, label in within) in lexicon[word]
                assert within[0][0] == pytest.approx(start, abs=2e-4) and within[-1][1] == pytest.approx(end, abs=2e-4)


def test_every_accent_keeps_to_lexicon_and_mapping_in_all_pairs() -> None:
    words = [
        word for a in synthetic.read_lexicon("digits") for b in synthetic.read_lexicon("digits") for word in (a, b)
    ]
    names, lexicon, used = digits.read_phone_names(), synthetic.read_lexicon("digits"), set()
    for accent in sorted({speaker.voice.partition("+")[0] for speaker in synthetic.read_speakers("digits")}):
        synthesis = synthesize(" ".join(words).lower(), accent)
        phones, spans = digits.align(synthesis, words, accent, 0.0, len(synthesis.samples) / synthesis.sample_rate_hz)
        dropped = len(synthesis.events) + 1 - len(phones)  # one to one, and the silence before
        assert dropped == 0 or (accent == "en-gb-scotland" and dropped <= words.count("FOUR"))
        assert [span.label for span in spans] == words
        used |= {event.ipa for event in synthesis.events} - {""}
    assert used == set(names)  # nothing in the table that no accent says
    assert set(names.values()) == {phone for variants in lexicon.values() for phones in variants for phone in phones}
    assert max(map(len, lexicon.values())) <= 3


def test_reference_lines_up_with_the_sound(corpus: Path) -> None:
    """In clean recordings every SIL is quiet and what follows is loud, within 5 ms of the boundary."""
    checked = 0
    for split in SIZES:
        conditions = dict(line.split() for line in (corpus / split / "conditions").read_text().splitlines())
        for key, phones in _ctm(corpus / split / "reference.ctm").items():
            if conditions[key] != "clean":
                continue
            samples, rate_hz = soundfile.read(corpus / split / "wav" / f"{key}.wav")
            for (start, end, label), (_, _, after) in pairwise(phones):
                if label == "SIL" and after not in ("F", "TH"):  # hardly above the hiss in some voices
                    quiet = samples[round(start * rate_hz) + 80 : round(end * rate_hz) - 16]
                    loud = samples[round(end * rate_hz) : round((end + 0.03) * rate_hz)]
                    assert loud.std() > 3 * quiet.std(), (key, end, after)
                    checked += 1
    assert checked > 30


def test_closure_belongs_to_the_stop() -> None:
    synthesis = synthesize("six eight two", "en-us")
    phones, _ = digits.align(synthesis, ["SIX", "EIGHT", "TWO"], "u", 0.0, len(synthesis.samples) / 22050)
    releases = {event.start_s for event in synthesis.events if event.ipa in ("t", "k")}
    stops = [phone for phone in phones if phone.label in ("T", "K")]
    for phone, release_s in zip(stops, sorted(releases), strict=True):
        begin, release = round(phone.start_s * 22050), round(release_s * 22050)
        assert 0.03 < release_s - phone.start_s < 0.08
        assert not synthesis.samples[begin:release].any() and synthesis.samples[begin - 1] != 0


def test_no_utterance_is_silent_or_clipped(corpus: Path) -> None:
    for path in corpus.rglob("*.wav"):
        samples, rate_hz = soundfile.read(path, dtype="int16")
        assert rate_hz == 16000 and samples.ndim == 1
        peak = np.abs(samples.astype(int)).max()
        assert 1000 < peak < 32000


def test_a_failed_run_keeps_what_was_there(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "corpus"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    digits.prepare(None, out, 5, jobs=2, **SIZES)
    before = _digests(out)
    assert before.pop("notes.txt") and before == _digests(corpus)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(synthetic, "_write_split", full)
    with pytest.raises(Speech3Error, match="no space left on the disk"):
        digits.prepare(None, out, 7, jobs=2, **SIZES)
    after = _digests(out)
    assert after.pop("notes.txt") and after == before
    assert [path.name for path in tmp_path.iterdir()] == ["corpus"]


def test_what_killed_runs_left_is_removed_but_not_what_others_do(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left, own, others = (tmp_path / f".out.{pid}.tmp" for pid in (dead.pid, os.getpid(), os.getppid()))
    for directory in (left, own, others):
        directory.mkdir()
        (directory / "some.wav").write_bytes(b"")
    digits.prepare(None, tmp_path / "out", 5, jobs=1, train=33, dev=6, test=11)
    assert not left.exists() and not own.exists() and others.exists()


def test_fewer_utterances_than_speakers(tmp_path: Path) -> None:
    digits.prepare(None, tmp_path / "out", 5, train=33, dev=5, test=11)
    assert [len(read_datadir(tmp_path / "out" / split).speakers()) for split in SIZES] == [33, 5, 11]
    with pytest.raises(Speech3Error, match="dev: 0 utterances"):
        digits.prepare(None, tmp_path / "none", 1, train=33, dev=0, test=11)
    assert not (tmp_path / "none").exists()
