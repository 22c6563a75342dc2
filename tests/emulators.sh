#!/usr/bin/env bash
# What compiles texts for GPUs and runs them on the processor: Oclgrind and PoCL for OpenCL, clang with its x86_64 device for directives,
# hipcc and GCC's compiler for nvptx, which need no GPU to compile.
#
#   tests/emulators.sh install          with apt-get, as root; tests whose program is missing are skipped with the reason
set -euo pipefail
PACKAGES="oclgrind pocl-opencl-icd ocl-icd-libopencl1 clang-19 clang-tools-19 libomp-19-dev llvm-19 hipcc gcc-offload-nvptx"

is_there() { command -v oclgrind >/dev/null && command -v clang-19 >/dev/null && command -v hipcc >/dev/null && command -v nvptx-none-as >/dev/null && [ -e /etc/OpenCL/vendors/pocl.icd ]; }

[ "${1:-}" = install ] || { sed -n '2,5p' "$0" >&2; exit 2; }
is_there && exit 0
[ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || { echo "emulators.sh: on Debian, as root: apt-get install $PACKAGES" >&2; exit 1; }
echo "emulators.sh: installing with apt-get, as root: $PACKAGES" >&2
export DEBIAN_FRONTEND=noninteractive
apt-get -qq update || echo "emulators.sh: apt-get update failed; going on with the package lists that are here" >&2
# word splitting is wanted: one argument a package
# shellcheck disable=SC2086
apt-get -qq install -y --no-install-recommends $PACKAGES >/dev/null
