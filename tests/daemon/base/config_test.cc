// SPDX-License-Identifier: Apache-2.0
#include "daemon/base/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <set>

#include "daemon/base/file.h"
#include "daemon/base/text_format.h"
#include "google/protobuf/descriptor.h"

namespace qrd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// The error of parsing and resolving `text`; "" if it is good.
std::string ErrorOf(const std::string& text) {
  const auto proto = ParseConfigText(text, "test.textproto");
  if (!proto.ok()) return std::string(proto.status().message());
  return std::string(ResolveConfig(*proto).status().message());
}

Config Resolve(const std::string& text) {
  const auto proto = ParseConfigText(text, "test.textproto");
  EXPECT_TRUE(proto.ok()) << proto.status();
  const auto config = ResolveConfig(*proto);
  EXPECT_TRUE(config.ok()) << config.status();
  return config.ok() ? *config : Config();
}

TEST(ParseConfigText, NamesLineColumnFieldAndWhatExists) {
  EXPECT_THAT(ErrorOf("log_level: \"info\"\nworker_thread: 2\n"),
              AllOf(HasSubstr("test.textproto:2:"), HasSubstr("no field named \"worker_thread\""),
                    HasSubstr("worker_threads"), HasSubstr("in \"worker_thread: 2\"")));
}

struct BadText {
  const char* name;
  const char* text;
  const char* error;
};
void PrintTo(const BadText& bad, std::ostream* out) { *out << bad.name; }

class BadConfig : public ::testing::TestWithParam<BadText> {};

TEST_P(BadConfig, IsRefusedWithFieldValueAndBound) {
  EXPECT_THAT(ErrorOf(GetParam().text), HasSubstr(GetParam().error));
}

INSTANTIATE_TEST_SUITE_P(
    ParseErrors, BadConfig,
    ::testing::Values(
        BadText{"Negative", "worker_threads: -1", "test.textproto:1:17: Expected integer, got: -"},
        BadText{"Nan", "worker_threads: nan", "Expected integer, got: nan"},
        BadText{"Fraction", "worker_threads: 1.5", "Expected integer, got: 1.5"},
        BadText{"TooLarge", "sessions_max: 4294967296", "Integer out of range (4294967296)"},
        BadText{"Twice", "sessions_max: 1\nsessions_max: 2", "test.textproto:2:"},
        BadText{"Syntax", "communicators {", "Expected"},
        BadText{"Enum", "communicators { backend: BACKEND_TPU }", "BACKEND_HOST, BACKEND_GPU"}),
    [](const auto& test) { return std::string(test.param.name); });

INSTANTIATE_TEST_SUITE_P(
    Bounds, BadConfig,
    ::testing::Values(
        BadText{"CommunicatorsLow", "communicators_max: 0",
                "communicators_max is 0; want 1 to 4096"},
        BadText{"CommunicatorsHigh", "communicators_max: 4097",
                "communicators_max is 4097; want 1 to 4096"},
        BadText{"SessionsLow", "sessions_max: 0", "sessions_max is 0; want 1 to 4096"},
        BadText{"SessionsHigh", "sessions_max: 4097", "sessions_max is 4097; want 1 to 4096"},
        BadText{"SlotsLow", "operations_in_flight_max: 4",
                "operations_in_flight_max is 4; want 8 to 1024"},
        BadText{"SlotsHigh", "operations_in_flight_max: 2048",
                "operations_in_flight_max is 2048; want 8 to 1024"},
        BadText{"SlotsOdd", "operations_in_flight_max: 100",
                "operations_in_flight_max is 100; want a power of two"},
        BadText{"ArenasLow", "arenas_per_session_max: 0",
                "arenas_per_session_max is 0; want 1 to 4096"},
        BadText{"ArenasHigh", "arenas_per_session_max: 5000",
                "arenas_per_session_max is 5000; want 1 to 4096"},
        BadText{"SessionBytesLow", "arena_bytes_per_session_max: 1048575",
                "arena_bytes_per_session_max is 1048575; want 1048576 to 1099511627776"},
        BadText{"SessionBytesHigh", "arena_bytes_per_session_max: 1099511627777",
                "arena_bytes_per_session_max is 1099511627777; want 1048576 to 1099511627776"},
        BadText{"ArenaBytesLow", "arena_bytes_max: 0", "arena_bytes_max is 0; want 1048576 to"},
        BadText{"ArenaBytesHigh", "arena_bytes_max: 17592186044417",
                "arena_bytes_max is 17592186044417; want 1048576 to 17592186044416"},
        BadText{"Threads", "worker_threads: 257", "worker_threads is 257; want 0 to 256"},
        BadText{"Spin", "spin_us_max: 10001", "spin_us_max is 10001; want 0 to 10000"},
        BadText{"OperationLow", "operation_timeout_ms: 0",
                "operation_timeout_ms is 0; want 1 to 3600000"},
        BadText{"OperationHigh", "operation_timeout_ms: 3600001",
                "operation_timeout_ms is 3600001; want 1 to 3600000"},
        BadText{"AttachLow", "attach_timeout_ms: 0", "attach_timeout_ms is 0; want 1 to 3600000"},
        BadText{"AttachHigh", "attach_timeout_ms: 3600001",
                "attach_timeout_ms is 3600001; want 1 to 3600000"},
        BadText{"Drain", "drain_timeout_ms: 600001",
                "drain_timeout_ms is 600001; want 0 to 600000"}),
    [](const auto& test) { return std::string(test.param.name); });

