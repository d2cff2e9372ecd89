// SPDX-License-Identifier: Apache-2.0
#include "client/gpu/gate_kernel.h"

namespace qrd::client::gpu {

// Parameters: address at 0, value at 64, count 96, wait_mask 100, expired 104, bound_ns 112.
const char kGatePtx[] = R"(.version 6.3
.target sm_70
.address_size 64

.visible .entry qrd_gate(.param .align 8 .b8 args[120])
{
  .reg .pred %p;
  .reg .b32 %i, %count, %mask, %value, %seen, %one;
  .reg .b64 %start, %now, %bound, %expired, %addresses, %values, %address;

  mov.u64 %start, %globaltimer;
  fence.acq_rel.sys;
  ld.param.u32 %count, [args+96];
  ld.param.u32 %mask, [args+100];
  ld.param.u64 %expired, [args+104];
  ld.param.u64 %bound, [args+112];
  mov.b64 %addresses, args;
  add.u64 %values, %addresses, 64;
  mov.u32 %one, 1;
  mov.u32 %i, 0;
NEXT:
  setp.ge.u32 %p, %i, %count;
  @%p bra END;
  ld.param.u64 %address, [%addresses];
  ld.param.u32 %value, [%values];
  add.u64 %addresses, %addresses, 8;
  add.u64 %values, %values, 4;
  add.u32 %i, %i, 1;
  and.b32 %seen, %mask, 1;
  shr.u32 %mask, %mask, 1;
  setp.ne.u32 %p, %seen, 0;
  @%p bra WAIT;
  st.release.sys.u32 [%address], %value;
  bra NEXT;
WAIT:
  ld.acquire.sys.u32 %seen, [%address];
  setp.eq.u32 %p, %seen, %value;
  @%p bra NEXT;
  mov.u64 %now, %globaltimer;
  sub.u64 %now, %now, %start;
  setp.gt.u64 %p, %now, %bound;
  @%p bra EXPIRED;
  nanosleep.u32 100;
  bra WAIT;
EXPIRED:
  st.release.sys.u32 [%expired], %one;
  bra NEXT;
END:
  ret;
}
)";

// wall_clock64 counts the constant 100 MHz reference clock of MI200 and MI300: 10 ns a tick.
const char kGateHipSource[] = R"(
struct GateArgs {
  unsigned long long address[8];
  unsigned int value[8];
  unsigned int count;
  unsigned int wait_mask;
  unsigned long long expired;
  unsigned long long bound_ns;
};
extern "C" __global__ void qrd_gate(const GateArgs args) {
  const unsigned long long start = wall_clock64();
  __threadfence_system();
  for (unsigned int i = 0; i < args.count; ++i) {
    unsigned int* word = reinterpret_cast<unsigned int*>(args.address[i]);
    const unsigned int value = args.value[i];
    if (((args.wait_mask >> i) & 1) == 0) {
      __hip_atomic_store(word, value, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_SYSTEM);
      continue;
    }
    while (__hip_atomic_load(word, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_SYSTEM) != value) {
      if ((wall_clock64() - start) * 10 > args.bound_ns) {
        __hip_atomic_store(reinterpret_cast<unsigned int*>(args.expired), 1u, __ATOMIC_RELEASE,
                           __HIP_MEMORY_SCOPE_SYSTEM);
        break;
      }
      __builtin_amdgcn_s_sleep(2);
    }
  }
}
)";

GateArgs MakeGateArgs(std::span<const Step> steps, const GateLimits& limits) {
  GateArgs args{};
  args.count = static_cast<uint32_t>(steps.size());
  for (uint32_t i = 0; i < args.count; ++i) {
    args.address[i] = steps[i].address;
    args.value[i] = steps[i].value;
    if (steps[i].wait) args.wait_mask |= 1u << i;
  }
  args.expired = limits.expired;
  args.bound_ns = limits.bound_ns;
  return args;
}

}  // namespace qrd::client::gpu
