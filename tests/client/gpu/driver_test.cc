// SPDX-License-Identifier: Apache-2.0
// Loading of GPU drivers as a program sees it: what is refused and how, and that programs with host
// memory load nothing. The stubs are driver_stub.cc.
#include <dlfcn.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "tests/client/client_fixture.h"

namespace qrd::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string Maps() {
  std::ostringstream text;
  text << std::ifstream("/proc/self/maps").rdbuf();
  return text.str();
}

class DriverTest : public ClientTest {
 protected:
  // Of an attach with this driver library and device.
  std::string Attach(const char* library, const char* device) {
    if (library == nullptr) {
      unsetenv("QRD_GPU_DRIVER");
    } else {
      setenv("QRD_GPU_DRIVER", library, 1);
    }
    qrd_comm_config config = Config();
    config.device = device;
    return Outcome(qrd_comm_init(&config, &comm_));
  }
};

TEST_F(DriverTest, ALibraryThatIsNotThereIsNamed) {
  EXPECT_THAT(
      Attach("/no/such/libcuda.so", "current"),
      AllOf(StartsWith("FAILED_PRECONDITION: QRD_GPU_DRIVER: "), HasSubstr("/no/such/libcuda.so")));
  EXPECT_EQ(daemon_.connections, 0);
}

TEST_F(DriverTest, ALibraryOfNeitherKindIsNamed) {
  EXPECT_EQ(Attach(QRD_STUB_NEITHER, "current"),
            "FAILED_PRECONDITION: " QRD_STUB_NEITHER " exports neither cuInit nor hipInit");
}

TEST_F(DriverTest, AMissingFunctionIsNamed) {
  EXPECT_EQ(Attach(QRD_STUB_CUDA_OLD, "current"),
            "FAILED_PRECONDITION: " QRD_STUB_CUDA_OLD
            " has no function cuGetErrorString; want a CUDA driver of version 11.4 or later");
}

TEST_F(DriverTest, ADriverWithoutDevicesIsSaidToHaveNone) {
  EXPECT_EQ(Attach(QRD_STUB_CUDA, "GPU-00000000-0000-0000-0000-000000000000"),
            "FAILED_PRECONDITION: " QRD_STUB_CUDA " shows no device to this process");
}

TEST_F(DriverTest, AnOldHipIsRefusedWithBothVersions) {
  EXPECT_EQ(Attach(QRD_STUB_HIP_OLD, "current"),
            "FAILED_PRECONDITION: " QRD_STUB_HIP_OLD
            " has version 50700000, want HIP 6.0 (60000000) or later");
}

TEST_F(DriverTest, WithoutTheEnvironmentEveryLibraryThatWasTriedIsNamed) {
  if (void* cuda = dlopen("libcuda.so.1", RTLD_LAZY); cuda != nullptr) {
    GTEST_SKIP() << "this machine has a GPU driver";
  }
  const std::string outcome = Attach(nullptr, "current");
  EXPECT_THAT(outcome, StartsWith("FAILED_PRECONDITION: no GPU that libqrd can use: libcuda.so.1"));
  EXPECT_THAT(outcome, HasSubstr("libamdhip64.so"));
}

TEST_F(DriverTest, TheDeviceOfTheConfigIsChecked) {
  EXPECT_THAT(Attach(QRD_STUB_CUDA, ""), StartsWith("INVALID_ARGUMENT: config.device: \"\""));
  const std::string name(65, 'x');
  EXPECT_THAT(Attach(QRD_STUB_CUDA, name.c_str()), HasSubstr("1 to 64 characters"));
}

TEST_F(DriverTest, AConfigOfTheFirstVersionHasHostMemory) {
  struct {
    qrd_comm_config config;
  } old = {Config()};
  old.config.struct_bytes = offsetof(qrd_comm_config, device);
  old.config.device = "this is not part of the struct that the caller knows, and not looked at....";
  EXPECT_EQ(Outcome(qrd_comm_init(&old.config, &comm_)), "");
}

TEST_F(DriverTest, HostCommunicatorsLoadNoDriver) {
  ASSERT_EQ(Attach(QRD_STUB_UNTOUCHED, nullptr), "");
  float x[16] = {};
  const qrd_operation operation = Post(x, x, 16);
  daemon_.Complete(*daemon_.NextPosted(), QRD_OK);
  EXPECT_EQ(Outcome(qrd_wait(comm_, operation, 0, nullptr)), "");
  EXPECT_EQ(Maps().find(QRD_STUB_UNTOUCHED), std::string::npos);
}

