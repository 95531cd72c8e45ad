"""Grow decision trees, of triphones and of LF-MMI's left biphones, from statistics along alignments.

The leaf with the best question is split first (Young et al. 1994; Kaldi's build-tree).

The statistics have one row for each (left, phone, right, state) seen, so one matrix product gives the gain in
likelihood of the questions about all phone sets. The phone sets come from the data: similar phones are merged pair by
pair. (Kaldi's are those of a top-down clustering, cluster-phones. Merging bottom up gives similar sets with a
closed-form cost, the loss of likelihood when two single-Gaussian clusters become one.)

The HMM of LF-MMI (Povey et al. 2016; Kaldi's steps/nnet3/chain/build_tree.sh) has the topology `FIRST_AND_LOOP`, a tree
that asks about the phone and its left neighbour, and one output per `SUBSAMPLING` frames. Output k stands for the
frames from ``SUBSAMPLING * k`` up to those of the next output. Its tree is grown from alignments of three-state phones.

Axes: T frames, K outputs, D values of a frame, P phones (in `to_first_and_loop`: phone segments), Q questions.
"""

import heapq
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from speech3.errors import DataError, MismatchError, MissingError, SettingError, Speech3Error
from speech3.hmm.model import (
    CENTRE,
    FIRST_AND_LOOP,
    LEFT,
    RIGHT,
    THREE_STATES,
    Hmm,
    Topology,
    Tree,
    TreeNodes,
    num_outputs,
)
from speech3.hmm.transcript import Alignment, evened_out
from speech3.language import Lexicon, phone_marks, plain_phone
from speech3.runtime import progress, read_utf8

VARIANCE_FLOOR = 0.01
SUBSAMPLING = 3
_SIDES = (LEFT, CENTRE)
_MIN_ROWS = 20_000  # statistics that are held before they are merged
_DIGIT = re.compile(r"(.*\D)(\d+)")


def log_likelihood(stats: np.ndarray) -> np.ndarray:
    """Log likelihood of frames under the one Gaussian estimated from them, with floored variances.

    `stats`: (..., 1 + 2 D) float64: count, sums, sums of squares.
    Returns: (...,) float64; 0 for no frames.
    """
    count = stats[..., 0]
    dim = (stats.shape[-1] - 1) // 2
    safe = np.maximum(count, 1e-10)[..., None]
    mean = stats[..., 1 : 1 + dim] / safe
    var = np.maximum(stats[..., 1 + dim :] / safe - mean * mean, VARIANCE_FLOOR)
    return np.where(count > 0, -0.5 * count * (np.log(2 * np.pi * var).sum(-1) + dim), 0.0)


def merge_questions(
    stats: np.ndarray, groups: list[tuple[int, ...]], extra: Iterable[frozenset[int]] = ()
) -> np.ndarray:
    """Cluster groups of phones and return every phone set that arises.

    `stats`: (P + 1, 1 + 2 D): statistics of each phone's middle state.
    `groups`: phones that are in one cluster from the start (the stress or tone variants of a vowel).
    Returns: (Q, P + 1) bool: the members of each set, none of which is empty. The last set holds all phones of
    `groups`: its complement is silence and the ends of the utterance.
    """
    clusters = [frozenset(group) for group in groups if stats[list(group), 0].sum() > 0]
    sums = [stats[sorted(cluster)].sum(0) for cluster in clusters]
    found = set(clusters) | set(extra) | {frozenset([phone]) for cluster in clusters for phone in cluster}
    while len(clusters) > 1:
        table = np.stack(sums)
        loss = log_likelihood(table)[:, None] + log_likelihood(table)[None] - log_likelihood(table[:, None] + table)
        np.fill_diagonal(loss, np.inf)
        a, b = sorted(int(index) for index in np.unravel_index(int(np.argmin(loss)), loss.shape))
        clusters[a], sums[a] = clusters[a] | clusters[b], sums[a] + sums[b]
        del clusters[b], sums[b]
        found.add(clusters[a])
    ordered = sorted((sorted(phones) for phones in found), key=lambda phones: (len(phones), phones))
    member = np.zeros((len(ordered), stats.shape[0]), bool)
    for row, phones in zip(member, ordered, strict=True):
        row[phones] = True
    return member


@dataclass(eq=False)
class ContextStats:
    """Single-Gaussian statistics of each context."""

    context: np.ndarray  # (N, 4) int32: left, phone, right, state
    stats: np.ndarray  # (N, 1 + 2 D) float64: count, sums, sums of squares


