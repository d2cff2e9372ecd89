// SPDX-License-Identifier: Apache-2.0
// The attach connection when the other side goes away in the middle.
#include "client/core/unix_socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "client/core/clock.h"
#include "client/core/error.h"
#include "tests/support/temp_directory.h"

namespace qrd::client {
namespace {

using ::testing::HasSubstr;

int Listen(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  EXPECT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_EQ(listen(fd, 1), 0);
  return fd;
}

// A socket that is closed with something unread tells its peer ECONNRESET before what it said last.
TEST(UnixSocketTest, TheDaemonsLastWordsAreReadAlsoAfterAReset) {
  const qrd::testing::TempDirectory directory;
  const int listener = Listen(directory / "attach.sock");
  UnixSocket socket;
  ASSERT_EQ(socket.Connect(directory / "attach.sock", NowNs() + 5 * kNsPerMs * 1000), QRD_OK);
  const int daemon = accept(listener, nullptr, nullptr);
  ASSERT_GE(daemon, 0);
  ASSERT_EQ(send(socket.fd(), "x", 1, MSG_NOSIGNAL), 1);  // never read
  v1::ServerMessage error;
  error.mutable_error()->set_status(QRD_UNAVAILABLE);
  error.mutable_error()->set_message("the daemon is draining");
  const std::string bytes = error.SerializeAsString();
  ASSERT_EQ(send(daemon, bytes.data(), bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()));
  close(daemon);
  close(listener);

  v1::ClientMessage request;
  request.mutable_hello();
  v1::ServerMessage reply;
  EXPECT_EQ(socket.Call(request, "Hello", v1::ServerMessage::kWelcome, 0,
                        NowNs() + 5 * kNsPerMs * 1000, &reply, nullptr),
            QRD_UNAVAILABLE);
  EXPECT_THAT(std::string(LastError()), HasSubstr("the daemon is draining"));
}

}  // namespace
}  // namespace qrd::client
