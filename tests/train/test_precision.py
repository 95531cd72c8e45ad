"""Training in bf16 and tf32: gradients, learning curves, resuming, what it cannot be combined with."""

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import frame_corpus
import numpy as np
import pytest
import sentences
import torch
from frame_corpus import config, learnt
from torch.nn.utils import get_total_norm

from speech3.config import TrainConfig, TrainingConfig
from speech3.engine import fit
from speech3.engine.gradient import gradient, precision
from speech3.engine.interface import WorkerParts
from speech3.engine.trainer import check_workers
from speech3.errors import Speech3Error
from speech3.frames.packed import open_packed
from speech3.io.checkpoint import load_tensors
from speech3.models.layers import gemm_library, use_gemm_library
from speech3.runtime import read_metrics
from speech3.train import train
from speech3.train.checks import with_precision
from speech3.train.parts import BuildParts, make_parts
from speech3.train.run import _Run

CPU = torch.device("cpu")
FAMILIES = ("dnn", "cnn", "lstm", "blstm", "tdnn")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """See `frame_corpus`; and in a folder of it, `sentences`."""
    root = tmp_path_factory.mktemp("frames")
    frame_corpus.write(root)
    sentences.write(root / "sentences")
    return root


@pytest.fixture(params=["onednn", "stock"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of products in float32."""
    monkeypatch.setattr("speech3.models.layers._chosen", None)
    use_gemm_library(request.param)


def config_of(corpus: Path, family: str, **training: Any) -> TrainConfig:
    if family == "tdnn":
        return sentences.config_of(corpus / "sentences", **training)
    return config(corpus, "cpu", family, **training)


def parts_of(corpus: Path, family: str, name: str) -> WorkerParts:
    given = config_of(corpus, family, precision=name)
    parts = make_parts(given, open_packed(Path(given.frames) / "train.frames"), CPU)
    parts.model.train()
    return parts


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_are_float32_and_nearly_the_same(family: str, corpus: Path, library: None) -> None:
    whole, rounded = (parts_of(corpus, family, name) for name in ("float32", "bf16"))
    (step, g), (other, h) = (gradient(parts, 1, 0) for parts in (whole, rounded))
    assert g is not None and h is not None
    assert {each.dtype for each in h} == {torch.float32}
    away = float(get_total_norm([a - b for a, b in zip(g, h, strict=True)]) / get_total_norm(g))
    assert 1e-5 < away < 0.06  # bf16 has 8 bits: each value is rounded by up to 0.2 per cent; and rectifiers switch
    assert other.loss == pytest.approx(step.loss, rel=0.01) and other.frames == step.frames
    assert {p.dtype for p in rounded.model.parameters()} == {torch.float32}
    if family == "tdnn":  # the step that keeps layers semi-orthogonal is not rounded
        for a, b in zip(whole.model.layers, rounded.model.layers, strict=True):
            assert torch.equal(a.linear.weight, b.linear.weight)


@pytest.mark.parametrize("family", ["dnn", "tdnn"])
def test_the_learning_curve_is_that_of_float32(family: str, corpus: Path, tmp_path: Path) -> None:
    curves = []
    for name in ("float32", "bf16"):
        train(config_of(corpus, family, precision=name), tmp_path / name)
        epochs = [record for record in read_metrics(tmp_path / name / "metrics.jsonl") if record["event"] == "epoch"]
        curves.append([[record[key] for key in ("heldout_loss", "train_accuracy")] for record in epochs])
    np.testing.assert_allclose(curves[0], curves[1], rtol=0.05)
    assert curves[0] != curves[1]
    assert curves[1][-1][0] < 0.8 * curves[1][0][0] or family == "tdnn"


@pytest.mark.parametrize("world", [{"world": "shared", "workers": 2, "asgd": {"warm_start": 0.25}}, {"world": "ddp"}])
def test_processes_compute_in_it(world: dict[str, Any], corpus: Path, tmp_path: Path) -> None:
    train(config(corpus, "cpu", "dnn", precision="bf16", **world), tmp_path)
    assert learnt(tmp_path)[-1] > 0.5  # by chance: 0.17


def test_ddp_of_one_in_bf16_is_plain_sgd_in_bf16(corpus: Path, tmp_path: Path) -> None:
    models = []
    for name, given in (("bf16", "sgd"), ("bf16", "ddp"), ("float32", "ddp")):
        out = tmp_path / f"{name}{given}"
        train(config(corpus, "cpu", "dnn", precision=name, world=given, max_epochs=1), out)
        models.append(load_tensors(out / "model.safetensors", "nn")[0]["output.weight"])
    np.testing.assert_allclose(models[0], models[1], rtol=1e-3, atol=1e-5)
    assert not np.allclose(models[1], models[2], rtol=1e-3, atol=1e-5)


def test_a_run_in_bf16_resumes_where_it_was(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, whole_epoch = config(corpus, "cpu", "dnn", precision="bf16", momentum=0.5), _Run._end_epoch
    train(given, tmp_path / "whole")

    def stop(run: _Run) -> None:
        whole_epoch(run)
        raise KeyboardInterrupt

    monkeypatch.setattr(_Run, "_end_epoch", stop)
    with pytest.raises(KeyboardInterrupt):
        train(given, tmp_path / "parts")
    monkeypatch.setattr(_Run, "_end_epoch", whole_epoch)
    with pytest.raises(Speech3Error, match=r"training\.precision \w+ there, \w+ now"):
        train(config(corpus, "cpu", "dnn", momentum=0.5), tmp_path / "parts")
    train(given, tmp_path / "parts")
    whole, parts = (load_tensors(tmp_path / name / "model.safetensors", "nn")[0] for name in ("whole", "parts"))
    assert all(np.array_equal(whole[name], parts[name]) for name in whole)


@pytest.mark.parametrize(
    ("ratio", "changes", "chosen"),
    [
        (1.7, {}, "bf16"),
        (0.4, {}, "float32"),
        (1.7, {"world": "sandblaster"}, "float32"),
        (1.7, {"model_partitions": 2, "world": "shared"}, "float32"),
        (1.7, {"device": "cuda"}, "float32"),
    ],
)
def test_auto_is_bf16_where_that_is_faster(
    ratio: float, changes: dict[str, Any], chosen: str, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("speech3.train.checks.bf16_over_float32", lambda: ratio)
    given = config(corpus, "cpu", "dnn", precision="auto")
    given = given.model_copy(update={"training": given.training.model_copy(update=changes)})
    assert with_precision(given, tmp_path).training.precision == chosen
    assert with_precision(config(corpus, "cpu", "dnn", precision="float32"), tmp_path).training.precision == "float32"


def test_auto_stays_what_it_was_on_another_processor(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = config(corpus, "cpu", "dnn", precision="auto", max_epochs=1)
    monkeypatch.setattr("speech3.train.checks.bf16_over_float32", lambda: 1.7)
    train(given, tmp_path)
    monkeypatch.setattr("speech3.train.checks.bf16_over_float32", lambda: 0.4)
    assert train(given, tmp_path)["training"]["precision"] == "bf16"
    assert train(given, tmp_path, restart=True)["training"]["precision"] == "float32"


def _tf32() -> tuple[bool, bool]:
    """Of products, and of convolutions."""
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


@pytest.mark.parametrize(("name", "allowed"), [("float32", False), ("bf16", False), ("tf32", True)])
def test_products_and_convolutions_have_one_precision(name: str, allowed: bool, corpus: Path) -> None:
    before = _tf32()
    with precision(name):
        assert _tf32() == (allowed, allowed)
    assert _tf32() == before
    given = config(corpus, "cpu", "dnn", precision=name)
    with precision("float32" if allowed else "tf32"):
        BuildParts(given, gemm_library())("cpu")  # as in a worker's process
        assert _tf32() == (allowed, allowed)


def test_a_run_computes_in_its_precision_and_leaves_the_others(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, seen, heldout = _tf32(), [], _Run._heldout

    def look(run: _Run) -> tuple[float, float]:
        seen.append(_tf32())
        return heldout(run)

    monkeypatch.setattr(_Run, "_heldout", look)
    train(config(corpus, "cpu", "dnn", max_epochs=1), tmp_path)
    assert seen == [(False, False)] and _tf32() == before


@pytest.mark.parametrize(
    ("message", "keys"),
    [
        (r"training\.precision=tf32: needs a GPU; on cpu use float32 or bf16", {"precision": "tf32"}),
        (r"training\.precision=bf16: the line search", {"precision": "bf16", "world": "sandblaster"}),
        (
            r"training\.precision=bf16 with training\.model_partitions=2",
            {"precision": "bf16", "world": "shared", "model_partitions": 2},
        ),
    ],
)
def test_what_it_cannot_be_combined_with(message: str, keys: dict[str, Any]) -> None:
    with pytest.raises(Speech3Error, match=message):
        check_workers(TrainingConfig.model_validate(keys))
    check_workers(TrainingConfig.model_validate({**keys, "precision": "float32"}))


class _Seen(torch.nn.Linear):
    """Notes in which type it computes."""

    types: ClassVar[set[torch.dtype]] = set()

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        y = super().forward(x)
        self.types.add(y.dtype)
        return {"logits": y}


def _loss(outputs: dict[str, torch.Tensor], targets: torch.Tensor) -> torch.Tensor:
    assert outputs["logits"].dtype == torch.float32
    return torch.nn.functional.cross_entropy(outputs["logits"], targets)


def test_fit_has_it_as_an_option() -> None:
    torch.manual_seed(0)
    x = torch.randn(64, 5)
    dataset, model = list(zip(x, x.argmax(1), strict=True)), _Seen(5, 5)
    result = fit(model, dataset, _loss, strategy="sgd", epochs=5, minibatch=8, learning_rate=0.5, precision="bf16")
    assert result.history[-1].loss < 0.6 * result.history[0].loss
    assert torch.bfloat16 in _Seen.types and model.weight.dtype == torch.float32
    with pytest.raises(Speech3Error, match="precision=tf32: needs a GPU"):
        fit(model, dataset, _loss, strategy="sgd", precision="tf32")


def test_what_is_no_number_in_bf16_is_refused(corpus: Path) -> None:
    parts = parts_of(corpus, "dnn", "bf16")
    spoiled = replace(parts, loss=lambda y, t: (y.sum() * 3e38 * 10, t.sum()))
    step, _ = gradient(spoiled, 1, 0)
    assert not step.finite and not np.isfinite(step.loss)
