"""Write augmented copies of a data directory, and copies at other speeds.

Augmentation: Kaldi's augment_data_dir.py and reverberate_data_dir.py in one. Speed (Ko et al. 2015; Kaldi's
utils/data/perturb_data_dir_speed.sh): pitch and formants change with it, so a copy is a new speaker for normalisation.

Axes: S samples.
"""

import functools
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from speech3.config import AugmentConfig
from speech3.data import audio
from speech3.data.augment.augmenter import make_augmenter
from speech3.data.datadir import DataDir, Utterance, without_faulty_audio, write_datadir
from speech3.data.paths import moved_value
from speech3.data.resampling import resample
from speech3.errors import DataError, OccupiedError, SettingError, Speech3Error, check_bad
from speech3.runtime import available_jobs, explained_disk_errors, parallel_map, say, write_text

Change = Callable[[np.ndarray, int, Utterance, str], tuple[np.ndarray, str]]  # of samples; and what was done
_TASK_SIZE = 16  # utterances of one task; each task is sent to its process with the lists of sounds to add


@dataclass
class AugmentReport:
    """What was written and what was skipped."""

    data: DataDir
    done: dict[str, str]  # id of a copy -> what was done to it
    skipped: dict[str, str] = field(default_factory=dict)  # utterance -> why it could not be read


def copy_prefix(copy: int) -> str:
    """Prefix of the ids and speakers of a copy (numbered from 1), as Kaldi's recipes prefix copies at other speeds."""
    return f"aug{copy}-"


def augment_data(
    data: DataDir, out: Path, config: AugmentConfig, *, copies: int = 1, seed: int = 1, jobs: int = 0
) -> AugmentReport:
    """Write a data directory of augmented copies without the originals, with 16-bit audio in ``out/wav``.

    Ids and speakers of the copies begin with ``aug1-``, ``aug2-``, ... ``out/augment.txt`` says for each copy what was
    done to it. ``out/skipped.txt`` lists the utterances that cannot be read, if there are any. The result does not
    depend on the number of processes, `jobs` (0: one per core).

    Raises
    ------
    Speech3Error
        As for `make_augmenter`; a noise or impulse response cannot be read; more than 5 % of the utterances cannot be
        used; `out` is the directory to augment.
    """
    if out.resolve() == data.path.resolve():
        raise OccupiedError(f"{out}: this is the directory to augment; choose another one for the copies")
    augmenter = make_augmenter(config, data, seed)
    ids = list(data.utterances)
    for utterance in data.utterances.values():
        data.recording(utterance)  # raises here, before any work is done, if there is no audio
    items = [
        (_part(data, ids[start : start + _TASK_SIZE]), copy_prefix(copy), augmenter)
        for copy in range(1, copies + 1)
        for start in range(0, len(ids), _TASK_SIZE)
    ]
    with explained_disk_errors(out):  # if this is killed, OUT must not look complete with the lists of an earlier run
        (out / "wav.scp").unlink(missing_ok=True)
    work = functools.partial(_copies, out=out)
    report = AugmentReport(DataDir(out, {}, {}), {})
    utterances: dict[str, Utterance] = {}
    for made, done, skipped in parallel_map(work, items, jobs or available_jobs(), "augmentation"):
        utterances |= made
        report.done |= done
        report.skipped |= skipped
        remedy = without_faulty_audio(data.path)
        check_bad(report.skipped, len(ids), str(data.path), "cannot be used", remedy)
    recordings = {key: f"wav/{key}.wav" for key in sorted(utterances)}
    report.data = DataDir(out, recordings, dict(sorted(utterances.items())))
    write_text(out / "augment.txt", "".join(f"{key} {done}\n" for key, done in sorted(report.done.items())))
    if report.skipped:
        lines = (f"{key} {' '.join(reason.split())}\n" for key, reason in sorted(report.skipped.items()))
        write_text(out / "skipped.txt", "".join(lines))
    else:
        (out / "skipped.txt").unlink(missing_ok=True)
    write_datadir(report.data, out)
    return report


