"""A mapping whose values are computed on access."""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TypeVar

V = TypeVar("V")


class Computed(Mapping[str, V]):
    """Values that `function` makes of the keys whenever they are accessed, so that memory never holds them all."""

    def __init__(self, keys: Collection[str], function: Callable[[str], V]) -> None:
        self._keys, self._function = keys, function

    def __getitem__(self, key: str) -> V:
        if key not in self._keys:
            raise KeyError(key)
        return self._function(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)
