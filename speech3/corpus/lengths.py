"""How long each utterance is: from the headers of the audio, from `segments`, or from the features."""

import re
import struct
from pathlib import Path

from speech3.corpus.audio import AudioInfo, info
from speech3.corpus.datadir import DataDir, Utterance
from speech3.corpus.paths import resolve
from speech3.errors import Speech3Error, check_bad
from speech3.io.progress import progress, say

FRAMES_PER_S = 100  # where there are only features: their shift is not written down, and it is 10 ms nearly everywhere


def headers(data: DataDir, bad: dict[str, str]) -> dict[str, AudioInfo]:
    """What the header of each used recording says; `bad` gets the utterances of those that cannot be read."""
    used: dict[str, list[Utterance]] = {}
    for utterance in data.utterances.values() if data.recordings else ():
        used.setdefault(utterance.recording, []).append(utterance)
    found = {}
    for recording in progress(used, len(used), f"headers of {data.path}"):
        try:
            found[recording] = info(data.recordings[recording], directory=data.path)
        except Speech3Error as error:
            bad.update((utterance.id, str(error)) for utterance in used[recording])
    return found


def lengths_s(data: DataDir, infos: dict[str, AudioInfo] | None = None) -> dict[str, float]:
    """Seconds of each utterance whose length can be known; the others are listed on stderr.

    Parameters
    ----------
    infos
        What `headers` found, if that was read already. Segments that say their end need no header.

    Raises
    ------
    Speech3Error
        More than 5 % of the utterances have no length.
    """
    bad: dict[str, str] = {}
    ends = {key: utt.end_s for key, utt in data.utterances.items()}
    if infos is None:
        infos = headers(data.subset(key for key, end_s in ends.items() if end_s is None), bad)
    lengths = {}
    for key, utterance in data.utterances.items():
        heard = infos.get(utterance.recording)
        end_s = ends[key] if ends[key] is not None else heard.duration_s if heard else None
        if end_s is not None:
            lengths[key] = max(end_s - utterance.start_s, 0.0)
        elif not data.recordings:
            try:
                lengths[key] = _frames(data.feats[key], data.path) / FRAMES_PER_S
            except (KeyError, OSError, ValueError) as error:
                bad[key] = f"{data.feats.get(key, 'no features')}: number of frames unknown ({error})"
    for key, reason in bad.items():
        say(f"length of {key} unknown: {reason}")
    check_bad(bad, len(data.utterances), str(data.path), "have no length")
    return lengths


def _frames(rspecifier: str, directory: Path) -> int:
    """Rows of a binary Kaldi matrix, from its header (matrix/kaldi-matrix.cc, matrix/compressed-matrix.cc)."""
    parts = re.fullmatch(r"(.*?)(?::(\d+))?(?:\[(?:(\d+):(\d+))?[^\]]*\])?", rspecifier)
    if not parts or parts[1].rstrip().endswith("|"):
        raise ValueError("not a file")
    if parts[3]:
        return int(parts[4]) - int(parts[3]) + 1
    with resolve(parts[1], directory).open("rb") as stream:
        stream.seek(int(parts[2] or 0))
        head = stream.read(22)
    compressed = re.match(rb"\0BCM[23]? .{8}(.{4})", head, re.DOTALL)
    plain = re.match(rb"\0B[FD]M \4(.{4})", head, re.DOTALL)
    match = compressed or plain
    if not match:
        raise ValueError("no binary matrix")
    return int(struct.unpack("<i", match[1])[0])
