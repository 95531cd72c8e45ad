"""Statistics of batch normalisation, estimated for the parameters that are looked at.

Layers collect running statistics while they train, of parameters that have moved on since; with many workers, of far
older ones. A few minibatches without a gradient give those of the parameters as they are (Wu and Johnson 2021,
"Rethinking 'Batch' in BatchNorm", precise statistics). All worlds are looked at in this way, plain SGD too.
"""

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from speech3.engine.world import Parts

_MINIBATCHES = 32


@torch.no_grad()
def estimate_statistics(parts: Parts) -> None:
    """Replace the running statistics by the mean over some minibatches; a model without them is left alone.

    Dropout is off, augmentation on. The minibatches are always the same: those of an epoch 0.
    """
    norms = [module for module in parts.model.modules() if isinstance(module, _BatchNorm)]
    if not norms:
        return
    parts.model.eval()
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain mean
        norm.train()
    for number in range(min(_MINIBATCHES, len(parts.source))):
        parts.model(parts.source.draw(0, number)[0])
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
        norm.eval()