TEST_F(DriverTest, DeviceMemoryGivenToAHostCommunicatorIsNamed) {
  ASSERT_EQ(Attach(QRD_STUB_LATE, nullptr), "");
  // Before the program loads a GPU library, and after that.
  float x[16] = {};
  const qrd_operation operation = Post(x, x, 16);
  daemon_.Complete(*daemon_.NextPosted(), QRD_OK);
  EXPECT_EQ(Outcome(qrd_wait(comm_, operation, 0, nullptr)), "");
  void* const library = dlopen(QRD_STUB_LATE, RTLD_NOW);
  ASSERT_NE(library, nullptr) << dlerror();
  void* const device = dlsym(library, "qrd_stub_device_memory");
  qrd_operation none = 0;
  const std::string want =
      "device memory (" QRD_STUB_LATE "), but the communicator has host memory";
  EXPECT_THAT(Outcome(qrd_all_reduce(comm_, device, x, 16, QRD_FP32, QRD_SUM, &none)),
              AllOf(StartsWith("INVALID_ARGUMENT: input: "), HasSubstr(want)));
  EXPECT_THAT(Outcome(qrd_all_reduce(comm_, x, device, 16, QRD_FP32, QRD_SUM, &none)),
              AllOf(StartsWith("INVALID_ARGUMENT: output: "), HasSubstr(want)));
  EXPECT_THAT(Outcome(qrd_mem_register(comm_, device, 64)), HasSubstr(want));
  EXPECT_EQ(none, 0u);
  const qrd_operation again = Post(x, x, 16);
  daemon_.Complete(*daemon_.NextPosted(), QRD_OK);
  EXPECT_EQ(Outcome(qrd_wait(comm_, again, 0, nullptr)), "");
}

TEST_F(DriverTest, FunctionsOfDevicesRefuseHostCommunicators) {
  ASSERT_EQ(Attach(nullptr, nullptr), "");
  float x[16] = {};
  EXPECT_THAT(Outcome(qrd_all_reduce_on_stream(comm_, x, x, 16, QRD_FP32, QRD_SUM, nullptr)),
              AllOf(StartsWith("FAILED_PRECONDITION: comm: it has host memory"),
                    HasSubstr("config.device")));
  EXPECT_THAT(Outcome(qrd_mem_import(comm_, x, sizeof(x))),
              StartsWith("FAILED_PRECONDITION: comm: it has host memory"));
  EXPECT_THAT(Outcome(qrd_mem_release(comm_, x)), StartsWith("NOT_FOUND: "));
  qrd_status failed = QRD_INTERNAL;
  qrd_op_stats stats = QRD_OP_STATS_INIT;
  EXPECT_EQ(Outcome(qrd_comm_async_error(comm_, &failed, &stats)), "");
  EXPECT_EQ(failed, QRD_OK);
  uint64_t operations = 7;
  EXPECT_EQ(Outcome(qrd_stream_stats(comm_, &operations, nullptr)), "");
  EXPECT_EQ(operations, 0u);
}

TEST_F(DriverTest, TheLossOfTheDaemonIsAnAsyncErrorOfHostCommunicatorsToo) {
  ASSERT_EQ(Attach(nullptr, nullptr), "");
  daemon_.HangUp(QRD_UNAVAILABLE, "the daemon drains");
  qrd_status failed = QRD_OK;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (failed == QRD_OK && std::chrono::steady_clock::now() < deadline) {
    ASSERT_EQ(Outcome(qrd_comm_async_error(comm_, &failed, nullptr)), "");
  }
  EXPECT_EQ(failed, QRD_UNAVAILABLE);
  EXPECT_THAT(qrd_last_error(), HasSubstr("the daemon drains"));
}

TEST_F(DriverTest, NullOutputsAreNamed) {
  ASSERT_EQ(Attach(nullptr, nullptr), "");
  EXPECT_EQ(Outcome(qrd_comm_async_error(comm_, nullptr, nullptr)),
            "INVALID_ARGUMENT: status: NULL");
  EXPECT_EQ(Outcome(qrd_stream_stats(comm_, nullptr, nullptr)),
            "INVALID_ARGUMENT: operations: NULL");
  EXPECT_EQ(Outcome(qrd_mem_import(comm_, nullptr, 1)).substr(0, 19), "FAILED_PRECONDITION");
  EXPECT_EQ(
      Outcome(qrd_all_reduce_on_stream(nullptr, nullptr, nullptr, 0, QRD_FP32, QRD_SUM, nullptr)),
      "INVALID_ARGUMENT: comm: NULL");
}

}  // namespace
}  // namespace qrd::testing
