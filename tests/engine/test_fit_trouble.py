"""What `fit` cannot do: each is an error that names it and says what to do; nothing hangs, and no process is left."""

import multiprocessing
import subprocess
import sys
import threading

import loops
import moons
import pytest
import tiny
import torch
from torch import nn
from torch.utils.data import TensorDataset

from speech3.engine import fit, trainer
from speech3.errors import MachineError, Speech3Error, TrainingError

DATA = moons.moons(600)
CROSS_ENTROPY = nn.CrossEntropyLoss()


def fitted(model=None, data=DATA, loss=CROSS_ENTROPY, **keys):
    defaults = {"strategy": "sgd", "epochs": 2, "minibatch": 30, "learning_rate": 0.3}
    return fit(model or moons.network(), data, loss, **{**defaults, **keys})


class Ragged(torch.utils.data.Dataset):
    """Of 20 inputs one is longer."""

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return torch.zeros(2 + (index == 7)), 0


class Locked(nn.Linear):
    """With something that belongs to one process."""

    def __init__(self):
        super().__init__(2, 2)
        self.lock = threading.Lock()


def with_nan(items):
    points, moon = (tensor.clone() for tensor in DATA.tensors)
    points[items] = torch.nan
    return TensorDataset(points, moon)


class Local(moons.Watched):
    """Pickled by its name, which others do not know."""


class Nowhere(nn.Linear):
    """Can be copied in this process, but others do not know its class."""

    def __init__(self):
        super().__init__(2, 2)


CLUSTER = {"cluster": {"address": "auto"}}
Local.__qualname__ = "nobody_knows.Local"
Nowhere.__qualname__ = "nobody_knows.Nowhere"


@pytest.mark.parametrize(
    ("message", "keys"),
    [
        (r"strategy='hogwild': unknown; known here: sgd, ddp, .*downpour", {"strategy": "hogwild"}),
        (r"options: unknown momentun; known here: .*momentum", {"options": {"momentun": 0.9}}),
        (r"^fit.*: unknown key 'asgd.sync'; known here: .*sync_every", {"options": {"asgd": {"sync": 1}}}),
        (r"schedule=halving .*held-out.*cosine", {"schedule": "halving"}),
        (r"needs simulate=True", {"options": {"simulation": {"jitter": 0.1}}}),
        (r"cluster is for asynchronous .*change strategy='ddp'", {"strategy": "ddp", "options": CLUSTER}),
        (r"cluster is for .* not simulated", {"strategy": "asgd", "simulate": True, "options": CLUSTER}),
        (r"workers=0: must be a whole number of at least 1", {"strategy": "asgd", "workers": 0}),
        (r"workers='2': must be a whole number", {"strategy": "asgd", "workers": "2"}),
        (r"precision=auto is for speech3 train; use float32", {"precision": "auto"}),
        (r"epochs=0: must be a whole number of at least 1", {"epochs": 0}),
        (r"minibatch=-3: must be a whole number of at least 1", {"minibatch": -3}),
        (r"learning_rate: .*greater than 0", {"learning_rate": -1.0}),
        (r"seed=-1", {"seed": -1}),
        (r"seed=1\.5: must be a whole number", {"seed": 1.5}),
        (r"^loss: is the class CrossEntropyLoss, .*pass CrossEntropyLoss\(\)", {"loss": nn.CrossEntropyLoss}),
        (r"^loss='mse': is no function", {"loss": "mse"}),
        (r"workers=2: strategy sgd has one", {"workers": 2}),
        (r"workers=21: an epoch has only 20 minibatches \(600 items by minibatch=30\); use fewer",
         {"strategy": "asgd", "workers": 21, "simulate": True}),
        (r"workers=3: this machine has 2 cores.*simulate=True", {"strategy": "ddp", "workers": 3}),
        (r"^asgd\.warm_start=1: warm start lasts the whole run \(epochs=1\)",
         {"strategy": "asgd_zhang", "simulate": True, "epochs": 1}),
        (r"^lbfgs: .*only 20 minibatches \(minibatch=30\)", {"strategy": "sandblaster", "simulate": True,
                                                             "options": {"lbfgs": {"batches": 3}}}),
        (r"device 'tpu'", {"device": "tpu"}),
        (r"dataset: is empty", {"data": TensorDataset(torch.zeros(0, 2), torch.zeros(0))}),
        (r"dataset: a generator has no length", {"data": (pair for pair in DATA)}),
        (r"dataset\[\d+\] is of type Tensor; it must be a pair", {"data": torch.zeros(600, 2)}),
        (r"the inputs of items .* of the dataset cannot be stacked .*\[3\].*padding", {"data": Ragged()}),
        (r"dataset\[599\] raised ValueError: the moon is eclipsed; .*Subset",
         {"data": moons.Watched(DATA, frozenset([599]))}),
        (r"the loss returned a tensor of shape \(30,\).*\.mean\(\)", {"loss": nn.CrossEntropyLoss(reduction="none")}),
        (r"the loss returned a float", {"loss": lambda outputs, targets: outputs.mean().item()}),
        (r"the loss has no gradient", {"loss": lambda outputs, targets: outputs.detach().mean()}),
        (r"model: a function is not a torch.nn.Module", {"model": moons.network}),
        (r"model: weight is torch.float64, .*model.float\(\)", {"model": nn.Linear(2, 2).double()}),
        (r"model: weight is torch.complex64, .*view_as_complex", {"model": nn.Linear(2, 2, dtype=torch.complex64)}),
        (r"(?s)model: cannot be copied to other processes .*remove_parametrizations",
         {"strategy": "asgd", "workers": 1, "model": nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))}),
        (r"model: weight has no shape yet", {"model": nn.LazyLinear(2)}),
        (r"model: has no parameter", {"model": nn.Linear(2, 2).requires_grad_(False)}),
        (r"model: cannot be copied .*lock", {"model": Locked()}),
        (r"model: cannot be copied to other processes .*Nowhere",
         {"strategy": "asgd", "workers": 1, "model": Nowhere()}),
        (r"loss: cannot be copied to other processes .*<lambda>.*top of a file",
         {"strategy": "asgd", "workers": 1, "loss": lambda outputs, targets: CROSS_ENTROPY(outputs, targets)}),
        (r"dataset: cannot be copied to other processes .*Local", {"strategy": "ddp", "workers": 1,
                                                                   "data": Local(DATA)}),
    ],
)  # fmt: skip
def test_contradicting_arguments_are_refused(message, keys, monkeypatch):
    monkeypatch.setattr(trainer, "available_jobs", lambda: 2)
    with pytest.raises(Speech3Error, match=message) as caught:
        fitted(**keys)
    assert "training." not in str(caught.value)
    assert not multiprocessing.active_children()


