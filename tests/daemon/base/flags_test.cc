// SPDX-License-Identifier: Apache-2.0
#include "daemon/base/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "google/protobuf/descriptor.h"

namespace qrd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string ErrorOf(const std::vector<std::string>& arguments) {
  const auto line = ParseCommandLine(arguments);
  EXPECT_EQ(line.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(line.status().message());
}

TEST(ParseCommandLine, SetsOnlyWhatIsNamed) {
  const auto line = ParseCommandLine(
      {"--config", "a.textproto", "--worker-threads=3", "--log-level", "debug",
       "--create-on-attach=false", "--arena-bytes-max=18446744073709551615", "--metrics-address="});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(line->action, CommandLine::Action::kRun);
  EXPECT_EQ(line->config_file, "a.textproto");
  EXPECT_EQ(line->overrides.worker_threads(), 3u);
  EXPECT_EQ(line->overrides.log_level(), "debug");
  EXPECT_TRUE(line->overrides.has_create_on_attach());
  EXPECT_FALSE(line->overrides.create_on_attach());
  EXPECT_EQ(line->overrides.arena_bytes_max(), UINT64_MAX);
  EXPECT_TRUE(line->overrides.has_metrics_address());
  EXPECT_FALSE(line->overrides.has_sessions_max());
}

TEST(ParseCommandLine, KnowsItsActions) {
  EXPECT_EQ(ParseCommandLine({})->action, CommandLine::Action::kRun);
  EXPECT_EQ(ParseCommandLine({"--help"})->action, CommandLine::Action::kHelp);
  EXPECT_EQ(ParseCommandLine({"-h", "--version"})->action, CommandLine::Action::kHelp);
  EXPECT_EQ(ParseCommandLine({"--version"})->action, CommandLine::Action::kVersion);
  EXPECT_EQ(ParseCommandLine({"--check-config"})->action, CommandLine::Action::kCheckConfig);
  EXPECT_EQ(ParseCommandLine({"--print-config"})->action, CommandLine::Action::kPrintConfig);
}

TEST(ParseCommandLine, NamesWhatIsWrong) {
  EXPECT_THAT(ErrorOf({"--worker-thread=1"}),
              AllOf(HasSubstr("unknown flag \"--worker-thread\""),
                    HasSubstr("did you mean --worker-threads?"), HasSubstr("qrd --help")));
  EXPECT_THAT(ErrorOf({"--zzzzzzzzzzzzzzz"}), Not(HasSubstr("did you mean")));
  EXPECT_THAT(ErrorOf({"-x"}), HasSubstr("unknown flag \"-x\""));
  EXPECT_THAT(ErrorOf({"start"}), HasSubstr("unexpected argument \"start\""));
  EXPECT_THAT(ErrorOf({""}), HasSubstr("unexpected argument \"\""));
  EXPECT_THAT(ErrorOf({"--config"}), HasSubstr("--config needs a value"));
  EXPECT_THAT(ErrorOf({"--config="}), HasSubstr("--config is \"\""));
  EXPECT_THAT(ErrorOf({"--help=yes"}), HasSubstr("--help takes no value"));
  for (const char* value : {"-1", "1.5", "nan", "", " 1", "0x10", "4294967296", "two"}) {
    EXPECT_THAT(ErrorOf({std::string("--worker-threads=") + value}),
                HasSubstr("want a whole number of 0 to 256"))
        << value;
  }
  EXPECT_THAT(ErrorOf({"--arena-bytes-max=18446744073709551616"}),
              HasSubstr("want a whole number of 1048576 to 17592186044416"));
  EXPECT_THAT(ErrorOf({"--create-on-attach=1"}),
              HasSubstr("--create-on-attach is \"1\"; want true or false"));
}

TEST(ParseCommandLine, SaysTheBoundsOfTheFieldForWhatIsNoNumber) {
  EXPECT_THAT(ErrorOf({"--sessions-max", "abc"}),
              HasSubstr("--sessions-max is \"abc\"; want a whole number of 1 to 4096"));
  EXPECT_THAT(ErrorOf({"--drain-timeout-ms", "abc"}), HasSubstr("whole number of 0 to 600000"));
}

TEST(ParseCommandLine, SuggestsNearFlagsOnly) {
  EXPECT_THAT(ErrorOf({"--foo"}), Not(HasSubstr("did you mean")));
  EXPECT_THAT(ErrorOf({"-gpu"}), HasSubstr("did you mean --gpu?"));
  EXPECT_THAT(ErrorOf({"--log-levle=info"}), HasSubstr("did you mean --log-level?"));
}

TEST(ParseCommandLine, RefusesAFlagGivenTwice) {
  EXPECT_THAT(ErrorOf({"--sessions-max", "3", "--sessions-max=4"}),
              HasSubstr("--sessions-max is there twice"));
  EXPECT_THAT(ErrorOf({"--config=a", "--config=b"}), HasSubstr("--config is there twice"));
}

TEST(HelpText, NamesTheEnvironmentOfTheDirectories) {
  EXPECT_THAT(HelpText(), AllOf(HasSubstr("$RUNTIME_DIRECTORY"), HasSubstr("$XDG_RUNTIME_DIR/qrd"),
                                HasSubstr("$STATE_DIRECTORY"), HasSubstr("$XDG_STATE_HOME/qrd")));
}

TEST(HelpText, HasAFlagForEveryScalarField) {
  const std::string help = HelpText();
  const auto* descriptor = v1::Config::descriptor();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const auto& field = *descriptor->field(i);
    if (field.is_repeated() || field.message_type() != nullptr) continue;
    std::string flag = "--" + field.name();
    std::replace(flag.begin(), flag.end(), '_', '-');
    EXPECT_THAT(help, HasSubstr("  " + flag + " "));
    const bool is_bool = field.cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_BOOL;
    EXPECT_TRUE(ParseCommandLine({flag, is_bool ? "true" : "1"}).ok()) << flag;
  }
  EXPECT_THAT(help, AllOf(HasSubstr("--config FILE"), HasSubstr("--check-config"),
                          HasSubstr("Exit status")));
}

TEST(HelpText, FitsA100ColumnTerminal) {
  const std::string help = HelpText();
  size_t begin = 0;
  for (size_t end; (end = help.find('\n', begin)) != std::string::npos; begin = end + 1) {
    EXPECT_LE(end - begin, 100u) << help.substr(begin, end - begin);
  }
}

}  // namespace
}  // namespace qrd
