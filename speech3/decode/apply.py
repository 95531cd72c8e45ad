"""Apply a recogniser to data directories, audio files and samples in memory.

Axes: S samples, T frames, F feature bins, K rows of scores, P pdfs.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from speech3.config import FeatureConfig
from speech3.data import DataDir, OnlineResampler, audio, checked_rate, checked_samples, is_datadir, segment_name
from speech3.decode.beam_search import NOT_NUMBERS
from speech3.decode.lattice_directory import decode_one
from speech3.decode.output import LONG_S, Cut, aligned_words, cut_at_pauses, without_doubtful
from speech3.decode.search import Decoding
from speech3.decode.speaker_passes import (
    SPK2UTT,
    TRANSFORMS,
    Known,
    KnownSpeakers,
    OtherWords,
    SpeakerModel,
    adapt,
    check_speaker,
    known_transforms,
    last_transforms,
    network_speakers,
    read_speakers,
    speaker_model,
    write_speakers,
)
from speech3.decode.trained_model import (
    SAT,
    Alternative,
    Result,
    TrainedModel,
    Word,
    phones_of_segments,
    result_of,
    warn_of_rate,
    words_of_segments,
)
from speech3.decode.word_lattice import WordLattice
from speech3.errors import MOST_BAD, DataError, MismatchError, SettingError, Speech3Error, check_bad, counted, listed
from speech3.features import extract, finish_features, only_background, silent_frames, silent_in, static_features
from speech3.hmm import Hmm, Projected, Segment, applied, phone_segments, read_spk2utt
from speech3.io import A_MODEL, ArkReader, write_ark
from speech3.runtime import check_output, progress, say, write_text

_SHOWN = 10
_BLOCK_S = 10.0  # how much of a long recording is read at once, and is examined for clipping
_ADAPT_S = 300.0  # how much of a speaker is enough to adapt to: more changes little, and must fit in memory


@dataclass(frozen=True, eq=False)
class Wanted:
    """What to find beside the words: their times and phones, lattices."""

    times: bool = False
    lattices: bool = False


@dataclass(frozen=True, eq=False)
class _Found:
    """What was recognised in a recording or in a part of one; times count from its start."""

    spelled: tuple[str, ...]
    words: Sequence[Segment] = field(default_factory=list)
    phones: Sequence[Segment] = ()
    nbest: Sequence[Alternative] = ()
    lattices: Mapping[str, WordLattice] = field(default_factory=dict)  # one, or one for each part


class SideBySide(Mapping[str, np.ndarray]):
    """Several features of the same utterances, (T, D); read when they are needed."""

    def __init__(self, parts: Sequence[Mapping[str, np.ndarray]]) -> None:
        self.parts = parts
        self.keys_ = [key for key in parts[0] if all(key in part for part in parts[1:])]

    def __getitem__(self, utterance: str) -> np.ndarray:
        feats = [part[utterance] for part in self.parts]
        if len({len(feats_TF) for feats_TF in feats}) > 1:
            raise MismatchError(
                f"{utterance}: has {' and '.join(str(len(feats_TF)) for feats_TF in feats)} frames in the features of"
                " the models; only models whose features have the same number of frames can score together"
            )
        return np.concatenate(feats, 1)

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys_)

    def __len__(self) -> int:
        return len(self.keys_)


def features_for(
    recognizer: TrainedModel,
    data: DataDir,
    jobs: int,
    out: Path,
    most_bad: float = MOST_BAD,
    known: Known | None = None,
) -> tuple[Mapping[str, np.ndarray], dict[str, str]]:
    """Extract the features that the model needs into ``out/feats``; also return why utterances have none.

    Recordings at another sampling rate are resampled. Channels may be different speakers, so a recording of a data
    directory that has several is refused unless the model's own features.yaml mixes them; in a folder they are mixed.
    For features adapted to speakers, the GMMs beside the network recognise all utterances first, unless `known` has
    the speakers' transforms or what another model recognised; ``out/sat`` then has the transforms, and
    ``out/sat/feats`` the features of the GMMs if the network has others, too.

    Raises
    ------
    Speech3Error
        More than `most_bad` of the utterances are bad; given features do not match those that the model was trained on;
        `known` for a network whose adapted features are given.
    """
    model = network_speakers(recognizer)
    if model and known and not data.recordings:
        given = f"--words {known.path}" if isinstance(known, OtherWords) else f"--transforms {known}"
        raise SettingError(
            f"{given}: {data.path} has no recordings, so its features are taken as they are; remove the option, or pass"
            " a directory with recordings"
        )
    if model and data.recordings:
        check_output(out / SAT, not_in=[A_MODEL], written=[TRANSFORMS])
        alone = recognizer.features.kind == "given"
        place = out if alone else out / SAT
        seen, skipped = features_for(model.recognizer, data, jobs, place, most_bad)
        speaker_of = {key: utterance.speaker for key, utterance in data.utterances.items()}
        adapted = _adapted(model, seen, speaker_of, silent_in(place / "feats"), jobs, known)
        write_speakers(out / SAT, adapted.transforms, speaker_of)
        if alone:
            return adapted, skipped
        feats, bad = features_for(recognizer.without_adapted, data, jobs, out, most_bad)
        return SideBySide([feats, adapted]), {**skipped, **bad}
    mixed = recognizer.features.mix_channels or not is_datadir(data.path)
    config = recognizer.features.model_copy(update={"resample": True, "mix_channels": mixed})
    if config.kind != "given":
        _warn_of_rates(data, config.sample_frequency or 0)
    report = extract(data, out / "feats", config, jobs, most_bad=most_bad)
    feats = ArkReader(out / "feats" / "feats.scp")
    if config.kind == "given":
        try:
            recognizer.scorer.loglikes(next(iter(feats.values()))[:1])
        except Speech3Error as error:
            raise error.restated(f"{data.path / 'feats.scp'}: {error}") from error
    return feats, report.skipped


def decoded_features(recognizer: TrainedModel, directory: Path) -> Mapping[str, np.ndarray]:
    """The features in a directory that `features_for` wrote, with the transforms that it estimated or was given."""
    feats, model, given = ArkReader(directory / "feats" / "feats.scp"), network_speakers(recognizer), directory / SAT
    if model is None or not (given / SPK2UTT).exists():
        return feats
    alone = recognizer.features.kind == "given"
    seen = feats if alone else ArkReader(given / "feats" / "feats.scp")
    transforms = read_speakers(given, model.projection.dim)
    adapted = Projected(seen, read_spk2utt(given / SPK2UTT), model.projection, transforms)
    return adapted if alone else SideBySide([feats, adapted])


def _adapted(
    model: SpeakerModel,
    feats: Mapping[str, np.ndarray],
    speaker_of: Mapping[str, str],
    silent: Set[str],
    jobs: int,
    known: Known | None,
) -> Projected:
    """Features adapted to the speakers, with what is known or by the words of all passes but the last."""
    if known:
        transforms = known_transforms(model, feats, speaker_of, known, jobs)
    else:
        say(f"adapting to speakers, with {model.recognizer.directory}")
        transforms = last_transforms(model, feats, speaker_of, jobs, silent)
    return Projected(feats, speaker_of, model.projection, transforms)


def _warn_of_rates(data: DataDir, model_hz: int) -> None:
    """Name the recordings whose rate is below the model's; of those that commands write only the first is looked at."""
    files = [value for value in data.recordings.values() if not value.rstrip().endswith("|")]
    lower: dict[int, list[str]] = {}
    for recording in progress(files or list(data.recordings.values())[:1], len(files) or 1, "sample rates"):
        try:
            rate_hz = audio.info(recording, directory=data.path).sample_rate_hz
        except Speech3Error:
            continue  # reading the recording will report the error
        if rate_hz < model_hz:
            lower.setdefault(rate_hz, []).append(recording)
    for rate_hz, recordings in sorted(lower.items()):
        warn_of_rate(listed(recordings, 1), rate_hz, model_hz)


