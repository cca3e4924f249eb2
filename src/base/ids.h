// The numbers that name things, each a type of its own so that none is taken for another.
//
// Words are those of docs/glossary.md: a timeline is opened by each recovery decision, a version is
// (timeline, step), a slot's generation counts the times it was granted.
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
using Timeline = Id<struct TimelineTag>;  // 0 = none yet
using Attempt = Id<struct AttemptTag>;    // one start of all ranks of a job
using Generation = Id<struct GenerationTag>;  // of a slot; 0 = never granted
using SlotId = Id<struct SlotIdTag>;          // of a slot segment within its node
using Rank = Id<struct RankTag>;
using NodeSlot = Id<struct NodeSlotTag>;      // stable identity of a node, 0..N-1
using ProcessNumber = Id<struct ProcessTag>;  // of a daemon, fences the one before it

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

// Prints a version as "timeline:step".
template <>
struct fmt::formatter<unreft::Version> {
  constexpr auto parse(format_parse_context& context) { return context.begin(); }
  template <typename Context>
  auto format(const unreft::Version& version, Context& context) const {
    return fmt::format_to(context.out(), "{}:{}", version.timeline.value, version.step.value);
  }
};
