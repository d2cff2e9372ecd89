#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs everything of tests/gpu that needs a GPU, from a tree that was built with QRD_GPU=cuda or hip.
#
#   tests/gpu/run.sh [BUILD_DIR] [--golden DIR] [--epilogue] [--filter F] [--mps] [--sanitizer] [--bench]
#
#   BUILD_DIR     where tests/gpu/gpu_conformance is, default build; a folder with the programs alone will do
#   --golden DIR  golden files of codecs (default tests/data/golden/codec beside this script); those of epilogues
#                 are in DIR/../epilogue
#   --epilogue    only what has a norm, of the kernels' tests and (with --bench) of the benchmark
#   --filter F    of the tests with a daemon and client processes (GoogleTest's --gtest_filter); "-": none
#   --mps         those again under CUDA MPS
#   --sanitizer   also memcheck and racecheck on small sizes (compute-sanitizer)
#   --bench       also the benchmark, whose table goes to standard output
#   --no-conformance  not the kernels, only what was asked for else
#   --pack DIR    run nothing: copy programs, libraries, golden files and this script to DIR, which then runs on
#                 another machine by DIR/run.sh DIR --golden DIR/golden/codec
#
# The last line is "N passed, N failed". Exit status: 0 all passed, 1 not, 2 bad arguments, 77 no GPU.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd) || exit 1
build=build golden=$here/../data/golden/codec sanitizer=0 bench=0 mps=0 filter='*' pack='' conformance=1 epilogue=0
while (($#)); do
  case $1 in
    --golden) [[ $# -ge 2 ]] || { echo "--golden wants a folder" >&2; exit 2; }; golden=$2; shift ;;
    --pack) [[ $# -ge 2 ]] || { echo "--pack wants a folder" >&2; exit 2; }; pack=$2; shift ;;
    --filter) [[ $# -ge 2 ]] || { echo "--filter wants a pattern" >&2; exit 2; }; filter=$2; shift ;;
    --no-conformance) conformance=0 ;;
    --mps) mps=1 ;;
    --sanitizer) sanitizer=1 ;;
    --bench) bench=1 ;;
    --epilogue) epilogue=1 ;;
    -h | --help) sed -n '3,19s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    -*) echo "unknown argument '$1'; try --help" >&2; exit 2 ;;
    *) build=$1 ;;
  esac
  shift
done
programs=$build/tests/gpu
[[ -x $programs/gpu_conformance ]] || programs=$build
[[ -x $programs/gpu_conformance ]] || { echo "no gpu_conformance in $build" >&2; exit 2; }

if [[ $pack ]]; then
  mkdir -p "$pack/lib" "$pack/golden/codec" || exit 1
  packed=()
  for program in "$programs/gpu_conformance" "$programs/gpu_bench" "$programs/gpu_served_test" "$programs/gpu_served_bench" \
    "$build/daemon/qrd" "$build/client/tools/qrctl" "$build/client/tools/qrbench"; do
    [[ -x $program ]] || continue
    cp "$program" "$pack/" && packed+=("$pack/${program##*/}") || exit 1
    # All but the C library, which the other machine has.
    ldd "$program" | awk '$3 ~ /^\// && $1 !~ /^lib(c|m|dl|rt|pthread)\.so/ { print $3 }' |
      xargs -r cp -L -u -t "$pack/lib/" || exit 1
  done
  cp "${BASH_SOURCE[0]}" "$pack/" && cp "$golden"/* "$pack/golden/codec/" &&
    cp -r "$golden/../epilogue" "$pack/golden/" || exit 1
  strip "${packed[@]}" "$pack"/lib/*
  exit 0
fi
export LD_LIBRARY_PATH=$programs/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

passed=0 failed=0
# Adds the counts of a program's last line.
count() {
  local line
  line=$(grep -E '^[0-9]+ passed, [0-9]+ failed$' "$1" | tail -n 1)
  if [[ $line =~ ^([0-9]+)\ passed,\ ([0-9]+) ]]; then
    passed=$((passed + BASH_REMATCH[1])) failed=$((failed + BASH_REMATCH[2]))
  else
    failed=$((failed + 1))
  fi
}
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT

parts=()
((epilogue)) && parts=(rms_norm)
if ((conformance)); then
  "$programs/gpu_conformance" "$golden" "${parts[@]}" 2>&1 | tee "$log"
  [[ ${PIPESTATUS[0]} -eq 77 ]] && { echo "0 passed, 0 failed, 1 skipped"; exit 77; }
  count "$log"
fi

# Daemons and client processes. $1: why.
served() {
  local status
  echo "served operations$1"
  "$programs/gpu_served_test" --gtest_filter="$filter" --gtest_brief=1 2>&1 | tee "$log"
  status=${PIPESTATUS[0]}
  passed=$((passed + $(sed -n 's/^\[  PASSED  \] \([0-9]*\) test.*/\1/p' "$log" | tail -n 1)))
  failed=$((failed + $(grep -c '^\[  FAILED  \] .*ms)$' "$log")))
  ((status == 0)) || ((failed)) || failed=1
}
if [[ -x $programs/gpu_served_test && $filter != - ]]; then
  if [[ -x $programs/qrd ]]; then  # packed
    QRD_DAEMON_EXECUTABLE=$programs/qrd QRD_QRCTL_EXECUTABLE=$programs/qrctl
  else
    QRD_DAEMON_EXECUTABLE=$build/daemon/qrd QRD_QRCTL_EXECUTABLE=$build/client/tools/qrctl
  fi
  export QRD_DAEMON_EXECUTABLE QRD_QRCTL_EXECUTABLE
  served ""
  if ((mps)); then
    CUDA_MPS_PIPE_DIRECTORY=$(mktemp -d) CUDA_MPS_LOG_DIRECTORY=$(mktemp -d)
    export CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
    if nvidia-cuda-mps-control -d; then
      served " under MPS"
      echo quit | nvidia-cuda-mps-control
    else
      echo "MPS: the control daemon does not start here: skipped"
    fi
    unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
  fi
fi

if ((sanitizer)); then
  for tool in memcheck racecheck; do
    echo "compute-sanitizer $tool"
    # The tool makes kernels so slow that ranks would give each other up.
    if QRD_TEST_WAIT_SECONDS=600 compute-sanitizer --tool "$tool" --error-exitcode 9 "$programs/gpu_conformance" "$golden" quick \
      >"$log" 2>&1; then
      passed=$((passed + 1))
    else
      failed=$((failed + 1))
      tail -n 40 "$log"
    fi
    grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$log"
  done
fi
if ((bench)); then
  ((epilogue)) && parts=(--epilogue)
  "$programs/gpu_bench" "${parts[@]}"
  [[ -x $programs/gpu_served_bench ]] && "$programs/gpu_served_bench"
fi
echo "$passed passed, $failed failed"
((failed == 0))
