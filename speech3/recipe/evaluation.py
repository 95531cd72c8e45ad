"""The stages `decode`, `rescore` (with `lm.rescore`), `score` and `report`.

No error rate of a recipe counts noises in transcripts, such as ``[laughs]`` and ``<unk>``, as they cannot be recognised
(`speech3 score` scores texts as they are).
"""

import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import yaml

from speech3.corpora import SET_NAMES, digits
from speech3.data import DataDir, audio, lengths_s, read_datadir, without_background
from speech3.decode import (
    BEAM,
    RETRY_BEAM,
    Decoding,
    RescoreOptions,
    TrainedModel,
    Tuning,
    WantedResults,
    WordLengths,
    decode_latticed,
    error_rate_of,
    learn_lengths,
    load_recognizer,
    open_lattices,
    rescore,
    tune_recognizer,
    without_words,
    write_decoding,
    write_hypotheses,
)
from speech3.errors import Speech3Error, counted
from speech3.evaluate import (
    PHONE_CLASSES,
    PICTURES_SHOWN,
    WORST_SHOWN,
    AlignedUtterance,
    Metric,
    Report,
    Score,
    SplitVolume,
    Suspect,
    Suspects,
    System,
    UnknownWords,
    UtteranceMaterial,
    best_of,
    compare_boundaries,
    drawn,
    encode_clip,
    environment_facts,
    read_text,
    reliability_beside,
    score,
    tables,
    write_report,
    write_scores,
)
from speech3.features import silent_in
from speech3.hmm import ADAPTED, DataWaves, Segment, align_utterances, read_ctm, suspicions, usable_transcripts
from speech3.io import DECODE_FILE, GRAPH_DIR, METRICS_FILE, MODEL_FILE, TUNING_FILE, ArkReader, load_tensors
from speech3.recipe import speakers
from speech3.recipe.experiment import (
    BMMI,
    GMMS,
    LFMMI,
    LFMMI_HMM,
    NEGATIVES,
    SAT,
    Experiment,
    on_sat,
    train_step,
)
from speech3.recipe.language import error_rate, spoken
from speech3.recipe.stages import aligning_recognizer
from speech3.recipe.steps import seconds_of
from speech3.runtime import read_json, read_metrics, say, write_json, write_text
from speech3.train import include_model, share_graphs

_MOST_EXAMINED_S = 7200.0  # seconds of test that are examined for suspicious transcripts: about a minute of work
_LEAST_WORDS = 2  # of an utterance of which no word was recognised, to be suspicious
_LONGEST_PICTURE_S = 25.0
_OUTLIER, _NO_WORD = "alignment's confidence", "no word recognised"

Tracks = Mapping[str, list[Segment]]
RESCORED = "test_rescored"
# Tensors of a model that are not trained: offsets of the pdfs' Gaussians, class priors, statistics of inputs.
_NOT_TRAINED = {"offset", "log_prior", "shift_F", "scale_F", "running_mean", "running_var", "num_batches_tracked"}
_BEST = "best.json"  # in decode/SYSTEM/dev: the best scale and penalty, and the error rates on dev
_SECOND: dict[str, Metric] = {"WER": "CER", "CER": "WER"}  # what decides between systems of equal error rates
OWN = "test_own"  # the test set decoded with our own language model
TOLERANCES_MS = (10, 20, 30, 40, 50)


