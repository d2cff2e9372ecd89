/* SPDX-License-Identifier: Apache-2.0
 *
 * How the peers are timed, in C and C++, the same way as `qrbench all_reduce` does: operations back
 * to back, one sample an operation on rank 0 from the call to its return, several buffers in turn,
 * and a warm-up that is thrown away.
 */
#ifndef QRD_TESTS_BENCH_PEERS_TIMING_H_
#define QRD_TESTS_BENCH_PEERS_TIMING_H_

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { kBuffers = 4, kSamplesMax = 100000, kWarmup = 8 };

/* Buffers in turn: fewer where they would fill the memory. */
static inline int BufferCount(size_t bytes) { return bytes > ((size_t)32 << 20) ? 2 : kBuffers; }

static inline double NowSeconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static inline int CompareDoubles(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

/* Samples that fit in `seconds`, from the fastest operation of the warm-up: the ranks have the same
 * number only if one computes it and tells the others. */
static inline int SampleCount(double seconds, const double* warmup) {
  double fastest = 1e9, n;
  for (int i = 0; i < kWarmup; ++i) fastest = warmup[i] < fastest ? warmup[i] : fastest;
  n = seconds / (fastest > 1e-9 ? fastest : 1e-9);
  return n < 5 ? 5 : n > kSamplesMax ? kSamplesMax : (int)n;
}

/* "bytes p50_us p99_us samples", one line. Sorts the samples. */
static inline void PrintResult(size_t bytes, double* samples, int count) {
  qsort(samples, (size_t)count, sizeof(double), CompareDoubles);
  printf("%zu %.3f %.3f %d\n", bytes, samples[count / 2] * 1e6,
         samples[(int)((count - 1) * 0.99)] * 1e6, count);
  fflush(stdout);
}

/* Ends the program unless the sum over the ranks of (rank + 1) is in every element that is looked
 * at. */
static inline void CheckResult(const float* output, size_t count, int world_size) {
  const float want = (float)(world_size * (world_size + 1)) / 2.0f;
  for (size_t i = 0; i < count; i += count / 16 + 1) {
    if (output[i] != want) {
      fprintf(stderr, "wrong result: element %zu is %g, want %g\n", i, (double)output[i],
              (double)want);
      exit(1);
    }
  }
}

#endif /* QRD_TESTS_BENCH_PEERS_TIMING_H_ */
