#!/usr/bin/env bash
# Compares training strategies for many workers: the tables of README.md, "Strategies", which also says what they cost.
#   recipes/fsdd/strategies.sh --source DIR [--recipe fsdd|minilibri|digits] [--out OUT] [--jobs N] [--workers 4,16]
#                           [--strategies LIST] [--epochs N] [--seed N]
# Runs the recipe if OUT (default exp/RECIPE) lacks it, plain SGD and each strategy on the virtual clock, and decoding.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
. "$root/recipes/environment.sh"
recipe=fsdd out='' source='' jobs=1 workers=4,16 epochs=4 seed=1
strategies=sync,terngrad,asgd,asgd_ternary,downpour,downpour_adagrad,sandblaster
speech3_options "recipe source out jobs workers strategies epochs seed" "$@"
for number in "$epochs" ${workers//,/ }; do
    [[ $number =~ ^[1-9][0-9]*$ ]] || { echo "error: $number: --epochs and --workers must be numbers from 1" >&2 && exit 1; }
done
[ -n "$source" ] || [ "$recipe" = digits ] || speech3_usage
out=${out:-exp/$recipe}
speech3_environment "$root" espeak
export OMP_NUM_THREADS=1

[ -e "$out/frames/tri/train.frames" ] || speech3 recipe "$recipe" ${source:+--source "$source"} --out "$out"
runs=$out/strategies/seed$seed
mkdir -p "$runs/score"
conf=$runs/conf.yaml
cat >"$conf" <<END
frames: $out/frames/tri
hmm: $out/tri
model: {layers: 4, width: 256, normalization: batch}
training: sgd
seed: $seed
END
# The virtual clock: 10 ms per minibatch of 256, varying by 10 %, 0.6 ms per sync, links of 10 Gbit/s with 50 us.
common=(
    "training.max_epochs=$epochs" training.evaluations=8
    training.simulation.compute_s=0.01 training.simulation.sync_s=0.0006 training.simulation.jitter=0.1
    training.simulation.bandwidth=1.25e9 training.simulation.latency_s=5e-5
)

# The settings of a strategy, and its learning rate: the best of 0.4, 0.8 and 1.6 on fsdd; ternary gradients have that of
# float32. More than 16 shards fail unless pushes are scaled down (64 on digits: 0.05 was better than 0.1), and need more
# partitions.
keys() {
    local strategy=$1 workers=$2 rate=0.8 many=() falling="training.schedule=exponential training.final_rate=0.05"
    [ "$workers" -le 4 ] || rate=0.4
    [ "$workers" -le 16 ] || { rate=0.8 && many=(training.asgd.push_scale=0.05 training.asgd.partitions=16); }
    case $strategy in
    sgd) echo training=sgd training.simulation.strategy=synchronous training.learning_rate=0.8 "$falling" ;;
    sync) echo training=sgd training.simulation.strategy=synchronous training.learning_rate=1.6 "$falling" ;;
    terngrad) echo training=terngrad_ddp training.simulation.strategy=synchronous training.learning_rate=1.6 "$falling" ;;
    downpour_adagrad) echo training=downpour_adagrad training.learning_rate=0.4 training.schedule=constant ;;
    sandblaster) # minibatches are four times as large
        echo training=sandblaster training.simulation.strategy=sandblaster training.learning_rate=0.1 \
            training.schedule=constant training.simulation.compute_s=0.04
        ;;
    *) echo "training=$strategy" "training.learning_rate=$rate" "${many[@]}" "$falling" ;;
    esac
}

one() {
    local strategy=$1 workers=$2 name=$1$2 own
    read -r -a own <<<"$(keys "$strategy" "$workers")"
    {
        speech3 train "$conf" --world simulated --workers "$workers" --out "$runs/$name" \
            "${own[0]}" "${common[@]}" "${own[@]:1}" &&
            { [ -e "$runs/$name/decode.json" ] || speech3 tune "$runs/$name" "$out/data/dev"; } &&
            { [ -e "$runs/$name/test/hyp.txt" ] || speech3 decode "$runs/$name" "$out/data/test" "$runs/$name/test"; } &&
            mkdir -p "$runs/score/$name" &&
            speech3 score "$out/data/test/text" "$runs/$name/test/hyp.txt" --json >"$runs/score/$name/score.json"
    } >"$runs/$name.log" 2>&1 || { echo "$name: $(tail -n 1 "$runs/$name.log") (full log: $runs/$name.log)" >&2 && return 1; }
}

names=(sgd1)
one sgd 1
rm -f "$runs/failed"
for n in ${workers//,/ }; do
    for strategy in ${strategies//,/ }; do
        while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n || true; done
        { one "$strategy" "$n" || touch "$runs/failed"; } &
        names+=("$strategy$n")
    done
done
wait
[ ! -e "$runs/failed" ] || exit 1 # do not show results of an earlier run as those of this one
speech3 compare "${names[@]/#/$runs/}" --out "$runs/figures"
