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
// Who decodes a block for all may hear of the decision later than who asks for it.
constexpr int kPatienceRetries = 20;

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
  reads_.Read(slab->home, ReadOf(*request, ReadRequest::DATA), request->into,
              [this, request, home = slab->home](const absl::StatusOr<ReadHeader>& header) {
                if (header.ok()) {
                  // What has rotted there since it was verified stays so: the group has it still.
                  return CheckRead(request, [this, request] { StartDecoding(request); });
                }
                if (cancelled_ || absl::IsResourceExhausted(header.status())) {
                  return Again(request, header.status());
                }
                // It may have lost the slab, and rebuilds it later: meanwhile the group decodes.
                health_.Avoid(home, SourceHealth::Kind::kData);
                StartDecoding(request);
              });
}

ReadRequest BlockReader::ReadOf(const Request& request, ReadRequest::Kind kind) const {
  ReadRequest read;
  read.set_kind(kind);
  SetVersion(catalog_.version(), read);
  read.set_rank(request.rank.value);
  read.set_first_block(request.block);
  read.set_blocks(1);
  return read;
}

void BlockReader::CheckRead(std::shared_ptr<Request> request, absl::AnyInvocable<void()> on_wrong) {
  auto crc = std::make_shared<uint32_t>();  // passes from the pool to the executor
  state_.seams.pool.Submit(
      [request, crc] { *crc = Crc32c(request->into); }, state_.seams.executor,
      lifetime_.Bind([this, request, crc, on_wrong = std::move(on_wrong)]() mutable {
        const uint32_t needed = CrcOf(request->rank, request->block);
        if (*crc == needed) return End(*request, absl::OkStatus());
        state_.seams.log.Warn("block {} of rank {}: CRC {:08x}, needed {:08x}", request->block,
                              request->rank, *crc, needed);
        on_wrong();
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
  RecordSearch search;
  search.slot = slot;
  search.deadline = state_.seams.executor.Now() + state_.options.read_timeout;
  AskRecord(std::move(search), std::move(done));
}

void BlockReader::AskRecord(
    RecordSearch search,
    absl::AnyInvocable<void(absl::StatusOr<std::shared_ptr<const GuardRecord>>)> done) {
  if (cancelled_) return done(absl::CancelledError("the restore was superseded"));
  const NodeSlot slot = search.slot;
  const std::set<NodeSlot> lost = LostMembers();
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
  peers_.AskInPages<GuardRecord>(
      asked, "record", request, state_.options.call_timeout,
      lifetime_.Bind([this, search, asked, members,
                      done = std::move(done)](absl::StatusOr<GuardRecord> answer) mutable {
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
          search.problem = answer.status();
        }
        const bool nobody_has = std::all_of(members.begin(), members.end(), [&](NodeSlot member) {
          return search.have_none.contains(member);
        });
        // Nothing follows about those who were not asked.
        if (cancelled_) return done(absl::CancelledError("the restore was superseded"));
        if (nobody_has) return done(answer.status());
        if (state_.seams.executor.Now() >= search.deadline) {
          if (!search.problem.ok()) return done(search.problem);
          return done(absl::DeadlineExceededError(
              fmt::format("not all members of the group of node {} have told; the last: {}",
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
      // One that lies elsewhere by now is no source, and is decoded from the others.
      if (known != nullptr && known->head.data_bytes == slab.data_bytes()) continue;
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

std::set<NodeSlot> BlockReader::LostMembers() const {
  std::set<NodeSlot> lost;
  for (const ViewMember& member : job_.view.value.members()) {
    if (member.lost()) lost.insert(NodeSlot{member.slot()});
  }
  return lost;
}

std::optional<ec::Cell> BlockReader::CellOf(const CodedVersion& coded, Rank rank,
                                            uint64_t block) const {
  const uint32_t member = *coded.group.MemberIn(catalog_.Find(rank)->home);
  const auto of_member = coded.slabs.MemberBlockOf(member, rank, block);
  if (!of_member) return std::nullopt;
  return coded.layout().CellOf(member, *of_member);
}

std::optional<NodeSlot> BlockReader::DecoderAt(const CodedVersion& coded,
                                               const ec::Cell& cell) const {
  const std::set<NodeSlot> lost = LostMembers();
  std::vector<NodeSlot> able;
  for (const NodeSlot slot : coded.group.slots) {
    if (!lost.contains(slot) && !health_.HasLost(slot)) able.push_back(slot);
  }
  if (able.empty()) return std::nullopt;
  return able[(cell.stripe + cell.position) % able.size()];
}

std::optional<NodeSlot> BlockReader::DecoderOf(Rank rank, uint64_t block) const {
  const std::shared_ptr<const CodedVersion> coded = CodedOf(catalog_.Find(rank)->home);
  if (coded == nullptr) return std::nullopt;
  const std::optional<ec::Cell> cell = CellOf(*coded, rank, block);
  return cell ? DecoderAt(*coded, *cell) : std::nullopt;
}

void BlockReader::FindDecoder(Rank rank, uint64_t block,
                              absl::AnyInvocable<void(absl::StatusOr<NodeSlot>)> done) {
  const auto answer = [this, rank, block]() -> absl::StatusOr<NodeSlot> {
    if (const std::optional<NodeSlot> decoder = DecoderOf(rank, block)) return *decoder;
    return absl::FailedPreconditionError(
        fmt::format("nobody decodes block {} of rank {} for all", block, rank));
  };
  const NodeSlot home = catalog_.Find(rank)->home;
  if (CodedOf(home) != nullptr) return done(answer());
  GroupRecordOf(home, [answer, done = std::move(done)](const auto& record) mutable {
    if (!record.ok()) return done(record.status());
    done(answer());
  });
}

void BlockReader::DecodeIn(std::shared_ptr<const CodedVersion> coded,
                           std::shared_ptr<Request> request) {
  if (cancelled_) return Again(std::move(request), absl::OkStatus());
  const std::optional<ec::Cell> cell = CellOf(*coded, request->rank, request->block);
  // A record need not have the slabs that are not lost.
  if (!cell) {
    const absl::Status status = absl::DataLossError(fmt::format(
        "the group's record has no block {} of rank {}", request->block, request->rank));
    return Again(std::move(request), status);
  }
  if (request->decode_only || request->decode_here) {
    return DecodeHere(std::move(coded), *cell, std::move(request));
  }
  const std::optional<NodeSlot> decoder = DecoderAt(*coded, *cell);
  if (!decoder || *decoder == peers_.self() ||
      health_.IsBad(*decoder, SourceHealth::Kind::kDecoded)) {
    return DecodeHere(std::move(coded), *cell, std::move(request));
  }
  ReadDecoded(*decoder, std::move(request));
}

void BlockReader::ReadDecoded(NodeSlot decoder, std::shared_ptr<Request> request) {
  const auto decode_here = [this, request] {
    request->decode_here = true;
    StartDecoding(request);
  };
  reads_.Read(decoder, ReadOf(*request, ReadRequest::DECODED), request->into,
              [this, request, decoder, decode_here](const absl::StatusOr<ReadHeader>& header) {
                if (header.ok()) return CheckRead(request, decode_here);
                const Time now = state_.seams.executor.Now();
                if (absl::IsNotFound(header.status())) {
                  if (!request->patient_until) {
                    request->patient_until = now + kPatienceRetries * state_.options.read_retry;
                  }
                  if (now < *request->patient_until) return Again(request, header.status());
                }
                // It may have no room for this block, and for the next.
                if (!absl::IsResourceExhausted(header.status())) {
                  health_.Avoid(decoder, SourceHealth::Kind::kDecoded);
                }
                decode_here();
              });
}

void BlockReader::DecodeHere(std::shared_ptr<const CodedVersion> coded, const ec::Cell& cell,
                             std::shared_ptr<Request> request) {
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
