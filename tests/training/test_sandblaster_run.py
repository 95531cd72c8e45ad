"""World sandblaster from a config: its preset, and what cannot be."""

import pytest

from speech3.config import LbfgsConfig, TrainConfig, TrainingConfig, load_preset
from speech3.errors import Speech3Error
from speech3.training.worlds import check_epoch, check_workers


def _config(**training):
    return TrainConfig(
        data="none", hmm="none", model={"family": "dnn"}, training=TrainingConfig(world="sandblaster", **training)
    )


def test_the_preset_is_of_this_world():
    assert load_preset(TrainingConfig, "training", "sandblaster").world == "sandblaster"


def test_more_iterations_than_minibatches():
    config = _config(lbfgs=LbfgsConfig(batches=3, iterations=5))
    check_epoch(config, 15, 0.0)
    with pytest.raises(Speech3Error, match=r"training\.lbfgs: batches=3 with iterations=5 .*only 14 minibatches"):
        check_epoch(config, 14, 0.0)


def test_a_gradient_that_is_cut_down():
    with pytest.raises(Speech3Error, match=r"training\.gradient_clip=1: .*line search of world sandblaster.*away"):
        check_workers(_config(gradient_clip=1.0))
