import gzip
import shutil

import numpy as np
import pytest
import soundfile
from sounds import RATE_HZ, tone

from speech3.data.audio import load
from speech3.data.datadir import read_datadir
from speech3.data.validation import fix_datadir, validate
from speech3.errors import DataError, Speech3Error
from speech3.io.ark import write_ark
from speech3.runtime import parallel


def _put(directory, key, samples, rate_hz=RATE_HZ):
    soundfile.write(directory / "wav" / f"{key}.wav", samples, rate_hz)


def _cut(directory, key, samples=1000):
    path = directory / "wav" / f"{key}.wav"
    path.write_bytes(path.read_bytes()[: -2 * samples])


AUDIO_FAULTS = {
    "missing audio": lambda d: (d / "wav" / "u2.wav").unlink(),
    "unreadable audio": lambda d: (d / "wav" / "u2.wav").write_bytes(b"no sound at all" * 50),
    "empty audio": lambda d: (d / "wav" / "u2.wav").write_bytes(b""),
    "truncated audio": lambda d: _cut(d, "u2"),
    "several channels": lambda d: _put(d, "u2", np.stack([tone()] * 8, axis=1)),
    "other sample rate": lambda d: _put(d, "u2", tone(rate_hz=16000), 16000),
    "too short": lambda d: _put(d, "u2", tone(0.02)),
    "segment": lambda d: (d / "segments").write_text("u1 u1 0 0.5\nu2 u2 0.7 0.9\nu3 u3 0.1 0.5\n"),
}


def test_fine(make, program):
    report = validate(make())
    assert report.faults == report.warnings == ()
    assert report.summary().endswith("fine: 3 utterances, 2 speakers, 0.00 hours, 8000 Hz")
    done = program("validate", make())
    assert done.exit_code == 0 and len(done.stdout.splitlines()) == 1


@pytest.mark.parametrize("kind", AUDIO_FAULTS)
def test_each_fault_of_the_audio_is_found_and_repaired(make, tmp_path, program, kind):
    directory = make()
    AUDIO_FAULTS[kind](directory)
    (fault,) = validate(directory).faults
    assert fault.kind == kind and fault.subject == "u2" and fault.drop == ("u2",)
    assert fault.problem and fault.remedy
    done = program("validate", directory)
    assert done.exit_code == 1
    assert "u2: " in done.stdout and f"1 fault (1 {kind})" in done.stdout.splitlines()[-1]
    mended = fix_datadir(directory, tmp_path / "out")
    assert mended.removed == ("u2",) and list(mended.data.utterances) == ["u1", "u3"]
    assert validate(tmp_path / "out").faults == ()


def test_every_fault_at_once(make, tmp_path, program):
    directory = make(
        wav_scp="".join(f"u{k} wav/u{k}.wav\n" for k in (9, 8, 7, 6, 5, 4, 3, 2, 1)) + "u1 wav/u1.wav\n",
        text=b"u1 A\nu2 B\nu3 caf\xe9\nu4 D\nu5 E\nu6 F\nu7 \nu9  I  I \nu4 OTHER\nu0 Z\n",
        utt2spk="".join(f"u{k} s{k}\n" for k in (1, 2, 3, 4, 5, 6, 7, 8)),
    )
    for key in ("u7", "u8", "u9"):
        _put(directory, key, tone())
    (directory / "wav" / "u1.wav").unlink()
    _cut(directory, "u2")
    _put(directory, "u4", np.zeros(4000))
    _put(directory, "u5", tone(rate_hz=16000), 16000)
    _put(directory, "u6", np.stack([tone()] * 2, axis=1))
    report = validate(directory)
    expected = {
        ("duplicate id", "u1"),
        ("duplicate id", "u4"),
        ("not UTF-8", "u3"),
        ("empty text", "u7"),
        ("no text", "u8"),
        ("no speaker", "u9"),
        ("no audio", "u0"),
        ("missing audio", "u1"),
        ("truncated audio", "u2"),
        ("other sample rate", "u5"),
        ("several channels", "u6"),
    }
    assert {(fault.kind, fault.subject) for fault in report.faults} == expected
    assert [(fault.kind, fault.subject) for fault in report.warnings] == [("digital silence", "u4")]
    done = program("validate", directory)
    assert done.exit_code == 1 and len(done.stdout.splitlines()) == len(expected) + 1 + 1

    done = program("fix", directory, tmp_path / "out")
    assert done.exit_code == 0
    assert "removed 6 utterances: u1 u2 u5 u6 u7 u8" in done.stdout
    assert all(any(key in line and kind for line in done.stdout.splitlines()) for kind, key in expected)
    assert validate(tmp_path / "out").faults == ()
    data = read_datadir(tmp_path / "out")
    assert {key: (utt.text, utt.speaker) for key, utt in data.utterances.items()} == {
        "u3": ("café", "s3"),
        "u4": ("D", "s4"),
        "u9": ("I I", "u9"),
    }


