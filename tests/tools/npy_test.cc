// SPDX-License-Identifier: Apache-2.0
#include "client/tools/qrbench/npy.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "tests/support/temp_directory.h"

namespace qrd::tools {
namespace {

// A file of format version `major` with this header text and data.
std::string Npy(const std::string& dict, const std::string& data, int major = 1) {
  std::string file = std::string("\x93NUMPY", 6) + static_cast<char>(major) + '\0';
  const std::string header = dict + "\n";
  const auto length = static_cast<uint32_t>(header.size());
  file.append(reinterpret_cast<const char*>(&length), major == 1 ? 2 : 4);
  return file + header + data;
}

std::string Dict(const std::string& descr, const std::string& shape,
                 const std::string& fortran = "False") {
  return "{'descr': '" + descr + "', 'fortran_order': " + fortran + ", 'shape': " + shape + ", }";
}

template <typename T>
std::string Raw(std::initializer_list<T> values) {
  return std::string(reinterpret_cast<const char*>(values.begin()), values.size() * sizeof(T));
}

std::string ErrorOf(const std::string& file) {
  const absl::StatusOr<NpyArray> array = ParseNpy(file, "x.npy");
  return array.ok() ? "(no error)" : std::string(array.status().message());
}

TEST(Npy, ReadsFp16) {
  const auto array =
      ParseNpy(Npy(Dict("<f2", "(3,)"), Raw<uint16_t>({0x3C00, 0xC000, 0x7BFF})), "x");
  ASSERT_TRUE(array.ok()) << array.status();
  EXPECT_EQ(array->dtype, Dtype::kFp16);
  EXPECT_EQ(array->shape, std::vector<uint64_t>({3}));
  EXPECT_EQ(array->values, std::vector<float>({1.0f, -2.0f, 65504.0f}));
}

TEST(Npy, ReadsFp32AndDouble) {
  const auto fp32 = ParseNpy(Npy(Dict("<f4", "(1, 2)"), Raw<float>({0.5f, -3.25f})), "x");
  ASSERT_TRUE(fp32.ok()) << fp32.status();
  EXPECT_EQ(fp32->values, std::vector<float>({0.5f, -3.25f}));
  const auto fp64 = ParseNpy(Npy(Dict("<f8", "(2,)"), Raw<double>({0.1, 1e300})), "x");
  ASSERT_TRUE(fp64.ok()) << fp64.status();
  EXPECT_EQ(fp64->dtype, Dtype::kFp32);
  EXPECT_EQ(fp64->values[0], 0.1f);
  EXPECT_EQ(fp64->values[1], std::numeric_limits<float>::infinity());
}

TEST(Npy, ReadsBfloat16BitsUnderAllTheirNames) {
  for (const char* descr : {"<u2", "<i2", "<V2", "|V2"}) {
    const auto array = ParseNpy(Npy(Dict(descr, "(2,)"), Raw<uint16_t>({0x3F80, 0xC040})), "x");
    ASSERT_TRUE(array.ok()) << array.status();
    EXPECT_EQ(array->dtype, Dtype::kBf16);
    EXPECT_EQ(array->values, std::vector<float>({1.0f, -3.0f})) << descr;
  }
}

TEST(Npy, ReadsVersions2And3AndScalarsAndEmptyArrays) {
  EXPECT_TRUE(ParseNpy(Npy(Dict("<f4", "(1,)"), Raw<float>({1}), 2), "x").ok());
  EXPECT_TRUE(ParseNpy(Npy(Dict("<f4", "(1,)"), Raw<float>({1}), 3), "x").ok());
  EXPECT_EQ(ParseNpy(Npy(Dict("<f4", "()"), Raw<float>({7})), "x")->values,
            std::vector<float>({7}));
  EXPECT_TRUE(ParseNpy(Npy(Dict("<f4", "(0, 5)"), ""), "x")->values.empty());
}

TEST(Npy, FortranOrderOfOneDimensionIsTheSame) {
  EXPECT_TRUE(ParseNpy(Npy(Dict("<f4", "(2,)", "True"), Raw<float>({1, 2})), "x").ok());
}

TEST(Npy, HostileFilesAreRefusedWithAReason) {
  const std::string good = Npy(Dict("<f4", "(2,)"), Raw<float>({1, 2}));
  EXPECT_EQ(ErrorOf(""), "x.npy: not a .npy file (it does not begin with \\x93NUMPY)");
  EXPECT_EQ(ErrorOf("PK\x03\x04 an npz"),
            "x.npy: not a .npy file (it does not begin with \\x93NUMPY)");
  EXPECT_EQ(ErrorOf(good.substr(0, 9)), "x.npy: truncated in the first 10 bytes");
  EXPECT_EQ(ErrorOf(Npy(Dict("<f4", "(1,)"), "", 9)), "x.npy: format version 9; known: 1, 2, 3");
  EXPECT_EQ(ErrorOf(good.substr(0, 20)).rfind("x.npy: the header claims", 0), 0u);
  EXPECT_EQ(ErrorOf(good.substr(0, good.size() - 1)),
            "x.npy: shape and dtype need 8 bytes of data, the file has 7");
  EXPECT_EQ(ErrorOf(good + "x"), "x.npy: shape and dtype need 8 bytes of data, the file has 9");
  EXPECT_EQ(ErrorOf(Npy(Dict(">f4", "(1,)"), "abcd")),
            "x.npy: dtype '>f4' is big-endian; save it with .astype('<f4')");
  EXPECT_EQ(
      ErrorOf(Npy(Dict("<c8", "(1,)"), "abcdefgh")).rfind("x.npy: dtype '<c8' is not read", 0), 0u);
  EXPECT_EQ(ErrorOf(Npy(Dict("<f4", "(2, 2)", "True"), Raw<float>({1, 2, 3, 4}))),
            "x.npy: the array is in Fortran order; save numpy.ascontiguousarray(array)");
  EXPECT_EQ(
      ErrorOf(Npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", "abcd")),
      "x.npy: the header has no 'descr' text (structured arrays are not read)");
  EXPECT_EQ(ErrorOf(Npy("{'descr': '<f4', 'shape': (1,)}", "abcd")),
            "x.npy: the header has no 'fortran_order' True or False");
  EXPECT_EQ(ErrorOf(Npy("{'descr': '<f4", "")), "x.npy: 'descr' does not end");
  EXPECT_EQ(ErrorOf(Npy(Dict("<f4", "(-1,)"), "abcd")), "x.npy: shape has \"-1\", not a length");
}

TEST(Npy, ShapesThatOverflowAreRefusedBeforeAnythingIsAllocated) {
  for (const char* shape : {"(4294967296, 4294967296)", "(18446744073709551615,)",
                            "(99999999999999999999,)", "(65536, 65536, 65536, 65536)"}) {
    EXPECT_NE(ErrorOf(Npy(Dict("<f4", shape), "abcd")), "(no error)") << shape;
  }
}

TEST(Npy, AHeaderLengthPastTheEndIsRefused) {
  std::string file = Npy(Dict("<f4", "(1,)"), "abcd", 2);
  const uint32_t huge = 0xFFFFFFFF;
  std::memcpy(file.data() + 8, &huge, 4);
  EXPECT_EQ(ErrorOf(file).rfind("x.npy: the header claims 4294967295 bytes", 0), 0u)
      << ErrorOf(file);
}

// Each prefix and each single changed byte gives an array or an error, never a crash (run with
// ASan).
TEST(Npy, DamagedFilesNeverCrash) {
  const std::string good = Npy(Dict("<f2", "(2, 3)"), Raw<uint16_t>({1, 2, 3, 4, 5, 6}));
  int errors = 0;
  for (size_t length = 0; length < good.size(); ++length) {
    errors += !ParseNpy(good.substr(0, length), "x").ok();
  }
  EXPECT_EQ(errors, static_cast<int>(good.size()));
  for (size_t at = 0; at < good.size(); ++at) {
    for (const int value : {0, 39, 40, 41, 57, 255}) {
      std::string damaged = good;
      damaged[at] = static_cast<char>(value);
      (void)ParseNpy(damaged, "x").ok();
    }
  }
}

TEST(Npy, AFolderOrAMissingFileIsNamed) {
  qrd::testing::TempDirectory directory;
  EXPECT_EQ(ReadNpy(directory.path()).status().message(), directory.path() + ": not a file");
  EXPECT_EQ(ReadNpy(directory / "no.npy").status().message(),
            (directory / "no.npy") + ": No such file or directory");
}

TEST(Npy, TheSampleTensorsOfTheTestsAreRead) {
  const auto array =
      ReadNpy(std::string(QRD_TEST_DATA_DIR) + "/minilm/attn_out.layer3.tp2.rank0.npy");
  ASSERT_TRUE(array.ok()) << array.status();
  EXPECT_EQ(array->dtype, Dtype::kFp16);
  EXPECT_EQ(array->shape, std::vector<uint64_t>({119, 384}));
}

}  // namespace
}  // namespace qrd::tools
