"""Forward-backward over a graph for a batch of chunks, compiled for the CPU (Povey et al. 2016).

The batch is the innermost, contiguous axis, so an arc is one multiply-add of vectors. Probabilities are scaled to sum
to one in each frame, so float32 is enough. In the leaky HMM every state can follow every other with a small
probability, so no chunk has probability zero; the leak is also a term of the backward pass, without which the gradient
would not be exact.

With alpha the forward probabilities, i the initial weights, x the exponentials of the outputs and c the leak:

    alpha_0 = i
    pre_t[j] = x_t[first_j] sum over arcs k -> j of w_kj alpha_{t-1}[k]  +  x_t[loop_j] l_j alpha_{t-1}[j]
    alpha_t = pre_t / tot_t + c i,  tot_t = sum of pre_t
    log Z = sum of log tot_t

If each frame of a path has an accuracy a_t[pdf], the expected accuracy of the paths is the derivative of log Z with
respect to e if x_t is multiplied by exp(e a_t). Its gradient, which sMBR needs, is then the derivative of the
posteriors with respect to e. Both passes compute these derivatives along with the values: a value's derivative is
stored beside it in the batch axis, so the arcs, which are linear, treat both alike. The derivatives are computed with
a_t - m_t instead of a_t, where m_t is the expected accuracy that frame t adds to the sum of those before it. This keeps
them small (they are the differences from the mean in section 6.3, on MPE, of Povey's thesis, 2003), and their sum over
the states of a frame is zero; so the leak has no derivative in the forward pass, and log Z none at all.

Axes: T frames, S pdfs, J states, A arcs, B chunks, D accuracies (as many as chunks, or none), L lanes (B values and D
derivatives).
"""

import numba
import numpy as np

from speech3.sequence.graph import Graph

_LANES = 16  # float32 values in a 512-bit register
_AT_A_TIME = 32  # chunks, so that the probabilities of a frame stay in the cache of a core
_ALPHA_BYTES = 256 << 20  # of the forward probabilities of the chunks that are computed together
# Division by zero gives infinity, as in NumPy: scores so far apart that no path is left are for the caller to report.
_jit = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "reassoc", "nsz"})


def denominator_posteriors(x_TSB: np.ndarray, graph: Graph, leak: float) -> tuple[np.ndarray, np.ndarray]:
    """Log of the total probability of each chunk, and its gradient: the posterior of each pdf.

    Parameters
    ----------
    x_TSB
        float32 or float64, exponentials of the outputs; the largest value of a frame should be near one.
    leak
        Leak probability of the leaky HMM.

    Returns
    -------
    log_z_B, posterior_TSB
        float64, and the type of `x_TSB`. If values are not finite, or no path has a probability above zero, log_z is
        not finite either.
    """
    total_TL, posterior_TSL = _in_parts(x_TSB, x_TSB[:, :, :0], graph, leak)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_z_B = np.log(total_TL.astype(np.float64)).sum(0)
    return log_z_B, posterior_TSL


def expected_accuracy(x_TSB: np.ndarray, a_TSB: np.ndarray, graph: Graph, leak: float) -> tuple[np.ndarray, np.ndarray]:
    """Expected accuracy of each chunk's paths, summed over frames, and its gradient with respect to the outputs.

    Parameters
    ----------
    x_TSB
        As for `denominator_posteriors`.
    a_TSB
        Of the same type: accuracy of each pdf in each frame.

    Returns
    -------
    accuracy_B, gradient_TSB
        float64, and the type of `x_TSB`; not finite in the same cases.
    """
    mean_TB, gradient_TSB = _in_parts(x_TSB, a_TSB, graph, leak)
    return mean_TB.astype(np.float64).sum(0), gradient_TSB


def _in_parts(x_TSB: np.ndarray, a_TSD: np.ndarray, graph: Graph, leak: float) -> tuple[np.ndarray, np.ndarray]:
    """Both passes, some chunks at a time; totals and posteriors or, with accuracies, only the derivatives of both."""
    frames, _, batch = x_TSB.shape
    lanes = 2 if a_TSD.shape[2] else 1
    fit = _ALPHA_BYTES // ((frames + 1) * graph.num_states * lanes * x_TSB.itemsize) // _LANES * _LANES
    at_a_time = min(max(fit, _LANES), _AT_A_TIME)
    parts = [
        _passes(x_TSB[:, :, first : first + at_a_time], a_TSD[:, :, first : first + at_a_time], graph, leak)
        for first in range(0, batch, at_a_time)
    ]
    total_TB, posterior_TSB = (np.concatenate(arrays, axis=-1)[..., :batch] for arrays in zip(*parts, strict=True))
    return total_TB, posterior_TSB


def _padded(values_TSB: np.ndarray) -> np.ndarray:
    """Pad to whole vectors with copies of the last chunk, since other values might overflow."""
    padding = -values_TSB.shape[2] % _LANES
    return np.concatenate([values_TSB, np.repeat(values_TSB[:, :, -1:], padding, axis=2)], axis=2)


