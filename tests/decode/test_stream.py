"""Streaming recognition: the words of offline recognition, however the samples are split; a result at every pause."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from whistles import FEATURES, RATE_HZ, SAID, gaussians_to_network, save_gmm, save_network, whistled

import speech3
from speech3.data.resampling import resample
from speech3.decode import streaming
from speech3.decode.recognizer import load_recognizer
from speech3.decode.streaming import Pauses, Stream, silence_pdfs
from speech3.decode.trained_model import Result
from speech3.errors import DataError, Speech3Error
from speech3.runtime.files import write_text

AGAIN = (
    (("SIL", 0.25), ("a", 0.3), ("b", 0.25), ("SIL", 0.8)),
    (("b", 0.3), ("SIL", 0.9)),
    (("a", 0.3), ("SIL", 0.45)),
)
WHOLE = Pauses(after_words_s=100, before_words_s=100, long_s=100, longest_s=100)


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model without normalisation, which must not be changed."""
    return save_gmm(tmp_path_factory.mktemp("plain"), FEATURES.model_copy(update={"cmvn": "none"}))


def fed(stream: Stream, wave_S: np.ndarray, size: int) -> tuple[list[str], list[Result], Result]:
    """Feed a stream; return the partial results, the segments that ended meanwhile, and the final result."""
    partials, ended = [], []
    for start in range(0, len(wave_S), size):
        partials.append(stream.accept(wave_S[start : start + size]))
        ended += stream.ended()
    return partials, ended, stream.finish()


def spoken(*parts: tuple[tuple[str, float], ...]) -> np.ndarray:
    return whistled(*(segment for part in parts for segment in part))


