#!/usr/bin/env bash
# DNN, CNN, LSTM and BLSTM on minilibri: the tables of README.md, "Families of networks", where their cost is.
#   recipes/minilibri/families.sh --source DIR [--out OUT] [--jobs N] [--large yes] [--device cpu|cuda]
# Runs the recipe if OUT (default exp/minilibri) does not hold it, trains a network of each family on its frames, then
# each family with 1 and 5 simulated workers, and prints error rates. Finished runs are not run again. --jobs: runs at a
# time (their times then are those of shared cores). --large yes: the large presets, too, over 30 minutes each.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
. "$root/recipes/environment.sh"
out=exp/minilibri source='' jobs=1 large=no device=cpu
speech3_options "source out jobs large device" "$@"
[ -n "$source" ] || speech3_usage
speech3_environment "$root" espeak
export OMP_NUM_THREADS=1

[ -e "$out/frames/tri/train.frames" ] || speech3 recipe minilibri --source "$source" --out "$out"
runs=$out/families
mkdir -p "$runs"
conf=$runs/conf.yaml
printf 'frames: %s\nhmm: %s\nmodel: dnn\ntraining: {}\n' "$out/frames/tri" "$out/tri" >"$conf"

windows="training.learning_rate=0.1 training.momentum=0.9 training.max_epochs=14 training.frequency_warp=0.1"
chunks="training=lstm training.frequency_warp=0.1"
rows=(
    "dnn model=dnn $windows"
    "cnn_kaldi model=cnn_kaldi $windows"
    "lstmp model=lstmp $chunks training.max_epochs=12"
    "lstm model=lstm $chunks"
    "blstm model=blstm $chunks"
)
[ "$large" = no ] || rows+=(
    "cnn model=cnn $windows"
    "tc_dnn_blstm_dnn model=tc_dnn_blstm_dnn $chunks"
)
train() { # a row: its name and keys
    local name keys
    read -r -a keys <<<"$1"
    name=${keys[0]} keys=("${keys[@]:1}")
    speech3 train "$conf" --out "$runs/$name" --device "$device" "${keys[@]}" >"$runs/$name.log" 2>&1 ||
        tail -n 1 "$runs/$name.log" >&2
}
for row in "${rows[@]}"; do
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
    train "$row" &
done
wait

# A smaller network of each family, so that its runs take minutes. Virtual time: a minibatch 10 ms, a sync 0.6 ms.
common=(
    training.max_epochs=5 training.schedule=exponential training.final_rate=0.02 training.evaluations=4
    training.simulation.compute_s=0.01 training.simulation.sync_s=0.0006 training.simulation.jitter=0.1
)
simulated=(
    "dnn 0.8 model=dnn_small model.normalization=batch"
    "cnn 0.8 model=cnn_small"
    "lstm 1.5,3 model=lstm_small training.minibatch=640 training.gradient_clip=1"
    "blstm 1.5 model=blstm model.layers=1 model.cells=128 training.minibatch=640 training.gradient_clip=1"
)
for row in "${simulated[@]}"; do
    read -r -a keys <<<"$row"
    echo "== ${keys[0]}, 1 and 5 simulated workers"
    speech3 simulate "$conf" --workers 1,5 --rates "${keys[1]}" --no-synchronous --jobs "$jobs" \
        --out "$runs/simulated/${keys[0]}" training=asgd "${common[@]}" "${keys[@]:2}"
done

echo "== word error rates on test"
decode() { # a run, the run that it is compared with, and a run with whose settings it is decoded, else its own are tuned
    [ -z "${3-}" ] || cp "$3/decode.json" "$1"
    [ -e "$1/decode.json" ] || speech3 tune "$1" "$out/data/dev" --jobs "$jobs" >"$1/decode.log" 2>&1 ||
        { tail -n 1 "$1/decode.log" >&2 && exit 1; }
    [ -e "$1/test/hyp.txt" ] || {
        start=$EPOCHREALTIME
        speech3 decode "$1" "$out/data/test" "$1/test" --jobs 1 >"$1/decode.log" 2>&1 ||
            { tail -n 1 "$1/decode.log" >&2 && exit 1; }
        awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { print b - a }' >"$1/test/seconds"
    }
    speech3 score "$out/data/test/text" "$1/test/hyp.txt" --against "$2/test/hyp.txt" --json >"$1/test/score.json"
    python - "$1" "$out/data/test" <<'END'
import json, sys
from pathlib import Path

from speech3.corpus.datadir import read_datadir
from speech3.corpus.lengths import lengths_s
from speech3.models import load_network

run = Path(sys.argv[1])
model, _, about = load_network(run)
s = json.loads((run / "test" / "score.json").read_text())
speech_s = sum(lengths_s(read_datadir(sys.argv[2])).values())
print(f"{run.parent.name + '/' if run.parent.name != 'families' else ''}{run.name:18} "
      f"{sum(p.numel() for p in model.parameters()) / 1e6:5.2f} M  held-out {100 * about['heldout_accuracy']:.2f} %  "
      f"WER {100 * s['wer']:.2f} [{100 * s['wer_ci95'][0]:.2f}, {100 * s['wer_ci95'][1]:.2f}] "
      f"p={s['against']['p_value']:.3f}  training {about['seconds'] / 60:.1f} min, {len(about['history'])} epochs  "
      f"decoding {float((run / 'test' / 'seconds').read_text()) / speech_s:.3f} x real time")
END
}
for row in "${rows[@]}"; do
    decode "$runs/${row%% *}" "$runs/dnn"
done
best() { # of some runs, by held-out frame accuracy
    python -c '
import sys
from speech3.io.checkpoint import read_about
print(max(sys.argv[1:], key=lambda run: read_about(f"{run}/model.safetensors")["heldout_accuracy"]))' "$@"
}
declare -A like=([dnn]=dnn [cnn]=cnn_kaldi [lstm]=lstm [blstm]=blstm)
for family in dnn cnn lstm blstm; do
    one=$(best "$runs/simulated/$family"/sgd_*_seed1)
    decode "$one" "$one" "$runs/${like[$family]}"
    decode "$(best "$runs/simulated/$family"/async5_*_seed1)" "$one" "$runs/${like[$family]}"
done
