// SPDX-License-Identifier: Apache-2.0
// Attaching to daemons that refuse, lie, stop or are not there: each ends with a text, in time, and
// leaves no descriptor or mapping behind.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "tests/client/client_fixture.h"

namespace qrd::testing {
namespace {

using ::testing::HasSubstr;

using Reply = FakeDaemon::Reply;

class AttachTest : public ClientTest {
 protected:
  std::string Init(uint32_t timeout_ms = 20'000) {
    qrd_comm_config config = Config();
    config.timeout_ms = timeout_ms;
    const std::string outcome = Outcome(qrd_comm_init(&config, &comm_));
    return outcome;
  }
  // Answers requests of one kind by `reply`, others normally.
  void On(v1::ClientMessage::MessageCase kind, const Reply& reply) {
    daemon_.on_request = [kind, reply](const v1::ClientMessage& request) {
      return request.message_case() == kind ? reply : FakeDaemon::Normal();
    };
  }
};

TEST_F(AttachTest, SaysWhoItIs) {
  v1::ClientMessage hello, join;
  daemon_.on_request = [&](const v1::ClientMessage& request) {
    (request.has_hello() ? hello : join) = request;
    return FakeDaemon::Normal();
  };
  qrd_comm_config config = Config();
  config.group = "serving";
  config.rank = 2;
  config.world_size = 4;
  config.create_if_absent = 0;
  ASSERT_EQ(Outcome(qrd_comm_init(&config, &comm_)), "");
  EXPECT_EQ(hello.hello().layout_version(), shm::kLayoutVersion);
  EXPECT_EQ(hello.hello().client_version(), "0.1.0");
  EXPECT_EQ(join.join().communicator(), "tp");
  EXPECT_EQ(join.join().group(), "serving");
  EXPECT_EQ(join.join().rank(), 2u);
  EXPECT_EQ(join.join().world_size(), 4u);
  EXPECT_FALSE(join.join().create_if_absent());
  EXPECT_GT(join.join().timeout_ms(), 0u);
  EXPECT_LE(join.join().timeout_ms(), 20'000u);
  uint32_t rank = 0, world_size = 0;
  EXPECT_EQ(qrd_comm_rank(comm_, &rank, &world_size), QRD_OK);
  EXPECT_EQ(rank, 2u);
  EXPECT_EQ(world_size, 4u);
}

TEST_F(AttachTest, NoSocket) {
  qrd_comm_config config = Config();
  config.runtime_directory = "/nonexistent/qrd";
  EXPECT_EQ(Outcome(qrd_comm_init(&config, &comm_)),
            "UNAVAILABLE: no qrd daemon answers at /nonexistent/qrd/attach.sock: No such file or "
            "directory. Is it running, with this runtime directory?");
}

TEST_F(AttachTest, ASocketThatADeadDaemonLeftBehind) {
  const TempDirectory directory;
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, (directory / "attach.sock").c_str());
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  close(fd);
  qrd_comm_config config = Config();
  config.runtime_directory = directory.path().c_str();
  EXPECT_THAT(Outcome(qrd_comm_init(&config, &comm_)),
              HasSubstr("attach.sock: Connection refused"));
}

TEST_F(AttachTest, ASocketOfAnotherKind) {
  const TempDirectory directory;
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, (directory / "attach.sock").c_str());
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(fd, 1), 0);
  qrd_comm_config config = Config();
  config.runtime_directory = directory.path().c_str();
  EXPECT_EQ(Outcome(qrd_comm_init(&config, &comm_)),
            "UNAVAILABLE: " + (directory / "attach.sock") +
                " is not an attach socket (want SOCK_SEQPACKET)");
  close(fd);
}

