#include "smp/job/pin_rules.h"

#include <fmt/format.h>

#include <utility>

#include "smp/job/cluster_records.h"
#include "smp/job/pins.h"
#include "smp/job/rewind.h"

namespace unreft::smp {

Move PinRule(const Facts& facts) {
  Move move;
  const meta::JobState& records = facts.records;
  PinRecord record = records.pins.value;
  if (DropPins(facts.pins.over, ChainOf(records.timeline.value), record)) {
    const int before = records.pins.value.pins_size();
    move.say.push_back({LogLevel::kInfo, fmt::format("pins: {} of {} are over",
                                                     before - record.pins_size(), before)});
    move.write = {.pins = std::move(record)};
    TimelineRecord timeline = records.timeline.value;
    if (OrderedVersion(timeline) && !IsKeptForRewind(*move.write->pins)) {
      EndRewind(timeline, *move.write->pins);
      move.say.push_back({LogLevel::kWarn, "what 'unreft rewind' has ordered is over"});
      move.write->timeline = std::move(timeline);
    }
    return move;
  }
  if (facts.pins.asked == nullptr || records.timeline.value.closing()) return move;
  const CommitRecord& commit = records.commit.value;
  move.pin_answer =
      ChangePins(*facts.pins.asked, VersionOf(commit), commit.world(), facts.options.pins, record);
  if (move.pin_answer->ok()) move.write = {.pins = std::move(record)};
  return move;
}

}  // namespace unreft::smp
