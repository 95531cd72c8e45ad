"""The length of each utterance: from the headers of the audio, from `segments`, or from the features."""

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from speech3.corpus.audio import AudioInfo, channel_mix, info
from speech3.corpus.datadir import DataDir, Utterance
from speech3.corpus.paths import resolve
from speech3.errors import Speech3Error, check_bad
from speech3.io.progress import progress, say

FRAMES_PER_S = 100  # of features without audio: their frame shift is not recorded, but is nearly always 10 ms
_HEARD_S = 60.0  # of each recording with several channels
# A command that converts a whole recording: `sph2pipe -f wav FILE |`.
_SPH2PIPE = re.compile(r"(?:\S*/)?sph2pipe (?:-f wav |-p |-c [12] )*(?:'([^']+)'|([^\s'\"]+)) *\|")


@dataclass(frozen=True)
class Headers:
    """What the headers of the audio say."""

    infos: dict[str, AudioInfo]  # by recording
    bad: dict[str, str]  # utterances whose recording cannot be read, and why


def read_headers(data: DataDir) -> Headers:
    """Read the header of each recording that has utterances."""
    used: dict[str, list[Utterance]] = {}
    for utterance in data.utterances.values() if data.recordings else ():
        used.setdefault(utterance.recording, []).append(utterance)
    found = Headers({}, {})
    for recording in progress(used, len(used), f"headers of {data.path}"):
        try:
            found.infos[recording] = info(data.recordings[recording], directory=data.path)
        except Speech3Error as error:
            found.bad.update((utterance.id, str(error)) for utterance in used[recording])
    if lacking := [header.missing_s for header in found.infos.values() if header.missing_s]:
        say(
            f"{len(lacking)} of the {len(used)} recordings of {data.path} end up to {1000 * max(lacking):.0f} ms before"
            " the end given in their headers; the rest is used"
        )
    say_claims({data.recordings[recording]: header.claim for recording, header in found.infos.items() if header.claim})
    return found


def say_claims(claims: Mapping[str, str]) -> None:
    """Print how many recordings have another length than their headers say, and how the first one differs."""
    if claims:
        name, claim = next(iter(claims.items()))
        more = f"; {len(claims) - 1:,} more recordings have such a header" if len(claims) > 1 else ""
        say(f"{name}: {claim}; the audio in the file is read{more}")


def mixes_of(recordings: Mapping[str, str], directory: Path) -> dict[str, str]:
    """For recordings of which not all channels become one by averaging, judged by their begin, which ones and why."""
    found = {}
    for recording in progress(recordings, len(recordings), "channels") if recordings else ():
        try:
            mix = channel_mix(recordings[recording], directory=directory, most_s=_HEARD_S)
        except Speech3Error:
            continue  # whoever reads the recording will report it
        if mix.why:
            found[recording] = mix.why
    return found


def lengths_s(data: DataDir, headers: Headers | None = None) -> dict[str, float]:
    """Length in seconds of each utterance for which it can be determined; the others are listed on stderr.

    Parameters
    ----------
    headers
        Pass them if they were already read; None reads those of the utterances whose segments have no end.

    Raises
    ------
    Speech3Error
        More than 5 % of the utterances have no length.
    """
    known_s = {} if headers else _of_sph2pipe(data)
    opened = (key for key, utt in data.utterances.items() if utt.end_s is None and utt.recording not in known_s)
    headers = headers or read_headers(data.subset(opened))
    known_s |= {recording: header.duration_s for recording, header in headers.infos.items()}
    lengths, bad = {}, dict(headers.bad)
    for key, utterance in data.utterances.items():
        end_s = known_s.get(utterance.recording) if utterance.end_s is None else utterance.end_s
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


def sphere_length_s(path: Path) -> float | None:
    """Length in seconds of a NIST sphere file, from its header, even if it is compressed; None if it has none."""
    try:
        with path.open("rb") as stream:
            head = stream.read(1024).decode("latin-1")
    except OSError:
        return None
    found = [re.search(rf"^{key} -i ([1-9]\d*)", head, re.MULTILINE) for key in ("sample_count", "sample_rate")]
    return int(found[0][1]) / int(found[1][1]) if head.startswith("NIST_1A") and found[0] and found[1] else None


def _of_sph2pipe(data: DataDir) -> dict[str, float]:
    """Length of each recording that sph2pipe converts, from the header of its file: running it for each takes long."""
    found = {}
    for recording, value in data.recordings.items():
        match = _SPH2PIPE.fullmatch(value) if value.endswith("|") else None
        if match and (length := sphere_length_s(resolve(match[1] or match[2], data.path))):
            found[recording] = length
    return found


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
    plain = re.match(rb"\0B[FD]M \x04(.{4})", head, re.DOTALL)
    match = compressed or plain
    if not match:
        raise ValueError("not a binary matrix")
    return int(struct.unpack("<i", match[1])[0])
