"""`report.html`: one self-contained page about an experiment, for large and small screens, section by section."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from speech3.errors import MissingError, counted
from speech3.evaluate import figures, html
from speech3.evaluate.figures import AlignedUtterance, Line, draw_accuracy, draw_lines, draw_staleness, time_unit
from speech3.evaluate.html import Clip, escape
from speech3.evaluate.tables import UNITS, per_cent
from speech3.evaluate.wer import ErrorCounts, Metric, Reliability, Score, Utterance, paired_test
from speech3.models import parameters_of
from speech3.runtime import write_text
from speech3.train import Asynchrony, asynchrony, curve_of

Records = Sequence[Mapping[str, Any]]
_PER = "Phone error rate, held-out, %"
# A term, a pattern of the text that uses it, and its explanation; at least two spaces separate them.
_TERMS = r"""
WER  \bWER\b  word error rate: substituted, deleted and inserted words, over the words of the references
CER  \bCER\b  character error rate: the same of characters
PER  \bPER\b  phone error rate: the same of phones
sub, del, ins  >sub<  numbers of words that were substituted, deleted (missed) and inserted
95 % interval  95 % interval  where the error rate would lie for other test speakers, 95 times in 100
sentences wrong  sentences wrong  share of the utterances with at least one error
p against best  p against best  probability of this difference between equally good systems; significant below 0.05
own language model  own language model  the n-gram that the recipe estimates, in place of the given one
rescored  rescored  the best words of the lattices under a second language model
mono, tri  >(mono|tri)<  Gaussian mixtures on the states of monophones; of triphones in context
lda, sat  >(lda|sat)<  triphones on features after linear discriminant analysis; then adapted to speakers
pass  % in pass \d  decoding before the features were adapted again to what was recognised
senone  \bsenones?\b|frame accuracy  a state of a phone in context, or tied states: a class that a network predicts
parameters  >parameters<  how many numbers were trained: weights, or means, variances and mixture weights
× real time  × real time  time of decoding on one core, over the duration of the speech; below 1 is faster
acoustic scale  acoustic scale  weight of the acoustic scores against those of the language model
word penalty  word penalty  what each word costs; a higher one means fewer insertions
dev  \bdev\b  data on which scale and penalty were tuned; neither train nor test
held-out  [Hh]eld-out  speech that a network did not learn from; it is measured after each epoch
frame accuracy  frame accuracy  share of frames (10 ms) whose most probable senone is that of the alignment
loss  \b[Ll]oss\b  what training minimises; lower is better
epoch  \bepochs?\b  one pass over all training data
shard, push  \bshards?\b  an asynchronous worker; what it sends to the server that holds the parameters
staleness  [Ss]taleness  updates by other workers between fetching parameters and pushing a gradient
alignment  [Aa]lignment  which stretch of audio is which phone of the transcript
SIL, SPN  \b(SIL|SPN)\b  silence; noise, or a word without a pronunciation
confidence  [Cc]onfidence  the estimated probability that a recognised word is correct
normalised cross-entropy  cross-entropy  how well confidences predict correct words: 1 perfect, 0 useless
lattice  \blattices?\b  the word sequences that decoding found likely, with their scores
reference, hypothesis  [Rr]eference  what was said, according to the transcript; what was recognised
vocabulary  \b[Vv]ocabulary\b  the words that the recogniser knows; it recognises no other
"""
WORST_SHOWN = 20
PICTURES_SHOWN = 10  # of the worst utterances, that many have pictures
MOST_BYTES = 2_000_000  # of all clips in the page
_OPEN = 5  # utterances that are shown without unfolding
_SUSPICIOUS, _WORDS = 20, 30  # shown without unfolding
_CONFUSIONS = 30
_SPEAKERS = 25  # further speakers are folded
_NONE = "–"


def _training(systems: Sequence["System"]) -> str:
    """Curves and results of the networks; empty if no system has a curve."""
    metrics = {system.name: system.metrics for system in systems}
    trained = {name: curve for name, records in metrics.items() if (curve := curve_of(name, records))}
    if not trained:
        return ""
    virtual = all(any(record.get("world") == "simulated" for record in metrics[name]) for name in trained)
    accuracy = partial(draw_accuracy, curves=list(trained.values()), against="seconds", virtual=virtual)
    plots = [figures.svg("Held-out frame accuracy", accuracy)]
    epochs = {name: _epochs(metrics[name]) for name in trained}
    loss = _lines(epochs, "heldout_loss", ", held-out") + _lines(epochs, "train_loss", ", train", dashed=True)
    for title, lines in (("Loss per frame", loss), (_PER, _lines(epochs, "heldout_per", factor=100))):
        if lines:
            unit, divisor = time_unit(max(max(line.x) for line in lines))
            scaled = [replace(line, x=[t / divisor for t in line.x]) for line in lines]
            x_label = f"{'virtual ' * virtual}{unit} of training"
            plots.append(figures.svg(title, partial(draw_lines, lines=scaled, x_label=x_label)))
    parts = [f'<div class="grid">{"".join(f"<figure>{plot}</figure>" for plot in plots)}</div>{_results(systems)}']
    for colour, name in enumerate(trained):
        one = asynchrony(metrics[name])
        if one and (len(one.shards) > 1 or any(one.staleness)):
            parts.append(_asynchronous(name, one, colour))
    return "\n".join(parts)


def _epochs(records: Records) -> Records:
    # A run that was killed between an epoch's record and its checkpoint repeats the epoch and its record.
    epochs = {record["epoch"]: record for record in records if record.get("event") == "epoch"}
    return [record for _, record in sorted(epochs.items())]


def _lines(
    epochs: Mapping[str, Records], key: str, suffix: str = "", *, dashed: bool = False, factor: float = 1
) -> list[Line]:
    lines = []
    for colour, (name, records) in enumerate(epochs.items()):
        points = [(r["seconds"], factor * r[key]) for r in records if r.get(key) is not None]
        if points:
            x, y = zip(*points, strict=True)
            lines.append(Line(f"{name}{suffix}", x, y, colour, dashed=dashed))
    return lines


def _results(systems: Sequence["System"]) -> str:
    """The held-out results of each network, with the parameters that it has."""
    rows = []
    for system in systems:
        network = system.network
        if network.get("heldout_loss") is not None:
            per, loss = network.get("heldout_per"), f"{network['heldout_loss']:.4f}"
            rates = [per_cent(network["heldout_accuracy"]), loss, _NONE if per is None else per_cent(per)]
            rows.append([escape(system.name), parameters_of(network), *rates])
    header = ["held-out speech", "parameters of", "frame accuracy %", "loss", "phone error rate %"]
    key = (
        "Loss: cross-entropy per frame; for training on sequences (LF-MMI, MMI, sMBR) its own criterion, so losses of"
        " different kinds cannot be compared. Phone error rate: decoded with a phone loop, without a dictionary."
    )
    return f'{html.table(header, rows)}<p class="quiet">{key}</p>' if rows else ""


def _asynchronous(name: str, one: Asynchrony, colour: int) -> str:
    n = one.minibatches
    text = (
        f"{len(one.shards)} shards, {one.versions:,} versions. Minibatches: {n['used']:,} used, {n['stale']:,} too "
        f"stale, {n['refused']:,} refused, {n['returned']:,} returned by shards that died and processed by others. "
        f"Restarted shards: {one.restarts:,}."
    )
    parts = []
    if any(one.staleness):
        histogram = partial(draw_staleness, counts=one.staleness, colour=colour)
        parts.append(f"<figure>{figures.svg('Staleness of the pushes', histogram, about=name)}</figure>")
    if one.shards:
        parts.append(f"<div>{_shards(one)}</div>")
    return f'<h3>{escape(name)}</h3>\n<p>{text}</p>\n<div class="grid">{"".join(parts)}</div>'


def _shards(one: Asynchrony) -> str:
    header = ["shard", "minibatches", "share", "compute", "sync", "wait", "busy"]
    rows = []
    for number, (shard, share) in enumerate(zip(one.shards, one.shares, strict=True)):
        times = [f"{shard.compute_s:,.1f}", f"{shard.sync_s:,.2f}", f"{shard.wait_s:,.2f}"]
        rows.append([str(number), f"{shard.minibatches:,}", f"{100 * share:.1f} %", *times, f"{shard.busy:,}"])
    key = "Compute, sync and wait are in seconds; busy: how often the server was busy when the shard wanted to sync."
    return f'{html.table(header, rows)}<p class="quiet">{key}</p>'


def terms_section(page: str) -> str:
    """The explanations of the terms that a page uses."""
    terms = (re.split(" {2,}", line) for line in _TERMS.strip().splitlines())
    return html.pairs({term: about for term, pattern, about in terms if re.search(pattern, page)})


def confidence_section(systems: Mapping[str, Reliability | None], best: str) -> str:
    """The normalised cross-entropy of each system, and the best one's reliability table; empty if there is neither."""
    known = {name: found for name, found in systems.items() if found}
    if not known:
        return ""
    rows = []
    for name, found in known.items():
        nce = f"none: {found.why_no_nce}" if found.why_no_nce else f"{found.nce:.3f}"
        rows.append([escape(name), f"{found.words:,}", f"{100 * found.correct:.2f}", nce])
    table = html.table(["system", "words", "correct %", "normalised cross-entropy"], rows)
    note = (
        '<p class="quiet">Normalised cross-entropy: 1 is perfect; 0 if the confidence of every word is the share of '
        "correct words. It is not defined if all words are correct, or none. Confidences are posteriors in lattices, "
        "calibrated on dev.</p>"
    )
    name = best if best in known else next(iter(known))
    header = [f"confidence, {escape(name)}", "words", "mean confidence", "correct", ""]
    bins = []
    for each in known[name].bins:
        shares = [f"{each.confidence:.3f}", f"{each.correct:.3f}", html.plain_bar(each.correct, 1.0)]
        bins.append([f"{each.low:.1f} – {each.high:.1f}", f"{each.words:,}", *shares])
    return f"{table}\n{note}\n{html.table(header, bins)}"


