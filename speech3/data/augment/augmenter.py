"""Augmentation of recordings: noise, other speakers, rooms, speed, volume, the telephone.

The changes are pure functions of float32 waveforms: sounds to add are passed as waveforms, random values as numbers.
All but `change_speed` keep lengths and timing, so alignments stay valid. Signal-to-noise ratios are ratios of mean
powers over whole utterances, as in Kaldi's wav-reverberate and torchaudio, so that figures are comparable.

`Augmenter` draws the changes of an utterance from the seed and the utterance's key, whichever process makes them. Their
order follows the path of sound: the speaker (speed), room, other sounds, telephone, recorder (volume).

`augment_data` writes augmented copies of a data directory (Kaldi's augment_data_dir.py and reverberate_data_dir.py in
one), `perturb_speed` copies at other speeds (Ko et al. 2015; Kaldi's utils/data/perturb_data_dir_speed.sh): pitch and
formants change with the speed, so a copy is a new speaker for normalisation. `add_background` adds copies with
background noise around the speech.

Axes: S samples, M samples of another speaker's speech or at another rate, R taps of an impulse response.
"""

import functools
import hashlib
import math
import os
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from speech3.config import AugmentConfig
from speech3.data import audio
from speech3.data.audio import AudioError
from speech3.data.augment.noises import (
    Sound,
    active_rms,
    babble,
    colored_noise,
    find_responses,
    find_sounds,
    hum,
    read_response,
    read_sound,
    read_whole,
    room_response,
    some,
    split_speech,
    utterance_sounds,
)
from speech3.data.datadir import DATADIR_FILES, DataDir, Utterance, without_faulty_audio, write_datadir
from speech3.data.paths import moved_value
from speech3.data.resampling import resample, torchaudio_functional
from speech3.errors import DataError, SettingError, Speech3Error, check_bad
from speech3.runtime import available_jobs, check_output, explained_disk_errors, parallel_map, say, write_text

TELEPHONE_HZ = 8000
_BAND_HZ = (300.0, 3400.0)
_TAPS = 161  # 20 ms at 8 kHz: the transition band is 165 Hz wide
_TRANSFORM = 4096  # lengths of Fourier transforms are multiples of this
_PEAK = 32767 / 32768  # the largest value of 16-bit audio
BACKGROUND = "background-"
# At the edges of a recording, what is so much quieter than its loudest 10 ms is background, and so is what is hardly
# louder than its quietest tenth. Training recordings have 0.08 s of it in fsdd, 0.51 in digits and 0.53 in minilibri
# (medians); in white noise of 20 dB 0.09, 0.51 and 0.53, of 10 dB 0.14, 0.62 and 0.64.
_BELOW_LOUDEST_DB = 30.0
_ABOVE_QUIETEST_DB = 3.0
_SILENT_POWER = 2.0**-32  # half a step of 16 bits, squared
_MIN_EDGES_S = 0.25
_EDGE_S = 0.1, 0.6  # of background before and after the speech
_BACKGROUND_SNR_DB = 20.0, 60.0
_SAMPLE = 200  # recordings
_MOST_FILES, _MOST_VOICES = 5000, 500  # more are not kept
_TRIES = 20  # attempts to draw an utterance that can be read: a directory may have a few that cannot
_LONGEST_VOICE_S = 30.0
# Ranges of synthesised rooms and noise, as in the corpora that speech3 synthesises.
_WALL_M, _DIRECT_DB, _SLOPE_DB, _HUM = (1.0, 4.0), (-3.0, 9.0), (0.0, 6.0), 1 / 3
Change = Callable[[np.ndarray, int, Utterance, str], tuple[np.ndarray, str]]  # of samples; and what was done
_TASK_SIZE = 16  # utterances of one task; each task is sent to its process with the lists of sounds to add


def add_noise(wave_S: Tensor, noise_S: Tensor, snr_db: float) -> Tensor:
    """Add noise of the same length at a signal-to-noise ratio; silent noise changes nothing."""
    if not _power(noise_S):
        return wave_S
    heard_S: Tensor = torchaudio_functional().add_noise(wave_S, noise_S, torch.tensor(snr_db))
    return heard_S


