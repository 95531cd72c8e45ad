"""What `speech3 align SOURCE OUT` aligns: a folder of recordings, a Kaldi data directory, or one recording."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from speech3.corpora import AUDIO, Tier, find_pairs, is_folder, read_folder, tier_reader
from speech3.data import (
    DataDir,
    Fault,
    Utterance,
    audio,
    is_datadir,
    plain_words,
    read_datadir,
    read_headers,
    without_markup,
)
from speech3.errors import DataError, MissingError, SettingError, Speech3Error
from speech3.hmm import file_name
from speech3.language import find_lang
from speech3.runtime import say

WIDE_HZ, NARROW_HZ = 16000, 8000  # rates of models of recordings whose rates differ, or are higher


@dataclass(frozen=True)
class Target:
    """A recording to be aligned.

    `place`: path of its result in the output directory, without a suffix. `audio`: a path, or a command of a data
    directory. `transcript`: its file; None in a data directory, and with ``--text``. `reader`: that of its tiers;
    None if it has none.
    """

    place: str
    audio: str
    duration_s: float
    transcript: Path | None = None
    reader: Callable[[Path], list[Tier]] | None = None


@dataclass(frozen=True)
class Source:
    """What was read.

    Attributes
    ----------
    data
        The utterances; transcripts of a folder are in plain words.
    targets
        Each recording that has a transcript and can be read, by its name in `data`, even without usable utterances.
    rate_hz
        The sample rate for a model that is trained on it.
    lexicon
        ``lang/lexicon.txt`` in the source, if there is one.
    faults
        What is left out, and warnings.
    """

    data: DataDir
    targets: Mapping[str, Target]
    plain: bool
    rate_hz: int
    lexicon: Path | None = None
    faults: list[Fault] = field(default_factory=list)

    @property
    def speech_s(self) -> float:
        """Seconds of the utterances whose recordings can be read."""
        total_s = 0.0
        for utterance in self.data.utterances.values():
            if target := self.targets.get(utterance.recording):
                total_s += (target.duration_s if utterance.end_s is None else utterance.end_s) - utterance.start_s
        return total_s


def read_source(
    source: Path, *, text: str | None = None, tier: str | None = None, lang: str = "", apart: Path | None = None
) -> Source:
    """Read a folder, a Kaldi data directory or one recording.

    Parameters
    ----------
    tier
        The tier with the transcript, if TextGrids or ELAN files have several kinds.
    lang
        The language of the transcripts, for their lower case.
    apart
        A folder in `source` that is not searched.

    Raises
    ------
    Speech3Error
        There is nothing to align, or `text` is passed with more than one recording.
    """
    if not source.exists():
        raise MissingError(f"{source}: no such recording, folder or data directory")
    source = source.absolute()
    if source.is_file():
        return _one(source, text, tier, lang)
    if text is not None:
        raise SettingError(f"--text is the transcript of one recording, but {source} is a directory; pass a file")
    if is_datadir(source):
        if tier:
            raise DataError(f"{source}: --tier {tier}: a Kaldi data directory has no tiers; remove the option")
        return _kaldi(source)
    if not is_folder(source):
        raise MissingError(
            f"{source}: no recordings (wav, flac, mp3, ...) and no wav.scp are in it; pass a folder of recordings with"
            " transcripts of their names (.txt, .lab, .TextGrid, .eaf, .srt), a Kaldi data directory, or one recording"
        )
    pairs = find_pairs(source, apart)
    data, faults = read_folder(source, tier, WIDE_HZ, (), lang, pairs=pairs)
    places = {item.key: str(item.audio.relative_to(source).with_suffix("")) for item in pairs[0]}
    targets = {}
    for item in pairs[0]:
        try:
            about = audio.info(item.audio)
        except Speech3Error:
            continue  # in `faults`
        reader = tier_reader(item)
        targets[item.key] = Target(places[item.key], str(item.audio), about.duration_s, item.transcript, reader)
    return Source(data, targets, True, _rate(data), find_lang(source / "lang").lexicon, faults)


def _one(path: Path, text: str | None, tier: str | None, lang: str) -> Source:
    if path.suffix.lower() not in AUDIO:
        raise DataError(f"{path}: is not a recording (wav, flac, ogg, mp3, ...); pass one, or a directory")
    duration_s, key = audio.info(path).duration_s, "_".join(path.stem.split())
    if text is None:
        pairs = find_pairs(path.parent, only=path)
        data, faults = read_folder(path.parent, tier, WIDE_HZ, (), lang, pairs=pairs)
        (key,), (item,) = data.recordings, pairs[0]
        targets = {key: Target(path.stem, str(path), duration_s, item.transcript, tier_reader(item))}
        return Source(data, targets, True, _rate(data), None, faults)
    cleaned, remarks = without_markup(text)
    for remark in remarks:
        say(f"  --text {remark.problem}; {remark.handling}")
    words = plain_words(cleaned, (), lang)
    if not words:
        raise SettingError(f"--text {text!r}: has no words; write what is said in {path.name}")
    data = DataDir(path.parent, {key: str(path)}, {key: Utterance(key, key, key, words)})
    return Source(data, {key: Target(path.stem, str(path), duration_s)}, True, _rate(data))


def _kaldi(source: Path) -> Source:
    data = read_datadir(source)
    if not data.recordings:
        raise DataError(f"{source}: has features, but no recordings (wav.scp): use speech3 align MODEL DIR OUT")
    headers = read_headers(data)
    targets = {
        key: Target(file_name(key), data.recordings[key], about.duration_s) for key, about in headers.infos.items()
    }
    lang = source / "lang"
    lexicon = find_lang(lang).lexicon if lang.is_dir() else None
    faults = [Fault("unreadable", key, "", why, "repair it") for key, why in headers.bad.items()]
    return Source(data, targets, False, _rate(data), lexicon, faults)


def _rate(data: DataDir) -> int:
    """The rate for a model: that of all recordings, or 16 or 8 kHz; what is resampled is said in one line."""
    rates = Counter(about.sample_rate_hz for about in read_headers(data).infos.values())
    if not rates:
        return WIDE_HZ
    if len(rates) == 1 and max(rates) <= WIDE_HZ:
        return max(rates)
    rate_hz = WIDE_HZ if min(rates) >= WIDE_HZ else NARROW_HZ
    shown = ", ".join(f"{count} of {rate} Hz" for rate, count in sorted(rates.items()))
    say(f"  recordings are resampled to {rate_hz} Hz: {shown}")
    return rate_hz
