"""Tuning of scale, word penalty, cost of fillers and confidences on dev, never on test; `decode.json` keeps them.

Confidences are calibrated to probabilities that words are correct by a linear function of the log odds of their
posteriors (Platt 1999; Yu et al. 2011). Posteriors in a lattice are too high: the acoustic scores of neighbouring
frames are not independent, and word sequences that the lattice lacks count as impossible.

Axes: T frames, P pdfs, W words.
"""

import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

import jiwer
import numpy as np

from speech3.config import DecodeConfig, parse
from speech3.data import DataDir
from speech3.decode.apply import features_for, say_skipped
from speech3.decode.beam_search import Lattice, best_words
from speech3.decode.grammar import FILLER_COSTS, FILLER_OFF, join_confidences
from speech3.decode.graph import DecodingGraph
from speech3.decode.output import aligned_words
from speech3.decode.search import Decoding, Hypothesis, Scores, Setting, confidences_in, decode, lattices, words_in
from speech3.decode.speaker_passes import passes_before_last, say_speakers, speaker_model
from speech3.decode.trained_model import Calibration, DecodeSettings, TrainedModel, load_settings, log_odds
from speech3.decode.word_lengths import WordLengths
from speech3.errors import DataError, Speech3Error, counted, listed
from speech3.hmm import ADAPTED, PASSES, Hmm
from speech3.io import DECODE_FILE, TUNING_FILE, ComputedMapping
from speech3.language import is_word
from speech3.runtime import explained_disk_errors, progress, read_json, say, write_json

_STEPS, _PRIOR = 50, 1.0  # most Newton steps; strength of the prior, which matters if words are few or all correct
ErrorRate = Callable[[list[str], list[str]], float]
_Found = tuple[Hypothesis, Lattice] | None
_Words = dict[str, tuple[str, ...]]
_MAX_BYTES = 512 * 2**20  # bytes of scores; beyond that, they go to a temporary file


def fit_calibration(posteriors: Sequence[float], correct: Sequence[bool]) -> Calibration:
    """The calibration with the highest posterior probability given words that are known to be correct or wrong.

    It is found by Newton's method. A Gaussian prior centred on the identity dominates if there is little data; the
    slope is never negative, so the ranking of the words is preserved.
    """
    odds_W, correct_W = log_odds(np.array(posteriors, np.float64)), np.array(correct, np.float64)
    inputs_W2, prior = np.stack([np.ones(len(odds_W)), odds_W], axis=1), np.array([0.0, 1.0])
    fitted = prior.copy()
    for _ in range(_STEPS):
        sure_W = 1 / (1 + np.exp(-inputs_W2 @ fitted))
        gradient = inputs_W2.T @ (sure_W - correct_W) + _PRIOR * (fitted - prior)
        curvature = (inputs_W2 * (sure_W * (1 - sure_W))[:, None]).T @ inputs_W2 + _PRIOR * np.eye(2)
        change = np.linalg.solve(curvature, gradient)
        fitted -= change * min(1.0, 2.0 / max(float(np.abs(change).max()), 1e-12))  # full Newton steps may overshoot
        if np.abs(change).max() < 1e-9:
            break
    return Calibration(float(fitted[0]), max(float(fitted[1]), 0.0))


def correct_words(reference: Sequence[str], said: Sequence[str]) -> list[bool]:
    """For each recognised word, whether it matches the reference in an alignment with the fewest errors."""
    if not said or not reference:
        return [False] * len(said)
    correct = [False] * len(said)
    for chunk in jiwer.process_words(" ".join(reference), " ".join(said)).alignments[0]:
        if chunk.type == "equal":
            correct[chunk.hyp_start_idx : chunk.hyp_end_idx] = [True] * (chunk.hyp_end_idx - chunk.hyp_start_idx)
    return correct


@dataclass(frozen=True)
class TuningPoint:
    """A point of the grid; `error_rate` is a fraction."""

    acoustic_scale: float
    word_penalty: float
    error_rate: float


@dataclass(frozen=True)
class Tuning:
    """The best point, all points that were tried, the best point's words, and the calibration of their posteriors."""

    best: TuningPoint
    table: tuple[TuningPoint, ...]
    words: Mapping[str, tuple[str, ...]]
    calibration: Calibration


