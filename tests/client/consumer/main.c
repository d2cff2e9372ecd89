/* SPDX-License-Identifier: Apache-2.0
 * Prints the library's version; fails unless header and library agree and a missing daemon is an
 * error. */
#include <qrd/qrd.h>
#include <stdio.h>
#include <string.h>

int main(void) {
  char want[32];
  qrd_comm_config config = QRD_COMM_CONFIG_INIT;
  qrd_op_stats stats = QRD_OP_STATS_INIT;
  qrd_comm_t comm = NULL;
  snprintf(want, sizeof(want), "%d.%d.%d", QRD_VERSION_MAJOR, QRD_VERSION_MINOR, QRD_VERSION_PATCH);
  if (strcmp(qrd_version(), want) != 0) return 1;
  config.communicator = "stranger";
  config.world_size = 1;
  config.runtime_directory = "/nonexistent";
  if (qrd_comm_init(&config, &comm) != QRD_UNAVAILABLE) return 2;
  if (strstr(qrd_last_error(), "/nonexistent/attach.sock") == NULL) return 3;
  if (qrd_wait(comm, 1, 0, &stats) != QRD_INVALID_ARGUMENT) return 4;
  printf("qrd %s\n", qrd_version());
  return 0;
}
