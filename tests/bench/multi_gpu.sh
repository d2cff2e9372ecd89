#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Real links: qrd on several GPUs against the vendor's library (NCCL, RCCL), every figure from this run. Checks
# first, then tables and plots. Within ten minutes on 2, 4 or 8 GPUs.
#
#   tests/bench/multi_gpu.sh DIR [OPTION...]
#
#   DIR              what `tests/gpu/run.sh BUILD_DIR --pack DIR` made: programs, libraries, golden files
#   --logical        all ranks on the first GPU: the same programs where there is one GPU only. The library takes
#                    one rank a GPU, so codec none takes its place. Uses CUDA MPS where it starts
#   --ranks LIST     world sizes; default: the number of GPUs; with --logical 2,4,8
#   --out DIR        for <ranks>-<GPU>.md and .svg and the results behind them; default ./multi_gpu_results
#   --quick          few payloads, up to 1 MiB: does everything work?
#   --help
#
# Ends with "N passed, N failed". Exit status: 0 all passed, 1 not, 2 bad arguments, 77 no GPU.
set -uo pipefail
logical=0 quick=0 ranks_list='' out=multi_gpu_results pack=''
wants() { [[ $1 -ge 2 ]] || { echo "$2 wants a value; try --help" >&2; exit 2; }; }
while (($#)); do
  case $1 in
    --logical) logical=1 ;;
    --quick) quick=1 ;;
    --ranks) wants $# "$1"; ranks_list=$2; shift ;;
    --out) wants $# "$1"; out=$2; shift ;;
    -h | --help) sed -n '3,17s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    -*) echo "unknown argument '$1'; try --help" >&2; exit 2 ;;
    *) pack=$1 ;;
  esac
  shift
done
[[ -x $pack/qrbench && -x $pack/qrd ]] || { echo "no qrbench and qrd in '$pack'; try --help" >&2; exit 2; }
pack=$(cd "$pack" && pwd)
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 1
export LD_LIBRARY_PATH=$pack/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export QRD_DAEMON_EXECUTABLE=$pack/qrd QRD_QRCTL_EXECUTABLE=$pack/qrctl
PATH=$pack:$PATH