class _KeptScores:
    """Scores that are computed in the first iteration and kept as float32 for later ones."""

    def __init__(self, scores: Scores) -> None:
        self._fresh = iter(scores)
        self._file = tempfile.SpooledTemporaryFile(_MAX_BYTES, prefix="speech3-")  # noqa: SIM115  # `close` closes it
        self._places: dict[str, tuple[int, tuple[int, ...]]] = {}

    def __iter__(self) -> Iterator[tuple[str, np.ndarray]]:
        for utterance, (offset, shape) in list(self._places.items()):
            self._file.seek(offset)
            content = self._file.read(4 * int(np.prod(shape)))
            yield utterance, np.frombuffer(content, np.float32).reshape(shape)
        for utterance, scores_TP in self._fresh:
            with explained_disk_errors(Path(tempfile.gettempdir())):
                self._places[utterance] = self._file.seek(0, 2), scores_TP.shape
                self._file.write(scores_TP.astype(np.float32, copy=False).tobytes())
            yield utterance, scores_TP

    def close(self) -> None:
        self._file.close()


def tune(
    graph: DecodingGraph,
    scores: Scores,
    references: Mapping[str, Sequence[str]],
    config: DecodeConfig,
    jobs: int = 1,
    error_rate: ErrorRate = jiwer.wer,
    *,
    pseudo_likelihoods: bool = False,
) -> Tuning:
    """Find the acoustic scale and the word penalty of the grid in `config` with the lowest error rate.

    The first lattices are made with the middle scale and the penalty nearest zero, and error rates at other points are
    estimated from them by hill climbing: the scale moves to its better neighbour until neither is better, then the
    penalty, and so on until nothing improves. New lattices are made at that point, and this is repeated until a climb
    ends at a point that already has lattices. The best of the points with lattices is returned: there, the best paths
    of the lattices are those of a search, so the error rate is exact. (On minilibri, lattices made one step of the
    scale away gave the error rate of a search within 0.15 points, those made three steps away within 2.)

    The search differs from the final one only in its maximum number of active states, ``config.tuning_max_active``.

    `scores`: float32 (T, P) unscaled log likelihoods, which are read once, then kept; with `pseudo_likelihoods` from a
    network trained with LF-MMI, so that the grid is ``config.lfmmi_acoustic_scales``. `error_rate`: that of texts
    (references, hypotheses) as a fraction.

    Raises `Speech3Error`: there are no utterances, or one has no reference; also what `search.lattices` raises.
    """
    quick = config.model_copy(update={"max_active": config.tuning_max_active})
    key = "lfmmi_acoustic_scales" if pseudo_likelihoods else "acoustic_scales"
    scales, penalties = sorted(set(getattr(config, key))), sorted(set(config.word_penalties))
    exact: dict[Setting, TuningPoint] = {}
    tables: dict[Setting, dict[Setting, float]] = {}
    words: dict[Setting, dict[str, tuple[str, ...]]] = {}
    best_found: Mapping[str, _Found] = {}
    centre = scales[(len(scales) - 1) // 2], min(penalties, key=abs)
    with closing(_KeptScores(scores)) as kept:
        while centre not in exact:
            shown = progress(kept, len(references), f"tuning around {centre[0]:g}/{centre[1]:g}")
            found = dict(lattices(graph, shown, quick, centre, jobs))
            words[centre] = {utterance: each[0].words if each else () for utterance, each in found.items()}
            exact[centre] = TuningPoint(*centre, error_rate_of(references, words[centre], error_rate))
            if exact[centre] is min(exact.values(), key=lambda point: point.error_rate):  # of equals, the first
                best_found = found
            tables[centre], rate = _rates(graph, found, references, error_rate, exact[centre])
            around, centre = centre, _climbed(scales, penalties, centre, rate)
            _say_points(tables[around], around)
    # The best of the points with lattices of their own.
    best = min(exact.values(), key=lambda point: point.error_rate)
    setting = best.acoustic_scale, best.word_penalty
    _say_if_last("acoustic scale", setting[0], scales, key)
    _say_if_last("word penalty", setting[1], penalties, "word_penalties")
    known = tables[setting] | {each: point.error_rate for each, point in exact.items()}
    calibration = _calibrated(graph, best_found, references, setting[0])
    table = tuple(TuningPoint(*each, rate) for each, rate in sorted(known.items()))
    return Tuning(best, table, words[setting], calibration)


@dataclass(frozen=True)
class FillerTuning:
    """The cost of fillers chosen on dev, the words found with it and their calibration, and the hypotheses."""

    cost: float
    words: Mapping[str, tuple[str, ...]]
    calibration: Calibration
    hypotheses: tuple[Hypothesis, ...] = ()


def tune_filler(
    graph: DecodingGraph,
    scores: Scores,
    references: Mapping[str, Sequence[str]],
    config: DecodeConfig,
    found: Tuning,
    jobs: int = 1,
    error_rate: ErrorRate = jiwer.wer,
    negatives: tuple[Scores, int] = ((), 0),
) -> FillerTuning:
    """Find the cost of fillers, and calibrate the words' posteriors with it.

    It is the lowest with which the error rate is not higher than without fillers (`found`); it is bisected, since
    errors grow as the cost falls. With negatives, in which each word is an error, it is the cost with the fewest errors
    in dev and negatives together, of several the highest: one word of dev must not cost many in them.

    `negatives`: scores of utterances in which there is no word, and their number.
    """
    setting = found.best.acoustic_scale, found.best.word_penalty
    quick = config.model_copy(update={"max_active": config.tuning_max_active})
    with closing(_KeptScores(scores)) as kept, closing(_KeptScores(negatives[0])) as sounds:

        def at(cost: float, utterances: Scores, count: int) -> _AtCost:
            costly = graph.with_filler_cost(cost)
            shown = progress(utterances, count, f"fillers at cost {cost:g}")
            lattice_of = dict(lattices(costly, shown, quick, setting, jobs))
            words = {key: tuple(filter(is_word, one[0].words)) if one else () for key, one in lattice_of.items()}
            return _AtCost(cost, costly, lattice_of, words)

        def rate(tried: _AtCost) -> float:
            return error_rate_of(references, tried.words, error_rate)

        in_dev = partial(at, utterances=kept, count=len(references))
        if negatives[1]:
            in_negatives = partial(at, utterances=sounds, count=negatives[1])
            chosen = _with_fewest_errors(in_dev, rate, in_negatives, sum(map(len, references.values())))
        else:
            chosen = _lowest_without_loss(in_dev, rate, found.best.error_rate)
        if chosen is None:
            return FillerTuning(FILLER_OFF, found.words, found.calibration)
        calibration = _calibrated(chosen.graph, chosen.found, references, setting[0])
        said = tuple(each[0] for key in chosen.words if (each := chosen.found[key]))
        return FillerTuning(chosen.cost, chosen.words, calibration, said)


@dataclass(frozen=True)
class _AtCost:
    """What was found with a cost of fillers."""

    cost: float
    graph: DecodingGraph
    found: Mapping[str, _Found]
    words: _Words


def _lowest_without_loss(
    in_dev: Callable[[float], _AtCost], rate: Callable[[_AtCost], float], least: float
) -> _AtCost | None:
    """The lowest cost with an error rate in dev of at most `least`, by bisection; None: all have more errors."""
    chosen, low, high = None, 0, len(FILLER_COSTS)
    while low < high:
        middle = (low + high) // 2
        tried = in_dev(FILLER_COSTS[middle])
        error_rate = rate(tried)
        say(f"  fillers at cost {tried.cost:g}: {100 * error_rate:.2f} %")
        if error_rate <= least + 1e-9:
            chosen, high = tried, middle
        else:
            low = middle + 1
    return chosen


def _with_fewest_errors(
    in_dev: Callable[[float], _AtCost],
    rate: Callable[[_AtCost], float],
    in_negatives: Callable[[float], _AtCost],
    reference_words: int,
) -> _AtCost | None:
    """The highest cost with the fewest errors in dev and negatives together; the negatives' lattices are added."""
    chosen, fewest = None, math.inf
    for cost in (FILLER_OFF, *reversed(FILLER_COSTS)):
        tried = in_dev(cost)
        error_rate = rate(tried)
        wrong = error_rate * reference_words
        if wrong > fewest:
            break  # errors in dev alone are more, and grow as the cost falls
        heard = in_negatives(cost)
        false = sum(map(len, heard.words.values()))
        say(f"  fillers at cost {cost:g}: {100 * error_rate:.2f} %, {counted(false, 'word')} in negatives")
        if wrong + false < fewest - 1e-6:
            chosen, fewest = replace(tried, found={**tried.found, **heard.found}), wrong + false
    return chosen


def _calibrated(
    graph: DecodingGraph, found: Mapping[str, _Found], references: Mapping[str, Sequence[str]], scale: float
) -> Calibration:
    """Fit a calibration to the words found; lattices are determinised one at a time to save memory."""
    posteriors: list[float] = []
    correct: list[bool] = []
    for utterance, each in progress(found.items(), len(found), "confidences"):
        values = confidences_in(graph, each[1], each[0].units, scale) if each else None
        if each and values:
            joined = join_confidences(each[0].units, values, graph.mark) if graph.mark else values
            words = [place for place, word in enumerate(each[0].words) if is_word(word)]
            posteriors += [joined[place] for place in words]
            correct += correct_words(references.get(utterance, ()), [each[0].words[place] for place in words])
    return fit_calibration(posteriors, correct)


def _rates(
    graph: DecodingGraph,
    found: Mapping[str, _Found],
    references: Mapping[str, Sequence[str]],
    error_rate: ErrorRate,
    centre: TuningPoint,
) -> tuple[dict[Setting, float], Callable[[Setting], float]]:
    """Error rates known so far, and a function that estimates any from lattices made with the setting of `centre`."""
    known = {(centre.acoustic_scale, centre.word_penalty): centre.error_rate}

    def rate(setting: Setting) -> float:
        if setting not in known:
            scale, more_penalty = setting[0], setting[1] - centre.word_penalty
            words = {
                utterance: words_in(graph, best_words(each[1], scale, more_penalty)) if each else ()
                for utterance, each in found.items()
            }
            known[setting] = error_rate_of(references, words, error_rate)
        return known[setting]

    return known, rate


def _climbed(
    scales: Sequence[float], penalties: Sequence[float], start: Setting, rate: Callable[[Setting], float]
) -> Setting:
    """The setting where hill climbing ends: no neighbouring scale or penalty is better."""

    def climb(line: list[Setting], place: int) -> int:
        while True:
            around = range(max(place - 1, 0), min(place + 2, len(line)))
            better = min(around, key=lambda index: (rate(line[index]), index != place))
            if better == place:
                return place
            place = better

    scale, penalty = scales.index(start[0]), penalties.index(start[1])
    best = None
    while best != (scale, penalty):
        best = scale, penalty
        scale = climb([(each, penalties[penalty]) for each in scales], scale)
        penalty = climb([(scales[scale], each) for each in penalties], penalty)
    return scales[scale], penalties[penalty]


def _say_points(rates: Mapping[Setting, float], centre: Setting) -> None:
    for setting, rate in rates.items():
        how = "" if setting == centre else " (from lattices)"
        say(f"  acoustic scale {setting[0]:g}, word penalty {setting[1]:g}: {100 * rate:.2f} %{how}")


def _say_if_last(name: str, value: float, grid: Sequence[float], key: str) -> None:
    if len(grid) > 2 and value in (grid[0], grid[-1]):
        say(f"the best {name}, {value:g}, is on the edge of the grid decode.{key}; add values beyond it")


def drawn(lengths_s: Mapping[str, float], minutes: float) -> list[str]:
    """Utterances drawn at random, with a fixed seed, until they last `minutes`; all if there are not more."""
    if sum(lengths_s.values()) <= 60 * minutes:
        return list(lengths_s)
    names, left_s, taken = sorted(lengths_s), 60 * minutes, set[str]()
    for index in np.random.default_rng(1).permutation(len(names)):
        if left_s <= 0:
            break
        taken.add(names[index])
        left_s -= lengths_s[names[index]]
    return [name for name in lengths_s if name in taken]


def check_references(references: Mapping[str, Sequence[str]], utterances: Iterable[str]) -> None:
    if missing := [utterance for utterance in utterances if not references.get(utterance)]:
        raise DataError(f"dev: no words to tune on for {', '.join(missing[:5])}; add their transcripts to text")


def error_rate_of(
    references: Mapping[str, Sequence[str]], found: Mapping[str, Sequence[str]], error_rate: ErrorRate
) -> float:
    """Error rate of the words found, over all utterances of `found`, each of which needs a reference."""
    if not found:
        raise DataError("dev: no utterances to tune on; pass a data directory that has some")
    check_references(references, found)
    truth = [" ".join(references[utterance]) for utterance in found]
    return float(error_rate(truth, [" ".join(words) for words in found.values()]))


def tune_recognizer(
    recognizer: TrainedModel,
    feats: Mapping[str, np.ndarray],
    references: Mapping[str, Sequence[str]],
    config: DecodeConfig,
    jobs: int = 1,
    error_rate: ErrorRate = jiwer.wer,
    negatives: Mapping[str, np.ndarray] = MappingProxyType({}),
    lengths: WordLengths | None = None,
) -> Tuning:
    """Pick the acoustic scale and word penalty on a dev set and write them to the model's decode.json.

    The cost of fillers, if the graph has them, and a calibration of the words' posteriors are written with them. The
    grid is searched on ``config.tuning_minutes`` of the dev set, but the error rate returned is that of the whole set.
    `negatives` are features of sounds without words, for the cost and the calibration (`tune_filler`). `lengths` are
    written, too; if None, those of an earlier decode.json stay. Words that do not have them count as not recognised.
    """
    graph = recognizer.tuning_graph.with_filler_cost(FILLER_OFF)
    shift_s = recognizer.features.frame_shift / 1000
    chosen = drawn({key: shift_s * len(feats_TF) for key, feats_TF in feats.items()}, config.tuning_minutes)
    rest = sorted(feats.keys() - set(chosen))
    if rest:
        say(f"  tuning on {len(chosen)} of {len(feats)} utterances, {config.tuning_minutes:g} minutes")

    def scores(keys: Sequence[str]) -> Iterable[tuple[str, np.ndarray]]:
        return recognizer.scores(ComputedMapping(dict.fromkeys(keys), feats.__getitem__))

    pseudo = recognizer.scorer.pseudo_likelihoods
    said = {key: references.get(key, ()) for key in feats}
    found = tune(
        graph, scores(chosen), {key: said[key] for key in chosen}, config, jobs, error_rate, pseudo_likelihoods=pseudo
    )
    # The cost of fillers, which were off; then the words of the utterances that were not drawn.
    best, setting, filler_cost = found.best, (found.best.acoustic_scale, found.best.word_penalty), FILLER_OFF
    hypotheses: tuple[Hypothesis, ...] = ()
    if graph.has_filler:
        part = {key: said[key] for key in chosen}
        silent = recognizer.scores(negatives), len(negatives)
        filler = tune_filler(graph, scores(chosen), part, config, found, jobs, error_rate, silent)
        found = replace(found, words=filler.words, calibration=filler.calibration)
        graph, filler_cost = graph.with_filler_cost(filler.cost), filler.cost
        hypotheses = filler.hypotheses
    quick = config.model_copy(update={"max_active": config.tuning_max_active})
    if rest:
        shown = progress(scores(rest), len(rest), "rest of dev")
        others = decode(graph, shown, quick, *setting, jobs, tolerant=True)
        hypotheses += others.hypotheses
        found = replace(found, words={**found.words, **others.words})
        best = replace(best, error_rate=error_rate_of(said, found.words, error_rate))
    # Words of other lengths than they have are not recognised.
    lengths = lengths or _earlier_lengths(recognizer.directory)
    if lengths and isinstance(recognizer.outputs, Hmm):
        if lacking := sorted(found.words.keys() - {each.utterance for each in hypotheses}):
            again = decode(graph, scores(lacking), quick, *setting, jobs, tolerant=True)
            hypotheses += again.hypotheses
        times, aligned = aligned_words(recognizer, feats, Decoding(hypotheses, {}), jobs, judge=False)
        fitting = {key: tuple(word.label for word in times[key] if lengths.fits(word)) for key in aligned}
        words = {key: tuple(filter(is_word, fitting.get(key, each))) for key, each in found.words.items()}
        found = replace(found, words=words)
        best = replace(best, error_rate=error_rate_of(said, words, error_rate))
    tuned = DecodeSettings(*setting, config.beam, config.max_active, found.calibration, filler_cost, lengths)
    tuned.save(recognizer.directory)
    recognizer.read_settings_again()
    return replace(found, best=best)


def _earlier_lengths(directory: Path) -> WordLengths | None:
    with suppress(Speech3Error):  # none, or damaged: it is written again
        return load_settings(directory).lengths
    return None


@dataclass(frozen=True, eq=False)
class TunedPasses:
    """What `tune_passes` found: the tuning of the first and the last pass; features and transforms for the last."""

    first: Tuning
    last: Tuning
    feats: Mapping[str, np.ndarray]
    transforms: Mapping[str, np.ndarray]

    @property
    def helps(self) -> bool:
        return self.last.best.error_rate <= self.first.best.error_rate


def tune_passes(
    recognizer: TrainedModel,
    feats: Mapping[str, np.ndarray],
    speaker_of: Mapping[str, str],
    references: Mapping[str, Sequence[str]],
    config: DecodeConfig,
    jobs: int = 1,
    error_rate: ErrorRate = jiwer.wer,
) -> TunedPasses:
    """Tune a model that adapts to speakers: the first pass and the last; those between have the settings of the first.

    If the last is worse than the first, the model decodes in one pass from now on.
    """
    directory = recognizer.directory / ADAPTED
    for left in (DECODE_FILE, PASSES):  # of an earlier run, until the last pass is tuned
        (directory / left).unlink(missing_ok=True)
    first = tune_recognizer(recognizer, feats, references, config, jobs, error_rate)
    say(f"  pass 1: {config.metric} {100 * first.best.error_rate:.2f} % on dev")
    model = speaker_model(recognizer)
    assert model is not None
    words = {key: " ".join(each) for key, each in first.words.items()}
    transforms: Mapping[str, np.ndarray] = {}
    graph = recognizer.tuning_graph
    for each in passes_before_last(model, feats, speaker_of, graph=graph, jobs=jobs, first=words):
        if each.number == 1:
            say_speakers(speaker_of, each.estimated)
        transforms = each.estimated.transforms
    model.recognizer.settings.save(directory)
    adapted, given = model.adapted_to(feats, speaker_of, transforms, graph)
    last = tune_recognizer(adapted, given, references, config, jobs, error_rate)
    found = TunedPasses(first, last, given, transforms)
    if not found.helps:
        say("  adapting to speakers does not help on dev, so only the first pass is used")
        write_json(directory / PASSES, {"passes": 1})
    return found


def tune_datadir(
    recognizer: TrainedModel, data: DataDir, config: DecodeConfig, jobs: int, error_rate: ErrorRate
) -> TuningPoint:
    """Tune a model on a data directory, in passes if it adapts to speakers; the best point of the pass that is used.

    Raises `Speech3Error`: an utterance has no transcript; also what `features_for` and `tune_recognizer` raise.
    """
    texts = {key: (utterance.text or "").split() for key, utterance in data.utterances.items()}
    if silent := [key for key, words in texts.items() if not words]:
        raise DataError(
            f"{data.path}: {len(silent)} of {len(texts)} utterances have no transcript to compare with:"
            f" {listed(silent, 5)}; add transcripts to {data.path}/text, or leave these utterances out"
            " (`speech3 subset`)"
        )
    _ = recognizer.tuning_graph  # if there is none, say so before hours of audio are read
    with tempfile.TemporaryDirectory(prefix="speech3-") as scratch:
        feats, skipped = features_for(recognizer, data, jobs, Path(scratch))
        say_skipped(skipped, "left out")
        if not speaker_model(recognizer):
            return tune_recognizer(recognizer, feats, texts, config, jobs, error_rate).best
        speaker_of = {key: utterance.speaker for key, utterance in data.utterances.items()}
        passes = tune_passes(recognizer, feats, speaker_of, texts, config, jobs, error_rate)
        return passes.last.best if passes.helps else passes.first.best


def load_tuning(recognizer: TrainedModel) -> DecodeConfig:
    """The tuning grid of the model's recipe, from tuning.json; the default grid if there is no such file."""
    path = recognizer.directory / TUNING_FILE
    return parse(DecodeConfig, read_json(path), path) if path.exists() else DecodeConfig()
