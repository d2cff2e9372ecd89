// SPDX-License-Identifier: Apache-2.0
#include "daemon/base/host_port.h"

#include <gtest/gtest.h>

namespace qrd {
namespace {

TEST(ParseHostPort, TakesNumericAddressesAndLocalhost) {
  EXPECT_EQ(ParseHostPort("127.0.0.1:9478")->ToString(), "127.0.0.1:9478");
  EXPECT_EQ(ParseHostPort("localhost:0")->ToString(), "127.0.0.1:0");
  EXPECT_EQ(ParseHostPort("0.0.0.0:65535")->port, 65535);
  const auto ipv6 = ParseHostPort("[::1]:80");
  ASSERT_TRUE(ipv6.ok()) << ipv6.status();
  EXPECT_TRUE(ipv6->is_ipv6);
  EXPECT_EQ(ipv6->host, "::1");
  EXPECT_EQ(ipv6->ToString(), "[::1]:80");
}

TEST(ParseHostPort, RefusesEverythingElse) {
  for (const std::string text :
       {"", ":", "9478", ":9478", "127.0.0.1", "127.0.0.1:", "127.0.0.1:-1", "127.0.0.1:65536",
        "127.0.0.1:1s", "127.0.0.1: 1", "127.0.0.1:+1", "127.0.0.1:000001", "::1:80", "[::1]80",
        "[127.0.0.1]:80", "host.example:80", "127.0.0.1:1,127.0.0.1:2", "999.0.0.1:1"}) {
    EXPECT_EQ(ParseHostPort(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

}  // namespace
}  // namespace qrd