def test_a_dataset_that_raises_in_a_shard_leaves_the_last_epochs_parameters():
    model = moons.network()  # the item is not in the first minibatch, which is tried here
    with pytest.raises(MachineError, match=r"^shard 0"):
        fitted(model, moons.Watched(DATA, frozenset([599])), strategy="asgd", workers=1)
    assert not multiprocessing.active_children()
    assert all(map(torch.equal, model.state_dict().values(), moons.network().state_dict().values()))


def test_nan_stops_one_worker_and_names_the_items():
    message = r"epoch 1, minibatch \d+: the loss is nan; .*lower learning_rate.*not finite in the dataset: items 17$"
    for keys in ({}, {"strategy": "ddp", "simulate": True}):
        model = moons.network()
        with pytest.raises(Speech3Error, match=message):
            fitted(model, with_nan([17]), **keys)
        assert all(map(torch.equal, model.parameters(), moons.network().parameters()))
    with pytest.raises(Speech3Error, match="not finite before any step"):
        fitted(data=with_nan([17]), strategy="sandblaster", simulate=True, options={"lbfgs": {"iterations": 2}})


def test_nan_is_refused_and_counted_where_there_is_a_server():
    model = moons.network()
    result = fitted(model, with_nan([17]), strategy="asgd", simulate=True, workers=2)
    assert [(epoch.used, epoch.refused) for epoch in result.history] == [(19, 1), (19, 1)] and result.dropped == 2
    assert all(torch.isfinite(tensor).all() for tensor in model.parameters())
    # Training ends at once, and not when the epoch does.
    with pytest.raises(TrainingError, match=r"epoch 1: \d+ of 30 minibatches were refused"):
        fitted(model, with_nan(list(range(600))), strategy="asgd", simulate=True, workers=2, minibatch=20)


UNGUARDED = f"""
import sys
sys.path.insert(0, {tiny.PATH!r})
import moons
from torch import nn
from speech3.engine import fit
fit(moons.network(), moons.moons(), nn.CrossEntropyLoss(), workers=1, minibatch=30)
"""


def test_a_script_without_the_guard(tmp_path):
    (tmp_path / "script.py").write_text(UNGUARDED)
    done = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True, timeout=100)
    assert done.returncode == 1
    assert "put the call under `if __name__" in done.stderr
    assert "shard 0 could not start (exit status 1" in done.stderr.splitlines()[-1]


KILLED = f"""
import multiprocessing, multiprocessing.forkserver, sys
sys.path.insert(0, {tiny.PATH!r})
import moons
from torch import nn
from speech3.engine import fit

def pids(step):
    server = multiprocessing.forkserver._forkserver._forkserver_pid
    print(*[process.pid for process in multiprocessing.active_children()], server, flush=True)

if __name__ == "__main__":
    fit(moons.network(), moons.Watched(moons.moons(), pause_s=0.001), nn.CrossEntropyLoss(), workers=1, minibatch=30,
        epochs=1000, on_step=pids)
"""


def test_no_process_is_left_when_the_caller_is_killed(tmp_path):
    (tmp_path / "script.py").write_text(KILLED)
    with subprocess.Popen([sys.executable, tmp_path / "script.py"], stdout=subprocess.PIPE, text=True) as caller:
        try:
            pids = [int(pid) for pid in caller.stdout.readline().split()]
            assert len(pids) == 2 and all(map(tiny.state, pids))
        finally:
            caller.kill()
    for pid in pids:
        tiny.until(lambda pid=pid: not tiny.state(pid))


