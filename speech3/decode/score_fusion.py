"""Several models that score together: their log likelihoods are averaged, frame by frame and senone by senone.

This is the geometric mean of posteriors (Swietojanski, Ghoshal and Renals 2013; Kaldi's ``decode_score_fusion.sh``),
which also exists for the outputs of LF-MMI, which are not normalised. The models must have the same senones and frame
rate; their networks and features may differ.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from speech3.data import DataDir
from speech3.decode.apply import SideBySide, features_for
from speech3.decode.recognizer import Recognizer
from speech3.decode.speaker_passes import Known
from speech3.decode.trained_model import MeanScorer
from speech3.errors import MismatchError
from speech3.hmm import Gmm, ProjectedGmm, output_difference


def with_mean_scores(recognizer: Recognizer, others: Sequence[Recognizer], dims: Sequence[int] = ()) -> Recognizer:
    """The first recogniser with the mean scores of all; its graph and its settings are used.

    `dims`: number of features of each model, which then lie side by side (`SideBySide`); empty: all have the same
    features.

    Raises `Speech3Error`: the senones, their tree, the frame rate or the kind of scores differ, or a model consists of
    GMMs.
    """
    for other in others:
        _check(recognizer, other)
    scorers = (recognizer.scorer, *(other.scorer for other in others))
    ends = np.cumsum([0, *dims]).tolist()
    columns = tuple(slice(*each) for each in pairwise(ends)) if dims else (slice(None),) * len(scorers)
    return replace(recognizer, scorer=MeanScorer(scorers, columns))


def features_of_all(
    recognizer: Recognizer,
    others: Sequence[Recognizer],
    data: DataDir,
    jobs: int,
    out: Path,
    known: Known | None = None,
) -> tuple[Recognizer, Mapping[str, np.ndarray], dict[str, str]]:
    """The recogniser of all models, the features of all of them, and the reason for each utterance without features.

    Features are extracted into ``out/feats``, those of others that differ into ``out/with2/feats`` and so on. Raises
    what `with_mean_scores` and `features_for` raise.
    """
    for other in others:
        _check(recognizer, other)
    feats, skipped = features_for(recognizer, data, jobs, out, known=known)
    if all(same_features(recognizer, other) for other in others):
        return (with_mean_scores(recognizer, others) if others else recognizer), feats, skipped
    parts: list[Mapping[str, np.ndarray]] = [feats]
    for number, other in enumerate(others, 2):
        if same_features(recognizer, other):
            parts.append(feats)
            continue
        found, bad = features_for(other, data, jobs, out / f"with{number}", known=known)
        parts.append(found)
        skipped = {**bad, **skipped}
    dims = [next(iter(part.values())).shape[1] for part in parts]
    return with_mean_scores(recognizer, others, dims), SideBySide(parts), skipped


def same_features(recognizer: Recognizer, other: Recognizer) -> bool:
    return recognizer.features.of_values() == other.features.of_values()


def _check(one: Recognizer, other: Recognizer) -> None:
    names = f"{one.directory} and {other.directory} cannot score together"
    for each in (one, other):
        if isinstance(each.scorer, Gmm | ProjectedGmm):
            raise MismatchError(f"{names}: {each.directory} consists of GMMs; pass networks")
    rates = [each.features.frame_shift * each.scorer.subsampling for each in (one, other)]
    if rates[0] != rates[1]:
        raise MismatchError(
            f"{names}: one has scores every {rates[0]:g} ms, the other every {rates[1]:g} ms; pass models "
            f"with the same frame rate"
        )
    if fault := output_difference(one.outputs, other.outputs):
        raise MismatchError(f"{names}: {fault}; pass models trained on the senones of one model directory")
    if one.scorer.pseudo_likelihoods != other.scorer.pseudo_likelihoods:
        raise MismatchError(f"{names}: only one of them was trained with LF-MMI; their scores have different scales")
