// SPDX-License-Identifier: Apache-2.0
// As main.c, through the C++ header; instantiates all of it.
#include <cstdio>
#include <qrd/qrd.hpp>
#include <type_traits>

static_assert(!std::is_copy_constructible_v<qrd::Operation>);
static_assert(std::is_nothrow_move_constructible_v<qrd::Memory>);

// Compiled, not run: there is no daemon here.
float Use(qrd::Communicator& comm) {
  qrd::Buffer<float> x(comm, 16);
  qrd::Buffer<qrd::Bf16> y(comm, 16);
  qrd::Operation first = comm.AllReduce(x, QRD_SUM);
  qrd::Operation second = comm.AllReduce(y.data(), y.data(), y.size(), QRD_AVG);
  while (!first.TryWait()) {
  }
  second.WaitFor(std::chrono::seconds(1));
  comm.Abort("done");
  return x[0];
}

int main() {
  try {
    qrd::Options options;
    options.communicator = "stranger";
    options.runtime_directory = "/nonexistent";
    qrd::Communicator comm(options);
    Use(comm);
  } catch (const qrd::Error& e) {
    if (e.status() != QRD_UNAVAILABLE) return 1;
    std::printf("qrd %s: %s\n", qrd_version(), e.what());
    return 0;
  }
  return 2;
}