def overlap(wave_S: Tensor, other_M: Tensor, start: int, snr_db: float) -> Tensor:
    """Add another speaker from sample `start` (which may be negative) on; what does not fit is cut off.

    The power of each signal is its mean over its own length, before the cut.
    """
    heard_S, end = torch.zeros_like(wave_S), min(start + len(other_M), len(wave_S))
    if end > 0:
        heard_S[max(start, 0) : end] = other_M[max(-start, 0) : end - start]
    ratio = _power(wave_S) / _power(other_M).clamp_min(1e-20)
    return wave_S + torch.sqrt(ratio * 10 ** (-torch.tensor(snr_db) / 10)) * heard_S


def reverberate(wave_S: Tensor, response_R: Tensor) -> Tensor:
    """Convolve with a room impulse response.

    Equal to Kaldi's wav-reverberate with its defaults: the delay of the response's peak (the direct sound) is removed,
    so that timing is unchanged; the power is unchanged, too; the tail beyond the end is cut off.
    """
    direct = int(response_R.abs().argmax())
    wet_S = _convolved(wave_S, response_R)[direct : direct + len(wave_S)]
    before, after = _power(wave_S), _power(wet_S)
    return wet_S * torch.where(after > 0, torch.sqrt(before / after), after)


def change_speed(wave_S: np.ndarray, factor: float) -> np.ndarray:
    """Play faster (`factor` above 1) or slower, which changes the pitch, too (Ko et al. 2015).

    The samples are taken as recorded at `factor` times their rate, and resampled to their rate. torchaudio's `speed`
    would truncate that to a whole number (1.15 times 8000 Hz becomes 9199).
    """
    ratio = Fraction(factor).limit_denominator(1000)
    return resample(wave_S, ratio.numerator, ratio.denominator)


def change_volume(wave_S: Tensor, gain_db: float) -> Tensor:
    """Make louder or softer, but never so loud that 16-bit audio would clip."""
    louder_S = wave_S * 10 ** (torch.tensor(gain_db) / 20)
    return louder_S * (_PEAK / louder_S.abs().amax().clamp_min(_PEAK))


