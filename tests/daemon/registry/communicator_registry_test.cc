// SPDX-License-Identifier: Apache-2.0
#include "daemon/registry/communicator_registry.h"

#include <sys/stat.h>

#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_directory.h"

namespace qrd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class CommunicatorRegistryTest : public ::testing::Test {
 protected:
  CommunicatorRegistryTest() { config.state_directory = directory.path(); }

  std::unique_ptr<CommunicatorRegistry> Open() {
    auto registry = CommunicatorRegistry::Open(config);
    EXPECT_TRUE(registry.ok()) << registry.status();
    return *std::move(registry);
  }
  static v1::Communicator Request(const std::string& name, uint32_t world_size) {
    v1::Communicator request;
    request.set_name(name);
    request.set_world_size(world_size);
    return request;
  }
  static Member Rank(uint64_t session_id, uint32_t rank) {
    Member member;
    member.session_id = session_id;
    member.rank = rank;
    member.pid = static_cast<int32_t>(1000 + session_id);
    member.uid = 7;
    member.attach_time = absl::UnixEpoch();
    return member;
  }
  std::string path() const { return directory / "communicators.textproto"; }

  testing::TempDirectory directory;
  Config config;
};

TEST_F(CommunicatorRegistryTest, CreateGetListDelete) {
  auto registry = Open();
  ASSERT_TRUE(registry->Create(Request("b", 4), false).ok());
  ASSERT_TRUE(registry->Create(Request("a", 2), false).ok());
  const auto b = registry->Get("b");
  ASSERT_TRUE(b.ok());
  EXPECT_EQ(b->name(), "b");
  EXPECT_EQ(b->world_size(), 4u);
  EXPECT_EQ(b->backend(), v1::BACKEND_HOST);
  EXPECT_FALSE(b->created_on_attach());
  EXPECT_GT(b->create_time().seconds(), 0);
  const auto list = registry->List();
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list[0].name(), "a");
  EXPECT_EQ(registry->communicator_count(), 2u);
  EXPECT_EQ(registry->Delete("a", false).value(), 0u);
  EXPECT_EQ(registry->Get("a").status().message(), "no communicator \"a\"");
  EXPECT_EQ(registry->Delete("a", false).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(CommunicatorRegistryTest, BadRequestsNameFieldValueAndBound) {
  config.communicators_max = 2;
  auto registry = Open();
  const auto error = [&](const v1::Communicator& request) {
    return std::string(registry->Create(request, false).status().message());
  };
  EXPECT_THAT(error(Request("", 2)), HasSubstr("name is empty; want 1 to 64"));
  EXPECT_THAT(error(Request("Upper", 2)), HasSubstr("name is \"Upper\""));
  EXPECT_THAT(error(Request("-dash", 2)), HasSubstr("name is \"-dash\""));
  EXPECT_THAT(error(Request(std::string(65, 'x'), 2)), HasSubstr("name is"));
  EXPECT_THAT(error(Request("a/b", 2)), HasSubstr("name is \"a/b\""));
  EXPECT_EQ(error(Request("a", 0)), "world_size is 0: want 1 to 16");
  EXPECT_EQ(error(Request("a", 17)), "world_size is 17: want 1 to 16");
  v1::Communicator gpu = Request("a", 2);
  gpu.set_backend(v1::BACKEND_GPU);
  EXPECT_EQ(registry->Create(gpu, false).status().code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(registry->Create(Request("a", 2), false).ok());
  EXPECT_EQ(registry->Create(Request("a", 2), false).status().code(),
            absl::StatusCode::kAlreadyExists);
  ASSERT_TRUE(registry->Create(Request("b", 2), false).ok());
  EXPECT_EQ(error(Request("c", 2)),
            "there are 2 communicators, in use or made to stay: communicators_max is 2; delete one "
            "(qrctl comm delete NAME)");
}

TEST_F(CommunicatorRegistryTest, OldestUnusedOneOfAnAttachGivesWay) {
  config.communicators_max = 3;
  auto registry = Open();
  ASSERT_TRUE(registry->Create(Request("made", 2), false).ok());
  ASSERT_TRUE(registry->Join("first", "g", 2, true, Rank(1, 0)).ok());
  ASSERT_TRUE(registry->Join("second", "g", 2, true, Rank(2, 0)).ok());
  // All are in use or made to stay.
  EXPECT_EQ(registry->Join("third", "g", 2, true, Rank(3, 0)).status().code(),
            absl::StatusCode::kResourceExhausted);
  registry->Leave(2);
  registry->Leave(1);
  EXPECT_TRUE(registry->Join("third", "g", 2, true, Rank(3, 0)).ok());
  EXPECT_FALSE(registry->Get("first").ok());
  EXPECT_TRUE(registry->Get("second").ok());
  EXPECT_TRUE(registry->Create(Request("fourth", 2), false).ok());
  EXPECT_FALSE(registry->Get("second").ok());
  EXPECT_TRUE(registry->Get("made").ok());
}

TEST_F(CommunicatorRegistryTest, CreateMakesOneOfAnAttachStay) {
  {
    auto registry = Open();
    ASSERT_TRUE(registry->Join("a", "g", 2, true, Rank(1, 0)).ok());
    EXPECT_EQ(std::string(registry->Create(Request("a", 3), false).status().message()),
              "communicator 'a' exists already, made by an attach with world_size 2 and "
              "BACKEND_HOST");
    const auto kept = registry->Create(Request("a", 2), false);
    ASSERT_TRUE(kept.ok()) << kept.status();
    EXPECT_FALSE(kept->created_on_attach());
    EXPECT_EQ(kept->groups_size(), 1);
    EXPECT_EQ(registry->Create(Request("a", 2), false).status().code(),
              absl::StatusCode::kAlreadyExists);
  }
  EXPECT_TRUE(Open()->Get("a").ok());
}

TEST_F(CommunicatorRegistryTest, WhatAnOlderDaemonKeptOfAttachesIsForgotten) {
  std::ofstream(path()) << "communicators { name: \"a\" world_size: 2 created_on_attach: true }\n"
                           "communicators { name: \"b\" world_size: 2 }\n";
  auto registry = Open();
  EXPECT_FALSE(registry->Get("a").ok());
  EXPECT_TRUE(registry->Get("b").ok());
}

TEST_F(CommunicatorRegistryTest, IncarnationsOfOneThatGaveWayDoNotComeAgain) {
  config.communicators_max = 1;
  auto registry = Open();
  EXPECT_EQ(registry->Join("a", "g", 2, true, Rank(1, 0))->incarnation, 1u);
  registry->Leave(1);
  EXPECT_EQ(registry->Join("a", "g", 2, true, Rank(2, 0))->incarnation, 2u);
  registry->Leave(2);
  EXPECT_EQ(registry->Join("b", "g", 2, true, Rank(3, 0))->incarnation, 3u);
  registry->Leave(3);
  EXPECT_EQ(registry->Join("a", "g", 2, true, Rank(4, 0))->incarnation, 4u);
}

TEST_F(CommunicatorRegistryTest, NamesComeBackAfterARestartButNotThoseOfAnAttach) {
  std::string created;
  {
    auto registry = Open();
    ASSERT_TRUE(registry->Create(Request("kept", 3), false).ok());
    ASSERT_TRUE(registry->Join("attached", "g", 2, true, Rank(1, 0)).ok());
    EXPECT_TRUE(registry->Get("attached")->created_on_attach());
    created = registry->Get("kept")->create_time().DebugString();
  }
  auto registry = Open();
  EXPECT_EQ(registry->Get("kept")->world_size(), 3u);
  EXPECT_EQ(registry->Get("kept")->create_time().DebugString(), created);
  EXPECT_FALSE(registry->Get("attached").ok());
}

TEST_F(CommunicatorRegistryTest, BadStateFileIsSetAside) {
  for (const std::string text : {"not a proto {", "communicators { name: \"UPPER\" world_size: 2 }",
                                 "communicators { name: \"a\" world_size: 99 }",
                                 "communicators { name: \"a\" world_size: 2 }\n"
                                 "communicators { name: \"a\" world_size: 2 }"}) {
    std::ofstream(path()) << text;
    auto registry = Open();
    EXPECT_EQ(registry->communicator_count(), 0u) << text;
    std::stringstream aside;
    aside << std::ifstream(path() + ".bad").rdbuf();
    EXPECT_EQ(aside.str(), text);
    EXPECT_TRUE(registry->Create(Request("new", 2), false).ok());
  }
}

TEST_F(CommunicatorRegistryTest, ConfiguredCommunicatorsAreMadeOnce) {
  config.communicators = {Request("configured", 8)};
  Open();
  auto registry = Open();
  EXPECT_EQ(registry->Get("configured")->world_size(), 8u);
  config.communicators = {Request("configured", 4)};
  const auto refused = CommunicatorRegistry::Open(config);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("'configured' has world_size 4 in the configuration but 8 in"));
  config.communicators = {Request("other", 99)};
  EXPECT_THAT(std::string(CommunicatorRegistry::Open(config).status().message()),
              HasSubstr("communicators: world_size is 99"));
}

TEST_F(CommunicatorRegistryTest, StateThatCannotBeWrittenChangesNothing) {
  auto registry = Open();
  ASSERT_TRUE(registry->Create(Request("a", 2), false).ok());
  // A directory in the way of the temporary file (root ignores modes).
  ASSERT_EQ(mkdir((path() + ".tmp").c_str(), 0700), 0);
  EXPECT_FALSE(registry->Create(Request("b", 2), false).ok());
  EXPECT_FALSE(registry->Get("b").ok());
  // An attach writes nothing.
  EXPECT_TRUE(registry->Join("c", "g", 2, true, Rank(1, 0)).ok());
  EXPECT_FALSE(registry->Delete("a", false).ok());
  EXPECT_TRUE(registry->Get("a").ok());
}

TEST_F(CommunicatorRegistryTest, GroupFormsWhenEveryRankHasJoined) {
  auto registry = Open();
  auto first = registry->Join("c", "g", 3, true, Rank(11, 2));
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_FALSE(first->complete);
  EXPECT_EQ(first->incarnation, 1u);
  EXPECT_THAT(registry->MissingRanks("c", "g", 1), ElementsAre(0, 1));
  EXPECT_EQ(registry->Get("c")->groups(0).state(), v1::Group::STATE_FORMING);
  EXPECT_FALSE(registry->Join("c", "g", 3, true, Rank(12, 0))->complete);
  EXPECT_THAT(registry->GroupSessions("c", "g"), ElementsAre(12, 11));
  auto last = registry->Join("c", "g", 3, true, Rank(13, 1));
  EXPECT_TRUE(last->complete);
  EXPECT_THAT(last->session_ids, ElementsAre(12, 13, 11));
  EXPECT_THAT(registry->MissingRanks("c", "g", 1), IsEmpty());
  const v1::Group group = registry->Get("c")->groups(0);
  EXPECT_EQ(group.state(), v1::Group::STATE_READY);
  ASSERT_EQ(group.sessions_size(), 3);
  EXPECT_EQ(group.sessions(1).session_id(), 13u);
  EXPECT_EQ(group.sessions(1).pid(), 1013);
  EXPECT_EQ(group.sessions(1).uid(), 7u);
}

TEST_F(CommunicatorRegistryTest, GroupsOfOneCommunicatorAreApart) {
  auto registry = Open();
  ASSERT_TRUE(registry->Join("c", "one", 2, true, Rank(1, 0)).ok());
  ASSERT_TRUE(registry->Join("c", "two", 2, true, Rank(2, 0)).ok());
  EXPECT_TRUE(registry->Join("c", "two", 2, true, Rank(3, 1))->complete);
  EXPECT_THAT(registry->MissingRanks("c", "one", 1), ElementsAre(1));
  registry->Leave(2);
  EXPECT_EQ(registry->Get("c")->groups(0).state(), v1::Group::STATE_FORMING);
  EXPECT_EQ(registry->Get("c")->groups(1).state(), v1::Group::STATE_BROKEN);
}

TEST_F(CommunicatorRegistryTest, BadJoinsNameFieldValueAndBound) {
  config.create_on_attach = false;
  auto registry = Open();
  ASSERT_TRUE(registry->Create(Request("c", 2), false).ok());
  const auto error = [&](const std::string& c, const std::string& g, uint32_t world_size,
                         uint32_t rank, bool create) {
    return std::string(registry->Join(c, g, world_size, create, Rank(1, rank)).status().message());
  };
  EXPECT_THAT(error("C", "g", 2, 0, true), HasSubstr("communicator is \"C\""));
  EXPECT_THAT(error("c", "g g", 2, 0, true), HasSubstr("group is \"g g\""));
  EXPECT_EQ(error("c", "g", 0, 0, true), "world_size is 0: want 1 to 16");
  EXPECT_EQ(error("c", "g", 17, 0, true), "world_size is 17: want 1 to 16");
  EXPECT_EQ(error("c", "g", 2, 2, true), "rank is 2: want 0 to 1 (world_size is 2)");
  EXPECT_EQ(error("c", "g", 3, 0, true), "world_size is 3: communicator 'c' has 2");
  EXPECT_EQ(error("d", "g", 2, 0, false), "no communicator 'd' (and create_if_absent is not set)");
  EXPECT_EQ(error("d", "g", 2, 0, true),
            "no communicator 'd', and create_on_attach is false in the configuration");
  ASSERT_TRUE(registry->Join("c", "g", 2, false, Rank(5, 0)).ok());
  const auto taken = registry->Join("c", "g", 2, false, Rank(6, 0));
  EXPECT_EQ(taken.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(std::string(taken.status().message()),
            "rank 0 of group 'g' of communicator 'c' is held by process 1005");
}

TEST_F(CommunicatorRegistryTest, BrokenGroupMakesRoomForTheNextIncarnation) {
  auto registry = Open();
  registry->Join("c", "g", 2, true, Rank(1, 0)).IgnoreError();
  EXPECT_TRUE(registry->Join("c", "g", 2, true, Rank(2, 1))->complete);
  registry->Leave(2);
  EXPECT_EQ(registry->Join("c", "g", 2, true, Rank(3, 0))->incarnation, 2u);
  auto both = registry->Get("c");
  ASSERT_EQ(both->groups_size(), 2);
  EXPECT_EQ(both->groups(0).state(), v1::Group::STATE_BROKEN);
  EXPECT_EQ(both->groups(1).state(), v1::Group::STATE_FORMING);
  registry->Leave(1);  // the last one of the broken group
  EXPECT_EQ(registry->Get("c")->groups_size(), 1);
  EXPECT_TRUE(registry->Join("c", "g", 2, true, Rank(4, 1))->complete);
  registry->MarkBroken(3);
  EXPECT_EQ(registry->Get("c")->groups(0).state(), v1::Group::STATE_BROKEN);
  EXPECT_EQ(registry->Join("c", "g", 2, true, Rank(5, 1))->incarnation, 3u);
}

TEST_F(CommunicatorRegistryTest, LeavingAFormingGroupGivesTheRankBack) {
  auto registry = Open();
  ASSERT_TRUE(registry->Join("c", "g", 2, true, Rank(1, 0)).ok());
  registry->Leave(1);
  EXPECT_EQ(registry->Get("c")->groups_size(), 0);
  EXPECT_EQ(registry->Join("c", "g", 2, true, Rank(2, 0))->incarnation, 2u);
  registry->Leave(99);  // unknown
}

TEST_F(CommunicatorRegistryTest, RankThatGaveUpIsNotCalledMissingByTheOthers) {
  auto registry = Open();
  ASSERT_TRUE(registry->Join("c", "g", 3, true, Rank(1, 0)).ok());
  ASSERT_TRUE(registry->Join("c", "g", 3, true, Rank(2, 1)).ok());
  registry->Leave(1, /*gave_up=*/true);
  EXPECT_THAT(registry->MissingRanks("c", "g", 1), ElementsAre(2));
  ASSERT_TRUE(registry->Join("c", "g", 3, true, Rank(3, 2)).ok());
  EXPECT_THAT(registry->MissingRanks("c", "g", 1), ElementsAre(0));
  EXPECT_TRUE(registry->Join("c", "g", 3, true, Rank(4, 0))->complete);
}

TEST_F(CommunicatorRegistryTest, IncarnationsGrowEvenIfNamesAreForgotten) {
  auto registry = Open();
  uint64_t before = 0;
  for (int i = 0; i < 3; ++i) {
    before = registry->Join("c", "mine", 2, true, Rank(1, 0))->incarnation;
    registry->Leave(1);
  }
  for (int i = 0; i < 3000; ++i) {  // a client that makes up names
    ASSERT_TRUE(registry->Join("c", absl::StrCat("g", i), 2, true, Rank(2, 0)).ok());
    registry->Leave(2);
  }
  EXPECT_GT(registry->Join("c", "mine", 2, true, Rank(1, 0))->incarnation, before);
}

TEST_F(CommunicatorRegistryTest, DeleteNeedsForceWhileSessionsAreAttached) {
  auto registry = Open();
  std::vector<uint64_t> ended;
  registry->SetEndSessionsHook([&](const std::vector<uint64_t>& ids) {
    ended = ids;
    EXPECT_EQ(registry->communicator_count(), 0u);  // it is gone by then, and no lock is held
  });
  registry->Join("c", "g", 2, true, Rank(1, 0)).IgnoreError();
  registry->Join("c", "h", 2, true, Rank(2, 1)).IgnoreError();
  const auto refused = registry->Delete("c", false);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(std::string(refused.status().message()),
            "communicator 'c' has 2 attached sessions; set force to end them");
  EXPECT_THAT(ended, IsEmpty());
  EXPECT_EQ(registry->Delete("c", true).value(), 2u);
  EXPECT_THAT(ended, ElementsAre(1, 2));
  registry->Leave(1);
  registry->Leave(2);
}

TEST_F(CommunicatorRegistryTest, CountersOutliveTheirGroups) {
  auto registry = Open();
  auto joined = registry->Join("c", "g", 1, true, Rank(1, 0));
  joined->counters->operations.fetch_add(3);
  joined->counters->wire_bytes.fetch_add(500);
  registry->Leave(1);
  EXPECT_EQ(registry->Get("c")->operations_total(), 3u);
  EXPECT_EQ(registry->Get("c")->wire_bytes_total(), 500u);
}

}  // namespace
}  // namespace qrd
