"""Word and character error rates, counted by jiwer, with 95 % intervals and paired tests; how good confidences are.

The total of errors is the Levenshtein distance and thus unique; if several alignments are equally short, the split into
substitutions, deletions and insertions is jiwer's choice (that of Kaldi and sclite may differ).

M. Bisani and H. Ney, "Bootstrap estimates for confidence intervals in ASR performance evaluation", ICASSP 2004:
utterances (or speakers, whose utterances are not independent) are drawn with replacement, and the rate of every draw
is the number of its errors over that of its words. The p value is that of the matched-pairs randomisation test: if two
systems were equal, the difference of their errors on a unit could as well have had the other sign (L. Gillick and
S. Cox, "Some statistical issues in the comparison of speech recognition algorithms", ICASSP 1989, use its normal
approximation).

Confidences are judged by a reliability table, and by normalised cross-entropy (NIST's sclite). H is the cross-entropy
of a recogniser that gives every word the same confidence, the share of correct words. NCE is the fraction of H by which
the confidences c reduce the cross-entropy:

    NCE = (H + sum over correct words of log2 c + sum over wrong words of log2 (1 - c)) / H

It is 1 at best, 0 for that constant confidence, and negative for confidences that are worse. The words are those of the
hypothesis: substitutions and insertions are wrong.

Axes: U units (utterances or speakers), R resamples, C columns of counts.
"""

import reprlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import jiwer
import numpy as np

from speech3.data import lower_case, normalize_text, words_with_sharp_s
from speech3.errors import DataError, MismatchError, MissingError, SettingError, Speech3Error
from speech3.evaluate.text import characters, scored_words

if TYPE_CHECKING:
    from speech3.hmm import Segment

RESAMPLES = 10_000
_CHUNK = 2_000_000  # numbers drawn at a time, to limit memory
FEW_SPEAKERS = 6  # with 5 units no randomisation test can reach p < 0.05: 2 to the power of 1 - 5 is 0.0625
_BLOCK = 1000  # utterances
_MIN_CONFIDENCE = 5e-4  # of a word, and of its being wrong: 0.000 and 1.000 in a CTM are rounded values
_BINS = 10  # of confidences, of equal widths
Metric = Literal["WER", "CER", "PER"]  # the phone error rate is a word error rate whose words are classes of phones
Operation = Literal["equal", "substitute", "delete", "insert"]


