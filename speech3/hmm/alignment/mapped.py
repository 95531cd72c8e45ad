"""The HMM of another language's lexicon, with the pdfs of a trained model of monophones: each phone has those of the
phone that is nearest to it by its articulatory features (`speech3.language.ipa`).
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from speech3.hmm.model import Hmm, context_free_tree
from speech3.language import Lexicon, Nearest, nearest_phones


def with_nearest_pdfs(hmm: Hmm, lexicon: Lexicon) -> tuple[Hmm, Mapping[str, Nearest]] | None:
    """The HMM of `lexicon`, and the nearest phone of `hmm` to each of its phones (without positions in the word).

    Silence has the pdfs of silence, noises those of noise. None if a phone is in neither IPA nor the symbols of TIMIT
    or CMUdict.

    `hmm`: of monophones.
    """
    numbers: dict[str, int] = {}
    for phone, number in hmm.lexicon.phone_ids.items():
        numbers.setdefault(hmm.lexicon.base_phone(phone), number)
    silent, noises = hmm.lexicon.silence_phones, hmm.lexicon.noise_phones
    bases = [lexicon.base_phone(phone) for phone in lexicon.phones]
    like = dict.fromkeys(lexicon.silence_phones, silent[0])
    like |= dict.fromkeys(lexicon.noise_phones, (*noises, *silent)[0])
    spoken = dict.fromkeys(base for base in bases if base not in like)
    nearest = nearest_phones(spoken, numbers.keys() - {*silent, *noises})
    if len(nearest) < len(spoken):
        return None
    like |= {phone: found.phone for phone, found in nearest.items()}
    pdfs_PS = np.array([hmm.pdfs(0, numbers[like[base]], 0) for base in bases])
    return replace(hmm, lexicon=lexicon, tree=context_free_tree(pdfs_PS)), nearest
