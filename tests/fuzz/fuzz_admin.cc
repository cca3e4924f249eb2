// What a local process asks a daemon of one node: a verb, a line's end, arguments. The answer is
// one line of UTF-8 JSON, or a refusal.
#include <nlohmann/json.hpp>
#include <utility>

#include "base/check.h"
#include "tests/fuzz/daemon.h"
#include "tests/fuzz/fuzz.h"

namespace unreft::fuzz {
namespace {

class Admin final : public Daemon {
 public:
  std::vector<Frame> Ask(const AdminRequest& request) {
    Connect(1);
    Say(ToFrame(request));
    Settle(std::chrono::seconds(10));
    return std::exchange(sent_, {});
  }
};

}  // namespace

std::vector<std::string> Seeds() {
  return {"status\n",
          "cluster\n",
          "versions\n{\"limit\":3}",
          "verify\n",
          "fresh-start\n",
          "fresh-start\n{\"force\":true}",
          "cluster\n{\"of\":\"status\",\"timeout_ms\":1000}",
          "rewind\n{\"step\":41}",
          "resize\n",
          "resize\n{\"nodes\":3,\"without\":[1,2],\"ordered_s\":1760000000}",
          "resize\n{\"cancel\":true}",
          "metrics\n",
          "memory\n",
          "pin\n{\"owner\":\"evaluation\",\"for_ms\":60000,\"step\":41}",
          "unpin\n{\"owner\":\"evaluation\"}",
          "pin\n{\"owner\":\"\\u00e9\\ud834\\udd1e\",\"for_ms\":1}"};
}

}  // namespace unreft::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace fuzz = unreft::fuzz;
  const std::string_view bytes = fuzz::Bytes(data, size);
  const size_t line = std::min(bytes.find('\n'), bytes.size());
  unreft::AdminRequest request;
  request.verb = std::string(bytes.substr(0, line));
  request.arguments = std::string(bytes.substr(std::min(line + 1, bytes.size())));
  fuzz::Admin daemon;
  // Once more: of what the first has changed.
  for (int times = 0; times < 2; ++times) {
    const std::vector<unreft::Frame> sent = daemon.Ask(request);
    UNREFT_CHECK(sent.size() == 1, "{} answers", sent.size());
    const auto reply = unreft::FromFrame<unreft::AdminReply>(sent.front());
    UNREFT_CHECK(reply.ok());
    if (!reply->status.ToStatus().ok()) continue;
    const auto json = nlohmann::json::parse(reply->result, nullptr, /*allow_exceptions=*/false);
    UNREFT_CHECK(!json.is_discarded() && reply->result.find('\n') == std::string::npos);
  }
  return 0;
}
