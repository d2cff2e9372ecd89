#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# All-reduce of fp32 sums on two ranks of this machine: qrd beside Open MPI and Gloo, in one run.
#
#   tests/bench/peers.sh [OPTION...]
#
#   --output FILE    also write the report there (Markdown)
#   --sizes LIST     bytes, with commas; default: 4 KiB to 256 MiB in steps of 4 and more
#   --rounds N       times that each library measures each size, in turn; default 3
#   --seconds S      time for one measurement; default 0.5
#   --build-dir DIR  default: build/release
#   --no-build       use what is in the build folder
#   --no-install     never install packages
#   --help
#
# Within a round the libraries take turns for every size, so that a change of the machine's speed meets
# all of them. A figure is the median over the rounds of the p50 of a measurement. The limit is what
# qrbench measures in the same run: two inputs read and two outputs written by all cores.
# Exit status: 0 measured, 1 something failed, 2 bad arguments, 3 to 5 see deploy/packages.sh.
set -uo pipefail
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd) || exit 1
# shellcheck source=deploy/common.sh
. "$source/deploy/common.sh"
# shellcheck source=deploy/packages.sh
. "$source/deploy/packages.sh"

output='' rounds=3 seconds=0.5 build=$source/build/release compile=1 install=1
sizes=4096,65536,1048576,4194304,16777216,67108864,268435456
while (($#)); do
  case $1 in
    --output) output=$(qrd_value "$@") || exit; shift ;;
    --sizes) sizes=$(qrd_value "$@") || exit; shift ;;
    --rounds) rounds=$(qrd_value "$@") || exit; shift ;;
    --seconds) seconds=$(qrd_value "$@") || exit; shift ;;
    --build-dir) build=$(qrd_value "$@") || exit; shift ;;
    --no-build) compile=0 ;;
    --no-install) install=0 ;;
    -h | --help) sed -n '3,21s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) qrd_die 2 "unknown argument '$1'; try --help" ;;
  esac
  shift
done
qrd_check_number --rounds "$rounds" 1 100
[[ $seconds =~ ^[0-9]+(\.[0-9]+)?$ ]] || qrd_die 2 "--seconds: '$seconds' is not a positive number"
[[ $sizes =~ ^[1-9][0-9]*(,[1-9][0-9]*)*$ ]] || qrd_die 2 "--sizes: '$sizes' is not a list of bytes"

scratch=$(mktemp -d "${TMPDIR:-/tmp}/qrd-peers.XXXXXX") || exit 1
cleanup() {
  local status=$?
  trap - EXIT INT TERM
  qrd_daemon_stop
  rm -rf "$scratch"
  exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

prepare() {
  if ((install)); then qrd_packages_install bench || exit; fi
  if ((compile)); then
    local jobs
    jobs=$(qrd_jobs)
    qrd_say "build in $build with $jobs jobs"
    qrd_configure "$source" "$build" -DCMAKE_BUILD_TYPE=Release -DQRD_TESTS=OFF \
      -DQRD_BENCHMARKS=OFF || qrd_die 1 "configure failed"
    qrd_build "$build" "$jobs" qrd_daemon qrctl qrbench || qrd_die 1 "the build failed"
  fi
  export PATH=$build/daemon:$build/client/tools:$PATH
  local peers=$source/tests/bench/peers
  mpicc -O3 -march=native "$peers/mpi_all_reduce.c" -o "$scratch/mpi_all_reduce" ||
    qrd_die 1 "cannot build the Open MPI program"
  g++ -O3 -march=native -std=c++17 "$peers/gloo_all_reduce.cc" -o "$scratch/gloo_all_reduce" \
    -lgloo -lpthread || qrd_die 1 "cannot build the Gloo program"
}

# Each prints "p50_us p99_us" (qrd: and limit_percent relay_p50_us) of one measurement.
measure_mpi() {
  OMPI_MCA_rmaps_base_oversubscribe=1 mpirun "${as_root[@]}" -n 2 \
    "$scratch/mpi_all_reduce" "$seconds" "$1" 2>"$scratch/stderr" | awk '{ print $2, $3 }'
}
measure_gloo() {
  local meeting
  meeting=$(mktemp -d "$scratch/meeting.XXXXXX")
  "$scratch/gloo_all_reduce" "$meeting" "$seconds" "$1" 2>"$scratch/stderr" | awk '{ print $2, $3 }'
}
# The same buffers in turn as timing.h; the iterations that fit in about the same time.
measure_qrd() {
  local iterations=$((2147483648 / $1))
  iterations=$((iterations < 20 ? 20 : iterations > 5000 ? 5000 : iterations))
  qrbench all_reduce --sizes "$1" --dtypes fp32 --buffers $(($1 > 33554432 ? 2 : 4)) \
    --iters "$iterations" --output csv 2>"$scratch/stderr" |
    awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) column[$i] = i; next }
             $column["codec"] == "none" && $column["check"] != "FAILED" {
               limit = $column["limit_percent"]; relay = $column["relay_p50_us"]
               print $column["p50_us"], $column["p99_us"], limit == "" ? "-" : limit, relay == "" ? "-" : relay
             }'
}

# measure LIBRARY BYTES: one line into the results, or the end.
measure() {
  local line
  line=$("measure_$1" "$2")
  if [[ ! $line ]]; then
    tail -n 20 "$scratch/stderr" >&2
    qrd_die 1 "$1 measured nothing at $2 bytes"
  fi
  echo "$1 $2 $line" >>"$scratch/results"
}

measure_all() {
  local round bytes library
  for ((round = 1; round <= rounds; round++)); do
    for bytes in ${sizes//,/ }; do
      printf 'round %d of %d: %d bytes\n' "$round" "$rounds" "$bytes" >&2
      for library in mpi gloo qrd; do
        measure "$library" "$bytes"
      done
    done
  done
}

version_of() { dpkg-query -W -f '${Version}' "$1" 2>/dev/null || echo unknown; }

report() {
  cat <<END
All-reduce of fp32 sums, 2 ranks, p50 in microseconds (median of $rounds rounds), out of place.

- machine: $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) cores, $(awk '/^MemTotal:/ { printf "%.0f GiB", $2 / 1048576 }' /proc/meminfo), Linux $(uname -r)
- $(qrctl --version | head -n 1) ($(sed -n "s/^CMAKE_BUILD_TYPE:[^=]*=//p" "$build/CMakeCache.txt"), $(g++ --version | head -n 1)), Open MPI $(version_of openmpi-bin), Gloo $(version_of libgloo-dev) (loopback TCP)
- qrd: a daemon and 2 clients, memory of qrd_mem_alloc, codec none; the others: 2 processes
- limit: two inputs read and two outputs written by all cores, measured by qrbench in the same run

END
  sort -k1,1 -k2,2n "$scratch/results" | awk -f "$source/tests/bench/peers/report.awk"
}

as_root=()
((EUID == 0)) && as_root=(--allow-run-as-root)
prepare
qrd_daemon_start "$scratch" || exit 1
qrd_say "measure"
measure_all
qrd_say "result"
report | tee "$scratch/report"
if [[ $output ]]; then
  cp "$scratch/report" "$output" || qrd_die 1 "cannot write $output"
  echo "written to $output"
fi
