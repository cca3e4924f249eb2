#include "smp/restore/block_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/crc32c.h"
#include "base/format.h"
#include "smp/job/cluster_records.h"
#include "smp/protect/any_k.h"

namespace unreft::smp {
namespace {

// A source that failed is left out for so many retries' time, if others will do.
constexpr int kAvoidRetries = 10;

std::map<Rank, NodeSlot> LostSlabs(const RestoreCatalog& catalog) {
  std::map<Rank, NodeSlot> lost;
  for (const auto& [rank, slab] : catalog.slabs()) {
    if (slab.lost) lost.emplace(rank, slab.home);
  }
  return lost;
}

// The target of the k sources. DataLoss when its CRC is not the one that is needed.
absl::Status Reconstruct(const ec::ErasureCode& code, const GatheredStripe& gathered,
                         const ec::TargetChunk& target, uint32_t needed) {
  std::vector<ec::SourceChunk> sources;
  for (const GatheredChunk& chunk : gathered.chunks) sources.push_back({chunk.chunk, chunk.bytes});
  absl::Status status = code.Reconstruct(sources, {&target, 1});
  if (!status.ok()) return status;
  const uint32_t found = Crc32c(target.bytes);
  if (found == needed) return absl::OkStatus();
  return absl::DataLossError(fmt::format("chunk {} was decoded, its CRC is {:08x}, needed {:08x}",
                                         target.index, found, needed));
}

}  // namespace

BlockReader::BlockReader(NodeState& state, Peers& peers, const meta::JobRecords& job,
                         const RestoreCatalog& catalog, BlockReads::Own own)
    : state_(state),
      peers_(peers),
      job_(job),
      catalog_(catalog),
      health_(state.seams.executor, peers, kAvoidRetries * state.options.read_retry,
              LostSlabs(catalog)),
      reads_(state.seams.executor, state.seams.pool, peers, state.options.read_timeout, own),
      gatherer_({state.seams.executor, state.seams.pool, peers, state.seams.log, *state.tiles, own},
                state.options, TilePurpose::kDecoding) {}

void BlockReader::Cancel() {
  cancelled_ = true;
  reads_.Cancel();
  gatherer_.Cancel();
}

void BlockReader::Read(Rank rank, uint64_t block, std::span<std::byte> into,
                       std::shared_ptr<void> keep, Done done) {
  ++running_;
  auto request =
      std::make_shared<Request>(Request{rank, block, into, std::move(keep), std::move(done),
                                        state_.seams.executor.Now() + state_.options.read_timeout});
  ReadFromHome(std::move(request));
}

void BlockReader::Decode(Rank rank, uint64_t block, std::span<std::byte> into,
                         std::shared_ptr<void> keep, Done done) {
  ++running_;
  auto request = std::make_shared<Request>(
      Request{rank, block, into, std::move(keep), std::move(done),
              state_.seams.executor.Now() + state_.options.read_timeout, true});
  StartDecoding(std::move(request));
}

void BlockReader::End(Request& request, absl::Status status) {
  --running_;
  std::exchange(request.done, nullptr)(std::move(status));
}

// Another try, unless there is no time for it.
void BlockReader::Again(std::shared_ptr<Request> request, const absl::Status& failure) {
  if (cancelled_) return End(*request, absl::CancelledError("the restore was superseded"));
  if (state_.seams.executor.Now() >= request->deadline) {
    return End(*request,
               absl::Status(failure.code(),
                            fmt::format("block {} of rank {} of version {}: {}", request->block,
                                        request->rank, catalog_.version(), failure.message())));
  }
  state_.seams.executor.After(state_.options.read_retry, lifetime_.Bind([this, request]() mutable {
    if (request->decode_only) return StartDecoding(std::move(request));
    ReadFromHome(std::move(request));
  }));
}

// --- from the node that holds it ---

void BlockReader::ReadFromHome(std::shared_ptr<Request> request) {
  if (cancelled_) return Again(std::move(request), absl::OkStatus());
  const CatalogSlab* slab = catalog_.Find(request->rank);
  UNREFT_CHECK(slab != nullptr, "rank {} is in no catalog", request->rank);
  // A home that has lost it may be rebuilding it, this node's own included: then it answers as soon
  // as the block is there.
  if (health_.IsBad(slab->home, SourceHealth::Kind::kData)) {
    return StartDecoding(std::move(request));
  }
  ReadRequest read;
  read.set_kind(ReadRequest::DATA);
  SetVersion(catalog_.version(), read);
  read.set_rank(request->rank.value);
  read.set_first_block(request->block);
  read.set_blocks(1);
  const std::span<std::byte> into = request->into;
  reads_.Read(slab->home, read, into,
              [this, request = std::move(request),
               home = slab->home](const absl::StatusOr<ReadHeader>& header) mutable {
                if (header.ok()) return CheckHome(std::move(request));
                if (cancelled_) return Again(std::move(request), header.status());
                // It may have lost the slab, and rebuilds it later: meanwhile the group decodes.
                health_.Avoid(home, SourceHealth::Kind::kData);
                StartDecoding(std::move(request));
              });
}

void BlockReader::CheckHome(std::shared_ptr<Request> request) {
  auto crc = std::make_shared<uint32_t>();  // passes from the pool to the executor
  state_.seams.pool.Submit([request, crc] { *crc = Crc32c(request->into); }, state_.seams.executor,
                           lifetime_.Bind([this, request, crc] {
                             const uint32_t needed =
                                 catalog_.Find(request->rank)->crcs[request->block];
                             if (*crc == needed) return End(*request, absl::OkStatus());
                             state_.seams.log.Warn("block {} of rank {}: CRC {:08x}, needed {:08x}",
                                                   request->block, request->rank, *crc, needed);
                             // What has rotted there since it was verified stays so: the group has
                             // it still.
                             StartDecoding(request);
                           }));
}

// --- from k chunks of its stripe ---

std::shared_ptr<const CodedVersion> BlockReader::CodedOf(NodeSlot slot) const {
  for (const auto& coded : coded_) {
    if (coded->group.MemberIn(slot)) return coded;
  }
  return nullptr;
}

void BlockReader::StartDecoding(std::shared_ptr<Request> request) {
  if (cancelled_) return Again(std::move(request), absl::OkStatus());
  const NodeSlot home = catalog_.Find(request->rank)->home;
  if (auto coded = CodedOf(home)) return DecodeIn(std::move(coded), std::move(request));
  GroupRecordOf(home, [this, request,
                       home](absl::StatusOr<std::shared_ptr<const GuardRecord>> record) mutable {
    if (!record.ok()) return Again(std::move(request), record.status());
    auto coded = CodedOf(home);
    if (coded == nullptr) {
      return Again(std::move(request), absl::DataLossError("the group's record is of others"));
    }
    DecodeIn(std::move(coded), std::move(request));
  });
}

void BlockReader::GroupRecordOf(
    NodeSlot slot,
    absl::AnyInvocable<void(absl::StatusOr<std::shared_ptr<const GuardRecord>>)> done) {
  AskRecord({slot, 0, {}, state_.seams.executor.Now() + state_.options.read_timeout},
            std::move(done));
}

void BlockReader::AskRecord(
    RecordSearch search,
    absl::AnyInvocable<void(absl::StatusOr<std::shared_ptr<const GuardRecord>>)> done) {
  if (cancelled_) return done(absl::CancelledError("the restore was superseded"));
  const NodeSlot slot = search.slot;
  std::set<NodeSlot> lost;
  for (const ViewMember& member : job_.view.value.members()) {
    if (member.lost()) lost.insert(NodeSlot{member.slot()});
  }
  std::vector<NodeSlot> members;
  for (const auto* groups : {&job_.commit.value.groups(), &job_.view.value.groups()}) {
    const std::optional<GroupView> group = FindGroup(*groups, slot);
    if (!group) continue;
    for (const NodeSlot member : group->slots) {
      if (member != slot && !lost.contains(member)) members.push_back(member);
    }
  }
  if (members.empty()) {
    return done(absl::DataLossError(fmt::format(
        "node {} is in no protection group, or alone in it: its slabs cannot be decoded", slot)));
  }
  MetaRequest request;
  SetVersion(catalog_.version(), request);
  const NodeSlot asked = members[search.attempt % members.size()];
  peers_.Ask<GuardRecord>(asked, "record", request, state_.options.call_timeout,
                          lifetime_.Bind([this, search, asked, members, done = std::move(done)](
                                             absl::StatusOr<GuardRecord> answer) mutable {
                            if (answer.ok()) {
                              auto record = std::make_shared<const GuardRecord>(*std::move(answer));
                              absl::Status status = TakeRecord(search.slot, *record);
                              if (status.ok()) return done(std::move(record));
                              answer = std::move(status);
                            }
                            ++search.attempt;
                            if (absl::IsNotFound(answer.status())) {
                              search.have_none.insert(asked);
                            } else {
                              search.have_none.clear();
                            }
                            const bool nobody_has = std::all_of(
                                members.begin(), members.end(),
                                [&](NodeSlot member) { return search.have_none.contains(member); });
                            // Nothing follows about those who were not asked.
                            if (cancelled_)
                              return done(absl::CancelledError("the restore was superseded"));
                            if (nobody_has) return done(answer.status());
                            if (state_.seams.executor.Now() >= search.deadline) {
                              if (!absl::IsNotFound(answer.status())) return done(answer.status());
                              return done(absl::DeadlineExceededError(fmt::format(
                                  "not all members of the group of node {} have told; the last: {}",
                                  search.slot, answer.status().message())));
                            }
                            state_.seams.executor.After(
                                state_.options.read_retry,
                                lifetime_.Bind([this, search, done = std::move(done)]() mutable {
                                  AskRecord(search, std::move(done));
                                }));
                          }));
}

absl::Status BlockReader::TakeRecord(NodeSlot slot, const GuardRecord& record) {
  absl::StatusOr<std::shared_ptr<const CodedVersion>> coded = CodedVersion::FromRecord(
      catalog_.version(), record, slot, state_.options.block_bytes, state_.codes);
  if (!coded.ok()) return coded.status();
  // There may be guards of the version that are of the same group with more parities.
  const CommitRecord& commit = job_.commit.value;
  const std::optional<GroupView> group = FindGroup(commit.groups(), slot);
  if (VersionOf(commit) == catalog_.version() && group && group->shape.k != record.group().k()) {
    return absl::DataLossError("the group's record is of another shape of the group");
  }
  if (absl::Status status = CheckFits(record); !status.ok()) return status;
  if (CodedOf(slot) == nullptr) coded_.push_back(*std::move(coded));
  return absl::OkStatus();
}

// A guard may have been filled of other slabs than the version's, by one who had lost his own
// (docs/protocol.md, rule 17): it decodes nothing of this one.
absl::Status BlockReader::CheckFits(const GuardRecord& record) const {
  for (int i = 0; i < record.members_size(); ++i) {
    const NodeSlot slot{record.group().slots(i)};
    std::set<uint64_t> encoded;
    for (const RankSlab& slab : record.members(i).slabs()) {
      const CatalogSlab* known = catalog_.Find(Rank{slab.rank()});
      encoded.insert(slab.rank());
      if (known != nullptr && known->home == slot &&
          known->manifest->data_bytes == slab.data_bytes()) {
        continue;
      }
      return absl::DataLossError(
          fmt::format("the record has another slab of rank {} on node {}", slab.rank(), slot));
    }
    for (const auto& [rank, slab] : catalog_.slabs()) {
      if (slab.home != slot || !slab.lost || encoded.contains(rank.value)) continue;
      return absl::DataLossError(
          fmt::format("the record has no slab of rank {} on node {}", rank, slot));
    }
  }
  return absl::OkStatus();
}

void BlockReader::DecodeIn(std::shared_ptr<const CodedVersion> coded,
                           std::shared_ptr<Request> request) {
  if (cancelled_) return Again(std::move(request), absl::OkStatus());
  const NodeSlot home = catalog_.Find(request->rank)->home;
  const uint32_t member = *coded->group.MemberIn(home);
  const auto block = coded->slabs.MemberBlockOf(member, request->rank, request->block);
  // A record need not have the slabs that are not lost.
  if (!block) {
    const absl::Status status = absl::DataLossError(fmt::format(
        "the group's record has no block {} of rank {}", request->block, request->rank));
    return Again(std::move(request), status);
  }
  const ec::Cell cell = coded->layout().CellOf(member, *block);
  StripeGatherer::Want want;
  want.coded = coded;
  want.stripe = cell.stripe;
  want.position = cell.position;
  want.make = [request, coded, target = cell.chunk,
               needed = CrcOf(request->rank, request->block)](const GatheredStripe& gathered) {
    return Reconstruct(*coded->code, gathered, {target, request->into}, needed);
  };
  // Where its home may have it again by then, that comes first at the next try.
  const Time deadline = request->decode_only ? request->deadline : state_.seams.executor.Now();
  gatherer_.Gather(std::move(want), std::make_unique<AnyK>(health_, cell.chunk, deadline),
                   [this, request](const absl::StatusOr<GatheredStripe>& gathered) {
                     if (gathered.ok()) return End(*request, absl::OkStatus());
                     Again(request, gathered.status());
                   });
}

}  // namespace unreft::smp