def say_skipped(bad: Mapping[str, str], what: str) -> None:
    """Print which utterances were left out, and why; at most ten of them."""
    for utterance, reason in list(bad.items())[:_SHOWN]:
        say(f"{what}: {utterance}: {reason}")
    if len(bad) > _SHOWN:
        say(f"{what}: {len(bad) - _SHOWN} more")


def write_loglikes(recognizer: TrainedModel, feats: Mapping[str, np.ndarray], out: Path, bad: dict[str, str]) -> int:
    """Write ``loglikes.ark``, ``loglikes.scp`` and, if utterances are bad, ``bad.txt``; return the number of matrices.

    The matrices are float32 (K, P), with a row for every `Scorer.subsampling` frames; one is in memory at a time.
    Utterances whose scores are not finite are added to `bad`; more than 5 % of them are an error.
    """
    total = len(feats) + len(bad)

    def scores() -> Iterator[tuple[str, np.ndarray]]:
        for utterance, loglikes_TP in progress(recognizer.scores(feats), len(feats), "forward"):
            if not np.isfinite(loglikes_TP).all():
                bad[utterance] = NOT_NUMBERS
                check_bad(bad, total, str(out), "so far have no scores")
                continue
            yield utterance, np.asarray(loglikes_TP, np.float32)

    written = write_ark(out / "loglikes.ark", scores(), out / "loglikes.scp")
    if bad:
        write_text(out / "bad.txt", "".join(f"{utterance} {reason}\n" for utterance, reason in sorted(bad.items())))
    else:
        (out / "bad.txt").unlink(missing_ok=True)
    return written


