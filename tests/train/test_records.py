"""What a run says of an epoch."""

import pytest

from speech3.config import TrainingConfig
from speech3.engine.interface import Progress
from speech3.train.rundir import RunState, Schedule, epoch_record, epoch_words, progress_text


@pytest.mark.parametrize(
    ("values", "rate"),
    [
        ({"schedule": "constant"}, 0.4),
        ({"schedule": "constant", "warmup": 0.5}, 0.4),
        ({"schedule": "exponential", "max_epochs": 4, "final_rate": 0.01}, 0.4 * 0.1),
    ],
)
def test_the_learning_rate_is_that_at_the_end_of_the_epoch(values, rate):
    state = RunState(Schedule(0.4), epoch=2, done=Progress(used=1, frames=10, loss_sum=20.0, correct=5))
    record = epoch_record(TrainingConfig(learning_rate=0.4, **values), state, 1.0, 0.5)
    assert record["learning_rate"] == pytest.approx(rate)
    assert (record["train_loss"], record["train_accuracy"]) == (2.0, 0.5)


def test_what_a_partition_refused_is_reported():
    done = Progress(used=8, frames=80, loss_sum=20.0, correct=5, missed=3)
    record = epoch_record(TrainingConfig(), RunState(Schedule(0.4), epoch=1, done=done), 1.0, 0.5)
    assert record["missed_by_partitions"] == 3
    assert "3 used but not accepted by a partition" in epoch_words(record, no_better=False)
    assert "3 not accepted by a partition" in progress_text(done, None)[1]
    nothing = epoch_record(TrainingConfig(), RunState(Schedule(0.4), epoch=1, done=Progress(used=8)), 1.0, 0.5)
    assert "missed_by_partitions" not in nothing and "partition" not in epoch_words(nothing, no_better=False)
