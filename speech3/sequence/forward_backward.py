"""Forward-backward over a graph for a batch of chunks, compiled for the CPU (Povey et al. 2016).

The batch is the innermost, contiguous axis, so an arc is one multiply-add of vectors (`speech3.sequence.lanes`).
Before the leak is added, forward probabilities are scaled to sum to one in each frame, so float32 is enough. In the
leaky HMM every state can follow every other with a small probability, so no chunk has probability zero; the leak is
also a term of the backward pass, without which the gradient would not be exact.

With alpha the forward probabilities, i the initial weights, x the exponentials of the outputs and c the leak:

    alpha_0 = i
    pre_t[j] = x_t[first_j] sum over arcs k -> j of w_kj alpha_{t-1}[k]  +  x_t[loop_j] l_j alpha_{t-1}[j]
    alpha_t = pre_t / tot_t + c i,  tot_t = sum of pre_t
    log Z = sum of log tot_t

If each frame of a path has an accuracy a_t[pdf], the expected accuracy of the paths is the derivative of log Z with
respect to e if x_t is multiplied by exp(e a_t). Its gradient, which sMBR needs, is then the derivative of the
posteriors with respect to e. Both passes compute these derivatives, d_alpha and so on, along with the values. They are
computed with a_t - m_t instead of a_t, where m_t is the expected accuracy that frame t adds to the sum of those before
it. This keeps them small (they are the differences from the mean in section 6.3, on MPE, of Povey's thesis, 2003), and
their sum over the states of a frame is zero; so the leak has no derivative in the forward pass, and log Z none at all.

Axes: T frames, S pdfs, J states, A arcs, B chunks, W chunks that are computed together.
"""

from functools import lru_cache

import numba
import numpy as np

from speech3.sequence.graph import Graph
from speech3.sequence.lanes import WIDTH, at_least_zero, load, spread, store

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
    total_TB, posterior_TSB = _passes(x_TSB, None, graph, leak)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_z_B = np.log(total_TB.astype(np.float64)).sum(0)
    return log_z_B, posterior_TSB


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
    mean_TB, gradient_TSB = _passes(x_TSB, a_TSB, graph, leak)
    return mean_TB.astype(np.float64).sum(0), gradient_TSB


def _passes(x_TSB: np.ndarray, a_TSB: np.ndarray | None, graph: Graph, leak: float) -> tuple[np.ndarray, np.ndarray]:
    """Totals and posteriors or, with accuracies, m and the derivatives of the posteriors."""
    frames, _, batch = x_TSB.shape
    dtype = x_TSB.dtype
    first_J, loop_J, in_ptr_J1, in_src_A, out_ptr_J1, out_dst_A = _unsigned(graph)
    # Allocated by NumPy, which asks for large pages; getting thousands of small ones would take as long as the arcs.
    alpha_TJW = np.empty((frames + 1, graph.num_states, WIDTH), dtype)
    d_alpha_TJW = None if a_TSB is None else np.empty_like(alpha_TJW)
    per_frame_TB, result_TSB = np.empty((frames, batch), dtype), np.empty_like(x_TSB)
    for start in range(0, batch, WIDTH):
        part = slice(start, start + WIDTH)
        x_TSW = _padded(x_TSB[:, :, part])
        a_TSW = None if a_TSB is None else _padded(a_TSB[:, :, part])
        total_TW, mean_TW = _forward(
            x_TSW, a_TSW, first_J, loop_J, graph.loops_J, in_ptr_J1, in_src_A, graph.in_weight_A, graph.initial_J,
            dtype.type(leak), alpha_TJW, d_alpha_TJW,
        )  # fmt: skip
        result_TSW = _backward(
            x_TSW, a_TSW, first_J, loop_J, graph.loops_J, out_ptr_J1, out_dst_A, graph.out_weight_A, graph.initial_J,
            dtype.type(leak), alpha_TJW, d_alpha_TJW, total_TW, mean_TW,
        )  # fmt: skip
        per_frame_TW = total_TW if a_TSB is None else mean_TW
        per_frame_TB[:, part] = per_frame_TW[:, : batch - start]
        result_TSB[:, :, part] = result_TSW[:, :, : batch - start]
    return per_frame_TB, result_TSB


def _padded(values_TSB: np.ndarray) -> np.ndarray:
    """Pad to `WIDTH` chunks with copies of the last, since other values might overflow."""
    padding = WIDTH - values_TSB.shape[2]
    return np.concatenate([values_TSB, np.repeat(values_TSB[:, :, -1:], padding, axis=2)], axis=2)


@lru_cache(maxsize=2)  # a run has one graph
def _unsigned(graph: Graph) -> tuple[np.ndarray, ...]:
    """The graph's indices, unsigned: compiled code need not ask whether one is negative and counts from the end."""
    arrays = graph.first_J, graph.loop_J, graph.in_ptr_J1, graph.in_src_A, graph.out_ptr_J1, graph.out_dst_A
    return tuple(array.astype(np.uint32) for array in arrays)


