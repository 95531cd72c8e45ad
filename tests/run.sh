#!/usr/bin/env bash
# Everything that CI checks: formatting, lint, types, tests. Sets up an environment in .venv if there is none.
#   tests/run.sh [pytest arguments]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$root/recipes/environment.sh"
speech3_environment "$root" espeak,dev
cd "$root"
ruff format --check .
ruff check .
mypy
if [ $# -eq 0 ]; then  # two processes, as CI has two cores; for a few tests starting them takes longer than it saves
  set -- -n 2 --dist loadgroup
fi
exec python -m pytest "$@"
