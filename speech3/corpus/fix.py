"""Write a repaired copy of a data directory: faults are repaired where possible, unusable utterances left out."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from speech3.corpus.datadir import DataDir, write_datadir
from speech3.corpus.lost_bytes import write_mended
from speech3.corpus.tables import Fault
from speech3.corpus.validate import Report, validate
from speech3.errors import Speech3Error


@dataclass(frozen=True)
class Repairs:
    """What `fix` wrote, and what it changed."""

    data: DataDir
    removed: tuple[str, ...]  # utterances
    changes: tuple[str, ...]  # a line for each fault
    warnings: tuple[Fault, ...]


def fix(path: Path | str, out: Path | str, *, jobs: int = 0) -> Repairs:
    """Write a copy of the data directory `path` in which `validate` finds no fault.

    Audio is not copied, except recordings that lost bytes: their mended copies are in ``out/mended``.

    A missing file `text` cannot be repaired: like its source, the copy is for decoding only.

    Parameters
    ----------
    jobs
        As for `validate`.

    Raises
    ------
    Speech3Error
        No usable utterance is left, or `out` is `path` itself.
    """
    path, out = Path(path), Path(out)
    if out.resolve() == path.resolve():
        raise Speech3Error(f"{out}: the repaired copy cannot replace its source; give another directory")
    report = validate(path, jobs=jobs)
    drop = {key for fault in report.faults for key in fault.drop}
    kept = _kept(report, drop)
    if not kept.utterances:
        listing = "\n".join(f"  {fault}" for fault in report.faults)
        raise Speech3Error(f"{path}: no usable utterance is left, nothing was written\n{listing}")
    write_datadir(_with_mended(kept, report, out), out)
    return Repairs(kept, tuple(sorted(drop)), tuple(map(_change, report.faults)), report.warnings)


def _kept(report: Report, drop: set[str]) -> DataDir:
    data = report.data.subset(set(report.data.utterances) - drop)
    ends = {fault.subject: fault.end_s for fault in report.faults if fault.end_s is not None}
    utterances = {
        key: dataclasses.replace(utt, end_s=ends[key]) if key in ends else utt for key, utt in data.utterances.items()
    }
    return dataclasses.replace(data, utterances=utterances)


def _with_mended(kept: DataDir, report: Report, out: Path) -> DataDir:
    """The directory with mended copies of recordings in which bytes are missing or too many."""
    mended = {}
    for fault in report.faults:
        if fault.mend in kept.recordings:
            path = out / "mended" / f"{quote(fault.mend, safe='')}.wav"
            write_mended(kept.recordings[fault.mend], path, directory=kept.path)
            mended[fault.mend] = str(path.absolute())
    return dataclasses.replace(kept, recordings={**kept.recordings, **mended})


def _change(fault: Fault) -> str:
    done = fault.repair or f"removed {len(fault.drop)} utterance{'s' if len(fault.drop) > 1 else ''}"
    subject = f"{fault.subject}: " if fault.subject else ""
    return f"{fault.where}: {subject}{fault.problem}: {done}"
