"""`speech3 extract`: features of a data directory."""

from pathlib import Path
from typing import Annotated

import typer

from speech3.cli import _complete


def command(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Kaldi data directory.")],
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="Output directory: feats.ark, feats.scp and features.yaml.")
    ],
    features: Annotated[
        str,
        typer.Option(
            metavar="PRESET",
            help="Preset in conf/features, a YAML file, or Kaldi's conf/mfcc.conf, fbank.conf, plp.conf.",
            autocompletion=_complete.presets("features"),
        ),
    ],
    jobs: Annotated[int, typer.Option(help="Number of processes; 0: one per core.", min=0)] = 0,
    compress: Annotated[
        bool, typer.Option("--compress", help="Kaldi's lossy compression: about one byte per value.")
    ] = False,
    augment: Annotated[
        str | None,
        typer.Option(
            metavar="PRESET",
            help="Augment the audio first: preset in conf/augment, or a YAML file.",
            autocompletion=_complete.presets("augment"),
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the augmentation.", min=0)] = 1,
) -> None:
    """Compute the features of all utterances of a data directory.

    `speech3 extract data/train feats/train --features fbank40_d2`

    The archive is in Kaldi's format (`copy-feats scp:feats/train/feats.scp ark,t:-` prints it) and holds the input of a
    model, to which the preset's CMVN and deltas have been applied. Utterances that cannot be used are listed in
    `OUT/skipped.txt`; it is an error if they are more than 5 %. The preset `given` takes the directory's own features
    (its `feats.scp`, for example fMLLR features); `given_cmvn` also normalises them with its `cmvn.scp`.

    If a run was interrupted or killed, run the same command again to resume it. With `cmvn: global` the statistics are
    computed from this directory and written to `OUT/features.yaml`; give that file as `--features` to normalise other
    data with them.

    `--augment mixed` adds noise, reverberation and so on to the audio in memory (`speech3 augment` writes such audio
    to files): `speech3 extract data/train feats/train_noisy --features fbank40_d2 --augment noisy`
    """
    from speech3.augment.augmenter import make_augmenter
    from speech3.config import AugmentConfig, FeatureConfig, load_preset
    from speech3.corpus.datadir import read_datadir
    from speech3.features.extract import extract

    config, data = load_preset(FeatureConfig, "features", features), read_datadir(directory)
    augmenter = make_augmenter(load_preset(AugmentConfig, "augment", augment), data, seed) if augment else None
    report = extract(data, out, config, jobs, compress=compress, augmenter=augmenter)
    hours = report.frames * config.frame_shift / 3.6e6
    rate = f" at {report.sample_rate_hz} Hz" if report.sample_rate_hz else ""
    typer.echo(
        f"{report.utterances} utterances, {report.frames} frames ({hours:.2f} h{rate}), "
        f"{report.values} values per frame: {out / 'feats.scp'}"
    )
    if report.skipped:
        typer.echo(f"{len(report.skipped)} utterances skipped: {out / 'skipped.txt'}")
