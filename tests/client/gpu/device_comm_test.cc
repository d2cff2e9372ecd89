// SPDX-License-Identifier: Apache-2.0
// Communicators on a device: which one, its memory, and operations that the host waits for.
#include "tests/client/gpu/device_fixture.h"

namespace qrd::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

using DeviceCommTest = DeviceTest;

TEST_F(DeviceCommTest, TheDaemonIsToldTheUuidHoweverTheDeviceIsNamed) {
  std::string joined;
  daemon_.on_request = [&](const v1::ClientMessage& request) {
    if (request.has_join()) joined = request.join().device();
    return FakeDaemon::Normal();
  };
  for (const char* name :
       {kScriptedUuid, "gpu-00010203-0405-0607-0809-0A0B0C0D0E00", kScriptedAddress}) {
    AttachDevice(name);
    EXPECT_EQ(qrd_comm_finalize(comm_), QRD_OK);
    comm_ = nullptr;
    EXPECT_EQ(joined, kScriptedUuid) << name;
    joined.clear();
  }
  gpu_->SetCurrent(0);
  AttachDevice("current");
  EXPECT_EQ(gpu_->Current(), 0);
  gpu_->SetCurrent(-1);
  EXPECT_EQ(joined, kScriptedUuid);
}

TEST_F(DeviceCommTest, DevicesThatAreNotThereAreNamedWithThoseThatAre) {
  qrd_comm_config config = Config();
  config.device = "current";
  EXPECT_THAT(Outcome(qrd_comm_init(&config, &comm_)),
              StartsWith("FAILED_PRECONDITION: the calling thread has no current CUDA context"));
  for (const char* name : {"GPU-11111111-0405-0607-0809-0a0b0c0d0e00", "0000:ff:00.0", "0"}) {
    config.device = name;
    EXPECT_THAT(Outcome(qrd_comm_init(&config, &comm_)),
                AllOf(StartsWith("NOT_FOUND: config.device: \"" + std::string(name)),
                      HasSubstr(std::string(kScriptedUuid) + " (" + kScriptedAddress + "), GPU-")));
  }
  EXPECT_EQ(daemon_.connections, 0);
}

TEST_F(DeviceCommTest, ADaemonThatAnswersForAnotherDeviceIsRefused) {
  daemon_.edit_joined = [](shm::NodeHeader*, shm::SessionHeader*, v1::Joined* joined) {
    joined->set_device("");
  };
  qrd_comm_config config = Config();
  config.device = kScriptedUuid;
  EXPECT_EQ(Outcome(qrd_comm_init(&config, &comm_)),
            "INTERNAL: Join: the daemon answers for device \"\", want \"" +
                std::string(kScriptedUuid) + "\"");
}

TEST_F(DeviceCommTest, MemoryIsTheDaemonsAndIsUsedWhereItIs) {
  AttachDevice();
  float* const a = Floats(100);
  float* const b = Floats(100);
  EXPECT_EQ(daemon_.arena_requests, 1);
  EXPECT_EQ(gpu_->open_handles(), 1);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a) % 256, 0u);
  a[7] = 3;
  const qrd_operation operation = Post(a, b, 100);
  const auto posted = daemon_.NextPosted();
  ASSERT_TRUE(posted.has_value());
  EXPECT_EQ(Tensor(posted->descriptor.input), a);
  EXPECT_EQ(Tensor(posted->descriptor.output), b);
  Compute(posted->descriptor);
  daemon_.Complete(*posted, QRD_OK);
  qrd_op_stats stats = QRD_OP_STATS_INIT;
  EXPECT_EQ(Outcome(qrd_wait(comm_, operation, 0, &stats)), "");
  EXPECT_EQ(b[7], 3 + kAdded);
  EXPECT_EQ(stats.staged, 0);
  EXPECT_EQ(Outcome(qrd_mem_free(comm_, a)), "");
  EXPECT_EQ(Outcome(qrd_mem_free(comm_, b)), "");
}

TEST_F(DeviceCommTest, OtherDeviceMemoryIsCopiedOnTheDevice) {
  AttachDevice();
  float* const in = Own(1000);
  float* const out = Own(1000);
  in[999] = 5;
  const qrd_operation operation = Post(in, out, 1000);
  in[999] = 6;  // the copy has been made
  const auto posted = daemon_.NextPosted();
  ASSERT_TRUE(posted.has_value());
  Compute(posted->descriptor);
  daemon_.Complete(*posted, QRD_OK);
  EXPECT_EQ(out[999], 0);
  qrd_op_stats stats = QRD_OP_STATS_INIT;
  EXPECT_EQ(Outcome(qrd_wait(comm_, operation, 0, &stats)), "");
  EXPECT_EQ(out[999], 5 + kAdded);
  EXPECT_NE(stats.staged, 0);
}

