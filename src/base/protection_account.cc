#include "base/protection_account.h"

#include <fmt/format.h>

namespace unreft {
namespace {

std::string Snapshots(uint64_t count, std::string_view verb) {
  return fmt::format("{} snapshot{} {} {}", count, count == 1 ? "" : "s",
                     count == 1 ? "was" : "were", verb);
}

}  // namespace

std::string ForPeople(Duration duration) {
  const double seconds = std::chrono::duration<double>(duration).count();
  if (seconds < 300) return fmt::format("{:.0f} s", seconds);
  if (seconds < 7200) return fmt::format("{:.0f} min", seconds / 60);
  return fmt::format("{:.1f} h", seconds / 3600);
}

void ProtectionAccount::Begin(std::optional<Step> restored, Time now) {
  clock_.Begin(restored, now);
  skipped_ = given_up_ = Failures{};
  failed_.clear();
}

void ProtectionAccount::Started(Step step, Time now) { clock_.Reported(step, true, now); }

bool ProtectionAccount::IsNews(Step step) {
  if (clock_.committed() && step <= *clock_.committed()) return false;
  if (failed_.contains(step)) return false;
  if (failed_.size() >= kFailedMax) {
    if (step < *failed_.begin()) return false;  // one that was forgotten, as far as anybody knows
    failed_.erase(failed_.begin());
  }
  failed_.insert(step);
  return true;
}

void ProtectionAccount::Skipped(Step step, const std::string& why, Time now) {
  clock_.Reported(step, false, now);
  if (!IsNews(step)) return;
  ++skipped_.count;
  skipped_.last = step;
  skipped_.why = why;
}

void ProtectionAccount::GaveUp(Step step, const std::string& why) {
  clock_.GivenUp(step);
  // One that is reported later is skipped then.
  const bool is_reported = clock_.newest() && step <= *clock_.newest();
  if (!is_reported || !IsNews(step)) return;
  ++given_up_.count;
  given_up_.last = step;
  given_up_.why = why;
}

void ProtectionAccount::Committed(Step step, Time now) {
  clock_.Committed(step, now);
  skipped_ = given_up_ = Failures{};
  failed_.erase(failed_.begin(), failed_.upper_bound(step));
}

std::string ProtectionAccount::WhyNot(const std::string& obstacle, const std::string& advice,
                                      Time now) const {
  if (clock_.ProtectingAt(now)) return {};
  std::string text;
  if (!clock_.committed()) {
    text = "nothing is committed yet";
    if (const auto waiting = clock_.waiting()) {
      text += fmt::format(", {} after the first snapshot (step {})",
                          ForPeople(clock_.WaitingFor(now)), *waiting);
    } else if (obstacle.empty()) {
      text += ": no snapshot was taken so far";
    }
  } else {
    text = fmt::format(
        "nothing is committed since {}: step {} is the newest that is, step {} waits for {}",
        ForPeople(*clock_.SinceCommit(now)), *clock_.committed(), clock_.waiting().value_or(Step{}),
        ForPeople(clock_.WaitingFor(now)));
  }
  if (!obstacle.empty()) text += ": " + obstacle;
  for (const auto& [failures, verb] : {std::pair(&given_up_, "given up"), {&skipped_, "skipped"}}) {
    if (failures->count == 0) continue;
    text += fmt::format("; {}, the last (step {}): {}", Snapshots(failures->count, verb),
                        failures->last, failures->why);
  }
  return fmt::format("{}. {}", text, advice);
}

}  // namespace unreft