@dataclass(frozen=True)
class Transcription:
    """The words recognised in a file; their times, phones, alternatives and lattices if those were requested.

    A long recording has a lattice for each part, named as parts of utterances are.
    """

    name: str
    text: str
    words: Sequence[Segment]
    duration_s: float
    phones: Sequence[Segment] = ()
    nbest: Sequence[Alternative] = ()
    lattices: Mapping[str, WordLattice] = field(default_factory=dict)


def transcribe(
    recognizer: TrainedModel,
    files: Sequence[Path],
    *,
    times: bool = False,
    lattices: bool = False,
    one_speaker: bool = False,
    names: Mapping[Path, str] = MappingProxyType({}),
    failed: list[Speech3Error] | None = None,
) -> Iterator[Transcription]:
    """Recognise audio files, each as one utterance of a separate speaker; long files are cut at pauses.

    A recording longer than `LONG_S` is read in parts; a part that cannot be recognised is reported and left out. A
    model that adapts to speakers does so to each file, or to all of them if they have `one_speaker`, by the first
    `_ADAPT_S` of speech. `names` has other names for files. If there is a list `failed`, files that cannot be
    recognised are left out, and their errors are added to it.

    Raises
    ------
    Speech3Error
        A file is missing, unreadable, shorter than a frame, or could not be decoded; the message names it.
    """
    if isinstance(files, str | Path):
        raise SettingError(f"files={files!r}: pass a list of paths, even of one")
    if times:
        _ = recognizer.hmm  # raises its error before anything is recognised
    wanted = Wanted(times, lattices)
    using = recognizer
    if one_speaker:
        using = _of_speaker(recognizer, _parts_of_all(recognizer, files, tolerant=failed is not None))
    for path in files:
        name = names.get(path, str(path))
        _refuse_given(recognizer, name)
        try:
            if not one_speaker:
                using = _of_speaker(recognizer, _parts_of(recognizer, path))
            yield _transcribed(recognizer, using, path, name, wanted)
        except Speech3Error as error:
            if failed is None:
                raise
            failed.append(error.restated(str(error).replace(str(path.absolute()), name)))


def _transcribed(recognizer: TrainedModel, using: TrainedModel, path: Path, name: str, wanted: Wanted) -> Transcription:
    """A file recognised by `using`, the recogniser adapted to its speaker; what is odd about the audio is said."""
    about = audio.info(path)
    warn_of_rate(name, about.sample_rate_hz, recognizer.features.sample_frequency or 0)
    if about.claim:
        say(f"{name}: {about.claim}; the audio in the file is recognised")
    _say_clipped(name, next(audio.read_blocks(path, _BLOCK_S), np.zeros(0, np.float32)))
    if about.channels > 1 and (why := audio.channel_mix(path).why):
        say(f"{name}: has {about.channels} channels: {why}")
    if about.duration_s <= LONG_S:
        wave_S, rate_hz = _whole(recognizer, path)
        _say_quiet(name, wave_S)
        found = _recognised(using, name, wave_S, rate_hz, wanted)
    else:
        blocks = audio.read_blocks(path, _BLOCK_S)
        parts, rate_hz = _parts(recognizer, blocks, about.sample_rate_hz)
        shown = progress(parts, int(about.duration_s), name, place=lambda cut: (int(cut.begin_s), ""))
        found = _long(using, name, shown, rate_hz, wanted)
    text = " ".join(found.spelled)
    return Transcription(name, text, found.words, about.duration_s, found.phones, found.nbest, found.lattices)


