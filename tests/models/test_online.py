"""A network applied piece by piece gives what it gives for the whole utterance, whatever its family."""

from typing import Any

import numpy as np
import pytest
import torch

from speech3.config import ModelConfig, parse
from speech3.models.base import OnlineNetwork, logits
from speech3.models.lstm import Lstm
from speech3.models.registry import build

F, S = 12, 7
FAMILIES: dict[str, dict[str, Any]] = {
    "dnn": {"family": "dnn", "layers": 2, "width": 9, "left_context": 4, "right_context": 2, "normalization": "batch"},
    "cnn": {"family": "cnn", "channels": 3, "convolutions": [{"maps": 4, "kernel": [3, 3]}], "layers": 1, "width": 6},
    "lstm": {"family": "lstm", "layers": 2, "cells": 6},
    "lstm with delay": {"family": "lstm", "layers": 2, "cells": 6, "projection": 4, "delay": 5, "input_layers": [8],
                        "left_context": 2, "right_context": 1},
    "dnn at a third": {"family": "dnn", "layers": 1, "width": 9, "left_context": 4, "right_context": 2,
                       "subsampling": 3},
    "cnn at a third": {"family": "cnn", "channels": 3, "convolutions": [{"maps": 4, "kernel": [3, 3]}], "layers": 1,
                       "width": 6, "subsampling": 3, "two_outputs": True},
    "lstm at a third": {"family": "lstm", "layers": 2, "cells": 6, "projection": 4, "delay": 5, "left_context": 3,
                        "right_context": 1, "subsampling": 3},
    "tdnn": {"family": "tdnn", "layers": 2, "width": 8, "bottleneck": 3, "prefinal": 5, "subsampling": 3},
    "tdnn of every frame": {"family": "tdnn", "layers": 2, "width": 8, "bottleneck": 3, "prefinal": 5,
                            "subsampling": 1},
    "cnn_tdnn": {"family": "cnn_tdnn", "layers": 3, "width": 8, "bottleneck": 3, "prefinal": 5, "subsampling": 3,
                 "two_outputs": True,
                 "convolutions": [{"maps": 3, "kernel": [3, 5]}, {"maps": 2, "kernel": [3, 3], "stride": 2}]},
    "tdnn_lstm": {"family": "tdnn_lstm", "time_layers": 2, "width": 8, "bottleneck": 3, "layers": 1, "cells": 6,
                  "convolutions": [{"maps": 3, "kernel": [3, 5]}], "subsampling": 3, "delay": 4},
    "tdnn_lstm of every frame": {"family": "tdnn_lstm", "time_layers": 2, "width": 8, "bottleneck": 3, "cells": 6},
}  # fmt: skip


def network(name: str) -> torch.nn.Module:
    model = build(parse(ModelConfig, FAMILIES[name], name), F, S, seed=1)
    generator = torch.Generator().manual_seed(2)
    for parameter in model.parameters():  # outputs begin at zero in some families
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def online(model: Any) -> OnlineNetwork:
    """As `speech3.decode.streaming` makes it, without the priors."""
    left, right = model.left_context, model.right_context
    if isinstance(model, Lstm):

        @torch.no_grad()
        def steps(feats_TF: np.ndarray, states: Any) -> tuple[np.ndarray, Any]:
            windows_TWF = torch.from_numpy(feats_TF).unfold(0, model.window, model.subsampling).transpose(1, 2)
            scores_TS, states = model.steps(windows_TWF, states, len(windows_TWF))
            return scores_TS.numpy(), states

        return OnlineNetwork(steps, model.states, left, right, model.subsampling, model.delay, S)
    inside = torch.no_grad()(lambda feats_TF: model.score_inside(torch.from_numpy(feats_TF)).numpy())
    return OnlineNetwork.of_windows(inside, left, right, model.subsampling, S)


def feats(frames: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((frames, F)).astype(np.float32)


def fed(running: OnlineNetwork, feats_TF: np.ndarray, sizes: list[int]) -> list[np.ndarray]:
    out, at = [], 0
    while at < len(feats_TF):
        size = sizes[len(out) % len(sizes)]
        out.append(running.accept(feats_TF[at : at + size]))
        at += size
    return out


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(("frames", "sizes"), [(1, [1]), (2, [1000]), (8, [24]), (40, [5, 0, 13]), (40, [1])])
def test_pieces_give_what_the_whole_gives(name: str, sizes: list[int], frames: int) -> None:
    model, feats_TF = network(name), feats(frames)
    running = online(model)
    found_TS = np.concatenate([*fed(running, feats_TF, sizes), running.finish()])
    expected_TS = logits(model, torch.from_numpy(feats_TF)).numpy()
    assert np.ptp(expected_TS) > 0.1
    assert found_TS.shape == expected_TS.shape
    np.testing.assert_allclose(found_TS, expected_TS, atol=1e-5)


@pytest.mark.parametrize("name", FAMILIES)
def test_outputs_come_as_soon_as_their_context_is_there(name: str) -> None:
    model: Any = network(name)
    running = online(model)
    given = np.cumsum([len(scores_TS) for scores_TS in fed(running, feats(50), [1])])
    ahead = model.right_context + model.delay * model.subsampling
    expected = [max(0, (t + 1 - ahead) // model.subsampling) for t in range(50)]
    assert given.tolist() == expected


@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_kept_does_not_grow(name: str) -> None:
    model: Any = network(name)
    running: Any = online(model)
    sizes = []
    for number in range(10):
        running.accept(feats(20, number))
        sizes.append(len(running._kept_TF))
    assert max(sizes[5:]) <= model.left_context + model.right_context + (2 * model.delay + 1) * model.subsampling


@pytest.mark.parametrize("name", ["lstm", "lstm with delay", "lstm at a third", "tdnn_lstm"])
def test_another_utterance_begins_without_the_state_of_the_one_before(name: str) -> None:
    model: Any = network(name)
    feats_TF, step = feats(60), model.subsampling
    running = online(model)
    before = np.concatenate(fed(running, feats_TF[:30], [10]))
    cut = len(before) * step
    assert cut == (30 - model.right_context) // step * step - model.delay * step
    running.restart()
    after = np.concatenate([*fed(running, feats_TF[30:], [4]), running.finish()])
    expected = logits(model, torch.from_numpy(feats_TF[cut:])).numpy()  # but for the context on the left
    assert after.shape == expected.shape
    if model.left_context == 0:
        np.testing.assert_allclose(after, expected, atol=1e-5)
    else:
        states, context = (
            model.states(),
            feats_TF[np.r_[cut - model.left_context : 60, [59] * (model.right_context + step * model.delay)]],
        )
        with torch.no_grad():
            windows = torch.from_numpy(context).unfold(0, model.window, step).transpose(1, 2)
            scores, _ = model.steps(windows, states, len(windows))
        np.testing.assert_allclose(after, scores[model.delay :].numpy(), atol=1e-5)


def test_a_network_of_windows_does_not_begin_anew() -> None:
    model, feats_TF = network("cnn_tdnn"), feats(90)
    running = online(model)
    out = []
    for piece in np.split(feats_TF, 9):
        out.append(running.accept(piece))
        running.restart()
    found_TS = np.concatenate([*out, running.finish()])
    np.testing.assert_allclose(found_TS, logits(model, torch.from_numpy(feats_TF)).numpy(), atol=1e-5)
