#!/usr/bin/env bash
# From a corpus to a word error rate. Sets up an environment in .venv if there is none.
#   recipes/run.sh                      lists the recipes
#   recipes/run.sh digits               the built-in corpus
#   recipes/run.sh fsdd --source DIR    your own copy of a corpus; options: --from STAGE, --to STAGE, --dry-run,
#                                       --out DIR, key=value
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$root/recipes/environment.sh"
speech3_environment "$root" espeak
exec speech3 recipe "$@"
