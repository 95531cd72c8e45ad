"""The steps of `spectrum` before and after the FFT as single passes over a frame, for the CPU.

As tensor operations, each of which passes through memory once, they take as long as the FFT. Other devices use the
tensor operations in `spectrum`; the results are the same but for rounding.

Axes: N utterances, S samples, T frames, L samples of a frame, D values of the FFT's input, R rows, B bins of the
spectrum, C real and imaginary parts.
"""

import numba
import numpy as np

# Sums may be reordered and fused with products; otherwise the compiler could not vectorise the loops.
_njit = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "nsz", "contract"})


@_njit
def cut(
    part_NS: np.ndarray,
    shift: int,
    coefficient: np.float32,
    remove_dc_offset: bool,
    window_L: np.ndarray,
    out_NTD: np.ndarray,
    raw_NT: np.ndarray,
    windowed_NT: np.ndarray,
) -> None:
    """Write frames with mean removal, preemphasis and window applied, and their energies if asked for.

    Arrays are contiguous float32. Only the first L values of a row of `out_NTD` are written. `raw_NT` gets the energy
    before preemphasis, `windowed_NT` that of the result; either may be empty, and is then not written.
    """
    length = len(window_L)
    one = np.float32(1)
    for n in range(out_NTD.shape[0]):
        for t in range(out_NTD.shape[1]):
            frame_L, row_L = part_NS[n, t * shift : t * shift + length], out_NTD[n, t]
            mean = np.float32(0)
            if remove_dc_offset:
                for i in range(length):
                    mean += frame_L[i]
                mean /= np.float32(length)
            row_L[0] = (one - coefficient) * (frame_L[0] - mean) * window_L[0]
            for i in range(1, length):
                row_L[i] = ((frame_L[i] - mean) - coefficient * (frame_L[i - 1] - mean)) * window_L[i]
            if raw_NT.size:
                energy = np.float32(0)
                for i in range(length):
                    energy += (frame_L[i] - mean) * (frame_L[i] - mean)
                raw_NT[n, t] = energy
            if windowed_NT.size:
                energy = np.float32(0)
                for i in range(length):
                    energy += row_L[i] * row_L[i]
                windowed_NT[n, t] = energy


@_njit
def power(spectrum_RC: np.ndarray, out_RB: np.ndarray) -> None:
    """Write the squared magnitudes of spectra with interleaved real and imaginary parts to `out_RB`."""
    for r in range(out_RB.shape[0]):
        for b in range(out_RB.shape[1]):
            real, imaginary = spectrum_RC[r, 2 * b], spectrum_RC[r, 2 * b + 1]
            out_RB[r, b] = real * real + imaginary * imaginary
