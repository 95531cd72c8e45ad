"""speech3: from recordings and transcripts to a hybrid NN-HMM recogniser and its word error rate.

In Python: ``Recognizer.load(model).transcribe(samples, rate)``, and ``.stream(rate)`` while somebody speaks;
``Aligner.train(folder, lang=...).align(samples, rate, text)`` for the times of words and phones; ``fit(model,
dataset, loss, strategy="asgd")`` trains any PyTorch model.
"""

from typing import TYPE_CHECKING

from speech3.runtime import keep_compiled_code

if TYPE_CHECKING:
    from speech3.decode import Recognizer
    from speech3.engine import fit
    from speech3.recipe import Aligner

__version__ = "0.1.0"
__all__ = ["Aligner", "Recognizer", "__version__", "fit"]
_PACKAGES = {"Aligner": "speech3.recipe", "Recognizer": "speech3.decode", "fit": "speech3.engine"}

keep_compiled_code()  # before numba is imported, which reads the environment


def __getattr__(name: str) -> object:
    # Imported when it is asked for: it takes seconds, and every program imports this package.
    if name not in _PACKAGES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    from speech3.errors import check_platform

    check_platform()
    return getattr(importlib.import_module(_PACKAGES[name]), name)