TEST_F(AttachTest, ABacklogThatStaysFullEndsWithTheTimeout) {
  const TempDirectory directory;
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, (directory / "attach.sock").c_str());
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(fd, 0), 0);
  std::vector<int> fillers;
  for (int connected = 0; connected == 0;) {
    fillers.push_back(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    connected = connect(fillers.back(), reinterpret_cast<sockaddr*>(&address), sizeof(address));
  }
  qrd_comm_config config = Config();
  config.runtime_directory = directory.path().c_str();
  config.timeout_ms = 50;
  EXPECT_EQ(
      Outcome(qrd_comm_init(&config, &comm_)),
      "TIMEOUT: the daemon at " + (directory / "attach.sock") + " accepted no connection in time");
  for (int filler : fillers) close(filler);
  close(fd);
}

TEST_F(AttachTest, RefusalsKeepStatusAndText) {
  On(v1::ClientMessage::kHello,
     FakeDaemon::Refuse(QRD_FAILED_PRECONDITION, "layout version 1, this daemon speaks 2"));
  EXPECT_EQ(Init(), "FAILED_PRECONDITION: layout version 1, this daemon speaks 2");
  On(v1::ClientMessage::kJoin, FakeDaemon::Refuse(QRD_TIMEOUT, "ranks 1, 3 of 4 are missing"));
  EXPECT_EQ(Init(), "TIMEOUT: ranks 1, 3 of 4 are missing");
  On(v1::ClientMessage::kJoin, FakeDaemon::Refuse(QRD_UNAVAILABLE, "draining"));
  EXPECT_EQ(Init(), "UNAVAILABLE: draining");
}

TEST_F(AttachTest, ARefusalWithAnUnknownStatusIsInternal) {
  On(v1::ClientMessage::kJoin, FakeDaemon::Refuse(0, "zero"));
  EXPECT_EQ(Init(), "INTERNAL: zero");
  On(v1::ClientMessage::kJoin, FakeDaemon::Refuse(15, "fifteen"));
  EXPECT_EQ(Init(), "INTERNAL: fifteen");
  On(v1::ClientMessage::kJoin, FakeDaemon::Refuse(0xFFFFFFFF, "many"));
  EXPECT_EQ(Init(), "INTERNAL: many");
}

TEST_F(AttachTest, AnotherLayoutVersion) {
  Reply reply;
  reply.kind = Reply::Kind::kSend;
  reply.message.mutable_welcome()->set_layout_version(3);
  reply.message.mutable_welcome()->set_daemon_version("9.9");
  On(v1::ClientMessage::kHello, reply);
  EXPECT_EQ(Init(),
            "FAILED_PRECONDITION: Hello: the daemon (9.9) speaks layout version 3, this library "
            "(0.1.0) version 2");
}

TEST_F(AttachTest, ADaemonThatNeverAnswers) {
  On(v1::ClientMessage::kHello, FakeDaemon::Silent());
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(Init(50), "TIMEOUT: Hello: the daemon did not answer in time");
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(50));
  On(v1::ClientMessage::kJoin, FakeDaemon::Silent());
  EXPECT_EQ(Init(50), "TIMEOUT: Join: the daemon did not answer in time");
  EXPECT_LE(std::chrono::steady_clock::now() - start, std::chrono::seconds(15));
}

TEST_F(AttachTest, ADaemonThatDiesInTheMiddle) {
  On(v1::ClientMessage::kHello, FakeDaemon::Close());
  EXPECT_EQ(Init(), "DAEMON_LOST: Hello: the daemon closed the connection");
  On(v1::ClientMessage::kJoin, FakeDaemon::Close());
  EXPECT_EQ(Init(), "DAEMON_LOST: Join: the daemon closed the connection");
}

TEST_F(AttachTest, AnswersThatAreNotAnswers) {
  On(v1::ClientMessage::kHello, FakeDaemon::Raw("\xff\xff\xff\xff"));
  EXPECT_EQ(Init(), "INTERNAL: Hello: the daemon's reply of 4 bytes cannot be parsed");
  On(v1::ClientMessage::kHello, FakeDaemon::Raw(std::string(5000, 'x')));
  EXPECT_EQ(Init(), "INTERNAL: Hello: the daemon's reply has more than 4096 bytes");
  Reply reply;
  reply.kind = Reply::Kind::kSend;
  reply.message.mutable_aborted();
  On(v1::ClientMessage::kHello, reply);
  EXPECT_EQ(Init(), "INTERNAL: Hello: the daemon's reply is message 5, want 1");
}

