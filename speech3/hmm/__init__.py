"""From words to one senone per frame: topology, GMMs, decision tree, Viterbi alignment. No neural networks.

Phones are numbered from 1 in the order of `Lexicon.phones`; 0 is "no phone": epsilon in graphs, and the context
beyond either end of an utterance. `Hmm.topology` defines the states of a phone.
"""

from typing import TYPE_CHECKING

from speech3.runtime.door import door

if TYPE_CHECKING:
    from speech3.hmm import sat as sat, train as train
    from speech3.hmm.alignment.align import (
        Aligned as Aligned,
        Limits as Limits,
        Suspicion as Suspicion,
        Transcripts as Transcripts,
        align_utterances as align_utterances,
        limits_of as limits_of,
        suspicions as suspicions,
        tracks as tracks,
        usable_transcripts as usable_transcripts,
        write_alignments as write_alignments,
    )
    from speech3.hmm.alignment.boundaries import (
        DataWaves as DataWaves,
        PartWaves as PartWaves,
        Refinement as Refinement,
        Wave as Wave,
        along_boundaries as along_boundaries,
    )
    from speech3.hmm.alignment.compared import (
        LEVELS as LEVELS,
        Level as Level,
        check_names as check_names,
        differences as differences,
        fit as fit,
        key as key,
        match as match,
        moved as moved,
        paired as paired,
        spoken as spoken,
    )
    from speech3.hmm.alignment.longform import (
        LONG_UTTERANCE_S as LONG_UTTERANCE_S,
        LongLayout as LongLayout,
        LongPart as LongPart,
        PartFeats as PartFeats,
        lay_out_long as lay_out_long,
        part_names as part_names,
        part_texts as part_texts,
    )
    from speech3.hmm.alignment.oov import (
        NONE as NONE,
        GuessedPronunciations as GuessedPronunciations,
        by_espeak as by_espeak,
        by_letters as by_letters,
        by_lexicon as by_lexicon,
        has_phones as has_phones,
        unknown_words as unknown_words,
        with_new_words as with_new_words,
        with_pronunciations as with_pronunciations,
    )
    from speech3.hmm.alignment.times import (
        FrameClock as FrameClock,
        Segment as Segment,
        ctm_line as ctm_line,
        file_name as file_name,
        frame_clock as frame_clock,
        phone_segments as phone_segments,
        read_ctm as read_ctm,
        unmarked as unmarked,
        word_segments as word_segments,
        write_ctm as write_ctm,
        write_textgrid as write_textgrid,
    )
    from speech3.hmm.clustering import (
        SUBSAMPLING as SUBSAMPLING,
        group_numbers as group_numbers,
        left_biphone_pdfs as left_biphone_pdfs,
        phone_groups as phone_groups,
        read_phone_sets as read_phone_sets,
        to_first_and_loop as to_first_and_loop,
        train_tree as train_tree,
    )
    from speech3.hmm.gmm import (
        FrameScorer as FrameScorer,
        Gmm as Gmm,
        GmmStats as GmmStats,
        Sums as Sums,
        accumulate_weighted as accumulate_weighted,
        extended_baum_welch as extended_baum_welch,
        load_gmm as load_gmm,
        zero_stats as zero_stats,
    )
    from speech3.hmm.kaldi.convert import (
        export_kaldi as export_kaldi,
        open_alignment as open_alignment,
        read_spk2utt as read_spk2utt,
        read_transforms as read_transforms,
        write_projection as write_projection,
        write_transforms as write_transforms,
    )
    from speech3.hmm.kaldi.model import TransitionModel as TransitionModel, read_symbol_table as read_symbol_table
    from speech3.hmm.model import (
        FIRST_AND_LOOP as FIRST_AND_LOOP,
        Hmm as Hmm,
        PdfsOnly as PdfsOnly,
        load_hmm as load_hmm,
        load_outputs as load_outputs,
        monophone_tree as monophone_tree,
        num_outputs as num_outputs,
        output_difference as output_difference,
        with_nearest_pdfs as with_nearest_pdfs,
    )
    from speech3.hmm.phone_loop import (
        Biphones as Biphones,
        LoopPhones as LoopPhones,
        best_phones as best_phones,
        biphones as biphones,
        loop_phones as loop_phones,
        phone_bigram as phone_bigram,
    )
    from speech3.hmm.sat import (
        ADAPTED as ADAPTED,
        PASSES as PASSES,
        Adapted as Adapted,
        Estimated as Estimated,
        Projected as Projected,
        ProjectedGmm as ProjectedGmm,
        accumulate_speech as accumulate_speech,
        check_transforms as check_transforms,
        likelihood_gain as likelihood_gain,
        load_adapted as load_adapted,
        load_projection as load_projection,
        save_adapted as save_adapted,
        save_projection as save_projection,
        train_lda as train_lda,
        train_sat as train_sat,
        use_projection as use_projection,
    )
    from speech3.hmm.train import (
        LARGEST_PSEUDO as LARGEST_PSEUDO,
        GmmSystem as GmmSystem,
        Scorer as Scorer,
        biphone_leaves as biphone_leaves,
        lfmmi_passes as lfmmi_passes,
        realign as realign,
        score_one as score_one,
        search_one as search_one,
        sized_transformed as sized_transformed,
        train_monophone as train_monophone,
        train_triphone as train_triphone,
        triphone_leaves as triphone_leaves,
        with_sizes as with_sizes,
    )
    from speech3.hmm.transcript import (
        NO_WORD as NO_WORD,
        Alignment as Alignment,
        TranscriptGraph as TranscriptGraph,
        transcript_graph as transcript_graph,
    )
    from speech3.hmm.transforms import (
        FmllrStats as FmllrStats,
        Projection as Projection,
        applied as applied,
        fmllr_gradient as fmllr_gradient,
        fmllr_hessian as fmllr_hessian,
        identity as identity,
        prior_stats as prior_stats,
        speaker_transforms as speaker_transforms,
        zero_fmllr_stats as zero_fmllr_stats,
    )
    from speech3.hmm.workers import Workers as Workers, WorkerShare as WorkerShare
else:
    __getattr__ = door(__file__)
