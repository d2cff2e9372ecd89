// SPDX-License-Identifier: Apache-2.0
#include "client/tools/common/channel.h"

#include <grpcpp/create_channel_posix.h>
#include <sys/socket.h>
#include <unistd.h>

#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "client/tools/common/args.h"
#include "client/tools/common/exit_codes.h"
#include "client/tools/common/runtime_directory.h"
#include "client/tools/common/units.h"

namespace qrd::tools {

namespace {

bool UserIsAdmin(int fd) {
  ucred daemon = {};
  socklen_t bytes = sizeof(daemon);
  if (geteuid() == 0) return true;
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &daemon, &bytes) == 0 && daemon.uid == geteuid();
}

}  // namespace

void AddConnectionFlags(CLI::App* app, ConnectionFlags* flags) {
  app->add_option(
         "--runtime-directory", flags->runtime_directory,
         "Directory of the daemon's sockets; default: $QRD_RUNTIME_DIRECTORY, else /run/qrd "
         "or $XDG_RUNTIME_DIR/qrd, whichever has a socket")
      ->type_name("DIR");
  app->add_option("--timeout", flags->timeout_s,
                  "Deadline of each call, 0.001 to 3600 s; default 5")
      ->type_name("SECONDS")
      ->check(Within(0.001, 3600));
}

ControlClient::ControlClient(std::string runtime_directory, double timeout_s, int fd)
    : runtime_directory_(std::move(runtime_directory)),
      timeout_s_(timeout_s),
      user_is_admin_(UserIsAdmin(fd)),
      used_(std::chrono::steady_clock::now()) {
  Use(fd);
}

void ControlClient::Use(int fd) {
  const std::shared_ptr<grpc::Channel> channel = grpc::CreateInsecureChannelFromFd("qrd", fd);
  communicators_ = v1::CommunicatorService::NewStub(channel);
  policy_ = v1::PolicyService::NewStub(channel);
  node_ = v1::NodeService::NewStub(channel);
}

void ControlClient::Refresh() {
  const auto now = std::chrono::steady_clock::now();
  const bool stale = now - used_ > kFreshFor;
  used_ = now;
  if (!stale) return;
  // Without a daemon the call on the old connection says so.
  if (absl::StatusOr<int> fd = ConnectControlSocket(runtime_directory_); fd.ok()) Use(*fd);
}

absl::StatusOr<std::unique_ptr<ControlClient>> ControlClient::Connect(
    const ConnectionFlags& flags) {
  absl::StatusOr<std::string> directory = FindRuntimeDirectory(flags.runtime_directory);
  if (!directory.ok()) return directory.status();
  absl::StatusOr<int> fd = ConnectControlSocket(*directory);
  if (!fd.ok()) return fd.status();
  return std::unique_ptr<ControlClient>(new ControlClient(*directory, flags.timeout_s, *fd));
}

void ControlClient::SetDeadline(grpc::ClientContext& context) const {
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::microseconds(static_cast<int64_t>(timeout_s_ * 1e6)));
}

absl::Status ControlClient::Explain(const grpc::Status& status) const {
  if (status.ok()) return absl::OkStatus();
  const auto code = static_cast<absl::StatusCode>(status.error_code());
  std::string text = status.error_message();
  switch (status.error_code()) {
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      text = absl::StrCat("the daemon at ", runtime_directory_, " gave no answer within ",
                          HumanSeconds(timeout_s_),
                          "; it is busy or stuck: see its log, or wait "
                          "longer with --timeout");
      break;
    case grpc::StatusCode::UNAVAILABLE:
      absl::StrAppend(&text, " (the daemon at ", runtime_directory_,
                      " ended, drains, was restarted or has too many connections: see its log)");
      break;
    case grpc::StatusCode::UNIMPLEMENTED:
      if (text.empty()) text = "the daemon does not know this call: it is older than this program";
      break;
    default:
      break;
  }
  return absl::Status(code, text);
}

int ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitOk;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return kExitUnreachable;
    default:
      return kExitFailed;
  }
}

}  // namespace qrd::tools
