"""`fit` beside PyTorch's own loop, with the caller's optimizers and schedules, validation, callbacks and resuming."""

import copy
from functools import partial

import loops
import moons
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Subset

from speech3.engine import fit
from speech3.errors import OccupiedError, Speech3Error

DATA = moons.moons(450)
CROSS_ENTROPY = nn.CrossEntropyLoss()
ADAMW = partial(torch.optim.AdamW, lr=0.01)


# As `fit` has it: a bias before batch normalisation has no gradient, and adaptive steps follow its rounding.
pytestmark = pytest.mark.usefixtures("one_thread")


def fitted(model=None, data=DATA, loss=CROSS_ENTROPY, **keys):
    defaults = {"strategy": "sgd", "epochs": 2, "minibatch": 100, "quiet": True}
    return fit(model or moons.network(), data, loss, **{**defaults, **keys})


def same(one, other, atol=0.0):
    for ours, theirs in zip(one.state_dict().values(), other.state_dict().values(), strict=True):
        if ours.is_floating_point():
            torch.testing.assert_close(ours, theirs, rtol=0, atol=atol)


@pytest.mark.parametrize(
    ("optimizer", "schedule", "clip"),
    [
        (loops.decayed, None, None),
        (loops.sgd_with_momentum, None, 0.5),
        (loops.decayed, partial(loops.one_cycle, steps=10), None),
        (partial(torch.optim.NAdam, lr=0.01), partial(torch.optim.lr_scheduler.StepLR, step_size=3), None),
        (partial(torch.optim.RMSprop, lr=0.01, momentum=0.5), None, None),
        (torch.optim.Adagrad, partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=10), None),
    ],
)
def test_the_losses_are_those_of_a_plain_loop(optimizer, schedule, clip):
    model, plain, data, losses = moons.network(), moons.network(), moons.Watched(DATA), []

    def noted(outputs, targets):
        value = CROSS_ENTROPY(outputs, targets)
        losses.append(value.item())
        return value

    keys = {} if schedule is None else {"schedule": schedule}
    fitted(model, data, noted, optimizer=optimizer, gradient_clip=clip, **keys)
    order = data.read[100:]  # before training, the first minibatch is tried out, and its loss computed twice
    batches = [DATA[epoch[at : at + 100]] for epoch in (order[:450], order[450:]) for at in range(0, 450, 100)]
    theirs = optimizer(list(plain.parameters()))
    expected = loops.plain_loop(plain, batches, CROSS_ENTROPY, theirs, schedule(theirs) if schedule else None, clip)
    assert losses[2:] == pytest.approx(expected, abs=1e-6)
    same(model, plain, 1e-6)


@pytest.mark.parametrize("name", ["cosine", "exponential"])
def test_named_schedules_multiply_the_rates_of_all_groups(name):
    seen = []

    class Noting(torch.optim.SGD):
        def step(self, closure=None):
            seen.append([group["lr"] for group in self.param_groups])
            return super().step(closure)

    fitted(optimizer=lambda params: loops.decayed(params, Noting, lr=0.1), schedule=name, epochs=4)
    assert len(seen) == 20 and seen[0] == [0.1, 0.2]
    assert all(second == pytest.approx(2 * first) for first, second in seen)
    assert [first for first, _ in seen] == sorted((first for first, _ in seen), reverse=True) and seen[-1][0] < 0.02


@pytest.mark.parametrize("strategy", ["asgd", "ddp", "downpour"])
def test_shards_have_optimizers_of_their_own(strategy):
    model = moons.network()
    result = fitted(
        model,
        moons.moons(),
        strategy=strategy,
        optimizer=loops.decayed,
        simulate=True,
        workers=2,
        epochs=6,
        minibatch=30,
    )
    assert result.history[-1].accuracy > 0.9 and moons.accuracy(model) > 0.9 and result.dropped == 0


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["asgd", "ddp"])
def test_processes_with_the_callers_optimizer(strategy):
    model = moons.network()
    schedule = partial(loops.one_cycle, steps=240)
    result = fitted(
        model,
        moons.moons(),
        strategy=strategy,
        optimizer=loops.decayed,
        workers=2,
        epochs=6,
        minibatch=30,
        schedule=schedule,
        validation=moons.moons(300, seed=8),
    )
    assert result.history[-1].validation_accuracy > 0.9 and moons.accuracy(model) > 0.9