def alignment_stats(
    alignment: Alignment, feats_TD: np.ndarray, sides: tuple[int, ...] = (LEFT, CENTRE, RIGHT)
) -> ContextStats:
    """One Gaussian's statistics per context of one utterance; a context may occur more than once.

    In the contexts, phones on other sides than `sides` are 0.
    """
    feats_TD = feats_TD.astype(np.float64)
    windows = alignment.windows()
    windows[:, [side for side in (LEFT, CENTRE, RIGHT) if side not in sides]] = 0
    context = np.column_stack([windows[alignment.segment], alignment.states]).astype(np.int32)
    rows = np.concatenate([np.ones((len(feats_TD), 1)), feats_TD, feats_TD * feats_TD], axis=1)
    change = np.flatnonzero(np.concatenate([[True], (context[1:] != context[:-1]).any(1)]))
    return ContextStats(context[change], np.add.reduceat(rows, change))


def merge_stats(parts: list[ContextStats]) -> ContextStats:
    """Add up statistics that were accumulated separately; the contexts of the result are sorted and unique."""
    context = np.concatenate([part.context for part in parts])
    stats = np.concatenate([part.stats for part in parts])
    unique, inverse = np.unique(context, axis=0, return_inverse=True)
    total = np.zeros((len(unique), stats.shape[1]))
    np.add.at(total, inverse.reshape(-1), stats)
    return ContextStats(unique, total)


def merged_stats(parts: Iterable[ContextStats]) -> list[ContextStats]:
    """Add up statistics as they come, so that memory grows with the contexts, not with the parts; empty without parts.

    They are merged whenever there are as many new ones as merged ones, so merging takes a logarithmic number of steps.
    """
    held: list[ContextStats] = []
    new = 0
    for part in parts:
        held.append(part)
        new += len(part.context)
        if new > max(_MIN_ROWS, len(held[0].context)):
            held, new = [merge_stats(held)], 0
    return [merge_stats(held)] if held else []


def phone_groups(lexicon: Lexicon) -> list[tuple[int, ...]]:
    """Phones that share a root: those that differ only in their position in the word, in stress, tone or length.

    Stress and tone are final digits (`digits`); `speech3.language.plain_phone` removes tone and length of a letter.
    """
    groups: dict[str, list[int]] = {}
    stressed = digits(lexicon)
    for phone, number in lexicon.phone_ids.items():
        base = lexicon.base_phone(phone)
        groups.setdefault(plain_phone(base[:-1] if base in stressed else base), []).append(number)
    return [tuple(group) for group in groups.values()]


def digits(lexicon: Lexicon) -> dict[str, str]:
    """The phones whose final digit is a stress (CMUdict) or a tone (pinyin), without word positions, and the digit.

    The phone set must show it: the same phone is there with several digits. In SAMPA ``6`` is a vowel of its own, and
    ``e:6`` a diphthong beside ``e:``. Phones that are numbered beyond 9 have neither stress nor tone.
    """
    bases = dict.fromkeys(map(lexicon.base_phone, lexicon.phones))
    numbered: dict[str, set[str]] = {}
    for base in bases:
        if match := _DIGIT.fullmatch(base):
            numbered.setdefault(match[1], set()).add(match[2])
    shown = {root: each for root, each in numbered.items() if len(each) > 1 and all(len(digit) == 1 for digit in each)}
    marks_used = set().union(*shown.values())
    # A phone with one digit may be the only one of its kind that occurs: UE4 beside A1, A2, A4, but not `e:6` and `e:`.
    single = {root: each for root, each in numbered.items() if len(each) == 1 and root not in bases}
    found = shown | {root: each for root, each in single.items() if each <= marks_used}
    return {f"{root}{digit}": digit for root, each in found.items() for digit in each}


def group_numbers(lexicon: Lexicon) -> np.ndarray:
    """(P,) int: the number of each phone's group."""
    number_P = np.zeros(len(lexicon.phones), int)
    for number, group in enumerate(phone_groups(lexicon)):
        number_P[np.array(group) - 1] = number
    return number_P


def phone_sets(lexicon: Lexicon) -> list[frozenset[int]]:
    """Phone sets that clustering the groups cannot find: one for each position in the word, stress, tone or length."""
    sets: dict[str, set[int]] = {}
    stressed = digits(lexicon)
    for phone, number in lexicon.phone_ids.items():
        base = lexicon.base_phone(phone)
        if base in stressed:
            sets.setdefault(stressed[base], set()).add(number)
        for mark in phone_marks(base):
            sets.setdefault(mark, set()).add(number)
        if base != phone:
            sets.setdefault(phone[-1], set()).add(number)
    return [frozenset(members) for members in sets.values()]


