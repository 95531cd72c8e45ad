"""One module for each public corpus, and one for a user's own; each writes data directories and a lexicon.

``prepare`` of a module takes the files that the publisher distributes. `anyspeech` takes a data directory, or a
folder of recordings with transcripts (`folder`, `tiers`, `textgrid`, `elan`); `digits` and `shuzi` are synthesised
(`synthetic`).
"""

from typing import TYPE_CHECKING

from speech3.runtime.door import door

if TYPE_CHECKING:
    from speech3.corpora import (
        aishell,
        an4,
        anyspeech,
        commonvoice,
        digits,
        fsdd,
        librispeech,
        shuzi,
        tedlium,
        timit,
        wsj,
        yesno,
    )
    from speech3.corpora.anyspeech import HELD_OUT_LEXICON, LETTERS, SET_NAMES
    from speech3.corpora.folder import AUDIO, read_untranscribed
    from speech3.corpora.tiers import Tier, read_textgrid
else:
    __getattr__ = door(__file__)

__all__ = [
    "AUDIO",
    "HELD_OUT_LEXICON",
    "LETTERS",
    "SET_NAMES",
    "Tier",
    "aishell",
    "an4",
    "anyspeech",
    "commonvoice",
    "digits",
    "fsdd",
    "librispeech",
    "read_textgrid",
    "read_untranscribed",
    "shuzi",
    "tedlium",
    "timit",
    "wsj",
    "yesno",
]