def _passes(x_TSB: np.ndarray, a_TSD: np.ndarray, graph: Graph, leak: float) -> tuple[np.ndarray, np.ndarray]:
    x_TSB, a_TSD = _padded(x_TSB), _padded(a_TSD)
    alpha_TJL, total_TL = _forward(
        x_TSB, a_TSD, graph.first_J, graph.loop_J, graph.loops_J, graph.in_ptr_J1, graph.in_src_A, graph.in_weight_A,
        graph.initial_J, x_TSB.dtype.type(leak),
    )  # fmt: skip
    posterior_TSL = _backward(
        x_TSB, a_TSD, graph.first_J, graph.loop_J, graph.loops_J, graph.out_ptr_J1, graph.out_dst_A,
        graph.out_weight_A, graph.initial_J, x_TSB.dtype.type(leak), alpha_TJL, total_TL,
    )  # fmt: skip
    own = slice(x_TSB.shape[2] if a_TSD.shape[2] else 0, None)
    return total_TL[:, own], posterior_TSL[:, :, own]


@_jit
def _forward(x, a, first, loop, loops, ptr, src, weight, initial, leak):  # type: ignore[no-untyped-def] # pragma: no cover
    frames, _, batch = x.shape
    derivatives, states = a.shape[2], len(first)
    lanes = batch + derivatives
    alpha = np.empty((frames + 1, states, lanes), x.dtype)
    total = np.zeros((frames, lanes), x.dtype)
    alpha[0] = 0
    for j in range(states):
        alpha[0, j, :batch] = initial[j]
    scale = np.empty(batch, x.dtype)
    for t in range(frames):
        old, new, xt, at, tot = alpha[t], alpha[t + 1], x[t], a[t], total[t]
        for j in range(states):
            into, x_first, x_loop, before = new[j], xt[first[j]], xt[loop[j]], old[j]
            for b in range(lanes):
                into[b] = 0
            for k in range(ptr[j], ptr[j + 1]):
                w, source = weight[k], old[src[k]]
                for b in range(lanes):
                    into[b] += w * source[b]
            stays, a_first, a_loop = loops[j], at[first[j]], at[loop[j]]
            for b in range(derivatives):
                moved = into[batch + b] + a_first[b] * into[b]
                stayed = before[batch + b] + a_loop[b] * before[b]
                into[batch + b] = moved * x_first[b] + stays * stayed * x_loop[b]
                tot[batch + b] += into[batch + b]
            for b in range(batch):
                into[b] = into[b] * x_first[b] + stays * before[b] * x_loop[b]
                tot[b] += into[b]
        for b in range(batch):
            scale[b] = 1 / tot[b]
        for b in range(derivatives):
            tot[batch + b] *= scale[b]
        for j in range(states):
            into, leaked = new[j], leak * initial[j]
            for b in range(derivatives):
                into[batch + b] = (into[batch + b] - tot[batch + b] * into[b]) * scale[b]
            for b in range(batch):
                into[b] = into[b] * scale[b] + leaked
    return alpha, total


@_jit
def _backward(x, a, first, loop, loops, ptr, dst, weight, initial, leak, alpha, total):  # type: ignore[no-untyped-def] # pragma: no cover
    frames, pdfs, batch = x.shape
    derivatives, states = a.shape[2], len(first)
    lanes = batch + derivatives
    posterior = np.zeros((frames, pdfs, lanes), x.dtype)
    beta = np.zeros((states, lanes), x.dtype)  # of pre_t / tot_t
    beta[:, :batch] = 1
    enter, zero = np.empty((states, lanes), x.dtype), x.dtype.type(0)
    scale, leaked = np.empty(batch, x.dtype), np.empty(lanes, x.dtype)
    for t in range(frames - 1, -1, -1):
        xt, at, old, new, post, tot = x[t], a[t], alpha[t], alpha[t + 1], posterior[t], total[t]
        for b in range(batch):
            scale[b] = 1 / tot[b]
        leaked[:] = 0
        for j in range(states):
            x_first, x_loop, before, after = xt[first[j]], xt[loop[j]], old[j], new[j]
            beta_j, enter_j, p_first, p_loop = beta[j], enter[j], post[first[j]], post[loop[j]]
            stays, leak_j, a_first, a_loop = loops[j], leak * initial[j], at[first[j]], at[loop[j]]
            for b in range(derivatives):
                d, value = batch + b, beta_j[b] * scale[b]
                scaled = beta_j[d] * scale[b]
                stayed = stays * x_loop[b] * (scaled + (a_loop[b] - tot[d]) * value)
                looped = before[d] * stays * x_loop[b] * value + before[b] * stayed
                enter_j[d] = x_first[b] * (scaled + (a_first[b] - tot[d]) * value)
                p_first[d] += after[d] * beta_j[b] + (after[b] - leak_j) * beta_j[d] - looped
                p_loop[d] += looped
                beta_j[d] = stayed
            for b in range(batch):
                scaled = beta_j[b] * scale[b]
                enter_j[b] = x_first[b] * scaled
                stayed = stays * x_loop[b] * scaled
                looped = before[b] * stayed
                p_first[b] += max((after[b] - leak_j) * beta_j[b] - looped, zero)
                p_loop[b] += looped
                beta_j[b] = stayed
        for i in range(states):
            beta_i = beta[i]
            for k in range(ptr[i], ptr[i + 1]):
                w, target = weight[k], enter[dst[k]]
                for b in range(lanes):
                    beta_i[b] += w * target[b]
            start = initial[i]
            for b in range(lanes):
                leaked[b] += start * beta_i[b]
        for b in range(lanes):
            leaked[b] *= leak
        for i in range(states):
            beta_i = beta[i]
            for b in range(lanes):
                beta_i[b] += leaked[b]
    return posterior
