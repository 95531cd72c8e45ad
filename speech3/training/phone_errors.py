"""The phone error rate of a network on held-out speech, which says more of words than the share of frames right.

Axes: T frames, P senones.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import nn

from speech3.frames.packed import PackedFrames
from speech3.frames.segments import segment_numbers
from speech3.hmm.biphone_loop import Biphones, biphones
from speech3.hmm.clustering import group_numbers
from speech3.hmm.lexicon import Lexicon
from speech3.hmm.model import Hmm, PdfsOnly
from speech3.hmm.phone_loop import LoopPhones, errors, heard, loop_phones, phone_bigram
from speech3.models import AcousticModel, logits

ACOUSTIC_SCALE = 0.3  # phone errors of a small network of minilibri: 0.1 64 %, 0.2 53, 0.3 51, 0.4 50, 0.5 50
PSEUDO_SCALE = 2.0  # of LF-MMI's on minilibri: 1 46 % (noise takes what it can), 1.5 31, 2 30, 3 31
DECODED_FRAMES = 12_000  # of held-out speech: two minutes, so that an epoch is a few per cent longer at most
MOST_PHONES = 300  # a frame costs their square; graphemes of some scripts are thousands
BIGRAM_FRAMES = 3_600_000  # of the alignment that the bigram is estimated on


Segments = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, eq=False)
class PhoneErrors:
    """What is decoded after each epoch, and with what.

    Attributes
    ----------
    segments
        From the labels of an utterance's frames to the phones of the loop.
    biphones
        Of an LF-MMI model; none of others, whose loop knows no contexts.
    utterances
        Numbers of those that are decoded.
    """

    phones: LoopPhones
    segments: Segments
    biphones: Biphones | None
    bigram: np.ndarray
    heldout: PackedFrames
    utterances: np.ndarray
    log_prior_P: np.ndarray
    device: torch.device

    def rate(self, model: nn.Module) -> float:
        """Errors over phones of the alignment, silence apart; NaN if that holds nothing but silence."""
        assert isinstance(model, AcousticModel)
        wrong = total = 0
        for utterance in self.utterances:
            frames = slice(*self.heldout.offsets_U1[utterance : utterance + 2])
            feats_TF = torch.from_numpy(np.array(self.heldout.frames_NF[frames])).to(self.device)
            reference = self.phones.spoken(self.segments(self.heldout.senones_N[frames]))
            wrong += errors(reference, self._heard(logits(model, feats_TF).cpu().numpy()))
            total += len(reference)
        return wrong / total if total else float("nan")

    def _heard(self, logits_TP: np.ndarray) -> np.ndarray:
        if self.biphones:
            return self.phones.spoken(self.biphones.heard(PSEUDO_SCALE * logits_TP, self.bigram))
        return heard(self.phones, self.bigram, self.phones.scores(logits_TP, self.log_prior_P), ACOUSTIC_SCALE)


def phone_errors(
    outputs: Hmm | PdfsOnly, train: PackedFrames, heldout: PackedFrames, log_prior_P: np.ndarray, seed: int,
    device: torch.device, *, labels: Literal["senones", "phones", "words"] = "senones",
) -> PhoneErrors | None:  # fmt: skip
    """Draw what is to be decoded, and estimate the bigram of phones on the alignment of the training frames.

    The reference is read off the held-out labels. None where these do not tell which phone they are: outputs that are
    known by number only, a tree whose leaves several phones share, or senones at a third of the frames; nor for a loop
    of too many phones.

    Parameters
    ----------
    labels
        What labels the frames: senones, phones or words (`speech3.frames.segments`), which are spelled by their first
        pronunciations.
    """
    phones = loop_phones(outputs) if isinstance(outputs, Hmm) else None
    if phones is None or not isinstance(outputs, Hmm) or len(phones.silence_G) > MOST_PHONES:
        return None
    if outputs.subsampling > 1 and labels == "senones":
        return None
    by_labels: dict[str, Segments] = {
        "senones": phones.segments,
        "phones": partial(_labelled, group_numbers(outputs.lexicon)),
        "words": partial(_spelled, _first_pronunciations(outputs.lexicon)),
    }
    segments = by_labels[labels]
    contexts = biphones(outputs) if labels != "senones" else None
    if labels != "senones" and not contexts:
        return None
    offsets = train.offsets_U1
    sequences = (segments(train.senones_N[offsets[u] : offsets[u + 1]]) for u in _drawn(train, BIGRAM_FRAMES, seed))
    bigram = phone_bigram(sequences, len(phones.silence_G))
    drawn_U = _drawn(heldout, DECODED_FRAMES, seed)
    return PhoneErrors(phones, segments, contexts, bigram, heldout, drawn_U, log_prior_P, device)


def _labelled(group_P: np.ndarray, labels_T: np.ndarray) -> np.ndarray:
    groups: np.ndarray = group_P[segment_numbers(labels_T) - 1]
    return groups


def _first_pronunciations(lexicon: Lexicon) -> list[list[int]]:
    """Groups of phones of each word, by its number; and of silence, which comes last."""
    group_P = group_numbers(lexicon).tolist()
    group_of = {phone: group_P[number - 1] for phone, number in lexicon.phone_ids.items()}
    spelled = [[group_of[phone] for phone in prons[0].phones] for prons in lexicon.by_word.values()]
    return [*spelled, [group_P[lexicon.silence - 1]]]


def _spelled(groups: list[list[int]], labels_T: np.ndarray) -> np.ndarray:
    words = [-1, *segment_numbers(labels_T).tolist(), -1]
    return np.array([group for word in words for group in groups[word]])


def _drawn(packed: PackedFrames, frames: int, seed: int) -> np.ndarray:
    """Numbers of utterances drawn from `seed`, as many as have up to `frames` together, or the shortest alone."""
    lengths_U = np.diff(packed.offsets_U1)
    order = np.random.default_rng(seed).permutation(len(lengths_U))
    kept = np.sort(order[np.cumsum(lengths_U[order]) <= frames])
    return kept if len(kept) else np.array([lengths_U.argmin()])
