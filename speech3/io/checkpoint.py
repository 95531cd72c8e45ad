"""Tensors with a description: safetensors files with JSON in their metadata."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from speech3.errors import FormatError, MissingError
from speech3.runtime import atomic_path, foreign_content


def save_tensors(path: Path | str, tensors: dict[str, np.ndarray], about: dict[str, Any]) -> None:
    """Write arrays and a JSON-serialisable description atomically."""
    with atomic_path(path) as temporary:
        contiguous = {name: np.asarray(array, order="C") for name, array in tensors.items()}
        # Not safetensors' save_file: only the owner can read its files, and its errors are not OSErrors.
        temporary.write_bytes(save(contiguous, {"speech3": json.dumps(about)}))


def load_tensors(path: Path | str, kind: str | None = None) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read arrays and their description, whose ``"kind"`` must be `kind`, if that is given."""
    with _opened(path) as stream:
        about = _about(stream)
        tensors = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118
    if kind is not None and about.get("kind") != kind:
        raise FormatError(f"{path}: holds {about.get('kind', 'something unknown')!r}, expected {kind!r}")
    return tensors, about


def read_about(path: Path | str) -> dict[str, Any]:
    """Read only the description."""
    with _opened(path) as stream:
        return _about(stream)


@contextmanager
def _opened(path: Path | str) -> Iterator[Any]:
    if not Path(path).is_file():
        raise MissingError(f"{path}: no such file")
    try:
        with safe_open(path, framework="numpy") as stream:
            yield stream
    except (SafetensorError, json.JSONDecodeError, OSError) as error:
        with Path(path).open("rb") as content:
            what, remedy = foreign_content(content.read(1024))
        if what and "zip" not in what:  # PyTorch's files are zip archives
            raise FormatError(f"{path}: is {what}, not a safetensors file; {remedy}") from error
        raise FormatError(f"{path}: not a safetensors file, or truncated ({error}); make it again") from error


def _about(stream: Any) -> dict[str, Any]:
    return dict(json.loads((stream.metadata() or {}).get("speech3", "{}")))