mapfile -t addresses < <(nvidia-smi --query-gpu=pci.bus_id --format=csv,noheader 2>/dev/null | sed 's/^0000\(....:\)/\1/')
if ((${#addresses[@]} == 0)); then
  mapfile -t addresses < <(rocm-smi --showbus --csv 2>/dev/null | awk -F, 'NR > 1 && $2 ~ /:/ { print tolower($2) }')
fi
((${#addresses[@]})) || { echo "no GPU: skipped"; exit 77; }
gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1)
gpu=${gpu:-$(rocm-smi --showproductname --csv 2>/dev/null | awk -F, 'NR == 2 { print $2 }')}
if [[ ! $ranks_list ]]; then
  ranks_list=$( ((logical)) && echo 2,4,8 || echo "${#addresses[@]}")
fi
IFS=, read -ra world_sizes <<<"$ranks_list"
for ranks in "${world_sizes[@]}"; do
  [[ $ranks =~ ^[1-8]$ ]] || { echo "--ranks: '$ranks' is not 1 to 8" >&2; exit 2; }
  ((logical || ranks <= ${#addresses[@]})) || { echo "--ranks: $ranks, but ${#addresses[@]} GPUs; see --logical" >&2; exit 2; }
done

passed=0 failed=0
# NAME SECONDS COMMAND...: one check, its output beside the results.
check() {
  local name=$1 seconds=$2 log=$out/logs/$1.txt started=$SECONDS status
  shift 2
  timeout --kill-after=10 "$seconds" "$@" >"$log" 2>&1
  status=$?
  if ((status == 0)); then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    tail -n 15 "$log"
  fi
  printf '%-28s %s, %d s\n' "$name" "$( ((status)) && echo "FAILED ($status)" || echo ok)" $((SECONDS - started))
  return "$status"
}
mkdir -p "$out/logs"

echo "== $gpu: ${#addresses[@]} of them, ranks $ranks_list$( ((logical)) && echo ', all on the first')"
check topology 20 sh -c 'nvidia-smi topo -m || rocm-smi --showtopo'
check links 120 "$pack/gpu_bench" links
# One way, the slowest pair; on one device the copy reads and writes.
link_gbps=$(awk -F'|' '$2 ~ /^ [0-9]/ { if (!n++ || $4 + 0 < least) least = $4 + 0 } END { print least }' "$out/logs/links.txt")

spread=$((logical ? 0 : 1))
# Not under MPS: ranks of one process that are launched apart there share the few queues to the GPU.
check conformance 150 "$pack/gpu_conformance" "$pack/golden/codec" quick

if ((logical)); then
  # Processes take turns on a GPU in slices of milliseconds otherwise.
  CUDA_MPS_PIPE_DIRECTORY=$(mktemp -d) CUDA_MPS_LOG_DIRECTORY=$(mktemp -d)
  export CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
  if nvidia-cuda-mps-control -d 2>/dev/null; then
    trap 'echo quit | nvidia-cuda-mps-control >/dev/null' EXIT
  else
    unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
  fi
fi

# All codecs against the reference at 1, 2 and 4 processes, two groups on one communicator, graphs, killed peers and
# daemons, RMSNorm; each rank on its own GPU.
check served_operations 240 env QRD_TEST_SPREAD_RANKS=$spread "$pack/gpu_served_test" --gtest_brief=1

codecs=none,int8,int4,lp3,int3
small=4K,16K,64K,256K,1M,4M,16M large=64M,256M,1G
((quick)) && small=4K,1M large=''

# RANKS NAME ARGUMENT...: a run of qrbench with its own daemon, JSON to $work/NAME.json.
bench() {
  local ranks=$1 name=$2 devices=${addresses[0]}
  shift 2
  ((logical)) || devices=$(IFS=,; echo "${addresses[*]:0:ranks}")
  # shellcheck disable=SC2016  # for the inner shell
  check "$ranks-$name" 150 sh -c 'file=$1; shift; exec "$@" >"$file"' sh "$work/$name.json" \
    qrbench all_reduce --start-daemon --daemon "$pack/qrd" --backend gpu --ranks "$ranks" --devices "$devices" \
    --timeout 60 -o json "$@"
}

# What the model says about the measured rows of codec none and int4, two_shot, in graphs.
model_error() {  # ranks
  local machine=h200-nvlink fixed
  local arguments=(--ranks "$1" --bytes "1M,16M,64M,256M" --codec "none,int4" --dtype bf16 --algorithm two_shot -o csv)
  if ((logical)); then
    machine=h200
  else
    fixed=$(qrbench compare "$work/graph.small.json" "$work/graph.small.json" -o csv 2>/dev/null | awk -F, 'NR == 2 { print $11 }')
    arguments+=(--link-gbps "$link_gbps" --latency-us "${fixed:-10}")
  fi
  qrbench model --machine "$machine" "${arguments[@]}" >"$work/model.csv" || return
  qrbench compare "$work/model.two_shot.json" "$work/model.two_shot.json" -o csv >"$work/measured.csv" || return
  awk -F, 'FNR == 1 { next }
    NR == FNR { model[$3 "," $5] = $7; next }
    $1 == "bf16" && ($4 "," $9) in model {
      printf "| %d KiB | %s | %.1f | %.1f | %+.0f %% |\n", $4 / 1024, $9, $11, model[$4 "," $9], 100 * (model[$4 "," $9] / $11 - 1)
    }' "$work/model.csv" "$work/measured.csv"
}

report() {  # ranks
  local ranks=$1 base=$2 name bad=0
  name=$ranks-$(tr -cs 'A-Za-z0-9\n' - <<<"${gpu,,}")$( ((logical)) && echo -logical)
  {
    echo "# qrd on $ranks ranks, $( ((logical)) && echo 'all on one' || echo 'each on its own') $gpu"
    echo
    echo "$(date -u +%F), driver $(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1),"
    echo "$(qrbench --version), $(uname -sr), $(nproc) cores. Base: $base. Slowest link: $link_gbps GB/s one way."
    ((logical)) && echo "CUDA MPS: $([[ ${CUDA_MPS_PIPE_DIRECTORY:-} ]] && echo on || echo off)."
    printf '\n## Speedup over the base\n\np50 of the base over that of the best algorithm (1s one_shot, 2s two_shot).\n\n'
    qrbench compare "$work/base.json" "$work"/stream.*.json "$work"/graph.*.json -o markdown --plot "$out/$name.svg" || bad=1
    printf '\n## All-reduce + RMSNorm + FP8\n\n'
    cat "$out/logs/$ranks-fused.txt"
    printf '\n## Two groups at the same time\n\n'
    qrbench compare "$work/groups.json" "$work/groups.json" -o markdown || bad=1
    printf '\n## The model against the graphs (two_shot, bf16)\n\n| payload | codec | measured us | predicted us | error |\n|---|---|---|---|---|\n'
    model_error "$ranks" || bad=1
    printf '\n## Links\n\n'
    grep '^|' "$out/logs/links.txt" || bad=1
  } >"$out/$name.md" 2>"$out/logs/$ranks-report.txt"
  ((bad == 0)) || { cat "$out/logs/$ranks-report.txt"; return 1; }
  echo "wrote $out/$name.md and .svg"
}

for ranks in "${world_sizes[@]}"; do
  work=$out/logs/$ranks
  mkdir -p "$work"
  rm -f "$work"/*.json
  all=$small${large:+,$large}
  common=(--dtypes "fp16,bf16" --check-bytes 64K --iters 20)
  base="codec none of qrd on streams"
  if ((logical)); then
    bench "$ranks" base "${common[@]}" --sizes "$all" --codecs none --algorithms two_shot --order stream
  else
    base="the vendor's library through the same daemon, on streams"
    bench "$ranks" base "${common[@]}" --sizes "$all" --codecs none --algorithms library --order stream
  fi
  for order in stream graph; do
    bench "$ranks" "$order.small" "${common[@]}" --sizes "$small" --codecs $codecs --algorithms all --order $order
    # Above, one_shot would only wait for the links.
    [[ $large ]] && bench "$ranks" "$order.large" "${common[@]}" --sizes "$large" --codecs $codecs --algorithms two_shot --order $order
  done
  bench "$ranks" graph_two_shot --dtypes bf16 --check-bytes 64K --iters 20 --sizes "1M${large:+,16M,64M,256M}" --codecs none,int4 \
    --algorithms two_shot --order graph && mv "$work/graph_two_shot.json" "$work/model.two_shot.json"
  bench "$ranks" groups --dtypes bf16 --groups 2 --iters 20 --sizes 64K,1M --codecs none,int4 --algorithms all --order stream
  # shellcheck disable=SC2046
  check "$ranks-fused" 150 env QRD_TEST_SPREAD_RANKS=$spread "$pack/gpu_served_bench" --epilogue "$ranks" $( ((logical)) || echo library)
  # shellcheck disable=SC2310
  if report "$ranks" "$base"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
done
echo "$passed passed, $failed failed"
((failed == 0))
