// SPDX-License-Identifier: Apache-2.0
#include "client/tools/qrbench/interrupt.h"

#include <csignal>

namespace qrd::tools {
namespace {

volatile std::sig_atomic_t g_interrupted = 0;

void OnSignal(int) { g_interrupted = 1; }

void Install(int signal, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  sigemptyset(&action.sa_mask);
  sigaction(signal, &action, nullptr);  // no SA_RESTART: poll() must return
}

}  // namespace

void InstallInterruptHandlers() {
  Install(SIGINT, OnSignal);
  Install(SIGTERM, OnSignal);
  Install(SIGHUP, OnSignal);
  Install(SIGPIPE, SIG_IGN);
}

void InstallRankSignals() {
  Install(SIGINT, SIG_IGN);
  Install(SIGHUP, SIG_IGN);
  Install(SIGTERM, SIG_DFL);
}

bool Interrupted() { return g_interrupted != 0; }

}  // namespace qrd::tools
