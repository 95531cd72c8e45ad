"""TIMIT's 61 phones, Lee and Hon's 48 phones for training, and their 39 classes for scoring.

K.-F. Lee, H.-W. Hon: Speaker-independent phone recognition using hidden Markov models, IEEE Trans. ASSP 37 (11), 1989.
The table is ``data/timit/phones.txt``. The glottal stop ``q`` is deleted.
"""

from functools import lru_cache
from typing import Literal, NamedTuple

from speech3.config import shipped
from speech3.errors import Speech3Error

Size = Literal[39, 48]
_DELETED = "-"


class _Row(NamedTuple):
    phone: str
    of_48: str
    of_39: str


@lru_cache
def _rows() -> tuple[_Row, ...]:
    path = shipped("data") / "timit" / "phones.txt"
    lines = path.read_text(encoding="utf-8").splitlines()
    fields = [line.split() for line in lines if line.strip() and not line.startswith("#")]  # `h#` is a phone
    if any(len(row) != 3 for row in fields):
        raise Speech3Error(f"{path}: every line needs three columns; restore the file that came with speech3")
    return tuple(_Row(*row) for row in fields)


def phones61() -> tuple[str, ...]:
    """TIMIT's 61 phones, sorted."""
    return tuple(row.phone for row in _rows())


@lru_cache
def _table(size: Size) -> dict[str, str]:
    if size == 48:
        return {row.phone: row.of_48 for row in _rows()}
    return {name: row.of_39 for row in _rows() for name in (row.phone, row.of_48) if name != _DELETED}


def fold(text: str, size: Size) -> str:
    """Replace the phones of `text` by their classes; what the table lacks stays as it is.

    Phones that are already folded to the 48, or to the same classes, are accepted, too.
    """
    table = _table(size)
    return " ".join(found for phone in text.split() if (found := table.get(phone, phone)) != _DELETED)