@dataclass(frozen=True)
class UtteranceMaterial:
    """What is known of an utterance besides its words."""

    place: str  # the file or command of its recording, with its times
    clip: Clip | None = None  # the recording, if it is short enough for the page
    picture: AlignedUtterance | None = None


@dataclass(frozen=True)
class Suspect:
    """An utterance that is probably mistranscribed; `transcript` has ``*`` around doubtful words."""

    utterance: str
    why: str
    transcript: str
    hypothesis: str


@dataclass(frozen=True)
class Suspects:
    """The suspicious transcripts, the most suspicious first, and what was examined."""

    found: Sequence[Suspect]
    examined: int
    utterances: int


@dataclass(frozen=True)
class UnknownWords:
    """The words of the references that the recogniser does not know, with their counts; the words of all references."""

    counts: Mapping[str, int] = field(default_factory=dict)
    words: int = 0
    spelled_by: Literal["", "letters", "phones"] = ""  # what such words can be recognised by, if by anything


def within_limit(material: Mapping[str, UtteranceMaterial]) -> dict[str, UtteranceMaterial]:
    """The material of the utterances in their order, without the clips that would exceed `MOST_BYTES` together."""
    total, found = 0, {}
    for name, each in material.items():
        size = len(each.clip.address) if each.clip else 0
        fits = total + size <= MOST_BYTES
        total += size if fits else 0
        found[name] = each if fits else UtteranceMaterial(each.place, None, each.picture)
    return found


