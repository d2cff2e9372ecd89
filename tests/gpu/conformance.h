// SPDX-License-Identifier: Apache-2.0
// The parts of the conformance program.
#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "device_support.h"

namespace qrd::testing {

// Held by whoever uses the device while references are computed in parallel.
std::mutex& DeviceMutex();
// Runs all, on all cores.
void RunInParallel(const std::vector<std::function<void()>>& work);

void CheckCodecs(Report* report);
void CheckAnyWire(Report* report);
void CheckGoldenCodecs(const std::string& folder, Report* report);

void CheckGoldenReductions(const std::string& folder, Report* report);
void CheckEveryInstance(Report* report);
void CheckLargeMessages(Report* report);
void CheckChangingShapes(int calls, Report* report);
void CheckGraphReplays(int replays, Report* report);
void CheckMissingRank(Report* report);
void CheckAbort(Report* report);
void CheckSeparateLaunches(Report* report);
void CheckTwoCommunicators(Report* report);
void CheckManyDevices(Report* report);
void CheckErrors(Report* report);
void CheckCollectiveLibrary(Report* report);
void CheckBackend(Report* report);
// The other process of CheckBackend. Returns its exit status.
int RunImport(const std::string& device, const std::string& hex);

void CheckGoldenEpilogues(const std::string& folder, Report* report);
void CheckRmsNormKinds(bool quick, Report* report);
void CheckShardedRmsNorm(bool quick, Report* report);
void CheckRmsNormShapes(Report* report);
void CheckFp8Conversion(Report* report);
void CheckRmsNormReplays(int replays, Report* report);
void CheckRmsNormLateRanks(Report* report);
void CheckRmsNormMissingRank(Report* report);
void CheckRmsNormErrors(Report* report);
void CheckRmsNormWirePools(Report* report);
void CheckRmsNormWirePoolsApart(Report* report);

}  // namespace qrd::testing
