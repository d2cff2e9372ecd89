// SPDX-License-Identifier: Apache-2.0
// A real Prometheus server scrapes a real daemon, and the figures that it stores are those of the
// operations that ran.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <qrd/qrd.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "daemon/base/unique_fd.h"
#include "tests/daemon/telemetry/http.h"
#include "tests/integration/all_reduce_fixture.h"
#include "tests/support/daemon_process.h"
#include "tests/support/rank_processes.h"
#include "tests/tools/run_program.h"

namespace qrd::testing {
namespace {

using ::testing::Each;
using ::testing::IsEmpty;

// A port that was free a moment ago: Prometheus cannot choose one itself.
int FreePort() {
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in in4 = {};
  in4.sin_family = AF_INET;
  in4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(in4);
  bind(fd.get(), reinterpret_cast<sockaddr*>(&in4), length);
  getsockname(fd.get(), reinterpret_cast<sockaddr*>(&in4), &length);
  return ntohs(in4.sin_port);
}

class PrometheusProcess {
 public:
  PrometheusProcess(const std::string& config, const std::string& data, const std::string& log)
      : address_("127.0.0.1:" + std::to_string(FreePort())) {
    pid_ = fork();
    if (pid_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    FILE* out = std::freopen(log.c_str(), "w", stderr);
    dup2(fileno(out), STDOUT_FILENO);
    const std::string arguments[] = {"--config.file=" + config, "--storage.tsdb.path=" + data,
                                     "--web.listen-address=" + address_};
    execlp("prometheus", "prometheus", arguments[0].c_str(), arguments[1].c_str(),
           arguments[2].c_str(), static_cast<char*>(nullptr));
    _exit(127);
  }
  ~PrometheusProcess() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

  // The value of an instant query, asked again until it is there or the deadline has passed; -1
  // then.
  double Query(const std::string& expression, double at_least) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    double value = -1;
    while (value < at_least && std::chrono::steady_clock::now() < deadline) {
      poll(nullptr, 0, 50);  // between two questions, not instead of one
      const std::string reply = HttpRaw(
          address_, "GET /api/v1/query?query=" + expression + " HTTP/1.0\r\nHost: test\r\n\r\n");
      const auto body = nlohmann::json::parse(
          reply.substr(std::min(reply.find("\r\n\r\n"), reply.size())), nullptr, false);
      if (body.is_discarded() || body["data"]["result"].empty()) continue;
      value = std::stod(body["data"]["result"][0]["value"][1].get<std::string>());
    }
    return value;
  }

 private:
  std::string address_;
  pid_t pid_ = -1;
};

TEST(PrometheusTest, ARealServerStoresTheFiguresOfTheOperationsThatRan) {
  if (RunProgram("/bin/sh", {"-c", "command -v prometheus"}).exit_code != 0) {
    GTEST_SKIP() << "prometheus is not installed";
  }
  DaemonProcess daemon;
  ASSERT_EQ(daemon.Start(), "");
  constexpr uint64_t kOperations = 25, kElements = 3000;
  const auto results = RunRanks(2, [&](RankProcess& self) {
    std::string error;
    qrd_comm_t comm = Attach(daemon.runtime_directory(), self.rank(), 2, &error);
    if (comm == nullptr) return error;
    std::vector<float> x(kElements, 1.0f);
    for (uint64_t i = 0; i < kOperations && error.empty(); ++i) {
      qrd_operation operation = 0;
      error = Outcome(
          qrd_all_reduce(comm, x.data(), x.data(), kElements, QRD_FP32, QRD_SUM, &operation));
      if (error.empty()) error = Outcome(qrd_wait(comm, operation, 0, nullptr));
    }
    const std::string end = Outcome(qrd_comm_finalize(comm));
    return error.empty() ? end : error;
  });
  ASSERT_THAT(results, Each(IsEmpty()));

  const ProgramResult status = RunProgram(
      Qrctl(), {"--runtime-directory", daemon.runtime_directory(), "--output", "json", "status"});
  ASSERT_EQ(status.exit_code, 0) << status.err;
  const std::string metrics = nlohmann::json::parse(status.out)["metrics_address"];
  std::ofstream(daemon.File("prometheus.yml"))
      << "scrape_configs:\n  - job_name: qrd\n    scrape_interval: 1s\n    static_configs:\n"
      << "      - targets: ['" << metrics << "']\n";
  PrometheusProcess prometheus(daemon.File("prometheus.yml"), daemon.File("tsdb"),
                               daemon.File("log"));
  EXPECT_EQ(prometheus.Query("up", 1), 1);
  EXPECT_EQ(prometheus.Query("sum(qrd_operations_total%7Bresult=%22ok%22,codec=%22none%22%7D)", 1),
            kOperations);
  EXPECT_EQ(prometheus.Query("sum(qrd_payload_bytes_total)", 1),
            kOperations * kElements * sizeof(float));
  EXPECT_EQ(
      prometheus.Query("sum(qrd_operation_duration_seconds_count%7Bstage=%22executing%22%7D)", 1),
      kOperations);
  EXPECT_EQ(prometheus.Query("qrd_policy_generation", 1), 1);
}

}  // namespace
}  // namespace qrd::testing
