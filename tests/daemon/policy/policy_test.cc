// SPDX-License-Identifier: Apache-2.0
#include "daemon/policy/policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/daemon/policy/policy_text.h"
#include "tests/support/fake_backend.h"

namespace qrd {
namespace {

using ::testing::AllOf;
using testing::FakeBackend;
using ::testing::HasSubstr;
using testing::PolicyFrom;

// A build that was made with some codecs only.
class SmallBackend : public FakeBackend {
 public:
  std::span<const KernelInstance> instances() const override { return instances_; }

 private:
  const std::vector<KernelInstance> instances_ = {
      {Codec::kNone, Algorithm::kTwoShot, Dtype::kFp16, 1, 16},
      {Codec::kNone, Algorithm::kTwoShot, Dtype::kBf16, 1, 16},
      {Codec::kNone, Algorithm::kTwoShot, Dtype::kFp32, 1, 16},
      {Codec::kInt8, Algorithm::kTwoShot, Dtype::kFp16, 1, 8}};
};

absl::Status CompileStatus(const v1::Policy& policy) {
  return CompiledPolicy::Compile(policy, FakeBackend(), 1).status();
}
std::string ErrorOf(const std::string& text) {
  return std::string(CompileStatus(PolicyFrom(text)).message());
}
std::shared_ptr<const CompiledPolicy> Compile(const std::string& text, uint64_t generation = 1) {
  auto policy = CompiledPolicy::Compile(PolicyFrom(text), FakeBackend(), generation);
  EXPECT_TRUE(policy.ok()) << policy.status();
  return *policy;
}

PlanFacts Facts(Dtype dtype, uint64_t payload_bytes, uint32_t world_size,
                std::string_view communicator = "c", std::string_view group = "g") {
  PlanFacts facts;
  facts.communicator = communicator;
  facts.group = group;
  facts.dtype = dtype;
  facts.payload_bytes = payload_bytes;
  facts.world_size = world_size;
  return facts;
}

struct BadPolicy {
  const char* name;
  const char* text;
  const char* error;
};
void PrintTo(const BadPolicy& bad, std::ostream* out) { *out << bad.name; }

class RefusedPolicy : public ::testing::TestWithParam<BadPolicy> {};

TEST_P(RefusedPolicy, NamesRuleFieldValueAndBound) {
  const absl::Status status = CompileStatus(PolicyFrom(GetParam().text));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().error));
}

