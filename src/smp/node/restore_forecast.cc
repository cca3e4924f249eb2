#include "smp/node/restore_forecast.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/format.h"
#include "smp/job/cluster_records.h"
#include "smp/node/json_text.h"

namespace unreft::smp {
namespace {

constexpr size_t kNamesTold = 10;

}  // namespace

RestoreForecast::RestoreForecast(NodeState& state, Member& member)
    : state_(state), member_(member) {}

RestoreForecast::~RestoreForecast() { state_.seams.executor.Cancel(timer_); }

void RestoreForecast::AnswerOfLayout(std::string layout, Reply reply) {
  if (layout.empty()) {
    return reply({absl::InvalidArgumentError("the layout: needed one, found nothing"), ""});
  }
  Ask(std::move(layout), std::move(reply));
}

void RestoreForecast::Ask(std::string layout, Reply reply) {
  asking_.push_back({std::move(layout), std::move(reply)});
  if (asking_.size() > 1) return;
  const meta::JobState& job = member_.job();
  const CommitRecord& commit = job.commit.value;
  if (commit.world() == 0) {
    return ReplyToAll(
        {absl::FailedPreconditionError("nothing is committed: a restart would begin from scratch"),
         ""});
  }
  JobDecision decision;
  decision.kind = DecisionKind::kRestored;
  decision.version = VersionOf(commit);
  decision.holders = HoldersOf(commit.holders());
  // A restart would wait for a node that is away, or find it lost; nobody waits for it here.
  for (recovery::SlabHolder& holder : decision.holders) {
    holder.lost = !job.present.contains(holder.slot);
  }
  holders_ = decision.holders;
  timer_ = state_.seams.executor.After(state_.options.call_timeout, [this] { OnTimeout(); });
  // A layout may ask for anything.
  catalog_ = std::make_unique<RestoreCatalog>(
      state_, member_.peers(), member_.records(), decision, std::nullopt, [this] {
        // Not in a callback of what goes.
        state_.seams.executor.Post(lifetime_.Bind([this] { OnDescribed(); }));
      });
}

void RestoreForecast::OnDescribed() {
  if (catalog_ == nullptr || !catalog_->ready()) return;
  state_.seams.executor.Cancel(std::exchange(timer_, TimerId::kNone));
  for (Question& question : std::exchange(asking_, {})) Compute(std::move(question));
  catalog_.reset();
}

void RestoreForecast::OnTimeout() {
  timer_ = TimerId::kNone;
  const Version version = catalog_->version();
  std::vector<uint64_t> missing;
  size_t ranks = 0;
  for (const recovery::SlabHolder& holder : holders_) {
    ranks += holder.ranks.size();
    for (const Rank rank : holder.ranks) {
      if (catalog_->Find(rank) == nullptr) missing.push_back(rank.value);
    }
  }
  catalog_.reset();
  const size_t told = std::min(missing.size(), kNamesTold);
  ReplyToAll(
      {absl::UnavailableError(fmt::format(
           "version {}: within {} ms nobody has told what {} of its {} ranks stored: ranks {}{}",
           version,
           std::chrono::duration_cast<std::chrono::milliseconds>(state_.options.call_timeout)
               .count(),
           missing.size(), ranks,
           fmt::join(missing.begin(), missing.begin() + static_cast<ptrdiff_t>(told), ", "),
           told < missing.size() ? ", ..." : "")),
       ""});
}

std::shared_ptr<Forecast> RestoreForecast::NewForecast() const {
  uint64_t data_chunks = 1;
  for (const Group& group : member_.job().commit.value.groups()) {
    data_chunks = std::max<uint64_t>(data_chunks, group.k());
  }
  auto forecast = std::make_shared<Forecast>(Forecast::Of{.job = state_.options.job,
                                                          .node = state_.options.node,
                                                          .nodes = state_.options.nodes,
                                                          .version = catalog_->version(),
                                                          .data_chunks = data_chunks});
  const auto sealed = state_.slots->Sealed(catalog_->version());
  for (const auto& [rank, slab] : catalog_->slabs()) {
    const bool is_here = std::ranges::any_of(
        sealed, [owner = rank](const Slot* slot) { return slot->owner == owner; });
    forecast->AddSlab({.rank = rank,
                       .home = slab.home,
                       .is_at_home = !slab.lost && slab.described_by == slab.home,
                       .is_here = is_here});
  }
  forecast->SetStored(catalog_->tables()->Latest());
  return forecast;
}

void RestoreForecast::Compute(Question question) {
  const std::shared_ptr<Forecast> forecast = NewForecast();
  if (question.layout.empty()) {
    for (const auto& [rank, session] : state_.sessions) {
      if (session->registration == nullptr || session->superseded) continue;
      const auto& specs = session->registration->table.specs();
      forecast->AddRegistered(rank, session->world(), {specs.begin(), specs.end()});
    }
  } else {
    forecast->SetLayout(std::move(question.layout));
  }
  const auto status = std::make_shared<absl::Status>();
  state_.seams.pool.Submit(
      [forecast, status] { *status = forecast->Compute(); }, state_.seams.executor,
      lifetime_.Bind([forecast, status, reply = std::move(question.reply)]() mutable {
        reply({*status, status->ok() ? JsonText(forecast->ToJson()) : ""});
      }));
}

void RestoreForecast::ReplyToAll(const AdminReply& answer) {
  for (Question& question : std::exchange(asking_, {})) question.reply(answer);
}

}  // namespace unreft::smp
