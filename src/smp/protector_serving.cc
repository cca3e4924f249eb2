// What the protector serves to other nodes.
#include <fmt/format.h>

#include <utility>

#include "base/format.h"
#include "smp/cluster_records.h"
#include "smp/protector.h"

namespace unreft::smp {

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
  peers_.Answer<MetaRequest, MetaReply>("meta",
                                        [this](NodeSlot, const MetaRequest& request, auto done) {
                                          OnMeta(request, std::move(done));
                                        });
  peers_.Answer<MetaRequest, GuardRecord>("record",
                                          [this](NodeSlot, const MetaRequest& request, auto done) {
                                            done(OnRecord(VersionOf(request)));
                                          });
  peers_.ServeReads([this](NodeSlot, const std::string& body, uint64_t bytes, auto done) {
    OnRead(body, bytes, std::move(done));
  });
}

void Protector::OnRead(const std::string& body, uint64_t bytes, SlabSource::ReadDone done) {
  ReadRequest request;
  if (!request.ParseFromString(body)) {
    return done(absl::InvalidArgumentError(
        fmt::format("a read request of {} bytes does not parse", body.size())));
  }
  switch (request.kind()) {
    case ReadRequest::DATA:
      return source_.OnRead(request, bytes, std::move(done));
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
  const uint64_t positions = guard->claim.positions;
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
       guard->view->input_crcs(request.parity(), request.first_block(), guard->claim.sources)) {
    header.add_input_crcs(crc);
  }
  ReadSource source;
  source.header = header.SerializeAsString();
  source.parts.push_back(guard->view->block(request.parity(), request.first_block()));
  guards_.Use(*guard);
  Executor& executor = state_.seams.executor;
  source.hold = std::shared_ptr<const void>(
      guard->segment.get(),
      [this, &executor, alive = std::weak_ptr(alive_), segment = guard->segment, id = guard->id,
       generation = guard->generation](const void*) mutable {
        executor.Post([this, alive, segment = std::move(segment), id, generation] {
          if (!alive.expired()) guards_.EndUse(id, generation);
        });
      });
  done(std::move(source));
}

void Protector::OnMeta(const MetaRequest& request, SlabSource::MetaDone done) {
  const Version version = VersionOf(request);
  if (NodeSlot{request.slot()} == peers_.self()) {
    std::vector<Rank> ranks;
    for (const uint64_t rank : request.ranks()) ranks.push_back(Rank{rank});
    return source_.OnMeta(version, ranks, std::move(done));
  }
  if (const auto record = RecordOf(version)) {
    for (const MemberReplica& replica : record->replicas()) {
      if (replica.slot() != request.slot()) continue;
      MetaReply reply;
      *reply.mutable_slabs() = replica.slabs();
      return done(std::move(reply));
    }
  }
  done(absl::NotFoundError(fmt::format("node {} has no replica of node {} of version {}",
                                       peers_.self(), request.slot(), version)));
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
