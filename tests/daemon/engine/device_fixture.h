// SPDX-License-Identifier: Apache-2.0
// A daemon with one fake device and groups of ranks on it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/daemon/data_path.h"
#include "tests/support/fake_device_backend.h"

namespace qrd::testing {

class DeviceTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kCount = 256;
  static constexpr uint64_t kBytes = kCount * sizeof(float);

  explicit DeviceTest(Config config = DataPath::DefaultConfig())
      : daemon(std::move(config), nullptr, std::make_unique<FakeDeviceBackend>(control.devices)) {}

  ~DeviceTest() override { control.Set(&FakeDevices::hold, false); }

  // All ranks joined on the device, each with an arena (input first, output behind it) and an open
  // stream.
  void Attach(uint32_t world_size, const std::string& device = kFakeDeviceId) {
    for (uint32_t rank = 0; rank < world_size; ++rank) {
      clients.push_back(std::make_unique<RawClient>(daemon.socket()));
      ASSERT_EQ(clients[rank]->Hello(), "");
      clients[rank]->SendJoinOnDevice("c", "g", rank, world_size, device);
    }
    for (auto& client : clients) {
      ASSERT_EQ(client->FinishJoin(), "");
      ASSERT_EQ(client->joined().device(), kFakeDeviceId);
      ASSERT_EQ(client->OpenStream(), "");
      arenas.push_back(client->AllocOnDevice(2 * kBytes));
      ASSERT_NE(arenas.back().data, nullptr) << client->last_error();
    }
    FillInputs(0);
  }
  // Element i of rank r: base + r + 1 + i.
  void FillInputs(float base) {
    for (size_t r = 0; r < arenas.size(); ++r) {
      for (uint64_t i = 0; i < kCount; ++i) {
        arenas[r].at<float>(0)[i] = base + static_cast<float>(r + 1 + i);
      }
    }
  }
  void ExpectSums(float base) {
    const auto ranks = static_cast<float>(arenas.size());
    for (const RawArena& arena : arenas) {
      for (uint64_t i = 0; i < kCount; ++i) {
        ASSERT_EQ(arena.at<float>(kBytes)[i],
                  ranks * (base + static_cast<float>(i)) + ranks * (ranks + 1) / 2)
            << i;
      }
    }
  }
  shm::Descriptor Sum(size_t rank) {
    return clients[rank]->AllReduce(arenas[rank], 0, kBytes, kCount);
  }
  uint32_t Post(size_t rank) { return clients[rank]->Post(Sum(rank)); }
  // Every rank announces the entry and passes.
  void RunOnStreams(uint32_t entry) {
    for (size_t r = 0; r < clients.size(); ++r) clients[r]->Announce(entry, Sum(r));
    for (auto& client : clients) ASSERT_TRUE(client->PassStream());
  }

  DeviceControl control;
  DataPath daemon;
  std::vector<std::unique_ptr<RawClient>> clients;
  std::vector<RawArena> arenas;
};

}  // namespace qrd::testing
