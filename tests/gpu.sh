#!/usr/bin/env bash
# The tests that need a GPU: first correctness of every CUDA path, then speed. One JSON line per figure, a summary last.
#   tests/gpu.sh [WHEELS_DIR] [--only NAME,...] [--minutes N] [--log FILE] [--device DEVICE] [--jobs N]
# Exit status: 0 if no part failed, 1 if one did, 2 without a GPU. Parts and what they need: tests/gpu.py.
#
# `python3` is used as it is, and nothing is installed into it: wheels in WHEELS_DIR are unpacked into a temporary
# folder. A machine with torch, triton, numba, numpy, safetensors, typer, rich, pyyaml and pytest lacks pydantic and
# soundfile; download their wheels (5 MB) beforehand on another machine, for Python 3.12 on x86-64 with
#   pip download --no-deps --only-binary :all: --python-version 3.12 --implementation cp \
#       --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 --dest .wheels \
#       pydantic pydantic-core annotated-types typing-inspection typing-extensions soundfile cffi kaldi-io
# and pyyaml, numba, llvmlite, hypothesis or sortedcontainers in the same way if they are missing.
#
# On a machine that is at hand for fifteen minutes, with .wheels copied to it (seen on an H100: 4 minutes and 5):
#   tests/gpu.sh .wheels --only correctness,dnn,sync --jobs 7 --minutes 5 --log "$OUT/first.log"
#   tests/gpu.sh .wheels --only extraction,update,bf16,lstm,engine --minutes 7 --log "$OUT/second.log"
# With --jobs, tests share the GPU and the processor; what is timed runs alone, after them. `four` (four shards on one GPU,
# which takes turns) says little without MPS.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [ $# -gt 0 ] && [[ $1 != --* ]]; then
    wheels=$1
    shift
    unpacked=$(mktemp -d)
    trap 'rm -rf "$unpacked"' EXIT
    python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --disable-pip-version-check \
        --root-user-action ignore --target "$unpacked" "$wheels"/*.whl
    export PYTHONPATH=$unpacked${PYTHONPATH:+:$PYTHONPATH}
fi
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
python3 tests/gpu.py "$@"
