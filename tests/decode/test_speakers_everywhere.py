"""A model that adapts to speakers in the Python interface, streams, alignment, tuning, and word times of lattices."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import toys
from whistles import FEATURES, RATE_HZ, SAID, whistled

import speech3
from speech3.config import DecodeConfig
from speech3.data.datadir import read_datadir
from speech3.decode import speaker_passes
from speech3.decode.align import find_alignment
from speech3.decode.apply import features_for
from speech3.decode.recognizer import Recognizer, load_recognizer, transcribe
from speech3.decode.speaker_passes import KnownSpeakers, read_speakers
from speech3.decode.tune import tune_passes
from speech3.errors import SettingError, Speech3Error
from speech3.hmm.gmm import load_gmm
from speech3.hmm.sat import ADAPTED, PRIOR, save_projection
from speech3.hmm.transforms import Projection, zero_fmllr_stats
from speech3.io import MODEL_FILE
from speech3.io.ark import ArkReader
from speech3.io.checkpoint import save_tensors
from speech3.language.arpa import write_arpa
from speech3.runtime.files import read_json

BINS = FEATURES.num_mel_bins


@pytest.fixture(autouse=True)
def any_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adapt although the twin is as good, as it is here."""
    monkeypatch.setattr(speaker_passes, "_MIN_GAIN", 0.0)


def adaptive(model: Path) -> Path:
    """Make the model one of `hmm.sat`, whose adapted GMMs are the twin's."""
    save_projection(model, Projection(np.eye(BINS), statics=BINS, context=0, inputs=BINS))
    gmm = load_gmm(model / MODEL_FILE)
    gmm.save(model / ADAPTED / MODEL_FILE)
    about = {"kind": "prior", "least_frames": 10.0, "prior_frames": 20.0, "passes": 3}
    spoken_J = np.where(np.arange(gmm.num_pdfs) < 3, 0.0, 1.0)
    save_tensors(model / ADAPTED / PRIOR, {"frames": spoken_J}, about)
    return model


@pytest.fixture
def recognizer(model: Path) -> Recognizer:
    return speech3.Recognizer.load(adaptive(model))


def test_a_speaker_is_remembered_from_call_to_call(recognizer: Recognizer) -> None:
    words, segments = SAID["a-bb"]
    wave_S = whistled(*segments)
    assert recognizer.transcribe(wave_S, RATE_HZ).text.split() == list(words)
    assert not recognizer._known.stats  # nobody was named
    counts = []
    for _ in range(3):
        assert recognizer.transcribe(wave_S, RATE_HZ, speaker="anna").text.split() == list(words)
        counts.append(recognizer._known.stats["anna"].count)
    np.testing.assert_allclose(counts, counts[0] * np.arange(1, 4), rtol=0.1)  # of these recordings, each once
    assert recognizer._known.transforms["anna"].shape == (BINS, BINS + 1)
    stream = recognizer.stream(RATE_HZ, speaker="anna")
    stream.accept(wave_S)
    assert stream.finish().text.split() == list(words)
    assert recognizer._known.stats["anna"].count > 1.05 * counts[-1]


def test_speakers_are_listed_and_can_be_forgotten(recognizer: Recognizer) -> None:
    wave_S = whistled(*SAID["a-bb"][1])
    assert recognizer.speakers == ()
    for speaker in ("bo", "anna", "bo"):
        recognizer.transcribe(wave_S, RATE_HZ, speaker)
    assert recognizer.speakers == ("bo", "anna")
    for _ in range(2):
        recognizer.forget("bo")
        assert recognizer.speakers == ("anna",) and list(recognizer._known.transforms) == ["anna"]


def test_a_stream_uses_a_transform_from_its_second_segment_on(recognizer: Recognizer) -> None:
    words, segments = SAID["a-bb"]
    stream = recognizer.stream(RATE_HZ)
    speaker = stream._scores._speaker
    assert speaker is not None and speaker.transform is None
    for _ in range(2):
        stream.accept(whistled(*segments, ("SIL", 0.8)))
        assert [each.text.split() for each in stream.ended()] == [list(words)]
        assert speaker.transform is not None and speaker.recognizer.scorer.transform is not None  # type: ignore[union-attr]
    assert not recognizer._known.stats


