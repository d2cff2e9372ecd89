/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank in plain C11 that uses the whole API:
 *   c_program RUNTIME_DIRECTORY RANK WORLD_SIZE
 * Exit code 0 and one line of numbers, or the failed step on stderr. */
#include <qrd/qrd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT 5000

#define CHECK(condition)                                                            \
  do {                                                                              \
    if (!(condition)) {                                                             \
      fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition, qrd_last_error()); \
      return 1;                                                                     \
    }                                                                               \
  } while (0)

static float value_of(uint32_t rank, size_t i) { return (float)(i % 100) + 1000.0f * (float)rank; }

/* Sum of all ranks' values: exact in fp32. */
static float sum_of(uint32_t world_size, size_t i) {
  float sum = 0;
  for (uint32_t r = 0; r < world_size; ++r) sum += value_of(r, i);
  return sum;
}

static int fill(float* x, uint32_t rank) {
  for (size_t i = 0; i < COUNT; ++i) x[i] = value_of(rank, i);
  return 1;
}

static int all_are(const float* x, uint32_t world_size, float divisor) {
  for (size_t i = 0; i < COUNT; ++i) {
    if (x[i] != sum_of(world_size, i) / divisor) return 0;
  }
  return 1;
}

static int run(qrd_comm_t comm) {
  uint32_t rank = 99, world_size = 99;
  CHECK(qrd_comm_rank(comm, &rank, &world_size) == QRD_OK);

  void* memory = NULL;
  CHECK(qrd_mem_alloc(comm, 2 * COUNT * sizeof(float), &memory) == QRD_OK);
  float* x = (float*)memory;
  float* y = x + COUNT;
  static float own[COUNT];
  static float registered[COUNT];
  CHECK(qrd_mem_register(comm, registered, sizeof(registered)) == QRD_OK);

  /* Four operations in flight: out of place, in place, staged, registered. */
  fill(x, rank);
  fill(own, rank);
  fill(registered, rank);
  qrd_operation operations[4] = {0, 0, 0, 0};
  qrd_op_stats stats = QRD_OP_STATS_INIT;
  CHECK(qrd_all_reduce(comm, x, y, COUNT, QRD_FP32, QRD_SUM, &operations[0]) == QRD_OK);
  CHECK(qrd_all_reduce(comm, own, own, COUNT, QRD_FP32, QRD_SUM, &operations[1]) == QRD_OK);
  CHECK(qrd_all_reduce(comm, registered, registered, COUNT, QRD_FP32, QRD_AVG, &operations[2]) ==
        QRD_OK);
  CHECK(qrd_all_reduce(comm, NULL, NULL, 0, QRD_BF16, QRD_SUM, &operations[3]) == QRD_OK);

  CHECK(qrd_wait(comm, operations[3], 60000, NULL) == QRD_OK);
  CHECK(qrd_wait(comm, operations[1], 60000, &stats) == QRD_OK);
  CHECK(stats.staged != 0 && stats.sequence == 2 && stats.payload_bytes == sizeof(own));
  CHECK(all_are(own, world_size, 1.0f));
  CHECK(qrd_wait(comm, operations[1], 60000, &stats) == QRD_NOT_FOUND);
  qrd_status status;
  while ((status = qrd_test(comm, operations[0], &stats)) == QRD_IN_PROGRESS) {
  }
  CHECK(status == QRD_OK);
  CHECK(stats.staged == 0 && stats.status == QRD_OK && stats.codec == QRD_CODEC_NONE);
  CHECK(stats.first_post_ns <= stats.ready_ns && stats.ready_ns <= stats.start_ns &&
        stats.start_ns <= stats.end_ns && stats.first_post_ns > 0);
  CHECK(all_are(y, world_size, 1.0f));
  CHECK(x[COUNT - 1] == value_of(rank, COUNT - 1));
  CHECK(qrd_wait(comm, operations[2], 60000, NULL) == QRD_OK);
  CHECK(all_are(registered, world_size, (float)world_size));

  /* Errors have names and texts. */
  qrd_operation none = 0;
  CHECK(qrd_all_reduce(comm, x, y, COUNT, (qrd_dtype)9, QRD_SUM, &none) == QRD_INVALID_ARGUMENT);
  CHECK(strstr(qrd_last_error(), "dtype: 9") != NULL);
  CHECK(strcmp(qrd_status_string(QRD_MISMATCH), "MISMATCH") == 0);

  CHECK(qrd_mem_deregister(comm, registered) == QRD_OK);
  CHECK(qrd_mem_free(comm, memory) == QRD_OK);
  return 0;
}

/* The last rank aborts; the others' operation ends with its reason. */
static int run_abort(qrd_comm_t comm, uint32_t rank, uint32_t world_size) {
  float x = 1;
  qrd_operation operation = 0;
  if (rank == world_size - 1) {
    CHECK(qrd_comm_abort(comm, "the C program is done") == QRD_OK);
    return 0;
  }
  qrd_status status = qrd_all_reduce(comm, &x, &x, 1, QRD_FP32, QRD_SUM, &operation);
  if (status == QRD_OK) status = qrd_wait(comm, operation, 60000, NULL);
  CHECK(status == QRD_ABORTED);
  CHECK(strstr(qrd_last_error(), "the C program is done") != NULL);
  return 0;
}

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  qrd_comm_config config = QRD_COMM_CONFIG_INIT;
  config.communicator = "c-program";
  config.runtime_directory = argv[1];
  config.rank = (uint32_t)strtoul(argv[2], NULL, 10);
  config.world_size = (uint32_t)strtoul(argv[3], NULL, 10);
  config.timeout_ms = 60000;
  qrd_comm_t comm = NULL;
  CHECK(qrd_comm_init(&config, &comm) == QRD_OK);
  if (run(comm) != 0) return 1;
  if (config.world_size > 1 && run_abort(comm, config.rank, config.world_size) != 0) return 1;
  CHECK(qrd_comm_finalize(comm) == QRD_OK);
  printf("ok %s rank %u of %u\n", qrd_version(), config.rank, config.world_size);
  return 0;
}
