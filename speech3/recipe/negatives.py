"""Negatives: training utterances in which nobody says a word of the domain, and a few beside dev (`negatives`).

A model that has never learnt what is not a word finds words in noise and in other speech. With negatives, noise and
other speech have phones of their own, which take no part in the language model or in the questions of the tree, and
which the filler of the decoding graphs consists of (`speech3.decode.grammar`).

OUT/data/train_neg          train (with copies at other speeds) and negatives
OUT/data/dev_neg            negatives of other speakers, on which costs of fillers and confidences are tuned
"""

import re
from dataclasses import replace
from pathlib import Path

from speech3.corpora import is_folder, read_speech
from speech3.data import (
    NEGATIVE_S,
    DataDir,
    audio,
    is_datadir,
    lengths_s,
    read_datadir,
    separate_speakers,
    utterance_sounds,
    write_negatives,
)
from speech3.errors import DataError, MissingError, listed
from speech3.language import is_word, read_lexicon
from speech3.recipe.experiment import NEGATIVES, Experiment
from speech3.runtime import say

SOUNDS = 3  # larger where other sounds are made of the same settings
_MOST_HELD_OUT = 100  # five minutes


def make_data(e: Experiment) -> None:
    """Write the training data with negatives, and the negatives for tuning.

    Raises `Speech3Error`: the directory of recordings is missing or has none, or a word of the domain is said in all of
    them.
    """
    given = e.recipe.negatives
    assert given is not None
    data, dev = read_datadir(e.data(e.speech)), read_datadir(e.data("dev"))
    others = _without_domain(Path(given.recordings), e) if given.recordings else DataDir(Path(), {}, {})
    first = next(iter(data.utterances.values()))
    rate_hz = e.recipe.sample_rate or audio.info(data.recording(first), directory=data.path).sample_rate_hz
    train, held_out = separate_speakers(utterance_sounds(others))
    count, seed = max(1, round(given.share * sum(lengths_s(data).values()) / NEGATIVE_S)), e.recipe.seed
    write_negatives(data, e.data(e.train), count, train, rate_hz, seed, alone=False)
    most = min(len(dev.utterances), _MOST_HELD_OUT)
    write_negatives(dev, e.data(NEGATIVES), most, held_out, rate_hz, seed + 1, alone=True)
    say(f"  {count:,} negatives for training, {most:,} for tuning")


def _spoken(text: str) -> set[str]:
    """The words of a transcript as written, without marks around them, and the parts of those with hyphens."""
    return {*text.casefold().split(), *re.findall(r"[^\W_]+(?:['’][^\W_]+)*", text.casefold())}


def _without_domain(source: Path, e: Experiment) -> DataDir:
    """The recordings of other speech, without those whose transcript has a word of the lexicon."""
    if not (is_datadir(source) or is_folder(source)):
        raise MissingError(f"{source}: no directory with recordings; pass a folder of recordings, or a data directory")
    data, faults = read_speech(source, transcribed=False)
    used = {str(path) for path in data.recordings.values()}
    for fault in faults:
        if fault.where not in used:  # recordings without a transcript are used
            say(f"  left out: {fault}")
    domain = {word.casefold() for word in read_lexicon(e.lexicon).by_word if is_word(word)}
    said = {key: domain & _spoken(each.text or "") for key, each in data.utterances.items()}
    kept = {key: each for key, each in data.utterances.items() if not said[key]}
    words = dict.fromkeys(word for each in said.values() for word in sorted(each))
    if not kept:
        raise DataError(
            f"{source}: in each of its {len(said):,} utterances a word of the lexicon is said ({listed(words, 5)});"
            " pass recordings without these words as negatives"
        )
    if words:
        say(
            f"  {source}: {len(said) - len(kept):,} of {len(said):,} utterances are left out, as a word of the lexicon"
            f" is said in them: {listed(words, 5)}"
        )
    return replace(data, utterances=kept)
