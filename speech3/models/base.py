"""What all acoustic models have in common: normalisation and context of the input, scoring, and the losses on frames.

Recordings in progress, and long ones by models that carry a state, are scored piece by piece (`OnlineNetwork`,
`spans`); the outputs equal those for the whole utterance, to within rounding. The losses take few passes: with their
gradient they return the number of correctly classified frames.

Axes: T frames of an utterance or outputs, F feature bins, B minibatch, S senones, D values of a window, H units of the
last hidden layer, N hidden frames.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from speech3.config import ModelConfig
from speech3.errors import MismatchError
from speech3.frames import HiddenLabels


class AcousticModel(nn.Module):
    """Base class of all families.

    The input is shifted and scaled by the mean and standard deviation of the training frames. Both are buffers, like
    nnet1's ``<AddShift>`` and ``<Rescale>``; they are zero and one until `set_input_statistics`.

    - `logit_layers`: names of the output layer and of the second one, if any; also for `speech3.engine.optimizers`.
    - `recurrent`: trained on sequences of frames with a state (`speech3.frames.chunks`), not on single windows.
    - `delay`: frames by which an output lags behind its input frame.
    - `bidirectional`: a frame's scores depend on all later frames.
    - `subsampling`, `center`: input frames per output, and the index of the middle one, on which its window is centred.
    - `left_context`, `right_context`: frames around an output's own on which it depends (recurrent: a step's).
    - `two_outputs`: in training on chunks there is a second output layer, for cross-entropy besides LF-MMI.
    - `outputs_at_a_time`: bounds the memory of `score`, and gives oneDNN's cache a single shape.
    - `with_hidden`: the outputs of windows are a pair with the last hidden layer, for the autoencoder's loss.
    """

    shift_F: Tensor
    scale_F: Tensor
    logit_layers = ("output", "xent_output")
    recurrent = False
    delay = 0
    bidirectional = False
    outputs_at_a_time = 1024
    with_hidden = False

    def __init__(self, config: ModelConfig, feat_dim: int, num_senones: int) -> None:
        super().__init__()
        self.family = config.family
        self.subsampling, self.two_outputs = config.frames_per_output, bool(config.two_outputs)
        self.center = (self.subsampling - 1) // 2
        self.window = config.left_context + 1 + config.right_context
        self.left_context, self.right_context = config.left_context - self.center, config.right_context - self.center
        self.feat_dim, self.num_senones = feat_dim, num_senones
        self.register_buffer("shift_F", torch.zeros(feat_dim))
        self.register_buffer("scale_F", torch.ones(feat_dim))

    def set_input_statistics(self, mean_F: Tensor, variance_F: Tensor) -> None:
        """Shift and scale the input to zero mean and unit variance; a constant bin is only shifted."""
        self.shift_F.copy_(-mean_F)
        self.scale_F.copy_(torch.where(variance_F > 1e-10, variance_F, torch.ones_like(variance_F)).rsqrt())

    def normalize(self, feats: Tensor) -> Tensor:
        """Normalise features (..., F) to zero mean and unit variance."""
        return (feats + self.shift_F) * self.scale_F

    def forward(self, inputs: Any) -> Any:
        """Logits (frames, S) of a minibatch of frames; of chunks (chunks, outputs, S), with `two_outputs` a pair."""
        raise NotImplementedError

    def score(self, feats_TF: Tensor) -> Tensor:
        """Logits (T, S) of one utterance, with `subsampling` (ceil(T / subsampling), S).

        Edge frames are repeated beyond the ends. Apart from the logits, memory does not grow with the utterance.
        """
        outputs = -(-len(feats_TF) // self.subsampling)
        logits_TS = feats_TF.new_empty((outputs, self.num_senones), dtype=torch.float32)
        for start in range(0, outputs, self.outputs_at_a_time):
            stop = min(start + self.outputs_at_a_time, outputs)
            first, end = start * self.subsampling - self.left_context, stop * self.subsampling + self.right_context
            seen_T = torch.arange(first, end, device=feats_TF.device).clamp_(0, len(feats_TF) - 1)
            logits_TS[start:stop] = self.score_inside(feats_TF[seen_T])
        return logits_TS

    def score_inside(self, feats_TF: Tensor) -> Tensor:
        """Logits of the frames that have `left_context` and `right_context` around them in `feats_TF`, in order.

        Not for recurrent models. With `subsampling`, the T frames are those of complete outputs and the context.
        """
        raise NotImplementedError


@torch.no_grad()
def logits(model: AcousticModel, feats_TF: Tensor) -> Tensor:
    """Senone logits (T, S) of one utterance, in evaluation mode; with `subsampling` (ceil(T / subsampling), S)."""
    check_features(feats_TF.shape, model.feat_dim)
    was_training = model.training
    model.eval()
    logits_TS = model.score(feats_TF)
    model.train(was_training)
    return logits_TS


def check_features(shape: tuple[int, ...], feat_dim: int) -> None:
    """Raise an error unless `shape` is that of one utterance's features (T, F)."""
    if len(shape) != 2 or shape[1] != feat_dim:
        raise MismatchError(
            f"features of shape {tuple(shape)}, but the model was trained on {feat_dim} bins a frame; "
            f"extract them with the model's own feature preset"
        )


