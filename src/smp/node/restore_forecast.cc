#include "smp/node/restore_forecast.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>

#include "base/format.h"
#include "base/text.h"
#include "smp/job/cluster_records.h"
#include "smp/node/json_text.h"
#include "smp/restore/stored_slabs.h"

namespace unreft::smp {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kNamesTold = 10;

// Where the bytes of a slab are, for ranks of this node.
enum class Place { kHere, kPeer, kDecoded };

}  // namespace

struct RestoreForecast::RankForecast {
  Rank rank;
  std::vector<TensorSpec> targets;
  std::vector<uint32_t> preferred;

  size_t tensors = 0;  // by name, like the next
  size_t not_stored = 0;
  std::vector<std::string> not_stored_names;  // the first of them
  uint64_t bytes_from[3] = {0, 0, 0};         // by Place
  std::string problem;
};

struct RestoreForecast::Forecast {
  Version version;
  uint64_t source_world = 0;
  uint64_t world = 0;
  uint64_t data_chunks = 1;  // of the largest group that it is encoded in
  StoredSlabs stored;
  std::vector<Place> places;  // of the slabs
  std::vector<RankForecast> ranks;

  void Compute() {
    std::set<std::string_view> names;
    for (const recovery::StoredPart& part : stored.parts()) names.insert(part.spec->name);
    for (RankForecast& rank : ranks) ComputeRank(names, rank);
  }

  Json ToJson() const {
    Json json{{"version", {{"timeline", NumberOf(version.timeline)}, {"step", version.step.value}}},
              {"source_world", source_world},
              {"world", world},
              {"data_chunks", data_chunks},
              {"ranks", Json::array()}};
    for (const RankForecast& rank : ranks) {
      json["ranks"].push_back({{"rank", rank.rank.value},
                               {"tensors", rank.tensors},
                               {"local_bytes", rank.bytes_from[size_t(Place::kHere)]},
                               {"peer_bytes", rank.bytes_from[size_t(Place::kPeer)]},
                               {"decoded_bytes", rank.bytes_from[size_t(Place::kDecoded)]},
                               {"not_stored", rank.not_stored},
                               {"not_stored_names", rank.not_stored_names},
                               {"problem", rank.problem}});
    }
    return json;
  }

 private:
  void ComputeRank(const std::set<std::string_view>& names, RankForecast& rank) const {
    // A rank may have several shards of one tensor.
    std::set<std::string> tensors;
    std::set<std::string> not_stored;
    std::erase_if(rank.targets, [&](const TensorSpec& spec) {
      tensors.insert(spec.name);
      if (names.contains(spec.name)) return false;
      not_stored.insert(spec.name);
      return true;
    });
    rank.tensors = tensors.size();
    rank.not_stored = not_stored.size();
    for (const std::string& name : not_stored) {
      if (rank.not_stored_names.size() == kNamesTold) break;
      rank.not_stored_names.push_back(CleanText(name, kTextBytesMax));
    }
    const auto pieces = recovery::PlanRestore(stored.parts(), rank.targets, rank.preferred);
    if (!pieces.ok()) {
      rank.problem = std::string(pieces.status().message());
      return;
    }
    for (const PlanPiece& piece : *pieces) {
      rank.bytes_from[size_t(places[piece.source])] += piece.total_bytes();
    }
  }
};

RestoreForecast::RestoreForecast(NodeState& state, Member& member)
    : state_(state), member_(member) {}

RestoreForecast::~RestoreForecast() { state_.seams.executor.Cancel(timer_); }

void RestoreForecast::Answer(absl::AnyInvocable<void(AdminReply)> reply) {
  asking_.push_back(std::move(reply));
  if (asking_.size() > 1) return;
  const meta::JobState& job = member_.job();
  const CommitRecord& commit = job.commit.value;
  if (commit.world() == 0) {
    return Reply(
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
  catalog_ = std::make_unique<RestoreCatalog>(
      state_, member_.peers(), member_.records(), decision, [this] {
        // Not in a callback of what goes.
        state_.seams.executor.Post(lifetime_.Bind([this] { OnDescribed(); }));
      });
}

void RestoreForecast::OnDescribed() {
  if (catalog_ == nullptr || !catalog_->ready()) return;
  state_.seams.executor.Cancel(std::exchange(timer_, TimerId::kNone));
  Compute();
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
  Reply({absl::UnavailableError(fmt::format(
             "version {}: within {} ms nobody has told what {} of its {} ranks stored: ranks {}{}",
             version,
             std::chrono::duration_cast<std::chrono::milliseconds>(state_.options.call_timeout)
                 .count(),
             missing.size(), ranks,
             fmt::join(missing.begin(), missing.begin() + static_cast<ptrdiff_t>(told), ", "),
             told < missing.size() ? ", ..." : "")),
         ""});
}

void RestoreForecast::Compute() {
  auto forecast = std::make_shared<Forecast>();
  forecast->version = catalog_->version();
  forecast->source_world = catalog_->slabs().size();
  for (const Group& group : member_.job().commit.value.groups()) {
    forecast->data_chunks = std::max<uint64_t>(forecast->data_chunks, group.k());
  }
  std::vector<uint32_t> here;
  std::map<Rank, uint32_t> numbers;
  for (const auto& [rank, slab] : catalog_->slabs()) {
    const auto number = static_cast<uint32_t>(forecast->places.size());
    numbers[rank] = number;
    const auto sealed = state_.slots->Sealed(forecast->version);
    const bool is_here = std::ranges::any_of(
        sealed, [owner = rank](const Slot* slot) { return slot->owner == owner; });
    const bool is_there = !slab.lost && slab.described_by == slab.home;
    if (is_here) here.push_back(number);
    forecast->places.push_back(is_here ? Place::kHere : is_there ? Place::kPeer : Place::kDecoded);
    forecast->stored.Add(number, slab.manifest);
  }
  for (const auto& [rank, session] : state_.sessions) {
    if (session->registration == nullptr || session->superseded) continue;
    RankForecast& of = forecast->ranks.emplace_back();
    of.rank = rank;
    of.preferred = here;
    forecast->world = session->world();
    // Its own slab first, as the restore does among as many ranks.
    const auto own = numbers.find(rank);
    if (own != numbers.end() && session->world() == forecast->source_world) {
      of.preferred.insert(of.preferred.begin(), own->second);
    }
    const auto& specs = session->registration->table.specs();
    of.targets.assign(specs.begin(), specs.end());
  }
  catalog_.reset();
  state_.seams.pool.Submit([forecast] { forecast->Compute(); }, state_.seams.executor,
                           lifetime_.Bind([this, forecast] {
                             Reply({absl::OkStatus(), JsonText(forecast->ToJson())});
                           }));
}

void RestoreForecast::Reply(const AdminReply& answer) {
  for (auto& reply : std::exchange(asking_, {})) reply(answer);
}

}  // namespace unreft::smp
