"""Schedules: halving on a made-up course of held-out losses; the rate inside an epoch against closed forms."""

import numpy as np
import pytest

from speech3.config import TrainingConfig
from speech3.engine.trainer import rate_of
from speech3.train.rundir import RunDirectory, RunState, Schedule, advance


def _course(losses, **keys):
    config = TrainingConfig(**{"learning_rate": 0.8, "halve_below": 0.01, "stop_below": 0.001, **keys})
    schedule, rates = Schedule(config.learning_rate), []
    for epoch, loss in enumerate(losses, 1):
        rates.append(schedule.learning_rate)
        schedule = advance(schedule, epoch, loss, config)
        if schedule.done:
            break
    return rates, schedule


def test_halving_begins_when_the_gain_is_small_and_ends_when_it_is_nothing():
    rates, schedule = _course([4.0, 3.0, 2.9, 2.88, 2.80, 2.75, 2.749, 2.0])
    assert rates == [0.8, 0.8, 0.8, 0.8, 0.4, 0.2, 0.1]
    assert (schedule.done, schedule.best_epoch, schedule.best_loss) == (True, 7, 2.749)


def test_the_gain_is_a_share_of_the_loss():
    assert _course([0.40, 0.30, 0.29, 0.288, 0.280, 0.275, 0.2749, 0.2])[0] == [0.8, 0.8, 0.8, 0.8, 0.4, 0.2, 0.1]


def test_gain_is_counted_from_the_best_epoch():
    rates, schedule = _course([3.0, 3.5, 2.98, 2.979])
    assert rates == [0.8, 0.8, 0.4, 0.2]
    assert (schedule.done, schedule.best_epoch) == (True, 4)


@pytest.mark.parametrize("loss", [2.0, 0.0])
def test_a_model_that_learns_nothing_stops(loss):
    rates, schedule = _course([loss] * 5)
    assert len(rates) == 3
    assert schedule.best_epoch == 1


def test_the_best_epoch_has_the_lowest_loss_in_every_schedule():
    for name in ("constant", "exponential", "halving"):
        assert _course([3.0, 2.0, 2.5, 2.1], schedule=name, max_epochs=4)[1].best_epoch == 2


def test_constant_rate_runs_all_epochs():
    rates, schedule = _course([2.0] * 10, schedule="constant", max_epochs=5)
    assert rates == [0.8] * 5
    assert schedule.done


def _rates(epoch, minibatches, rate=0.8, **keys):
    config = TrainingConfig(learning_rate=rate, **keys)
    rate_at = rate_of(rate, epoch, minibatches, config)
    return np.array([rate_at(number) for number in range(minibatches)])


def test_halving_and_constant_do_not_change_inside_an_epoch():
    for schedule in ("halving", "constant"):
        assert (_rates(3, 7, schedule=schedule) == 0.8).all()


def test_exponential_falls_from_the_first_rate_to_the_last_in_equal_ratios():
    rates = np.concatenate([_rates(e, 5, schedule="exponential", max_epochs=4, final_rate=0.01) for e in range(1, 5)])
    np.testing.assert_allclose(rates, 0.8 * 0.01 ** (np.arange(20) / 20), rtol=1e-12)
    end = rate_of(0.8, 4, 5, TrainingConfig(schedule="exponential", max_epochs=4, final_rate=0.01))(5)
    assert end == pytest.approx(0.008, rel=1e-12)


def test_warmup_rises_linearly_from_a_tenth_and_then_lets_the_schedule_be():
    rates = np.concatenate([_rates(e, 10, warmup=1.5, schedule="constant") for e in (1, 2)])
    np.testing.assert_allclose(rates, 0.8 * np.minimum(1, 0.1 + 0.9 * np.arange(20) / 15), rtol=1e-12)
    both = _rates(1, 4, warmup=0.5, schedule="exponential", max_epochs=2, final_rate=0.25)
    np.testing.assert_allclose(both, 0.8 * np.array([0.1, 0.55, 1, 1]) * 0.5 ** (np.arange(4) / 4), rtol=1e-12)


def test_the_rate_is_the_schedules_not_the_configs():
    assert rate_of(0.1, 9, 3, TrainingConfig(learning_rate=0.8))(2) == 0.1


def test_the_last_few_checkpoints_are_kept(tmp_path):
    directory, tensors = RunDirectory(tmp_path, {}, keep=2), {"parameters": np.zeros(1, np.float32)}
    for epoch in (1, 2, 3):
        directory.save(RunState(Schedule(0.1), epoch=epoch), tensors, "stock")
    assert sorted(path.name[:5] for path in (tmp_path / "checkpoints").iterdir()) == ["e0002", "e0003"]
    assert directory.newest()[0].epoch == 3
