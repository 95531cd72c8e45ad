"""Speed perturbation: each recording again, slower or faster, as if by other speakers (Ko et al. 2015).

Pitch and formants move with the speed, so a copy is a new speaker for normalisation, as in Kaldi's
utils/data/perturb_data_dir_speed.sh.
"""

import functools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import soundfile

from speech3.corpus import audio
from speech3.corpus.datadir import DataDir, Utterance, write_datadir
from speech3.corpus.paths import moved
from speech3.errors import Speech3Error
from speech3.io.atomic import atomic_path
from speech3.io.parallel import available_jobs, parallel_map


def perturb_speed(data: DataDir, out: Path, factors: Sequence[float], *, jobs: int = 0) -> DataDir:
    """Write a data directory that holds `data` and a copy of it for each factor, with 16-bit audio in ``out/wav``.

    Parameters
    ----------
    factors
        1.1 is a tenth faster and higher. The ids and speakers of a copy begin with ``sp1.1-``.

    Raises
    ------
    Speech3Error
        A factor is not between a half and two, or is one; a recording cannot be read.
    """
    for factor in factors:
        if not 0.5 <= factor <= 2.0 or factor == 1.0:
            raise Speech3Error(f"speed factor {factor:g}: give factors from 0.5 to 2, other than 1")
    recordings = {key: moved(value, data.path, out) for key, value in data.recordings.items()}
    utterances = dict(data.utterances)
    work = functools.partial(_copy, data=data, out=out)
    items = [(utterance.id, factor) for factor in factors for utterance in data.utterances.values()]
    for copy in parallel_map(work, items, jobs or available_jobs(), "speed perturbation"):
        utterances[copy.id] = copy
        recordings[copy.id] = str((out / "wav" / f"{copy.id}.wav").resolve())
    result = DataDir(out, recordings, dict(sorted(utterances.items())))
    write_datadir(result, out)
    return result


def _copy(item: tuple[str, float], data: DataDir, out: Path) -> Utterance:
    from speech3.io.torchaudio_ import resample

    utterance, factor = data.utterances[item[0]], item[1]
    wave_S, rate_hz = audio.load(data, utterance.id, mix_channels=True)
    name = f"sp{factor:g}-{utterance.id}"
    # What was recorded at factor times the rate and is played at the rate is that much slower: so resample from it.
    with atomic_path(out / "wav" / f"{name}.wav") as temporary:
        soundfile.write(temporary, resample(wave_S, round(rate_hz * factor), rate_hz), rate_hz, "PCM_16", format="WAV")
    return replace(
        utterance, id=name, recording=name, speaker=f"sp{factor:g}-{utterance.speaker}", start_s=0.0, end_s=None
    )
