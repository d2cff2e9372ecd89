// SPDX-License-Identifier: Apache-2.0
#include "daemon/policy/policy_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <set>
#include <thread>

#include "daemon/base/file.h"
#include "tests/daemon/policy/policy_text.h"
#include "tests/support/fake_backend.h"
#include "tests/support/temp_directory.h"

namespace qrd {
namespace {

using testing::FakeBackend;
using ::testing::HasSubstr;
using testing::PolicyFrom;
using testing::TempDirectory;

constexpr char kInt8[] = "rules { name: \"a\" action { codec: CODEC_INT8 } }";
constexpr char kInt4[] = "rules { name: \"b\" action { codec: CODEC_INT4 } }";
constexpr char kBad[] = "rules { name: \"c\" }";

class PolicyStoreTest : public ::testing::Test {
 protected:
  std::unique_ptr<PolicyStore> Open(const std::string& initial = "") {
    auto store = PolicyStore::Open(directory_.path(), PolicyFrom(initial), backend_);
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? *std::move(store) : nullptr;
  }
  std::string path() const { return directory_ / "policy.textproto"; }

  const TempDirectory directory_;
  const FakeBackend backend_{};
};

TEST_F(PolicyStoreTest, BeginsWithTheInitialPolicyAsGeneration1AndWritesNothing) {
  const auto store = Open(kInt8);
  EXPECT_EQ(store->current()->generation(), 1u);
  EXPECT_EQ(store->current()->proto().rules(0).name(), "a");
  EXPECT_FALSE(store->snapshot().set_by_uid.has_value());
  EXPECT_NE(access(path().c_str(), F_OK), 0);
}

TEST_F(PolicyStoreTest, KeepsWhatWasSetOverARestart) {
  absl::Time set_time;
  {
    const auto store = Open();
    EXPECT_EQ(*store->Set(PolicyFrom(kInt8), 0, false, 1000), 2u);
    EXPECT_EQ(*store->Set(PolicyFrom(kInt4), 2, false, 1001), 3u);
    set_time = store->snapshot().set_time;
  }
  const auto store = Open(kInt8);  // the initial policy no longer counts
  EXPECT_EQ(store->current()->generation(), 3u);
  EXPECT_EQ(store->current()->proto().rules(0).name(), "b");
  EXPECT_EQ(store->snapshot().set_by_uid, 1001u);
  EXPECT_EQ(absl::ToUnixSeconds(store->snapshot().set_time), absl::ToUnixSeconds(set_time));
  EXPECT_EQ(*store->Set(PolicyFrom(""), 3, false, 0), 4u);
}

TEST_F(PolicyStoreTest, RefusesABadPolicyAnExpiredGenerationAndKeepsTheOldOne) {
  const auto store = Open();
  ASSERT_TRUE(store->Set(PolicyFrom(kInt8), 0, false, 0).ok());
  const std::string file = *ReadFile(path(), 1 << 20);
  EXPECT_TRUE(absl::IsInvalidArgument(store->Set(PolicyFrom(kBad), 0, false, 0).status()));
  const absl::Status aborted = store->Set(PolicyFrom(kInt4), 1, false, 0).status();
  EXPECT_TRUE(absl::IsAborted(aborted));
  EXPECT_THAT(std::string(aborted.message()),
              HasSubstr("expected_generation is 1, but generation 2 is in force"));
  EXPECT_TRUE(absl::IsAborted(store->Set(PolicyFrom(kInt4), 3, false, 0).status()));
  EXPECT_EQ(store->current()->generation(), 2u);
  EXPECT_EQ(store->current()->proto().rules(0).name(), "a");
  EXPECT_EQ(*ReadFile(path(), 1 << 20), file);
}

TEST_F(PolicyStoreTest, ValidatesWithoutAChange) {
  const auto store = Open();
  EXPECT_EQ(*store->Set(PolicyFrom(kInt8), 0, true, 0), 1u);
  EXPECT_EQ(*store->Set(PolicyFrom(kInt8), 1, true, 0), 1u);
  EXPECT_TRUE(absl::IsInvalidArgument(store->Set(PolicyFrom(kBad), 0, true, 0).status()));
  EXPECT_TRUE(absl::IsAborted(store->Set(PolicyFrom(kInt8), 9, true, 0).status()));
  EXPECT_EQ(store->current()->proto().rules_size(), 0);
  EXPECT_NE(access(path().c_str(), F_OK), 0);
}

TEST_F(PolicyStoreTest, SetsABadFileAsideAndStartsWithTheBuiltInPolicy) {
  for (const char* bad : {"policy { rules { nme: \"a\" } } generation: 5", "generation: 0",
                          "policy { rules { name: \"a\" } } generation: 5", "\x01\x02"}) {
    std::ofstream(path()) << bad;
    const auto store = Open(kInt8);
    ASSERT_NE(store, nullptr);
    EXPECT_EQ(store->current()->proto().rules_size(), 0) << bad;
    EXPECT_NE(access(path().c_str(), F_OK), 0);
    EXPECT_EQ(*ReadFile(path() + ".bad", 1 << 20), bad);
  }
}

// The next generation would be 0, which stands for any.
TEST_F(PolicyStoreTest, TakesAGenerationThatCannotBeCountedOnForDamage) {
  for (const char* generation : {"18446744073709551615", "9223372036854775809"}) {
    std::ofstream(path()) << "policy { } generation: " << generation;
    const auto store = Open(kInt8);
    ASSERT_NE(store, nullptr);
    EXPECT_EQ(store->current()->generation(), 1u);
    EXPECT_EQ(access((path() + ".bad").c_str(), F_OK), 0);
  }
  std::ofstream(path()) << "policy { } generation: 9223372036854775808";
  EXPECT_EQ(Open()->current()->generation(), uint64_t{1} << 63);
}

TEST_F(PolicyStoreTest, RefusesToStartWithABadInitialPolicy) {
  const auto store = PolicyStore::Open(directory_.path(), PolicyFrom(kBad), backend_);
  EXPECT_TRUE(absl::IsInvalidArgument(store.status()));
  EXPECT_THAT(std::string(store.status().message()),
              HasSubstr("initial_policy: rule 1 (\"c\"): action.codec is unset"));
}

TEST_F(PolicyStoreTest, ChangesNothingIfTheFileCannotBeWritten) {
  const auto store = Open();
  ASSERT_TRUE(store->Set(PolicyFrom(kInt8), 0, false, 0).ok());
  int calls = 0;
  store->AddListener([&calls](const PolicyStore::Snapshot&) { ++calls; });
  ASSERT_EQ(mkdir((path() + ".tmp").c_str(), 0700), 0);  // also stops uid 0
  const absl::Status status = store->Set(PolicyFrom(kInt4), 0, false, 0).status();
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("the policy in force is unchanged (generation 2): cannot create"));
  EXPECT_EQ(store->current()->generation(), 2u);
  EXPECT_EQ(store->current()->proto().rules(0).name(), "a");
  EXPECT_EQ(calls, 0);
  ASSERT_EQ(rmdir((path() + ".tmp").c_str()), 0);
  EXPECT_EQ(*store->Set(PolicyFrom(kInt4), 2, false, 0), 3u);
  EXPECT_EQ(calls, 1);
}

TEST_F(PolicyStoreTest, CallsListenersUntilTheyAreRemoved) {
  const auto store = Open();
  std::vector<uint64_t> seen;
  const uint64_t id = store->AddListener(
      [&seen](const PolicyStore::Snapshot& s) { seen.push_back(s.policy->generation()); });
  ASSERT_TRUE(store->Set(PolicyFrom(kInt8), 0, false, 0).ok());
  ASSERT_TRUE(store->Set(PolicyFrom(kInt8), 0, true, 0).ok());
  ASSERT_TRUE(store->Set(PolicyFrom(kInt4), 0, false, 0).ok());
  store->RemoveListener(id);
  ASSERT_TRUE(store->Set(PolicyFrom(""), 0, false, 0).ok());
  EXPECT_EQ(seen, (std::vector<uint64_t>{2, 3}));
}

TEST_F(PolicyStoreTest, GivesEachOfManyConcurrentSettersItsOwnGeneration) {
  const auto store = Open();
  constexpr int kThreads = 4, kSets = 20;
  std::atomic<bool> stop{false};
  std::thread reader([&] {
    uint64_t last = 0;
    while (!stop) {
      const auto policy = store->current();
      EXPECT_GE(policy->generation(), last);
      last = policy->generation();
      if (last > 1) {
        EXPECT_EQ(policy->proto().rules_size(), 1);
      }
    }
  });
  std::vector<std::vector<uint64_t>> generations(kThreads);
  std::vector<std::thread> setters;
  for (int t = 0; t < kThreads; ++t) {
    setters.emplace_back([&, t] {
      for (int i = 0; i < kSets; ++i) {
        generations[t].push_back(*store->Set(PolicyFrom(t % 2 ? kInt8 : kInt4), 0, false, t));
      }
    });
  }
  for (std::thread& setter : setters) setter.join();
  stop = true;
  reader.join();
  std::set<uint64_t> all;
  for (const auto& list : generations) all.insert(list.begin(), list.end());
  EXPECT_EQ(all.size(), size_t{kThreads * kSets});
  EXPECT_EQ(*all.rbegin(), uint64_t{kThreads * kSets + 1});
  EXPECT_EQ(Open()->current()->generation(), uint64_t{kThreads * kSets + 1});
}

// Of those who expect the same generation exactly one wins.
TEST_F(PolicyStoreTest, LetsOneOfManyRivalsWin) {
  const auto store = Open();
  std::atomic<int> won{0}, aborted{0};
  std::vector<std::thread> rivals;
  for (int t = 0; t < 8; ++t) {
    rivals.emplace_back([&] {
      const auto result = store->Set(PolicyFrom(kInt8), 1, false, 0);
      if (result.ok()) ++won;
      if (absl::IsAborted(result.status())) ++aborted;
    });
  }
  for (std::thread& rival : rivals) rival.join();
  EXPECT_EQ(won, 1);
  EXPECT_EQ(aborted, 7);
}

}  // namespace
}  // namespace qrd
