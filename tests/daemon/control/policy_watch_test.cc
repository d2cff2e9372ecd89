// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/policy_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <list>
#include <thread>

#include "tests/daemon/control/control_env.h"

namespace qrd {
namespace {

using testing::Context;
using testing::ControlEnv;
using ::testing::HasSubstr;
using testing::kInt8Policy;
using testing::SetRequest;

// An open stream.
class Watcher {
 public:
  explicit Watcher(const std::shared_ptr<grpc::Channel>& channel)
      : stub_(v1::PolicyService::NewStub(channel)),
        reader_(stub_->WatchPolicy(&context_, v1::WatchPolicyRequest())) {}

  // 0 at the end of the stream.
  uint64_t NextGeneration() {
    v1::WatchPolicyResponse reply;
    return reader_->Read(&reply) ? reply.generation() : 0;
  }
  grpc::Status Finish() { return reader_->Finish(); }
  void Cancel() { context_.TryCancel(); }

 private:
  Context context_;
  std::unique_ptr<v1::PolicyService::Stub> stub_;
  std::unique_ptr<grpc::ClientReader<v1::WatchPolicyResponse>> reader_;
};

TEST(PolicyWatch, SendsThePolicyInForceThenEachChange) {
  const ControlEnv env;
  Watcher watcher(env.Connect());
  EXPECT_EQ(watcher.NextGeneration(), 1u);
  for (uint64_t generation = 2; generation < 10; ++generation) {
    ASSERT_TRUE(env.policy->Set(SetRequest(kInt8Policy).policy(), 0, false, 0).ok());
    EXPECT_EQ(watcher.NextGeneration(), generation);
  }
}

TEST(PolicyWatch, SkipsGenerationsButNotTheLastForASlowReader) {
  const ControlEnv env;
  Watcher watcher(env.Connect());
  EXPECT_EQ(watcher.NextGeneration(), 1u);
  constexpr uint64_t kLast = 61;
  v1::Policy policy = SetRequest(kInt8Policy).policy();
  for (int i = 1; i < 200; ++i) {  // large, so that it does not all fit into buffers
    v1::Rule* rule = policy.add_rules();
    rule->set_name("rule-" + std::to_string(i) + std::string(40, 'x'));
    rule->mutable_match()->set_communicator("c" + std::to_string(i));
    rule->mutable_action()->set_codec(v1::CODEC_NONE);
  }
  std::swap(*policy.mutable_rules(0), *policy.mutable_rules(199));
  for (uint64_t generation = 2; generation <= kLast; ++generation) {
    ASSERT_TRUE(env.policy->Set(policy, 0, false, 0).ok());
  }
  uint64_t last = 1;
  while (last < kLast) {
    const uint64_t next = watcher.NextGeneration();
    ASSERT_GT(next, last);
    last = next;
  }
  EXPECT_EQ(last, kLast);
}

TEST(PolicyWatch, EndsWithUnavailableWhenTheDaemonDrains) {
  ControlEnv env;
  const auto channel = env.Connect();
  Watcher watcher(channel);
  EXPECT_EQ(watcher.NextGeneration(), 1u);
  const auto begin = std::chrono::steady_clock::now();
  env.server->Stop(absl::Seconds(15));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  EXPECT_EQ(watcher.NextGeneration(), 0u);
  EXPECT_EQ(watcher.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST(PolicyWatch, RefusesTheWatcherAfterTheLastAndTakesOneForOneThatLeft) {
  const ControlEnv env;
  const std::shared_ptr<grpc::Channel> channels[] = {env.Connect(), env.Connect()};
  std::list<Watcher> watchers;
  for (size_t i = 0; i < PolicyWatchHub::kWatchersMax; ++i) {
    watchers.emplace_back(channels[i % 2]);
    ASSERT_EQ(watchers.back().NextGeneration(), 1u) << i;
  }
  Watcher refused(channels[0]);
  EXPECT_EQ(refused.NextGeneration(), 0u);
  const grpc::Status status = refused.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("64 policy watchers"));

  watchers.front().Cancel();
  EXPECT_EQ(watchers.front().Finish().error_code(), grpc::StatusCode::CANCELLED);
  // The daemon hears of it a little later.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  uint64_t generation = 0;
  while (generation == 0 && std::chrono::steady_clock::now() < deadline) {
    Watcher next(channels[1]);
    generation = next.NextGeneration();
    next.Cancel();
    next.Finish();
  }
  EXPECT_EQ(generation, 1u);
}

TEST(PolicyWatch, SurvivesChangesWhileWatchersComeAndGo) {
  const ControlEnv env;
  const auto channel = env.Connect();
  std::atomic<bool> stop{false};
  std::thread setter([&] {
    while (!stop) {
      EXPECT_TRUE(env.policy->Set(SetRequest(kInt8Policy).policy(), 0, false, 0).ok());
    }
  });
  for (int i = 0; i < 50; ++i) {
    Watcher watcher(channel);
    EXPECT_GT(watcher.NextGeneration(), 0u);
    watcher.Cancel();
    watcher.Finish();
  }
  stop = true;
  setter.join();
}

}  // namespace
}  // namespace qrd
