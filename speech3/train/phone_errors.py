"""The phone error rate of a network on held-out speech, which predicts word errors better than frame accuracy does.

Axes: T frames, P senones.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import nn

from speech3.frames import PackedFrames, segment_numbers
from speech3.hmm import (
    Biphones,
    Hmm,
    LoopPhones,
    PdfsOnly,
    best_phones,
    biphones,
    group_numbers,
    loop_phones,
    phone_bigram,
)
from speech3.language import Lexicon, edit_distance
from speech3.models import AcousticModel, logits

ACOUSTIC_SCALE = 0.3  # phone errors of a small network on minilibri: 64 % at 0.1, 53 at 0.2, 51 at 0.3, 50 at 0.4, 0.5
PSEUDO_SCALE = 2.0  # phone errors of LF-MMI on minilibri: 46 % at 1 (the noise phone wins), 31 at 1.5, 30 at 2, 31 at 3
DECODED_FRAMES = 12_000  # two minutes of held-out speech, so that an epoch is at most a few per cent longer
MOST_PHONES = 300  # the time per frame is quadratic in them; some scripts have thousands of graphemes
BIGRAM_FRAMES = 3_600_000  # frames of the alignment on which the bigram is estimated


Segments = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, eq=False)
class PhoneErrors:
    """The held-out utterances (their numbers) that are decoded after each epoch, and the phone loop that decodes them.

    `segments` maps the labels of an utterance's frames to the phones of the loop. `biphones`: those of an LF-MMI model;
    None for other models, whose loop has no contexts.
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
        """Errors per phone of the alignment, without silence; NaN if the alignment holds only silence."""
        assert isinstance(model, AcousticModel)
        wrong = total = 0
        for utterance in self.utterances:
            frames = slice(*self.heldout.offsets_U1[utterance : utterance + 2])
            feats_TF = torch.from_numpy(np.array(self.heldout.frames_NF[frames])).to(self.device)
            reference = self.phones.spoken(self.segments(self.heldout.senones_N[frames]))
            wrong += edit_distance(reference.tolist(), self._heard(logits(model, feats_TF).cpu().numpy()).tolist())
            total += len(reference)
        return wrong / total if total else float("nan")

    def _heard(self, logits_TP: np.ndarray) -> np.ndarray:
        if self.biphones:
            return self.phones.spoken(self.biphones.best_phones(PSEUDO_SCALE * logits_TP, self.bigram))
        return best_phones(self.phones, self.bigram, self.phones.scores(logits_TP, self.log_prior_P), ACOUSTIC_SCALE)


def phone_errors(
    outputs: Hmm | PdfsOnly,
    packed: Mapping[str, PackedFrames],
    log_prior_P: np.ndarray,
    seed: int,
    device: torch.device,
    *,
    labels: Literal["senones", "phones", "words"] = "senones",
) -> PhoneErrors | None:
    """Draw the utterances to decode, and estimate the bigram of phones on the alignment of the training frames.

    The reference comes from the held-out labels: senones, phones or words (`speech3.frames.packed`), which are replaced
    by their first pronunciations. Returns None if these do not identify phones (outputs known by number only, a tree
    with leaves that several phones share, senones at a third of the frames) or if there are too many phones.
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
    train, heldout = packed["train"], packed["heldout"]
    offsets = train.offsets_U1
    sequences = (segments(train.senones_N[offsets[u] : offsets[u + 1]]) for u in _drawn(train, BIGRAM_FRAMES, seed))
    bigram = phone_bigram(sequences, len(phones.silence_G))
    drawn_U = _drawn(heldout, DECODED_FRAMES, seed)
    return PhoneErrors(phones, segments, contexts, bigram, heldout, drawn_U, log_prior_P, device)


def _labelled(group_P: np.ndarray, labels_T: np.ndarray) -> np.ndarray:
    groups: np.ndarray = group_P[segment_numbers(labels_T) - 1]
    return groups


def _first_pronunciations(lexicon: Lexicon) -> list[list[int]]:
    """The phone groups of each word, by its number; those of silence come last."""
    group_P = group_numbers(lexicon).tolist()
    group_of = {phone: group_P[number - 1] for phone, number in lexicon.phone_ids.items()}
    spelled = [[group_of[phone] for phone in prons[0].phones] for prons in lexicon.by_word.values()]
    return [*spelled, [group_P[lexicon.silence - 1]]]


def _spelled(groups: list[list[int]], labels_T: np.ndarray) -> np.ndarray:
    words = [-1, *segment_numbers(labels_T).tolist(), -1]
    return np.array([group for word in words for group in groups[word]])


def _drawn(packed: PackedFrames, frames: int, seed: int) -> np.ndarray:
    """Numbers of utterances drawn from `seed` with at most `frames` in total, or of the shortest one alone."""
    lengths_U = np.diff(packed.offsets_U1)
    order = np.random.default_rng(seed).permutation(len(lengths_U))
    kept = np.sort(order[np.cumsum(lengths_U[order]) <= frames])
    return kept if len(kept) else np.array([lengths_U.argmin()])
