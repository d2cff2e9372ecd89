// SPDX-License-Identifier: Apache-2.0
// Every bad argument: its status and the text that names argument, value and bound.
#include <stdlib.h>

#include <functional>
#include <vector>

#include "qrd/qrd.hpp"
#include "tests/client/client_fixture.h"

namespace qrd::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class InitArgumentsTest : public ClientTest {
 protected:
  std::string Init(const std::function<void(qrd_comm_config*)>& edit) {
    qrd_comm_config config = Config();
    edit(&config);
    qrd_comm_t comm = nullptr;
    const std::string outcome = Outcome(qrd_comm_init(&config, &comm));
    EXPECT_EQ(comm, nullptr);
    return outcome;
  }
};

TEST_F(InitArgumentsTest, EachBadFieldIsNamedAndNothingReachesTheDaemon) {
  struct Case {
    std::function<void(qrd_comm_config*)> edit;
    std::string want;
  };
  const std::string long_name(65, 'a');
  const std::vector<Case> cases = {
      {[](auto* c) { c->struct_bytes = 8; },
       "INVALID_ARGUMENT: config.struct_bytes: 8, want sizeof(the struct), 48 to 4096 (use the "
       "_INIT "
       "macro)"},
      {[](auto* c) { c->struct_bytes = 4097; },
       "INVALID_ARGUMENT: config.struct_bytes: 4097, want sizeof(the struct), 48 to 4096 (use the "
       "_INIT macro)"},
      {[](auto* c) { c->communicator = nullptr; },
       "INVALID_ARGUMENT: config.communicator: NULL, want a name"},
      {[](auto* c) { c->communicator = ""; },
       "INVALID_ARGUMENT: config.communicator: \"\" has 0 characters, want 1 to 64"},
      {[&](auto* c) { c->communicator = long_name.c_str(); },
       "INVALID_ARGUMENT: config.communicator: \"" + long_name.substr(1) +
           "...\" has more than 64 characters, want 1 to 64"},
      {[](auto* c) { c->communicator = "TP"; },
       "INVALID_ARGUMENT: config.communicator: the character at position 1 of \"TP\" (0x54) is not "
       "allowed, want "
       "[a-z0-9._-], the first one a letter or digit"},
      {[](auto* c) { c->communicator = "-tp"; },
       "INVALID_ARGUMENT: config.communicator: the character at position 1 of \"-tp\" (0x2d) is "
       "not allowed, want "
       "[a-z0-9._-], the first one a letter or digit"},
      {[](auto* c) { c->communicator = "a/b"; },
       "INVALID_ARGUMENT: config.communicator: the character at position 2 of \"a/b\" (0x2f) is "
       "not allowed, want "
       "[a-z0-9._-], the first one a letter or digit"},
      {[](auto* c) { c->communicator = "a\xff"; },
       "INVALID_ARGUMENT: config.communicator: the character at position 2 of \"a\xff\" (0xff) is "
       "not allowed, "
       "want "
       "[a-z0-9._-], the first one a letter or digit"},
      {[](auto* c) { c->group = ""; },
       "INVALID_ARGUMENT: config.group: \"\" has 0 characters, want 1 to 64"},
      {[](auto* c) { c->group = "a b"; },
       "INVALID_ARGUMENT: config.group: the character at position 2 of \"a b\" (0x20) is not "
       "allowed, want "
       "[a-z0-9._-], the first one a letter or digit"},
      {[](auto* c) { c->world_size = 0; }, "INVALID_ARGUMENT: config.world_size: 0, want 1 to 16"},
      {[](auto* c) { c->world_size = 17; },
       "INVALID_ARGUMENT: config.world_size: 17, want 1 to 16"},
      {[](auto* c) { c->world_size = 0xFFFFFFFF; },
       "INVALID_ARGUMENT: config.world_size: 4294967295, want 1 to 16"},
      {[](auto* c) { c->rank = 1; },
       "INVALID_ARGUMENT: config.rank: 1, want 0 to 0 (world_size is 1)"},
      {[](auto* c) {
         c->rank = 4;
         c->world_size = 4;
       },
       "INVALID_ARGUMENT: config.rank: 4, want 0 to 3 (world_size is 4)"},
      {[](auto* c) { c->timeout_ms = 3600001; },
       "INVALID_ARGUMENT: config.timeout_ms: 3600001, want 0 to 3600000"},
      {[](auto* c) { c->timeout_ms = 0xFFFFFFFF; },
       "INVALID_ARGUMENT: config.timeout_ms: 4294967295, want 0 to 3600000"},
      {[](auto* c) { c->runtime_directory = ""; },
       "INVALID_ARGUMENT: config.runtime_directory: empty, want a directory or NULL"},
  };
  for (const Case& c : cases) EXPECT_EQ(Init(c.edit), c.want);
  EXPECT_EQ(daemon_.connections, 0);
}

