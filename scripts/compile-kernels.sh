#!/usr/bin/env bash
# Compiles every CUDA kernel for the architectures named, without a GPU:
#
#   scripts/compile-kernels.sh [sm_80 sm_90a sm_120]
#
# NVRTC comes from PyPI (nvidia-cuda-nvrtc), into target/nvrtc.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly NVRTC=13.0.88
readonly FOLDER=target/nvrtc/$NVRTC

if [[ ! -d $FOLDER/nvidia ]]; then
    # The wheel holds nothing but libraries, so that it needs no environment, only unpacking.
    mkdir -p "$FOLDER"
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
        --dest "$FOLDER" "nvidia-cuda-nvrtc==$NVRTC"
    python3 -m zipfile -e "$FOLDER"/nvidia_cuda_nvrtc-*.whl "$FOLDER"
    rm "$FOLDER"/nvidia_cuda_nvrtc-*.whl
fi

library=$(find "$PWD/$FOLDER" -name 'libnvrtc.so.*' -not -name '*.alt.*' | head -n 1)
[[ -n $library ]] || { echo "error: no libnvrtc in $FOLDER" >&2; exit 1; }
export LD_LIBRARY_PATH=${library%/*}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

[[ $# -gt 0 ]] || set -- sm_80 sm_90a sm_120
cargo run --quiet --locked -p lapidary-cuda --example compile-kernels -- "$@"
