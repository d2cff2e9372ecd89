/* SPDX-License-Identifier: Apache-2.0
 *
 * MPI_Allreduce of fp32 sums, timed as in timing.h.
 *
 *   mpirun -n 2 mpi_all_reduce SECONDS BYTES...
 *
 * Rank 0 prints "bytes p50_us p99_us samples" for each size.
 */
#include <mpi.h>
#include <stdlib.h>

#include "timing.h"

static void Measure(size_t bytes, double seconds, int rank, int world_size) {
  static double samples[kSamplesMax];
  const size_t count = bytes / sizeof(float);
  const int buffers = BufferCount(bytes);
  float *input[kBuffers], *output[kBuffers];
  for (int b = 0; b < buffers; ++b) {
    input[b] = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    output[b] = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (input[b] == NULL || output[b] == NULL) {
      fprintf(stderr, "no memory for %zu bytes\n", bytes);
      MPI_Abort(MPI_COMM_WORLD, 1);
    }
    for (size_t i = 0; i < count; ++i) {
      input[b][i] = (float)(rank + 1);
      output[b][i] = 0.0f;
    }
  }
  int n = kWarmup, warm = 0;
  for (int i = 0; i < n; ++i) {
    const int b = i % buffers;
    const double start = NowSeconds();
    MPI_Allreduce(input[b], output[b], (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    samples[i] = NowSeconds() - start;
    if (!warm && i + 1 == n) { /* the warm-up is over: measure */
      CheckResult(output[b], count, world_size);
      n = SampleCount(seconds, samples);
      MPI_Bcast(&n, 1, MPI_INT, 0, MPI_COMM_WORLD);
      warm = 1;
      i = -1;
    }
  }
  if (rank == 0) PrintResult(bytes, samples, n);
  for (int b = 0; b < buffers; ++b) {
    free(input[b]);
    free(output[b]);
  }
}

int main(int argc, char** argv) {
  int rank, world_size;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world_size);
  if (argc < 3) {
    fprintf(stderr, "usage: mpi_all_reduce SECONDS BYTES...\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  for (int i = 2; i < argc; ++i) {
    Measure(strtoull(argv[i], NULL, 10), strtod(argv[1], NULL), rank, world_size);
  }
  MPI_Finalize();
  return 0;
}
