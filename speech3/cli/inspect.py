"""The verbs that describe things: `doctor`, `inspect`, `model-info`, `watch`, `compare`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from speech3.cli import _verb
from speech3.errors import SettingError


def doctor() -> None:
    """Print what speech3 will use (cores, BLAS, GPUs, memory, disk) and which optional parts are missing.

    `speech3 doctor`
    """
    from speech3.evaluate import examine_machine

    for finding in examine_machine(Path.cwd()):
        print(f"{finding.name:16} {finding.value}")
        if finding.remedy:
            print(f"{'':16} -> {finding.remedy}")


def inspect(
    file: Annotated[Path, typer.Argument(help="A recording, .ark, .scp, .frames, or neural LM; with --unit a model.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="PNG", help="The picture; default: FILE's name with .png, in the current directory."),
    ] = None,
    features: Annotated[
        str, _verb.preset("features", "Features to compute from a recording: preset in conf/features, or a YAML file.")
    ] = "fbank40",
    utterance: Annotated[str | None, typer.Option(metavar="ID", help="Utterance to draw; default: the first.")] = None,
    unit: Annotated[
        str | None, typer.Option(metavar="LAYER:UNIT", help="Draw what excites this hidden unit of a model, as 3:17.")
    ] = None,
    frames: Annotated[
        Path | None, typer.Option(help="With --unit: packed frames to search; default: those of speech3 pretrain.")
    ] = None,
    word: Annotated[
        str | None, typer.Option(help="Word whose nearest neighbours in a neural language model are printed.")
    ] = None,
) -> None:
    """Draw the waveform, features, pitch and senones that FILE contains, and print statistics.

    `speech3 inspect exp/feats/feats.scp --utterance s40-000`

    The statistics cover the first 1,000 utterances, or the first ten minutes of a recording; at most one minute is
    drawn. A picture that an earlier `speech3 inspect` wrote is replaced; any other picture is replaced only if `--out`
    names it.

    `speech3 inspect exp/dnn --unit 3:17 --frames exp/frames/heldout.frames`

    This draws the windows of frames, in at most an hour of speech, for which a unit of a DNN (or of the fully connected
    layers of a CNN) has its largest outputs, and their mean. Layers are counted from 1, units from 0.

    `speech3 inspect exp/lstm --word king`

    Of a neural language model, the ten words whose embeddings are nearest are printed, with their cosines.
    """
    from speech3.language import is_neural, read_neural

    if is_neural(file):
        if word is None:
            raise SettingError(f"{file}: is a neural language model; pass a word whose neighbours to print: --word")
        for name, value in {"--unit": unit, "--frames": frames, "--out": out, "--utterance": utterance}.items():
            if value is not None:
                raise SettingError(f"{name} {value}: has no effect with --word; remove it")
        for neighbour, cosine in read_neural(file).neighbours(word):
            print(f"{cosine:.3f}  {neighbour}")
        return
    if word is not None:
        raise SettingError(f"--word {word}: only for a neural language model, and {file} is none; remove it")
    from speech3.config import FeatureConfig, load_preset
    from speech3.evaluate import draw_unit, inspect, picture_path, write_picture

    if unit:
        place = picture_path(Path(f"{file.resolve().name}_unit{unit.replace(':', '_')}.png"), out, frames)
        for name, words in [*draw_unit(file, unit, frames, place), ("picture", str(place))]:
            print(f"{name:<12}{words}")
        return
    if frames:
        raise SettingError(f"--frames {frames}: only with --unit; remove it")

    preset = load_preset(FeatureConfig, "features", features)
    place = picture_path(file, out)
    found = inspect(file, preset, utterance)
    write_picture(found.picture, place)
    for name, words in [*found.lines, ("picture", str(place))]:
        print(f"{name:<12}{words}")


def model_info(
    model: _verb.Model,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else, with more details.")] = False,
) -> None:
    """Print the layers, shapes, parameters, context, latency, FLOPs, features, training and accuracies of a model.

    `speech3 model-info exp/digits/dnn`

    FLOPs are per frame, for a forward pass: two for each weight and each position to which it is applied; biases,
    normalisation, activations and pooling are not counted. The latency is the amount of audio after a frame that must
    be received before the scores of the frame can be computed; the decoder's own latency is not included.
    """
    import json
    from dataclasses import asdict

    from speech3.models import describe_model, model_info

    info = model_info(model)
    print(json.dumps(asdict(info), indent=1) if as_json else describe_model(info))


def watch(run: Annotated[Path, typer.Argument(help="Directory that `speech3 train` writes, such as exp/dnn.")]) -> None:
    """Show the progress, speed, accuracy and shards of a training run until it finishes or you press Ctrl-C.

    `speech3 watch exp/asgd2`

    Everything is read from the run's `metrics.jsonl`, to which training appends a record at the end of each epoch and
    every ten seconds within one. The training itself is not affected, and may run on another machine that shares the
    directory. Without a terminal, as in a pipe, the current state is printed once.
    """
    from speech3.evaluate import watch

    watch(run)


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Directories that `speech3 train` wrote.")],
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Write the curves to this directory as PNG.")] = None,
    as_json: _verb.Json = False,
) -> None:
    """Compare the speed and accuracy of training runs: time to each of three accuracies, scaling efficiency.

    `speech3 compare exp/sgd exp/asgd2 exp/ddp2 --out exp/comparison`

    The accuracies are 0.90, 0.95 and 0.98 times the best held-out frame accuracy of the baseline: the first run with
    one worker and plain SGD (world `sgd`, or synchronous in world `simulated`). Efficiencies are relative to the same
    run. Error rates are shown for runs that a recipe has scored. Unfinished runs are shown as they are now. `--out`
    writes `accuracy_time.png`, `accuracy_frames.png` and, for asynchronous runs, `staleness.png` and `shards.png`.
    """
    from speech3.evaluate import comparison as compare
    from speech3.runtime import check_output

    if out:
        pictures = ("accuracy_time.png", "accuracy_frames.png", "staleness.png", "shards.png")
        check_output(out, [], pictures, option="--out ")
    comparison = compare.compare_runs(runs)
    print(
        json.dumps(compare.as_json(comparison), indent=1, ensure_ascii=False)
        if as_json
        else compare.comparison_text(comparison)
    )
    if out:
        written = compare.write_figures(out, comparison)
        if not as_json:
            print(f"wrote {', '.join(map(str, written))}")
