"""Sections of the report about single utterances: the worst, suspicious transcripts, words outside the vocabulary."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from speech3.reports import figures, html
from speech3.reports.figures import AlignedUtterance
from speech3.reports.html import counted, escape
from speech3.reports.sound import Clip
from speech3.scoring.tables import UNITS
from speech3.scoring.wer import Metric, Score, Utterance

WORST = 20
PICTURES = 10  # of the worst utterances, that many have pictures
MOST_BYTES = 2_000_000  # of all clips in the page
_OPEN = 5  # utterances that are shown without unfolding
_SUSPICIOUS, _WORDS = 20, 30  # shown without unfolding


@dataclass(frozen=True)
class Material:
    """What is known of an utterance besides its words.

    Attributes
    ----------
    place
        The file or command of its recording, with its times.
    clip
        The recording, if it is short enough for the page.
    picture
        Its alignment.
    """

    place: str
    clip: Clip | None = None
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
class Unknown:
    """The words of the references that the recogniser does not know, with their counts; the words of all references."""

    counts: Mapping[str, int] = field(default_factory=dict)
    words: int = 0
    spelled: bool = False  # such words can be recognised letter by letter


def within_limit(material: Mapping[str, Material]) -> dict[str, Material]:
    """The material of the utterances in their order, without the clips that would exceed `MOST_BYTES` together."""
    total, found = 0, {}
    for name, each in material.items():
        size = len(each.clip.address) if each.clip else 0
        fits = total + size <= MOST_BYTES
        total += size if fits else 0
        found[name] = each if fits else Material(each.place, None, each.picture)
    return found


def worst_section(name: str, score: Score, metric: Metric, material: Mapping[str, Material]) -> str:
    """The worst utterances of a system, aligned word by word, with audio and pictures where there is material."""
    worst = score.worst(WORST, metric)
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


def _block(place: int, utterance: Utterance, metric: Metric, material: Material | None) -> str:
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


def _sound(material: Material) -> str:
    player = f'<audio controls preload="metadata" src="{material.clip.address}"></audio> ' if material.clip else ""
    return f'<p class="sound">{player}<span class="quiet">{escape(material.place)}</span></p>'


def suspicious_section(suspects: Suspects | None, shown: Sequence[str], material: Mapping[str, Material]) -> str:
    """The transcripts that are probably wrong; `shown`: the utterances with a block among the worst.

    Empty if none was examined.
    """
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
    table = html.table(header, rows[:_SUSPICIOUS], texts=1, wrapped=True)
    if rest := rows[_SUSPICIOUS:]:
        table += html.folded(f"{len(rest)} more", html.table(header, rest, texts=1, wrapped=True))
    return f"<p>{counted(len(rows), 'transcript')} of test.</p>{table}{note}"


def vocabulary_section(unknown: Unknown | None) -> str:
    """The words outside the vocabulary; empty if that is not known."""
    if unknown is None:
        return ""
    total = sum(unknown.counts.values())
    share = total / max(unknown.words, 1)
    if not total:
        return f"<p>All {unknown.words:,} words of the references are in the vocabulary.</p>"
    can = (
        "They can only be recognised letter by letter."
        if unknown.spelled
        else "None of them can be recognised, and the words beside them often are not, either. <code>speech3 graph"
        " MODEL OUT --add FILE</code> adds words to a trained model."
    )
    are = "is" if total == 1 else "are"
    of_all = f"{total:,} of {unknown.words:,} words of the references ({share:.1%})"
    text = f"<p>{of_all} {are} outside the vocabulary. {can}</p>"
    ordered = sorted(unknown.counts.items(), key=lambda item: (-item[1], item[0]))
    rows = [[escape(word), f"{count:,}"] for word, count in ordered]
    table = html.table(["word", "times"], rows[:_WORDS])
    if rest := rows[_WORDS:]:
        table += html.folded(f"{len(rest)} more", html.table(["word", "times"], rest))
    return text + table