TEST_F(InitArgumentsTest, NullPointers) {
  const qrd_comm_config config = Config();
  EXPECT_EQ(Outcome(qrd_comm_init(&config, nullptr)), "INVALID_ARGUMENT: comm: NULL");
  qrd_comm_t comm = nullptr;
  EXPECT_EQ(Outcome(qrd_comm_init(nullptr, &comm)), "INVALID_ARGUMENT: config: NULL");
}

TEST_F(InitArgumentsTest, ALargerStructOfALaterVersionWorksIfTheRestIsUnset) {
  struct {
    qrd_comm_config config;
    uint64_t later_field;
  } larger = {Config(), 0};
  larger.config.struct_bytes = sizeof(larger);
  ASSERT_EQ(Outcome(qrd_comm_init(&larger.config, &comm_)), "");
  larger.later_field = 1;
  qrd_comm_t other = nullptr;
  EXPECT_EQ(
      Outcome(qrd_comm_init(&larger.config, &other)),
      "INVALID_ARGUMENT: config: byte 56 is set, but this library (0.1.0) knows 56 bytes of the "
      "struct");
}

TEST_F(InitArgumentsTest, ARuntimeDirectoryThatIsTooLongForASocketIsNamed) {
  const std::string directory = "/tmp/" + std::string(120, 'd');
  EXPECT_EQ(Init([&](auto* c) { c->runtime_directory = directory.c_str(); }),
            "INVALID_ARGUMENT: runtime_directory: " + directory +
                "/attach.sock has 137 bytes, a socket path at most 107");
}

TEST_F(InitArgumentsTest, TheEnvironmentNamesTheDirectoryIfTheConfigDoesNot) {
  const qrd_comm_config with_directory = Config();
  qrd_comm_config config = with_directory;
  config.runtime_directory = nullptr;
  setenv("QRD_RUNTIME_DIRECTORY", daemon_.runtime_directory().c_str(), 1);
  EXPECT_EQ(Outcome(qrd_comm_init(&config, &comm_)), "");
  unsetenv("QRD_RUNTIME_DIRECTORY");
}

TEST_F(InitArgumentsTest, TheLongestTimeoutIsTakenAndCppCutsLongerOnesToIt) {
  qrd_comm_config config = Config();
  config.timeout_ms = 3600000;
  EXPECT_EQ(Outcome(qrd_comm_init(&config, &comm_)), "");
  EXPECT_EQ(internal::AttachTimeoutMs(std::chrono::hours(2000)), 3600000u);
  EXPECT_EQ(internal::AttachTimeoutMs(std::chrono::milliseconds(7)), 7u);
  EXPECT_EQ(internal::AttachTimeoutMs(std::chrono::milliseconds(0)), 0u);
}

class ArgumentsTest : public ClientTest {
 protected:
  void SetUp() override {
    Attach();
    memory_ = static_cast<float*>(Allocate(4096));
  }
  std::string AllReduce(const void* input, void* output, size_t count, int dtype = QRD_FP32,
                        int op = QRD_SUM) {
    qrd_operation operation = 0;
    const std::string outcome =
        Outcome(qrd_all_reduce(comm_, input, output, count, static_cast<qrd_dtype>(dtype),
                               static_cast<qrd_reduce_op>(op), &operation));
    EXPECT_EQ(operation, 0u);
    return outcome;
  }
  float* memory_ = nullptr;
};

