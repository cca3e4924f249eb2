// The numbers that name things, each a type of its own so that none is taken for another.
//
// Words are those of docs/glossary.md: a timeline is opened by each recovery decision, a version is
// (timeline, step), a generation is of one grant of a slot, and greater than all before it.
#pragma once

#include <fmt/format.h>

#include <compare>
#include <cstdint>
#include <functional>

namespace unreft {

// A 64-bit number with a meaning. `Tag` makes each instance a distinct type.
template <typename Tag>
struct Id {
  uint64_t value = 0;
  friend constexpr auto operator<=>(const Id&, const Id&) = default;
};

using Step = Id<struct StepTag>;          // optimizer steps finished when the state was captured
using Timeline = Id<struct TimelineTag>;  // a number and a random id, see below; 0 = none yet
using Attempt = Id<struct AttemptTag>;    // one start of all ranks of a job
using Generation = Id<struct GenerationTag>;  // of a slot; 0 = never granted
using SlotId = Id<struct SlotIdTag>;          // of a slot segment within its node
using Rank = Id<struct RankTag>;
using NodeSlot = Id<struct NodeSlotTag>;      // stable identity of a node, 0..N-1
using ProcessNumber = Id<struct ProcessTag>;  // of a daemon, fences the one before it

// A timeline's number is its upper half. The lower half is random: two meta stores that know
// nothing of each other may each have opened timeline 3, and what was captured in the one is
// nothing of the other. Timelines of earlier releases are their number alone.
inline constexpr int kTimelineIdBits = 32;

constexpr uint64_t NumberOf(Timeline timeline) {
  const uint64_t number = timeline.value >> kTimelineIdBits;
  return number != 0 ? number : timeline.value;
}
constexpr uint32_t RandomIdOf(Timeline timeline) {
  return timeline.value >> kTimelineIdBits != 0 ? static_cast<uint32_t>(timeline.value) : 0;
}
constexpr Timeline NextTimeline(Timeline newest, uint32_t random_id) {
  return {(NumberOf(newest) + 1) << kTimelineIdBits | random_id};
}

// Ordered by timeline, then step (docs/protocol.md, rule 1).
struct Version {
  Timeline timeline;
  Step step;
  friend constexpr auto operator<=>(const Version&, const Version&) = default;
};

// One life of a process: a pid alone may be reused (docs/protocol.md, rule 5).
struct ProcessLife {
  int64_t pid = 0;
  uint64_t start_time = 0;  // in the kernel's clock ticks since boot
  friend constexpr auto operator<=>(const ProcessLife&, const ProcessLife&) = default;
};

}  // namespace unreft

template <typename Tag>
struct std::hash<unreft::Id<Tag>> {
  size_t operator()(const unreft::Id<Tag>& id) const noexcept {
    return std::hash<uint64_t>{}(id.value);
  }
};

template <typename Tag>
struct fmt::formatter<unreft::Id<Tag>> : fmt::formatter<uint64_t> {
  template <typename Context>
  auto format(const unreft::Id<Tag>& id, Context& context) const {
    return fmt::formatter<uint64_t>::format(id.value, context);
  }
};

// Prints a timeline's number.
template <>
struct fmt::formatter<unreft::Timeline> : fmt::formatter<uint64_t> {
  template <typename Context>
  auto format(unreft::Timeline timeline, Context& context) const {
    return fmt::formatter<uint64_t>::format(unreft::NumberOf(timeline), context);
  }
};

// Prints a version as "timeline:step".
template <>
struct fmt::formatter<unreft::Version> {
  constexpr auto parse(format_parse_context& context) { return context.begin(); }
  template <typename Context>
  auto format(const unreft::Version& version, Context& context) const {
    return fmt::format_to(context.out(), "{}:{}", version.timeline, version.step);
  }
};
