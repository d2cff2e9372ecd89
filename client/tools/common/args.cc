// SPDX-License-Identifier: Apache-2.0
#include "client/tools/common/args.h"

#include <algorithm>
#include <cstdio>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/tools/common/exit_codes.h"
#include "client/tools/common/nearest.h"
#include "client/tools/common/standard_streams.h"
#include "client/tools/common/units.h"

namespace qrd::tools {
namespace {

// "qrctl comm list"
std::string Path(const CLI::App& app) {
  std::string path = app.get_name();
  for (const CLI::App* at = app.get_parent(); at != nullptr; at = at->get_parent()) {
    path = absl::StrCat(at->get_name(), " ", path);
  }
  return path;
}

std::vector<std::string> FlagNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back(absl::StrCat("--", name));
    for (const std::string& name : option->get_snames()) names.push_back(absl::StrCat("-", name));
  }
  return names;
}

std::vector<std::string> SubcommandNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(sub->get_name());
  }
  return names;
}

std::string UnknownArgument(const CLI::App& app, const std::string& argument) {
  if (argument.size() > 1 && argument[0] == '-') {
    const std::string flag = argument.substr(0, argument.find('='));
    return absl::StrCat("unknown flag ", flag, DidYouMean(flag, FlagNames(app)));
  }
  const std::vector<std::string> known = SubcommandNames(app);
  if (known.empty()) return absl::StrCat("unexpected argument \"", argument, "\"");
  return absl::StrCat("unknown subcommand \"", argument, "\"", KnownWords(argument, known));
}

// CLI11's text, in ours where it is dark: "--ranks: At Most 1 required but received 2".
std::string Clear(const std::string& message) {
  const size_t at = message.find(": At Most 1 required");
  return at == std::string::npos ? message
                                 : absl::StrCat(message.substr(0, at), " is there more than once");
}

// As CLI11's, but wrapped at 100 columns and without the checks' technical names.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    const bool must = option->get_required() && !is_positional;  // those of the usage line are
    return Wrap("  " + make_option_name(option, is_positional) + make_option_opts(option),
                make_option_desc(option) + (must ? "; required" : ""));
  }
  std::string make_option_opts(const CLI::Option* option) const override {
    if (option->get_type_size() == 0) return "";  // a flag
    const std::string type = option->get_type_name();
    const size_t choices = type.find('{');
    return " " +
           (choices != std::string::npos ? type.substr(choices) : type.substr(0, type.find(':')));
  }
  std::string make_subcommand(const CLI::App* sub) const override {
    return Wrap("  " + sub->get_name(), sub->get_description());
  }

 private:
  static constexpr size_t kIndent = 31;
  static constexpr size_t kWidth = 100;

  static std::string Wrap(std::string line, const std::string& description) {
    std::string out;
    if (line.size() + 2 > kIndent) {
      absl::StrAppend(&out, line, "\n");
      line.clear();
    }
    line.resize(kIndent, ' ');
    bool first = true;
    for (absl::string_view word : absl::StrSplit(description, ' ')) {
      if (!first && line.size() + 1 + word.size() > kWidth) {
        absl::StrAppend(&out, line, "\n");
        line.assign(kIndent, ' ');
        first = true;
      }
      absl::StrAppend(&line, first ? "" : " ", word);
      first = false;
    }
    return absl::StrCat(out, line, "\n");
  }
};

}  // namespace

CommandLine::CommandLine(std::string name, std::string description, std::string version)
    : name_(std::move(name)), root_(std::move(description), name_) {
  root_.set_version_flag("--version", std::move(version));
  root_.set_help_flag("-h,--help", "Print this help and exit");
  root_.get_option("--version")->description("Print the version and exit");
  root_.footer(kExitCodeHelp);
  root_.require_subcommand(0, 1);
  root_.allow_extras();  // reported by Main, with the nearest match
  root_.formatter(std::make_shared<HelpFormatter>());
}

CLI::App* CommandLine::Group(CLI::App* parent, const std::string& name,
                             const std::string& description) {
  CLI::App* group = parent->add_subcommand(name, description);
  group->require_subcommand(0, 1);
  return group;
}

CLI::App* CommandLine::Leaf(CLI::App* parent, const std::string& name,
                            const std::string& description, Command run) {
  CLI::App* leaf = parent->add_subcommand(name, description);
  commands_.emplace_back(leaf, std::move(run));
  return leaf;
}

int CommandLine::Refuse(const CLI::App& app, const std::string& message) const {
  std::fprintf(stderr, "%s: error: %s\nTry '%s --help'.\n", name_.c_str(), message.c_str(),
               Path(app).c_str());
  return kExitUsage;
}

CLI::App* CommandLine::Chosen() {
  CLI::App* at = &root_;
  while (!at->get_subcommands().empty()) at = at->get_subcommands().front();
  return at;
}

