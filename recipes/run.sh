#!/usr/bin/env bash
# From a corpus to a word error rate. Sets up an environment in .venv if there is none.
#   recipes/run.sh                      lists the recipes; installs nothing
#   recipes/run.sh digits               the built-in corpus
#   recipes/run.sh fsdd --source DIR    your own copy of a corpus; options: --from STAGE, --to STAGE, --dry-run,
#                                       --out DIR, key=value
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
if [ $# -eq 0 ]; then
    echo "recipes (run them with recipes/run.sh NAME in a checkout, with speech3 recipe NAME anywhere):"
    for file in "$root"/recipes/*/recipe.yaml; do
        printf '  %-11s %s\n' "$(basename "$(dirname "$file")")" "$(sed -n '1s/^# *//p' "$file")"
    done
    exit
fi
. "$root/recipes/environment.sh"
speech3_environment "$root" espeak
exec speech3 recipe "$@"
