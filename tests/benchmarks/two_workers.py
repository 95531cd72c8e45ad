"""Wall time of a recipe's training with two asynchronous workers over that with one, as the recipe starts them.

    python tests/benchmarks/two_workers.py exp/minilibri --passes 2

Trains the LF-MMI network and the DNN of a finished minilibri recipe again, in processes of their own, from start to
end: with one worker and with two by turns, each with one thread. It needs two idle cores.

name
    ``lfmmi_two_workers_over_one``, ``dnn_two_workers_over_one``: median of the rounds' ratios of wall times, start and
    end included; with ``_passes``: of the passes alone. `seconds`: medians of one and of two workers.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_SYSTEMS = {"lfmmi": ("lfmmi", "lfmmi_hmm", "cnn_tdnn", "lfmmi"), "dnn": ("tri", "tri", "dnn", None)}
_TWO = ("world=shared", "workers=2", "asgd.warm_start=0", "asgd.sync_every=1", "asgd.push_scale=1")
_DNN = "{learning_rate: 0.1, momentum: 0.9, frequency_warp: 0.1}"


def trained_s(config: Path, out: Path, keys: tuple[str, ...]) -> tuple[float, float]:
    """Seconds of the process, and of the passes alone."""
    code = "import sys; from speech3.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "train", str(config), "--out", str(out)]
    start = time.monotonic()
    subprocess.run([*command, *(f"training.{key}" for key in keys)], check=True, capture_output=True)
    whole_s, records = time.monotonic() - start, map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    return whole_s, max(record["seconds"] for record in records if record["event"] == "epoch")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path, help="directory of a finished run of recipes/minilibri")
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--systems", nargs="+", default=list(_SYSTEMS))
    options = parser.parse_args()
    for system in options.systems:
        frames, hmm, model, training = _SYSTEMS[system]
        with tempfile.TemporaryDirectory() as name:
            scratch, rounds = Path(name), []
            (scratch / "train.yaml").write_text(
                f"frames: {options.recipe.resolve() / 'frames' / frames}\nhmm: {options.recipe.resolve() / hmm}\n"
                f"model: {model}\ntraining: {training or _DNN}\n"
            )
            for number in range(options.rounds):
                keys = (f"max_epochs={options.passes}",)
                one = trained_s(scratch / "train.yaml", scratch / f"one{number}", keys)
                rounds.append((one, trained_s(scratch / "train.yaml", scratch / f"two{number}", (*keys, *_TWO))))
        for place, part in enumerate(("", "_passes")):
            ratios = [two[place] / one[place] for one, two in rounds]
            seconds = [[each[place] for each in run] for run in zip(*rounds, strict=True)]
            result = {
                "name": f"{system}_two_workers_over_one{part}",
                "value": round(statistics.median(ratios), 3),
                "unit": "of the wall time",
                "rival": "one worker",
                "range": [round(min(ratios), 3), round(max(ratios), 3)],
                "seconds": [round(statistics.median(each), 1) for each in seconds],
            }
            print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
