#include "smp/restore/decoded_slabs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/format.h"

namespace unreft::smp {
namespace {

constexpr Generation kGeneration{1};

JobDecision AsDecided(Version version, std::vector<recovery::SlabHolder> holders) {
  JobDecision decision;
  decision.kind = DecisionKind::kRestored;
  decision.version = version;
  decision.holders = std::move(holders);
  return decision;
}

// Of no process: nobody but this daemon writes there.
void WriteGrant(const layout::SlotManifest& head, SlotView& view) {
  SlotGrant grant;
  grant.generation = kGeneration.value;
  grant.rank = head.rank.value;
  grant.world = head.world;
  grant.attempt = head.attempt.value;
  grant.timeline = head.version.timeline.value;
  SetBodyCrc(grant);
  view.header().grant = grant;
  view.set_state(kGeneration, SlotState::kCapturing);
}

void Seal(const CatalogSlab& of, SlotView& view) {
  SlotSeal seal = FillDescription(of, view);
  seal.generation = kGeneration.value;
  seal.timeline = of.head.version.timeline.value;
  seal.step = of.head.version.step.value;
  SetBodyCrc(seal);
  view.header().seal = seal;
  view.set_state(kGeneration, SlotState::kSealed);
}

}  // namespace

DecodedSlabs::DecodedSlabs(NodeState& state, Peers& peers, const meta::JobRecords& job,
                           BlockReads::Own own, Version version,
                           std::vector<recovery::SlabHolder> holders, std::set<Rank> ranks,
                           Done done)
    : state_(state), peers_(peers), job_(job), own_(std::move(own)), done_(std::move(done)) {
  for (const Rank rank : ranks) slabs_[rank];
  timer_ = state_.seams.executor.After(state_.options.read_timeout, [this, version] {
    timer_ = TimerId::kNone;
    std::vector<uint64_t> missing;
    for (const auto& [rank, slab] : slabs_) {
      if (catalog_->Find(rank) == nullptr) missing.push_back(rank.value);
    }
    End(absl::UnavailableError(fmt::format(
        "version {}: within {} s not all nodes have told what they stored, of the lost "
        "slabs nobody what those of ranks [{}] were",
        version, state_.options.read_timeout / std::chrono::seconds(1), fmt::join(missing, ", "))));
  });
  catalog_ = std::make_unique<RestoreCatalog>(
      state_, peers_, job_, AsDecided(version, std::move(holders)), recovery::WantedBoxes(),
      // Not in a callback of what may go by it.
      [this] { state_.seams.executor.Post(lifetime_.Bind([this] { OnCatalog(); })); });
}

DecodedSlabs::~DecodedSlabs() {
  Cancel();
  for (const auto& [rank, slab] : slabs_) {
    if (slab.segment != nullptr) state_.memory->Remove(slab.id);
  }
}

void DecodedSlabs::Cancel() {
  done_ = nullptr;
  state_.seams.executor.Cancel(std::exchange(timer_, TimerId::kNone));
  if (reader_ != nullptr) reader_->Cancel();
}

void DecodedSlabs::OnCatalog() {
  if (done_ == nullptr) return;
  state_.seams.executor.Cancel(std::exchange(timer_, TimerId::kNone));
  unpopulated_ = slabs_.size();
  for (auto& [rank, slab] : slabs_) {
    if (absl::Status status = Make(rank, slab); !status.ok()) {
      return End(absl::Status(status.code(), fmt::format("the slab of rank {}, which is lost: {}",
                                                         rank, status.message())));
    }
  }
  reader_ = std::make_unique<BlockReader>(state_, peers_, job_, *catalog_, own_);
}

absl::Status DecodedSlabs::Make(Rank rank, Slab& slab) {
  const CatalogSlab* of = catalog_->Find(rank);
  if (of == nullptr) return absl::NotFoundError("no node is said to have had it");
  if (of->head.block_bytes != state_.options.block_bytes) {
    return absl::FailedPreconditionError(
        fmt::format("it was saved in blocks of {} bytes, this node has blocks of {}",
                    of->head.block_bytes, state_.options.block_bytes));
  }
  slab.id = state_.memory->Next(SegmentKind::kDecoded);
  const SlotGeometry geometry = MakeSlotGeometry(
      SlotId{slab.id.number}, static_cast<uint32_t>(state_.options.block_bytes),
      of->description->manifest().size(), of->head.extras_bytes, of->head.data_bytes);
  const uint64_t bytes = SlotSegmentBytes(geometry);
  const absl::StatusOr<MemoryBudget> budget = state_.memory->Check(bytes);
  if (!budget.ok()) return budget.status();
  if (!budget->Fits()) {
    return absl::ResourceExhaustedError(
        fmt::format("there is no room to decode it: {}", budget->Describe()));
  }
  absl::StatusOr<std::shared_ptr<Segment>> segment = state_.memory->Make(slab.id, bytes);
  if (!segment.ok()) return segment.status();
  slab.segment = *std::move(segment);
  slab.view = FormatSlot(slab.segment->bytes(), geometry);
  WriteGrant(of->head, *slab.view);
  slab.blocks = of->crcs.size();
  blocks_ += slab.blocks;
  if (slab.blocks == 0) Seal(*of, *slab.view);
  state_.memory->Populate(
      slab.id, lifetime_.Bind([this](const absl::Status& status) { OnPopulated(status); }));
  return absl::OkStatus();
}

void DecodedSlabs::OnPopulated(const absl::Status& status) {
  if (!status.ok()) return End(status);
  if (--unpopulated_ == 0) DecodeMore();
}

void DecodedSlabs::DecodeMore() {
  const auto window = std::max<uint64_t>(1, 2 * state_.options.protect_window);
  for (auto& [rank, slab] : slabs_) {
    while (slab.next < slab.blocks && running_ < window && done_ != nullptr) {
      const uint64_t block = slab.next++;
      ++running_;
      reader_->Decode(rank, block, slab.view->block(block), slab.segment,
                      lifetime_.Bind([this, rank = rank](const absl::Status& decoded) {
                        OnBlock(rank, decoded);
                      }));
    }
  }
  if (done_ != nullptr && decoded_ == blocks_) End(absl::OkStatus());
}

// The reader has tried for long, and has checked the block against its CRC.
void DecodedSlabs::OnBlock(Rank rank, const absl::Status& status) {
  --running_;
  if (done_ == nullptr) return;
  if (!status.ok()) return End(status);
  ++decoded_;
  Slab& slab = slabs_.at(rank);
  if (++slab.done == slab.blocks) Seal(*catalog_->Find(rank), *slab.view);
  DecodeMore();
}

void DecodedSlabs::End(absl::Status status) {
  if (done_ == nullptr) return;
  Done done = std::exchange(done_, nullptr);
  Cancel();
  Segments segments;
  for (const auto& [rank, slab] : slabs_) {
    if (status.ok()) segments.emplace(rank, slab.segment->name());
  }
  state_.seams.executor.Post(
      lifetime_.Bind([done = std::move(done), status, segments = std::move(segments)]() mutable {
        status.ok() ? done(std::move(segments)) : done(status);
      }));
}

}  // namespace unreft::smp