READING = f"""
import sys
sys.path.insert(0, {tiny.PATH!r})
from functools import partial
import loops, moons
from torch import nn
from torch.utils.data import DataLoader
from speech3.engine import fit

if __name__ == "__main__":
    init = partial(loops.noted_process, "pids")
    loader = DataLoader(loops.Points(200), 20, num_workers=1, worker_init_fn=init)
    fit(moons.network(), loader, nn.CrossEntropyLoss(), strategy=sys.argv[1], workers=1, epochs=1, quiet=True,
        options={{"asgd": {{"warm_start": 0}}}} if sys.argv[1] == "asgd" else None)
"""


@pytest.mark.parametrize("strategy", ["asgd", "ddp"])
def test_processes_that_read_a_stream_end_with_training(tmp_path, strategy):
    """And leave no semaphores, of which Python would complain."""
    (tmp_path / "script.py").write_text(READING)
    with (tmp_path / "said").open("w") as said:  # no pipe: a process that is left would keep it open
        done = subprocess.run(
            [sys.executable, "script.py", strategy], cwd=tmp_path, stdout=said, stderr=said, timeout=200
        )
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert done.returncode == 0 and (tmp_path / "said").read_text() == ""
    assert pids and not any(map(tiny.state, pids))


def test_processes_that_read_a_stream_end_with_the_process_that_reads(tmp_path):
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("forkserver")
    reader = context.Process(target=loops.read_for_ever, args=(tmp_path / "pids", theirs))
    reader.start()
    assert ours.recv() == "reads"
    reader.kill()
    reader.join()
    (pid,) = (tmp_path / "pids").read_text().split()
    tiny.until(lambda: not tiny.state(int(pid)))


@pytest.mark.parametrize("keys", [{}, {"strategy": "asgd", "workers": 2}])
def test_a_target_out_of_range_after_the_first_minibatches_is_described(keys):
    points, moon = (tensor.clone() for tensor in DATA.tensors)
    moon[555] = 7
    message = r"loss: raised IndexError with a minibatch \(.*torch.int64 from 0 to 7\): .*out of bounds"
    with pytest.raises(Speech3Error, match=message) as raised:
        fitted(data=TensorDataset(points, moon), **keys)
    assert "Traceback" not in str(raised.value)


class OfWhole(nn.Linear):
    """Only the last minibatch is too small for it."""

    def __init__(self):
        super().__init__(2, 2)

    def forward(self, inputs):
        if len(inputs) < 30:
            raise OSError(5, "too small")
        return super().forward(inputs)


class Picky(torch.optim.SGD):
    def step(self, closure=None):
        raise KeyError("no step")


NO_WARM_START = {"options": {"asgd": {"warm_start": 0}}}
BACKENDS = [
    {},
    {"strategy": "asgd", "simulate": True, "workers": 2},
    {"strategy": "asgd", "workers": 1, **NO_WARM_START},
    {"strategy": "ddp", "workers": 2},
]


@pytest.mark.parametrize("keys", BACKENDS)
def test_a_model_that_fails_with_a_smaller_last_minibatch_is_described(keys, monkeypatch):
    monkeypatch.setattr(trainer, "available_jobs", lambda: 2)
    with pytest.raises(Speech3Error, match=r"model: raised OSError with a minibatch \(\(1, 2\)") as raised:
        fitted(OfWhole(), TensorDataset(*(tensor[:601] for tensor in moons.moons(602).tensors)), **keys)
    assert isinstance(raised.value.__cause__, OSError) and raised.value.__cause__.errno == 5
    assert "drop_last=True" in raised.value.remedy and "Traceback" not in str(raised.value)
    assert not multiprocessing.active_children()


def test_batch_normalisation_of_a_last_minibatch_of_one_item():
    data = TensorDataset(*(tensor[:91] for tensor in DATA.tensors))
    with pytest.raises(Speech3Error, match=r"^model: raised ValueError") as raised:
        fitted(data=data)
    assert "drop_last=True" in raised.value.remedy
    assert fitted(data=torch.utils.data.DataLoader(data, 30, drop_last=True), minibatch=None).history[-1].used == 3


@pytest.mark.parametrize("keys", BACKENDS)
def test_a_step_of_the_callers_optimizer_that_fails_names_it(keys, monkeypatch):
    monkeypatch.setattr(trainer, "available_jobs", lambda: 2)
    with pytest.raises(Speech3Error, match=r"optimizer: the step of Picky raised KeyError") as raised:
        fitted(optimizer=Picky, learning_rate=None, **keys)
    assert isinstance(raised.value.__cause__, KeyError) and raised.value.remedy
    assert "Traceback" not in str(raised.value)


def test_a_model_that_fails_in_the_backward_pass_is_described():
    class Spoilt(nn.Linear):
        def forward(self, inputs):
            outputs = super().forward(inputs).exp()
            return outputs.add_(1)

    with pytest.raises(Speech3Error, match=r"^model: raised RuntimeError"):
        fitted(Spoilt(2, 2))


def test_a_device_may_be_torchs_own():
    assert len(fitted(device=torch.device("cpu"), epochs=1).history) == 1
