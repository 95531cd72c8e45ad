"""Recordings without transcripts, and the parts of others that no utterance covers."""

import filecmp
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from speech3.corpora.pairs import recordings_in, stem
from speech3.data import AudioError, DataDir, Utterance, info, moved_value, read_datadir, resolve_path, segment_name
from speech3.errors import DataError, MissingError
from speech3.runtime import progress, say

UNTRANSCRIBED = "untranscribed=DIR"
_MIN_S = 0.5  # a shorter stretch between two utterances is a pause
_MARGIN_S = 0.05  # around utterances, whose borders are drawn by hand


def read_untranscribed(source: Path, known: Sequence[DataDir], key: str = UNTRANSCRIBED) -> DataDir:
    """Read a folder of recordings, or a Kaldi data directory, without its text.

    What `known` has utterances of is left out, so that no utterance of dev and test gets into training: also copies of
    its recordings, and, in a folder, a recording beside a known one that differs from it only in its format. `key` is
    what passes `source`, for messages.
    """
    # The recordings, and the parts of each that count.
    if not source.is_dir():
        raise MissingError(f"{source}: no such directory; pass a folder of recordings as {key}")
    spans: dict[str, list[tuple[float, float | None]]] = {}
    if (source / "wav.scp").is_file():
        data = read_datadir(source)
        for utterance in data.utterances.values():
            spans.setdefault(utterance.recording, []).append((utterance.start_s, utterance.end_s))
        paths = {key: _absolute(value, source) for key, value in data.recordings.items()}
    else:
        paths = _named(source)
        spans = {key: [(0.0, None)] for key in paths}
    if not paths:
        raise MissingError(f"{source}: no recordings (wav, flac, mp3, ...); pass a folder that has some")
    # What is left of them, beside the utterances of `known`.
    covered = _covered(known)
    copies = _copies_of_known(paths, covered)
    for recording, original in copies.items():
        say(f"  left out: {paths[recording]}: is the same recording as {original}")
    spans = {key: each for key, each in spans.items() if key not in copies}
    utterances: dict[str, Utterance] = {}
    for recording in progress(spans, len(spans), f"headers of {source}"):
        try:
            length_s = info(paths[recording], directory=source).duration_s
        except AudioError as error:
            say(f"  left out: {error}")
            continue
        for start_s, end_s in spans[recording]:
            for begin_s, stop_s in _free(start_s, end_s or length_s, covered.get(paths[recording], ())):
                name = segment_name(recording, begin_s, stop_s)
                utterances[name] = Utterance(name, recording, recording, None, begin_s, stop_s)
    if not utterances:
        raise DataError(
            f"{source}: nothing is left without a transcript: {', '.join(each.path.name for each in known)} have"
            f" utterances of all of it; pass other recordings as {key}"
        )
    used = {utterance.recording for utterance in utterances.values()}
    return DataDir(source, {key: paths[key] for key in sorted(used)}, dict(sorted(utterances.items())))


def _named(source: Path) -> dict[str, str]:
    """The recordings of a folder by name: the path in it, with _ for what a name must not contain."""
    paths: dict[str, str] = {}
    for path in recordings_in(source):
        name = "_".join("_".join(path.relative_to(source).parts).split())
        if name in paths:
            raise DataError(f"{source}: {path} and {paths[name]} would both have the name {name}; rename one of them")
        paths[name] = str(path.resolve())
    return paths


def _copies_of_known(paths: Mapping[str, str], covered: Mapping[str, object]) -> dict[str, str]:
    """The recordings that are copies of known ones, or the same in another format, and the original of each."""
    known = [Path(path) for path in covered if not path.endswith("|")]
    stems = {(path.parent, stem(path).casefold()): path for path in known}
    sizes: dict[int, list[Path]] = {}
    for path in known:
        if path.is_file():
            sizes.setdefault(path.stat().st_size, []).append(path)
    found: dict[str, str] = {}
    for name, location in paths.items():
        path = Path(location)
        if location in covered or location.endswith("|") or not path.is_file():
            continue
        twin = stems.get((path.parent, stem(path).casefold()))
        same = (each for each in sizes.get(path.stat().st_size, ()) if filecmp.cmp(path, each, shallow=False))
        if original := twin or next(same, None):
            found[name] = str(original)
    return found


def _absolute(location: str, directory: Path) -> str:
    if location.endswith("|"):
        return moved_value(location, directory, Path.cwd())
    return str(resolve_path(location, directory).resolve())


def _covered(known: Iterable[DataDir]) -> dict[str, list[tuple[float, float]]]:
    spans: dict[str, list[tuple[float, float]]] = {}
    for data in known:
        for utterance in data.utterances.values():
            path = _absolute(data.recordings[utterance.recording], data.path)
            end_s = float("inf") if utterance.end_s is None else utterance.end_s
            spans.setdefault(path, []).append((utterance.start_s, end_s))
    return {path: sorted(each) for path, each in spans.items()}


def _free(start_s: float, end_s: float, covered: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The stretches from `start_s` to `end_s` that lie outside the sorted spans, without pauses between these."""
    if not covered:
        return [(start_s, end_s)]
    free, at_s = [], start_s
    for begin_s, stop_s in covered:
        free.append((at_s, min(begin_s - _MARGIN_S, end_s)))
        at_s = max(at_s, stop_s + _MARGIN_S)
    free.append((at_s, end_s))
    return [(begin_s, stop_s) for begin_s, stop_s in free if stop_s - begin_s >= _MIN_S]
