"""Statistics and a picture of a file: a recording, an archive of features, an scp of either, or packed frames.

From large files only a thousand utterances are read for the statistics, and one for the picture.

Axes: T frames, F features, S senones.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from speech3.alignment.times import frame_clock
from speech3.config import FeatureConfig, parse, read_yaml
from speech3.corpus import commands
from speech3.corpus.datadir import read_datadir
from speech3.errors import Speech3Error
from speech3.features.compute import static_dim
from speech3.frames.packed import open_packed
from speech3.io.ark import read_matrix, read_scp
from speech3.io.arkscan import ark_entries, is_ark, is_integer_ark
from speech3.io.progress import progress
from speech3.reports.inspect_sound import Sound, bin_centres, draw_recording, recording_lines, recordings_lines
from speech3.reports.picture import SIGNATURE, Picture
from speech3.reports.statistics import FeatureStatistics

MOST_READ = 1000  # utterances, for the statistics
MOST_DRAWN_S = 60.0
_UNDERSTOOD = (
    "speech3 inspect reads recordings (wav, flac, ogg, mp3, sphere, ...), Kaldi archives of features (.ark), lists of"
    " features or recordings (.scp), and packed frames (.frames)"
)
_PACKED = b"SP3FRAME"
_SENONES_SHOWN = 5


@dataclass(frozen=True)
class Inspection:
    """The result of an inspection: pairs of a name and a text, and a picture to draw."""

    lines: list[tuple[str, str]]
    picture: Picture


def inspect(path: Path, preset: FeatureConfig, utterance: str | None = None) -> Inspection:
    """Compute statistics and a picture of a file.

    Parameters
    ----------
    preset
        The features to compute from a recording.
    utterance
        The utterance to draw; None: the first.

    Raises
    ------
    Speech3Error
        The file is missing, damaged, or not of a supported kind (the message lists these); there is no such utterance.
    """
    if not path.is_file():
        what = "a directory; give one of its files" if path.is_dir() else "no such file"
        raise Speech3Error(f"{path}: {what}; {_UNDERSTOOD}")
    with path.open("rb") as stream:
        head = stream.read(4096)
    if head.startswith(_PACKED):
        return _packed(path, utterance)
    if is_ark(head):
        return _archive(path, utterance)
    if is_integer_ark(head):
        raise Speech3Error(f"{path}: is an archive of integer vectors (an alignment?), not of features; {_UNDERSTOOD}")
    if utterance is not None and not _is_list(head):
        raise Speech3Error(f"{path}: --utterance {utterance}: the file is a single recording; remove the option")
    try:
        if _is_list(head):
            return _list(path, preset, utterance)
        lines = recording_lines(path)
    except Speech3Error as error:
        if path.suffix == ".scp":
            raise
        raise Speech3Error(f"{error}\n{path}: {_UNDERSTOOD}") from error
    found, picture = draw_recording(Sound(path.name, path), preset, MOST_DRAWN_S)
    return Inspection([*lines, *found], picture)


def picture_path(path: Path, out: Path | None) -> Path:
    """Path of the picture: `out`, or else the name of the file with .png, in the working directory.

    Raises
    ------
    Speech3Error
        A file of that name exists and is not such a picture (a file that `out` names is replaced, however).
    """
    if out is not None:
        return out
    place = Path(path.with_suffix(".png").name)
    if place.exists() and not (place.is_file() and SIGNATURE.encode() in place.read_bytes()[:4096]):
        raise Speech3Error(f"{place}: exists, and was not written by speech3 inspect; give another name with --out")
    return place


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
        raise Speech3Error(f"{path}: holds no utterance")
    if utterance is not None and utterance not in entries and (path.parent / "segments").exists():
        sound = _segment(path, utterance)
        found, picture = draw_recording(sound, preset, MOST_DRAWN_S)
        return Inspection([*recordings_lines(path, entries, MOST_READ), *found], picture)
    name = _chosen(path, entries, utterance)
    location = entries[name]
    if _looks_like_features(location, path.parent):
        return _features(path, entries, name, f"list of features, {len(entries):,} utterances")
    commands.check(path, entries)
    lines = recordings_lines(path, entries, MOST_READ)
    found, picture = draw_recording(Sound(name, location, path.parent), preset, MOST_DRAWN_S)
    return Inspection([*lines, *found], picture)


def _segment(path: Path, utterance: str) -> Sound:
    data = read_datadir(path.parent)
    found = data.utterances[_chosen(path.parent / "segments", data.utterances, utterance)]
    return Sound(utterance, data.recording(found), path.parent, found.start_s, found.end_s)


def _chosen(path: Path, names: Iterable[str], utterance: str | None) -> str:
    if utterance is None:
        return next(iter(names))
    if utterance in names:
        return utterance
    some = ", ".join(islice(names, 3))
    raise Speech3Error(f"{path}: no utterance {utterance}; choose one of its utterances, for instance: {some}")


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
        raise Speech3Error(f"{path}: holds no utterance")
    name = _chosen(path, entries, utterance)
    said = f"archive of features, {len(entries):,} utterances" if whole else "archive of features"
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

    config = _config_beside(path)
    statistics = _statistics(path, feats_TF.shape[1], read())
    lines = [("file", f"{path}: {what}"), *_how_many(statistics, len(entries), bad)]
    lines += statistics.lines(config.frame_shift if config else 10.0)
    lines.append(("drawn", f"{drawn}: {len(feats_TF):,} frames"))
    return Inspection(lines, _picture(f"{path.name}: {drawn}", feats_TF, config, statistics))


def _matrix(path: Path, name: str, location: str) -> np.ndarray:
    try:
        matrix = read_matrix(location, path.parent)
    except Speech3Error as error:
        raise Speech3Error(f"{path}: {name}: {error}") from error
    if matrix.ndim != 2 or not matrix.size:
        raise Speech3Error(f"{path}: {name}: {location}: not a matrix, or an empty one")
    return matrix


def _statistics(path: Path, dim: int, utterances: Iterable[tuple[str, np.ndarray]]) -> FeatureStatistics:
    statistics = FeatureStatistics(dim)
    for name, feats_TF in utterances:
        if feats_TF.shape[1] != dim:
            raise Speech3Error(f"{path}: {name}: {feats_TF.shape[1]} values per frame, but others have {dim}")
        statistics.add(name, feats_TF)
    return statistics


def _how_many(statistics: FeatureStatistics, there: int, bad: Mapping[str, str]) -> list[tuple[str, str]]:
    lines = []
    if statistics.utterances + len(bad) < there or there == MOST_READ:
        lines.append(("read", f"the first {statistics.utterances:,} utterances; all statistics below cover only these"))
    if bad:
        lines.append(("unreadable", f"{len(bad):,} utterances; the first: {next(iter(bad.values()))}"))
    return lines


def _config_beside(path: Path) -> FeatureConfig | None:
    file = path.parent / "features.yaml"
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
    blocks, curves = _parts_of_frames(config, dim)
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


def _parts_of_frames(config: FeatureConfig | None, dim: int) -> tuple[int, list[tuple[str, int]]]:
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
        "POV feature": pitch.add_pov_feature, "normalised log pitch": pitch.add_normalized_log_pitch,
        "delta pitch": pitch.add_delta_pitch, "log pitch": pitch.add_raw_log_pitch,
    }  # fmt: skip
    first = config.left_context * (config.deltas + 1) * static + static - pitch.dim
    return blocks, [(name, first + i) for i, name in enumerate(name for name, there in wanted.items() if there)]


def _packed(path: Path, utterance: str | None) -> Inspection:
    packed = open_packed(path)
    drawn = packed.utterances.index(_chosen(path, packed.utterances, utterance))
    config, offsets = _config_beside(path), packed.offsets_U1
    read = min(MOST_READ, len(packed.utterances))
    numbers = progress(range(read), read, "read")
    feats = ((packed.utterances[u], packed.frames_NF[offsets[u] : offsets[u + 1]]) for u in numbers)
    statistics = _statistics(path, packed.dim, feats)
    shift_ms = config.frame_shift if config else 10.0
    hours = len(packed) * shift_ms / 3.6e6
    what = f"packed frames ({packed.frames_NF.dtype}), {len(packed.utterances):,} utterances"
    lines = [
        ("file", f"{path}: {what}, {len(packed):,} frames ({hours:.2f} h)"),
        *_how_many(statistics, len(packed.utterances), {}), *statistics.lines(shift_ms),
        *_senone_lines(packed.counts_S),
        ("noted", ", ".join(f"{key}: {value}" for key, value in packed.info.items()) or "nothing"),
    ]  # fmt: skip
    here = slice(offsets[drawn], offsets[drawn + 1])
    name = packed.utterances[drawn]
    lines.append(("drawn", f"{name}: {here.stop - here.start:,} frames"))
    picture = _picture(
        f"{path.name}: {name}", packed.frames_NF[here], config, statistics, np.asarray(packed.senones_N[here])
    )
    return Inspection(lines, picture)


def _senone_lines(counts_S: np.ndarray) -> list[tuple[str, str]]:
    share_S = counts_S / counts_S.sum()
    often = ", ".join(f"{s} ({100 * share_S[s]:.1f} %)" for s in np.argsort(-counts_S, kind="stable")[:_SENONES_SHOWN])
    seen_S = share_S[counts_S > 0]
    perplexity = float(np.exp(-(seen_S * np.log(seen_S)).sum()))
    never = len(counts_S) - len(seen_S)
    return [
        ("senones", f"{len(counts_S):,}, of which {never:,} never occur; perplexity {perplexity:.1f}"),
        ("most often", often),
    ]
