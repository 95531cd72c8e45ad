# Sourced by recipes/run.sh, tests/run.sh and recipes/minilibri/*.sh.
#   speech3_options "NAME ..." "$@"
# sets a variable for each option --NAME VALUE (of --jobs a number from 1); for any other argument it prints the script's
# usage, which is in its lines 2 to 6, and exits.
#   speech3_environment ROOT EXTRAS
# activates an environment with speech3.
# An active environment that already has speech3 is used as it is. Otherwise ROOT/.venv is created, once for each
# pyproject.toml and set of extras. If the Python already has a suitable torch, that is used; else
# `pip install torch==2.13.0` is tried first, which prefers a local CPU build if there is one.

speech3_usage() {
    sed -n '2,6s/^# *//p' "$0" >&2
    exit 1
}

speech3_options() {
    local names=" $1 "
    shift
    while [ $# -gt 0 ]; do
        [[ $1 == --* && $names == *" ${1#--} "* ]] || speech3_usage
        declare -g "${1#--}=${2:?$1 needs a value}"
        if [ "$1" = --jobs ] && ! [[ $2 =~ ^[1-9][0-9]*$ ]]; then
            echo "error: --jobs $2: must be a number from 1" >&2
            exit 1
        fi
        shift 2
    done
}

_speech3_python() {
    local python
    for python in python3 python3.13 python3.12 python3.11; do
        if command -v "$python" >/dev/null &&
            "$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; then
            command -v "$python"
            return
        fi
    done
    echo "error: no Python 3.11, 3.12 or 3.13 found on PATH; install one of them" >&2
    return 1
}

_speech3_has_torch() {
    "$1" -c '
import re, sys
from importlib.metadata import version
sys.exit(not (2, 11) <= tuple(int(n) for n in re.findall(r"\d+", version("torch"))[:2]) < (2, 14))' 2>/dev/null
}

speech3_environment() {
    local root=$1 extras=$2 venv=$1/.venv python stamp
    local active=${VIRTUAL_ENV:-${CONDA_PREFIX:-}}
    if [ -n "$active" ] && [ "$active" != "$venv" ] && (cd / && python -c "import speech3") 2>/dev/null; then
        return
    fi
    stamp=$venv/.speech3-$extras-$(cksum <"$root/pyproject.toml" | tr ' ' -)
    if [ ! -e "$stamp" ]; then
        echo "setting up $venv (only once; takes some minutes)" >&2
        if [ ! -x "$venv/bin/python" ] || ! "$venv/bin/python" -c '' 2>/dev/null; then
            python=$(_speech3_python) || return 1
            local options=(--clear)
            if _speech3_has_torch "$python"; then options+=(--system-site-packages); fi
            "$python" -m venv "${options[@]}" "$venv" || {
                echo "error: $python cannot create a virtual environment (on Debian: apt install python3-venv)" >&2
                return 1
            }
        fi
        if ! _speech3_has_torch "$venv/bin/python"; then
            "$venv/bin/python" -m pip install --quiet "torch==2.13.0" ||
                echo "torch 2.13.0 could not be installed; pip will choose a version" >&2
        fi
        "$venv/bin/python" -m pip install --quiet --editable "$root[$extras]" >&2 || {
            echo "error: installing speech3 into $venv failed (see above); remove $venv to start again" >&2
            return 1
        }
        touch "$stamp"
    fi
    # shellcheck disable=SC1091
    . "$venv/bin/activate"
}
