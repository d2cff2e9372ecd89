#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Registers, spills, block memory and occupancy of the GPU kernels, as the compiler reports them: a
# Markdown table. Compiles only; needs no GPU.
#
#   kernels/gpu/resources.sh TARGET [--rms-norm] [CODEC...]
#
#   TARGET      gfx942, gfx950, gfx90a, ... (hipcc) or sm_90 (nvcc)
#   --rms-norm  the kernels with a fused norm, and those of rows
#   CODEC       kInt4, kLp3, ...; default: all, dtype bf16
#
# Exit status: 1 if a kernel does not compile or spills, 2 bad arguments.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd) || exit 1
(($#)) || { sed -n '3,13s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 2; }
target=$1
shift
instance=instance
[[ ${1-} == --rms-norm ]] && { instance=rms_norm_instance; shift; }
codecs=("$@")
((${#codecs[@]})) || codecs=(kNone kFp8 kInt8 kInt6 kInt4 kFp4 kInt3 kLp4 kLp3 kLp3c kLp2)
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

compile() { # FILE: the compiler's report on standard output
  case $target in
    gfx*)
      hipcc -std=c++20 -O3 -ffp-contract=off --offload-arch="$target" --cuda-device-only \
        -Rpass-analysis=kernel-resource-usage -I"$root" -x hip -c "$1" -o "$work/o" 2>&1 ;;
    sm_*)
      nvcc -x cu -std=c++20 -O3 -fmad=false --expt-relaxed-constexpr -DQRD_GPU_CUDA -arch="$target" \
        -Xptxas -v -I"$root" -c "$1" -o "$work/o" 2>&1 ;;
    *) echo "TARGET '$target': want gfx... or sm_..." >&2; exit 2 ;;
  esac
}

echo "| target | codec | kernel | registers | spills | block memory | waves a SIMD |"
echo "|---|---|---|---|---|---|---|"
status=0
[[ $instance == rms_norm_instance ]] && codecs+=(rows)
for codec in "${codecs[@]}"; do
  [[ $codec == rows ]] && instance=rows_instance
  sed "s/@QRD_CODEC@/$codec/; s/@QRD_DTYPE@/kBf16/" "$root/kernels/gpu/$instance.hip.in" >"$work/i.hip"
  if ! compile "$work/i.hip" >"$work/log"; then
    echo "$codec does not compile for $target:" >&2
    grep -E 'error' "$work/log" | head -n 5 >&2
    status=1
    continue
  fi
  awk -v target="$target" -v codec="${codec#k}" '
    function flush() {
      if (name != "") printf "| %s | %s | %s | %s | %s | %s | %s |\n", target, tolower(codec), name,
                             regs, spills, lds, occupancy
      name = ""
    }
    function short(s,  n) {
      if (s ~ /OwnedRowsKernel/) return s ~ /ELb1E/ ? "owned_sums" : "owned_rows"
      if (s ~ /WireRowsKernel/) return s ~ /ELb1E/ ? "wide_wire_rows" : "wire_rows"
      if (s ~ /SumToWireKernel/) return "SumToWire"
      if (s ~ /RowsKernel/) return s ~ /RowSourceE1E/ ? "add_rms_norm" : s ~ /RowSourceE0E/ ? "norm" : "quantize"
      if (s ~ /ScatterKernel/) return "Scatter"
      match(s, /(OneShot|TwoShot|Encode|Decode)(RmsNorm)?Kernel/)
      n = substr(s, RSTART, RLENGTH - 6)
      sub(/RmsNorm/, "", n)
      if (s ~ /ELb1E/) n = n " from fp32"
      if (n == "Decode" && s ~ /DtypeE2ELS[0-9]_3E/) n = n " to fp32"
      return n
    }
    /Function Name:/ { flush(); name = short($0); agprs = 0 }
    /remark:.* VGPRs:/ { regs = $0; sub(/.* VGPRs: /, "", regs); sub(/ .*/, "", regs) }
    /VGPRs Spill:/ { spills = $0; sub(/.*Spill: /, "", spills); sub(/ .*/, "", spills) }
    /LDS Size/ { lds = $0; sub(/.*: /, "", lds); sub(/ .*/, "", lds) }
    /Occupancy/ { occupancy = $0; sub(/.*: /, "", occupancy); sub(/ .*/, "", occupancy) }
    /Compiling entry function/ { flush(); name = short($0); lds = 0 }
    /bytes spill stores/ { spills = $0; sub(/.*frame, /, "", spills); sub(/ bytes.*/, "", spills) }
    /Used [0-9]+ registers/ {
      regs = $0; sub(/.*Used /, "", regs); sub(/ .*/, "", regs)
      if (match($0, /[0-9]+ bytes smem/)) lds = substr($0, RSTART, RLENGTH - 11)
      occupancy = int(65536 / (regs * 32) / 4); if (occupancy > 16) occupancy = 16
    }
    END { flush() }' "$work/log" >"$work/rows"
  cat "$work/rows"
  awk -F'|' '$6 + 0 > 0 { bad = 1 } END { exit bad }' "$work/rows" || status=1
done
exit "$status"