def test_another_speaker_of_a_stream_is_noticed(recognizer: Recognizer) -> None:
    _, segments = SAID["a-bb"]
    stream = recognizer.stream(RATE_HZ)
    speaker = stream._scores._speaker
    assert speaker is not None
    stream.accept(whistled(*segments, ("SIL", 0.8)))
    first = speaker._known.stats["speaker"].count
    wrong = np.eye(BINS, BINS + 1)
    wrong[:, -1] = 30.0  # fits nobody
    speaker.transform = wrong
    aligned = stream._segment.aligned
    assert aligned is not None
    speaker._frames = [np.zeros((aligned.num_frames, BINS), np.float32)]
    speaker.after(aligned, aligned.num_frames)
    assert speaker._known.stats["speaker"].count == pytest.approx(first)  # forgotten, and then this segment


def test_one_speaker_is_refused_where_nothing_adapts(model: Path, sounds: dict[str, Path]) -> None:
    with pytest.raises(SettingError, match=r"--one-speaker: .* does not adapt to speakers"):
        list(transcribe(speech3.Recognizer.load(model), list(sounds.values()), one_speaker=True))


def test_files_and_alignments_are_those_of_the_speakers(
    recognizer: Recognizer, sounds: dict[str, Path], data: Path, tmp_path: Path
) -> None:
    for one_speaker in (False, True):
        found = transcribe(recognizer, list(sounds.values()), times=True, one_speaker=one_speaker)
        assert [each.text.split() for each in found] == [list(SAID[name][0]) for name in sounds]
    failed: list[Speech3Error] = []
    files = [tmp_path / "gone.wav", *sounds.values()]
    assert len(list(transcribe(recognizer, files, one_speaker=True, failed=failed))) == len(sounds)
    assert ["gone.wav" in str(error) for error in failed] == [True]
    aligned = find_alignment(recognizer, read_datadir(data), tmp_path / "ali", 1)
    assert set(aligned.aligned.alignments) == set(sounds)


def test_passes_are_tuned_and_one_is_kept_if_they_do_not_help(
    recognizer: Recognizer, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = read_datadir(data)
    feats, _ = features_for(recognizer, given, 1, tmp_path)
    speaker_of = {key: each.speaker for key, each in given.utterances.items()}
    references = {key: (each.text or "").split() for key, each in given.utterances.items()}
    config = DecodeConfig(acoustic_scales=(0.1,), word_penalties=(0.0,))
    found = tune_passes(recognizer, feats, speaker_of, references, config)
    assert found.helps and found.last.best.error_rate == 0 and set(found.transforms) == set(speaker_of.values())
    adapted = load_recognizer(recognizer.directory).adapted
    assert adapted is not None and adapted.passes == 3
    worse = iter((0.0, 0.5))
    found = tune_passes(recognizer, feats, speaker_of, references, config, 1, lambda *_: next(worse))
    assert not found.helps and read_json(recognizer.directory / ADAPTED / "passes.json") == {"passes": 1}


def test_what_is_known_is_added_up() -> None:
    known, one = KnownSpeakers(), zero_fmllr_stats(2)
    one.count = 5.0
    known.add({"a": one}, {})
    known.add({"a": one}, {"a": np.eye(2, 3)})
    assert known.stats["a"].count == 10.0 and one.count == 5.0
    known.forget("a")
    assert not known.stats and not known.transforms


@pytest.mark.slow
def test_lattices_of_adapted_decoding_get_word_times(speech3, model: Path, data: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    adaptive(model)
    shutil.copy(model / "decode.json", model / ADAPTED / "decode.json")
    out = tmp_path / "out"
    assert speech3("decode", model, data, out, "--lattice", "--jobs", 1).returncode == 0
    assert set(read_speakers(out, BINS)) == set(SAID)
    lm = tmp_path / "lm.arpa"
    write_arpa(toys.estimate_lm([["A"], ["AB"], ["BB"], ["A", "BB"]], 2), lm)
    assert len(ArkReader(out / "feats" / "feats.scp")) == len(SAID)
    done = speech3("rescore", out, lm, tmp_path / "again", "--ctm", "--jobs", 1)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "again" / "hyp.ctm").read_text().split() != []
