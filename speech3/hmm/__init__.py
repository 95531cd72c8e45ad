"""From words to one senone per frame: topology, GMMs, decision tree, Viterbi alignment. No neural networks.

Phones are numbered from 1 in the order of `Lexicon.phones`; 0 is "no phone": epsilon in graphs, and the context
beyond either end of an utterance. `Hmm.topology` defines the states of a phone.
"""

from typing import TYPE_CHECKING

from speech3.runtime.door import door

if TYPE_CHECKING:
    from speech3.hmm import sat, train
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
    from speech3.hmm.alignment.boundary_training import along_boundaries
    from speech3.hmm.alignment.corrected import differences, fit, moved
    from speech3.hmm.alignment.longform import (
        LONG_UTTERANCE_S,
        LongLayout,
        LongPart,
        PartFeats,
        joined,
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
        file_name,
        frame_clock,
        phone_segments,
        read_ctm,
        word_segments,
        write_ctm,
        write_textgrid,
    )
    from speech3.hmm.alignments import Alignment
    from speech3.hmm.clustering import group_numbers, phone_groups, read_phone_sets
    from speech3.hmm.first_and_loop import SUBSAMPLING, left_biphone_pdfs, to_first_and_loop, train_tree
    from speech3.hmm.fmllr import prior_stats
    from speech3.hmm.gmm import Gmm, GmmStats, accumulate_weighted, extended_baum_welch, load_gmm, zero_stats
    from speech3.hmm.kaldi.convert import export_kaldi, open_alignment
    from speech3.hmm.kaldi.model import TransitionModel, read_symbol_table
    from speech3.hmm.kaldi.transforms import read_transforms, write_projection, write_transforms
    from speech3.hmm.lda import Projection
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
    from speech3.hmm.sat import (
        ADAPTED,
        PASSES,
        Adapted,
        Estimated,
        FmllrSettings,
        Projected,
        ProjectedGmm,
        check_dims,
        load_adapted,
        load_projection,
        merged_estimates,
        save_adapted,
        save_projection,
        train_lda,
        train_sat,
        use_projection,
    )
    from speech3.hmm.sizes import biphone_leaves, lfmmi_passes, sized_transformed, triphone_leaves, with_sizes
    from speech3.hmm.train import (
        LARGEST_PSEUDO,
        GmmSystem,
        Scorer,
        realign,
        score_one,
        search_one,
        train_monophone,
        train_triphone,
    )
    from speech3.hmm.transcript import NO_WORD, TranscriptGraph, transcript_graph
    from speech3.hmm.workers import Workers, WorkerShare
else:
    __getattr__ = door(__file__)

__all__ = [
    "ADAPTED",
    "FIRST_AND_LOOP",
    "LARGEST_PSEUDO",
    "LEVELS",
    "LONG_UTTERANCE_S",
    "NONE",
    "NO_WORD",
    "PASSES",
    "SUBSAMPLING",
    "Adapted",
    "Aligned",
    "Alignment",
    "Biphones",
    "DataWaves",
    "Estimated",
    "FmllrSettings",
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
    "Projected",
    "ProjectedGmm",
    "Projection",
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
    "check_dims",
    "ctm_line",
    "differences",
    "edit_distance",
    "export_kaldi",
    "extended_baum_welch",
    "file_name",
    "fit",
    "frame_clock",
    "group_numbers",
    "has_phones",
    "joined",
    "key",
    "lay_out_long",
    "left_biphone_pdfs",
    "lfmmi_passes",
    "load_adapted",
    "load_gmm",
    "load_hmm",
    "load_outputs",
    "load_projection",
    "loop_phones",
    "match",
    "merged_estimates",
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
    "prior_stats",
    "read_ctm",
    "read_phone_sets",
    "read_symbol_table",
    "read_transforms",
    "realign",
    "sat",
    "save_adapted",
    "save_projection",
    "score_one",
    "search_one",
    "sized_transformed",
    "spoken",
    "suspicions",
    "to_first_and_loop",
    "train",
    "train_lda",
    "train_monophone",
    "train_sat",
    "train_tree",
    "train_triphone",
    "transcript_graph",
    "triphone_leaves",
    "unknown_words",
    "usable_transcripts",
    "use_projection",
    "with_new_words",
    "with_pronunciations",
    "with_sizes",
    "word_segments",
    "write_alignments",
    "write_ctm",
    "write_projection",
    "write_textgrid",
    "write_transforms",
    "zero_stats",
]