def test_segments_are_clipped(make, tmp_path):
    directory = make(
        wav_scp="r wav/u1.wav\ns wav/u2.wav\n",
        segments="u1 r 0.1 0.9\nu2 r -1 0.3\nu3 s 0.49 2\nu4 r 0.6 0.7\nu5 s 0.3 0.2\n",
        text="u1 A\nu2 B\nu3 C\nu4 D\nu5 E\n",
        utt2spk="".join(f"u{k} s\n" for k in range(1, 6)),
    )
    assert {fault.subject for fault in validate(directory).faults} == {"u1", "u2", "u3", "u4", "u5"}
    mended = fix_datadir(directory, tmp_path / "out")
    assert "u1" in mended.changes[2] and "end clipped to 0.500 s" in mended.changes[2]
    assert mended.removed == ("u3", "u4")  # of u3 only 10 ms would be left
    assert validate(tmp_path / "out").faults == ()
    data = read_datadir(tmp_path / "out")
    assert [(utt.id, utt.start_s, utt.end_s) for utt in data.utterances.values()] == [("u1", 0.1, 0.5), ("u2", 0, 0.3)]
    assert len(load(data, "u1")[0]) == 3200


def test_one_bad_recording_of_many_segments_is_one_fault(make, tmp_path):
    directory = make(wav_scp="r wav/u1.wav\ns wav/u2.wav\n", segments="u1 r 0 0.2\nu2 r 0.2 0.4\nu3 s 0 0.5\n")
    _cut(directory, "u1")
    (fault,) = validate(directory).faults
    assert fault.subject == "u1 and 1 other utterances" and fault.drop == ("u1", "u2")
    assert list(fix_datadir(directory, tmp_path / "out").data.recordings) == ["s"]


def test_text_is_not_needed_for_decoding(make, tmp_path, program):
    directory = make(text=None)
    assert program("validate", directory).exit_code == 1
    assert program("validate", directory, "--no-text").exit_code == 0
    assert "left without text" in fix_datadir(directory, tmp_path / "out").changes[0]
    assert not (tmp_path / "out" / "text").exists()


def test_pipes_and_processes(make, monkeypatch):
    monkeypatch.setattr(parallel, "_ALONE_S", -1.0)  # so little work would start no process
    directory = make(wav_scp="u1 cat wav/u1.wav |\nu2 cat nothing.wav |\nu3 wav/u3.wav\n")
    alone, together = validate(directory, jobs=1), validate(directory, jobs=2)
    assert [str(fault) for fault in alone.faults] == [str(fault) for fault in together.faults]
    assert [fault.kind for fault in alone.faults] == ["unreadable audio"]


def test_constant_samples_are_silence_and_quiet_ones_are_not(make):
    directory = make()
    _put(directory, "u1", np.full(4000, 0.25))
    _put(directory, "u2", np.eye(1, 4000)[0] / 32768)
    report = validate(directory)
    assert [fault.subject for fault in report.warnings] == ["u1"] and not report.faults


def test_clipping_and_a_microphone_that_was_off_are_warnings(make):
    directory, noise = make(), np.random.default_rng(1).normal(0, 0.1, 8 * 8000)
    _put(directory, "u1", np.clip(10 * noise, -0.5, 0.5))
    noise[3 * 8000 : 6 * 8000] = 0
    _put(directory, "u2", noise)
    report = validate(directory)
    assert [(fault.kind, fault.subject) for fault in report.warnings] == [("clipped", "u1"), ("muted", "u2")]
    assert "3.00 to 6.00 s" in report.warnings[1].problem and not report.faults
    (directory / "segments").write_text("u1 u2 0 2.9\nu2 u2 2.9 4.5\nu3 u2 6.1 8\n")
    assert not validate(directory).warnings


