"""Forward-backward over the denominator graph for a batch of chunks, compiled for the CPU (Povey et al. 2016).

The batch is the innermost, contiguous axis, so an arc is one multiply-add of vectors. Probabilities are float32, scaled
to sum to one in each frame. In the leaky HMM every state can follow every other with a small probability, so no chunk
has probability zero; the leak is also a term of the backward pass, without which the gradient would not be exact.

With alpha the forward probabilities, i the initial weights, x the exponentials of the outputs and c the leak:

    alpha_0 = i
    pre_t[j] = x_t[first_j] sum over arcs k -> j of w_kj alpha_{t-1}[k]  +  x_t[loop_j] alpha_{t-1}[j]
    alpha_t = pre_t / tot_t + c i,  tot_t = sum of pre_t
    log Z = sum of log tot_t

Axes: T frames, S pdfs, J states, A arcs, B chunks.
"""

import numba
import numpy as np

from speech3.sequence.denominator import Denominator

_LANES = 16  # float32 values in a 512-bit register
_AT_A_TIME = 32  # chunks, so that the probabilities of a frame stay in the cache of a core


def denominator_posteriors(x_TSB: np.ndarray, graph: Denominator, leak: float) -> tuple[np.ndarray, np.ndarray]:
    """Log of the total probability of each chunk, and its gradient: the posterior of each pdf.

    Parameters
    ----------
    x_TSB
        float32, exponentials of the outputs; the largest value of a frame should be near one.
    leak
        Leak probability of the leaky HMM.

    Returns
    -------
    log_z_B, posterior_TSB
        float64, float32. If values are not finite, log_z is not finite either.
    """
    parts = [
        _posteriors(np.ascontiguousarray(x_TSB[:, :, first : first + _AT_A_TIME]), graph, leak)
        for first in range(0, x_TSB.shape[2], _AT_A_TIME)
    ]
    log_z_B, posterior_TSB = (np.concatenate(arrays, axis=-1) for arrays in zip(*parts, strict=True))
    return log_z_B, posterior_TSB


def _posteriors(x_TSB: np.ndarray, graph: Denominator, leak: float) -> tuple[np.ndarray, np.ndarray]:
    batch = x_TSB.shape[2]
    padded = -batch % _LANES
    if padded:  # to whole vectors, with copies of the last chunk, since other values might overflow
        x_TSB = np.concatenate([x_TSB, np.repeat(x_TSB[:, :, -1:], padded, axis=2)], axis=2)
    alpha_TJB, total_TB = _forward(
        x_TSB, graph.first_J, graph.loop_J, graph.loops_J, graph.in_ptr_J1, graph.in_src_A, graph.in_weight_A,
        graph.initial_J, np.float32(leak),
    )  # fmt: skip
    posterior_TSB = _backward(
        x_TSB, graph.first_J, graph.loop_J, graph.loops_J, graph.out_ptr_J1, graph.out_dst_A, graph.out_weight_A,
        graph.initial_J, np.float32(leak), alpha_TJB, total_TB,
    )  # fmt: skip
    with np.errstate(divide="ignore", invalid="ignore"):
        log_z_B = np.log(total_TB.astype(np.float64)).sum(0)
    return log_z_B[:batch], posterior_TSB[:, :, :batch]


@numba.njit(cache=True, nogil=True, fastmath={"contract", "reassoc", "nsz"})
def _forward(x, first, loop, loops, ptr, src, weight, initial, leak):  # type: ignore[no-untyped-def] # pragma: no cover
    frames, _, batch = x.shape
    states = len(first)
    alpha = np.empty((frames + 1, states, batch), np.float32)
    total = np.zeros((frames, batch), np.float32)
    for j in range(states):
        alpha[0, j] = initial[j]
    scale = np.empty(batch, np.float32)
    for t in range(frames):
        old, new, xt, tot = alpha[t], alpha[t + 1], x[t], total[t]
        for j in range(states):
            into, x_first, x_loop, before = new[j], xt[first[j]], xt[loop[j]], old[j]
            for b in range(batch):
                into[b] = 0
            for a in range(ptr[j], ptr[j + 1]):
                w, source = weight[a], old[src[a]]
                for b in range(batch):
                    into[b] += w * source[b]
            stays = loops[j]
            for b in range(batch):
                into[b] = into[b] * x_first[b] + stays * before[b] * x_loop[b]
                tot[b] += into[b]
        for b in range(batch):
            scale[b] = np.float32(1) / tot[b]
        for j in range(states):
            into, leaked = new[j], leak * initial[j]
            for b in range(batch):
                into[b] = into[b] * scale[b] + leaked
    return alpha, total


@numba.njit(cache=True, nogil=True, fastmath={"contract", "reassoc", "nsz"})
def _backward(x, first, loop, loops, ptr, dst, weight, initial, leak, alpha, total):  # type: ignore[no-untyped-def] # pragma: no cover
    frames, _, batch = x.shape
    states = len(first)
    posterior = np.zeros(x.shape, np.float32)
    beta = np.ones((states, batch), np.float32)  # of pre_t / tot_t
    enter = np.empty((states, batch), np.float32)
    scale, leaked = np.empty(batch, np.float32), np.empty(batch, np.float32)
    for t in range(frames - 1, -1, -1):
        xt, old, new, post = x[t], alpha[t], alpha[t + 1], posterior[t]
        for b in range(batch):
            scale[b] = np.float32(1) / total[t, b]
            leaked[b] = 0
        for j in range(states):
            x_first, x_loop, before, after = xt[first[j]], xt[loop[j]], old[j], new[j]
            beta_j, enter_j, p_first, p_loop = beta[j], enter[j], post[first[j]], post[loop[j]]
            stays, leak_j = loops[j], leak * initial[j]
            for b in range(batch):
                scaled = beta_j[b] * scale[b]
                enter_j[b] = x_first[b] * scaled
                stayed = stays * x_loop[b] * scaled
                looped = before[b] * stayed
                p_first[b] += max((after[b] - leak_j) * beta_j[b] - looped, np.float32(0))
                p_loop[b] += looped
                beta_j[b] = stayed
        for i in range(states):
            beta_i = beta[i]
            for a in range(ptr[i], ptr[i + 1]):
                w, target = weight[a], enter[dst[a]]
                for b in range(batch):
                    beta_i[b] += w * target[b]
            start = initial[i]
            for b in range(batch):
                leaked[b] += start * beta_i[b]
        for b in range(batch):
            leaked[b] *= leak
        for i in range(states):
            beta_i = beta[i]
            for b in range(batch):
                beta_i[b] += leaked[b]
    return posterior
