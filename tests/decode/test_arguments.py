"""Arguments of the Python interface that are out of range: an error at once, which names the argument."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from whistles import FEATURES, RATE_HZ, SAID, whistled

from speech3 import Aligner, Recognizer
from speech3.config import FeatureConfig, PitchConfig
from speech3.data.audio import info, read_blocks, read_file, write_wav
from speech3.decode.new_graph import GraphSources, make_graph
from speech3.decode.recognizer import transcribe
from speech3.errors import Speech3Error
from speech3.features.compute import OnlineFeatures, static_features
from speech3.features.pitch import track_pitch

WAVE_S = whistled(*SAID["a-bb"][1])
NOT_RATES = (
    16,
    16.0,
    8,
    1,
    0,
    -16000,
    999,
    44.1,
    1e9,
    10**12,
    "16000",
    None,
    float("nan"),
    float("inf"),
    True,
    [16000],
)
NOT_SAMPLES = {
    "two channels": (np.stack([WAVE_S, WAVE_S]), "samples of shape"),
    "two columns": (np.stack([WAVE_S, WAVE_S], 1), "samples of shape"),
    "three axes": (WAVE_S[None, None], "samples of shape"),
    "a number": (0.5, r"samples=0\.5: one number, .*pass one channel"),
    "an array of a number": (np.array(0.5), "one number, .*pass one channel"),
    "nothing": (None, "samples=None: of type NoneType, .*pass one channel"),
    "a dictionary": ({}, r"samples=\{\}: of type dict, .*pass one channel"),
    "a set": ({0.5}, "of type set, .*pass one channel"),
    "a generator": ((each for each in WAVE_S), "of type generator, .*pass one channel"),
    "int64": (np.arange(16000), "samples of type int64"),
    "bool": (WAVE_S > 0, "samples of type bool"),
    "complex": (WAVE_S * 1j, "samples of type complex"),
    "NaN": (np.where(np.arange(len(WAVE_S)) == 7, np.nan, WAVE_S), "samples: sample 7 is not a finite number"),
    "a scale of 16 bits": (WAVE_S * 32768, "samples: floats up to .* divide"),
    "a path": ("a.wav", "samples='a.wav': pass samples, not a file"),
    "a Path": (Path("a.wav"), "pass samples, not a file"),
    "bytes": (bytes(4), r"are bytes \(bytes\).*np\.frombuffer\(samples, np\.int16\)"),
    "a bytearray": (bytearray(4), r"are bytes \(bytearray\).*np\.frombuffer"),
    "a memoryview": (memoryview(bytes(4)), r"are bytes \(memoryview\).*np\.frombuffer"),
    "ragged": ([[0.0, 0.1], [0.2]], "samples: cannot be made an array"),
    "words": (["a", "b"], "samples of type"),
}


@pytest.fixture
def recognizer(model: Path) -> Recognizer:
    return Recognizer.load(model)


@pytest.mark.parametrize("rate", NOT_RATES)
def test_rates(recognizer, rate):
    for function in (lambda: recognizer.transcribe(WAVE_S, rate), lambda: recognizer.stream(rate)):
        with pytest.raises(Speech3Error, match=r"rate=.*not a sample rate"):
            function()


def test_a_rate_in_khz_is_explained(recognizer):
    with pytest.raises(Speech3Error, match=r"16000 for 16 kHz"):
        recognizer.transcribe(WAVE_S, 16)


@pytest.mark.parametrize("name", NOT_SAMPLES)
def test_samples(recognizer, name):
    samples, match = NOT_SAMPLES[name]
    with pytest.raises(Speech3Error, match=match):
        recognizer.transcribe(samples, RATE_HZ)
    with pytest.raises(Speech3Error, match=match):
        recognizer.stream(RATE_HZ).accept(samples)


def test_bytes_are_not_printed(recognizer):
    with pytest.raises(Speech3Error) as error:
        recognizer.transcribe(bytes(100_000), RATE_HZ)
    assert len(str(error.value)) < 200


@pytest.mark.parametrize(
    "wrong",
    [{"nbest": "5"}, {"nbest": 2.5}, {"nbest": None}, {"min_confidence": "0.5"}, {"min_confidence": None}]
    + [{"min_confidence": float("nan")}, {"min_confidence": 50}, {"min_confidence": True}, {"nbest": True}]
    + [{"graph": graph} for graph in ("", 3, True, b"graph", ["graph"])]
    + [{"hot": hot} for hot in ("A", [3], 3, {"A": 2.0}, [b"A"], Path("gone.txt"))],
)
def test_options(model, wrong):
    (name,) = wrong
    with pytest.raises(Speech3Error, match=f"{name}=|gone.txt"):
        Recognizer.load(model, **wrong)


@pytest.mark.parametrize("speaker", ["", " ", 3, b"x", ["anna"], True])
def test_speakers(recognizer, speaker):
    for function in (
        lambda: recognizer.transcribe(WAVE_S, RATE_HZ, speaker),
        lambda: recognizer.stream(RATE_HZ, speaker),
        lambda: recognizer.forget(speaker),
    ):
        with pytest.raises(Speech3Error, match=r"speaker=.*: not a name; pass a string, or None"):
            function()


def test_a_low_rate_is_said_once(recognizer, capsys):
    low_S = WAVE_S[::2]
    for _ in range(2):
        recognizer.transcribe(low_S, RATE_HZ // 2)
        recognizer.stream(RATE_HZ // 2)
        recognizer.transcribe(WAVE_S, RATE_HZ)
    said = " ".join(capsys.readouterr().err.split())
    assert said.count("samples: 4000 Hz, resampled to the model's 8000 Hz") == 1 == said.count("resampled")
    recognizer.stream(RATE_HZ - 1000)
    assert "samples: 7000 Hz" in " ".join(capsys.readouterr().err.split())


def test_words_that_an_aligner_lacks(model, capsys):
    """The model has no `<unk>`, and too few words to learn from how others are pronounced."""
    aligner = Aligner.load(model)
    assert aligner.align(WAVE_S, RATE_HZ, "a—Bb").text == "a Bb"
    for text, named in (("A foo", "foo"), ("A [laughter]", r"\[laughter\]"), ("foo bar", "bar, foo")):
        with pytest.raises(Speech3Error, match=rf"text: .*words: A, AB, BB.* {named}, .*no <unk>.*; .*Aligner\.train"):
            aligner.align(WAVE_S, RATE_HZ, text)
    assert "aligned as" not in capsys.readouterr().err
    with pytest.raises(Speech3Error, match="there are no samples"):
        aligner.align([], RATE_HZ, "A BB")
    aligner.align(WAVE_S[::2], RATE_HZ // 2, "A BB")
    assert "samples: 4000 Hz, resampled" in " ".join(capsys.readouterr().err.split())


def test_a_model_that_is_a_file_or_nothing(model):
    for path, message in (
        (model / "model.safetensors", f"safetensors: is a file, not a model directory; pass its directory, {model}$"),
        (model / "graph" / "words.txt", r"words\.txt: is a file, .*; pass one that has model\.safetensors"),
        (model / "nowhere", "nowhere: no such model directory; check the path$"),
        (model / "nowhere.onnx", r"nowhere\.onnx: no such file; check the path$"),
    ):
        with pytest.raises(Speech3Error, match=message):
            Recognizer.load(model=path)
    with pytest.raises(Speech3Error, match="safetensors: is a file, not a model directory; pass its directory"):
        make_graph(model / "model.safetensors", model / "out", GraphSources(add=model / "words"))


def test_a_stream_stays_in_its_process(recognizer):
    with pytest.raises(TypeError, match=r"cannot be pickled or copied; begin it .* with Recognizer\.stream"):
        pickle.dumps(recognizer.stream(RATE_HZ))


def test_no_samples(recognizer):
    for empty in ([], np.zeros(0), np.zeros((1, 0), np.int16)):
        with pytest.raises(Speech3Error, match="samples"):
            recognizer.transcribe(empty, RATE_HZ)


def test_samples_of_other_types_are_scaled(recognizer):
    for samples in (
        WAVE_S,
        WAVE_S.tolist(),
        (WAVE_S * 32767).astype(np.int16),
        (WAVE_S * 32767).astype(">i2"),
        memoryview((WAVE_S * 32767).astype(np.int16)),
        (WAVE_S * 127 + 128).astype(np.uint8),
        torch.from_numpy(WAVE_S),
        WAVE_S[:, None],
    ):
        assert recognizer.transcribe(samples, RATE_HZ).text == "A BB"


def test_models_and_files(recognizer):
    for model in (None, 7, ["dnn"]):
        with pytest.raises(Speech3Error, match="model="):
            Recognizer.load(model)
    with pytest.raises(Speech3Error, match=r"files='a\.wav': pass a list"):
        list(transcribe(recognizer, "a.wav"))
    with pytest.raises(Speech3Error, match="path_or_pipe=7"):
        list(transcribe(recognizer, [7]))


def test_digital_silence_has_no_words_and_is_said(recognizer, tmp_path, capsys):
    soundfile.write(tmp_path / "zero.wav", np.zeros(2 * RATE_HZ), RATE_HZ)
    (found,) = transcribe(recognizer, [tmp_path / "zero.wav"], times=True)
    assert (found.text, found.words) == ("", [])
    assert recognizer.transcribe(np.zeros(2 * RATE_HZ), RATE_HZ).words == ()
    said = " ".join(capsys.readouterr().err.split())
    assert "zero.wav: is silent" in said and "samples: is silent" in said


def test_channels_of_opposite_polarity_are_recognised_and_said(recognizer, tmp_path, capsys):
    soundfile.write(tmp_path / "a.wav", np.stack([WAVE_S, -WAVE_S], 1), RATE_HZ)
    (found,) = transcribe(recognizer, [tmp_path / "a.wav"])
    assert found.text == "A BB"
    assert "has 2 channels: channel 1 is used" in " ".join(capsys.readouterr().err.split())


WAVES_NS, LENGTHS_N = torch.from_numpy(WAVE_S)[None], torch.tensor([len(WAVE_S)])
NOT_WAVES = {
    "rate": ((WAVES_NS, LENGTHS_N, 16), "sample_rate_hz=16"),
    "array": ((WAVES_NS.numpy(), LENGTHS_N, RATE_HZ), "waves_NS: is of type ndarray"),
    "one axis": ((WAVES_NS[0], LENGTHS_N, RATE_HZ), "waves_NS: is a tensor of float32 of shape"),
    "int16": ((WAVES_NS.short(), LENGTHS_N, RATE_HZ), "waves_NS: is a tensor of int16"),
    "list of lengths": ((WAVES_NS, [len(WAVE_S)], RATE_HZ), "lengths_N: is of type list"),
    "float lengths": ((WAVES_NS, LENGTHS_N.float(), RATE_HZ), "lengths_N: is a tensor of float32"),
    "too many": ((WAVES_NS, torch.tensor([5, 5]), RATE_HZ), "lengths_N: 2 lengths of 1"),
    "too long": ((WAVES_NS, LENGTHS_N + 1, RATE_HZ), "lengths_N: must be from 0 to"),
    "negative": ((WAVES_NS, -LENGTHS_N, RATE_HZ), "lengths_N: must be from 0 to"),
}


@pytest.mark.parametrize("name", NOT_WAVES)
def test_features(name):
    (waves, lengths, rate_hz), match = NOT_WAVES[name]
    with pytest.raises(Speech3Error, match=match):
        static_features(waves, lengths, FEATURES, rate_hz)
    with pytest.raises(Speech3Error, match=match):
        track_pitch(waves, lengths, FeatureConfig(pitch=PitchConfig()), rate_hz)


def test_features_piece_by_piece():
    config = FEATURES.model_copy(update={"cmvn": "none"})
    with pytest.raises(Speech3Error, match="sample_rate_hz=16"):
        OnlineFeatures(config, 16)
    features = OnlineFeatures(config, RATE_HZ)
    for wave in (WAVE_S, WAVES_NS, WAVES_NS[0].short(), None, WAVES_NS[0] * float("nan")):
        with pytest.raises(Speech3Error, match=r"wave_S: (is|has)"):
            features.accept(wave)


def test_reading_and_writing(tmp_path):
    path = tmp_path / "a.wav"
    write_wav(path, WAVE_S, RATE_HZ)
    for options, match in (
        ({"sample_rate_hz": 16, "resample": True}, "sample_rate_hz=16"),
        ({"start_s": -1}, "start_s=-1"),
        ({"start_s": float("nan")}, "start_s=nan"),
        ({"end_s": 0}, "end_s=0"),
        ({"start_s": 0.2, "end_s": 0.1}, "end_s="),
    ):
        with pytest.raises(Speech3Error, match=match):
            read_file(path, **options)
    for block_s in (0, -1, float("nan")):
        with pytest.raises(Speech3Error, match="block_s="):
            next(read_blocks(path, block_s))
    for nothing in (None, 5, b"a.wav"):
        with pytest.raises(Speech3Error, match="path_or_pipe="):
            info(nothing)
    for samples, rate_hz in ((WAVE_S, 16), (WAVE_S[None], RATE_HZ), (np.arange(5), RATE_HZ)):
        with pytest.raises(Speech3Error, match=r"sample_rate_hz=16|samples_S: "):
            write_wav(path, samples, rate_hz)


def test_decode_finds_no_words_in_digital_silence(model, data, program):
    soundfile.write(data / "zero.wav", np.zeros(2 * RATE_HZ), RATE_HZ)
    for name, line in (("wav.scp", f"zero {data}/zero.wav"), ("utt2spk", "zero zero"), ("text", "zero A")):
        (data / name).write_text(f"{(data / name).read_text()}{line}\n")
    done = program("decode", model, data, data / "out", "--jobs", "1")
    assert done.exit_code == 0, done.output
    lines = dict(line.partition(" ")[::2] for line in (data / "out" / "hyp.txt").read_text().splitlines())
    assert lines == {"ab": "AB", "a-bb": "A BB", "zero": ""}
    assert (data / "out" / "feats" / "silent.txt").read_text() == "zero\n"
