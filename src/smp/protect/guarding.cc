#include "smp/protect/guarding.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/format.h"
#include "smp/job/cluster_records.h"
#include "smp/protect/slab_source.h"

namespace unreft::smp {
namespace {

constexpr Duration kWarnEvery = std::chrono::seconds(10);

absl::Status CheckAreDescribed(const google::protobuf::RepeatedField<uint64_t>& ranks,
                               const std::vector<SlabDescription>& slabs) {
  for (const uint64_t rank : ranks) {
    const auto is_of_rank = [rank](const SlabDescription& slab) { return slab.rank() == rank; };
    if (std::ranges::any_of(slabs, is_of_rank)) continue;
    return absl::NotFoundError(fmt::format("the slab of rank {} is not described", rank));
  }
  return absl::OkStatus();
}

}  // namespace

Guarding::Guarding(Seams seams, const NodeOptions& options,
                   std::shared_ptr<const CodedVersion> coded, Guard& guard, Mode mode, OnEnd on_end)
    : task_{seams, options, std::move(coded), guard},
      on_end_(std::move(on_end)),
      activity_(task_, [this] { RunRules(); }),
      server_(task_, activity_, /*is_encoded=*/mode == Mode::kHandOn),
      ended_(mode == Mode::kHandOn),
      end_told_(mode == Mode::kHandOn) {
  if (mode == Mode::kAlone) server_.Close();
  for (uint32_t parity = 0; parity < task_.coded->group.shape.m; ++parity) {
    const bool is_aggregator = parity == 0;
    lanes_.push_back(std::make_unique<Lane>(task_, activity_, parity,
                                            mode == Mode::kAlone || is_aggregator,
                                            is_aggregator ? &server_ : nullptr));
  }
}

void Guarding::Start() {
  if (ended_) return;
  for (const uint32_t member : task_.coded->group.Predecessors()) FetchDescription(member, false);
  RunRules();
}

void Guarding::Cancel() {
  if (activity_.is_cancelled()) return;
  activity_.Cancel();
  for (const auto& lane : lanes_) lane->Cancel();
  server_.Close();
  // In a turn of its own, should nothing be on its way.
  activity_.Begin();
  task_.seams.executor.Post(lifetime_.Bind([this] { activity_.End(); }));
}

void Guarding::DoWithout(NodeSlot slot) {
  const std::optional<uint32_t> member = task_.coded->group.MemberIn(slot);
  if (ended_ || !member || !gone_.insert(*member).second) return;
  for (const auto& lane : lanes_) lane->DoWithout(*member);
  server_.DoWithout(*member);
  RunRules();
}

bool Guarding::DoesWithout(NodeSlot slot) const {
  const std::optional<uint32_t> member = task_.coded->group.MemberIn(slot);
  return member && gone_.contains(*member);
}

void Guarding::End(absl::StatusOr<std::shared_ptr<const GuardRecord>> result) {
  ended_ = true;
  task_.seams.executor.Post(lifetime_.Bind([this, result = std::move(result)]() mutable {
    end_told_ = true;
    on_end_(std::move(result));
  }));
}

void Guarding::RunRules() {
  if (ended_) return;
  if (activity_.is_cancelled()) {
    if (activity_.is_idle()) End(absl::CancelledError("given up"));
    return;
  }
  bool complete = descriptions_.size() == task_.coded->group.Predecessors().size();
  for (const auto& lane : lanes_) {
    lane->Run();
    complete &= lane->is_complete();
  }
  if (complete && !sealing_) Seal();
}

// --- descriptions, and the end ---

void Guarding::FetchDescription(uint32_t member, bool is_suspect) {
  const NodeSlot slot = task_.coded->group.slots[member];
  MetaRequest request;
  request.set_is_suspect(is_suspect);
  SetVersion(task_.coded->version, request);
  request.set_slot(slot.value);
  for (const RankSlab& slab : task_.coded->slabs.members()[member].slabs()) {
    request.add_ranks(slab.rank());
  }
  if (request.ranks().empty()) {
    descriptions_[member] = {};
    return;
  }
  activity_.Begin();
  task_.seams.peers.AskInPages<MetaReply>(
      slot, "meta", request, task_.options.read_timeout,
      lifetime_.Bind([this, member, slot,
                      ranks = request.ranks()](absl::StatusOr<MetaReply> reply) {
        absl::Status status = reply.status();
        std::vector<SlabDescription> slabs;
        if (reply.ok()) slabs.assign(reply->slabs().begin(), reply->slabs().end());
        for (const SlabDescription& slab : slabs) {
          if (status.ok()) status = CheckSlabDescription(slab);
        }
        if (status.ok()) status = CheckAreDescribed(ranks, slabs);
        if (status.ok()) {
          descriptions_[member] = std::move(slabs);
        } else if (!activity_.is_cancelled()) {
          task_.seams.log.WarnEvery(
              "description", kWarnEvery, task_.seams.executor.Now(),
              "version {}: the manifests of node {} were not received yet: {}",
              task_.coded->version, slot, status.message());
          // The member may have found out by itself, too.
          const bool has_rotted = absl::IsDataLoss(status);
          activity_.Retry([this, member, has_rotted] { FetchDescription(member, has_rotted); });
        }
        activity_.End();
      }));
}

void Guarding::Seal() {
  sealing_ = true;
  auto record = std::make_shared<GuardRecord>();  // passes to the pool and back
  record->set_format(kGuardRecordFormat);
  record->set_min_reader(kGuardRecordMinReader);
  *record->mutable_group() = task_.coded->group.ToMessage();
  record->set_member(task_.coded->group.self);
  for (const MemberSlab& member : task_.coded->slabs.members()) *record->add_members() = member;
  for (const auto& [member, slabs] : descriptions_) {
    MemberDescription& description = *record->add_descriptions();
    description.set_slot(task_.coded->group.slots[member].value);
    for (const SlabDescription& slab : slabs) *description.add_slabs() = slab;
  }
  auto status = std::make_shared<absl::Status>();  // passes from the pool to the executor
  const Guard& guard = task_.guard;
  activity_.Submit([segment = guard.segment, view = *guard.view, generation = guard.generation,
                    record, status] { *status = SealGuard(view, generation, *record); },
                   [this, record, status] {
                     if (!status->ok()) return End(*status);
                     End(std::shared_ptr<const GuardRecord>(record));
                   });
}

}  // namespace unreft::smp
