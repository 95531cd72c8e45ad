"""Move boundaries by the conventions of a user who has corrected some recordings.

Where a boundary lies between two phones is partly a convention: at the burst of a stop or after its aspiration, at the
end of voicing or of audible friction. The median difference between aligned and corrected boundaries is estimated for
each pair of phone classes (`speech3.data.broad_classes`), drawn towards zero where there are few, and subtracted from
all boundaries of that pair. Such differences hold within a corpus; measured across corpora they do harm, so they are
estimated anew for every user, and what they gain is measured with each recording left out of the estimate in turn.

Axes: P phones.

Re-estimate the aligner's GMMs along refined boundaries.

The Gaussians of a flat start have learnt the boundaries of their own Viterbi paths. Along boundaries from posteriors
and spectral change each phone's Gaussians see fewer frames of its neighbours, and the
boundaries found with them are better again. Boundaries beside silence stay where the path has them: moved, they drift
from round to round (on words of 28 languages, the ends by 1.2 ms a round).

Measured from a flat start (mean errors in ms, without, after one and after two rounds): words of TIMIT 17.1, 16.9,
16.8; its phones 10.4, 10.0, 9.8; inside words of 28 languages 13.8, 13.5, 13.7. After a third, no better.

Axes: T frames, U pdfs, P phones, K states of a phone.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numba
import numpy as np

from speech3.config import HmmConfig
from speech3.data import SILENCE, broad_class, is_arpabet, is_silence
from speech3.errors import Speech3Error
from speech3.hmm import train
from speech3.hmm.alignment.boundaries import Refinement
from speech3.hmm.alignment.times import FrameClock, Segment
from speech3.hmm.alignments import Alignment
from speech3.hmm.gmm import Gmm
from speech3.hmm.model import Hmm
from speech3.hmm.train import GmmSystem, Workers, WorkerShare, reestimate
from speech3.hmm.transcript import NO_WORD
from speech3.language import Lexicon

Pair = tuple[str, str]  # classes of the phones before and after a boundary
_PRIOR = 10  # with so many boundaries, half of the median difference counts
_TOUCH_S = 0.0011  # times may be rounded to milliseconds
_SHORTEST = 0.5  # frames that a phone keeps
ROUNDS = 2
_SCALE = 0.1  # of the acoustic scores in the Viterbi search, as in training


@dataclass(frozen=True)
class Offsets:
    """Seconds by which aligned boundaries are late, by pair of classes, and what subtracting them gains.

    Attributes
    ----------
    before_ms, after_ms
        Mean absolute error on the corrected recordings, without offsets, and with those of all others.
    boundaries, recordings
        How many were compared.
    """

    late_s: Mapping[Pair, float]
    before_ms: float
    after_ms: float
    boundaries: int
    recordings: int

    @property
    def help(self) -> bool:
        """Whether they bring boundaries nearer to those of recordings that were not used."""
        return self.after_ms < self.before_ms


def fit(errors: Mapping[str, Sequence[tuple[Pair, float]]]) -> Offsets:
    """Estimate offsets from the errors of each corrected recording, in seconds (`differences`).

    Raises
    ------
    Speech3Error
        There are fewer than two recordings with boundaries that can be compared.
    """
    used = {recording: rows for recording, rows in errors.items() if rows}
    if len(used) < 2:
        raise Speech3Error(
            f"only {len(used)} of the corrected recordings could be compared; correct at least two, keeping their"
            " phones and their file names"
        )
    before, after = list[float](), list[float]()
    for recording, rows in used.items():
        rest = _medians(row for other, each in used.items() if other != recording for row in each)
        before += [abs(error) for _, error in rows]
        after += [abs(error - rest.get(pair, 0.0)) for pair, error in rows]
    late_s = _medians(row for rows in used.values() for row in rows)
    return Offsets(late_s, 1000 * float(np.mean(before)), 1000 * float(np.mean(after)), len(before), len(used))


def _medians(rows: Iterator[tuple[Pair, float]]) -> dict[Pair, float]:
    """The median error of each pair, the smaller the fewer there are."""
    found: dict[Pair, list[float]] = defaultdict(list)
    for pair, error in rows:
        found[pair].append(error)
    return {pair: float(np.median(errors)) * len(errors) / (len(errors) + _PRIOR) for pair, errors in found.items()}


def differences(
    ours: Sequence[Segment], matched: Mapping[int, int], truth: Sequence[Segment]
) -> list[tuple[Pair, float]]:
    """The classes and the error, in seconds, of each of our boundaries that the truth has as well.

    Parameters
    ----------
    ours, truth
        Phones and silences.
    matched
        For the n-th phone of `truth` the number of the same phone in `ours`, both counted without silences.
    """
    spoken = [index for index, segment in enumerate(ours) if not is_silence(segment.label)]
    theirs = [segment for segment in truth if not is_silence(segment.label)]
    partner = {spoken[h]: r for r, h in matched.items()}
    # Does silence precede the n-th phone? The last entry is for the end.
    pause = [True, *(b.start_s - a.end_s > _TOUCH_S for a, b in pairwise(theirs)), True]
    classes = classes_of([segment.label for segment in ours])
    found: list[tuple[Pair, float]] = []
    for index in range(1, len(ours)):
        left, right = partner.get(index - 1), partner.get(index)
        touch = left is not None and right == left + 1 and not pause[right]
        begins = right is not None and classes[index - 1] == SILENCE and pause[right]
        ends = left is not None and classes[index] == SILENCE and pause[left + 1]
        pair, time_s = (classes[index - 1], classes[index]), ours[index].start_s
        if right is not None and (touch or begins):
            found.append((pair, time_s - theirs[right].start_s))
        elif left is not None and ends:
            found.append((pair, time_s - theirs[left].end_s))
    return found


def classes_of(labels: Sequence[str]) -> list[str]:
    """The broad class of each phone."""
    arpabet = is_arpabet(labels)
    return [broad_class(label, arpabet=arpabet) for label in labels]


def moved(alignment: Alignment, lexicon: Lexicon, clock: FrameClock, offsets: Offsets) -> Alignment:
    """The alignment with `edges` from which the offsets were subtracted; the order of the phones is kept."""
    classes = classes_of([lexicon.base_phone(lexicon.phones[phone - 1]) for phone in alignment.phones])
    late = [offsets.late_s.get(pair, 0.0) for pair in pairwise(classes)]
    edges = alignment.places
    edges[1:-1] -= np.array(late) / (clock.subsampling * clock.shift_s)
    count = _SHORTEST * np.arange(len(edges))
    edges[1:-1] = np.clip(edges[1:-1], count[1:-1], edges[-1] - count[::-1][1:-1])
    edges[:-1] = np.maximum.accumulate(edges[:-1] - count[:-1]) + count[:-1]
    return replace(alignment, edges=edges)


def along_boundaries(workers: Workers, system: GmmSystem, config: HmmConfig, refinement: Refinement) -> GmmSystem:
    """Re-estimate a monophone system `ROUNDS` times along the refined boundaries of its own alignments.

    Parameters
    ----------
    workers
        They hold the alignments that `system` made of the training utterances; in the end, those of the result.
    refinement
        With the waveforms of the training utterances; those that have none are refined by posteriors alone.
    """
    hmm, gmm, failed = system.hmm, system.gmm, system.failed
    for number in range(1, ROUNDS + 1):
        label = f"boundaries, round {number} of {ROUNDS}"
        workers.run(move_boundaries, hmm, gmm, refinement, label)
        hmm, gmm, _ = reestimate(workers, hmm, gmm)
        parts = workers.run(train.realign, hmm, gmm, config.beam, config.retry_beam)
        failed = {utterance: reason for part in parts for utterance, reason in part.items()}
    return GmmSystem(hmm, gmm, failed)


def move_boundaries(share: WorkerShare, hmm: Hmm, gmm: Gmm, refinement: Refinement, label: str = "") -> None:
    """Move the boundaries of the share's alignments to the nearest frames of the refined ones."""
    for utterance in share.shown(label) if label else share.words:
        if utterance not in share.alignments:
            continue  # it failed
        scores = train.score_one(share, utterance, hmm, gmm)
        assert not isinstance(scores, str)  # it was aligned
        found = refinement.refined(share.alignments[utterance], utterance, scores, hmm, _SCALE)
        share.alignments[utterance] = _moved(found, scores, hmm)


