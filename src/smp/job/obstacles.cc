#include "smp/job/obstacles.h"

#include <absl/strings/str_join.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/format.h"
#include "recovery/missing_ranks.h"
#include "smp/job/cluster_records.h"
#include "smp/job/commit_rules.h"
#include "smp/job/formation.h"
#include "smp/job/recorded.h"

namespace unreft::smp {
namespace {

constexpr size_t kNamedMax = 4;
// Ranks that train in step are hardly ever farther apart.
constexpr uint64_t kStepsApart = 8;

// As many as a reader can take in.
std::string Some(std::vector<std::string> texts, const char* of_more) {
  const size_t more = texts.size() > kNamedMax ? texts.size() - kNamedMax : 0;
  texts.resize(texts.size() - more);
  if (more > 0) texts.push_back(fmt::format("{} more {}", more, of_more));
  return absl::StrJoin(texts, ", ");
}

std::string DescribeWriteFailure(const absl::Status& status) {
  const bool is_full = absl::IsResourceExhausted(status);
  return fmt::format("the meta store does not take what is decided: {}{}", status.message(),
                     is_full ? " (docs/operations.md, 'A store without space')" : "");
}

std::string NameOf(const Facts& facts, NodeSlot slot) {
  const PresenceRecord* const present = facts.records.PresenceOf(slot);
  if (present == nullptr) return fmt::format("node {}", slot);
  return fmt::format("node {} ({})", slot, present->address());
}

std::vector<std::string> DescribeMissingNodes(const Facts& facts) {
  std::vector<std::string> lost;
  std::vector<std::string> absent;
  std::vector<std::string> silent;
  std::vector<std::string> left_out;  // and have ranks
  for (const auto& [member, slot, report] : facts.roll.members()) {
    if (!IsIn(facts.records.view.value, slot)) {
      if (report != nullptr && report->ranks() > 0) left_out.push_back(NameOf(facts, slot));
      continue;
    }
    if (member->lost()) {
      lost.push_back(fmt::format("{}", slot));
    } else if (!IsPresent(facts.records, *member)) {
      absent.push_back(fmt::format("{}", slot));
    } else if (report == nullptr) {
      silent.push_back(NameOf(facts, slot));
    }
  }
  std::vector<std::string> texts;
  if (!lost.empty()) {
    texts.push_back(
        fmt::format("node {} is lost: start its daemon again, or one with --spare, or "
                    "restart the job without it",
                    Some(lost, "nodes")));
  }
  if (!absent.empty()) {
    texts.push_back(
        fmt::format("node {} is absent: its daemon has ended, or does not reach the "
                    "meta store",
                    Some(absent, "nodes")));
  }
  if (!silent.empty()) {
    texts.push_back(
        fmt::format("{} is present and has told the leader nothing", Some(silent, "nodes")));
  }
  if (!left_out.empty()) {
    texts.push_back(
        fmt::format("{} has ranks and is left out of the protection groups: restart the job, once "
                    "all its daemons are of this release",
                    Some(left_out, "nodes")));
  }
  return texts;
}

std::string DescribeMissingRanks(const Facts& facts) {
  std::set<Rank> registered;
  uint64_t world = 0;
  for (const auto& [slot, report] : facts.roll.told()) {
    for (const RegisteredRank& rank : report->registered()) {
      registered.insert(Rank{rank.rank()});
      world = std::max(world, rank.world());
    }
  }
  // Before any of them has said how many they are.
  if (world == 0) world = facts.records.commit.value.world();
  const recovery::MissingRanks missing = recovery::FindMissing(registered, world);
  if (missing.none()) return "";
  return fmt::format("of {} ranks, rank {} has not registered its tensors at any node", world,
                     missing.Text());
}

std::string DescribeRanksApart(const Facts& facts) {
  struct At {
    uint64_t step = 0;
    uint64_t rank = 0;
    NodeSlot slot;
  };
  std::vector<At> ranks;
  for (const auto& [slot, report] : facts.roll.told()) {
    for (const RegisteredRank& rank : report->registered()) {
      if (rank.has_passed_step()) ranks.push_back({rank.passed_step(), rank.rank(), slot});
    }
  }
  if (ranks.empty()) return "";
  const auto [slow, fast] = std::ranges::minmax_element(ranks, {}, &At::step);
  const uint64_t apart = fast->step - slow->step;
  if (apart <= kStepsApart) return "";
  return fmt::format(
      "rank {} of {} is at step {}, rank {} of {} at step {}: they are {} steps apart, and a "
      "version needs all ranks at one step",
      slow->rank, NameOf(facts, slow->slot), slow->step, fast->rank, NameOf(facts, fast->slot),
      fast->step, apart);
}

std::string DescribeLackOf(const Facts& facts, Version version) {
  std::set<Rank> sealed;
  uint64_t world = 0;
  std::vector<std::string> unguarded;
  for (const auto& [slot, report] : facts.roll.told()) {
    const VersionHolding* const holding = FindHolding(*report, version);
    const bool is_guarded = holding != nullptr && holding->guarded();
    if (!is_guarded && IsIn(facts.records.view.value, slot)) {
      unguarded.push_back(NameOf(facts, slot));
    }
    if (holding == nullptr) continue;
    for (const SealedRank& rank : holding->sealed()) {
      sealed.insert(Rank{rank.rank()});
      world = std::max(world, rank.world());
    }
  }
  const recovery::MissingRanks missing = recovery::FindMissing(sealed, world);
  if (sealed.empty()) return fmt::format("no rank has completed step {}", version.step);
  if (!missing.none()) {
    return fmt::format("step {} waits for rank {}", version.step, missing.Text());
  }
  if (unguarded.empty()) return "";
  return fmt::format("all ranks have completed step {}, and {} has not protected it", version.step,
                     Some(unguarded, "nodes"));
}

// Of the oldest version that may still be committed; if there is none, why the last failed.
std::string DescribeWaitedFor(const Facts& facts) {
  const AbandonRecord& abandoned = facts.records.abandoned.value;
  for (const Version version : VersionsUnderWay(facts)) {
    if (IsAbandoned(abandoned, version) || FailureOf(facts, version)) continue;
    return DescribeLackOf(facts, version);
  }
  const std::string& reason = abandoned.reason();
  return reason.empty() ? "" : fmt::format("the last that was given up was {}", reason);
}

}  // namespace

std::string DescribeObstacles(const Facts& facts, const absl::Status& last_write) {
  std::vector<std::string> texts = DescribeMissingNodes(facts);
  if (!last_write.ok()) texts.insert(texts.begin(), DescribeWriteFailure(last_write));
  for (auto* describe : {&DescribeMissingRanks, &DescribeRanksApart, &DescribeWaitedFor}) {
    if (std::string more = describe(facts); !more.empty()) texts.push_back(std::move(more));
  }
  return absl::StrJoin(texts, "; ");
}

}  // namespace unreft::smp