INSTANTIATE_TEST_SUITE_P(
    Fields, RefusedPolicy,
    ::testing::Values(
        BadPolicy{"NoName", "rules { action { codec: CODEC_NONE } }",
                  "rule 1 (\"\"): name is empty"},
        BadPolicy{"BadName", "rules { name: \"A\" action { codec: CODEC_NONE } }",
                  "rule 1 (\"A\"): name is \"A\", which has \"A\" at position 1"},
        BadPolicy{
            "Communicator",
            "rules { name: \"a\" match { communicator: \"x y\" } action { codec: CODEC_NONE } }",
            "rule 1 (\"a\"): match.communicator is \"x y\""},
        BadPolicy{"Group",
                  "rules { name: \"a\" match { group: \"-\" } action { codec: CODEC_NONE } }",
                  "rule 1 (\"a\"): match.group is \"-\""},
        BadPolicy{"NoAction", "rules { name: \"a\" }",
                  "rule 1 (\"a\"): action.codec is unset; want one of CODEC_NONE, CODEC_FP8"},
        BadPolicy{"UnknownCodec", "rules { name: \"a\" action { codec: 99 } }",
                  "action.codec is 99; want one of CODEC_NONE, CODEC_FP8, CODEC_INT8"},
        BadPolicy{"NegativeCodec", "rules { name: \"a\" action { codec: -1 } }",
                  "action.codec is -1; want one of"},
        BadPolicy{"UnknownAlgorithm",
                  "rules { name: \"a\" action { codec: CODEC_NONE algorithm: 7 } }",
                  "action.algorithm is 7; want one of ALGORITHM_ONE_SHOT, ALGORITHM_TWO_SHOT"},
        BadPolicy{"UnknownEpilogue",
                  "rules { name: \"a\" match { epilogue: 9 } action { codec: CODEC_NONE } }",
                  "rule 1 (\"a\"): match.epilogue is 9; want one of EPILOGUE_NONE, "
                  "EPILOGUE_RMS_NORM"},
        BadPolicy{"LibraryWithACodec",
                  "rules { name: \"a\" action { codec: CODEC_INT8 algorithm: ALGORITHM_LIBRARY } }",
                  "rule 1 (\"a\"): action.codec is CODEC_INT8 with ALGORITHM_LIBRARY, which has no "
                  "codecs; want CODEC_NONE or CODEC_AUTO"},
        BadPolicy{
            "UnknownDtype",
            "rules { name: \"a\" match { dtypes: [DTYPE_FP16, 9] } action { codec: CODEC_NONE } }",
            "match.dtypes[1] is 9; want one of DTYPE_FP16, DTYPE_BF16, DTYPE_FP32"},
        BadPolicy{"DtypeTwice",
                  "rules { name: \"a\" match { dtypes: [DTYPE_FP16, DTYPE_FP16] } "
                  "action { codec: CODEC_NONE } }",
                  "match.dtypes names DTYPE_FP16 twice"},
        BadPolicy{"MinAboveMax",
                  "rules { name: \"a\" match { payload_bytes_min: 4096 payload_bytes_max: 1024 } "
                  "action { codec: CODEC_NONE } }",
                  "match.payload_bytes_min is 4096 and payload_bytes_max (exclusive) is 1024"},
        BadPolicy{"MinEqualsMax",
                  "rules { name: \"a\" match { payload_bytes_min: 4096 payload_bytes_max: 4096 } "
                  "action { codec: CODEC_NONE } }",
                  "match.payload_bytes_min is 4096 and payload_bytes_max (exclusive) is 4096"},
        BadPolicy{"WorldMin",
                  "rules { name: \"a\" match { world_size_min: 17 } action { codec: CODEC_NONE } }",
                  "match.world_size_min is 17; at most 16"},
        BadPolicy{"WorldMax",
                  "rules { name: \"a\" match { world_size_max: 17 } action { codec: CODEC_NONE } }",
                  "match.world_size_max is 17; at most 16"},
        BadPolicy{"WorldOrder",
                  "rules { name: \"a\" match { world_size_min: 8 world_size_max: 4 } "
                  "action { codec: CODEC_NONE } }",
                  "match.world_size_min is 8 and world_size_max is 4"},
        BadPolicy{"SameName",
                  "rules { name: \"a\" match { group: \"x\" } action { codec: CODEC_NONE } }"
                  "rules { name: \"a\" action { codec: CODEC_FP8 } }",
                  "rule 2 (\"a\"): name \"a\" is also that of rule 1"}),
    [](const auto& test) { return std::string(test.param.name); });