TEST_F(ArgumentsTest, AllReduce) {
  char* bytes = reinterpret_cast<char*>(memory_);
  EXPECT_EQ(AllReduce(memory_, memory_, 1, 0),
            "INVALID_ARGUMENT: dtype: 0, want QRD_FP16 (1), QRD_BF16 (2) or QRD_FP32 (3)");
  EXPECT_EQ(AllReduce(memory_, memory_, 1, 4),
            "INVALID_ARGUMENT: dtype: 4, want QRD_FP16 (1), QRD_BF16 (2) or QRD_FP32 (3)");
  EXPECT_EQ(AllReduce(memory_, memory_, 1, QRD_FP32, 0),
            "INVALID_ARGUMENT: op: 0, want QRD_SUM (1) or QRD_AVG (2)");
  EXPECT_EQ(AllReduce(memory_, memory_, 1, QRD_FP32, 3),
            "INVALID_ARGUMENT: op: 3, want QRD_SUM (1) or QRD_AVG (2)");
  EXPECT_EQ(AllReduce(nullptr, memory_, 1), "INVALID_ARGUMENT: input: NULL");
  EXPECT_EQ(AllReduce(memory_, nullptr, 1), "INVALID_ARGUMENT: output: NULL");
  EXPECT_EQ(
      AllReduce(memory_, memory_, SIZE_MAX / 4 + 1),
      "INVALID_ARGUMENT: count: 4611686018427387904 elements of 4 bytes overflow size_t, want "
      "at most 4611686018427387903");
  EXPECT_EQ(
      AllReduce(memory_, memory_, SIZE_MAX / 2 + 1, QRD_BF16),
      "INVALID_ARGUMENT: count: 9223372036854775808 elements of 2 bytes overflow size_t, want "
      "at most 9223372036854775807");
  EXPECT_THAT(AllReduce(memory_, memory_, SIZE_MAX / 4),
              StartsWith("INVALID_ARGUMENT: input: 18446744073709551612 bytes from 0x"));
  EXPECT_THAT(AllReduce(bytes + 2, memory_, 4),
              HasSubstr("is not aligned to the element, want a multiple of 4 bytes"));
  EXPECT_THAT(AllReduce(memory_, bytes + 1, 4, QRD_FP16), HasSubstr("output: 0x"));
  EXPECT_THAT(AllReduce(memory_, bytes + 1, 4, QRD_FP16), HasSubstr("want a multiple of 2 bytes"));
  EXPECT_THAT(AllReduce(memory_, memory_ + 1, 4),
              HasSubstr("by 12 of 16 bytes, want the same pointer or none in common"));
  EXPECT_THAT(AllReduce(memory_ + 3, memory_, 4), HasSubstr("by 4 of 16 bytes"));
  EXPECT_THAT(AllReduce(memory_, memory_, 1025),
              HasSubstr("+4100) is not within its qrd_mem_alloc memory [0x"));
  EXPECT_THAT(AllReduce(memory_ - 2, memory_ + 100, 4), HasSubstr("input: [0x"));
  qrd_operation operation = 7;
  EXPECT_EQ(Outcome(qrd_all_reduce(comm_, memory_, memory_, 1, QRD_FP32, QRD_SUM, nullptr)),
            "INVALID_ARGUMENT: operation: NULL");
  EXPECT_EQ(Outcome(qrd_all_reduce(nullptr, memory_, memory_, 1, QRD_FP32, QRD_SUM, &operation)),
            "INVALID_ARGUMENT: comm: NULL");
  EXPECT_EQ(operation, 7u);
  EXPECT_EQ(daemon_.NextPosted(std::chrono::milliseconds(0)), std::nullopt);
}

TEST_F(ArgumentsTest, ABadCallLeavesTheSlotAndTheMemoryFree) {
  for (int i = 0; i < 100; ++i) EXPECT_NE(AllReduce(memory_, memory_ + 1000, 50), "");
  EXPECT_EQ(Outcome(qrd_mem_free(comm_, memory_)), "");
}

TEST_F(ArgumentsTest, Memory) {
  void* ptr = nullptr;
  EXPECT_EQ(Outcome(qrd_mem_alloc(comm_, 0, &ptr)), "INVALID_ARGUMENT: bytes: 0, want 1 or more");
  EXPECT_EQ(Outcome(qrd_mem_alloc(comm_, 1, nullptr)), "INVALID_ARGUMENT: ptr: NULL");
  EXPECT_EQ(Outcome(qrd_mem_alloc(nullptr, 1, &ptr)), "INVALID_ARGUMENT: comm: NULL");
  EXPECT_EQ(ptr, nullptr);
  EXPECT_EQ(Outcome(qrd_mem_free(comm_, nullptr)), "INVALID_ARGUMENT: ptr: NULL");
  EXPECT_THAT(Outcome(qrd_mem_free(comm_, memory_ + 4)),
              HasSubstr("lies 16 bytes inside of qrd_mem_alloc memory, want its start 0x"));
  char stranger = 0;
  EXPECT_THAT(Outcome(qrd_mem_free(comm_, &stranger)), StartsWith("NOT_FOUND: ptr: 0x"));
  EXPECT_EQ(Outcome(qrd_mem_free(comm_, memory_)), "");
  EXPECT_THAT(Outcome(qrd_mem_free(comm_, memory_)),
              HasSubstr("is not qrd_mem_alloc memory of this communicator"));
}