def worst_section(name: str, score: Score, metric: Metric, material: Mapping[str, UtteranceMaterial]) -> str:
    """The worst utterances of a system, aligned word by word, with audio and pictures where there is material."""
    worst = score.worst(WORST_SHOWN, metric)
    if not worst:
        return "<p>No utterance has an error.</p>"
    blocks = [_block(place, one, metric, material.get(one.name)) for place, one in enumerate(worst)]
    key = (
        '<p class="quiet">Reference above, hypothesis below:<br>'
        '<span class="w s"><span>said</span><span>substituted</span></span>'
        '<span class="w d"><span>deleted</span><span></span></span>'
        '<span class="w i"><span></span><span>inserted</span></span></p>'
    )
    many = score.wrong_utterances
    errors = f"<p>{escape(name)}: {counted(many, 'utterance')} {'has' if many == 1 else 'have'} errors.</p>"
    rest = blocks[_OPEN:]
    return errors + key + "\n".join(blocks[:_OPEN]) + (html.folded(f"{len(rest)} more", "".join(rest)) if rest else "")


def _block(place: int, utterance: Utterance, metric: Metric, material: UtteranceMaterial | None) -> str:
    counts = utterance.counts(metric)
    speaker = f", {utterance.speaker}" if utterance.speaker and utterance.speaker not in utterance.name else ""
    unit = UNITS[metric].removesuffix("s")
    head = f"{utterance.name}{speaker}: {counted(counts.errors, 'error')} in {counted(counts.length, unit)}"
    parts = [f'<header id="worst-{place}">{escape(head)}</header>', html.aligned(utterance)]
    if material:
        parts.append(_sound(material))
        if material.picture:
            picture = figures.alignment(material.picture, small=True)
            figure = f'<figure class="scroll">{picture}</figure>'
            parts.append(html.folded("alignment, and what was recognised", figure))
    return f'<div class="utt">{"".join(parts)}</div>'


