"""Packs a data directory with its alignment into the frames that `speech3 train` reads."""

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from speech3.config import FeatureConfig
from speech3.corpus.datadir import DataDir
from speech3.corpus.split import split_by_speaker
from speech3.errors import Speech3Error, check_bad
from speech3.features.extract import extract
from speech3.frames.packed import PackReport, pack
from speech3.io.ark import ArkReader, IntArkReader
from speech3.io.atomic import explained_disk_errors, read_json


@dataclass(frozen=True)
class Packed:
    """What was packed for training and held out, and the reason for each utterance left out."""

    train: PackReport
    heldout: PackReport
    skipped: dict[str, str]


def pack_aligned(
    data: DataDir,
    alignment: Path,
    hmm: Path,
    out: Path,
    config: FeatureConfig,
    *,
    heldout: float,
    seed: int,
    jobs: int,
) -> Packed:
    """Write ``train.frames``, ``heldout.frames`` and ``features.yaml`` into `out`.

    Parameters
    ----------
    alignment
        Directory with ``ali.ark``: a pdf for each frame.
    hmm
        Directory with ``hmm.json``, which holds the number of pdfs.
    heldout
        Share of the hours that is held out, drawn by speaker from `seed`.

    Raises
    ------
    Speech3Error
        The alignment is of other utterances (none of `data`, or it lacks more than 5 % of them) or of another model;
        more than 5 % of the utterances cannot be used; the data cannot be split by speaker.
    """
    _check_given(alignment, hmm)
    senones, num_pdfs = IntArkReader(alignment / "ali.ark"), read_json(hmm / "hmm.json")["pdfs"]
    missing = _missing(data, senones, alignment / "ali.ark")
    if config.kind == "given":
        data = replace(data, recordings={})  # take lengths from the features, too: the audio may not be accessible
    data = data.subset(key for key in data.utterances if key not in missing)
    parts = split_by_speaker(data, {"heldout": heldout, "train": 1 - heldout}, seed)
    with explained_disk_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out, prefix=".pack.") as scratch:
            try:
                skipped, reports = _pack_parts(data, parts, senones, num_pdfs, Path(scratch), config, jobs)
            except Speech3Error as error:
                raise Speech3Error(str(error).replace(scratch, str(out))) from error
            for name in ("train.frames", "heldout.frames", "features.yaml"):
                (Path(scratch) / name).replace(out / name)
    return Packed(reports["train"], reports["heldout"], {**missing, **skipped})


def _pack_parts(
    data: DataDir,
    parts: Mapping[str, DataDir],
    senones: Mapping[str, np.ndarray],
    num_pdfs: int,
    out: Path,
    config: FeatureConfig,
    jobs: int,
) -> tuple[dict[str, str], dict[str, PackReport]]:
    skipped = extract(data, out / "feats", config, jobs).skipped
    feats, reports = ArkReader(out / "feats" / "feats.scp"), {}
    for name, part in parts.items():
        used = [key for key in part.utterances if key in feats]
        info = {"data": str(data.path)}
        reports[name] = pack(out / f"{name}.frames", feats, senones, num_pdfs, utterances=used, info=info)
        skipped |= reports[name].skipped
    shutil.copyfile(out / "feats" / "features.yaml", out / "features.yaml")
    return skipped, reports


def _check_given(alignment: Path, hmm: Path) -> None:
    if not (alignment / "ali.ark").exists():
        if list(alignment.glob("ali.*.gz")):
            raise Speech3Error(f"{alignment}: is a Kaldi alignment; import it with `speech3 import {alignment} OUT`")
        raise Speech3Error(f"{alignment / 'ali.ark'}: no such file; make one with speech3 import or speech3 align")
    if not (hmm / "hmm.json").exists():
        raise Speech3Error(f"{hmm / 'hmm.json'}: no such file; give --hmm the model with which {alignment} was aligned")


def _missing(data: DataDir, senones: Mapping[str, object], ark: Path) -> dict[str, str]:
    missing = {key: "no alignment" for key in data.utterances if key not in senones}
    if senones and len(missing) == len(data.utterances):
        raise Speech3Error(
            f"{ark}: is an alignment of other utterances: {data.path} has {next(iter(data.utterances))} and so on, the"
            f" alignment has {next(iter(senones))}; give the alignment of this data"
        )
    remedy = "give the alignment of this data, or leave them out with `speech3 subset`"
    check_bad(missing, len(data.utterances), str(ark), f"of {data.path} are not aligned", remedy)
    return missing
