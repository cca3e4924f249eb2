#include "smp/job/copy_choice.h"

#include <absl/strings/str_join.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/format.h"
#include "base/node_header.h"
#include "base/text.h"
#include "smp/job/cluster_records.h"
#include "smp/job/fresh_start.h"

namespace unreft::smp {
namespace {

std::string NameOf(const DurableCopy& copy) { return CleanText(copy.directory, kTextBytesMax); }

using Copies = std::vector<const DurableCopy*>;

absl::Status OfSeveralRuns(const Copies& copies) {
  std::vector<std::string> names;
  for (const DurableCopy* copy : copies) {
    names.push_back(
        fmt::format("{} (run {}, version {})", NameOf(*copy), copy->run(), copy->version()));
  }
  return absl::FailedPreconditionError(fmt::format(
      "no commit of the job is recorded, and its durable copies are of several runs: {}. Leave "
      "those of one run there, or give them up with `unreft fresh-start`",
      absl::StrJoin(names, ", ")));
}

// Whether the copy's timelines are those, or were opened after them. Of many it has the newest ones
// alone (OpenTimeline): the recorded ones before its first are forgotten there.
bool GoesOnFrom(const recovery::TimelineChain& recorded, const DurableCopy& copy) {
  const recovery::TimelineChain chain = copy.chain();
  const auto of_copy = chain.origins();
  auto known = recorded.origins();
  if (of_copy.size() >= kDecisionsKept) {
    const auto first = std::ranges::find(known, of_copy.front());
    if (first == known.end()) return known.empty();
    known = known.subspan(static_cast<size_t>(first - known.begin()));
  }
  return of_copy.size() >= known.size() && std::ranges::equal(known, of_copy.first(known.size()));
}

// Those of the job as it is recorded, or of what came after that. Where no commit is, and nobody
// has ordered to begin anew, the store may have gone back behind the start of the run that they are
// of.
Copies CopiesOfJob(const Facts& facts) {
  const recovery::TimelineChain recorded = ChainOf(facts.records.timeline.value);
  const bool has_begun = facts.records.commit.value.world() != 0 || WasGivenUp(facts.records);
  Copies all;
  Copies going_on;
  for (const DurableCopy& copy : facts.copies.copies()) {
    all.push_back(&copy);
    if (GoesOnFrom(recorded, copy)) going_on.push_back(&copy);
  }
  return going_on.empty() && !has_begun ? all : going_on;
}

}  // namespace

bool AreCopiesOfJob(const Facts& facts) { return !CopiesOfJob(facts).empty(); }

recovery::TimelineChain ChainForCopies(const Facts& facts) {
  const Copies copies = CopiesOfJob(facts);
  if (copies.empty()) return ChainOf(facts.records.timeline.value);
  return (*std::ranges::max_element(copies, {}, &DurableCopy::version))->chain();
}

absl::StatusOr<std::optional<DurableCopy>> ChooseCopy(const Facts& facts,
                                                      std::optional<Step> at_or_before) {
  const Copies of_job = CopiesOfJob(facts);
  std::set<uint64_t> runs;
  for (const DurableCopy* copy : of_job) runs.insert(copy->run());
  if (runs.size() > 1) return OfSeveralRuns(of_job);
  const recovery::TimelineChain chain = ChainForCopies(facts);
  std::optional<DurableCopy> newest;
  for (const DurableCopy& copy : facts.copies.copies()) {
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
  order.set_first_timeline(timelines.first_timeline());
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
    return fmt::format("no commit of the job is recorded: what came after step {} is lost",
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
