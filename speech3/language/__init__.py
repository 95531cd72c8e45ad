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
    from speech3.language import (
        espeak as espeak,
        g2p as g2p,
        lexicon as lexicon,
        mixtures as mixtures,
        neural as neural,
        train_lm as train_lm,
    )
    from speech3.language.added_words import (
        AddedWord as AddedWord,
        add_letter_model as add_letter_model,
        add_words as add_words,
        letter_units as letter_units,
        new_word_weight as new_word_weight,
        number_in as number_in,
        read_added as read_added,
    )
    from speech3.language.arpa import (
        ArpaLm as ArpaLm,
        looks_like_arpa as looks_like_arpa,
        read_arpa as read_arpa,
        write_arpa as write_arpa,
    )
    from speech3.language.espeak import (
        PhoneEvent as PhoneEvent,
        Synthesis as Synthesis,
        check_english as check_english,
        synthesize as synthesize,
        voice_of as voice_of,
        voices as voices,
    )
    from speech3.language.g2p import G2P as G2P, LEAST_WORDS as LEAST_WORDS
    from speech3.language.grammar import (
        WordGraph as WordGraph,
        read_jsgf as read_jsgf,
        read_sentences as read_sentences,
    )
    from speech3.language.graphemes import (
        phone_marks as phone_marks,
        plain_phone as plain_phone,
        read_graphemes as read_graphemes,
    )
    from speech3.language.guessing import (
        ENOUGH_PAIRS as ENOUGH_PAIRS,
        PronouncedVocabulary as PronouncedVocabulary,
        PronunciationTable as PronunciationTable,
        check_language as check_language,
        check_pronounceable as check_pronounceable,
        from_spelling as from_spelling,
        guess_pronunciations as guess_pronunciations,
    )
    from speech3.language.ipa import Nearest as Nearest, nearest_phones as nearest_phones
    from speech3.language.kneser_ney import estimate_lm as estimate_lm, read_tokens as read_tokens
    from speech3.language.lexicon import (
        JOINER as JOINER,
        NOT_WORDS as NOT_WORDS,
        SILENCE as SILENCE,
        SPOKEN_NOISE as SPOKEN_NOISE,
        UNKNOWN as UNKNOWN,
        LangDir as LangDir,
        Lexicon as Lexicon,
        Pronunciation as Pronunciation,
        Silences as Silences,
        arpa_words as arpa_words,
        find_lang as find_lang,
        is_word as is_word,
        lexicon_entries as lexicon_entries,
        lexicon_lines as lexicon_lines,
        lexicon_text as lexicon_text,
        listed_phones as listed_phones,
        mark_positions as mark_positions,
        read_dictionary as read_dictionary,
        read_lexicon as read_lexicon,
        read_lexicon_text as read_lexicon_text,
        with_garbage as with_garbage,
        without_variant as without_variant,
        write_lexicon as write_lexicon,
    )
    from speech3.language.mixtures import check_sums as check_sums, prune as prune, read_checked as read_checked
    from speech3.language.neural import (
        NGRAMS as NGRAMS,
        WRITTEN as WRITTEN,
        NeuralLm as NeuralLm,
        is_neural as is_neural,
        measure_sentences as measure_sentences,
        mixed as mixed,
        ngram_log_probs as ngram_log_probs,
        read_known as read_known,
        read_neural as read_neural,
    )
    from speech3.language.ngrams import (
        BOS as BOS,
        EOS as EOS,
        NEVER as NEVER,
        from_ngrams as from_ngrams,
        states_of as states_of,
    )
    from speech3.language.pieces import (
        WORD_START as WORD_START,
        Cutter as Cutter,
        UnitText as UnitText,
        read_units as read_units,
        single_letters as single_letters,
        train_pieces as train_pieces,
    )
    from speech3.language.pronounce import (
        Phones as Phones,
        check_vocabulary as check_vocabulary,
        edit_distance as edit_distance,
        scripts_of as scripts_of,
    )
    from speech3.language.train_lm import (
        Perplexity as Perplexity,
        describe_perplexity as describe_perplexity,
        measure_text as measure_text,
        perplexity as perplexity,
    )
else:
    __getattr__ = door(__file__)
