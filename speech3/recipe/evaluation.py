"""The stages `decode`, `score` and `report`."""

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import yaml

from speech3.alignment.times import read_ctm
from speech3.corpora import digits
from speech3.corpora.anyspeech import SET_NAMES
from speech3.corpus.datadir import read_datadir
from speech3.corpus.lengths import lengths_s
from speech3.decoding.latticed import Wanted, decode_latticed
from speech3.decoding.output import write_decoding, write_hypotheses
from speech3.decoding.recognizer import TUNING, load_recognizer, tune_recognizer
from speech3.decoding.search import Decoding
from speech3.decoding.tune import Tuning, rate_of
from speech3.errors import Speech3Error
from speech3.graph.places import SETTINGS
from speech3.io.ark import ArkReader
from speech3.io.atomic import read_json, write_json, write_text
from speech3.io.checkpoint import load_tensors
from speech3.io.progress import read_metrics, say
from speech3.recipe import listening
from speech3.recipe.experiment import BMMI, GMMS, LFMMI, LFMMI_HMM, SELF, Experiment
from speech3.recipe.noises import error_rate, spoken
from speech3.recipe.rescoring import RESCORED, rescore_system
from speech3.recipe.steps import seconds_of
from speech3.reports.environment import environment
from speech3.reports.page import Report, System, Volume, best_of, write_report
from speech3.reports.scores_in_card import write_scores
from speech3.scoring import tables
from speech3.scoring.boundaries import compare_boundaries
from speech3.scoring.confidence import reliability_beside
from speech3.scoring.text import PHONE_CLASSES, read_text
from speech3.scoring.wer import Metric, Score, score
from speech3.training.package import share_graphs

# Tensors of a model that are not trained: offsets of the pdfs' Gaussians, class priors, statistics of inputs.
_NOT_TRAINED = {"offset", "log_prior", "shift_F", "scale_F", "running_mean", "running_var", "num_batches_tracked"}
_BEST = "best.json"  # in decode/SYSTEM/dev: the best scale and penalty, and the error rates on dev
_SECOND: dict[str, Metric] = {"WER": "CER", "CER": "WER"}  # what decides between systems of equal error rates
OWN = "test_own"  # the test set decoded with our own language model
TOLERANCES_MS = (10, 20, 30, 40, 50)


def _never(one: str, other: str) -> bool:
    return False


# Corpora with a reference alignment: which pairs of phones count as one, and which boundaries it does not mark.
BOUNDARIES: dict[str, tuple[Callable[[str, str], bool], Callable[[str, str], bool]]] = {
    "digits": (digits.one_vowel, digits.unmarked_boundary), "timit": (_never, _never)
}  # fmt: skip


def decode_system(e: Experiment, system: str) -> None:
    """Tune acoustic scale and word penalty on dev, and decode test with them; also with our own graph if there is one.

    Decoding makes lattices, for confidences and for `lm.rescore`; the measured time includes them. The grid is stored
    with the model, for later use of `speech3 tune` on it or on models that are trained on its senones.
    """
    if system in e.trained:
        share_graphs(e.model(system), e.model(e.hmm_of(system)))  # a network stays when the language model changes
    recognizer = load_recognizer(e.model(system))
    dev, test = (ArkReader(e.features(e.feature_preset(system), split) / "feats.scp") for split in ("dev", "test"))
    references = {key: (u.text or "").split() for key, u in read_datadir(e.data("dev")).utterances.items()}
    metric = e.recipe.metric
    config = e.recipe.decode.model_copy(update={"metric": metric})
    for directory in (system, *([LFMMI_HMM] if system == LFMMI else [])):  # from there `speech3 train` copies it
        write_json(e.model(directory) / TUNING, config.model_dump())
    best = (found := tune_recognizer(recognizer, dev, references, config, e.jobs, error_rate(metric))).best
    setting = f"acoustic scale {best.acoustic_scale:g}, penalty {best.word_penalty:g}"
    say(f"  dev {metric} {100 * best.error_rate:.2f} % at {setting}")
    out = e.out / "decode" / system
    write_text(out / "dev" / "tuning.txt", _table(found, metric))
    write_json(out / "dev" / _BEST, {**asdict(best), **_second_rate(found, references, metric)})
    frames = sum(len(feats_TF) for feats_TF in test.values())
    start = time.monotonic()
    wanted = Wanted(archive=e.recipe.lm.rescore is not None)
    decoding, _ = decode_latticed(recognizer, test, out / "test", wanted, e.jobs)
    seconds = time.monotonic() - start
    _tell_failed(decoding)
    shift_s = recognizer.features.frame_shift / 1000
    write_json(out / "test" / "speed.json", {"seconds": seconds, "jobs": e.jobs, "speech_s": frames * shift_s})
    write_decoding(out / "test", recognizer, test, decoding, e.jobs)
    if wanted.archive:
        rescore_system(e, recognizer, dev, out)
    if e.own_graph(system).exists():
        say("  decoding again with our own language model")
        again = recognizer.decode(test, e.jobs, recognizer.read_graph(e.own_graph(system)))
        _tell_failed(again)
        write_hypotheses(out / OWN / "hyp.txt", again)


