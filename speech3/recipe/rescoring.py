"""Rescoring of a recipe's lattices with a second language model: `lm.rescore`."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from speech3.corpus.datadir import read_datadir
from speech3.decoding.latticed import Wanted, decode_latticed
from speech3.decoding.recognizer import Recognizer
from speech3.decoding.rescore_files import Options, rescore
from speech3.io.progress import say
from speech3.lattices.directory import open_lattices
from speech3.recipe.experiment import Experiment
from speech3.recipe.noises import error_rate

RESCORED = "test_rescored"


def rescore_system(e: Experiment, recognizer: Recognizer, dev: Mapping[str, np.ndarray], out: Path) -> None:
    """Tune the second model's weight on lattices of dev, and rescore the existing lattices of test with it.

    Dev is decoded with the graph whose language model has not seen its sentences; the second model has not seen them
    either.
    """
    say("  rescoring lattices of dev and test with the language model of lm.rescore")
    decode_latticed(recognizer, dev, out / "dev", Wanted(archive=True), e.jobs, recognizer.tuning_graph)
    references: dict[str, Sequence[str]] = {
        key: (utterance.text or "").split() for key, utterance in read_datadir(e.data("dev")).utterances.items()
    }
    lm, metric = str(e.rescoring_lm), e.recipe.metric
    tuning = Options(references=references, error_rate=error_rate(metric))
    found = rescore(open_lattices(out / "dev"), lm, out / "dev_rescored", tuning)
    best, before = found.rates[found.weight], found.rates[0.0]
    say(f"  dev {metric} {100 * best:.2f} % at weight {found.weight:g}, {100 * before:.2f} % without it")
    rescore(open_lattices(out / "test"), lm, out / RESCORED, Options(found.weight))
