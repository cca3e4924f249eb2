#include "smp/desk/lives_before.h"

#include <cstdio>
#include <utility>

namespace unreft::smp {

LivesBefore::LivesBefore(NodeState& state, absl::AnyInvocable<void()> on_end)
    : state_(state), on_end_(std::move(on_end)) {
  const std::string prefix = state_.prefix + "control.";
  absl::StatusOr<std::vector<SegmentInfo>> pages = state_.seams.segments.List(prefix);
  if (!pages.ok()) return;
  for (const SegmentInfo& page : *pages) {
    unsigned long long rank = 0;
    long long pid = 0;
    unsigned long long start_time = 0;
    const int fields =
        std::sscanf(page.name.c_str() + prefix.size(), "%llu.%lld.%llu", &rank, &pid, &start_time);
    if (fields != 3) continue;
    absl::StatusOr<ProcessLife> life = state_.seams.processes.Identify(pid);
    if (life.ok() && *life == ProcessLife{pid, start_time}) {
      RemoveAtEnd(*life, page.name);
    } else {
      (void)state_.seams.segments.Remove(page.name);
    }
  }
}

LivesBefore::~LivesBefore() {
  for (const WatchId watch : watches_) state_.seams.processes.Unwatch(watch);
}

void LivesBefore::RemoveAtEnd(ProcessLife life, std::string control_page) {
  state_.lives_before.push_back(life);
  watches_.push_back(
      state_.seams.processes.Watch(life, [this, life, page = std::move(control_page)] {
        (void)state_.seams.segments.Remove(page);
        std::erase(state_.lives_before, life);
        on_end_();
      }));
}

}  // namespace unreft::smp
