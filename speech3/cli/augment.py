"""`speech3 augment`: augmented copies of a data directory."""

from pathlib import Path
from typing import Annotated

import typer

from speech3.cli import _complete


def command(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Kaldi data directory.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Data directory to write; it holds only the copies.")],
    augment: Annotated[
        str,
        typer.Option(
            metavar="PRESET",
            help="Preset in conf/augment, or a YAML file (it may set noise_dir and rir_dir).",
            autocompletion=_complete.presets("augment"),
        ),
    ],
    copies: Annotated[int, typer.Option(help="Copies of each utterance, all different.", min=1)] = 1,
    seed: Annotated[int, typer.Option(help="The same seed gives the same copies.", min=0)] = 1,
    jobs: Annotated[int, typer.Option(help="Number of processes; 0: one per core.", min=0)] = 0,
) -> None:
    """Write augmented copies: with noise, other speakers, reverberation, another speed or volume, or telephone quality.

    `speech3 augment data/train data/train_aug --augment mixed`

    To train on both, run `speech3 combine data/train_all data/train data/train_aug`. To make a noisy test set, run
    `speech3 augment data/test data/test_noisy --augment noisy`. `OUT/augment.txt` lists what was done to each copy.
    Noise and room impulse responses are synthesised unless the YAML file names directories of recordings:
    `noise_dir: /corpora/musan`, `rir_dir: /corpora/RIRS_NOISES`.
    """
    from speech3.augment.copies import augment_data
    from speech3.config import AugmentConfig, load_preset
    from speech3.corpus.datadir import read_datadir
    from speech3.decoding.apply import say_skipped

    config = load_preset(AugmentConfig, "augment", augment)
    report = augment_data(read_datadir(directory), out, config, copies=copies, seed=seed, jobs=jobs)
    say_skipped(report.skipped, "skipped")
    clean = sum(done == "clean" for done in report.done.values())
    print(f"{len(report.done)} copies, {clean} of them unchanged: {out}; changes are listed in {out / 'augment.txt'}")
