"""Objects with many tensors in another process: equal, with the same sharing, through few files."""

import pickle
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
from torch import nn

from speech3.engine.fitting.loading import _LARGE, _MOST, Packed, check_importable
from speech3.errors import SettingError


def handed(value):
    return pickle.loads(ForkingPickler.dumps(Packed(value)))


def test_packed_values_keep_shared_storage():
    a, tied = torch.arange(12.0), nn.Linear(3, 3)
    model = nn.ModuleList([tied, tied, nn.BatchNorm1d(3), nn.LSTM(3, 4)])
    model[2].requires_grad_(False)
    large = torch.rand(_LARGE // 2)
    given = {
        "a": a,
        "part": a[3:6].view(3, 1),
        "model": model,
        "large": list(large.view(8, -1)),
        "none": torch.zeros(0, 2),
        "bits": torch.tensor([True]),
        "int": 3,
    }
    found = handed(given)
    assert torch.equal(found["a"], a) and found["bits"].item() and found["int"] == 3 and found["none"].shape == (0, 2)
    found["a"][4] = -1
    assert found["part"][1, 0] == -1 and a[4] == 4  # parts of one tensor still are; the caller's tensor is not changed
    assert found["model"][0] is found["model"][1] and not found["model"][2].weight.requires_grad
    assert isinstance(found["model"][0].weight, nn.Parameter) and found["model"][0].weight.requires_grad
    for name, value in model.state_dict().items():
        assert torch.equal(value, found["model"].state_dict()[name])
    assert all(map(torch.equal, found["large"], given["large"]))
    assert found["large"][0].untyped_storage().data_ptr() == found["large"][7].untyped_storage().data_ptr()
    assert large.is_shared() and not a.is_shared()


def test_more_large_tensors_than_files():
    given = [torch.full((_LARGE // 4,), float(number)) for number in range(_MOST + 5)]
    assert all(map(torch.equal, handed(given), given))
    assert sum(tensor.is_shared() for tensor in given) == _MOST


def test_a_thousand_small_tensors_need_no_file():
    given = [torch.full((3,), float(number)) for number in range(1000)]
    assert all(map(torch.equal, handed(given), given)) and not any(tensor.is_shared() for tensor in given)


def test_what_a_script_defines_cannot_be_sent_to_other_hosts():
    class Net(nn.Linear):
        pass

    check_importable({"model": nn.Linear(2, 2), "loss": nn.functional.mse_loss, "data": torch.zeros(3)})
    Net.__module__, Net.__qualname__ = "__main__", "Net"
    with pytest.raises(SettingError, match=r"cluster: Net is defined in the script .* module"):
        check_importable({"model": nn.Sequential(Net(2, 2))})
