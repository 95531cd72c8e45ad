"""Words: how they are pronounced, and how they follow each other.

`lexicon` holds words and their phones, from Kaldi's, MFA's and CMU's dictionaries. `guessing` finds pronunciations of
words that it lacks, by rule (`pronounce`, `espeak`, `graphemes`) or learnt from the lexicon (`g2p`); `ipa` says how
far apart two phones are. `ngrams` and
`arpa` are language models; `kneser_ney` and `train_lm` estimate them from text, `mixtures` interpolates and prunes
them. `neural` is a neural language model, `pieces` cuts the text that `speech3.train` trains it on. `added_words` adds
words and spells unknown ones, `grammar` reads JSGF and lists of sentences.
"""

from typing import TYPE_CHECKING

from speech3.runtime.door import door

if TYPE_CHECKING:
    from speech3.language import espeak, g2p, lexicon, mixtures, neural, train_lm
    from speech3.language.added_words import (
        AddedWord,
        add_letter_model,
        add_words,
        letter_model,
        letter_units,
        new_word_weight,
        read_added,
    )
    from speech3.language.arpa import ArpaLm, read_arpa, write_arpa
    from speech3.language.espeak import PhoneEvent, Synthesis, check_english, synthesize, voice_of, voices
    from speech3.language.g2p import G2P, LEAST_WORDS
    from speech3.language.grammar import WordGraph, read_jsgf, read_sentences
    from speech3.language.graphemes import phone_marks, plain_phone, read_graphemes
    from speech3.language.guessing import (
        ENOUGH_PAIRS,
        PronouncedVocabulary,
        PronunciationTable,
        from_spelling,
        guess_pronunciations,
    )
    from speech3.language.ipa import Nearest, nearest_phones
    from speech3.language.kneser_ney import estimate_lm, read_tokens
    from speech3.language.lexicon import (
        JOINER,
        NOT_WORDS,
        SILENCE,
        SPOKEN_NOISE,
        UNKNOWN,
        LangDir,
        Lexicon,
        Pronunciation,
        Silences,
        arpa_words,
        find_lang,
        is_word,
        lexicon_entries,
        lexicon_text,
        listed_phones,
        mark_positions,
        read_dictionary,
        read_lexicon,
        with_garbage,
        without_variant,
        write_lexicon,
    )
    from speech3.language.mixtures import check_sums, prune, read_checked
    from speech3.language.neural import NeuralLm, is_neural, measure_sentences, mixed, read_known, read_neural
    from speech3.language.ngrams import BOS, EOS, NEVER, from_ngrams, states_of
    from speech3.language.pieces import WORD_START, Cutter, UnitText, read_units, single_letters, train_pieces
    from speech3.language.pronounce import Phones, check_vocabulary, edit_distance, scripts_of
    from speech3.language.train_lm import describe_perplexity, measure_text, perplexity
else:
    __getattr__ = door(__file__)

__all__ = [
    "BOS",
    "ENOUGH_PAIRS",
    "EOS",
    "G2P",
    "JOINER",
    "LEAST_WORDS",
    "NEVER",
    "NOT_WORDS",
    "SILENCE",
    "SPOKEN_NOISE",
    "UNKNOWN",
    "WORD_START",
    "AddedWord",
    "ArpaLm",
    "Cutter",
    "LangDir",
    "Lexicon",
    "Nearest",
    "NeuralLm",
    "PhoneEvent",
    "Phones",
    "PronouncedVocabulary",
    "Pronunciation",
    "PronunciationTable",
    "Silences",
    "Synthesis",
    "UnitText",
    "WordGraph",
    "add_letter_model",
    "add_words",
    "arpa_words",
    "check_english",
    "check_sums",
    "check_vocabulary",
    "describe_perplexity",
    "edit_distance",
    "espeak",
    "estimate_lm",
    "find_lang",
    "from_ngrams",
    "from_spelling",
    "g2p",
    "guess_pronunciations",
    "is_neural",
    "is_word",
    "letter_model",
    "letter_units",
    "lexicon",
    "lexicon_entries",
    "lexicon_text",
    "listed_phones",
    "mark_positions",
    "measure_sentences",
    "measure_text",
    "mixed",
    "mixtures",
    "nearest_phones",
    "neural",
    "new_word_weight",
    "perplexity",
    "phone_marks",
    "plain_phone",
    "prune",
    "read_added",
    "read_arpa",
    "read_checked",
    "read_dictionary",
    "read_graphemes",
    "read_jsgf",
    "read_known",
    "read_lexicon",
    "read_neural",
    "read_sentences",
    "read_tokens",
    "read_units",
    "scripts_of",
    "single_letters",
    "states_of",
    "synthesize",
    "train_lm",
    "train_pieces",
    "voice_of",
    "voices",
    "with_garbage",
    "without_variant",
    "write_arpa",
    "write_lexicon",
]
