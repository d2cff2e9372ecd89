#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs everything of tests/gpu that needs a GPU, from a tree that was built with QRD_GPU=cuda or hip.
#
#   tests/gpu/run.sh [BUILD_DIR] [--golden DIR] [--sanitizer] [--bench]
#
#   BUILD_DIR     where tests/gpu/gpu_conformance is, default build; a folder with the programs alone will do
#   --golden DIR  golden files, default tests/data/golden/codec beside this script
#   --sanitizer   also memcheck and racecheck on small sizes (compute-sanitizer)
#   --bench       also the benchmark, whose table goes to standard output
#   --pack DIR    run nothing: copy programs, libraries, golden files and this script to DIR, which then runs on
#                 another machine by DIR/run.sh DIR --golden DIR/golden
#
# The last line is "N passed, N failed". Exit status: 0 all passed, 1 not, 2 bad arguments, 77 no GPU.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd) || exit 1
build=build golden=$here/../data/golden/codec sanitizer=0 bench=0 pack=''
while (($#)); do
  case $1 in
    --golden) [[ $# -ge 2 ]] || { echo "--golden wants a folder" >&2; exit 2; }; golden=$2; shift ;;
    --pack) [[ $# -ge 2 ]] || { echo "--pack wants a folder" >&2; exit 2; }; pack=$2; shift ;;
    --sanitizer) sanitizer=1 ;;
    --bench) bench=1 ;;
    -h | --help) sed -n '3,15s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    -*) echo "unknown argument '$1'; try --help" >&2; exit 2 ;;
    *) build=$1 ;;
  esac
  shift
done
programs=$build/tests/gpu
[[ -x $programs/gpu_conformance ]] || programs=$build
[[ -x $programs/gpu_conformance ]] || { echo "no gpu_conformance in $build" >&2; exit 2; }

if [[ $pack ]]; then
  mkdir -p "$pack/lib" "$pack/golden" || exit 1
  cp "$programs/gpu_conformance" "$programs/gpu_bench" "${BASH_SOURCE[0]}" "$pack/" &&
    cp "$golden"/* "$pack/golden/" || exit 1
  # All but the C library, which the other machine has.
  ldd "$programs/gpu_conformance" | awk '$3 ~ /^\// && $1 !~ /^lib(c|m|dl|rt|pthread)\.so/ { print $3 }' |
    xargs -r cp -L -t "$pack/lib/" || exit 1
  strip "$pack/gpu_conformance" "$pack/gpu_bench"
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

"$programs/gpu_conformance" "$golden" 2>&1 | tee "$log"
[[ ${PIPESTATUS[0]} -eq 77 ]] && { echo "0 passed, 0 failed, 1 skipped"; exit 77; }
count "$log"

if ((sanitizer)); then
  for tool in memcheck racecheck; do
    echo "compute-sanitizer $tool"
    if compute-sanitizer --tool "$tool" --error-exitcode 9 "$programs/gpu_conformance" "$golden" quick \
      >"$log" 2>&1; then
      passed=$((passed + 1))
    else
      failed=$((failed + 1))
      tail -n 40 "$log"
    fi
    grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$log"
  done
fi
((bench)) && "$programs/gpu_bench"
echo "$passed passed, $failed failed"
((failed == 0))
