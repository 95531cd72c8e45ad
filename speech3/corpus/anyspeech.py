"""Anybody's speech: one Kaldi data directory, or ``train/`` with, if there are any, ``dev/``, ``test/`` and ``lang/``.

``lang/`` may hold ``lexicon.txt``, one ``*.arpa`` or ``*.arpa.gz``, and ``text`` (sentences for the language model).
"""

import shutil
from pathlib import Path

from speech3.corpus.datadir import DataDir, read_datadir, write_datadir
from speech3.corpus.split import split_by_speaker
from speech3.errors import Speech3Error
from speech3.io.atomic import atomic_path, write_text

DEV_SHARE = 0.1
TEST_SHARE = 0.1


def prepare(source: Path, out: Path, seed: int) -> None:
    """Write ``out/train``, ``out/dev``, ``out/test``, ``out/lexicon.txt`` and, where given, ``out/lm.arpa.gz``."""
    for name, data in _splits(source, seed).items():
        write_datadir(data, out / name)
    write_text(out / "lexicon.txt", (source / "lang" / "lexicon.txt").read_text(encoding="utf-8"))
    for arpa in sorted((source / "lang").glob("*.arpa.gz")):
        with atomic_path(out / "lm.arpa.gz") as path:
            shutil.copyfile(arpa, path)


def _splits(source: Path, seed: int) -> dict[str, DataDir]:
    """The user's own splits; those that are missing are taken from train by speaker."""
    if (source / "wav.scp").exists():
        return split_by_speaker(
            read_datadir(source), {"dev": DEV_SHARE, "test": TEST_SHARE, "train": 1 - DEV_SHARE - TEST_SHARE}, seed
        )
    if not (source / "train").is_dir():
        raise Speech3Error(f"{source}: neither a Kaldi data directory (no wav.scp) nor one that holds train/")
    given = {name: read_datadir(source / name) for name in ("train", "dev", "test") if (source / name).is_dir()}
    missing = {name: share for name, share in (("dev", DEV_SHARE), ("test", TEST_SHARE)) if name not in given}
    if missing:
        parts = split_by_speaker(given["train"], {**missing, "train": 1 - sum(missing.values())}, seed)
        given |= parts
    return given