def _part(data: DataDir, ids: list[str]) -> DataDir:
    # A process is sent this for each task instead of the whole directory.
    utterances = {key: data.utterances[key] for key in ids}
    return DataDir(data.path, {utt.recording: data.recording(utt) for utt in utterances.values()}, utterances)


def _copies(
    item: tuple[DataDir, str, Change], out: Path
) -> tuple[dict[str, Utterance], dict[str, str], dict[str, str]]:
    """Write copies: the utterances, what was done to each, and why others were skipped."""
    data, prefix, change = item
    utterances: dict[str, Utterance] = {}
    done: dict[str, str] = {}
    skipped: dict[str, str] = {}
    for utterance in data.utterances.values():
        try:
            wave_S, rate_hz = audio.load(data, utterance.id, mix_channels=True)
        except Speech3Error as error:
            skipped[utterance.id] = str(error)
            continue
        key = prefix + utterance.id
        wave_S, done[key] = change(wave_S, rate_hz, utterance, key)
        audio.write_wav(out / "wav" / f"{key}.wav", wave_S, rate_hz)
        whole: dict[str, Any] = {"recording": key, "start_s": 0.0, "end_s": None}
        utterances[key] = replace(utterance, id=key, speaker=prefix + utterance.speaker, **whole)
    return utterances, done, skipped


def perturb_speed(data: DataDir, out: Path, factors: Sequence[float], *, jobs: int = 0) -> DataDir:
    """Write a data directory with `data` and a copy of it for each factor, the copies' 16-bit audio in ``out/wav``.

    A factor of 1.1 is a tenth faster and higher in pitch; ids and speakers of that copy begin with ``sp1.1-``. `jobs`
    is the number of processes; 0: one per core.

    Raises
    ------
    Speech3Error
        A factor is not between a half and two, or is one; a copy already exists; more than 5 % of the utterances cannot
        be read. The others of which there is no copy are listed.
    """
    for factor in factors:
        if not 0.5 <= factor <= 2.0 or factor == 1.0:
            raise SettingError(f"speed factor {factor:g}: factors must be from 0.5 to 2, other than 1")
    recordings = {key: original_value(value, data.path, out) for key, value in data.recordings.items()}
    utterances = dict(data.utterances)
    changes = {f"sp{factor:g}-": functools.partial(_faster, factor=factor) for factor in factors}
    items = [(_part(data, [key]), prefix, change) for prefix, change in changes.items() for key in utterances]
    names = Counter([*utterances, *(f"sp{factor:g}-{key}" for factor in factors for key in utterances)])
    if twice := [name for name, count in names.items() if count > 1]:
        raise DataError(f"{twice[0]}: {data.path} already has this copy, or the factor is given twice")
    skipped: dict[str, str] = {}
    work = functools.partial(_copies, out=out)
    for made, _, unread in parallel_map(work, items, jobs or available_jobs(), "speed perturbation"):
        utterances |= made
        recordings |= {key: f"wav/{key}.wav" for key in made}
        for key, why in unread.items():
            if key not in skipped:
                say(f"  no copy of {key}: {why}")
        skipped |= unread
        check_bad(skipped, len(data.utterances), str(data.path), "cannot be read")
    result = DataDir(out, recordings, dict(sorted(utterances.items())))
    write_datadir(result, out)
    return result


def _faster(wave_S: np.ndarray, *_: object, factor: float) -> tuple[np.ndarray, str]:
    # The samples are taken as recorded at `factor` times their rate, so they play faster, and resampled to their rate.
    ratio = Fraction(factor).limit_denominator(1000)
    return resample(wave_S, ratio.numerator, ratio.denominator), ""


def original_value(value: str, data: Path, out: Path) -> str:
    """The original's value in wav.scp; relative to `out` if it is relative to `data`: both may be moved together."""
    inside = not Path(value).is_absolute() and (data / value).is_file()
    return os.path.relpath(data / value, out) if inside else moved_value(value, data, out)
