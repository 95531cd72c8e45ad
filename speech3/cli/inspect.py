"""`speech3 inspect`: what is in a recording, an archive of features, or packed frames."""

from pathlib import Path
from typing import Annotated

import typer


def command(
    file: Annotated[Path, typer.Argument(help="A recording, .ark, .scp (of features or recordings) or .frames.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="PNG", help="The picture; by default FILE's name with .png, in the working directory."),
    ] = None,
    features: Annotated[str, typer.Option(metavar="PRESET", help="What is computed of a recording.")] = "fbank40",
    utterance: Annotated[str | None, typer.Option(metavar="ID", help="The one to draw; by default the first.")] = None,
) -> None:
    """Draw waveform, features, pitch and senones, as far as there are any, and print statistics.

    `speech3 inspect exp/feats/feats.scp --utterance s40-000`

    The statistics are those of the first 1,000 utterances; of a recording, its first ten minutes are listened to, and
    no more than a minute is drawn. A picture of an earlier inspection is replaced, another file is not, unless `--out`
    names it.
    """
    from speech3.config import FeatureConfig, load_preset
    from speech3.frames.inspect import inspect, picture_path
    from speech3.frames.picture import write_picture

    preset = load_preset(FeatureConfig, "features", features)
    place = picture_path(file, out)
    found = inspect(file, preset, utterance)
    write_picture(found.picture, place)
    for name, words in [*found.lines, ("picture", str(place))]:
        print(f"{name:<12}{words}")