INSTANTIATE_TEST_SUITE_P(
    Texts, BadConfig,
    ::testing::Values(
        BadText{"LogLevel", "log_level: \"verbose\"",
                "log_level is \"verbose\"; want one of trace, debug, info, warning, error"},
        BadText{"MetricsPort", "metrics_address: \"127.0.0.1:65536\"",
                "metrics_address is \"127.0.0.1:65536\"; want ADDRESS:PORT"},
        BadText{"MetricsHost", "metrics_address: \"example.com:1\"",
                "metrics_address is \"example.com:1\""},
        BadText{"MetricsTwo", "metrics_address: \"127.0.0.1:1,127.0.0.1:2\"",
                "metrics_address is \"127.0.0.1:1,127.0.0.1:2\""},
        BadText{"AttachGroup", "attach_group: \"no-such-group\"",
                "attach_group: there is no group \"no-such-group\""},
        BadText{"AdminGroup", "admin_group: \"no-such-group\"",
                "admin_group: there is no group \"no-such-group\""},
        BadText{"EmptyRuntime", "runtime_directory: \"\"", "runtime_directory is empty"},
        BadText{"EmptyState", "state_directory: \"\"", "state_directory is empty"},
        BadText{"NulRuntime", "runtime_directory: \"/a\\000b\"", "runtime_directory has a NUL"},
        BadText{"CommunicatorName", "communicators { name: \"A b\" world_size: 2 }",
                "communicators[0].name is \"A b\", which has \"A\" at position 1"},
        BadText{"WorldSizeLow", "communicators { name: \"a\" }",
                "communicators[0].world_size is 0; want 1 to 16"},
        BadText{"WorldSizeHigh", "communicators { name: \"a\" world_size: 17 }",
                "communicators[0].world_size is 17; want 1 to 16"},
        BadText{"Gpu", "gpu: \"yes\"", "gpu is \"yes\"; want auto, off or required"},
        BadText{"CollectiveLibrary", "collective_library: \"nccl\"",
                "collective_library is \"nccl\"; want auto, off or an absolute path"},
        BadText{"StreamEntries", "stream_entries_per_session: 7",
                "stream_entries_per_session is 7; want 8 to 65536"},
        BadText{"DeviceArenaBytes", "device_arena_bytes_max: 1000",
                "device_arena_bytes_max is 1000; want 1048576 to 17592186044416"},
        BadText{"OutputOnly", "communicators { name: \"a\" world_size: 2 operations_total: 1 }",
                "communicators[0]: only name, world_size and backend can be set"},
        BadText{"DuplicateCommunicator",
                "communicators { name: \"a\" world_size: 2 }\n"
                "communicators { name: \"a\" world_size: 4 }",
                "communicators[1].name \"a\" is there twice"},
        BadText{"TooManyCommunicators",
                "communicators_max: 1 communicators { name: \"a\" world_size: 2 }\n"
                "communicators { name: \"b\" world_size: 4 }",
                "communicators: 2 of them; at most communicators_max = 1"},
        BadText{"WeightLow", "communicator_weights { key: \"a\" value: 0 }",
                "communicator_weights[\"a\"] is 0; want 1 to 100"},
        BadText{"WeightHigh", "communicator_weights { key: \"a\" value: 101 }",
                "communicator_weights[\"a\"] is 101; want 1 to 100"},
        BadText{"WeightName", "communicator_weights { key: \"\" value: 1 }",
                "communicator_weights: key is empty"}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(ResolveConfig, RefusesARuntimeDirectoryOver90BytesAndTakes90) {
  const std::string path = "/" + std::string(89, 'd');
  EXPECT_EQ(ErrorOf("runtime_directory: \"" + path + "\""), "");
  EXPECT_THAT(ErrorOf("runtime_directory: \"" + path + "x\""), HasSubstr("91 bytes; at most 90"));
}

TEST(ResolveConfig, TakesEveryBoundItself) {
  const Config config = Resolve(
      "communicators_max: 4096 sessions_max: 1 operations_in_flight_max: 1024 "
      "arenas_per_session_max: 4096 arena_bytes_per_session_max: 1099511627776 "
      "arena_bytes_max: 17592186044416 worker_threads: 256 spin_us_max: 0 "
      "operation_timeout_ms: 3600000 attach_timeout_ms: 1 drain_timeout_ms: 0 "
      "create_on_attach: false metrics_address: \"\" "
      "communicator_weights { key: \"a\" value: 100 }");
  EXPECT_EQ(config.communicators_max, 4096u);
  EXPECT_EQ(config.sessions_max, 1u);
  EXPECT_EQ(config.operations_in_flight_max, 1024u);
  EXPECT_EQ(config.arena_bytes_max, uint64_t{16} << 40);
  EXPECT_EQ(config.worker_threads, 256u);
  EXPECT_EQ(config.spin_us_max, 0u);
  EXPECT_EQ(config.drain_timeout_ms, 0u);
  EXPECT_FALSE(config.create_on_attach);
  EXPECT_EQ(config.metrics_address, "");
  EXPECT_EQ(config.communicator_weights.at("a"), 100u);
}

TEST(ResolveConfig, HasTheDefaultsOfTheProtoFile) {
  const Config config = Resolve("");
  EXPECT_EQ(config.metrics_address, "127.0.0.1:9478");
  EXPECT_EQ(config.log_level, "info");
  EXPECT_TRUE(config.create_on_attach);
  EXPECT_EQ(config.communicators_max, 256u);
  EXPECT_EQ(config.sessions_max, 512u);
  EXPECT_EQ(config.operations_in_flight_max, 128u);
  EXPECT_EQ(config.arenas_per_session_max, 1024u);
  EXPECT_EQ(config.arena_bytes_per_session_max, uint64_t{64} << 30);
  EXPECT_EQ(config.spin_us_max, 200u);
  EXPECT_EQ(config.operation_timeout_ms, 30000u);
  EXPECT_EQ(config.attach_timeout_ms, 30000u);
  EXPECT_EQ(config.drain_timeout_ms, 10000u);
  EXPECT_GE(config.worker_threads, 1u);
  EXPECT_LE(config.worker_threads, 256u);
  const uint64_t memory_bytes = uint64_t(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  EXPECT_NEAR(double(config.arena_bytes_max), 0.8 * double(memory_bytes), 16.0);
}

TEST(ResolveConfig, NamesTheFlagAndTheVariablesOfADirectoryThatNothingNames) {
  v1::Config proto;
  proto.set_runtime_directory("");
  EXPECT_THAT(std::string(ResolveConfig(proto).status().message()),
              AllOf(HasSubstr("--runtime-directory"), HasSubstr("$RUNTIME_DIRECTORY"),
                    HasSubstr("$XDG_RUNTIME_DIR")));
  proto.set_runtime_directory("/run/qrd");
  proto.set_state_directory("");
  EXPECT_THAT(std::string(ResolveConfig(proto).status().message()),
              AllOf(HasSubstr("--state-directory"), HasSubstr("$STATE_DIRECTORY"),
                    HasSubstr("$XDG_STATE_HOME"), HasSubstr("$HOME")));
}

TEST(ResolveConfig, TakesDirectoriesFromTheEnvironment) {
  setenv("RUNTIME_DIRECTORY", "/run/one:/run/two", 1);
  setenv("STATE_DIRECTORY", "/var/lib/one", 1);
  EXPECT_EQ(Resolve("").runtime_directory, "/run/one");
  EXPECT_EQ(Resolve("").state_directory, "/var/lib/one");
  EXPECT_EQ(Resolve("runtime_directory: \"/run/three/\"").runtime_directory, "/run/three");
  unsetenv("RUNTIME_DIRECTORY");
  unsetenv("STATE_DIRECTORY");
  if (geteuid() == 0) {
    EXPECT_EQ(Resolve("").runtime_directory, "/run/qrd");
    EXPECT_EQ(Resolve("").state_directory, "/var/lib/qrd");
  }
}

TEST(ResolveConfig, MakesRelativeDirectoriesAbsolute) {
  const std::string path = Resolve("runtime_directory: \"d/../e\"").runtime_directory;
  EXPECT_EQ(path.front(), '/');
  EXPECT_EQ(path.substr(path.size() - 2), "/e");
}

TEST(ConfigToProto, ResolvesToItself) {
  const Config config = Resolve(
      "sessions_max: 7 communicators { name: \"a\" world_size: 2 } "
      "communicator_weights { key: \"a\" value: 3 } initial_policy { rules { name: \"r\" } }");
  const std::string text = PrintText(ConfigToProto(config));
  EXPECT_EQ(PrintText(ConfigToProto(Resolve(text))), text);
  EXPECT_THAT(text, AllOf(HasSubstr("sessions_max: 7"), HasSubstr("name: \"r\"")));
}

// deploy/qrd.textproto is what an operator reads first.
TEST(ShippedConfig, ParsesAndExplainsEveryField) {
  const auto text = ReadFile(QRD_SOURCE_DIR "/deploy/qrd.textproto", 1 << 20);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(ErrorOf(*text), "");
  const auto* descriptor = v1::Config::descriptor();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const std::string& name = descriptor->field(i)->name();
    EXPECT_TRUE(text->find("\n# " + name + ":") != std::string::npos ||
                text->find("\n# " + name + " {") != std::string::npos ||
                text->find("\n" + name + ":") != std::string::npos)
        << name << " is not in deploy/qrd.textproto";
  }
}

// Uncommented, every example line must be valid too.
TEST(ShippedConfig, HasExamplesThatParse) {
  const auto text = ReadFile(QRD_SOURCE_DIR "/deploy/qrd.textproto", 1 << 20);
  ASSERT_TRUE(text.ok()) << text.status();
  std::string uncommented;
  size_t begin = 0;
  while (begin < text->size()) {
    const size_t end = std::min(text->find('\n', begin), text->size());
    const std::string line = text->substr(begin, end - begin);
    // "# name: value", "# name {", "#   nested", "# }" are code; "## text" is prose.
    uncommented += (line.rfind("# ", 0) == 0 ? line.substr(2) : line) + "\n";
    begin = end + 1;
  }
  const auto proto = ParseConfigText(uncommented, "uncommented");
  ASSERT_TRUE(proto.ok()) << proto.status() << "\n" << uncommented;
  v1::Config without_groups = *proto;
  without_groups.clear_attach_group();
  without_groups.clear_admin_group();
  EXPECT_TRUE(ResolveConfig(without_groups).ok()) << ResolveConfig(without_groups).status();
  EXPECT_TRUE(proto->has_attach_group() && proto->has_admin_group());
  EXPECT_EQ(proto->communicators_size(), 1);
}

}  // namespace
}  // namespace qrd
