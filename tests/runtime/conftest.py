"""Fixtures of several files."""

import pytest

from speech3.runtime import parallel


@pytest.fixture
def pooled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small work goes to processes too, from the second item on (the first is always done here)."""
    monkeypatch.setattr(parallel, "_ALONE_S", -1.0)
