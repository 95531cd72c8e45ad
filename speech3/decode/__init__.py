"""From scores of frames to words: decoding graph, search, lattices, the recogniser.

`graph` composes H o C o L o G from `grammar`; `new_graph` builds others for a trained model. `beam_search` and its
kernels, `token_passing`, are the search; `search` runs it over many utterances; `hot_words` rewards phrases in it.
`word_lattice`, `lattice_paths`, `lattice_composition`, `lattice_archive` and `lattice_directory` keep what it found;
`rescoring` gives it other language models. `trained_model` holds everything that recognition needs; `apply` uses it on
data directories, `recognizer` (the class of the Python interface) on recordings, `streaming` on streams, `align` for
forced alignment; `tune` finds its parameters. `transcribing` writes results and shows live ones. `kaldi` imports
Kaldi's alignments and graphs, `model_export` exports networks for onnxruntime.
"""

from typing import TYPE_CHECKING

from speech3.runtime.door import door

if TYPE_CHECKING:
    from speech3.decode.align import (
        FoundAlignment as FoundAlignment,
        align_datadir as align_datadir,
        align_samples as align_samples,
        check_alignment as check_alignment,
        find_alignment as find_alignment,
    )
    from speech3.decode.apply import (
        SideBySide as SideBySide,
        decode_datadir as decode_datadir,
        features_for as features_for,
        features_of_all as features_of_all,
        same_features as same_features,
        say_skipped as say_skipped,
        with_mean_scores as with_mean_scores,
        write_loglikes as write_loglikes,
    )
    from speech3.decode.grammar import (
        GRAPH_LEXICON as GRAPH_LEXICON,
        UNSEEN_WEIGHT as UNSEEN_WEIGHT,
        Spelling as Spelling,
        join_words as join_words,
        one_word_grammar as one_word_grammar,
        phone_filler as phone_filler,
        spelled_filler as spelled_filler,
        spelling_with as spelling_with,
        with_lexicon_of as with_lexicon_of,
    )
    from speech3.decode.graph import build_graph as build_graph
    from speech3.decode.kaldi import import_kaldi as import_kaldi
    from speech3.decode.lattice_directory import (
        NBEST_FILE as NBEST_FILE,
        WantedResults as WantedResults,
        check_decoding as check_decoding,
        check_lattices as check_lattices,
        decode_latticed as decode_latticed,
        open_lattices as open_lattices,
        oracle_texts as oracle_texts,
        ranked_paths as ranked_paths,
    )
    from speech3.decode.model_export import export as export
    from speech3.decode.new_graph import (
        GraphSources as GraphSources,
        make_graph as make_graph,
        replace_graph as replace_graph,
    )
    from speech3.decode.output import (
        UtteranceParts as UtteranceParts,
        cut_long_utterances as cut_long_utterances,
        parts_at_pauses as parts_at_pauses,
        times_in as times_in,
        write_decoding as write_decoding,
        write_hypotheses as write_hypotheses,
    )
    from speech3.decode.recognizer import (
        Recognizer as Recognizer,
        Transcription as Transcription,
        load_recognizer as load_recognizer,
        transcribe as transcribe,
    )
    from speech3.decode.rescoring import (
        RescoreOptions as RescoreOptions,
        judges_lengths as judges_lengths,
        rescore as rescore,
        write_times as write_times,
    )
    from speech3.decode.search import Decoding as Decoding, without_words as without_words
    from speech3.decode.speaker_groups import find_speakers as find_speakers
    from speech3.decode.speaker_passes import (
        Marked as Marked,
        OtherWords as OtherWords,
        before_last_pass as before_last_pass,
        forget_passes as forget_passes,
        keep_speakers as keep_speakers,
        read_speakers as read_speakers,
        say_speakers as say_speakers,
        speaker_model as speaker_model,
        transforms_along as transforms_along,
        with_known as with_known,
        write_speakers as write_speakers,
    )
    from speech3.decode.streaming import Stream as Stream
    from speech3.decode.trained_model import (
        BEAM as BEAM,
        RETRY_BEAM as RETRY_BEAM,
        Alternative as Alternative,
        Phone as Phone,
        Result as Result,
        TrainedModel as TrainedModel,
        Word as Word,
        load_settings as load_settings,
        phones_of_segments as phones_of_segments,
        result_of as result_of,
        words_of_segments as words_of_segments,
    )
    from speech3.decode.transcribing import (
        STANDARD_INPUT as STANDARD_INPUT,
        check_names as check_names,
        claim_results as claim_results,
        save_standard_input as save_standard_input,
        transcribe_arriving as transcribe_arriving,
        transcription_json as transcription_json,
        with_raw_samples as with_raw_samples,
        write_results as write_results,
    )
    from speech3.decode.tune import (
        TunedPasses as TunedPasses,
        Tuning as Tuning,
        error_rate_of as error_rate_of,
        load_tuning as load_tuning,
        tune_datadir as tune_datadir,
        tune_passes as tune_passes,
        tune_recognizer as tune_recognizer,
    )
    from speech3.decode.word_lengths import WordLengths as WordLengths, learn_lengths as learn_lengths
else:
    __getattr__ = door(__file__)