def _sound(material: UtteranceMaterial) -> str:
    player = f'<audio controls preload="metadata" src="{material.clip.address}"></audio> ' if material.clip else ""
    return f'<p class="sound">{player}<span class="quiet">{escape(material.place)}</span></p>'


def suspicious_section(
    suspects: Suspects | None, shown: Sequence[str], material: Mapping[str, UtteranceMaterial]
) -> str:
    """The transcripts that are probably wrong, if any was examined; those in `shown` have a block among the worst."""
    if suspects is None:
        return ""
    some = f"{suspects.examined:,} of {suspects.utterances:,}" if suspects.examined < suspects.utterances else "all"
    note = (
        f'<p class="quiet">Of {some} utterances of test: those whose alignment is an outlier or has doubtful words '
        "(between *), and those of which no system recognised a single word. Listen before you trust their errors. "
        "<code>speech3 align MODEL DIR OUT</code> checks any other data in the same way.</p>"
    )
    if not suspects.found:
        return f"<p>No transcript is suspicious.</p>{note}"
    rows = []
    for each in suspects.found:
        name = escape(each.utterance)
        if each.utterance in shown:
            name = f'<a href="#worst-{shown.index(each.utterance)}">{name}</a>'
        elif (known := material.get(each.utterance)) and known.clip:
            name += f'<br><audio controls preload="metadata" src="{known.clip.address}"></audio>'
        texts = f"{escape(each.transcript)}<br><span class=quiet>{escape(each.hypothesis or '(nothing)')}</span>"
        rows.append([name, texts, escape(each.why)])
    header = ["utterance", "transcript, and below it what was recognised", "why it is suspicious"]
    table = _unfolded(header, rows, _SUSPICIOUS, "more", wrapped=True)
    return f"<p>{counted(len(rows), 'transcript')} of test.</p>{table}{note}"


