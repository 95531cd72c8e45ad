"""`speech3 export`: a network as an ONNX file."""

from pathlib import Path
from typing import Annotated

import typer

from speech3.cli import _complete


def command(
    model: Annotated[
        Path,
        typer.Argument(help="Model directory of a network, such as exp/digits/dnn.", autocompletion=_complete.models),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT.onnx", help="File to write; OUT.decode/ is written beside it.")],
    int8: Annotated[bool, typer.Option("--int8", help="Store weights in int8 (dynamic quantisation).")] = False,
) -> None:
    """Write a network for onnxruntime, checked against PyTorch, and the files that decoding needs.

    `speech3 export exp/digits/dnn digits.onnx && speech3 transcribe digits.onnx hello.wav`

    The network takes features (`feats`: frames x bins, float32) and returns log posteriors minus log priors
    (`loglikes`; after LF-MMI training, its outputs); it includes normalisation and splicing, and its metadata hold the
    config of the features. `OUT.decode/` holds lexicon, senones, decoding graph and settings: always move both
    together. `transcribe`, `decode`, `align`, `forward` and `tune` accept OUT.onnx in place of a model directory. The
    speeds printed are those of the network alone on one thread. To measure how many errors int8 costs:

    `speech3 decode float.onnx DIR float && speech3 decode int8.onnx DIR int8`

    `speech3 score DIR/text float/hyp.txt --against int8/hyp.txt`
    """
    from speech3.decoding.export import export

    done = export(model, out, int8=int8)
    for form in done.forms:
        print(
            f"{form.name:8} {form.num_bytes / 1e6:8.2f} MB  {form.frames_per_s:8.0f} frames/s"
            + (f"  differs by at most {form.largest_difference:.2g}, on average {form.mean_difference:.2g}"
               if form.name != "PyTorch" else "")
        )  # fmt: skip
    if int8:
        print(f"{done.int8_products} of {done.products} matrix products are in int8")
    print(f"{done.path}, {done.rest}")
    if not done.graph:
        print(f"{model} has no decoding graph: the file can score and align, but not decode")
    elif not done.tuned:
        print(f"{model} was not tuned: run speech3 tune {done.path} DIR before decoding")
