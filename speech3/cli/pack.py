"""`speech3 pack`: frames with their senones, ready for training."""

from pathlib import Path
from typing import Annotated

import typer

from speech3.cli import _complete


def command(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Kaldi data directory.")],
    out: Annotated[Path, typer.Argument(help="Output directory: train.frames, heldout.frames and features.yaml.")],
    ali: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory with ali.ark, from `speech3 import` or `speech3 align`.")
    ],
    features: Annotated[
        str,
        typer.Option(
            metavar="PRESET",
            help="Preset in conf/features (`given`: DIR's feats.scp), a YAML file, or Kaldi's conf/mfcc.conf.",
            autocompletion=_complete.presets("features"),
        ),
    ],
    hmm: Annotated[
        Path | None,
        typer.Option(
            metavar="MODEL", help="Model that made the alignment; default: --ali.", autocompletion=_complete.models
        ),
    ] = None,
    heldout: Annotated[
        float, typer.Option(metavar="SHARE", help="Share of the hours held out, by speaker.", min=0.001, max=0.5)
    ] = 0.1,
    seed: Annotated[int, typer.Option(help="Seed for drawing the held-out speakers.", min=0)] = 1,
    jobs: Annotated[int, typer.Option(help="Number of processes; 0: one per core.", min=0)] = 0,
) -> None:
    """Extract features and pack them with the senones of an alignment; some of the speakers are held out.

    `speech3 import exp/tri3_ali exp/tri3 && speech3 pack data/train exp/frames --ali exp/tri3 --features fbank40_d2`

    `speech3 align exp/tri data/train exp/ali && speech3 pack data/train exp/frames --ali exp/ali --hmm exp/tri
    --features fbank40_d2`

    Then `speech3 train my.yaml` with, in my.yaml: `frames: exp/frames`, `hmm: exp/tri3`, `model: dnn`, `training: sgd`.
    """
    from speech3.config import FeatureConfig, load_preset
    from speech3.corpus.datadir import read_datadir
    from speech3.decoding.apply import say_skipped
    from speech3.io.parallel import available_jobs
    from speech3.training.packing import pack_aligned

    config = load_preset(FeatureConfig, "features", features)
    packed = pack_aligned(
        read_datadir(directory), ali, hmm or ali, out, config, heldout=heldout, seed=seed, jobs=jobs or available_jobs()
    )
    say_skipped(packed.skipped, "left out")
    for name, report in (("train", packed.train), ("heldout", packed.heldout)):
        print(f"{out}/{name}.frames: {report.utterances} utterances, {report.frames} frames")