@_jit
def _over_arcs(rows, j, ptr, state, weight):  # type: ignore[no-untyped-def] # pragma: no cover
    """The sum of rows over the arcs of state j."""
    total = spread(rows.dtype.type(0))
    for k in range(ptr[j], ptr[j + 1]):
        total = total + weight[k] * load(rows, state[k])
    return total


@_jit
def _forward(x, a, first, loop, loops, ptr, src, weight, initial, leak, alpha, d_alpha):  # type: ignore[no-untyped-def] # pragma: no cover
    frames, states = len(x), len(first)
    zero, one = x.dtype.type(0), x.dtype.type(1)
    total, mean = np.empty((frames, WIDTH), x.dtype), np.zeros((frames, WIDTH), x.dtype)
    for j in range(states):
        alpha[0, j] = initial[j]
        if a is not None:
            d_alpha[0, j] = 0
    for t in range(frames):
        tot, m = spread(zero), spread(zero)
        for j in range(states):
            x_first, x_loop = load(x[t], first[j]), loops[j] * load(x[t], loop[j])
            arrived, before = _over_arcs(alpha[t], j, ptr, src, weight), load(alpha[t], j)
            pre = x_first * arrived + x_loop * before
            store(alpha[t + 1], j, pre)
            tot = tot + pre
            if a is not None:
                d_arrived = _over_arcs(d_alpha[t], j, ptr, src, weight) + load(a[t], first[j]) * arrived
                d_before = load(d_alpha[t], j) + load(a[t], loop[j]) * before
                d_pre = x_first * d_arrived + x_loop * d_before
                store(d_alpha[t + 1], j, d_pre)
                m = m + d_pre
        scale = one / tot
        m = m * scale
        store(total, t, tot)
        store(mean, t, m)
        for j in range(states):
            pre = load(alpha[t + 1], j)
            store(alpha[t + 1], j, pre * scale + leak * initial[j])
            if a is not None:
                store(d_alpha[t + 1], j, (load(d_alpha[t + 1], j) - m * pre) * scale)
    return total, mean


@_jit
def _backward(x, a, first, loop, loops, ptr, dst, weight, initial, leak, alpha, d_alpha, total, mean):  # type: ignore[no-untyped-def] # pragma: no cover
    frames, states = len(x), len(first)
    zero, one = x.dtype.type(0), x.dtype.type(1)
    posterior = np.zeros_like(x)  # or its derivative
    beta = np.ones((states, WIDTH), x.dtype)  # of pre_t / tot_t
    enter, d_beta, d_enter = np.empty_like(beta), np.zeros_like(beta), np.empty_like(beta)
    for t in range(frames - 1, -1, -1):
        scale, m = one / load(total, t), load(mean, t)
        for j in range(states):
            x_first, x_loop = load(x[t], first[j]), loops[j] * load(x[t], loop[j])
            before, now = load(alpha[t], j), load(alpha[t + 1], j) - leak * initial[j]
            after = load(beta, j)
            scaled = after * scale
            stayed = x_loop * scaled
            store(enter, j, x_first * scaled)
            store(beta, j, stayed)
            if a is None:
                looped = before * stayed
                _add(posterior[t], first[j], at_least_zero(now * after - looped))
                _add(posterior[t], loop[j], looped)
            else:
                d_after, d_now = load(d_beta, j), load(d_alpha[t + 1], j)
                d_scaled = d_after * scale
                d_stayed = x_loop * (d_scaled + (load(a[t], loop[j]) - m) * scaled)
                d_looped = load(d_alpha[t], j) * stayed + before * d_stayed
                store(d_enter, j, x_first * (d_scaled + (load(a[t], first[j]) - m) * scaled))
                store(d_beta, j, d_stayed)
                _add(posterior[t], first[j], d_now * after + now * d_after - d_looped)
                _add(posterior[t], loop[j], d_looped)
        leaked, d_leaked = spread(zero), spread(zero)
        for i in range(states):
            after = load(beta, i) + _over_arcs(enter, i, ptr, dst, weight)
            store(beta, i, after)
            leaked = leaked + initial[i] * after
            if a is not None:
                d_after = load(d_beta, i) + _over_arcs(d_enter, i, ptr, dst, weight)
                store(d_beta, i, d_after)
                d_leaked = d_leaked + initial[i] * d_after
        for i in range(states):
            _add(beta, i, leak * leaked)
            if a is not None:
                _add(d_beta, i, leak * d_leaked)
    return posterior


@_jit
def _add(rows, j, lanes):  # type: ignore[no-untyped-def] # pragma: no cover
    store(rows, j, load(rows, j) + lanes)