INSTANTIATE_TEST_SUITE_P(
    Unreachable, RefusedPolicy,
    ::testing::Values(
        BadPolicy{
            "ByOneRule",
            "rules { name: \"all\" action { codec: CODEC_NONE } }"
            "rules { name: \"late\" match { dtypes: DTYPE_BF16 } action { codec: CODEC_INT4 } }",
            "rule 2 (\"late\") can never decide: all that it matches is matched before by rule 1 "
            "(\"all\")"},
        BadPolicy{
            "ByTwoSizeRanges",
            "rules { name: \"low\" match { payload_bytes_max: 1024 } action { codec: CODEC_NONE } }"
            "rules { name: \"high\" match { payload_bytes_min: 1024 } action { codec: CODEC_FP8 } }"
            "rules { name: \"late\" match { communicator: \"x\" } action { codec: CODEC_INT4 } }",
            "rule 3 (\"late\") can never decide: all that it matches is matched before by rule 1 "
            "(\"low\"), rule 2 (\"high\")"},
        BadPolicy{"ByDtypes",
                  "rules { name: \"a\" match { dtypes: [DTYPE_FP16, DTYPE_BF16] } "
                  "action { codec: CODEC_NONE } }"
                  "rules { name: \"b\" match { dtypes: DTYPE_FP32 } action { codec: CODEC_NONE } }"
                  "rules { name: \"late\" action { codec: CODEC_INT4 } }",
                  "rule 3 (\"late\") can never decide"},
        BadPolicy{"ByWorldSizes",
                  "rules { name: \"a\" match { world_size_max: 4 } action { codec: CODEC_NONE } }"
                  "rules { name: \"b\" match { world_size_min: 5 } action { codec: CODEC_NONE } }"
                  "rules { name: \"late\" match { world_size_min: 2 world_size_max: 8 } "
                  "action { codec: CODEC_INT4 } }",
                  "rule 3 (\"late\") can never decide"}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(CompiledPolicy, TakesRulesThatLeaveSomethingToTheNext) {
  // One byte, one dtype, one world size or one name is enough.
  for (const char* text :
       {"rules { name: \"a\" match { payload_bytes_min: 1 } action { codec: CODEC_NONE } }"
        "rules { name: \"b\" action { codec: CODEC_FP8 } }",
        "rules { name: \"a\" match { payload_bytes_max: 18446744073709551615 } "
        "action { codec: CODEC_NONE } }"
        "rules { name: \"b\" action { codec: CODEC_FP8 } }",
        "rules { name: \"a\" match { world_size_max: 15 } action { codec: CODEC_NONE } }"
        "rules { name: \"b\" action { codec: CODEC_FP8 } }",
        "rules { name: \"a\" match { communicator: \"x\" } action { codec: CODEC_NONE } }"
        "rules { name: \"b\" action { codec: CODEC_FP8 } }",
        "rules { name: \"a\" match { communicator: \"x\" } action { codec: CODEC_NONE } }"
        "rules { name: \"b\" match { group: \"y\" } action { codec: CODEC_FP8 } }",
        "rules { name: \"a\" match { payload_bytes_max: 1024 } action { codec: CODEC_NONE } }"
        "rules { name: \"b\" match { payload_bytes_min: 1025 } action { codec: CODEC_NONE } }"
        "rules { name: \"c\" action { codec: CODEC_FP8 } }"}) {
    EXPECT_EQ(ErrorOf(text), "") << text;
  }
}

TEST(CompiledPolicy, Takes256RulesAndRefuses257) {
  v1::Policy policy;
  for (int i = 0; i < 256; ++i) {
    v1::Rule* rule = policy.add_rules();
    rule->set_name("r" + std::to_string(i));
    rule->mutable_match()->set_payload_bytes_min(1000 - i);
    rule->mutable_action()->set_codec(v1::CODEC_NONE);
  }
  EXPECT_TRUE(CompileStatus(policy).ok()) << CompileStatus(policy);
  *policy.add_rules() = policy.rules(0);
  EXPECT_THAT(std::string(CompileStatus(policy).message()),
              HasSubstr("rules: 257 rules; at most 256"));
}

TEST(CompiledPolicy, RefusesAFieldOfANewerVersion) {
  v1::Policy policy = PolicyFrom("rules { name: \"a\" action { codec: CODEC_NONE } }");
  v1::Match* match = policy.mutable_rules(0)->mutable_match();
  match->GetReflection()->MutableUnknownFields(match)->AddVarint(42, 1);
  EXPECT_THAT(std::string(CompileStatus(policy).message()),
              HasSubstr("rule 1 (\"a\"): this version does not know field number 42"));
}

// F37
TEST(CompiledPolicy, RefusesWhatTheBackendLacksAndListsWhatItHas) {
  const auto status_of = [](const std::string& text) {
    return CompiledPolicy::Compile(PolicyFrom(text), SmallBackend(), 1).status();
  };
  const absl::Status int4 = status_of("rules { name: \"a\" action { codec: CODEC_INT4 } }");
  EXPECT_EQ(int4.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(int4.message()),
              AllOf(HasSubstr("rule 1 (\"a\")"), HasSubstr("CODEC_INT4"),
                    HasSubstr("it has int8 two_shot, none two_shot")));
  EXPECT_THAT(std::string(status_of("rules { name: \"a\" action { codec: CODEC_NONE algorithm: "
                                    "ALGORITHM_ONE_SHOT } }")
                              .message()),
              HasSubstr("ALGORITHM_ONE_SHOT does not exist"));
  // int8 is there, but not for all that the rule matches.
  EXPECT_THAT(
      std::string(status_of("rules { name: \"a\" action { codec: CODEC_INT8 } }").message()),
      HasSubstr("does not exist for"));
  EXPECT_TRUE(status_of("rules { name: \"a\" match { dtypes: DTYPE_FP16 world_size_max: 8 } "
                        "action { codec: CODEC_INT8 } }")
                  .ok());
}

TEST(Evaluate, TakesTheFirstRuleThatMatchesInEveryField) {
  const auto policy = Compile(
      "rules { name: \"a\" match { communicator: \"m\" group: \"g\" dtypes: DTYPE_BF16 "
      "  payload_bytes_min: 100 payload_bytes_max: 200 world_size_min: 2 world_size_max: 4 } "
      "  action { codec: CODEC_INT4 algorithm: ALGORITHM_ONE_SHOT } }"
      "rules { name: \"b\" match { communicator: \"m\" } action { codec: CODEC_INT8 } }",
      7);
  const FakeBackend backend;
  const Plan plan = policy->Evaluate(Facts(Dtype::kBf16, 100, 2, "m", "g"), backend);
  EXPECT_EQ(plan.codec, Codec::kInt4);
  EXPECT_EQ(plan.algorithm, Algorithm::kOneShot);
  EXPECT_EQ(plan.policy_generation, 7u);
  EXPECT_EQ(plan.rule_index, 0);
  EXPECT_EQ(policy->Evaluate(Facts(Dtype::kBf16, 199, 4, "m", "g"), backend).rule_index, 0);
  for (const PlanFacts& facts :
       {Facts(Dtype::kFp16, 100, 2, "m", "g"), Facts(Dtype::kBf16, 99, 2, "m", "g"),
        Facts(Dtype::kBf16, 200, 2, "m", "g"), Facts(Dtype::kBf16, 100, 1, "m", "g"),
        Facts(Dtype::kBf16, 100, 5, "m", "g"), Facts(Dtype::kBf16, 100, 2, "m", "h")}) {
    EXPECT_EQ(policy->Evaluate(facts, backend).rule_index, 1);
    EXPECT_EQ(policy->Evaluate(facts, backend).codec, Codec::kInt8);
  }
  const Plan fallback = policy->Evaluate(Facts(Dtype::kBf16, 100, 2, "mm", "g"), backend);
  EXPECT_EQ(fallback.rule_index, -1);
  EXPECT_EQ(fallback.codec, Codec::kNone);
  EXPECT_EQ(fallback.algorithm, Algorithm::kTwoShot);
}

TEST(Evaluate, LeavesAutoToTheBackend) {
  const auto policy =
      Compile("rules { name: \"a\" action { codec: CODEC_AUTO algorithm: ALGORITHM_ONE_SHOT } }");
  const Plan plan = policy->Evaluate(Facts(Dtype::kFp32, 8, 2), FakeBackend());
  EXPECT_EQ(plan.codec, Codec::kNone);
  EXPECT_EQ(plan.algorithm, Algorithm::kOneShot);
  EXPECT_EQ(plan.rule_index, 0);
}

TEST(Evaluate, LeavesAutoOfRanksOnDevicesToTheirLink) {
  const auto nothing = Compile("");
  PlanFacts facts = Facts(Dtype::kBf16, uint64_t{64} << 20, 4);
  facts.link = LinkKind::kXgmi;
  EXPECT_EQ(nothing->Evaluate(facts, FakeBackend()).codec, Codec::kInt4);
  EXPECT_EQ(nothing->Evaluate(facts, FakeBackend()).algorithm, Algorithm::kTwoShot);
  facts.link = LinkKind::kSameDevice;
  EXPECT_EQ(nothing->Evaluate(facts, FakeBackend()).codec, Codec::kNone);
  facts.payload_bytes = 4096;
  EXPECT_EQ(nothing->Evaluate(facts, FakeBackend()).algorithm, Algorithm::kOneShot);
  // A rule overrides half of it, or all.
  facts.payload_bytes = uint64_t{64} << 20;
  const auto codec = Compile("rules { name: \"a\" action { codec: CODEC_INT8 } }");
  EXPECT_EQ(codec->Evaluate(facts, FakeBackend()).codec, Codec::kInt8);
  EXPECT_EQ(codec->Evaluate(facts, FakeBackend()).algorithm, Algorithm::kTwoShot);
  const auto both =
      Compile("rules { name: \"a\" action { codec: CODEC_LP3 algorithm: ALGORITHM_ONE_SHOT } }");
  EXPECT_EQ(both->Evaluate(facts, FakeBackend()).codec, Codec::kLp3);
  EXPECT_EQ(both->Evaluate(facts, FakeBackend()).algorithm, Algorithm::kOneShot);
}

TEST(Evaluate, RulesMayMatchTheEpilogue) {
  const auto policy = Compile(
      "rules { name: \"fused\" match { epilogue: EPILOGUE_RMS_NORM } action { codec: CODEC_INT4 } }"
      "rules { name: \"plain\" match { epilogue: EPILOGUE_NONE } action { codec: CODEC_INT8 } }");
  PlanFacts facts = Facts(Dtype::kBf16, 4096, 2);
  EXPECT_EQ(policy->Evaluate(facts, FakeBackend()).codec, Codec::kInt8);
  facts.epilogue = Epilogue::kRmsNorm;
  EXPECT_EQ(policy->Evaluate(facts, FakeBackend()).codec, Codec::kInt4);
}

TEST(CompiledPolicy, RefusesAnEpilogueThatNoneOfTheTypesHas) {
  const auto status_of = [&](const std::string& dtypes) {
    return CompileStatus(PolicyFrom("rules { name: \"fused\" match { epilogue: EPILOGUE_RMS_NORM " +
                                    dtypes + " } action { codec: CODEC_INT4 } }"));
  };
  EXPECT_TRUE(status_of("").ok()) << status_of("");
  EXPECT_TRUE(status_of("dtypes: DTYPE_BF16 dtypes: DTYPE_FP32").ok());
  EXPECT_EQ(std::string(status_of("dtypes: DTYPE_FP32").message()),
            "rule 1 (\"fused\"): match.epilogue EPILOGUE_RMS_NORM does not exist for any of "
            "match.dtypes on backend host");
}

TEST(CompiledPolicy, RefusesARuleWhoseEpiloguesAreTaken) {
  const absl::Status status = CompileStatus(PolicyFrom(
      "rules { name: \"a\" match { epilogue: EPILOGUE_RMS_NORM } action { codec: CODEC_INT4 } }"
      "rules { name: \"b\" match { epilogue: EPILOGUE_NONE } action { codec: CODEC_INT8 } }"
      "rules { name: \"c\" action { codec: CODEC_NONE } }"));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("rule 3 (\"c\") can never decide: all that it matches is matched before by "
                        "rule 1 (\"a\"), rule 2 (\"b\")"));
}

TEST(Evaluate, TakesTheLibraryOnlyWhereItServesTheRanks) {
  const auto policy =
      Compile("rules { name: \"a\" action { codec: CODEC_AUTO algorithm: ALGORITHM_LIBRARY } }");
  PlanFacts facts = Facts(Dtype::kBf16, uint64_t{64} << 20, 4);
  facts.link = LinkKind::kXgmi;
  facts.library_available = true;
  EXPECT_EQ(policy->Evaluate(facts, FakeBackend()).algorithm, Algorithm::kLibrary);
  EXPECT_EQ(policy->Evaluate(facts, FakeBackend()).codec, Codec::kNone);
  facts.library_available = false;
  EXPECT_EQ(policy->Evaluate(facts, FakeBackend()).algorithm, Algorithm::kTwoShot);
  EXPECT_EQ(policy->Evaluate(facts, FakeBackend()).codec, Codec::kNone);
  facts.link.reset();  // host memory
  EXPECT_NE(policy->Evaluate(facts, FakeBackend()).algorithm, Algorithm::kLibrary);
  // By itself: where the table says that it is faster, and a rule has not said otherwise.
  facts.link = LinkKind::kXgmi;
  facts.library_available = true;
  const auto none = Compile("rules { name: \"a\" action { codec: CODEC_NONE } }");
  EXPECT_EQ(none->Evaluate(facts, FakeBackend()).algorithm, Algorithm::kLibrary);
  const auto own =
      Compile("rules { name: \"a\" action { codec: CODEC_NONE algorithm: ALGORITHM_TWO_SHOT } }");
  EXPECT_EQ(own->Evaluate(facts, FakeBackend()).algorithm, Algorithm::kTwoShot);
}

TEST(Evaluate, WithoutAnUpperBoundReachesTheLargestPayload) {
  const auto policy =
      Compile("rules { name: \"a\" match { payload_bytes_min: 1 } action { codec: CODEC_FP8 } }");
  EXPECT_EQ(policy->Evaluate(Facts(Dtype::kFp32, UINT64_MAX, 16), FakeBackend()).rule_index, 0);
  EXPECT_EQ(policy->Evaluate(Facts(Dtype::kFp32, 0, 16), FakeBackend()).rule_index, -1);
}

// F38: a hole between two size gates that no path took.
TEST(Evaluate, GivesExactlyOnePlanForEveryDtypeWorldSizeAndPayload) {
  const auto policy = Compile(
      "rules { name: \"decode\" match { payload_bytes_max: 262144 } "
      "  action { codec: CODEC_NONE algorithm: ALGORITHM_ONE_SHOT } }"
      "rules { name: \"middle\" match { payload_bytes_min: 262144 payload_bytes_max: 8388608 "
      "  dtypes: [DTYPE_FP16, DTYPE_BF16] } action { codec: CODEC_INT8 } }"
      "rules { name: \"large\" match { payload_bytes_min: 16777216 world_size_min: 3 } "
      "  action { codec: CODEC_INT4 algorithm: ALGORITHM_TWO_SHOT } }");
  const FakeBackend backend;
  for (const Dtype dtype : {Dtype::kFp16, Dtype::kBf16, Dtype::kFp32}) {
    for (uint32_t world_size = 1; world_size <= 16; ++world_size) {
      for (double size = 2; size < 1.1 * (1 << 30); size *= 1.1) {
        const auto bytes = static_cast<uint64_t>(size) / DtypeBytes(dtype) * DtypeBytes(dtype);
        const Plan plan = policy->Evaluate(Facts(dtype, bytes, world_size), backend);
        const bool half = dtype != Dtype::kFp32;
        const int want = bytes < 262144                         ? 0
                         : half && bytes < 8388608              ? 1
                         : bytes >= 16777216 && world_size >= 3 ? 2
                                                                : -1;
        ASSERT_EQ(plan.rule_index, want) << bytes << " bytes, " << world_size << " ranks";
        ASSERT_EQ(plan.codec, want == 1 ? Codec::kInt8 : want == 2 ? Codec::kInt4 : Codec::kNone);
        ASSERT_EQ(plan.algorithm, want == 0 ? Algorithm::kOneShot : Algorithm::kTwoShot);
      }
    }
  }
}

}  // namespace
}  // namespace qrd