def test_validation_is_the_loss_of_the_model_in_evaluation_mode():
    held_out, model = moons.moons(130, seed=8), moons.network()
    seen = []

    def on_epoch(result):
        modes = model.training
        value = nn.functional.cross_entropy(copy.deepcopy(model).eval()(held_out.tensors[0]), held_out.tensors[1])
        seen.append((result.validation_loss, value.item(), modes))

    result = fitted(model, validation=held_out, on_epoch=on_epoch, optimizer="adamw", learning_rate=0.01)
    assert [ours for ours, _, _ in seen] == pytest.approx([theirs for _, theirs, _ in seen], abs=1e-6)
    assert [epoch.validation_loss for epoch in result.history] == [ours for ours, _, _ in seen] and seen[0][2]
    without = moons.network()
    fitted(without, optimizer="adamw", learning_rate=0.01)
    same(model, without)  # validation changes nothing
    loader = torch.utils.data.DataLoader(held_out, batch_size=7)
    again = fitted(validation=loader, optimizer="adamw", learning_rate=0.01)
    assert again.history[-1].validation_loss == pytest.approx(result.history[-1].validation_loss, abs=1e-6)
    streams = [fitted(validation=loops.Points(90, length=length)).history[-1] for length in (True, False)]
    assert streams[0].validation_loss == pytest.approx(streams[1].validation_loss, abs=1e-6)


def test_early_stopping():
    epochs, steps = [], []
    result = fitted(epochs=50, on_epoch=lambda epoch: epochs.append(epoch) or len(epochs) == 3)
    assert result.stopped and len(result.history) == len(epochs) == 3 and tuple(epochs) == result.history

    def on_step(step):
        steps.append(step)
        return step.epoch == 2 and step.step == 3

    result = fitted(epochs=50, on_step=on_step)
    assert result.stopped and [(step.epoch, step.step) for step in steps] == [
        (1, 1),
        (1, 2),
        (1, 3),
        (1, 4),
        (1, 5),
        (2, 1),
        (2, 2),
        (2, 3),
    ]
    assert result.history[-1].used == 3 and steps[0].steps == 5 and steps[-1].loss == result.history[-1].loss
    assert not fitted(on_epoch=lambda epoch: "a word", on_step=lambda step: 1).stopped  # only True ends training
    for true in (np.True_, torch.tensor(True)):
        assert len(fitted(on_epoch=lambda epoch, true=true: true).history) == 1


def test_training_that_a_callback_ended_is_finished(tmp_path, capsys):
    fitted(epochs=4, out=tmp_path, on_epoch=lambda epoch: epoch.epoch == 2)
    result = fitted(epochs=4, out=tmp_path, quiet=False)
    assert result.stopped and len(result.history) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "a callback ended it after 2 epochs" in line and "another out" in line


def test_a_callback_that_raises_leaves_the_parameters_of_its_epoch():
    model, seen = moons.network(), []

    def on_epoch(_):
        seen.append(copy.deepcopy(model))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fitted(model, on_epoch=on_epoch)
    same(model, seen[0])


