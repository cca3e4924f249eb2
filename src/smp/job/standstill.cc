#include "smp/job/standstill.h"

#include <fmt/format.h>

#include <utility>

#include "base/format.h"
#include "base/protection_account.h"

namespace unreft::smp {
namespace {

// Ranks do not capture at the same moment, and a commit takes its time.
constexpr Duration kObstacleAfter = std::chrono::seconds(10);
constexpr Duration kSayAgainMax = std::chrono::hours(1);

}  // namespace

void Standstill::Look(const Progress& progress, Time now,
                      absl::FunctionRef<std::string()> what_is_missing) {
  if (std::exchange(timeline_, progress.timeline) != progress.timeline) {
    const bool restores = progress.has_committed;
    clock_.Begin(restores ? std::optional(progress.committed.step) : std::nullopt, now);
    said_ = false;
  }
  const bool is_of = progress.has_committed && progress.committed.timeline == timeline_;
  if (is_of) clock_.Committed(progress.committed.step, now);
  const bool is_news = !clock_.newest() || progress.reached > *clock_.newest();
  if (progress.reached != Step{} && is_news) clock_.Reported(progress.reached, true, now);
  clock_.GivenUp(progress.abandoned_through);
  if (!clock_.waiting() || clock_.WaitingFor(now) < kObstacleAfter) {
    obstacle_.clear();
  } else {
    obstacle_ = what_is_missing();
  }
  const bool is_slow_start = !clock_.committed() && clock_.WaitingFor(now) < clock_.limit();
  if (clock_.ProtectingAt(now) || !clock_.waiting() || is_slow_start) {
    if (clock_.ProtectingAt(now) && std::exchange(said_, false)) {
      log_.Info("versions are committed again: step {} is", *clock_.committed());
    }
    return;
  }
  Say(progress, now);
}

void Standstill::Say(const Progress& progress, Time now) {
  if (!said_) {
    say_again_after_ = clock_.limit();
  } else if (now - said_at_ < say_again_after_) {
    return;
  } else {
    say_again_after_ = std::min(2 * say_again_after_, kSayAgainMax);
  }
  said_ = true;
  said_at_ = now;
  const std::string newest =
      progress.has_committed ? fmt::format("version {} is the newest that is", progress.committed)
                             : "nothing ever was";
  log_.Warn("nothing is committed since {}: {}, step {} waits: {}. Training goes on without it",
            ForPeople(clock_.SinceCommit(now).value_or(clock_.WaitingFor(now))), newest,
            *clock_.waiting(), obstacle_);
}

}  // namespace unreft::smp
