#!/usr/bin/env bash
# What asynchronous workers are worth on minilibri: the tables of README.md, "Asynchronous training", where its cost is.
#   recipes/minilibri/asgd.sh --source DIR [--out OUT] [--jobs N] [--device cpu|cuda]
# Runs the recipe if OUT (default exp/minilibri) does not hold it, then 1 to 5 simulated workers, one thing changed at a
# time, real workers, and word error rates. Finished runs are not run again. --jobs: runs at a time, where times are
# virtual. On a GPU (--device cuda) the real workers are 1, 2 and 4 shards over CUDA IPC.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
. "$root/recipes/environment.sh"
out=exp/minilibri source='' jobs=1 device=cpu
speech3_options "source out jobs device" "$@"
[ -n "$source" ] || speech3_usage
speech3_environment "$root" espeak
export OMP_NUM_THREADS=1

[ -e "$out/frames/tri/train.frames" ] || speech3 recipe minilibri --source "$source" --out "$out"
runs=$out/asgd
mkdir -p "$runs"
conf=$runs/conf.yaml
# A smaller network than the recipe's, so that some dozens of runs fit in an hour or two. A sync takes 6 % of a
# minibatch, as measured on two cores.
cat >"$conf" <<END
frames: $out/frames/tri
hmm: $out/tri
model: {layers: 4, width: 256, normalization: batch}
training: asgd
END
common=(
    training.max_epochs=5 training.schedule=exponential training.final_rate=0.02 training.evaluations=4
    training.simulation.compute_s=0.01 training.simulation.sync_s=0.0006 training.simulation.jitter=0.1
)

echo "== 1 to 5 simulated workers, the learning rate tuned for each row"
speech3 simulate "$conf" --workers 1,2,3,4,5 --rates 0.8,1.6 --seeds 1,2,3 --jobs "$jobs" --out "$runs/simulated" \
    "${common[@]}"

echo "== 5 simulated workers, one thing changed at a time"
changes=(
    "warm_start_quarter warm_start=0.25" "warm_start_one warm_start=1" "sync_every_3 sync_every=3"
    "push_averaged push_scale=1/workers" "momentum momentum=0.5 push_scale=0.5"
    "projection momentum=0.5 push_scale=0.5 projection=true" "decay decay=0.9"
    "no_local_updates local_updates=false sync_every=3"
)
one() {
    local name keys
    read -r -a keys <<<"$1"
    name=${keys[0]} keys=("${keys[@]:1}")
    speech3 train "$conf" --world simulated --workers 5 --out "$runs/changed/$name" "${common[@]}" \
        "${keys[@]/#/training.asgd.}" 2>"$runs/changed.$name.log" || tail -n 1 "$runs/changed.$name.log" >&2
}
best=$(basename "$(ls -d "$runs"/simulated/async5_*_seed2)")
common+=("training.learning_rate=$(sed 's/.*_rate\(.*\)_seed2/\1/' <<<"$best")")
export -f one speech3_environment
export conf runs
baseline=$(basename "$(ls -d "$runs"/simulated/sgd_*_seed2)")
for change in "${changes[@]}"; do
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
    one "$change" >/dev/null &
done
wait
speech3 compare "$runs/simulated/${baseline%2}1" "$runs/simulated/${best%2}1" "$runs"/changed/*/

echo "== real workers ($device)"
workers=(1 2)
[ "$device" = cpu ] || workers=(1 2 4)
real=()
for key in "${common[@]}"; do
    [[ $key == training.simulation.* ]] || real+=("$key")
done
speech3 train "$conf" --world sgd --workers 1 --device "$device" --out "$runs/real/sgd" "${real[@]}" \
    training.warmup=0 "training.learning_rate=$(sed 's/.*_rate\(.*\)_seed2/\1/' <<<"$baseline")"
for n in "${workers[@]}"; do
    speech3 train "$conf" --world shared --workers "$n" --device "$device" --out "$runs/real/asgd$n" "${real[@]}"
done
speech3 compare "$runs"/real/*/ --out "$runs/real"

echo "== word error rates in per cent, their 95 % intervals, and p of the difference from plain SGD with the first seed"
first=''
for run in "$runs/simulated/${baseline%_seed2}"_seed? "$runs/simulated/${best%_seed2}"_seed? "$runs"/real/*/; do
    {
        { [ -e "$run/decode.json" ] || speech3 tune "$run" "$out/data/dev" --jobs "$jobs"; } &&
            speech3 decode "$run" "$out/data/test" "$run/test"
    } >"$run/decode.log" 2>&1 || { tail -n 1 "$run/decode.log" >&2 && exit 1; }
    first=${first:-$run}
    printf '%s ' "$(basename "$run")"
    speech3 score "$out/data/test/text" "$run/test/hyp.txt" --against "$first/test/hyp.txt" --json | python -c '
import json, sys
s = json.load(sys.stdin)
print("{:.2f} [{:.2f}, {:.2f}] p={:.3f}".format(*(100 * x for x in (s["wer"], *s["wer_ci95"])), s["against"]["p_value"]))'
done
