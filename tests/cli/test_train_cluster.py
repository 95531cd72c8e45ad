"""`speech3 train --world cluster`: with a Ray of its own, without Ray, and with an address where no Ray is running."""

import importlib.util
import socket

import pytest
import typer
import typer.testing
from small_frames import config_with_frames

from speech3.errors import Speech3Error
from speech3.runtime import read_metrics


@pytest.fixture(scope="module")
def conf(tmp_path_factory):
    """A config with frames for 12 minibatches per epoch, all of them asynchronous."""
    training = {"max_epochs": 1, "asgd": {"warm_start": 0}, "codec": "ternary"}
    return config_with_frames(tmp_path_factory.mktemp("home"), training)


def _run(conf, out, *options):
    from speech3.cli.train import train

    app = typer.Typer()
    app.command()(train)
    return typer.testing.CliRunner().invoke(app, [str(conf), "--out", str(out), "--world", "cluster", *options])


@pytest.mark.slow
def test_with_a_ray_of_its_own(conf, tmp_path, monkeypatch):
    ray = pytest.importorskip("ray", reason="world cluster needs ray: pip install speech3[cluster]")
    monkeypatch.setattr(
        "speech3.engine.backends.cluster_actors._engine_digest", lambda: ""
    )  # it may be edited meanwhile
    result = _run(conf, tmp_path / "out")
    assert result.exit_code == 0, result.exception
    assert result.stdout.count("\n") == 1 and "held-out frame accuracy" in result.stdout  # Ray prints nothing there
    (epoch,) = (record for record in read_metrics(tmp_path / "out" / "metrics.jsonl") if record["event"] == "epoch")
    assert epoch["world"] == "cluster" and epoch["minibatches"]["used"] == 12
    assert epoch["shards"][0]["minibatches"] == 12
    assert 0 < epoch["bytes_per_minibatch"]["up"] < epoch["bytes_per_minibatch"]["down"] / 2
    assert not ray.is_initialized()


def test_without_ray(conf, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    result = _run(conf, tmp_path / "out")
    assert isinstance(result.exception, Speech3Error)
    assert "needs Ray, which is not installed; `pip install speech3[cluster]`" in str(result.exception)


def test_no_cluster_at_the_address(conf, tmp_path):
    pytest.importorskip("ray", reason="world cluster needs ray: pip install speech3[cluster]")
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
    result = _run(conf, tmp_path / "out", "--address", f"127.0.0.1:{port}")
    assert isinstance(result.exception, Speech3Error)
    assert f"--address 127.0.0.1:{port}: no Ray answers there" in str(result.exception)
