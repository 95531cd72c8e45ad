#!/usr/bin/env bash
# The table of Zhang et al. 2013 on minilibri and a noisy copy of test: GMMs by BMMI, DNN by SGD, DNN by asynchronous SGD.
#   recipes/minilibri/zhang.sh --source DIR [--out OUT] [--jobs N] [--workers N] [--world simulated|shared] [--seeds "1 2"]
#                              [--epochs N] [--rates "SGD ASGD"] [--device cpu|cuda] [--keys "K=V ..."] [--asgd "K=V ..."]
# All read PLP and pitch. Runs the recipe with these features if OUT (default exp/minilibri_zhang) does not hold it; its DNN is
# that of SGD with seed 1. --keys: of the recipe. --asgd: of asynchronous runs only. Finished runs are not run again.
# The preset asgd needs batch normalisation, which the recipe's DNN has. For the network of Zhang et al., which has none:
#   --keys model=dnn_zhang --asgd "training.asgd.push_scale=1/workers training.asgd.sync_every=3 training.asgd.warm_start=0.25"
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
. "$root/recipes/environment.sh"
out=exp/minilibri_zhang source='' jobs=1 workers=4 world=simulated seeds=1 epochs=9 rates='1.6 0.8' device=cpu keys='' asgd=''
speech3_options "source out jobs workers world seeds epochs rates device keys asgd" "$@"
[ -n "$source" ] || speech3_usage
speech3_environment "$root" espeak
export OMP_NUM_THREADS=1
if [ "$world" != simulated ] && [ "$device" = cpu ]; then
    cores=$(python -c 'from speech3.runtime.parallel import available_jobs; print(available_jobs())')
    [ "$workers" -le "$cores" ] || {
        echo "error: --world $world --workers $workers: this machine has $cores cores; use fewer workers, or leave out --world" >&2
        exit 1
    }
fi
read -r sgd_rate asgd_rate <<<"$rates"
read -r -a keys <<<"$keys"
read -r -a more <<<"$asgd"

# One network, one schedule. Virtual time: a minibatch 15 ms, varying by 10 %, a sync 0.8 ms, as the sizes of the
# network suggest (README.md: 19 ms for 1.88 million parameters).
common=("training.max_epochs=$epochs" training.schedule=exponential training.final_rate=0.02 "training.device=$device")
sgd=(training=sgd "training.learning_rate=$sgd_rate")
asgd=(training=asgd "training.learning_rate=$asgd_rate" "training.workers=$workers" "training.world=$world" "${more[@]}")
if [ "$world" = simulated ]; then
    common+=(
        training.simulation.compute_s=0.015 training.simulation.sync_s=0.0008 training.simulation.jitter=0.1
    )
    sgd+=(training.world=simulated training.simulation.strategy=synchronous)
fi
features=plp13_pitch1_d2
speech3 recipe minilibri --source "$source" --out "$out" "features=$features" "hmm.features=$features" \
    hmm.tri.discriminative=bmmi lfmmi=null "${sgd[@]}" "${common[@]}" "${keys[@]}"
runs=$out/zhang
mkdir -p "$runs"
[ -e "$out/data/test_noisy/text" ] || speech3 augment "$out/data/test" "$out/data/test_noisy" --augment noisy --jobs "$jobs"

conf=$runs/conf.yaml
python - "$out" "$features" >"$conf" <<'END'
import json, sys

from speech3.io.checkpoint import read_about

out, features = sys.argv[1:]
model = read_about(f"{out}/dnn/model.safetensors")["model"]
print(f"frames: {out}/frames/tri_{features}\nhmm: {out}/tri\nmodel: {json.dumps(model)}\ntraining: sgd")
END
train() { # a method, a seed, and keys
    local run=$runs/$1_seed$2
    speech3 train "$conf" --out "$run" "seed=$2" "${@:3}" "${common[@]}" >"$run.log" 2>&1 ||
        { echo "$1, seed $2: $(tail -n 1 "$run.log") (full log: $run.log)" >&2 && touch "$runs/failed"; }
}
rm -f "$runs/failed"
beside=$jobs # real workers share the cores
[ "$world" = simulated ] || beside=1
for seed in $seeds; do
    for method in sgd asgd; do
        [ "$method $seed" != "sgd 1" ] || continue
        while [ "$(jobs -rp | wc -l)" -ge "$beside" ]; do wait -n || true; done
        if [ $method = sgd ]; then train sgd "$seed" "${sgd[@]}" & else train asgd "$seed" "${asgd[@]}" & fi
    done
