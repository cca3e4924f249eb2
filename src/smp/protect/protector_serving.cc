// What the protector holds, for its coordinator and for other nodes (SlabServer asks it).
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "smp/job/cluster_records.h"
#include "smp/protect/protector.h"

namespace unreft::smp {

// --- what is held ---

std::vector<GuardHeld> Protector::Held() const {
  std::vector<GuardHeld> held;
  for (Guard* guard : const_cast<GuardStore&>(guards_).All()) {
    if (guard->phase != GuardPhase::kComplete || guard->dropped) continue;
    GuardHeld next;
    next.version = guard->version;
    next.complete = true;
    next.coding = guard->coding;
    const GuardRecord& record = *guard->record;
    next.data_chunks = record.group().k();
    for (int i = 0; i < record.members_size() && i < record.group().slots_size(); ++i) {
      next.encoded.emplace_back(NodeSlot{record.group().slots(i)}, record.members(i).incarnation());
    }
    for (const MemberReplica& replica : guard->record->replicas()) {
      ReplicaHeld& of = next.replicas.emplace_back();
      of.of = NodeSlot{replica.slot()};
      for (const SlabMeta& slab : replica.slabs()) {
        of.ranks.push_back(Rank{slab.rank()});
        of.world = slab.world();
      }
    }
    held.push_back(std::move(next));
  }
  return held;
}

// A guard is free again once a version commits, and a newer one makes way for no older: of two
// versions of which each had the last guard of some node, neither was ever complete.
std::map<Version, std::string> Protector::Failures() const {
  std::map<Version, std::string> failures;
  const std::vector<Guard*> guards = const_cast<GuardStore&>(guards_).All();
  for (const auto& [version, under_way] : versions_) {
    if (!under_way.lacks_guard || under_way.remaking) continue;
    const auto newer = std::ranges::find_if(guards, [&](const Guard* guard) {
      const bool is_taken =
          guard->phase == GuardPhase::kFilling || guard->phase == GuardPhase::kComplete;
      return is_taken && !guard->dropped && guard->version > version;
    });
    if (newer == guards.end()) continue;
    failures[version] = fmt::format("no guard is free, there are {}, one of them for version {}",
                                    guards.size(), (*newer)->version);
  }
  return failures;
}

std::vector<std::string> Protector::ReplicaManifests(Version version) const {
  std::vector<std::string> manifests;
  const Guard* guard = const_cast<GuardStore&>(guards_).Complete(version);
  if (guard == nullptr) return manifests;
  for (const MemberReplica& replica : guard->record->replicas()) {
    for (const SlabMeta& slab : replica.slabs()) manifests.push_back(slab.manifest());
  }
  return manifests;
}

std::shared_ptr<const GuardRecord> Protector::RecordOf(Version version) {
  Guard* guard = guards_.Complete(version);
  return guard == nullptr ? nullptr : guard->record;
}

void Protector::Verify(Version version, absl::AnyInvocable<void(absl::Status)> done) {
  Guard* guard = guards_.Complete(version);
  if (guard == nullptr) {
    state_.seams.executor.Post([done = std::move(done)]() mutable { done(absl::OkStatus()); });
    return;
  }
  guards_.MendHeader(*guard);
  guards_.Use(*guard);
  auto status = std::make_shared<absl::Status>();  // passes from the pool to the executor
  state_.seams.pool.Submit(
      [segment = guard->segment, view = *guard->view, status] { *status = VerifyGuard(view); },
      state_.seams.executor,
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

// --- serving ---

void Protector::Serve() {
  peers_.Serve(
      "announce", [this](NodeSlot from, const std::string& body, Transport::CallDone done) {
        AnnounceRequest request;
        if (!request.ParseFromString(body)) {
          return done(absl::InvalidArgumentError(fmt::format(
              "an announcement of node {} of {} bytes does not parse", from, body.size())));
        }
        for (const unreft::Member& member : job_.view.value.members()) {
          if (NodeSlot{member.slot()} != from || member.incarnation() == request.incarnation()) {
            continue;
          }
          // One of both has an old view; as of a store that went back it may have the greater
          // number.
          return done(absl::AbortedError(fmt::format(
              "node {} announces slabs of a memory that view {} of node {} does not name", from,
              job_.view.value.number(), peers_.self())));
        }
        const Version version = VersionOf(request);
        // What is over needs no answer but this: the sender stops telling it.
        if (IsOfInterest(version)) {
          Of(version).said[from] = std::move(request);
          RunRules();
        }
        done("");
      });
  peers_.Answer<MetaRequest, GuardRecord>("record",
                                          [this](NodeSlot, const MetaRequest& request, auto done) {
                                            done(OnRecord(VersionOf(request)));
                                          });
}

void Protector::ReadParity(const ReadRequest& request, uint64_t bytes, SlabSource::ReadDone done) {
  switch (request.kind()) {
    case ReadRequest::STORED_PARITY:
      return ReadStoredParity(request, bytes, std::move(done));
    case ReadRequest::FRESH_PARITY: {
      const auto it = versions_.find(VersionOf(request));
      if (it != versions_.end() && it->second.guarding != nullptr) {
        return it->second.guarding->OnRead(request, bytes, std::move(done));
      }
      return done(absl::NotFoundError(fmt::format("node {} encodes nothing of version {} now",
                                                  peers_.self(), VersionOf(request))));
    }
    default:
      return done(absl::InvalidArgumentError(
          fmt::format("a read of kind {} is not known", static_cast<int>(request.kind()))));
  }
}

void Protector::ReadStoredParity(const ReadRequest& request, uint64_t bytes,
                                 SlabSource::ReadDone done) {
  const Version version = VersionOf(request);
  Guard* guard = guards_.Complete(version);
  if (guard == nullptr) {
    return done(absl::NotFoundError(
        fmt::format("node {} has no parities of version {}", peers_.self(), version)));
  }
  if (request.coding() != 0 && request.coding() != guard->coding) {
    return done(absl::NotFoundError(fmt::format(
        "node {} has parities of version {} that are of other slabs", peers_.self(), version)));
  }
  const uint64_t positions = guard->grant.positions;
  if (request.parity() >= guard->view->geometry().chunks || request.blocks() != 1 ||
      request.first_block() >= positions || bytes != state_.options.block_bytes) {
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
      HoldUntilRead(state_.seams.executor, guard->segment,
                    lifetime_.Bind([this, id = guard->id, generation = guard->generation] {
                      guards_.EndUse(id, generation);
                    }));
  done(std::move(source));
}

absl::StatusOr<GuardRecord> Protector::OnRecord(Version version) {
  const auto record = RecordOf(version);
  if (record == nullptr) {
    return absl::NotFoundError(
        fmt::format("node {} has no guard of version {}", peers_.self(), version));
  }
  // Extras may make replicas larger than a message can be, and who asks has no use for them.
  GuardRecord answer;
  answer.set_format(record->format());
  answer.set_min_reader(record->min_reader());
  *answer.mutable_group() = record->group();
  answer.set_member(record->member());
  *answer.mutable_members() = record->members();
  for (const MemberReplica& replica : record->replicas()) {
    answer.set_replica_bytes(answer.replica_bytes() + replica.ByteSizeLong());
  }
  return answer;
}

}  // namespace unreft::smp