def test_words_of_unknown_confidence_are_kept(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a finished recording: where a lattice is too large for confidences, none of them is known to be low."""
    monkeypatch.setattr(streaming, "confidences_in", lambda *_: None)
    words, segments = next(iter(SAID.values()))
    recognizer = load_recognizer(plain).with_min_confidence(0.5)
    _, _, last = fed(recognizer.stream(RATE_HZ), whistled(*segments), 400)
    assert tuple(last.text.split()) == words and {word.confidence for word in last.words} == {None}


@pytest.mark.parametrize("kind", ["gmm", "network"])
@pytest.mark.parametrize("name", SAID)
def test_words_and_times_are_those_of_offline(plain: Path, tmp_path: Path, kind: str, name: str) -> None:
    import shutil

    model = Path(shutil.copytree(plain, tmp_path / "model"))
    if kind == "network":
        gaussians_to_network(model)
    recognizer = speech3.Recognizer.load(model)
    words, segments = SAID[name]
    wave_S = whistled(*segments)
    offline = recognizer.transcribe(wave_S, RATE_HZ)
    assert tuple(offline.text.split()) == words == tuple(word.word for word in offline.words)
    partials, ended, last = fed(recognizer.stream(RATE_HZ), wave_S, 400)
    assert not ended and last.text == offline.text
    for one, other in zip(last.words, offline.words, strict=True):
        # A stream's samples are gone when its words are aligned: boundaries are refined without the waveform.
        assert (one.start_s, one.end_s) == pytest.approx((other.start_s, other.end_s), abs=0.01)
        assert one.confidence == pytest.approx(other.confidence, abs=1e-3)
        assert one.confidence is not None and 0.5 < one.confidence <= 1
    assert partials[0] == "" and partials[-1] == offline.text


def test_digital_silence_has_no_words(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "silence_pdfs", lambda _: np.empty(0, np.int64))  # as if it were heard as words
    recognizer = load_recognizer(plain)
    assert fed(recognizer.stream(RATE_HZ), np.random.default_rng(1).normal(0, 0.1, RATE_HZ), 400)[2].words
    partials, ended, last = fed(recognizer.stream(RATE_HZ), np.zeros(3 * RATE_HZ), 400)
    assert set(partials) == {""} and not ended and not last.words


def test_results_do_not_depend_on_the_pieces(plain: Path) -> None:
    recognizer, wave_S = load_recognizer(plain), spoken(*AGAIN)
    found = [fed(recognizer.stream(RATE_HZ), wave_S, size)[1:] for size in (160, 997, 10**6)]
    assert found[0] == found[1] == found[2]


def test_a_pause_ends_a_segment_and_times_continue(plain: Path) -> None:
    recognizer = load_recognizer(plain)
    partials, ended, last = fed(recognizer.stream(RATE_HZ), spoken(*AGAIN), 80)
    assert [result.text for result in ended] == ["AB", "BB"] and last.text == "A"
    assert {"AB", "BB"} <= set(partials) <= {"", "A", "AB", "B", "BB"}, "no words of the segment before"
    begins = [result.words[0].start_s for result in [*ended, last]]
    ends = [result.words[-1].end_s for result in [*ended, last]]
    assert begins == pytest.approx([0.25, 1.6, 2.8], abs=0.04) and ends == pytest.approx([0.8, 1.9, 3.1], abs=0.04)
    everything = recognizer.stream(RATE_HZ)
    everything.accept(spoken(*AGAIN))
    assert everything.finish() == Result("AB BB A", tuple(w for result in [*ended, last] for w in result.words))
    assert everything.finish() == Result("", ())


def test_when_a_segment_ends(plain: Path) -> None:
    recognizer, wave_S = load_recognizer(plain), spoken((("SIL", 1.0), ("a", 0.3), ("SIL", 1.0)), AGAIN[1])
    assert [
        len(fed(Stream(recognizer, RATE_HZ, pauses), wave_S, 800)[1])
        for pauses in (
            Pauses(),
            Pauses(after_words_s=0.95),
            WHOLE,
            Pauses(after_words_s=100, long_s=2.0, in_long_s=0.3),
        )
    ] == [2, 0, 0, 1]
    cut = fed(Stream(recognizer, RATE_HZ, Pauses(100, 100, 100, 100, longest_s=1.92)), wave_S, 800)
    assert [result.text for result in [*cut[1], cut[2]]] == ["A", "BB"]


def held(thing: Any, seen: set[int] | None = None) -> int:
    """Bytes of all arrays that an object holds."""
    seen = set() if seen is None else seen
    if id(thing) in seen or isinstance(thing, type):
        return 0
    seen.add(id(thing))
    if isinstance(thing, np.ndarray):
        return thing.nbytes
    if isinstance(thing, torch.Tensor):
        return thing.nbytes
    if isinstance(thing, dict):
        return sum(held(each, seen) for each in thing.values())
    if isinstance(thing, (list, tuple, set)):
        return sum(held(each, seen) for each in thing)
    return held(vars(thing), seen) if hasattr(thing, "__dict__") else 0


@pytest.mark.parametrize("sound", ["silence", "noise", "digital silence", "speech"])
@pytest.mark.parametrize("normalised", [False, True])
def test_memory_does_not_grow_with_the_stream(plain: Path, gmm: Path, sound: str, normalised: bool) -> None:
    rng = np.random.default_rng(1)
    minute_S = {
        "silence": 0.003 * rng.standard_normal(60 * RATE_HZ),
        "noise": 0.2 * rng.standard_normal(12 * RATE_HZ),  # shorter, because search in noise is slow
        "digital silence": np.zeros(60 * RATE_HZ),
        "speech": np.tile(spoken(*AGAIN), 6),
    }[sound]
    pauses = Pauses(long_s=8.0, longest_s=10.0)
    stream, sizes, words = Stream(load_recognizer(gmm if normalised else plain), RATE_HZ, pauses), [], 0
    for _ in range(4):
        stream.accept(minute_S)
        words += sum(len(result.words) for result in stream.ended())
        sizes.append(held(stream))
    assert max(sizes[1:]) < sizes[0] + 1_000_000 and stream.duration_s >= 48
    assert sum(map(len, stream._segment._scores)) <= 1000  # frames of a segment
    assert words > 60 if sound == "speech" else words == 0 or sound == "noise"
    assert sound in ("noise", "speech") or stream.finish().words == ()


def test_samples_of_other_types_and_rates(plain: Path) -> None:
    recognizer, wave_S = load_recognizer(plain), whistled(*SAID["a-bb"][1])
    expected = recognizer.transcribe(wave_S, RATE_HZ)
    ints = (wave_S * 32768).round().astype(np.int16)
    for samples in (
        wave_S.astype(np.float64),
        ints,
        ints.astype(np.int32) * 65536,
        wave_S[:, None],
        wave_S.tolist(),
        (wave_S * 128 + 128).round().astype(np.uint8),
    ):
        assert recognizer.transcribe(samples, RATE_HZ).text == expected.text == "A BB"
        stream = recognizer.stream(RATE_HZ)
        stream.accept(samples)
        assert stream.finish().text == "A BB"
    louder_S = resample(wave_S, RATE_HZ, 44100)
    assert recognizer.transcribe(louder_S, 44100).text == fed(recognizer.stream(44100), louder_S, 999)[2].text == "A BB"


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([0.0, float("nan")], "sample 1 is not a finite number"),
        ([np.inf], "sample 0 is not a finite number"),
        (np.zeros((10, 2)), r"samples of shape \(10, 2\), but one channel"),
        (np.zeros(10, np.int64), "samples of type int64; use float"),
        (np.zeros(10, bool), "samples of type bool"),
        (["a"], "samples of type <U1"),
        (np.zeros(10, complex), "samples of type complex128"),
    ],
)
def test_samples_that_cannot_be_used(plain: Path, samples: Any, message: str) -> None:
    recognizer = load_recognizer(plain)
    with pytest.raises(Speech3Error, match=message):
        recognizer.transcribe(samples, RATE_HZ)
    stream = recognizer.stream(RATE_HZ)
    with pytest.raises(Speech3Error, match=message):
        stream.accept(samples)
    stream.accept(whistled(*SAID["ab"][1]))  # the stream can still be used
    assert stream.finish().text == "AB"


@pytest.mark.parametrize("rate", [0, -8000, 8000.5, float("nan"), float("inf"), "8000", None, True])
def test_rates_that_are_none(plain: Path, rate: Any) -> None:
    for use in (lambda r: r.stream(rate), lambda r: r.transcribe(np.zeros(8000), rate)):
        with pytest.raises(Speech3Error, match="not a sample rate; use samples per second"):
            use(load_recognizer(plain))


def test_nothing_at_all(plain: Path) -> None:
    recognizer = load_recognizer(plain)
    with pytest.raises(Speech3Error, match="there are no samples"):
        recognizer.transcribe([], RATE_HZ)
    with pytest.raises(Speech3Error, match="samples: shorter than one frame"):
        recognizer.transcribe(np.zeros(100), RATE_HZ)
    stream = recognizer.stream(RATE_HZ)
    assert stream.accept([]) == "" and stream.ended() == [] and stream.finish() == Result("", ())
    with pytest.raises(Speech3Error, match="this stream was finished"):
        stream.accept([0.0])
    short = recognizer.stream(RATE_HZ)
    assert short.accept(np.zeros(1)) == "" and short.finish() == Result("", ())


def test_models_that_cannot_follow_a_stream(model: Path) -> None:
    save_network(model, family="lstm", layers=1, cells=4, bidirectional=True)
    with pytest.raises(DataError, match=r"bidirectional LSTM needs the whole utterance.*use"):
        load_recognizer(model).stream(RATE_HZ)
    given = FEATURES.model_copy(update={"kind": "given"})
    write_text(model / "features.yaml", yaml.safe_dump(given.model_dump()))
    with pytest.raises(Speech3Error, match="takes its features from a file"):
        load_recognizer(model).stream(RATE_HZ)
    with pytest.raises(Speech3Error, match="takes its features from a file"):
        load_recognizer(model).transcribe(np.zeros(8000), RATE_HZ)


@pytest.mark.parametrize(
    "keys", [{"family": "lstm", "layers": 1, "cells": 4, "delay": 3}, {"left_context": 3}], ids=str
)
def test_an_exported_network(model: Path, tmp_path: Path, keys: dict[str, Any]) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from speech3.decode.model_export import export
    from speech3.decode.online_scores import online_network

    save_network(model, **keys)
    export(model, tmp_path / "x.onnx", int8=False)
    feats_TF = np.random.default_rng(0).standard_normal((50, 8)).astype(np.float32)
    expected = load_recognizer(model).scorer.loglikes(feats_TF)
    running = online_network(load_recognizer(tmp_path / "x.onnx"))
    found = [running.accept(piece) for piece in np.array_split(feats_TF, 7)]
    np.testing.assert_allclose(np.concatenate([*found, running.finish()]), expected, atol=1e-4)


def test_an_exported_bidirectional_network(model: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from speech3.decode.model_export import export

    save_network(model, family="lstm", layers=1, cells=4, bidirectional=True)
    export(model, tmp_path / "x.onnx", int8=False)
    with pytest.raises(Speech3Error, match="bidirectional LSTM needs the whole utterance"):
        load_recognizer(tmp_path / "x.onnx").stream(RATE_HZ)


def test_scores_of_a_network_are_those_of_offline(model: Path) -> None:
    from speech3.decode.online_scores import online_network

    save_network(model)
    recognizer = load_recognizer(model)
    feats_TF = np.random.default_rng(0).standard_normal((50, 8)).astype(np.float32)
    running = online_network(recognizer)
    found = np.concatenate([running.accept(feats_TF[:20]), running.accept(feats_TF[20:]), running.finish()])
    np.testing.assert_allclose(found, recognizer.scorer.loglikes(feats_TF), atol=1e-5)


def test_pdfs_of_silence(plain: Path) -> None:
    assert silence_pdfs(load_recognizer(plain)).tolist() == [0, 1, 2]


def test_importing_speech3_imports_little() -> None:
    import subprocess
    import sys

    code = "import sys, speech3; print([m for m in ('torch', 'numpy', 'numba') if m in sys.modules], speech3.__all__)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said == "[] ['Aligner', 'Recognizer', '__version__', 'fit']\n"
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = speech3.Nothing  # type: ignore[attr-defined]


def test_a_few_frames_are_too_short_for_a_word(plain: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recognizer = load_recognizer(plain)
    segment = streaming._Segment(recognizer, Pauses())
    scores_TP = np.zeros((2, recognizer.outputs.num_pdfs), np.float32)
    scores_TP[:, silence_pdfs(recognizer)] = -50.0
    segment.read(scores_TP)
    assert segment.end(heard=True) == ()
    assert "could not be decoded" not in capsys.readouterr().err
