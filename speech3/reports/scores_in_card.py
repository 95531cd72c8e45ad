"""Adds error rates on a test set to the model card."""

from dataclasses import asdict
from pathlib import Path

from speech3.decoding.settings import load_settings
from speech3.graph.places import SETTINGS
from speech3.scoring.wer import Score
from speech3.training.card import Scored, write_card


def write_scores(model: Path, name: str, result: Score) -> None:
    """Rewrite the card of a model directory with its error rates on one test set, which replace earlier ones.

    Parameters
    ----------
    name
        Name of the test set, as shown in the card.

    Raises
    ------
    Speech3Error
        `model` is not the directory of a network that this version of speech3 reads.
    """
    tuned = (model / SETTINGS).exists()
    settings = asdict(load_settings(model)) if tuned else {}
    steps = f" (text normalised by {', '.join(result.normalize)})" if result.normalize else ""
    write_card(model, [Scored(
        f"{name}{steps}", len(result.utterances), result.words.length, result.wer, result.wer_ci95, result.cer,
        result.cer_ci95, {key.replace("_", " "): value for key, value in settings.items() if key != "confidence"},
    )])  # fmt: skip
