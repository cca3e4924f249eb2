#include "smp/memory/staging_area.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/format.h"
#include "smp/memory/memory_plan.h"

namespace unreft::smp {

// --- places ---

StagingPlaces::Place::~Place() {
  if (const auto of = of_.lock()) of->GiveBack(borrower_, offset_);
}

StagingPlaces::StagingPlaces(Executor& executor, std::shared_ptr<Segment> segment,
                             uint64_t block_bytes)
    : executor_(executor),
      segment_(std::move(segment)),
      block_bytes_(block_bytes),
      places_(segment_->bytes().size() / block_bytes) {
  for (uint64_t place = 0; place < places_; ++place) free_.push_back(place * block_bytes_);
}

std::list<StagingPlaces::Borrower>::iterator StagingPlaces::Find(uint64_t borrower) {
  return std::ranges::find(borrowers_, borrower, &Borrower::id);
}

uint64_t StagingPlaces::Join(absl::AnyInvocable<void()> on_change) {
  borrowers_.push_back({++borrowers_ever_, 0, std::move(on_change)});
  return borrowers_ever_;
}

void StagingPlaces::Leave(uint64_t borrower) {
  const auto found = Find(borrower);
  if (found == borrowers_.end()) return;
  borrowers_.erase(found);
  Wake();
}

std::optional<StagingPlaces::Place> StagingPlaces::Take(const std::shared_ptr<StagingPlaces>& from,
                                                        uint64_t borrower) {
  const auto found = from->Find(borrower);
  UNREFT_CHECK(found != from->borrowers_.end(), "borrower {} has left", borrower);
  if (from->populated_bytes_ < from->bytes() || from->free_.empty()) return std::nullopt;
  const uint64_t share = std::max<uint64_t>(1, from->places_ / from->borrowers_.size());
  if (found->held >= share) return std::nullopt;
  ++found->held;
  from->borrowers_.splice(from->borrowers_.end(), from->borrowers_, found);
  const uint64_t offset = from->free_.front();
  from->free_.pop_front();
  return std::make_optional<Place>(from, borrower, offset,
                                   from->segment_->bytes().subspan(offset, from->block_bytes_));
}

void StagingPlaces::GiveBack(uint64_t borrower, uint64_t offset) {
  free_.push_back(offset);
  const auto found = Find(borrower);
  if (found != borrowers_.end()) --found->held;
  Wake();
}

void StagingPlaces::SetPopulated(uint64_t bytes) {
  populated_bytes_ = bytes;
  if (populated_bytes_ == this->bytes()) Wake();
}

void StagingPlaces::SetFailed(absl::Status status) {
  status_ = std::move(status);
  Wake();
}

// Not at once: whoever gave a place back would be asked first, for ever.
void StagingPlaces::Wake() {
  if (std::exchange(waking_, true)) return;
  executor_.Post([this, alive = lifetime_.token()] {
    if (alive.expired()) return;
    waking_ = false;
    std::vector<uint64_t> ids;
    for (const Borrower& borrower : borrowers_) ids.push_back(borrower.id);
    for (const uint64_t id : ids) {
      if (alive.expired()) return;
      const auto found = Find(id);
      if (found == borrowers_.end()) continue;
      // It may leave meanwhile.
      absl::AnyInvocable<void()> on_change = std::exchange(found->on_change, nullptr);
      on_change();
      if (alive.expired()) return;
      if (const auto still = Find(id); still != borrowers_.end()) {
        still->on_change = std::move(on_change);
      }
    }
  });
}

// --- the area ---

StagingArea::StagingArea(Seams seams, const NodeOptions& options)
    : seams_(seams),
      options_(options),
      name_(MemoryPrefix(options) + "staging"),
      populator_(seams.executor, seams.pool, options.populate_chunk_bytes) {}

StagingArea::~StagingArea() {
  for (const Kept& kept : kept_) seams_.processes.Unwatch(kept.watch);
}

void StagingArea::RemoveOld() {
  // Also those that earlier releases made, one for each plan.
  absl::StatusOr<std::vector<SegmentInfo>> left = seams_.segments.List(name_);
  if (!left.ok()) return;
  for (const SegmentInfo& segment : *left) (void)seams_.segments.Remove(segment.name);
}

absl::Status StagingArea::Provide(uint64_t bytes) {
  if (places_ != nullptr && (places_->bytes() == bytes || places_->in_use())) {
    return absl::OkStatus();
  }
  Remove();
  status_ = bytes == 0 ? absl::OkStatus() : Make(bytes);
  return status_;
}

absl::Status StagingArea::Make(uint64_t bytes) {
  if (absl::Status status = CheckBudget(bytes); !status.ok()) return status;
  absl::StatusOr<std::unique_ptr<Segment>> made = seams_.segments.Create(name_, bytes);
  if (!made.ok()) return made.status();
  const std::shared_ptr<Segment> segment = *std::move(made);
  places_ = std::make_shared<StagingPlaces>(seams_.executor, segment, options_.block_bytes);
  populator_.Add(segment, [this, of = std::weak_ptr(places_)](absl::StatusOr<uint64_t> populated) {
    const auto places = of.lock();
    if (places == nullptr || places != places_) return false;
    if (populated.ok()) {
      places->SetPopulated(*populated);
      return true;
    }
    seams_.log.Error("staging of restores: {}", populated.status().message());
    status_ = populated.status();
    places->SetFailed(status_);
    Remove();
    return false;
  });
  return absl::OkStatus();
}

absl::Status StagingArea::CheckBudget(uint64_t bytes) {
  absl::StatusOr<MemoryBudget> budget =
      CountMemory(seams_.segments, options_, others_ ? others_() : MemoryUse{}, bytes);
  if (!budget.ok() || budget->Fits()) return budget.status();
  return absl::ResourceExhaustedError(
      fmt::format("the staging of {} bytes, through which ranks get what other nodes hold, does "
                  "not fit: {}; give the node more memory, or start unreftd with a smaller "
                  "--restore-staging-bytes (now {})",
                  bytes, budget->Describe(), options_.restore_staging_bytes));
}

void StagingArea::Remove() {
  if (places_ == nullptr) return;
  places_.reset();
  if (absl::Status status = seams_.segments.Remove(name_); !status.ok()) {
    seams_.log.Warn("segment {}: {}", name_, status.message());
  }
}

void StagingArea::KeepUntilEnd(ProcessLife life, std::vector<StagingPlaces::Place> places) {
  if (places.empty()) return;
  const auto kept = kept_.insert(kept_.end(), {life, WatchId::kNone, std::move(places)});
  kept->watch = seams_.processes.Watch(life, [this, kept] { kept_.erase(kept); });
}

void StagingArea::OnTrainerDone(ProcessLife life) {
  std::erase_if(kept_, [&](const Kept& kept) {
    if (kept.life != life) return false;
    seams_.processes.Unwatch(kept.watch);
    return true;
  });
}

MemoryUse StagingArea::use() const {
  if (places_ == nullptr) return {};
  const uint64_t unpopulated = places_->bytes() - places_->populated_bytes();
  return {.bytes = places_->bytes(),
          .unpopulated = unpopulated - std::min(unpopulated, populator_.under_way())};
}

StagingMemory StagingArea::MemoryFor(uint64_t bytes) const {
  const MemoryUse now = use();
  return {.now = now, .lacking_bytes = bytes - std::min(bytes, now.bytes)};
}

}  // namespace unreft::smp
