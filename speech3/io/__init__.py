"""Files in Kaldi's and OpenFst's formats, checkpoints, and the names of a model's files. No policy.

`ark` reads and writes archives (ark, scp), also compressed ones, and finds their entries by position. `fst` reads and
writes transducers. `kaldi_object` reads the binary and text forms of Kaldi's objects. `checkpoint` holds tensors with a
description (safetensors). `model_files` names the files of a model directory.
"""

from typing import TYPE_CHECKING

from speech3.runtime.door import door

if TYPE_CHECKING:
    from speech3.io.ark import (
        ArkReader as ArkReader,
        ComputedMapping as ComputedMapping,
        IntArkReader as IntArkReader,
        ark_entries as ark_entries,
        ark_key_at as ark_key_at,
        index_line as index_line,
        is_ark as is_ark,
        is_integer_ark as is_integer_ark,
        not_finite as not_finite,
        read_int_ark as read_int_ark,
        read_mat as read_mat,
        read_mat_ark as read_mat_ark,
        read_matrix as read_matrix,
        read_scp as read_scp,
        write_ark as write_ark,
        write_entry as write_entry,
        write_mat as write_mat,
    )
    from speech3.io.checkpoint import (
        load_tensors as load_tensors,
        read_about as read_about,
        save_tensors as save_tensors,
    )
    from speech3.io.fst import (
        ARC as ARC,
        Fst as Fst,
        FstBuilder as FstBuilder,
        from_kaldifst as from_kaldifst,
        read_fst as read_fst,
        to_kaldifst as to_kaldifst,
        write_fst as write_fst,
    )
    from speech3.io.kaldi_object import KaldiObject as KaldiObject, opened_object as opened_object
    from speech3.io.model_files import (
        A_DATADIR as A_DATADIR,
        A_GRAPH as A_GRAPH,
        A_LANGUAGE_MODEL as A_LANGUAGE_MODEL,
        A_MODEL as A_MODEL,
        A_TRAINING as A_TRAINING,
        CARD_FILE as CARD_FILE,
        DECODE_FILE as DECODE_FILE,
        DENOMINATOR_FILE as DENOMINATOR_FILE,
        FEATURES_FILE as FEATURES_FILE,
        GRAMMAR_FILE as GRAMMAR_FILE,
        GRAPH_DIR as GRAPH_DIR,
        GRAPH_FILE as GRAPH_FILE,
        GRAPH_FILES as GRAPH_FILES,
        HCLG_FILE as HCLG_FILE,
        HMM_FILE as HMM_FILE,
        LM_FILE as LM_FILE,
        METRICS_FILE as METRICS_FILE,
        MODEL_FILE as MODEL_FILE,
        PACKED_FRAMES as PACKED_FRAMES,
        RUN_FILE as RUN_FILE,
        TREE_FILE as TREE_FILE,
        TUNING_FILE as TUNING_FILE,
        TUNING_GRAPH_DIR as TUNING_GRAPH_DIR,
        check_is_directory as check_is_directory,
    )
else:
    __getattr__ = door(__file__)
