"""The halving schedule on a made-up course of held-out accuracies."""

from speech3.config import TrainingConfig
from speech3.training.schedule import Schedule, advance


def _course(accuracies, **keys):
    config = TrainingConfig(learning_rate=0.8, halve_below=0.005, stop_below=0.001, **keys)
    schedule, rates = Schedule(config.learning_rate), []
    for epoch, accuracy in enumerate(accuracies, 1):
        rates.append(schedule.learning_rate)
        schedule = advance(schedule, epoch, accuracy, config)
        if schedule.done:
            break
    return rates, schedule


def test_halving_begins_when_the_gain_is_small_and_ends_when_it_is_nothing():
    rates, schedule = _course([0.30, 0.40, 0.404, 0.42, 0.43, 0.4305, 0.5])
    assert rates == [0.8, 0.8, 0.8, 0.4, 0.2, 0.1]
    assert (schedule.done, schedule.best_epoch, schedule.best_accuracy) == (True, 6, 0.4305)


def test_gain_is_counted_from_the_best_epoch():
    rates, schedule = _course([0.40, 0.30, 0.403, 0.4031])
    assert rates == [0.8, 0.8, 0.4, 0.2]
    assert (schedule.done, schedule.best_epoch) == (True, 4)


def test_a_model_that_learns_nothing_stops():
    rates, schedule = _course([0.0, 0.0, 0.0])
    assert len(rates) == 2
    assert schedule.best_epoch == 1


def test_constant_rate_runs_all_epochs():
    rates, schedule = _course([0.4] * 10, schedule="constant", max_epochs=5)
    assert rates == [0.8] * 5
    assert schedule.done
