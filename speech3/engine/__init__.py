"""The asynchronous training engine."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from speech3.engine.fitting.fit import FitResult, fit

__all__ = ["FitResult", "fit"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from speech3.errors import check_platform

    check_platform()
    from speech3.engine.fitting import fit as fitting

    return getattr(fitting, name)
