"""`speech3 inspect`: statistics and a picture of a recording, an archive of features, or packed frames."""

from pathlib import Path
from typing import Annotated

import typer

from speech3.cli import _complete


def command(
    file: Annotated[Path, typer.Argument(help="A recording, .ark, .scp (of features or recordings) or .frames.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="PNG", help="The picture; default: FILE's name with .png, in the current directory."),
    ] = None,
    features: Annotated[
        str,
        typer.Option(
            metavar="PRESET",
            help="Features to compute from a recording: preset in conf/features, or a YAML file.",
            autocompletion=_complete.presets("features"),
        ),
    ] = "fbank40",
    utterance: Annotated[str | None, typer.Option(metavar="ID", help="Utterance to draw; default: the first.")] = None,
) -> None:
    """Draw the waveform, features, pitch and senones that FILE contains, and print statistics.

    `speech3 inspect exp/feats/feats.scp --utterance s40-000`

    The statistics cover the first 1,000 utterances, or the first ten minutes of a recording; at most one minute is
    drawn. A picture that an earlier `speech3 inspect` wrote is replaced; any other file is replaced only if `--out`
    names it.
    """
    from speech3.config import FeatureConfig, load_preset
    from speech3.reports.inspect import inspect, picture_path
    from speech3.reports.picture import write_picture

    preset = load_preset(FeatureConfig, "features", features)
    place = picture_path(file, out)
    found = inspect(file, preset, utterance)
    write_picture(found.picture, place)
    for name, words in [*found.lines, ("picture", str(place))]:
        print(f"{name:<12}{words}")
