"""From words to one senone per frame: topology, GMMs, decision tree, Viterbi alignment. No neural networks.

Phones are numbered from 1 in the order of `Lexicon.phones`; 0 is "no phone": epsilon in graphs, and the context
beyond either end of an utterance. `hmm.topology` defines the states of a phone.
"""

from typing import TYPE_CHECKING

from speech3.runtime.door import door

if TYPE_CHECKING:
    from speech3.hmm.alignment.align import (
        Aligned,
        Suspicion,
        Transcripts,
        align_utterances,
        suspicions,
        usable_transcripts,
        write_alignments,
    )
    from speech3.hmm.alignment.boundaries import DataWaves, PartWaves, Refinement, Wave
    from speech3.hmm.alignment.corrected import along_boundaries, differences, fit, moved
    from speech3.hmm.alignment.longform import (
        LONG_UTTERANCE_S,
        LongLayout,
        LongPart,
        PartFeats,
        lay_out_long,
        part_names,
        part_texts,
    )
    from speech3.hmm.alignment.matching import LEVELS, Level, key, match, paired, spoken
    from speech3.hmm.alignment.oov import (
        NONE,
        GuessedPronunciations,
        by_espeak,
        by_letters,
        by_lexicon,
        has_phones,
        unknown_words,
        with_new_words,
        with_pronunciations,
    )
    from speech3.hmm.alignment.times import (
        FrameClock,
        Segment,
        ctm_line,
        frame_clock,
        phone_segments,
        read_ctm,
        word_segments,
        write_ctm,
    )
    from speech3.hmm.alignments import Alignment
    from speech3.hmm.clustering import group_numbers, phone_groups, read_phone_sets
    from speech3.hmm.first_and_loop import SUBSAMPLING, left_biphone_pdfs, to_first_and_loop, train_tree
    from speech3.hmm.gmm import Gmm, GmmStats, accumulate_weighted, extended_baum_welch, load_gmm, zero_stats
    from speech3.hmm.kaldi.convert import export_kaldi, open_alignment
    from speech3.hmm.kaldi.model import TransitionModel, read_symbol_table
    from speech3.hmm.model import (
        FIRST_AND_LOOP,
        Hmm,
        PdfsOnly,
        load_hmm,
        load_outputs,
        monophone_tree,
        num_outputs,
        output_difference,
    )
    from speech3.hmm.phone_loop import (
        Biphones,
        LoopPhones,
        best_phones,
        biphones,
        edit_distance,
        loop_phones,
        phone_bigram,
    )
    from speech3.hmm.train import (
        LARGEST_PSEUDO,
        GmmSystem,
        Scorer,
        Workers,
        WorkerShare,
        biphone_leaves,
        lfmmi_passes,
        realign,
        score_one,
        search_one,
        train_monophone,
        train_triphone,
        triphone_leaves,
        with_sizes,
    )
    from speech3.hmm.transcript import NO_WORD, TranscriptGraph, transcript_graph
else:
    __getattr__ = door(__file__)

__all__ = [
    "FIRST_AND_LOOP",
    "LARGEST_PSEUDO",
    "LEVELS",
    "LONG_UTTERANCE_S",
    "NONE",
    "NO_WORD",
    "SUBSAMPLING",
    "Aligned",
    "Alignment",
    "Biphones",
    "DataWaves",
    "FrameClock",
    "Gmm",
    "GmmStats",
    "GmmSystem",
    "GuessedPronunciations",
    "Hmm",
    "Level",
    "LongLayout",
    "LongPart",
    "LoopPhones",
    "PartFeats",
    "PartWaves",
    "PdfsOnly",
    "Refinement",
    "Scorer",
    "Segment",
    "Suspicion",
    "TranscriptGraph",
    "Transcripts",
    "TransitionModel",
    "Wave",
    "WorkerShare",
    "Workers",
    "accumulate_weighted",
    "align_utterances",
    "along_boundaries",
    "best_phones",
    "biphone_leaves",
    "biphones",
    "by_espeak",
    "by_letters",
    "by_lexicon",
    "ctm_line",
    "differences",
    "edit_distance",
    "export_kaldi",
    "extended_baum_welch",
    "fit",
    "frame_clock",
    "group_numbers",
    "has_phones",
    "key",
    "lay_out_long",
    "left_biphone_pdfs",
    "lfmmi_passes",
    "load_gmm",
    "load_hmm",
    "load_outputs",
    "loop_phones",
    "match",
    "monophone_tree",
    "moved",
    "num_outputs",
    "open_alignment",
    "output_difference",
    "paired",
    "part_names",
    "part_texts",
    "phone_bigram",
    "phone_groups",
    "phone_segments",
    "read_ctm",
    "read_phone_sets",
    "read_symbol_table",
    "realign",
    "score_one",
    "search_one",
    "spoken",
    "suspicions",
    "to_first_and_loop",
    "train_monophone",
    "train_tree",
    "train_triphone",
    "transcript_graph",
    "triphone_leaves",
    "unknown_words",
    "usable_transcripts",
    "with_new_words",
    "with_pronunciations",
    "with_sizes",
    "word_segments",
    "write_alignments",
    "write_ctm",
    "zero_stats",
]
