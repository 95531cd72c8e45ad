"""torchaudio's pure-Python functions, even if its compiled part cannot be loaded.

The torchaudio wheel from PyPI is compiled against CUDA; with a CPU build of torch `import torchaudio` raises OSError
(libc10_cuda.so). The functions that speech3 uses are written in Python on top of torch, so it is enough to replace
`torchaudio._extension` by a module that declares the compiled part to be missing.
"""

import importlib
import sys
import types
from typing import Any

import numpy as np

from speech3.errors import Speech3Error


def torchaudio_functional() -> Any:
    """Return the module `torchaudio.functional`.

    Raises
    ------
    Speech3Error
        torchaudio is not installed, or is not compatible with the installed torch.
    """
    try:
        return importlib.import_module("torchaudio.functional")
    except (OSError, ImportError, RuntimeError, AttributeError):
        _forget()
    sys.modules["torchaudio._extension"] = _stand_in()
    try:
        return importlib.import_module("torchaudio.functional")
    except Exception as error:
        _forget()
        raise Speech3Error(
            f"torchaudio cannot be imported ({type(error).__name__}: {error});"
            " install the torchaudio that matches your torch: pip install --upgrade torch torchaudio"
        ) from error


def _forget() -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "torchaudio"]:
        del sys.modules[name]


def _stand_in() -> types.ModuleType:
    def refuse(function: Any) -> Any:
        def refused(*args: Any, **kwargs: Any) -> Any:
            raise RuntimeError(f"{function.__name__} needs torchaudio's compiled part, which cannot be loaded here")

        return refused

    module = types.ModuleType("torchaudio._extension")
    vars(module).update(_IS_TORCHAUDIO_EXT_AVAILABLE=False, _IS_ALIGN_AVAILABLE=False, fail_if_no_align=refuse)
    return module


def resample(samples: np.ndarray, from_hz: int, to_hz: int) -> np.ndarray:
    """Change the sample rate by band-limited (windowed sinc) interpolation.

    Parameters
    ----------
    samples
        float32 (samples,).

    Returns
    -------
    np.ndarray
        float32 (ceil(samples * to_hz / from_hz),); `samples` itself if the rates are equal.
    """
    if from_hz == to_hz:
        return samples
    import torch

    return np.asarray(torchaudio_functional().resample(torch.from_numpy(samples), from_hz, to_hz).numpy(), np.float32)
