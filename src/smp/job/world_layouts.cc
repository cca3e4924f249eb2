#include "smp/job/world_layouts.h"

#include <string>
#include <vector>

#include "smp/job/cluster_records.h"

namespace unreft::smp {
namespace {

constexpr Duration kWarnEvery = std::chrono::seconds(10);

ReportReply ReplyOf(RegistrationState state, const absl::Status& misfit = absl::OkStatus()) {
  ReportReply reply;
  reply.set_registrations(static_cast<uint32_t>(state));
  reply.set_misfit(std::string(misfit.message()));
  return reply;
}

}  // namespace

WorldLayouts::WorldLayouts(Executor& executor, Peers& peers, Log& log, const NodeOptions& options,
                           absl::AnyInvocable<void()> on_told)
    : executor_(executor),
      peers_(peers),
      log_(log),
      options_(options),
      on_told_(std::move(on_told)) {}

void WorldLayouts::OnReport(bool registers_anew) {
  is_told_ = true;
  if (registers_anew) found_.reset();
}

ReportReply WorldLayouts::Found(const Key& key) const {
  return IsFound(key) ? *found_ : ReplyOf(RegistrationState::kLooking);
}

void WorldLayouts::LookAt(const Key& key, const std::vector<RollCall::Told>& reports) {
  found_for_ = key;
  found_.reset();
  is_told_ = false;
  uint64_t world = 0;
  std::map<Rank, ManifestCache::RankLayout> ranks;
  for (const auto& [slot, report] : reports) {
    for (const RegisteredRank& rank : report->registered()) {
      if (rank.attempt() != key.attempt) continue;
      world = rank.world();
      ranks[Rank{rank.rank()}] = {slot, rank.layout_digest()};
    }
  }
  const bool is_complete =
      !ranks.empty() && ranks.size() == world && ranks.rbegin()->first.value == world - 1;
  if (!is_complete) {
    found_ = ReplyOf(RegistrationState::kIncomplete);
    return;
  }
  std::vector<uint64_t> digests;
  for (const auto& [rank, layout] : ranks) digests.push_back(layout.digest);
  if (check_.AreKnownToFit(digests)) {
    found_ = ReplyOf(RegistrationState::kFit);
    return;
  }
  const ManifestCache::Known known = manifests_.Find(ranks);
  ManifestRequest request;
  request.set_registered(true);
  for (const NodeSlot slot : known.to_ask) Ask(slot, request);
  if (!known.to_ask.empty()) return;
  const absl::Status status = check_.Check(known.manifests);
  const auto state = status.ok() ? RegistrationState::kFit : RegistrationState::kMisfit;
  found_ = ReplyOf(state, status);
}

void WorldLayouts::Ask(NodeSlot slot, Version version) {
  ManifestRequest request;
  SetVersion(version, request);
  Ask(slot, request);
}

void WorldLayouts::Ask(NodeSlot slot, const ManifestRequest& request) {
  const std::pair asking(slot, VersionOf(request));
  if (!asking_.insert(asking).second) return;
  peers_.AskInPages<ManifestReply>(
      slot, "manifests", request, options_.call_timeout,
      lifetime_.Bind([this, asking](absl::StatusOr<ManifestReply> reply) {
        asking_.erase(asking);
        if (!reply.ok()) {  // asked again with a node's next report
          log_.WarnEvery("manifests", kWarnEvery, executor_.Now(),
                         "node {} did not tell what its ranks hold: {}", asking.first,
                         reply.status().message());
          return;
        }
        for (const std::string& bytes : reply->manifests()) {
          absl::StatusOr<layout::SlotManifest> manifest = layout::DecodeManifest(bytes);
          if (!manifest.ok()) {
            log_.Error("node {}: {}", asking.first, manifest.status().message());
            continue;
          }
          is_told_ |= !manifests_.Has(manifest->rank, manifest->layout_digest);
          manifests_.Keep(*std::move(manifest));
        }
        on_told_();
      }));
}

}  // namespace unreft::smp