def vocabulary_section(unknown: UnknownWords | None) -> str:
    """The words outside the vocabulary; empty if that is not known."""
    if unknown is None:
        return ""
    total = sum(unknown.counts.values())
    share = total / max(unknown.words, 1)
    if not total:
        return f"<p>All {unknown.words:,} words of the references are in the vocabulary.</p>"
    can = {
        "letters": "They can only be recognised letter by letter.",
        "phones": "They can only be guessed: their phones are recognised, and spelled as the lexicon's words are.",
        "": "None of them can be recognised, and neighbouring words often go wrong, too. <code>speech3 graph"
        " MODEL OUT --add FILE</code> adds words to a trained model.",
    }[unknown.spelled_by]
    are = "is" if total == 1 else "are"
    of_all = f"{total:,} of {unknown.words:,} words of the references ({share:.1%})"
    text = f"<p>{of_all} {are} outside the vocabulary. {can}</p>"
    ordered = sorted(unknown.counts.items(), key=lambda item: (-item[1], item[0]))
    rows = [[escape(word), f"{count:,}"] for word, count in ordered]
    return text + _unfolded(["word", "times"], rows, _WORDS, "more")


def _unfolded(header: list[str], rows: list[list[str]], shown: int, rest: str, *, wrapped: bool = False) -> str:
    """A table of the first rows; those beyond `shown` have to be unfolded."""
    table = html.table(header, rows[:shown], wrapped=wrapped)
    if more := rows[shown:]:
        table += html.folded(f"{len(more)} {rest}", html.table(header, more, wrapped=wrapped))
    return table


@dataclass(frozen=True)
class System:
    """One trained system and its results on the test set."""

    name: str
    score: Score
    own_lm: Score | None = None  # with our own language model in place of the given one
    rescored: Score | None = None  # with a second language model on its lattices
    of_48_phones: Score | None = None  # with 48 phones in place of 39 classes
    passes: Sequence[Score] = ()  # the passes before the last, if it decodes in passes
    reliability: Reliability | None = None
    parameters: int | None = None
    training_s: float | None = None
    decoding_rtf: float | None = None
    # decoding parameters chosen on dev, such as {"acoustic scale": 0.1}
    tuned: Mapping[str, Any] = field(default_factory=dict)
    metrics: Sequence[Mapping[str, Any]] = ()  # the records of its metrics.jsonl
    network: dict[str, Any] = field(default_factory=dict)  # what a network's file says about it; empty for GMMs


@dataclass(frozen=True)
class SplitVolume:
    split: str
    utterances: int
    speakers: int
    hours: float


@dataclass(frozen=True)
class Report:
    """The content of the report. A section whose field is empty is left out."""

    title: str
    command: str
    systems: Sequence[System]
    metric: Metric = "WER"
    volumes: Sequence[SplitVolume] = ()
    picture: AlignedUtterance | None = None
    material: Mapping[str, UtteranceMaterial] = field(default_factory=dict)  # by utterance, in order of importance
    suspects: Suspects | None = None
    unknown: UnknownWords | None = None
    config_yaml: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def best(self) -> System:
        return best_of(self.systems, self.metric)


def best_of(systems: Sequence[System], metric: Metric) -> System:
    """The system of the lowest error rate; of equals the one with the lower CER, else the last one."""

    def rates(system: System) -> tuple[float, float, float]:
        return system.score.counts(metric).rate, system.score.cer, system.score.wer

    return min(reversed(systems), key=rates)