def read_phone_sets(path: Path | str, lexicon: Lexicon) -> list[frozenset[int]]:
    """Read Kaldi's extra_questions.txt: one phone set per line; a phone stands for all its positions in the word.

    Raises Speech3Error: the file cannot be read, or names a phone that the lexicon does not use.
    """
    by_name: dict[str, set[int]] = {}
    for phone, number in lexicon.phone_ids.items():
        for name in {phone, lexicon.base_phone(phone)}:
            by_name.setdefault(name, set()).add(number)
    try:
        lines = read_utf8(path).splitlines()
    except Speech3Error as error:
        raise error.restated(f"{error}; set hmm.extra_questions to a text file") from error
    known = dict.fromkeys(lexicon.base_phone(phone) for phone in lexicon.phones)
    for place, line in enumerate(lines, 1):
        if unknown := [name for name in line.split() if name not in by_name]:
            raise MissingError(
                f"{path}:{place}: not in the lexicon: {', '.join(unknown)}; use its phones: {', '.join(known)}"
            )
    return [frozenset().union(*(by_name[name] for name in line.split())) for line in lines if line.split()]


def build_tree(
    data: ContextStats,
    lexicon: Lexicon,
    leaves: int,
    min_frames: float,
    extra: Sequence[frozenset[int]] = (),
    *,
    topology: Topology = THREE_STATES,
    sides: Sequence[int] = (LEFT, CENTRE, RIGHT),
    key: str = "hmm.tri.leaves",
) -> Tree:
    """Grow a tree with `leaves` leaves, or fewer if no useful question is left.

    `min_frames`: a leaf is split only if both sides keep at least this many frames.
    `extra`: phone sets to ask about, in addition to those found by clustering and by `phone_sets`.
    `sides`: the phones that may be asked about: LEFT and CENTRE make left biphones.
    `key`: config key of `leaves`, for the error message.
    Raises Speech3Error: `leaves` is smaller than the number of roots.
    """
    groups, phones, states = phone_groups(lexicon), len(lexicon.phones), topology.states
    if leaves < len(groups) * states:
        raise SettingError(
            f"{key}={leaves}: the lexicon's {len(groups)} phones need at least {len(groups) * states} leaves"
        )
    clustered = [group for group in groups if group[0] not in lexicon.context_free]
    questions = merge_questions(_by_phone(data, phones, states // 2), clustered, [*phone_sets(lexicon), *extra])
    # The roots, one for each group of phones and state.
    nodes = TreeNodes(phones)
    root = np.zeros((phones + 1, states), np.int32)
    heap: list[tuple[float, int, tuple[int, int], np.ndarray]] = []
    for group in groups:
        for state in range(states):
            node = nodes.add()
            root[list(group), state] = node
            rows = np.flatnonzero(np.isin(data.context[:, 1], group) & (data.context[:, 3] == state))
            if group[0] not in lexicon.context_free:
                _offer(heap, data, questions, rows, node, min_frames, sides)
    # Split the leaf whose question gains most, until there are enough; then number the leaves.
    for _ in progress(range(len(nodes.side), leaves), leaves - len(nodes.side), "tree"):
        if not heap:
            break
        _, node, (side, question), rows = heapq.heappop(heap)
        nodes.side[node], nodes.member[node] = side, questions[question]
        answer = questions[question][data.context[rows, side]]
        nodes.yes[node], nodes.no[node] = nodes.add(), nodes.add()
        _offer(heap, data, questions, rows[answer], nodes.yes[node], min_frames, sides)
        _offer(heap, data, questions, rows[~answer], nodes.no[node], min_frames, sides)
    for pdf, node in enumerate(node for node, side in enumerate(nodes.side) if side < 0):
        nodes.yes[node] = nodes.no[node] = pdf
    return nodes.tree(root)


def _by_phone(data: ContextStats, phones: int, state: int) -> np.ndarray:
    table = np.zeros((phones + 1, data.stats.shape[1]))
    middle = data.context[:, 3] == state
    np.add.at(table, data.context[middle, 1], data.stats[middle])
    return table


def _offer(heap, data, questions, rows, node, min_frames, sides) -> None:  # type: ignore[no-untyped-def]
    """Put the node's best question on the heap, if one increases the likelihood."""
    stats = data.stats[rows]
    before = log_likelihood(stats.sum(0)) if len(rows) else 0.0
    best_gain, best = 0.0, None
    for side in sides:
        table = np.zeros((questions.shape[1], data.stats.shape[1]))
        np.add.at(table, data.context[rows, side], stats)
        yes = questions.astype(np.float64) @ table
        no = table.sum(0) - yes
        gain = log_likelihood(yes) + log_likelihood(no) - before
        gain[(yes[:, 0] < min_frames) | (no[:, 0] < min_frames)] = -np.inf
        if len(gain) and gain.max() > best_gain:
            best_gain, best = float(gain.max()), (side, int(gain.argmax()))
    if best is not None:
        heapq.heappush(heap, (-best_gain, node, best, rows))


def to_first_and_loop(alignment: Alignment) -> Alignment:
    """Convert an alignment to `FIRST_AND_LOOP` phones at every `SUBSAMPLING`-th frame.

    Each phone boundary moves to the nearest boundary between outputs. Phones left without an output get one: the
    boundaries around them are shifted such that the largest shift is as small as possible.

    `alignment`: an alignment of T frames, with any topology.
    Returns: it has ``ceil(T / SUBSAMPLING)`` outputs, at least one per phone. The score is that of `alignment`.
    Raises Speech3Error: there are fewer outputs than phones.
    """
    outputs, phones = num_outputs(alignment.num_frames, SUBSAMPLING), len(alignment.phones)
    if outputs < phones:
        raise DataError(f"too short at a third of the frame rate: {phones} phones, {outputs} outputs")
    # An output belongs to the phone of its middle frame.
    nearest = (alignment.starts + SUBSAMPLING // 2) // SUBSAMPLING
    nearest[-1] = outputs
    # With one output per phone set aside, boundaries need only be in order: each goes midway between the largest before
    # it and the smallest after it.
    slack = nearest - np.arange(phones + 1)
    in_order = (np.maximum.accumulate(slack) + np.minimum.accumulate(slack[::-1])[::-1]) // 2
    starts = (np.clip(in_order, 0, outputs - phones) + np.arange(phones + 1)).astype(np.int32)
    return evened_out(replace(alignment, starts=starts, states=np.zeros(outputs, np.int8)), FIRST_AND_LOOP)


def left_biphone_pdfs(hmm: Hmm) -> np.ndarray:
    """The pdfs of each phone after each left phone, (N + 1, N + 1, 2) int32 by left phone (0: none) and phone.

    The first of two is that of the phone's first frame, the second that of its later ones; those of phone 0 are zero.

    Raises Speech3Error: the HMM has a different topology.
    """
    if hmm.topology.states != FIRST_AND_LOOP.states:
        raise MismatchError("LF-MMI needs an HMM with one pdf for a phone's first frame and one for the later ones")
    phones = np.arange(len(hmm.lexicon.phones) + 1, dtype=np.int32)
    pdfs_NN2 = np.zeros((len(phones), len(phones), 2), np.int32)
    windows_W3 = np.zeros((len(phones) - 1, 3), np.int32)
    windows_W3[:, CENTRE] = phones[1:]
    for left in phones:
        windows_W3[:, LEFT] = left
        pdfs_NN2[left, 1:] = hmm.tree.pdfs_of(windows_W3)
    return pdfs_NN2


def middle_frames(feats_TD: np.ndarray) -> np.ndarray:
    """(K, D): the middle frame of those that each output stands for."""
    middle_K = np.arange(num_outputs(len(feats_TD), SUBSAMPLING)) * SUBSAMPLING + SUBSAMPLING // 2
    return feats_TD[np.minimum(middle_K, len(feats_TD) - 1)]


def train_tree(
    alignments: Mapping[str, Alignment],
    feats: Mapping[str, np.ndarray],
    lexicon: Lexicon,
    leaves: int,
    min_frames: float,
    extra: Sequence[frozenset[int]] = (),
    *,
    key: str = "hmm.tri.leaves",
) -> Hmm:
    """Grow a left-biphone tree with two states per phone; silence and spoken noise have one pdf per state.

    Parameters
    ----------
    alignments
        As returned by `to_first_and_loop`.
    feats
        Matrices (T, D) of all frames: the features, with derivatives, of the GMMs that made the alignments.
    leaves, min_frames, extra
        As in `build_tree`; `min_frames` counts outputs.
    key
        Config key of `leaves`, for the error message.

    Raises
    ------
    Speech3Error
        There are no alignments, `leaves` is smaller than the number of roots, or features and alignment of an utterance
        differ in length.
    """
    if not alignments:
        raise DataError("no utterance is aligned, so no tree can be grown; see bad.txt of the alignment")

    def stats_of(utterance: str, alignment: Alignment) -> ContextStats:
        feats_KD = middle_frames(feats[utterance])
        if len(feats_KD) != alignment.num_frames:
            raise MismatchError(
                f"{utterance}: {len(feats[utterance])} frames are {len(feats_KD)} outputs, but its alignment has"
                f" {alignment.num_frames}: it was made from different features; align again"
            )
        return alignment_stats(alignment, feats_KD, _SIDES)

    shown = progress(alignments.items(), len(alignments), "statistics for the tree")
    (stats,) = merged_stats(stats_of(*item) for item in shown)
    tree = build_tree(stats, lexicon, leaves, min_frames, extra, topology=FIRST_AND_LOOP, sides=_SIDES, key=key)
    return Hmm(lexicon, tree, np.full(tree.num_pdfs, 0.5), FIRST_AND_LOOP, SUBSAMPLING)
