"""How the loops over integers and costs are compiled (numba)."""

import numba

# Cached on disk, without the interpreter's lock, and with NumPy's division by zero in place of an exception. Functions
# that need other options (``fastmath``, ``inline``) call `numba.njit` themselves.
jit = numba.njit(cache=True, nogil=True, error_model="numpy")
