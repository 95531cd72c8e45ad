"""Corpora: each module makes a data directory and a lexicon of one public corpus, as it is distributed.

`anyspeech` and `folder` do that for the user's own recordings with transcripts beside them (`pairs`), in text files,
tables, TextGrids, ELAN files or subtitles (`tiers`); `untranscribed` for recordings without them. `synthetic` makes the
corpora `digits` and `shuzi` with espeak-ng.

Each module has a function ``prepare(source, out, seed, ...)``, which writes the data directories ``train``, ``dev`` and
``test``, the lexicon, and a language model or its text into `out`. Random choices depend on `seed`. It raises
`Speech3Error` if `source` is not the corpus or a part of it is missing.
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
    from speech3.corpora.folder import is_folder, read_folder, read_speech
    from speech3.corpora.pairs import AUDIO, find_pairs, has_recordings, tier_reader
    from speech3.corpora.tiers import Annotation, Tier, read_textgrid, write_elan
    from speech3.corpora.untranscribed import read_untranscribed
else:
    __getattr__ = door(__file__)

__all__ = [
    "AUDIO",
    "HELD_OUT_LEXICON",
    "LETTERS",
    "SET_NAMES",
    "Annotation",
    "Tier",
    "aishell",
    "an4",
    "anyspeech",
    "commonvoice",
    "digits",
    "find_pairs",
    "fsdd",
    "has_recordings",
    "is_folder",
    "librispeech",
    "read_folder",
    "read_speech",
    "read_textgrid",
    "read_untranscribed",
    "shuzi",
    "tedlium",
    "tier_reader",
    "timit",
    "write_elan",
    "wsj",
    "yesno",
]
