#include "smp/protect/complete_guards.h"

#include <fmt/format.h>

#include <utility>

#include "base/format.h"
#include "smp/job/cluster_records.h"

namespace unreft::smp {

std::vector<GuardHeld> CompleteGuards::Held() const {
  std::vector<GuardHeld> held;
  for (const Guard* guard : guards_.All()) {
    if (guard->phase != GuardPhase::kComplete || guard->dropped) continue;
    GuardHeld next;
    next.version = guard->version;
    next.complete = true;
    next.coding = guard->coding;
    const GuardRecord& record = *guard->record;
    next.data_chunks = record.group().k();
    for (int i = 0; i < record.members_size() && i < record.group().slots_size(); ++i) {
      const MemberSlab& member = record.members(i);
      recovery::EncodedSlabs& encoded = next.encoded.emplace_back();
      encoded.slot = NodeSlot{record.group().slots(i)};
      encoded.memory = member.incarnation();
      for (const RankSlab& slab : member.slabs()) encoded.ranks.push_back(Rank{slab.rank()});
    }
    for (const MemberDescription& description : record.descriptions()) {
      DescriptionHeld& of = next.descriptions.emplace_back();
      of.of = NodeSlot{description.slot()};
      for (const SlabDescription& slab : description.slabs()) {
        of.ranks.push_back(Rank{slab.rank()});
        of.world = slab.world();
      }
    }
    held.push_back(std::move(next));
  }
  return held;
}

std::vector<std::string> CompleteGuards::DescribedManifests(Version version) const {
  std::vector<std::string> manifests;
  const auto record = RecordOf(version);
  if (record == nullptr) return manifests;
  for (const MemberDescription& description : record->descriptions()) {
    for (const SlabDescription& slab : description.slabs()) manifests.push_back(slab.manifest());
  }
  return manifests;
}

std::shared_ptr<const GuardRecord> CompleteGuards::RecordOf(Version version) const {
  const Guard* guard = guards_.Complete(version);
  return guard == nullptr ? nullptr : guard->record;
}

absl::StatusOr<GuardRecord> CompleteGuards::Describe(Version version) const {
  const auto record = RecordOf(version);
  if (record == nullptr) {
    return absl::NotFoundError(fmt::format("node {} has no guard of version {}", self_, version));
  }
  // Extras may make descriptions larger than a message can be, and who asks has no use for them.
  GuardRecord answer;
  answer.set_format(record->format());
  answer.set_min_reader(record->min_reader());
  *answer.mutable_group() = record->group();
  answer.set_member(record->member());
  *answer.mutable_members() = record->members();
  for (const MemberDescription& description : record->descriptions()) {
    answer.set_description_bytes(answer.description_bytes() + description.ByteSizeLong());
  }
  return answer;
}

void CompleteGuards::Verify(Version version, absl::AnyInvocable<void(absl::Status)> done) {
  Guard* guard = guards_.Complete(version);
  if (guard == nullptr) {
    executor_.Post([done = std::move(done)]() mutable { done(absl::OkStatus()); });
    return;
  }
  guards_.MendHeader(*guard);
  guards_.Use(*guard);
  auto status = std::make_shared<absl::Status>();  // passes from the pool to the executor
  pool_.Submit(
      [segment = guard->segment, view = *guard->view, status] { *status = VerifyGuard(view); },
      executor_,
      lifetime_.Bind([this, id = guard->id, generation = guard->generation, status,
                      done = std::move(done)]() mutable {
        Guard* verified = guards_.Find(id, generation);
        if (verified != nullptr && !status->ok()) {
          guards_.Quarantine(*verified, std::string(status->message()));
        }
        guards_.EndUse(id, generation);
        done(*status);
      }));
}

void CompleteGuards::Read(const ReadRequest& request, uint64_t bytes, SlabSource::ReadDone done) {
  const Version version = VersionOf(request);
  Guard* guard = guards_.Complete(version);
  if (guard == nullptr) {
    return done(
        absl::NotFoundError(fmt::format("node {} has no parities of version {}", self_, version)));
  }
  if (request.coding() != 0 && request.coding() != guard->coding) {
    return done(absl::NotFoundError(
        fmt::format("node {} has parities of version {} that are of other slabs", self_, version)));
  }
  const uint64_t positions = guard->grant.positions;
  if (request.parity() >= guard->view->geometry().chunks || request.blocks() != 1 ||
      request.first_block() >= positions || bytes != block_bytes_) {
    return done(absl::InvalidArgumentError(
        fmt::format("version {}: parity {} at position {} was asked for in {} bytes, there are {} "
                    "of {} positions",
                    version, request.parity(), request.first_block(), bytes,
                    guard->view->geometry().chunks, positions)));
  }
  ReadHeader header;
  header.add_crcs(guard->view->parity_crcs(request.parity(), positions)[request.first_block()]);
  for (const uint32_t crc :
       guard->view->input_crcs(request.parity(), request.first_block(), guard->grant.sources)) {
    header.add_input_crcs(crc);
  }
  ReadSource source;
  source.header = header.SerializeAsString();
  source.parts.push_back(guard->view->block(request.parity(), request.first_block()));
  guards_.Use(*guard);
  source.hold =
      HoldUntilRead(executor_, guard->segment,
                    lifetime_.Bind([this, id = guard->id, generation = guard->generation] {
                      guards_.EndUse(id, generation);
                    }));
  done(std::move(source));
}

}  // namespace unreft::smp