@pytest.mark.parametrize("keys", [{"optimizer": loops.decayed, "schedule": "cosine"}, {"options": {"momentum": 0.9}}])
def test_interrupted_training_resumes_to_same_result(tmp_path, keys, capsys):
    whole, model = moons.network(), moons.network()
    expected = fitted(whole, epochs=3, **keys)

    def press(step):
        if (step.epoch, step.step) == (2, 2):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fitted(model, epochs=3, out=tmp_path / "run", on_step=press, **keys)
    model, seen = moons.network(seed=9), []
    found = fitted(model, epochs=3, out=tmp_path / "run", on_step=seen.append, quiet=False, **keys)
    same(model, whole)
    assert "resumed in epoch 2 with 2 of its minibatches done" in capsys.readouterr().err
    assert [(step.epoch, step.step) for step in seen][:2] == [(2, 3), (2, 4)]
    for ours, theirs in zip(found.history, expected.history, strict=True):
        assert (ours.epoch, ours.used) == (theirs.epoch, theirs.used) and ours.loss == pytest.approx(theirs.loss)
    model = moons.network(seed=9)
    assert fitted(model, epochs=3, out=tmp_path / "run", **keys) == found  # finished: nothing is trained
    same(model, whole)


def test_another_number_of_workers_and_of_epochs_when_resuming(tmp_path):
    keys = {"data": moons.moons(), "strategy": "asgd", "simulate": True, "minibatch": 30, "out": tmp_path}
    keys |= {"optimizer": loops.decayed}
    fitted(workers=4, epochs=2, **keys)
    model = moons.network()
    result = fitted(model, workers=2, epochs=6, **keys)
    assert [len(epoch.shares) for epoch in result.history] == [4, 4, 2, 2, 2, 2]
    assert moons.accuracy(model) > 0.9


def test_a_directory_of_another_training(tmp_path):
    fitted(epochs=1, out=tmp_path)
    for message, keys in [
        (
            r"out=.*: holds a training with learning_rate=0.1, and this one has 0.2; choose another out",
            {"learning_rate": 0.2},
        ),
        (r"holds a training with minibatch=100, and this one has 50", {"minibatch": 50}),
        (r"holds a training with optimizer=\"sgd\", and this one has \"AdamW \[", {"optimizer": ADAMW}),
        (r"parameters of the model", {"model": nn.Linear(2, 2)}),
        (r"minibatches of an epoch=5, and this one has 4", {"data": Subset(DATA, range(400))}),
        (r"holds a training with simulate=false, and this one has true", {"simulate": True}),
    ]:
        with pytest.raises(Speech3Error, match=message):
            fitted(epochs=2, out=tmp_path, **keys)
    (tmp_path / "checkpoint.safetensors").write_bytes(b"nothing")
    with pytest.raises(Speech3Error, match=r"checkpoint.safetensors: not a safetensors file"):
        fitted(epochs=2, out=tmp_path)


class Buffers(nn.Module):
    """Parameters and buffers in a given order."""

    def __init__(self, *names, frozen=0, dtype=torch.float32):
        super().__init__()
        for value, name in enumerate(names):
            self.register_buffer(name, torch.full((2,), float(value), dtype=dtype))
        self.layers = nn.ModuleList(nn.Linear(2, 2).requires_grad_(number != frozen) for number in range(3))

    def forward(self, inputs):
        for layer in self.layers:
            inputs = layer(inputs)
        return inputs


@pytest.mark.parametrize(
    ("kind", "other"),
    [
        ("trained parameters of the model", Buffers("scale", "shift", frozen=1)),  # of the same size
        ("buffers of the model", Buffers("shift", "scale")),
        ("buffers of the model", Buffers("scale", "other")),
        ("buffers of the model", Buffers("scale")),
        ("buffers of the model", Buffers("scale", "shift", "more")),
        ("buffers of the model", Buffers("scale", "shift", dtype=torch.float64)),
    ],
)
def test_a_state_is_not_loaded_into_a_model_of_another_layout(tmp_path, kind, other):
    fitted(Buffers("scale", "shift"), epochs=1, out=tmp_path)
    before = copy.deepcopy(other)
    with pytest.raises(OccupiedError, match=f"holds a training with {kind}="):
        fitted(other, epochs=2, out=tmp_path)
    same(other, before)
    assert len(fitted(Buffers("scale", "shift"), epochs=2, out=tmp_path).history) == 2


