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
# A process for each core; where a file is given, or a test, the time to start them is not worth it.
exec python -m pytest $([ $# -eq 0 ] && echo -n auto --dist loadgroup) "$@"