def _second_rate(found: Tuning, references: Mapping[str, Sequence[str]], metric: Metric) -> dict[str, float]:
    """The other error rate of the words found on dev, by its name; nothing for phones, which have only one."""
    other = _SECOND.get(metric)
    return {other.lower(): rate_of(references, found.words, error_rate(other))} if other else {}


def _tell_failed(decoding: Decoding) -> None:
    for utterance, why in decoding.failed.items():
        say(f"  not decoded: {utterance}: {why}")


def _table(found: Tuning, metric: Metric) -> str:
    rows = [f"{p.acoustic_scale:g} {p.word_penalty:g} {100 * p.error_rate:.2f}\n" for p in found.table]
    return f"acoustic_scale word_penalty dev_{metric}\n" + "".join(rows)


def score_of(e: Experiment, system: str, decoded: str = "test", normalize: Sequence[str] = ()) -> Score:
    """The score of a system on the test set, without noises, with intervals over speakers.

    Parameters
    ----------
    decoded
        Which hypotheses: `test`, `OWN` or `RESCORED`.
    normalize
        Steps that replace those of the recipe's metric.
    """
    utterances = read_datadir(e.data("test")).utterances
    references = {key: spoken(utterance.text) for key, utterance in utterances.items()}
    speakers = {key: utterance.speaker for key, utterance in utterances.items()}
    steps = normalize or (PHONE_CLASSES if e.recipe.metric == "PER" else ())
    found = read_text(e.out / "decode" / system / decoded / "hyp.txt")
    return score(references, {key: spoken(text) for key, text in found.items()}, speakers, steps)


def _second_score(e: Experiment, system: str, decoded: str) -> Score | None:
    return score_of(e, system, decoded) if (e.out / "decode" / system / decoded / "hyp.txt").exists() else None


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
        more = {
            "cer_ci95": list(result.cer_ci95), metric.lower(): result.counts(metric).rate,
            "line": result.line(e.name, system, metric),
        }  # fmt: skip
        write_json(e.out / "score" / system / "score.json", {**result.as_json(), **more})
        if system not in (*GMMS, BMMI):
            _write_card(e, system, result)
        for second, name, what in (
            (_second_score(e, system, OWN), "own_lm", "with our own language model"),
            (_second_score(e, system, RESCORED), "rescored", "lattices rescored"),
            (_of_48_phones(e, system), "phones48", "48 phones"),
        ):
            path = e.out / "score" / system / f"{name}.json"
            path.unlink(missing_ok=True)
            if second:
                line = second.line(e.name, system, metric)
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
    write_json(out, {
        "utterances": len(reference), "mismatched": list(found.mismatched), "boundaries": len(off_ms),
        **{f"within_{ms}_ms": found.within(ms / 1000) for ms in TOLERANCES_MS},
        "boundaries_unmarked": len(found.apart_s),
        "within_20_ms_unmarked_included": found.within(0.020, everything=True),
        "median_difference_ms": 1000 * float(np.median(found.differences_s)),
        "mean_absolute_difference_ms": float(off_ms.mean()),
    })  # fmt: skip
    shares = ", ".join(f"{ms} ms {found.within(ms / 1000):.1%}" for ms in TOLERANCES_MS)
    say(f"  {len(off_ms):,} phone boundaries of {len(reference)} test utterances; within {shares}")