def test_parameters_in_another_order_are_another_layout(tmp_path):
    first, second = nn.Sequential(), nn.Sequential()
    for name in "ab":
        first.add_module(name, nn.Linear(2, 2))
    for name in "ba":
        second.add_module(name, nn.Linear(2, 2))
    fitted(first, epochs=1, out=tmp_path)
    with pytest.raises(OccupiedError, match=r"trained parameters of the model=\[\"a.weight"):
        fitted(second, epochs=2, out=tmp_path)


def squared(outputs, targets, power=2):
    return (outputs - nn.functional.one_hot(targets, 2)).abs().pow(power).mean()


@pytest.mark.parametrize(
    ("loss", "other"),
    [
        (CROSS_ENTROPY, nn.MultiMarginLoss()),
        (CROSS_ENTROPY, nn.CrossEntropyLoss(label_smoothing=0.1)),
        (CROSS_ENTROPY, nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0]))),
        (CROSS_ENTROPY, squared),
        (squared, partial(squared, power=4)),
        (partial(squared, power=3), partial(squared, power=4)),
    ],
)
def test_the_loss_is_the_same_when_training_is_resumed(tmp_path, loss, other):
    fitted(loss=loss, epochs=1, out=tmp_path)
    with pytest.raises(OccupiedError, match="holds a training with loss="):
        fitted(loss=other, epochs=2, out=tmp_path)
    assert len(fitted(loss=copy.deepcopy(loss), epochs=2, out=tmp_path).history) == 2


def test_the_rates_of_a_schedule_are_the_same_when_training_is_resumed(tmp_path):
    step = partial(torch.optim.lr_scheduler.StepLR, step_size=3)
    fitted(epochs=2, out=tmp_path, optimizer=ADAMW, schedule=step)
    with pytest.raises(OccupiedError, match="holds a training with learning rates of the schedule="):
        other = partial(torch.optim.lr_scheduler.StepLR, step_size=4)
        fitted(epochs=3, out=tmp_path, optimizer=ADAMW, schedule=other)
    assert len(fitted(epochs=3, out=tmp_path, optimizer=ADAMW, schedule=step).history) == 3


def test_own_optimizer_is_the_same_when_training_is_resumed(tmp_path):
    fitted(epochs=1, out=tmp_path, optimizer=ADAMW)
    for other in (partial(torch.optim.AdamW, lr=0.5), partial(torch.optim.SGD, lr=0.01)):
        with pytest.raises(Speech3Error, match=r"holds a training with optimizer=\"AdamW \[.*and this one has"):
            fitted(epochs=2, out=tmp_path, optimizer=other)
    assert len(fitted(epochs=2, out=tmp_path, optimizer=ADAMW).history) == 2


def test_progress_is_shown_unless_it_is_not_wanted(capsys):
    fitted(quiet=False, validation=DATA)
    said = capsys.readouterr()
    lines = said.err.splitlines()
    assert not said.out and len(lines) == 2
    assert lines[1].startswith("epoch 2/2: loss 0.") and "validation loss 0." in lines[1] and "accuracy" in lines[1]
    fitted()
    assert capsys.readouterr() == ("", "")