TEST_F(ArgumentsTest, Registration) {
  std::vector<float> own(1000);
  EXPECT_EQ(Outcome(qrd_mem_register(comm_, nullptr, 4)), "INVALID_ARGUMENT: ptr: NULL");
  EXPECT_EQ(Outcome(qrd_mem_register(comm_, own.data(), 0)),
            "INVALID_ARGUMENT: ptr: 0 bytes, want 1 or more");
  EXPECT_THAT(Outcome(qrd_mem_register(comm_, own.data(), SIZE_MAX)),
              HasSubstr("pass the end of the address space"));
  EXPECT_THAT(Outcome(qrd_mem_register(comm_, memory_ + 10, 4)),
              HasSubstr("overlaps qrd_mem_alloc memory [0x"));
  EXPECT_EQ(Outcome(qrd_mem_register(comm_, own.data(), 400)), "");
  EXPECT_THAT(Outcome(qrd_mem_register(comm_, own.data() + 99, 400)),
              HasSubstr("overlaps registered memory [0x"));
  EXPECT_THAT(Outcome(qrd_mem_deregister(comm_, own.data() + 1)),
              HasSubstr("lies 4 bytes inside of registered memory, want its start"));
  EXPECT_THAT(Outcome(qrd_mem_deregister(comm_, memory_)),
              HasSubstr("is not registered memory of this communicator"));
  EXPECT_THAT(Outcome(qrd_mem_free(comm_, own.data())),
              HasSubstr("is not qrd_mem_alloc memory of this communicator"));
  EXPECT_EQ(Outcome(qrd_mem_deregister(comm_, own.data())), "");
  EXPECT_THAT(Outcome(qrd_mem_deregister(comm_, own.data())), StartsWith("NOT_FOUND: ptr: 0x"));
}

TEST_F(ArgumentsTest, WaitAndTest) {
  EXPECT_EQ(Outcome(qrd_wait(comm_, 0, 0, nullptr)),
            "NOT_FOUND: operation: 0 is not in flight (never posted, or released)");
  EXPECT_EQ(Outcome(qrd_test(comm_, 1025, nullptr)),
            "NOT_FOUND: operation: 1025 is not in flight (never posted, or released)");
  EXPECT_EQ(Outcome(qrd_wait(nullptr, 1, 0, nullptr)), "INVALID_ARGUMENT: comm: NULL");
  EXPECT_EQ(Outcome(qrd_test(nullptr, 1, nullptr)), "INVALID_ARGUMENT: comm: NULL");
  qrd_op_stats stats = QRD_OP_STATS_INIT;
  stats.struct_bytes = 0;
  EXPECT_THAT(Outcome(qrd_wait(comm_, 1, 0, &stats)),
              StartsWith("INVALID_ARGUMENT: stats.struct_bytes: 0, want sizeof(the struct)"));
  EXPECT_THAT(Outcome(qrd_test(comm_, 1, &stats)),
              StartsWith("INVALID_ARGUMENT: stats.struct_bytes: 0, want sizeof(the struct)"));
}

TEST_F(ArgumentsTest, RankAbortAndFinalize) {
  uint32_t rank = 9, world_size = 9;
  EXPECT_EQ(Outcome(qrd_comm_rank(comm_, &rank, &world_size)), "");
  EXPECT_EQ(rank, 0u);
  EXPECT_EQ(world_size, 1u);
  EXPECT_EQ(Outcome(qrd_comm_rank(comm_, nullptr, &world_size)), "INVALID_ARGUMENT: rank: NULL");
  EXPECT_EQ(Outcome(qrd_comm_rank(comm_, &rank, nullptr)), "INVALID_ARGUMENT: world_size: NULL");
  EXPECT_EQ(Outcome(qrd_comm_rank(nullptr, &rank, &world_size)), "INVALID_ARGUMENT: comm: NULL");
  EXPECT_EQ(Outcome(qrd_comm_abort(nullptr, nullptr)), "INVALID_ARGUMENT: comm: NULL");
  EXPECT_EQ(Outcome(qrd_comm_abort(comm_, std::string(129, 'x').c_str())),
            "INVALID_ARGUMENT: reason: more than 128 bytes");
  EXPECT_EQ(Outcome(qrd_comm_finalize(nullptr)), "");
}

TEST_F(ArgumentsTest, AReasonThatIsNotUtf8IsSentWithQuestionMarks) {
  // The hook is read by the server's thread: it was set before that thread saw this request.
  EXPECT_EQ(Outcome(qrd_comm_abort(comm_, "gr\xc3\xbc\xc3\x9f \xff\xc3 \xed\xa0\x80")), "");
}

}  // namespace
}  // namespace qrd::testing