def _say_clipped(name: str, wave_S: np.ndarray) -> None:
    if (share := audio.clipped_share(wave_S)) > audio.CLIPPED:
        say(f"{name}: clipped ({share:.1%} of the samples are cut off); record at a lower level: expect more errors")


def _say_quiet(name: str, wave_S: np.ndarray) -> None:
    if audio.is_quiet(wave_S) and not audio.is_silent(wave_S):
        steps = np.ptp(wave_S) * 2**15
        say(
            f"{name}: very quiet (its samples are within {steps:.0f} of the 65,536 steps of 16 bits);"
            " record at a higher level: expect more errors"
        )


def _whole(recognizer: TrainedModel, path: Path) -> tuple[np.ndarray, int]:
    wanted_hz = recognizer.features.sample_frequency
    return audio.read_file(path, sample_rate_hz=wanted_hz, resample=True, mix_channels=True)


def _parts_of(recognizer: TrainedModel, path: Path) -> Iterator[tuple[np.ndarray, int]]:
    """The samples that are recognised at once, and their rate: a file, or the parts of a long one."""
    about = audio.info(path)
    if about.duration_s <= LONG_S:
        yield _whole(recognizer, path)
        return
    parts, rate_hz = _parts(recognizer, audio.read_blocks(path, _BLOCK_S), about.sample_rate_hz)
    yield from ((cut.wave_S, rate_hz) for cut in parts)


def _parts_of_all(
    recognizer: TrainedModel, files: Iterable[Path], *, tolerant: bool
) -> Iterator[tuple[np.ndarray, int]]:
    """The parts of all files; if `tolerant`, without files that cannot be read, which are reported later."""
    for path in files:
        try:
            yield from _parts_of(recognizer, path)
        except Speech3Error:
            if not tolerant:
                raise


def _of_speaker(
    recognizer: TrainedModel,
    parts: Iterable[tuple[np.ndarray, int]],
    speaker: str = "speaker",
    known: KnownSpeakers | None = None,
) -> TrainedModel:
    """The recogniser adapted to the speaker of these parts, of which the first `_ADAPT_S` are used, if it adapts."""
    if not (model := speaker_model(recognizer) or network_speakers(recognizer)):
        return recognizer
    feats, seconds = dict[str, np.ndarray](), 0.0
    for wave_S, rate_hz in parts:
        if seconds >= _ADAPT_S:
            break
        seconds += len(wave_S) / rate_hz
        if audio.is_silent(wave_S):
            continue
        name = f"part {len(feats) + 1}"
        try:
            feats[name], _ = _features_of(model.recognizer, name, wave_S, rate_hz)
        except Speech3Error:  # said again when it is recognised
            continue
    if not feats:
        return model.recognizer_of(None)
    try:
        return adapt(model, feats, speaker, known)
    except Speech3Error as error:  # such as no path through the graph: the words of the first pass are kept
        say(f"not adapted to the speaker: {error}")
        return model.recognizer_of(None)


def transcribe_samples(
    recognizer: TrainedModel,
    samples: ArrayLike,
    rate_hz: Any,
    speaker: str | None = None,
    known: KnownSpeakers | None = None,
) -> Result:
    """Recognise a recording in memory as `transcribe` does, with the time and confidence of each word.

    Parameters
    ----------
    samples
        One channel, as floats from -1 to 1 or as integers (`speech3.data.checked_samples`).
    rate_hz
        Resampled if this differs from the model's rate.
    speaker
        Who speaks, if that is known. Then what is in `known` of this speaker is used, and added to.

    Raises
    ------
    Speech3Error
        The samples are shorter than one frame; the samples, the rate or the speaker are invalid; nothing could be
        decoded.
    """
    name, wave_S, rate_hz = "samples", checked_samples(samples), checked_rate(rate_hz)
    check_speaker(speaker)
    _refuse_given(recognizer, name)
    if not len(wave_S):
        raise DataError("there are no samples: an empty recording cannot be recognised")
    _say_clipped(name, wave_S[: round(_BLOCK_S * rate_hz)])
    wanted = Wanted(times=isinstance(recognizer.outputs, Hmm))
    if len(wave_S) > LONG_S * rate_hz:
        cuts, rate_hz = _parts(recognizer, [wave_S], rate_hz)
        parts = list(cuts)
    else:
        wave_S, rate_hz = _at_its_rate(recognizer, wave_S, rate_hz)
        parts = [Cut(0.0, wave_S)]
    heard = ((cut.wave_S, rate_hz) for cut in parts)
    using = _of_speaker(recognizer, heard, speaker or "speaker", known if speaker else None)
    if len(parts) == 1 and parts[0].wave_S is wave_S:
        _say_quiet(name, wave_S)
        found = _recognised(using, name, wave_S, rate_hz, wanted)
    else:
        found = _long(using, name, parts, rate_hz, wanted)
    words = words_of_segments(found.words) or [Word(word, None, None, None) for word in found.spelled]
    phones = phones_of_segments(found.phones, recognizer.hmm.lexicon) if found.phones else ()
    return replace(result_of(words), phones=phones, nbest=tuple(found.nbest))