def test_a_missing_end_is_a_warning_and_the_rest_is_used(make, tmp_path):
    directory = make()
    _cut(directory, "u2", samples=400)
    report = validate(directory)
    assert not report.faults
    assert [(fault.kind, fault.subject) for fault in report.warnings] == [("missing end", "u2")]
    assert "promises 50 ms more than the file has; the rest is used" in str(report.warnings[0])
    assert fix_datadir(directory, tmp_path / "out").removed == ()


def test_fix_refuses(make, tmp_path):
    directory = make()
    with pytest.raises(Speech3Error, match="is one of the inputs"):
        fix_datadir(directory, directory / ".." / "data")
    shutil.rmtree(directory / "wav")
    with pytest.raises(DataError, match=r"no usable utterance is left(.|\n)*u1\.wav"):
        fix_datadir(directory, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_fix_leaves_its_source_alone(make, tmp_path):
    directory = make(text="u1 A\nu2\n")
    before = {path: path.read_bytes() for path in directory.iterdir() if path.is_file()}
    fix_datadir(directory, tmp_path / "out")
    assert before == {path: path.read_bytes() for path in directory.iterdir() if path.is_file()}


def test_empty_directory(tmp_path, program):
    (tmp_path / "empty").mkdir()
    done = program("validate", tmp_path / "empty")
    assert done.exit_code == 1 and "has neither recordings" in done.stdout


def test_features_without_audio(make, tmp_path):
    directory = make()
    write_ark(directory / "f.ark", ((key, np.ones((40, 3))) for key in ("u1", "u2", "u3")), directory / "feats.scp")
    (directory / "wav.scp").unlink()
    assert validate(directory).summary().endswith("fine: 3 utterances, 2 speakers, features without audio")
    (directory / "text").write_text("u1 A\nu2 B\n")
    assert fix_datadir(directory, tmp_path / "out").removed == ("u3",)
    assert list(read_datadir(tmp_path / "out").feats) == ["u1", "u2"]


def _features(directory, change=lambda feats: None):
    feats = {key: np.ones((40 if key != "u3" else 60, 3), np.float32) for key in ("u1", "u2", "u3")}
    change(feats)
    write_ark(directory / "f.ark", feats.items(), directory / "feats.scp")
    return feats


def _set(key, value):
    return lambda feats: feats.__setitem__(key, value)


@pytest.mark.parametrize(
    ("kind", "change", "problem"),
    [
        ("unusable features", _set("u2", np.where(np.eye(40, 3) > 0, np.nan, 1)), "value 0 of frame 0 is nan (3 of 40"),
        ("other feature size", _set("u2", np.ones((40, 4))), "has 4 values per frame, but 2 of the utterances have 3"),
        ("other length", _set("u2", np.ones((400, 3))), "has 400 frames of features, but its recording of 0.40 s"),
    ],
)
def test_faults_of_features_are_found_and_repaired(make, tmp_path, program, kind, change, problem):
    directory = make()
    lengths = {utterance.id: info.duration_s for utterance, info in validate(directory).scanned}
    sizes = {key: round(100 * length_s) for key, length_s in lengths.items()}

    def fitting(feats):
        feats.update({key: np.ones((size, 3), np.float32) for key, size in sizes.items()})
        change(feats)

    _features(directory, lambda feats: feats.update({key: np.ones((n, 3)) for key, n in sizes.items()}))
    assert validate(directory).faults == ()
    _features(directory, fitting)
    (fault,) = validate(directory).faults
    assert (fault.kind, fault.subject, fault.drop) == (kind, "u2", ("u2",))
    assert problem.split("0.40")[0] in fault.problem
    assert fix_datadir(directory, tmp_path / "out").removed == ("u2",)
    (directory / "feats.scp").rename(tmp_path / "other.scp")
    assert validate(directory).faults == ()
    done = program("validate", directory, "--features", tmp_path / "other.scp")
    assert done.exit_code == 1 and "u2: " in done.stdout


def test_offsets_that_lead_elsewhere_are_found(make, tmp_path):
    directory = make()
    (directory / "wav.scp").unlink()
    _features(directory)
    scp = dict(line.split() for line in (directory / "feats.scp").read_text().splitlines())
    whole = (directory / "f.ark").read_bytes()
    for name, location, problem in (
        ("u2", scp["u1"], "its offset leads to the features of u1"),
        ("u2", scp["u2"] + "9", "is truncated or not a Kaldi matrix"),
        ("u3", "gone.ark:5", "No such file"),
    ):
        lines = {**scp, name: location}
        (directory / "feats.scp").write_text("".join(f"{key} {value}\n" for key, value in lines.items()))
        (fault,) = validate(directory).faults
        assert fault.subject == name and problem in fault.problem
    (directory / "feats.scp").write_text("".join(f"{key} {value}\n" for key, value in scp.items()))
    (directory / "f.ark").write_bytes(whole[:-7])
    (fault,) = validate(directory).faults
    assert fault.subject == "u3" and "truncated" in fault.problem


def test_statistics_that_are_no_numbers_are_found(make, tmp_path):
    directory = make()
    (directory / "wav.scp").unlink()
    _features(directory)
    speaker = next(iter(read_datadir(directory).speakers()))
    write_ark(directory / "cmvn.ark", [(speaker, np.full((2, 4), np.nan))], directory / "cmvn.scp")
    (fault,) = validate(directory).faults
    assert fault.subject == speaker and "not finite" in fault.problem and fault.drop


def test_symbols_are_removed_from_transcripts(make, tmp_path, program):
    directory = make(text="u1 <s> A </s>\nu2 <eps>\nu3 <unk> C\n")
    report = validate(directory)
    assert [(fault.kind, fault.subject, fault.drop) for fault in report.faults] == [
        ("symbol in text", "u1", ()),
        ("symbol in text", "u2", ("u2",)),
    ]
    assert [(fault.kind, fault.subject) for fault in report.warnings] == [("unknown word in text", "u3")]
    assert "text:1: u1: has <s> and </s>" in program("validate", directory).stdout
    assert program("fix", directory, tmp_path / "out").exit_code == 0
    data = read_datadir(tmp_path / "out")
    assert {key: utterance.text for key, utterance in data.utterances.items()} == {"u1": "A", "u3": "<unk> C"}


def test_text_in_another_form_is_converted(make, tmp_path):
    directory = make(
        text=gzip.compress(b"u1 A\nu2 B\nu3 C\n"),
        utt2spk="u1 a\nu2 a\nu3 b\n".encode("utf-32"),
        wav_scp="u1 wav/u1.wav\nu2 wav/u2.wav\nu3 wav/u3.wav\n".encode("utf-16-be"),
    )
    assert sorted(fault.problem for fault in validate(directory).faults) == [
        "is UTF-16 text",
        "is UTF-32 text",
        "is gzip text",
    ]
    mended = fix_datadir(directory, tmp_path / "out")
    assert mended.removed == () and validate(tmp_path / "out").faults == ()
    assert [(u.text, u.speaker) for u in mended.data.utterances.values()] == [("A", "a"), ("B", "a"), ("C", "b")]


def test_of_many_faults_twenty_are_printed_with_their_number(make, program):
    directory = make()
    (directory / "text").write_text("".join(f"u{number} ONE\n" for number in range(1, 4)) + "u1 AGAIN\n")
    (directory / "wav.scp").write_text("".join(f"u{number} wav/gone{number}.wav\n" for number in range(1, 60)))
    (directory / "utt2spk").write_text("".join(f"u{number} s{number}\n" for number in range(1, 60)))
    faults = validate(directory).faults
    assert len(faults) > 60
    lines = program("validate", directory).stdout.splitlines()
    assert len(lines) == 22  # twenty faults, how many more there are, the summary
    assert any("text:4: u1" in line for line in lines)  # the only fault of its kind, after many others
    assert lines[-2] == f"... and {len(faults) - 20} more faults; --all prints all {len(faults)}"
    everything = program("validate", directory, "--all").stdout.splitlines()
    assert everything[:-1] == [str(fault) for fault in faults]


def test_markup_in_a_data_directory_is_said_once_for_each_kind(make):
    directory = make()
    (directory / "text").write_text("u1 <b>one</b>\nu2 <i>two</i> (laughs)\nu3 NASA: three\n")
    warnings = {each.kind: each for each in validate(directory).warnings}
    assert warnings.keys() == {"HTML in text", "noise in text", "speaker or word"}
    assert "<b>" in warnings["HTML in text"].problem and "1 other" in warnings["HTML in text"].problem
    assert "other" not in warnings["noise in text"].problem
