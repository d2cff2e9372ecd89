// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/peer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <vector>

#include "daemon/base/unique_fd.h"

namespace qrd {
namespace {

using ::testing::HasSubstr;

std::string TextOf(int fd) { return "fd:" + std::to_string(fd); }

TEST(IdentifyPeer, TellsWhoIsAtTheOtherEnd) {
  int fds[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  const UniqueFd a(fds[0]), b(fds[1]);
  const auto peer = IdentifyPeer(a.get(), std::nullopt);
  ASSERT_TRUE(peer.ok()) << peer.status();
  EXPECT_EQ(peer->pid, getpid());
  EXPECT_EQ(peer->uid, geteuid());
  EXPECT_TRUE(peer->is_admin);  // the daemon's own uid
}

TEST(IdentifyPeer, FailsForWhatIsNoSocket) {
  EXPECT_FALSE(IdentifyPeer(STDERR_FILENO, std::nullopt).ok());
  EXPECT_FALSE(IdentifyPeer(-1, std::nullopt).ok());
}

TEST(PeerTable, FindsOnlyDescriptorsThatItKnows) {
  Metrics metrics({});
  PeerTable peers(&metrics);
  const UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_TRUE(peers.Add(fd.get(), Peer{1, 1000, false}).ok());
  EXPECT_EQ(peers.Find(TextOf(fd.get()))->uid, 1000u);
  for (const std::string text : {"", "fd:", "fd:-1", "fd:99999", "unix:", "ipv4:127.0.0.1:1",
                                 "fd:1x", "fd:99999999999999"}) {
    EXPECT_EQ(peers.Find(text).status().code(), absl::StatusCode::kInternal) << text;
    EXPECT_FALSE(peers.Authorize(text, "x").ok());
  }
  EXPECT_EQ(peers.Authorize(TextOf(fd.get()), "set the policy").status().code(),
            absl::StatusCode::kPermissionDenied);
}

TEST(PeerTable, BoundsConnectionsKeepsRoomForAdminsAndForgetsClosedOnes) {
  Metrics metrics({});
  PeerTable peers(&metrics);
  const Peer admin{2, 0, true};
  std::vector<UniqueFd> fds;
  const auto next = [&fds] {
    fds.emplace_back(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    return fds.back().get();
  };
  // Several users, since one has a bound of its own.
  for (size_t i = 0; i < PeerTable::kStrangerConnectionsMax; ++i) {
    const auto uid = static_cast<uid_t>(1000 + i / PeerTable::kUidConnectionsMax);
    ASSERT_TRUE(peers.Add(next(), Peer{1, uid, false}).ok()) << i;
  }
  const Peer stranger{1, 2000, false};
  EXPECT_THAT(std::string(peers.Add(next(), stranger).message()),
              HasSubstr("224 control connections are open; at most 224"));
  for (size_t i = PeerTable::kStrangerConnectionsMax; i < PeerTable::kConnectionsMax; ++i) {
    ASSERT_TRUE(peers.Add(next(), admin).ok()) << i;
  }
  EXPECT_EQ(peers.Add(next(), admin).code(), absl::StatusCode::kResourceExhausted);
  fds.clear();  // as gRPC closes them
  EXPECT_TRUE(peers.Add(next(), stranger).ok());
}

TEST(PeerTable, OneUserCannotLockOutTheOthers) {
  Metrics metrics({});
  PeerTable peers(&metrics);
  std::vector<UniqueFd> fds;
  const auto next = [&fds] {
    fds.emplace_back(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    return fds.back().get();
  };
  const Peer greedy{1, 1000, false};
  for (size_t i = 0; i < PeerTable::kUidConnectionsMax; ++i) {
    ASSERT_TRUE(peers.Add(next(), greedy).ok()) << i;
  }
  EXPECT_THAT(std::string(peers.Add(next(), greedy).message()),
              HasSubstr("uid 1000 has 64 control connections; at most 64"));
  EXPECT_TRUE(peers.Add(next(), Peer{1, 1001, false}).ok());
  EXPECT_TRUE(peers.Add(next(), Peer{1, 1000, true}).ok());
  fds.erase(fds.begin());
  EXPECT_TRUE(peers.Add(next(), greedy).ok());
}

}  // namespace
}  // namespace qrd
