"""`speech3 compare`: training runs side by side."""

import json
from pathlib import Path
from typing import Annotated

import typer


def command(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Directories that `speech3 train` wrote.")],
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Write the curves to this directory as PNG.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Compare the speed and accuracy of training runs: time to each of three accuracies, scaling efficiency.

    `speech3 compare exp/sgd exp/asgd2 exp/ddp2 --out exp/comparison`

    The accuracies are 0.90, 0.95 and 0.98 times the best held-out frame accuracy of the baseline: the first run with
    one worker and plain SGD (world `sgd`, or synchronous in world `simulated`). Efficiencies are relative to the same
    run. Error rates are shown for runs that a recipe has scored. Unfinished runs are shown as they are now. `--out`
    writes `accuracy_time.png`, `accuracy_frames.png` and, for asynchronous runs, `staleness.png` and `shards.png`.
    """
    from speech3.reports import compare

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
