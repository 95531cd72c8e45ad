"""A score as text: summary, tables of speakers and utterances, confusions, alignments, confidences; in model cards."""

import math
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

import jiwer

from speech3.data import normalize_text
from speech3.errors import listed
from speech3.evaluate.wer import ErrorCounts, Metric, PairedTest, Reliability, Score, Utterance
from speech3.io import CARD_FILE, DECODE_FILE
from speech3.runtime import check_output, to_one_form, write_text

_MARKS = {"equal": "C", "substitute": "S", "delete": "D", "insert": "I"}
_SHOWN = 10  # most rows of each table that `full` prints
_NAMED = 50  # most utterances that a warning names
_PLAIN = ("nfkc", "lower", "punct")
_MANY = 1 / 3  # of the errors
ALWAYS: tuple[Metric, ...] = ("WER", "CER")
UNITS: dict[Metric, str] = {"WER": "words", "CER": "characters", "PER": "phones"}


def per_cent(fraction: float) -> str:
    """A percentage such as ``12.34``, or ``-`` for NaN."""
    return "-" if math.isnan(fraction) else f"{100 * fraction:.2f}"


def _header(metric: Metric) -> tuple[str, ...]:
    return (UNITS[metric], "correct", "sub", "del", "ins", metric.lower())


def _columns(counts: ErrorCounts) -> tuple[str, ...]:
    numbers = (counts.length, counts.correct, counts.substitutions, counts.deletions, counts.insertions)
    return (*map(str, numbers), per_cent(counts.rate))


def columns_wide(text: str) -> int:
    """Number of terminal columns that a text occupies: two for each wide (such as Chinese) character."""
    return sum(
        0 if unicodedata.combining(letter) else 1 + (unicodedata.east_asian_width(letter) in "WF") for letter in text
    )


