"""Statistics of a data directory: hours, speakers, sample rates, words.

Lengths of utterances come from the headers of the audio, from `segments`, or from the features.
"""

import re
import struct
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from speech3.data.audio import AudioInfo, channel_mix, info
from speech3.data.datadir import IN_FOLDERS, DataDir, Utterance, is_datadir
from speech3.data.paths import resolve_path
from speech3.errors import Speech3Error, check_bad, counted
from speech3.runtime import progress, say

FRAMES_PER_S = 100  # of features without audio: their frame shift is not recorded, but is nearly always 10 ms
_HEARD_S = 60.0  # of each recording with several channels
# A command that converts a whole recording: `sph2pipe -f wav FILE |`.
_SPH2PIPE = re.compile(r"(?:\S*/)?sph2pipe (?:-f wav |-p |-c [12] )*(?:'([^']+)'|([^\s'\"]+)) *\|")
QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
_SHOWN = 10  # words outside the lexicon that `describe_corpus` lists


@dataclass(frozen=True)
class Words:
    """Statistics of the transcripts."""

    running: int
    distinct: int
    once: int  # words that occur once
    per_utterance: float
    per_second: float
    without: int  # utterances without a transcript


@dataclass(frozen=True)
class OutOfVocabulary:
    """Words of the transcripts that the lexicon lacks."""

    lexicon: int  # distinct words of the lexicon
    running: int
    rate: float  # share of the running words, 0 to 1
    distinct: int
    utterances: int  # those that contain at least one
    counts: dict[str, int]  # by word, the most frequent first
    other_case: int = 0  # of the distinct words, those that the lexicon has in another letter case


@dataclass(frozen=True)
class Headers:
    """What the headers of the audio say."""

    infos: dict[str, AudioInfo]  # by recording
    bad: dict[str, str]  # utterances whose recording cannot be read, and why


