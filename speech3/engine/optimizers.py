"""The choice of a worker's optimizer."""

from speech3.engine.adamw import AdamW
from speech3.engine.muon import Muon
from speech3.engine.sgd import Sgd
from speech3.engine.torch_optimizer import OwnOptimizer, TorchOptimizer
from speech3.engine.world import Parts


def optimizer_of(parts: Parts, *, momentum: float = 0.0, weight_decay: float = 0.0) -> Sgd | AdamW:
    """The optimizer of a worker, for the parameters of ``parts.model``; `momentum` is that of SGD."""
    proximal = parts.proximal(parts.model) if parts.proximal else None
    if isinstance(parts.optimizer, OwnOptimizer):
        return TorchOptimizer(parts.model, parts.optimizer, proximal=proximal)
    if parts.optimizer == "sgd":
        return Sgd(parts.model, momentum=momentum, weight_decay=weight_decay, proximal=proximal)
    kind = Muon if parts.optimizer == "muon" else AdamW
    return kind(parts.model, parts.betas, weight_decay=weight_decay, proximal=proximal)
