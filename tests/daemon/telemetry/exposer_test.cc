// SPDX-License-Identifier: Apache-2.0
#include "daemon/telemetry/exposer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <mutex>

#include "tests/daemon/telemetry/http.h"

namespace qrd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::HttpGet;
using testing::HttpRaw;
using ::testing::StartsWith;

class ExposerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Exposer::Sources sources;
    sources.metrics = &metrics_;
    sources.live_error = [this] { return Error(&live_error_); };
    sources.ready_error = [this] { return Error(&ready_error_); };
    auto exposer = Exposer::Start("127.0.0.1:0", std::move(sources));
    ASSERT_TRUE(exposer.ok()) << exposer.status();
    exposer_ = *std::move(exposer);
  }
  std::string Error(const std::string* error) {
    std::lock_guard<std::mutex> lock(mu_);
    return *error;
  }
  void Set(std::string* error, const std::string& value) {
    std::lock_guard<std::mutex> lock(mu_);
    *error = value;
  }

  Metrics metrics_{GaugeSources{}};
  std::mutex mu_;
  std::string live_error_, ready_error_;
  std::unique_ptr<Exposer> exposer_;
};

TEST_F(ExposerTest, TellsThePortThatItGot) {
  EXPECT_THAT(exposer_->address(), StartsWith("127.0.0.1:"));
  EXPECT_NE(exposer_->address(), "127.0.0.1:0");
}

TEST_F(ExposerTest, ServesMetricsAsPrometheusText) {
  metrics_.RecordRingFull(9);
  EXPECT_THAT(HttpGet(exposer_->address(), "/metrics"),
              AllOf(StartsWith("HTTP/1.1 200 OK\r\n"),
                    HasSubstr("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"),
                    HasSubstr("# TYPE qrd_ring_full_total counter\nqrd_ring_full_total 9\n")));
}

TEST_F(ExposerTest, PassesPromtool) {
  if (system("command -v promtool >/dev/null 2>&1") != 0)
    GTEST_SKIP() << "promtool is not installed";
  const std::string reply = HttpGet(exposer_->address(), "/metrics");
  FILE* promtool = popen("promtool check metrics 2>&1", "w");
  ASSERT_NE(promtool, nullptr);
  fputs(reply.substr(reply.find("\r\n\r\n") + 4).c_str(), promtool);
  EXPECT_EQ(pclose(promtool), 0);
}

TEST_F(ExposerTest, SaysWhyItIsNotAliveOrNotReady) {
  EXPECT_THAT(HttpGet(exposer_->address(), "/livez"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(HttpGet(exposer_->address(), "/readyz"), StartsWith("HTTP/1.1 200"));
  Set(&live_error_, "the engine is stuck");
  Set(&ready_error_, "draining");
  EXPECT_THAT(HttpGet(exposer_->address(), "/livez"),
              AllOf(StartsWith("HTTP/1.1 503"), HasSubstr("the engine is stuck\n")));
  EXPECT_THAT(HttpGet(exposer_->address(), "/readyz"),
              AllOf(StartsWith("HTTP/1.1 503"), HasSubstr("draining\n")));
}

TEST_F(ExposerTest, RefusesOtherPathsAndMethods) {
  for (const char* path : {"/", "/metricsx", "/metrics/x", "/../etc/passwd", "/livez/.."}) {
    EXPECT_THAT(HttpGet(exposer_->address(), path), Not(StartsWith("HTTP/1.1 200"))) << path;
  }
  EXPECT_THAT(HttpRaw(exposer_->address(), "POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n"),
              StartsWith("HTTP/1.1 405"));
  EXPECT_THAT(HttpRaw(exposer_->address(), "DELETE /livez HTTP/1.1\r\n\r\n"),
              StartsWith("HTTP/1.1 405"));
  EXPECT_THAT(HttpRaw(exposer_->address(), "HEAD /livez HTTP/1.1\r\n\r\n"),
              AllOf(StartsWith("HTTP/1.1 200"), Not(HasSubstr("ok\n"))));
}

TEST_F(ExposerTest, SurvivesGarbage) {
  HttpRaw(exposer_->address(), "\r\n\r\n");
  HttpRaw(exposer_->address(), std::string(100000, 'A') + "\r\n\r\n");
  HttpRaw(exposer_->address(), "GET /metrics HTTP/9.9\r\n\r\n");
  EXPECT_THAT(HttpGet(exposer_->address(), "/livez"), StartsWith("HTTP/1.1 200"));
}

TEST_F(ExposerTest, AnswersProbesBesideConnectionsThatSayNothing) {
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 24; ++i) {
    silent.push_back(testing::HttpConnect(exposer_->address()));
    ASSERT_TRUE(silent.back().valid());
  }
  EXPECT_THAT(HttpGet(exposer_->address(), "/livez"), StartsWith("HTTP/1.1 200 OK\r\n"));
}

TEST_F(ExposerTest, SaysThatThePortIsTakenAndWhatToDo) {
  Exposer::Sources sources;
  sources.metrics = &metrics_;
  const auto second = Exposer::Start(exposer_->address(), std::move(sources));
  EXPECT_TRUE(absl::IsAlreadyExists(second.status()));
  EXPECT_THAT(std::string(second.status().message()),
              AllOf(HasSubstr("metrics_address " + exposer_->address()),
                    HasSubstr("Address already in use"), HasSubstr("--metrics-address")));
}

TEST_F(ExposerTest, EndsWithoutWaitingForIdleThreads) {
  const auto begin = std::chrono::steady_clock::now();
  exposer_.reset();
  // civetweb alone takes 2 s.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(1500));
}

TEST(ExposerStart, RefusesABadAddress) {
  for (const char* address : {"", "9478", "host.example:1", "127.0.0.1:1,127.0.0.1:2"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(Exposer::Start(address, {}).status())) << address;
  }
}

}  // namespace
}  // namespace qrd