def write_report(path: Path | str, report: Report) -> None:
    """Write the page, which needs no other file and no network.

    Raises `Speech3Error`: the report has no system, or `path` cannot be written.
    """
    if not report.systems:
        raise MissingError(f"{path}: no system was scored; run the stages decode and score first")
    material = within_limit(report.material)
    worst = [utterance.name for utterance in report.best.score.worst(WORST_SHOWN, report.metric)]
    sections = [
        ("Systems", _systems(report)),
        ("Training", _training(report.systems)),
        ("Alignment", _picture(report)),
        ("Confidences", confidence_section({s.name: s.reliability for s in report.systems}, report.best.name)),
        ("Worst utterances", worst_section(report.best.name, report.best.score, report.metric, material)),
        ("Suspicious transcripts", suspicious_section(report.suspects, worst, material)),
        ("Words outside the vocabulary", vocabulary_section(report.unknown)),
        ("Confusions", _confusions(report)),
        ("Speakers", _speakers(report)),
        ("Data", _volumes(report)),
        ("Configuration", _configuration(report)),
        ("Environment", html.pairs(dict(report.environment)) if report.environment else ""),
    ]
    sections.append(("Terms", terms_section("".join(content for name, content in sections if name != "Configuration"))))
    shown = [(name, name.lower().replace(" ", "-"), content) for name, content in sections if content]
    links = "\n".join(f'<a href="#{anchor}">{name}</a>' for name, anchor, _ in shown)
    body = "\n".join(
        f'<section id="{anchor}"><h2>{name}</h2>\n{content}\n</section>' for name, anchor, content in shown
    )
    write_text(path, html.page(report.title, f"{_headline(report)}\n<nav>{links}</nav>\n{body}"))


def _headline(report: Report) -> str:
    score = report.best.score
    low, high = score.ci95(report.metric)
    return (
        f"<h1>{escape(report.title)}</h1>\n<pre class=command>{escape(report.command)}</pre>\n"
        f'<p class="big"><b>{per_cent(score.counts(report.metric).rate)} %</b> {report.metric}, '
        f"{escape(report.best.name)} <span class=quiet>95 % interval {per_cent(low)} to {per_cent(high)}</span></p>"
    )


def _systems(report: Report) -> str:
    metric, best = report.metric, report.best
    others: list[Metric] = [] if metric == "PER" else ["CER" if metric == "WER" else "WER"]
    full = max(system.score.ci95(metric)[1] for system in report.systems) or 1.0
    rates = [f"{other} %" for other in others]
    header = ["system", f"{metric} %", "95 % interval", "", "sub", "del", "ins", *rates, "sentences wrong %"]
    # Further columns, for systems that were also decoded or scored in another way.
    seconds = {
        f"{metric} % with our own language model": [system.own_lm for system in report.systems],
        f"{metric} % rescored": [system.rescored for system in report.systems],
        f"{metric} % of 48 phones": [system.of_48_phones for system in report.systems],
        **{
            f"{metric} % in pass {number + 1}": [
                system.passes[number] if number < len(system.passes) else None for system in report.systems
            ]
            for number in range(max(len(system.passes) for system in report.systems))
        },
    }
    seconds = {title: scores for title, scores in seconds.items() if any(scores)}
    # One row for each system.
    rows = []
    for number, system in enumerate(report.systems):
        counts, (low, high) = system.score.counts(metric), system.score.ci95(metric)
        rows.append(
            [
                escape(system.name),
                per_cent(counts.rate),
                f"{per_cent(low)} – {per_cent(high)}",
                html.interval_bar(counts.rate, low, high, full),
                *(f"{number:,}" for number in (counts.substitutions, counts.deletions, counts.insertions)),
                *(per_cent(system.score.counts(other).rate) for other in others),
                per_cent(system.score.ser),
                *(_second(scores[number], metric) for scores in seconds.values()),
                _p_value(system, best, metric),
            ]
        )
    table = html.table([*header, *seconds, "p against best"], rows, best=list(report.systems).index(best))
    # What the rates of some systems include.
    missing = [
        f"<p>{escape(system.name)}: not decoded and counted as deletions: {escape(', '.join(system.score.missing))}</p>"
        for system in report.systems
        if system.score.missing
    ]
    return f'{table}\n<p class="quiet">{_note(best, metric)}</p>\n{"".join(missing)}{_cost(report)}'


def _second(score: Score | None, metric: Metric) -> str:
    if score is None:
        return _NONE
    low, high = score.ci95(metric)
    return f"{per_cent(score.counts(metric).rate)} [{per_cent(low)}, {per_cent(high)}]"