TEST_F(DeviceCommTest, WrongKindsOfMemoryAreNamed) {
  AttachDevice();
  float host[16] = {};
  float* const good = Own(16);
  void* const other = gpu_->Allocate(64, 1);
  qrd_operation none = 0;
  EXPECT_THAT(Outcome(qrd_all_reduce(comm_, host, good, 16, QRD_FP32, QRD_SUM, &none)),
              AllOf(StartsWith("INVALID_ARGUMENT: input: "), HasSubstr("is host memory")));
  EXPECT_THAT(Outcome(qrd_all_reduce(comm_, good, other, 16, QRD_FP32, QRD_SUM, &none)),
              AllOf(StartsWith("INVALID_ARGUMENT: output: "), HasSubstr("is memory of device GPU-"),
                    HasSubstr(kScriptedUuid)));
  EXPECT_THAT(Outcome(qrd_mem_register(comm_, host, sizeof(host))),
              StartsWith("INVALID_ARGUMENT: ptr: "));
  EXPECT_THAT(Outcome(qrd_mem_import(comm_, host, sizeof(host))),
              AllOf(StartsWith("INVALID_ARGUMENT: ptr: "), HasSubstr("is host memory")));
  EXPECT_THAT(Enqueue(host, host, 16, stream_), StartsWith("INVALID_ARGUMENT: input: "));
  EXPECT_THAT(Enqueue(good, other, 16, stream_), StartsWith("INVALID_ARGUMENT: output: "));
  EXPECT_TRUE(gpu_->Run(stream_));
  EXPECT_TRUE(Silent());
}

TEST_F(DeviceCommTest, ImportedMemoryIsUsedWhereItIs) {
  AttachDevice();
  float* const own = Own(1000);
  ASSERT_EQ(Outcome(qrd_mem_import(comm_, own + 64, 500 * sizeof(float))), "");
  EXPECT_THAT(Outcome(qrd_mem_import(comm_, own + 100, 4)), HasSubstr("overlaps imported memory"));
  const qrd_operation operation = Post(own + 70, own + 70, 10);
  const auto posted = daemon_.NextPosted();
  ASSERT_TRUE(posted.has_value());
  EXPECT_EQ(Tensor(posted->descriptor.input), own + 70);
  EXPECT_EQ(posted->descriptor.input.offset_bytes, 6 * sizeof(float));
  EXPECT_THAT(Outcome(qrd_mem_release(comm_, own + 64)), StartsWith("FAILED_PRECONDITION: ptr: "));
  daemon_.Complete(*posted, QRD_OK);
  qrd_op_stats stats = QRD_OP_STATS_INIT;
  EXPECT_EQ(Outcome(qrd_wait(comm_, operation, 0, &stats)), "");
  EXPECT_EQ(stats.staged, 0);
  EXPECT_THAT(Outcome(qrd_mem_free(comm_, own + 64)), StartsWith("NOT_FOUND: "));
  EXPECT_EQ(Outcome(qrd_mem_release(comm_, own + 64)), "");
  EXPECT_EQ(daemon_.arenas_live, 0);
}

TEST_F(DeviceCommTest, ImportsAreWithinOneAllocation) {
  AttachDevice();
  float* const own = Own(1000);
  EXPECT_THAT(Outcome(qrd_mem_import(comm_, own + 10, 1000 * sizeof(float))),
              AllOf(StartsWith("INVALID_ARGUMENT: bytes: 4000 from "),
                    HasSubstr("pass the end of the allocation")));
  EXPECT_EQ(daemon_.arenas_live, 0);
}

TEST_F(DeviceCommTest, MemoryThatCannotBeExportedIsRefusedWithAdviceAndStaged) {
  AttachDevice();
  auto* const own = static_cast<float*>(gpu_->Allocate(64, 0, true));
  EXPECT_THAT(Outcome(qrd_mem_import(comm_, own, 64)),
              AllOf(StartsWith("UNIMPLEMENTED: ptr: "), HasSubstr("expandable_segments"),
                    HasSubstr("cudaMalloc")));
  own[3] = 1;
  ASSERT_EQ(Enqueue(own, 16), "");
  RunOne();
  EXPECT_EQ(own[3], 1 + kAdded);
  EXPECT_NE(LastStats().staged, 0);
}

TEST_F(DeviceCommTest, AHandleOfTheWrongSizeIsTheDaemonsMistakeAndTheArenaIsGivenBack) {
  daemon_.edit_arena = [](v1::ArenaAllocated* arena) { arena->set_ipc_handle("short"); };
  AttachDevice();
  void* ptr = nullptr;
  EXPECT_EQ(Outcome(qrd_mem_alloc(comm_, 64, &ptr)),
            "INTERNAL: arena from the daemon: ipc_handle has 5 bytes, want 64");
  EXPECT_EQ(daemon_.arenas_live, 0);
}

}  // namespace
}  // namespace qrd::testing
