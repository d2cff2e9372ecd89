#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From nothing to the main job: several processes all-reduce real tensors through a running qrd daemon,
# the codec changes in the middle, and you see error, wire bytes and metrics.
#
#   deploy/quickstart.sh [OPTION...]
#
#   --ranks N        2 (default) or 4 processes
#   --keep           leave the daemon running at the end and say how to talk to it
#   --build-dir DIR  default: build/release
#   --no-build       use what is in the build folder
#   --no-install     never install packages
#   --jobs N         parallel compilations; default: cores, bounded by memory
#   --help
#
# Everything runs on the host backend in a temporary folder; nothing is installed but packages.
# Exit status: 0 all went well, 1 something failed, 2 bad arguments, 3 to 5 packages are missing and
# cannot be installed (deploy/packages.sh).
set -uo pipefail
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd) || exit 1
# shellcheck source=deploy/common.sh
. "$source/deploy/common.sh"
# shellcheck source=deploy/packages.sh
. "$source/deploy/packages.sh"

ranks=2 keep=0 install=1 compile=1 build=$source/build/release jobs=''
while (($#)); do
  case $1 in
    --ranks) ranks=$(qrd_value "$@") || exit; shift ;;
    --build-dir) build=$(qrd_value "$@") || exit; shift ;;
    --jobs) jobs=$(qrd_value "$@") || exit; shift ;;
    --keep) keep=1 ;;
    --no-build) compile=0 ;;
    --no-install) install=0 ;;
    -h | --help) sed -n '3,20s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) qrd_die 2 "unknown argument '$1'; try --help" ;;
  esac
  shift
done
[[ $ranks == 2 || $ranks == 4 ]] ||
  qrd_die 2 "--ranks: '$ranks' is not 2 or 4 (the sample tensors are cut for these)"
[[ $jobs ]] && qrd_check_number --jobs "$jobs" 1 1024


load_pid='' scratch=''
cleanup() {
  local status=$?
  trap - EXIT INT TERM
  if [[ $load_pid ]]; then kill "$load_pid" 2>/dev/null; fi
  if ((keep && status == 0)); then exit 0; fi
  if ((status)) && [[ -s $scratch/qrd.log ]]; then
    printf '\nThe end of the log of the daemon:\n' >&2
    tail -n 15 "$scratch/qrd.log" >&2
  fi
  qrd_daemon_stop || echo "the daemon ended with status $?" >&2
  if [[ $scratch ]]; then rm -rf "$scratch"; fi
  exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Shows a command, runs it, and ends the script if it fails.
show() {
  printf '\n$ %s\n' "$*"
  "$@" || qrd_die 1 "failed: $*"
}

prepare() {
  if ((install)); then qrd_packages_install build || exit; fi
  if ((compile)); then
    [[ $jobs ]] || jobs=$(qrd_jobs)
    qrd_say "build in $build with $jobs jobs (10 to 15 minutes on two cores the first time)"
    qrd_configure "$source" "$build" -DCMAKE_BUILD_TYPE=Release -DQRD_TESTS=OFF \
      -DQRD_BENCHMARKS=OFF || qrd_die 1 "configure failed"
    qrd_build "$build" "$jobs" qrd_daemon qrctl qrbench || qrd_die 1 "the build failed"
  fi
  export PATH=$build/daemon:$build/client/tools:$PATH
  local program
  for program in qrd qrctl qrbench; do
    command -v "$program" >/dev/null || qrd_die 1 "no $program in $build; run without --no-build"
  done
}

# Processes in a loop, and a person who changes the codec under them.
change_codec_live() {
  qrd_say "$ranks processes all-reduce a tensor of a real model; the codec changes under them"
  echo "\$ qrbench live --communicator tp --input $tensors --seconds 8 &"
  qrbench live --communicator tp --input "$inputs" --seconds 8 &
  load_pid=$!
  sleep 2
  show qrctl comm list
  local codec
  for codec in int8 int4 lp3; do
    show qrctl policy set --codec "$codec"
    sleep 1
  done
  wait "$load_pid" || qrd_die 1 "the processes in the loop ended with status $?"
  load_pid=''
}

compare_codecs() {
  qrd_say "error and wire bytes of every codec on that tensor"
  echo "(time: on one machine the ranks share memory and there is no wire, so here codecs only cost)"
  printf '\n$ qrbench all_reduce --input %s --codecs all --plot %s\n' "$tensors" "$plot"
  qrbench all_reduce --input "$inputs" --codecs all --iters 200 --plot "$plot" ||
    qrd_die 1 "qrbench failed"
}

# What Prometheus would scrape, without the histograms, the payload by codec and what is still 0.
show_metrics() {
  local address
  address=$(qrctl status --output json | sed -n 's/.*"metrics_address": *"\([^"]*\)".*/\1/p')
  [[ $address ]] || qrd_die 1 "the daemon has no metrics address"
  qrd_say "metrics: http://$address/metrics"
  qrd_http_get "$address" /metrics >"$scratch/metrics" || qrd_die 1 "cannot read the metrics"
  grep -q '^qrd_operations_total' "$scratch/metrics" || qrd_die 1 "no operations in the metrics"
  grep -E '^qrd_' "$scratch/metrics" | grep -vE '_duration_seconds|^qrd_payload_bytes| 0$' | sort
  echo "... $(wc -l <"$scratch/metrics") lines in all"
}

prepare
data=$source/tests/data/minilm
inputs='' tensors="mlp_down.layer3.tp$ranks.rank*.npy"
for ((rank = 0; rank < ranks; rank++)); do
  inputs+=${inputs:+,}$data/mlp_down.layer3.tp$ranks.rank$rank.npy
done
plot=$build/quickstart.svg
scratch=$(mktemp -d "${TMPDIR:-/tmp}/qrd-quickstart.XXXXXX") || exit 1

qrd_say "a daemon of its own in $scratch"
qrd_daemon_start "$scratch" || exit 1
show qrctl status
change_codec_live
compare_codecs
show_metrics

qrd_say "done"
echo "plot of time and error: $plot"
if ((keep)); then
  echo "the daemon runs on (pid $qrd_daemon_pid); talk to it with"
  echo "  export QRD_RUNTIME_DIRECTORY=$QRD_RUNTIME_DIRECTORY PATH=$build/client/tools:\$PATH"
  echo "and stop it with: kill $qrd_daemon_pid && rm -r $scratch"
else
  qrd_daemon_stop || qrd_die 1 "the daemon ended with status $?"
  echo "the daemon is stopped"
fi
