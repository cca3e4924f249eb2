#include "smp/restore/block_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/crc32c.h"
#include "base/format.h"
#include "smp/job/cluster_records.h"

namespace unreft::smp {
namespace {

// A source that failed is left out for so many retries' time, if others will do.
constexpr int kAvoidRetries = 10;

}  // namespace

BlockReader::BlockReader(NodeState& state, Peers& peers, const meta::JobState& job,
                         const RestoreCatalog& catalog)
    : state_(state), peers_(peers), job_(job), catalog_(catalog) {}

BlockReader::~BlockReader() {
  for (const TransferId transfer : transfers_) peers_.Cancel(transfer);
}

void BlockReader::Cancel() {
  cancelled_ = true;
  for (const TransferId transfer : transfers_) peers_.Cancel(transfer);
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
  const bool is_bad = IsBad(slab->home, SourceKind::kData);
  // A home that has lost it may be rebuilding it, this node's own included: then it answers as soon
  // as the block is there.
  if (!job_.present.contains(slab->home) || is_bad) return StartDecoding(std::move(request));
  ReadRequest read;
  read.set_kind(ReadRequest::DATA);
  SetVersion(catalog_.version(), read);
  read.set_rank(request->rank.value);
  read.set_first_block(request->block);
  read.set_blocks(1);
  auto transfer = std::make_shared<TransferId>();  // known to its own end
  *transfer =
      peers_.Read(slab->home, read.SerializeAsString(), request->into, state_.options.read_timeout,
                  lifetime_.Bind([this, request, transfer,
                                  home = slab->home](absl::StatusOr<std::string> header) mutable {
                    transfers_.erase(*transfer);
                    if (header.ok()) return CheckHome(std::move(request), *header);
                    if (cancelled_) return Again(std::move(request), header.status());
                    // It may have lost the slab, and rebuilds it later: meanwhile the group
                    // decodes.
                    Avoid(home, SourceKind::kData);
                    StartDecoding(std::move(request));
                  }));
  transfers_.insert(*transfer);
}

void BlockReader::CheckHome(std::shared_ptr<Request> request, const std::string&) {
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
  for (const unreft::Member& member : job_.view.value.members()) {
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

bool BlockReader::IsBad(NodeSlot slot, SourceKind kind) const {
  const auto bad = bad_.find({slot, kind});
  return bad != bad_.end() && state_.seams.executor.Now() < bad->second;
}

void BlockReader::Avoid(NodeSlot slot, SourceKind kind) {
  bad_[{slot, kind}] = state_.seams.executor.Now() + kAvoidRetries * state_.options.read_retry;
}

void BlockReader::AvoidSource(const Decoding& decoding, uint32_t chunk) {
  const CodedVersion& coded = *decoding.coded;
  const bool is_data = chunk < coded.group.shape.k;
  Avoid(coded.HolderOf(decoding.cell.stripe, chunk),
        is_data ? SourceKind::kData : SourceKind::kParity);
}

// Those first that cost nothing, then data, then parities. If these are too few, parities of nodes
// that have lost a slab: it may have rotted, and its node's parities have not. Slabs that are lost
// come last: their nodes may wait for this one, and answer when they are rebuilt.
absl::StatusOr<std::vector<uint32_t>> BlockReader::ChooseChunks(const CodedVersion& coded,
                                                                ec::Cell cell) const {
  std::set<NodeSlot> lost;
  for (const auto& [rank, slab] : catalog_.slabs()) {
    if (slab.lost) lost.insert(slab.home);
  }
  enum Worth { kNowhere, kGood, kDoubtful, kBad, kLost, kWorths };
  std::vector<uint32_t> chunks[kWorths];
  for (uint32_t chunk = 0; chunk < coded.group.shape.n(); ++chunk) {
    if (chunk == cell.chunk) continue;
    const bool is_data = chunk < coded.group.shape.k;
    const NodeSlot slot = coded.HolderOf(cell.stripe, chunk);
    Worth worth = kGood;
    if (is_data) {
      const std::optional<RankBlock> block = coded.DataAt(cell.stripe, chunk, cell.position);
      if (!block) {
        worth = kNowhere;
      } else if (catalog_.Find(block->rank)->lost) {
        worth = kLost;
      }
    } else if (lost.contains(slot)) {
      worth = kDoubtful;
    }
    const bool is_bad = !job_.present.contains(slot) ||
                        IsBad(slot, is_data ? SourceKind::kData : SourceKind::kParity);
    if (is_bad && worth != kNowhere) worth = std::max(worth, kBad);
    chunks[worth].push_back(chunk);
  }
  std::vector<uint32_t> available;
  for (const auto& some : chunks) available.insert(available.end(), some.begin(), some.end());
  return ec::ChooseSources(coded.group.shape, available);
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
  auto decoding = std::make_shared<Decoding>();  // shared by its reads and the pool
  decoding->coded = std::move(coded);
  const ec::Cell cell = decoding->coded->layout().CellOf(member, *block);
  decoding->cell = cell;
  absl::StatusOr<std::vector<uint32_t>> chunks = ChooseChunks(*decoding->coded, cell);
  if (!chunks.ok()) return Again(std::move(request), chunks.status());
  decoding->request = std::move(request);
  decoding->tiles = state_.tiles.Take(chunks->size(), state_.options.block_bytes);
  for (const uint32_t chunk : *chunks) {
    Decoding::Source& source = decoding->sources.emplace_back();
    source.chunk = chunk;
    const bool is_nowhere = !decoding->coded->ReadOf(cell.stripe, chunk, cell.position);
    if (!is_nowhere) source.tile = decoding->tiles[decoding->sources.size() - 1];
    decoding->reading += !is_nowhere;
  }
  if (decoding->reading == 0) return Reconstruct(std::move(decoding));
  for (size_t i = 0; i < decoding->sources.size(); ++i) {
    if (!decoding->sources[i].tile.empty()) ReadSource(decoding, i);
  }
}

void BlockReader::ReadSource(std::shared_ptr<Decoding> decoding, size_t index) {
  const CodedVersion& coded = *decoding->coded;
  Decoding::Source& source = decoding->sources[index];
  const ec::Cell cell = decoding->cell;
  const ReadRequest read = *coded.ReadOf(cell.stripe, source.chunk, cell.position);
  auto transfer = std::make_shared<TransferId>();  // known to its own end
  *transfer = peers_.Read(
      coded.HolderOf(cell.stripe, source.chunk), read.SerializeAsString(), source.tile,
      state_.options.read_timeout,
      lifetime_.Bind([this, decoding, index, transfer](absl::StatusOr<std::string> bytes) {
        transfers_.erase(*transfer);
        ReadHeader header;
        absl::Status status = bytes.status();
        if (status.ok() && (!header.ParseFromString(*bytes) || header.crcs_size() != 1)) {
          status = absl::DataLossError("a read's header needs one CRC");
        }
        if (status.ok()) {
          decoding->sources[index].crc = header.crcs(0);
        } else {
          decoding->failure = status;
          AvoidSource(*decoding, decoding->sources[index].chunk);
        }
        if (--decoding->reading > 0) return;
        if (!decoding->failure.ok()) return Again(decoding->request, decoding->failure);
        Reconstruct(decoding);
      }));
  transfers_.insert(*transfer);
}

void BlockReader::Reconstruct(std::shared_ptr<Decoding> decoding) {
  const uint32_t needed = catalog_.Find(decoding->request->rank)->crcs[decoding->request->block];
  state_.seams.pool.Submit(
      [decoding, needed, code = decoding->coded->code] {
        std::vector<ec::SourceChunk> sources;
        for (Decoding::Source& source : decoding->sources) {
          sources.push_back({source.chunk, source.tile});
          if (source.tile.empty() || Crc32c(source.tile) == source.crc) continue;
          source.differs = true;
          decoding->status = absl::DataLossError("a chunk was not what its source sent");
        }
        if (!decoding->status.ok()) return;
        const ec::TargetChunk target{decoding->cell.chunk, decoding->request->into};
        decoding->status = code->Reconstruct(sources, {&target, 1});
        if (!decoding->status.ok()) return;
        const uint32_t found = Crc32c(decoding->request->into);
        if (found == needed) return;
        decoding->status = absl::DataLossError(
            fmt::format("decoded, its CRC is {:08x}, needed {:08x}", found, needed));
      },
      state_.seams.executor, lifetime_.Bind([this, decoding] {
        if (decoding->status.ok()) return End(*decoding->request, absl::OkStatus());
        state_.seams.log.Warn("block {} of rank {}: {}", decoding->request->block,
                              decoding->request->rank, decoding->status.message());
        // What has rotted there stays so: others may do.
        for (const Decoding::Source& source : decoding->sources) {
          if (source.differs) AvoidSource(*decoding, source.chunk);
        }
        Again(decoding->request, decoding->status);
      }));
}

}  // namespace unreft::smp
