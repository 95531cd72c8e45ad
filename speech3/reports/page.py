"""`report.html`: one self-contained page about an experiment, for large and small screens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from speech3.errors import Speech3Error
from speech3.io.atomic import write_text
from speech3.reports import figures, html
from speech3.reports.confidence_section import confidence_section
from speech3.reports.figures import AlignedUtterance
from speech3.reports.html import escape
from speech3.reports.terms import terms_section
from speech3.reports.training_section import training_section
from speech3.reports.utterances_section import (
    WORST,
    Material,
    Suspects,
    Unknown,
    suspicious_section,
    vocabulary_section,
    within_limit,
    worst_section,
)
from speech3.scoring.confidence import Reliability
from speech3.scoring.tables import UNITS, per_cent
from speech3.scoring.wer import Counts, Metric, Score, paired_test

_CONFUSIONS = 30
_SPEAKERS = 25  # further speakers are folded
_NONE = "–"


@dataclass(frozen=True)
class System:
    """One trained system and its results on the test set.

    Attributes
    ----------
    own_lm
        Its results with our own language model in place of the given one.
    rescored
        Its results with a second language model on its lattices.
    of_48_phones
        Its phone error rate with 48 phones in place of 39 classes.
    reliability
        How well its confidences predict correct words.
    tuned
        Decoding parameters chosen on dev, such as ``{"acoustic scale": 0.1}``.
    metrics, network
        Records of its ``metrics.jsonl``, and what a network's file says about it, for
        `speech3.reports.training_section`.
    """

    name: str
    score: Score
    own_lm: Score | None = None
    rescored: Score | None = None
    of_48_phones: Score | None = None
    reliability: Reliability | None = None
    parameters: int | None = None
    training_s: float | None = None
    decoding_rtf: float | None = None
    tuned: Mapping[str, Any] = field(default_factory=dict)
    metrics: Sequence[Mapping[str, Any]] = ()
    network: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Volume:
    """How much data a split holds."""

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
    volumes: Sequence[Volume] = ()
    picture: AlignedUtterance | None = None
    material: Mapping[str, Material] = field(default_factory=dict)  # by utterance, in order of importance
    suspects: Suspects | None = None
    unknown: Unknown | None = None
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

    Raises
    ------
    Speech3Error
        The report has no system, or `path` cannot be written.
    """
    if not report.systems:
        raise Speech3Error(f"{path}: no system was scored; run the stages decode and score first")
    material = within_limit(report.material)
    worst = [utterance.name for utterance in report.best.score.worst(WORST, report.metric)]
    sections = [
        ("Systems", _systems(report)),
        ("Training", _training(report)),
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
    write_text(
        path,
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<link rel="icon" href="data:,">\n'
        f"<title>{escape(report.title)}</title>\n<style>{html.STYLE}</style>\n</head>\n<body>\n"
        f"{_headline(report)}\n<nav>{links}</nav>\n{body}\n</body>\n</html>\n",
    )


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
    seconds = {
        f"{metric} % with our own language model": [system.own_lm for system in report.systems],
        f"{metric} % rescored": [system.rescored for system in report.systems],
        f"{metric} % of 48 phones": [system.of_48_phones for system in report.systems],
    }
    seconds = {title: scores for title, scores in seconds.items() if any(scores)}
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


def _training(report: Report) -> str:
    return training_section(
        {system.name: system.metrics for system in report.systems},
        {system.name: system.network for system in report.systems},
    )


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
        rows.append(cells + [per_cent(speakers.get(name, Counts()).rate) for speakers in others.values()])
    table = html.table(header, rows[:_SPEAKERS])
    if len(rows) > _SPEAKERS:
        table += html.folded(
            f"{len(rows) - _SPEAKERS} speakers with fewer errors", html.table(header, rows[_SPEAKERS:])
        )
    return table


def _volumes(report: Report) -> str:
    rows = [[escape(v.split), f"{v.utterances:,}", f"{v.speakers:,}", f"{v.hours:.2f}"] for v in report.volumes]
    return html.table(["split", "utterances", "speakers", "hours"], rows) if rows else ""


def _configuration(report: Report) -> str:
    if not report.config_yaml.strip():
        return ""
    return html.folded("every key, as used", f"<pre>{escape(report.config_yaml)}</pre>")