def grid(rows: Sequence[Sequence[str]], texts: int) -> str:
    """Rows as aligned columns: the first `texts` hold text and are left-aligned, the others are right-aligned."""
    widths = [max(map(columns_wide, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = []
        for index, (cell, width) in enumerate(zip(row, widths, strict=True)):
            padding = " " * (width - columns_wide(cell))
            cells.append(cell + padding if index < texts else padding + cell)
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def summary(score: Score) -> str:
    lines = []
    for metric in ALWAYS:
        counts, (low, high) = score.counts(metric), score.ci95(metric)
        lines.append(
            f"{metric} {per_cent(counts.rate)} [{per_cent(low)}, {per_cent(high)}]  {counts.errors} errors in "
            f"{counts.length} {UNITS[metric]}: {counts.substitutions} substitutions, {counts.deletions} deletions, "
            f"{counts.insertions} insertions"
        )
    lines.append(f"SER {per_cent(score.ser)}  {score.wrong_utterances} of {len(score.utterances)} utterances")
    lines.append(f"[95 % interval, bootstrap over {score.ci_units}]")
    return "\n".join(lines)


def speaker_table(score: Score, most: int | None = None, metric: Metric = "WER") -> str:
    """Counts per speaker; with `most`, only those with the highest rate."""
    speakers = list(score.by_speaker(metric).items())
    if most is not None:
        speakers = sorted(speakers, key=lambda item: -item[1].errors / max(item[1].length, 1))[:most]
    return grid([("speaker", *_header(metric)), *((name, *_columns(counts)) for name, counts in speakers)], 1)


def utterance_table(utterances: Sequence[Utterance], metric: Metric = "WER") -> str:
    rows = ((u.name, u.speaker or "-", *_columns(u.counts(metric))) for u in utterances)
    return grid([("utterance", "speaker", *_header(metric)), *rows], 2)


def confusion_table(score: Score, most: int | None = None) -> str:
    """Errors with their counts, the most frequent first."""
    rows = [("error", "reference", "hypothesis", "times")]
    rows += [(_MARKS[kind], ref or "-", hyp or "-", str(times)) for kind, ref, hyp, times in score.confusions[:most]]
    return grid(rows, 3)


def alignment_lines(utterance: Utterance) -> str:
    """Reference above hypothesis, aligned word by word, in the format of Kaldi's ``wer_per_utt_details.pl``."""
    pairs = [(ref or "***", hyp or "***", _MARKS[kind]) for kind, ref, hyp in utterance.alignment()]
    counts = utterance.words
    head = [(utterance.name, label) for label in ("ref", "hyp", "op")]
    listing = grid([(*label, *(pair[row] for pair in pairs)) for row, label in enumerate(head)], len(pairs) + 2)
    total = f"{counts.correct} {counts.substitutions} {counts.insertions} {counts.deletions}"
    return f"{listing}\n{utterance.name}  #csid  {total}"


def warnings(score: Score, hypothesis: str) -> list[str]:
    """Warnings about the score, one line each; `hypothesis` is the name of the file."""
    found = []
    if score.missing:
        found.append(
            f"{hypothesis} lacks {len(score.missing)} of {len(score.utterances)} utterances, which count as deletions: "
            f"{listed(score.missing, _NAMED)}"
        )
    if score.extra:
        count = len(score.extra)
        found.append(
            f"{hypothesis} has utterances that are not in the reference ({count}) and not scored: "
            f"{listed(score.extra, _NAMED)}"
        )
    if score.left_out:
        found.append(
            f"symbols for noise and unknown words (<unk>, <noise>) in {hypothesis} and the reference are not scored:"
            f" {score.left_out}"
        )
    if not any(utterance.hyp for utterance in score.utterances):
        found.append(f"{hypothesis} holds no words: every hypothesis is empty; check the decoder's messages")
    return found + _same_to_a_reader(score) + _differently_written(score)


def _differently_written(score: Score) -> list[str]:
    """A warning if many errors are differences of case and punctuation, which `--normalize` takes away."""
    said = [utterance for utterance in score.utterances if utterance.name not in score.missing]
    texts = [[normalize_text(" ".join(words), _PLAIN) for words in (each.ref, each.hyp)] for each in said]
    before = sum(each.words.errors for each in said)
    if not before or not any(text for text, _ in texts):
        return []
    found = jiwer.process_words([ref for ref, _ in texts], [hyp for _, hyp in texts])
    after = found.substitutions + found.deletions + found.insertions
    if before - after < _MANY * before:
        return []
    return [
        f"{before - after} of {before} errors are differences of case, punctuation or the form of letters; --normalize"
        f" {','.join(_PLAIN)} makes such words equal"
    ]


def _same_to_a_reader(score: Score) -> list[str]:
    """Errors between words that look the same: letters that stand for others in Unicode, such as half-width kana."""
    pairs = [(ref, hyp, times) for kind, ref, hyp, times in score.confusions if kind == "substitute"]
    alike = [
        each for each in pairs if to_one_form(each[0]) != to_one_form(each[1]) and _nfkc(each[0]) == _nfkc(each[1])
    ]
    if not alike:
        return []
    ref, hyp, _ = alike[0]
    number = sum(times for *_, times in alike)
    differ = "substitution differs" if number == 1 else "substitutions differ"
    return [
        f"{number:,} {differ} only in Unicode's compatibility forms, as {ref} and {hyp}; --normalize nfkc makes such"
        " words equal"
    ]


def _nfkc(word: str) -> str:
    return unicodedata.normalize("NFKC", word)


def full(score: Score) -> str:
    """The output of ``speech3 score``: the summary, then the speakers, utterances and errors that matter most."""
    parts = [summary(score)]
    if score.speakers:
        parts.append(f"speakers{_of(len(score.speakers), 'highest WER')}\n{speaker_table(score, _SHOWN)}")
    if score.wrong_utterances:
        shown = utterance_table(score.worst(_SHOWN))
        parts.append(f"utterances{_of(score.wrong_utterances, 'most errors')}\n{shown}")
        parts.append(f"errors{_of(len(score.confusions), 'most frequent')}\n{confusion_table(score, _SHOWN)}")
    return "\n\n".join(parts)


def _of(total: int, which: str) -> str:
    return f": {which} first, {_SHOWN} of {total} (all: --details DIR)" if total > _SHOWN else f": {which} first"


def paired_test_lines(test: PairedTest, first: str, other: str) -> str:
    low, high = (100 * value for value in test.difference_ci95)
    return (
        f"WER of {other} minus WER of {first}: {100 * test.difference:+.2f} [{low:+.2f}, {high:+.2f}]\n"
        f"p = {test.p_value:.4f}, matched-pairs randomisation test over {test.units}\n{test.verdict(first, other)}"
    )


def confidence_lines(found: Reliability) -> str:
    of = f"of the confidences of {found.words} words"
    head = f"NCE {found.nce:.3f}  {of}, {100 * found.correct:.2f} % of them correct"
    if found.why_no_nce:
        head = f"NCE none  {of}: it is not defined where {found.why_no_nce}"
    rows = (
        f"{each.low:.1f} to {each.high:.1f}  {each.words:6}  {each.confidence:.3f}  {each.correct:.3f}"
        for each in found.bins
    )
    return "\n".join([head, "confidence    words    mean  correct", *rows])


def check_details(directory: Path, inputs: Iterable[Path | None]) -> None:
    """Refuse a directory for `write_details` where it would replace an input, or files that it has not written."""
    check_output(directory, inputs, ("per_utt", "per_speaker", "confusions", "alignments"), marks=["per_utt"])


def write_details(directory: Path | str, score: Score, metric: Metric = "WER") -> None:
    """Write ``per_utt``, ``per_speaker`` (if known), ``confusions``, ``alignments``; `metric` is for the first two."""
    directory = Path(directory)
    write_text(directory / "per_utt", utterance_table(score.utterances, metric) + "\n")
    if score.speakers:
        write_text(directory / "per_speaker", speaker_table(score, metric=metric) + "\n")
    write_text(directory / "confusions", confusion_table(score) + "\n")
    write_text(directory / "alignments", "\n".join(map(alignment_lines, score.utterances)) + "\n")


def check_card(model: Path) -> None:
    """Refuse a model directory whose card was not written by speech3."""
    from speech3.train import is_card

    check_output(model / CARD_FILE, kind=("a model card of speech3", is_card))


def write_scores(model: Path, name: str, result: Score) -> None:
    """Rewrite the card of a model directory with its error rates on the test set `name`; they replace earlier ones."""
    from speech3.decode import load_settings  # PyTorch, which takes seconds: texts alone need none
    from speech3.train import Scored, write_card

    tuned = (model / DECODE_FILE).exists()
    settings = asdict(load_settings(model)) if tuned else {}
    steps = f" (text normalised by {', '.join(result.normalize)})" if result.normalize else ""
    shown = {key.replace("_", " "): value for key, value in settings.items() if isinstance(value, float | int)}
    rates = (result.wer, result.wer_ci95, result.cer, result.cer_ci95)
    write_card(model, [Scored(f"{name}{steps}", len(result.utterances), result.words.length, *rates, shown)])