def test_processes_are_quiet_too(capfd):
    fitted(strategy="ddp", workers=1)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("message", "keys"),
    [
        (r"^optimizer: is a Adam of one model.*functools.partial\(torch.optim.Adam",
         {"optimizer": torch.optim.Adam(nn.Linear(2, 2).parameters())}),
        (r"^optimizer: returned a list, not a torch.optim.Optimizer; pass a function", {"optimizer": list}),
        (r"^optimizer: raised TypeError: .*lt.*; pass a function", {"optimizer": partial(torch.optim.SGD, lt=1)}),
        (r"^optimizer: LBFGS .*strategy='sandblaster'", {"optimizer": torch.optim.LBFGS}),
        (r"^optimizer: 1.weight, 1.bias, 3.bias of the model are in none of its groups",
         {"optimizer": lambda params: torch.optim.SGD([p for p in params if p.ndim == 2] + params[1:2], lr=1)}),
        (r"^optimizer: has parameters that it was not given, such as those of your own `model`",
         {"optimizer": lambda params: torch.optim.SGD(moons.network().parameters(), lr=1)}),
        (r"^learning_rate=0.1: your own optimizer has its learning rate", {"optimizer": ADAMW, "learning_rate": 0.1}),
        (r"^options: betas, momentum: your own optimizer has its own",
         {"optimizer": ADAMW, "options": {"momentum": 0.9, "betas": [0.9, 0.99]}}),
        (r"^optimizer: the workers of this strategy push sums of gradients.*such as asgd",
         {"optimizer": ADAMW, "strategy": "asgd_zhang", "simulate": True, "options": {"asgd": {"warm_start": 0.25}}}),
        (r"^optimizer: sandblaster is L-BFGS", {"optimizer": ADAMW, "strategy": "sandblaster", "simulate": True,
                                                "options": {"lbfgs": {"iterations": 2}}}),
        (r"^schedule: a scheduler needs an optimizer of torch.optim",
         {"schedule": partial(torch.optim.lr_scheduler.StepLR, step_size=3)}),
        (r"^schedule: ReduceLROnPlateau depends on a loss.*on_epoch",
         {"optimizer": ADAMW, "schedule": torch.optim.lr_scheduler.ReduceLROnPlateau}),
        (r"^schedule: raised TypeError: .*step_size.*; pass a function",
         {"optimizer": ADAMW, "schedule": torch.optim.lr_scheduler.StepLR}),
        (r"^schedule: returned a NoneType", {"optimizer": ADAMW, "schedule": lambda optimizer: None}),
        (r"^schedule: raised ValueError: .*there are 10 of them in all epochs together",
         {"optimizer": loops.decayed, "schedule": partial(loops.one_cycle, steps=4)}),
        (r"^options: schedule, precision: pass it as an argument of fit",
         {"options": {"schedule": "cosine", "precision": "bf16"}}),
        (r"optimizer: .*'sgd', 'adamw' or 'muon'", {"optimizer": "adam"}),
        (r"schedule: .*'cosine'", {"schedule": "linear"}),
        (r"^validation: is empty", {"validation": Subset(DATA, [])}),
        (r"^validation: a int has no length", {"validation": 3}),
        (r"^validation: is empty; leave it out", {"validation": []}),
        (r"^validation: is empty; leave it out", {"validation": torch.utils.data.DataLoader([])}),
        (r"^validation: is empty; leave it out", {"validation": loops.Points(0, length=False)}),
        (r"^validation: raised RuntimeError: .*its items must be like those of dataset",
         {"validation": torch.utils.data.TensorDataset(torch.zeros(3, 5), torch.zeros(3).long())}),
        (r"^accumulate=0: must be a whole number", {"accumulate": 0}),
    ],
)  # fmt: skip
def test_unusable_optimizers_and_schedules_are_refused(message, keys):
    with pytest.raises(Speech3Error, match=message) as caught:
        fitted(**{"epochs": 2, **keys})
    assert "training." not in str(caught.value)


def test_divergence_names_the_callers_optimizer():
    points, moon = (tensor.clone() for tensor in DATA.tensors)
    points[17] = torch.nan
    message = r"the loss is nan; the learning rate is most.* lower the lr of your optimizer.* items 17$"
    with pytest.raises(Speech3Error, match=message):
        fitted(data=torch.utils.data.TensorDataset(points, moon), optimizer=ADAMW)


def test_a_lambda_that_other_processes_cannot_get():
    message = r"^optimizer: cannot be copied to other processes .*not as a lambda, or use functools.partial"
    with pytest.raises(Speech3Error, match=message):
        fitted(strategy="asgd", workers=1, minibatch=30, optimizer=lambda params: torch.optim.AdamW(params, lr=0.01))
