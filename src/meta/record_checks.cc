#include "meta/record_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <vector>

#include "base/bounds.h"
#include "base/session_frames.h"
#include "ec/erasure_code.h"

namespace unreft::meta {
namespace {

using google::protobuf::RepeatedPtrField;

constexpr int kNodesMax = 1 << 14;
constexpr int kEntriesMax = 1 << 16;  // of timelines, versions and pins
constexpr size_t kNameBytesMax = 1024;
constexpr size_t kReasonBytesMax = 1 << 14;
constexpr int kFormatsMax = 64;

template <typename... Args>
absl::Status Wrong(fmt::format_string<Args...> format, Args&&... args) {
  return absl::InvalidArgumentError(fmt::format(format, std::forward<Args>(args)...));
}

absl::Status CheckCount(const char* what, uint64_t found, uint64_t most) {
  if (found <= most) return absl::OkStatus();
  return Wrong("{} {}, at most {} can be", found, what, most);
}

absl::Status CheckVersion(uint64_t timeline, uint64_t step) {
  if (timeline <= kTimelineMax && step <= kStepMax) return absl::OkStatus();
  return Wrong("version {}:{}, the largest is {}:{}", timeline, step, kTimelineMax, kStepMax);
}

// `slots` gets those of the groups.
absl::Status CheckGroups(const RepeatedPtrField<Group>& groups, std::set<uint64_t>& slots) {
  if (auto status = CheckCount("groups", groups.size(), kNodesMax); !status.ok()) return status;
  for (const Group& group : groups) {
    const auto members = static_cast<uint32_t>(group.slots_size());
    if (group.k() == 0 || group.k() > members) {
      return Wrong("a group of {} nodes with {} data chunks: needed 1 to {}", members, group.k(),
                   members);
    }
    if (auto status = ec::CheckShape({group.k(), members - group.k()}); !status.ok()) return status;
    if (std::ranges::adjacent_find(group.slots(), std::greater_equal<>()) != group.slots().end()) {
      return Wrong("a group whose slots are not ascending: {}", fmt::join(group.slots(), ", "));
    }
    for (const uint64_t slot : group.slots()) {
      if (!slots.insert(slot).second) return Wrong("slot {} is in two groups", slot);
    }
  }
  return absl::OkStatus();
}

// `ranks` gets those of the holders.
absl::Status CheckHolders(const RepeatedPtrField<Holder>& holders, std::set<uint64_t>& ranks) {
  if (auto status = CheckCount("holders", holders.size(), kNodesMax); !status.ok()) return status;
  for (const Holder& holder : holders) {
    for (const uint64_t rank : holder.ranks()) {
      if (rank >= kRanksMax) return Wrong("rank {}: needed one below {}", rank, kRanksMax);
      if (!ranks.insert(rank).second) return Wrong("the slab of rank {} is on two nodes", rank);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckAsked(const RepeatedPtrField<AskingRank>& asked) {
  std::set<uint64_t> ranks;
  for (const AskingRank& asking : asked) {
    if (asking.rank() >= kRanksMax || !ranks.insert(asking.rank()).second) {
      return Wrong("rank {} asks: needed each once, below {}", asking.rank(), kRanksMax);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckDecision(const DecisionRecord& decision) {
  const auto kind = static_cast<DecisionKind>(decision.kind());
  const bool is_known = kind == DecisionKind::kFresh || kind == DecisionKind::kRestored ||
                        kind == DecisionKind::kFailed;
  if (!is_known) return Wrong("a decision of kind {}", decision.kind());
  for (const uint64_t timeline : {decision.timeline(), decision.version_timeline()}) {
    auto status = CheckVersion(timeline, decision.version_step());
    if (!status.ok()) return status;
  }
  std::set<uint64_t> ranks;
  if (auto status = CheckHolders(decision.holders(), ranks); !status.ok()) return status;
  return CheckAsked(decision.asked());
}

absl::Status CheckResize(const ResizeOrder& order) {
  if (order.has_nodes() && (order.nodes() == 0 || order.nodes() > kNodesMax)) {
    return Wrong("{} nodes to run on: needed 1 to {}", order.nodes(), kNodesMax);
  }
  auto status = CheckCount("nodes to run without", order.without_size(), kNodesMax);
  if (!status.ok()) return status;
  const auto& without = order.without();
  if (std::ranges::adjacent_find(without, std::greater_equal<>()) == without.end()) {
    return absl::OkStatus();
  }
  return Wrong("nodes to run without that are not ascending: {}", fmt::join(without, ", "));
}

}  // namespace

absl::Status CheckRecord(const ViewRecord& view) {
  if (auto status = CheckCount("members", view.members_size(), kNodesMax); !status.ok()) {
    return status;
  }
  std::set<uint64_t> members;
  for (const ViewMember& member : view.members()) {
    if (!members.insert(member.slot()).second)
      return Wrong("slot {} is there twice", member.slot());
  }
  std::set<uint64_t> grouped;
  if (auto status = CheckGroups(view.groups(), grouped); !status.ok()) return status;
  const auto stranger =
      std::ranges::find_if(grouped, [&](uint64_t slot) { return !members.contains(slot); });
  if (stranger == grouped.end()) return absl::OkStatus();
  return Wrong("slot {} is in a group, and no member", *stranger);
}

absl::Status CheckRecord(const TimelineRecord& timeline) {
  if (auto status = CheckCount("timelines", timeline.chain_size(), kEntriesMax); !status.ok()) {
    return status;
  }
  uint64_t before = 0;
  for (const TimelineEntry& entry : timeline.chain()) {
    if (entry.timeline() <= before || entry.parent_timeline() >= entry.timeline()) {
      return Wrong("timeline {} of parent {} after timeline {}: needed ascending ones",
                   entry.timeline(), entry.parent_timeline(), before);
    }
    before = entry.timeline();
    if (auto status = CheckVersion(before, entry.parent_step()); !status.ok()) return status;
  }
  if (timeline.round() > kRoundMax) {
    return Wrong("decision {}, the largest is {}", timeline.round(), kRoundMax);
  }
  if (timeline.world() > kRanksMax) return Wrong("a world of {} ranks", timeline.world());
  if (auto status = CheckAsked(timeline.asked()); !status.ok()) return status;
  if (auto status = CheckVersion(timeline.rewind().timeline(), timeline.rewind().step());
      !status.ok()) {
    return status;
  }
  if (auto status = CheckResize(timeline.resize()); !status.ok()) return status;
  if (timeline.has_decision()) {
    if (auto status = CheckDecision(timeline.decision()); !status.ok()) return status;
  }
  return timeline.has_in_force() ? CheckDecision(timeline.in_force()) : absl::OkStatus();
}

absl::Status CheckRecord(const CommitRecord& commit) {
  if (auto status = CheckVersion(commit.timeline(), commit.step()); !status.ok()) return status;
  if (commit.world() > kRanksMax) return Wrong("a world of {} ranks", commit.world());
  std::set<uint64_t> slots;
  if (auto status = CheckGroups(commit.groups(), slots); !status.ok()) return status;
  std::set<uint64_t> ranks;
  if (auto status = CheckHolders(commit.holders(), ranks); !status.ok()) return status;
  if (ranks.empty()) return absl::OkStatus();
  if (ranks.size() == commit.world() && *ranks.rbegin() < commit.world()) return absl::OkStatus();
  return Wrong("the slabs of {} ranks, up to rank {}, in a world of {}", ranks.size(),
               *ranks.rbegin(), commit.world());
}

absl::Status CheckRecord(const AbandonRecord& abandoned) {
  if (auto status = CheckVersion(abandoned.timeline(), abandoned.through_step()); !status.ok()) {
    return status;
  }
  if (abandoned.after_step() <= abandoned.through_step()) return absl::OkStatus();
  return Wrong("gives up the steps after {} and up to {}", abandoned.after_step(),
               abandoned.through_step());
}

absl::Status CheckRecord(const PinRecord& pins) {
  if (auto status = CheckCount("pins", pins.pins_size(), kEntriesMax); !status.ok()) return status;
  for (const Pin& pin : pins.pins()) {
    if (auto status = CheckVersion(pin.timeline(), pin.step()); !status.ok()) return status;
    if (auto status = CheckCount("bytes of a pin's owner", pin.owner().size(), kNameBytesMax);
        !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRecord(const SeedRecord& seed) {
  if (seed.epoch() == 0 || seed.epoch() > kEpochMax) {
    return Wrong("epoch {}: needed 1 to {}", seed.epoch(), kEpochMax);
  }
  if (seed.store_id().size() == kStoreIdBytes) return absl::OkStatus();
  return Wrong("a store id of {} bytes: needed {}", seed.store_id().size(), kStoreIdBytes);
}

absl::Status CheckRecord(const PresenceRecord& presence) {
  if (auto status = CheckCount("bytes of an address", presence.address().size(), kNameBytesMax);
      !status.ok()) {
    return status;
  }
  return CheckCount("bytes of a failure domain", presence.failure_domain().size(), kNameBytesMax);
}

absl::Status CheckRecord(const SpareRecord& spare) { return CheckRecord(spare.presence()); }

absl::Status CheckRecord(const WaitingRecord& waiting) {
  if (waiting.kept_epoch() > kEpochMax) {
    return Wrong("epoch {} of the kept records, the largest is {}", waiting.kept_epoch(),
                 kEpochMax);
  }
  auto status = CheckCount("ranks that ask", waiting.asking(), kRanksMax);
  if (!status.ok()) return status;
  return CheckRecord(waiting.presence());
}

absl::Status CheckRecord(const SettingsRecord& settings) {
  if (settings.min_reader() > kSettingsFormat || settings.format() < settings.min_reader()) {
    return Wrong("settings of format {} for readers of format {} on, this is {}", settings.format(),
                 settings.min_reader(), kSettingsFormat);
  }
  for (const std::string* text : {&settings.address(), &settings.version()}) {
    auto status = CheckCount("bytes of who wrote it", text->size(), kNameBytesMax);
    if (!status.ok()) return status;
  }
  for (const FormatRange& format : settings.formats()) {
    auto status = CheckCount("bytes of a format's name", format.name().size(), kNameBytesMax);
    if (!status.ok()) return status;
  }
  return CheckCount("formats", settings.formats_size(), kFormatsMax);
}

absl::Status CheckRecord(const RefusedRecord& refused) {
  if (auto status = CheckCount("bytes of an address", refused.address().size(), kNameBytesMax);
      !status.ok()) {
    return status;
  }
  return CheckCount("bytes of why a daemon is refused", refused.why().size(), kReasonBytesMax);
}

}  // namespace unreft::meta
