"""speech3: from recordings and transcripts to a hybrid NN-HMM recogniser and its word error rate.

In Python: ``Recognizer.load(model).transcribe(samples, rate)``, and ``.stream(rate)`` while somebody speaks;
``Aligner.train(folder, lang=...).align(samples, rate, text)`` for the times of words and phones.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from speech3.decode import Recognizer
    from speech3.recipe import Aligner

__version__ = "0.1.0"
__all__ = ["Aligner", "Recognizer", "__version__"]


def __getattr__(name: str) -> object:
    # Imported when it is asked for: it takes seconds, and every program imports this package.
    if name not in ("Aligner", "Recognizer"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from speech3.errors import check_platform

    check_platform()
    if name == "Aligner":
        from speech3.recipe import Aligner

        return Aligner
    from speech3.decode import Recognizer

    return Recognizer
