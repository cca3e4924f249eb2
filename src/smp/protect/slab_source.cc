#include "smp/protect/slab_source.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "base/bounds.h"
#include "base/crc32c.h"
#include "base/format.h"
#include "base/slot_header.h"
#include "smp/job/cluster_records.h"

namespace unreft::smp {
namespace {

std::string AsString(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

uint32_t CrcOf(const std::string& bytes) {
  return Crc32c(std::as_bytes(std::span(bytes.data(), bytes.size())));
}

uint64_t BlocksOf(const Slot& slot) {
  const uint64_t data_bytes =
      slot.manifest != nullptr ? slot.manifest->data_bytes : slot.registration->plan.data_bytes();
  return BlockCount(data_bytes, slot.view->geometry().block_bytes);
}

uint64_t BlocksReady(const Slot& slot) {
  return slot.phase == SlotPhase::kSealed ? BlocksOf(slot) : slot.blocks_done;
}

}  // namespace

SlabSource::SlabSource(NodeState& state)
    : state_(state), verifier_(state.seams.executor, state.seams.pool, *state.slots) {}

Slot* SlabSource::SlotOf(Version version, Rank rank) {
  for (Slot* slot : state_.slots->OfRank(rank)) {
    if (slot->version != version) continue;
    const bool capturing = slot->phase == SlotPhase::kCapturing && slot->registration != nullptr;
    if (capturing || slot->phase == SlotPhase::kSealed || slot->phase == SlotPhase::kRebuilding) {
      return slot;
    }
  }
  return nullptr;
}

void SlabSource::OnRead(const ReadRequest& request, uint64_t bytes, ReadDone done) {
  WaitingRead waiting{request, bytes, std::move(done)};
  const Slot* const suspect =
      request.is_suspect() ? SlotOf(VersionOf(request), Rank{request.rank()}) : nullptr;
  if (suspect != nullptr) LookAt(*suspect);
  if (TryRead(waiting)) return;
  if (reads_.size() >= state_.options.reads_waiting_max) {
    return waiting.done(absl::ResourceExhaustedError(
        fmt::format("node {}: {} reads wait already", state_.options.node, reads_.size())));
  }
  reads_.push_back(std::move(waiting));
}

bool SlabSource::TryRead(WaitingRead& waiting) {
  const ReadRequest& request = waiting.request;
  const Version version = VersionOf(request);
  Slot* slot = SlotOf(version, Rank{request.rank()});
  if (slot == nullptr) {
    waiting.done(absl::NotFoundError(fmt::format("node {} has no slab of rank {} of version {}",
                                                 state_.options.node, request.rank(), version)));
    return true;
  }
  const uint64_t block_bytes = slot->view->geometry().block_bytes;
  const uint64_t total = BlocksOf(*slot);
  if (request.blocks() == 0 || request.first_block() >= total ||
      request.blocks() > total - request.first_block() ||
      waiting.bytes != request.blocks() * block_bytes) {
    waiting.done(absl::InvalidArgumentError(fmt::format(
        "version {} of rank {}: blocks {}+{} of {} bytes were asked for in {} bytes, there are {}",
        version, request.rank(), request.first_block(), request.blocks(), block_bytes,
        waiting.bytes, total)));
    return true;
  }
  const uint64_t end = request.first_block() + request.blocks();
  if (BlocksReady(*slot) < end) return false;
  ReadHeader header;
  for (uint64_t block = request.first_block(); block < end; ++block) {
    uint32_t crc = 0;
    std::memcpy(&crc, slot->view->crc_table().data() + block * sizeof(crc), sizeof(crc));
    header.add_crcs(crc);
  }
  ReadSource source;
  source.header = header.SerializeAsString();
  source.parts.push_back(slot->view->data().subspan(request.first_block() * block_bytes,
                                                    request.blocks() * block_bytes));
  // The slot stays as it is until the bytes have left; the mapping lasts even if the store goes.
  ++slot->reads;
  auto end_read = lifetime_.Bind([this, id = slot->id, generation = slot->generation] {
    Slot* read = state_.slots->Find(id, generation);
    if (read == nullptr) return;
    --read->reads;
    state_.slots->FreeIfDrained(*read);
  });
  source.hold = HoldUntilRead(state_.seams.executor, slot->segment, std::move(end_read));
  waiting.done(std::move(source));
  return true;
}

void SlabSource::LookAt(const Slot& slot) {
  const std::pair which(slot.id, slot.generation);
  if (!verifying_.insert(which).second) return;
  Slot* const found = state_.slots->Find(slot.id, slot.generation);
  verifier_.Verify({found},
                   lifetime_.Bind([this, which](const absl::Status&) { verifying_.erase(which); }));
}

void SlabSource::OnMeta(const MetaRequest& request, MetaDone done) {
  WaitingMeta waiting{VersionOf(request), {}, std::move(done)};
  for (const uint64_t rank : request.ranks()) waiting.ranks.push_back(Rank{rank});
  if (waiting.ranks.empty()) {
    for (Slot* slot : state_.slots->Sealed(waiting.version)) waiting.ranks.push_back(slot->owner);
  }
  for (const Rank rank : waiting.ranks) {
    const Slot* const suspect = request.is_suspect() ? SlotOf(waiting.version, rank) : nullptr;
    if (suspect != nullptr) LookAt(*suspect);
  }
  if (TryMeta(waiting)) return;
  if (metas_.size() >= state_.options.reads_waiting_max) {
    return waiting.done(absl::ResourceExhaustedError(
        fmt::format("node {}: {} questions wait already", state_.options.node, metas_.size())));
  }
  metas_.push_back(std::move(waiting));
}

bool SlabSource::TryMeta(WaitingMeta& waiting) {
  std::vector<Slot*> slots;
  for (const Rank rank : waiting.ranks) {
    Slot* slot = SlotOf(waiting.version, rank);
    if (slot == nullptr) {
      waiting.done(absl::NotFoundError(fmt::format("node {} has no slab of rank {} of version {}",
                                                   state_.options.node, rank, waiting.version)));
      return true;
    }
    if (slot->phase != SlotPhase::kSealed) return false;
    slots.push_back(slot);
  }
  MetaReply reply;
  for (const Slot* slot : slots) {
    absl::StatusOr<SlabDescription> description = DescribeSlab(*slot);
    if (!description.ok()) {
      LookAt(*slot);
      waiting.done(description.status());
      return true;
    }
    *reply.add_slabs() = *std::move(description);
  }
  waiting.done(std::move(reply));
  return true;
}

void SlabSource::OnChange() {
  // Those that are answered may not come back by the list: answering calls nobody inline.
  reads_.remove_if([this](WaitingRead& waiting) { return TryRead(waiting); });
  metas_.remove_if([this](WaitingMeta& waiting) { return TryMeta(waiting); });
}

std::shared_ptr<const void> HoldUntilRead(Executor& executor, std::shared_ptr<Segment> segment,
                                          absl::AnyInvocable<void()> end_read) {
  const void* bytes = segment.get();
  return {bytes, [&executor, segment = std::move(segment),
                  end_read = std::make_shared<absl::AnyInvocable<void()>>(std::move(end_read))](
                     const void*) mutable {
            executor.Post(
                [segment = std::move(segment), end_read = std::move(end_read)] { (*end_read)(); });
          }};
}

absl::StatusOr<SlabDescription> DescribeSlab(const Slot& slot) {
  SlotView view = *slot.view;
  // Lengths that have rotted would lead beyond the segment.
  const absl::StatusOr<SlotSeal> checked = view.CheckedSeal();
  if (!checked.ok()) return checked.status();
  const SlotSeal& seal = *checked;
  SlabDescription description;
  description.set_rank(slot.owner.value);
  description.set_world(slot.world);
  description.set_generation(slot.generation.value);
  description.set_manifest(AsString(view.manifest().first(seal.manifest_bytes)));
  description.set_manifest_crc(seal.manifest_crc);
  const uint64_t blocks = BlockCount(seal.data_bytes, view.geometry().block_bytes);
  description.set_crc_table(AsString(view.crc_table().first(blocks * sizeof(uint32_t))));
  description.set_crc_table_crc(seal.crc_table_crc);
  description.set_extras(AsString(view.extras().first(seal.extras_bytes)));
  description.set_extras_crc(seal.extras_crc);
  return description;
}

absl::Status CheckSlabDescription(const SlabDescription& description) {
  const auto check = [&](const char* what, const std::string& bytes, uint32_t needed) {
    const uint32_t found = CrcOf(bytes);
    if (found == needed) return absl::OkStatus();
    return absl::DataLossError(fmt::format("the {} of rank {} has CRC {:08x}, needed {:08x}", what,
                                           description.rank(), found, needed));
  };
  absl::Status status = check("manifest", description.manifest(), description.manifest_crc());
  if (status.ok())
    status = check("CRC table", description.crc_table(), description.crc_table_crc());
  if (status.ok()) status = check("extras", description.extras(), description.extras_crc());
  if (status.ok() &&
      (description.rank() >= description.world() || description.world() > kRanksMax)) {
    return absl::DataLossError(
        fmt::format("a slab is of rank {} of {}: needed one below a world of at most {} ranks",
                    description.rank(), description.world(), kRanksMax));
  }
  return status;
}

}  // namespace unreft::smp