def telephone(wave_S: Tensor, sample_rate_hz: int, *, mu_law: bool) -> Tensor:
    """Limit to the telephone band of 300 to 3400 Hz, by resampling to 8 kHz and back.

    `mu_law`: quantise to 8 bits by mu-law, which G.711 approximates; samples above full scale are clipped.
    """
    functional, rate_hz = torchaudio_functional(), min(sample_rate_hz, TELEPHONE_HZ)
    narrow_M = functional.resample(wave_S, sample_rate_hz, rate_hz)
    narrow_M = _convolved(narrow_M, _band(rate_hz).to(narrow_M))[_TAPS // 2 : _TAPS // 2 + len(narrow_M)]
    if mu_law:
        narrow_M = functional.mu_law_decoding(functional.mu_law_encoding(narrow_M.clamp(-1, 1), 256), 256)
    wide_S: Tensor = functional.resample(narrow_M, rate_hz, sample_rate_hz)
    return wide_S[: len(wave_S)]


def _convolved(wave_S: Tensor, response_R: Tensor) -> Tensor:
    """The full convolution, padded with zeros: Fourier transforms of arbitrary length would be five times slower."""
    missing = -(len(wave_S) + len(response_R) - 1) % _TRANSFORM
    full_X: Tensor = torchaudio_functional().fftconvolve(wave_S, torch.nn.functional.pad(response_R, (0, missing)))
    return full_X


def _band(rate_hz: int) -> Tensor:
    """A symmetric band-pass filter (windowed sinc), without delay if its middle tap is taken as time 0."""
    time_R = torch.arange(_TAPS, dtype=torch.float64) - _TAPS // 2
    low, high = (2 * min(hz, rate_hz / 2) / rate_hz for hz in _BAND_HZ)
    ideal_R = high * torch.sinc(high * time_R) - low * torch.sinc(low * time_R)
    return ideal_R * torch.hamming_window(_TAPS, periodic=False, dtype=torch.float64)


def _power(wave_S: Tensor) -> Tensor:
    return wave_S.square().sum() / max(len(wave_S), 1)


def seed_of(name: str) -> int:
    """A 64-bit seed derived from an utterance's name alone, the same in every process and every run."""
    return int.from_bytes(hashlib.blake2b(name.encode("utf-8"), digest_size=8).digest(), "little")


@dataclass(frozen=True)
class Augmenter:
    """Augments utterances. Picklable: made once by `make_augmenter` and sent to every process.

    If there are no noises or no responses, they are synthesised.
    """

    config: AugmentConfig
    seed: int
    noises: tuple[Sound, ...] = ()
    babblers: tuple[Sound, ...] = ()
    voices: tuple[Sound, ...] = ()
    responses: tuple[Sound, ...] = ()

    def __call__(
        self, wave_S: np.ndarray, sample_rate_hz: int, utterance: Utterance, key: str = ""
    ) -> tuple[np.ndarray, str]:
        """Augment the samples (float32 in [-1, 1)) of an utterance; the seed and `key`, by default its id, say how.

        Returns
        -------
        wave_S
            float32, of the same length unless the speed changed; never beyond full scale.
        done
            What was done, such as ``reverb=rt60:0.41s noise=coloured,12.3dB``, or ``clean`` if nothing was.

        Raises
        ------
        Speech3Error
            A noise, an impulse response or the speech of other speakers cannot be read.
        """
        rng = np.random.default_rng((self.seed, seed_of(key or utterance.id)))
        chain = _Chain(self, _tensor(wave_S), sample_rate_hz, utterance, rng)
        for link in (chain.speed, chain.room, chain.other_speaker, chain.background, chain.line, chain.level):
            link()
        return chain.wave_S.numpy(), " ".join(chain.done) or "clean"


def make_augmenter(config: AugmentConfig, data: DataDir, seed: int) -> Augmenter:
    """Find the sounds that the config needs: the files in its directories, and the other speakers of `data`.

    It is an error if there are none of the kind that is needed.
    """
    rng = np.random.default_rng(seed)
    noises, babblers = split_speech(find_sounds(Path(config.noise_dir))) if config.noise_dir else ([], [])
    if config.noise_dir and config.noise_prob and not noises:
        raise DataError(f"{config.noise_dir}: has only speech, but noise_prob asks for noise; set noise_prob to 0")
    if config.noise_dir and not config.noise_prob and not babblers:
        raise DataError(
            f"{config.noise_dir}: holds no speech (a directory of that name, as in MUSAN) for babble, and noise_prob is"
            " 0: leave noise_dir out for babble of the data's own speakers, or set noise_prob"
        )
    responses = find_responses(Path(config.rir_dir)) if config.rir_dir else []
    voices: list[Sound] = []
    if config.overlap_prob or (config.babble_prob and not babblers):
        if len(data.utterances) < 2:
            raise DataError(
                f"{data.path}: there is no other utterance, but babble_prob or overlap_prob asks for other speakers;"
                " set them to 0, or augment more utterances together"
            )
        voices = utterance_sounds(data)
    kept = (some(noises, _MOST_FILES, rng), some(babblers, _MOST_FILES, rng), some(voices, _MOST_VOICES, rng))
    return Augmenter(config, seed, *kept, some(responses, _MOST_FILES, rng))


@dataclass
class _Chain:
    of: Augmenter
    wave_S: Tensor
    rate_hz: int
    utterance: Utterance
    rng: np.random.Generator
    done: list[str] = field(default_factory=list)

    def speed(self) -> None:
        if not self.of.config.speed:
            return
        factor = float(self.rng.choice(self.of.config.speed))
        if factor != 1:
            self.wave_S = torch.from_numpy(change_speed(self.wave_S.numpy(), factor))
            self.done.append(f"speed={factor:g}")

    def room(self) -> None:
        if self.rng.random() >= self.of.config.reverb_prob:
            return
        if self.of.responses:
            sound = self._one(self.of.responses)
            response_R, about = read_response(sound, self.rate_hz), sound.name
        else:
            rt60_s = self.rng.uniform(*self.of.config.rt60_s)
            wall_m, direct_db = self.rng.uniform(*_WALL_M), self.rng.uniform(*_DIRECT_DB)
            response_R = room_response(self.rate_hz, rt60_s, wall_m, direct_db, self.rng)
            about = f"rt60:{rt60_s:.2f}s"
        self.wave_S = reverberate(self.wave_S, _tensor(response_R))
        self.done.append(f"reverb={about}")

    def other_speaker(self) -> None:
        if self.rng.random() >= self.of.config.overlap_prob:
            return
        voice_M, name = self._voice(self._others(self.of.voices))
        own, other = len(self.wave_S), len(voice_M)
        start = int(self.rng.integers(-other // 2, max(own - other // 2, 1)))  # at least half of the shorter is heard
        snr_db = self.rng.uniform(*self.of.config.overlap_snr_db)
        self.wave_S = overlap(self.wave_S, _tensor(voice_M), start, snr_db)
        self.done.append(f"overlap={name},{snr_db:.1f}dB")

    def background(self) -> None:
        config, chance = self.of.config, self.rng.random()
        if chance >= config.noise_prob + config.babble_prob:
            return
        if chance < config.noise_prob:
            snr_db = self.rng.uniform(*config.noise_snr_db)
            noise_S, about = self._noise(len(self.wave_S))
        else:
            snr_db = self.rng.uniform(*config.babble_snr_db)
            noise_S, about = self._babble(len(self.wave_S))
        self.wave_S = add_noise(self.wave_S, _tensor(noise_S), snr_db)
        self.done.append(f"noise={about},{snr_db:.1f}dB")

    def line(self) -> None:
        if self.rng.random() < self.of.config.telephone_prob:
            self.wave_S = telephone(self.wave_S, self.rate_hz, mu_law=self.of.config.telephone_mu_law)
            self.done.append("telephone")

    def level(self) -> None:
        """Change the volume; if none is drawn after other changes, by 0 dB, which limits the peak to full scale."""
        gain_db = 0.0
        if self.rng.random() < self.of.config.volume_prob:
            gain_db = self.rng.uniform(*self.of.config.volume_db)
            self.done.append(f"volume={gain_db:.1f}dB")
        if self.done:
            self.wave_S = change_volume(self.wave_S, gain_db)

    def _noise(self, count: int) -> tuple[np.ndarray, str]:
        if self.of.noises:
            sound = self._one(self.of.noises)
            return read_sound(sound, self.rate_hz, count, self.rng), sound.name
        colored_S = colored_noise(count, self.rng.uniform(*_SLOPE_DB), self.rng)
        if self.rng.random() < _HUM:
            return colored_S + hum(count, self.rate_hz, self.rng), "hum"
        return colored_S, "coloured"

    def _babble(self, count: int) -> tuple[np.ndarray, str]:
        low, high = self.of.config.babble_voices
        voices = int(self.rng.integers(low, high + 1))
        if self.of.babblers:
            heard = [read_sound(self._one(self.of.babblers), self.rate_hz, count, self.rng) for _ in range(voices)]
        else:
            others = self._others(self.of.voices)
            heard = [self._voice(others)[0] for _ in range(voices)]
        return babble(heard, count, self.rng), f"babble:{voices}"

    def _one(self, sounds: Sequence[Sound]) -> Sound:
        return sounds[int(self.rng.integers(len(sounds)))]

    def _others(self, voices: Sequence[Sound]) -> Sequence[Sound]:
        others_speech = [voice for voice in voices if voice.speaker != self.utterance.speaker]
        return others_speech or [voice for voice in voices if voice.name != self.utterance.id]

    def _voice(self, voices: Sequence[Sound]) -> tuple[np.ndarray, str]:
        for _ in range(_TRIES):
            voice = self._one(voices)
            try:
                return read_whole(voice, self.rate_hz, int(_LONGEST_VOICE_S * self.rate_hz)), voice.name
            except AudioError as error:
                fault = error
        raise fault


def _tensor(wave_S: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(wave_S, np.float32))


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

    Raises `Speech3Error`: as for `make_augmenter`; a noise or impulse response cannot be read; more than 5 % of the
    utterances cannot be used; `out` is the directory to augment.
    """
    files = [*DATADIR_FILES, "wav/aug[0-9]*-*.wav", "augment.txt", "skipped.txt"]
    check_output(out, [data.path], files, marks=["augment.txt"])
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
        out.mkdir(parents=True, exist_ok=True)
        (out / "augment.txt").touch()  # and the same command may then replace what this has left
    work = functools.partial(_copies, out=out)
    report = AugmentReport(DataDir(out, {}, {}), {})
    utterances: dict[str, Utterance] = {}
    for made, done, skipped in parallel_map(work, items, jobs or available_jobs(), "augmentation"):
        utterances |= made
        report.done |= done
        report.skipped |= skipped
        remedy = without_faulty_audio(data.path)
        check_bad(report.skipped, len(ids), str(data.path), "cannot be used", remedy)
    # The lists last, so that OUT looks complete only when it is.
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

    A factor of 1.1 is a tenth faster and higher in pitch; ids and speakers of that copy begin with ``sp1.1-``. Copies
    with background (`add_background`) are not copied again. `jobs` is the number of processes; 0: one per core.

    Raises `Speech3Error`: a factor is not between a half and two, or is one; a copy already exists; more than 5 % of
    the utterances cannot be read. The others of which there is no copy are listed.
    """
    for factor in factors:
        if not 0.5 <= factor <= 2.0 or factor == 1.0:
            raise SettingError(f"speed factor {factor:g}: factors must be from 0.5 to 2, other than 1")
    changes = [(f"sp{factor:g}-", functools.partial(_faster, factor=factor)) for factor in factors]
    return _with_copies(data, out, changes, jobs, "copies at other speeds")


def add_background(data: DataDir, *, jobs: int = 0) -> DataDir:
    """Add to a data directory a copy of each utterance, the speech as a microphone in a room hears it.

    There are `_EDGE_S` seconds before and after it, and noise of a random colour throughout, `_BACKGROUND_SNR_DB` below
    it. Models that have never heard background take it for words. Ids and speakers of the copies begin with
    ``background-``. Raises `Speech3Error`: as for `perturb_speed`.
    """
    return _with_copies(data, data.path, [(BACKGROUND, _with_background)], jobs, "copies with background")


def without_background(data: DataDir) -> DataDir:
    """A data directory without the copies that `add_background` added."""
    copies = {BACKGROUND + key for key in data.utterances} & set(data.utterances)
    return data.subset(key for key in data.utterances if key not in copies) if copies else data


def _with_copies(data: DataDir, out: Path, changes: Sequence[tuple[str, Change]], jobs: int, what: str) -> DataDir:
    """Write a data directory with `data` and a copy of it for each prefix."""
    recordings = {key: original_value(value, data.path, out) for key, value in data.recordings.items()}
    utterances = dict(data.utterances)
    copied = list(without_background(data).utterances)
    names = Counter(prefix + key for prefix, _ in changes for key in copied)
    if twice := [name for name, n in names.items() if n > 1 or name in utterances or name in recordings]:
        raise DataError(
            f"{twice[0]}: {data.path} already has an utterance or a recording of this name, or the copy is asked for"
            f" twice; rename it, or make no {what}"
        )
    items = [(_part(data, [key]), prefix, change) for prefix, change in changes for key in copied]
    skipped: dict[str, str] = {}
    work = functools.partial(_copies, out=out)
    for made, _, unread in parallel_map(work, items, jobs or available_jobs(), what):
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
    return change_speed(wave_S, factor), ""


def _with_background(wave_S: np.ndarray, rate_hz: int, _: Utterance, key: str) -> tuple[np.ndarray, str]:
    rng = np.random.default_rng(seed_of(key))
    before, after = (round(rate_hz * seconds) for seconds in rng.uniform(*_EDGE_S, 2))
    noise_S = colored_noise(before + len(wave_S) + after, rng.uniform(0, 6), rng)
    noise_S *= active_rms(wave_S) * 10 ** (-rng.uniform(*_BACKGROUND_SNR_DB) / 20)
    return (np.pad(wave_S, (before, after)) + noise_S).astype(np.float32), ""


def has_no_background(data: DataDir) -> bool:
    """Whether most recordings begin and end with speech: background before and after it is under `_MIN_EDGES_S`.

    Digital silence is none: it does not count in normalisation, so models hear nothing of it.
    """
    ids = list(data.utterances)
    return bool(statistics.median(_edges_s(data, key) for key in ids[:: -(-len(ids) // _SAMPLE)]) < _MIN_EDGES_S)


def _edges_s(data: DataDir, utterance: str) -> float:
    try:
        wave_S, rate_hz = audio.load(data, utterance, mix_channels=True)
    except Speech3Error:  # said by whoever needs it
        return math.inf
    block = rate_hz // 100
    power_B = np.square(wave_S[: len(wave_S) // block * block].reshape(-1, block)).mean(1)
    power_B = power_B[power_B > _SILENT_POWER]
    if not len(power_B):
        return math.inf
    quietest = np.quantile(power_B, 0.1) * 10 ** (_ABOVE_QUIETEST_DB / 10)
    loud_L = np.flatnonzero(power_B > max(power_B.max() * 10 ** (-_BELOW_LOUDEST_DB / 10), quietest))
    return (len(power_B) - 1 - np.ptp(loud_L)) / 100 if len(loud_L) else math.inf


def original_value(value: str, data: Path, out: Path) -> str:
    """The original's value in wav.scp; relative to `out` if it is relative to `data`: both may be moved together."""
    inside = not Path(value).is_absolute() and (data / value).is_file()
    return os.path.relpath(data / value, out) if inside else moved_value(value, data, out)