def lengths_s(data: DataDir, headers: Headers | None = None) -> dict[str, float]:
    """Length in seconds of each utterance for which it can be determined; the others are listed on stderr.

    Pass `headers` if they were already read; else those of the utterances whose segments have no end are.

    Raises `Speech3Error`: more than 5 % of the utterances have no length.
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


@dataclass(frozen=True)
class Stats:
    """What `speech3 stats` prints and writes."""

    path: str
    utterances: int
    speakers: int
    recordings: int
    genders: dict[str, int]  # speakers of each gender
    sample_rates_hz: dict[int, int]  # recordings with each rate
    channels: dict[int, int]  # recordings with each number of channels
    lengths_s: tuple[float, ...]  # of the utterances
    speaker_s: dict[str, float]  # by speaker
    words: Words | None
    out_of_vocabulary: OutOfVocabulary | None
    mixes: dict[str, str] = field(default_factory=dict)  # recordings of which not all channels are used, and why

    @property
    def hours(self) -> float:
        return sum(self.lengths_s) / 3600

    def as_json(self) -> dict[str, Any]:
        """All values except the lengths of single utterances; the keys name the units."""
        values = asdict(self)
        lengths_s, speaker_s = values.pop("lengths_s"), values.pop("speaker_s")
        return {
            **values,
            "hours": self.hours,
            "utterance_s": _spread(lengths_s),
            "speaker_minutes": _spread([seconds / 60 for seconds in speaker_s.values()]),
            "minutes_of_speaker": {name: seconds / 60 for name, seconds in speaker_s.items()},
        }


def measure_corpus(data: DataDir, lexicon: Collection[str] | None = None) -> Stats:
    """Compute the statistics, from the text files and the headers of the audio (of several channels, also their begin).

    `lexicon` are the words that have a pronunciation; None leaves out `out_of_vocabulary`. Errors: as `lengths_s`.
    """
    headers = read_headers(data)
    infos, lengths = headers.infos, lengths_s(data, headers)
    speakers = data.speakers()
    gender = {utt.speaker: utt.gender or "unknown" for utt in data.utterances.values()}
    texts = {key: utt.text.split() for key, utt in data.utterances.items() if utt.text}
    return Stats(
        path=str(data.path),
        utterances=len(data.utterances),
        speakers=len(speakers),
        recordings=len(infos),
        genders=dict(Counter(gender.values()).most_common()),
        sample_rates_hz=dict(Counter(each.sample_rate_hz for each in infos.values()).most_common()),
        channels=dict(Counter(each.channels for each in infos.values()).most_common()),
        lengths_s=tuple(lengths.values()),
        speaker_s={name: sum(lengths.get(key, 0.0) for key in keys) for name, keys in speakers.items()},
        words=_words(texts, lengths, len(data.utterances)) if texts else None,
        out_of_vocabulary=_missing(texts, set(lexicon)) if texts and lexicon is not None else None,
        mixes=channel_mixes({key: data.recordings[key] for key, each in infos.items() if each.channels > 1}, data.path),
    )


def _words(texts: dict[str, list[str]], lengths: dict[str, float], utterances: int) -> Words:
    counts = Counter(word for words in texts.values() for word in words)
    spoken = sum(len(words) for key, words in texts.items() if key in lengths)
    return Words(
        running=counts.total(),
        distinct=len(counts),
        once=sum(count == 1 for count in counts.values()),
        per_utterance=counts.total() / len(texts),
        per_second=spoken / max(sum(lengths[key] for key in texts if key in lengths), 1e-9),
        without=utterances - len(texts),
    )


def _missing(texts: dict[str, list[str]], lexicon: set[str]) -> OutOfVocabulary:
    counts = Counter(word for words in texts.values() for word in words if word not in lexicon)
    folded = {word.casefold() for word in lexicon}
    return OutOfVocabulary(
        lexicon=len(lexicon),
        running=counts.total(),
        rate=counts.total() / sum(map(len, texts.values())),
        distinct=len(counts),
        utterances=sum(any(word not in lexicon for word in words) for words in texts.values()),
        counts=dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))),
        other_case=sum(word.casefold() in folded for word in counts),
    )


def describe_corpus(stats: Stats) -> str:
    """Format the statistics for people to read."""
    counts = ", ".join(f"{count} {name}" for name, count in stats.genders.items())
    rows = [
        ("hours", f"{stats.hours:.2f}"),
        ("utterances", f"{stats.utterances:,}"),
        ("speakers", f"{stats.speakers:,}" + ("" if set(stats.genders) == {"unknown"} else f" ({counts})")),
    ]
    if stats.recordings:
        rows.append(("recordings", f"{stats.recordings:,} ({_each(stats.sample_rates_hz, 'Hz')})"))
        rows.append(("channels", _each(stats.channels, "")))
    else:
        rows.append(("recordings", "none: features only; seconds are frames / 100 if segments have no end"))
    spread = _spread(stats.lengths_s), _spread([seconds / 60 for seconds in stats.speaker_s.values()])
    lines = [f"{name:<12}{value}" for name, value in rows]
    lines.append("\n" + " " * 24 + "".join(f"{name:>8}" for name in spread[0]))
    for label, values in zip(("utterance, seconds", "speaker, minutes"), spread, strict=True):
        lines.append(f"{label:<24}" + "".join(f"{value:>8.2f}" for value in values.values()))
    if stats.words:
        w = stats.words
        lines += [
            "",
            f"{'words':<12}{w.running:,}, {w.per_utterance:.1f} per utterance, {w.per_second:.2f} per second",
            f"{'vocabulary':<12}{w.distinct:,}, of which {w.once:,} {'occurs' if w.once == 1 else 'occur'} once",
        ]
        if w.without:
            lines.append(f"{'no words':<12}{counted(w.without, 'utterance')} without a transcript")
    if stats.out_of_vocabulary:
        lines += _describe_missing(stats.out_of_vocabulary)
    return "\n".join(lines)


def _spread(values: Sequence[float]) -> dict[str, float]:
    points = np.quantile(values, QUANTILES)
    names = ["min", *(f"{100 * q:g}%" for q in QUANTILES[1:-1]), "max"]
    return {"mean": float(np.mean(values)), **dict(zip(names, map(float, points), strict=True))}


def _each(counts: dict[int, int], unit: str) -> str:
    if len(counts) == 1:
        return f"{next(iter(counts))} {unit}".strip()
    return ", ".join(f"{value} {unit}".strip() + f" in {count:,}" for value, count in counts.items())


def _describe_missing(oov: OutOfVocabulary) -> list[str]:
    shown = ", ".join(f"{word} {count}" for word, count in list(oov.counts.items())[:_SHOWN])
    more = f", and {oov.distinct - _SHOWN} more" if oov.distinct > _SHOWN else ""
    lines = [
        f"{'lexicon':<12}{counted(oov.lexicon, 'word')}",
        f"{'not in it':<12}{counted(oov.running, 'word')} ({oov.rate:.2%}), {oov.distinct:,} distinct, in"
        f" {counted(oov.utterances, 'utterance')}",
    ]
    if oov.running:
        lines.append(f"{'':<12}{shown}{more}")
    if oov.other_case:
        lines.append(
            f"{'':<12}the lexicon has {oov.other_case:,} of these {oov.distinct:,} in another letter case; write them"
            " the same way in both"
        )
    return lines


def warn_of_problems(stats: Stats) -> None:
    """Print, on stderr, problems that should be known before training."""
    folder = not is_datadir(Path(stats.path))
    if len(stats.sample_rates_hz) > 1:
        say(f"{stats.path}: several sample rates; {IN_FOLDERS if folder else 'set resample: true in the features'}")
    if any(count > 1 for count in stats.channels):
        way = IN_FOLDERS if folder else "set mix_channels: true in the features to make one of them"
        say(f"{stats.path}: recordings with several channels; {way}")
    for recording, why in list(stats.mixes.items())[:_SHOWN]:
        say(f"{stats.path}: {recording}: as one channel, {why}")
    if len(stats.mixes) > _SHOWN:
        say(f"{stats.path}: {len(stats.mixes) - _SHOWN:,} more recordings whose channels are not all averaged")


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


def channel_mixes(recordings: Mapping[str, str], directory: Path) -> dict[str, str]:
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
        if match and (length := sphere_length_s(resolve_path(match[1] or match[2], data.path))):
            found[recording] = length
    return found


def _frames(rspecifier: str, directory: Path) -> int:
    parts = re.fullmatch(r"(.*?)(?::(\d+))?(?:\[(?:(\d+):(\d+))?[^\]]*\])?", rspecifier)
    if not parts or parts[1].rstrip().endswith("|"):
        raise ValueError("not a file")
    if parts[3]:
        return int(parts[4]) - int(parts[3]) + 1
    with resolve_path(parts[1], directory).open("rb") as stream:
        stream.seek(int(parts[2] or 0))
        head = stream.read(22)
    compressed = re.match(rb"\0BCM[23]? .{8}(.{4})", head, re.DOTALL)
    plain = re.match(rb"\0B[FD]M \x04(.{4})", head, re.DOTALL)
    match = compressed or plain
    if not match:
        raise ValueError("not a binary matrix")
    return int(struct.unpack("<i", match[1])[0])
