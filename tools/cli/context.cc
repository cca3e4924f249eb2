#include "tools/cli/context.h"

#include <fmt/format.h>

#include <cstdio>

namespace unreft::cli {

int ExitCode(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitOk;
    case absl::StatusCode::kUnavailable:
      return kExitNoDaemon;
    case absl::StatusCode::kDeadlineExceeded:
      return kExitDeadline;
    case absl::StatusCode::kInvalidArgument:
      return kExitUsage;
    default:
      return kExitFailed;
  }
}

void Print(const Context& context, const nlohmann::json& document, const std::string& text) {
  std::string out = context.json ? document.dump(2) : text;
  if (out.empty() || out.back() != '\n') out += '\n';
  std::fwrite(out.data(), 1, out.size(), stdout);
  std::fflush(stdout);  // main asks whether all of it was written
}

int Fail(const Context& context, const absl::Status& status) {
  const std::string message(status.message());
  if (context.json) {
    Print(context, {{"error", message}, {"code", absl::StatusCodeToString(status.code())}}, "");
  } else {
    Say(message);
  }
  return ExitCode(status);
}

void Say(const std::string& line) {
  const std::string out = fmt::format("unreft: {}\n", line);
  std::fwrite(out.data(), 1, out.size(), stderr);
}

}  // namespace unreft::cli