@dataclass(frozen=True)
class Span:
    """Consecutive steps of an utterance, each with the frames of an output; steps after the last repeat its last frame.

    Steps from `start` to `stop` include those that serve only as lookahead; the first `own` have scores and change the
    state. The last of these return the scores of the outputs from `begin` to `end`; those before fall within the
    initial delay.
    """

    start: int
    stop: int
    own: int
    begin: int
    end: int


def spans(outputs: int, *, delay: int, at_a_time: int, beyond: int) -> Iterator[Span]:
    """Yield the spans of an utterance, of `at_a_time` own steps and `beyond` lookahead steps; `delay` is in steps."""
    steps = outputs + delay if outputs else 0
    for start in range(0, steps, at_a_time):
        own = min(at_a_time, steps - start)
        begin, end = (max(0, step - delay) for step in (start, start + own))
        yield Span(start, min(start + own + beyond, steps), own, begin, end)


class OnlineNetwork:
    """Scores the features of one recording as they arrive.

    Earlier frames are kept as context, and an output waits for its later ones. A recurrent network's state is carried
    forward, and its outputs come `delay` steps of `step` frames later.

    `steps`: from frames (left + n * step + right, F) and a state to the scores (n, S) of n steps and the state after
    them. `begin`: the state before the first step.
    """

    def __init__(
        self,
        steps: Callable[[np.ndarray, Any], tuple[np.ndarray, Any]],
        begin: Callable[[], Any],
        left: int,
        right: int,
        step: int,
        delay: int,
        outputs: int,
    ) -> None:
        self._steps, self._begin = steps, begin
        self._left, self._right, self._step, self._delay = left, right, step, delay
        self._none_TS = np.empty((0, outputs), np.float32)
        self._state, self._early = begin(), delay  # steps to come whose scores are of no frame
        # From `left` and `delay` steps before the next step on: after a restart the last `delay` steps are read again.
        self._kept_TF: np.ndarray | None = None
        self._next = 0  # where among them the next step's first own frame lies

    @classmethod
    def of_windows(
        cls, score_inside: Callable[[np.ndarray], np.ndarray], left: int, right: int, step: int, outputs: int
    ) -> "OnlineNetwork":
        """A network without a state; `score_inside`: frames (left + n * step + right, F) to scores (n, S)."""
        return cls(lambda feats_TF, state: (score_inside(feats_TF), state), lambda: None, left, right, step, 0, outputs)

    @property
    def is_stateless(self) -> bool:
        """Whether an output depends on the frames of its window alone."""
        return self._begin() is None

    def accept(self, feats_TF: np.ndarray) -> np.ndarray:
        """Accept the next frames; return the scores (T, S) that later frames cannot change; T is often 0."""
        if not len(feats_TF):
            return self._none_TS
        if self._kept_TF is None:
            self._kept_TF, self._next = feats_TF[:1].repeat(self._left, 0), self._left
        self._kept_TF = np.concatenate([self._kept_TF, feats_TF])
        return self._take((len(self._kept_TF) - self._next - self._right) // self._step)

    def finish(self) -> np.ndarray:
        """Return the remaining scores, with the last frame repeated beyond the end."""
        if self._kept_TF is None:
            return self._none_TS
        left = len(self._kept_TF) - self._next
        steps = -(-left // self._step) + self._delay
        beyond_TF = self._kept_TF[-1:].repeat(steps * self._step + self._right - left, 0)
        self._kept_TF = np.concatenate([self._kept_TF, beyond_TF])
        return self._take(steps)

    def restart(self) -> None:
        """Begin a new utterance at the frame of the next output, with the state before the first step."""
        read_ahead = self._delay - self._early
        self._next -= read_ahead * self._step
        self._state, self._early = self._begin(), self._delay

    def _take(self, steps: int) -> np.ndarray:
        if steps <= 0 or self._kept_TF is None:
            return self._none_TS
        end = self._next + steps * self._step
        seen_TF = self._kept_TF[self._next - self._left : end + self._right]
        scores_TS, self._state = self._steps(seen_TF, self._state)
        early = min(self._early, steps)
        self._early -= early
        # Forget the frames that no later step reads.
        gone = max(0, end - self._left - self._delay * self._step)
        self._kept_TF, self._next = self._kept_TF[gone:].copy(), end - gone
        return scores_TS[early:]


def cross_entropy(logits_BS: Tensor, senones_B: Tensor) -> tuple[Tensor, Tensor]:
    """Mean cross-entropy, as PyTorch's but for rounding, and the number of frames whose correct senone scores best.

    Logits may have more axes, (..., S); their frames are then numbered row by row.
    """
    loss, correct = _CrossEntropy.apply(logits_BS.flatten(0, -2), senones_B)
    return loss, correct


@dataclass(frozen=True)
class SmoothedCrossEntropy:
    """Cross-entropy against targets of which a share is spread evenly over all senones (Szegedy et al. 2016)."""

    share: float

    def __call__(self, logits_BS: Tensor, senones_B: Tensor) -> tuple[Tensor, Tensor]:
        """Equal to PyTorch's cross-entropy with ``label_smoothing`` but for rounding."""
        loss, correct = cross_entropy(logits_BS, senones_B)
        return (1 - self.share) * loss - self.share * logits_BS.log_softmax(-1).mean(), correct


def masked_cross_entropy(logits_BS: Tensor, targets: Tensor | HiddenLabels) -> tuple[Tensor, Tensor]:
    """As `cross_entropy`, of the hidden frames alone if the targets name them (`speech3.frames.pretraining`)."""
    if isinstance(targets, Tensor):
        return cross_entropy(logits_BS, targets)
    return cross_entropy(logits_BS.flatten(0, -2).index_select(0, targets.place_N), targets.labels_N)


@dataclass(frozen=True)
class Reconstruction:
    """The loss of a sparse autoencoder: the mean squared error, and `sparsity` times a measure of the hidden layer.

    The measure is that of sparse filtering (Ngiam et al. 2011): each unit is divided by its root mean square over the
    minibatch, then the L1 norm of each frame by its L2 norm and the square root of the number of units. It is 1 if all
    units are equally active, near 0 if a few are, others in each frame. Le et al. 2012 penalise absolute values, with
    the encoder's weights in the decoder; here the decoder is free, and would make up for units that become smaller.
    """

    sparsity: float

    def __call__(self, outputs: tuple[Tensor, Tensor], clean_BD: Tensor) -> tuple[Tensor, Tensor]:
        """The loss; in place of the number of correct frames, the share of the variance that is explained, times B."""
        rebuilt_BD, hidden_BH = outputs
        error = (rebuilt_BD - clean_BD).square().mean()
        explained = (1 - error.detach() / clean_BD.square().mean()).clamp(min=0) * len(clean_BD)
        if not self.sparsity:
            return error, explained.round().long()
        hidden_BH = hidden_BH / (hidden_BH.square().mean(0) + 1e-8).sqrt()
        spread_B = hidden_BH.abs().mean(1) / (hidden_BH.square().mean(1) + 1e-8).sqrt()
        return error + self.sparsity * spread_B.mean(), explained.round().long()


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits_BS: Tensor, senones_B: Tensor) -> tuple[Tensor, Tensor]:
        own_B1 = logits_BS.gather(1, senones_B[:, None])
        max_B = logits_BS.amax(1)
        posterior_BS = torch.softmax(logits_BS, 1)
        # log-sum-exp = max - log of the largest posterior, which cannot underflow, unlike that of the correct senone.
        loss_B = max_B - posterior_BS.amax(1).log() - own_B1.squeeze(1)
        correct = (own_B1.squeeze(1) >= max_B).sum()
        ctx.mark_non_differentiable(correct)
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(posterior_BS.scatter_add_(1, senones_B[:, None], torch.full_like(own_B1, -1)))
        return loss_B.mean(), correct

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None]:
        (difference_BS,) = ctx.saved_tensors
        return difference_BS * (grad / len(difference_BS)), None
