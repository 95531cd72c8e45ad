"""What the report shows of single utterances: recordings, alignments, suspicious transcripts, unknown words."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from speech3.alignment.align import align, usable_transcripts
from speech3.alignment.suspicious import suspicions
from speech3.alignment.times import Segment, read_ctm
from speech3.config import FeatureConfig, load_preset
from speech3.corpus import audio
from speech3.corpus.datadir import DataDir, read_datadir
from speech3.corpus.lengths import lengths_s
from speech3.decoding.recognizer import BEAM, RETRY_BEAM
from speech3.errors import Speech3Error
from speech3.features.compute import static_features
from speech3.graph.places import GRAPH
from speech3.io.ark import ArkReader
from speech3.io.progress import say
from speech3.lexicon.langdir import is_word
from speech3.recipe.experiment import Experiment
from speech3.recipe.stages import aligning_recognizer
from speech3.reports.figures import AlignedUtterance
from speech3.reports.sound import clip
from speech3.reports.utterances_section import PICTURES, WORST, Material, Suspect, Suspects, Unknown
from speech3.scoring.wer import Score

_MOST_EXAMINED_S = 7200.0  # seconds of test that are examined for suspicious transcripts: about a minute of work
_LEAST_WORDS = 2  # of an utterance of which no word was recognised, to be suspicious
_LONGEST_PICTURE_S = 25.0
_OUTLIER, _NO_WORD = "alignment's confidence", "no word recognised"

Tracks = Mapping[str, list[Segment]]


def picture(e: Experiment) -> AlignedUtterance:
    """A dev utterance of median length with its spectrogram and alignment."""
    phones, words = _tracks(e, "dev")
    by_length = sorted(phones, key=lambda key: (phones[key][-1].end_s, key))
    utterance = by_length[len(by_length) // 2]
    wave_N, rate_hz = audio.load(read_datadir(e.data("dev")), utterance, mix_channels=True)
    return _drawn(utterance, wave_N, rate_hz, phones[utterance], words.get(utterance, []))


def material(e: Experiment, best: str, score: Score, suspects: Suspects | None) -> dict[str, Material]:
    """Recordings of the worst utterances of a system and of the suspicious ones, and pictures of the very worst."""
    data, hyp = read_datadir(e.data("test")), e.out / "decode" / best / "test" / "hyp.ctm"
    phones, words = _tracks(e, "test")
    recognised = read_ctm(hyp) if hyp.exists() else {}
    worst = [utterance.name for utterance in score.worst(WORST, e.recipe.metric)]
    suspicious = [each.utterance for each in suspects.found[:WORST]] if suspects else []
    found: dict[str, Material] = {}
    for number, name in enumerate(dict.fromkeys([*worst, *suspicious])):
        place = _place(data, name)
        try:
            wave_N, rate_hz = audio.load(data, name, mix_channels=True)
        except (Speech3Error, OSError) as error:
            say(f"  {name}: not shown in the report: {error}")
            found[name] = Material(place)
            continue
        drawn = None
        if number < PICTURES and name in worst and len(wave_N) <= _LONGEST_PICTURE_S * rate_hz:
            tracks = phones.get(name, []), words.get(name, []), recognised.get(name, [])
            drawn = _drawn(name, wave_N, rate_hz, *tracks)
        found[name] = Material(place, clip(wave_N, rate_hz), drawn)
    return found


def _tracks(e: Experiment, split: str) -> tuple[Tracks, Tracks]:
    """Aligned phones and words."""
    paths = [e.alignment("aligner", split) / f"{name}.ctm" for name in ("phones", "words")]
    phones, words = (read_ctm(path) if path.exists() else {} for path in paths)
    return phones, words


def _drawn(
    name: str, wave_N: np.ndarray, rate_hz: int, phones: Sequence[Segment], words: Sequence[Segment],
    recognised: Sequence[Segment] = (),
) -> AlignedUtterance:  # fmt: skip
    config = load_preset(FeatureConfig, "features", "fbank40")
    feats_1TF, _ = static_features(torch.from_numpy(wave_N)[None], torch.tensor([len(wave_N)]), config, rate_hz)
    return AlignedUtterance(
        name, wave_N, rate_hz, np.asarray(feats_1TF[0]), config.frame_shift, _segments(phones), _segments(words),
        _segments(recognised),
    )  # fmt: skip


def _segments(segments: Sequence[Segment]) -> list[tuple[float, float, str]]:
    return [(segment.start_s, segment.end_s, segment.label) for segment in segments]


def _place(data: DataDir, name: str) -> str:
    """The file or command of a recording, with the times of the utterance if it is a part."""
    utterance = data.utterances[name]
    value = data.recordings.get(utterance.recording, utterance.recording)
    if not value.rstrip().endswith("|"):
        value = str(data.path / value)
    end = "its end" if utterance.end_s is None else f"{utterance.end_s:.2f} s"
    whole = utterance.start_s == 0 and utterance.end_s is None
    return value if whole else f"{value}, {utterance.start_s:.2f} s to {end}"


def suspects(e: Experiment, scores: Mapping[str, Score], best: str) -> Suspects | None:
    """Utterances of test whose alignment is an outlier, or of which no system recognised a word; None: not examined.

    Parameters
    ----------
    scores
        Of every system, with the same utterances.
    """
    if e.recipe.metric == "PER":  # a phone has too few frames
        return None
    data = read_datadir(e.data("test"))
    feats = ArkReader(e.features(e.recipe.hmm.aligner_features, "test") / "feats.scp")
    examined, total_s = [], 0.0
    lengths = lengths_s(data)
    for name in feats:
        if total_s + lengths.get(name, 0.0) > _MOST_EXAMINED_S:
            break
        total_s += lengths.get(name, 0.0)
        examined.append(name)
    recognizer = aligning_recognizer(e, "aligner")
    texts = {key: utterance.text for key, utterance in data.utterances.items()}
    aligned = align(
        recognizer.hmm, recognizer.scorer,
        usable_transcripts(texts, recognizer.hmm.lexicon, examined, strict=False), feats,
        beam=BEAM, retry_beam=RETRY_BEAM, jobs=e.jobs, acoustic_scale=recognizer.alignment_scale, scored=True,
    )  # fmt: skip
    heard = {utterance.name: utterance for utterance in scores[best].utterances}
    found: dict[str, tuple[str, str]] = {}
    for each in suspicions(aligned, texts, recognizer.hmm.subsampling):
        found[each.utterance] = f"{_OUTLIER} {each.confidence:.2f}: {each.reason}", each.transcript
    for name in _differ_entirely(scores):
        why, transcript = found.get(name, ("", texts.get(name) or ""))
        found[name] = f"{why}; {_NO_WORD}" if why else _NO_WORD, transcript
    both = [name for name in found if found[name][0].startswith(_OUTLIER) and found[name][0].endswith(_NO_WORD)]
    order = dict.fromkeys([*both, *found])  # both signs together are the strongest
    rows = [Suspect(name, *found[name], " ".join(heard[name].hyp) if name in heard else "") for name in order]
    return Suspects(rows, len(examined), len(data.utterances))


def _differ_entirely(scores: Mapping[str, Score]) -> list[str]:
    wrong = [
        {u.name for u in score.utterances if len(u.ref) >= _LEAST_WORDS and not u.words.correct}
        for score in scores.values()
    ]
    return sorted(set.intersection(*wrong))


def unknown(e: Experiment, best: str) -> Unknown | None:
    """The words of test that the graph of a system does not have; None if its units are not words."""
    words = e.model(best) / GRAPH / "words.txt"
    if e.recipe.units != "words" or e.recipe.metric == "PER" or not words.exists():
        return None
    known = _vocabulary(words)
    spoken = Counter(
        word for utterance in read_datadir(e.data("test")).utterances.values()
        for word in (utterance.text or "").split() if is_word(word)
    )  # fmt: skip
    counts = {word: count for word, count in spoken.items() if word not in known}
    return Unknown(counts, spoken.total(), spelled=bool(e.recipe.letters))


def _vocabulary(words: Path) -> set[str]:
    return {line.split()[0] for line in words.read_text(encoding="utf-8").splitlines() if line.strip()}
