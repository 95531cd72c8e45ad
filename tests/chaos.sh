#!/usr/bin/env bash
# Trains on the built-in digits with two shards and kills or stops shards at random moments, half of them during a sync.
# The last line is JSON; exit status 1 if anything was lost or training did not finish.
#   tests/chaos.sh KILLS [SEED]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$root/recipes/environment.sh"
speech3_environment "$root" espeak,dev
cd "$root"
exec python tests/chaos.py "$@"
