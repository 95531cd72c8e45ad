#!/usr/bin/env bash
# Measures a change of a recipe on all speakers of train, each of which is tested once (a jackknife), with its interval.
#   recipes/folds.sh RECIPE SYSTEM --source DIR [--was "KEY=VALUE ..."] [--now "KEY=VALUE ..."] [--folds 5] [--out OUT]
# SYSTEM: tri, dnn, lfmmi, ... DIR: train/, a Kaldi data directory; lang/, if any. The recipe draws its dev from the rest.
# --was, --now: keys before and after the change; without --now only the pooled error rate of --was is printed.
# Trains only what SYSTEM needs, without sentences that the fold has, too. Interrupt it at any time: finished folds are kept.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$root/recipes/environment.sh"
[ $# -ge 2 ] && [[ $1 != --* && $2 != --* ]] || speech3_usage
recipe=$1 system=$2 source='' was='' now='' folds=5 out=''
shift 2
speech3_options "source was now folds out" "$@"
[ -n "$source" ] || speech3_usage
[[ $folds =~ ^([2-9]|[1-9][0-9]+)$ ]] || { echo "error: --folds $folds: must be a number from 2" >&2 && exit 1; }
out=${out:-exp/folds_$recipe}
speech3_environment "$root" espeak

if [ -e "$out/parts/$((folds + 1))" ]; then
    echo "error: --folds $folds: $out has more folds of an earlier run; choose another --out" >&2 && exit 1
fi
# The folds, and for each a source: test is the fold, train the others without its sentences.
[ -e "$out/parts/$folds/wav.scp" ] || speech3 split "$source/train" "$out/parts" "$folds"
for ((fold = 1; fold <= folds; fold++)); do
    corpus=$out/corpora/$fold
    [ -e "$corpus/test" ] && continue
    rm -rf "$corpus"
    mkdir -p "$corpus"
    others=()
    for ((other = 1; other <= folds; other++)); do
        [ "$other" = "$fold" ] || others+=("$out/parts/$other")
    done
    if [ "$folds" = 2 ]; then cp -r "${others[0]}" "$corpus/all"; else speech3 combine "$corpus/all" "${others[@]}"; fi
    awk 'NR == FNR { sub(/^[^ \t]+[ \t]*/, ""); said[$0]; next }
        { name = $1; sub(/^[^ \t]+[ \t]*/, ""); if (!($0 in said)) print name }' \
        "$out/parts/$fold/text" "$corpus/all/text" >"$corpus/kept"
    speech3 subset "$corpus/all" "$corpus/train" --utterances "$corpus/kept"
    [ ! -e "$source/lang" ] || ln -sfn "$(cd "$source/lang" && pwd)" "$corpus/lang"
    ln -sfn "$(cd "$out/parts/$fold" && pwd)" "$corpus/test"
done

# Both sets of keys on all folds; then the pooled texts.
pooled() {
    local name=$1 keys fold
    read -r -a keys <<<"$2"
    for ((fold = 1; fold <= folds; fold++)); do
        speech3 recipe "$recipe" --source "$out/corpora/$fold" --out "$out/$name/$fold" --to "$system" "${keys[@]}"
    done
    cat "$out/$name"/*/decode/"$system"/test/hyp.txt >"$out/$name/hyp.txt"
}
cat "$out"/parts/*/text >"$out/text"
cat "$out"/parts/*/utt2spk >"$out/utt2spk"
pooled was "$was"
if [ -z "$now" ]; then
    speech3 score "$out/text" "$out/was/hyp.txt" --utt2spk "$out/utt2spk"
else
    pooled now "$now"
    speech3 score "$out/text" "$out/now/hyp.txt" --against "$out/was/hyp.txt" --utt2spk "$out/utt2spk"
fi
