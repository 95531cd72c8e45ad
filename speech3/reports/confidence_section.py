"""The report's section about confidences."""

from collections.abc import Mapping

from speech3.reports import html
from speech3.reports.html import escape
from speech3.scoring.confidence import Reliability


def confidence_section(systems: Mapping[str, Reliability | None], best: str) -> str:
    """The normalised cross-entropy of each system, and the best one's reliability table; empty if there is neither."""
    known = {name: found for name, found in systems.items() if found}
    if not known:
        return ""
    rows = [[escape(name), f"{found.words:,}", f"{100 * found.correct:.2f}", _nce(found)]
            for name, found in known.items()]  # fmt: skip
    table = html.table(["system", "words", "correct %", "normalised cross-entropy"], rows)
    note = (
        '<p class="quiet">Normalised cross-entropy: 1 is perfect; 0 if the confidence of every word is the share of '
        "correct words. It is not defined if all words are correct, or none. Confidences are posteriors in lattices, "
        "calibrated on dev.</p>"
    )
    name = best if best in known else next(iter(known))
    header = [f"confidence, {escape(name)}", "words", "mean confidence", "correct", ""]
    bins = [
        [f"{each.low:.1f} – {each.high:.1f}", f"{each.words:,}", f"{each.confidence:.3f}", f"{each.correct:.3f}",
         html.plain_bar(each.correct, 1.0)] for each in known[name].bins
    ]  # fmt: skip
    return f"{table}\n{note}\n{html.table(header, bins)}"


def _nce(found: Reliability) -> str:
    return f"none: {found.why_no_nce}" if found.why_no_nce else f"{found.nce:.3f}"
