"""Files in Kaldi's and OpenFst's formats, and checkpoints. No policy.

`ark` reads and writes archives (ark, scp), also compressed ones, and finds their entries by position. `fst` reads and
writes transducers. `kaldi_object` reads the binary and text forms of Kaldi's objects. `checkpoint` holds tensors with a
description (safetensors).
"""

from typing import TYPE_CHECKING

from speech3.runtime.door import door

if TYPE_CHECKING:
    from speech3.io.ark import (
        ArkReader,
        ComputedMapping,
        IntArkReader,
        ark_entries,
        ark_key_at,
        index_line,
        is_ark,
        is_integer_ark,
        not_finite,
        read_int_ark,
        read_mat,
        read_mat_ark,
        read_matrix,
        read_scp,
        write_ark,
        write_entry,
        write_mat,
    )
    from speech3.io.checkpoint import load_tensors, read_about, save_tensors
    from speech3.io.fst import ARC, Fst, FstBuilder, from_kaldifst, read_fst, to_kaldifst, write_fst
    from speech3.io.kaldi_object import KaldiObject, opened_object
else:
    __getattr__ = door(__file__)

__all__ = [
    "ARC",
    "ArkReader",
    "ComputedMapping",
    "Fst",
    "FstBuilder",
    "IntArkReader",
    "KaldiObject",
    "ark_entries",
    "ark_key_at",
    "from_kaldifst",
    "index_line",
    "is_ark",
    "is_integer_ark",
    "load_tensors",
    "not_finite",
    "opened_object",
    "read_about",
    "read_fst",
    "read_int_ark",
    "read_mat",
    "read_mat_ark",
    "read_matrix",
    "read_scp",
    "save_tensors",
    "to_kaldifst",
    "write_ark",
    "write_entry",
    "write_fst",
    "write_mat",
]
