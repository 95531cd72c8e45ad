from torch import Tensor


def suits(x: Tensor) -> bool:
    return False


def forward_step(*a): ...
def backward_step(*a): ...
