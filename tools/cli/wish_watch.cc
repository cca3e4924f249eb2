#include "tools/cli/wish_watch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace unreft::cli {
namespace {

bool Meet(const std::set<uint64_t>& some, const auto& others) {
  return std::ranges::any_of(others, [&](uint64_t node) { return some.contains(node); });
}

}  // namespace

bool WishWatch::AskIfDue() {
  if (!next_.passed()) return false;
  const absl::StatusOr<nlohmann::json> answer = options_.ask();
  next_ = Deadline(!answer.ok() ? options_.silence_interval
                   : waiting_   ? options_.commit_interval
                                : options_.interval);
  if (answer.ok()) answer_ = ParseResize(*answer);
  return answer.ok();
}

const std::optional<ResizeWish>& WishWatch::Newest() {
  AskIfDue();
  return answer_.wish;
}

void WishWatch::BeginAttempt(std::set<uint64_t> nodes) {
  running_ = std::move(nodes);
  waiting_.reset();
}

std::optional<std::string> WishWatch::WhyToEnd() {
  if (!AskIfDue()) return std::nullopt;
  if (!answer_.wish) {
    waiting_.reset();
    return std::nullopt;
  }
  const ResizeWish& wish = *answer_.wish;
  std::set<uint64_t> there = options_.there();
  std::erase_if(there, [&](uint64_t node) { return !answer_.there.contains(node); });
  const WishVerdict verdict = Judge(wish, running_, there, options_.shape);
  if (verdict.kind == WishVerdict::Kind::kCannot) SayItCannot(wish, verdict.why);
  if (verdict.kind != WishVerdict::Kind::kMove) {
    waiting_.reset();
    return std::nullopt;
  }
  const std::string text = fmt::format("unreft resize: {}: ", wish.Text());
  const std::string next =
      fmt::format("the next attempt is on nodes {}", fmt::join(verdict.nodes, ", "));
  if (waiting_ != wish) {
    waiting_ = wish;
    committed_before_ = answer_.committed;
    next_ = Deadline(options_.commit_interval);
    SayOnce("waiting", verdict.nodes,
            fmt::format("{}{}, and begins after the next commit", text, next));
  }
  // Nothing is committed before a node that is lost is left out.
  const bool leaves_lost = Meet(answer_.lost, running_) && !Meet(answer_.lost, verdict.nodes);
  const bool has_committed = !answer_.committed.is_null() && answer_.committed != committed_before_;
  if (!leaves_lost && !has_committed) return std::nullopt;
  return text + next;
}

void WishWatch::SayItCannot(const ResizeWish& wish, const std::string& why) {
  SayOnce("cannot", {},
          fmt::format("unreft resize: {}: {}; training goes on without it", wish.Text(), why));
}

void WishWatch::SayOnce(const std::string& state, const std::vector<uint64_t>& nodes,
                        const std::string& text) {
  const std::string which = fmt::format("{} {}", answer_.wish ? answer_.wish->ordered_s : 0, text);
  if (!said_.insert(which).second) return;
  options_.tell({{"event", "resize"}, {"state", state}, {"nodes", nodes}, {"text", text}}, text);
}

}  // namespace unreft::cli