def _resampled_sums(counts_UC: np.ndarray, seed: int) -> np.ndarray:
    """Column sums (R, C) over U rows drawn with replacement."""
    # Units with the same counts are interchangeable, so one multinomial over the distinct rows replaces U draws.
    rows_KC, multiplicity_K = np.unique(counts_UC, axis=0, return_counts=True)
    units = len(counts_UC)
    generator = np.random.default_rng(seed)
    chunk = max(1, _CHUNK // len(rows_KC))
    sums = [
        generator.multinomial(units, multiplicity_K / units, size=min(chunk, RESAMPLES - start)) @ rows_KC
        for start in range(0, RESAMPLES, chunk)
    ]
    return np.concatenate(sums)


def _interval(values_R: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(values_R, (0.025, 0.975))
    return float(low), float(high)


def rate_interval(errors_U: np.ndarray, lengths_U: np.ndarray, seed: int = 0) -> tuple[float, float]:
    """95 % percentile interval, as fractions, of ``sum(errors) / sum(lengths)`` over units (int64 counts)."""
    sums_RC = _resampled_sums(np.stack([errors_U, lengths_U], axis=1), seed)
    sums_RC = sums_RC[sums_RC[:, 1] > 0]  # a draw of only empty references has no rate
    return _interval(sums_RC[:, 0] / sums_RC[:, 1])


def difference_interval(
    errors_U: np.ndarray,
    other_errors_U: np.ndarray,
    lengths_U: np.ndarray,
    other_lengths_U: np.ndarray,
    seed: int = 0,
) -> tuple[float, float]:
    """95 % percentile interval of the rate of `other` minus that of the first system, over the same drawn units.

    The systems' lengths differ where references have alternatives.
    """
    sums_RC = _resampled_sums(np.stack([errors_U, lengths_U, other_errors_U, other_lengths_U], axis=1), seed)
    sums_RC = sums_RC[(sums_RC[:, 1] > 0) & (sums_RC[:, 3] > 0)]
    return _interval(sums_RC[:, 2] / sums_RC[:, 3] - sums_RC[:, 0] / sums_RC[:, 1])


def matched_pairs_p(errors_U: np.ndarray, other_errors_U: np.ndarray, seed: int = 0) -> float:
    """Two-sided p value of the hypothesis that two systems make equally many errors (matched-pairs randomisation test).

    Its smallest value is 1 / (resamples + 1); with few units it is also at least about 2 to the power of 1 - U.
    """
    difference_U = other_errors_U - errors_U
    sizes_M, numbers_M = np.unique(np.abs(difference_U[difference_U != 0]), return_counts=True)
    generator = np.random.default_rng(seed)
    positive_RM = generator.binomial(numbers_M, 0.5, size=(RESAMPLES, len(sizes_M)))
    sums_R = (2 * positive_RM - numbers_M) @ sizes_M
    extreme = int(np.count_nonzero(np.abs(sums_R) >= abs(int(difference_U.sum()))))
    return (1 + extreme) / (1 + RESAMPLES)


@dataclass(frozen=True, slots=True)
class ErrorCounts:
    """Errors against `length` words (or characters) of the reference."""

    length: int = 0
    substitutions: int = 0
    deletions: int = 0
    insertions: int = 0

    @property
    def errors(self) -> int:
        return self.substitutions + self.deletions + self.insertions

    @property
    def correct(self) -> int:
        return self.length - self.substitutions - self.deletions

    @property
    def rate(self) -> float:
        """Errors over length, a fraction; NaN if the reference is empty."""
        return self.errors / self.length if self.length else float("nan")


@dataclass(frozen=True, slots=True)
class Utterance:
    """One utterance after normalisation; `chunks` is jiwer's alignment of its words."""

    name: str
    speaker: str | None
    ref: list[str]
    hyp: list[str]
    words: ErrorCounts
    characters: ErrorCounts
    chunks: list[jiwer.AlignmentChunk]

    def counts(self, metric: Metric) -> ErrorCounts:
        return self.characters if metric == "CER" else self.words

    def alignment(self) -> list[tuple[Operation, str, str]]:
        """``(operation, reference word, hypothesis word)`` in order; the absent word of an insert or delete is ""."""
        pairs: list[tuple[Operation, str, str]] = []
        for chunk in self.chunks:
            refs = self.ref[chunk.ref_start_idx : chunk.ref_end_idx]
            hyps = self.hyp[chunk.hyp_start_idx : chunk.hyp_end_idx]
            size = max(len(refs), len(hyps))
            refs, hyps = refs or [""] * size, hyps or [""] * size
            pairs += [(chunk.type, ref, hyp) for ref, hyp in zip(refs, hyps, strict=True)]  # type: ignore[misc]
        return pairs


@dataclass(frozen=True)
class Score:
    """The result of `score`. Rates and intervals are fractions."""

    utterances: list[Utterance]
    words: ErrorCounts
    characters: ErrorCounts
    wer_ci95: tuple[float, float]
    cer_ci95: tuple[float, float]
    ci_units: str
    missing: tuple[str, ...]
    extra: tuple[str, ...]
    normalize: tuple[str, ...]
    left_out: int  # number of symbols such as `<unk>` in both texts, which are not scored

    @property
    def wer(self) -> float:
        return self.words.rate

    @property
    def cer(self) -> float:
        return self.characters.rate

    def counts(self, metric: Metric) -> ErrorCounts:
        return self.characters if metric == "CER" else self.words

    def ci95(self, metric: Metric) -> tuple[float, float]:
        """The 95 % interval of the error rate, as fractions."""
        return self.cer_ci95 if metric == "CER" else self.wer_ci95

    @cached_property
    def wrong_utterances(self) -> int:
        return sum(utterance.words.errors > 0 for utterance in self.utterances)

    @property
    def ser(self) -> float:
        """Sentence error rate: the fraction of utterances with at least one error."""
        return self.wrong_utterances / len(self.utterances)

    @cached_property
    def speakers(self) -> dict[str, ErrorCounts]:
        """Word counts of each speaker, by name; empty if speakers are not known."""
        return self.by_speaker("WER")

    def by_speaker(self, metric: Metric) -> dict[str, ErrorCounts]:
        """Counts of each speaker, by name; empty if speakers are not known."""
        groups: dict[str, list[ErrorCounts]] = {}
        for utterance in self.utterances:
            if utterance.speaker is not None:
                groups.setdefault(utterance.speaker, []).append(utterance.counts(metric))
        return {speaker: _total(groups[speaker]) for speaker in sorted(groups)}

    @cached_property
    def confusions(self) -> list[tuple[Operation, str, str, int]]:
        """``(operation, reference word, hypothesis word, times)`` of the errors, the most frequent first."""
        counter = Counter(
            pair for utterance in self.utterances if utterance.words.errors for pair in utterance.alignment()
        )
        errors = [(*pair, times) for pair, times in counter.items() if pair[0] != "equal"]
        return sorted(errors, key=lambda item: (-item[3], item[:3]))

    def worst(self, count: int, metric: Metric = "WER") -> list[Utterance]:
        """The utterances with the most errors; ties are ordered by error rate."""
        wrong = [utterance for utterance in self.utterances if utterance.counts(metric).errors]
        return sorted(wrong, key=lambda u: (-u.counts(metric).errors, u.counts(metric).length, u.name))[:count]

    def line(self, corpus: str, system: str, metric: Metric = "WER") -> str:
        """A recipe's last line, ``CORPUS SYSTEM WER 12.34 [10.20, 14.60]``: per cent and 95 % interval."""
        rate, (low, high) = self.counts(metric).rate, self.ci95(metric)
        return f"{corpus} {system} {metric} {100 * rate:.2f} [{100 * low:.2f}, {100 * high:.2f}]"

    def as_json(self) -> dict[str, Any]:
        """The keys of ``speech3 score --json``."""
        return {
            "wer": self.wer,
            "cer": self.cer,
            "substitutions": self.words.substitutions,
            "deletions": self.words.deletions,
            "insertions": self.words.insertions,
            "words": self.words.length,
            "ser": self.ser,
            "wer_ci95": list(self.wer_ci95),
            "missing": list(self.missing),
        }


@dataclass(frozen=True)
class PairedTest:
    """System `other` compared with a first system on the same utterances; rates are fractions."""

    difference: float
    difference_ci95: tuple[float, float]
    p_value: float
    units: str

    @property
    def significant(self) -> bool:
        return self.p_value < 0.05

    def as_json(self) -> dict[str, Any]:
        """The keys of ``against`` in ``speech3 score --json`` besides those of the other system's score."""
        return {
            "difference": self.difference,
            "difference_ci95": list(self.difference_ci95),
            "p_value": self.p_value,
            "significant": self.significant,
        }

    def verdict(self, first: str, other: str) -> str:
        """Which of two systems with these names is better, in a sentence."""
        if not self.significant:
            return f"no significant difference between {first} and {other} at the 5 % level"
        better, worse = (other, first) if self.difference < 0 else (first, other)
        return f"{better} is significantly better than {worse} at the 5 % level"


def score(
    ref: Mapping[str, str],
    hyp: Mapping[str, str],
    speakers: Mapping[str, str] | None = None,
    normalize: Sequence[str] = (),
    seed: int = 0,
    language: str = "",
) -> Score:
    """Score hypotheses against references.

    WER counts words; CER counts the characters of the words joined by single spaces, without spaces next to letters of
    scripts that do not use them (`characters`). ``<unk>`` and ``<noise>`` are not words and left out (`scored_words`).
    The reference of an utterance may be empty: all words of its hypothesis are insertions.

    Parameters
    ----------
    ref, hyp
        Utterance to text; words are separated by white space. An utterance that is not in `hyp` counts as deleted and
        is listed in ``missing``; one that is not in `ref` is not scored and listed in ``extra``.
    speakers
        Utterance to speaker. If given, it must name every utterance of `ref`, and the intervals are bootstrapped over
        speakers; with fewer than six speakers they also cover the interval over utterances.
    normalize
        Steps of `speech3.data.transcripts.normalize_text`, applied to both.
    language
        Its code, for the rules of lower case; empty if it is not known.

    Raises
    ------
    Speech3Error
        No utterance of `ref` was decoded, `ref` holds no words at all, an utterance has no speaker, or an argument has
        another type.
    """
    _check(ref, hyp, speakers)
    names = list(ref)
    lower = partial(
        lower_case, language=language, spellings=words_with_sharp_s((*ref.values(), *hyp.values()), language)
    )
    said = [normalize_text(ref[name], normalize, lower) for name in names]
    heard = [normalize_text(hyp.get(name, ""), normalize, lower) for name in names]
    refs, hyps = list(map(scored_words, said)), list(map(scored_words, heard))
    written, counted = (sum(len(text.split()) for text in texts) for texts in ((*said, *heard), (*refs, *hyps)))
    if not any(refs):
        raise DataError("the reference holds no words" + (" after normalisation" if normalize else ""))
    # Align by words and by characters; resample for the intervals.
    by_word = jiwer.process_words(refs, hyps)
    utterances = [
        Utterance(name, speakers[name] if speakers else None, ref_words, hyp_words, _count(chunks), letters, chunks)
        for name, ref_words, hyp_words, chunks, letters in zip(
            names, by_word.references, by_word.hypotheses, by_word.alignments, _by_character(refs, hyps), strict=True
        )
    ]
    word_ci95, ci_units = _rate_interval(utterances, [u.words for u in utterances], seed)
    return Score(
        utterances=utterances,
        words=_total(u.words for u in utterances),
        characters=_total(u.characters for u in utterances),
        wer_ci95=word_ci95,
        cer_ci95=_rate_interval(utterances, [u.characters for u in utterances], seed)[0],
        ci_units=ci_units,
        missing=tuple(name for name in names if name not in hyp),
        extra=tuple(name for name in hyp if name not in ref),
        normalize=tuple(normalize),
        left_out=written - counted,
    )


def paired_test(first: Score, other: Score, metric: Metric = "WER") -> PairedTest:
    """Difference in WER or CER of two systems on the same references, with its 95 % interval and p value.

    The interval is from a paired bootstrap, p from a matched-pairs randomisation test. The units are speakers if at
    least six are known, else utterances (the result is then valid only for these speakers). Scores of different
    utterances are an error.
    """
    if [u.name for u in first.utterances] != [u.name for u in other.utterances]:
        raise MismatchError("two systems can be compared only on the same reference utterances; score both on one set")
    known = len(first.speakers) >= FEW_SPEAKERS
    groups = _groups(first.utterances) if known else np.arange(len(first.utterances))
    first_U, other_U = (_sums([u.counts(metric).errors for u in s.utterances], groups) for s in (first, other))
    lengths_U, other_lengths_U = (
        _sums([u.counts(metric).length for u in s.utterances], groups) for s in (first, other)
    )
    return PairedTest(
        difference=other.counts(metric).rate - first.counts(metric).rate,
        difference_ci95=difference_interval(first_U, other_U, lengths_U, other_lengths_U),
        p_value=matched_pairs_p(first_U, other_U),
        units=f"{len(lengths_U)} {'speakers' if known else 'utterances'}",
    )


def _check(ref: Mapping[str, str], hyp: Mapping[str, str], speakers: Mapping[str, str] | None) -> None:
    for name, texts in (("ref", ref), ("hyp", hyp)):
        if not isinstance(texts, Mapping):
            raise SettingError(f"{name}={reprlib.repr(texts)}: pass a dictionary of utterances and their texts")
        if other := next((key for key, text in texts.items() if not isinstance(text, str)), None):
            raise SettingError(
                f"{name}[{other!r}]={reprlib.repr(texts[other])}: pass the text as one string, its words separated by"
                " spaces"
            )
    if not ref:
        raise DataError("the reference holds no utterances")
    if not hyp:
        raise DataError("the hypothesis holds no utterances: nothing was decoded; check the decoder's messages")
    if not any(name in hyp for name in ref):
        raise MismatchError(
            f"no utterance of the reference is in the hypothesis ({next(iter(ref))}, {next(iter(hyp))}): "
            "pass files of the same set"
        )
    for name in ref if speakers is not None else ():
        if name not in speakers:  # type: ignore[operator]
            raise MissingError(f"utterance {name} has no speaker; add it to utt2spk")


def _by_character(refs: list[str], hyps: list[str]) -> Iterator[ErrorCounts]:
    """The counts of characters; jiwer's alignments of them would take more memory than all else."""
    for start in range(0, len(refs), _BLOCK):
        ref, hyp = ([characters(text) for text in side[start : start + _BLOCK]] for side in (refs, hyps))
        yield from map(_count, jiwer.process_characters(ref, hyp).alignments)


def _count(chunks: list[jiwer.AlignmentChunk]) -> ErrorCounts:
    sizes = {"equal": 0, "substitute": 0, "delete": 0, "insert": 0}
    for chunk in chunks:
        sizes[chunk.type] += max(chunk.ref_end_idx - chunk.ref_start_idx, chunk.hyp_end_idx - chunk.hyp_start_idx)
    length = sizes["equal"] + sizes["substitute"] + sizes["delete"]
    return ErrorCounts(length, sizes["substitute"], sizes["delete"], sizes["insert"])


def _total(counts: Iterable[ErrorCounts]) -> ErrorCounts:
    columns = zip(*((c.length, c.substitutions, c.deletions, c.insertions) for c in counts), strict=True)
    return ErrorCounts(*(sum(column) for column in columns))


def _groups(utterances: list[Utterance]) -> np.ndarray:
    return np.unique([u.speaker or "" for u in utterances], return_inverse=True)[1]


def _sums(values: list[int], groups: np.ndarray) -> np.ndarray:
    return np.bincount(groups, weights=values).astype(np.int64)


def _rate_interval(
    utterances: list[Utterance], counts: list[ErrorCounts], seed: int
) -> tuple[tuple[float, float], str]:
    errors, lengths = [c.errors for c in counts], [c.length for c in counts]
    alone = np.arange(len(utterances))
    groups = _groups(utterances) if utterances[0].speaker is not None else alone
    speakers = int(groups.max()) + 1
    over_utterances = f"{len(utterances)} utterances"
    if groups is alone or speakers < 2:
        return rate_interval(np.array(errors), np.array(lengths), seed), over_utterances
    low, high = rate_interval(_sums(errors, groups), _sums(lengths, groups), seed)
    if speakers >= FEW_SPEAKERS:
        return (low, high), f"{speakers} speakers"
    # Intervals over so few speakers are unreliable, and have no width if the speakers' rates are equal by chance.
    low_alone, high_alone = rate_interval(np.array(errors), np.array(lengths), seed)
    return (min(low, low_alone), max(high, high_alone)), f"{speakers} speakers and {over_utterances}, the wider"


@dataclass(frozen=True)
class Bin:
    """Words with confidences from `low` to `high`: their number, mean confidence, and the share of correct ones."""

    low: float
    high: float
    words: int
    confidence: float
    correct: float


@dataclass(frozen=True)
class Reliability:
    """How well confidences predict which words are correct.

    `correct` is the share of correct words. `nce` is NaN if all words are correct, or none: then H is 0. `bins` has
    only bins with words.
    """

    words: int
    correct: float
    nce: float
    bins: tuple[Bin, ...]

    @property
    def why_no_nce(self) -> str:
        """Why there is no NCE; empty if there is one."""
        if self.nce == self.nce:
            return ""
        return "all words are correct" if self.correct == 1 else "no word is correct" if self.words else "no words"


def reliability(confidences: Sequence[float], correct: Sequence[bool]) -> Reliability:
    """The reliability of confidences (from 0 to 1), given which of the words are correct."""
    clipped = np.clip(np.asarray(confidences, np.float64), _MIN_CONFIDENCE, 1 - _MIN_CONFIDENCE)
    right = np.asarray(correct, bool)
    share = float(right.mean()) if len(right) else float("nan")
    nce = float("nan")
    if 0 < share < 1:
        alone = -len(right) * (share * np.log2(share) + (1 - share) * np.log2(1 - share))
        nce = float((alone + np.log2(clipped[right]).sum() + np.log2(1 - clipped[~right]).sum()) / alone)
    place = np.minimum((np.asarray(confidences, np.float64) * _BINS).astype(int), _BINS - 1)
    rows = []
    for number in range(_BINS):
        here = place == number
        if here.any():
            mean, good = float(np.asarray(confidences)[here].mean()), float(right[here].mean())
            rows.append(Bin(number / _BINS, (number + 1) / _BINS, int(here.sum()), mean, good))
    return Reliability(len(right), share, nce, tuple(rows))


def reliability_of(score: Score, tracks: Mapping[str, Sequence["Segment"]]) -> Reliability | None:
    """The reliability of the confidences in a CTM for the words of a score; None if it has none, or other words.

    Utterances whose number of words in the CTM is not the number scored (normalisation may change it) are left out. If
    they are more than one in twenty, the CTM is taken to be that of another decoding.
    """
    confidences: list[float] = []
    right: list[bool] = []
    scored = [utterance for utterance in score.utterances if utterance.hyp]
    used = 0
    for utterance in scored:
        words = tracks.get(utterance.name, ())
        track = [word.confidence for word in words if scored_words(normalize_text(word.label, score.normalize))]
        known = [each for each in track if each is not None]
        if len(known) == len(track) == len(utterance.hyp):
            used += 1
            confidences += known
            right += [kind == "equal" for kind, _, hyp in utterance.alignment() if hyp]
    return reliability(confidences, right) if confidences and used >= 0.95 * len(scored) else None


def reliability_beside(score: Score, hypothesis: Path) -> Reliability | None:
    """The reliability of the CTM beside the text of a hypothesis: ``hyp.ctm`` for ``hyp.txt``; None if none fits it."""
    path = hypothesis.with_suffix(".ctm")
    if path == hypothesis or not path.is_file():
        return None
    from speech3.hmm import read_ctm  # only here, since it loads numba

    try:
        tracks = read_ctm(path)
    except Speech3Error:
        return None  # not a CTM file that speech3 wrote
    return reliability_of(score, tracks)
