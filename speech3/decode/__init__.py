"""From scores of frames to words: decoding graph, search, lattices, the recogniser.

`graph` composes H o C o L o G from `grammar`; `new_graph` builds others for a trained model. `beam_search` and its
kernels, `token_passing`, are the search; `search` runs it over many utterances; `phrases` and `hot_words` reward
phrases in it. `word_lattice`, `lattice_paths`, `lattice_composition`, `lattice_archive` and `lattice_directory` keep
what it found; `rescoring` gives it other language models. `trained_model` holds everything that recognition needs;
`apply` uses it on recordings, `streaming` on streams, `align` for forced alignment. `transcribing` writes results and
shows live ones; `recognizer` is the class of the Python interface; `tune` finds its parameters.
"""

from typing import TYPE_CHECKING

from speech3.runtime.door import door

if TYPE_CHECKING:
    from speech3.decode.align import FoundAlignment, align_datadir, align_samples, find_alignment
    from speech3.decode.apply import SideBySide, Transcription, features_for, say_skipped, transcribe, write_loglikes
    from speech3.decode.filler import phone_filler
    from speech3.decode.grammar import (
        GRAPH_LEXICON,
        UNSEEN_WEIGHT,
        Spelling,
        join_words,
        one_word_grammar,
        spelling_with,
    )
    from speech3.decode.graph import DECODE_SETTINGS, GRAPH, TUNING_GRAPH, build_graph
    from speech3.decode.hot_words import replace_graph
    from speech3.decode.kaldi import import_kaldi
    from speech3.decode.lattice_directory import (
        NBEST_FILE,
        WantedResults,
        decode_latticed,
        open_lattices,
        oracle_texts,
        ranked_paths,
    )
    from speech3.decode.model_export import export
    from speech3.decode.new_graph import GraphSources, make_graph
    from speech3.decode.output import (
        UtteranceParts,
        cut_long_utterances,
        parts_at_pauses,
        times_in,
        write_decoding,
        write_hypotheses,
    )
    from speech3.decode.recognizer import (
        TUNING_FILE,
        Recognizer,
        TunedPasses,
        load_recognizer,
        load_tuning,
        tune_passes,
        tune_recognizer,
    )
    from speech3.decode.rescoring import RescoreOptions, rescore, write_times
    from speech3.decode.score_fusion import features_of_all, same_features, with_mean_scores
    from speech3.decode.search import Decoding, without_words
    from speech3.decode.speaker_groups import find_speakers
    from speech3.decode.speaker_passes import (
        Marked,
        before_last_pass,
        keep_speakers,
        read_speakers,
        say_speakers,
        speaker_model,
        with_transforms,
        write_speakers,
    )
    from speech3.decode.trained_model import (
        BEAM,
        RETRY_BEAM,
        Alternative,
        Phone,
        Result,
        TrainedModel,
        Word,
        phones_of_segments,
        result_of,
        words_of_segments,
    )
    from speech3.decode.transcribing import (
        STANDARD_INPUT,
        check_names,
        save_standard_input,
        transcribe_arriving,
        transcription_json,
        write_results,
    )
    from speech3.decode.tune import Tuning, error_rate_of, load_settings
else:
    __getattr__ = door(__file__)

__all__ = [
    "BEAM",
    "DECODE_SETTINGS",
    "GRAPH",
    "GRAPH_LEXICON",
    "NBEST_FILE",
    "RETRY_BEAM",
    "STANDARD_INPUT",
    "TUNING_FILE",
    "TUNING_GRAPH",
    "UNSEEN_WEIGHT",
    "Alternative",
    "Decoding",
    "FoundAlignment",
    "GraphSources",
    "Marked",
    "Phone",
    "Recognizer",
    "RescoreOptions",
    "Result",
    "SideBySide",
    "Spelling",
    "TrainedModel",
    "Transcription",
    "TunedPasses",
    "Tuning",
    "UtteranceParts",
    "WantedResults",
    "Word",
    "align_datadir",
    "align_samples",
    "before_last_pass",
    "build_graph",
    "check_names",
    "cut_long_utterances",
    "decode_latticed",
    "error_rate_of",
    "export",
    "features_for",
    "features_of_all",
    "find_alignment",
    "find_speakers",
    "import_kaldi",
    "join_words",
    "keep_speakers",
    "load_recognizer",
    "load_settings",
    "load_tuning",
    "make_graph",
    "one_word_grammar",
    "open_lattices",
    "oracle_texts",
    "parts_at_pauses",
    "phone_filler",
    "phones_of_segments",
    "ranked_paths",
    "read_speakers",
    "replace_graph",
    "rescore",
    "result_of",
    "same_features",
    "save_standard_input",
    "say_skipped",
    "say_speakers",
    "speaker_model",
    "spelling_with",
    "times_in",
    "transcribe",
    "transcribe_arriving",
    "transcription_json",
    "tune_passes",
    "tune_recognizer",
    "with_mean_scores",
    "with_transforms",
    "without_words",
    "words_of_segments",
    "write_decoding",
    "write_hypotheses",
    "write_loglikes",
    "write_results",
    "write_speakers",
    "write_times",
]
