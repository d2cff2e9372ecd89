// SPDX-License-Identifier: Apache-2.0
#include "daemon/base/directories.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "tests/support/temp_directory.h"

namespace qrd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::TempDirectory;

mode_t ModeOf(const std::string& path) {
  struct stat status;
  return lstat(path.c_str(), &status) == 0 ? status.st_mode & 07777 : 0;
}

TEST(PrepareRuntimeDirectory, MakesItForOwnerAndGroupOnlyWhateverTheUmask) {
  const TempDirectory directory;
  const mode_t old = umask(0077);
  EXPECT_TRUE(PrepareRuntimeDirectory(directory / "a/b/run", getegid()).ok());
  umask(0000);
  EXPECT_TRUE(PrepareRuntimeDirectory(directory / "c/run", std::nullopt).ok());
  umask(old);
  EXPECT_EQ(ModeOf(directory / "a/b/run"), 0750u);
  EXPECT_EQ(ModeOf(directory / "c/run"), 0750u);
  EXPECT_TRUE(PrepareRuntimeDirectory(directory / "c/run", std::nullopt).ok());
}

TEST(PrepareRuntimeDirectory, RefusesWhatOthersCanWriteTo) {
  const TempDirectory directory;
  ASSERT_EQ(mkdir((directory / "run").c_str(), 0700), 0);
  ASSERT_EQ(chmod((directory / "run").c_str(), 01777), 0);
  EXPECT_THAT(std::string(PrepareRuntimeDirectory(directory / "run", std::nullopt).message()),
              AllOf(HasSubstr("can be written by everybody"), HasSubstr("--runtime-directory")));
}

TEST(PrepareStateDirectory, MakesItForOwnerAndGroupOnlyWhateverTheUmask) {
  const TempDirectory directory;
  for (const mode_t mask : {0777, 0077, 0000}) {
    const std::string path = directory / ("state-" + std::to_string(mask));
    const mode_t old = umask(mask);
    const absl::Status made = PrepareStateDirectory(path);
    umask(old);
    EXPECT_TRUE(made.ok()) << made;
    EXPECT_EQ(ModeOf(path), 0750u) << mask;
  }
}

TEST(PrepareStateDirectory, RefusesWhatOthersCanWriteTo) {
  const TempDirectory directory;
  ASSERT_EQ(mkdir((directory / "state").c_str(), 0700), 0);
  ASSERT_EQ(chmod((directory / "state").c_str(), 0777), 0);
  EXPECT_THAT(std::string(PrepareStateDirectory(directory / "state").message()),
              AllOf(HasSubstr("can be written by everybody"), HasSubstr("--state-directory")));
  EXPECT_EQ(ModeOf(directory / "state"), 0777u);
}

TEST(PrepareRuntimeDirectory, RefusesAFile) {
  const TempDirectory directory;
  std::ofstream(directory / "run") << "x";
  EXPECT_THAT(std::string(PrepareRuntimeDirectory(directory / "run", std::nullopt).message()),
              HasSubstr("is not a directory"));
  EXPECT_THAT(std::string(PrepareStateDirectory(directory / "run/state").message()),
              HasSubstr("cannot create state_directory"));
}

TEST(LockFile, KeepsASecondHolderOutAndNamesThePid) {
  const TempDirectory directory;
  {
    const auto first = LockFile::Acquire(directory.path());
    ASSERT_TRUE(first.ok()) << first.status();
    const auto second = LockFile::Acquire(directory.path());
    EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(second.status().message()),
                AllOf(HasSubstr("another qrd (pid " + std::to_string(getpid()) + ")"),
                      HasSubstr(directory.path()), HasSubstr("--runtime-directory")));
  }
  EXPECT_TRUE(LockFile::Acquire(directory.path()).ok());
}

TEST(LockFile, IsFreeAfterItsHolderWasKilled) {
  const TempDirectory directory;
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto lock = LockFile::Acquire(directory.path());
    const char byte = lock.ok() ? 'y' : 'n';
    if (write(ready[1], &byte, 1) == 1) pause();
    _exit(1);
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  EXPECT_EQ(byte, 'y');
  EXPECT_THAT(std::string(LockFile::Acquire(directory.path()).status().message()),
              HasSubstr("pid " + std::to_string(child)));
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(LockFile::Acquire(directory.path()).ok());
  close(ready[0]);
  close(ready[1]);
}

TEST(ListenUnix, IsReachableForOwnerAndGroupOnlyAndReplacesAStaleSocket) {
  const TempDirectory directory;
  const std::string path = directory / "s.sock";
  const mode_t old = umask(0000);
  for (int i = 0; i < 2; ++i) {  // the first one's socket file stays behind
    const auto listener = ListenUnix(path, SOCK_STREAM, getegid());
    ASSERT_TRUE(listener.ok()) << listener.status();
    EXPECT_EQ(ModeOf(path), 0660u);
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    const UniqueFd client(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(client.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  umask(old);
}

TEST(ListenUnix, RefusesToReplaceAFileAndNamesThePathBound) {
  const TempDirectory directory;
  std::ofstream(directory / "s.sock") << "precious";
  EXPECT_THAT(std::string(ListenUnix(directory / "s.sock", SOCK_STREAM, {}).status().message()),
              HasSubstr("exists and is not a socket"));
  EXPECT_THAT(
      std::string(ListenUnix("/" + std::string(120, 'x'), SOCK_STREAM, {}).status().message()),
      HasSubstr("has 121 bytes; at most 107"));
}

}  // namespace
}  // namespace qrd
