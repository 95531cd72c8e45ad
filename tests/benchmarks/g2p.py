"""Pronunciations and spellings of words that were held out of minilibri's lexicon, beside Phonetisaurus.

`python tests/benchmarks/g2p.py [--rival VENV/bin/phonetisaurus]`, where VENV has the package ``phonetisaurus`` 0.3.0.

A tenth of the words, chosen by a hash, is the test. A second tenth, on which the method was chosen, is trained on here.
A word's nearest pronunciation counts for phone errors; a word is wrong if it equals none of them.
"""

import argparse
import json
import subprocess
import tempfile
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from speech3.language import g2p, pronounce
from speech3.language.pronounce import Phones, letters, phone_errors

LEXICON = Path("/work/shared/corpora/minilibri/lang/lexicon.txt")


def report(name: str, value: float, unit: str, rival: str = "") -> None:
    print(json.dumps({"name": name, "value": round(value, 4), "unit": unit, "rival": rival}), flush=True)


def report_errors(
    name: str, truth: Mapping[str, Sequence[Phones]], found: Mapping[str, Phones], rival: str = ""
) -> None:
    guesses = [found.get(word, ()) for word in truth]
    wrong = sum(guess not in variants for guess, variants in zip(guesses, truth.values(), strict=True))
    report(f"{name}_phone_errors", 100 * phone_errors(list(truth.values()), guesses), "%", rival)
    report(f"{name}_word_errors", 100 * wrong / len(truth), "%", rival)


def by_phonetisaurus(program: str, taught: Mapping[str, Sequence[Phones]], words: Sequence[str]) -> dict[str, Phones]:
    with tempfile.TemporaryDirectory() as directory:
        lexicon, model = Path(directory) / "lexicon.txt", Path(directory) / "model.fst"
        lexicon.write_text("".join(f"{word} {' '.join(p)}\n" for word, each in taught.items() for p in each))
        training = [program, "train", "--model", str(model), str(lexicon)]
        subprocess.run(training, check=True, capture_output=True, cwd=directory)
        command = [program, "predict", "--model", str(model), *words]
        output = subprocess.run(command, check=True, capture_output=True, text=True, cwd=directory).stdout
    return {word: tuple(phones) for word, *phones in map(str.split, output.splitlines())}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rival", default="", metavar="PROGRAM")
    parser.add_argument("--lexicon", type=Path, default=LEXICON)
    given = parser.parse_args()
    table = g2p.read_table(given.lexicon)
    truth = {word: variants for word, variants in table.items() if zlib.crc32(word.encode()) % 10 == 0}
    taught = {word: variants for word, variants in table.items() if word not in truth}
    g2p.apply(g2p.train(taught, "warm-up"), list(truth)[:5])
    start = time.process_time()
    model = g2p.train(taught, str(given.lexicon))
    report("g2p_train_s", time.process_time() - start, "s of CPU")
    start = time.process_time()
    found, _ = g2p.apply(model, truth)
    report("g2p_word_ms", 1000 * (time.process_time() - start) / len(truth), "ms of CPU per word")
    report_errors("g2p", truth, found)
    if given.rival:
        report_errors("phonetisaurus", truth, by_phonetisaurus(given.rival, taught, list(truth)), "phonetisaurus 0.3.0")
    rules = pronounce.learn([(letters(word), variants[0]) for word, variants in list(taught.items())[::2]])
    before = {word: rules(letters(word)) for word in truth}
    report_errors("letters_in_context", truth, before, "the conversion that was used before")
    spellings: dict[Phones, list[tuple[str, ...]]] = {}
    for word, variants in truth.items():
        for phones in variants:
            spellings.setdefault(phones, []).append(tuple(word))
    best = [model.spell(phones) for phones in spellings]
    guesses = [each[0].symbols if each else () for each in best]
    report("spelling_letter_errors", 100 * phone_errors(list(spellings.values()), guesses), "%")
    wrong = sum(guess not in words for guess, words in zip(guesses, spellings.values(), strict=True))
    report("spelling_word_errors", 100 * wrong / len(spellings), "%")


if __name__ == "__main__":
    main()
