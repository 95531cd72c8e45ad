"""Kaldi's linear transforms: ``final.mat`` (LDA and MLLT), ``trans.*`` (fMLLR by speaker) and ``spk2utt``.

Axes: T frames, F features, D transformed values.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from speech3.errors import FormatError, MismatchError, MissingError
from speech3.hmm.lda import Projection
from speech3.io import ArkReader, read_mat_ark, write_ark, write_mat
from speech3.runtime import read_utf8, write_text

FINAL_MAT, SPLICE_OPTS = "final.mat", "splice_opts"
_PART = re.compile(r"trans\.(\d+|ark)")


def write_projection(out: Path, projection: Projection) -> None:
    """Write ``final.mat`` (D, S) and ``splice_opts``, which Kaldi's scripts read."""
    write_mat(out / FINAL_MAT, projection.matrix.astype(np.float32))
    context = projection.context
    write_text(out / SPLICE_OPTS, f"--left-context={context} --right-context={context}\n")


def write_transforms(
    ark: Path,
    transforms: Mapping[str, np.ndarray],
    scp: Path | None = None,
    spk2utt: Path | None = None,
    speaker_of: Mapping[str, str] | None = None,
) -> None:
    """Write an archive of transforms by speaker, float32 (D, D + 1), and optionally its index and ``spk2utt``."""
    items = ((speaker, each.astype(np.float32)) for speaker, each in sorted(transforms.items()))
    write_ark(ark, items, scp)
    if spk2utt:
        utterances: dict[str, list[str]] = {}
        for utterance, speaker in sorted((speaker_of or {}).items()):
            utterances.setdefault(speaker, []).append(utterance)
        lines = (f"{speaker} {' '.join(each)}\n" for speaker, each in sorted(utterances.items()))
        write_text(spk2utt, "".join(lines))


def read_transforms(path: Path) -> dict[str, np.ndarray]:
    """Read transforms by speaker, float64: an archive, an index (``.scp``), or a directory with one or the other.

    Of a directory, ``trans.scp`` is read, or all of ``trans.1``, ``trans.2`` and so on, as Kaldi's scripts leave them.

    Raises Speech3Error: there are none, a file is damaged, or a speaker occurs in two archives.
    """
    if path.is_dir() and (path / "trans.scp").exists():
        path = path / "trans.scp"
    if path.suffix == ".scp":
        return {speaker: each.astype(np.float64) for speaker, each in ArkReader(path).items()}
    parts = sorted(each for each in path.glob("trans.*") if _PART.fullmatch(each.name)) if path.is_dir() else [path]
    if not parts or not parts[0].exists():
        raise MissingError(f"{path}: no transforms (trans.scp, trans.1, ...); pass a directory that has some")
    found: dict[str, np.ndarray] = {}
    for part in parts:
        for speaker, matrix in read_mat_ark(part):
            if speaker in found:
                raise FormatError(f"{part}: {speaker} occurs a second time; remove one of the two transforms")
            found[speaker] = matrix.astype(np.float64)
    return found


def read_spk2utt(path: Path) -> dict[str, str]:
    """The speaker of each utterance, from lines ``speaker utterance utterance ...``.

    Raises Speech3Error: the file cannot be read, or an utterance has two speakers.
    """
    speaker_of: dict[str, str] = {}
    for number, line in enumerate(read_utf8(path).splitlines(), 1):
        speaker, *utterances = line.split() or [""]
        for utterance in utterances:
            if speaker_of.setdefault(utterance, speaker) != speaker:
                raise MismatchError(
                    f"{path}:{number}: {utterance} belongs to {speaker} here, but to {speaker_of[utterance]} above"
                )
    return speaker_of