def _at_its_rate(recognizer: TrainedModel, wave_S: np.ndarray, rate_hz: int) -> tuple[np.ndarray, int]:
    wanted_hz = recognizer.features.sample_frequency or rate_hz
    resampler = OnlineResampler(rate_hz, wanted_hz)
    return np.concatenate([resampler.accept(wave_S), resampler.finish()]), wanted_hz


def features_of_samples(
    recognizer: TrainedModel, samples: ArrayLike, rate: int
) -> tuple[np.ndarray, tuple[np.ndarray, int]]:
    """Features (T, F) of a recording in memory, and its waveform (S,) at the model's rate with that rate.

    Silence, less than a frame and invalid samples are refused.
    """
    wave_S, rate_hz = checked_samples(samples), checked_rate(rate)
    _refuse_given(recognizer, "samples")
    if not len(wave_S):
        raise DataError("there are no samples; pass a recording with speech")
    if audio.is_silent(wave_S):
        raise SettingError("samples: are digital silence (all are equal); pass a recording with speech")
    wave_S, rate_hz = _at_its_rate(recognizer, wave_S, rate_hz)
    feats_TF, _ = _features_of(recognizer, "samples", wave_S, rate_hz)
    return feats_TF, (wave_S, rate_hz)


def _parts(recognizer: TrainedModel, blocks: Iterable[np.ndarray], rate_hz: int) -> tuple[Iterator[Cut], int]:
    """The parts of a recording, resampled to the model's rate, and that rate."""
    wanted_hz = recognizer.features.sample_frequency or rate_hz
    resampler = OnlineResampler(rate_hz, wanted_hz)

    def resampled() -> Iterator[np.ndarray]:
        yield from (resampler.accept(block_S) for block_S in blocks)
        yield resampler.finish()

    return cut_at_pauses(resampled(), wanted_hz), wanted_hz


def _long(recognizer: TrainedModel, name: str, parts: Iterable[Cut], rate_hz: int, wanted: Wanted) -> _Found:
    """Recognise the parts of a recording, one of which must succeed; times count from the start of the recording."""
    found: list[_Found] = []
    nbest: Sequence[Alternative] = []
    lattices: dict[str, WordLattice] = {}
    failed = ""
    for cut in parts:
        end_s = cut.begin_s + len(cut.wave_S) / rate_hz
        place = f"{name}, {cut.begin_s:.2f} to {end_s:.2f} s"
        try:
            part = _recognised(recognizer, place, cut.wave_S, rate_hz, wanted)
        except Speech3Error as error:
            failed = failed or str(error)
            say(f"left out: {error}")
            continue
        nbest = part.nbest if not found else _best_pairs(nbest, part.nbest, recognizer.nbest)
        lattices |= {segment_name(name, cut.begin_s, end_s): each for each in part.lattices.values()}
        words, phones = _later(part.words, cut.begin_s), _later(part.phones, cut.begin_s)
        found.append(_Found(part.spelled, words, phones))
    if not failed and not found:
        say(f"{name}: no speech in it: it is silent, or equally loud throughout; there are no words")
    if failed and not found:
        raise DataError(f"{name}: no part of it could be recognised; the first reason: {failed}")
    words, phones = ([s for part in found for s in getattr(part, each)] for each in ("words", "phones"))
    return _Found(tuple(word for part in found for word in part.spelled), words, phones, nbest, lattices)


def _later(segments: Sequence[Segment], by_s: float) -> list[Segment]:
    return [replace(s, start_s=s.start_s + by_s, end_s=s.end_s + by_s) for s in segments]


