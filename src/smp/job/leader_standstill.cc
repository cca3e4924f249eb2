// What the leader says of commits that do not come.
#include <absl/strings/str_join.h>
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/format.h"
#include "recovery/missing_ranks.h"
#include "smp/job/cluster_records.h"
#include "smp/job/leader.h"

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

}  // namespace

void Leader::WatchCommits() {
  const meta::JobState& state = store_.state();
  const TimelineRecord& timeline = state.timeline.value;
  if (timeline.chain().empty() || timeline.closing()) return;
  const Timeline newest{timeline.chain().rbegin()->timeline()};
  const uint64_t from = CaptureFrom(state.abandoned.value, newest).value;
  standstill_.Look({.timeline = newest,
                    .committed = VersionOf(state.commit.value),
                    .has_committed = state.commit.value.world() != 0,
                    .reached = NewestStep(),
                    .given_up_through = Step{from == 0 ? 0 : from - 1}},
                   executor_.Now(), [this] { return WhatIsMissing(); });
}

std::string Leader::WhatIsMissing() const {
  std::vector<std::string> texts = MissingNodes();
  if (!write_failure_.ok()) texts.insert(texts.begin(), DescribeWriteFailure(write_failure_));
  for (const auto& more : {MissingRanks(), RanksApart(), WaitedFor()}) {
    if (!more.empty()) texts.push_back(more);
  }
  return absl::StrJoin(texts, "; ");
}

std::string Leader::NameOf(NodeSlot slot) const {
  const auto present = store_.state().present.find(slot);
  if (present == store_.state().present.end()) return fmt::format("node {}", slot);
  return fmt::format("node {} ({})", slot, present->second.address());
}

std::vector<std::string> Leader::MissingNodes() const {
  std::vector<std::string> lost;
  std::vector<std::string> absent;
  std::vector<std::string> silent;
  for (const unreft::Member& member : store_.state().view.value.members()) {
    const NodeSlot slot{member.slot()};
    if (member.lost()) {
      lost.push_back(fmt::format("{}", slot));
    } else if (!IsPresent(slot)) {
      absent.push_back(fmt::format("{}", slot));
    } else if (ReportOf(member) == nullptr) {
      silent.push_back(NameOf(slot));
    }
  }
  std::vector<std::string> texts;
  if (!lost.empty()) {
    texts.push_back(fmt::format("node {} is lost: start its daemon again, or one with --spare",
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
  return texts;
}

std::string Leader::MissingRanks() const {
  std::set<Rank> registered;
  uint64_t world = store_.state().commit.value.world();
  for (const unreft::Member& member : store_.state().view.value.members()) {
    const NodeReport* report = member.lost() ? nullptr : ReportOf(member);
    if (report == nullptr) continue;
    for (const RegisteredRank& rank : report->registered()) {
      registered.insert(Rank{rank.rank()});
      world = std::max(world, rank.world());
    }
  }
  const recovery::MissingRanks missing = recovery::FindMissing(registered, world);
  if (missing.none()) return "";
  return fmt::format("of {} ranks, rank {} has not registered its tensors at any node", world,
                     missing.Text());
}

std::string Leader::RanksApart() const {
  struct At {
    uint64_t step = 0;
    uint64_t rank = 0;
    NodeSlot slot;
  };
  std::vector<At> ranks;
  for (const unreft::Member& member : store_.state().view.value.members()) {
    const NodeReport* report = member.lost() ? nullptr : ReportOf(member);
    if (report == nullptr) continue;
    for (const RegisteredRank& rank : report->registered()) {
      if (!rank.has_passed_step()) continue;
      ranks.push_back({rank.passed_step(), rank.rank(), NodeSlot{member.slot()}});
    }
  }
  if (ranks.empty()) return "";
  const auto [slow, fast] = std::ranges::minmax_element(ranks, {}, &At::step);
  const uint64_t apart = fast->step - slow->step;
  if (apart <= kStepsApart) return "";
  return fmt::format(
      "rank {} of {} is at step {}, rank {} of {} at step {}: they are {} steps apart, and a "
      "version needs all ranks at one step",
      slow->rank, NameOf(slow->slot), slow->step, fast->rank, NameOf(fast->slot), fast->step,
      apart);
}

// By the oldest version that may still be committed; if there is none, why the last failed.
std::string Leader::WaitedFor() const {
  for (const Version version : VersionsUnderWay()) {
    if (IsGivenUp(version) || FailureOf(version)) continue;
    std::set<Rank> sealed;
    uint64_t world = 0;
    std::vector<std::string> unguarded;
    for (const unreft::Member& member : store_.state().view.value.members()) {
      const NodeReport* report = member.lost() ? nullptr : ReportOf(member);
      bool is_guarded = false;
      if (report == nullptr) continue;
      for (const VersionHolding& holding : report->versions()) {
        if (VersionOf(holding) != version) continue;
        is_guarded = holding.guarded();
        for (const SealedRank& rank : holding.sealed()) {
          sealed.insert(Rank{rank.rank()});
          world = std::max(world, rank.world());
        }
      }
      if (!is_guarded) unguarded.push_back(NameOf(NodeSlot{member.slot()}));
    }
    const recovery::MissingRanks missing = recovery::FindMissing(sealed, world);
    if (sealed.empty()) return fmt::format("no rank has completed step {}", version.step);
    if (!missing.none()) {
      return fmt::format("step {} waits for rank {}", version.step, missing.Text());
    }
    if (unguarded.empty()) return "";
    return fmt::format("all ranks have completed step {}, and {} has not protected it",
                       version.step, Some(unguarded, "nodes"));
  }
  const std::string& reason = store_.state().abandoned.value.reason();
  return reason.empty() ? "" : fmt::format("the last that was given up was {}", reason);
}

}  // namespace unreft::smp
