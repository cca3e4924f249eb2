// WishWatch: what `unreft run` does about an operator's `unreft resize` (resize_wish.h) while ranks
// run. It asks a daemon about once a second, waits for a commit once the wish can be met, so that
// no more than the steps since then are trained again, and says each thing once. Single-threaded.
#pragma once

#include <absl/status/statusor.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tools/cli/deadline.h"
#include "tools/cli/resize_wish.h"

namespace unreft::cli {

struct WishWatchOptions {
  RunShape shape;
  // What a daemon answers to "resize"; blocks only for a moment.
  std::function<absl::StatusOr<nlohmann::json>()> ask;
  // The nodes that have a daemon now. Nobody's ranks end for one that is yet to enter the job.
  std::function<std::set<uint64_t>()> there;
  // An event, and the same in words.
  std::function<void(const nlohmann::json& event, const std::string& text)> tell;
  Milliseconds interval{1000};
  Milliseconds commit_interval{100};    // while a commit is waited for
  Milliseconds silence_interval{5000};  // after a question that nobody answered
};

class WishWatch {
 public:
  explicit WishWatch(WishWatchOptions options) : options_(std::move(options)) {}

  // The newest that is known; while nobody answers, the last that was.
  const std::optional<ResizeWish>& Newest();

  // Ranks are about to run on those nodes.
  void BeginAttempt(std::set<uint64_t> nodes);
  // Why they are to end, for an attempt on other nodes; none: they are not, for now.
  std::optional<std::string> WhyToEnd();

  // That the wish is not heeded, once for each reason.
  void SayItCannot(const ResizeWish& wish, const std::string& why);

 private:
  bool AskIfDue();
  void SayOnce(const std::string& state, const std::vector<uint64_t>& nodes,
               const std::string& text);

  const WishWatchOptions options_;
  ResizeAnswer answer_;
  Deadline next_{Milliseconds(0)};
  std::set<uint64_t> running_;
  // The wish that waits for a commit after the one that there was then.
  std::optional<ResizeWish> waiting_;
  nlohmann::json committed_before_;
  std::set<std::string> said_;
};

}  // namespace unreft::cli
