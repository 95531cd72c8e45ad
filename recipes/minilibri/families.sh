#!/usr/bin/env bash
# DNN, CNN, LSTM and BLSTM on minilibri: the tables of README.md, "Families of networks", where their cost is.
#   recipes/minilibri/families.sh --source DIR [--out OUT] [--jobs N] [--large yes] [--device cpu|cuda]
# Runs the recipe if OUT (default exp/minilibri) does not hold it, trains a network of each family on its frames, by
# cross-entropy and by LF-MMI, then each with 1 and 5 simulated workers, and prints error rates. Finished runs are not
# run again. --jobs: runs at a time (their times then are those of shared cores). --large yes: the large presets, too.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
. "$root/recipes/environment.sh"
out=exp/minilibri source='' jobs=1 large=no device=cpu
speech3_options "source out jobs large device" "$@"
[ -n "$source" ] || speech3_usage
speech3_environment "$root" espeak
export OMP_NUM_THREADS=1

if [ ! -e "$out/frames/tri/train.frames" ] || [ ! -e "$out/lfmmi_hmm/graph/HCLG.fst" ] || [ ! -e "$out/frames/lfmmi/train.frames" ]; then
    speech3 recipe minilibri --source "$source" --out "$out"
fi
runs=$out/families
mkdir -p "$runs"
conf=$runs/conf.yaml
printf 'frames: %s\nhmm: %s\nmodel: dnn\ntraining: {}\n' "$out/frames/tri" "$out/tri" >"$conf"
printf 'frames: %s\nhmm: %s\nmodel: dnn\ntraining: lfmmi\n' "$out/frames/lfmmi" "$out/lfmmi_hmm" >"$runs/lfmmi.yaml"

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
# LF-MMI: the recipe's frames have no deltas, of which a cnn of three channels would make its channels.
rows+=(
    "lfmmi_dnn model=dnn"
    "lfmmi_cnn model=cnn_kaldi model.channels=1"
    "lfmmi_lstm model=lstm"
    "lfmmi_blstm model=blstm"
)
train() { # a row: its name and keys
    local name keys of=$conf
    read -r -a keys <<<"$1"
    name=${keys[0]} keys=("${keys[@]:1}")
    [[ $name != lfmmi_* ]] || of=$runs/lfmmi.yaml
    speech3 train "$of" --out "$runs/$name" --device "$device" "${keys[@]}" >"$runs/$name.log" 2>&1 ||
        { echo "$name: $(tail -n 1 "$runs/$name.log") (full log: $runs/$name.log)" >&2 && touch "$runs/failed"; }
}
rm -f "$runs/failed"
for row in "${rows[@]}"; do
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n || true; done
    train "$row" &
done
wait
[ ! -e "$runs/failed" ] || exit 1

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

from speech3.data.datadir import read_datadir
from speech3.data.stats import lengths_s
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
    name=${row%% *}
    [[ $name = lfmmi_* ]] && against=lfmmi_dnn || against=dnn
    decode "$runs/$name" "$runs/$against"
done
best() { # of some runs, by held-out frame accuracy; a run whose rate was too high has no model
    python -c '
import sys
from pathlib import Path
from speech3.io.checkpoint import read_about
found = {run: path for run in sys.argv[1:] if (path := Path(run, "model.safetensors")).exists()}
if not found:
    sys.exit(f"error: no run has ended with a network: {chr(32).join(sys.argv[1:])}")
print(max(found, key=lambda run: read_about(found[run])["heldout_accuracy"]))' "$@"
}
declare -A like=([dnn]=dnn [cnn]=cnn_kaldi [lstm]=lstm [blstm]=blstm)
for family in dnn cnn lstm blstm; do
    one=$(best "$runs/simulated/$family"/sgd_*_seed1)
    five=$(best "$runs/simulated/$family"/async5_*_seed1)
    decode "$one" "$one" "$runs/${like[$family]}"
    decode "$five" "$one" "$runs/${like[$family]}"
done
