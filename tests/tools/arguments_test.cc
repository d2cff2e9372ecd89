// SPDX-License-Identifier: Apache-2.0
// Wrong command lines of both tools: exit code 2, nothing on stdout, a message that helps.
#include <gtest/gtest.h>

#include <sstream>

#include "tests/support/temp_directory.h"
#include "tests/tools/run_program.h"

namespace qrd::testing {
namespace {

struct WrongLine {
  const char* name;
  bool qrctl;
  const char* arguments;  // split at blanks
  const char* message;    // must be in stderr
};

std::vector<std::string> Split(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

class WrongArguments : public ::testing::TestWithParam<WrongLine> {};

TEST_P(WrongArguments, AreRefusedWithAMessageAndExitCode2) {
  const WrongLine& line = GetParam();
  const ProgramResult result = RunProgram(line.qrctl ? Qrctl() : Qrbench(), Split(line.arguments));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find(line.message), std::string::npos) << result.err;
  EXPECT_EQ(result.out, "");
}

constexpr bool kQrctl = true, kQrbench = false;
const WrongLine kWrongLines[] = {
    {"NoSubcommand", kQrctl, "", "which subcommand? Known: status, capabilities, comm, policy"},
    {"UnknownSubcommand", kQrctl, "stats",
     "unknown subcommand \"stats\"; did you mean \"status\"?"},
    {"NothingNear", kQrctl, "xyzzyplugh", "unknown subcommand \"xyzzyplugh\"; known: status"},
    {"GroupWithoutSubcommand", kQrctl, "comm", "which subcommand? Known: list, describe"},
    {"UnknownInGroup", kQrctl, "comm lst", "did you mean \"list\"?"},
    {"UnknownFlag", kQrctl, "status --ouput json",
     "unknown flag --ouput; did you mean \"--output\"?"},
    {"UnknownFlagWithEquals", kQrctl, "status --timeot=3", "unknown flag --timeot; did you mean"},
    {"TooMany", kQrctl, "comm list status", "unexpected argument \"status\""},
    {"MissingName", kQrctl, "comm describe", "NAME is required"},
    {"MissingWorldSize", kQrctl, "comm create a", "--world-size is required"},
    {"WorldSizeNoNumber", kQrctl, "comm create a --world-size two", "--world-size"},
    {"NegativeWorldSize", kQrctl, "comm create a --world-size -1", "--world-size"},
    {"TimeoutZero", kQrctl, "status --timeout 0", "--timeout"},
    {"TimeoutNan", kQrctl, "status --timeout nan", "--timeout"},
    {"OutputUnknown", kQrctl, "status --output yaml", "yaml not in {table,json}"},
    {"PolicySetNothing", kQrctl, "policy set", "give either FILE"},
    {"PolicySetBoth", kQrctl, "policy set f --codec int4", "and not both"},
    {"PolicyCodecUnknown", kQrctl, "policy set --codec int5",
     "unknown value \"int5\"; did you mean \"int8\"? Known: none, fp8"},
    {"PolicyAlgorithmUnknown", kQrctl, "policy set --codec int4 --algorithm twoshot",
     "did you mean \"two_shot\"?"},
    {"PolicyAlgorithmAlone", kQrctl, "policy set f --algorithm two_shot", "--codec only"},
    {"BenchNoSubcommand", kQrbench, "", "which subcommand? Known: all_reduce, golden"},
    {"BenchUnknownSubcommand", kQrbench, "allreduce", "did you mean \"all_reduce\"?"},
    {"BenchUnknownFlag", kQrbench, "all_reduce --codec int4", "did you mean \"--codecs\"?"},
    {"CodecUnknown", kQrbench, "all_reduce --codecs none,int5", "--codecs: unknown value \"int5\""},
    {"CodecTwice", kQrbench, "all_reduce --codecs int4,int4", "\"int4\" is there twice"},
    {"CodecEmpty", kQrbench, "all_reduce --codecs int4,,int8", "has an empty element"},
    {"DtypeUnknown", kQrbench, "all_reduce --dtypes float16",
     "--dtypes: unknown value \"float16\""},
    {"AlgorithmUnknown", kQrbench, "all_reduce --algorithms ring",
     "known: auto, one_shot, two_shot, library"},
    {"OpUnknown", kQrbench, "all_reduce --op max", "--op: unknown value \"max\""},
    {"SizeNoNumber", kQrbench, "all_reduce --sizes 4K,big", "--sizes: \"big\""},
    {"SizeUnit", kQrbench, "all_reduce --sizes 4X", "has no known unit"},
    {"SizeNegative", kQrbench, "all_reduce --min-bytes=-4K", "\"-4K\" is negative"},
    {"SizeFraction", kQrbench, "all_reduce --sizes 4.3", "is not a whole number of bytes"},
    {"SizeTooSmall", kQrbench, "all_reduce --sizes 1", "--sizes: 1 is not within 4 to"},
    {"SizeTooLarge", kQrbench, "all_reduce --sizes 2048T", "is not within 4 to"},
    {"MinAboveMax", kQrbench, "all_reduce -b 1M -e 4K", "-b: 1048576 is not within 1 to 4096"},
    {"FactorOne", kQrbench, "all_reduce -f 1", "-f: 1 is not above 1"},
    {"FactorNan", kQrbench, "all_reduce -f nan", "\"nan\" is not within 1 to 1e+06"},
    {"FactorTiny", kQrbench, "all_reduce -f 1.0001", "more than 1000 sizes"},
    {"RanksTooMany", kQrbench, "all_reduce --ranks 17",
     "--ranks: \"17\" is not a whole number of 1 to 16"},
    {"RankNegative", kQrbench, "all_reduce --join --rank -1",
     "--rank: \"-1\" is not a whole number of 0 to 15"},
    {"RanksOctal", kQrbench, "all_reduce --ranks 010", "--ranks: \"010\" is not a whole number"},
    {"RanksZero", kQrbench, "all_reduce --ranks 0", "--ranks: \"0\" is not a whole number"},
    {"ItersZero", kQrbench, "all_reduce --iters 0", "--iters: \"0\" is not a whole number"},
    {"BuffersZero", kQrbench, "all_reduce --buffers 0", "--buffers: \"0\" is not a whole number"},
    {"TuneMarginNan", kQrbench, "tune --margin nan", "--margin: \"nan\" is not within 0 to 1000"},
    {"ModelLinkNan", kQrbench, "model --link-gbps nan", "--link-gbps: \"nan\" is not within"},
    {"GenerationNegative", kQrctl, "policy set --codec int4 --expected-generation -1",
     "--expected-generation: \"-1\" is not a whole number of at least 0"},
    {"RankOutside", kQrbench, "all_reduce --join --rank 2 --ranks 2",
     "--rank: 2 is not within 0 to 1"},
    {"RankWithoutJoin", kQrbench, "all_reduce --rank 1", "--rank goes with --join only"},
    {"GroupsZero", kQrbench, "all_reduce --groups 0",
     "--groups: \"0\" is not a whole number of 1 to 64"},
    {"GroupsTooMany", kQrbench, "all_reduce --groups 40", "want 1 to 64 processes"},
    {"ItersTooMany", kQrbench, "all_reduce --iters 100001",
     "--iters: \"100001\" is not a whole number of 1 to 100000"},
    {"JoinStartsDaemon", kQrbench, "all_reduce --join --start-daemon", "does not go with --join"},
    {"DaemonAlone", kQrbench, "all_reduce --daemon /bin/true", "--daemon goes with --start-daemon"},
    {"InputWithSizes", kQrbench, "all_reduce --input a.npy --sizes 4K", "do not go with --input"},
    {"GoldenNoFolder", kQrbench, "golden", "DIR is required"},
    {"GoldenBackend", kQrbench, "golden x --backend numpy",
     "--backend: unknown value \"numpy\"; known: host, gpu"},
    {"OrderOnTheHost", kQrbench, "all_reduce --order graph",
     "--order goes with --backend gpu only"},
    {"DevicesOnTheHost", kQrbench, "all_reduce --devices 0000:01:00.0",
     "--devices goes with --backend gpu only"},
    {"InPlaceInAGraph", kQrbench, "all_reduce --backend gpu --in-place --order graph",
     "--in-place does not go with --order graph"},
    {"TooFewDevices", kQrbench, "all_reduce --backend gpu --ranks 4 --devices a,b",
     "--devices: 2 for --ranks 4; want one, or one a rank"},
    {"GoldenBothModes", kQrbench, "golden x --served --in-process", "excludes"},
    {"RelayIterations", kQrbench, "relay --iters 0", "--iters"},
    {"AccuracyCount", kQrbench, "accuracy --count 0",
     "--count: \"0\" is not a whole number of 1 to 268435456"},
    {"SizesAndRange", kQrbench, "all_reduce -b 1M -e 4K --sizes 4K",
     "--sizes does not go with -b, -e or -f"},
    {"TuneSizesAndRange", kQrbench, "tune --factor 2 --sizes 4K",
     "--sizes does not go with -b, -e or -f"},
    {"MinTooSmall", kQrbench, "all_reduce -b 2 -e 4K", "-b: 2 is not within 4 to"},
    {"SizeOfLive", kQrbench, "live --size 3", "--size: 3 is not within 4 to"},
    {"FlagTwice", kQrbench, "all_reduce --ranks 2 --ranks 3", "--ranks is there more than once"},
    {"CommunicatorName", kQrbench, "all_reduce --communicator TP",
     "--communicator: \"TP\" has \"T\" at position 1; want 1 to 64 characters of [a-z0-9._-]"},
    {"GroupName", kQrbench, "all_reduce --group a:b", "--group: \"a:b\" has \":\" at position 2"},
    {"TextBeforeTheSubcommand", kQrctl, "-o text status", "--output: text not in {table,json}"},
    {"TextBehindTheSubcommand", kQrctl, "status -o text", "--output: text not in {table,json}"},
    {"CodecNothingNear", kQrctl, "policy set --codec foo", "unknown value \"foo\"; known: none"},
    {"AccuracyAuto", kQrbench, "accuracy --codecs auto", "--codecs: unknown value \"auto\""},
};

INSTANTIATE_TEST_SUITE_P(Lines, WrongArguments, ::testing::ValuesIn(kWrongLines),
                         [](const auto& line) { return std::string(line.param.name); });

TEST(Help, IsOnStdoutAndNamesTheExitCodes) {
  for (const std::string& program : {Qrctl(), Qrbench()}) {
    const ProgramResult result = RunProgram(program, {"--help"});
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_NE(
        result.out.find("Exit codes: 0 done, 1 refused or failed, 2 wrong arguments, 3 no daemon"),
        std::string::npos);
    EXPECT_EQ(result.err, "");
  }
}

TEST(Help, OfEverySubcommandFitsInto100Columns) {
  const std::vector<std::pair<std::string, std::string>> lines = {
      {Qrctl(), "status"},        {Qrctl(), "capabilities"}, {Qrctl(), "comm list"},
      {Qrctl(), "comm describe"}, {Qrctl(), "comm create"},  {Qrctl(), "comm delete"},
      {Qrctl(), "policy get"},    {Qrctl(), "policy set"},   {Qrctl(), "policy watch"},
      {Qrbench(), "all_reduce"},  {Qrbench(), "golden"},     {Qrbench(), "accuracy"},
      {Qrbench(), "relay"}};
  for (const auto& [program, subcommand] : lines) {
    std::vector<std::string> arguments = Split(subcommand);
    arguments.push_back("--help");
    const ProgramResult result = RunProgram(program, arguments);
    EXPECT_EQ(result.exit_code, 0) << subcommand;
    std::istringstream out(result.out);
    for (std::string line; std::getline(out, line);) EXPECT_LE(line.size(), 100u) << line;
  }
}

TEST(EmptySizes, AreRefusedAndNotTheDefault) {
  for (const char* subcommand : {"all_reduce", "tune"}) {
    const ProgramResult result = RunProgram(Qrbench(), {subcommand, "--sizes", ""});
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_NE(result.err.find("--sizes: is empty; want a list"), std::string::npos) << result.err;
  }
}

TEST(Help, SaysTheBoundsAndWhatIsRequired) {
  const struct {
    std::string program;
    const char *subcommand, *part;
  } cases[] = {
      {Qrctl(), "", "text (policy get only): what policy set reads"},
      {Qrctl(), "comm create", "Number of ranks, 1 to 16; required"},
      {Qrctl(), "comm list", "PAYLOAD/RANK counts the tensor of one rank, WIRE what all ranks"},
      {Qrbench(), "all_reduce", "64 processes in all"},
      {Qrbench(), "tune", "a list of 2 to 16, 64 processes in all"},
      {Qrbench(), "accuracy", "1 to 268435456"},
  };
  for (const auto& c : cases) {
    std::vector<std::string> arguments = Split(c.subcommand);
    arguments.push_back("--help");
    std::string text;  // as one line
    for (const std::string& word : Split(RunProgram(c.program, arguments).out)) {
      text += word + " ";
    }
    EXPECT_NE(text.find(c.part), std::string::npos) << c.part << " not in\n" << text;
  }
}

TEST(Version, IsThatOfTheLibrary) {
  EXPECT_EQ(RunProgram(Qrctl(), {"--version"}).out.rfind("qrctl ", 0), 0u);
  EXPECT_EQ(RunProgram(Qrbench(), {"--version"}).out.rfind("qrbench ", 0), 0u);
}

TEST(NoDaemon, IsExitCode3AndSaysHowToStartOne) {
  TempDirectory empty;
  for (const char* arguments : {"status", "comm list", "policy get", "capabilities"}) {
    std::vector<std::string> words = Split(arguments);
    words.insert(words.end(), {"--runtime-directory", empty.path()});
    const ProgramResult result = RunProgram(Qrctl(), words);
    EXPECT_EQ(result.exit_code, 3) << arguments;
    EXPECT_NE(
        result.err.find("no daemon: " + empty.path() + "/control.sock does not exist; start it"),
        std::string::npos)
        << result.err;
  }
  const ProgramResult bench =
      RunProgram(Qrbench(), {"all_reduce", "--runtime-directory", empty.path()});
  EXPECT_EQ(bench.exit_code, 3);
  EXPECT_NE(bench.err.find("--start-daemon"), std::string::npos) << bench.err;
}

TEST(NoDaemon, TheSearchedDirectoriesAreNamed) {
  TempDirectory empty;
  ProgramOptions options;
  options.environment = {"QRD_RUNTIME_DIRECTORY", "XDG_RUNTIME_DIR=" + empty.path()};
  const ProgramResult result = RunProgram(Qrctl(), {"status"}, options);
  if (result.exit_code == 0) GTEST_SKIP() << "this machine runs a daemon";
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_NE(result.err.find("/run/qrd or " + empty.path() + "/qrd"), std::string::npos)
      << result.err;
}

TEST(NoDaemon, ATooLongDirectoryNamesTheBound) {
  const ProgramResult result =
      RunProgram(Qrctl(), {"status", "--runtime-directory", "/tmp/" + std::string(120, 'x')});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("above the bound 94 of socket paths"), std::string::npos) << result.err;
}

TEST(StartDaemon, AProgramThatIsNotThereIsNamed) {
  const ProgramResult result =
      RunProgram(Qrbench(), {"all_reduce", "--start-daemon", "--daemon", "/nonexistent/qrd"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("--daemon /nonexistent/qrd: No such file"), std::string::npos)
      << result.err;
}

TEST(StartDaemon, AProgramThatEndsAtOnceIsAnErrorNotAWait) {
  const ProgramResult result =
      RunProgram(Qrbench(), {"all_reduce", "--start-daemon", "--daemon", "/bin/false"});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_NE(result.err.find("the private daemon ended at once"), std::string::npos) << result.err;
}

}  // namespace
}  // namespace qrd::testing
