"""Speed perturbation: slower or faster copies of each utterance, as if by other speakers (Ko et al. 2015).

Pitch and formants change with the speed, so a copy is a new speaker for normalisation, as in Kaldi's
utils/data/perturb_data_dir_speed.sh.
"""

import functools
import os
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

from speech3.corpus import audio
from speech3.corpus.datadir import DataDir, Utterance, write_datadir
from speech3.corpus.paths import moved
from speech3.errors import Speech3Error, check_bad
from speech3.io.parallel import available_jobs, parallel_map
from speech3.io.progress import say


def perturb_speed(data: DataDir, out: Path, factors: Sequence[float], *, jobs: int = 0) -> DataDir:
    """Write a data directory with `data` and a copy of it for each factor, the copies' 16-bit audio in ``out/wav``.

    Parameters
    ----------
    factors
        1.1 is a tenth faster and higher in pitch. The ids and speakers of that copy begin with ``sp1.1-``.
    jobs
        Number of processes; 0: one per core.

    Raises
    ------
    Speech3Error
        A factor is not between a half and two, or is one; a copy already exists; more than 5 % of the utterances cannot
        be read. The others of which there is no copy are listed.
    """
    for factor in factors:
        if not 0.5 <= factor <= 2.0 or factor == 1.0:
            raise Speech3Error(f"speed factor {factor:g}: give factors from 0.5 to 2, other than 1")
    recordings = {key: _original(value, data.path, out) for key, value in data.recordings.items()}
    utterances = dict(data.utterances)
    items = [
        (_alone(data, utterance), factor, f"sp{factor:g}-") for factor in factors for utterance in utterances.values()
    ]
    names = set(utterances)
    for alone, _, prefix in items:
        for name in (prefix + key for key in alone.utterances):
            if name in names:
                raise Speech3Error(f"{name}: {data.path} already has this copy, or the factor is given twice")
            names.add(name)
    skipped: dict[str, str] = {}
    for made in parallel_map(functools.partial(_copy, out=out), items, jobs or available_jobs(), "speed perturbation"):
        if isinstance(made, Utterance):
            utterances[made.id] = made
            recordings[made.id] = f"wav/{made.id}.wav"
        elif made[0] not in skipped:
            say(f"  no copy of {made[0]}: {made[1]}")
            skipped[made[0]] = made[1]
            check_bad(skipped, len(data.utterances), str(data.path), "cannot be read")
    result = DataDir(out, recordings, dict(sorted(utterances.items())))
    write_datadir(result, out)
    return result


def _original(value: str, data: Path, out: Path) -> str:
    """The original's value in wav.scp; relative to `out` if it is relative to `data`: both may be moved together."""
    inside = not Path(value).is_absolute() and (data / value).is_file()
    return os.path.relpath(data / value, out) if inside else moved(value, data, out)


def _alone(data: DataDir, utterance: Utterance) -> DataDir:
    # A process is sent this for each utterance instead of the whole directory.
    return DataDir(data.path, {utterance.recording: data.recording(utterance)}, {utterance.id: utterance})


def _copy(item: tuple[DataDir, float, str], out: Path) -> Utterance | tuple[str, str]:
    """The copy, or the name of an utterance that cannot be read and the reason."""
    from speech3.io.torchaudio_ import resample

    data, factor, prefix = item
    (utterance,) = data.utterances.values()
    try:
        wave_S, rate_hz = audio.load(data, utterance.id, mix_channels=True)
    except audio.AudioError as error:
        return utterance.id, str(error)
    name, ratio = prefix + utterance.id, Fraction(factor).limit_denominator(1000)
    # The samples are taken as recorded at `factor` times their rate, so they play faster, and resampled to their rate.
    audio.write_wav(out / "wav" / f"{name}.wav", resample(wave_S, ratio.numerator, ratio.denominator), rate_hz)
    return replace(utterance, id=name, recording=name, speaker=prefix + utterance.speaker, start_s=0.0, end_s=None)