def result_lines(e: Experiment) -> list[str]:
    """The last lines of a recipe's output: a line for each system that this run trained."""
    return [str(read_json(e.out / "score" / system / "score.json")["line"]) for system in e.systems]


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
        best = e.out / "decode" / system / "dev" / _BEST  # earlier versions did not write it
        dev = f" (dev {100 * read_json(best)['error_rate']:.2f})" if best.exists() else ""
        cells = *columns, system, given or f"{lm.order}-gram of {text}", "", f"{rate}{dev}"
        rows.append(f"| {' | '.join(cells)} |".replace("|  |", "| |"))
    return "\n".join([f"rows for the table of published results in recipes/{e.name}/README.md:", *rows])


def report(e: Experiment) -> None:
    """Write ``report.html``."""
    systems = [_system(e, system) for system in e.shown]
    best = best_of(systems, e.recipe.metric)
    suspects = listening.suspects(e, {system.name: system.score for system in systems}, best.name)
    write_report(e.out / "report.html", Report(
        title=f"{e.name}: {len(e.shown)} systems",
        command=e.command,
        systems=systems,
        metric=e.recipe.metric,
        volumes=[_volume(e, split) for split in dict.fromkeys(("train", *e.splits))],
        picture=listening.picture(e),
        material=listening.material(e, best.name, best.score, suspects),
        suspects=suspects,
        unknown=listening.unknown(e, best.name),
        config_yaml=yaml.safe_dump(e.recipe.model_dump(mode="json"), sort_keys=False),
        environment=environment(),
    ))  # fmt: skip


def _system(e: Experiment, system: str) -> System:
    directory = e.model(system)
    tensors, about = load_tensors(directory / "model.safetensors")
    speed = read_json(e.out / "decode" / system / "test" / "speed.json")
    settings = read_json(directory / SETTINGS)
    step = f"hmm/{system}" if system in GMMS else "self/train" if system == SELF else f"train/{system}"
    result = score_of(e, system)
    return System(
        name=system,
        score=result,
        own_lm=_second_score(e, system, OWN),
        rescored=_second_score(e, system, RESCORED),
        of_48_phones=_of_48_phones(e, system),
        reliability=reliability_beside(result, e.out / "decode" / system / "test" / "hyp.txt"),
        parameters=sum(array.size for name, array in tensors.items() if name.rpartition(".")[2] not in _NOT_TRAINED),
        training_s=about.get("seconds", seconds_of(e.out, step)),
        decoding_rtf=speed["seconds"] * speed["jobs"] / max(speed["speech_s"], 1e-9),
        tuned={"acoustic scale": settings["acoustic_scale"], "word penalty": settings["word_penalty"]},
        metrics=read_metrics(directory / "metrics.jsonl"),
        network=about,
    )


def _volume(e: Experiment, split: str) -> Volume:
    data = read_datadir(e.data(split))
    seconds = sum(lengths_s(data).values())
    return Volume(split, len(data.utterances), len(data.speakers()), seconds / 3600)


def summary(e: Experiment) -> str:
    """The locations of all results, and which system is the best on dev; printed at the end of a run."""
    rows = [("report", e.out / "report.html"), *((s, e.model(s)) for s in (*e.shown, "aligner")),
            ("hypotheses", e.out / "decode"), ("tables", e.out / "score")]  # fmt: skip
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