done
wait
[ ! -e "$runs/failed" ] || exit 1

decode() { # a model, and a directory for what it recognises
    [ -e "$1/decode.json" ] || speech3 tune "$1" "$out/data/dev" --jobs "$jobs" >"$2.log" 2>&1 || return
    for set in test test_noisy; do
        [ -e "$2/$set/hyp.txt" ] || speech3 decode "$1" "$out/data/$set" "$2/$set" --jobs "$jobs" >"$2.log" 2>&1 || return
    done
}
rows=("tri $out/tri" "bmmi $out/bmmi")
for seed in $seeds; do
    [ "$seed" = 1 ] && rows+=("sgd_seed1 $out/dnn") || rows+=("sgd_seed$seed $runs/sgd_seed$seed")
    rows+=("asgd_seed$seed $runs/asgd_seed$seed")
done
for row in "${rows[@]}"; do
    read -r name model <<<"$row"
    mkdir -p "$runs/decode/$name"
    decode "$model" "$runs/decode/$name" || { tail -n 1 "$runs/decode/$name.log" >&2 && exit 1; }
    for set in test test_noisy; do
        options=()
        case $name in
            bmmi) options=(--against "$runs/decode/tri/$set/hyp.txt") ;;
            asgd_*) options=(--against "$runs/decode/sgd_${name#*_}/$set/hyp.txt") ;;
        esac
        speech3 score "$out/data/$set/text" "$runs/decode/$name/$set/hyp.txt" "${options[@]}" --json \
            >"$runs/decode/$name/$set/score.json"
    done
done
python - "$runs/decode" "$workers" "${rows[@]}" <<'END'
import json, sys
from pathlib import Path
from statistics import mean

from speech3.io.checkpoint import read_about

decoded, workers = Path(sys.argv[1]), sys.argv[2]
names = {"tri": "GMM", "bmmi": "GMM BMMI", "sgd": "DNN SGD", "asgd": f"DNN ASGD, {workers} workers"}
print("WER in per cent on test and on its noisy copy [95 % over speakers]; p of the difference, of BMMI from the GMM that it")
print("continues and of ASGD from SGD with the same seed; minutes of training, over all epochs, per 10 hours of speech, and how")
print("many times as fast as SGD")
rows, minutes = {}, {}
for row in sys.argv[3:]:
    name, model = row.split()
    about = read_about(f"{model}/model.safetensors")
    method, _, seed = name.partition("_seed")
    found = [json.loads((decoded / name / part / "score.json").read_text()) for part in ("test", "test_noisy")]
    words = []
    for s in found:
        wer, low, high = (100 * x for x in (s["wer"], *s["wer_ci95"]))
        p = f" p={s['against']['p_value']:.3f}" if "against" in s else ""
        words.append(f"{wer:5.2f} [{low:.2f}, {high:.2f}]{p}")
    time = ""
    if method not in ("tri", "bmmi"):
        each = about["seconds"] / 60 / (about["data"]["train"]["frames"] * 0.01 / 3600) * 10
        minutes[method, seed] = each
        time = f"{each:7.1f}" + (f" {minutes['sgd', seed] / each:5.2f}x" if method == "asgd" else "")
    rows.setdefault(method, []).append([s["wer"] for s in found])
    print(f"{names[method]:22} {'seed ' + seed if seed else '':8} {words[0]:34} {words[1]:34} {time}")
if len(rows["sgd"]) > 1:
    for method in ("sgd", "asgd"):
        clean, noisy = (100 * mean(column) for column in zip(*rows[method], strict=True))
        print(f"{names[method]:22} {'mean':8} {clean:5.2f} {'':28} {noisy:5.2f}")
END