int CommandLine::Main(int argc, char** argv) { return FinishOutput(name_, Run(argc, argv)); }

int CommandLine::Run(int argc, char** argv) {
  try {
    root_.parse(argc, argv);
  } catch (const CLI::Success& help_or_version) {
    // As text: CLI11 prints with a stream that forgets why it failed.
    std::ostringstream text;
    const int code = root_.exit(help_or_version, text, text);
    Print(text.str());
    return code;
  } catch (const CLI::ParseError& error) {
    const CLI::App* app = Chosen();
    const std::vector<std::string> extras = root_.remaining(true);
    // An unknown flag's value may be what CLI11 stumbled over: the flag is the cause.
    if (!extras.empty()) return Refuse(*app, UnknownArgument(*app, extras.front()));
    return Refuse(*app, Clear(error.what()));
  }
  CLI::App* app = Chosen();
  if (const std::vector<std::string> extras = root_.remaining(true); !extras.empty()) {
    return Refuse(*app, UnknownArgument(*app, extras.front()));
  }
  for (const auto& [leaf, run] : commands_) {
    if (leaf == app) return run();
  }
  return Refuse(
      *app, absl::StrCat("which subcommand? Known: ", absl::StrJoin(SubcommandNames(*app), ", ")));
}

int Fail(absl::string_view tool, const absl::Status& status, int code) {
  std::fprintf(stderr, "%.*s: error: %s\n", static_cast<int>(tool.size()), tool.data(),
               std::string(status.message()).c_str());
  return code;
}

absl::StatusOr<std::vector<std::string>> ParseNames(absl::string_view list,
                                                    absl::string_view what) {
  std::vector<std::string> names;
  for (absl::string_view piece : absl::StrSplit(list, ',')) {
    const std::string name(absl::StripAsciiWhitespace(piece));
    if (name.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, ": \"", list, "\" has an empty element"));
    }
    if (std::find(names.begin(), names.end(), name) != names.end()) {
      return absl::InvalidArgumentError(absl::StrCat(what, ": \"", name, "\" is there twice"));
    }
    names.push_back(name);
  }
  return names;
}

absl::Status CheckKnown(absl::string_view word, const std::vector<std::string>& known,
                        absl::string_view what) {
  if (std::find(known.begin(), known.end(), word) != known.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, ": unknown value \"", word, "\"", KnownWords(word, known)));
}

absl::Status CheckName(absl::string_view name, absl::string_view what) {
  constexpr size_t kNameBytesMax = 64;
  const auto refuse = [&](const std::string& why) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": \"", absl::CHexEscape(name.substr(0, kNameBytesMax)), "\" ", why,
                     "; want 1 to 64 characters of [a-z0-9._-], the first a letter or digit"));
  };
  if (name.empty()) return refuse("is empty");
  if (name.size() > kNameBytesMax) return refuse(absl::StrCat("has ", name.size(), " characters"));
  for (size_t i = 0; i < name.size(); ++i) {
    const bool first = absl::ascii_islower(name[i]) || absl::ascii_isdigit(name[i]);
    if (first || (i > 0 && absl::StrContains("._-", name.substr(i, 1)))) continue;
    return refuse(
        absl::StrCat("has \"", absl::CHexEscape(name.substr(i, 1)), "\" at position ", i + 1));
  }
  return absl::OkStatus();
}

FlagCheck WholeNumber(uint64_t low, uint64_t high) {
  return [low, high](const std::string& text) {
    uint64_t value = 0;
    const bool digits = !text.empty() && std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
    // CLI11 takes a leading zero for octal.
    const bool decimal = digits && (text.size() == 1 || text[0] != '0');
    if (decimal && absl::SimpleAtoi(text, &value) && value >= low && value <= high) {
      return std::string();
    }
    return high == UINT64_MAX
               ? absl::StrCat("\"", text, "\" is not a whole number of at least ", low)
               : absl::StrCat("\"", text, "\" is not a whole number of ", low, " to ", high);
  };
}

FlagCheck Within(double low, double high) {
  return [low, high](const std::string& text) {
    double value = 0;
    // NaN is within nothing.
    if (absl::SimpleAtod(text, &value) && value >= low && value <= high) return std::string();
    return absl::StrCat("\"", text, "\" is not within ", low, " to ", high);
  };
}

absl::StatusOr<std::vector<uint64_t>> ParseByteList(absl::string_view list,
                                                    absl::string_view what) {
  absl::StatusOr<std::vector<std::string>> names = ParseNames(list, what);
  if (!names.ok()) return names.status();
  std::vector<uint64_t> values;
  for (const std::string& name : *names) {
    absl::StatusOr<uint64_t> bytes = ParseBytes(name, what);
    if (!bytes.ok()) return bytes.status();
    values.push_back(*bytes);
  }
  return values;
}

}  // namespace qrd::tools
