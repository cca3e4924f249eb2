#include "smp/memory/staging_area.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/format.h"
#include "smp/memory/memory_plan.h"

namespace unreft::smp {
namespace {

constexpr SegmentId kSegment{SegmentKind::kStaging, 0};

}  // namespace

// --- places ---

StagingPlaces::Place::~Place() {
  if (const auto of = of_.lock()) of->GiveBack(offset_);
}

StagingPlaces::StagingPlaces(Executor& executor, std::shared_ptr<Segment> segment,
                             uint64_t block_bytes)
    : executor_(executor),
      segment_(std::move(segment)),
      block_bytes_(block_bytes),
      places_(segment_->bytes().size() / block_bytes) {
  for (uint64_t place = 0; place < places_.size(); ++place) {
    places_[place].free = free_.insert(free_.end(), place);
  }
}

std::list<StagingPlaces::Borrower>::iterator StagingPlaces::Find(uint64_t borrower) {
  return std::ranges::find(borrowers_, borrower, &Borrower::id);
}

uint64_t StagingPlaces::Join(absl::AnyInvocable<void()> on_change) {
  borrowers_.push_back({++borrowers_ever_, std::move(on_change)});
  return borrowers_ever_;
}

void StagingPlaces::Leave(uint64_t borrower) {
  const auto found = Find(borrower);
  if (found == borrowers_.end()) return;
  borrowers_.erase(found);
  Wake();
}

std::optional<StagingPlaces::Place> StagingPlaces::Take(
    const std::shared_ptr<StagingPlaces>& from, uint64_t borrower,
    absl::FunctionRef<bool(uint64_t offset)> avoided) {
  if (!from->populated_ || from->free_.empty()) return std::nullopt;
  const auto wanted = std::ranges::find_if(
      from->free_, [&](uint64_t place) { return !avoided(place * from->block_bytes_); });
  const uint64_t place = wanted == from->free_.end() ? from->free_.front() : *wanted;
  return std::make_optional<Place>(Lend(from, borrower, place));
}

std::optional<StagingPlaces::Place> StagingPlaces::TakeAgain(
    const std::shared_ptr<StagingPlaces>& from, uint64_t borrower, uint64_t offset,
    uint64_t lending) {
  const uint64_t place = offset / from->block_bytes_;
  UNREFT_CHECK(place < from->places_.size(), "no place is at {}", offset);
  const PlaceState& state = from->places_[place];
  if (!state.free || state.lendings != lending) return std::nullopt;
  return std::make_optional<Place>(Lend(from, borrower, place));
}

StagingPlaces::Place StagingPlaces::Lend(const std::shared_ptr<StagingPlaces>& from,
                                         uint64_t borrower, uint64_t place) {
  const auto found = from->Find(borrower);
  UNREFT_CHECK(found != from->borrowers_.end(), "borrower {} has left", borrower);
  from->borrowers_.splice(from->borrowers_.end(), from->borrowers_, found);
  PlaceState& state = from->places_[place];
  from->free_.erase(*std::exchange(state.free, std::nullopt));
  const uint64_t offset = place * from->block_bytes_;
  return {from, offset, ++state.lendings,
          from->segment_->bytes().subspan(offset, from->block_bytes_)};
}

void StagingPlaces::GiveBack(uint64_t offset) {
  const uint64_t place = offset / block_bytes_;
  places_[place].free = free_.insert(free_.end(), place);
  Wake();
}

void StagingPlaces::SetPopulated() {
  populated_ = true;
  Wake();
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
    : seams_(seams), options_(options) {}

StagingArea::~StagingArea() {
  for (const Kept& kept : kept_) seams_.processes.Unwatch(kept.watch);
}

void StagingArea::RemoveOld() {
  // Also those that earlier releases made, one for each plan.
  seams_.pool.RemoveOld(SegmentKind::kStaging);
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
  absl::StatusOr<std::shared_ptr<Segment>> made = seams_.pool.Make(kSegment, bytes);
  if (!made.ok()) return made.status();
  places_ =
      std::make_shared<StagingPlaces>(seams_.executor, *std::move(made), options_.block_bytes);
  seams_.pool.Populate(kSegment, lifetime_.Bind([this](absl::Status status) {
    if (status.ok()) return places_->SetPopulated();
    seams_.log.Error("staging of restores: {}", status.message());
    status_ = std::move(status);
    places_->SetFailed(status_);
    Remove();
  }));
  return absl::OkStatus();
}

absl::Status StagingArea::CheckBudget(uint64_t bytes) {
  absl::StatusOr<MemoryBudget> budget = seams_.pool.Check(bytes);
  if (!budget.ok() || budget->Fits()) return budget.status();
  return absl::ResourceExhaustedError(
      fmt::format("the staging of {} bytes, through which ranks get what other nodes hold, does "
                  "not fit: {}; give the node more memory, or start unreftd with a smaller "
                  "--restore-staging-bytes (now {})",
                  bytes, budget->Describe(), options_.restore_staging_bytes));
}

void StagingArea::Remove() {
  places_.reset();
  seams_.pool.Remove(kSegment);
}

void StagingArea::KeepUntilEnd(ProcessLife life, Holds holds) {
  if (holds.empty()) return;
  const auto kept = kept_.insert(kept_.end(), {life, WatchId::kNone, std::move(holds)});
  kept->watch = seams_.processes.Watch(life, [this, kept] { kept_.erase(kept); });
}

void StagingArea::OnTrainerDone(ProcessLife life) {
  std::erase_if(kept_, [&](const Kept& kept) {
    if (kept.life != life) return false;
    seams_.processes.Unwatch(kept.watch);
    return true;
  });
}

StagingMemory StagingArea::MemoryFor(uint64_t bytes) const {
  const uint64_t now = seams_.pool.use(SegmentKind::kStaging).bytes;
  return {.bytes = now, .lacking_bytes = bytes - std::min(bytes, now)};
}

}  // namespace unreft::smp