def _note(system: System, metric: Metric) -> str:
    score, unit = system.score, UNITS[metric]
    normalised = f"normalised by {', '.join(score.normalize)}" if score.normalize else "not normalised"
    return escape(
        f"{score.counts(metric).length:,} {unit} in {len(score.utterances):,} utterances; text {normalised}. "
        f"Interval: bootstrap over {score.ci_units}. p: matched-pairs randomisation test on errors in {unit}."
    )


def _cost(report: Report) -> str:
    rows = []
    for system in report.systems:
        tuned = ", ".join(f"{key} {value}" for key, value in system.tuned.items())
        values = (
            None if system.parameters is None else f"{system.parameters:,}",
            None if system.training_s is None else _duration(system.training_s),
            None if system.decoding_rtf is None else f"{system.decoding_rtf:.3f}",
            escape(tuned) or None,
        )
        if any(values):
            rows.append([escape(system.name), *(value or _NONE for value in values)])
    header = ["system", "parameters", "training", "decoding, × real time", "decoding parameters, tuned on dev"]
    return html.table(header, rows) if rows else ""


def _p_value(system: System, best: System, metric: Metric) -> str:
    same = [u.name for u in system.score.utterances] == [u.name for u in best.score.utterances]
    if system is best or not same:
        return _NONE
    p = paired_test(best.score, system.score, metric=metric).p_value
    return f"{p:.3f}" if p >= 0.001 else "&lt; 0.001"


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s"
    hours, minutes = whole // 3600, whole % 3600 // 60
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {whole % 60:02} s"


def _picture(report: Report) -> str:
    if report.picture is None:
        return ""
    caption = (
        f"<figcaption>{escape(report.picture.name)}: boundaries of the aligned phones over the features.</figcaption>"
    )
    return f'<figure class="scroll">{figures.alignment(report.picture)}</figure>{caption}'


def _confusions(report: Report) -> str:
    parts = []
    for title, kind in (("Substituted", "substitute"), ("Deleted", "delete"), ("Inserted", "insert")):
        found = [item for item in report.best.score.confusions if item[0] == kind][: _CONFUSIONS // 2]
        if not found:
            continue
        rows = [
            [" → ".join(escape(word) for word in (ref, hyp) if word), f"{times:,}", html.plain_bar(times, found[0][3])]
            for _, ref, hyp, times in found
        ]
        parts.append(f"<div>{html.table([title, 'times', ''], rows)}</div>")
    return f'<div class="grid">{"".join(parts)}</div>' if parts else ""


def _speakers(report: Report) -> str:
    metric = report.metric
    known = report.best.score.by_speaker(metric)
    if not known:
        return ""
    ordered = sorted(known, key=lambda name: -known[name].errors / max(known[name].length, 1))
    full = max(counts.errors / max(counts.length, 1) for counts in known.values()) or 1.0
    others = {s.name: s.score.by_speaker(metric) for s in report.systems if s is not report.best}
    header = ["speaker", UNITS[metric], f"{escape(report.best.name)}, {metric} %", "", *map(escape, others)]
    rows = []
    for name in ordered:
        counts = known[name]
        cells = [escape(name), f"{counts.length:,}", per_cent(counts.rate)]
        cells.append(html.plain_bar(counts.errors / max(counts.length, 1), full))
        rows.append(cells + [per_cent(speakers.get(name, ErrorCounts()).rate) for speakers in others.values()])
    return _unfolded(header, rows, _SPEAKERS, "speakers with fewer errors")


def _volumes(report: Report) -> str:
    rows = [[escape(v.split), f"{v.utterances:,}", f"{v.speakers:,}", f"{v.hours:.2f}"] for v in report.volumes]
    return html.table(["split", "utterances", "speakers", "hours"], rows) if rows else ""


def _configuration(report: Report) -> str:
    if not report.config_yaml.strip():
        return ""
    return html.folded("every key, as used", f"<pre>{escape(report.config_yaml)}</pre>")