def _moved(found: Alignment, scores: train.Scored, hmm: Hmm) -> Alignment:
    starts_P = nearest_frames(found, hmm.topology.min_frames)
    pdf_PK = np.array([hmm.pdfs(*window) for window in found.windows().tolist()], np.int32)
    column_PK = np.searchsorted(scores.pdf_U, pdf_PK).astype(np.int32)
    states_T = _divided(scores.loglikes_TU, column_PK, starts_P)
    return replace(found, starts=starts_P, states=states_T, edges=None)


def nearest_frames(found: Alignment, least: int) -> np.ndarray:
    """(P + 1,) int32: the frames nearest to the refined boundaries; those of silence stay.

    Parameters
    ----------
    least
        Frames of the shortest phone. Where a boundary that stays leaves less, its neighbours give way.
    """
    silent_P = found.words == NO_WORD
    stays = np.ones(len(found.starts), bool)
    stays[1:-1] = silent_P[1:] | silent_P[:-1]
    place = least * np.arange(len(stays))  # of each boundary if all phones were as short as possible
    spare = np.floor(found.places + 0.5).astype(np.int64) - place
    given = found.starts - place
    earliest = np.maximum.accumulate(np.where(stays, given, given[0]))
    latest = np.minimum.accumulate(np.where(stays, given, given[-1])[::-1])[::-1]
    spare = np.where(stays, given, np.clip(spare, earliest, latest))
    return (np.maximum.accumulate(spare) + place).astype(np.int32)


@numba.njit(cache=True, nogil=True)
def _divided(loglikes, column, starts):  # type: ignore[no-untyped-def] # pragma: no cover
    """The best division of each phone's frames among its states, by likelihood alone; each state has a frame."""
    phones, states = column.shape
    result = np.zeros(starts[-1], np.int8)
    for p in range(phones):
        begin, length = starts[p], starts[p + 1] - starts[p]
        score = np.full((states, length), -np.inf)
        entered = np.zeros((states, length), np.bool_)
        for t in range(length):
            for k in range(min(states, t + 1)):
                stay = score[k, t - 1] if t else -np.inf
                enter = score[k - 1, t - 1] if k and t else (0.0 if not k and not t else -np.inf)
                entered[k, t] = enter > stay
                score[k, t] = max(stay, enter) + loglikes[begin + t, column[p, k]]
        k = states - 1
        for t in range(length - 1, -1, -1):
            result[begin + t] = k
            if entered[k, t]:
                k -= 1
    return result
