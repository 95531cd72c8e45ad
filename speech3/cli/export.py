"""`speech3 export`: a network as an ONNX file."""

from pathlib import Path
from typing import Annotated

import typer


def command(
    model: Annotated[Path, typer.Argument(help="Model directory of a network, such as exp/digits/dnn.")],
    out: Annotated[Path, typer.Argument(metavar="OUT.onnx", help="The file; OUT.decode/ comes beside it.")],
    int8: Annotated[bool, typer.Option("--int8", help="Weights in int8, dynamic quantisation.")] = False,
) -> None:
    """Write a network for onnxruntime, checked against PyTorch, and beside it what decoding needs.

    `speech3 export exp/digits/dnn digits.onnx && speech3 transcribe digits.onnx hello.wav`

    The file takes features (`feats`: frames x bins, float32) and gives log posteriors minus log priors (`loglikes`);
    normalisation and splicing are inside, the config of the features is in its metadata. `OUT.decode/` holds lexicon,
    senones, decoding graph and settings: move both together. `transcribe`, `decode`, `align`, `forward` and `tune` then
    take OUT.onnx for a model directory. The speeds are of scoring alone, one thread. The errors that int8 costs:

    `speech3 decode float.onnx DIR float && speech3 decode int8.onnx DIR int8`

    `speech3 score DIR/text float/hyp.txt --against int8/hyp.txt`
    """
    from speech3.decoding.export import export

    done = export(model, out, int8=int8)
    for form in done.forms:
        print(
            f"{form.name:8} {form.num_bytes / 1e6:8.2f} MB  {form.frames_per_s:8.0f} frames/s"
            + (f"  differs by at most {form.largest_difference:.2g}, {form.mean_difference:.2g} in the mean"
               if form.name != "PyTorch" else "")
        )  # fmt: skip
    if int8:
        print(f"{done.int8_products} of {done.products} products with weights in int8")
    print(f"{done.path}, {done.rest}")
    if not done.graph:
        print(f"{model} has no decoding graph: the file scores and aligns, but does not decode")
    elif not done.tuned:
        print(f"{model} was not tuned: before it decodes, speech3 tune {done.path} DIR")
