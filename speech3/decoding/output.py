"""The files that decoding writes: `hyp.txt` for scoring, and `hyp.ctm` with the time of each word and, if known, its
confidence."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from speech3.alignment.times import Segment, word_segments, write_ctm
from speech3.decoding.long_utterances import Parts
from speech3.decoding.recognizer import Recognizer
from speech3.decoding.search import Decoding, Hypothesis
from speech3.errors import Speech3Error
from speech3.graph.pieces import join_segments
from speech3.hmm.alignment import Alignment
from speech3.hmm.model import PdfsOnly
from speech3.io.atomic import write_text
from speech3.io.computed import Computed
from speech3.io.progress import say


def word_times(
    recognizer: Recognizer, feats: Mapping[str, np.ndarray], decoding: Decoding, jobs: int = 1
) -> dict[str, list[Segment]]:
    """Times and, if known, confidences of the decoded words, found by aligning them with the same acoustic model.

    The path through the graph gives no exact word boundaries, because determinisation and weight pushing move the word
    labels; Kaldi realigns lattices for the same reason (lattice-align-words). The words of an utterance that cannot be
    aligned are kept, and their times are spread over it (`spread_over`).
    """
    texts: dict[str, str | None] = {h.utterance: " ".join(h.units) for h in decoding.hypotheses if h.units}
    if not texts:
        return {}
    alignments, bad = recognizer.align(Computed(texts, feats.__getitem__), texts, jobs, strict=False)
    times = times_in(recognizer, alignments, decoding)
    for found in decoding.hypotheses:
        if found.units and found.utterance not in times:
            end_s = len(feats[found.utterance]) * recognizer.clock.shift_s
            times[found.utterance] = spread_over(recognizer, found, 0.0, end_s)
    if bad:
        utterance, reason = next(iter(bad.items()))
        say(
            f"the words of {len(bad)} of {len(texts)} utterances could not be aligned, so their times are spread evenly"
            f" over the utterance, such as {utterance}: {reason.removeprefix(f'{utterance}: ')}"
        )
    return dict(sorted(times.items()))


def spread_over(recognizer: Recognizer, found: Hypothesis, start_s: float, end_s: float) -> list[Segment]:
    """The words of a hypothesis from `start_s` to `end_s`, each with time in proportion to its number of phones."""
    spoken = recognizer.hmm.lexicon.by_word
    phones = [min((len(pron.phones) for pron in spoken.get(unit, ())), default=1) for unit in found.units]
    edges = (start_s + (end_s - start_s) * np.cumsum([0, *phones]) / max(1, sum(phones))).tolist()
    values = found.confidences or [None] * len(found.units)
    segments = [
        Segment(begin, end, unit, value)
        for begin, end, unit, value in zip(edges[:-1], edges[1:], found.units, values, strict=True)
    ]
    mark = recognizer.graph.mark
    return [_calibrated(word, recognizer) for word in (join_segments(segments, mark) if mark else segments)]


def times_in(
    recognizer: Recognizer, alignments: Mapping[str, Alignment], decoding: Decoding
) -> dict[str, list[Segment]]:
    """Times and confidences of the decoded words in alignments with their units."""
    said = {h.utterance: h for h in decoding.hypotheses}
    times = {
        key: word_segments(found, said[key].units, recognizer.clock, words_W=said[key].confidences)
        for key, found in alignments.items()
    }
    if mark := recognizer.graph.mark:
        times = {key: join_segments(found, mark) for key, found in times.items()}
    return {key: [_calibrated(word, recognizer) for word in found] for key, found in times.items()}


def _calibrated(word: Segment, recognizer: Recognizer) -> Segment:
    posterior = word.confidence
    return word if posterior is None else replace(word, confidence=recognizer.settings.calibrated(posterior))


def write_hypotheses(path: Path, decoding: Decoding) -> None:
    """Write the hypotheses as a Kaldi text file.

    Raises
    ------
    Speech3Error
        Nothing was decoded.
    """
    if not decoding.hypotheses:
        raise Speech3Error(f"{path.parent}: no utterance could be decoded")
    lines = (f"{h.utterance} {' '.join(h.words)}".rstrip() + "\n" for h in decoding.hypotheses)
    write_text(path, "".join(lines))


def write_decoding(
    out: Path,
    recognizer: Recognizer,
    feats: Mapping[str, np.ndarray],
    decoding: Decoding,
    jobs: int = 1,
    parts: Parts = Parts(),  # noqa: B008  # it is frozen
) -> Decoding:
    """Write ``hyp.txt`` (Kaldi text), ``hyp.ctm`` and, if an utterance has no hypothesis, ``failed.txt``.

    With a model that cannot align (`hmm.model.PdfsOnly`), no ``hyp.ctm`` is written. The results of `parts` are joined;
    the decoding with one hypothesis for each utterance is returned.

    Raises
    ------
    Speech3Error
        Nothing was decoded.
    """
    joined = parts.joined(decoding)
    (out / "hyp.ctm").unlink(missing_ok=True)  # of an earlier decoding
    write_hypotheses(out / "hyp.txt", joined)  # first: decoding took most of the time, and the steps below may fail
    if decoding.failed:
        write_text(out / "failed.txt", "".join(f"{u} {why}\n" for u, why in decoding.failed.items()))
    else:
        (out / "failed.txt").unlink(missing_ok=True)
    if isinstance(recognizer.outputs, PdfsOnly):
        say(f"no word times (hyp.ctm): the model cannot align: {recognizer.outputs.why}")
        return joined
    write_ctm(out / "hyp.ctm", parts.joined_times(word_times(recognizer, feats, decoding, jobs)))
    return joined
