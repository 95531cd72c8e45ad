"""Statistics of a data directory: hours, speakers, sample rates, words."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from speech3.corpus.datadir import DataDir
from speech3.corpus.lengths import lengths_s, mixes_of, read_headers
from speech3.io.progress import say

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
_SHOWN = 10  # words outside the lexicon that `describe` lists


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
        """Total length of the utterances."""
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


def measure(data: DataDir, lexicon: Collection[str] | None = None) -> Stats:
    """Compute the statistics, from the text files and the headers of the audio (of several channels, also their begin).

    Parameters
    ----------
    lexicon
        Words that have a pronunciation; None to leave out `out_of_vocabulary`.

    Raises
    ------
    Speech3Error
        More than 5 % of the utterances have no length, since their audio cannot be read.
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
        mixes=mixes_of({key: data.recordings[key] for key, each in infos.items() if each.channels > 1}, data.path),
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
    return OutOfVocabulary(
        lexicon=len(lexicon),
        running=counts.total(),
        rate=counts.total() / sum(map(len, texts.values())),
        distinct=len(counts),
        utterances=sum(any(word not in lexicon for word in words) for words in texts.values()),
        counts=dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))),
    )


def _spread(values: Sequence[float]) -> dict[str, float]:
    """Mean and quantiles, with linear interpolation."""
    points = np.quantile(values, QUANTILES)
    names = ["min", *(f"{100 * q:g}%" for q in QUANTILES[1:-1]), "max"]
    return {"mean": float(np.mean(values)), **dict(zip(names, map(float, points), strict=True))}


def describe(stats: Stats) -> str:
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
            f"{'vocabulary':<12}{w.distinct:,}, of which {w.once:,} occur once",
        ]
        if w.without:
            lines.append(f"{'no words':<12}{w.without:,} utterances have no transcript")
    if stats.out_of_vocabulary:
        lines += _describe_missing(stats.out_of_vocabulary)
    return "\n".join(lines)


def _each(counts: dict[int, int], unit: str) -> str:
    if len(counts) == 1:
        return f"{next(iter(counts))} {unit}".strip()
    return ", ".join(f"{value} {unit}".strip() + f" in {count:,}" for value, count in counts.items())


def _describe_missing(oov: OutOfVocabulary) -> list[str]:
    shown = ", ".join(f"{word} {count}" for word, count in list(oov.counts.items())[:_SHOWN])
    more = f", and {oov.distinct - _SHOWN} more" if oov.distinct > _SHOWN else ""
    lines = [
        f"{'lexicon':<12}{oov.lexicon:,} words",
        f"{'not in it':<12}{oov.running:,} words ({oov.rate:.2%}), {oov.distinct:,} distinct, in {oov.utterances:,}"
        " utterances",
    ]
    return [*lines, f"{'':<12}{shown}{more}"] if oov.running else lines


def warn(stats: Stats) -> None:
    """Print, on stderr, problems that should be known before training."""
    if len(stats.sample_rates_hz) > 1:
        say(f"{stats.path}: several sample rates; set resample: true in the feature configuration to use one")
    if any(count > 1 for count in stats.channels):
        say(f"{stats.path}: recordings with several channels; set mix_channels: true to make one of them")
    for recording, why in list(stats.mixes.items())[:_SHOWN]:
        say(f"{stats.path}: {recording}: as one channel, {why}")
    if len(stats.mixes) > _SHOWN:
        say(f"{stats.path}: {len(stats.mixes) - _SHOWN:,} more recordings whose channels are not all averaged")