TEST_F(AttachTest, AWrongNumberOfDescriptors) {
  daemon_.joined_fd_count = 2;
  EXPECT_EQ(Init(), "INTERNAL: Join: the daemon's reply carries 2 descriptors, want 3");
  daemon_.joined_fd_count = 0;
  EXPECT_EQ(Init(), "INTERNAL: Join: the daemon's reply carries 0 descriptors, want 3");
  daemon_.joined_fd_count = 20;
  EXPECT_THAT(Init(), HasSubstr("descriptors of the daemon's reply were lost"));
}

TEST_F(AttachTest, BadSegments) {
  struct Case {
    std::function<void(shm::NodeHeader*, shm::SessionHeader*, v1::Joined*)> edit;
    const char* want;
  };
  const Case cases[] = {
      {[](auto*, auto*, auto* j) { j->set_session_segment_bytes(1 << 30); },
       "INTERNAL: session segment from the daemon: size in bytes is"},
      {[](auto*, auto*, auto* j) { j->set_session_segment_bytes(0); },
       "INTERNAL: session segment from the daemon: size in bytes is"},
      {[](auto*, auto*, auto* j) { j->set_node_segment_bytes(8192); },
       "INTERNAL: node segment from the daemon: size in bytes is 8192, want 4096"},
      {[](auto* n, auto*, auto*) { n->magic = 5; },
       "INTERNAL: node segment from the daemon: magic is 5, want 1313100369"},
      {[](auto*, auto* s, auto*) { s->slot_count = 1u << 31; },
       "INTERNAL: session segment from the daemon: slot_count is 2147483648, want a power of two"},
      {[](auto*, auto* s, auto*) { s->completion_offset_bytes = 0; },
       "INTERNAL: session segment from the daemon: completion_offset_bytes is 0"},
      {[](auto*, auto* s, auto*) { s->rank = 5; },
       "INTERNAL: session segment from the daemon: rank is 5, want 0"},
  };
  for (const Case& c : cases) {
    daemon_.edit_joined = c.edit;
    EXPECT_THAT(Init(), HasSubstr(c.want));
  }
}

TEST_F(AttachTest, UnsealedSegments) {
  daemon_.seal = false;
  EXPECT_THAT(Init(), HasSubstr("INTERNAL: node segment from the daemon: seals are 0x0"));
}

TEST_F(AttachTest, FailedAndFinishedSessionsLeaveNothingBehind) {
  const auto entries = [](const char* path) {
    size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(path))
      count += !entry.path().empty();
    return count;
  };
  const auto mappings = [] {
    std::ifstream file("/proc/self/maps");
    size_t count = 0;
    for (std::string line; std::getline(file, line);) count += line.find("qrd-fake") != line.npos;
    return count;
  };
  Attach();
  ASSERT_EQ(qrd_comm_finalize(std::exchange(comm_, nullptr)), QRD_OK);
  // The server holds the last session's segment and closes connections on its own time: a new
  // attach is the point at which it has done so.
  Attach();
  const size_t fds = entries("/proc/self/fd");
  const size_t maps = mappings();
  for (int i = 0; i < 50; ++i) {
    ASSERT_EQ(qrd_comm_finalize(std::exchange(comm_, nullptr)), QRD_OK);
    ASSERT_NO_FATAL_FAILURE(Attach());
  }
  EXPECT_EQ(entries("/proc/self/fd"), fds);
  EXPECT_EQ(mappings(), maps);
}

TEST_F(AttachTest, DescriptorsAreCloseOnExec) {
  Attach();
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code ignored;
    const std::string target = std::filesystem::read_symlink(entry.path(), ignored).string();
    if (target.find("socket:") == std::string::npos &&
        target.find("eventfd") == std::string::npos) {
      continue;
    }
    const int fd = std::stoi(entry.path().filename().string());
    if (fd > 2) {
      EXPECT_NE(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0) << fd << " " << target;
    }
  }
}

}  // namespace
}  // namespace qrd::testing