def _best_pairs(before: Sequence[Alternative], after: Sequence[Alternative], n: int) -> list[Alternative]:
    """The N best word sequences of two parts together, which were recognised independently."""
    # Both are in the order of their costs: i * j pairs are as good as the i-th sequence with the j-th, or better.
    pairs = [(a, b) for rank, a in enumerate(before[:n], 1) for b in after[: n // rank]]
    both = sorted(pairs, key=lambda pair: pair[0].cost + pair[1].cost)
    return [
        Alternative(a.words + b.words, a.acoustic_cost + b.acoustic_cost, a.graph_cost + b.graph_cost)
        for a, b in both[:n]
    ]


def _recognised(recognizer: TrainedModel, name: str, wave_S: np.ndarray, rate_hz: int, wanted: Wanted) -> _Found:
    feats_TF, is_background = _features_of(recognizer, name, wave_S, rate_hz)
    if audio.is_silent(wave_S):
        say(f"{name}: is silent (its samples differ by less than half a step of 16 bits), so there are no words")
        return _no_words(recognizer)
    if is_background:
        say(f"{name}: nobody speaks in it: it is equally loud throughout, so there are no words")
        return _no_words(recognizer)
    feats = {name: feats_TF}
    paths: Sequence[Alternative] = ()
    lattice: WordLattice | None = None
    if recognizer.nbest or wanted.lattices:
        best, lattice, paths = decode_one(recognizer, name, feats[name], recognizer.nbest)
        decoding = Decoding((best,), {})
    else:
        decoding = recognizer.decode(feats, confidences=wanted.times or recognizer.min_confidence > 0)
    if len(paths) < recognizer.nbest:
        say(f"{name}: has {counted(len(paths), 'word sequence')} within the lattice beam, not {recognizer.nbest}")
    words, phones = [], []
    if wanted.times:
        times, alignments = aligned_words(recognizer, feats, decoding, waves={name: (wave_S, rate_hz)})
        words = times.get(name, [])
        if name in alignments:
            phones = phone_segments(alignments[name], recognizer.hmm.lexicon, recognizer.clock)
    spelled = without_doubtful(recognizer, decoding.hypotheses[0]).words
    return _Found(spelled, words, phones, paths, {name: lattice} if lattice else {})


def _no_words(recognizer: TrainedModel) -> _Found:
    return _Found((), nbest=[Alternative((), 0.0, 0.0)] if recognizer.nbest else ())


def _static_of(config: FeatureConfig, wave_S: np.ndarray, rate_hz: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The static features of a recording, float32 (T, F), T perhaps 0, and which frames are digital silence, (T,)."""
    samples_S = torch.from_numpy(wave_S)
    feats_1TF, frames_1 = static_features(samples_S[None], torch.tensor([len(wave_S)]), config, rate_hz)
    static_TF = feats_1TF[0][: int(frames_1[0])]
    return static_TF, silent_frames(samples_S, len(static_TF), config, rate_hz)


def _refuse_given(recognizer: TrainedModel, name: str) -> None:
    if not recognizer.features.from_audio:
        raise MismatchError(
            f"{name}: this model takes its features from a file (feats.scp) and does not compute them from audio; make"
            " a data directory with the recording's features and use speech3 decode"
        )


def _features_of(recognizer: TrainedModel, name: str, wave_S: np.ndarray, rate_hz: int) -> tuple[np.ndarray, bool]:
    """The features (T, F) of a recording, and whether it is only background."""
    if model := network_speakers(recognizer):
        feats_TF, is_background = _features_of(model.recognizer, name, wave_S, rate_hz)
        unadapted_TD = model.projection(feats_TF)
        adapted_TD = unadapted_TD if recognizer.transform is None else applied(recognizer.transform, unadapted_TD)
        if recognizer.features.kind == "given":
            return adapted_TD, is_background
        beside_TF, _ = _features_of(recognizer.without_adapted, name, wave_S, rate_hz)
        return np.concatenate([beside_TF, adapted_TD], 1), is_background
    config = recognizer.features
    static_TF, silent_T = _static_of(config, wave_S, rate_hz)
    if not len(static_TF):
        raise DataError(f"{name}: shorter than one frame ({config.frame_length:g} ms); nothing to recognise")
    feats_TF = finish_features([static_TF], config, [silent_T])[0].numpy()
    return feats_TF, only_background(static_TF, silent_T, config)
