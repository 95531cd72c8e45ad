"""Write augmented copies of a data directory: Kaldi's augment_data_dir.py and reverberate_data_dir.py in one.

Legend: S samples.
"""

import functools
from dataclasses import dataclass, field, replace
from pathlib import Path

from speech3.augment.augmenter import Augmenter, make_augmenter
from speech3.config import AugmentConfig
from speech3.corpus import audio
from speech3.corpus.datadir import DataDir, Utterance, write_datadir
from speech3.errors import Speech3Error, check_bad
from speech3.io.atomic import explained_disk_errors, write_text
from speech3.io.parallel import available_jobs, parallel_map

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

    Parameters
    ----------
    copies
        Number of copies of each utterance, all different. Ids and speakers begin with ``aug1-``, ``aug2-``, ...
    jobs
        Processes; 0: one per core. The result does not depend on their number.

    Notes
    -----
    ``out/augment.txt`` says for each copy what was done to it. ``out/skipped.txt`` lists the utterances that cannot be
    read, if there are any.

    Raises
    ------
    Speech3Error
        As for `make_augmenter`; a noise or impulse response cannot be read; more than 5 % of the utterances cannot be
        used; `out` is the directory to augment.
    """
    if out.resolve() == data.path.resolve():
        raise Speech3Error(f"{out}: this is the directory to augment; give another one for the copies")
    augmenter = make_augmenter(config, data, seed)
    ids = list(data.utterances)
    for utterance in data.utterances.values():
        data.recording(utterance)  # raises here, before any work is done, if there is no audio
    items = [
        (_part(data, ids[start : start + _TASK_SIZE]), copy)
        for copy in range(1, copies + 1)
        for start in range(0, len(ids), _TASK_SIZE)
    ]
    with explained_disk_errors(out):  # if this is killed, OUT must not look complete with the lists of an earlier run
        (out / "wav.scp").unlink(missing_ok=True)
    work = functools.partial(_copies, augmenter=augmenter, out=out)
    report = AugmentReport(DataDir(out, {}, {}), {})
    utterances: dict[str, Utterance] = {}
    for made, done, skipped in parallel_map(work, items, jobs or available_jobs(), "augmentation"):
        utterances |= made
        report.done |= done
        report.skipped |= skipped
        remedy = f"`speech3 fix {data.path} OUT` writes a copy without the utterances whose audio is faulty"
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
    utterances = {key: data.utterances[key] for key in ids}
    return DataDir(data.path, {utt.recording: data.recording(utt) for utt in utterances.values()}, utterances)


def _copies(
    item: tuple[DataDir, int], augmenter: Augmenter, out: Path
) -> tuple[dict[str, Utterance], dict[str, str], dict[str, str]]:
    data, copy = item
    prefix = copy_prefix(copy)
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
        wave_S, done[key] = augmenter(wave_S, rate_hz, utterance, key)
        audio.write_wav(out / "wav" / f"{key}.wav", wave_S, rate_hz)
        utterances[key] = replace(
            utterance, id=key, recording=key, speaker=prefix + utterance.speaker, start_s=0.0, end_s=None
        )
    return utterances, done, skipped
