"""`speech3 model-info` as a user runs it."""

import json
from pathlib import Path


def test_it_describes_what_a_recipe_trained(experiment: Path, speech3) -> None:
    process = speech3("model-info", experiment / "dnn")
    assert process.returncode == 0, process.stderr
    for said in ("dnn, ", "fbank40_d2_utt, 120 values", "5 frames before and 5 after", "9 frames (90 ms)",
                 "held-out frames (epoch ", "weight 64 x 1320", "torch "):  # fmt: skip
        assert said in process.stdout, said
    info = json.loads(speech3("model-info", experiment / "dnn", "--json").stdout)
    senones = info["senones"]
    weights = 1320 * 64 + 2 * 64 * 64 + 64 * senones
    assert (info["flops"], info["parameters"]) == (2 * weights, weights + 3 * 64 + senones)
    assert sum(layer["flops"] for layer in info["layers"]) == info["flops"]
    assert 0 < info["trained"]["heldout_accuracy"] < 1

    gaussians = speech3("model-info", experiment / "tri")
    assert "gmm, " in gaussians.stdout and "mfcc13_d2_utt, 39 values" in gaussians.stdout
    refused = speech3("model-info", experiment / "data")
    assert refused.returncode == 1 and "no model.safetensors" in refused.stderr
