"""Corpora: each module makes a data directory and a lexicon of one public corpus, as it is distributed.

`anyspeech` and `folder` do that for the user's own recordings with transcripts beside them (`pairs`), in text files,
tables, TextGrids, ELAN files or subtitles (`tiers`), or without transcripts. `synthetic` makes the corpora `digits` and
`shuzi` with espeak-ng.

Each module has a function ``prepare(source, out, seed, ...)``, which writes the data directories ``train``, ``dev`` and
``test``, the lexicon, and a language model or its text into `out`. Random choices depend on `seed`. It raises
`Speech3Error` if `source` is not the corpus or a part of it is missing.
"""

from typing import TYPE_CHECKING

from speech3.runtime.door import door

if TYPE_CHECKING:
    from speech3.corpora import (
        aishell as aishell,
        an4 as an4,
        anyspeech as anyspeech,
        commonvoice as commonvoice,
        digits as digits,
        fsdd as fsdd,
        librispeech as librispeech,
        shuzi as shuzi,
        tedlium as tedlium,
        timit as timit,
        wsj as wsj,
        yesno as yesno,
    )
    from speech3.corpora.anyspeech import (
        HELD_OUT_LEXICON as HELD_OUT_LEXICON,
        LETTERS as LETTERS,
        SET_NAMES as SET_NAMES,
        change_of_text as change_of_text,
        pronounce_more as pronounce_more,
        say_markup as say_markup,
    )
    from speech3.corpora.folder import is_folder as is_folder, read_folder as read_folder, read_speech as read_speech
    from speech3.corpora.pairs import (
        AUDIO as AUDIO,
        find_pairs as find_pairs,
        has_recordings as has_recordings,
        read_untranscribed as read_untranscribed,
        tier_reader as tier_reader,
    )
    from speech3.corpora.tiers import (
        Annotation as Annotation,
        Tier as Tier,
        read_textgrid as read_textgrid,
        write_elan as write_elan,
    )
else:
    __getattr__ = door(__file__)
