"""The section "Terms" of the report: a line for each term that the page uses."""

import re
from collections.abc import Sequence

from speech3.reports.html import escape

# Term, a pattern of the text that uses it, and its explanation.
_TERMS: Sequence[tuple[str, str, str]] = (
    ("WER", r"\bWER\b", "word error rate: substituted, deleted and inserted words, over the words of the references"),
    ("CER", r"\bCER\b", "character error rate: the same of characters"),
    ("PER", r"\bPER\b", "phone error rate: the same of phones"),
    ("sub, del, ins", r">sub<", "numbers of words that were substituted, deleted (missed) and inserted"),
    ("95 % interval", "95 % interval", "where the error rate would lie for other test speakers, 95 times in 100"),
    ("sentences wrong", "sentences wrong", "share of the utterances with at least one error"),
    ("p against best", "p against best", "probability of such a difference if both systems were equally good; below"
     " 0.05 counts as significant"),
    ("own language model", "own language model", "the n-gram that the recipe estimates, in place of the given one"),
    ("rescored", "rescored", "the best words of the lattices under a second language model"),
    ("mono, tri", ">(mono|tri)<", "Gaussian mixtures on the states of monophones; of triphones in context"),
    ("senone", r"\bsenones?\b|frame accuracy", "a state, or tied states, of a phone in context: a class that a network"
     " predicts"),
    ("parameters", ">parameters<", "how many numbers were trained: weights, or means, variances and mixture weights"),
    ("× real time", "× real time", "time of decoding on one core, over the duration of the speech; below 1 is faster"),
    ("acoustic scale", "acoustic scale", "weight of the acoustic scores against those of the language model"),
    ("word penalty", "word penalty", "what each word costs; a higher one means fewer insertions"),
    ("dev", r"\bdev\b", "data on which scale and penalty were tuned; neither train nor test"),
    ("held-out", "[Hh]eld-out", "speech that a network did not learn from; it is measured after each epoch"),
    ("frame accuracy", "frame accuracy", "share of frames (10 ms) whose most probable senone is that of the alignment"),
    ("loss", r"\b[Ll]oss\b", "what training minimises; lower is better"),
    ("epoch", r"\bepochs?\b", "one pass over all training data"),
    ("shard, push", r"\bshards?\b", "an asynchronous worker; what it sends to the server that holds the parameters"),
    ("staleness", "[Ss]taleness", "updates by other workers between fetching parameters and pushing a gradient"),
    ("alignment", "[Aa]lignment", "which stretch of audio is which phone of the transcript"),
    ("SIL, SPN", r"\b(SIL|SPN)\b", "silence; noise, or a word without a pronunciation"),
    ("confidence", "[Cc]onfidence", "the estimated probability that a recognised word is correct"),
    ("normalised cross-entropy", "cross-entropy", "how well confidences predict correct words: 1 perfect, 0 useless"),
    ("lattice", r"\blattices?\b", "the word sequences that decoding found likely, with their scores"),
    ("reference, hypothesis", "[Rr]eference", "what was said, according to the transcript; what was recognised"),
    ("vocabulary", r"\b[Vv]ocabulary\b", "the words that the recogniser knows; it recognises no other"),
)  # fmt: skip


def terms_section(page: str) -> str:
    """The terms that the page uses, each with its explanation."""
    used = [(term, about) for term, pattern, about in _TERMS if re.search(pattern, page)]
    return "<dl>" + "".join(f"<dt>{escape(term)}</dt><dd>{escape(about)}</dd>" for term, about in used) + "</dl>"