def picture(e: Experiment) -> AlignedUtterance:
    """A dev utterance of median length with its spectrogram and alignment."""
    phones, words = _tracks(e, "dev")
    by_length = sorted(phones, key=lambda key: (phones[key][-1].end_s, key))
    utterance = by_length[len(by_length) // 2]
    wave_N, rate_hz = audio.load(read_datadir(e.data("dev")), utterance, mix_channels=True)
    return drawn(utterance, wave_N, rate_hz, phones[utterance], words.get(utterance, []))


def material(e: Experiment, best: str, score: Score, suspects: Suspects | None) -> dict[str, UtteranceMaterial]:
    """Recordings of the worst utterances of a system and of the suspicious ones, and pictures of the very worst."""
    data, hyp = read_datadir(e.data("test")), e.out / "decode" / best / "test" / "hyp.ctm"
    phones, words = _tracks(e, "test")
    recognised = read_ctm(hyp) if hyp.exists() else {}
    worst = [utterance.name for utterance in score.worst(WORST_SHOWN, e.recipe.metric)]
    suspicious = [each.utterance for each in suspects.found[:WORST_SHOWN]] if suspects else []
    found: dict[str, UtteranceMaterial] = {}
    for number, name in enumerate(dict.fromkeys([*worst, *suspicious])):
        place = _place(data, name)
        try:
            wave_N, rate_hz = audio.load(data, name, mix_channels=True)
        except (Speech3Error, OSError) as error:
            say(f"  {name}: not shown in the report: {error}")
            found[name] = UtteranceMaterial(place)
            continue
        shown = None
        if number < PICTURES_SHOWN and name in worst and len(wave_N) <= _LONGEST_PICTURE_S * rate_hz:
            tracks = phones.get(name, []), words.get(name, []), recognised.get(name, [])
            shown = drawn(name, wave_N, rate_hz, *tracks)
        found[name] = UtteranceMaterial(place, encode_clip(wave_N, rate_hz), shown)
    return found


def _tracks(e: Experiment, split: str) -> tuple[Tracks, Tracks]:
    paths = [e.alignment("aligner", split) / f"{name}.ctm" for name in ("phones", "words")]
    phones, words = (read_ctm(path) if path.exists() else {} for path in paths)
    return phones, words


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
    """Utterances of test whose alignment is an outlier, or of which no system recognised a word; None: not examined."""
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
    aligned = align_utterances(
        recognizer.hmm,
        recognizer.scorer,
        usable_transcripts(texts, recognizer.hmm.lexicon, examined, strict=False),
        feats,
        beam=BEAM,
        retry_beam=RETRY_BEAM,
        jobs=e.jobs,
        acoustic_scale=recognizer.alignment_scale,
        scored=True,
    )
    heard = {utterance.name: utterance for utterance in scores[best].utterances}
    found: dict[str, tuple[str, str]] = {}
    for each in suspicions(aligned, texts, recognizer.clock):
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


def unknown(e: Experiment, best: str) -> UnknownWords | None:
    """The words of test that the graph of a system does not have; None if its units are not words."""
    words = e.model(best) / GRAPH_DIR / "words.txt"
    if e.recipe.units != "words" or e.recipe.metric == "PER" or not words.exists():
        return None
    known = {line.split()[0] for line in words.read_text(encoding="utf-8").splitlines() if line.strip()}
    utterances = read_datadir(e.data("test")).utterances.values()
    said = Counter(word for utterance in utterances for word in spoken(utterance.text).split())
    counts = {word: count for word, count in said.items() if word not in known}
    spelled = e.recipe.lm.filler == "spelled"
    return UnknownWords(counts, said.total(), "letters" if e.recipe.letters else "phones" if spelled else "")


def rescore_system(e: Experiment, system: str) -> None:
    """Tune the weight of a second language model on lattices of dev, and rescore lattices of test with it.

    Dev is decoded with the graph whose language model has not seen its sentences; the second model has not seen them
    either.
    """
    out, lattices = e.out / "decode" / system, dict[str, Path]()
    for split in ("dev", "test"):
        recognizer, feats = _last_pass(e, system, split)
        lattices[split] = out / f"{split}_lattices"
        graph = recognizer.tuning_graph if split == "dev" else None
        decode_latticed(recognizer, feats, lattices[split], WantedResults(archive=True), e.jobs, graph)
    references: dict[str, Sequence[str]] = {
        key: (utterance.text or "").split() for key, utterance in read_datadir(e.data("dev")).utterances.items()
    }
    lm, metric = str(e.rescoring_lm), e.recipe.metric
    tuning = RescoreOptions(references=references, error_rate=error_rate(metric))
    found = rescore(open_lattices(lattices["dev"]), lm, out / "dev_rescored", tuning)
    best, before = found.rates[found.weight], found.rates[0.0]
    say(f"  dev {metric} {100 * best:.2f} % at weight {found.weight:g}, {100 * before:.2f} % without it")
    test = rescore(open_lattices(lattices["test"]), lm, out / RESCORED, RescoreOptions(found.weight))
    _write_text(out / RESCORED, recognizer, feats, without_words(test.decoding, _silent(e, system)), e.jobs)


def _last_pass(e: Experiment, system: str, split: str) -> tuple[TrainedModel, Mapping[str, np.ndarray]]:
    """A tuned recogniser and the features of a split; for `sat` those of the last pass, with the transforms it had."""
    if system == SAT:
        return speakers.last_pass(e, split)
    return load_recognizer(e.model(system)), e.feats(system, split)


def _silent(e: Experiment, system: str) -> frozenset[str]:
    """The utterances of test in which nothing is heard, and which therefore have no words."""
    preset = e.feature_preset(system)
    return silent_in(e.features(e.recipe.hmm.features if preset == SAT else preset, "test"))


def _word_lengths(e: Experiment) -> WordLengths | None:
    """The lengths of the words of train, from its alignment; None if that has no words."""
    aligned = e.alignment(e.bootstrap, e.train) / "words.ctm"
    return learn_lengths(word for track in read_ctm(aligned).values() for word in track) if aligned.exists() else None


# Corpora with a reference alignment: which pairs of phones count as one, and which boundaries it does not mark.
BOUNDARIES: dict[str, tuple[Callable[[str, str], bool], ...]] = {
    "digits": (digits.one_vowel, digits.unmarked_boundary),
    "timit": (),  # neither
}


def decode_system(e: Experiment, system: str) -> None:
    """Tune acoustic scale and word penalty on dev, and decode test with them; also with our own graph if there is one.

    Decoding makes lattices, for confidences; the measured time includes them. The grid is stored with the model, for
    later use of `speech3 tune` on it or on models that are trained on its senones.
    """
    if system in e.trained:
        share_graphs(e.model(system), e.model(e.hmm_of(system)))  # a network stays when the language model changes
    if on_sat(system):
        include_model(e.model(system), e.model(SAT))
    recognizer: TrainedModel = load_recognizer(e.model(system))
    dev, test = (e.feats(system, split) for split in ("dev", "test"))
    references = {key: (u.text or "").split() for key, u in read_datadir(e.data("dev")).utterances.items()}
    metric = e.recipe.metric
    config = e.recipe.decode.model_copy(update={"metric": metric})
    for directory in (system, *([LFMMI_HMM] if system == LFMMI else [])):  # from there `speech3 train` copies it
        write_json(e.model(directory) / TUNING_FILE, config.model_dump())
    # Tune on dev; a system that adapts to speakers decodes in passes.
    earlier_s = 0.0
    if system == SAT:
        passes = speakers.passes_on_dev(e, dev)
        found, dev = (passes.last, passes.feats) if passes.helps else (passes.first, dev)
        recognizer, test, earlier_s = speakers.passes_on_test(e, test)
    else:
        negatives = e.feats(system, NEGATIVES) if e.recipe.negatives and not on_sat(system) else {}
        if e.recipe.negatives and not negatives:
            say("  fillers and confidences are tuned on dev alone: negatives have no features adapted to speakers")
        lengths = _word_lengths(e) if negatives else None
        found = tune_recognizer(recognizer, dev, references, config, e.jobs, error_rate(metric), negatives, lengths)
    best = found.best
    setting = f"acoustic scale {best.acoustic_scale:g}, penalty {best.word_penalty:g}"
    say(f"  dev {metric} {100 * best.error_rate:.2f} % at {setting}")
    out = e.out / "decode" / system
    write_text(out / "dev" / "tuning.txt", _table(found, metric))
    write_text(out / "dev" / "hyp.txt", "".join(f"{key} {' '.join(words)}\n" for key, words in found.words.items()))
    write_json(out / "dev" / _BEST, {**asdict(best), **_second_rate(found, references, metric)})
    # Decode test.
    frames = sum(len(feats_TF) for feats_TF in test.values())
    start = time.monotonic()
    decoding, _ = decode_latticed(recognizer, test, out / "test", WantedResults(), e.jobs)
    seconds = earlier_s + time.monotonic() - start
    _tell_failed(decoding)
    shift_s = recognizer.features.frame_shift / 1000
    write_json(out / "test" / "speed.json", {"seconds": seconds, "jobs": e.jobs, "speech_s": frames * shift_s})
    silent = _silent(e, system)
    waves = DataWaves(read_datadir(e.data("test")), recognizer.features.sample_frequency)
    write_decoding(out / "test", recognizer, test, without_words(decoding, silent), e.jobs, waves=waves)
    if e.own_graph(system).exists():
        say("  decoding again with our own language model")
        again = recognizer.decode(test, e.jobs, recognizer.read_graph(e.own_graph(system)))
        _tell_failed(again)
        _write_text(out / OWN, recognizer, test, without_words(again, silent), e.jobs)


def _write_text(
    out: Path, recognizer: TrainedModel, feats: Mapping[str, np.ndarray], decoding: Decoding, jobs: int
) -> None:
    """Write ``hyp.txt``; if the recogniser judges the lengths of words, with their times."""
    if recognizer.settings.lengths:
        write_decoding(out, recognizer, feats, decoding, jobs)
    else:
        write_hypotheses(out / "hyp.txt", decoding)


def _second_rate(found: Tuning, references: Mapping[str, Sequence[str]], metric: Metric) -> dict[str, float]:
    """The other error rate of the words found on dev, by its name; nothing for phones, which have only one."""
    other = _SECOND.get(metric)
    return {other.lower(): error_rate_of(references, found.words, error_rate(other))} if other else {}


def _tell_failed(decoding: Decoding) -> None:
    for utterance, why in decoding.failed.items():
        say(f"  not decoded: {utterance}: {why}")


def _table(found: Tuning, metric: Metric) -> str:
    rows = [f"{p.acoustic_scale:g} {p.word_penalty:g} {100 * p.error_rate:.2f}\n" for p in found.table]
    return f"acoustic_scale word_penalty dev_{metric}\n" + "".join(rows)


def score_of(e: Experiment, system: str, decoded: str = "test", normalize: Sequence[str] = ()) -> Score:
    """The score of a system on the test set, without noises, with intervals over speakers.

    `decoded`: which hypotheses, `test`, `OWN` or `RESCORED`. `normalize`: steps that replace those of the recipe's
    metric.
    """
    utterances = read_datadir(e.data("test")).utterances
    references = {key: spoken(utterance.text) for key, utterance in utterances.items()}
    speakers = {key: utterance.speaker for key, utterance in utterances.items()}
    steps = normalize or (PHONE_CLASSES if e.recipe.metric == "PER" else ())
    found = read_text(e.out / "decode" / system / decoded / "hyp.txt")
    return score(references, {key: spoken(text) for key, text in found.items()}, speakers, steps)


def _second_score(e: Experiment, system: str, decoded: str) -> Score | None:
    return score_of(e, system, decoded) if (e.out / "decode" / system / decoded / "hyp.txt").exists() else None


def _rescored_score(e: Experiment, system: str) -> Score | None:
    return score_of(e, system, RESCORED) if e.rescored(system) else None


def earlier_passes(e: Experiment, system: str) -> list[str]:
    """The directories of the passes of a system before the last, in order."""
    found = (e.out / "decode" / system).glob("test_pass*/hyp.txt")
    return [path.parent.name for path in sorted(found)]


def _of_48_phones(e: Experiment, system: str) -> Score | None:
    return score_of(e, system, normalize=("phones48",)) if e.recipe.metric == "PER" else None


def score_systems(e: Experiment) -> None:
    """Write each system's tables and ``score.json``, and rewrite the model cards of networks."""
    for left in (e.out / "score").glob("*"):
        if left.name not in (*e.shown, "aligner"):  # of a system that is out of date, or was decoded otherwise
            shutil.rmtree(left, ignore_errors=True)
    for system in e.shown:
        result, metric = score_of(e, system), e.recipe.metric
        tables.write_details(e.out / "score" / system, result, metric)
        more = {metric.lower(): result.counts(metric).rate, "line": result.line(e.name, system, metric)}
        values = {**result.as_json(), "cer_ci95": list(result.cer_ci95), **more}
        write_json(e.out / "score" / system / "score.json", values)
        if system not in (*GMMS, BMMI):
            _write_card(e, system, result)
        for second, name, what in (
            (_second_score(e, system, OWN), "own_lm", "with our own language model"),
            (_rescored_score(e, system), "rescored", "lattices rescored"),
            (_of_48_phones(e, system), "phones48", "48 phones"),
            *(
                (_second_score(e, system, name), name.removeprefix("test_"), name.removeprefix("test_"))
                for name in earlier_passes(e, system)
            ),
        ):
            path = e.out / "score" / system / f"{name}.json"
            path.unlink(missing_ok=True)
            if second:
                line = second.line(e.name, f"{system}_{name}" if name.startswith("pass") else system, metric)
                write_json(path, {**second.as_json(), "cer_ci95": list(second.cer_ci95), "line": line})
                say(f"  {what}: {line}")


def _write_card(e: Experiment, system: str, result: Score) -> None:
    try:
        write_scores(e.model(system), f"{e.name} test", result)
    except Speech3Error as error:
        if system in e.systems:
            raise
        say(f"  {system}: no model card ({error})")  # a system that an older version of speech3 trained


def score_boundaries(e: Experiment) -> None:
    """Compare the aligner with the reference alignment of test; in a synthesised corpus, only of clean utterances."""
    data, out = e.data("test"), e.out / "score" / "aligner" / "boundaries.json"
    reference = read_ctm(data / "reference.ctm")
    if (data / "conditions").exists():
        conditions = dict(line.split() for line in (data / "conditions").read_text(encoding="utf-8").splitlines())
        reference = {key: track for key, track in reference.items() if conditions[key] == "clean"}
    aligned = read_ctm(e.alignment("aligner", "test") / "phones.ctm")
    found = compare_boundaries(reference, aligned, *BOUNDARIES[e.recipe.corpus])
    off_ms = 1000 * np.abs(found.differences_s)
    values = {
        "utterances": len(reference),
        "mismatched": list(found.mismatched),
        "boundaries": len(off_ms),
        **{f"within_{ms}_ms": found.within(ms / 1000) for ms in TOLERANCES_MS},
        "boundaries_unmarked": len(found.apart_s),
        "within_20_ms_unmarked_included": found.within(0.020, everything=True),
        "median_difference_ms": 1000 * float(np.median(found.differences_s)),
        "mean_absolute_difference_ms": float(off_ms.mean()),
    }
    write_json(out, values)
    shares = ", ".join(f"{ms} ms {found.within(ms / 1000):.1%}" for ms in TOLERANCES_MS)
    say(f"  {len(off_ms):,} phone boundaries of {len(reference)} test utterances; within {shares}")


def result_lines(e: Experiment) -> list[str]:
    """The last lines of a recipe's output: one for each system that this run trained, and for each of its passes."""
    lines = []
    for system in e.systems:
        names = [*(f"{name.removeprefix('test_')}.json" for name in earlier_passes(e, system)), "score.json"]
        lines += [str(read_json(e.out / "score" / system / name)["line"]) for name in names]
    return lines


def rows_to_paste(e: Experiment) -> str:
    """A row for each system, in the columns of the tables of published results in `recipes/CORPUS/README.md`."""
    about = e.out / "data" / SET_NAMES
    sets = read_json(about) if about.exists() else {}
    lm = e.recipe.lm
    given = "a grammar" if lm.grammar else Path(lm.arpa).name if lm.arpa else sets.get("lm")
    text = Path(lm.text).name if lm.text else "the transcripts"
    columns = f"{sets.get('train', 'train')}, {e.hours:.3g} h", sets.get("test", "test")
    rows = []
    for system in e.systems:
        scored = read_json(e.out / "score" / system / "score.json")
        rate = scored["line"].split(f" {e.recipe.metric} ")[1]
        dev = read_json(e.out / "decode" / system / "dev" / _BEST)["error_rate"]
        cells = *columns, system, given or f"{lm.order}-gram of {text}", "", f"{rate} (dev {100 * dev:.2f})"
        rows.append(f"| {' | '.join(cells)} |".replace("|  |", "| |"))
    return "\n".join([f"rows for the table of published results in recipes/{e.name}/README.md:", *rows])


def report(e: Experiment) -> None:
    systems = [_system(e, system) for system in e.shown]
    best = best_of(systems, e.recipe.metric)
    suspect = suspects(e, {system.name: system.score for system in systems}, best.name)
    page = Report(
        title=f"{e.name}: {counted(len(e.shown), 'system')}",
        command=e.command,
        systems=systems,
        metric=e.recipe.metric,
        volumes=[_volume(e, split) for split in dict.fromkeys(("train", *e.splits))],
        picture=picture(e),
        material=material(e, best.name, best.score, suspect),
        suspects=suspect,
        unknown=unknown(e, best.name),
        config_yaml=yaml.safe_dump(e.recipe.model_dump(mode="json"), sort_keys=False),
        environment=environment_facts(),
    )
    write_report(e.out / "report.html", page)


def _system(e: Experiment, system: str) -> System:
    directory = e.model(system)
    tensors, about = load_tensors(directory / MODEL_FILE)
    speed = read_json(e.out / "decode" / system / "test" / "speed.json")
    adapted = directory / ADAPTED / DECODE_FILE
    settings = read_json(adapted if adapted.exists() else directory / DECODE_FILE)
    result = score_of(e, system)
    return System(
        name=system,
        score=result,
        own_lm=_second_score(e, system, OWN),
        rescored=_rescored_score(e, system),
        of_48_phones=_of_48_phones(e, system),
        passes=[score_of(e, system, name) for name in earlier_passes(e, system)],
        reliability=reliability_beside(result, e.out / "decode" / system / "test" / "hyp.txt"),
        parameters=sum(array.size for name, array in tensors.items() if name.rpartition(".")[2] not in _NOT_TRAINED),
        training_s=about.get("seconds", seconds_of(e.out, train_step(system))),
        decoding_rtf=speed["seconds"] * speed["jobs"] / max(speed["speech_s"], 1e-9),
        tuned={"acoustic scale": settings["acoustic_scale"], "word penalty": settings["word_penalty"]},
        metrics=read_metrics(directory / METRICS_FILE),
        network=about,
    )


def _volume(e: Experiment, split: str) -> SplitVolume:
    data = without_background(read_datadir(e.data(split)))
    seconds = sum(lengths_s(data).values())
    return SplitVolume(split, len(data.utterances), len(data.speakers()), seconds / 3600)


def summary(e: Experiment) -> str:
    """The locations of all results, and which system is the best on dev; printed at the end of a run."""
    rows = [("report", e.out / "report.html"), *((system, e.model(system)) for system in (*e.shown, "aligner"))]
    rows += [("hypotheses", e.out / "decode"), ("tables", e.out / "score")]
    lines = [f"  {name:<10} {_short(path)}" for name, path in rows]
    found = {system: e.out / "decode" / system / "dev" / _BEST for system in e.systems}
    return "\n".join([*lines, *_best_on_dev(found, e.recipe.metric)])


def _best_on_dev(found: Mapping[str, Path], metric: Metric) -> list[str]:
    """A line about the best system, if there are several.

    Of equal systems it is the one with the lower second error rate, else the one that is listed later: it was trained
    on the alignment of the earlier one, or on the same with more parameters.
    """
    points = {system: read_json(path) for system, path in found.items() if path.exists()}
    if len(points) < 2:
        return []
    second = _SECOND.get(metric, "").lower()

    def rates(system: str) -> tuple[float, float]:
        # Earlier versions did not write the second rate; without that of all, none is compared.
        known = all(second in point for point in points.values())
        return float(points[system]["error_rate"]), float(points[system][second]) if known else 0.0

    best = min(reversed(points), key=rates)  # of equals, the first of these: the last one listed
    lowest = rates(best)[0]
    equal = [system for system in points if system != best and rates(system)[0] == lowest]
    why = f", as has {' and '.join(equal)}" if equal else ""
    if equal and all(rates(system) != rates(best) for system in equal):
        why += f"; its {second.upper()} is lower"
    elif equal:
        why += "; the later system is named"
    return [f"  best on dev: {best}, {metric} {100 * lowest:.2f} %{why}"]


def _short(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
