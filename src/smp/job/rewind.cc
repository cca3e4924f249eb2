#include "smp/job/rewind.h"

#include <absl/strings/str_join.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/format.h"
#include "smp/job/cluster_records.h"
#include "smp/job/pins.h"
#include "smp/job/recorded.h"

namespace unreft::smp {
namespace {

std::string NameAll(const RewindReply& can) {
  if (can.versions().empty()) return "none is";
  return absl::StrJoin(can.versions(), ", ", [](std::string* text, const RewindVersion& version) {
    text->append(fmt::format("{}", VersionOf(version)));
  });
}

// Beside those that are pinned, the version that is committed and the one that is captured.
absl::Status CheckSlots(Version version, const PinRecord& pins, const RollCall& roll,
                        const NodeOptions& options) {
  const bool any_rank = std::ranges::any_of(
      roll.told(), [](const RollCall::Told& told) { return told.report->ranks() > 0; });
  if (!any_rank) return absl::OkStatus();
  std::set<Version> pinned{version};
  for (const Pin& pin : pins.pins()) pinned.insert(VersionOf(pin));
  const uint64_t needed = pinned.size() + 2;
  const uint64_t slots = options.SlotsPerRank();
  if (needed <= slots) return absl::OkStatus();
  return absl::ResourceExhaustedError(fmt::format(
      "rewind to version {}: {} slots of each rank needed while the job trains, found {}: end the "
      "job first, or unpin something ({} versions are pinned), or start unreftd with --pins {}",
      version, needed, slots, pinned.size() - 1, options.pins + needed - slots));
}

}  // namespace

std::optional<Version> OrderedVersion(const TimelineRecord& record) {
  if (record.rewind().timeline() == 0) return std::nullopt;
  return VersionOf(record.rewind());
}

std::optional<Step> AskedAtOrBefore(const google::protobuf::RepeatedPtrField<AskingRank>& asked) {
  if (asked.empty() || !asked[0].has_at_or_before()) return std::nullopt;
  return Step{asked[0].at_or_before()};
}

RewindReply DescribeRewind(const meta::JobState& records, const RollCall& roll) {
  RewindReply reply;
  *reply.mutable_order() = records.timeline.value.rewind();
  const recovery::TimelineChain chain = ChainOf(records.timeline.value);
  const CommitRecord& commit = records.commit.value;
  const recovery::Holdings holdings = HoldingsOf(roll);
  for (auto it = holdings.rbegin(); it != holdings.rend(); ++it) {
    const Version version = it->first;
    if (!chain.IsLive(version) || IsAbandoned(records.abandoned.value, version)) continue;
    const auto found =
        recovery::FindHolders(version, it->second, RecordedGroupsOf(records, version), nullptr);
    if (!found) continue;
    RewindVersion& whole = *reply.add_versions();
    SetVersion(version, whole);
    whole.set_world(found->world);
    whole.set_committed(commit.world() != 0 && VersionOf(commit) == version);
    for (const Pin& pin : records.pins.value.pins()) {
      if (VersionOf(pin) == version) whole.add_pinned_by(pin.owner());
    }
  }
  return reply;
}

absl::StatusOr<meta::JobChange> OrderRewind(const RewindRequest& request,
                                            const meta::JobState& records, const RollCall& roll,
                                            const NodeOptions& options) {
  TimelineRecord timeline = records.timeline.value;
  PinRecord pins = records.pins.value;
  if (request.cancel()) {
    if (!OrderedVersion(timeline)) return absl::NotFoundError("rewind: nothing is ordered");
    EndRewind(timeline, pins);
    return meta::JobChange{.timeline = std::move(timeline), .pins = std::move(pins)};
  }
  const RewindReply can = DescribeRewind(records, roll);
  const auto wanted = std::ranges::find_if(can.versions(), [&](const RewindVersion& version) {
    return version.step() == request.step();
  });
  if (wanted == can.versions().end()) {
    return absl::FailedPreconditionError(
        fmt::format("rewind to step {}: no such version is whole, by what the nodes tell; those "
                    "that are: {}",
                    request.step(), NameAll(can)));
  }
  EndRewind(timeline, pins);
  const Version version = VersionOf(*wanted);
  if (absl::Status status = CheckSlots(version, pins, roll, options); !status.ok()) return status;
  SetVersion(version, *timeline.mutable_rewind());
  Pin& pin = *pins.add_pins();
  SetVersion(version, pin);
  pin.set_owner(std::string(kRewindOwner));
  pin.set_for_ms(std::chrono::duration_cast<std::chrono::milliseconds>(kRewindFor).count());
  pins.set_newest_number(pins.newest_number() + 1);
  pin.set_number(pins.newest_number());
  return meta::JobChange{.timeline = std::move(timeline), .pins = std::move(pins)};
}

void EndRewind(TimelineRecord& timeline, PinRecord& pins) {
  timeline.clear_rewind();
  auto& all = *pins.mutable_pins();
  all.erase(std::remove_if(all.begin(), all.end(),
                           [](const Pin& pin) { return pin.owner() == kRewindOwner; }),
            all.end());
}

bool IsKeptForRewind(const PinRecord& pins) {
  return std::ranges::any_of(pins.pins(),
                             [](const Pin& pin) { return pin.owner() == kRewindOwner; });
}

absl::Status OrderedIsNotWhole(Version ordered, const std::string& missing) {
  return absl::FailedPreconditionError(
      fmt::format("version {} is to be restored, by an order of 'unreft rewind', and is not whole: "
                  "{}; 'unreft rewind --cancel' has the newest restored that is, 'unreft rewind' "
                  "says what could be",
                  ordered, missing.empty() ? "nobody has it" : missing));
}

absl::Status OrderedIsNewer(Version ordered, Step at_or_before) {
  return absl::FailedPreconditionError(
      fmt::format("the ranks restore step {} or an earlier one, and version {} is to be restored, "
                  "by an order of 'unreft rewind': take one back, the order by 'unreft rewind "
                  "--cancel'",
                  at_or_before, ordered));
}

absl::Status NothingAtOrBefore(Step at_or_before, const RewindReply& can) {
  return absl::FailedPreconditionError(
      fmt::format("no version of step {} or an earlier one is whole; those that are: {}",
                  at_or_before, NameAll(can)));
}

}  // namespace unreft::smp
