// SPDX-License-Identifier: Apache-2.0
#include "daemon/base/file.h"

#include <errno.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/temp_directory.h"

namespace qrd {
namespace {

using ::testing::HasSubstr;

TEST(ReadFile, TellsApartWhatCanGoWrong) {
  const testing::TempDirectory directory;
  EXPECT_TRUE(absl::IsNotFound(ReadFile(directory / "none", 10).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ReadFile(directory.path(), 10).status()));
  ASSERT_EQ(mkfifo((directory / "fifo").c_str(), 0600), 0);
  EXPECT_TRUE(absl::IsInvalidArgument(ReadFile(directory / "fifo", 10).status()));
  ASSERT_TRUE(ReplaceFile(directory / "file", "0123456789").ok());
  EXPECT_EQ(*ReadFile(directory / "file", 10), "0123456789");
  EXPECT_THAT(std::string(ReadFile(directory / "file", 9).status().message()),
              HasSubstr("has more than 9 bytes"));
}

TEST(ReplaceFile, ReplacesWholeAndLeavesNoTemporaryFile) {
  const testing::TempDirectory directory;
  const std::string path = directory / "file";
  ASSERT_TRUE(ReplaceFile(path, "first, longer").ok());
  ASSERT_TRUE(ReplaceFile(path, "second").ok());
  EXPECT_EQ(*ReadFile(path, 100), "second");
  struct stat status;
  EXPECT_NE(lstat((path + ".tmp").c_str(), &status), 0);
  ASSERT_EQ(stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0027, 0u);
}

TEST(ReplaceFile, KeepsTheOldFileOnAnError) {
  const testing::TempDirectory directory;
  const std::string path = directory / "file";
  ASSERT_TRUE(ReplaceFile(path, "old").ok());
  // The temporary name is taken by something that cannot be opened for writing.
  ASSERT_EQ(mkdir((path + ".tmp").c_str(), 0700), 0);
  const absl::Status status = ReplaceFile(path, "new");
  EXPECT_THAT(std::string(status.message()), HasSubstr(path + ".tmp"));
  EXPECT_EQ(*ReadFile(path, 100), "old");
}

TEST(ReplaceFile, SaysThatTheDirectoryIsMissing) {
  const testing::TempDirectory directory;
  EXPECT_TRUE(absl::IsNotFound(ReplaceFile(directory / "none/file", "x")));
}

TEST(ReplaceFile, SaysThatTheDiskIsFull) {
  // /dev/full: every write fails with ENOSPC.
  const testing::TempDirectory directory;
  const std::string path = directory / "file";
  ASSERT_EQ(symlink("/dev/full", (path + ".tmp").c_str()), 0);
  EXPECT_FALSE(ReplaceFile(path, "x").ok());  // and a symbolic link there is not followed
  EXPECT_EQ(ErrnoError(ENOSPC, "cannot write x").code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace qrd
