#include "smp/job/copy_choice.h"

#include <absl/strings/str_join.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/format.h"
#include "base/text.h"
#include "smp/job/cluster_records.h"

namespace unreft::smp {
namespace {

std::string NameOf(const DurableCopy& copy) { return CleanText(copy.directory, kTextBytesMax); }

absl::Status OfSeveralRuns(const std::vector<DurableCopy>& copies) {
  std::vector<std::string> names;
  for (const DurableCopy& copy : copies) {
    names.push_back(
        fmt::format("{} (run {}, version {})", NameOf(copy), copy.run(), copy.version()));
  }
  return absl::FailedPreconditionError(fmt::format(
      "nothing is recorded of the job, and its durable copies are of several runs: {}. Leave those "
      "of one run there, or give them up with `unreft fresh-start`",
      absl::StrJoin(names, ", ")));
}

}  // namespace

bool MayGoOnWithCopy(const meta::JobState& records) {
  return records.commit.value.world() != 0 || records.timeline.value.chain().empty();
}

recovery::TimelineChain ChainForCopies(const Facts& facts) {
  const TimelineRecord& timeline = facts.records.timeline.value;
  const std::vector<DurableCopy>& copies = facts.copies.copies();
  if (!timeline.chain().empty() || copies.empty()) return ChainOf(timeline);
  return std::ranges::max_element(copies, {}, &DurableCopy::version)->chain();
}

absl::StatusOr<std::optional<DurableCopy>> ChooseCopy(const Facts& facts,
                                                      std::optional<Step> at_or_before) {
  const std::vector<DurableCopy>& copies = facts.copies.copies();
  const bool is_recorded = !facts.records.timeline.value.chain().empty();
  std::set<uint64_t> runs;
  for (const DurableCopy& copy : copies) runs.insert(copy.run());
  if (!is_recorded && runs.size() > 1) return OfSeveralRuns(copies);
  const recovery::TimelineChain chain = ChainForCopies(facts);
  std::optional<DurableCopy> newest;
  for (const DurableCopy& copy : copies) {
    const Version version = copy.version();
    if (!chain.IsLive(version) || facts.copies.IsDamaged(copy)) continue;
    if (at_or_before && version.step > *at_or_before) continue;
    if (IsAbandoned(facts.records.abandoned.value, version)) continue;
    if (!newest || newest->version() < version) newest = copy;
  }
  return newest;
}

std::map<NodeSlot, std::vector<Rank>> HomesForCopy(const Facts& facts, const DurableCopy& copy) {
  std::vector<NodeSlot> nodes;
  for (const auto& [slot, report] : facts.roll.told()) nodes.push_back(slot);
  std::map<uint64_t, NodeSlot> asking_from;
  for (const AskingRank& asking : facts.records.timeline.value.asked()) {
    const NodeSlot slot{asking.slot()};
    if (asking.has_slot() && std::ranges::find(nodes, slot) != nodes.end()) {
      asking_from.emplace(asking.rank(), slot);
    }
  }
  std::map<NodeSlot, std::vector<Rank>> homes;
  for (uint64_t rank = 0; rank < copy.order.world() && !nodes.empty(); ++rank) {
    const auto from = asking_from.find(rank);
    const NodeSlot home = from != asking_from.end() ? from->second : nodes[rank % nodes.size()];
    homes[home].push_back(Rank{rank});
  }
  return homes;
}

void NameRun(const TimelineRecord& timelines, CopyOrder& order) {
  order.set_run(timelines.run());
  for (const TimelineEntry& of : timelines.chain()) {
    CopyTimeline& timeline = *order.add_chain();
    timeline.set_timeline(of.timeline());
    timeline.set_parent_timeline(of.parent_timeline());
    timeline.set_parent_step(of.parent_step());
  }
}

std::string DescribeLoss(const meta::JobState& records, const DurableCopy& copy) {
  const CommitRecord& commit = records.commit.value;
  if (commit.world() == 0) {
    return fmt::format("nothing is recorded of the job: what came after step {} is lost",
                       copy.version().step);
  }
  return fmt::format(
      "version {} was committed and is whole nowhere: what came after step {} is lost",
      VersionOf(commit), copy.version().step);
}

std::string DescribeCopies(const Facts& facts) {
  const RoundCopies& copies = facts.copies;
  if (!copies.damaged().empty()) return copies.damaged();
  if (copies.state() != RoundCopies::State::kFound) return "";
  return fmt::format("none of {} durable copies is of its timelines, and of what is asked for",
                     copies.copies().size());
}

}  // namespace unreft::smp
