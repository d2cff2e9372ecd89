// SPDX-License-Identifier: Apache-2.0
// The handshake: every right and wrong message, each with its answer. The daemon serves on after
// each.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/daemon/data_path.h"

namespace qrd::testing {
namespace {

using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

class AttachTest : public ::testing::Test {
 protected:
  void TearDown() override {
    auto group = daemon.Group(1, "alive");  // still serves
  }
  std::unique_ptr<RawClient> Greeted() {
    auto client = std::make_unique<RawClient>(daemon.socket());
    EXPECT_EQ(client->Hello(), "");
    return client;
  }
  std::string JoinError(const std::string& communicator, const std::string& group, uint32_t rank,
                        uint32_t world_size, uint32_t timeout_ms = 0, bool create = true) {
    auto client = Greeted();
    client->SendJoin(communicator, group, rank, world_size, timeout_ms, create);
    const std::string error = client->FinishJoin();
    last_status = client->last_status();
    // An argument error does not cost the connection.
    client->SendJoin(absl::StrCat("retry", ++retries), "g", 0, 1);
    EXPECT_EQ(client->FinishJoin(), "");
    return error;
  }

  DataPath daemon;
  shm::Status last_status = shm::Status::kOk;
  int retries = 0;
};

TEST_F(AttachTest, SocketIsForTheGroupOnly) {
  struct stat info;
  ASSERT_EQ(stat(daemon.socket().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0660u);
  EXPECT_TRUE(S_ISSOCK(info.st_mode));
}

TEST_F(AttachTest, JoinedDescribesTheSegments) {
  auto clients = daemon.Group(2);
  const v1::Joined& joined = clients[1]->joined();
  EXPECT_EQ(joined.node_segment_bytes(), shm::kNodeSegmentBytes);
  EXPECT_EQ(joined.session_segment_bytes(), shm::SessionSegmentBytes(16));
  EXPECT_EQ(joined.operation_timeout_ms(), 30000u);
  EXPECT_EQ(joined.spin_us_max(), 200u);
  EXPECT_EQ(joined.incarnation(), 1u);
  const auto* header = reinterpret_cast<const shm::SessionHeader*>(clients[1]->segment());
  EXPECT_EQ(header->magic, shm::kSessionMagic);
  EXPECT_EQ(header->layout_version, shm::kLayoutVersion);
  EXPECT_EQ(header->session_id, joined.session_id());
  EXPECT_EQ(header->rank, 1u);
  EXPECT_EQ(header->world_size, 2u);
  EXPECT_EQ(header->slot_count, 16u);
  EXPECT_EQ(header->ring_offset_bytes, shm::kRingOffsetBytes);
  EXPECT_EQ(clients[1]->node()->magic, shm::kNodeMagic);
  EXPECT_EQ(clients[1]->node()->daemon_start_ns, daemon.node->daemon_start_ns());
  const auto described = daemon.registry->Get("c");
  EXPECT_EQ(described->groups(0).sessions(0).pid(), getpid());
  EXPECT_EQ(described->groups(0).sessions(0).uid(), getuid());
  EXPECT_EQ(daemon.server->session_count(), 2u);
}

TEST_F(AttachTest, OtherLayoutVersionIsRefusedClearly) {
  for (const uint32_t version : {0u, shm::kLayoutVersion - 1, shm::kLayoutVersion + 1, 99u}) {
    RawClient client(daemon.socket());
    EXPECT_THAT(client.Hello(version),
                HasSubstr(absl::StrCat("layout_version is ", version, ": daemon ")));
    EXPECT_EQ(client.last_status(), shm::Status::kFailedPrecondition);
    EXPECT_THAT(client.last_error(), HasSubstr(absl::StrCat("speaks ", shm::kLayoutVersion)));
    EXPECT_TRUE(client.WaitForClose());
  }
}

TEST_F(AttachTest, FirstMessageMustBeHello) {
  RawClient client(daemon.socket());
  client.SendJoin("c", "g", 0, 1);
  EXPECT_EQ(client.FinishJoin(), "the first message must be Hello");
  EXPECT_TRUE(client.WaitForClose());
}

TEST_F(AttachTest, SecondHelloIsRefused) {
  auto client = Greeted();
  EXPECT_EQ(client->Hello(), "a second Hello");
  EXPECT_TRUE(client->WaitForClose());
}

TEST_F(AttachTest, LongClientVersionIsRefused) {
  RawClient client(daemon.socket());
  v1::ClientMessage message;
  message.mutable_hello()->set_layout_version(shm::kLayoutVersion);
  message.mutable_hello()->set_client_version(std::string(65, 'v'));
  client.Send(message);
  const auto reply = client.Receive();
  ASSERT_TRUE(reply && reply->has_error());
  EXPECT_EQ(reply->error().message(), "client_version has 65 bytes: at most 64");
}

TEST_F(AttachTest, JunkIsRefused) {
  std::mt19937 random(3);
  std::vector<std::string> packets = {std::string(1, '\0'), std::string(4096, '\xff'), "hello"};
  for (int i = 0; i < 50; ++i) {
    std::string packet(1 + random() % 4096, '\0');
    for (char& c : packet) c = static_cast<char>(random());
    packets.push_back(packet);
  }
  for (const std::string& packet : packets) {
    RawClient client(daemon.socket());
    ASSERT_TRUE(client.SendBytes(packet));
    const auto reply = client.Receive();
    ASSERT_TRUE(reply && reply->has_error());
    EXPECT_THAT(reply->error().message(),
                ::testing::AnyOf(HasSubstr("bytes are no qrd.v1.ClientMessage"),
                                 HasSubstr("must be Hello"), HasSubstr("layout_version")));
    EXPECT_TRUE(client.WaitForClose());
  }
}

TEST_F(AttachTest, EmptyPacketEndsTheConnection) {
  RawClient client(daemon.socket());
  client.SendBytes("");
  EXPECT_TRUE(client.WaitForClose());
}

TEST_F(AttachTest, TooLargeMessageIsRefused) {
  RawClient client(daemon.socket());
  ASSERT_TRUE(client.SendBytes(std::string(5000, 'x')));
  const auto reply = client.Receive();
  ASSERT_TRUE(reply && reply->has_error());
  EXPECT_EQ(reply->error().message(), "message has 5000 bytes: at most 4096");
  EXPECT_TRUE(client.WaitForClose());
}

TEST_F(AttachTest, DescriptorsFromAClientAreRefusedAndNotKept) {
  RawClient client(daemon.socket());
  v1::ClientMessage hello;
  hello.mutable_hello()->set_layout_version(shm::kLayoutVersion);
  int pipe_fds[2];
  ASSERT_EQ(pipe2(pipe_fds, O_CLOEXEC | O_NONBLOCK), 0);
  ASSERT_TRUE(client.SendBytes(hello.SerializeAsString(), std::vector<int>(10, pipe_fds[1])));
  close(pipe_fds[1]);
  const auto reply = client.Receive();
  ASSERT_TRUE(reply && reply->has_error());
  EXPECT_EQ(reply->error().message(), "message carries descriptors: a client sends none");
  EXPECT_TRUE(client.WaitForClose());
  char byte;
  EXPECT_EQ(read(pipe_fds[0], &byte, 1), 0);  // nobody holds the other end
  close(pipe_fds[0]);
}

TEST_F(AttachTest, BadJoinsAreRefusedByFieldValueAndBound) {
  EXPECT_EQ(JoinError("c", "g", 0, 0), "world_size is 0: want 1 to 16");
  EXPECT_EQ(last_status, shm::Status::kInvalidArgument);
  EXPECT_EQ(JoinError("c", "g", 0, 17), "world_size is 17: want 1 to 16");
  EXPECT_EQ(JoinError("c", "g", 0, UINT32_MAX), "world_size is 4294967295: want 1 to 16");
  EXPECT_EQ(JoinError("c", "g", 5, 2), "rank is 5: want 0 to 1 (world_size is 2)");
  EXPECT_THAT(JoinError("", "g", 0, 2), HasSubstr("communicator is empty; want 1 to 64"));
  EXPECT_THAT(JoinError("No Way", "g", 0, 2), HasSubstr("communicator is \"No Way\""));
  EXPECT_THAT(JoinError("c", "\n", 0, 2), HasSubstr("group is "));
  EXPECT_EQ(JoinError("c", "g", 0, 2, 3'600'001), "timeout_ms is 3600001: want 0 to 3600000");
  EXPECT_EQ(JoinError("absent", "g", 0, 2, 0, false),
            "no communicator 'absent' (and create_if_absent is not set)");
  EXPECT_EQ(last_status, shm::Status::kNotFound);
  auto clients = daemon.Group(2, "taken");
  EXPECT_THAT(JoinError("taken", "default", 1, 2),
              HasSubstr("rank 1 of group 'default' of communicator 'taken' is held by process"));
  EXPECT_EQ(last_status, shm::Status::kAlreadyExists);
  EXPECT_EQ(JoinError("taken", "g", 0, 3), "world_size is 3: communicator 'taken' has 2");
}

TEST_F(AttachTest, RequestsBeforeAndAfterJoinAreInOrderOrRefused) {
  auto client = Greeted();
  EXPECT_EQ(client->Alloc(4096).data, nullptr);
  EXPECT_EQ(client->last_error(), "this connection has not joined");
  EXPECT_EQ(client->last_status(), shm::Status::kFailedPrecondition);
  EXPECT_EQ(client->Abort("x"), "this connection has not joined");
  client->SendJoin("c", "g", 0, 1);
  EXPECT_EQ(client->FinishJoin(), "");
  client->SendJoin("c", "g", 0, 1);
  EXPECT_EQ(client->FinishJoin(), "this connection has joined already");
  EXPECT_NE(client->Alloc(4096).data, nullptr);
}

TEST_F(AttachTest, MessageWhileTheJoinIsPendingEndsTheConnection) {
  auto client = Greeted();
  client->SendJoin("c", "g", 0, 2);
  EXPECT_EQ(client->Abort("x"), "a message before the reply to Join");
  EXPECT_TRUE(client->WaitForClose());
  EXPECT_EQ(daemon.server->session_count(), 0u);
}

TEST_F(AttachTest, ArenaBoundsAreNamed) {
  auto client = std::move(daemon.Group(1)[0]);
  EXPECT_EQ(client->Alloc(0).data, nullptr);
  EXPECT_EQ(client->last_error(), "arena bytes is 0, want at least 1");
  EXPECT_EQ(client->Alloc(UINT64_MAX).data, nullptr);
  EXPECT_THAT(client->last_error(), HasSubstr("arena_bytes_per_session_max is 268435456"));
  EXPECT_EQ(client->last_status(), shm::Status::kResourceExhausted);
  for (int i = 0; i < 8; ++i) EXPECT_NE(client->Alloc(1).data, nullptr);
  EXPECT_EQ(client->Alloc(1).data, nullptr);
  EXPECT_EQ(client->last_error(), "session has 8 arenas: arenas_per_session_max is 8");
  EXPECT_EQ(daemon.server->arena_bytes(), 8u * 4096);
  RawArena unknown;
  unknown.arena_id = 12;
  EXPECT_THAT(client->Free(unknown), HasSubstr("arena_id is 12: this session has no such arena"));
  EXPECT_EQ(client->last_status(), shm::Status::kNotFound);
}

TEST_F(AttachTest, MissingRanksAreNamedAndTheirMemoryIsReleased) {  // F33
  std::vector<std::unique_ptr<RawClient>> clients;
  const Clock::time_point start = Clock::now();
  for (const uint32_t rank : {0u, 1u, 3u}) {
    clients.push_back(Greeted());
    clients.back()->SendJoin("c", "g", rank, 4, 500);
  }
  for (size_t i = 0; i < 3; ++i) {
    const std::string error = clients[i]->FinishJoin();
    EXPECT_EQ(clients[i]->last_status(), shm::Status::kTimeout);
    EXPECT_EQ(error, "rank 2 of group 'g' of communicator 'c' did not attach within 500 ms");
    EXPECT_GE(Clock::now() - start, std::chrono::milliseconds(490));
    EXPECT_LE(Clock::now() - start, std::chrono::milliseconds(3000));
  }
  EXPECT_EQ(daemon.server->session_count(), 0u);
  EXPECT_EQ(daemon.registry->Get("c")->groups_size(), 0);
  // The same connections can try again.
  clients.push_back(Greeted());
  const uint32_t ranks[] = {0, 1, 3, 2};
  for (size_t i = 0; i < 4; ++i) clients[i]->SendJoin("c", "g", ranks[i], 4);
  for (auto& client : clients) EXPECT_EQ(client->FinishJoin(), "");
}

TEST_F(AttachTest, ClientThatDoesNotReadIsClosed) {
  auto client = std::move(daemon.Group(1)[0]);
  v1::ClientMessage free;
  free.mutable_arena_free()->set_arena_id(99);
  fcntl(client->fd(), F_SETFL, O_NONBLOCK);
  // Sends until the daemon gives up on it.
  const Clock::time_point end = Clock::now() + std::chrono::seconds(20);
  bool closed = false;
  while (!closed && Clock::now() < end) {
    closed = !client->Send(free) && errno != EAGAIN;
    if (!closed) std::this_thread::yield();
  }
  EXPECT_TRUE(closed);
}

TEST_F(AttachTest, ForcedDeleteReachesRanksThatWaitForOthers) {
  auto client = Greeted();
  client->SendJoin("c", "g", 0, 2);
  const Clock::time_point end = Clock::now() + std::chrono::seconds(10);
  while (daemon.server->session_count() == 0 && Clock::now() < end) std::this_thread::yield();
  EXPECT_EQ(daemon.registry->Delete("c", true).value(), 1u);
  EXPECT_EQ(client->FinishJoin(), "the communicator was deleted");
  EXPECT_EQ(client->last_status(), shm::Status::kAborted);
  EXPECT_TRUE(client->WaitForClose());
}

TEST(AttachLimitsTest, StopAcceptingRefusesNewClientsAndJoins) {
  DataPath daemon;
  auto joined = daemon.Group(1, "old");
  RawClient greeted(daemon.socket());
  ASSERT_EQ(greeted.Hello(), "");
  daemon.server->StopAccepting();
  greeted.SendJoin("c", "g", 0, 1);
  EXPECT_EQ(greeted.FinishJoin(), "the daemon is draining");
  EXPECT_EQ(greeted.last_status(), shm::Status::kUnavailable);
  RawClient late(daemon.socket());
  const auto reply = late.Receive();
  ASSERT_TRUE(reply && reply->has_error());
  EXPECT_EQ(reply->error().message(), "the daemon is draining");
  EXPECT_NE(joined[0]->Alloc(4096).data, nullptr);  // goes on
}

TEST(AttachLimitsTest, SessionsAndConnectionsAreBounded) {
  Config config = DataPath::DefaultConfig();
  config.sessions_max = 2;
  DataPath daemon(config);
  auto clients = daemon.Group(2);
  RawClient third(daemon.socket());
  ASSERT_EQ(third.Hello(), "");
  third.SendJoin("c", "other", 0, 1);
  EXPECT_EQ(third.FinishJoin(), "there are 2 sessions: sessions_max is 2");
  EXPECT_EQ(third.last_status(), shm::Status::kResourceExhausted);
  std::vector<std::unique_ptr<RawClient>> idle;
  for (uint32_t i = 0; i < SessionServer::kHandshakesMax - 1; ++i) {
    idle.push_back(std::make_unique<RawClient>(daemon.socket()));
    ASSERT_EQ(idle.back()->Hello(), "");
  }
  RawClient one_too_many(daemon.socket());
  const auto reply = one_too_many.Receive();
  ASSERT_TRUE(reply && reply->has_error());
  EXPECT_EQ(reply->error().message(),
            "there are 66 connections: sessions_max is 2 (and 64 handshakes)");
  idle.clear();
  clients.clear();
  auto again = daemon.Group(2);
}

TEST(AttachSocketTest, StaleSocketIsReplacedAndOtherFilesAreNot) {
  Config config = DataPath::DefaultConfig();
  TempDirectory directory;
  config.runtime_directory = directory.path();
  config.state_directory = directory.path();
  const Backends backends = Backends::HostOnly(std::make_unique<FakeBackend>());
  auto node = NodeSegment::Create().value();
  auto registry = CommunicatorRegistry::Open(config).value();
  auto policy = PolicyStore::Open(config.state_directory, v1::Policy(), *backends.host).value();
  Engine engine(config, backends.host.get(), policy.get(), nullptr, node.get());
  const std::string path = directory / "attach.sock";
  std::ofstream(path) << "not a socket";
  const auto refused =
      SessionServer::Open(config, registry.get(), &engine, nullptr, &backends, node.get());
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("exists and is not a socket"));
  unlink(path.c_str());
  const int stale = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  ASSERT_EQ(bind(stale, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  close(stale);
  auto server =
      SessionServer::Open(config, registry.get(), &engine, nullptr, &backends, node.get());
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_TRUE((*server)->Start().ok());
  RawClient client(path);
  EXPECT_EQ(client.Hello(), "");
  (*server)->Stop();
  EXPECT_NE(access(path.c_str(), F_OK), 0);
  config.attach_group = "no-such-group-here";
  EXPECT_THAT(std::string(SessionServer::Open(config, registry.get(), &engine, nullptr, &backends,
                                              node.get())
                              .status()
                              .message()),
              HasSubstr("attach_group is 'no-such-group-here': no such group"));
}

}  // namespace
}  // namespace qrd::testing
