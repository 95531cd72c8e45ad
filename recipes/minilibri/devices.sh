#!/usr/bin/env bash
# Small networks for devices on minilibri, as float and int8: error rate, size on disk, speed, real-time factor.
#   recipes/minilibri/devices.sh --source DIR [--out OUT] [--jobs N] [--sizes "100k 300k"] [--lasso "X ..."] [--keys "K=V ..."]
# Runs the recipe if OUT (default exp/minilibri) does not hold its frames and graphs, then trains cnn_tdnn_SIZE with LF-MMI
# (default: 100k, 300k, 1m, 3m), and with --lasso also cnn_tdnn_1m with each training.group_lasso=X, and what is left of it
# without a penalty. Finished runs are not run again. --jobs: runs at a time. --keys: other keys of all runs.
# RTF: CPU time of `speech3 decode` with one process, start-up included, divided by the duration of test. frames/s: the
# network alone, on one thread. Without second output layers, which are not exported: parameters, MB.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
. "$root/recipes/environment.sh"
out=exp/minilibri source='' jobs=1 sizes='100k 300k 1m 3m' lasso='' keys=''
speech3_options "source out jobs sizes lasso keys" "$@"
speech3_environment "$root" espeak,onnx
export OMP_NUM_THREADS=1

if [ ! -e "$out/frames/lfmmi/train.frames" ] || [ ! -e "$out/lfmmi_hmm/graph/HCLG.fst" ]; then
    [ -n "$source" ] || speech3_usage
    speech3 recipe minilibri --source "$source" --out "$out"
fi
runs=$out/devices
mkdir -p "$runs"
conf=$runs/conf.yaml
printf 'frames: %s\nhmm: %s\nmodel: cnn_tdnn\ntraining: lfmmi\n' "$out/frames/lfmmi" "$out/lfmmi_hmm" >"$conf"
read -r -a more <<<"$keys"

train() { # the name of a run, and its keys or options
    local name=$1
    shift
    speech3 train "$conf" --out "$runs/$name" "$@" "${more[@]}" >"$runs/$name.log" 2>&1 ||
        { echo "$name: $(tail -n 1 "$runs/$name.log") (full log: $runs/$name.log)" >&2 && return 1; }
}
continued() { # the network that a penalty has left, trained on without it
    local name=lasso_$1 left
    train "$name" model=cnn_tdnn_1m "training.group_lasso=$1" || return
    left=$(speech3 model-info "$runs/$name" --json | python -c '
import json, sys
print(str(json.load(sys.stdin)["trained"]["model"]["bottlenecks"]).replace(" ", ""))')
    train "${name}_continued" --init "$runs/$name" model=cnn_tdnn_1m "model.bottlenecks=$left" \
        training.learning_rate=0.002
}
names=()
rm -f "$runs/failed"
for size in $sizes; do
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n || true; done
    { train "$size" "model=cnn_tdnn_$size" || touch "$runs/failed"; } &
    names+=("$size")
done
for penalty in $lasso; do
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n || true; done
    { continued "$penalty" || touch "$runs/failed"; } &
    names+=("lasso_$penalty" "lasso_${penalty}_continued")
done
wait
[ ! -e "$runs/failed" ] || exit 1

cpu() { # seconds of CPU time that a command takes; its output goes to a file
    local TIMEFORMAT='%U %S' log=$1
    shift
    { time "$@" >"$log" 2>&1; } 2>&1 | awk '{ print $1 + $2 }'
}
printf '%-20s %-6s %10s %7s %8s %10s %8s  %s\n' network form parameters 'dev %' MB frames/s RTF 'test % [95 %], p against float'
for name in "${names[@]}"; do
    run=$runs/$name
    [ -e "$run/decode.json" ] || speech3 tune "$run" "$out/data/dev" --jobs "$jobs" >"$run/tuning.log" 2>&1 ||
        { tail -n 1 "$run/tuning.log" >&2 && exit 1; }
    speech3 model-info "$run" --json >"$run/info.json"
    for form in float int8; do
        to=$run/$form options=()
        [ "$form" = float ] || options=(--int8)
        mkdir -p "$to"
        if [ ! -e "$to/seconds" ]; then
            speech3 export "$run" "$to/$name.onnx" "${options[@]}" >"$to/export.txt" || exit 1
            seconds=$(cpu "$to/decode.log" speech3 decode "$to/$name.onnx" "$out/data/test" "$to/test" --jobs 1) &&
                [ -e "$to/test/hyp.txt" ] || { tail -n 1 "$to/decode.log" >&2; exit 1; }
            echo "$seconds" >"$to/seconds"
        fi
        speech3 score "$out/data/test/text" "$to/test/hyp.txt" --against "$run/float/test/hyp.txt" --json >"$to/score.json"
        python - "$run" "$form" "$out/data/test" <<'END'
import json, re, sys
from pathlib import Path

from speech3.data.datadir import read_datadir
from speech3.data.stats import lengths_s

run, form = Path(sys.argv[1]), sys.argv[2]
to, info = run / form, json.loads((run / "info.json").read_text())
parameters = sum(each["parameters"] for each in info["layers"] if not each["kind"].endswith("in training only"))
dev = re.findall(r"WER ([\d.]+) % on", (run / "tuning.log").read_text())[-1]
_, megabytes, _, speed, *_ = next(line for line in (to / "export.txt").open() if line.startswith(form)).split()
rtf = float((to / "seconds").read_text()) / sum(lengths_s(read_datadir(sys.argv[3])).values())
s = json.loads((to / "score.json").read_text())
wer, low, high = (100 * x for x in (s["wer"], *s["wer_ci95"]))
print(f"{run.name:20} {form:6} {parameters:10,} {dev:>7} {megabytes:>8} {speed:>10} {rtf:8.4f}  {wer:.2f} "
      f"[{low:.2f}, {high:.2f}]" + f" p={s['against']['p_value']:.3f}" * (form == "int8"))
END
    done
done
