#!/usr/bin/env bash
# Formatting, lint, types and tests. Sets up an environment in .venv if there is none.
#   tests/run.sh                      all tests but the slow ones
#   tests/run.sh --all                all tests, as CI runs them
#   tests/run.sh [pytest arguments]   some tests, in one process
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$root/recipes/environment.sh"
speech3_environment "$root" espeak,dev
cd "$root"
ruff format --check .
ruff check .
# Types are checked beside the tests, which do not always keep all cores busy.
mypy &
types=$!
trap 'kill "$types" 2>/dev/null || true' EXIT
# Two processes, as CI has two cores; for a few tests, starting them takes longer than it saves.
case ${1:-} in
  "") set -- -n 2 -m "not slow" ;;
  --all) set -- -n 2 ;;
esac
failed=0
python -m pytest "$@" || failed=$?
wait "$types" || failed=$?
exit "$failed"
