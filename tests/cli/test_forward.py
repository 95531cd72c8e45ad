"""`speech3 forward`: log likelihoods of GMMs, and utterances that are left out. (For networks see test_import.)"""

from pathlib import Path

import numpy as np
import pytest
import typer.testing
import yaml

from speech3.cli.recognise import forward as command
from speech3.config import FeatureConfig
from speech3.errors import Speech3Error
from speech3.hmm.gmm import Gmm
from speech3.hmm.model import Hmm, context_free_tree
from speech3.io.ark import _kaldi_io as kaldi_io, write_ark
from speech3.language.lexicon import Lexicon, Pronunciation

RNG = np.random.default_rng(0)
MEANS = RNG.normal(0, 3, (6, 4))
FEATS = {f"u{number:02d}": RNG.normal(0, 2, (10 + number, 4)).astype(np.float32) for number in range(25)}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    out = tmp_path / "model"
    Hmm(Lexicon((Pronunciation("A", ("a",)),)), context_free_tree(np.arange(6).reshape(2, 3)), np.full(6, 0.5)).save(
        out
    )
    Gmm(np.arange(7), np.ones(6), MEANS, np.full((6, 4), 2.0)).save(out / "model.safetensors", {})
    (out / "features.yaml").write_text(yaml.safe_dump(FeatureConfig(kind="given").model_dump()))
    data = tmp_path / "data"
    data.mkdir()
    write_ark(data / "feats.ark", FEATS.items(), data / "feats.scp")
    (data / "utt2spk").write_text("".join(f"{name} {name}\n" for name in FEATS))
    return out


def forward(model: Path, out: Path) -> typer.testing.Result:
    app = typer.Typer()
    app.command()(command)
    arguments = [str(model), str(model.parent / "data"), str(out), "--jobs", "1"]
    return typer.testing.CliRunner().invoke(app, arguments)


def test_likelihoods_of_gmms_as_kaldi_reads_them(model: Path, tmp_path: Path) -> None:
    scp = tmp_path / "data" / "feats.scp"
    ark = tmp_path / "data" / "feats.ark"
    ark.write_bytes(ark.read_bytes()[:-3])  # the last utterance
    result = forward(model, tmp_path / "out")
    assert result.exit_code == 0 and "24 utterances, 6 pdfs" in result.output
    assert (tmp_path / "out" / "bad.txt").read_text().startswith(f"u24 u24: {scp}")
    found = dict(kaldi_io.read_mat_scp(str(tmp_path / "out" / "loglikes.scp")))
    assert len(found) == 24
    for name, loglikes_TP in found.items():
        squares_TP = np.square(FEATS[name][:, None] - MEANS).sum(2)
        np.testing.assert_allclose(loglikes_TP, -squares_TP / 4 - 2 * np.log(4 * np.pi), atol=1e-3)
        assert loglikes_TP.dtype == np.float32


def test_a_model_that_diverged_leaves_nothing(model: Path, tmp_path: Path) -> None:
    Gmm(np.arange(7), np.ones(6), MEANS * np.nan, np.full((6, 4), 2.0)).save(model / "model.safetensors", {})
    result = forward(model, tmp_path / "out")
    assert isinstance(result.exception, Speech3Error) and "u00: the model's scores are NaN" in str(result.exception)
    assert not list((tmp_path / "out").glob("*loglikes*"))
