"""Statistics and a picture of a file: a recording, an archive of features, an scp of either, or packed frames.

From large files only a thousand utterances are read for the statistics, and one for the picture.

Axes: S samples, N utterances, T frames, F features; of frames, S senones.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, pairwise
from math import ceil
from pathlib import Path

import numpy as np
import torch

from speech3.config import FeatureConfig, PitchConfig, parse, read_yaml
from speech3.data import audio, paths, read_datadir
from speech3.errors import (
    DataError,
    FormatError,
    MismatchError,
    MissingError,
    OccupiedError,
    SettingError,
    Speech3Error,
    counted,
)
from speech3.evaluate.picture import SIGNATURE, FeatureStatistics, Picture, Pitch
from speech3.features import finish_features, mel_edges, mel_to_hertz, silent_frames, static_dim, static_features
from speech3.frames import open_packed
from speech3.hmm import frame_clock
from speech3.io import FEATURES_FILE, ark_entries, is_ark, is_integer_ark, read_matrix, read_scp
from speech3.runtime import check_output, progress

_MOST_HEARD_S = 600.0
_PIECE_S = 60.0
_SILENCE_S = 0.01  # least duration of equal samples that counts as digital silence
_FULL_SCALE = 32767 / 32768

Lines = list[tuple[str, str]]
MOST_READ = 1000  # utterances, for the statistics
MOST_DRAWN_S = 60.0
_UNDERSTOOD = (
    "speech3 inspect reads recordings (wav, flac, ogg, mp3, sphere, ...), Kaldi archives of features (.ark), lists of"
    " features or recordings (.scp), and packed frames (.frames)"
)
_PACKED = b"SP3FRAME"
_SENONES_SHOWN = 5
_JUDGED_S = 60.0  # of a recording of several channels: which of them are silent


def recording_lines(path: Path) -> Lines:
    about, channels = audio.info(path), "1 channel"
    if about.channels > 1:
        why = audio.channel_mix(path, most_s=_JUDGED_S).why
        channels = f"{about.channels} channels" + (f" ({why})" if why else ", which are averaged")
    return [("file", f"{path}: recording, {about.sample_rate_hz:,} Hz, {channels}, {about.duration_s:.2f} s")]


def recordings_lines(path: Path, entries: Mapping[str, str], most: int) -> Lines:
    """A description of the first `most` recordings of a ``wav.scp``, from their headers."""
    rates: dict[str, int] = {}
    seconds: dict[str, float] = {}
    bad: dict[str, str] = {}
    for name in progress(list(islice(entries, most)), min(most, len(entries)), "headers"):
        try:
            about = audio.info(entries[name], directory=path.parent)
        except Speech3Error as error:
            bad[name] = str(error)
            continue
        kind = f"{about.sample_rate_hz:,} Hz" + (f" {about.channels} channels" if about.channels > 1 else "")
        rates[kind] = rates.get(kind, 0) + 1
        seconds[name] = about.duration_s
    lines = [("file", f"{path}: list of {len(entries):,} recordings")]
    if len(entries) > most:
        lines.append(("read", f"the headers of the first {most:,}"))
    if seconds:
        kinds = ", ".join(f"{kind} ({count:,})" if len(rates) > 1 else kind for kind, count in rates.items())
        shortest, longest = min(seconds, key=lambda name: seconds[name]), max(seconds, key=lambda name: seconds[name])
        lines.append(("sound", f"{sum(seconds.values()) / 3600:.2f} h at {kinds}"))
        lines.append(("lengths", f"{seconds[shortest]:.2f} s ({shortest}) to {seconds[longest]:.2f} s ({longest})"))
    if bad:
        lines.append(("unreadable", f"{len(bad):,}; the first: {next(iter(bad.values()))}"))
    return lines


@dataclass(frozen=True)
class InspectedSound:
    """A recording, or an utterance within one; `place` is as in a ``wav.scp`` of `directory`."""

    name: str
    place: Path | str
    directory: Path | None = None
    start_s: float = 0.0
    end_s: float | None = None

    def duration_s(self) -> float:
        """Duration of the part, up to the end of the recording if `end_s` is None; an error if there is none."""
        whole_s = audio.info(self.place, directory=self.directory).duration_s
        duration_s = min(self.end_s or whole_s, whole_s) - self.start_s
        if duration_s <= 0:
            raise MismatchError(
                f"{self.name}: begins at {self.start_s:g} s, but its recording ends at {whole_s:g} s; correct segments"
            )
        return duration_s

    def read(self, start_s: float, end_s: float, rate_hz: int | None = None) -> tuple[np.ndarray, int]:
        """Samples (S,) and their rate, as from `audio.read_file`; times are relative to the start of the part."""
        return audio.read_file(
            self.place,
            directory=self.directory,
            start_s=self.start_s + start_s,
            end_s=self.start_s + end_s,
            sample_rate_hz=rate_hz,
            resample=True,
            mix_channels=True,
        )


def draw_recording(sound: InspectedSound, preset: FeatureConfig, most_s: float) -> tuple[Lines, Picture]:
    """Statistics of a recording, and its waveform, features and pitch, of at most `most_s` seconds."""
    if preset.kind == "given":
        raise SettingError("--features: given features are not computed from a recording; choose another preset")
    whole_s, name = sound.duration_s(), sound.name
    lines = _heard(sound, whole_s)
    wave_S, rate_hz = sound.read(0.0, min(most_s, whole_s), preset.sample_frequency)
    config = preset.model_copy(update={"sample_frequency": rate_hz})
    feats_TF = _features_of_sound(wave_S, config, name)
    pitch, clock = _pitch(wave_S, config), frame_clock(config)
    statistics = FeatureStatistics(feats_TF.shape[1])
    statistics.add(name, feats_TF)
    cut = f" (the first {most_s:g} s of {whole_s:,.1f})" if whole_s > most_s else ""
    lines += [("drawn", f"{name}{cut}"), *statistics.lines(config.frame_shift), _pitch_line(pitch)]
    picture = Picture(
        title=f"{name}{cut}",
        feats_TF=feats_TF,
        shift_s=clock.shift_s,
        offset_s=clock.offset_s,
        centres_hz=bin_centres(config, feats_TF.shape[1]),
        blocks=(config.deltas + 1) * (config.left_context + 1 + config.right_context),
        wave_S=wave_S,
        sample_rate_hz=rate_hz,
        pitch=pitch,
        statistics=statistics,
    )
    return lines, picture


def _heard(sound: InspectedSound, whole_s: float) -> Lines:
    """Level, clipping and digital silence, piece by piece."""
    heard_s = min(whole_s, _MOST_HEARD_S)
    peak = total = energy = 0.0
    clipped = silent = samples = rate_hz = 0
    for start_s, end_s in pairwise(np.linspace(0, heard_s, 1 + ceil(heard_s / _PIECE_S)).tolist()):
        wave_S, rate_hz = sound.read(start_s, end_s)
        peak = max(peak, float(np.abs(wave_S).max()))
        total += float(wave_S.sum(dtype=np.float64))
        energy += float(np.square(wave_S, dtype=np.float64).sum())
        clipped += int((np.abs(wave_S) >= _FULL_SCALE).sum())
        silent += _in_runs(wave_S, round(_SILENCE_S * rate_hz))
        samples += len(wave_S)
    rms = np.sqrt(energy / samples)
    lines = [] if heard_s == whole_s else [("heard", f"the first {heard_s:g} s")]
    lines.append(("level", f"peak {_decibels(peak)}, RMS {_decibels(rms)} of full scale; mean {total / samples:.2g}"))
    lines.append(("clipped", f"{counted(clipped, 'sample')} at full scale" if clipped else "no sample at full scale"))
    unchanged = f"digital: {silent / rate_hz:.2f} s in which samples do not change"
    lines.append(("silence", unchanged if silent else "no digital silence"))
    return lines


def _in_runs(wave_S: np.ndarray, least: int) -> int:
    """Number of samples that are in runs of at least `least` equal samples."""
    boundaries = np.flatnonzero(np.diff(wave_S)) + 1
    runs = np.diff(np.concatenate([[0], boundaries, [len(wave_S)]]))
    return int(runs[runs >= max(least, 2)].sum())


def _decibels(value: float) -> str:
    return f"{20 * np.log10(value):.1f} dB" if value > 0 else "0 (silence)"


def _features_of_sound(wave_S: np.ndarray, config: FeatureConfig, name: str) -> np.ndarray:
    waves_NS, lengths_N = torch.from_numpy(wave_S)[None], torch.tensor([len(wave_S)])
    feats_NTF, frames_N = static_features(waves_NS, lengths_N, config, config.sample_frequency or 0)
    if not frames_N[0]:
        raise DataError(f"{name}: shorter than one frame ({config.frame_length:g} ms): nothing to draw")
    if config.cmvn == "global" and config.global_stats is None:  # the only recording's statistics are the global ones
        config = config.model_copy(update={"cmvn": "utterance"})
    silent_T = silent_frames(waves_NS[0], len(feats_NTF[0]), config, config.sample_frequency or 0)
    return finish_features([feats_NTF[0]], config, [silent_T])[0].numpy()


def bin_centres(config: FeatureConfig, dim: int) -> np.ndarray | None:
    """Centre frequency in Hz of each dimension (F,), if all dimensions are mel bins; else None."""
    if config.kind != "fbank" or dim != config.num_mel_bins or config.sample_frequency is None:
        return None
    return mel_to_hertz(mel_edges(config, config.sample_frequency)[1:-1])


def _pitch(wave_S: np.ndarray, config: FeatureConfig) -> Pitch | None:
    from speech3.features import track_pitch, voicing_probability

    pitch, rate_hz = config.pitch or PitchConfig(), config.sample_frequency or 0
    if rate_hz < 2 * pitch.lowpass_cutoff:
        return None
    tracked = FeatureConfig(pitch=pitch)
    raw_NT2, frames_N = track_pitch(torch.from_numpy(wave_S)[None], torch.tensor([len(wave_S)]), tracked, rate_hz)
    raw_T2 = raw_NT2[0, : int(frames_N[0])]
    if len(raw_T2) < 2:
        return None
    clock = frame_clock(tracked)
    times_s = clock.offset_s + (np.arange(len(raw_T2)) + 0.5) * clock.shift_s
    return Pitch(times_s, raw_T2[:, 1].numpy(), voicing_probability(raw_T2[:, 0]).numpy())


def _pitch_line(pitch: Pitch | None) -> tuple[str, str]:
    if pitch is None:
        return "pitch", "none: the recording is too short, or its sample rate too low"
    voiced = pitch.voicing > 0.5
    if not voiced.any():
        return "pitch", "no voiced frame"
    low, middle, high = np.percentile(pitch.hz[voiced], (5, 50, 95))
    share = f"{100 * voiced.mean():.0f} % of {len(voiced):,} frames voiced"
    return "pitch", f"{share}; median {middle:.0f} Hz, 90 % within {low:.0f} to {high:.0f} Hz"


@dataclass(frozen=True)
class Inspection:
    """The result of an inspection: pairs of a name and a text, and a picture to draw."""

    lines: list[tuple[str, str]]
    picture: Picture


def inspect(path: Path, preset: FeatureConfig, utterance: str | None = None) -> Inspection:
    """Compute statistics and a picture of a file; of a recording with the features of `preset`.

    Raises `Speech3Error`: the file is missing, damaged, or not of a supported kind (the message lists these); it has no
    such utterance.
    """
    if not path.is_file():
        what = "a directory; pass one of its files" if path.is_dir() else "no such file"
        raise FormatError(f"{path}: {what}; {_UNDERSTOOD}")
    with path.open("rb") as stream:
        head = stream.read(4096)
    if head.startswith(_PACKED):
        return _packed(path, utterance)
    if is_ark(head):
        return _archive(path, utterance)
    if is_integer_ark(head):
        raise FormatError(f"{path}: is an archive of integer vectors (an alignment?), not of features; {_UNDERSTOOD}")
    if utterance is not None and not _is_list(head):
        raise SettingError(f"{path}: --utterance {utterance}: the file is a single recording; remove the option")
    try:
        if _is_list(head):
            return _list(path, preset, utterance)
        lines = recording_lines(path)
    except Speech3Error as error:
        if path.suffix == ".scp":
            raise
        raise error.restated(f"{error}\n{path}: {_UNDERSTOOD}") from error
    found, picture = draw_recording(InspectedSound(path.name, path), preset, MOST_DRAWN_S)
    return Inspection([*lines, *found], picture)


def picture_path(path: Path, out: Path | None, *others: Path | None) -> Path:
    """Path of the picture: `out`, or else the name of the file with .png, in the working directory.

    An existing file of that name is replaced if it is a picture that `out` names, or one of these; else it is an error.
    So is `out` if it is the `path` that is drawn, or one of the `others` that are read.
    """
    if out is not None:
        check_output(out, [path, *others], kind=("a PNG picture", _is_png), option="--out ")
        return out
    place = Path(path.with_suffix(".png").name)
    if place.exists() and not (place.is_file() and SIGNATURE.encode() in place.read_bytes()[:4096]):
        raise OccupiedError(f"{place}: exists, and was not written by speech3 inspect; choose another name with --out")
    return place


def _is_png(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(8) == b"\x89PNG\r\n\x1a\n"


def _is_list(head: bytes) -> bool:
    first = head.partition(b"\n")[0]
    return b"\0" not in first and len(first.split()) >= 2 and _decodes(head)


def _decodes(head: bytes) -> bool:
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start > len(head) - 4  # a character may be cut off at the end of `head`
    return True


def _list(path: Path, preset: FeatureConfig, utterance: str | None) -> Inspection:
    entries = read_scp(path)
    if not entries:
        raise DataError(f"{path}: holds no utterance")
    if utterance is not None and utterance not in entries and (path.parent / "segments").exists():
        sound = _segment(path, utterance)
        found, picture = draw_recording(sound, preset, MOST_DRAWN_S)
        return Inspection([*recordings_lines(path, entries, MOST_READ), *found], picture)
    name = _chosen(path, entries, utterance)
    location = entries[name]
    if _looks_like_features(location, path.parent):
        return _features(path, entries, name, f"list of features, {counted(len(entries), 'utterance')}")
    paths.check(path, entries)
    lines = recordings_lines(path, entries, MOST_READ)
    found, picture = draw_recording(InspectedSound(name, location, path.parent), preset, MOST_DRAWN_S)
    return Inspection([*lines, *found], picture)


def _segment(path: Path, utterance: str) -> InspectedSound:
    data = read_datadir(path.parent)
    found = data.utterances[_chosen(path.parent / "segments", data.utterances, utterance)]
    return InspectedSound(utterance, data.recording(found), path.parent, found.start_s, found.end_s)


def _chosen(path: Path, names: Iterable[str], utterance: str | None) -> str:
    if utterance is None:
        return next(iter(names))
    if utterance in names:
        return utterance
    some = ", ".join(islice(names, 3))
    raise MissingError(f"{path}: no utterance {utterance}; choose one of its utterances, for instance: {some}")


def _looks_like_features(location: str, directory: Path) -> bool:
    if location.endswith("|"):
        return False
    try:
        read_matrix(location, directory)
    except Speech3Error:
        return ".ark" in location  # so that the error message is about an archive
    return True


def _archive(path: Path, utterance: str | None) -> Inspection:
    entries: dict[str, str] = {}
    whole = True
    for name, location in ark_entries(path):
        if len(entries) == MOST_READ:
            whole = False
            if utterance is None or utterance in entries:
                break
            if name != utterance:
                continue
        entries[name] = location
    if not entries:
        raise DataError(f"{path}: holds no utterance")
    name = _chosen(path, entries, utterance)
    said = f"archive of features, {counted(len(entries), 'utterance')}" if whole else "archive of features"
    return _features(path, entries, name, said)


def _features(path: Path, entries: Mapping[str, str], drawn: str, what: str) -> Inspection:
    feats_TF = _matrix(path, drawn, entries[drawn])
    bad: dict[str, str] = {}

    def read() -> Iterator[tuple[str, np.ndarray]]:
        names = list(islice(entries, MOST_READ))
        for name in progress(names, len(names), "read"):
            try:
                yield name, _matrix(path, name, entries[name])
            except Speech3Error as error:
                bad[name] = str(error)

    config = config_beside(path)
    statistics = _statistics(path, feats_TF.shape[1], read())
    lines = [("file", f"{path}: {what}"), *_how_many(statistics, len(entries), bad)]
    lines += statistics.lines(config.frame_shift if config else 10.0)
    lines.append(("drawn", f"{drawn}: {counted(len(feats_TF), 'frame')}"))
    return Inspection(lines, _picture(f"{path.name}: {drawn}", feats_TF, config, statistics))


def _matrix(path: Path, name: str, location: str) -> np.ndarray:
    try:
        matrix = read_matrix(location, path.parent)
    except Speech3Error as error:
        raise error.restated(f"{path}: {name}: {error}") from error
    if matrix.ndim != 2 or not matrix.size:
        raise FormatError(f"{path}: {name}: {location}: not a matrix, or an empty one")
    return matrix


def _statistics(path: Path, dim: int, utterances: Iterable[tuple[str, np.ndarray]]) -> FeatureStatistics:
    statistics = FeatureStatistics(dim)
    for name, feats_TF in utterances:
        if feats_TF.shape[1] != dim:
            raise MismatchError(f"{path}: {name}: {feats_TF.shape[1]} values per frame, but others have {dim}")
        statistics.add(name, feats_TF)
    return statistics


def _how_many(statistics: FeatureStatistics, there: int, bad: Mapping[str, str]) -> list[tuple[str, str]]:
    lines = []
    if statistics.utterances + len(bad) < there or there == MOST_READ:
        lines.append(("read", f"the first {statistics.utterances:,} utterances; all statistics below cover only these"))
    if bad:
        lines.append(("unreadable", f"{counted(len(bad), 'utterance')}; the first: {next(iter(bad.values()))}"))
    return lines


def config_beside(path: Path) -> FeatureConfig | None:
    file = path.parent / FEATURES_FILE
    return parse(FeatureConfig, read_yaml(file), file) if file.exists() else None


def _picture(
    title: str,
    feats_TF: np.ndarray,
    config: FeatureConfig | None,
    statistics: FeatureStatistics | None = None,
    senones_T: np.ndarray | None = None,
) -> Picture:
    clock = frame_clock(config or FeatureConfig())
    shown = round(MOST_DRAWN_S / clock.shift_s)
    if len(feats_TF) > shown:
        title += f" (the first {MOST_DRAWN_S:g} s of {len(feats_TF) * clock.shift_s:,.1f})"
    dim = feats_TF.shape[1]
    blocks, curves = parts_of_frames(config, dim)
    return Picture(
        title=title,
        feats_TF=feats_TF[:shown],
        shift_s=clock.shift_s,
        offset_s=clock.offset_s,
        blocks=blocks,
        centres_hz=bin_centres(config, dim) if config else None,
        curves=curves,
        senones_T=None if senones_T is None else senones_T[:shown],
        statistics=statistics,
    )


def parts_of_frames(config: FeatureConfig | None, dim: int) -> tuple[int, list[tuple[str, int]]]:
    """Number of groups of dimensions (derivatives, spliced frames), and the dimensions that are pitch features."""
    if config is None or config.kind == "given":
        return 1, []
    context, static = config.left_context + 1 + config.right_context, static_dim(config)
    blocks = context * (config.deltas + 1)
    if dim != blocks * static:
        return 1, []
    pitch = config.pitch
    if pitch is None:
        return blocks, []
    wanted = {
        "POV feature": pitch.add_pov_feature,
        "normalised log pitch": pitch.add_normalized_log_pitch,
        "delta pitch": pitch.add_delta_pitch,
        "log pitch": pitch.add_raw_log_pitch,
    }
    first = config.left_context * (config.deltas + 1) * static + static - pitch.dim
    return blocks, [(name, first + i) for i, name in enumerate(name for name, there in wanted.items() if there)]


def _packed(path: Path, utterance: str | None) -> Inspection:
    packed = open_packed(path)
    drawn = packed.utterances.index(_chosen(path, packed.utterances, utterance))
    config, offsets = config_beside(path), packed.offsets_U1
    read = min(MOST_READ, len(packed.utterances))
    numbers = progress(range(read), read, "read")
    feats = ((packed.utterances[u], packed.frames_NF[offsets[u] : offsets[u + 1]]) for u in numbers)
    statistics = _statistics(path, packed.dim, feats)
    shift_ms = config.frame_shift if config else 10.0
    hours = len(packed) * shift_ms / 3.6e6
    what = f"packed frames ({packed.frames_NF.dtype}), {counted(len(packed.utterances), 'utterance')}"
    lines = [("file", f"{path}: {what}, {len(packed):,} frames ({hours:.2f} h)")]
    lines += _how_many(statistics, len(packed.utterances), {}) + statistics.lines(shift_ms)
    lines += _senone_lines(packed.counts_S)
    lines.append(("noted", ", ".join(f"{key}: {value}" for key, value in packed.info.items()) or "nothing"))
    here = slice(offsets[drawn], offsets[drawn + 1])
    name, senones_T = packed.utterances[drawn], np.asarray(packed.senones_N[here])
    lines.append(("drawn", f"{name}: {here.stop - here.start:,} frames"))
    return Inspection(lines, _picture(f"{path.name}: {name}", packed.frames_NF[here], config, statistics, senones_T))


def _senone_lines(counts_S: np.ndarray) -> list[tuple[str, str]]:
    share_S = counts_S / counts_S.sum()
    often = ", ".join(f"{s} ({100 * share_S[s]:.1f} %)" for s in np.argsort(-counts_S, kind="stable")[:_SENONES_SHOWN])
    seen_S = share_S[counts_S > 0]
    perplexity = float(np.exp(-(seen_S * np.log(seen_S)).sum()))
    never = len(counts_S) - len(seen_S)
    occur = "occurs" if never == 1 else "occur"
    return [
        ("senones", f"{len(counts_S):,}, of which {never:,} never {occur}; perplexity {perplexity:.1f}"),
        ("most often", often),
    ]
