// SPDX-License-Identifier: Apache-2.0
// What libqrd.so shows to the world, by the tools that its users would use.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <qrd/qrd.h>

#include <cstdio>
#include <sstream>
#include <string>
#include <vector>

namespace qrd {
namespace {

std::vector<std::string> LinesOf(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  EXPECT_NE(pipe, nullptr);
  std::string text;
  char part[4096];
  for (size_t n; (n = fread(part, 1, sizeof(part), pipe)) > 0;) text.append(part, n);
  EXPECT_EQ(pclose(pipe), 0) << command;
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

TEST(ExportsTest, OnlyTheFunctionsOfTheHeaderAreExported) {
  std::vector<std::string> names;
  for (const std::string& line : LinesOf("nm -D --defined-only --format=posix '" QRD_LIBRARY "'")) {
    names.push_back(line.substr(0, line.find(' ')));
  }
  EXPECT_THAT(
      names,
      ::testing::UnorderedElementsAre(
          ::testing::StartsWith("QRD_0"), "qrd_version@@QRD_0", "qrd_status_string@@QRD_0",
          "qrd_last_error@@QRD_0", "qrd_comm_init@@QRD_0", "qrd_comm_finalize@@QRD_0",
          "qrd_comm_abort@@QRD_0", "qrd_comm_rank@@QRD_0", "qrd_mem_alloc@@QRD_0",
          "qrd_mem_free@@QRD_0", "qrd_mem_register@@QRD_0", "qrd_mem_deregister@@QRD_0",
          "qrd_mem_import@@QRD_0", "qrd_mem_release@@QRD_0", "qrd_all_reduce_on_stream@@QRD_0",
          "qrd_comm_async_error@@QRD_0", "qrd_stream_stats@@QRD_0", "qrd_all_reduce@@QRD_0",
          "qrd_wait@@QRD_0", "qrd_test@@QRD_0", "qrd_all_reduce_rms_norm@@QRD_0",
          "qrd_all_reduce_rms_norm_on_stream@@QRD_0", "qrd_owned_rows@@QRD_0"));
}

TEST(ExportsTest, DependsOnProtobufLiteAndTheLanguagesOnly) {
  std::string needed;
  for (const std::string& line : LinesOf("readelf -d '" QRD_LIBRARY "'")) {
    if (line.find("(NEEDED)") != std::string::npos) needed += line.substr(line.find('['));
    if (line.find("(SONAME)") != std::string::npos) {
      EXPECT_THAT(line, ::testing::HasSubstr("[libqrd.so.0]"));
    }
  }
  EXPECT_THAT(needed, ::testing::HasSubstr("libprotobuf-lite"));
  for (const char* other :
       {"libgrpc", "libprotobuf.so", "absl", "spdlog", "prometheus", "systemd"}) {
    EXPECT_THAT(needed, ::testing::Not(::testing::HasSubstr(other)));
  }
}

TEST(ExportsTest, VersionIsTheHeaders) {
  const std::string want = std::to_string(QRD_VERSION_MAJOR) + "." +
                           std::to_string(QRD_VERSION_MINOR) + "." +
                           std::to_string(QRD_VERSION_PATCH);
  EXPECT_EQ(qrd_version(), want);
}

TEST(ExportsTest, EveryStatusHasAName) {
  const char* const names[] = {"OK",
                               "INVALID_ARGUMENT",
                               "FAILED_PRECONDITION",
                               "RESOURCE_EXHAUSTED",
                               "UNAVAILABLE",
                               "TIMEOUT",
                               "MISMATCH",
                               "PEER_LOST",
                               "DAEMON_LOST",
                               "ABORTED",
                               "PERMISSION_DENIED",
                               "NOT_FOUND",
                               "ALREADY_EXISTS",
                               "UNIMPLEMENTED",
                               "INTERNAL",
                               "IN_PROGRESS"};
  for (int i = 0; i < 16; ++i)
    EXPECT_STREQ(qrd_status_string(static_cast<qrd_status>(i)), names[i]);
  EXPECT_STREQ(qrd_status_string(static_cast<qrd_status>(16)), "UNKNOWN");
}

TEST(ExportsTest, NoErrorBeforeTheFirstFailure) { EXPECT_STREQ(qrd_last_error(), ""); }

}  // namespace
}  // namespace qrd
