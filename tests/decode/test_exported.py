"""An exported network: written with the files for decoding, used like its model directory, refused if damaged."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from whistles import FEATURES, HMM, SAID, SETTINGS, features_of_file, gaussians_to_network, save_network

from speech3.config import DecodeConfig
from speech3.decode import model_export as exporting
from speech3.decode.model_export import Export, export
from speech3.decode.recognizer import load_recognizer, transcribe
from speech3.decode.tune import tune_recognizer
from speech3.errors import DataError, MismatchError, Speech3Error, TrainingError
from speech3.models.onnx import OnnxNetwork

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


@pytest.fixture
def network(model: Path) -> Path:
    """A model directory whose network recognises whistles."""
    gaussians_to_network(model)
    return model


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out" / "whistles.onnx"


def inside(path: Path) -> set[str]:
    return {str(each.relative_to(path)) for each in path.rglob("*") if each.is_file()}


@pytest.mark.parametrize("int8", [False, True])
def test_sounds_become_the_words_that_the_directory_gives(
    network: Path, sounds: dict[str, Path], out: Path, tmp_path: Path, int8: bool
) -> None:
    done = export(network, out, int8=int8)
    assert done.graph and done.tuned
    there = Path(shutil.move(out.parent, tmp_path / "moved")) / out.name
    shutil.rmtree(network)
    recognizer = load_recognizer(there)
    assert recognizer.features == FEATURES and recognizer.settings == SETTINGS
    beside = load_recognizer(recognizer.directory)  # as lattices name it
    assert isinstance(beside.scorer, OnnxNetwork) and beside.scorer.path == there
    results = list(transcribe(recognizer, list(sounds.values()), times=True))
    assert [tuple(result.text.split()) for result in results] == [words for words, _ in SAID.values()]
    assert [stretch.label for stretch in results[1].words] == ["A", "BB"]  # aligned, too
    assert inside(there.parent) == {there.name} | {
        f"whistles.decode/{name}" for name in ("hmm.json", "tree.safetensors", "lexiconp.txt", "decode.json",
                                               "graph/HCLG.fst", "graph/G.fst", "graph/words.txt", "graph/lm.arpa.gz",
                                               "graph/graph.json")
    }  # fmt: skip


def test_scores_are_those_of_the_directory(network: Path, sounds: dict[str, Path], out: Path) -> None:
    export(network, out)
    directory, file = load_recognizer(network), load_recognizer(out)
    feats_TF = features_of_file(directory, sounds["ab"])
    np.testing.assert_allclose(file.scorer.loglikes(feats_TF), directory.scorer.loglikes(feats_TF), atol=1e-4)
    with pytest.raises(MismatchError, match=r"utt7: features of shape \(5, 9\), but the model"):
        file.decode({"utt7": np.zeros((5, 9), np.float32)})


def test_what_the_file_says_of_itself(network: Path, out: Path) -> None:
    done = export(network, out)
    about = OnnxNetwork(out).about
    assert about["features"] == FEATURES.model_dump(mode="json") and about["model"]["family"] == "dnn"
    assert (about["int8"], about["feat_dim"], about["num_senones"]) == (False, 8, HMM.num_pdfs)
    pytorch, single = done.forms
    assert (pytorch.name, single.name) == ("PyTorch", "float") and single.num_bytes == out.stat().st_size
    assert 0 < single.largest_difference < 1e-3 and 0 < single.mean_difference < single.largest_difference
    assert (done.int8_products, done.products) == (0, 1)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"layers": 2, "width": 64}, (3, 3)),
        (
            {"family": "cnn", "channels": 1, "convolutions": [{"maps": 8, "kernel": [2, 2]}], "layers": 1, "width": 64},
            (2, 3),
        ),
        ({"family": "lstm", "layers": 2, "cells": 32, "projection": 16, "bidirectional": True}, (13, 13)),
    ],
)
def test_int8(model: Path, out: Path, keys: dict[str, Any], expected: tuple[int, int]) -> None:
    save_network(model, **keys)
    done: Export = export(model, out, int8=True)
    _, single, int8 = done.forms
    assert (done.int8_products, done.products) == expected  # convolutions stay in float32
    assert int8.num_bytes == out.stat().st_size
    assert single.largest_difference < 1e-3 < int8.largest_difference < 0.5
    assert OnnxNetwork(out).about["int8"]
    weights = [each for each in onnx.load(out).graph.initializer if each.name.endswith("_quantized")]
    assert len(weights) == expected[0] and all(each.data_type == onnx.TensorProto.INT8 for each in weights)
    assert max(np.abs(onnx.numpy_helper.to_array(each).astype(int)).max() for each in weights) <= 64


def test_a_model_without_graph_or_settings(network: Path, sounds: dict[str, Path], out: Path) -> None:
    export(network, out)
    (network / "decode.json").unlink()
    assert not export(network, out).tuned
    assert not (out.with_suffix(".decode") / "decode.json").exists()  # the first export's file has been removed
    recognizer = load_recognizer(out)
    feats = {"u": features_of_file(recognizer, sounds["ab"])}
    with pytest.raises(Speech3Error, match=rf"not tuned yet: run speech3 tune {out} DIR"):
        recognizer.decode(feats)
    tune_recognizer(recognizer, feats, {"u": ["AB"]}, DecodeConfig(acoustic_scales=(0.1,), word_penalties=(0.0,)))
    assert load_recognizer(out).decode(feats).hypotheses[0].words == ("AB",)
    shutil.rmtree(network / "graph")
    assert not export(network, out).graph
    recognizer = load_recognizer(out)
    assert not recognizer.align(feats, {"u": "AB"})[1]
    with pytest.raises(Speech3Error, match=r"whistles\.decode: has no decoding graph"):
        recognizer.decode(feats)


def test_parts_that_do_not_belong_together(network: Path, model: Path, out: Path) -> None:
    export(network, out)
    rest = out.with_suffix(".decode")
    proto = onnx.load(out)
    about = {**json.loads(proto.metadata_props[0].value), "num_senones": 12}
    onnx.helper.set_model_props(proto, {"speech3": json.dumps(about)})
    out.write_bytes(proto.SerializeToString())
    with pytest.raises(MismatchError, match=r"whistles\.onnx"):
        load_recognizer(out)
    shutil.rmtree(rest)
    with pytest.raises(DataError, match=r"whistles\.onnx"):
        load_recognizer(out)
    rest.mkdir()
    (rest / "thesis.txt").touch()
    with pytest.raises(Speech3Error, match=r"whistles\.decode: exists and is not from an earlier export"):
        export(network, out)
    assert (rest / "thesis.txt").exists() and out.exists()


def test_what_cannot_be_exported(model: Path, out: Path) -> None:
    with pytest.raises(Speech3Error, match=r"model: .*GMMs; only networks are exported"):
        export(model, out)
    gaussians_to_network(model)
    export(model, out)
    with pytest.raises(Speech3Error, match=r"whistles\.onnx: exported already"):
        export(out, out.with_name("again.onnx"))
    with pytest.raises(Speech3Error, match=r"whistles\.bin: the name must end in \.onnx"):
        export(model, out.with_suffix(".bin"))
    with pytest.raises(Speech3Error, match=r"gone: no such model directory"):
        export(model / "gone", out)
    assert {each.name for each in out.parent.iterdir()} == {"whistles.onnx", "whistles.decode"}
    shutil.copytree(model, out.with_name("again.decode"))  # a model of that name is not an earlier export
    with pytest.raises(Speech3Error, match=r"again\.decode: exists and is not from an earlier export"):
        export(out.with_name("again.decode"), out.with_name("again.onnx"))
    assert (out.with_name("again.decode") / "model.safetensors").exists()


def test_other_scores_than_pytorch_are_not_published(network: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export(network, out)
    before = out.read_bytes()
    right = exporting.to_onnx
    monkeypatch.setattr(exporting, "to_onnx", lambda model, prior, about: right(model, prior + 0.01, about))
    with pytest.raises(TrainingError, match=r"whistles\.onnx"):
        export(network, out)
    monkeypatch.setattr(exporting, "to_onnx", lambda model, prior, about: right(model, prior + np.nan, about))
    with pytest.raises(Speech3Error, match=r"not written, .* by nan"):
        export(network, out)
    assert out.read_bytes() == before and inside(out.parent) >= {"whistles.onnx", "whistles.decode/hmm.json"}
    assert len(list(out.parent.iterdir())) == 2  # no other file is left
